//! What a machine has, as far as resource sets can name it: plain data, filled in by `hither-linux`
//! from a real machine.

use super::ResourceSet;
use crate::ids::NodeId;
use crate::set::{CpuSet, NodeSet};

/// A machine, and what of it a process may use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resources {
    /// Nodes, ascending by the kernel's number.
    pub nodes: Vec<Node>,
    /// CPUs of each package by the kernel's number, ascending; empty where firmware numbers none.
    pub packages: Vec<(u32, CpuSet)>,
    /// CPUs of each cache domain, ascending by their lowest CPU.
    pub domains: Vec<CpuSet>,
    /// CPUs of each core, ascending by their lowest CPU; empty where the kernel does not tell.
    pub cores: Vec<CpuSet>,
    /// CPUs that exist and do not run: no set holds them.
    pub offline: CpuSet,
    /// `distances[from][to]` by position in `nodes`; 10 is local.
    pub distances: Vec<Vec<u32>>,
    /// Devices by name, ascending.
    pub devices: Vec<Device>,
    /// What the process may use; may name more than there is.
    pub allowed: ResourceSet,
}

/// A memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number.
    pub id: NodeId,
    /// CPUs that run and are local to it; may be empty.
    pub cpus: CpuSet,
    /// Memory in bytes, 0 without any.
    pub total_bytes: u64,
    /// Unused memory in bytes.
    pub free_bytes: u64,
    /// Memory that it can give ([`available`](crate::snapshot::available)) in bytes.
    pub available_bytes: u64,
    /// Rank of its tier, 0 is fastest; `None` where the kernel has no tiers.
    pub tier: Option<u32>,
    /// Read bandwidth in MB/s from its nearest CPUs, where it is known.
    pub read_bandwidth_mbs: Option<u64>,
}

/// A device with a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name: `eth0`, `nvme0n1`, `gpu0`, `0000:3b:00.0`.
    pub name: String,
    /// The node it is attached to; `None` where firmware does not tell.
    pub node: Option<NodeId>,
}

/// The parts that a machine consists of, from the widest to the narrowest. On ordinary machines
/// each lies within one of the level above; where sockets are split into several nodes, a domain
/// may span them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A socket, by the kernel's number.
    Package,
    /// A memory node, by the kernel's number.
    Node,
    /// CPUs that share a last-level cache, counted from 0 by lowest CPU.
    Domain,
    /// CPUs that share a core, counted from 0 by lowest CPU.
    Core,
}

impl Level {
    /// Every level, widest first.
    pub const ALL: [Self; 4] = [Self::Package, Self::Node, Self::Domain, Self::Core];

    /// Its word in expressions.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Package => "package",
            Self::Node => "node",
            Self::Domain => "domain",
            Self::Core => "core",
        }
    }
}

impl Node {
    /// Has it memory?
    #[must_use]
    pub fn has_memory(&self) -> bool {
        self.total_bytes > 0
    }

    /// Its CPUs and its memory, as far as it has them.
    #[must_use]
    pub fn set(&self) -> ResourceSet {
        ResourceSet {
            cpus: self.cpus.clone(),
            nodes: self.has_memory().then_some(self.id).into_iter().collect(),
        }
    }
}

impl Resources {
    /// All CPUs that run and all nodes with memory.
    #[must_use]
    pub fn machine(&self) -> ResourceSet {
        // A CPU may be in no node, but has a cache or a package.
        let others = self
            .domains
            .iter()
            .chain(self.packages.iter().map(|(_, cpus)| cpus));
        let others = others.cloned().map(ResourceSet::of_cpus);
        union(self.nodes.iter().map(Node::set).chain(others))
    }

    /// What of the machine the process may use.
    #[must_use]
    pub fn usable(&self) -> ResourceSet {
        self.machine().intersection(&self.allowed)
    }

    /// The parts of a level with their numbers, ascending; no two of them share anything. Packages
    /// and nodes have CPUs and memory, domains and cores CPUs alone: were the node's memory theirs
    /// as well, `node:0 - core:0` would take it away.
    #[must_use]
    pub fn parts(&self, level: Level) -> Vec<(u32, ResourceSet)> {
        let counted = |parts: &[CpuSet]| {
            let sets = parts.iter().cloned().map(ResourceSet::of_cpus);
            (0..).zip(sets).collect()
        };
        match level {
            Level::Package => {
                let packages = self.packages.iter();
                packages
                    .map(|(number, cpus)| (*number, self.package(cpus)))
                    .collect()
            }
            Level::Node => {
                let nodes = self.nodes.iter();
                nodes.map(|node| (node.id.0, node.set())).collect()
            }
            Level::Domain => counted(&self.domains),
            Level::Core => counted(&self.cores),
        }
    }

    /// CPUs and the memory of nodes whose CPUs are all among them. Memory without CPUs is in no
    /// package, nor is that of a node which several packages share.
    fn package(&self, cpus: &CpuSet) -> ResourceSet {
        let is_within =
            |node: &&Node| node.has_memory() && !node.cpus.is_empty() && node.cpus.is_subset(cpus);
        ResourceSet {
            cpus: cpus.clone(),
            nodes: self.nodes.iter().filter(is_within).map(|n| n.id).collect(),
        }
    }

    /// The nearest CPUs and the nearest memory, by distance, of the node at a position. Of several
    /// at the same distance all are taken.
    #[must_use]
    pub fn near(&self, position: usize) -> ResourceSet {
        let nearest = |is_candidate: &dyn Fn(&Node) -> bool, distance: &dyn Fn(usize) -> u32| {
            let candidates: Vec<usize> = (0..self.nodes.len())
                .filter(|&at| is_candidate(&self.nodes[at]))
                .collect();
            let least = candidates.iter().map(|&at| distance(at)).min();
            let chosen = candidates
                .into_iter()
                .filter(|&at| Some(distance(at)) == least);
            union(chosen.map(|at| self.nodes[at].set()))
        };
        let cpus = nearest(&|node| !node.cpus.is_empty(), &|at| {
            self.distances[at][position]
        });
        let memory = nearest(&Node::has_memory, &|at| self.distances[position][at]);
        ResourceSet {
            cpus: cpus.cpus,
            nodes: memory.nodes,
        }
    }

    /// A node by its number.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Position in [`Resources::nodes`].
    #[must_use]
    pub fn position(&self, id: NodeId) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id)
    }

    /// Bytes of memory of these nodes, and how many of them are free.
    #[must_use]
    pub fn memory_bytes(&self, nodes: &NodeSet) -> (u64, u64) {
        let chosen = self.nodes.iter().filter(|node| nodes.contains(node.id));
        chosen.fold((0, 0), |(total, free), node| {
            (
                node.total_bytes.saturating_add(total),
                node.free_bytes.saturating_add(free),
            )
        })
    }
}

pub(super) fn union(sets: impl Iterator<Item = ResourceSet>) -> ResourceSet {
    sets.fold(ResourceSet::new(), |all, set| all.union(&set))
}
