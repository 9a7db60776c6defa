//! Where hither's own threads run: off the CPUs on which threads of the watched are kept, and off those of
//! programs that are preferred in any case, as long as there are others.
//!
//! The rules are the executor's ([`staff`](hither_mover::executor::staff)); here is what they need to
//! know, read rarely enough to cost nothing that counts.

use hither_core::ids::CpuId;
use hither_core::set::CpuSet;
use hither_linux::proc::cpu_times::{self, Times};
use hither_linux::proc::kept;
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::watch::Watch;
use hither_mover::executor::staff::{self, Known, Staff};
use std::collections::BTreeMap;

/// Least time between two looks, in us: ten ticks of each CPU.
const LOOK_US: u64 = 100_000;
/// A look of so much time comes so many times later while pages move: a quarter of a percent of one CPU.
const REST: u64 = 400;
/// The same while none do: a fortieth of a percent.
const LONG_REST: u64 = 4000;
/// The same while pages move and the processes are others than those looked at, 5 % of one CPU: a slice that is
/// begun on a CPU where somebody is kept lasts up to 0.3 s.
const SHORT_REST: u64 = 20;
/// CPUs without work are told by no longer time than this, in us.
const RECENT_US: u64 = 1_000_000;
/// What giving way adds to the nice value: a tenth of the CPU time of somebody who does not.
const GIVING_WAY: i32 = 10;
/// Most movers at once: threads to start, of which as many work as there is room for.
pub const MOST_MOVERS: usize = 4;

/// The loop's own seats.
pub(super) struct Seats {
    root: Root,
    own: CpuSet,
    /// Those of them that no preferred program is kept on; all where there are no others.
    open: CpuSet,
    held: CpuSet,
    /// CPUs without work of those that are not held, hither's own work set aside; none where that is not known.
    idle_cpus: f64,
    /// When CPUs' times were read, in us, the times, and hither's own in ns.
    read: (u64, BTreeMap<CpuId, Times>, u64),
    /// How long that took, in us.
    read_took_us: u64,
    /// The processes whose threads were looked at, when that was, in us, and how long it took.
    looked_at: Vec<i32>,
    looked_us: u64,
    took_us: u64,
    turn: usize,
    now: Staff,
    /// The nice value of the thread that decides, where it can come back to that.
    nice: Option<i32>,
    gives_way: bool,
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
            idle_cpus: 0.0,
            read: (sys::monotonic_ns() / 1000, times(root), sys::own_cpu_ns()),
            read_took_us: 0,
            looked_at: Vec::new(),
            looked_us: 0,
            took_us: 0,
            turn: 0,
            now: Staff::default(),
            nice: sys::nice_to_return_to(),
            gives_way: false,
        }
    }

    /// Takes the seat of the calling thread; returns those of movers. `preferred`: names of programs.
    pub fn turn(
        &mut self,
        is_moving: bool,
        watch: &Watch,
        preferred: &[String],
    ) -> Vec<Vec<CpuId>> {
        let begun_us = sys::monotonic_ns() / 1000;
        let processes = watch.tree().processes().iter();
        let rest_us = match is_moving {
            true if !(processes.map(|process| &process.pid)).eq(&self.looked_at) => {
                self.took_us * SHORT_REST
            }
            true => LOOK_US.max(self.took_us * REST),
            false => LOOK_US.max(self.took_us * LONG_REST),
        };
        if begun_us.saturating_sub(self.looked_us) >= rest_us {
            self.look(watch, preferred);
            self.looked_us = begun_us;
            self.took_us = (sys::monotonic_ns() / 1000).saturating_sub(begun_us);
        }
        let read_rest_us = LOOK_US.max(self.read_took_us * REST);
        if is_moving && begun_us.saturating_sub(self.read.0) >= read_rest_us {
            self.count_idle();
        }
        self.turn = self.turn.wrapping_add(1);
        let next = staff::staff(&Known {
            own: &self.open,
            held: &self.held,
            idle_cpus: self.idle_cpus,
            most: MOST_MOVERS,
            turn: self.turn,
        });
        if next.decider != self.now.decider && !next.decider.is_empty() {
            // A CPU that went away meanwhile: it stays where it is.
            let _ = sys::stay_on(&next.decider.iter().copied().collect());
        }
        self.give_way(is_moving && next.decider_gives_way);
        self.now = next;
        self.now.movers.clone()
    }

    fn look(&mut self, watch: &Watch, preferred: &[String]) {
        let processes = watch.tree().processes().iter();
        self.looked_at = processes.map(|process| process.pid).collect();
        let threads = kept::threads(&self.root, self.looked_at.iter().copied());
        self.held = staff::held(&self.own, threads);
        let processes = watch.snapshot().processes.iter();
        let preferred = processes.filter(|process| preferred.contains(&process.name));
        let theirs = kept::threads(&self.root, preferred.map(|process| process.pid.0));
        self.open = open(&self.own, theirs);
    }

    fn give_way(&mut self, gives_way: bool) {
        if let Some(nice) = self.nice
            && gives_way != self.gives_way
            && sys::set_nice(nice + if gives_way { GIVING_WAY } else { 0 }).is_ok()
        {
            self.gives_way = gives_way;
        }
    }

    fn count_idle(&mut self) {
        let now_us = sys::monotonic_ns() / 1000;
        let now = (now_us, times(&self.root), sys::own_cpu_ns());
        self.read_took_us = (sys::monotonic_ns() / 1000).saturating_sub(now_us);
        let passed_us = now_us.saturating_sub(self.read.0).max(1);
        let own = now.2.saturating_sub(self.read.2) as f64 / 1000.0 / passed_us as f64;
        let free = self.open.difference(&self.held);
        self.idle_cpus = match passed_us <= RECENT_US.max(2 * self.read_took_us * REST) {
            true => idle(&free, &self.read.1, &now.1) + own,
            false => 0.0,
        };
        self.read = now;
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        self.give_way(false);
    }
}

/// Times of the machine's CPUs; none where they cannot be read: then one mover works.
fn times(root: &Root) -> BTreeMap<CpuId, Times> {
    root.parse("proc/stat", cpu_times::parse)
        .unwrap_or_default()
}

/// How many of these CPUs were idle between two readings, in sum.
fn idle(cpus: &CpuSet, before: &BTreeMap<CpuId, Times>, after: &BTreeMap<CpuId, Times>) -> f64 {
    let shares = cpus.iter().filter_map(|cpu| {
        let (before, after) = (before.get(&cpu)?, after.get(&cpu)?);
        Some(cpu_times::idle_share(*before, *after))
    });
    shares.sum()
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
    fn cpus_are_idle_by_the_times_of_the_whole_machine() {
        let at = |busy: [u64; 3], all: u64| -> BTreeMap<CpuId, Times> {
            let each = busy.into_iter().enumerate();
            each.map(|(cpu, busy)| (CpuId(cpu as u32), Times { busy, all }))
                .collect()
        };
        let (before, after) = (at([5, 5, 5], 100), at([5, 15, 10], 110));
        let own = "0-1,7".parse().unwrap();
        assert!((idle(&own, &before, &after) - 1.0).abs() < 1e-9);
        assert_eq!(idle(&own, &BTreeMap::new(), &after), 0.0);
    }

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
