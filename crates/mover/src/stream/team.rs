//! The threads of one run: in step block by block, or each for itself.
//!
//! Always: a panic in one thread ends all of them, and is passed on after the last has ended.

use super::director::{Director, Work};
use std::any::Any;
use std::hint::spin_loop;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How the threads of a team share blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TeamSharing {
    /// All compute each ready block together, each its part of it (memif section 6.6). While
    /// nothing is filled each computes its part of a long run of blocks.
    #[default]
    Together,
    /// Each thread takes whole blocks. No thread waits for another: the better way for uneven
    /// work, and where threads are many or blocks small.
    Whole,
}

/// Looks at the next block so often before a thread sleeps: 5 to 15 us, about what a wake-up takes
/// (a pause is 40 to 140 cycles).
const SPINS: u32 = 200;

pub(super) struct Team<'d, 'm, 's> {
    sharing: TeamSharing,
    threads: usize,
    state: Mutex<State<'d, 'm, 's>>,
    /// The round has changed.
    changed: Condvar,
    /// Rounds so far. Written under the lock; read without it by who spins, and takes the lock
    /// before it believes anything.
    round: AtomicU64,
}

struct State<'d, 'm, 's> {
    director: &'d mut Director<'m, 's>,
    gate: Gate,
    /// Threads that wait for the next block.
    arrived: usize,
    /// What the team computes together.
    work: Option<Work>,
    /// When the work before ended.
    last: Instant,
    panic: Option<Box<dyn Any + Send>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// Not all threads have been started.
    Shut,
    Open,
    /// Nobody computes anything more.
    Stopped,
}

impl<'d, 'm, 's> Team<'d, 'm, 's> {
    pub(super) fn new(
        director: &'d mut Director<'m, 's>,
        sharing: TeamSharing,
        threads: usize,
    ) -> Self {
        let state = State {
            director,
            gate: Gate::Shut,
            arrived: 0,
            work: None,
            last: Instant::now(),
            panic: None,
        };
        Self {
            sharing,
            threads,
            state: Mutex::new(state),
            changed: Condvar::new(),
            round: AtomicU64::new(0),
        }
    }

    /// Computes all blocks: `compute` is given a work and a thread's number.
    ///
    /// # Errors
    /// A thread that cannot be started; then nothing was computed.
    ///
    /// # Panics
    /// With the panic of `start` or `compute`, once no thread is in them any more.
    pub(super) fn run(
        &self,
        start: impl Fn(usize) + Sync,
        compute: impl Fn(&Work, usize) + Sync,
    ) -> io::Result<()> {
        let member = |thread: usize| {
            let body = || {
                if thread > 0 {
                    start(thread);
                }
                if self.enter() {
                    match self.sharing {
                        TeamSharing::Together => self.together(|work| compute(work, thread)),
                        TeamSharing::Whole => self.whole(|work| compute(work, thread)),
                    }
                }
            };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
                let mut state = self.lock();
                state.panic.get_or_insert(panic);
                drop(state);
                self.open(Gate::Stopped);
            }
        };
        let started = std::thread::scope(|scope| {
            for thread in 1..self.threads {
                let builder = std::thread::Builder::new().name(format!("hither-stream{thread}"));
                let member = &member;
                if let Err(error) = builder.spawn_scoped(scope, move || member(thread)) {
                    self.open(Gate::Stopped);
                    return Err(error);
                }
            }
            self.open(Gate::Open);
            member(0);
            Ok(())
        });
        if let Some(panic) = self.lock().panic.take() {
            resume_unwind(panic);
        }
        started
    }

    fn lock(&self) -> MutexGuard<'_, State<'d, 'm, 's>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, gate: Gate) {
        let mut state = self.lock();
        if gate == Gate::Open && state.gate == Gate::Shut && self.sharing == TeamSharing::Together {
            // The first work is there when a thread comes: none waits for the others to start.
            state.work = state.director.claim(u64::MAX);
        }
        if state.gate != Gate::Stopped {
            state.gate = gate;
        }
        state.last = Instant::now();
        self.turn(&mut state);
    }

    /// Lets everybody look again.
    fn turn(&self, _: &mut State<'d, 'm, 's>) {
        self.round.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }

    /// Waits until all threads are there; false: it will not come to that.
    fn enter(&self) -> bool {
        let mut state = self.lock();
        while state.gate == Gate::Shut {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.gate == Gate::Open
    }

    fn whole(&self, compute: impl Fn(&Work)) {
        let mut last = Instant::now();
        let mut done: Option<Work> = None;
        loop {
            let mut state = self.lock();
            if let Some(work) = done.take() {
                let now = Instant::now();
                let elapsed = now.duration_since(last);
                last = now;
                state.director.finished(&work, elapsed.as_nanos() as u64);
            }
            if state.gate == Gate::Stopped {
                return;
            }
            let Some(work) = state.director.claim(1) else {
                return;
            };
            drop(state);
            compute(&work);
            done = Some(work);
        }
    }

    fn together(&self, compute: impl Fn(&Work)) {
        let mut next = self.lock().work.clone();
        while let Some(work) = next {
            compute(&work);
            next = self.next();
        }
    }

    /// The team's next work, once all threads are done with the one before.
    fn next(&self) -> Option<Work> {
        let mut state = self.lock();
        let round = self.round.load(Ordering::Relaxed);
        state.arrived += 1;
        if state.arrived == self.threads {
            state.arrived = 0;
            if let Some(work) = state.work.take() {
                let now = Instant::now();
                let elapsed = now.duration_since(state.last);
                state.last = now;
                state.director.finished(&work, elapsed.as_nanos() as u64);
            }
            let next = match state.gate {
                Gate::Stopped => None,
                _ => state.director.claim(u64::MAX),
            };
            state.work = next;
            if self.threads > 1 {
                self.turn(&mut state);
            }
            return state.work.clone();
        }
        drop(state);
        for _ in 0..SPINS {
            if self.round.load(Ordering::Acquire) != round {
                break;
            }
            spin_loop();
        }
        state = self.lock();
        while self.round.load(Ordering::Relaxed) == round && state.gate != Gate::Stopped {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        match state.gate {
            Gate::Stopped => None,
            _ => state.work.clone(),
        }
    }
}
