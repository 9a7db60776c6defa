//! What the kernel says the machine looks like: nodes, CPUs, caches, tiers, access classes.
//!
//! Facts only, from sysfs below a root folder, split by source: [`sysfs_node`], [`sysfs_cpu`],
//! [`sysfs_tier`], [`sysfs_huge`]; [`sysfs_core`], [`sysfs_device`] and [`sysfs_cache`] are read where
//! somebody asks (`resources`, [`hwloc`]). Nodes may be sparse, have no memory or no CPUs. Offline CPUs
//! are listed and belong to nothing. What a kernel does not offer is `None` or empty, with a
//! line in [`Topology::notes`]; what contradicts itself is an error.

pub mod hwloc;
pub mod sysfs_cache;
pub mod sysfs_core;
pub mod sysfs_cpu;
pub mod sysfs_device;
pub mod sysfs_huge;
pub mod sysfs_node;
pub mod sysfs_tier;

use crate::error::{Error, Result};
use crate::parse::NodeMemory;
use crate::root::Root;
use hither_core::ids::{CpuId, NodeId};
use hither_core::machine::Machine;
use hither_core::set::{CpuSet, NodeSet};
use hither_core::snapshot::Rated;

/// The machine as its kernel describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Online nodes, ascending by the kernel's number.
    pub nodes: Vec<NodeInfo>,
    /// CPUs that run.
    pub online: CpuSet,
    /// CPUs that exist and do not run.
    pub offline: CpuSet,
    /// Last-level caches, ascending by their lowest CPU; every online CPU is in exactly one.
    pub domains: Vec<CacheDomain>,
    /// Sockets, ascending by number.
    pub packages: Vec<Package>,
    /// `distances[from][to]` by position in `nodes` (ACPI SLIT: 10 is local).
    pub distances: Vec<Vec<u32>>,
    /// Is it known how much memory nodes have, and how many huge pages are reserved? Files of hwloc may
    /// not tell: nodes have none then.
    pub is_told: KnownOfNodes,
    /// Transparent huge pages: the chosen mode, `None` where the kernel has none.
    pub transparent_huge_pages: Option<String>,
    /// Size of a transparent huge page in KiB.
    pub transparent_huge_kb: Option<u64>,
    /// Are the weighted-interleave weights the kernel's own (6.16 and later)?
    pub weights_automatic: Option<bool>,
    /// `kernel.numa_balancing`: 0 off, 1 locality, 2 tiering, 3 both.
    pub numa_balancing: Option<u64>,
    /// Does reclaim demote to slower tiers?
    pub demotion: Option<bool>,
    /// What could not be told, one sentence each.
    pub notes: Vec<String>,
}

/// A memory node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeInfo {
    /// The kernel's number.
    pub id: NodeId,
    /// Online CPUs that are local to it; may be empty.
    pub cpus: CpuSet,
    /// Its memory; `total_kb` is 0 on a node without any.
    pub memory: NodeMemory,
    /// Its memory tier, where the kernel has tiers and the node has memory.
    pub tier: Option<Tier>,
    /// HMAT values as seen from the best initiators, class 0 (any initiator) and 1 (CPUs only).
    pub access: Vec<AccessClass>,
    /// Reserved huge pages, ascending by size.
    pub huge_pages: Vec<HugePages>,
    /// Weighted-interleave weight.
    pub weight: Option<u64>,
}

impl NodeInfo {
    /// Latency of its idle memory for the CPUs nearest to it, in ns, as firmware rates it (HMAT).
    #[must_use]
    pub fn idle_ns(&self) -> Option<f64> {
        let mut rated = self.access.iter().filter_map(|class| class.read_latency_ns);
        rated.find(|&ns| ns > 0).map(|ns| ns as f64)
    }

    /// What else firmware and the kernel tell of its memory.
    #[must_use]
    pub fn rated(&self) -> Rated {
        let first = |figure: fn(&AccessClass) -> Option<u64>| {
            let mut told = self.access.iter().filter_map(figure);
            told.find(|&value| value > 0).map(|value| value as f64)
        };
        Rated {
            tier: self.tier.map(|tier| tier.rank),
            write_ns: first(|class| class.write_latency_ns),
            read_gbs: first(|class| class.read_bandwidth_mbs).map(|mbs| mbs / 1000.0),
            ..Rated::default()
        }
    }
}

/// What of a machine's nodes is known; [`Topology::is_told`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownOfNodes {
    /// How much memory nodes have.
    pub memory: bool,
    /// How many huge pages are reserved.
    pub huge_pages: bool,
}

/// A memory tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Rank among the tiers of this machine: 0 is fastest.
    pub rank: u32,
    /// The kernel's number (`memory_tierN`); lower is faster.
    pub number: u32,
}

/// Performance of a node as seen from its best initiators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessClass {
    /// N of `accessN`.
    pub class: u32,
    /// The initiator nodes that see these values.
    pub initiators: NodeSet,
    /// Read latency in ns.
    pub read_latency_ns: Option<u64>,
    /// Write latency in ns.
    pub write_latency_ns: Option<u64>,
    /// Read bandwidth in MB/s as firmware rates it.
    pub read_bandwidth_mbs: Option<u64>,
    /// Write bandwidth in MB/s as firmware rates it.
    pub write_bandwidth_mbs: Option<u64>,
}

/// Reserved huge pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePages {
    /// Size of one in KiB.
    pub size_kb: u64,
    /// How many there are.
    pub total: u64,
    /// How many are unused.
    pub free: u64,
}

/// CPUs that share a last-level cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheDomain {
    /// Its online CPUs.
    pub cpus: CpuSet,
    /// Cache level, 0 where the kernel tells of no cache.
    pub level: u32,
    /// Size in KiB, where told.
    pub size_kb: Option<u64>,
    /// Line size in bytes, where told.
    pub line_bytes: Option<u64>,
}

/// A socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// `physical_package_id`; -1 where firmware names none.
    pub id: i64,
    /// Its online CPUs.
    pub cpus: CpuSet,
}

impl Topology {
    /// Reads the machine below `root`.
    pub fn read(root: &Root) -> Result<Self> {
        let mut found = Self::read_layout(root)?;
        found.domains = sysfs_cpu::read_domains(root, &found.online, &mut found.notes)?;
        found.packages = sysfs_cpu::read_packages(root, &found.online)?;
        let (nodes, notes) = (&mut found.nodes, &mut found.notes);
        sysfs_node::read_classes(root, nodes, notes)?;
        sysfs_tier::read(root, nodes, notes)?;
        sysfs_huge::read_reserved(root, nodes)?;
        found.weights_automatic = sysfs_node::read_weights(root, nodes)?;
        found.numa_balancing =
            root.parse_if_any("proc/sys/kernel/numa_balancing", crate::parse::number)?;
        found.demotion = read_demotion(root)?;
        Ok(found)
    }

    /// Reads what watching needs: CPUs, nodes with their CPUs and memory, distances and the mode of
    /// transparent huge pages. Nothing is known of caches, packages, tiers, classes, reserved pages,
    /// weights and switches then. Who starts beside a program is paid for by it: on four nodes with
    /// four CPUs this takes 2.9 million instructions less in the lab, as each cold file costs 27,000.
    pub fn read_layout(root: &Root) -> Result<Self> {
        let mut notes = Vec::new();
        let (online, offline) = sysfs_cpu::read(root)?;
        let found = sysfs_node::read(root, &online, &mut notes)?;
        let transparent = sysfs_huge::read_transparent(root)?;
        let mut topology = Self {
            nodes: found.nodes,
            online,
            offline,
            domains: Vec::new(),
            packages: Vec::new(),
            distances: found.distances,
            transparent_huge_pages: transparent.mode,
            transparent_huge_kb: transparent.size_kb,
            weights_automatic: None,
            numa_balancing: None,
            demotion: None,
            is_told: KnownOfNodes {
                memory: true,
                huge_pages: true,
            },
            notes,
        };
        topology.check_membership(root)?;
        Ok(topology)
    }

    /// The node that a CPU is local to.
    #[must_use]
    pub fn node_of_cpu(&self, cpu: CpuId) -> Option<NodeId> {
        self.nodes
            .iter()
            .find(|node| node.cpus.contains(cpu))
            .map(|node| node.id)
    }

    /// Takes the sizes of last-level caches from a machine file: an emulated processor tells of no size but its own.
    pub fn take_cache_sizes(&mut self, machine: &Machine) {
        for domain in &mut self.domains {
            let first = domain.cpus.first();
            let told = first.and_then(|cpu| machine.domain_of_cpu(cpu));
            domain.size_kb = told.map_or(domain.size_kb, |told| Some(told.cache.size_kb));
        }
    }

    /// Position of a node in [`Topology::nodes`].
    #[must_use]
    pub fn position(&self, id: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok()
    }

    /// Nodes that have memory.
    #[must_use]
    pub fn memory_nodes(&self) -> NodeSet {
        self.nodes
            .iter()
            .filter(|node| node.memory.total_kb > 0)
            .map(|node| node.id)
            .collect()
    }

    /// Every online CPU is local to one node at most; to none where the kernel does not tell, as of a
    /// CPU of a node that is offline.
    fn check_membership(&mut self, root: &Root) -> Result<()> {
        let mut homeless = CpuSet::new();
        for cpu in self.online.iter() {
            let homes: Vec<NodeId> = self
                .nodes
                .iter()
                .filter(|n| n.cpus.contains(cpu))
                .map(|n| n.id)
                .collect();
            match homes[..] {
                [_] => {}
                [] => {
                    homeless.insert(cpu);
                }
                [first, second, ..] => {
                    return Err(Error::new(
                        root.path(&format!("sys/devices/system/node/{second}/cpulist")),
                        format!("{cpu} is in {first} already"),
                        root.tree_remedy(),
                    ));
                }
            }
        }
        if !homeless.is_empty() {
            self.notes.push(format!(
                "CPUs {homeless} are online and in no node's cpulist: no memory is known to be near them"
            ));
        }
        Ok(())
    }
}

/// `/sys/kernel/mm/numa/demotion_enabled`.
fn read_demotion(root: &Root) -> Result<Option<bool>> {
    root.parse_if_any("sys/kernel/mm/numa/demotion_enabled", parse_switch)
}

/// A switch, as different kernels print it.
///
/// ```text
/// true
/// ```
pub fn parse_switch(text: &str) -> crate::parse::Parsed<bool> {
    match text.trim() {
        "true" | "1" | "Y" => Ok(true),
        "false" | "0" | "N" => Ok(false),
        other => Err(crate::error::Fault::new(
            1,
            format!("`{}` is neither true nor false", crate::parse::clip(other)),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_layout_is_a_part_of_the_whole() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let root = Root::new(entry.unwrap().path());
            let whole = Topology::read(&root).unwrap();
            let layout = Topology::read_layout(&root).unwrap();
            assert_eq!(layout.online, whole.online);
            assert_eq!(layout.offline, whole.offline);
            assert_eq!(layout.distances, whole.distances);
            assert_eq!(layout.transparent_huge_pages, whole.transparent_huge_pages);
            let known = |node: &NodeInfo| (node.id, node.cpus.clone(), node.memory);
            let of = |topology: &Topology| topology.nodes.iter().map(known).collect::<Vec<_>>();
            assert_eq!(of(&layout), of(&whole));
            count += 1;
        }
        assert!(count >= 6, "{count} machines");
    }
}
