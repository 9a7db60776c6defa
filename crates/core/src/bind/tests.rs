//! Policies on machines with hyperthreads, sparse ids, and nodes that lack CPUs or memory.

use super::*;
use crate::ids::{CpuId, NodeId};
use crate::rset::{Level, Node, ResourceSet, Resources};
use crate::set::{CpuSet, NodeSet};
use proptest::prelude::*;

/// Two nodes (0 and 8) of two domains of two cores of two threads, siblings eight apart; and node
/// 9, memory alone.
fn machine() -> Resources {
    let node = |id, cpus: &str, total_bytes| Node {
        id: NodeId(id),
        cpus: cpus.parse().unwrap(),
        total_bytes,
        free_bytes: total_bytes,
        available_bytes: total_bytes,
        tier: None,
        read_bandwidth_mbs: None,
    };
    let sets = |lists: &[&str]| lists.iter().map(|list| list.parse().unwrap()).collect();
    let mut machine = Resources {
        nodes: vec![
            node(0, "0-3,8-11", 1 << 30),
            node(8, "4-7,12-15", 1 << 30),
            node(9, "", 1 << 32),
        ],
        packages: Vec::new(),
        domains: sets(&["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]),
        cores: (0..8)
            .map(|cpu| [CpuId(cpu), CpuId(cpu + 8)].into_iter().collect())
            .collect(),
        offline: CpuSet::new(),
        distances: vec![vec![10, 20, 30], vec![20, 10, 30], vec![30, 30, 10]],
        devices: Vec::new(),
        allowed: ResourceSet::new(),
    };
    machine.allowed = machine.machine();
    machine
}

fn order(policy: &str, cpus: &str) -> Vec<u32> {
    let policy: ThreadPolicy = policy.parse().unwrap();
    let order = policy.order(&cpus.parse().unwrap(), &machine());
    order.iter().map(|cpu| cpu.0).collect()
}

#[test]
fn threads_fill_domains_and_give_every_core_one_first() {
    assert_eq!(
        order("fill", "0-11"),
        [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 6, 7]
    );
    assert_eq!(order("round-robin", "0-15")[..6], [0, 4, 1, 5, 8, 12]);
    assert_eq!(order("round-robin:domain", "0-7"), [0, 2, 4, 6, 1, 3, 5, 7]);
    assert_eq!(order("round-robin:core", "0-1,8-9"), [0, 1, 8, 9]);
    // The machine numbers no packages: all are one part.
    assert_eq!(order("round-robin:package", "3,7"), [3, 7]);
    assert_eq!(order("float", "0-15"), [0u32; 0]);
    for bad in [
        "",
        "fill:node",
        "round-robin:",
        "round-robin:rack",
        "spread",
    ] {
        assert!(bad.parse::<ThreadPolicy>().is_err(), "{bad}");
    }
    for good in ["float", "fill", "round-robin:domain"] {
        assert_eq!(good.parse::<ThreadPolicy>().unwrap().to_string(), good);
    }
}

fn kernels(policy: &str, cpus: &str, nodes: &str) -> Result<String, String> {
    let set = ResourceSet {
        cpus: cpus.parse().unwrap(),
        nodes: nodes.parse().unwrap(),
    };
    let policy: MemoryPolicy = policy.parse()?;
    policy.on(&set, &machine()).map(|policy| policy.to_string())
}

#[test]
fn memory_policies_become_the_kernels() {
    for (policy, cpus, nodes, expected) in [
        ("float", "0", "0", "default"),
        ("local", "0", "0", "local"),
        ("bind", "0", "0,8", "bind:0,8"),
        ("preferred", "0", "8", "prefer:8"),
        ("preferred", "0", "8-9", "prefer (many):8-9"),
        ("striped", "0", "", "interleave:0,8-9"),
        ("weighted", "", "0,9", "weighted interleave:0,9"),
        ("remote", "0-3", "", "bind:8-9"),
        ("remote", "0-15", "", "bind:9"),
        ("remote", "4", "0,8", "bind:0"),
    ] {
        assert_eq!(kernels(policy, cpus, nodes).unwrap(), expected, "{policy}");
    }
    let refused = kernels("remote", "0", "0").unwrap_err();
    assert!(
        refused.contains("nodes 0 has some of the CPUs 0"),
        "{refused}"
    );
    assert!(kernels("near", "", "").unwrap_err().contains("weighted"));
    for (at, (policy, word, _)) in MemoryPolicy::ALL.iter().enumerate() {
        assert_eq!(*policy as usize, at);
        assert_eq!(word.parse(), Ok(*policy));
    }
}

proptest! {
    /// Whatever the set: each CPU once, and neighbours in the order of `fill` share a node unless
    /// it is full.
    #[test]
    fn every_cpu_is_given_once(bits: u16, level in 0usize..4) {
        let cpus: CpuSet = (0..16).filter(|cpu| bits >> cpu & 1 == 1).map(CpuId).collect();
        for policy in [ThreadPolicy::Fill, ThreadPolicy::RoundRobin(Level::ALL[level])] {
            let order = policy.order(&cpus, &machine());
            prop_assert_eq!(order.len(), cpus.len());
            prop_assert_eq!(order.into_iter().collect::<CpuSet>(), cpus.clone());
        }
        let machine = machine();
        let node_of = |cpu: &CpuId| machine.nodes.iter().position(|n| n.cpus.contains(*cpu));
        let mut nodes: Vec<_> = ThreadPolicy::Fill.order(&cpus, &machine).iter().map(node_of).collect();
        nodes.dedup();
        prop_assert!(nodes.len() <= 2, "it comes back to a node: {:?}", nodes);
    }

    /// A policy of the kernel's never names memory that may not be used, nor none.
    #[test]
    fn policies_stay_within_what_is_allowed(cpus: u16, named in 0u32..8, allowed in 1u32..8) {
        let list = |bits: u32| -> NodeSet {
            [0, 8, 9].into_iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1)
                .map(|(_, id)| NodeId(id)).collect()
        };
        let mut machine = machine();
        machine.allowed.nodes = list(allowed);
        let set = ResourceSet {
            cpus: (0..16).filter(|cpu| cpus >> cpu & 1 == 1).map(CpuId).collect(),
            nodes: list(named & allowed),
        };
        for (policy, ..) in MemoryPolicy::ALL {
            if let Ok(kernels) = policy.on(&set, &machine) {
                prop_assert!(kernels.nodes.is_subset(&machine.allowed.nodes));
                prop_assert_eq!(kernels.nodes.is_empty(), !kernels.mode.has_nodes());
            }
        }
    }
}
