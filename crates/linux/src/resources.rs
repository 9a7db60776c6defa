//! A machine as resource sets see it: the topology, with cores, devices and what this process may
//! use besides.

use crate::error::Result;
use crate::proc::allowed::{self, Allowed};
use crate::root::Root;
use crate::topology::{self, Topology, sysfs_core, sysfs_device};
use hither_core::rset::{Device, Node, ResourceSet, Resources};
use hither_core::set::CpuSet;

/// What an expression is worked out against. Of a captured machine everything is allowed, unless
/// the capture has a `proc/self/status`.
///
/// # Errors
/// A file that cannot be read or contradicts itself, with place and remedy.
pub fn read(root: &Root, topology: &Topology) -> Result<Resources> {
    let allowed = root
        .parse_if_any("proc/self/status", allowed::parse)?
        .unwrap_or_default();
    let cores = sysfs_core::read(root, &topology.online)?;
    let devices = sysfs_device::read(root)?;
    Ok(gather(topology, cores, devices, allowed))
}

/// The same from parts; what `allowed` does not tell of is allowed.
pub(crate) fn gather(
    topology: &Topology,
    cores: Vec<CpuSet>,
    devices: Vec<Device>,
    allowed: Allowed,
) -> Resources {
    let mut resources = Resources {
        nodes: topology.nodes.iter().map(node).collect(),
        packages: topology
            .packages
            .iter()
            .filter_map(|package| Some((u32::try_from(package.id).ok()?, package.cpus.clone())))
            .collect(),
        domains: topology
            .domains
            .iter()
            .map(|domain| domain.cpus.clone())
            .collect(),
        cores,
        offline: topology.offline.clone(),
        distances: topology.distances.clone(),
        devices,
        allowed: ResourceSet::new(),
    };
    let machine = resources.machine();
    resources.allowed = ResourceSet {
        cpus: allowed.cpus.unwrap_or(machine.cpus),
        nodes: allowed.nodes.unwrap_or(machine.nodes),
    };
    resources
}

fn node(node: &topology::NodeInfo) -> Node {
    // Class 1 speaks of CPUs; class 0, which every kernel with figures has, of devices too.
    let access = node.access.iter().max_by_key(|access| access.class.min(1));
    Node {
        id: node.id,
        cpus: node.cpus.clone(),
        total_bytes: node.memory.total_kb.saturating_mul(1024),
        free_bytes: node.memory.free_kb.saturating_mul(1024),
        available_bytes: node.memory.available_kb().saturating_mul(1024),
        tier: node.tier.map(|tier| tier.rank),
        read_bandwidth_mbs: access.and_then(|access| access.read_bandwidth_mbs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::rset::Expression;
    use std::path::Path;

    fn captured(name: &str) -> Resources {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines");
        let root = Root::new(folder.join(name));
        read(&root, &Topology::read(&root).unwrap()).unwrap()
    }

    /// CPUs and nodes, or what is wrong.
    fn resolved(text: &str, machine: &Resources) -> String {
        let expression: Expression = text.parse().unwrap();
        match expression.resolve(machine) {
            Ok(found) => format!("{} | {}", found.set.cpus, found.set.nodes),
            Err(fault) => fault.reason,
        }
    }

    #[test]
    fn sets_on_captured_machines() {
        for (name, text, expected) in [
            ("sparse-nodes", "machine", "0-7 | 0,8,252"),
            ("sparse-nodes", "node:252 + package:8", "4-7 | 8,252"),
            ("sparse-nodes", "machine-node:1 - domain:2", "6-7 | 8"),
            ("memory-less", "node:1", "2-3 | "),
            ("memory-less", "near:node1", "2-3 | 0"),
            ("memory-less", "domain:1 + mem:0", "2-3 | 0"),
            ("hbm-and-cxl", "tier:0 + cpus:0", "0 | 1"),
            ("hbm-and-cxl", "fastest:16G", " | 1"),
            ("hbm-and-cxl", "fastest:17G", " | 0-1"),
            ("hbm-and-cxl", "near:node2", "0-3 | 2"),
            ("four-node-hmat", "~node:0,3", "2-5 | 1-2"),
            ("four-node-hmat", "fastest:1G", " | 0-1"),
            ("no-numa", "domain:0", "0-1 | "),
            ("two-socket", "near:gpu0 - core:2", "3,7 | 1"),
            ("two-socket", "local-to:nvme0n1 & package:0", "0-1,4-5 | 0"),
            (
                "two-socket",
                "local-to:0000:81:00.0 - local-to:eth0 + cpus:7",
                "7 | ",
            ),
        ] {
            assert_eq!(resolved(text, &captured(name)), expected, "{name}: {text}");
        }
        let old = captured("old-kernel");
        assert!(resolved("tier:0", &old).contains("names no memory tiers"));
        assert!(resolved("core:0", &old).contains("which CPUs share a core"));
        // With one node there is nothing to rank.
        assert_eq!(resolved("fastest:1G", &old), " | 0");
        let sockets = captured("two-socket");
        assert!(resolved("fastest:1G", &sockets).contains("nodes 0-1 is not known"));
    }

    #[test]
    fn this_machine_allows_something() {
        let root = Root::host();
        let machine = read(&root, &Topology::read(&root).unwrap()).unwrap();
        let text = resolved("allowed", &machine);
        assert!(!text.starts_with(' '), "this test runs on some CPU: {text}");
        assert!(machine.usable().is_subset(&machine.machine()));
    }
}
