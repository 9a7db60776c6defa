//! Stream detection and dependence: which misses a core overlaps, and which it waits for.
//!
//! *Streams.* A table of the last places that missed. A miss one or two lines beyond one of
//! them continues it; from the third on the stream counts as prefetched, so it costs bandwidth
//! and not latency. Sixteen streams cover glibc's copy of four pages at a time, both ways.
//!
//! *Dependence.* A miss depends on an earlier one when its address was computed from the value
//! which that one loaded: the address is within a page of the value (a pointer and an offset in a
//! structure), or differs from a multiple of it by the same base as at this instruction's last
//! miss (an index into an array). Registers are not followed; computed addresses (hashes of the
//! loaded value) therefore count as independent. Following registers in every instruction was
//! rejected: it would cost more than all other work of the plugin.

const STREAMS: usize = 16;
/// Lines that must have followed each other before a stream is trusted.
const TRAINING: u8 = 2;

#[derive(Clone, Copy, Default)]
struct Stream {
    last: u64,
    /// +1 or -1 once known, 0 before.
    direction: i8,
    confidence: u8,
}

/// The stream table of one vCPU, most recently used first.
pub struct Streams {
    table: [Stream; STREAMS],
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            table: [Stream::default(); STREAMS],
        }
    }
}

impl Streams {
    /// A miss on this (virtual) line: does it belong to a trained stream?
    #[inline(always)]
    pub fn miss(&mut self, line: u64) -> bool {
        let latest = &mut self.table[0];
        if line.wrapping_sub(latest.last) == latest.direction as u64
            && latest.confidence >= TRAINING
        {
            latest.last = line;
            return true;
        }
        self.search(line)
    }

    fn search(&mut self, line: u64) -> bool {
        for index in 0..STREAMS {
            let stream = &mut self.table[index];
            let delta = line.wrapping_sub(stream.last) as i64;
            if !(-2..=2).contains(&delta) || stream.last == 0 {
                continue;
            }
            if delta == 0 {
                return stream.confidence >= TRAINING;
            }
            let direction = delta.signum() as i8;
            if stream.direction == direction {
                stream.confidence = (stream.confidence + 1).min(TRAINING);
            } else {
                stream.direction = direction;
                stream.confidence = 1;
            }
            stream.last = line;
            let trained = stream.confidence >= TRAINING;
            self.table[..=index].rotate_right(1);
            return trained;
        }
        self.table.rotate_right(1);
        self.table[0] = Stream {
            last: line,
            direction: 0,
            confidence: 0,
        };
        false
    }
}

const VALUES: usize = 4;
const SITES: usize = 64;
const SCALES: [u64; 3] = [4, 8, 64];
/// A pointer's structure may reach this far on either side.
const REACH: u64 = 4096;

#[derive(Clone, Copy, Default)]
struct Site {
    pc: u64,
    /// Address minus scale times value at this instruction's last miss.
    bases: [u64; SCALES.len()],
}

/// Recently loaded values and per-instruction bases of one vCPU.
pub struct Dependence {
    values: [u64; VALUES],
    next: usize,
    sites: [Site; SITES],
}

impl Default for Dependence {
    fn default() -> Self {
        Self {
            values: [0; VALUES],
            next: 0,
            sites: [Site::default(); SITES],
        }
    }
}

impl Dependence {
    /// Does this address come from a value loaded by one of the last misses?
    pub fn check(&mut self, pc: u64, address: u64) -> bool {
        let pointer = |value: u64| {
            value > REACH && address.wrapping_sub(value).wrapping_add(REACH / 2) < REACH * 3 / 2
        };
        let site = &mut self.sites[(pc ^ pc >> 6) as usize % SITES];
        let known = site.pc == pc;
        let indexed = |value: u64| {
            SCALES
                .iter()
                .zip(&site.bases)
                .any(|(scale, base)| address.wrapping_sub(value.wrapping_mul(*scale)) == *base)
        };
        let dependent = self
            .values
            .iter()
            .any(|&value| pointer(value) || known && value != 0 && indexed(value));
        let latest = self.values[(self.next + VALUES - 1) % VALUES];
        site.pc = pc;
        for (base, scale) in site.bases.iter_mut().zip(SCALES) {
            *base = address.wrapping_sub(latest.wrapping_mul(scale));
        }
        dependent
    }

    /// A miss loaded this value.
    pub fn loaded(&mut self, value: u64) {
        self.values[self.next] = value;
        self.next = (self.next + 1) % VALUES;
    }
}

/// Load misses that a core's reorder buffer holds together: the first is waited for, and the others
/// with it.
#[derive(Default)]
pub struct Burst {
    /// Value of the computing clock at the first.
    begun_ps: u64,
    misses: u32,
}

impl Burst {
    /// A miss at this value of the computing clock: does it belong to the burst, of no more than
    /// `most` within `window_ps` of computing? Otherwise it begins another.
    pub fn joins(&mut self, now_ps: u64, window_ps: u64, most: u32) -> bool {
        let joins = self.misses < most && now_ps.saturating_sub(self.begun_ps) < window_ps;
        if joins {
            self.misses += 1;
        } else {
            (self.begun_ps, self.misses) = (now_ps, 1);
        }
        joins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_overlap_while_the_reorder_buffer_holds_them() {
        let joined = |times: &[u64], most: u32| {
            let mut burst = Burst::default();
            let joins = times.iter().map(|&now| burst.joins(1000 + now, 100, most));
            joins.collect::<Vec<_>>()
        };
        assert_eq!(joined(&[0, 50, 99, 100], 4), [false, true, true, false]);
        assert_eq!(joined(&[0, 10, 20, 30], 2), [false, true, false, true]);
        assert_eq!(joined(&[0, 10, 20], 1), [false, false, false]);
    }

    #[test]
    fn forward_backward_and_interleaved_streams_train() {
        let mut streams = Streams::default();
        for step in 0..100u64 {
            for (start, sign) in [(1_000u64, 1i64), (50_000, 1), (90_000, -1), (200_000, 1)] {
                let line = start.wrapping_add_signed(sign * step as i64);
                assert_eq!(streams.miss(line), step >= 2, "start {start} step {step}");
            }
        }
    }

    #[test]
    fn random_misses_are_no_stream() {
        let mut streams = Streams::default();
        let mut state = 88172645463325252u64;
        let mut hits = 0;
        for _ in 0..10_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            hits += u64::from(streams.miss(state % 1_000_000));
        }
        assert!(
            hits < 10,
            "{hits} of 10,000 random misses looked like streams"
        );
    }

    #[test]
    fn pointer_chase_depends() {
        let mut dependence = Dependence::default();
        dependence.loaded(0x7f00_1000);
        assert!(dependence.check(0x40_1000, 0x7f00_1010));
        assert!(!dependence.check(0x40_1000, 0x7f90_0000));
    }

    #[test]
    fn index_chase_depends_from_the_second_miss() {
        // i = next[i] with 8-byte elements at 0x10000000.
        let mut dependence = Dependence::default();
        let base = 0x1000_0000u64;
        dependence.loaded(70_001);
        dependence.check(0x40_1000, base + 8 * 70_001);
        dependence.loaded(12_345);
        assert!(dependence.check(0x40_1000, base + 8 * 12_345));
    }

    #[test]
    fn table_updates_at_random_places_are_independent() {
        let mut dependence = Dependence::default();
        let mut state = 1u64;
        let mut dependent = 0;
        for _ in 0..10_000 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            dependent += u64::from(dependence.check(0x40_2000, 0x2000_0000 + (state >> 40) * 8));
            dependence.loaded(state >> 7);
        }
        assert!(dependent < 10, "{dependent} of 10,000");
    }
}
