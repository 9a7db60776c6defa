//! Samples that name their process, summed up by page, with where each page is.
//!
//! Homes are asked for once an interval and page, in bulk, by the query form of `move_pages(2)`:
//! a sample of `perf_event_open(2)` has no frame that could be believed (physical addresses are
//! hidden from most users), unlike one of the lab's device; see [`super::aggregate`] for those.
//!
//! A home is where the page is when it is asked for: of a page that moved between the sample and
//! the question it is the new one.

use super::aggregate::runs;
use crate::proc::tree::{Process, Tree};
use crate::sys::{self, PAGE_IS_HUGE, PAGE_IS_PRESENT};
use hither_core::ids::{NodeId, Pid};
use hither_core::snapshot::{NodeCounts, PageStats};
use std::collections::HashMap;

/// Pages per query.
const QUERY_PAGES: usize = 4096;
/// Unsampled pages that one scan for huge pages covers.
const SCAN_GAP: u64 = 1 << 13;

/// The pages of an interval.
#[derive(Debug, Default)]
pub(super) struct ByPage {
    index: HashMap<(i32, u64), usize>,
    scan_refused: bool,
    addresses: Vec<u64>,
    status: Vec<i32>,
    unknown: Vec<(u64, u32)>,
}

impl ByPage {
    /// Begins an interval.
    pub fn begin(&mut self, pages: &mut Vec<PageStats>) {
        pages.clear();
        self.index.clear();
    }

    /// The entry of a page of a watched process; a new one has no counts.
    pub fn entry<'a>(
        &mut self,
        pid: i32,
        page: u64,
        pages: &'a mut Vec<PageStats>,
    ) -> &'a mut PageStats {
        let index = *self.index.entry((pid, page)).or_insert_with(|| {
            pages.push(PageStats {
                pid: Pid(pid),
                page,
                home: NodeId(u32::MAX),
                reads: NodeCounts::new(),
                writes: NodeCounts::new(),
                huge: false,
            });
            pages.len() - 1
        });
        &mut pages[index]
    }

    /// Ends the interval: finds out where the pages are, and drops those that are gone. They are
    /// ascending by process and page afterwards.
    pub fn finish(&mut self, tree: &Tree, pages: &mut Vec<PageStats>) {
        self.index.clear();
        pages.sort_unstable_by_key(|page| (page.pid, page.page));
        for own in pages.chunk_by_mut(|a, b| a.pid == b.pid) {
            let pid = own[0].pid.0;
            own.chunks_mut(QUERY_PAGES)
                .for_each(|chunk| self.find_homes(pid, chunk));
            let process = tree.processes().iter().find(|process| process.pid == pid);
            if let Some(process) = process {
                self.mark_huge(process, own);
            }
        }
        pages.retain(|page| page.home != NodeId(u32::MAX));
    }

    fn find_homes(&mut self, pid: i32, pages: &mut [PageStats]) {
        self.addresses.clear();
        self.addresses
            .extend(pages.iter().map(|page| page.page << 12));
        self.status.clear();
        self.status.resize(pages.len(), -1);
        if sys::query_pages(pid, &self.addresses, &mut self.status).is_err() {
            return;
        }
        for (page, &status) in pages.iter_mut().zip(&self.status) {
            if let Ok(node) = u32::try_from(status) {
                page.home = NodeId(node);
            }
        }
    }

    fn mark_huge(&mut self, process: &Process, pages: &mut [PageStats]) {
        let Some(map) = process.pagemap.as_ref().filter(|_| !self.scan_refused) else {
            return;
        };
        self.unknown.clear();
        self.unknown
            .extend((0u32..).zip(&*pages).map(|(at, page)| (page.page, at)));
        for run in runs(&self.unknown, 0, SCAN_GAP, u64::MAX) {
            let (start, end) = (run[0].0, run[run.len() - 1].0 + 1);
            let scanned = map.scan(start..end, PAGE_IS_PRESENT | PAGE_IS_HUGE, |huge| {
                let from = run.partition_point(|&(page, _)| page < huge.start);
                for &(_, at) in run[from..].iter().take_while(|&&(page, _)| page < huge.end) {
                    pages[at as usize].huge = true;
                }
            });
            if scanned.is_err() {
                self.scan_refused = true;
                return;
            }
        }
    }
}

/// The home of a page among [`ByPage::finish`]'s.
pub(super) fn home_of(pages: &[PageStats], pid: i32, page: u64) -> Option<NodeId> {
    let found = pages.binary_search_by_key(&(Pid(pid), page), |stats| (stats.pid, stats.page));
    found.ok().map(|at| pages[at].home)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Root;
    use std::process::Command;

    #[test]
    fn pages_are_summed_up_and_found() {
        let memory = vec![1u8; 64 << 10];
        let first = (memory.as_ptr() as u64).div_ceil(4096);
        let own = std::process::id() as i32;
        let mut ended = Command::new("true").spawn().unwrap();
        let gone = ended.id() as i32;
        ended.wait().unwrap();
        let tree = Tree::new(Root::host(), own);
        let (mut by_page, mut pages) = (ByPage::default(), Vec::new());
        for _ in 0..2 {
            by_page.begin(&mut pages);
            for page in [first + 3, first, first + 3] {
                let entry = by_page.entry(own, page, &mut pages);
                entry.reads.add(1, 1);
            }
            // Nothing is mapped there; and nobody has that number.
            by_page.entry(own, 1, &mut pages).reads.add(0, 1);
            by_page.entry(gone, first, &mut pages).reads.add(0, 1);
            by_page.finish(&tree, &mut pages);
            let found: Vec<_> = pages
                .iter()
                .map(|page| (page.page - first, page.reads.get(1)))
                .collect();
            assert_eq!(found, [(0, 1), (3, 2)]);
            assert_eq!(home_of(&pages, own, first), Some(pages[0].home));
            assert_eq!(home_of(&pages, own, first + 1), None);
            assert_ne!(pages[0].home, NodeId(u32::MAX));
        }
    }
}
