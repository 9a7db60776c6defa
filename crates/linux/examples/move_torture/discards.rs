//! Discards whose thread is slow: the mover hears of them, and they happen a good while later, in
//! another window of the same request. What the program has thrown away must not come back.

use crate::common::{self, Options, Random, Report, tick};
use crate::memory::{HUGE, PAGE, Region, advise, word_at};
use hither_core::ids::{NodeId, Pid};
use hither_linux::backend::swap::{Config, Step, SwapBackend};
use hither_linux::sys;
use hither_mover::{Action, Backend, Job, Pages, Race};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the request: two windows at least.
const BYTES: u64 = 4 * HUGE;

/// How far the two sides are.
#[derive(Default)]
struct State {
    windows: AtomicU64,
    discarder: AtomicI32,
    go: AtomicBool,
    told: AtomicBool,
    done: AtomicBool,
    /// The discard happened while the window over its pages was open.
    met: AtomicBool,
}

/// The letter of a thread's state in `/proc`, `D` while it waits for its event to be read.
fn letter(thread: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Lets a thread (0: this one) run only where nobody else wants to.
fn let_idle(thread: i32) {
    // SAFETY: all zero is a valid parameter, which the call only reads.
    unsafe {
        let parameter: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(thread, libc::SCHED_IDLE, &parameter);
    }
}

impl State {
    fn step(&self, step: Step) {
        match step {
            // The lock is held: nobody reads the event that the discard waits for.
            Step::Taken if self.windows.load(Ordering::SeqCst) == 0 => {
                self.go.store(true, Ordering::SeqCst);
                let thread = self.discarder.load(Ordering::SeqCst);
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(500) {
                    if letter(thread) == Some('D') {
                        let_idle(thread);
                        self.told.store(true, Ordering::SeqCst);
                        return;
                    }
                    std::thread::yield_now();
                }
            }
            Step::Away if self.windows.load(Ordering::SeqCst) > 0 => {
                let before = self.done.load(Ordering::SeqCst);
                let start = Instant::now();
                while !before
                    && !self.done.load(Ordering::SeqCst)
                    && start.elapsed() < Duration::from_secs(2)
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if !before && self.done.load(Ordering::SeqCst) {
                    self.met.store(true, Ordering::SeqCst);
                }
            }
            Step::Closed => {
                self.windows.fetch_add(1, Ordering::SeqCst);
            }
            _ => {}
        }
    }
}

pub fn run(options: &Options) -> Report {
    let mut report = Report::new("discards");
    let mut random = Random::new(options.seed ^ 0xD1);
    let (mut told, mut met, mut moved) = (0, 0, 0);
    for round in 0..options.rounds.min(20) {
        tick();
        let region = Region::new(BYTES, false);
        let range = region.range();
        let target = (round % u64::from(options.nodes)) as u32;
        // From elsewhere, where there is an elsewhere.
        let home = (target + 1) % options.nodes;
        if let Err(error) = sys::with_preferred_node(home, || sys::fill(&range)) {
            common::fail(&format!("no memory on node {home}: {error}"));
        }
        for at in range.clone().step_by(8) {
            word_at(at).store(at ^ round, Ordering::Relaxed);
        }
        let state = Arc::new(State::default());
        let inside = Arc::clone(&state);
        let backend = SwapBackend::new(Config {
            in_place: options.nodes == 1,
            without_privilege: options.unprivileged,
            hook: Some(Arc::new(move |step| inside.step(step))),
            ..Config::default()
        });
        let Ok(mut backend) = backend else {
            common::fail("the backend cannot work any more");
        };
        backend.warm(NodeId(target), BYTES, 0);
        let thrown = range.clone();
        let cpus: Vec<u32> =
            (0..std::thread::available_parallelism().map_or(1, |n| n.get() as u32)).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (state, stop, thrown) = (&state, &stop, thrown.clone());
            scope.spawn(move || {
                state.discarder.store(sys::thread_id(), Ordering::SeqCst);
                while !state.go.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                if advise(&thrown, libc::MADV_DONTNEED).is_err() {
                    common::fail("madvise failed");
                }
                state.done.store(true, Ordering::SeqCst);
            });
            // Whoever is idle waits behind these.
            for _ in &cpus {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            while state.discarder.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let pages = Pages::Run(range.start / PAGE..range.end / PAGE);
            let job = Job {
                pid: Pid(0),
                action: Action::Migrate {
                    pages,
                    to: NodeId(target),
                },
                race: random.pick(&[Race::Recover, Race::Block]),
            };
            moved += backend.execute(&[job]).remove(0).moved.len() as u64;
            // Where no window was opened nobody has said so.
            state.go.store(true, Ordering::SeqCst);
            stop.store(true, Ordering::Relaxed);
        });
        for at in range.clone().step_by(8) {
            let expected = if thrown.contains(&at) { 0 } else { at ^ round };
            let found = word_at(at).load(Ordering::Relaxed);
            if found != expected {
                common::wrong(at, expected, found);
            }
        }
        told += u64::from(state.told.load(Ordering::SeqCst));
        met += u64::from(state.met.load(Ordering::SeqCst));
    }
    report.met("discards told", told);
    // Once the mover leaves such pages alone, nothing is left to meet.
    report.count("discards within another window", met);
    report.count("pages moved", moved);
    report
}
