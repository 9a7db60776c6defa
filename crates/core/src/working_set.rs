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
/// Length of a window in us. Two are kept: the one that fills, and the one before.
const WINDOW_US: u64 = 500_000;

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

/// Working sets of all address spaces, named as the caller likes.
#[derive(Debug)]
pub struct WorkingSets<K> {
    /// The window before, and the one that fills.
    windows: BTreeMap<K, [Window; 2]>,
    turned_us: u64,
}

impl<K> Default for WorkingSets<K> {
    fn default() -> Self {
        Self {
            windows: BTreeMap::new(),
            turned_us: 0,
        }
    }
}

impl<K: Ord> WorkingSets<K> {
    /// Takes in a sample: the number of a line in its address space.
    pub fn take(&mut self, space: K, line: u64) {
        self.windows.entry(space).or_default()[1].take(line);
    }

    /// Goes on in time; what is older than two windows is forgotten.
    pub fn turn(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.turned_us) < WINDOW_US {
            return;
        }
        self.turned_us = now_us;
        self.windows.retain(|_, windows| {
            windows.swap(0, 1);
            windows[1] = Window::default();
            windows[0].samples > 0
        });
    }

    /// Lines of a working set; `None` where too little was sampled.
    #[must_use]
    pub fn lines(&self, space: &K) -> Option<u64> {
        let windows = self.windows.get(space)?;
        let squares = |window: &Window| window.samples * window.samples.saturating_sub(1);
        let pairs: u64 = windows.iter().map(|window| window.pairs).sum();
        let all: u64 = windows.iter().map(squares).sum();
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
        sets.turn(600_000);
        assert!(sets.lines(&1).is_some(), "the window before counts");
        sets.turn(1_200_000);
        assert_eq!(sets.lines(&1), None);
    }
}
