//! Where hither's own threads run: off the CPUs on which threads of the watched are kept.
//!
//! The rules are the executor's ([`staff`](hither_mover::executor::staff)); here is what they need to
//! know, read rarely enough to cost nothing that counts.

use hither_core::ids::CpuId;
use hither_core::set::CpuSet;
use hither_linux::proc::kept;
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::watch::Watch;
use hither_mover::executor::staff::{self, Known, Staff};

/// Least time between two looks at the threads, in us.
const LOOK_US: u64 = 100_000;
/// A look of so much time comes so many times later: a quarter of a percent of one CPU.
const REST: u64 = 400;
/// The same while nothing is to be done: a fortieth of a percent.
const LONG_REST: u64 = 4000;
/// Most movers at once: threads to start, of which as many work as there is room for.
pub const MOST_MOVERS: usize = 4;

/// The loop's own seats.
pub(super) struct Seats {
    root: Root,
    own: CpuSet,
    held: CpuSet,
    /// When threads are looked at next, and when while nothing is to be done.
    look_us: u64,
    rested_us: u64,
    turn: usize,
    now: Staff,
}

impl Seats {
    /// Of this process, on the CPUs that it may use now.
    pub fn new(root: &Root) -> Self {
        Self {
            root: root.clone(),
            own: sys::allowed_cpus().unwrap_or_default(),
            held: CpuSet::new(),
            look_us: 0,
            rested_us: 0,
            turn: 0,
            now: Staff::default(),
        }
    }

    /// Takes the seat of the calling thread; returns those of movers.
    pub fn turn(&mut self, now_us: u64, is_resting: bool, watch: &Watch) -> Vec<Vec<CpuId>> {
        let look_us = match is_resting {
            true => self.rested_us,
            false => self.look_us,
        };
        if now_us >= look_us {
            let begun_ns = sys::monotonic_ns();
            let pids = watch.tree().processes().iter().map(|process| process.pid);
            self.held = staff::held(&self.own, kept::threads(&self.root, pids));
            let took_us = sys::monotonic_ns().saturating_sub(begun_ns) / 1000;
            self.look_us = now_us + LOOK_US.max(took_us * REST);
            self.rested_us = now_us + LOOK_US.max(took_us * LONG_REST);
        }
        let snapshot = watch.snapshot();
        self.turn = self.turn.wrapping_add(1);
        let next = staff::staff(&Known {
            own: &self.own,
            held: &self.held,
            idle_cpus: f64::from(snapshot.cpu_count()) - snapshot.busy_cpus(),
            most: MOST_MOVERS,
            turn: self.turn,
        });
        if next.decider != self.now.decider && !next.decider.is_empty() {
            // A CPU that went away meanwhile: it stays where it is.
            let _ = sys::stay_on(&next.decider.iter().copied().collect());
        }
        self.now = next;
        self.now.movers.clone()
    }
}
