//! Transparent regions are kept apart only where that gains: the judge of [`crate::Unified`] decides, by visits that are
//! told by entries.
//!
//! A visit lasts from a thread's entry to a domain until its entry to another. While visits in place are measured, touches
//! open and nobody moves, and what a touch costs is taken off. While nothing is gained all regions are open to all, so that
//! nothing is seen and nothing is paid; time alone says when it is tried again.
//!
//! A thread of this library does it: nothing of this may be done in a signal handler. It allocates, and touches no
//! region.

use super::handler;
use super::rule::{Form, Global, Mode};
use super::table::{self, FAULT_NS, MOVE_NS, NONE, OPEN, OWNER, PLACES, THREADS};
use crate::unify::{Judge, Order, Tally, Watch};
use hither_linux::sys::{fault, thread_id, thread_lives};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks at what visits took, and at whether threads still live.
const LOOK: Duration = Duration::from_millis(2);
const SWEEP: Duration = Duration::from_millis(500);

/// What the policy's thread and the program share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<Course>,
    changed: Condvar,
}

/// How it stands.
#[derive(Debug)]
pub(super) struct Course {
    pub(super) judge: Judge,
    domains: usize,
    is_over: bool,
    /// What was begun, and when.
    order: Option<Order>,
    begun: Instant,
    /// The part of a window that counts has begun.
    counts: bool,
    swept: Instant,
}

impl Shared {
    pub(super) fn new(judge: Judge, domains: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(Course {
                judge,
                domains,
                is_over: false,
                order: None,
                begun: Instant::now(),
                counts: false,
                swept: Instant::now(),
            }),
            changed: Condvar::new(),
        })
    }

    pub(super) fn locked(&self) -> MutexGuard<'_, Course> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The judge was told something: what it orders is done at once.
    pub(super) fn begin(&self, course: &mut Course) {
        course.begin();
        self.changed.notify_all();
    }

    /// Ends the policy's thread.
    pub(super) fn end(&self) {
        self.locked().is_over = true;
        self.changed.notify_all();
    }

    /// The thread's work.
    pub(super) fn run(&self) {
        let mut course = self.locked();
        while !course.is_over {
            let pause = course.look();
            let waited = self.changed.wait_timeout(course, pause);
            course = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Course {
    fn begin(&mut self) {
        let order = self.judge.order();
        let mode = match (order.is_on, order.watch) {
            (true, _) => Mode::Move,
            (false, Watch::Window { .. }) => Mode::Watch,
            (false, _) => Mode::Off,
        };
        self.order = Some(order);
        self.begun = Instant::now();
        self.counts = false;
        set_mode(mode);
    }

    /// Looks how far it is; until when nothing will happen.
    fn look(&mut self) -> Duration {
        if self.swept.elapsed() > SWEEP {
            self.swept = Instant::now();
            sweep();
        }
        let Some(order) = self.order else {
            return SWEEP;
        };
        let elapsed = self.begun.elapsed();
        match order.watch {
            Watch::Nothing => SWEEP,
            // By page protection nobody but the program's own thread may close again.
            Watch::Rest { .. } if !order.is_on && table::form() == Some(Form::Protection) => SWEEP,
            Watch::Rest { ns } => {
                let rest = Duration::from_nanos(ns);
                if elapsed < rest {
                    return SWEEP.min(rest - elapsed);
                }
                self.judge.rested();
                self.begin();
                LOOK
            }
            Watch::Window {
                skip_ns,
                ns,
                visits,
            } => {
                if !self.counts {
                    if elapsed < Duration::from_nanos(skip_ns) {
                        return LOOK;
                    }
                    self.counts = true;
                    forget();
                }
                let (window, count, took) = self.window(order.is_on);
                let cost = (FAULT_NS.load(Relaxed) + MOVE_NS.load(Relaxed)) as f64;
                if is_given_up() {
                    self.judge.give_up(&window, cost);
                    self.begin();
                } else if took >= ns && count >= visits && window.iter().all(|one| one.visits > 0) {
                    self.judge.measured(&window, |_| cost);
                    self.begin();
                }
                LOOK
            }
        }
    }

    /// Visits since [`forget`], without what touches cost where nobody moves; how many they are, and what all took.
    fn window(&self, is_on: bool) -> (Vec<Tally>, u64, u64) {
        let fault_ns = if is_on { 0 } else { FAULT_NS.load(Relaxed) };
        let mut took = 0;
        let window: Vec<Tally> = PLACES[..self.domains]
            .iter()
            .map(|place| {
                let visits = place.visits.load(Relaxed);
                let ns = place.visit_ns.load(Relaxed);
                took += ns;
                let ns = ns.saturating_sub(visits * fault_ns);
                Tally { visits, ns }
            })
            .collect();
        let count = window.iter().map(|one| one.visits).sum();
        (window, count, took)
    }
}

/// Are regions open for good that were entered too often, and so few left that there is nowhere to go?
fn is_given_up() -> bool {
    let mut closed = 0_u32;
    let mut is_too_often = false;
    for slot in table::used() {
        match slot.global() {
            None => closed |= 1 << slot.domain.load(Relaxed),
            Some(why) => is_too_often |= why == Global::TooOften,
        }
    }
    is_too_often && closed.count_ones() < 2
}

fn forget() {
    for place in &PLACES {
        place.visits.store(0, Relaxed);
        place.visit_ns.store(0, Relaxed);
    }
}

/// Has touches do this from now on. The caller holds the lock of the course.
pub(super) fn set_mode(mode: Mode) {
    let before = table::mode();
    if before == mode {
        return;
    }
    table::store_mode(mode);
    // By page protection the program's thread alone may close, and opens at its next touch.
    let keys = table::form() == Some(Form::Keys);
    let may_close = keys || thread_id() == OWNER.load(Relaxed);
    match mode {
        Mode::Off if keys => {
            table::used().for_each(|slot| {
                slot.open();
            });
        }
        Mode::Watch | Mode::Move if may_close && before == Mode::Off => {
            OPEN.store(0, Relaxed);
            for slot in table::used().filter(|slot| slot.global().is_none()) {
                slot.close_or_give_up();
            }
        }
        _ => {}
    }
    let threads = THREADS.iter().filter(|one| one.tid.load(Acquire) != 0);
    for thread in threads {
        match mode {
            Mode::Move => place(thread),
            Mode::Off | Mode::Watch => thread.send_home(thread.tid.load(Acquire)),
        }
    }
}

/// Puts a thread where its visit is, and again where it has gone on meanwhile.
fn place(thread: &table::Thread) {
    let tid = thread.tid.load(Acquire);
    for _ in 0..3 {
        let domain = thread.domain.load(SeqCst);
        if domain == NONE || fault::affinity(tid) != thread.given() {
            return;
        }
        let target = table::both(&thread.wanted(), &PLACES[domain as usize].mask());
        if fault::set_affinity(tid, &target).is_ok() {
            thread.set_given(&target);
        }
        if thread.domain.load(SeqCst) == domain {
            return;
        }
    }
}

/// Frees the lines of threads that have ended.
fn sweep() {
    for thread in &THREADS {
        let tid = thread.tid.load(Acquire);
        if tid != 0 && !thread_lives(tid) {
            // A new thread of this number may have claimed it meanwhile.
            let _ = thread.tid.compare_exchange(tid, 0, SeqCst, Relaxed);
        }
    }
}

/// All threads go home, and all regions are open.
pub(super) fn open_all() {
    set_mode(Mode::Off);
    handler::leave();
}
