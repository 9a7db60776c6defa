//! Moves what was selected, batch by batch, and accounts for every page.
//!
//! A batch is one call of the backend. It ends at a boundary of 2 MiB wherever it can, because the
//! kernel moves a huge page whole: cut in two, its second part would count as there already.
//! Between batches a person may interrupt, the process may have ended, and a rate limit sleeps.
//!
//! A tier of several nodes is filled in the order of its nodes: each takes what it has free memory
//! for, the next one the rest. Pages on any node of the tier are there already. Otherwise each page
//! has a node of its own ([`Aim`]), and a batch goes to several.

use super::aim::{Aim, HUGE_PAGES};
use super::target::Room;
use hither_core::ids::{NodeId, Pid};
use hither_core::plan::Refusal;
use hither_core::set::NodeSet;
use hither_linux::sys::Mapping;
use hither_mover::{Action, Backend, Job, Outcome, Pages, Race};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// Most pages per batch: what the backend `kernel` does in one call.
const BATCH_PAGES: u64 = 16_384;
/// Most runs of pages whose old place is remembered: pages that lay in turns have one each.
const MOST_ORIGINS: usize = 4 << 20;
/// Batches per second that a rate limit aims at.
const BATCHES_PER_SECOND: u64 = 10;

/// How many pages are where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Pages per node.
    pub nodes: BTreeMap<NodeId, u64>,
    /// Pages that are on no node: the shared zero page, or gone since they were listed.
    pub nowhere: u64,
    /// Pages that are where they shall be.
    pub there: u64,
}

impl Places {
    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        for (&node, count) in &other.nodes {
            *self.nodes.entry(node).or_default() += count;
        }
        self.nowhere += other.nowhere;
        self.there += other.there;
    }

    fn count(&mut self, status: i32, is_there: bool) {
        match u32::try_from(status) {
            Ok(node) => *self.nodes.entry(NodeId(node)).or_default() += 1,
            Err(_) => self.nowhere += 1,
        }
        self.there += u64::from(is_there);
    }
}

/// Pages in memory in a row that were on one node, and what of them went where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Which.
    pub pages: Range<u64>,
    /// Where they were.
    pub from: NodeId,
    /// Those that moved.
    pub moved: u64,
    /// Where these went.
    pub to: NodeSet,
}

/// One mapping, or the part of it that was asked for.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    /// Which.
    pub mapping: Mapping,
    /// Pages in memory, as ascending runs.
    pub resident: Vec<Range<u64>>,
    /// Those of them that belong to huge pages.
    pub huge: Vec<Range<u64>>,
    /// Those of them that are not where they shall be.
    pub to_move: Vec<Range<u64>>,
    /// Where the resident ones were.
    pub before: Places,
    /// The same page by page; `None` where they were too scattered to be remembered.
    pub origins: Option<Vec<Origin>>,
}

/// What became of a piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Pages that are on the target now and were elsewhere.
    pub moved: u64,
    /// Pages that were there before.
    pub already_there: u64,
    /// Pages that stayed where they were, by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// Pages whose turn did not come.
    pub not_tried: u64,
    /// Time in the backend, in ns.
    pub duration_ns: u64,
    /// Where the resident pages were found afterwards; `None` where nobody could look.
    pub after: Option<Places>,
    /// What went where; `None` where that was too scattered to be remembered.
    pub origins: Option<Vec<Origin>>,
}

impl Account {
    /// Adds another's figures; `after` only where both have it.
    pub fn add(&mut self, other: &Self) {
        self.moved += other.moved;
        self.already_there += other.already_there;
        self.not_tried += other.not_tried;
        self.duration_ns += other.duration_ns;
        for (&refusal, count) in &other.refused {
            *self.refused.entry(refusal).or_default() += count;
        }
        self.after = match (self.after.take(), &other.after) {
            (Some(mut sum), Some(places)) => {
                sum.add(places);
                Some(sum)
            }
            _ => None,
        };
    }

    /// Throughput of the pages moved in 10^9 bytes per second; `None` where none was.
    #[must_use]
    pub fn gbs(&self) -> Option<f64> {
        (self.moved > 0 && self.duration_ns > 0)
            .then(|| (self.moved * 4096) as f64 / self.duration_ns as f64)
    }

    /// Pages that were counted as on the target and are not there any more.
    #[must_use]
    pub fn strayed(&self) -> Option<u64> {
        let found = self.after.as_ref()?.there;
        Some((self.moved + self.already_there).saturating_sub(found))
    }

    fn count_moved(&mut self, pages: &[u64], to: NodeId) {
        self.moved += pages.len() as u64;
        let Some(origins) = &mut self.origins else {
            return;
        };
        for &page in pages {
            let at = origins.partition_point(|origin| origin.pages.end <= page);
            // What was on no node has no place to go back to.
            if let Some(origin) = origins.get_mut(at).filter(|o| o.pages.contains(&page)) {
                origin.moved += 1;
                origin.to.insert(to);
            }
        }
    }
}

/// Why a move ended before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A signal asked for it.
    Signal(i32),
    /// The process has ended.
    Gone,
}

/// The world around a move, so that a test can be one.
pub trait Surroundings {
    /// Writes the node of each page, or a negative number, into `status`.
    fn locate(&mut self, pages: &[u64], status: &mut [i32]) -> io::Result<()>;

    /// Sleeps as long and says whether to stop; called with 0 between batches.
    fn pause(&mut self, sleep_us: u64) -> Option<Stop>;

    /// Time since the start of the move, in us.
    fn elapsed_us(&self) -> u64;

    /// Pages tried so far, of how many, and bytes moved.
    fn progress(&mut self, tried: u64, of: u64, moved: u64);
}

/// Moves the pieces to where they shall be. Returns their accounts, in their order, and why it
/// stopped early.
pub fn perform(
    pid: Pid,
    pieces: &[Piece],
    aim: &Aim,
    rate: Option<u64>,
    backend: &mut dyn Backend,
    around: &mut dyn Surroundings,
) -> (Vec<Account>, Option<Stop>) {
    let rooms: &[Room] = match aim {
        Aim::Fill(rooms) => rooms,
        _ => &[],
    };
    let mut run = Run {
        pid,
        aim,
        rooms,
        room: 0,
        free: rooms.first().map_or(0, |room| room.free_pages),
        most: batch_pages(rate),
        backend,
        around,
        stop: None,
    };
    // Listing the pages took its time: somebody may have had enough already.
    run.stop = run.around.pause(0);
    let total: u64 = pieces.iter().map(|piece| count(&piece.to_move)).sum();
    let (mut tried, mut moved) = (0, 0);
    let mut accounts = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let mut account = Account {
            already_there: piece.before.there,
            origins: piece.origins.clone(),
            ..Account::default()
        };
        let mut cutter = Cutter::new(&piece.to_move);
        while run.stop.is_none() {
            let batch = cutter.next(run.limit());
            if batch.is_empty() {
                break;
            }
            tried += batch.len() as u64;
            let before = account.moved;
            match rooms {
                [] => run.batch_by_page(piece, &batch, &mut account),
                _ => run.batch(batch, &mut account),
            }
            moved += account.moved - before;
            run.around.progress(tried, total, moved * 4096);
            let due_us = rate.map_or(0, |rate| {
                (u128::from(moved) * 4096 * 1_000_000 / u128::from(rate)) as u64
            });
            let sleep_us = due_us.saturating_sub(run.around.elapsed_us());
            if run.stop.is_none() {
                run.stop = run.around.pause(sleep_us);
            }
        }
        account.not_tried += cutter.left();
        accounts.push(account);
    }
    (accounts, run.stop)
}

/// Looks where the resident pages of a piece are now.
///
/// # Errors
/// What the kernel said: the process has ended, most likely.
pub fn places(piece: &Piece, aim: &Aim, around: &mut dyn Surroundings) -> io::Result<Places> {
    let mut found = Places::default();
    each_status(&piece.resident, around, |page, status| {
        let is_huge = contains(&piece.huge, page);
        found.count(status, aim.is_met(page, is_huge, status));
    })?;
    Ok(found)
}

/// Splits the resident pages of a mapping into those that are where they shall be and others.
///
/// # Errors
/// As in [`places`].
pub fn piece(
    mapping: Mapping,
    (resident, huge): (Vec<Range<u64>>, Vec<Range<u64>>),
    aim: &Aim,
    around: &mut dyn Surroundings,
) -> io::Result<Piece> {
    let mut before = Places::default();
    let mut to_move: Vec<Range<u64>> = Vec::new();
    let mut origins: Option<Vec<Origin>> = Some(Vec::new());
    each_status(&resident, around, |page, status| {
        let is_there = aim.is_met(page, contains(&huge, page), status);
        before.count(status, is_there);
        if !is_there {
            append(&mut to_move, page);
        }
        remember(&mut origins, page, status);
    })?;
    Ok(Piece {
        mapping,
        resident,
        huge,
        to_move,
        before,
        origins,
    })
}

fn append(runs: &mut Vec<Range<u64>>, page: u64) {
    match runs.last_mut() {
        Some(last) if last.end == page => last.end += 1,
        _ => runs.push(page..page + 1),
    }
}

/// Adds where a page is; forgets all where it is too much.
fn remember(origins: &mut Option<Vec<Origin>>, page: u64, status: i32) {
    let (Some(known), Ok(node)) = (origins.as_mut(), u32::try_from(status)) else {
        return;
    };
    let is_full = known.len() == MOST_ORIGINS;
    match known.last_mut() {
        Some(last) if last.pages.end == page && last.from.0 == node => last.pages.end += 1,
        _ if is_full => *origins = None,
        _ => known.push(Origin {
            pages: page..page + 1,
            from: NodeId(node),
            moved: 0,
            to: NodeSet::new(),
        }),
    }
}

/// Is a page in one of these ascending runs?
fn contains(runs: &[Range<u64>], page: u64) -> bool {
    let at = runs.partition_point(|run| run.end <= page);
    runs.get(at).is_some_and(|run| run.contains(&page))
}

fn each_status(
    runs: &[Range<u64>],
    around: &mut dyn Surroundings,
    mut each: impl FnMut(u64, i32),
) -> io::Result<()> {
    let mut status = Vec::new();
    let mut cutter = Cutter::new(runs);
    loop {
        let pages = cutter.next(BATCH_PAGES);
        if pages.is_empty() {
            return Ok(());
        }
        status.clear();
        status.resize(pages.len(), i32::MIN);
        around.locate(&pages, &mut status)?;
        pages
            .iter()
            .zip(&status)
            .for_each(|(&page, &status)| each(page, status));
    }
}

/// Pages in runs.
#[must_use]
pub fn count(runs: &[Range<u64>]) -> u64 {
    runs.iter().map(|run| run.end - run.start).sum()
}

/// Small enough that a rate limit does not come in bursts, and at least one huge page.
fn batch_pages(rate: Option<u64>) -> u64 {
    let most = rate.map_or(BATCH_PAGES, |rate| rate / 4096 / BATCHES_PER_SECOND);
    most.clamp(HUGE_PAGES, BATCH_PAGES)
}

struct Run<'a> {
    pid: Pid,
    aim: &'a Aim,
    /// Those of [`Aim::Fill`].
    rooms: &'a [Room],
    /// Index of the node being filled.
    room: usize,
    /// Pages that it still has room for.
    free: u64,
    most: u64,
    backend: &'a mut dyn Backend,
    around: &'a mut dyn Surroundings,
    stop: Option<Stop>,
}

impl Run<'_> {
    /// Pages of the next batch. The last node is not limited by its free memory: the kernel may
    /// reclaim some, and says where it cannot.
    fn limit(&mut self) -> u64 {
        while self.free < HUGE_PAGES && self.next_room() {}
        match self.is_last_room() {
            true => self.most,
            false => self.most.min(self.free / HUGE_PAGES * HUGE_PAGES),
        }
    }

    fn is_last_room(&self) -> bool {
        self.room + 1 >= self.rooms.len()
    }

    fn next_room(&mut self) -> bool {
        if self.is_last_room() {
            return false;
        }
        self.room += 1;
        self.free = self.rooms[self.room].free_pages;
        true
    }

    /// Moves one batch, and tries again on the next node what a full one refused.
    fn batch(&mut self, mut pages: Vec<u64>, account: &mut Account) {
        loop {
            let outcome = self.attempt(&pages);
            account.count_moved(&outcome.moved, self.rooms[self.room].node);
            account.already_there += outcome.already_there;
            account.duration_ns += outcome.duration_ns;
            self.free = self.free.saturating_sub(outcome.moved.len() as u64);
            let refused = |reason| {
                outcome
                    .refused
                    .iter()
                    .any(|&(refusal, _)| refusal == reason)
            };
            if refused(Refusal::ProcessGone) {
                self.stop = Some(Stop::Gone);
            }
            let again = refused(Refusal::NoMemory) && self.stop.is_none() && self.next_room();
            if again {
                // Those that arrived since they were listed have been counted.
                let left = self.elsewhere(&pages, &outcome);
                if !left.is_empty() {
                    pages = left;
                    continue;
                }
            }
            for &(refusal, count) in &outcome.refused {
                *account.refused.entry(refusal).or_default() += count;
            }
            return;
        }
    }

    /// Moves one batch of which each page has a node of its own.
    fn batch_by_page(&mut self, piece: &Piece, pages: &[u64], account: &mut Account) {
        let mut sorted: BTreeMap<NodeId, Vec<u64>> = BTreeMap::new();
        for &page in pages {
            match self.aim.node_of(page, contains(&piece.huge, page)) {
                Some(node) => sorted.entry(node).or_default().push(page),
                // Nobody has a place for it: it stays.
                None => *account.refused.entry(Refusal::NotSupported).or_default() += 1,
            }
        }
        let job = |(node, pages)| Job {
            pid: self.pid,
            action: Action::Migrate {
                pages: Pages::Listed(pages),
                to: node,
            },
            race: Race::Block,
        };
        let pairs: Vec<(NodeId, &[u64])> = sorted.iter().map(|(&n, p)| (n, &p[..])).collect();
        let jobs: Vec<Job<'_>> = pairs.iter().copied().map(job).collect();
        for (outcome, (node, _)) in self.backend.execute(&jobs).into_iter().zip(pairs) {
            account.count_moved(&outcome.moved, node);
            account.already_there += outcome.already_there;
            account.duration_ns += outcome.duration_ns;
            for &(refusal, count) in &outcome.refused {
                *account.refused.entry(refusal).or_default() += count;
                if refusal == Refusal::ProcessGone {
                    self.stop = Some(Stop::Gone);
                }
            }
        }
    }

    fn attempt(&mut self, pages: &[u64]) -> Outcome {
        let job = Job {
            pid: self.pid,
            action: Action::Migrate {
                pages: Pages::Listed(pages),
                to: self.rooms[self.room].node,
            },
            race: Race::Block,
        };
        self.backend.execute(&[job]).swap_remove(0)
    }

    /// The pages of a batch that are on no node of the target, without those that it moved;
    /// none where nobody can tell, or where the numbers do not add up any more.
    fn elsewhere(&mut self, pages: &[u64], outcome: &Outcome) -> Vec<u64> {
        let mut status = vec![i32::MIN; pages.len()];
        if self.around.locate(pages, &mut status).is_err() {
            return Vec::new();
        }
        let left: Vec<u64> = pages
            .iter()
            .zip(&status)
            .filter(|&(page, &status)| {
                !self.aim.is_met(*page, false, status) && outcome.moved.binary_search(page).is_err()
            })
            .map(|(&page, _)| page)
            .collect();
        let refused: u64 = outcome.refused.iter().map(|&(_, count)| count).sum();
        // Pages counted as refused must be counted exactly once more: by the next attempt.
        if left.len() as u64 == refused {
            left
        } else {
            Vec::new()
        }
    }
}

/// Cuts runs of pages into batches.
struct Cutter<'a> {
    runs: &'a [Range<u64>],
    /// First page of the first run that is left.
    at: u64,
}

impl<'a> Cutter<'a> {
    fn new(runs: &'a [Range<u64>]) -> Self {
        Self {
            runs,
            at: runs.first().map_or(0, |run| run.start),
        }
    }

    /// At most `limit` pages, ending between huge pages where `limit` allows it.
    fn next(&mut self, limit: u64) -> Vec<u64> {
        let mut batch = Vec::new();
        while let Some(run) = self.runs.first() {
            let room = limit - batch.len() as u64;
            let mut end = run.end.min(self.at + room);
            if end < run.end {
                let boundary = end / HUGE_PAGES * HUGE_PAGES;
                // Where the batch has other pages already, or the run reaches over a boundary.
                if boundary > self.at || (boundary == self.at && !batch.is_empty()) {
                    end = boundary;
                }
            }
            if end == self.at {
                break;
            }
            batch.extend(self.at..end);
            self.at = end;
            if end < run.end {
                break;
            }
            self.runs = &self.runs[1..];
            self.at = self.runs.first().map_or(0, |run| run.start);
        }
        batch
    }

    fn left(&self) -> u64 {
        let first = self.runs.first().map_or(0, |run| run.end - self.at);
        first
            + self
                .runs
                .iter()
                .skip(1)
                .map(|run| run.end - run.start)
                .sum::<u64>()
    }
}

#[cfg(test)]
mod tests;
