//! What was measured.

use super::flops::{Instructions, Precision};
use super::team::ProbeWork;
use hither_core::ids::{CpuId, NodeId};

/// The median of some rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeSample {
    /// In the unit of the field it is in.
    pub median: f64,
    /// Largest less smallest, as a share of the median.
    pub spread: f64,
}

impl ProbeSample {
    /// # Panics
    /// Where there is no figure.
    #[must_use]
    pub fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let count = figures.len();
        let median = f64::midpoint(figures[(count - 1) / 2], figures[count / 2]);
        let width = figures[count - 1] - figures[0];
        Self {
            median,
            spread: if median > 0.0 { width / median } else { 0.0 },
        }
    }
}

/// Bandwidths of one kind of work, in GB/s: bytes read, written, or read and written once each.
#[derive(Clone, Debug)]
pub struct Bandwidth {
    /// What the threads do.
    pub work: ProbeWork,
    /// By one thread: `one[cpu_node][memory_node]`, by position; `None` where threads were given no
    /// time to measure it, see [`Report::left_out`].
    pub one: Vec<Vec<Option<ProbeSample>>>,
    /// By a thread on each CPU of the node.
    pub all: Vec<Vec<Option<ProbeSample>>>,
}

/// What a level of caches delivers to those who read it, in GB/s; by node with CPUs. `None` where it
/// cannot be told from the level below ([`super::cached`]).
#[derive(Clone, Debug)]
pub struct Cached {
    /// 1 is next to the core.
    pub level: u32,
    /// Size of one.
    pub bytes: u64,
    /// By the first CPU alone.
    pub one: Vec<Option<ProbeSample>>,
    /// By a thread on each CPU of the node.
    pub all: Vec<Option<ProbeSample>>,
}

/// Peak floating point of one kernel, in GFLOP/s.
#[derive(Clone, Debug)]
pub struct Flops {
    /// The instructions that multiply and add.
    pub instructions: Instructions,
    /// Of their numbers.
    pub precision: Precision,
    /// By one thread: on the first CPU of each node with CPUs. `None` as of [`Bandwidth`].
    pub one: Vec<Option<ProbeSample>>,
    /// By a thread on each CPU of the node.
    pub node: Vec<Option<ProbeSample>>,
    /// By a thread on each CPU of all nodes.
    pub all: Option<ProbeSample>,
}

/// Two cores that hand a line to and fro.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// The one and the other.
    pub cpus: [CpuId; 2],
    /// Do they share a last-level cache?
    pub shares_cache: bool,
    /// One way, in ns.
    pub ns: ProbeSample,
}

/// A point of the curve of latency under load.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// What the other CPUs of the node read meanwhile, in GB/s.
    pub gbs: ProbeSample,
    /// A dependent load, in ns.
    pub ns: ProbeSample,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Report {
    /// Nodes with CPUs that may be used, and those with memory: what positions stand for.
    pub cpu_nodes: Vec<NodeId>,
    /// See above.
    pub memory_nodes: Vec<NodeId>,
    /// Of a dependent load in ns: `latency[cpu_node][memory_node]`.
    pub latency: Vec<Vec<ProbeSample>>,
    /// One for each kind of work.
    pub bandwidth: Vec<Bandwidth>,
    /// Reading the nearest memory by 1, 2, 4, ... and all threads of each node with CPUs, in GB/s.
    pub scaling: Vec<Vec<(usize, ProbeSample)>>,
    /// The same memory under load, from the most load to the least; empty for a node of one CPU.
    pub loaded: Vec<Vec<Loaded>>,
    /// Levels of caches, the nearest first.
    pub caches: Vec<Cached>,
    /// Bytes of a working set on the first node, and a dependent load in ns.
    pub sets: Vec<(u64, ProbeSample)>,
    /// From the first CPU to one of each kind of other.
    pub pairs: Vec<Pair>,
    /// Double precision by each kind of instructions, the widest first; then single by the widest.
    pub flops: Vec<Flops>,
    /// What threads were given no time for, however often it was tried.
    pub left_out: Vec<String>,
    /// Whether all memory was in huge pages.
    pub huge: bool,
    /// Bytes behind the latencies.
    pub bytes: u64,
}

impl Report {
    /// The median spread of all figures: how noisy it was.
    #[must_use]
    pub fn noise(&self) -> f64 {
        let matrices = self
            .bandwidth
            .iter()
            .flat_map(|work| [&work.one, &work.all]);
        let cells = matrices.flatten().flatten().flatten();
        let cells = cells.chain(self.latency.iter().flatten());
        let scaling = self.scaling.iter().flatten().map(|(_, sample)| sample);
        let flops = self.flops.iter();
        let flops =
            flops.flat_map(|one| one.one.iter().chain(&one.node).chain([&one.all]).flatten());
        let caches = self.caches.iter();
        let caches = caches.flat_map(|level| level.one.iter().chain(&level.all).flatten());
        let all = cells.chain(scaling).chain(flops).chain(caches);
        ProbeSample::of(all.map(|sample| sample.spread).collect()).median
    }
}
