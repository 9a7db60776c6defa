//! What is to be moved, and what next: a state machine that does nothing itself.
//!
//! Problem: several deciders ask for moves of many sizes in many processes. One call of a backend
//! has a high price whatever it moves, and holds up whoever waits for its end; a large move must
//! not starve others, and no move may outrun the rate or fill a node beyond its room.
//!
//! Mechanism: tasks wait in *lanes*, one a process, in the order in which they came. [`Queue::next`]
//! cuts a *slice*: up to so many pages of one lane, of several tasks where they are small. Whoever
//! asked carries it out and says so with [`Queue::done`]. The lane whose turn it is has fewest
//! slices on their way, and of those the one that has used least time.
//!
//! A task may name several nodes: each takes pages while it has room ([`Queue::set_room`]); what a
//! full one refuses is tried on the next. The last one is not limited: the kernel may reclaim
//! memory there, and says where it cannot.
//!
//! Properties: every page of a task is accounted for once, every task finishes once; bytes handed
//! out keep the rate, but for a tenth of a second's worth and the slices on their way; pages of one
//! task leave in their order; after [`Queue::cancel`] nothing of what it named is handed out.

use super::cut::{self, Cutter};
use crate::backend::{Action, Job, Outcome, Pages, Race};
use crate::rate::TokenBucket;
use hither_core::ids::{NodeId, Pid, SpaceId};
use hither_core::plan::{MoveRequest, Refusal};
use hither_core::snapshot::{HUGE_PAGES, PAGE_BYTES};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Settings of a queue.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most pages of a slice: one call of the backend.
    pub slice_pages: u64,
    /// Most bytes moved a second; `None`: as fast as the machine can.
    pub rate: Option<u64>,
    /// Most tasks that wait or are on their way.
    pub tasks: usize,
}

/// Slices a second that a rate limit aims at.
const SLICES_PER_SECOND: u64 = 10;
/// Most pages of a slice: what the backend `kernel` does in one call.
pub const MOST_SLICE_PAGES: u64 = 16_384;

impl Limits {
    /// With slices small enough that a rate limit does not come in bursts, of at least one huge page.
    #[must_use]
    pub fn with_rate(rate: Option<u64>) -> Self {
        let most = rate.map_or(MOST_SLICE_PAGES, |rate| {
            rate / PAGE_BYTES / SLICES_PER_SECOND
        });
        Self {
            slice_pages: most.clamp(HUGE_PAGES, MOST_SLICE_PAGES),
            rate,
            tasks: 1 << 20,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::with_rate(None)
    }
}

/// Pages of one process that shall go to a node, or to the first of several that has room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The caller's number for it, unlike that of any task that has not finished.
    pub id: u64,
    /// Whose pages.
    pub pid: Pid,
    /// Which life of that process's memory, where the caller tells them apart.
    pub space: SpaceId,
    /// Ascending runs.
    pub pages: Vec<Range<u64>>,
    /// Where to, at least one.
    pub to: Vec<NodeId>,
}

impl Task {
    /// What the engine asks for.
    #[must_use]
    pub fn of_request(request: &MoveRequest) -> Self {
        Self {
            id: request.id,
            pid: request.pid,
            space: request.space,
            pages: cut::runs(request.pages.iter().copied()),
            to: vec![request.to],
        }
    }
}

/// What a task is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// [`Task::id`].
    pub id: u64,
    /// [`Task::pid`].
    pub pid: Pid,
    /// [`Task::space`].
    pub space: SpaceId,
}

/// Pages of one task within a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The task's number.
    pub task: u64,
    /// Ascending.
    pub pages: Vec<u64>,
    /// Where to.
    pub to: NodeId,
    /// Which of the task's nodes that is.
    turn: usize,
}

/// What to do next: pages of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Whose.
    pub pid: Pid,
    /// In their order.
    pub parts: Vec<Part>,
}

impl Slice {
    /// As a backend takes it: one job a part.
    #[must_use]
    pub fn jobs(&self) -> Vec<Job<'_>> {
        let parts = self.parts.iter();
        let jobs = parts.map(|part| Job {
            pid: self.pid,
            action: Action::Migrate {
                pages: Pages::Listed(&part.pages),
                to: part.to,
            },
            race: Race::Block,
        });
        jobs.collect()
    }

    /// Pages of it.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        self.parts.iter().map(|part| part.pages.len() as u64).sum()
    }

    /// As if none of it could be moved, for this reason.
    #[must_use]
    pub fn all_refused(&self, why: Refusal) -> Vec<Outcome> {
        let refused = |part: &Part| Outcome {
            refused: vec![(why, part.pages.len() as u64)],
            ..Outcome::default()
        };
        self.parts.iter().map(refused).collect()
    }
}

/// What [`Queue::next`] has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// This is to be done now.
    Slice(Slice),
    /// The rate allows nothing for so many ns.
    Wait(u64),
    /// What is left is on its way.
    Busy,
    /// There is nothing.
    Idle,
}

/// A task that has not finished.
#[derive(Debug)]
struct Entry {
    ticket: Ticket,
    to: Vec<NodeId>,
    left: Cutter,
    /// What a full node refused, with the node to try now.
    again: VecDeque<(Cutter, usize)>,
    /// Pages on their way.
    flying: u64,
    is_cancelled: bool,
    outcome: Outcome,
}

impl Entry {
    fn waiting(&self) -> u64 {
        let again: u64 = self.again.iter().map(|(cutter, _)| cutter.left()).sum();
        self.left.left() + again
    }
}

/// The tasks of one process.
#[derive(Debug, Default)]
struct Lane {
    /// Those with pages that wait, in their order.
    tasks: VecDeque<u64>,
    /// Slices on their way.
    flying: usize,
    /// Time that its slices took, in ns, from where others were when it came.
    used_ns: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Queue {
    limits: Limits,
    bucket: Option<TokenBucket>,
    lanes: BTreeMap<Pid, Lane>,
    entries: BTreeMap<u64, Entry>,
    rooms: BTreeMap<NodeId, u64>,
    finished: VecDeque<(u64, Outcome)>,
    /// What a lane that comes has used: as much as the one that was served last.
    floor_ns: u64,
    flying: usize,
}

impl Queue {
    /// An empty queue. Its bucket is empty, too: the rate holds from the first page on.
    #[must_use]
    pub fn new(limits: Limits, now_ns: u64) -> Self {
        Self {
            bucket: limits.rate.map(|rate| TokenBucket::empty(rate, now_ns)),
            limits,
            lanes: BTreeMap::new(),
            entries: BTreeMap::new(),
            rooms: BTreeMap::new(),
            finished: VecDeque::new(),
            floor_ns: 0,
            flying: 0,
        }
    }

    /// Takes a task, or gives it back where the queue is full.
    ///
    /// # Errors
    /// The task: the queue is full.
    ///
    /// # Panics
    /// Where the task names no node, or has the number of one that has not finished.
    pub fn submit(&mut self, task: Task) -> Result<(), Task> {
        assert!(!task.to.is_empty(), "a task names a node");
        if self.entries.len() >= self.limits.tasks {
            return Err(task);
        }
        let left = Cutter::new(task.pages);
        if left.left() == 0 {
            self.finished.push_back((task.id, Outcome::default()));
            return Ok(());
        }
        let floor_ns = self.floor_ns;
        let lane = self.lanes.entry(task.pid).or_insert_with(|| Lane {
            used_ns: floor_ns,
            ..Lane::default()
        });
        lane.tasks.push_back(task.id);
        let entry = Entry {
            ticket: Ticket {
                id: task.id,
                pid: task.pid,
                space: task.space,
            },
            to: task.to,
            left,
            again: VecDeque::new(),
            flying: 0,
            is_cancelled: false,
            outcome: Outcome::default(),
        };
        let before = self.entries.insert(task.id, entry);
        assert!(before.is_none(), "task {} is there already", task.id);
        Ok(())
    }

    /// How many pages a node may still take; without it there is no limit but the kernel's.
    pub fn set_room(&mut self, node: NodeId, pages: u64) {
        self.rooms.insert(node, pages);
    }

    /// The next slice, which somebody must carry out now.
    pub fn next(&mut self, now_ns: u64) -> Next {
        let waiting = self.lanes.iter().filter(|(_, lane)| !lane.tasks.is_empty());
        let turn = waiting.min_by_key(|(pid, lane)| (lane.flying, lane.used_ns, **pid));
        let Some((&pid, lane)) = turn else {
            return match self.flying {
                0 => Next::Idle,
                _ => Next::Busy,
            };
        };
        if let Some(wait_ns) = self.bucket.as_mut().and_then(|b| b.take(0, now_ns)) {
            return Next::Wait(wait_ns);
        }
        self.floor_ns = self.floor_ns.max(lane.used_ns);
        let slice = self.cut(pid);
        if let Some(bucket) = &mut self.bucket {
            bucket.take(slice.page_count() * PAGE_BYTES, now_ns);
        }
        if let Some(lane) = self.lanes.get_mut(&pid) {
            lane.flying += 1;
        }
        self.flying += 1;
        Next::Slice(slice)
    }

    fn cut(&mut self, pid: Pid) -> Slice {
        let mut slice = Slice {
            pid,
            parts: Vec::new(),
        };
        let mut budget = self.limits.slice_pages;
        while let Some(id) = self.first_of(pid).filter(|_| budget > 0) {
            let part = self.cut_task(id, budget, slice.parts.is_empty());
            if part.pages.is_empty() {
                break;
            }
            budget -= part.pages.len() as u64;
            slice.parts.push(part);
        }
        slice
    }

    /// The first task of a lane that has pages waiting; those that have none leave the lane.
    fn first_of(&mut self, pid: Pid) -> Option<u64> {
        let tasks = &mut self.lanes.get_mut(&pid)?.tasks;
        while let Some(&id) = tasks.front() {
            if self.entries.get(&id).is_some_and(|e| e.waiting() > 0) {
                return Some(id);
            }
            tasks.pop_front();
        }
        None
    }

    /// A part of a task, for the first of its nodes that has room.
    fn cut_task(&mut self, id: u64, budget: u64, may_split: bool) -> Part {
        let entry = self.entries.get_mut(&id).expect("a waiting task is known");
        let (cutter, from) = match entry.again.front_mut() {
            Some((cutter, turn)) => (cutter, *turn),
            None => (&mut entry.left, 0),
        };
        let last = entry.to.len() - 1;
        let room = |turn: &usize| self.rooms.get(&entry.to[*turn]).copied();
        let turn = (from..last)
            .find(|turn| room(turn).is_none_or(|room| room >= HUGE_PAGES))
            .unwrap_or(last);
        let limit = match room(&turn) {
            Some(room) if turn < last => budget.min(room / HUGE_PAGES * HUGE_PAGES),
            _ => budget,
        };
        let pages: Vec<u64> = cutter.cut(limit, may_split).into_iter().flatten().collect();
        if entry.again.front().is_some_and(|(c, _)| c.left() == 0) {
            entry.again.pop_front();
        }
        let count = pages.len() as u64;
        let to = entry.to[turn];
        entry.flying += count;
        if let Some(room) = self.rooms.get_mut(&to) {
            *room = room.saturating_sub(count);
        }
        Part {
            task: id,
            pages,
            to,
            turn,
        }
    }

    /// A slice has been carried out, with the outcome of each part.
    ///
    /// # Panics
    /// Where there is not one outcome a part, or one does not account for the part's pages.
    pub fn done(&mut self, slice: Slice, outcomes: Vec<Outcome>) {
        assert_eq!(slice.parts.len(), outcomes.len(), "an outcome a part");
        let (mut took_ns, mut is_gone) = (0, false);
        let pages = slice.page_count();
        for (part, outcome) in slice.parts.into_iter().zip(outcomes) {
            let count = part.pages.len() as u64;
            assert_eq!(outcome.page_count(), count, "every page of a part once");
            let stayed = count - outcome.moved.len() as u64;
            if let Some(bucket) = &mut self.bucket {
                bucket.give_back(stayed * PAGE_BYTES);
            }
            if let Some(room) = self.rooms.get_mut(&part.to) {
                *room += stayed;
            }
            took_ns += outcome.duration_ns;
            let mut refused = outcome.refused.iter();
            is_gone |= refused.any(|&(why, _)| why == Refusal::ProcessGone);
            self.account(&part, outcome);
        }
        self.flying -= 1;
        if let Some(lane) = self.lanes.get_mut(&slice.pid) {
            lane.flying -= 1;
            // A backend that tells no time is taken to need 1 us for 4 pages.
            lane.used_ns += if took_ns > 0 { took_ns } else { pages * 250 };
        }
        if is_gone {
            self.cancel(|ticket| ticket.pid == slice.pid);
        }
        self.close_lane(slice.pid);
    }

    fn account(&mut self, part: &Part, mut outcome: Outcome) {
        let entry = self.entries.get_mut(&part.task).expect("on its way");
        entry.flying -= part.pages.len() as u64;
        let full = std::mem::take(&mut outcome.without_room);
        if !full.is_empty() && part.turn + 1 < entry.to.len() && !entry.is_cancelled {
            self.rooms.insert(part.to, 0);
            // They are accounted for by the next node.
            outcome.retract(Refusal::NoMemory, full.len() as u64);
            let cutter = Cutter::new(cut::runs(full));
            let was_waiting = entry.waiting() > 0;
            entry.again.push_back((cutter, part.turn + 1));
            let lane = self.lanes.get_mut(&entry.ticket.pid).expect("has a slice");
            // A task whose last pages these were has left its lane.
            if !was_waiting && !lane.tasks.contains(&part.task) {
                lane.tasks.push_front(part.task);
            }
        }
        entry.outcome.add(outcome);
        self.finish_if_done(part.task);
    }

    fn finish_if_done(&mut self, id: u64) {
        let is_done = |entry: &Entry| entry.flying == 0 && entry.waiting() == 0;
        if self.entries.get(&id).is_some_and(is_done) {
            let mut entry = self.entries.remove(&id).expect("it was just seen");
            entry.outcome.moved.sort_unstable();
            entry.outcome.refused.sort_unstable();
            self.finished.push_back((id, entry.outcome));
        }
    }

    fn close_lane(&mut self, pid: Pid) {
        if self.first_of(pid).is_none() && self.lanes.get(&pid).is_some_and(|l| l.flying == 0) {
            self.lanes.remove(&pid);
        }
    }

    /// What waits of the tasks that `is_meant` names is refused as not
    /// tried, or for want of memory where a full node refused it. What is on its way finishes.
    pub fn cancel(&mut self, mut is_meant: impl FnMut(Ticket) -> bool) {
        let tickets = self.entries.values().map(|entry| entry.ticket);
        let meant: Vec<Ticket> = tickets.filter(|ticket| is_meant(*ticket)).collect();
        for Ticket { id, pid, .. } in meant {
            let entry = self.entries.get_mut(&id).expect("it was just seen");
            let full: u64 = entry.again.iter().map(|(cutter, _)| cutter.left()).sum();
            let left = entry.left.left();
            entry.left = Cutter::default();
            entry.again.clear();
            entry.is_cancelled = true;
            entry.outcome.add(Outcome {
                refused: vec![(Refusal::Dropped, left), (Refusal::NoMemory, full)],
                ..Outcome::default()
            });
            self.finish_if_done(id);
            self.close_lane(pid);
        }
    }

    /// Tasks that have finished since, with what became of them: pages ascending, reasons in a fixed
    /// order.
    pub fn take_finished(&mut self) -> Vec<(u64, Outcome)> {
        self.finished.drain(..).collect()
    }

    /// Tasks that have not finished.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.entries.len()
    }

    /// Pages that wait or are on their way.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        let pages = |entry: &Entry| entry.waiting() + entry.flying;
        self.entries.values().map(pages).sum()
    }

    /// Time in ns until the rate has been kept for all that was handed out.
    pub fn debt_ns(&mut self, now_ns: u64) -> u64 {
        let bucket = self.bucket.as_mut();
        bucket.and_then(|b| b.take(0, now_ns)).unwrap_or(0)
    }
}
