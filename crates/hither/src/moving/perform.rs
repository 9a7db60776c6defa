//! Moves what was selected, and accounts for every page.
//!
//! The executor's queue cuts batches, keeps the rate and fills nodes; here is what goes into it, a
//! chunk at a time, and what its outcomes come to. Between batches a person may interrupt, the process
//! may have ended, and a rate limit sleeps.
//!
//! A tier of several nodes is filled in the order of its nodes: each takes what it has free memory
//! for, the next one the rest. Pages on any node of the tier are there already. Otherwise each page
//! has a node of its own ([`Aim`]), and a batch goes to several.

use super::aim::Aim;
use hither_core::ids::{NodeId, Pid, SpaceId};
use hither_core::plan::Refusal;
use hither_core::set::NodeSet;
use hither_linux::sys::OwnMapping;
pub use hither_mover::executor::cut::count;
use hither_mover::executor::cut::{self, Cutter};
use hither_mover::executor::queue::MOST_SLICE_PAGES;
use hither_mover::executor::{ExecutorStep, Limits, Queue, Task};
use hither_mover::{Backend, Outcome};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// Most runs of pages whose old place is remembered: pages that lay in turns have one each.
const MOST_ORIGINS: usize = 4 << 20;

/// Ascending runs of pages.
pub type Runs = Vec<Range<u64>>;

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
    pub mapping: OwnMapping,
    /// Pages in memory, as ascending runs.
    pub resident: Runs,
    /// Those of them that belong to huge pages.
    pub huge: Runs,
    /// Those of them that are not where they shall be, and may move.
    pub to_move: Runs,
    /// Those that are not and must stay: pinned, or a device's.
    pub fixed: Runs,
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
    let mut queue = Queue::new(Limits::with_rate(rate), around.elapsed_us() * 1000);
    if let Aim::Fill(rooms) = aim {
        for room in rooms {
            queue.set_room(room.node, room.available_pages);
        }
    }
    let mut run = Run {
        pid,
        aim,
        queue,
        next_id: 0,
        total: pieces.iter().map(|piece| count(&piece.to_move)).sum(),
        cut: 0,
        moved: 0,
        backend,
        // Listing the pages took its time: somebody may have had enough already.
        stop: around.pause(0),
        around,
    };
    let mut accounts = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let fixed = Some(count(&piece.fixed)).filter(|&count| count > 0);
        let mut account = Account {
            already_there: piece.before.there,
            refused: fixed
                .map(|count| (Refusal::Pinned, count))
                .into_iter()
                .collect(),
            origins: piece.origins.clone(),
            ..Account::default()
        };
        let mut cutter = Cutter::new(piece.to_move.clone());
        while run.stop.is_none() && cutter.left() > 0 {
            run.chunk(piece, cutter.next(MOST_SLICE_PAGES), &mut account);
        }
        account.not_tried += cutter.left();
        accounts.push(account);
    }
    // The rate is a mean over all of the move.
    let debt_ns = run.queue.debt_ns(run.now_ns());
    if run.stop.is_none() && debt_ns > 0 {
        run.stop = run.around.pause(debt_ns.div_ceil(1000));
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
    mapping: OwnMapping,
    (resident, huge): (Runs, Runs),
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
        fixed: Vec::new(),
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
    let mut left = runs.iter().cloned().flatten();
    let mut status = Vec::new();
    loop {
        let pages: Vec<u64> = left.by_ref().take(MOST_SLICE_PAGES as usize).collect();
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

struct Run<'a> {
    pid: Pid,
    aim: &'a Aim,
    queue: Queue,
    next_id: u64,
    /// Pages to be moved in all, those that went into the queue, and those that moved.
    total: u64,
    cut: u64,
    moved: u64,
    backend: &'a mut dyn Backend,
    around: &'a mut dyn Surroundings,
    stop: Option<Stop>,
}

impl Run<'_> {
    fn now_ns(&self) -> u64 {
        self.around.elapsed_us() * 1000
    }

    /// Moves pages of a piece.
    fn chunk(&mut self, piece: &Piece, pages: Vec<Range<u64>>, account: &mut Account) {
        self.cut += count(&pages);
        match self.aim {
            Aim::Fill(rooms) => {
                let to = rooms.iter().map(|room| room.node).collect();
                self.submit(pages, to);
            }
            _ => self.submit_by_page(piece, pages, account),
        }
        loop {
            let now_ns = self.now_ns();
            let (mut is_gone, moved_before) = (false, account.moved);
            let step = self
                .queue
                .step(self.backend, now_ns, &mut |slice, outcomes| {
                    for (part, outcome) in slice.parts.iter().zip(outcomes) {
                        account.count_moved(&outcome.moved, part.to);
                        account.already_there += outcome.already_there;
                        account.duration_ns += outcome.duration_ns;
                        let mut refused = outcome.refused.iter();
                        is_gone |= refused.any(|&(why, _)| why == Refusal::ProcessGone);
                    }
                });
            let sleep_us = match step {
                ExecutorStep::Done => 0,
                ExecutorStep::Wait(wait_ns) => wait_ns.div_ceil(1000),
                ExecutorStep::Idle => break,
            };
            self.moved += account.moved - moved_before;
            if step == ExecutorStep::Done {
                let tried = self.cut - self.queue.page_count();
                self.around.progress(tried, self.total, self.moved * 4096);
            }
            self.stop = match is_gone {
                true => Some(Stop::Gone),
                false => self.around.pause(sleep_us),
            };
            if self.stop.is_some() {
                self.queue.cancel(|_| true);
            }
        }
        for (_, outcome) in self.queue.take_finished() {
            count_refused(account, &outcome);
        }
    }

    fn submit(&mut self, pages: Vec<Range<u64>>, to: Vec<NodeId>) {
        self.next_id += 1;
        let task = Task {
            id: self.next_id,
            pid: self.pid,
            space: SpaceId(0),
            pages,
            to,
        };
        let submitted = self.queue.submit(task);
        submitted.expect("a chunk has fewer tasks than the queue takes");
    }

    /// Each page has a node of its own.
    fn submit_by_page(&mut self, piece: &Piece, pages: Vec<Range<u64>>, account: &mut Account) {
        let mut sorted: BTreeMap<NodeId, Vec<u64>> = BTreeMap::new();
        for page in pages.into_iter().flatten() {
            match self.aim.node_of(page, contains(&piece.huge, page)) {
                Some(node) => sorted.entry(node).or_default().push(page),
                // Nobody has a place for it: it stays.
                None => *account.refused.entry(Refusal::NotSupported).or_default() += 1,
            }
        }
        for (node, pages) in sorted {
            self.submit(cut::runs(pages), vec![node]);
        }
    }
}

fn count_refused(account: &mut Account, outcome: &Outcome) {
    for &(refusal, count) in &outcome.refused {
        match refusal {
            Refusal::Dropped => account.not_tried += count,
            _ => *account.refused.entry(refusal).or_default() += count,
        }
    }
}

#[cfg(test)]
mod tests;
