//! Whose the sampled pages are, where nobody wants statistics of pages: for recordings.
//!
//! Problem: a sample of the lab's device names no process. It belongs to process P where P's page
//! map has the sampled frame at the sampled page; see [`super::aggregate`], which keeps one entry
//! per sampled page. A recording has a use for the owner alone, and must cost next to nothing.
//!
//! Mechanism: page maps are read in aligned groups of [`GROUP_PAGES`] and kept as they are, four
//! bytes a page. A page that is sampled again, or near another, is one probe of a hash table and
//! one comparison, and no system call. What no group answers is asked of the page maps once an
//! interval, in bulk.
//!
//! Properties: a sample is attributed to at most one process. What the table holds of a process
//! goes with its address space. A page that has moved since its group was read has another frame,
//! so that it is asked for again. Pairs of nobody are remembered until a process appears, at most
//! [`FORGET_INTERVALS`]. The table is bounded, and forgets everything when it is full.
//!
//! Rejected: single pages instead of groups, which cost a system call per page of an array that
//! is accessed at random (1,500 instructions; an entry beside another costs the kernel 50).

use super::aggregate::runs;
use crate::proc::pagemap::{self, Pagemap};
use crate::proc::tree::Tree;
use std::collections::HashSet;

/// log2 of the pages in a group.
const GROUP_SHIFT: u32 = 4;
/// Pages whose entries are read and kept together: a group that is read for one page alone costs
/// two system calls' worth.
const GROUP_PAGES: usize = 1 << GROUP_SHIFT;
/// Most groups per page-map read: 128 KiB of entries.
const READ_GROUPS: u64 = 1 << 10;
/// Most groups (22 MB): 16 GB of memory that lies close. Full means forget.
const MOST_GROUPS: usize = 1 << 18;
/// Index slots at the start: a power of two.
const FIRST_SLOTS: usize = 1 << 11;
/// What a read of a page map costs, and each entry of it until it is kept, in instructions: measured
/// in the lab.
const READ_INSTRUCTIONS: u64 = 1500;
const ENTRY_INSTRUCTIONS: u64 = 90;
/// A pair of nobody is looked up again after this many intervals, in case that it raced a move.
const FORGET_INTERVALS: u32 = 64;

/// Entries of neighbours in one page map.
#[derive(Debug)]
struct Group {
    /// Page number of the first, in groups.
    key: u64,
    /// Incarnation of the process.
    owner: u32,
    pid: i32,
    /// 0 where there is no page, or the kernel does not tell. Frames from 2^32 on (16 TiB) are
    /// left out as well: no machine of the lab has them.
    frames: [u32; GROUP_PAGES],
}

/// The groups and the buffers, reused over intervals.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// By hash: number of a group plus one, 0 where there is none.
    index: Vec<u32>,
    groups: Vec<Group>,
    /// Incarnations that were there in the last interval.
    alive: Vec<u32>,
    foreign: HashSet<(u64, u64)>,
    foreign_intervals: u32,
    /// Pages that no group answered, with their frames.
    waiting: Vec<(u64, u64)>,
    wanted: Vec<(u64, u32)>,
    entries: Vec<u64>,
    bytes: Vec<u8>,
    /// What reading has cost since somebody asked.
    instructions: u64,
}

impl Owners {
    /// Begins an interval: what ended processes left is forgotten.
    pub fn begin(&mut self, tree: &Tree) {
        self.waiting.clear();
        self.foreign_intervals += 1;
        let now = tree.processes().iter().map(|process| process.incarnation);
        let is_same = now.clone().eq(self.alive.iter().copied());
        if !is_same || self.foreign_intervals >= FORGET_INTERVALS {
            self.foreign.clear();
            self.foreign_intervals = 0;
        }
        if is_same {
            return;
        }
        let before = self.groups.len();
        self.groups
            .retain(|group| tree.by_incarnation(group.owner).is_some());
        self.alive.clear();
        self.alive.extend(now);
        if self.groups.len() != before {
            self.index_anew(self.index.len());
        }
    }

    /// The process that has this frame at this page, as far as is known without asking.
    pub fn find(&self, page: u64, frame: u64) -> Option<i32> {
        let mut at = self.slot(page >> GROUP_SHIFT)?;
        let inside = page as usize % GROUP_PAGES;
        while let Some(group) = self.group(at) {
            if group.key == page >> GROUP_SHIFT
                && u64::from(group.frames[inside]) == frame
                && frame != 0
            {
                return Some(group.pid);
            }
            at = (at + 1) & (self.index.len() - 1);
        }
        None
    }

    /// Asks for a pair that was not found, by the next [`Owners::look_up`]; false where it is
    /// known to be nobody's.
    pub fn ask(&mut self, page: u64, frame: u64) -> bool {
        let asks = self.foreign.is_empty() || !self.foreign.contains(&(page, frame));
        if asks {
            self.waiting.push((page, frame));
        }
        asks
    }

    /// Reads the page maps where something was asked for.
    pub fn look_up(&mut self, tree: &mut Tree) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_unstable();
        waiting.dedup();
        let mut void = Vec::new();
        for process in tree.processes() {
            if waiting.is_empty() {
                break;
            }
            let Some(map) = &process.pagemap else {
                continue;
            };
            if !self.read(map, process.incarnation, process.pid, &waiting) {
                void.push(process.pid);
            }
            waiting.retain(|&(page, frame)| self.find(page, frame).is_none());
        }
        if void.is_empty() {
            self.foreign.extend(waiting.drain(..));
        }
        // What a process has executed since is looked up in the next interval.
        void.into_iter().for_each(|pid| tree.renew(pid));
        waiting.clear();
        self.waiting = waiting;
    }

    /// What reading page maps took since the last call, in instructions.
    pub fn take_instructions(&mut self) -> u64 {
        std::mem::take(&mut self.instructions)
    }

    /// Reads the groups of these pages, ascending, out of one page map; false where its address
    /// space is gone.
    fn read(&mut self, map: &Pagemap, owner: u32, pid: i32, pages: &[(u64, u64)]) -> bool {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.clear();
        wanted.extend(pages.iter().map(|&(page, _)| (page >> GROUP_SHIFT, 0)));
        wanted.dedup();
        let mut is_there = true;
        for run in runs(&wanted, 0, 1, READ_GROUPS) {
            let (first, last) = (run[0].0, run[run.len() - 1].0);
            let count = (last + 1 - first) as usize * GROUP_PAGES;
            self.entries.clear();
            self.entries.resize(count, 0);
            let got = map
                .read(first << GROUP_SHIFT, &mut self.entries, &mut self.bytes)
                .unwrap_or(0);
            if got == 0 && !matches!(map.read(0, &mut self.entries[..1], &mut self.bytes), Ok(1)) {
                is_there = false;
                break;
            }
            self.instructions += READ_INSTRUCTIONS + count as u64 * ENTRY_INSTRUCTIONS;
            self.entries[got..].fill(0);
            let entries = std::mem::take(&mut self.entries);
            for (key, entries) in (first..).zip(entries.chunks_exact(GROUP_PAGES)) {
                self.keep(key, owner, pid, entries);
            }
            self.entries = entries;
        }
        self.wanted = wanted;
        is_there
    }

    /// Keeps a group as it was read now.
    fn keep(&mut self, key: u64, owner: u32, pid: i32, entries: &[u64]) {
        let frame = |&entry| pagemap::frame(entry).and_then(|frame| u32::try_from(frame).ok());
        let mut frames = [0; GROUP_PAGES];
        for (kept, entry) in frames.iter_mut().zip(entries) {
            *kept = frame(entry).unwrap_or(0);
        }
        if self.groups.len() >= MOST_GROUPS {
            self.groups.clear();
            self.index_anew(self.index.len());
        } else if self.groups.len() * 2 >= self.index.len() {
            self.index_anew((self.index.len() * 2).max(FIRST_SLOTS));
        }
        let Some(mut at) = self.slot(key) else {
            return;
        };
        while let Some(number) = self.index[at].checked_sub(1) {
            let group = &mut self.groups[number as usize];
            if (group.key, group.owner) == (key, owner) {
                group.frames = frames;
                return;
            }
            at = (at + 1) & (self.index.len() - 1);
        }
        self.groups.push(Group {
            key,
            owner,
            pid,
            frames,
        });
        self.index[at] = self.groups.len() as u32;
    }

    /// Where the chain of a key begins; `None` while there is no index.
    fn slot(&self, key: u64) -> Option<usize> {
        // Fibonacci hashing: the high bits of the product are well mixed.
        let bits = self.index.len().checked_ilog2()?;
        Some((key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize)
    }

    fn group(&self, at: usize) -> Option<&Group> {
        let number = self.index[at].checked_sub(1)?;
        Some(&self.groups[number as usize])
    }

    fn index_anew(&mut self, slots: usize) {
        self.index.clear();
        self.index.resize(slots, 0);
        for number in 0..self.groups.len() {
            let Some(mut at) = self.slot(self.groups[number].key) else {
                return;
            };
            while self.index[at] != 0 {
                at = (at + 1) & (slots - 1);
            }
            self.index[at] = number as u32 + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(first_frame: u64) -> Vec<u64> {
        (0..GROUP_PAGES as u64)
            .map(|page| 1 << 63 | (first_frame + page))
            .collect()
    }

    #[test]
    fn a_page_belongs_to_who_has_its_frame() {
        let mut owners = Owners::default();
        assert_eq!(owners.find(64, 1000), None);
        // Two processes with the same addresses, and many groups, so that the index grows.
        for key in 0..1000 {
            owners.keep(key, 16, 1, &entries(1_000_000 + key * GROUP_PAGES as u64));
            owners.keep(key, 17, 2, &entries(2_000_000 + key * GROUP_PAGES as u64));
        }
        for page in [0, 15, 16, 15_999] {
            assert_eq!(owners.find(page, 1_000_000 + page), Some(1));
            assert_eq!(owners.find(page, 2_000_000 + page), Some(2));
            assert_eq!(owners.find(page, 3_000_000 + page), None);
        }
        // Read again, it is what is there now; a page without a frame is nobody's.
        owners.keep(5, 16, 1, &[0; GROUP_PAGES]);
        assert_eq!(owners.find(80, 1_000_080), None);
        assert_eq!(owners.find(80, 0), None);
        assert_eq!(owners.groups.len(), 2000);
    }

    #[test]
    fn a_full_table_begins_anew() {
        let mut owners = Owners::default();
        for key in 0..MOST_GROUPS as u64 + 1 {
            owners.keep(key, 16, 1, &entries(1 + key));
        }
        assert_eq!(owners.groups.len(), 1);
        assert_eq!(
            owners.find((GROUP_PAGES * MOST_GROUPS) as u64, 1 + MOST_GROUPS as u64),
            Some(1)
        );
        assert_eq!(owners.find(0, 1), None);
    }

    #[test]
    fn what_is_nobodys_is_asked_for_once() {
        let mut owners = Owners::default();
        let mut tree = Tree::new(crate::root::Root::host(), std::process::id() as i32);
        owners.begin(&tree);
        assert!(owners.ask(1, 2));
        owners.look_up(&mut tree);
        for _ in 2..FORGET_INTERVALS {
            owners.begin(&tree);
            assert!(!owners.ask(1, 2));
            assert!(owners.ask(1, 3));
        }
        owners.begin(&tree);
        assert!(owners.ask(1, 2));
    }
}
