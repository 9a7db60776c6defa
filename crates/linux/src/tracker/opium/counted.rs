//! Samples counted by frame: which pages are the hottest.
//!
//! Problem: how well pages can be ranked is a matter of how many samples there are. By Zipf's law over
//! 65,536 pages the one in rank 6,553 has one sample of 40,000, and the hottest tenth is known to 95 %
//! once such a page has six or so. With an entry per page and interval, or a record per sample, a
//! sample costs 1.4 to 4 us in the lab; counted here, a twentieth of that.
//!
//! Mechanism: one number per frame, in chunks that are made when they are needed. A sample is one
//! addition; whose the frame is, is found in a page map when somebody asks for a process's pages.
//! Samples are not weighted by the period they were taken at: all pages share it, so that their numbers
//! alone say which has more, and a weight would give the few samples of a coarse period more say than
//! they have information.
//!
//! **When use changes**, what was counted before must go. The share of pairs of samples that are of
//! one frame is the sum of the squares of all frames' shares, however many samples there are. So the
//! samples of an interval *meet* those that were counted before as often as those met each other,
//! while use is as it was; by what share they meet less often, so large is the share of accesses that
//! has gone elsewhere. It costs an addition, of the number that is read anyway. All that was counted
//! is forgotten then, the interval included, since the change was somewhere within it.
//!
//! Properties: a page that moves begins anew, and the frame it left may go on as another's: numbers of
//! a process are of what its page map says when it is asked. Changes of less than [`GONE`] of the
//! accesses go unnoticed, and fade as new samples come in.

use super::rate::{FULL_COST, PRICE_WINDOW, is_worth_a_change};
use super::{COUNTERS, OpiumTracker, Sums};
use crate::sys;
use hither_core::opium::ring;
use hither_core::snapshot::{Evidence, Snapshot};

/// log2 of the frames in a chunk: 128 KiB for 128 MiB of memory.
const CHUNK_SHIFT: u32 = 15;
/// Most chunks: 1 TiB of memory. What lies beyond is not counted.
const MOST_CHUNKS: usize = 1 << 13;
/// Share of the accesses that must have gone elsewhere for use to have changed.
const GONE: f64 = 0.25;
/// Meetings that must be expected before a lack of them means anything; and how many standard
/// deviations count as chance.
const LEAST_MEETINGS: f64 = 100.0;
const CHANCE: f64 = 4.0;
/// Share of the budget that samples aim at: who asks for a list finds processes and reads page maps.
const AIM: f64 = 0.8;
/// Shortest period. What the rings do not hold is lost, and counted as such.
const LEAST_PERIOD: f64 = 16.0;

/// Numbers of samples by frame.
#[derive(Debug, Default)]
pub struct FrameCounts {
    /// Empty where nothing was sampled.
    chunks: Vec<Box<[u32]>>,
    total: u64,
    /// Samples, meetings and squares of meetings of this interval.
    added: u64,
    met: u64,
    met_squares: u64,
    /// Meetings, their squares, and pairs that could have met, of the intervals before.
    met_before: f64,
    squares_before: f64,
    pairs_before: f64,
    changes: u64,
}

impl FrameCounts {
    /// Samples of a frame.
    #[must_use]
    pub fn of(&self, frame: u64) -> u32 {
        let chunk = self.chunks.get((frame >> CHUNK_SHIFT) as usize);
        let inside = (frame % (1 << CHUNK_SHIFT)) as usize;
        chunk.and_then(|chunk| chunk.get(inside)).map_or(0, |&n| n)
    }

    /// Samples of all frames.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How often use has changed, so that all was forgotten.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    fn add(&mut self, frame: u64) {
        let number = (frame >> CHUNK_SHIFT) as usize;
        let inside = (frame % (1 << CHUNK_SHIFT)) as usize;
        let Some(count) = self
            .chunks
            .get_mut(number)
            .and_then(|chunk| chunk.get_mut(inside))
        else {
            return self.add_chunk(number, inside);
        };
        let met = u64::from(*count);
        *count += 1;
        self.added += 1;
        self.met += met;
        self.met_squares += met * met;
    }

    #[cold]
    fn add_chunk(&mut self, number: usize, inside: usize) {
        if number >= MOST_CHUNKS {
            return;
        }
        if self.chunks.len() <= number {
            self.chunks.resize_with(number + 1, Box::default);
        }
        let mut chunk = vec![0; 1 << CHUNK_SHIFT].into_boxed_slice();
        chunk[inside] = 1;
        self.chunks[number] = chunk;
        self.added += 1;
    }

    /// Ends an interval: forgets everything where use has changed in it.
    fn finish(&mut self) {
        let added = self.added as f64;
        // Each with those before it, of this interval too.
        let pairs = added * (self.total as f64 + (added - 1.0).max(0.0) / 2.0);
        let expected = match self.pairs_before > 0.0 {
            true => self.met_before / self.pairs_before * pairs,
            false => 0.0,
        };
        // What chance makes of it, now and in what was expected.
        let at_most = self.met as f64 + CHANCE * (self.met_squares as f64).sqrt();
        let error = CHANCE * self.squares_before.sqrt() / self.met_before.max(1.0);
        let at_least = (1.0 - GONE) * expected * (1.0 - error);
        if expected >= LEAST_MEETINGS && at_most < at_least {
            self.changes += 1;
            self.forget();
        } else {
            self.total += self.added;
            self.met_before += self.met as f64;
            self.squares_before += self.met_squares as f64;
            self.pairs_before += pairs;
        }
        (self.added, self.met, self.met_squares) = (0, 0, 0);
    }

    fn forget(&mut self) {
        self.chunks.iter_mut().for_each(|chunk| chunk.fill(0));
        self.total = 0;
        (self.met_before, self.squares_before, self.pairs_before) = (0.0, 0.0, 0.0);
    }
}

impl OpiumTracker {
    /// Counts samples by frame from now on, and tells neither pages nor observations. So many are
    /// taken as the budget pays for ([`super::super::Tracker::set_budget`]).
    pub fn count_frames(&mut self) {
        self.counted = Some(FrameCounts::default());
        self.prices_ns = [f64::INFINITY; PRICE_WINDOW];
    }

    /// What was counted since use changed last.
    #[must_use]
    pub fn frame_counts(&self) -> Option<&FrameCounts> {
        self.counted.as_ref()
    }

    /// Drains the rings into the counts; returns how many samples there were and the CPU time that took
    /// in ns.
    pub(super) fn read_counted(&mut self, snapshot: &mut Snapshot) -> (u64, u64) {
        let start_ns = sys::thread_cpu_ns();
        snapshot.pages.clear();
        let Some(counted) = &mut self.counted else {
            return (0, 0);
        };
        let (mut drained, is_sampled) = (0, self.period > 0);
        for index in 0..self.device.vcpu_count() {
            drained += self.device.drain(index, |sample| {
                let others = ring::KERNEL | ring::TRANSFER | ring::REFERENCE;
                if is_sampled && sample.flags & others == 0 {
                    counted.add(sample.paddr >> 12);
                }
            });
        }
        counted.finish();
        snapshot.sample_count = Evidence::measured(drained, COUNTERS);
        (drained, sys::thread_cpu_ns().saturating_sub(start_ns))
    }

    /// The period for the next interval: as many samples as the budget pays for after `other_ns`, the CPU
    /// time of this interval that had nothing to do with samples.
    pub(super) fn adapt_counting(
        &mut self,
        sums: &Sums,
        drained: u64,
        cost_ns: u64,
        other_ns: u64,
    ) {
        if sums.time_ns == 0 || self.period == 0 {
            return;
        }
        if drained >= 64 {
            self.prices_ns[self.price_next] = cost_ns as f64 / drained as f64;
            self.price_next = (self.price_next + 1) % PRICE_WINDOW;
        }
        let seconds = sums.time_ns as f64 / 1e9;
        // A mean, not the cheapest: what interruptions make of the price is paid as well.
        let known = self.prices_ns.iter().filter(|price| price.is_finite());
        let price_ns = known.clone().sum::<f64>() / known.count() as f64;
        let budget_ns = AIM * self.budget.unwrap_or(FULL_COST) * 1e9;
        let left_ns = (budget_ns - other_ns as f64 / seconds).max(budget_ns / 4.0);
        // No more than fill the rings by half, where all CPUs do as much.
        let held = (self.device.vcpu_count() * ring::CAPACITY) as f64 / 2.0 / seconds;
        let rate = (left_ns / price_ns).min(held);
        let fills = sums.user_reads + sums.user_writes + sums.kernel_fills;
        let period = fills as f64 / seconds / rate;
        if period.is_finite() {
            let period = period.clamp(LEAST_PERIOD, 1e9) as u32;
            if is_worth_a_change(self.period, period) {
                self.set_period(period);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws frames by weights that rise with `seed`'s own order.
    fn interval(
        counts: &mut FrameCounts,
        frames: std::ops::Range<u64>,
        samples: u64,
        seed: &mut u64,
    ) {
        for _ in 0..samples {
            *seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let share = (*seed >> 11) as f64 / (1u64 << 53) as f64;
            let length = (frames.end - frames.start) as f64;
            // Half of the samples in the first quarter.
            counts.add(frames.start + (share * share * length) as u64);
        }
        counts.finish();
    }

    #[test]
    fn samples_are_counted_wherever_the_frame_is() {
        let mut counts = FrameCounts::default();
        let far = ((MOST_CHUNKS as u64) << CHUNK_SHIFT) - 1;
        for frame in [0, 5, 5, 1 << CHUNK_SHIFT, 5, far, far, far + 1, u64::MAX] {
            counts.add(frame);
        }
        counts.finish();
        let told = [0, 1, 5, 1 << CHUNK_SHIFT, far, far + 1, u64::MAX].map(|f| counts.of(f));
        assert_eq!(told, [1, 0, 3, 1, 2, 0, 0]);
        assert_eq!((counts.total(), counts.changes()), (7, 0));
    }

    #[test]
    fn steady_use_is_kept_however_the_rate_of_samples_changes() {
        for seed in 0..200 {
            let (mut counts, mut seed) = (FrameCounts::default(), seed);
            for samples in [200, 5000, 20, 0, 20_000, 1, 700, 5000, 5000, 50_000, 300] {
                interval(&mut counts, 1000..9000, samples, &mut seed);
            }
            assert_eq!((counts.changes(), counts.total()), (0, 86_221));
        }
    }

    #[test]
    fn what_was_before_a_change_is_forgotten() {
        for seed in 0..20 {
            let (mut counts, mut seed) = (FrameCounts::default(), seed);
            for _ in 0..5 {
                interval(&mut counts, 1000..9000, 5000, &mut seed);
            }
            interval(&mut counts, 20_000..28_000, 5000, &mut seed);
            assert_eq!((counts.changes(), counts.total()), (1, 0));
            interval(&mut counts, 20_000..28_000, 5000, &mut seed);
            assert_eq!((counts.changes(), counts.total()), (1, 5000));
            assert!((1000..9000).all(|frame| counts.of(frame) == 0));
            // A part of it that moves, more than what counts as a change.
            for _ in 0..5 {
                interval(&mut counts, 20_000..28_000, 5000, &mut seed);
            }
            interval(&mut counts, 24_000..32_000, 5000, &mut seed);
            assert_eq!(counts.changes(), 2);
        }
    }
}
