//! One mover's queues and the rules by which its clients and workers pass requests on.
//!
//! A request's way: free list → client → staging → high or normal → worker → done or failed →
//! client → free list. Its slot's `state` says where it is:
//!
//! ```text
//!          allocate          submit           take             complete
//!   Free ───────────► Held ─────────► Queued ──────► Running ───────────► Finished
//!    ▲                 │                 │ cancel                  ▲          │
//!    │◄────────────────┘ release         └──────────► Cancelled ───┘          │
//!    └────────────────────────────────────────────────────────────────────────┘ retrieve
//! ```
//!
//! and carries a generation that grows whenever the slot becomes free, so that the number of a
//! finished request never means its successor. A request that a future waits for is marked
//! `FOR_FUTURE`: it is not put into a completion queue. Where its future was dropped it is marked
//! `ABANDONED` as well, and whoever completes it frees it.
//!
//! Who passes staged requests on is decided by staging's colour (memif section 4.4):
//!
//! - Blue: some worker sleeps, or is about to. Who submits flushes staging into high and normal,
//!   makes it red, again from the start if it is no longer empty, and if it was blue until that
//!   moment rings the workers' bell once: a *kick*, the only system call of a submission.
//! - Red: some worker looks at staging before it sleeps. Submitting is one push.
//!
//! A worker that finds nothing makes staging blue, which only succeeds while it is empty, looks at
//! high and normal once more, and sleeps if the bell has not been rung since before it looked.
//! Nothing is slept through: a flusher writes staging's head after it has filled high and normal
//! ([`staging::set_colour`] writes even what is there already). If that was before the worker's
//! change to blue, the worker's second look sees what was filled in; if after, the flusher found
//! blue and kicks.

use crate::layout::{Colour, Ends, Link, Slot};
use crate::notify::Notifier;
use crate::record::{Asked, Completion, RequestId, Status, write_outcome};
use crate::region::{Forked, Region};
use crate::sync::{AtomicU32, Mutex, Ordering, Plain64, boxed, lock};
use crate::{backend::Outcome, free_list, queue, staging};
use std::io;
use std::task::Waker;

const STATE_MASK: u64 = 0xf;
const FREE: u64 = 0;
const HELD: u64 = 1;
const QUEUED: u64 = 2;
const CANCELLED: u64 = 3;
const RUNNING: u64 = 4;
const FINISHED: u64 = 5;
/// Its result goes to a future and not to a completion queue.
const FOR_FUTURE: u64 = 0x10;
/// Nobody wants its result.
const ABANDONED: u64 = 0x20;
const MARKS: u64 = 0xff;
const GENERATION_SHIFT: u32 = 8;
/// Generations are 48 bits, to fit a [`RequestId`] beside the slot's number.
const GENERATIONS: u64 = (1 << 48) - 1;

fn generation(state: u64) -> u64 {
    state >> GENERATION_SHIFT & GENERATIONS
}

fn with(state: u64, marks: u64) -> u64 {
    state & !MARKS | marks
}

/// A slot that its holder may fill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) index: u16,
    generation: u64,
}

impl Held {
    pub(crate) fn id(self) -> RequestId {
        RequestId::new(self.index, self.generation)
    }
}

/// A request that a worker has taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) index: u16,
    /// Cancelled before its turn: to be completed, not to be run.
    pub(crate) cancelled: bool,
    pub(crate) asked: Asked,
    pub(crate) submitted_ticks: u64,
}

/// Requests by where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    /// Slots that nobody uses.
    pub free: u64,
    /// Taken from the free list and not submitted yet.
    pub held: u64,
    /// Submitted and not begun.
    pub queued: u64,
    /// Being moved.
    pub running: u64,
    /// Completed and not retrieved, of any status.
    pub completed: u64,
    /// Of the queued ones: known to the workers, with high priority.
    pub queue_high: u64,
    /// Of the queued ones: known to the workers, with normal priority.
    pub queue_normal: u64,
    /// Of the completed ones: in the queue of those that are done.
    pub queue_done: u64,
    /// Of the completed ones: in the queue of failed and cancelled ones.
    pub queue_failed: u64,
}

/// What happened so far; only for reports.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Blue to red by a submitter, each followed by one ring of the bell.
    pub(crate) kicks: Plain64,
    /// Red to blue by a worker.
    pub(crate) blues: Plain64,
    /// Blue to red by a worker that woke up or found something.
    pub(crate) recoloured: Plain64,
    /// Times that a worker went to sleep.
    pub(crate) sleeps: Plain64,
    /// Sleeping workers that another worker rang for.
    pub(crate) helpers: Plain64,
}

pub(crate) struct Instance {
    pub(crate) region: Region,
    pub(crate) notifier: Notifier,
    pub(crate) tally: Tally,
    /// How many workers there are.
    workers: usize,
    /// Workers between "about to set blue" and "awake". Kept only where there are several.
    sleepers: AtomicU32,
    /// By slot: whom to wake when a future's request is finished.
    wakers: Box<[Mutex<Option<Waker>>]>,
}

impl Instance {
    pub(crate) fn new(slot_count: u16, workers: usize, eventfd: bool) -> io::Result<Self> {
        Ok(Self {
            region: Region::new(slot_count)?,
            notifier: Notifier::new(eventfd)?,
            tally: Tally::default(),
            workers,
            sleepers: AtomicU32::new(0),
            wakers: boxed((0..slot_count).map(|_| Mutex::new(None)))?,
        })
    }

    // The client's side.

    /// Takes a slot from the free list.
    #[inline]
    pub(crate) fn allocate(&self) -> Option<Held> {
        let index = free_list::pop(&self.region)?;
        let slot = self.region.slot(index);
        let state = slot.state.load(Ordering::Relaxed);
        debug_assert_eq!(state & MARKS, FREE);
        slot.state.store(with(state, HELD), Ordering::Relaxed);
        Some(Held {
            index,
            generation: generation(state),
        })
    }

    /// Gives a held slot back unsubmitted. In a child after fork nothing becomes free.
    pub(crate) fn release(&self, held: Held) {
        if !self.region.is_wiped() {
            self.free(held.index);
        }
    }

    fn free(&self, index: u16) {
        let slot = self.region.slot(index);
        self.free_state(index, slot, slot.state.load(Ordering::Relaxed));
    }

    #[inline]
    fn free_state(&self, index: u16, slot: &Slot, state: u64) {
        let next = generation(state).wrapping_add(1) & GENERATIONS;
        slot.state
            .store(next << GENERATION_SHIFT | FREE, Ordering::Relaxed);
        free_list::push(&self.region, index);
    }

    /// Passes a held slot on to the workers.
    #[inline]
    pub(crate) fn submit(
        &self,
        held: Held,
        asked: &Asked,
        ticks: u64,
        for_future: bool,
    ) -> Result<RequestId, Forked> {
        self.fill(held, asked, ticks, QUEUED, for_future)?;
        if staging::push(&self.region, held.index) == Colour::Blue {
            self.pass_on();
        }
        Ok(held.id())
    }

    /// A held slot that its holder carries out itself.
    pub(crate) fn begin(
        &self,
        held: Held,
        asked: &Asked,
        ticks: u64,
        for_future: bool,
    ) -> Result<Taken, Forked> {
        self.fill(held, asked, ticks, RUNNING, for_future)?;
        Ok(Taken {
            index: held.index,
            cancelled: false,
            asked: *asked,
            submitted_ticks: ticks,
        })
    }

    #[inline]
    fn fill(
        &self,
        held: Held,
        asked: &Asked,
        ticks: u64,
        state: u64,
        for_future: bool,
    ) -> Result<(), Forked> {
        if self.region.is_wiped() {
            return Err(Forked);
        }
        let slot = self.region.slot(held.index);
        asked.write(slot);
        slot.submitted_ticks.set(ticks);
        let marks = state | if for_future { FOR_FUTURE } else { 0 };
        let state = held.generation << GENERATION_SHIFT | marks;
        slot.state.store(state, Ordering::Relaxed);
        Ok(())
    }

    /// The submitter's duty where staging was blue.
    #[cold]
    fn pass_on(&self) {
        loop {
            self.flush();
            match staging::set_colour(&self.region, Colour::Red) {
                None => {}
                Some(Colour::Red) => return,
                Some(Colour::Blue) => {
                    self.tally.kicks.add(1);
                    self.region.header().bell.0.ring(1);
                    return;
                }
            }
        }
    }

    /// Takes a completed request, if there is one, copies its result and frees its slot.
    #[inline]
    pub(crate) fn retrieve(&self) -> Option<Completion> {
        let (index, state) = self.take_completed()?;
        Some(self.result(index, state))
    }

    /// The first half of [`Instance::retrieve`]: number and state of a completed request, which
    /// the caller then owns.
    #[inline]
    pub(crate) fn take_completed(&self) -> Option<(u16, u64)> {
        let header = self.region.header();
        // Done first, but after every 16th of those failed first, so that neither is starved.
        let done_tag = Link(header.done.head.0.load(Ordering::Relaxed)).tag();
        let (first, second) = if done_tag % 16 == 15 {
            (&header.failed, &header.done)
        } else {
            (&header.done, &header.failed)
        };
        let index = match queue::dequeue(&self.region, first) {
            Some(index) => index,
            None => queue::dequeue(&self.region, second)?,
        };
        let state = self.region.slot(index).state.load(Ordering::Relaxed);
        debug_assert_eq!(state & MARKS, FINISHED);
        Some((index, state))
    }

    /// The second half: copies the result and frees the slot.
    #[inline]
    pub(crate) fn result(&self, index: u16, state: u64) -> Completion {
        let slot = self.region.slot(index);
        let completion = Completion::read(RequestId::new(index, generation(state)), slot);
        self.free_state(index, slot, state);
        completion
    }

    /// Cancels a queued request. True: it will complete as cancelled and not run.
    pub(crate) fn cancel(&self, id: RequestId) -> bool {
        // The number may be any.
        let Some(slot) = self.region.slots().get(usize::from(id.index())) else {
            return false;
        };
        let state = &slot.state;
        let mut seen = state.load(Ordering::Relaxed);
        while generation(seen) == id.generation() && seen & STATE_MASK == QUEUED {
            let next = seen & !STATE_MASK | CANCELLED;
            match state.compare_exchange(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// The result of a future's request, or `None` after noting whom to wake.
    pub(crate) fn poll(&self, id: RequestId, waker: &Waker) -> Result<Option<Completion>, Forked> {
        if self.region.is_wiped() {
            return Err(Forked);
        }
        let slot = self.region.slot(id.index());
        // Noted first: who finishes the request looks for a waker after it has changed the state.
        *lock(&self.wakers[usize::from(id.index())]) = Some(waker.clone());
        let state = slot.state.load(Ordering::Acquire);
        debug_assert_eq!(generation(state), id.generation());
        if state & STATE_MASK != FINISHED {
            return Ok(None);
        }
        *lock(&self.wakers[usize::from(id.index())]) = None;
        Ok(Some(self.result(id.index(), state)))
    }

    /// Ends the interest in a future's request: cancelled if it has not begun, freed when it ends.
    pub(crate) fn abandon(&self, id: RequestId) {
        if self.region.is_wiped() {
            return;
        }
        let slot = self.region.slot(id.index());
        *lock(&self.wakers[usize::from(id.index())]) = None;
        let mut seen = slot.state.load(Ordering::Acquire);
        loop {
            let state = match seen & STATE_MASK {
                FINISHED => return self.free(id.index()),
                QUEUED => CANCELLED,
                other => other,
            };
            let next = with(seen, state | FOR_FUTURE | ABANDONED);
            match slot
                .state
                .compare_exchange(seen, next, Ordering::Relaxed, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    // The workers' side.

    /// Rings so far: to be read before looking for work, and given to [`Instance::rest`].
    pub(crate) fn rings(&self) -> u32 {
        self.region.header().bell.0.rings()
    }

    /// Moves everything staged to the queues of its priorities, first come, first served.
    pub(crate) fn flush(&self) {
        let Some(newest) = staging::take_all(&self.region) else {
            return;
        };
        let header = self.region.header();
        let mut next = Some(staging::reverse(&self.region, newest));
        while let Some(current) = next {
            // Read first: once it is queued, it is the worker's.
            next = staging::after(&self.region, current);
            let high = Asked::read(self.region.slot(current)).is_high();
            let ends = if high { &header.high } else { &header.normal };
            queue::enqueue(&self.region, ends, current);
        }
    }

    /// Takes the next request. Does not look into staging.
    pub(crate) fn take(&self) -> Option<Taken> {
        let header = self.region.header();
        let index = match queue::dequeue(&self.region, &header.high) {
            Some(index) => index,
            None => queue::dequeue(&self.region, &header.normal)?,
        };
        let slot = self.region.slot(index);
        let mut seen = slot.state.load(Ordering::Relaxed);
        let cancelled = loop {
            if seen & STATE_MASK == CANCELLED {
                break true;
            }
            debug_assert_eq!(seen & STATE_MASK, QUEUED);
            let next = seen & !STATE_MASK | RUNNING;
            match slot
                .state
                .compare_exchange(seen, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => break false,
                Err(now) => seen = now,
            }
        };
        Some(Taken {
            index,
            cancelled,
            asked: Asked::read(slot),
            submitted_ticks: slot.submitted_ticks.get(),
        })
    }

    /// Hands a taken request's result to whom it may concern. [`Instance::announce`] must follow.
    pub(crate) fn complete(
        &self,
        taken: &Taken,
        outcome: &Outcome,
        queued_ns: u64,
        backend: u8,
    ) -> Status {
        let slot = self.region.slot(taken.index);
        let status = write_outcome(slot, outcome, queued_ns, backend, taken.cancelled);
        let state = slot.state.load(Ordering::Relaxed);
        if state & FOR_FUTURE != 0 {
            self.finish_for_future(taken.index, slot, state);
            return status;
        }
        slot.state.store(with(state, FINISHED), Ordering::Relaxed);
        let header = self.region.header();
        let ends = match status {
            Status::Done => &header.done,
            Status::Failed | Status::Cancelled => &header.failed,
        };
        queue::enqueue(&self.region, ends, taken.index);
        status
    }

    fn finish_for_future(&self, index: u16, slot: &Slot, state: u64) {
        let mut seen = state;
        while seen & ABANDONED == 0 {
            let next = with(seen, FINISHED | FOR_FUTURE);
            // Release: the future sees the result.
            match slot
                .state
                .compare_exchange(seen, next, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => {
                    let waker = lock(&self.wakers[usize::from(index)]).take();
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                    return;
                }
                Err(now) => seen = now,
            }
        }
        self.free(index);
    }

    /// Wakes clients that wait for completions, after one or more of them.
    pub(crate) fn announce(&self) {
        self.notifier.announce(self.region.header());
    }

    /// For a worker that is about to be busy: leaves staging to the submitters where another
    /// worker sleeps, and wakes that one where requests are waiting already. So a request never
    /// waits for a busy worker while another sleeps.
    pub(crate) fn share(&self) {
        if self.workers < 2 || self.sleepers.load(Ordering::Acquire) == 0 {
            return;
        }
        while !self.make_blue() {
            self.flush();
        }
        let mut waiting = false;
        let header = self.region.header();
        for ends in [&header.high, &header.normal] {
            waiting |= !queue::is_empty(&self.region, ends);
        }
        if waiting {
            self.tally.helpers.add(1);
            header.bell.0.ring(1);
        }
    }

    /// Makes staging blue and sleeps until the bell rings; `rings` is from before the caller
    /// looked for work in vain. Returns at once where there is work after all.
    pub(crate) fn rest(&self, rings: u32) {
        if self.workers > 1 {
            self.sleepers.fetch_add(1, Ordering::AcqRel);
        }
        let slept = self.sleep_if_idle(rings);
        if self.workers > 1 {
            self.sleepers.fetch_sub(1, Ordering::AcqRel);
        }
        if slept && staging::set_colour(&self.region, Colour::Red) == Some(Colour::Blue) {
            // Awake without a kick.
            self.tally.recoloured.add(1);
        }
    }

    /// Returns whether staging was made blue.
    fn sleep_if_idle(&self, rings: u32) -> bool {
        if !self.make_blue() {
            return false;
        }
        if self.is_idle() {
            self.tally.sleeps.add(1);
            self.region.header().bell.0.wait(rings, None);
        }
        true
    }

    /// Leaves staging to the submitters, if it is empty. A caller that then finds
    /// [`Instance::is_idle`] may sleep until the bell rings.
    pub(crate) fn make_blue(&self) -> bool {
        let before = staging::set_colour(&self.region, Colour::Blue);
        if before == Some(Colour::Red) {
            self.tally.blues.add(1);
        }
        before.is_some()
    }

    /// Is nothing queued for the workers, as far as this thread can see?
    pub(crate) fn is_idle(&self) -> bool {
        let header = self.region.header();
        staging::is_empty(&self.region)
            && queue::is_empty(&self.region, &header.high)
            && queue::is_empty(&self.region, &header.normal)
    }

    /// Requests known to the workers and not begun.
    pub(crate) fn waiting(&self) -> u64 {
        let header = self.region.header();
        queue::depth(&header.high) + queue::depth(&header.normal)
    }

    /// Requests by where they are, each looked at once while others go on.
    pub(crate) fn depths(&self) -> Depths {
        let header = self.region.header();
        let depth = |ends: &Ends| queue::depth(ends);
        let mut depths = Depths {
            queue_high: depth(&header.high),
            queue_normal: depth(&header.normal),
            queue_done: depth(&header.done),
            queue_failed: depth(&header.failed),
            ..Depths::default()
        };
        for slot in self.region.slots() {
            match slot.state.load(Ordering::Relaxed) & STATE_MASK {
                FREE => depths.free += 1,
                HELD => depths.held += 1,
                QUEUED | CANCELLED => depths.queued += 1,
                RUNNING => depths.running += 1,
                _ => depths.completed += 1,
            }
        }
        depths
    }

    /// Is staging blue?
    #[cfg(all(test, any(loom, shuttle)))]
    pub(crate) fn is_blue(&self) -> bool {
        staging::colour(&self.region) == Colour::Blue
    }
}
