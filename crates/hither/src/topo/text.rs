//! The topology and the doctor's findings for a person.

use crate::print::{columns, count, size};
use hither_core::foreign::Foreign;
use hither_linux::doctor::Check;
use hither_linux::topology::{AccessClass, CacheDomain, Node, Told, Topology};

/// What is not known.
const DASH: &str = "–";

/// The whole machine.
pub fn topology(topology: &Topology) -> String {
    let total_kb: u64 = topology.nodes.iter().map(|node| node.memory.total_kb).sum();
    let memory = match topology.is_told.memory {
        true => size(total_kb),
        false => DASH.to_owned(),
    };
    let mut text = format!(
        "{}, {}, {} (CPUs {}), {memory} of memory\n\n",
        count(topology.nodes.len(), "node"),
        count(topology.packages.len(), "package"),
        count(topology.online.len(), "CPU"),
        topology.online,
    );
    text.push_str(&nodes(topology));
    text.push_str(&distances(topology));
    text.push_str("\ncache domains\n");
    for domain in &topology.domains {
        text.push_str(&format!("  {}\n", cache(domain)));
    }
    text.push_str("\npackages\n");
    for package in &topology.packages {
        let id = if package.id < 0 {
            "unnamed".to_owned()
        } else {
            package.id.to_string()
        };
        text.push_str(&format!("  {id}: CPUs {}\n", package.cpus));
    }
    text.push_str(&settings(topology));
    if !topology.notes.is_empty() {
        text.push_str("\nnotes\n");
        topology
            .notes
            .iter()
            .for_each(|note| text.push_str(&format!("  {}\n", note.shown())));
    }
    text
}

fn nodes(topology: &Topology) -> String {
    let head = [
        "node",
        "CPUs",
        "memory",
        "free",
        "tier",
        "weight",
        "seen from",
        "read",
        "write",
        "huge pages",
    ];
    let nodes = topology.nodes.iter();
    let rows: Vec<Vec<String>> = nodes.map(|of| node(of, topology.is_told)).collect();
    columns(&head, &rows)
}

fn node(node: &Node, told: Told) -> Vec<String> {
    let access = node.access.first();
    let has_memory = node.memory.total_kb > 0;
    let reserved: Vec<String> = node
        .huge_pages
        .iter()
        .filter(|pages| pages.total > 0)
        .map(|pages| {
            format!(
                "{} of {} x {} free",
                pages.free,
                pages.total,
                size(pages.size_kb)
            )
        })
        .collect();
    vec![
        node.id.to_string(),
        if node.cpus.is_empty() {
            "none".to_owned()
        } else {
            node.cpus.to_string()
        },
        match (told.memory, has_memory) {
            (false, _) => DASH.to_owned(),
            (true, true) => size(node.memory.total_kb),
            (true, false) => "none".to_owned(),
        },
        match (told.memory, has_memory) {
            (false, _) => DASH.to_owned(),
            (true, true) => size(node.memory.free_kb),
            (true, false) => String::new(),
        },
        node.tier
            .map(|tier| tier.rank.to_string())
            .unwrap_or_default(),
        node.weight
            .filter(|_| has_memory)
            .map(|weight| weight.to_string())
            .unwrap_or_default(),
        access
            .map(|access| access.initiators.to_string())
            .unwrap_or_default(),
        access.map(|access| rate(access, true)).unwrap_or_default(),
        access.map(|access| rate(access, false)).unwrap_or_default(),
        match told.huge_pages {
            true => reserved.join(", "),
            false => DASH.to_owned(),
        },
    ]
}

fn rate(access: &AccessClass, read: bool) -> String {
    let (latency_ns, bandwidth_mbs) = match read {
        true => (access.read_latency_ns, access.read_bandwidth_mbs),
        false => (access.write_latency_ns, access.write_bandwidth_mbs),
    };
    let parts = [
        latency_ns.map(|ns| format!("{ns} ns")),
        bandwidth_mbs.map(|mbs| format!("{:.1} GB/s", mbs as f64 / 1000.0)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn distances(topology: &Topology) -> String {
    if topology.nodes.len() < 2 {
        return String::new();
    }
    let names: Vec<String> = topology
        .nodes
        .iter()
        .map(|node| node.id.to_string())
        .collect();
    let mut head = vec!["distances"];
    head.extend(names.iter().map(String::as_str));
    let row = |(name, distances): (&String, &Vec<u32>)| {
        let cells = distances.iter().map(u32::to_string);
        std::iter::once(name.clone()).chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = names.iter().zip(&topology.distances).map(row).collect();
    format!("\n{}", columns(&head, &rows))
}

fn cache(domain: &CacheDomain) -> String {
    let mut text = match domain.level {
        0 => "unknown cache".to_owned(),
        level => format!("L{level}"),
    };
    if let Some(size_kb) = domain.size_kb {
        text.push_str(&format!(" {}", size(size_kb)));
    }
    if let Some(line_bytes) = domain.line_bytes {
        text.push_str(&format!(", {line_bytes}-byte lines"));
    }
    format!("{text}: CPUs {}", domain.cpus)
}

fn settings(topology: &Topology) -> String {
    let mut parts = Vec::new();
    if let Some(mode) = &topology.transparent_huge_pages {
        let size = topology
            .transparent_huge_kb
            .map(|kb| format!(" ({})", size(kb)))
            .unwrap_or_default();
        parts.push(format!("transparent huge pages {mode}{size}"));
    }
    if let Some(balancing) = topology.numa_balancing {
        parts.push(format!("NUMA balancing {balancing}"));
    }
    if let Some(demotion) = topology.demotion {
        parts.push(format!("demotion {}", if demotion { "on" } else { "off" }));
    }
    if let Some(automatic) = topology.weights_automatic {
        parts.push(format!(
            "interleave weights {}",
            if automatic {
                "automatic"
            } else {
                "set by hand"
            }
        ));
    }
    let mut text = String::new();
    if !parts.is_empty() {
        text = format!("\nkernel: {}\n", parts.join(", "));
    }
    if !topology.offline.is_empty() {
        text.push_str(&format!("offline: CPUs {}\n", topology.offline));
    }
    text
}

/// The doctor's findings, with remedies.
pub fn doctor(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let answer = match (check.works, check.is_used) {
            (true, true) => "works",
            (true, false) => "ready",
            (false, _) => "no",
        };
        text.push_str(&format!(
            "{:<8} {:<13} {answer:<6} {}\n",
            check.role.name(),
            check.name,
            check.found
        ));
        if !check.remedy.is_empty() {
            text.push_str(&format!("{:30}to enable it: {}\n", "", check.remedy));
        }
    }
    text.push_str(
        "\nready: the kernel allows it, and this release of hither does not use it yet\n",
    );
    text
}
