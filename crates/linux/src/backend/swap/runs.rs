//! Sets of free slots: runs of pages in the pool's own memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Runs looked at for one that is long enough; behind that a shorter one will do.
const LOOK: usize = 64;

/// Disjoint byte ranges; neighbours are joined, so that what was cut comes together again.
#[derive(Debug, Default)]
pub(super) struct Runs {
    ends: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Runs {
    /// Bytes in all runs.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a range that overlaps none here.
    pub(super) fn put(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.bytes += range.end - range.start;
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &until)) = self.ends.range(..start).next_back() {
            debug_assert!(until <= start, "a slot was given back twice");
            if until == start {
                start = before;
            }
        }
        if let Some(after) = self.ends.remove(&end) {
            end = after;
        }
        self.ends.insert(start, end);
    }

    /// Takes `want` bytes in one run, or as many as one run has.
    pub(super) fn take(&mut self, want: u64) -> Option<Range<u64>> {
        let length = |(&start, &end): (&u64, &u64)| (start, end, end - start);
        let looked = || self.ends.iter().take(LOOK).map(length);
        let (start, end, _) = looked()
            .filter(|&(.., bytes)| bytes >= want)
            .min_by_key(|&(.., bytes)| bytes)
            .or_else(|| looked().max_by_key(|&(.., bytes)| bytes))?;
        let cut = end.min(start + want);
        self.ends.remove(&start);
        if cut < end {
            self.ends.insert(cut, end);
        }
        self.bytes -= cut - start;
        Some(start..cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_best_fit_is_taken_and_neighbours_join() {
        let mut runs = Runs::default();
        runs.put(0..10);
        runs.put(20..24);
        assert_eq!(runs.take(4), Some(20..24), "the one that fits best");
        assert_eq!(runs.take(4), Some(0..4));
        runs.put(0..4);
        assert_eq!(
            runs.take(99),
            Some(0..10),
            "joined again; as much as there is"
        );
        assert_eq!((runs.take(1), runs.bytes()), (None, 0));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_given_twice(wants in prop::collection::vec((1u64..40, any::<bool>()), 1..80)) {
            let mut runs = Runs::default();
            runs.put(0..200);
            let mut out: Vec<Range<u64>> = Vec::new();
            for (want, back) in wants {
                if back && !out.is_empty() {
                    let range = out.remove(want as usize % out.len());
                    runs.put(range);
                } else if let Some(range) = runs.take(want) {
                    prop_assert!(range.end - range.start <= want && !range.is_empty());
                    prop_assert!(out.iter().all(|o| o.end <= range.start || range.end <= o.start));
                    out.push(range);
                }
                let outside: u64 = out.iter().map(|range| range.end - range.start).sum();
                prop_assert_eq!(outside + runs.bytes(), 200);
            }
            out.into_iter().for_each(|range| runs.put(range));
            prop_assert_eq!(runs.take(1000), Some(0..200));
        }
    }
}
