//! Pages that have been in memory, and where they were seen last.

use crate::proc::tree::LiveProcess;
use crate::sys::PAGE_IS_PRESENT;
use hither_core::ids::NodeId;
use hither_core::snapshot::{HUGE_PAGES, PageStats};
use std::collections::HashMap;
use std::ops::Range;

/// Blocks of 2 MiB of which pages are known, at most (35 MiB): beyond it all are forgotten, and each page
/// loses a sample.
const MOST_BLOCKS: usize = 1 << 15;
/// User addresses end here, in pages; a scan that goes further is refused whole.
const USER_END_PAGE: u64 = ((1 << 47) >> 12) - 1;
const PAGES: usize = HUGE_PAGES as usize;
/// A place that was not looked for.
const NOWHERE: u16 = u16::MAX;

/// The pages of 2 MiB. Programs touch neighbours: one look-up finds the marks of all of them.
#[derive(Debug)]
struct Block {
    present: [u64; PAGES / 64],
    /// Number of the node, by page; of a huge page, the first.
    places: [u16; PAGES],
    is_huge: bool,
}

impl Default for Block {
    fn default() -> Self {
        Self {
            present: [0; PAGES / 64],
            places: [NOWHERE; PAGES],
            is_huge: false,
        }
    }
}

/// Known pages, by incarnation of their process.
#[derive(Debug, Default)]
pub(super) struct Known {
    blocks: HashMap<(u32, u64), Box<Block>>,
    /// What was there when watching began, ascending.
    start: HashMap<u32, Vec<Range<u64>>>,
}

impl Known {
    /// What these processes have in memory now. A kernel that does not tell (before 6.7) costs
    /// each page its first sample.
    pub fn of<'a>(processes: impl Iterator<Item = &'a LiveProcess>) -> Self {
        let mut known = Self::default();
        for process in processes {
            let Some(map) = &process.pagemap else {
                continue;
            };
            let mut ranges = Vec::new();
            let scanned = map.scan(0..USER_END_PAGE, PAGE_IS_PRESENT, |range| {
                ranges.push(range)
            });
            if scanned.is_err() {
                continue;
            }
            known.start.insert(process.incarnation, ranges);
            for huge in map.huge(0..USER_END_PAGE).unwrap_or_default() {
                for page in huge.step_by(PAGES).take(MOST_BLOCKS) {
                    known.add_huge(process.incarnation, page);
                }
            }
        }
        known
    }

    /// What was there of a process when watching began.
    pub fn at_start(&self, owner: u32) -> &[Range<u64>] {
        self.start.get(&owner).map_or(&[], Vec::as_slice)
    }

    /// The pages of one process, ascending, and whether each was in memory before it was touched now. All
    /// are afterwards.
    pub fn touch(
        &mut self,
        owner: u32,
        pages: impl Iterator<Item = u64>,
        mut each: impl FnMut(u64, bool),
    ) {
        let start = self.start.get(&owner).map_or(&[][..], Vec::as_slice);
        let mut pages = pages.peekable();
        while let Some(&first) = pages.peek() {
            if self.blocks.len() >= MOST_BLOCKS {
                self.blocks.clear();
            }
            let number = at(first).0;
            let block = self.blocks.entry((owner, number)).or_default();
            while let Some(page) = pages.next_if(|&page| at(page).0 == number) {
                let next = start.partition_point(|range| range.end <= page);
                let at_start = start.get(next).is_some_and(|range| range.contains(&page));
                let index = at(page).1;
                let (word, bit) = (&mut block.present[index / 64], 1 << (index % 64));
                each(page, at_start || *word & bit != 0 || block.is_huge);
                *word |= bit;
            }
        }
    }

    /// Notes where the pages of one process, ascending, are, and tells them where they were, where that is
    /// known and another place.
    pub fn note(&mut self, owner: u32, pages: &mut [PageStats]) {
        for own in pages.chunk_by_mut(|a, b| at(a.page).0 == at(b.page).0) {
            let number = at(own[0].page).0;
            if self.blocks.len() >= MOST_BLOCKS && !self.blocks.contains_key(&(owner, number)) {
                continue;
            }
            let block = self.blocks.entry((owner, number)).or_default();
            for page in own {
                block.is_huge |= page.huge;
                let place = &mut block.places[if page.huge { 0 } else { at(page.page).1 }];
                let new = u16::try_from(page.home.0).unwrap_or(NOWHERE);
                let was = std::mem::replace(place, new);
                let has_moved = was != NOWHERE && was != new;
                page.was = has_moved.then_some(NodeId(u32::from(was)));
            }
        }
    }

    /// Notes where the pages of one process, ascending, are that were looked for when watching began; of a
    /// huge page all are the same.
    pub fn place(&mut self, owner: u32, pages: impl Iterator<Item = (u64, NodeId)>) {
        let mut pages = pages.peekable();
        while let Some(&(first, _)) = pages.peek() {
            let number = at(first).0;
            if self.blocks.len() >= MOST_BLOCKS && !self.blocks.contains_key(&(owner, number)) {
                return;
            }
            let block = self.blocks.entry((owner, number)).or_default();
            while let Some((page, node)) = pages.next_if(|&(page, _)| at(page).0 == number) {
                let index = if block.is_huge { 0 } else { at(page).1 };
                block.places[index] = u16::try_from(node.0).unwrap_or(NOWHERE);
            }
        }
    }

    /// A page turned out to be part of a huge page: the others of it are there, too.
    pub fn add_huge(&mut self, owner: u32, page: u64) {
        let block = self.blocks.entry((owner, at(page).0)).or_default();
        block.is_huge = true;
    }

    /// Forgets the dead.
    pub fn keep(&mut self, lives: impl Fn(u32) -> bool) {
        self.start.retain(|&owner, _| lives(owner));
        let mut last = (0, true);
        self.blocks.retain(|&(owner, _), _| {
            if owner != last.0 {
                last = (owner, lives(owner));
            }
            last.1
        });
    }
}

/// Number of its block, and its place in there.
fn at(page: u64) -> (u64, usize) {
    (page / HUGE_PAGES, (page % HUGE_PAGES) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::ids::Pid;
    use hither_core::snapshot::NodeCounts;

    #[test]
    fn the_first_fault_of_a_new_page_is_its_first_touch() {
        let mut known = Known::default();
        known.start.insert(20, vec![5..7, 100..200]);
        let mut touch = |owner, pages: &[u64]| {
            let mut there = Vec::new();
            known.touch(owner, pages.iter().copied(), |_, was| there.push(was));
            there
        };
        assert_eq!(
            touch(20, &[4, 5, 6, 7, 7, 99, 150, 200, 200, 1024]),
            [
                false, true, true, false, true, false, true, false, true, false
            ]
        );
        // Another process's pages, and the same number after it executed something else.
        assert_eq!(touch(21, &[5, 5]), [false, true]);
        // A huge page is there as a whole.
        assert_eq!(touch(21, &[1024]), [false]);
        known.add_huge(21, 1024);
        let touch = |known: &mut Known, owner, page| {
            let mut there = false;
            known.touch(owner, [page].into_iter(), |_, was| there = was);
            there
        };
        assert!(touch(&mut known, 21, 1535) && !touch(&mut known, 21, 1536));
        known.keep(|owner| owner == 21);
        assert!(touch(&mut known, 21, 1025) && !touch(&mut known, 20, 5));
    }

    #[test]
    fn a_page_that_moved_is_told_where_it_was() {
        let page = |page, home| PageStats {
            pid: Pid(1),
            page,
            home: NodeId(home),
            was: None,
            reads: NodeCounts::new(),
            writes: NodeCounts::new(),
            huge: false,
        };
        let mut known = Known::default();
        let mut noted = |pages: [PageStats; 2]| {
            let mut pages = pages;
            known.note(9, &mut pages);
            pages.map(|page| page.was)
        };
        assert_eq!(noted([page(3, 0), page(600, 1)]), [None, None]);
        assert_eq!(noted([page(3, 2), page(600, 1)]), [Some(NodeId(0)), None]);
        assert_eq!(noted([page(3, 2), page(601, 1)]), [None, None]);
        // A look when watching begins counts, too: of a huge page all is in one place.
        let mut known = Known::default();
        known.add_huge(9, 512);
        known.place(
            9,
            [(3, NodeId(0)), (512, NodeId(0)), (700, NodeId(0))].into_iter(),
        );
        let mut pages = [page(3, 2), page(512, 1)];
        pages[1].huge = true;
        known.note(9, &mut pages);
        assert_eq!(pages.map(|page| page.was), [Some(NodeId(0)); 2]);
    }
}
