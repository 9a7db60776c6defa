//! From samples with virtual and physical addresses to page statistics of watched processes.
//!
//! Problem: a sample names no process. It belongs to process P where P's page map has the
//! sampled frame at the sampled page. Asking the kernel for every sample would cost more than
//! the sample is worth: this code runs inside the machine that it measures.
//!
//! Mechanism: one hash table from (page, frame) to the owner, kept over intervals, so that in
//! the steady state a sample costs one lookup and one addition and no system call. Only pairs
//! that are new are looked up, once an interval, in bulk: sorted by page, close pages in one
//! read of each process's page map. Pairs of nobody are remembered too, until a process appears.
//! The same reads can list the unsampled neighbours of a sampled page; see `listing`. Those are kept in `blocks`, and
//! get a place in the table when they are sampled.
//!
//! Properties: a sample is attributed to at most one process; a page appears at most once; the
//! table is bounded, and forgets everything when it is full. A stale pair (page freed, frame
//! given to another process at the same page number) could attribute wrongly; it is forgotten
//! with the process or by [`FORGET_INTERVALS`].
//!
//! Rejected: sorting the samples each interval (three times the cost of the table at 10,000
//! samples), and one page-map read per sample (a system call each).

use super::blocks::Blocks;
use super::listing::{Listing, block};
use crate::proc::frames::FrameNodes;
use crate::proc::pagemap;
use crate::proc::tree::{FIRST_INCARNATION, Tree};
use crate::sys::{PAGE_IS_HUGE, PAGE_IS_PRESENT};
use hither_core::ids::{NodeId, Pid};
use hither_core::snapshot::{HUGE_PAGES, NodeCounts, PageStats, PresentPage};

/// Slots at the start: a power of two.
const FIRST_SLOTS: usize = 1 << 12;
/// Most slots (32 MiB): twice the pages that are worth tracking; full means forget.
const MOST_SLOTS: usize = 1 << 20;
/// A pair of nobody is looked up again after this many intervals, in case that it raced a move.
const FORGET_INTERVALS: u32 = 64;
/// Unsampled pages between two sampled ones that one page-map read covers: an entry takes 8.5 ns (38 in the lab), a
/// further system call as much as 30 of them (22).
pub(super) const READ_GAP: u64 = 32;
/// Most pages per page-map read.
pub(super) const READ_PAGES: u64 = 1 << 14;
/// Unsampled pages that one scan for huge pages covers.
pub(super) const SCAN_GAP: u64 = 1 << 13;

/// log2 of the pages in a 2 MiB block.
const BLOCK_SHIFT: u32 = HUGE_PAGES.trailing_zeros();

/// Slot of no pair.
const EMPTY: u64 = u64::MAX;
/// Owner: not looked up yet. Incarnations of processes begin above.
const UNKNOWN: u32 = 0;
/// Owner: no watched process.
const FOREIGN: u32 = 1;
const _: () = assert!(FIRST_INCARNATION > FOREIGN);

#[derive(Clone, Copy, Debug)]
struct Slot {
    page: u64,
    frame: u64,
    /// [`UNKNOWN`], [`FOREIGN`] or an incarnation.
    owner: u32,
    /// Interval in which it was sampled last.
    epoch: u32,
    /// Index into `pages` where `epoch` is the present one.
    seen: u32,
    /// Foreign: the interval of the look-up. Owned: 1 where part of a huge page.
    detail: u32,
}

const VACANT: Slot = Slot {
    page: EMPTY,
    frame: 0,
    owner: UNKNOWN,
    epoch: 0,
    seen: 0,
    detail: 0,
};

/// What is kept beside each entry of `pages`.
#[derive(Clone, Copy, Debug)]
struct Mark {
    slot: u32,
    last_ns: u64,
}

/// One attributable access.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Virtual page number.
    pub page: u64,
    /// Frame number.
    pub frame: u64,
    /// Position of the accessing node in the snapshot.
    pub from: usize,
    /// The node that holds the frame.
    pub home: NodeId,
    /// A store?
    pub write: bool,
    /// When, in ns.
    pub time_ns: u64,
}

/// How an interval's samples fell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attribution {
    /// Samples of watched processes.
    pub attributed: u64,
    /// Samples of anybody else, or of pages that moved or went before they were looked up.
    pub foreign: u64,
    /// Pairs that had to be looked up.
    pub looked_up: u64,
    /// Unsampled pages that were listed.
    pub listed: u64,
}

/// The table and the buffers, reused over intervals.
#[derive(Debug)]
pub struct Aggregator {
    slots: Vec<Slot>,
    used: usize,
    epoch: u32,
    generation: u32,
    /// Same length as the `pages` being filled.
    marks: Vec<Mark>,
    twice: bool,
    unknown: Vec<(u64, u32)>,
    entries: Vec<u64>,
    bytes: Vec<u8>,
    listing: Listing,
    blocks: Blocks,
    huge_possible: bool,
    scan_refused: bool,
    /// Owner of each page as it was added, in that order; kept where somebody asks.
    owners: Option<Vec<Pid>>,
}

impl Aggregator {
    /// `huge_possible`: may there be huge pages at all (transparent ones not switched off)?
    #[must_use]
    pub fn new(huge_possible: bool) -> Self {
        Self {
            slots: Vec::new(),
            used: 0,
            epoch: 1,
            generation: 0,
            marks: Vec::new(),
            twice: false,
            unknown: Vec::new(),
            entries: Vec::new(),
            bytes: Vec::new(),
            listing: Listing::new(FrameNodes::default()),
            blocks: Blocks::default(),
            huge_possible,
            scan_refused: false,
            owners: None,
        }
    }

    /// Whether [`Aggregator::owner`] is to be asked after each interval.
    pub fn keep_owners(&mut self, keep: bool) {
        self.owners = keep.then(Vec::new);
    }

    /// Whose the page was that [`Aggregator::add`] returned the number of; `None` where it was
    /// nobody's that is watched.
    #[must_use]
    pub fn owner(&self, number: u32) -> Option<Pid> {
        let owners = self.owners.as_ref()?;
        owners
            .get(number as usize)
            .copied()
            .filter(|&pid| pid != Pid(0))
    }

    /// Lets unsampled pages be listed beside sampled ones: `frames` tells where they are.
    pub fn set_frames(&mut self, frames: FrameNodes) {
        self.listing.set_frames(frames);
    }

    /// Whether sampling is full from now on: at rest few unsampled pages are listed.
    pub fn set_full(&mut self, full: bool) {
        self.listing.set_full(full);
    }

    /// Has the kernel refused to tell huge pages apart?
    #[must_use]
    pub fn scan_refused(&self) -> bool {
        self.scan_refused
    }

    /// Begins an interval: `pages` is emptied and filled by [`Aggregator::add`].
    pub fn begin(&mut self, pages: &mut Vec<PageStats>) {
        pages.clear();
        if self.slots.is_empty() {
            // Not before it is needed: recordings need none.
            self.slots = vec![VACANT; FIRST_SLOTS];
        }
        self.marks.clear();
        self.twice = false;
        self.epoch = self.epoch.wrapping_add(1).max(1);
    }

    /// Adds one access; returns the number of its page in this interval.
    pub fn add(&mut self, access: &Access, pages: &mut Vec<PageStats>) -> u32 {
        let index = self.slot(access.page, access.frame);
        let slot = &mut self.slots[index];
        if slot.epoch != self.epoch {
            slot.epoch = self.epoch;
            slot.seen = pages.len() as u32;
            pages.push(PageStats {
                pid: Pid(0),
                page: access.page,
                home: access.home,
                was: None,
                reads: NodeCounts::new(),
                writes: NodeCounts::new(),
                huge: false,
            });
            self.marks.push(Mark {
                slot: index as u32,
                last_ns: access.time_ns,
            });
            self.twice = self.twice || self.seen_elsewhere(index);
        }
        let seen = self.slots[index].seen as usize;
        let counts = &mut pages[seen];
        let counts = if access.write {
            &mut counts.writes
        } else {
            &mut counts.reads
        };
        counts.add(access.from, 1);
        self.marks[seen].last_ns = self.marks[seen].last_ns.max(access.time_ns);
        seen as u32
    }

    /// Ends the interval: finds the owners, drops what belongs to nobody watched, and joins what
    /// was seen of one page in two frames.
    pub fn finish(
        &mut self,
        tree: &mut Tree,
        pages: &mut Vec<PageStats>,
        present: &mut Vec<PresentPage>,
    ) -> Attribution {
        let mut result = Attribution::default();
        if self.generation != tree.generation() {
            self.generation = tree.generation();
            self.forget(tree);
        }
        self.collect_unknown(tree);
        result.looked_up = self.unknown.len() as u64;
        if !self.unknown.is_empty() {
            self.look_up(tree);
            result.listed = self.add_listed(tree, present);
        }
        for (stats, mark) in pages.iter_mut().zip(&self.marks) {
            let slot = &self.slots[mark.slot as usize];
            if let Some(process) = tree.by_incarnation(slot.owner) {
                stats.pid = Pid(process.pid);
                stats.huge = slot.detail == 1;
                result.attributed += stats.total();
            } else {
                result.foreign += stats.total();
            }
        }
        if let Some(owners) = &mut self.owners {
            owners.clear();
            owners.extend(pages.iter().map(|stats| stats.pid));
        }
        if self.twice {
            join_twice(pages, &self.marks);
        }
        pages.retain(|stats| stats.pid != Pid(0));
        result
    }

    /// Adds the pages that the look-up listed and that were not known yet.
    fn add_listed(&mut self, tree: &Tree, present: &mut Vec<PresentPage>) -> u64 {
        let before = present.len();
        let found = self.listing.take();
        for own in found.chunk_by(|a, b| (a.owner, block(a.page)) == (b.owner, block(b.page))) {
            let Some(process) = tree.by_incarnation(own[0].owner) else {
                continue;
            };
            let pages = own.iter().map(|page| (page.page, page.frame));
            let mut homes = own.iter();
            let number = block(own[0].page);
            self.blocks.learn(own[0].owner, number, pages, |page, _| {
                // Both ascend alike.
                if let Some(listed) = homes.find(|listed| listed.page == page) {
                    present.push(PresentPage {
                        pid: Pid(process.pid),
                        page,
                        home: listed.home,
                        huge: false,
                        accesses: 0,
                    });
                }
            });
        }
        self.listing.give_back(found);
        (present.len() - before) as u64
    }

    fn hash(&self, page: u64) -> usize {
        // Fibonacci hashing: the high bits of the product are well mixed.
        let shift = 64 - self.slots.len().trailing_zeros();
        (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize
    }

    /// The slot of a pair; a new one where it is not known. Pairs of one page are in one chain.
    fn slot(&mut self, page: u64, frame: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut index = self.hash(page);
        loop {
            let slot = &self.slots[index];
            if slot.page == page && slot.frame == frame {
                return index;
            }
            if slot.page == EMPTY {
                break;
            }
            index = (index + 1) & mask;
        }
        if self.used * 2 >= self.slots.len() {
            self.grow();
            return self.slot(page, frame);
        }
        self.used += 1;
        self.slots[index] = Slot {
            page,
            frame,
            ..VACANT
        };
        index
    }

    /// Doubles the table; at the limit keeps this interval's pairs alone.
    fn grow(&mut self) {
        let full = self.slots.len() >= MOST_SLOTS;
        let size = if full {
            self.slots.len()
        } else {
            self.slots.len() * 2
        };
        // A full table of this interval's pairs only must still grow, or adding would not end.
        let size = if full && self.marks.len() * 2 >= size {
            size * 2
        } else {
            size
        };
        let epoch = self.epoch;
        self.rebuild(size, |slot| !full || slot.epoch == epoch);
        if full {
            // What they know of huge pages was in the table.
            self.blocks.clear();
        }
    }

    /// Gives the table so many slots, of which it keeps these.
    fn rebuild(&mut self, size: usize, is_kept: impl Fn(&Slot) -> bool) {
        let old = std::mem::replace(&mut self.slots, vec![VACANT; size]);
        self.used = 0;
        for slot in old {
            if slot.page == EMPTY || !is_kept(&slot) {
                continue;
            }
            let mut index = self.hash(slot.page);
            while self.slots[index].page != EMPTY {
                index = (index + 1) & (size - 1);
            }
            self.slots[index] = slot;
            self.used += 1;
            if slot.epoch == self.epoch {
                self.marks[slot.seen as usize].slot = index as u32;
            }
        }
    }

    /// Was another frame of the same page sampled in this interval?
    fn seen_elsewhere(&self, index: usize) -> bool {
        let page = self.slots[index].page;
        let mut at = self.hash(page);
        while self.slots[at].page != EMPTY {
            let slot = &self.slots[at];
            if slot.page == page && slot.epoch == self.epoch && at != index {
                return true;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
        false
    }

    /// There is a process more: pairs of nobody may be its own. They and those of processes that ended go once
    /// they are more than half of all; else, where programs come and go, each pass is over all there ever were.
    fn forget(&mut self, tree: &Tree) {
        let epoch = self.epoch;
        let is_kept =
            |slot: &Slot| slot.epoch == epoch || tree.by_incarnation(slot.owner).is_some();
        let mut kept = 0;
        for slot in &mut self.slots {
            if slot.owner == FOREIGN {
                slot.owner = UNKNOWN;
            }
            kept += usize::from(is_kept(slot));
        }
        if kept * 2 < self.used {
            let size = (kept * 4).next_power_of_two().max(FIRST_SLOTS);
            self.rebuild(size, is_kept);
        }
        self.blocks
            .retain(|owner| tree.by_incarnation(owner).is_some());
    }

    /// Gathers this interval's pairs without a living owner, ascending by page.
    fn collect_unknown(&mut self, tree: &Tree) {
        self.unknown.clear();
        let mut alive = UNKNOWN;
        for mark in &self.marks {
            let slot = &mut self.slots[mark.slot as usize];
            let known = match slot.owner {
                UNKNOWN => false,
                FOREIGN => self.epoch.wrapping_sub(slot.detail) < FORGET_INTERVALS,
                owner => owner == alive || tree.by_incarnation(owner).is_some(),
            };
            let listed = (!known).then(|| self.blocks.owner(slot.page, slot.frame));
            if let Some(owner) = listed.flatten() {
                (slot.owner, slot.detail) = (owner, 0);
            } else if !known {
                slot.owner = UNKNOWN;
                self.unknown.push((slot.page, mark.slot));
            } else if slot.owner != FOREIGN {
                alive = slot.owner;
            }
        }
        self.unknown.sort_unstable();
    }

    /// Asks every process's page map about the unknown pairs.
    fn look_up(&mut self, tree: &mut Tree) {
        let mut unknown = std::mem::take(&mut self.unknown);
        let mut void = Vec::new();
        for process in tree.processes() {
            let Some(map) = &process.pagemap else {
                continue;
            };
            if !self.look_up_in(map, process.incarnation, &unknown) {
                void.push(process.pid);
            }
            if self.huge_possible && !self.scan_refused {
                self.mark_huge(map, process.incarnation, &unknown);
            }
            unknown.retain(|&(_, slot)| self.slots[slot as usize].owner == UNKNOWN);
            if unknown.is_empty() {
                break;
            }
        }
        if void.is_empty() {
            for &(_, slot) in &unknown {
                let slot = &mut self.slots[slot as usize];
                (slot.owner, slot.detail) = (FOREIGN, self.epoch);
            }
        }
        // What a process has executed since is looked up in the next interval.
        void.into_iter().for_each(|pid| tree.renew(pid));
        unknown.clear();
        self.unknown = unknown;
    }

    /// Reads one page map over the unknown pages; false where its address space is gone.
    fn look_up_in(&mut self, map: &pagemap::Pagemap, owner: u32, unknown: &[(u64, u32)]) -> bool {
        let lists = self.listing.wants_more();
        // Pages of one block are in one run, so that no block is listed twice.
        let (shift, gap, most) = match lists {
            true => (BLOCK_SHIFT, 1, READ_PAGES >> BLOCK_SHIFT),
            false => (0, READ_GAP, READ_PAGES),
        };
        for run in runs(unknown, shift, gap, most) {
            let (mut first, mut end) = (run[0].0, run[run.len() - 1].0 + 1);
            if lists {
                first = block(first) << BLOCK_SHIFT;
                end = (block(end - 1) + 1) << BLOCK_SHIFT;
            }
            self.entries.clear();
            self.entries.resize((end - first) as usize, 0);
            let got = map
                .read(first, &mut self.entries, &mut self.bytes)
                .unwrap_or(0);
            if got == 0 && !matches!(map.read(0, &mut self.entries[..1], &mut self.bytes), Ok(1)) {
                return false;
            }
            self.entries.truncate(got);
            self.match_run(first, owner, run);
        }
        true
    }

    /// Attributes the pairs whose frame the entries from page `first` on confirm, and lists the
    /// blocks of those.
    fn match_run(&mut self, first: u64, owner: u32, run: &[(u64, u32)]) {
        for pairs in run.chunk_by(|a, b| block(a.0) == block(b.0)) {
            let (slots, entries) = (&mut self.slots, &self.entries);
            let confirmed = pairs.iter().filter_map(|&(page, index)| {
                let slot = &mut slots[index as usize];
                let entry = entries.get((page - first) as usize).copied();
                let is_own = entry.and_then(pagemap::frame) == Some(slot.frame);
                is_own.then(|| (slot.owner, slot.detail) = (owner, 0));
                is_own.then_some((page, slot.frame))
            });
            if !self.listing.wants_more() {
                confirmed.for_each(drop);
                continue;
            }
            // Is there one that has not just moved?
            let mut any = false;
            let number = block(pairs[0].0);
            let is_new = |_, before| any = any || before == 0;
            self.blocks.learn(owner, number, confirmed, is_new);
            if let (true, Some(start)) = (any, (number << BLOCK_SHIFT).checked_sub(first)) {
                let end = (start as usize + HUGE_PAGES as usize).min(self.entries.len());
                self.listing
                    .add(first + start, &self.entries[start as usize..end], owner);
            }
        }
    }

    /// Marks the pages just attributed to `owner` that are parts of huge pages.
    fn mark_huge(&mut self, map: &pagemap::Pagemap, owner: u32, unknown: &[(u64, u32)]) {
        for run in runs(unknown, 0, SCAN_GAP, u64::MAX) {
            if run
                .iter()
                .all(|&(_, slot)| self.slots[slot as usize].owner != owner)
            {
                continue;
            }
            let start = run[0].0 & !(HUGE_PAGES - 1);
            let end = (run[run.len() - 1].0 | (HUGE_PAGES - 1)) + 1;
            let (slots, listing) = (&mut self.slots, &mut self.listing);
            let scanned = map.scan(start..end, PAGE_IS_PRESENT | PAGE_IS_HUGE, |huge| {
                listing.remove(owner, &huge);
                let from = run.partition_point(|&(page, _)| page < huge.start);
                for &(_, slot) in run[from..].iter().take_while(|&&(page, _)| page < huge.end) {
                    let slot = &mut slots[slot as usize];
                    slot.detail = u32::from(slot.owner == owner);
                }
            });
            if scanned.is_err() {
                self.scan_refused = true;
                return;
            }
        }
    }
}

/// Splits ascending pages into runs whose gaps and lengths stay within limits, both counted in
/// units of `1 << shift` pages.
pub(super) fn runs(
    unknown: &[(u64, u32)],
    shift: u32,
    gap: u64,
    most: u64,
) -> impl Iterator<Item = &[(u64, u32)]> {
    let mut rest = unknown;
    std::iter::from_fn(move || {
        let first = rest.first()?.0 >> shift;
        let mut last = first;
        let count = rest
            .iter()
            .take_while(|&&(page, _)| {
                let unit = page >> shift;
                let fits = unit - last <= gap && unit - first < most;
                last = unit;
                fits
            })
            .count();
        let (run, after) = rest.split_at(count);
        rest = after;
        Some(run)
    })
}

/// A page that moved within the interval was seen in two frames: its counts are added, its home
/// is the later one. The emptied entry loses its owner.
fn join_twice(pages: &mut [PageStats], marks: &[Mark]) {
    let mut order: Vec<usize> = (0..pages.len())
        .filter(|&i| pages[i].pid != Pid(0))
        .collect();
    order.sort_unstable_by_key(|&i| (pages[i].pid, pages[i].page, marks[i].last_ns));
    for pair in order.windows(2) {
        let (early, late) = (pair[0], pair[1]);
        if (pages[early].pid, pages[early].page) != (pages[late].pid, pages[late].page) {
            continue;
        }
        let reads = std::mem::take(&mut pages[early].reads);
        let writes = std::mem::take(&mut pages[early].writes);
        reads
            .iter()
            .for_each(|(node, count)| pages[late].reads.add(node, count));
        writes
            .iter()
            .for_each(|(node, count)| pages[late].writes.add(node, count));
        pages[early].pid = Pid(0);
    }
}

#[cfg(test)]
mod tests;
