//! The same as JSON: `hither.topo/1`, documented in `docs/cli.md`.

use crate::print;
use hither_linux::doctor::{Check, PolicyStanding};
use hither_linux::topology::{KnownOfNodes, NodeInfo, Topology};
use serde_json::{Value, json};

/// The whole document, indented, with a final newline.
pub fn document(topology: &Topology, checks: Option<&(Vec<Check>, Vec<PolicyStanding>)>) -> String {
    let mut document = json!({
        "schema": "hither.topo/1",
        "nodes": topology.nodes.iter().map(|of| node(of, topology.is_told)).collect::<Vec<_>>(),
        "distances": topology.distances,
        "cpus": { "online": topology.online.to_string(), "offline": topology.offline.to_string() },
        "domains": topology.domains.iter().map(|domain| json!({
            "cpus": domain.cpus.to_string(),
            "level": domain.level,
            "size_kb": domain.size_kb,
            "line_bytes": domain.line_bytes,
        })).collect::<Vec<_>>(),
        "packages": topology.packages.iter().map(|package| json!({
            "id": package.id,
            "cpus": package.cpus.to_string(),
        })).collect::<Vec<_>>(),
        "transparent_huge_pages": topology.transparent_huge_pages,
        "transparent_huge_kb": topology.transparent_huge_kb,
        "numa_balancing": topology.numa_balancing,
        "demotion": topology.demotion,
        "weights_automatic": topology.weights_automatic,
        "notes": topology.notes,
    });
    if let Some((checks, standings)) = checks {
        document["doctor"] = checks.iter().map(check).collect();
        document["policies"] = standings.iter().map(standing).collect();
    }
    print::json(document)
}

fn node(node: &NodeInfo, told: KnownOfNodes) -> Value {
    json!({
        "id": node.id,
        "cpus": node.cpus.to_string(),
        "memory_kb": told.memory.then_some(node.memory.total_kb),
        "free_kb": told.memory.then_some(node.memory.free_kb),
        "tier": node.tier.map(|tier| json!({ "rank": tier.rank, "number": tier.number })),
        "weight": node.weight,
        "access": node.access.iter().map(|access| json!({
            "class": access.class,
            "initiators": access.initiators.to_string(),
            "read_latency_ns": access.read_latency_ns,
            "write_latency_ns": access.write_latency_ns,
            "read_bandwidth_mbs": access.read_bandwidth_mbs,
            "write_bandwidth_mbs": access.write_bandwidth_mbs,
        })).collect::<Vec<_>>(),
        "huge_pages": told.huge_pages.then(|| node.huge_pages.iter().map(|pages| json!({
            "size_kb": pages.size_kb,
            "total": pages.total,
            "free": pages.free,
        })).collect::<Vec<_>>()),
    })
}

fn check(check: &Check) -> Value {
    json!({
        "role": check.role.name(),
        "name": check.name,
        "works": check.works,
        "found": check.found,
        "remedy": check.remedy,
    })
}

fn standing(standing: &PolicyStanding) -> Value {
    json!({
        "policy": standing.policy,
        "evidence": standing.rung,
        "tracker": standing.tracker,
        "works": standing.works,
        "found": standing.found,
        "raise": standing.raise,
    })
}
