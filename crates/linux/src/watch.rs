//! Snapshots of a running machine: nodes, processes, and what the tracker adds.
//!
//! One snapshot is kept and filled anew each interval, so that the steady state allocates little.

use crate::counters::placed::PlacedPages;
use crate::counters::threads::ThreadTimes;
use crate::error::Result;
use crate::parse::{self, NodeMemory};
use crate::proc::others::Others;
use crate::proc::tree::{Scope, Tree};
use crate::proc::watermarks;
use crate::proc::wish::Wish;
use crate::root::Root;
use crate::sys;
use crate::topology::{CacheDomain, Topology};
use crate::tracker::Tracker;
use crate::tracker::residency::Residents;
use crate::tracker::view::SampleView;
use hither_core::ids::{NodeId, Pid, SpaceId};
use hither_core::observation::Observer;
use hither_core::plan::{Listing, Sampling};
use hither_core::set::NodeSet;
use hither_core::snapshot::{CacheState, Evidence, NodeState, ProcessState, Snapshot};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Free memory is read this often at most while nothing is looked at closely.
const FREE_US: u64 = 500_000;

const NO_WORK: &str =
    "floating-point operations and memory references of processes are not counted by this tracker";

const NO_CACHE: &str = "references to last-level caches are not counted by this tracker";
const NO_THREADS: &str = "threads are not followed";
const NOT_PLACED: &str = "pages are not counted by node";

const DEVICE_CLOCK: &str = "opium counters of address spaces";

/// Builds snapshots.
pub struct Watch {
    root: Root,
    tree: Tree,
    tracker: Box<dyn Tracker>,
    snapshot: Snapshot,
    meminfo: Vec<Option<File>>,
    free_read_us: Option<u64>,
    /// Is sampling full?
    is_close: bool,
    /// CPU time of this process at the end of the last interval in ns, and the clock that told it.
    own_cpu: (u64, &'static str),
    others: Others,
    /// Lists pages that were not sampled, while they are wanted.
    residents: Option<Residents>,
    threads: ThreadTimes,
    /// Pages by node, since they were asked for.
    placed: Option<PlacedPages>,
}

/// The snapshot of a machine about which nothing but its topology is known.
#[must_use]
pub fn empty_snapshot(topology: &Topology) -> Snapshot {
    const NOT_YET: &str = "nothing was observed yet";
    let node = |node: &crate::topology::NodeInfo| NodeState {
        id: node.id,
        cpu_count: node.cpus.len() as u32,
        free_bytes: node.memory.free_kb << 10,
        total_bytes: node.memory.total_kb << 10,
        cache_bytes: node.memory.cache_kb << 10,
        idle_ns: node.idle_ns(),
        rated: node.rated(),
        latency_ns: None,
        read_bytes: Evidence::unknown(NOT_YET),
        write_bytes: Evidence::unknown(NOT_YET),
        utilisation: Evidence::unknown(NOT_YET),
    };
    let nodes = topology.nodes.iter().map(node).collect();
    let cache = |domain: &CacheDomain| {
        Some(CacheState {
            cpus: domain.cpus.clone(),
            bytes: domain.size_kb? << 10,
        })
    };
    Snapshot {
        caches: topology.domains.iter().filter_map(cache).collect(),
        distances: topology.distances.clone(),
        ..Snapshot::of_nodes(nodes, NOT_YET)
    }
}

/// CPU time of this process by the kernel's clock.
fn own_cpu() -> (u64, &'static str) {
    (sys::own_cpu_ns(), "CLOCK_PROCESS_CPUTIME_ID")
}

impl Watch {
    /// Watches these processes through a tracker.
    #[must_use]
    pub fn new(
        root: &Root,
        topology: &Topology,
        scope: impl Into<Scope>,
        tracker: Box<dyn Tracker>,
    ) -> Self {
        let meminfo = topology
            .nodes
            .iter()
            .map(|n| {
                File::open(root.path(&format!("sys/devices/system/node/{}/meminfo", n.id))).ok()
            })
            .collect();
        let mut snapshot = empty_snapshot(topology);
        let marks = watermarks::read(root);
        for node in &mut snapshot.nodes {
            let marks = marks.get(&node.id).copied().unwrap_or_default();
            node.rated.kept_bytes = marks.low;
            node.rated.balanced_bytes = marks.high;
        }
        Self {
            root: root.clone(),
            tree: Tree::new(root.clone(), scope),
            tracker,
            snapshot,
            meminfo,
            free_read_us: None,
            is_close: false,
            own_cpu: own_cpu(),
            others: Others::default(),
            residents: None,
            threads: ThreadTimes::default(),
            placed: None,
        }
    }

    /// The tracker.
    pub fn tracker(&mut self) -> &mut dyn Tracker {
        &mut *self.tracker
    }

    /// Name of the tracker.
    #[must_use]
    pub fn tracker_name(&self) -> &'static str {
        self.tracker.name()
    }

    /// Another tracker looks from now on; the one before is stopped.
    pub fn set_tracker(&mut self, tracker: Box<dyn Tracker>) {
        self.tracker.stop();
        self.tracker = tracker;
    }

    /// What the samples of the last interval say of the whole machine.
    #[must_use]
    pub fn view(&self) -> Option<&SampleView> {
        self.tracker.view()
    }

    /// Where `/proc` and `/sys` are.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The watched processes.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Which processes are watched, to be changed.
    pub fn tree_mut(&mut self) -> &mut Tree {
        &mut self.tree
    }

    /// The snapshot of the last interval.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Ends an interval at `now_us` and returns its snapshot.
    pub fn observe(&mut self, now_us: u64) -> Result<&Snapshot> {
        let snapshot = &mut self.snapshot;
        snapshot.interval_us = now_us.saturating_sub(snapshot.now_us);
        snapshot.now_us = now_us;
        self.tree.refresh(now_us)?;
        snapshot.present.clear();
        snapshot.by_use = false;
        self.tracker.observe(&mut self.tree, snapshot)?;
        if let Some(residents) = &mut self.residents {
            residents.add(&self.tree, snapshot);
        }
        let is_due = |last| now_us.saturating_sub(last) >= FREE_US;
        // A node that runs out of memory, and those between which pages may be moved, are looked at in each interval.
        let is_pressed = self.residents.as_ref().is_some_and(Residents::is_fast);
        if is_pressed || self.is_close || self.free_read_us.is_none_or(is_due) {
            self.free_read_us = Some(now_us);
            for (node, file) in snapshot.nodes.iter_mut().zip(&self.meminfo) {
                let memory = file.as_ref().and_then(|file| read_memory(file, node.id.0));
                if let Some(memory) = memory {
                    node.free_bytes = memory.free_kb << 10;
                    node.cache_bytes = memory.cache_kb << 10;
                }
            }
        }
        let better = self.tracker.own_cpu_ns();
        let (own_cpu_ns, clock) = better.map_or_else(own_cpu, |ns| (ns, DEVICE_CLOCK));
        let own_cpu_ns = own_cpu_ns + self.tracker.cost().map_or(0, |cost| cost.kernel_ns);
        let (before_ns, before) = std::mem::replace(&mut self.own_cpu, (own_cpu_ns, clock));
        // The first reading of a clock is of all the time before.
        let own_us = match clock == before {
            true => own_cpu_ns.saturating_sub(before_ns) / 1000,
            false => 0,
        };
        snapshot.own_cpu_us = Evidence::measured(own_us, clock);
        // Estimates are made of samples of the watched; nobody else is in them.
        if snapshot.metrics.memory_accesses_per_us.is_measured() {
            let known_us = self.tree.cpu_us() + own_us;
            let others_share = self.others.take(&self.root, now_us, known_us);
            snapshot.metrics.others_share = others_share;
        }
        let processes = self.tree.processes();
        snapshot.processes.resize_with(processes.len(), unnamed);
        for (state, process) in snapshot.processes.iter_mut().zip(processes) {
            if state.name != process.name {
                state.name.clone_from(&process.name);
            }
            state.pid = Pid(process.pid);
            state.space = SpaceId(process.incarnation);
            state.parent = Pid(process.parent);
            let belonging = &process.belonging;
            state.user = belonging.user;
            if state.group != belonging.group {
                state.group.clone_from(&belonging.group);
            }
            state.opted_in = belonging.wish == Wish::In;
            state.allowed_nodes = allowed(&snapshot.nodes, belonging.allowed_nodes.as_ref());
            state.resident_pages = Evidence::measured(process.resident_pages, "/proc/PID/stat");
            state.cpu_us = Evidence::measured(process.cpu_us, "/proc/PID/stat");
            state.faults = Evidence::measured(process.faults, "/proc/PID/stat");
            state.work = Evidence::unknown(NO_WORK);
            state.cache = Evidence::unknown(NO_CACHE);
            state.threads = Evidence::unknown(NO_THREADS);
            state.placed = Evidence::unknown(NOT_PLACED);
        }
        self.tracker.fill_in_work(&self.tree, snapshot);
        // Who places programs on caches wants to know where they run.
        if self.tracker.counts_references() {
            self.threads.fill_in(&self.root, snapshot);
        }
        if let Some(placed) = &mut self.placed {
            placed.fill_in(&self.root, snapshot);
        }
        Ok(&self.snapshot)
    }

    /// Starts the first interval.
    pub fn begin(&mut self, now_us: u64) {
        self.snapshot.now_us = now_us;
    }

    /// Sentences for a person that came up since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        let mut notes = self.tree.take_notes();
        notes.extend(self.tracker.take_notes());
        if let Some(residents) = &mut self.residents {
            notes.extend(residents.take_notes());
        }
        notes
    }
}

/// The nodes that a process may use; `None` where these are all.
fn allowed(nodes: &[NodeState], set: Option<&NodeSet>) -> Option<Vec<NodeId>> {
    let set = set?;
    let allowed: Vec<NodeId> = nodes
        .iter()
        .map(|node| node.id)
        .filter(|&node| set.contains(node))
        .collect();
    (allowed.len() < nodes.len()).then_some(allowed)
}

impl Observer for Watch {
    fn observe(&mut self, now_us: u64) -> std::result::Result<&Snapshot, String> {
        Watch::observe(self, now_us).map_err(|error| error.to_string())
    }

    fn set_sampling(&mut self, sampling: Sampling) {
        self.is_close = sampling == Sampling::Full;
        self.tracker.set_sampling(sampling);
    }

    fn list_residents(&mut self, listing: Listing) {
        match listing {
            Listing::Off => (self.placed, self.residents) = (None, None),
            Listing::Counted => {
                self.placed.get_or_insert_default();
                self.residents = None;
            }
            // Who lists pages has them counted where that was asked for before.
            Listing::Slow | Listing::Fast => {
                let root = &self.root;
                let residents = self
                    .residents
                    .get_or_insert_with(|| Residents::new(root.clone()));
                residents.set_listing(listing);
            }
        }
    }

    fn take_notes(&mut self) -> Vec<String> {
        Watch::take_notes(self)
    }
}

fn unnamed() -> ProcessState {
    ProcessState::unknown(Pid(0), SpaceId(0), "not read yet")
}

/// The first lines of a node's `meminfo`: free memory and the page cache are among the first eleven.
fn read_memory(file: &File, node: u32) -> Option<NodeMemory> {
    let mut bytes = [0u8; 512];
    let got = file.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..got]).ok()?;
    let whole_lines = &text[..text.rfind('\n')? + 1];
    parse::node_meminfo(whole_lines, node).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpuset_that_holds_all_nodes_limits_nothing() {
        let root = Root::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/machines/four-node-hmat"
        ));
        let nodes = empty_snapshot(&Topology::read(&root).unwrap()).nodes;
        let set = |ids: &[u32]| ids.iter().map(|&id| NodeId(id)).collect::<NodeSet>();
        let first = nodes[0].id.0;
        assert_eq!(allowed(&nodes, None), None);
        let all: Vec<u32> = (0..64).collect();
        assert_eq!(allowed(&nodes, Some(&set(&all))), None);
        let one = Some(vec![NodeId(first)]);
        assert_eq!(allowed(&nodes, Some(&set(&[first, 63]))), one);
    }
    use crate::tracker::residency::ResidencyTracker;

    #[test]
    fn a_snapshot_of_this_machine_holds_together() {
        let root = Root::host();
        let topology = Topology::read(&root).unwrap();
        let tracker = Box::new(ResidencyTracker::new(root.clone()));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let mut watch = Watch::new(&root, &topology, std::process::id() as i32, tracker);
        watch.begin(1_000_000);
        let snapshot = watch.observe(3_500_000).unwrap();
        assert_eq!(
            (snapshot.now_us, snapshot.interval_us),
            (3_500_000, 2_500_000)
        );
        assert_eq!(snapshot.nodes.len(), topology.nodes.len());
        assert!(snapshot.nodes.iter().any(|node| node.free_bytes > 0));
        let pid = Pid(child.id() as i32);
        assert!(snapshot.processes.iter().any(|process| process.pid == pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
