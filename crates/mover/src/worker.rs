//! A worker: takes requests in batches, has its backend move them, hands back the results.

use crate::backend::{Backend, Job, Outcome};
use crate::clock::{Clock, Present};
use crate::instance::{Held, Instance, Taken};
use crate::rate::TokenBucket;
use crate::record::{Asked, RequestId, Status};
use crate::region::Forked;
use crate::sync::{AtomicU32, Bell, Mutex, MutexGuard, Ordering, Plain64, lock};
use hither_core::ids::Pid;
use hither_core::plan::Refusal;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Value of [`Shared::closing`]: go on.
pub(crate) const OPEN: u32 = 0;
/// Serve what is queued, then end.
pub(crate) const DRAIN: u32 = 1;
/// Complete what is queued without running it, then end.
pub(crate) const ABANDON: u32 = 2;

/// Makes the backend of the worker of this number.
pub(crate) type Factory = Box<dyn FnMut(usize) -> Box<dyn Backend + Send> + Send>;

/// What the workers and the service share.
pub(crate) struct Shared {
    pub(crate) instance: Instance,
    pub(crate) clock: Clock,
    pub(crate) limits: Limits,
    pub(crate) pid: Pid,
    pub(crate) rate: Option<Mutex<TokenBucket>>,
    pub(crate) factory: Mutex<Factory>,
    /// By worker. A worker holds its own while it is awake.
    pub(crate) desks: Box<[Mutex<Option<Desk>>]>,
    /// When a submitting thread carried out a request last, in ns of the clock; 0: never.
    pub(crate) first_ns: Plain64,
    /// Names of backends in order of appearance; a completion has a position in it.
    pub(crate) names: Mutex<Vec<&'static str>>,
    /// [`OPEN`], [`DRAIN`] or [`ABANDON`]. Written once, by the closing thread.
    pub(crate) closing: AtomicU32,
    /// Workers sleep here until the rate limit lets them go on; rung by the closing thread.
    pub(crate) pause: Bell,
    /// How many are in `dead`: what a submission looks at.
    pub(crate) dead_count: AtomicU32,
    /// Numbers of workers that died and were not replaced yet.
    pub(crate) dead: Mutex<Vec<usize>>,
    pub(crate) figures: Figures,
}

/// Settings that a worker reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) workers: usize,
    pub(crate) batch_requests: usize,
    pub(crate) batch_bytes: u64,
    pub(crate) spin_us: u32,
    pub(crate) small_bytes: u64,
    pub(crate) first_bytes: u64,
}

/// Sums over all workers, for reports.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) batches: Plain64,
    pub(crate) by_submitters: Plain64,
    pub(crate) done: Plain64,
    pub(crate) failed: Plain64,
    pub(crate) cancelled: Plain64,
    pub(crate) bytes: Plain64,
    pub(crate) backend_panics: Plain64,
    pub(crate) replaced_workers: Plain64,
}

/// What requests are carried out with.
pub(crate) struct Desk {
    number: usize,
    backend: Box<dyn Backend + Send>,
    name: u8,
}

/// Who is at a [`Desk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Worker,
    Submitter,
}

impl Desk {
    fn new(shared: &Shared, number: usize) -> Self {
        let backend = (lock(&shared.factory))(number);
        let name = register(shared, backend.name());
        Self {
            number,
            backend,
            name,
        }
    }

    fn serve(&mut self, shared: &Shared, batch: &mut Vec<Taken>, at: At) {
        let bytes = batch.iter().map(|taken| taken.asked.bytes).sum();
        let jobs: Vec<Job<'_>> = batch.iter().map(|taken| job(shared, taken)).collect();
        // Whatever happens from here on, every request of the batch is completed.
        let mut pending = Pending {
            shared,
            batch: batch.drain(..).map(Some).collect(),
            left: jobs.len(),
            is_sound: true,
            name: self.name,
        };
        if at == At::Worker {
            shared.instance.share();
            shared.wait_for_rate(bytes);
        }
        let present = shared.clock.present();
        // Counted first, so that who has seen a completion finds its batch counted.
        shared.figures.batches.add(1);
        let result = catch_unwind(AssertUnwindSafe(|| {
            self.backend.execute_each(&jobs, &mut |index, outcome| {
                pending.complete(index, &outcome, &present);
            });
        }));
        let kept_its_word = result.is_ok() && pending.is_sound && pending.left == 0;
        drop(pending);
        if !kept_its_word {
            // By a panic or otherwise: what it holds is not to be trusted.
            shared.figures.backend_panics.add(1);
            *self = Self::new(shared, self.number);
        }
    }
}

impl Shared {
    /// Carries out a request on the thread that submits it, where that wakes nobody up for a small one (memif's
    /// `MOV_ONE`, sections 4.2 and 4.4): a worker sleeps, nothing waits, its backend may be used so, and the
    /// request is the first after a while. The next one is a worker's, which goes on. Returns the held slot where
    /// it is not carried out.
    pub(crate) fn serve_first(
        &self,
        held: Held,
        asked: &Asked,
        ticks: u64,
        for_future: bool,
    ) -> Result<Result<RequestId, Forked>, Held> {
        let limits = &self.limits;
        if asked.bytes > limits.first_bytes || self.rate.is_some() || !self.instance.is_idle() {
            return Err(held);
        }
        let first_ns = self.first_ns.get();
        let pause_ns = u64::from(limits.spin_us) * 1000;
        if first_ns > 0 && self.clock.now_ns().saturating_sub(first_ns) < pause_ns {
            return Err(held);
        }
        // A thread that waited for a desk would wait for a worker.
        let free = |desk: &MutexGuard<'_, Option<Desk>>| {
            let desk = desk.as_ref();
            desk.is_some_and(|desk| desk.backend.serves_submitters(&asked.action()))
        };
        let mut desks = self.desks.iter().filter_map(|desk| desk.try_lock().ok());
        let Some(mut guard) = desks.find(free) else {
            return Err(held);
        };
        let Some(desk) = guard.as_mut() else {
            return Err(held);
        };
        let taken = match self.instance.begin(held, asked, ticks, for_future) {
            Ok(taken) => taken,
            Err(forked) => return Ok(Err(forked)),
        };
        self.figures.by_submitters.add(1);
        desk.serve(self, &mut vec![taken], At::Submitter);
        self.first_ns.set(self.clock.now_ns().max(1));
        Ok(Ok(held.id()))
    }

    /// Sleeps until the rate limit lets the bytes through, or the service is abandoned.
    fn wait_for_rate(&self, bytes: u64) {
        let Some(rate) = &self.rate else { return };
        loop {
            let rings = self.pause.rings();
            if self.closing.load(Ordering::Acquire) == ABANDON {
                return;
            }
            let Some(delay_ns) = lock(rate).take(bytes, self.clock.now_ns()) else {
                return;
            };
            self.pause.wait(rings, Some(Duration::from_nanos(delay_ns)));
        }
    }
}

/// One worker's own state.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    number: usize,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Self {
        let desk = Desk::new(&shared, number);
        *lock(&shared.desks[number]) = Some(desk);
        Self { shared, number }
    }

    /// Serves until nothing is queued.
    pub(crate) fn serve_queued(&mut self) {
        let mut batch = Vec::new();
        let mut desk = lock(&self.shared.desks[self.number]);
        let Some(desk) = desk.as_mut() else { return };
        loop {
            self.gather(&mut batch, desk.name, false);
            if batch.is_empty() {
                return;
            }
            desk.serve(&self.shared, &mut batch, At::Worker);
        }
    }

    /// Serves until the service is closed.
    pub(crate) fn run(&mut self) {
        let mut batch = Vec::new();
        let mut look_on = false;
        let own = &self.shared.desks[self.number];
        let mut guard = lock(own);
        while let Some(desk) = guard.as_mut() {
            // Both before looking: who closes rings afterwards, so that a worker that has missed
            // the change does not sleep.
            let rings = self.shared.instance.rings();
            let closing = self.shared.closing.load(Ordering::Acquire);
            self.gather(&mut batch, desk.name, closing == ABANDON);
            if !batch.is_empty() {
                look_on = batch
                    .iter()
                    .all(|taken| taken.asked.bytes < self.shared.limits.small_bytes);
                desk.serve(&self.shared, &mut batch, At::Worker);
            } else if closing != OPEN {
                // Its backend ends with the thread that it was made for.
                *guard = None;
            } else if !(look_on && self.look_on()) {
                look_on = false;
                drop(guard);
                self.shared.instance.rest(rings);
                guard = lock(own);
            }
        }
    }

    /// Fills the batch with requests to run, and completes at once those that are not to be run.
    fn gather(&self, batch: &mut Vec<Taken>, name: u8, drop_all: bool) {
        let Shared {
            instance, limits, ..
        } = &*self.shared;
        instance.flush();
        // Several workers share what waits, instead of the first taking it all.
        let share = instance.waiting().div_ceil(limits.workers as u64).max(1);
        let most = usize::try_from(share).map_or(limits.batch_requests, |share| {
            share.min(limits.batch_requests)
        });
        let mut bytes = 0u64;
        let mut announce = false;
        while batch.len() < most && bytes < limits.batch_bytes {
            let Some(mut taken) = instance.take() else {
                break;
            };
            taken.cancelled |= drop_all;
            if taken.cancelled {
                let queued_ns = self.shared.clock.present().since_ns(taken.submitted_ticks);
                let outcome = refused(&self.shared, &taken, Refusal::Dropped);
                complete(&self.shared, &taken, &outcome, queued_ns, name);
                announce = true;
            } else {
                bytes = bytes.saturating_add(taken.asked.bytes);
                batch.push(taken);
            }
        }
        if announce {
            instance.announce();
        }
    }

    /// Looks for work for a while: a wake-up would take longer than the next small request is
    /// away (memif section 5.4). Returns whether there is some.
    fn look_on(&self) -> bool {
        let Shared {
            instance,
            clock,
            limits,
            ..
        } = &*self.shared;
        if limits.spin_us == 0 {
            return false;
        }
        let end_ns = clock.now_ns() + u64::from(limits.spin_us) * 1000;
        loop {
            for _ in 0..64 {
                if !instance.is_idle() || self.shared.closing.load(Ordering::Relaxed) != OPEN {
                    return true;
                }
                std::hint::spin_loop();
            }
            if clock.now_ns() >= end_ns {
                return false;
            }
        }
    }
}

/// The job that a request stands for.
fn job(shared: &Shared, taken: &Taken) -> Job<'static> {
    Job {
        pid: shared.pid,
        action: taken.asked.action(),
        race: taken.asked.race(),
    }
}

/// The outcome of a request of which no page was moved.
pub(crate) fn refused(shared: &Shared, taken: &Taken, reason: Refusal) -> Outcome {
    Outcome {
        refused: vec![(reason, job(shared, taken).page_count())],
        ..Outcome::default()
    }
}

/// Completes one request and counts it.
pub(crate) fn complete(
    shared: &Shared,
    taken: &Taken,
    outcome: &Outcome,
    queued_ns: u64,
    name: u8,
) {
    let figures = &shared.figures;
    // Counted first, so that who has seen the completion finds it counted.
    figures.bytes.add(outcome.bytes);
    let is_done = outcome.raced.is_none() && outcome.refused.iter().all(|&(_, count)| count == 0);
    match (taken.cancelled, is_done) {
        (true, _) => figures.cancelled.add(1),
        (false, true) => figures.done.add(1),
        (false, false) => figures.failed.add(1),
    }
    let status = shared.instance.complete(taken, outcome, queued_ns, name);
    debug_assert_eq!(status == Status::Cancelled, taken.cancelled);
}

/// Position of a backend's name; the last one stands for all that do not fit.
fn register(shared: &Shared, name: &'static str) -> u8 {
    let mut names = lock(&shared.names);
    let found = names.iter().position(|known| *known == name);
    let position = found.unwrap_or_else(|| {
        if names.len() <= usize::from(u8::MAX) {
            names.push(name);
        }
        names.len() - 1
    });
    u8::try_from(position).unwrap_or(u8::MAX)
}

/// Requests that a worker has taken and must complete. Dropped, it completes the rest as busy: the
/// backend did not say where their pages are.
struct Pending<'w> {
    shared: &'w Shared,
    /// `None`: completed.
    batch: Vec<Option<Taken>>,
    left: usize,
    /// The backend told of each job once so far.
    is_sound: bool,
    name: u8,
}

impl Pending<'_> {
    fn complete(&mut self, index: usize, outcome: &Outcome, present: &Present) {
        let Some(taken) = self.batch.get_mut(index).and_then(Option::take) else {
            self.is_sound = false;
            return;
        };
        self.left -= 1;
        let name = outcome
            .backend
            .map_or(self.name, |name| register(self.shared, name));
        let queued_ns = present.since_ns(taken.submitted_ticks);
        complete(self.shared, &taken, outcome, queued_ns, name);
        self.shared.instance.announce();
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.left == 0 {
            return;
        }
        let present = self.shared.clock.present();
        for taken in self.batch.drain(..).flatten() {
            let outcome = refused(self.shared, &taken, Refusal::Busy);
            let queued_ns = present.since_ns(taken.submitted_ticks);
            complete(self.shared, &taken, &outcome, queued_ns, self.name);
        }
        self.shared.instance.announce();
    }
}
