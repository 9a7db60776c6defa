//! Traffic of memory controllers and links, by node: counters outside the cores, in bytes.
//!
//! A source is read on one CPU for each package or die (`cpumask`); what it counts is of that package.
//! Where the package is one node, the traffic is the node's; where it is several (sub-NUMA clusters,
//! NPS2 and NPS4), it is told for them together, as no file says which controller is whose.

use crate::error::Result;
use crate::perf::catalogue::Catalogue;
use crate::perf::counter::{Counters, EventCount, Interval, Whose};
use crate::root::Root;
use crate::topology::Topology;
use hither_core::ids::{CpuId, NodeId};
use hither_core::perf::count::{Estimates, Rate};
use hither_core::perf::events::Role;
use hither_core::set::NodeSet;
use std::collections::BTreeMap;

/// What is counted.
const ROLES: [Role; 4] = [
    Role::ControllerReads,
    Role::ControllerWrites,
    Role::ControllerTraffic,
    Role::LinkTraffic,
];

/// Traffic of one or several nodes, in bytes a second; `None`: not told.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeTraffic {
    /// The nodes that it is of, together.
    pub nodes: NodeSet,
    /// Read from memory.
    pub reads: Option<Rate>,
    /// Written to memory.
    pub writes: Option<Rate>,
    /// Both: their sum, or counted as one.
    pub both: Option<Rate>,
    /// Data sent to other sockets.
    pub sent: Option<Rate>,
}

/// Open counters of controllers and links.
#[derive(Debug)]
pub struct Uncore {
    counters: Counters,
    nodes: BTreeMap<CpuId, NodeSet>,
}

impl Uncore {
    /// Opens what the machine has and begins to count.
    ///
    /// # Errors
    /// It has nothing, or the kernel refuses: the reason and what would help.
    pub fn open(root: &Root, catalogue: &Catalogue, topology: &Topology) -> Result<Self> {
        let mut counters = Counters::of_uncore(root, catalogue, &ROLES)?;
        counters.switch(true)?;
        Ok(Self {
            counters,
            nodes: nodes_by_cpu(topology),
        })
    }

    /// Traffic since the last reading, by nodes.
    ///
    /// # Errors
    /// A CPU on which a source is read went offline.
    pub fn read(&mut self) -> Result<Vec<NodeTraffic>> {
        Ok(by_nodes(&self.counters.read()?, &self.nodes))
    }
}

/// The nodes of each CPU's package.
#[must_use]
pub fn nodes_by_cpu(topology: &Topology) -> BTreeMap<CpuId, NodeSet> {
    let mut nodes = BTreeMap::new();
    for package in &topology.packages {
        let of_package: NodeSet = topology
            .nodes
            .iter()
            .filter(|node| !node.cpus.intersection(&package.cpus).is_empty())
            .map(|node| node.id)
            .collect();
        for cpu in package.cpus.iter() {
            // Without packages (a virtual machine) all CPUs are in one, numbered -1.
            let own: Option<NodeId> = topology.node_of_cpu(cpu).filter(|_| package.id < 0);
            let of_cpu = own.map_or_else(|| of_package.clone(), |own| [own].into_iter().collect());
            nodes.insert(cpu, of_cpu);
        }
    }
    nodes
}

/// Sums the counts of an interval by nodes.
#[must_use]
pub fn by_nodes(interval: &Interval, nodes: &BTreeMap<CpuId, NodeSet>) -> Vec<NodeTraffic> {
    let of = |told: &EventCount| match told.whose {
        Whose::Cpu(cpu) => nodes.get(&cpu).cloned().unwrap_or_default(),
        Whose::Thread(_) => NodeSet::new(),
    };
    let mut keys: Vec<NodeSet> = interval.told.iter().map(of).collect();
    keys.sort_unstable();
    keys.dedup();
    let traffic = |key: NodeSet| {
        let sums: Estimates = interval.sums(|told| of(told) == key);
        let rate = |role| sums.get(&role)?.rate(interval.passed_ns);
        let (reads, writes) = (rate(Role::ControllerReads), rate(Role::ControllerWrites));
        let sum = |(one, other): (Rate, Rate)| Rate {
            per_second: one.per_second + other.per_second,
            counted_share: one.counted_share.min(other.counted_share),
        };
        NodeTraffic {
            both: reads
                .zip(writes)
                .map(sum)
                .or_else(|| rate(Role::ControllerTraffic)),
            sent: rate(Role::LinkTraffic),
            nodes: key,
            reads,
            writes,
        }
    };
    keys.into_iter().map(traffic).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::perf::count::Estimate;

    fn told(role: Role, cpu: u32, value: f64) -> EventCount {
        EventCount {
            role,
            whose: Whose::Cpu(CpuId(cpu)),
            source: "uncore_imc_0".into(),
            estimate: Some(Estimate {
                value,
                counted_share: 1.0,
            }),
        }
    }

    fn set(nodes: &[u32]) -> NodeSet {
        nodes.iter().map(|&node| NodeId(node)).collect()
    }

    #[test]
    fn traffic_is_summed_by_the_nodes_of_a_package() {
        let nodes = [(CpuId(0), set(&[0])), (CpuId(24), set(&[1, 2]))];
        let interval = Interval {
            passed_ns: 500_000_000,
            told: vec![
                // Two channels of one package.
                told(Role::ControllerReads, 0, 100.0),
                told(Role::ControllerReads, 0, 20.0),
                told(Role::ControllerWrites, 0, 10.0),
                told(Role::LinkTraffic, 0, 4.0),
                told(Role::ControllerTraffic, 24, 50.0),
            ],
        };
        let traffic = by_nodes(&interval, &nodes.into_iter().collect());
        assert_eq!(traffic.len(), 2);
        let per_second = |rate: Option<Rate>| rate.map(|rate| rate.per_second);
        assert_eq!(traffic[0].nodes, set(&[0]));
        assert_eq!(per_second(traffic[0].reads), Some(240.0));
        assert_eq!(per_second(traffic[0].both), Some(260.0));
        assert_eq!(per_second(traffic[0].sent), Some(8.0));
        assert_eq!(traffic[1].nodes, set(&[1, 2]));
        assert_eq!(per_second(traffic[1].both), Some(100.0));
        assert_eq!((traffic[1].reads, traffic[1].sent), (None, None));
    }

    #[test]
    fn cpus_that_no_package_has_are_told_apart() {
        let interval = Interval {
            passed_ns: 1,
            told: vec![told(Role::LinkTraffic, 7, 1.0)],
        };
        let traffic = by_nodes(&interval, &BTreeMap::new());
        assert!(traffic[0].nodes.is_empty() && traffic[0].sent.is_some());
    }

    #[test]
    fn this_machine_is_counted_or_says_why_not() {
        let root = Root::host();
        let topology = Topology::read(&root).unwrap();
        assert_eq!(nodes_by_cpu(&topology).len(), topology.online.len());
        let catalogue = Catalogue::read(&root).unwrap();
        match Uncore::open(&root, &catalogue, &topology) {
            Ok(mut uncore) => {
                uncore.read().unwrap();
            }
            Err(error) => assert!(!error.reason.is_empty() && !error.remedy.is_empty()),
        }
    }
}
