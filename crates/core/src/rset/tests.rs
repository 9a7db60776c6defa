//! Machines with sparse ids, nodes without CPUs, nodes without memory; what each term means on
//! them. The laws are in `laws.rs`.

mod laws;
mod messages;

use super::*;
use crate::ids::NodeId;

const GIB: u64 = 1 << 30;

fn node(id: u32, cpus: &str, total_gib: u64) -> Node {
    Node {
        id: NodeId(id),
        cpus: cpus.parse().unwrap(),
        total_bytes: total_gib * GIB,
        free_bytes: total_gib * GIB / 2,
        available_bytes: total_gib * GIB / 2,
        tier: None,
        read_bandwidth_mbs: None,
    }
}

fn cpus(lists: &[&str]) -> Vec<CpuSet> {
    lists.iter().map(|list| list.parse().unwrap()).collect()
}

fn resources(nodes: Vec<Node>, distances: &[&[u32]]) -> Resources {
    let mut resources = Resources {
        nodes,
        packages: Vec::new(),
        domains: Vec::new(),
        cores: Vec::new(),
        offline: CpuSet::new(),
        distances: distances.iter().map(|row| row.to_vec()).collect(),
        devices: Vec::new(),
        allowed: ResourceSet::new(),
    };
    resources.allowed = resources.machine();
    resources
}

fn device(name: &str, node: Option<u32>) -> Device {
    Device {
        name: name.to_owned(),
        node: node.map(NodeId),
    }
}

/// Two sockets with sparse numbers, and memory without CPUs; two CPUs are offline.
fn sparse() -> Resources {
    Resources {
        packages: (0..2)
            .map(|at| (at * 8, cpus(&["0-3", "4-7"])[at as usize].clone()))
            .collect(),
        domains: cpus(&["0-1", "2-3", "4-5", "6-7"]),
        cores: cpus(&["0", "1", "2", "3", "4", "5", "6", "7"]),
        offline: "8-9".parse().unwrap(),
        devices: vec![
            device("0000:3b:00.0", Some(8)),
            device("eth0", Some(8)),
            device("gpu0", Some(252)),
            device("lost", Some(9)),
            device("unplaced", None),
        ],
        ..resources(
            vec![node(0, "0-3", 16), node(8, "4-7", 16), node(252, "", 8)],
            &[&[10, 40, 80], &[40, 10, 60], &[80, 60, 10]],
        )
    }
}

/// One socket with HBM (node1) and CXL memory (node2), neither with CPUs.
fn hbm_and_cxl() -> Resources {
    let mut machine = resources(
        vec![node(0, "0-3", 128), node(1, "", 16), node(2, "", 256)],
        &[&[10, 13, 20], &[13, 10, 23], &[20, 23, 10]],
    );
    for (node, (tier, bandwidth_mbs)) in
        machine
            .nodes
            .iter_mut()
            .zip([(1, 209_000), (0, 704_000), (2, 35_000)])
    {
        node.tier = Some(tier);
        node.read_bandwidth_mbs = Some(bandwidth_mbs);
    }
    machine
}

/// The second node has no memory.
fn memory_less() -> Resources {
    resources(
        vec![node(0, "0-1", 32), node(1, "2-3", 0)],
        &[&[10, 20], &[20, 10]],
    )
}

fn resolved(text: &str, machine: &Resources) -> Resolved {
    text.parse::<Expression>()
        .and_then(|expression| expression.resolve(machine))
        .unwrap_or_else(|fault| panic!("{}", fault.pointed(text)))
}

/// CPUs and nodes as lists.
fn set(text: &str, machine: &Resources) -> (String, String) {
    let set = resolved(text, machine).set;
    (set.cpus.to_string(), set.nodes.to_string())
}

fn pair(cpus: &str, nodes: &str) -> (String, String) {
    (cpus.to_owned(), nodes.to_owned())
}

#[test]
fn terms_on_sparse_nodes() {
    let machine = sparse();
    for (text, cpus, nodes) in [
        ("machine", "0-7", "0,8,252"),
        ("allowed", "0-7", "0,8,252"),
        ("node:8", "4-7", "8"),
        ("node:252", "", "252"),
        ("package:8", "4-7", "8"),
        ("domain:1", "2-3", ""),
        ("domain:1-2", "2-5", ""),
        ("core:7", "7", ""),
        ("cpus:3-4", "3-4", ""),
        ("mem:0,252", "", "0,252"),
        ("machine-node:1", "4-7", "8"),
        ("machine-node:2", "", "252"),
        ("allowed-node:0-1", "0-7", "0,8"),
        ("local-to:eth0", "4-7", "8"),
        ("local-to:0000:3b:00.0", "4-7", "8"),
        ("local-to:gpu0", "", "252"),
        ("near:gpu0", "4-7", "252"),
        ("near:node252", "4-7", "252"),
        ("near:eth0", "4-7", "8"),
    ] {
        assert_eq!(set(text, &machine), pair(cpus, nodes), "{text}");
    }
}

#[test]
fn operators_work_on_cpus_and_memory_alike() {
    let machine = sparse();
    for (text, cpus, nodes) in [
        ("cpus:0-1+mem:252", "0-1", "252"),
        ("node:0,8 & cpus:2-5", "2-5", ""),
        ("node:0 - cpus:0", "1-3", "0"),
        ("~node:0", "4-7", "8,252"),
        ("~(node:0 + mem:8)", "4-7", "252"),
        ("machine - node:0 - node:252", "4-7", "8"),
        ("machine - (node:0 - cpus:1)", "1,4-7", "8,252"),
        ("cpus:0 + cpus:1 & cpus:1-2", "0-1", ""),
        ("(cpus:0 + cpus:1) & cpus:1-2", "1", ""),
        ("~~mem:8", "", "8"),
        ("node:0 - core:0", "1-3", "0"),
        ("package:8 - domain:2", "6-7", "8"),
    ] {
        assert_eq!(set(text, &machine), pair(cpus, nodes), "{text}");
    }
}

#[test]
fn nodes_without_memory_give_cpus() {
    let machine = memory_less();
    assert_eq!(set("node:1", &machine), pair("2-3", ""));
    assert_eq!(set("machine-node:1", &machine), pair("2-3", ""));
    assert_eq!(set("near:node1", &machine), pair("2-3", "0"));
    assert_eq!(set("machine", &machine), pair("0-3", "0"));
    // Nothing on it can be allowed memory of, so it is not counted.
    assert_eq!(set("allowed-node:0", &machine), pair("0-1", "0"));
}

#[test]
fn tiers_and_bandwidth_choose_memory() {
    let machine = hbm_and_cxl();
    assert_eq!(set("tier:0", &machine), pair("", "1"));
    assert_eq!(set("tier:0-1 + cpus:0", &machine), pair("0", "0-1"));
    // Half of each is free: 8 GiB of HBM, then 64 GiB of DRAM, then 128 GiB of CXL memory.
    assert_eq!(set("fastest:8G", &machine), pair("", "1"));
    assert_eq!(set("fastest:9G", &machine), pair("", "0-1"));
    assert_eq!(set("fastest:72G", &machine), pair("", "0-1"));
    assert_eq!(set("fastest:200G", &machine), pair("", "0-2"));
    assert_eq!(set("near:node2", &machine), pair("0-3", "2"));
}

#[test]
fn fastest_looks_at_what_is_allowed() {
    let mut machine = hbm_and_cxl();
    machine.allowed.nodes = "0,2".parse().unwrap();
    let found = resolved("fastest:8G", &machine);
    assert_eq!(found.set.nodes.to_string(), "0");
    assert_eq!(
        found.warnings,
        [
            "memory of node 1 is faster and passed over: the cpuset leaves this process memory of \
          nodes 0,2"
        ]
    );
    // One node needs no figure to be the fastest.
    let mut machine = memory_less();
    assert_eq!(set("fastest:16G", &machine), pair("", "0"));
    machine.nodes[1].total_bytes = GIB;
    machine.allowed = machine.machine();
    assert!(
        "fastest:16G"
            .parse::<Expression>()
            .unwrap()
            .resolve(&machine)
            .is_err()
    );
}

#[test]
fn a_device_of_unknown_place_is_on_the_only_node() {
    let mut machine = resources(vec![node(0, "0-1", 2)], &[&[10]]);
    machine.devices = vec![device("eth0", None)];
    assert_eq!(set("local-to:eth0", &machine), pair("0-1", "0"));
}

#[test]
fn parts_at_the_same_distance_are_all_near() {
    let mut machine = resources(
        vec![node(0, "0", 1), node(1, "1", 1), node(2, "2", 0)],
        &[&[10, 20, 20], &[20, 10, 20], &[20, 20, 10]],
    );
    assert_eq!(set("near:node2", &machine), pair("2", "0-1"));
    machine.nodes[2].cpus = CpuSet::new();
    assert_eq!(set("near:node2", &machine), pair("0-1", "0-1"));
}

#[test]
fn what_is_not_allowed_is_left_out_and_said() {
    let mut machine = sparse();
    machine.allowed = ResourceSet {
        // As the kernel prints it: more than there is.
        cpus: "0-5,100-127".parse().unwrap(),
        nodes: "0,252,300".parse().unwrap(),
    };
    let found = resolved("node:0,8", &machine);
    assert_eq!(found.set, resolved("cpus:0-5 + mem:0", &machine).set);
    assert_eq!(
        found.left_out(),
        ResourceSet {
            cpus: "6-7".parse().unwrap(),
            nodes: "8".parse().unwrap(),
        }
    );
    assert_eq!(
        found.warnings,
        [
            "CPUs 6-7 are left out: cpuset or affinity leave this process CPUs 0-5",
            "memory of node 8 is left out: the cpuset leaves this process memory of nodes 0,252",
        ]
    );
    assert_eq!(set("allowed", &machine), pair("0-5", "0,252"));
    assert_eq!(set("allowed-node:1", &machine), pair("", "252"));
    assert!(resolved("node:0", &machine).warnings.is_empty());
    // The complement is that of the machine; clipping comes last.
    assert_eq!(
        resolved("~node:0", &machine).asked,
        resolved("machine - node:0", &machine).asked
    );
    assert_eq!(set("~node:0", &machine), pair("4-5", "252"));
}

#[test]
fn each_part_lies_within_one_of_the_level_above() {
    let machine = sparse();
    for pair in Level::ALL.windows(2) {
        let wide = machine.parts(pair[0]);
        for (number, part) in machine.parts(pair[1]) {
            let is_within = wide.iter().any(|(_, set)| part.is_subset(set));
            // Memory without CPUs is in no package.
            let is_memory = part.cpus.is_empty();
            assert!(is_within || is_memory, "{} {number}", pair[1].word());
        }
    }
}

#[test]
fn memory_that_packages_share_is_in_none() {
    let mut machine = resources(vec![node(0, "0-3", 4)], &[&[10]]);
    machine.packages = vec![(0, "0-1".parse().unwrap()), (1, "2-3".parse().unwrap())];
    assert_eq!(set("package:1", &machine), pair("2-3", ""));
    assert_eq!(set("package:0-1", &machine), pair("0-3", ""));
}
