//! Whose samples are, where nobody wants statistics of pages: for recordings.
//!
//! Problem: a sample of the lab's device names a page table and no process, and the kernel tells nobody
//! which process has which page table.
//!
//! Mechanism: a page table is process P's where P's page map has the frame of one of its samples at that
//! sample's page, and no other process maps that page. Each page table that was sampled in an interval
//! is looked up once in it, at the process that had it last first: the kernel uses page tables again.
//! Where only shared pages were sampled, it is the first's of the processes that have one of them and no
//! page table that is known for sure: of a parent and the child that reads what both have, the child's.
//!
//! Properties: a sample belongs to at most one process, and that was alive at the interval's end. A
//! page table that changed hands within an interval is all the later one's in it.
//!
//! Rejected: the page of each sample looked up by itself, which tells two processes with one page table
//! in an interval apart: a program that accesses its memory at random has a sample on each page, and a
//! look-up costs as much as three samples.

use crate::proc::pagemap::{self, Pagemap};
use crate::proc::tree::{LiveProcess, Tree};
use std::collections::{HashMap, HashSet};

/// Pages that are tried for one page table in an interval: some are shared, or have moved since.
const TRIES: usize = 4;
/// Intervals in which a page table was nobody's before it is no longer looked up.
const MOST_MISSES: u32 = 3;
/// Everything is looked up anew after this many intervals.
const FORGET_INTERVALS: u32 = 64;
/// What the look-up of a page costs, in instructions: measured in the lab (2,800 in the kernel; 142 more
/// for each neighbour that is read with it).
const READ_INSTRUCTIONS: u64 = 3000;

/// A page table.
#[derive(Debug, Default)]
struct Space {
    /// Of samples of this interval, each with its frame.
    pages: Vec<(u64, u64)>,
    /// Who had it last, by a page that was theirs alone.
    sure: Option<i32>,
    /// Whose it is in this interval.
    owner: Option<i32>,
    /// Intervals in a row in which it was nobody's.
    misses: u32,
}

/// The page tables of samples.
#[derive(Debug, Default)]
pub(super) struct Spaces {
    by_table: HashMap<u64, Space>,
    generation: u32,
    intervals: u32,
    bytes: Vec<u8>,
    /// What look-ups have cost since somebody asked.
    instructions: u64,
}

impl Spaces {
    /// Begins an interval.
    pub fn begin(&mut self, tree: &Tree) {
        self.intervals += 1;
        if self.intervals >= FORGET_INTERVALS {
            self.by_table.clear();
            self.intervals = 0;
        }
        let is_same = self.generation == tree.generation();
        self.generation = tree.generation();
        for space in self.by_table.values_mut() {
            if !is_same || space.owner.is_some() {
                space.misses = 0;
            } else if !space.pages.is_empty() {
                space.misses += 1;
            }
            space.pages.clear();
        }
    }

    /// Adds a sample; false where its page table is known to be nobody's.
    pub fn add(&mut self, table: u64, page: u64, frame: u64) -> bool {
        let space = self.by_table.entry(table).or_default();
        let is_asked = space.misses < MOST_MISSES;
        if is_asked && space.pages.len() < TRIES && !space.pages.contains(&(page, frame)) {
            space.pages.push((page, frame));
        }
        is_asked
    }

    /// Finds out whose the page tables of this interval's samples are.
    pub fn look_up(&mut self, tree: &mut Tree) {
        let mut void = Vec::new();
        let mut unsure = Vec::new();
        for (&table, space) in &mut self.by_table {
            if space.pages.is_empty() {
                continue;
            }
            let mut asked = Asked {
                pages: &space.pages,
                bytes: &mut self.bytes,
                reads: 0,
                void: &mut void,
            };
            let found = asked.owner(tree.processes(), space.sure);
            space.sure = found.as_ref().ok().copied();
            space.owner = space.sure;
            if let Err(sharing) = found {
                unsure.push((table, sharing));
            }
            self.instructions += asked.reads * READ_INSTRUCTIONS;
        }
        let sure = self.by_table.values().filter_map(|space| space.sure);
        let sure: HashSet<i32> = sure.collect();
        for (table, sharing) in unsure {
            if let Some(space) = self.by_table.get_mut(&table) {
                space.owner = sharing.into_iter().find(|pid| !sure.contains(pid));
            }
        }
        // What a process has executed since is looked up in the next interval.
        void.sort_unstable();
        void.dedup();
        void.into_iter().for_each(|pid| tree.renew(pid));
    }

    /// Whose a page table is, after [`Spaces::look_up`].
    pub fn owner(&self, table: u64) -> Option<i32> {
        self.by_table.get(&table)?.owner
    }

    /// What looking up took since the last call, in instructions.
    pub fn take_instructions(&mut self) -> u64 {
        std::mem::take(&mut self.instructions)
    }
}

/// A look-up of one page table.
struct Asked<'a> {
    pages: &'a [(u64, u64)],
    bytes: &'a mut Vec<u8>,
    reads: u64,
    /// Processes whose address space is gone.
    void: &'a mut Vec<i32>,
}

/// How a process maps sampled pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    No,
    Shared,
    Alone,
}

impl Match {
    /// Of a page that was seen in this frame; `None` where the page map does not tell it.
    pub(super) fn of(map: &Pagemap, page: u64, frame: u64, bytes: &mut Vec<u8>) -> Option<Self> {
        let mut entry = [0];
        let Ok(1) = map.read(page, &mut entry, bytes) else {
            return None;
        };
        let is_there = pagemap::frame(entry[0]) == Some(frame);
        Some(match (is_there, pagemap::is_exclusive(entry[0])) {
            (false, _) => Self::No,
            (true, true) => Self::Alone,
            (true, false) => Self::Shared,
        })
    }
}

impl Asked<'_> {
    /// Whose it is for sure, or else who shares the pages.
    fn owner(&mut self, processes: &[LiveProcess], last: Option<i32>) -> Result<i32, Vec<i32>> {
        let before = processes.iter().find(|process| Some(process.pid) == last);
        if let Some(process) = before
            && self.compare(process) != Match::No
        {
            return Ok(process.pid);
        }
        let mut sharing = Vec::new();
        for process in processes {
            match self.compare(process) {
                Match::Alone => return Ok(process.pid),
                Match::Shared => sharing.push(process.pid),
                Match::No => {}
            }
        }
        Err(sharing)
    }

    fn compare(&mut self, process: &LiveProcess) -> Match {
        let Some(map) = &process.pagemap else {
            return Match::No;
        };
        let mut found = Match::No;
        for &(page, frame) in self.pages {
            self.reads += 1;
            match Match::of(map, page, frame, self.bytes) {
                None if Match::of(map, 0, 0, self.bytes).is_none() => {
                    self.void.push(process.pid);
                    return Match::No;
                }
                Some(Match::Alone) => return Match::Alone,
                Some(Match::Shared) => found = Match::Shared,
                Some(Match::No) | None => {}
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Root;
    use std::fs;
    use std::path::Path;

    const ALONE: u64 = 1 << 56;

    /// A process of a fake `/proc` and what its first pages are.
    fn process(folder: &Path, pid: i32, entries: &[u64]) {
        let own = folder.join(format!("proc/{pid}"));
        fs::create_dir_all(own.join(format!("task/{pid}"))).unwrap();
        fs::write(own.join(format!("task/{pid}/children")), "").unwrap();
        let stat = format!("{pid} (app) S 1 1 1 0 -1 0 0 0 0 0 5 6 0 0 20 0 1 0 777 4096 99 0\n");
        fs::write(own.join("stat"), stat).unwrap();
        let bytes: Vec<u8> = entries.iter().flat_map(|e| e.to_ne_bytes()).collect();
        fs::write(own.join("pagemap"), bytes).unwrap();
    }

    /// Whose the tables are, by samples of (table, page, frame).
    fn owners(
        spaces: &mut Spaces,
        tree: &mut Tree,
        samples: &[(u64, u64, u64)],
    ) -> Vec<Option<i32>> {
        spaces.begin(tree);
        for &(table, page, frame) in samples {
            spaces.add(table, page, frame);
        }
        spaces.look_up(tree);
        let tables = samples.iter().map(|&(table, ..)| table);
        tables.map(|table| spaces.owner(table)).collect()
    }

    /// Two processes that share page 0, frame 50; page 1 is each one's own, frames 60 and 70.
    fn two() -> (tempfile::TempDir, Tree) {
        let folder = tempfile::tempdir().unwrap();
        let here = 1 << 63;
        process(folder.path(), 1, &[here | 50, here | ALONE | 60]);
        process(folder.path(), 2, &[here | 50, here | ALONE | 70]);
        let scope = crate::proc::tree::Scope::Processes(vec![1, 2]);
        let mut tree = Tree::new(Root::new(folder.path()), scope);
        tree.refresh(0).unwrap();
        assert_eq!(tree.processes().len(), 2);
        (folder, tree)
    }

    #[test]
    fn a_page_table_is_whose_own_page_it_maps() {
        let (_folder, mut tree) = two();
        let mut spaces = Spaces::default();
        let samples = [
            (0x7000, 0, 50),
            (0x7000, 1, 70),
            (0x6000, 1, 60),
            (0x9000, 1, 80),
        ];
        let whose = owners(&mut spaces, &mut tree, &samples);
        assert_eq!(whose, [Some(2), Some(2), Some(1), None]);
        // Whose it was last is believed by a shared page too.
        assert_eq!(
            owners(&mut spaces, &mut tree, &[(0x7000, 0, 50)]),
            [Some(2)]
        );
        // Used again for the other.
        assert_eq!(
            owners(&mut spaces, &mut tree, &[(0x7000, 1, 60)]),
            [Some(1)]
        );
    }

    #[test]
    fn what_a_child_shares_with_its_parent_is_the_childs() {
        let (_folder, mut tree) = two();
        let parent = tree.processes()[0].pid;
        let child = tree.processes()[1].pid;
        let own_frame = if parent == 1 { 60 } else { 70 };
        let mut spaces = Spaces::default();
        // Both are the parent's as far as can be told, until its own page table is known.
        let shared = [(0x8000, 0, 50)];
        assert_eq!(owners(&mut spaces, &mut tree, &shared), [Some(parent)]);
        let both = [(0x7000, 1, own_frame), (0x8000, 0, 50)];
        let whose = owners(&mut spaces, &mut tree, &both);
        assert_eq!(whose, [Some(parent), Some(child)]);
        assert_eq!(owners(&mut spaces, &mut tree, &shared), [Some(child)]);
    }

    #[test]
    fn what_is_nobodys_is_not_asked_for_for_ever() {
        let (folder, mut tree) = two();
        let mut spaces = Spaces::default();
        for _ in 0..MOST_MISSES {
            assert_eq!(owners(&mut spaces, &mut tree, &[(0x9000, 1, 80)]), [None]);
            // One page of two processes.
            assert_eq!(spaces.take_instructions(), 2 * READ_INSTRUCTIONS);
        }
        spaces.begin(&tree);
        assert!(!spaces.add(0x9000, 1, 80));
        spaces.look_up(&mut tree);
        assert_eq!(spaces.take_instructions(), 0);
        // Until there is another process.
        process(folder.path(), 1, &[0, 1 << 63 | ALONE | 80]);
        tree.renew(1);
        assert_eq!(
            owners(&mut spaces, &mut tree, &[(0x9000, 1, 80)]),
            [Some(1)]
        );
    }

    #[test]
    fn at_most_so_many_pages_are_tried() {
        let (_folder, mut tree) = two();
        let mut spaces = Spaces::default();
        let samples: Vec<_> = (0..100).map(|frame| (0x9000, 1, 1000 + frame)).collect();
        owners(&mut spaces, &mut tree, &samples);
        assert_eq!(
            spaces.take_instructions(),
            2 * TRIES as u64 * READ_INSTRUCTIONS
        );
    }
}
