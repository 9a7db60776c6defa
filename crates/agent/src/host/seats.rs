//! Where hither's own threads run: off the CPUs on which threads of the watched are kept, and off those of
//! programs that are preferred in any case, as long as there are others.
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
/// A look of so much time comes so many times later while pages move: a quarter of a percent of one CPU.
const REST: u64 = 400;
/// The same while none do: a fortieth of a percent.
const LONG_REST: u64 = 4000;
/// Most movers at once: threads to start, of which as many work as there is room for.
pub const MOST_MOVERS: usize = 4;

/// The loop's own seats.
pub(super) struct Seats {
    root: Root,
    own: CpuSet,
    /// Those of them that no preferred program is kept on; all where there are no others.
    open: CpuSet,
    held: CpuSet,
    /// When threads are looked at next, and when while nothing moves.
    look_us: u64,
    rested_us: u64,
    turn: usize,
    now: Staff,
}

impl Seats {
    /// Of this process, on the CPUs that it may use now.
    pub fn new(root: &Root) -> Self {
        let own = sys::allowed_cpus().unwrap_or_default();
        Self {
            root: root.clone(),
            open: own.clone(),
            own,
            held: CpuSet::new(),
            look_us: 0,
            rested_us: 0,
            turn: 0,
            now: Staff::default(),
        }
    }

    /// Takes the seat of the calling thread; returns those of movers. `preferred`: names of programs.
    pub fn turn(
        &mut self,
        now_us: u64,
        is_moving: bool,
        watch: &Watch,
        preferred: &[String],
    ) -> Vec<Vec<CpuId>> {
        let look_us = match is_moving {
            true => self.look_us,
            false => self.rested_us,
        };
        if now_us >= look_us {
            let begun_ns = sys::monotonic_ns();
            let pids = watch.tree().processes().iter().map(|process| process.pid);
            self.held = staff::held(&self.own, kept::threads(&self.root, pids));
            let processes = watch.snapshot().processes.iter();
            let preferred = processes.filter(|process| preferred.contains(&process.name));
            let theirs = kept::threads(&self.root, preferred.map(|process| process.pid.0));
            self.open = open(&self.own, theirs);
            let took_us = sys::monotonic_ns().saturating_sub(begun_ns) / 1000;
            self.look_us = now_us + LOOK_US.max(took_us * REST);
            self.rested_us = now_us + LOOK_US.max(took_us * LONG_REST);
        }
        let snapshot = watch.snapshot();
        self.turn = self.turn.wrapping_add(1);
        let next = staff::staff(&Known {
            own: &self.open,
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

/// Of these CPUs those that none of the threads may use; all where there are no such.
fn open(own: &CpuSet, threads: impl IntoIterator<Item = CpuSet>) -> CpuSet {
    let theirs = threads
        .into_iter()
        .fold(CpuSet::new(), |all, cpus| all.union(&cpus));
    match own.difference(&theirs) {
        none if none.is_empty() => own.clone(),
        others => others,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_threads_stay_off_the_cpus_of_preferred_programs() {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        let open = |threads: &[&str]| {
            let threads = threads.iter().map(|text| set(text));
            open(&set("0-3"), threads).to_string()
        };
        assert_eq!(open(&["2", "3"]), "0-1");
        assert_eq!(open(&["0-3"]), "0-3", "it is kept nowhere");
        assert_eq!(open(&[]), "0-3");
    }
}
