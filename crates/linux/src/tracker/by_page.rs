//! Samples that name their process, summed up by page, with where each page is.
//!
//! Homes are found once an interval and page, in bulk: by the frames of the page map where those
//! are told, which takes a fraction of the time, else by the query form of `move_pages(2)`. The
//! samples themselves hold no frame that could be believed (physical addresses are hidden from
//! most users), unlike those of the lab's device; see [`super::aggregate`] for those.
//!
//! A home is where the page is when it is looked for: of a page that moved between the sample and
//! the look it is the new one.

use super::aggregate::{READ_GAP, READ_PAGES, SCAN_GAP, runs};
use crate::proc::frames::FrameNodes;
use crate::proc::pagemap::{self, Pagemap};
use crate::proc::tree::Tree;
use crate::root::Root;
use crate::sys::{self, PAGE_IS_HUGE, PAGE_IS_PRESENT};
use hither_core::ids::{NodeId, Pid};
use hither_core::snapshot::{NodeCounts, PageStats};
use std::ops::Range;

/// Pages per query.
const QUERY_PAGES: usize = 4096;
/// Not found yet.
const NOWHERE: NodeId = NodeId(u32::MAX);

/// One sample: process, page, position of the accessing node, and whether it was a store.
type Access = (i32, u64, usize, bool);

/// The pages of an interval.
#[derive(Debug, Default)]
pub(super) struct ByPage {
    frames: FrameNodes,
    accesses: Vec<Access>,
    scan_refused: bool,
    entries: Vec<u64>,
    bytes: Vec<u8>,
    addresses: Vec<u64>,
    status: Vec<i32>,
    wanted: Vec<(u64, u32)>,
}

impl ByPage {
    /// For the machine below `root`.
    pub fn new(root: &Root) -> Self {
        Self {
            frames: FrameNodes::read(root),
            ..Self::default()
        }
    }

    /// Adds a sample of a watched process.
    pub fn add(&mut self, pid: i32, page: u64, position: usize, write: bool) {
        self.accesses.push((pid, page, position, write));
    }

    /// Ends the interval: fills `pages`, ascending by process and page, without those that are
    /// gone.
    pub fn finish(&mut self, tree: &Tree, pages: &mut Vec<PageStats>) {
        pages.clear();
        self.accesses.sort_unstable();
        for own in self.accesses.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let (mut reads, mut writes) = (NodeCounts::new(), NodeCounts::new());
            for &(_, _, position, write) in own {
                let counts = if write { &mut writes } else { &mut reads };
                counts.add(position, 1);
            }
            pages.push(PageStats {
                pid: Pid(own[0].0),
                page: own[0].1,
                home: NOWHERE,
                was: None,
                reads,
                writes,
                huge: false,
            });
        }
        self.accesses.clear();
        for own in pages.chunk_by_mut(|a, b| a.pid == b.pid) {
            let pid = own[0].pid.0;
            let process = tree.processes().iter().find(|process| process.pid == pid);
            self.wanted.clear();
            let numbers = own.iter().map(|stats| stats.page).zip(0..);
            self.wanted.extend(numbers);
            if let Some(map) = process.and_then(|process| process.pagemap.as_ref()) {
                self.read_homes(map, own);
                let mut wanted = std::mem::take(&mut self.wanted);
                self.each_huge(map, &wanted, |at| own[at as usize].huge = true);
                wanted.clear();
                self.wanted = wanted;
            }
            for chunk in own.chunks_mut(QUERY_PAGES) {
                self.query_homes(pid, chunk);
            }
        }
        pages.retain(|page| page.home != NOWHERE);
    }

    /// The node of each page of these ranges, ascending, that is in memory: of many pages, in bulk.
    pub fn places(&mut self, pid: i32, map: &Pagemap, ranges: &[Range<u64>]) -> Vec<(u64, NodeId)> {
        let mut found = Vec::new();
        let mut last = None;
        for span in spans(ranges) {
            self.entries.clear();
            self.entries.resize((span.end - span.start) as usize, 0);
            let read = map.read(span.start, &mut self.entries, &mut self.bytes);
            self.entries.truncate(read.unwrap_or(0));
            let before = found.len();
            for (page, &entry) in (span.start..).zip(&self.entries) {
                let Some(frame) = pagemap::frame(entry) else {
                    continue;
                };
                let is_same = matches!(&last, Some((around, _)) if Range::contains(around, &frame));
                if !is_same {
                    last = self.frames.around(frame);
                }
                found.extend(last.as_ref().map(|&(_, node)| (page, node)));
            }
            if found.len() == before {
                self.query_places(pid, span, &mut found);
            }
        }
        found
    }

    /// The same where the kernel tells no frames.
    fn query_places(&mut self, pid: i32, pages: Range<u64>, found: &mut Vec<(u64, NodeId)>) {
        for first in pages.clone().step_by(QUERY_PAGES) {
            let from = (first - pages.start) as usize;
            let present = (first..)
                .zip(self.entries.iter().skip(from).take(QUERY_PAGES))
                .filter(|&(_, &entry)| pagemap::is_present(entry));
            self.addresses.clear();
            self.addresses.extend(present.map(|(page, _)| page << 12));
            if !self.query(pid) {
                continue;
            }
            let answers = self.addresses.iter().zip(&self.status);
            found.extend(answers.filter_map(|(address, &status)| {
                Some((address >> 12, NodeId(u32::try_from(status).ok()?)))
            }));
        }
    }

    /// Homes from the frames of the page map.
    fn read_homes(&mut self, map: &Pagemap, pages: &mut [PageStats]) {
        if self.frames.is_empty() {
            return;
        }
        for run in runs(&self.wanted, 0, READ_GAP, READ_PAGES) {
            let (first, end) = (run[0].0, run[run.len() - 1].0 + 1);
            self.entries.clear();
            self.entries.resize((end - first) as usize, 0);
            let read = map.read(first, &mut self.entries, &mut self.bytes);
            self.entries.truncate(read.unwrap_or(0));
            for &(page, at) in run {
                let entry = self.entries.get((page - first) as usize);
                let frame = entry.and_then(|&entry| pagemap::frame(entry));
                if let Some(home) = frame.and_then(|frame| self.frames.node(frame)) {
                    pages[at as usize].home = home;
                }
            }
        }
    }

    /// Homes of those that are still nowhere.
    fn query_homes(&mut self, pid: i32, pages: &mut [PageStats]) {
        self.addresses.clear();
        let nowhere = pages.iter().filter(|stats| stats.home == NOWHERE);
        self.addresses.extend(nowhere.map(|stats| stats.page << 12));
        if !self.query(pid) {
            return;
        }
        let nowhere = pages.iter_mut().filter(|stats| stats.home == NOWHERE);
        for (stats, &status) in nowhere.zip(&self.status) {
            if let Ok(node) = u32::try_from(status) {
                stats.home = NodeId(node);
            }
        }
    }

    /// Asks for the status of the pages at `addresses`. Says whether there was an answer.
    fn query(&mut self, pid: i32) -> bool {
        self.status.clear();
        self.status.resize(self.addresses.len(), -1);
        !self.addresses.is_empty()
            && sys::query_pages(pid, &self.addresses, &mut self.status).is_ok()
    }

    /// Which of these pages, ascending, are parts of huge pages: `each` gets what stands beside
    /// them. None where the kernel does not tell (before Linux 6.7).
    pub fn each_huge(&mut self, map: &Pagemap, pages: &[(u64, u32)], mut each: impl FnMut(u32)) {
        if self.scan_refused {
            return;
        }
        for run in runs(pages, 0, SCAN_GAP, u64::MAX) {
            let (start, end) = (run[0].0, run[run.len() - 1].0 + 1);
            let scanned = map.scan(start..end, PAGE_IS_PRESENT | PAGE_IS_HUGE, |huge| {
                let from = run.partition_point(|&(page, _)| page < huge.start);
                let inside = run[from..].iter().take_while(|&&(page, _)| page < huge.end);
                inside.for_each(|&(_, beside)| each(beside));
            });
            if let Err(error) = scanned {
                // A process that is ending is no reason to stop asking.
                self.scan_refused = error.raw_os_error() == Some(libc::ENOTTY);
                return;
            }
        }
    }
}

/// Reads of a page map that cover these ranges, ascending.
fn spans(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut spans: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let mut first = range.start;
        while first < range.end {
            match spans.last_mut() {
                Some(last) if first - last.end <= READ_GAP && first - last.start < READ_PAGES => {
                    last.end = range.end.min(last.start + READ_PAGES);
                    first = last.end;
                }
                _ => {
                    let end = range.end.min(first + READ_PAGES);
                    spans.push(first..end);
                    first = end;
                }
            }
        }
    }
    spans
}

/// The home of a page among [`ByPage::finish`]'s.
pub(super) fn home_of(pages: &[PageStats], pid: i32, page: u64) -> Option<NodeId> {
    let found = pages.binary_search_by_key(&(Pid(pid), page), |stats| (stats.pid, stats.page));
    found.ok().map(|at| pages[at].home)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn pages_are_summed_up_and_found() {
        let memory = vec![1u8; 64 << 10];
        let first = (memory.as_ptr() as u64).div_ceil(4096);
        let own = std::process::id() as i32;
        let mut ended = Command::new("true").spawn().unwrap();
        let gone = ended.id() as i32;
        ended.wait().unwrap();
        let tree = Tree::new(Root::host(), own);
        let (mut by_page, mut pages) = (ByPage::new(&Root::host()), Vec::new());
        for _ in 0..2 {
            for page in [first + 3, first, first + 3] {
                by_page.add(own, page, 1, false);
            }
            by_page.add(own, first, 0, true);
            // Nothing is mapped there; and nobody has that number.
            by_page.add(own, 1, 0, false);
            by_page.add(gone, first, 0, false);
            by_page.finish(&tree, &mut pages);
            let found: Vec<_> = pages
                .iter()
                .map(|stats| (stats.page - first, stats.reads.get(1), stats.writes.get(0)))
                .collect();
            assert_eq!(found, [(0, 1, 1), (3, 2, 0)]);
            assert_eq!(home_of(&pages, own, first), Some(pages[0].home));
            assert_eq!(home_of(&pages, own, first + 1), None);
        }
    }

    #[test]
    fn ranges_are_read_in_spans_that_end() {
        let far = 3 * READ_PAGES;
        assert_eq!(
            spans(&[
                5..6,
                8..10,
                9 + READ_GAP..12 + READ_GAP,
                far..far + READ_PAGES + 7
            ]),
            [
                5..12 + READ_GAP,
                far..far + READ_PAGES,
                far + READ_PAGES..far + READ_PAGES + 7
            ]
        );
        assert_eq!(spans(&[]), []);
    }

    #[test]
    fn both_ways_find_the_same_homes() {
        let mut child = Command::new("sleep")
            .arg("60")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let mut tree = Tree::new(Root::host(), std::process::id() as i32);
        let mut found = Vec::new();
        for attempt in 0..500u64 {
            tree.refresh(attempt * 2_000_000).unwrap();
            let process = tree.processes().iter().find(|p| p.pid == pid);
            if let Some(map) = process.and_then(|process| process.pagemap.as_ref()) {
                found.clear();
                let end = (1 << 35) - 1;
                map.scan(0..end, PAGE_IS_PRESENT, |range| found.extend(range))
                    .unwrap();
            }
            if process.is_some_and(|process| process.name == "sleep") && found.len() > 50 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert!(found.len() > 20, "{} pages", found.len());
        let homes = |mut by_page: ByPage| {
            let mut pages = Vec::new();
            found
                .iter()
                .for_each(|&page| by_page.add(pid, page, 0, false));
            by_page.finish(&tree, &mut pages);
            pages
        };
        let queried = homes(ByPage::default());
        assert!(queried.len() > 20);
        // Pages of the kernel itself (vdso) have a frame, and no answer of move_pages.
        let read = homes(ByPage::new(&Root::host()));
        assert!(queried.iter().all(|stats| read.contains(stats)));
        let process = tree.processes().iter().find(|p| p.pid == pid);
        let map = process
            .and_then(|process| process.pagemap.as_ref())
            .unwrap();
        let ranges: Vec<_> = found.iter().map(|&page| page..page + 1).collect();
        for mut by_page in [ByPage::default(), ByPage::new(&Root::host())] {
            let places = by_page.places(pid, map, &ranges);
            let is_told = |stats: &PageStats| places.contains(&(stats.page, stats.home));
            assert!(queried.iter().all(is_told), "{places:?}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
