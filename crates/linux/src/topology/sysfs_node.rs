//! Nodes, their memory, distances, HMAT access classes and interleave weights, from
//! `/sys/devices/system/node` and `/sys/kernel/mm/mempolicy`.

use super::{AccessClass, NodeInfo, parse_switch};
use crate::error::{Error, Result};
use crate::parse::{self, NodeMemory};
use crate::root::Root;
use hither_core::ids::NodeId;
use hither_core::set::{CpuSet, NodeSet};

const NODES: &str = "sys/devices/system/node";
const WEIGHTS: &str = "sys/kernel/mm/mempolicy/weighted_interleave";
/// The kernel has two access classes; more would be a new kernel's.
const MAX_CLASSES: usize = 4;

/// What this source tells.
pub struct Nodes {
    /// Online nodes, ascending.
    pub nodes: Vec<NodeInfo>,
    /// Distances by position.
    pub distances: Vec<Vec<u32>>,
}

/// Reads the online nodes. A kernel without NUMA has none: all CPUs and memory are `node0` then.
pub fn read(root: &Root, online_cpus: &CpuSet, notes: &mut Vec<String>) -> Result<Nodes> {
    if !root.has(NODES) {
        return read_without_nodes(root, online_cpus, notes);
    }
    let file = format!("{NODES}/online");
    let online: NodeSet = root.parse(&file, parse::list)?;
    if online.is_empty() {
        return Err(Error::new(
            root.path(&file),
            "names no node",
            root.tree_remedy(),
        ));
    }
    let mut nodes = Vec::with_capacity(online.len());
    let mut distances = Vec::with_capacity(online.len());
    for id in online.iter() {
        nodes.push(read_node(root, id, online_cpus)?);
        distances.push(read_distances(root, id, distances.len(), online.len())?);
    }
    if nodes.iter().all(|node| node.memory.total_kb == 0) {
        return Err(Error::new(
            root.path(NODES),
            "no node has memory",
            root.tree_remedy(),
        ));
    }
    Ok(Nodes { nodes, distances })
}

fn read_without_nodes(root: &Root, online_cpus: &CpuSet, notes: &mut Vec<String>) -> Result<Nodes> {
    notes.push(
        "this kernel has no NUMA support (CONFIG_NUMA): all memory counts as node0".to_owned(),
    );
    let memory = root.parse("proc/meminfo", parse::proc_meminfo)?;
    let node = NodeInfo {
        id: NodeId(0),
        cpus: online_cpus.clone(),
        memory,
        tier: None,
        access: Vec::new(),
        huge_pages: Vec::new(),
        weight: None,
    };
    Ok(Nodes {
        nodes: vec![node],
        distances: vec![vec![10]],
    })
}

fn read_node(root: &Root, id: NodeId, online_cpus: &CpuSet) -> Result<NodeInfo> {
    let folder = format!("{NODES}/{id}");
    let file = format!("{folder}/cpulist");
    let cpus: CpuSet = root.parse(&file, parse::list)?;
    if let Some(cpu) = cpus.iter().find(|&cpu| !online_cpus.contains(cpu)) {
        return Err(Error::new(
            root.path(&file),
            format!("names {cpu}, which is not online"),
            root.tree_remedy(),
        ));
    }
    let memory: NodeMemory = root.parse(&format!("{folder}/meminfo"), |text| {
        parse::node_meminfo(text, id.0)
    })?;
    Ok(NodeInfo {
        id,
        cpus,
        memory,
        tier: None,
        access: Vec::new(),
        huge_pages: Vec::new(),
        weight: None,
    })
}

fn read_distances(root: &Root, id: NodeId, position: usize, count: usize) -> Result<Vec<u32>> {
    let file = format!("{NODES}/{id}/distance");
    let distances = root.parse(&file, parse::distances)?;
    let fail = |reason: String| Err(Error::new(root.path(&file), reason, root.tree_remedy()));
    if distances.len() != count {
        return fail(format!(
            "has {} distances, and {count} nodes are online",
            distances.len()
        ));
    }
    if distances[position] != 10 {
        return fail(format!(
            "gives {id} distance {} to itself, local is 10",
            distances[position]
        ));
    }
    Ok(distances)
}

/// Fills in each node's access classes.
pub fn read_classes(root: &Root, nodes: &mut [NodeInfo], notes: &mut Vec<String>) -> Result<()> {
    let online: NodeSet = nodes.iter().map(|node| node.id).collect();
    for node in nodes.iter_mut() {
        node.access = read_access(root, &format!("{NODES}/{}", node.id), &online)?;
    }
    if nodes.iter().all(|node| node.access.is_empty()) && nodes.len() > 1 {
        notes.push("firmware gives no latency or bandwidth of the nodes (no HMAT): only distances are known".to_owned());
    }
    Ok(())
}

/// `accessN/initiators/{read,write}_{latency,bandwidth}` and its links `nodeM`.
fn read_access(root: &Root, folder: &str, online: &NodeSet) -> Result<Vec<AccessClass>> {
    let mut classes = Vec::new();
    for class in root
        .numbered(folder, "access")?
        .into_iter()
        .take(MAX_CLASSES)
    {
        let initiators = format!("{folder}/access{class}/initiators");
        // The kernel prints 0 for what firmware leaves out (`hmat_normalize` of its
        // drivers/acpi/numa/hmat.c).
        let value = |name: &str| -> Result<Option<u64>> {
            let value = root.parse_if_any(&format!("{initiators}/{name}"), parse::number)?;
            Ok(value.filter(|value| *value > 0))
        };
        let found = AccessClass {
            class,
            initiators: root
                .numbered(&initiators, "node")?
                .into_iter()
                .map(NodeId)
                .filter(|&node| online.contains(node))
                .collect(),
            read_latency_ns: value("read_latency")?,
            write_latency_ns: value("write_latency")?,
            read_bandwidth_mbs: value("read_bandwidth")?,
            write_bandwidth_mbs: value("write_bandwidth")?,
        };
        // The kernel makes the folder for devices' access classes too; without figures it says
        // nothing.
        if found.read_latency_ns.or(found.read_bandwidth_mbs).is_some() {
            classes.push(found);
        }
    }
    Ok(classes)
}

/// Weighted-interleave weights (6.9 and later); tells whether they are automatic (6.16).
pub fn read_weights(root: &Root, nodes: &mut [NodeInfo]) -> Result<Option<bool>> {
    for node in nodes {
        let file = format!("{WEIGHTS}/{}", node.id);
        node.weight = root.parse_if_any(&file, parse::number)?;
        if let Some(weight) = node.weight.filter(|weight| !(1..=255).contains(weight)) {
            return Err(Error::new(
                root.path(&file),
                format!("weight {weight} is not in 1 to 255"),
                root.tree_remedy(),
            ));
        }
    }
    // Linux 6.18 names the file `__auto_type`: its macro for the C word `auto` reached the name.
    match root.parse_if_any(&format!("{WEIGHTS}/auto"), parse_switch)? {
        Some(automatic) => Ok(Some(automatic)),
        None => root.parse_if_any(&format!("{WEIGHTS}/__auto_type"), parse_switch),
    }
}
