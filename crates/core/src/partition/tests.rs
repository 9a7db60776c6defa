//! Files that fit a machine and files that do not; moves of nodes; the manager's decisions.

mod files;
mod managing;
mod moves;

use crate::ids::NodeId;
use crate::rset::{Node, ResourceSet, Resources};
use crate::set::CpuSet;

/// Nodes of four CPUs in two domains each, on a line; the last node has no CPUs.
fn machine(count: u32) -> Resources {
    let list = |low: u32, length: u32| -> CpuSet {
        format!("{}-{}", low, low + length - 1).parse().unwrap()
    };
    let nodes = (0..count).map(|id| Node {
        id: NodeId(id),
        cpus: match id + 1 == count {
            true => CpuSet::new(),
            false => list(4 * id, 4),
        },
        total_bytes: 1 << 30,
        free_bytes: 1 << 29,
        available_bytes: 1 << 29,
        tier: None,
        read_bandwidth_mbs: None,
    });
    let distance = |from: u32, to: u32| 10 + 10 * from.abs_diff(to);
    let mut machine = Resources {
        nodes: nodes.collect(),
        packages: Vec::new(),
        domains: (0..2 * (count - 1)).map(|at| list(2 * at, 2)).collect(),
        cores: Vec::new(),
        offline: CpuSet::new(),
        distances: (0..count)
            .map(|from| (0..count).map(|to| distance(from, to)).collect())
            .collect(),
        devices: Vec::new(),
        allowed: ResourceSet::new(),
    };
    machine.allowed = machine.machine();
    machine
}

const FILE: &str = r#"
format = "hither.partitions/1"
[[partition]]
name = "db"
on = "node:1-2"
[[partition]]
name = "web"
on = "node:3"
kind = "isolated"
"#;
