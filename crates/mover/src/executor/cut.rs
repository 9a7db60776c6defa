//! Cuts runs of pages into parts that end between huge pages wherever they can.
//!
//! The kernel moves a huge page whole: cut in two, its second part would count as there already.

use hither_core::snapshot::HUGE_PAGES;
use std::ops::Range;

/// Ascending runs of pages, taken from the front.
#[derive(Clone, Debug, Default)]
pub struct Cutter {
    runs: Vec<Range<u64>>,
    /// Index of the first run that is left.
    next: usize,
    /// First page of it that is left.
    at: u64,
    left: u64,
}

impl Cutter {
    /// All of these.
    #[must_use]
    pub fn new(runs: Vec<Range<u64>>) -> Self {
        Self {
            left: count(&runs),
            at: runs.first().map_or(0, |run| run.start),
            next: 0,
            runs,
        }
    }

    /// Pages that are left.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
    }

    /// At most `limit` pages, ending between huge pages where `limit` allows it.
    pub fn next(&mut self, limit: u64) -> Vec<Range<u64>> {
        self.cut(limit, true)
    }

    /// The same; where not even a huge page's part up to its end is within the limit, it is cut only
    /// if `may_split`.
    pub(super) fn cut(&mut self, limit: u64, may_split: bool) -> Vec<Range<u64>> {
        let mut part = Vec::new();
        let mut taken = 0;
        while let Some(run) = self.runs.get(self.next) {
            let mut end = run.end.min(self.at + (limit - taken));
            if end < run.end {
                let boundary = end / HUGE_PAGES * HUGE_PAGES;
                let may_end_here = boundary == self.at && (taken > 0 || !may_split);
                if boundary > self.at || may_end_here {
                    end = boundary;
                } else if boundary < self.at && !may_split {
                    end = self.at;
                }
            }
            if end == self.at {
                break;
            }
            part.push(self.at..end);
            taken += end - self.at;
            self.at = end;
            if end < run.end {
                break;
            }
            self.next += 1;
            self.at = self.runs.get(self.next).map_or(0, |run| run.start);
        }
        self.left -= taken;
        part
    }
}

/// Pages in runs.
#[must_use]
pub fn count(runs: &[Range<u64>]) -> u64 {
    runs.iter().map(|run| run.end - run.start).sum()
}

/// Ascending pages as runs.
#[must_use]
pub fn runs(pages: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(last) if last.end == page => last.end += 1,
            _ => runs.push(page..page + 1),
        }
    }
    runs
}

#[cfg(test)]
#[expect(
    clippy::single_range_in_vec_init,
    reason = "a cut is a list of runs, of one here and there"
)]
mod tests {
    use super::*;

    #[test]
    fn parts_end_between_huge_pages() {
        let mut cutter = Cutter::new(vec![100..40_100]);
        // Page 100 + 16384 lies within a huge page; the last boundary before it is 16384.
        assert_eq!(cutter.next(16_384), [100..16_384]);
        assert_eq!(cutter.next(16_384), [16_384..32_768]);
        assert_eq!(cutter.left(), 7332);
        assert_eq!(cutter.next(16_384), [32_768..40_100]);
        assert!(cutter.next(512).is_empty());
    }

    #[test]
    fn a_huge_page_is_split_only_where_that_is_allowed() {
        let mut cutter = Cutter::new(vec![512..1536]);
        assert!(cutter.cut(300, false).is_empty());
        assert_eq!(cutter.cut(300, true), [512..812]);
        assert!(cutter.cut(100, false).is_empty());
        assert_eq!(cutter.cut(212, false), [812..1024]);
        assert_eq!(cutter.cut(700, false), [1024..1536]);
    }

    #[test]
    fn many_small_runs_share_a_part_and_none_is_lost() {
        let all: Vec<Range<u64>> = (0..5000).map(|run| run * 10..run * 10 + 7).collect();
        let mut cutter = Cutter::new(all.clone());
        let mut pages = Vec::new();
        while cutter.left() > 0 {
            let left = cutter.left();
            let part = cutter.next(1000);
            assert_eq!(cutter.left(), left - count(&part));
            assert!((1..=1000).contains(&count(&part)));
            pages.extend(part.into_iter().flatten());
        }
        assert!(pages.iter().copied().eq(all.iter().cloned().flatten()));
        assert_eq!(runs(pages), all);
    }
}
