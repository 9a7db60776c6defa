//! Counts of several processes by interval: what their cores tell of instructions, misses near and
//! far, and stalls, as evidence.
//!
//! A process that cannot be counted (another user's, too many threads, no descriptors left) is left
//! out, with one note; the others go on.

use super::catalogue::Catalogue;
use super::counter::{Counters, Interval};
use crate::root::Root;
use hither_core::perf::count::{Estimates, Rate, local_share, stall_share};
use hither_core::perf::events::Role;
use hither_core::snapshot::Evidence;
use std::collections::{BTreeMap, BTreeSet};

/// What is counted of each process, as far as the machine has it.
const ROLES: [Role; 8] = [
    Role::Instructions,
    Role::Cycles,
    Role::MemoryStalls,
    Role::LocalMemory,
    Role::RemoteMemory,
    Role::RemoteCache,
    Role::Misses,
    Role::Remote,
];

/// What was counted of a process in an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessCounts {
    /// How long the interval was (ns).
    pub passed_ns: u64,
    /// Counts by role, in the units of the table's lines.
    pub counted: Estimates,
    /// Share of misses that local memory served, 0 to 1.
    pub local_share: Evidence<f64>,
    /// Share of cycles that stalled on memory, 0 to 1.
    pub stall_share: Evidence<f64>,
    /// Sentences on what was counted in part of the time, or never.
    pub notes: Vec<String>,
}

impl ProcessCounts {
    /// From the counts of an interval.
    #[must_use]
    pub fn of(interval: &Interval) -> Self {
        let counted = interval.sums(|_| true);
        Self {
            passed_ns: interval.passed_ns,
            local_share: local_share(&counted),
            stall_share: stall_share(&counted),
            notes: notes(interval, &counted),
            counted,
        }
    }

    /// Events a second of a role, over all threads.
    #[must_use]
    pub fn rate(&self, role: Role) -> Option<Rate> {
        self.counted.get(&role)?.rate(self.passed_ns)
    }

    /// Instructions a cycle; `None` where either is not counted, or it did not run.
    #[must_use]
    pub fn instructions_per_cycle(&self) -> Option<f64> {
        let value = |role| Some(self.counted.get(&role)?.value);
        let cycles = value(Role::Cycles).filter(|&cycles| cycles > 0.0)?;
        Some(value(Role::Instructions)? / cycles)
    }
}

fn notes(interval: &Interval, counted: &Estimates) -> Vec<String> {
    let never = interval.starved().into_iter().map(|role| {
        format!(
            "{} never had a counter of the PMU: stop other profilers, or switch kernel.nmi_watchdog \
             off, which holds one",
            role.name()
        )
    });
    let partly = counted
        .iter()
        .filter(|(_, estimate)| estimate.is_multiplexed());
    let partly = partly.map(|(role, estimate)| {
        format!(
            "{}: multiplexed, counted {:.0} % of the time",
            role.name(),
            estimate.counted_share * 100.0
        )
    });
    never.chain(partly).collect()
}

/// Counters of processes.
#[derive(Debug)]
pub struct Tally {
    root: Root,
    catalogue: Catalogue,
    open: BTreeMap<i32, Counters>,
    /// Processes that could not be counted; they are not tried again.
    refused: BTreeSet<i32>,
    notes: Vec<String>,
    /// Roles that are counted.
    roles: Vec<Role>,
}

impl Tally {
    /// Of nobody so far.
    #[must_use]
    pub fn new(root: &Root, catalogue: Catalogue) -> Self {
        Self {
            root: root.clone(),
            catalogue,
            open: BTreeMap::new(),
            refused: BTreeSet::new(),
            notes: Vec::new(),
            roles: ROLES.to_vec(),
        }
    }

    /// Counts floating-point operations as well, from now on: up to five more events, so that all of them take
    /// turns on counters.
    pub fn count_operations(&mut self) {
        self.add(Role::Operations);
    }

    /// Counts references to the last cache as well, from now on.
    pub fn count_references(&mut self) {
        self.add(Role::References);
    }

    fn add(&mut self, role: Role) {
        if !self.roles.contains(&role) {
            self.roles.push(role);
            self.open.clear();
        }
    }

    /// Counts these processes from now on, and no others.
    pub fn follow(&mut self, pids: &[i32]) {
        self.open.retain(|pid, _| pids.contains(pid));
        self.refused.retain(|pid| pids.contains(pid));
        for &pid in pids {
            if self.open.contains_key(&pid) || self.refused.contains(&pid) {
                continue;
            }
            let opened = Counters::of_process(&self.root, &self.catalogue, pid, &self.roles)
                .and_then(|mut counters| counters.switch(true).map(|()| counters));
            match opened {
                Ok(counters) => drop(self.open.insert(pid, counters)),
                Err(error) => {
                    self.refused.insert(pid);
                    self.notes
                        .push(format!("process {pid} is not counted: {error}"));
                }
            }
        }
    }

    /// What each process did since the last reading.
    pub fn read(&mut self) -> BTreeMap<i32, ProcessCounts> {
        let mut told = BTreeMap::new();
        for (&pid, counters) in &mut self.open {
            match counters.read() {
                Ok(interval) => drop(told.insert(pid, ProcessCounts::of(&interval))),
                Err(error) => {
                    self.refused.insert(pid);
                    self.notes
                        .push(format!("process {pid} is not counted any more: {error}"));
                }
            }
        }
        self.open.retain(|pid, _| !self.refused.contains(pid));
        told
    }

    /// Sentences on who could not be counted, once each.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::counter::{EventCount, Whose};
    use hither_core::perf::count::Estimate;

    fn told(role: Role, thread: i32, value: f64, counted_share: f64) -> EventCount {
        EventCount {
            role,
            whose: Whose::Thread(thread),
            source: "cpu".into(),
            estimate: (counted_share > 0.0).then_some(Estimate {
                value,
                counted_share,
            }),
        }
    }

    #[test]
    fn threads_are_summed_and_shares_follow() {
        let counts = ProcessCounts::of(&Interval {
            passed_ns: 1_000_000_000,
            told: vec![
                told(Role::Instructions, 1, 1e9, 1.0),
                told(Role::Cycles, 1, 2e9, 1.0),
                told(Role::MemoryStalls, 1, 5e8, 1.0),
                told(Role::LocalMemory, 1, 3e6, 0.5),
                told(Role::LocalMemory, 2, 1e6, 1.0),
                told(Role::RemoteMemory, 1, 1e6, 0.5),
                told(Role::RemoteCache, 1, 0.0, 0.0),
            ],
        });
        assert_eq!(counts.instructions_per_cycle(), Some(0.5));
        assert_eq!(counts.local_share.value(), Some(&0.8));
        assert_eq!(counts.stall_share.value(), Some(&0.25));
        assert!(!counts.local_share.is_measured(), "it was multiplexed");
        let rate = counts.rate(Role::LocalMemory).unwrap();
        assert_eq!((rate.per_second, rate.counted_share), (4e6, 0.5));
        assert_eq!(counts.rate(Role::RemoteCache), None);
        let notes = counts.notes.join("\n");
        assert!(
            notes.contains("remote caches never had a counter"),
            "{notes}"
        );
        assert!(
            notes.contains("local memory: multiplexed, counted 50 %"),
            "{notes}"
        );
    }

    #[test]
    fn a_process_that_did_nothing_has_no_shares() {
        let counts = ProcessCounts::of(&Interval::default());
        assert_eq!(counts.instructions_per_cycle(), None);
        assert_eq!(
            (counts.local_share.value(), counts.stall_share.value()),
            (None, None)
        );
        assert!(counts.notes.is_empty());
    }

    #[test]
    fn who_cannot_be_counted_is_noted_once() {
        let root = Root::host();
        let catalogue = Catalogue::read(&root).unwrap();
        let mut tally = Tally::new(&root, catalogue);
        for _ in 0..2 {
            tally.follow(&[i32::MAX]);
        }
        assert!(tally.read().is_empty());
        assert_eq!(tally.take_notes().len(), 1);
        assert!(tally.take_notes().is_empty());
        // This process is counted where there is a PMU; else it is noted.
        let own = std::process::id() as i32;
        tally.follow(&[own]);
        assert_eq!(tally.read().len() + tally.take_notes().len(), 1);
        tally.follow(&[]);
        assert!(tally.read().is_empty());
    }
}
