//! What the sampler hands to the model: plain readings, nothing derived.

use hither_core::snapshot::Evidence;
use hither_linux::counters::lru_gen::Ages;
use hither_linux::counters::resctrl::Bandwidth;
use hither_linux::counters::vmstat::Events;
use hither_linux::opium::{LinkTraffic, NodeTraffic};
use hither_linux::proc::pressure::Pressure;
use std::collections::BTreeMap;

/// Counters of the machine since boot. Lists over nodes go by position in the topology.
#[derive(Clone, Debug)]
pub struct MachineReading {
    /// Of the whole machine.
    pub events: Events,
    /// Of each node.
    pub node_events: Vec<Events>,
    /// Free memory of each node in KiB.
    pub free_kb: Vec<Option<u64>>,
    /// Time lost for want of memory.
    pub pressure: Evidence<Pressure>,
    /// Bytes by last-level cache.
    pub bandwidth: Evidence<Bandwidth>,
    /// How lately memory of each node was used; `None` where nobody asked.
    pub ages: Option<Evidence<Vec<Ages>>>,
    /// What the lab's device counts.
    pub opium: Evidence<OpiumReading>,
}

/// Counters of the lab's device since boot.
#[derive(Clone, Debug, Default)]
pub struct OpiumReading {
    /// Modelled time in ns.
    pub time_ns: u64,
    /// By node position: traffic of its memory.
    pub traffic: Vec<NodeTraffic>,
    /// By node position: accesses of its CPUs.
    pub requests: Vec<Requests>,
    /// By number of the directed link.
    pub links: Vec<LinkTraffic>,
}

/// Accesses of the CPUs of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Memory fills in user mode, demand and prefetch.
    pub fills: u64,
    /// Those of them that the node's own memory served.
    pub local_fills: u64,
    /// Demand misses.
    pub misses: u64,
    /// Sum of their latencies.
    pub latency_ns: u64,
}

impl Requests {
    /// What happened since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            fills: self.fills.wrapping_sub(before.fills),
            local_fills: self.local_fills.wrapping_sub(before.local_fills),
            misses: self.misses.wrapping_sub(before.misses),
            latency_ns: self.latency_ns.wrapping_sub(before.latency_ns),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            fills: self.fills + other.fills,
            local_fills: self.local_fills + other.local_fills,
            misses: self.misses + other.misses,
            latency_ns: self.latency_ns + other.latency_ns,
        }
    }
}

/// Sampled accesses of one process in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accesses {
    /// Samples.
    pub count: u64,
    /// Samples served by the requesting CPU's own node.
    pub local_count: u64,
    /// Samples that tell a latency.
    pub timed_count: u64,
    /// Sum of those latencies.
    pub latency_ns: u64,
}

/// What a tracker sampled in an interval.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// By process.
    pub processes: BTreeMap<i32, Accesses>,
    /// Of the process that is looked at closely, by virtual page number, ascending.
    pub pages: Vec<(u64, Accesses)>,
}

/// One mapping of the process that is looked at closely.
#[derive(Clone, Debug, PartialEq)]
pub struct MappingReading {
    /// First address.
    pub start: u64,
    /// End address (exclusive); the start where the kernel no longer knew it.
    pub end: u64,
    /// File, or the kernel's or the program's name; may be empty.
    pub name: String,
    /// Memory policy as the kernel prints it.
    pub policy: String,
    /// Base pages in memory by node position.
    pub pages: Vec<u64>,
}
