//! Working sets of last-level caches, from samples of the accesses that reach them.
//!
//! A sample names a line. Of `n` samples over `W` lines that are used alike, about `n * (n - 1) / (2 * W)` pairs name the
//! same line; so `W` follows from the pairs long before every line was sampled (capture and recapture). Where lines
//! are used unalike, the same quotient is the inverse of Simpson's index: the number of lines that would be used
//! alike with as many pairs, so that those count which a cache is asked for again. A stream that passes by gives no
//! pairs and a large set, as it should: no cache holds it.

use std::collections::{BTreeMap, HashMap};

/// Pairs from which a size is told: its standard error is then one part in four.
const LEAST_PAIRS: u64 = 16;
/// Samples of a space from which a set without pairs is told to be large.
const LEAST_SAMPLES: u64 = 4000;
/// Samples of a space that are kept at the most; later ones of a window are left out.
const MOST_SAMPLES: u64 = 1 << 15;
/// Least length of a window in us. Two are kept: the one that fills, and the one before.
const WINDOW_US: u64 = 500_000;
/// Length at which a window ends that has too few pairs. It does not end sooner for want of them: of many short
/// windows of a large set one has enough by chance, and tells too small a set.
const LONGEST_US: u64 = 4_000_000;

/// Lines that were used in a window.
#[derive(Debug, Default)]
struct Window {
    counts: HashMap<u64, u32>,
    samples: u64,
    pairs: u64,
}

impl Window {
    fn take(&mut self, line: u64) {
        if self.samples == MOST_SAMPLES {
            return;
        }
        let count = self.counts.entry(line).or_default();
        self.pairs += u64::from(*count);
        *count += 1;
        self.samples += 1;
    }
}

/// An address space.
#[derive(Debug, Default)]
struct Space {
    before: Window,
    filling: Window,
    since_us: u64,
}

/// Working sets of all address spaces, named as the caller likes.
#[derive(Debug)]
pub struct WorkingSets<K> {
    spaces: BTreeMap<K, Space>,
    now_us: u64,
}

impl<K> Default for WorkingSets<K> {
    fn default() -> Self {
        Self {
            spaces: BTreeMap::new(),
            now_us: 0,
        }
    }
}

impl<K: Ord> WorkingSets<K> {
    /// Takes in a sample: the number of a line in its address space.
    pub fn take(&mut self, space: K, line: u64) {
        let space = self.spaces.entry(space).or_insert_with(|| Space {
            since_us: self.now_us,
            ..Space::default()
        });
        space.filling.take(line);
    }

    /// Goes on in time; what is older than two windows is forgotten.
    pub fn turn(&mut self, now_us: u64) {
        self.now_us = now_us;
        self.spaces.retain(|_, space| {
            let age_us = now_us.saturating_sub(space.since_us);
            let least_us = match space.filling.pairs >= LEAST_PAIRS {
                true => WINDOW_US,
                false => LONGEST_US,
            };
            if age_us >= least_us {
                space.before = std::mem::take(&mut space.filling);
                space.since_us = now_us;
            }
            space.before.samples + space.filling.samples > 0
        });
    }

    /// Lines of a working set; `None` where too little was sampled.
    #[must_use]
    pub fn lines(&self, space: &K) -> Option<u64> {
        let space = self.spaces.get(space)?;
        let windows = [&space.before, &space.filling];
        let squares = |window: &Window| window.samples * window.samples.saturating_sub(1);
        let pairs: u64 = windows.iter().map(|window| window.pairs).sum();
        let all: u64 = windows.into_iter().map(squares).sum();
        let samples: u64 = windows.iter().map(|window| window.samples).sum();
        (pairs >= LEAST_PAIRS || samples >= LEAST_SAMPLES).then(|| all / 2 / pairs.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::random::Random;

    fn told(lines: u64, samples: u64) -> Option<u64> {
        let mut random = Random::new(lines ^ samples);
        let mut sets = WorkingSets::default();
        for _ in 0..samples {
            sets.take(1, (random.unit() * lines as f64) as u64);
        }
        sets.lines(&1)
    }

    #[test]
    fn a_set_is_told_from_fewer_samples_than_it_has_lines() {
        for lines in [256, 16_384, 65_536, 131_072] {
            let size = told(lines, 4000).unwrap() as f64;
            assert!(
                (0.7..1.4).contains(&(size / lines as f64)),
                "{lines}: {size}"
            );
        }
        assert_eq!(told(65_536, 100), None, "too few");
    }

    #[test]
    fn what_is_used_more_counts_more() {
        // Nine of ten accesses go to a tenth of the lines.
        let mut random = Random::new(7);
        let mut sets = WorkingSets::default();
        for _ in 0..8000 {
            let hot = random.unit() < 0.9;
            let line = match hot {
                true => (random.unit() * 5000.0) as u64,
                false => 5000 + (random.unit() * 45_000.0) as u64,
            };
            sets.take(1, line);
        }
        let size = sets.lines(&1).unwrap();
        assert!((4500..9000).contains(&size), "{size}");
    }

    #[test]
    fn a_stream_is_large_and_the_past_is_forgotten() {
        let mut sets = WorkingSets::default();
        (0..5000).for_each(|line| sets.take(1, line));
        assert!(sets.lines(&1).unwrap() > 10_000_000);
        sets.turn(4_000_000);
        assert!(sets.lines(&1).is_some(), "the window before counts");
        sets.turn(8_000_000);
        assert_eq!(sets.lines(&1), None);
    }

    #[test]
    fn a_large_set_that_is_seldom_sampled_is_told_late_and_not_too_small() {
        // 450 samples in each half second, of 6 MiB.
        let lines = 98_304.0;
        let mut ratios = Vec::new();
        for seed in 0..40 {
            let mut random = Random::new(seed);
            let mut sets = WorkingSets::default();
            let told = (1..=8).find_map(|half| {
                (0..450).for_each(|_| sets.take(1, (random.unit() * lines) as u64));
                sets.turn(half * 500_000);
                sets.lines(&1)
            });
            ratios.push(told.expect("told within 4 s") as f64 / lines);
        }
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        assert!((0.85..1.15).contains(&mean), "{mean}: {ratios:?}");
    }
}
