//! What is counted beside the samples: by the cores of each watched process (instructions, cycles,
//! stalls), and outside the cores by node (traffic of the controllers).
//!
//! Figures of cores are sums over the watched processes that use most CPU time; those of nodes are the
//! machine's. What the machine does not count, or the kernel refuses, stays unknown with the reason.
//! Never run on hardware: what is tested is what figures come of counts.

use super::super::rating::Ratings;
use crate::counters::uncore::{NodeTraffic, Uncore};
use crate::perf::catalogue::Catalogue;
use crate::perf::tally::Tally;
use crate::proc::tree::Tree;
use crate::root::Root;
use crate::topology::Topology;
use hither_core::metrics;
use hither_core::perf::count::{Estimates, Rate, local_share, stall_share};
use hither_core::perf::events::Role;
use hither_core::snapshot::{CacheUse, Evidence, GlobalMetrics, LINE_BYTES, Snapshot, Work};
use std::collections::BTreeMap;

/// Processes that are counted at most: each needs some eight descriptors for each of its threads.
const MOST_PROCESSES: usize = 32;
const BY_CORES: &str = "counting events of the watched processes";
const NO_WORK: &str = "this processor's table has no events for floating-point operations and memory, or the \
                       process is not counted yet";
const NO_USE: &str = "this processor's table has no event for references to the last cache, or the process is not \
                      counted yet";
const BY_CONTROLLERS: &str = "counting events of the memory controllers";

/// Open counters.
#[derive(Debug)]
pub(super) struct Counts {
    tally: Option<Tally>,
    uncore: Option<Uncore>,
    ratings: Ratings,
    notes: Vec<String>,
    /// What each process executed in the last interval, and the share of its cycles that stalled on memory.
    works: BTreeMap<i32, (Work, Option<f64>)>,
    /// What each asked of the last cache; without its working set.
    uses: BTreeMap<i32, CacheUse>,
}

impl Counts {
    /// Of what the machine has and the kernel allows; the rest is told in notes.
    pub fn open(root: &Root, topology: &Topology) -> Self {
        let mut counts = Self {
            tally: None,
            uncore: None,
            ratings: Ratings::new(topology, topology.nodes.iter().map(|node| node.id)),
            notes: Vec::new(),
            works: BTreeMap::new(),
            uses: BTreeMap::new(),
        };
        let catalogue = match Catalogue::read(root) {
            Ok(catalogue) => catalogue,
            Err(error) => {
                counts.notes.push(format!("nothing is counted: {error}"));
                return counts;
            }
        };
        match Uncore::open(root, &catalogue, topology) {
            Ok(uncore) => counts.uncore = Some(uncore),
            Err(error) => counts
                .notes
                .push(format!("traffic of nodes is not counted: {error}")),
        }
        let mut served = catalogue.served.iter();
        counts.tally = served
            .any(|served| served.role.is_counted_by_core())
            .then(|| Tally::new(root, catalogue));
        counts
    }

    /// Fills in what was counted since the last call.
    pub fn fill_in(&mut self, tree: &Tree, snapshot: &mut Snapshot) {
        if let Some(tally) = &mut self.tally {
            let read = tally.read();
            let works = read.iter().filter_map(|(&pid, counts)| {
                let work = work(&counts.counted)?;
                Some((pid, (work, counts.stall_share.get())))
            });
            self.works = works.collect();
            let uses = read.iter();
            let uses = uses.filter_map(|(&pid, counts)| Some((pid, cache_use(&counts.counted)?)));
            self.uses = uses.collect();
            let sums = read.into_values().map(|counts| counts.counted);
            of_cores(&sum(sums), snapshot.interval_us, &mut snapshot.metrics);
            tally.follow(&busiest(tree));
            self.notes.append(&mut tally.take_notes());
        }
        match self.uncore.as_mut().map(Uncore::read) {
            Some(Ok(traffic)) => of_nodes(&traffic, &self.ratings, snapshot),
            Some(Err(error)) => {
                self.notes
                    .push(format!("traffic of nodes is not counted any more: {error}"));
                self.uncore = None;
            }
            None => {}
        }
    }

    /// Counts what each process executes, from now on.
    pub fn count_work(&mut self) {
        if let Some(tally) = &mut self.tally {
            tally.count_operations();
        }
    }

    /// What each process executed, as counted in the last interval.
    pub fn fill_in_work(&self, snapshot: &mut Snapshot) {
        for state in &mut snapshot.processes {
            state.work = match self.works.get(&state.pid.0) {
                Some(&(work, stalled)) => {
                    let cpu_ns = state.cpu_us.get().map(|cpu_us| cpu_us as f64 * 1e3);
                    let stalled = stalled.zip(cpu_ns);
                    let stall_ns = stalled.map(|(share, cpu_ns)| (share * cpu_ns) as u64);
                    Evidence::estimated(Work { stall_ns, ..work }, BY_CORES)
                }
                None => Evidence::unknown(NO_WORK),
            };
        }
    }

    /// Counts what each process asks of the last cache, from now on.
    pub fn count_references(&mut self) {
        if let Some(tally) = &mut self.tally {
            tally.count_references();
        }
    }

    /// What each process asked of the last cache, as counted in the last interval, with its working set.
    pub fn fill_in_uses(&self, snapshot: &mut Snapshot, set: impl Fn(i32) -> Option<u64>) {
        for state in &mut snapshot.processes {
            state.cache = match self.uses.get(&state.pid.0) {
                Some(&used) => {
                    let working_set_bytes = set(state.pid.0);
                    let used = CacheUse {
                        working_set_bytes,
                        ..used
                    };
                    Evidence::estimated(used, BY_CORES)
                }
                None => Evidence::unknown(NO_USE),
            };
        }
    }

    /// Sentences that came up since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

/// What a process executed; `None` where the processor does not count operations, or not what memory served.
/// Loads alone are counted on some (see the tables): stores and prefetches are missing in the bytes then, and
/// what goes back to memory always is.
fn work(counted: &Estimates) -> Option<Work> {
    let value = |role| counted.get(&role).map(|estimate| estimate.value);
    Some(Work {
        instructions: value(Role::Instructions).unwrap_or(0.0) as u64,
        flops: value(Role::Operations)? as u64,
        read_bytes: (lines(counted)? * LINE_BYTES as f64) as u64,
        written_bytes: None,
        stall_ns: None,
    })
}

/// Lines that memory served.
fn lines(counted: &Estimates) -> Option<f64> {
    let value = |role| counted.get(&role).map(|estimate| estimate.value);
    match [Role::LocalMemory, Role::RemoteMemory].map(value) {
        [Some(local), Some(remote)] => Some(local + remote),
        _ => value(Role::Misses),
    }
}

/// What a process asked of the last cache; `None` where the processor does not count it.
fn cache_use(counted: &Estimates) -> Option<CacheUse> {
    let value = |role| counted.get(&role).map(|estimate| estimate.value);
    let references = value(Role::References)?;
    Some(CacheUse {
        instructions: value(Role::Instructions)? as u64,
        references: references as u64,
        misses: lines(counted)?.min(references) as u64,
        ..CacheUse::default()
    })
}

/// The processes that used most CPU time since they were looked at last; all where they are few.
fn busiest(tree: &Tree) -> Vec<i32> {
    let mut busy: Vec<(u64, i32)> = (tree.processes().iter())
        .map(|process| (process.cpu_us, process.pid))
        .collect();
    busy.sort_unstable_by(|one, other| other.cmp(one));
    busy.truncate(MOST_PROCESSES);
    busy.into_iter().map(|(_, pid)| pid).collect()
}

/// A role that one of them lacks is left out: its sum would be too small.
fn sum(all: impl Iterator<Item = Estimates>) -> Estimates {
    all.reduce(|mut sums, other| {
        sums.retain(|role, _| other.contains_key(role));
        for (role, sum) in &mut sums {
            *sum = sum.plus(other[role]);
        }
        sums
    })
    .unwrap_or_default()
}

fn of_cores(counted: &Estimates, interval_us: u64, metrics: &mut GlobalMetrics) {
    if counted.is_empty() || interval_us == 0 {
        return;
    }
    let value = |role| counted.get(&role).map(|estimate| estimate.value);
    metrics.stall_share = stall_share(counted);
    if let Some(instructions) = value(Role::Instructions) {
        metrics.instructions_per_us =
            Evidence::estimated(instructions / interval_us as f64, BY_CORES);
        if let Some(cycles) = value(Role::Cycles).filter(|&cycles| cycles > 0.0) {
            metrics.ipc = Evidence::estimated(instructions / cycles, BY_CORES);
        }
    }
    // Counted misses are all that there were, samples some of them.
    let local = local_share(counted);
    if local.is_known() {
        metrics.local_access_ratio = local;
    }
}

/// Where a package is several nodes, what is told of all of them is nobody's.
fn of_nodes(traffic: &[NodeTraffic], ratings: &Ratings, snapshot: &mut Snapshot) {
    let interval_us = snapshot.interval_us;
    if interval_us == 0 {
        return;
    }
    let bytes = |per_second: f64| (per_second * interval_us as f64 / 1e6) as u64;
    let (mut by_node, mut lines) = (Vec::new(), Some(0.0));
    for position in 0..snapshot.nodes.len() {
        let node = &mut snapshot.nodes[position];
        let told = traffic
            .iter()
            .find(|told| told.nodes.len() == 1 && told.nodes.contains(node.id));
        let both = told
            .and_then(|told| told.both)
            .map(|rate| bytes(rate.per_second));
        if let Some(told) = told {
            let one = |rate: Option<Rate>| match rate {
                Some(rate) => Evidence::estimated(bytes(rate.per_second), BY_CONTROLLERS),
                None => Evidence::unknown("its controllers do not tell reads from writes"),
            };
            node.read_bytes = one(told.reads);
            node.write_bytes = one(told.writes);
        }
        if let Some(both) = both {
            node.utilisation = ratings.utilisation(position, both, interval_us);
        }
        // Memory without CPUs is no part of a processor's package.
        if node.cpu_count > 0 {
            by_node.push(both);
            let read = told.and_then(|told| told.reads.or(told.both));
            lines = lines
                .zip(read)
                .map(|(sum, rate)| sum + rate.per_second / 1e6 / LINE_BYTES as f64);
        }
    }
    let all: Option<Vec<f64>> = by_node
        .into_iter()
        .map(|both| both.map(|both| both as f64))
        .collect();
    if let Some(uneven) = all.and_then(|all| metrics::imbalance(&all)) {
        snapshot.metrics.controller_imbalance = Evidence::estimated(uneven, BY_CONTROLLERS);
    }
    if let Some(lines) = lines.filter(|&lines| lines > 0.0) {
        snapshot.metrics.memory_accesses_per_us = Evidence::estimated(lines, BY_CONTROLLERS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::empty_snapshot;
    use hither_core::ids::NodeId;
    use hither_core::perf::count::Estimate;
    use hither_core::set::NodeSet;
    use std::path::Path;

    fn estimates(values: &[(Role, f64)]) -> Estimates {
        let whole = |value| Estimate {
            value,
            counted_share: 1.0,
        };
        let values = values.iter();
        values.map(|&(role, value)| (role, whole(value))).collect()
    }

    #[test]
    fn counts_of_processes_are_summed_and_become_figures() {
        let one = estimates(&[
            (Role::Instructions, 2e6),
            (Role::Cycles, 4e6),
            (Role::MemoryStalls, 1e6),
            (Role::LocalMemory, 1500.0),
            (Role::RemoteMemory, 500.0),
        ]);
        let other = estimates(&[
            (Role::Instructions, 1e6),
            (Role::Cycles, 2e6),
            (Role::MemoryStalls, 2e6),
        ]);
        let sums = sum([one.clone(), other].into_iter());
        let mut told = GlobalMetrics::unknown("not yet");
        of_cores(&sums, 1000, &mut told);
        assert_eq!(told.instructions_per_us.get(), Some(3000.0));
        assert_eq!(told.ipc.get(), Some(0.5));
        assert_eq!(told.stall_share.get(), Some(0.5));
        assert!(
            !told.local_access_ratio.is_known(),
            "one of them does not tell"
        );
        of_cores(&one, 1000, &mut told);
        assert_eq!(told.local_access_ratio.get(), Some(0.75));
        let before = told.clone();
        of_cores(&Estimates::new(), 1000, &mut told);
        assert_eq!(told, before, "nothing was counted, and nothing is said");
    }

    fn traffic(nodes: &[u32], reads: f64, both: f64) -> NodeTraffic {
        let rate = |per_second| {
            Some(Rate {
                per_second,
                counted_share: 1.0,
            })
        };
        NodeTraffic {
            nodes: nodes.iter().map(|&node| NodeId(node)).collect::<NodeSet>(),
            reads: rate(reads),
            writes: rate(both - reads),
            both: rate(both),
            sent: None,
        }
    }

    #[test]
    fn traffic_of_nodes_tells_rate_use_and_imbalance() {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines/two-socket");
        let topology = Topology::read(&Root::new(folder)).unwrap();
        let ratings = Ratings::new(&topology, topology.nodes.iter().map(|node| node.id));
        let mut snapshot = empty_snapshot(&topology);
        snapshot.interval_us = 1_000_000;
        // All traffic is node 0's: a deviation as large as the mean.
        let told = [traffic(&[0], 6.4e9, 8e9), traffic(&[1], 0.0, 0.0)];
        of_nodes(&told, &ratings, &mut snapshot);
        assert_eq!(snapshot.metrics.controller_imbalance.get(), Some(1.0));
        assert_eq!(snapshot.metrics.memory_accesses_per_us.get(), Some(100.0));
        assert_eq!(snapshot.nodes[0].read_bytes.get(), Some(6_400_000_000));
        assert_eq!(snapshot.nodes[0].write_bytes.get(), Some(1_600_000_000));
        // Of two nodes together nobody knows whose it is.
        let mut together = empty_snapshot(&topology);
        together.interval_us = 1_000_000;
        of_nodes(&[traffic(&[0, 1], 6.4e9, 8e9)], &ratings, &mut together);
        assert!(!together.metrics.controller_imbalance.is_known());
        assert!(!together.metrics.memory_accesses_per_us.is_known());
    }

    #[test]
    fn what_a_process_executed_comes_of_its_counts() {
        let counted = estimates(&[
            (Role::Instructions, 5e6),
            (Role::Operations, 3e6),
            (Role::LocalMemory, 1000.0),
            (Role::RemoteMemory, 500.0),
        ]);
        let told = work(&counted).unwrap();
        assert_eq!((told.flops, told.read_bytes), (3_000_000, 96_000));
        assert_eq!(cache_use(&counted), None);
        let referring = estimates(&[
            (Role::Instructions, 5e6),
            (Role::References, 9000.0),
            (Role::LocalMemory, 1000.0),
            (Role::RemoteMemory, 500.0),
        ]);
        let used = cache_use(&referring).unwrap();
        assert_eq!((used.references, used.misses), (9000, 1500));
        let by_misses = estimates(&[(Role::Operations, 8.0), (Role::Misses, 2.0)]);
        assert_eq!(work(&by_misses).unwrap().intensity(), Some(8.0 / 128.0));
        assert_eq!(work(&estimates(&[(Role::Misses, 2.0)])), None);
        assert_eq!(work(&estimates(&[(Role::Operations, 8.0)])), None);
    }
}
