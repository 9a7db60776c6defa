//! A machine description: what the lab emulates, what a simulator times, what policies may know.
//!
//! The text form is a TOML file (`machines/*.toml`, format `hither.machine/1`, documented in
//! `docs/machine-files.md`). [`parse`](parse::parse) reads and validates it and names line and
//! field of every fault; [`scale`](scale::scale) shrinks it to fewer CPUs; and
//! [`to_toml`](write::to_toml) writes it down again.
//!
//! Units: latencies in ns, bandwidths in GB/s (= bytes per ns), sizes as the field name says.

mod costs;
pub mod parse;
pub mod scale;
pub mod write;

pub use costs::{EventCosts, Price};

use crate::ids::{CpuId, DomainId, NodeId};
use crate::set::CpuSet;

/// A whole machine. Built only by [`parse::parse`] and [`scale::scale`], hence always valid.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Short name, also the file's stem: `[a-z0-9-]+`.
    pub name: String,
    /// One line for a person.
    pub description: String,
    /// How this was scaled from the file, for printing; empty where it was not.
    pub scaling: String,
    /// Core parameters, alike on all CPUs.
    pub cpu: Cpu,
    /// Prices of events, beyond the instructions the kernel executes for them.
    pub costs: EventCosts,
    /// Bytes per cache line: a power of two, 32 to 256.
    pub line_bytes: u32,
    /// The cache private to each CPU (its largest private level).
    pub private_cache: Cache,
    /// What levels of caches deliver, the nearest first; empty where nobody measured it. For
    /// rooflines: the emulator does not time by it.
    pub cache_bandwidths: Vec<CacheBandwidth>,
    /// Last-level caches; every CPU is in exactly one.
    pub domains: Vec<Domain>,
    /// Memory nodes, ascending by id; ids may be sparse.
    pub nodes: Vec<Node>,
    /// Directed links between nodes.
    pub links: Vec<Link>,
    /// `routes[from][to]` by node *position*: alternatives with shares that sum to 1. A route
    /// from a node to itself is one alternative with no link.
    pub routes: Vec<Vec<Vec<Route>>>,
    /// ACPI SLIT distances by node position; 10 on the diagonal, 11 to 254 elsewhere.
    pub distances: Vec<Vec<u32>>,
    /// Translation buffer of each CPU.
    pub tlb: Tlb,
    /// Costs of cache-to-cache traffic.
    pub coherence: Coherence,
}

/// Core parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Cpu {
    /// Clock in GHz.
    pub ghz: f64,
    /// Cycles per plain instruction when everything hits the private cache.
    pub cpi: f64,
    /// Cycles of one integer or floating-point division or square root.
    pub divide_cycles: f64,
    /// Cycles of one `pause`, 1 to 1000; 20 and above for the emulator, where loops that spin on
    /// it run at the host's speed and a shorter one would hardly let guest time pass.
    pub pause_cycles: f64,
    /// Independent random misses that overlap (effective memory-level parallelism).
    pub mlp: f64,
    /// Store misses that overlap, in streams too, where a core performs its stores in order.
    /// `None`: as loads.
    pub store_mlp: Option<f64>,
    /// Instructions among which load misses overlap, `mlp` of them at most, on a core that has no
    /// prefetcher: those that its reorder buffer holds. `None`: misses overlap wherever they are,
    /// and streams are prefetched.
    pub window: Option<f64>,
    /// Bytes per ns that one core's streams (demand plus prefetch fills) draw from its idle local
    /// memory. Little's law fixes the bytes in flight: at latency L a core streams at
    /// `stream_gbs * idle_ns(local) / L`.
    pub stream_gbs: f64,
    /// Share of computing time that hides stream time: 0 adds the two, 1 takes the larger.
    pub stream_overlap: f64,
}

/// Translation buffer: misses are priced, 4 KB and 2 MB pages have entries of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct Tlb {
    /// Entries for 4 KB pages: a power of two, 16 to 8192.
    pub small_entries: u32,
    /// Entries for 2 MB pages: a power of two, 4 to 8192.
    pub huge_entries: u32,
    /// A miss: the page walk, mostly out of caches.
    pub miss_ns: f64,
}

/// A cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Cache {
    /// Capacity in KiB.
    pub size_kb: u64,
    /// Associativity. `size / line / ways` is rounded down to a power of two of sets.
    pub ways: u32,
    /// Load-to-use latency of a hit.
    pub latency_ns: f64,
}

/// What a level of caches delivers to those who read it.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheBandwidth {
    /// 1 is next to the core.
    pub level: u32,
    /// Capacity of one in KiB.
    pub size_kb: u64,
    /// Read by one CPU alone.
    pub one_gbs: f64,
    /// Read by all CPUs of a node together; `None` where they have too little of it each to tell it
    /// from the level below.
    pub all_gbs: Option<f64>,
}

/// CPUs that share a last-level cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Domain {
    /// Position in [`Machine::domains`].
    pub id: DomainId,
    /// Its CPUs, all of one node.
    pub cpus: CpuSet,
    /// The shared cache.
    pub cache: Cache,
}

/// Kind of memory: information for people; no policy branches on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Ordinary DRAM.
    Dram,
    /// High-bandwidth memory.
    Hbm,
    /// Memory behind CXL.
    Cxl,
    /// Device memory of a GPU.
    Gpu,
    /// On-chip SRAM.
    Sram,
}

impl MemoryKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Dram, Self::Hbm, Self::Cxl, Self::Gpu, Self::Sram];

    /// Its word in machine files and output.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Dram => "dram",
            Self::Hbm => "hbm",
            Self::Cxl => "cxl",
            Self::Gpu => "gpu",
            Self::Sram => "sram",
        }
    }
}

/// A memory node with its controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The kernel's number for it.
    pub id: NodeId,
    /// CPUs local to it; may be empty.
    pub cpus: CpuSet,
    /// Memory in MiB, at least 64.
    pub memory_mb: u64,
    /// Performance rank: 0 is fastest.
    pub tier: u32,
    /// Kind of memory.
    pub kind: MemoryKind,
    /// Idle latency of a dependent load from a CPU of this node (for a node without CPUs: at
    /// its own port, routes add to it).
    pub idle_ns: f64,
    /// How latency grows with load.
    pub curve: Curve,
    /// Capacity by read share.
    pub capacity: Capacity,
}

/// Loaded latency `L = idle + a*rho + b*rho^n / (1 - rho)`, in ns, `rho` capped at 0.985.
/// (Fits measured bandwidth-latency curves to 0.5-2.6 %: Mess data. M/M/1 is `a=0, n=1`.)
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Curve {
    /// Linear part in ns.
    pub a_ns: f64,
    /// Queueing part in ns.
    pub b_ns: f64,
    /// Power of the queueing part, 1 to 8.
    pub n: f64,
}

/// Capacity in GB/s as a function of the read share, linear between points, flat outside.
#[derive(Clone, Debug, PartialEq)]
pub struct Capacity {
    /// `(read share 0..=1, GB/s)`, ascending by share, at least one point.
    pub points: Vec<(f64, f64)>,
}

/// A directed link.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Position of the sending node in [`Machine::nodes`].
    pub from: usize,
    /// Position of the receiving node.
    pub to: usize,
    /// Capacity in this direction, for lines and their headers.
    pub gbs: f64,
    /// Idle latency that one crossing (request out, line back) adds.
    pub hop_ns: f64,
    /// Queueing on the link, same formula as a controller's.
    pub curve: Curve,
    /// Bytes on the wire per byte of line (headers, requests, probes); at least 1.
    pub overhead: f64,
}

/// One alternative way between two nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Share of the traffic that takes it.
    pub share: f64,
    /// Positions in [`Machine::links`], in the direction **from the memory node to the
    /// requester** (the way the line travels).
    pub links: Vec<usize>,
}

/// Cache-to-cache costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Coherence {
    /// A line modified by another CPU of the same domain.
    pub same_domain_ns: f64,
    /// A line modified in another domain of the same node; between nodes the route's hops add.
    pub cross_domain_ns: f64,
    /// A store to a line that others hold unmodified.
    pub invalidate_ns: f64,
    /// Lines that a node's coherence unit handles, GB/s: those that its CPUs move from and to other
    /// nodes and those that other nodes' CPUs move from and to its memory, together. Without it,
    /// links alone limit what passes.
    pub unit_gbs: Option<f64>,
    /// Lines that are loaded from another node come shared, so that the first store to one asks its
    /// home and moves no data: what that takes beyond the route's hops. Without it they come exclusive
    /// where nobody else holds them, and the store asks nobody.
    pub remote_ownership_ns: Option<f64>,
}

impl Machine {
    /// Position of a node in [`Machine::nodes`].
    #[must_use]
    pub fn node_position(&self, id: NodeId) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id)
    }

    /// Position of the node whose CPU this is.
    #[must_use]
    pub fn node_of_cpu(&self, cpu: CpuId) -> Option<usize> {
        self.nodes.iter().position(|node| node.cpus.contains(cpu))
    }

    /// The cache domain of a CPU.
    #[must_use]
    pub fn domain_of_cpu(&self, cpu: CpuId) -> Option<&Domain> {
        self.domains.iter().find(|domain| domain.cpus.contains(cpu))
    }

    /// All CPUs, ascending. They are numbered 0..n without holes (checked at parse).
    #[must_use]
    pub fn cpu_count(&self) -> usize {
        self.nodes.iter().map(|node| node.cpus.len()).sum()
    }

    /// Idle latency from a CPU of node position `initiator` to memory of node position `target`:
    /// the target's own latency plus the mean of its routes' hops.
    #[must_use]
    pub fn idle_latency_ns(&self, initiator: usize, target: usize) -> f64 {
        let hops: f64 = self.routes[target][initiator]
            .iter()
            .map(|route| {
                route.share
                    * route
                        .links
                        .iter()
                        .map(|&link| self.links[link].hop_ns)
                        .sum::<f64>()
            })
            .sum();
        self.nodes[target].idle_ns + hops
    }
}
