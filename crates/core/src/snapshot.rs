//! The belief about a machine at one instant: a policy's only view of the world.
//!
//! A snapshot is built by the trackers (or a simulator), never changed afterwards, and handed to
//! `Engine::step`. Every figure that somebody had to measure
//! carries its [`Evidence`]: who measured it, what it was estimated from, or why it is unknown.
//!
//! Units: time in us, sizes in bytes, latencies in ns, ratios and shares as fractions of 1
//! (`0.25` is 25 %), imbalance as a fraction too (`1.73` is 173 %). Pages are 4 KiB base pages,
//! named by their virtual page number (address >> 12) in their process.
//!
//! Arrays over nodes go by *position* in [`Snapshot::nodes`]; a [`NodeId`] is the kernel's
//! number, may be sparse, and is never an index.

use crate::ids::{NodeId, Pid, SpaceId};
use crate::metrics;
use crate::set::CpuSet;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// Bytes of a base page.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of a line of the caches, and so of a fill.
pub const LINE_BYTES: u64 = 64;
/// Base pages of a 2 MiB huge page.
pub const HUGE_PAGES: u64 = 512;

/// Base pages that move together: those of a huge page, or one.
#[must_use]
pub fn base_pages(huge: bool) -> u64 {
    if huge { HUGE_PAGES } else { 1 }
}

/// A figure and what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence<T> {
    /// Counted or timed by a tracker.
    Measured {
        /// The figure.
        value: T,
        /// The tracker and its counter, such as `opium fill counters`.
        by: Cow<'static, str>,
    },
    /// Derived from something else.
    Estimated {
        /// The figure.
        value: T,
        /// What it was derived from, such as `1 sample per 500 fills`.
        from: Cow<'static, str>,
    },
    /// Nobody knows.
    Unknown {
        /// Why, and what would tell: a sentence for a person.
        why: Cow<'static, str>,
    },
}

impl<T> Evidence<T> {
    /// A measured figure.
    pub fn measured(value: T, by: impl Into<Cow<'static, str>>) -> Self {
        Self::Measured {
            value,
            by: by.into(),
        }
    }

    /// An estimated figure.
    pub fn estimated(value: T, from: impl Into<Cow<'static, str>>) -> Self {
        Self::Estimated {
            value,
            from: from.into(),
        }
    }

    /// No figure, with the reason.
    pub fn unknown(why: impl Into<Cow<'static, str>>) -> Self {
        Self::Unknown { why: why.into() }
    }

    /// The figure, measured or estimated; `None` where unknown.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Measured { value, .. } | Self::Estimated { value, .. } => Some(value),
            Self::Unknown { .. } => None,
        }
    }

    /// Was it counted or timed, not derived?
    #[must_use]
    pub fn is_measured(&self) -> bool {
        matches!(self, Self::Measured { .. })
    }

    /// Is there a figure?
    #[must_use]
    pub fn is_known(&self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }

    /// Who measured it, what it was estimated from, or why it is unknown.
    #[must_use]
    pub fn basis(&self) -> &str {
        match self {
            Self::Measured { by, .. } => by,
            Self::Estimated { from, .. } => from,
            Self::Unknown { why } => why,
        }
    }

    /// The same evidence for a figure computed from this one.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Evidence<U> {
        match self {
            Self::Measured { value, by } => Evidence::Measured {
                value: change(value),
                by,
            },
            Self::Estimated { value, from } => Evidence::Estimated {
                value: change(value),
                from,
            },
            Self::Unknown { why } => Evidence::Unknown { why },
        }
    }
}

impl<T: Copy> Evidence<T> {
    /// The figure by value; `None` where unknown.
    #[must_use]
    pub fn get(&self) -> Option<T> {
        self.value().copied()
    }
}

impl<T: fmt::Display> fmt::Display for Evidence<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measured { value, by } => write!(f, "{value} (measured by {by})"),
            Self::Estimated { value, from } => write!(f, "{value} (estimated from {from})"),
            Self::Unknown { why } => write!(f, "unknown ({why})"),
        }
    }
}

/// Positions that [`NodeCounts`] holds without an allocation.
const INLINE_NODES: usize = 8;

/// A count per node, by position. Positions below 8 need no allocation; there is no upper limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCounts {
    inline: [u32; INLINE_NODES],
    /// Positions from 8 on; empty on nearly every machine (an empty `Vec` does not allocate).
    spill: Vec<u32>,
}

impl NodeCounts {
    /// All zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts by position, from a list.
    #[must_use]
    pub fn from_slice(counts: &[u32]) -> Self {
        let mut all = Self::new();
        for (position, &count) in counts.iter().enumerate() {
            all.add(position, count);
        }
        all
    }

    /// The count at a node position; zero where nothing was added.
    #[must_use]
    pub fn get(&self, position: usize) -> u32 {
        match self.inline.get(position) {
            Some(&count) => count,
            None => self
                .spill
                .get(position - INLINE_NODES)
                .copied()
                .unwrap_or(0),
        }
    }

    /// Adds to a node position; the count saturates.
    pub fn add(&mut self, position: usize, count: u32) {
        if count == 0 {
            return;
        }
        let slot = if position < INLINE_NODES {
            &mut self.inline[position]
        } else {
            let index = position - INLINE_NODES;
            if self.spill.len() <= index {
                self.spill.resize(index + 1, 0);
            }
            &mut self.spill[index]
        };
        *slot = slot.saturating_add(count);
    }

    /// Sum over all nodes.
    #[must_use]
    pub fn total(&self) -> u64 {
        let sum = |counts: &[u32]| counts.iter().map(|&count| u64::from(count)).sum::<u64>();
        sum(&self.inline) + sum(&self.spill)
    }

    /// Visits `(position, count)` of nodes that have any, ascending: what [`NodeCounts::iter`] gives, in a
    /// fraction of its instructions.
    pub fn each(&self, mut visit: impl FnMut(usize, u32)) {
        let mut all = |first: usize, counts: &[u32]| {
            for (position, &count) in (first..).zip(counts) {
                if count > 0 {
                    visit(position, count);
                }
            }
        };
        // Of most pages there are reads alone, or writes.
        if self.inline != [0; INLINE_NODES] {
            all(0, &self.inline);
        }
        all(INLINE_NODES, &self.spill);
    }

    /// `(position, count)` of nodes that have any, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let all = self.inline.iter().chain(&self.spill);
        all.copied().enumerate().filter(|&(_, count)| count > 0)
    }
}

/// One page as the trackers saw it in the interval.
///
/// Counts are *samples*; [`Snapshot::sample_period`] says how many memory fills one stands for.
/// A page without any sample may be listed too (a residency tracker knows it): it then tells a
/// policy that the page exists and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageStats {
    /// Whose page.
    pub pid: Pid,
    /// Virtual page number: address >> 12.
    pub page: u64,
    /// Node whose memory holds it at the end of the interval.
    pub home: NodeId,
    /// Node whose memory held it when it was accessed, where somebody else has moved it since: the
    /// kernel's NUMA balancing does, in the fault that tells of the access.
    #[serde(default)]
    pub was: Option<NodeId>,
    /// Sampled user-mode reads per accessing node position, demand and prefetch.
    pub reads: NodeCounts,
    /// Sampled user-mode writes per accessing node position.
    pub writes: NodeCounts,
    /// Is it part of a 2 MiB huge page? Such a page moves whole.
    pub huge: bool,
}

impl PageStats {
    /// Samples from one node position, reads and writes.
    #[must_use]
    pub fn accesses(&self, position: usize) -> u64 {
        u64::from(self.reads.get(position)) + u64::from(self.writes.get(position))
    }

    /// All samples of the page.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.reads.total() + self.writes.total()
    }

    /// Adds its samples, each counting for so much, to those of each accessing node, by position.
    pub fn add_users(&self, users: &mut [f64], weight: f64) {
        for counts in [&self.reads, &self.writes] {
            counts.each(|position, count| {
                if let Some(sum) = users.get_mut(position) {
                    *sum += weight * f64::from(count);
                }
            });
        }
    }

    /// Node whose memory served the accesses.
    #[must_use]
    pub fn served_by(&self) -> NodeId {
        self.was.unwrap_or(self.home)
    }
}

/// What firmware (HMAT) and the kernel tell of a node's memory, for the CPUs nearest to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rated {
    /// Rank among the kernel's memory tiers; 0 is the fastest.
    pub tier: Option<u32>,
    /// Latency of a write in ns.
    pub write_ns: Option<f64>,
    /// Read bandwidth in GB/s.
    pub read_gbs: Option<f64>,
    /// Free memory that the kernel keeps back from page migration, in bytes; 0 where it does not tell.
    #[serde(default)]
    pub kept_bytes: u64,
    /// Free memory beyond which the kernel's own balancing moves pages there, in bytes; 0 where it does not tell.
    #[serde(default)]
    pub balanced_bytes: u64,
}

/// Memory that a node can give, in the unit of both figures: what is free, and half of its page cache without
/// shared memory. The kernel takes that back before it refuses, and itself counts on half of it at least
/// (`si_mem_available`); on a server that has run for days nearly nothing is free besides.
#[must_use]
pub fn available(free: u64, cache: u64) -> u64 {
    free.saturating_add(cache / 2)
}

/// State of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeState {
    /// The kernel's number.
    pub id: NodeId,
    /// CPUs local to it; zero for memory alone.
    pub cpu_count: u32,
    /// Free memory in bytes.
    pub free_bytes: u64,
    /// Page cache in bytes, which the kernel takes back before it has to look for memory elsewhere.
    #[serde(default)]
    pub cache_bytes: u64,
    /// All memory in bytes.
    pub total_bytes: u64,
    /// Latency of its idle memory for the CPUs nearest to it, in ns, as firmware rates it.
    #[serde(default)]
    pub idle_ns: Option<f64>,
    /// What else firmware and the kernel rate of it.
    #[serde(default)]
    pub rated: Rated,
    /// Mean latency of the sampled accesses that its memory served in the interval, in ns, where
    /// samples tell it: under the load that there is.
    #[serde(default)]
    pub latency_ns: Option<f64>,
    /// Bytes read from its memory in the interval.
    pub read_bytes: Evidence<u64>,
    /// Bytes written to its memory in the interval, write-backs included.
    pub write_bytes: Evidence<u64>,
    /// Mean utilisation of its controller in the interval, 0..=1.
    pub utilisation: Evidence<f64>,
}

impl NodeState {
    /// Bytes that it can give, [`available`].
    #[must_use]
    pub fn available_bytes(&self) -> u64 {
        available(self.free_bytes, self.cache_bytes)
    }
}

impl NodeState {
    /// Has it CPUs of its own?
    #[must_use]
    pub fn has_cpus(&self) -> bool {
        self.cpu_count > 0
    }

    /// Bytes to and from its memory in the interval, where known.
    #[must_use]
    pub fn traffic_bytes(&self) -> Option<u64> {
        Some(self.read_bytes.get()? + self.write_bytes.get()?)
    }
}

/// Metrics of the whole machine over the interval, in the project's words of the measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GlobalMetrics {
    /// Memory fills per us over all nodes (Carrefour's MAPTU).
    pub memory_accesses_per_us: Evidence<f64>,
    /// Share of user-mode fills, demand and prefetch, served by the requester's own node.
    pub local_access_ratio: Evidence<f64>,
    /// Mean latency of demand misses.
    pub latency_ns: Evidence<f64>,
    /// Standard deviation over mean of the nodes' traffic; see [`metrics::imbalance`].
    pub controller_imbalance: Evidence<f64>,
    /// Mean utilisation of the links, 0..=1.
    pub link_use: Evidence<f64>,
    /// Standard deviation over mean of the links' utilisation.
    pub link_imbalance: Evidence<f64>,
    /// Share of reads among memory accesses.
    pub read_share: Evidence<f64>,
    /// Last-level misses per 1000 instructions.
    pub l3_mpki: Evidence<f64>,
    /// User-mode instructions per us over all CPUs.
    pub instructions_per_us: Evidence<f64>,
    /// Floating-point operations of user mode per us over all CPUs.
    pub flops_per_us: Evidence<f64>,
    /// Instructions per cycle of busy CPUs.
    pub ipc: Evidence<f64>,
    /// Share of the CPU time used in which CPUs waited for memory.
    pub stall_share: Evidence<f64>,
    /// Share of the CPU time used that neither the watched processes nor hither used: where it is
    /// large, what was counted for the whole machine is not theirs.
    pub others_share: Evidence<f64>,
}

impl GlobalMetrics {
    /// Nothing known, for one reason: the start of a builder.
    #[must_use]
    pub fn unknown(why: &'static str) -> Self {
        let none = || Evidence::unknown(why);
        Self {
            memory_accesses_per_us: none(),
            local_access_ratio: none(),
            latency_ns: none(),
            controller_imbalance: none(),
            link_use: none(),
            link_imbalance: none(),
            read_share: none(),
            l3_mpki: none(),
            instructions_per_us: none(),
            flops_per_us: none(),
            ipc: none(),
            stall_share: none(),
            others_share: none(),
        }
    }
}

/// What a process executed in an interval, in user mode, over all its threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Instructions.
    pub instructions: u64,
    /// Floating-point operations: one on n lanes counts n, a multiplication with an addition 2.
    pub flops: u64,
    /// Bytes of the lines that memory sent for its loads and stores.
    pub read_bytes: u64,
    /// Bytes of the lines that went back to memory meanwhile, where that is counted.
    pub written_bytes: Option<u64>,
    /// Time in which its CPUs waited for memory, in ns, where that is counted.
    pub stall_ns: Option<u64>,
}

impl Work {
    /// Bytes between its CPUs and memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.read_bytes + self.written_bytes.unwrap_or(0)
    }

    /// Floating-point operations for each byte; `None` where no byte came from memory.
    #[must_use]
    pub fn intensity(&self) -> Option<f64> {
        let bytes = self.bytes();
        (bytes > 0).then(|| self.flops as f64 / bytes as f64)
    }
}

/// What a process asked of the last-level caches in an interval, in user mode, over all its threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheUse {
    /// Instructions that it executed meanwhile.
    pub instructions: u64,
    /// CPU time that it used meanwhile, where the tracker knows it better than the kernel.
    pub cpu_us: Option<u64>,
    /// Accesses that reached a last-level cache.
    pub references: u64,
    /// Those of them that memory served.
    pub misses: u64,
    /// Bytes of the lines that it goes over again, where enough was sampled of late.
    pub working_set_bytes: Option<u64>,
}

/// Where the threads of a process run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Threads {
    /// CPUs' worth of threads that waited for a CPU, over the interval.
    pub waiting: f64,
    /// Position of the last-level cache on whose CPUs most of them ran last.
    pub cache: Option<usize>,
    /// May they run on CPUs of each cache, by position?
    pub may: Vec<bool>,
}

/// A last-level cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheState {
    /// CPUs that share it.
    pub cpus: CpuSet,
    /// Its size.
    pub bytes: u64,
}

fn untold<T>() -> Evidence<T> {
    Evidence::unknown("not told")
}

/// A watched process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessState {
    /// Its number.
    pub pid: Pid,
    /// Which life of its memory: another after exec, and where the number is used again.
    pub space: SpaceId,
    /// Its parent's number.
    pub parent: Pid,
    /// Its effective user's number.
    pub user: u32,
    /// Path of its control group, as in `/proc/PID/cgroup`, where known.
    pub group: Option<String>,
    /// Nodes that it may have memory on (its cpuset's); `None` where these are all, or unknown.
    pub allowed_nodes: Option<Vec<NodeId>>,
    /// It asks to be looked after (docs/daemon.md).
    #[serde(default)]
    pub opted_in: bool,
    /// Its command name, for people.
    pub name: String,
    /// Base pages resident, where known.
    pub resident_pages: Evidence<u64>,
    /// CPU time it used in the interval over all threads, in us.
    pub cpu_us: Evidence<u64>,
    /// Page faults in the interval.
    #[serde(default = "untold")]
    pub faults: Evidence<u64>,
    /// What it executed in the interval, where that is asked for and counted.
    #[serde(default = "untold")]
    pub work: Evidence<Work>,
    /// What it asked of the caches, where that is asked for and counted.
    #[serde(default = "untold")]
    pub cache: Evidence<CacheUse>,
    /// Where its threads run, where that is asked for.
    #[serde(default = "untold")]
    pub threads: Evidence<Threads>,
    /// Base pages that it has made, by node position, where they are counted: of files those alone that it has
    /// written.
    #[serde(default = "untold")]
    pub placed: Evidence<Vec<u64>>,
}

impl ProcessState {
    /// One of which nothing else is known, for one reason.
    #[must_use]
    pub fn unknown(pid: Pid, space: SpaceId, why: &'static str) -> Self {
        Self {
            pid,
            space,
            parent: Pid(0),
            user: 0,
            group: None,
            allowed_nodes: None,
            opted_in: false,
            name: String::new(),
            resident_pages: Evidence::unknown(why),
            cpu_us: Evidence::unknown(why),
            faults: Evidence::unknown(why),
            work: Evidence::unknown(why),
            cache: Evidence::unknown(why),
            threads: Evidence::unknown(why),
            placed: Evidence::unknown(why),
        }
    }

    /// The same for tests, as a child of init.
    #[cfg(test)]
    pub fn of_test(pid: Pid, space: SpaceId) -> Self {
        Self {
            parent: Pid(1),
            ..Self::unknown(pid, space, "test")
        }
    }
}

/// A page that was listed, not sampled: where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PresentPage {
    /// Whose page.
    pub pid: Pid,
    /// Virtual page number: address >> 12.
    pub page: u64,
    /// Node whose memory holds it.
    pub home: NodeId,
    /// Is it part of a 2 MiB huge page? Such a page moves whole.
    pub huge: bool,
    /// Accesses in the interval, where the tracker counts those of every page; else 0.
    #[serde(default)]
    pub accesses: u32,
}

/// The belief about a machine over one interval. Immutable once built.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// End of the interval, on the caller's clock, in us.
    pub now_us: u64,
    /// Length of the interval in us.
    pub interval_us: u64,
    /// Nodes; their order defines every node position.
    pub nodes: Vec<NodeState>,
    /// ACPI SLIT distances by node position; empty where unknown.
    pub distances: Vec<Vec<u32>>,
    /// Last-level caches, those that CPUs share and those that they have alone; empty where unknown.
    #[serde(default)]
    pub caches: Vec<CacheState>,
    /// Metrics of the whole machine.
    pub metrics: GlobalMetrics,
    /// Pages seen in the interval; each (process, page) at most once, in any order.
    pub pages: Vec<PageStats>,
    /// Pages of which it is told where they are, whether they were seen or not; in any order. Apart from `pages`, as
    /// they may be many, and only who moves pages needs them.
    #[serde(default)]
    pub present: Vec<PresentPage>,
    /// Samples behind `pages`, or why there are none. `Measured` or `Estimated` with 0 means that
    /// the tracker ran and saw nothing.
    pub sample_count: Evidence<u64>,
    /// Memory fills that one sample stands for; 0 where unknown.
    pub sample_period: u32,
    /// Samples lost in the interval because a buffer was full.
    pub samples_lost: u64,
    /// Samples are of the use of pages, in proportion to how much they were used, as far as access bits tell: nobody
    /// knows by whom, so that all are told at position 0, nor how many accesses a sample stands for.
    #[serde(default)]
    pub by_use: bool,
    /// Watched processes that are alive.
    pub processes: Vec<ProcessState>,
    /// CPU time that hither itself used in the interval, its movers included, in us.
    pub own_cpu_us: Evidence<u64>,
}

impl ProcessState {
    /// May it have memory on this node, as far as is known?
    #[must_use]
    pub fn may_use(&self, node: NodeId) -> bool {
        self.allowed_nodes
            .as_ref()
            .is_none_or(|allowed| allowed.contains(&node))
    }
}

impl Snapshot {
    /// Where pages are: those that were seen, in their order, then those that were listed. A page may come
    /// twice; the last is the newest, as who lists a page does so after it was seen.
    pub fn places(&self) -> impl Iterator<Item = PresentPage> + '_ {
        let seen = self.pages.iter().map(|page| PresentPage {
            pid: page.pid,
            page: page.page,
            home: page.home,
            huge: page.huge,
            accesses: 0,
        });
        seen.chain(self.present.iter().copied())
    }

    /// Nodes about which nothing else is known, for one reason: the start of a builder.
    #[must_use]
    pub fn of_nodes(nodes: Vec<NodeState>, why: &'static str) -> Self {
        Self {
            now_us: 0,
            interval_us: 0,
            nodes,
            distances: Vec::new(),
            caches: Vec::new(),
            metrics: GlobalMetrics::unknown(why),
            pages: Vec::new(),
            present: Vec::new(),
            sample_count: Evidence::unknown(why),
            sample_period: 0,
            samples_lost: 0,
            by_use: false,
            processes: Vec::new(),
            own_cpu_us: Evidence::unknown(why),
        }
    }

    /// Base pages that all processes have in memory, as far as that is known.
    #[must_use]
    pub fn resident_pages(&self) -> u64 {
        let processes = self.processes.iter();
        let pages = processes.filter_map(|process| process.resident_pages.get());
        pages.sum()
    }

    /// A watched process.
    #[must_use]
    pub fn process(&self, pid: Pid) -> Option<&ProcessState> {
        self.processes.iter().find(|process| process.pid == pid)
    }

    /// Position of a node.
    #[must_use]
    pub fn node_position(&self, id: NodeId) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id)
    }

    /// CPUs over all nodes.
    #[must_use]
    pub fn cpu_count(&self) -> u32 {
        self.nodes.iter().map(|node| node.cpu_count).sum()
    }

    /// CPUs that the processes kept busy over the interval: at least one and at most all, and all
    /// where nobody tells.
    #[must_use]
    pub fn busy_cpus(&self) -> f64 {
        let all = f64::from(self.cpu_count().max(1));
        let used: Option<Vec<u64>> = self
            .processes
            .iter()
            .map(|process| process.cpu_us.get())
            .collect();
        match used {
            Some(used) if self.interval_us > 0 => {
                let busy = used.iter().sum::<u64>() as f64 / self.interval_us as f64;
                busy.clamp(1.0, all)
            }
            _ => all,
        }
    }

    /// Traffic of each node in bytes, by position; `None` where any node's is unknown.
    #[must_use]
    pub fn node_traffic(&self) -> Option<Vec<u64>> {
        self.nodes.iter().map(NodeState::traffic_bytes).collect()
    }

    /// Local-access ratio as the samples tell it; `None` without samples.
    #[must_use]
    pub fn sampled_local_access_ratio(&self) -> Option<f64> {
        let (mut local, mut all) = (0, 0);
        for page in &self.pages {
            all += page.total();
            if let Some(home) = self.node_position(page.served_by()) {
                local += page.accesses(home);
            }
        }
        metrics::local_access_ratio(local, all)
    }

    /// Controller imbalance as the samples tell it (write-backs not seen); `None` without any.
    #[must_use]
    pub fn sampled_imbalance(&self) -> Option<f64> {
        let mut per_node = vec![0.0; self.nodes.len()];
        for page in &self.pages {
            if let Some(home) = self.node_position(page.served_by()) {
                per_node[home] += page.total() as f64;
            }
        }
        metrics::imbalance(&per_node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_grow_past_the_inline_positions() {
        let mut counts = NodeCounts::new();
        counts.add(2, 5);
        counts.add(40, 7);
        counts.add(40, u32::MAX);
        assert_eq!(counts.get(2), 5);
        assert_eq!(counts.get(40), u32::MAX);
        assert_eq!(counts.get(41), 0);
        assert_eq!(counts.iter().collect::<Vec<_>>(), [(2, 5), (40, u32::MAX)]);
        assert_eq!(counts.total(), 5 + u64::from(u32::MAX));
    }

    #[test]
    fn evidence_says_what_it_rests_on() {
        let measured = Evidence::measured(3.0, "opium");
        assert_eq!(measured.get(), Some(3.0));
        assert_eq!(
            measured.clone().map(|v| v * 2.0).to_string(),
            "6 (measured by opium)"
        );
        let unknown: Evidence<f64> = Evidence::unknown("no PMU");
        assert_eq!(unknown.get(), None);
        assert_eq!(unknown.basis(), "no PMU");
    }
}
