//! Lines in one random cycle: dependent loads that nothing can guess.
//!
//! Each line of a region holds the address of another, in one random cycle over all lines. Following it, every
//! load needs the one before, and no prefetcher can guess the next. One instruction per load: the walk is
//! unrolled.

use crate::cli::Failure;
use crate::memory::{FirstNode, LINE_WORDS, RegionMemory};
use crate::random::{FastRandom, mix};
use std::sync::atomic::Ordering::Relaxed;

/// Loads per turn of the walk.
pub const UNROLL: u64 = 16;

/// Work after each load of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Rounds of plain work: a multiplication and an addition each.
    pub rounds: u64,
    /// 64-bit divisions. They take a processor long and an emulator no longer than other instructions.
    pub divisions: u64,
}

/// A region whose lines form one cycle, and where the walk stands.
#[derive(Debug)]
pub struct PointerRing {
    region: RegionMemory,
    at: *const usize,
}

// SAFETY: the pointer leads into the ring's own region, which goes with it.
unsafe impl Send for PointerRing {}

impl PointerRing {
    /// A cycle of all lines of so many bytes, which the seed decides.
    ///
    /// # Errors
    /// As [`RegionMemory::new`].
    pub fn new(bytes: usize, start: FirstNode, seed: u64) -> Result<Self, Failure> {
        let region = RegionMemory::new(bytes, start.placement)?;
        let base = region.words().as_ptr().addr();
        let line = |index: usize| &region.words()[index * LINE_WORDS];
        let lines = region.words().len() / LINE_WORDS;
        for index in 0..lines {
            line(index).store((base + index * LINE_WORDS * 8) as u64, Relaxed);
        }
        sattolo(lines, &mut FastRandom::new(seed), |one, other| {
            let value = line(one).load(Relaxed);
            line(one).store(line(other).load(Relaxed), Relaxed);
            line(other).store(value, Relaxed);
        });
        start.written(&region)?;
        let at = region.words().as_ptr().cast();
        Ok(Self { region, at })
    }

    /// Its memory.
    #[must_use]
    pub fn memory(&self) -> &RegionMemory {
        &self.region
    }

    /// Follows `turns * UNROLL` addresses.
    #[inline(never)]
    pub fn walk(&mut self, turns: u64) {
        let mut at = self.at;
        for _ in 0..turns {
            for _ in 0..UNROLL {
                // SAFETY: `at` is the first word of a line of the live region, and so is the
                // address that `new` stored in every one of those. Volatile, so that every load
                // is made.
                at = unsafe { at.read_volatile() } as *const usize;
            }
        }
        self.at = at;
    }

    /// The same with work after each load.
    #[inline(never)]
    pub fn walk_and_work(&mut self, turns: u64, work: Work) {
        let (mut at, mut sum) = (self.at, 0u64);
        // So that the compiler makes no multiplication of it.
        let divisor = std::hint::black_box(0x1_0000_0001u64);
        for _ in 0..turns * UNROLL {
            // SAFETY: as in `walk`.
            at = unsafe { at.read_volatile() } as *const usize;
            for _ in 0..work.rounds {
                sum = sum.wrapping_mul(5).wrapping_add(at.addr() as u64);
            }
            for _ in 0..work.divisions {
                sum = (sum.wrapping_add(at.addr() as u64) | 1 << 63) / divisor;
            }
        }
        std::hint::black_box(sum);
        self.at = at;
    }

    /// How many lines there are.
    #[must_use]
    pub fn lines(&self) -> u64 {
        (self.region.words().len() / LINE_WORDS) as u64
    }

    /// The line where the walk stands.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.line_of(self.at.addr())
    }

    /// Of the order of the lines: it depends on their number and the seed alone.
    #[must_use]
    pub fn checksum(&self) -> u64 {
        let words = self.region.words().iter().step_by(LINE_WORDS);
        words.fold(0, |sum, word| {
            mix(sum) ^ self.line_of(word.load(Relaxed) as usize)
        })
    }

    fn line_of(&self, address: usize) -> u64 {
        ((address - self.region.words().as_ptr().addr()) / (LINE_WORDS * 8)) as u64
    }
}

/// Sattolo's algorithm: applied to the identity, these exchanges make one cycle of all elements.
/// (S. Sattolo, "An algorithm to generate a random cyclic permutation", 1986.)
fn sattolo(count: usize, random: &mut FastRandom, mut swap: impl FnMut(usize, usize)) {
    for last in (1..count).rev() {
        swap(last, random.below(last as u64) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_permutation_is_one_cycle_of_all() {
        for count in [1usize, 2, 3, 10, 1000] {
            let mut next: Vec<usize> = (0..count).collect();
            sattolo(count, &mut FastRandom::new(count as u64), |a, b| {
                next.swap(a, b)
            });
            let mut seen = vec![false; count];
            let mut at = 0;
            for _ in 0..count {
                assert!(!seen[at], "{at} came twice in {next:?}");
                seen[at] = true;
                at = next[at];
            }
            assert_eq!(at, 0);
        }
    }

    #[test]
    fn the_walk_comes_home_after_all_lines() {
        let mut ring = PointerRing::new(64 * 4096, FirstNode::default(), 3).unwrap();
        assert_eq!(ring.lines(), 4096);
        ring.walk(1);
        assert_ne!(ring.position(), 0);
        let work = Work {
            rounds: 3,
            divisions: 2,
        };
        ring.walk_and_work(4096 / UNROLL - 1, work);
        assert_eq!(ring.position(), 0);
    }

    #[test]
    fn a_checksum_is_of_size_and_seed() {
        let of = |bytes, seed| {
            PointerRing::new(bytes, FirstNode::default(), seed)
                .unwrap()
                .checksum()
        };
        assert_eq!(of(1 << 16, 1), of(1 << 16, 1));
        assert_ne!(of(1 << 16, 1), of(1 << 16, 2));
        assert_ne!(of(1 << 16, 1), of(1 << 17, 1));
    }
}
