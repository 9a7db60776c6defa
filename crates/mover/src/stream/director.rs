//! Who computes which block next, and what is filled meanwhile.
//!
//! Terms: a block is *unassigned* until it is given to a buffer to be filled or to a work to be
//! computed. A buffer is free, filling, ready, being computed, returning (its results are on their
//! way to slow memory) or leaving (its block was computed from slow memory, but the mover may
//! still write to it).
//!
//! Algorithm (memif section 6.6): free buffers are filled with the next unassigned blocks. Who
//! wants a block takes a ready one; else, instead of waiting, the next unassigned one from slow
//! memory. A block whose fill failed goes back to be computed from slow memory. When no block is
//! unassigned, those still being filled are computed from slow memory, the newest first, and
//! their fills cancelled. (A fill that reads results and has begun is waited for instead: see
//! `Results::FastUpdated`.)
//!
//! Always: every block is computed once. A buffer that is filling or leaving is never read; one
//! that is returning is never written. When a director is dropped, no request of its own is in
//! flight, also while a panic unwinds.

use super::decide::{Pilot, Way};
use super::memory::{Memory, Transfer};
use crate::future::MoveFuture;
use crate::record::{Completion, Status};
use crate::service::Mover;
use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// A thread that waits for a completion looks by itself so often: a worker that died completes its
/// requests without waking anybody.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What a thread, or the team together, computes next.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) blocks: Range<usize>,
    /// Where its one block is ready; `None`: slow memory.
    pub(super) buffer: Option<usize>,
    phase: u64,
    /// Nothing goes on that belongs to the other way.
    pure: bool,
}

/// What happened, in one run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) fast_blocks: u64,
    pub(super) late_fills: u64,
    pub(super) failed_fills: u64,
    pub(super) failed_returns: u64,
    pub(super) copied_bytes: u64,
    pub(super) copying_ns: u64,
    pub(super) overlapped_ns: u64,
}

struct Buffer<'m> {
    block: usize,
    flights: Vec<MoveFuture<'m>>,
    submitted: Instant,
    is_done: bool,
    /// Elements of its results that hold values.
    initialised: usize,
}

pub(super) struct Director<'m, 's> {
    mover: &'m Mover,
    memory: &'s Memory,
    pilot: &'s mut Pilot,
    /// Elements of each buffer's results that hold values, kept between runs.
    initialised: &'s mut [usize],
    buffers: Vec<Buffer<'m>>,
    free: Vec<usize>,
    /// In order of submission, as the next two.
    filling: VecDeque<usize>,
    returning: VecDeque<usize>,
    leaving: VecDeque<usize>,
    ready: VecDeque<usize>,
    /// First block that was never assigned.
    next: usize,
    /// Blocks whose fill failed.
    returned: Vec<usize>,
    /// When computing began and ended.
    started: Instant,
    ended: Option<Instant>,
    pub(super) figures: Figures,
}

impl<'m, 's> Director<'m, 's> {
    pub(super) fn new(
        mover: &'m Mover,
        memory: &'s Memory,
        pilot: &'s mut Pilot,
        initialised: &'s mut [usize],
    ) -> Self {
        let started = Instant::now();
        let buffers = initialised.iter().map(|&initialised| Buffer {
            block: 0,
            flights: Vec::new(),
            submitted: started,
            is_done: true,
            initialised,
        });
        let buffers: Vec<Buffer<'m>> = buffers.collect();
        pilot.begin(memory.block_count() as u64);
        Self {
            mover,
            memory,
            pilot,
            initialised,
            free: (0..buffers.len()).rev().collect(),
            buffers,
            filling: VecDeque::new(),
            returning: VecDeque::new(),
            leaving: VecDeque::new(),
            ready: VecDeque::new(),
            next: 0,
            returned: Vec::new(),
            started,
            ended: None,
            figures: Figures::default(),
        }
    }

    /// The next work; `None`: every block is assigned. Of slow memory up to `most` blocks at once.
    pub(super) fn claim(&mut self, most: u64) -> Option<Work> {
        self.reap();
        self.refill();
        let way = self.pilot.way();
        let is_quiet = self.ready.is_empty()
            && self.filling.is_empty()
            && self.returning.is_empty()
            && self.leaving.is_empty();
        let pure = way == Way::Through || is_quiet;
        let (blocks, buffer) = self.pick(if is_quiet { most } else { 1 })?;
        Some(Work {
            blocks,
            buffer,
            phase: self.pilot.phase(),
            pure,
        })
    }

    fn pick(&mut self, most: u64) -> Option<(Range<usize>, Option<usize>)> {
        if let Some(buffer) = self.ready.pop_front() {
            self.figures.fast_blocks += 1;
            let block = self.buffers[buffer].block;
            return Some((block..block + 1, Some(buffer)));
        }
        if let Some(block) = self.returned.pop() {
            return Some((block..block + 1, None));
        }
        let left = self.memory.block_count() - self.next;
        if left > 0 {
            let most = match self.pilot.way() {
                Way::Plain => most.min(self.pilot.left()),
                Way::Through => 1,
            };
            let first = self.next;
            self.next += usize::try_from(most).map_or(left, |most| most.min(left));
            return Some((first..self.next, None));
        }
        // The newest has got least far, and can most likely be cancelled.
        let buffer = self.filling.pop_back()?;
        let block = self.buffers[buffer].block;
        let flights = &self.buffers[buffer].flights;
        let cancelled = flights
            .iter()
            .filter(|flight| self.mover.cancel(flight.id()))
            .count();
        if cancelled < flights.len() && self.memory.fills_read_results() {
            // Computed in place, the results would be written while they are being read.
            self.land(buffer, &own_waker());
            if self.buffers[buffer].is_done {
                self.figures.fast_blocks += 1;
                return Some((block..block + 1, Some(buffer)));
            }
            self.free.push(buffer);
        } else {
            self.leaving.push_back(buffer);
        }
        self.figures.late_fills += 1;
        Some((block..block + 1, None))
    }

    /// A work is done; it took so long, from the end of the one before.
    pub(super) fn finished(&mut self, work: &Work, elapsed_ns: u64) {
        let blocks = work.blocks.clone();
        let elements: usize = blocks
            .clone()
            .map(|block| self.memory.elements(block))
            .sum();
        let count = blocks.len() as u64;
        self.pilot
            .finished(work.phase, work.pure, count, elements as u64, elapsed_ns);
        let Some(buffer) = work.buffer else { return };
        let copies: Vec<Transfer> = self.memory.returns(work.blocks.start, buffer).collect();
        if copies.is_empty() {
            self.free.push(buffer);
        } else if self.submit(buffer, &copies) {
            self.returning.push_back(buffer);
        } else {
            self.return_by_hand(buffer);
            self.free.push(buffer);
        }
    }

    /// Fills free buffers with blocks that nobody has.
    fn refill(&mut self) {
        while self.pilot.way() == Way::Through && self.next < self.memory.block_count() {
            let Some(buffer) = self.free.pop() else {
                return;
            };
            let block = self.next;
            self.initialise(buffer, block);
            let copies: Vec<Transfer> = self.memory.fills(block, buffer).collect();
            if !self.submit(buffer, &copies) {
                self.free.push(buffer);
                return;
            }
            self.next += 1;
            self.buffers[buffer].block = block;
            self.filling.push_back(buffer);
        }
    }

    /// Sees to it that the results' places hold values of their type before anybody is given them.
    fn initialise(&mut self, buffer: usize, block: usize) {
        let elements = self.memory.elements(block);
        if self.buffers[buffer].initialised >= elements {
            return;
        }
        for copy in self.memory.returns(block, buffer) {
            // SAFETY: a return turned round; the block is unassigned, so nobody has its results,
            // and the buffer is free.
            unsafe { self.memory.copy(copy.turned()) };
        }
        self.buffers[buffer].initialised = elements;
        self.initialised[buffer] = elements;
    }

    /// Submits all copies or none.
    fn submit(&mut self, buffer: usize, copies: &[Transfer]) -> bool {
        let mut requests = Vec::with_capacity(copies.len());
        for _ in copies {
            let Some(request) = self.mover.request() else {
                return false;
            };
            requests.push(request);
        }
        let target = &mut self.buffers[buffer];
        target.submitted = Instant::now();
        target.is_done = true;
        for (request, copy) in requests.into_iter().zip(copies) {
            let request = request.replicate(copy.from, copy.to, copy.bytes);
            match self.mover.submit_async(request) {
                Ok(flight) => self.buffers[buffer].flights.push(flight),
                // Of no element, or beyond what the mover takes, or in a child after fork: nobody
                // copies it.
                Err(_) => self.buffers[buffer].is_done = false,
            }
        }
        true
    }

    /// Looks at what is in flight, the oldest of each kind first.
    fn reap(&mut self) {
        while let Some(&buffer) = self.filling.front() {
            if !self.is_landed(buffer) {
                break;
            }
            self.filling.pop_front();
            if self.buffers[buffer].is_done {
                self.ready.push_back(buffer);
            } else {
                self.figures.failed_fills += 1;
                self.returned.push(self.buffers[buffer].block);
                self.free.push(buffer);
            }
        }
        while let Some(&buffer) = self.returning.front() {
            if !self.is_landed(buffer) {
                break;
            }
            self.returning.pop_front();
            self.landed_return(buffer);
            self.free.push(buffer);
        }
        while let Some(&buffer) = self.leaving.front() {
            if !self.is_landed(buffer) {
                break;
            }
            self.leaving.pop_front();
            self.free.push(buffer);
        }
    }

    /// Has every request of a buffer completed?
    fn is_landed(&mut self, buffer: usize) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        while let Some(flight) = self.buffers[buffer].flights.last_mut() {
            match Pin::new(flight).poll(&mut context) {
                Poll::Pending => return false,
                Poll::Ready(result) => self.landed(buffer, result.ok()),
            }
        }
        true
    }

    /// Waits for every request of a buffer.
    fn land(&mut self, buffer: usize, waker: &Waker) {
        while let Some(flight) = self.buffers[buffer].flights.last_mut() {
            let completion = wait(flight, waker);
            self.landed(buffer, completion);
        }
    }

    /// The last request of a buffer has completed, or is none of this process, a child after fork.
    fn landed(&mut self, buffer: usize, completion: Option<Completion>) {
        let ended = self.ended;
        let buffer = &mut self.buffers[buffer];
        buffer.flights.pop();
        let Some(completion) = completion.filter(|one| one.status == Status::Done) else {
            buffer.is_done = false;
            return;
        };
        let figures = &mut self.figures;
        figures.copied_bytes += completion.bytes;
        figures.copying_ns += completion.moving_ns;
        // It ran from here on, as far as the mover says, and at most until computing ended.
        let began = buffer.submitted + Duration::from_nanos(completion.queued_ns);
        let within = ended.map_or(u64::MAX, |ended| {
            ended.saturating_duration_since(began).as_nanos() as u64
        });
        figures.overlapped_ns += completion.moving_ns.min(within);
    }

    fn landed_return(&mut self, buffer: usize) {
        if !self.buffers[buffer].is_done {
            self.figures.failed_returns += 1;
            self.return_by_hand(buffer);
        }
    }

    fn return_by_hand(&mut self, buffer: usize) {
        for copy in self.memory.returns(self.buffers[buffer].block, buffer) {
            // SAFETY: the block has been computed and the mover has let go of it: nobody uses its
            // results, in the buffer or in slow memory.
            unsafe { self.memory.copy(copy) };
        }
    }

    /// Nothing is computed any more: waits for what is in flight, and brings back what is left.
    /// Requests that have not begun are cancelled; this thread copies their results itself, while
    /// workers copy others.
    pub(super) fn settle(&mut self) {
        let ended = *self.ended.get_or_insert_with(Instant::now);
        let flights = self.buffers.iter().flat_map(|buffer| &buffer.flights);
        for flight in flights {
            let _ = self.mover.cancel(flight.id());
        }
        for queue in [&mut self.filling, &mut self.leaving] {
            self.ready.extend(queue.drain(..));
        }
        let waker = own_waker();
        let returning = std::mem::take(&mut self.returning);
        for buffer in 0..self.buffers.len() {
            self.land(buffer, &waker);
        }
        for buffer in returning {
            self.landed_return(buffer);
        }
        self.pilot.ended(ended.elapsed().as_nanos() as u64);
    }

    /// Time from the first claim on.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Drop for Director<'_, '_> {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.settle();
        }
    }
}

/// Wakes a parked thread.
struct Unparker(Thread);

impl Wake for Unparker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn own_waker() -> Waker {
    Waker::from(Arc::new(Unparker(std::thread::current())))
}

fn wait(flight: &mut MoveFuture<'_>, waker: &Waker) -> Option<Completion> {
    let mut context = Context::from_waker(waker);
    loop {
        match Pin::new(&mut *flight).poll(&mut context) {
            Poll::Ready(result) => return result.ok(),
            Poll::Pending => std::thread::park_timeout(LOOK_AGAIN),
        }
    }
}
