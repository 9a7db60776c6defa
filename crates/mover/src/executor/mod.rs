//! Carries out moves of many processes, off the thread that decides on them.
//!
//! [`queue`] says what is next and accounts for every page; it has no thread and no clock, and
//! whoever has a thread to spare drives it with [`Queue::step`]. [`Executor`] drives it with *movers*:
//! threads of its own, each with its own backend, on the CPUs that [`Executor::place`] allows.
//! A mover holds the lock between slices only.

pub mod cut;
pub mod queue;
pub mod staff;

pub use queue::{Limits, Next, Part, Queue, Slice, Task, Ticket};

use crate::backend::{Backend, Outcome};
use crate::clock::Clock;
use crate::service::bind;
use crate::sync::{lock, spawn};
use hither_core::ids::CpuId;
use hither_core::plan::Refusal;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// Makes the backend of each mover, by its number.
pub type Factory = Box<dyn FnMut(usize) -> Box<dyn Backend + Send> + Send>;

/// What a step of the queue came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutorStep {
    /// A slice was carried out.
    Done,
    /// The rate allows nothing for so many ns.
    Wait(u64),
    /// There is nothing to do.
    Idle,
}

impl Queue {
    /// Carries out the next slice here and now. `look` sees what became of it before the queue does.
    pub fn step(
        &mut self,
        backend: &mut dyn Backend,
        now_ns: u64,
        look: &mut dyn FnMut(&Slice, &[Outcome]),
    ) -> ExecutorStep {
        let slice = match self.next(now_ns) {
            Next::Slice(slice) => slice,
            Next::Wait(wait_ns) => return ExecutorStep::Wait(wait_ns),
            Next::Busy | Next::Idle => return ExecutorStep::Idle,
        };
        let outcomes = backend.execute(&slice.jobs());
        look(&slice, &outcomes);
        self.done(slice, outcomes);
        ExecutorStep::Done
    }
}

/// Movers over a queue.
pub struct Executor {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    clock: Clock,
    /// Movers sleep on it.
    work: Condvar,
    /// Whoever waits for the end of tasks sleeps on it.
    ends: Condvar,
}

struct State {
    queue: Queue,
    factory: Factory,
    /// CPUs of each mover that may work; none: those that it has now.
    places: Vec<Vec<CpuId>>,
    /// Grows with every change of places.
    places_count: u64,
    is_closing: bool,
    fault_count: u64,
}

impl Executor {
    /// Starts so many movers. `factory` makes the backend of each, and another in place of one that
    /// panicked.
    ///
    /// # Errors
    /// No thread is to be had.
    pub fn start(limits: Limits, movers: usize, factory: Factory) -> io::Result<Self> {
        let clock = Clock::new();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                queue: Queue::new(limits, clock.now_ns()),
                factory,
                places: vec![Vec::new(); movers],
                places_count: 0,
                is_closing: false,
                fault_count: 0,
            }),
            clock,
            work: Condvar::new(),
            ends: Condvar::new(),
        });
        let mut executor = Self {
            shared,
            threads: Vec::new(),
        };
        for number in 0..movers {
            let shared = Arc::clone(&executor.shared);
            let name = format!("hither-mover-{number}");
            let thread = spawn(name, move || Mover { shared, number }.run())?;
            executor.threads.push(thread);
        }
        Ok(executor)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared.state)
    }

    /// Takes tasks in their order; returns those that the queue has no room for.
    ///
    /// # Panics
    /// As [`Queue::submit`].
    pub fn submit(&self, tasks: impl IntoIterator<Item = Task>) -> Vec<Task> {
        let mut tasks = tasks.into_iter().peekable();
        // A loop that has nothing to move wakes nobody: a mover that wakes takes a CPU from a program.
        if tasks.peek().is_none() {
            return Vec::new();
        }
        let mut state = self.state();
        let given_back = tasks
            .filter_map(|task| state.queue.submit(task).err())
            .collect();
        drop(state);
        self.shared.work.notify_all();
        self.shared.ends.notify_all();
        given_back
    }

    /// Tasks that have finished since, with what became of them. Never waits.
    pub fn collect(&self) -> Vec<(u64, Outcome)> {
        self.state().queue.take_finished()
    }

    /// Waits until no task is left, up to `limit`, and says whether that is so.
    pub fn wait(&self, limit: Duration) -> bool {
        let end = Instant::now().checked_add(limit);
        let mut state = self.state();
        while state.queue.task_count() > 0 {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let left = left.unwrap_or(Duration::from_secs(1));
            if left.is_zero() {
                return false;
            }
            let woken = self.shared.ends.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// As [`Queue::cancel`].
    pub fn cancel(&self, is_meant: impl FnMut(Ticket) -> bool) {
        let mut state = self.state();
        if state.queue.task_count() > 0 {
            state.queue.cancel(is_meant);
            drop(state);
            self.shared.ends.notify_all();
        }
    }

    /// Says which CPUs each mover may use, from its next slice on; none: those that it has now.
    /// Movers beyond the list rest.
    pub fn place(&self, places: Vec<Vec<CpuId>>) {
        let mut state = self.state();
        if state.places != places {
            state.places = places;
            state.places_count += 1;
            // Who rests takes its place when there is work.
            let has_work = state.queue.task_count() > 0;
            drop(state);
            if has_work {
                self.shared.work.notify_all();
            }
        }
    }

    /// Tasks that have not finished, and pages of them that wait or are on their way.
    #[must_use]
    pub fn left(&self) -> (usize, u64) {
        let state = self.state();
        (state.queue.task_count(), state.queue.page_count())
    }

    /// Times that a backend panicked or lost count, and was replaced. The pages count as busy.
    #[must_use]
    pub fn fault_count(&self) -> u64 {
        self.state().fault_count
    }

    /// Drops what waits, waits for what is on its way, and returns what became of all.
    pub fn close(mut self) -> Vec<(u64, Outcome)> {
        self.end();
        self.collect()
    }

    fn end(&mut self) {
        let mut state = self.state();
        state.queue.cancel(|_| true);
        state.is_closing = true;
        drop(state);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // Its panics are caught where a backend's are; another is this crate's error, and was
            // printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("movers", &self.threads.len())
            .finish_non_exhaustive()
    }
}

/// One thread.
struct Mover {
    shared: Arc<Shared>,
    number: usize,
}

impl Mover {
    fn run(&self) {
        let mut backend: Option<Box<dyn Backend + Send>> = None;
        let mut placed = 0;
        let mut state = lock(&self.shared.state);
        while !state.is_closing {
            let Some(cpus) = state.places.get(self.number) else {
                state = self.sleep(state, None);
                continue;
            };
            if backend.is_none() {
                // Before a slice is taken, which a panic in here would lose.
                backend = Some((state.factory)(self.number));
                continue;
            }
            let to_bind = (state.places_count != placed).then(|| cpus.clone());
            placed = state.places_count;
            let slice = match state.queue.next(self.shared.clock.now_ns()) {
                Next::Slice(slice) => slice,
                Next::Wait(wait_ns) => {
                    state = self.sleep(state, Some(Duration::from_nanos(wait_ns)));
                    continue;
                }
                Next::Busy | Next::Idle => {
                    state = self.sleep(state, None);
                    continue;
                }
            };
            let own = backend.take().expect("it was made above");
            drop(state);
            // A CPU that went away meanwhile keeps nothing from moving.
            let _ = to_bind.map(|cpus| bind(&cpus));
            let (outcomes, is_sound) = carry_out(own, &slice, &mut backend);
            state = lock(&self.shared.state);
            state.fault_count += u64::from(!is_sound);
            state.queue.done(slice, outcomes);
            // Others may find work again: what a full node refused, or a lane that was busy.
            if state.queue.task_count() > 0 {
                self.shared.work.notify_all();
            }
            self.shared.ends.notify_all();
        }
    }

    fn sleep<'s>(
        &self,
        state: MutexGuard<'s, State>,
        limit: Option<Duration>,
    ) -> MutexGuard<'s, State> {
        let work = &self.shared.work;
        match limit {
            None => work.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let woken = work.wait_timeout(state, limit);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

/// Has a backend carry out a slice; puts it into `kept` where it did so soundly.
fn carry_out(
    mut backend: Box<dyn Backend + Send>,
    slice: &Slice,
    kept: &mut Option<Box<dyn Backend + Send>>,
) -> (Vec<Outcome>, bool) {
    let jobs = slice.jobs();
    // Whatever state a panic leaves it in, it is dropped with it.
    let outcomes = catch_unwind(AssertUnwindSafe(|| backend.execute(&jobs)));
    let counts = |outcomes: &Vec<Outcome>| {
        let told = outcomes.iter().map(Outcome::page_count);
        told.eq(slice.parts.iter().map(|part| part.pages.len() as u64))
    };
    match outcomes.ok().filter(counts) {
        Some(outcomes) => {
            *kept = Some(backend);
            (outcomes, true)
        }
        None => (slice.all_refused(Refusal::Busy), false),
    }
}

#[cfg(test)]
mod tests;
