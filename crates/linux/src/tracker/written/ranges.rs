//! Runs of pages to ranges that are few enough to be written down. Pure.
//!
//! Problem: a program that writes pages at random has a run per page or two, half a million in 4 GB,
//! and each look would be as many rows of a recording.
//!
//! Mechanism: as long as there are no more than [`MOST`] runs, they are told as they are. Beyond
//! that, runs in the same aligned block become one range, which knows how many of its pages are
//! there and how many were written; the block doubles until there are few enough. So memory that is
//! alike stays one range however large, and only what is mixed gets coarse.
//!
//! Properties: ranges are ascending and disjoint; pages are conserved; memory used is bounded.

use std::ops::Range;

/// Most ranges of a process: what DAMON's finest setting has, too.
pub const MOST: usize = 2000;
/// No process has as many pages: 2^52 bytes.
const WHOLE: u64 = 1 << 40;

/// A range of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// From the first to the last page that is there; between them may be some that are not.
    pub pages: Range<u64>,
    /// Pages of it that are in memory.
    pub present_count: u64,
    /// Those of them that were written.
    pub written_count: u64,
}

impl Written {
    /// All its pages are there and alike.
    fn is_pure(&self) -> bool {
        let size = self.pages.end - self.pages.start;
        self.present_count == size && (self.written_count == 0 || self.written_count == size)
    }

    fn add(&mut self, other: &Self) {
        self.pages.end = other.pages.end;
        self.present_count += other.present_count;
        self.written_count += other.written_count;
    }
}

/// Gathers the runs of one process.
#[derive(Debug)]
pub struct Ranges {
    /// Pages in a block; 1: nothing is joined that differs.
    block: u64,
    list: Vec<Written>,
}

impl Ranges {
    /// None so far.
    #[must_use]
    pub fn new() -> Self {
        Self {
            block: 1,
            list: Vec::new(),
        }
    }

    /// Adds a run of pages that are there and alike; runs come in ascending order.
    pub fn push(&mut self, pages: Range<u64>, is_written: bool) {
        let size = pages.end.saturating_sub(pages.start);
        if size == 0 {
            return;
        }
        let run = Written {
            pages,
            present_count: size,
            written_count: if is_written { size } else { 0 },
        };
        join(&mut self.list, run, self.block);
        if self.list.len() >= 2 * MOST {
            self.coarsen();
        }
    }

    /// No more than [`MOST`].
    #[must_use]
    pub fn finish(mut self) -> Vec<Written> {
        self.coarsen();
        self.list
    }

    fn coarsen(&mut self) {
        while self.list.len() > MOST && self.block < WHOLE {
            self.block *= 2;
            let finer = std::mem::take(&mut self.list);
            for range in finer {
                join(&mut self.list, range, self.block);
            }
        }
    }
}

/// Adds a range behind others, as one with the last where both are alike, or lie in one block.
fn join(list: &mut Vec<Written>, range: Written, block: u64) {
    if let Some(last) = list.last_mut() {
        let touches = last.pages.end == range.pages.start;
        let alike = last.is_pure()
            && range.is_pure()
            && (last.written_count == 0) == (range.written_count == 0);
        let in_one_block = block > 1 && last.pages.start / block == (range.pages.end - 1) / block;
        if touches && alike || in_one_block {
            last.add(&range);
            return;
        }
    }
    list.push(range);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gathered(runs: &[(Range<u64>, bool)]) -> Vec<Written> {
        let mut ranges = Ranges::new();
        for (pages, is_written) in runs {
            ranges.push(pages.clone(), *is_written);
        }
        ranges.finish()
    }

    fn of(pages: Range<u64>, present_count: u64, written_count: u64) -> Written {
        Written {
            pages,
            present_count,
            written_count,
        }
    }

    #[test]
    fn few_runs_are_told_as_they_are() {
        let runs = [
            (5..7, true),
            (7..9, true),
            (9..20, false),
            (30..31, true),
            (40..40, true),
        ];
        assert_eq!(
            gathered(&runs),
            [of(5..9, 4, 4), of(9..20, 11, 0), of(30..31, 1, 1)]
        );
    }

    #[test]
    fn what_is_mixed_gets_coarse_and_what_is_alike_stays() {
        // A 4 GB array of which every other page was written, behind one that was not.
        let mut runs = vec![(0..1 << 20, false)];
        runs.extend((1 << 20..2 << 20).map(|page| (page..page + 1, page % 2 == 0)));
        let ranges = gathered(&runs);
        assert_eq!(ranges[0], of(0..1 << 20, 1 << 20, 0));
        // 2^20 runs in no more than 1999 blocks: 1024 pages each, half of them written.
        assert_eq!(ranges.len(), 1 + 1024);
        assert!(
            ranges[1..]
                .iter()
                .all(|r| r.present_count == 1024 && r.written_count == 512)
        );
    }

    #[test]
    fn scattered_pages_are_bounded_too() {
        // One page in each 2 MB of 64 GB: holes are joined where there is no other way.
        let runs: Vec<_> = (0..1u64 << 15)
            .map(|n| (n * 512..n * 512 + 1, true))
            .collect();
        let ranges = gathered(&runs);
        assert_eq!(ranges.len(), 1024);
        assert!(
            ranges
                .iter()
                .all(|r| r.present_count == 32 && r.written_count == 32)
        );
    }

    proptest! {
        #[test]
        fn pages_are_conserved_in_order(
            steps in prop::collection::vec((0u64..300, 1u64..40, any::<bool>()), 0..9000),
        ) {
            let mut next = 0;
            let runs: Vec<_> = steps
                .iter()
                .map(|&(gap, size, is_written)| {
                    let start = next + gap;
                    next = start + size;
                    (start..next, is_written)
                })
                .collect();
            let ranges = gathered(&runs);
            prop_assert!(ranges.len() <= MOST);
            prop_assert!(ranges.windows(2).all(|two| two[0].pages.end <= two[1].pages.start));
            let size = |pages: &Range<u64>| pages.end - pages.start;
            let present: u64 = runs.iter().map(|(pages, _)| size(pages)).sum();
            let written = runs.iter().filter(|(_, is_written)| *is_written);
            prop_assert_eq!(ranges.iter().map(|r| r.present_count).sum::<u64>(), present);
            prop_assert_eq!(
                ranges.iter().map(|r| r.written_count).sum::<u64>(),
                written.map(|(pages, _)| size(pages)).sum::<u64>()
            );
            prop_assert!(ranges.iter().all(|r| r.written_count <= r.present_count
                && r.present_count <= size(&r.pages)));
        }
    }
}
