//! The topology and the doctor's findings for a person.

use crate::print::{self, DASH, Table, count, size};
use crate::terminal::{Colour, Terminal};
use hither_core::foreign::Foreign;
use hither_linux::doctor::{Check, PolicyStanding};
use hither_linux::topology::{AccessClass, CacheDomain, KnownOfNodes, NodeInfo, Topology};

/// The whole machine.
pub fn topology(topology: &Topology, terminal: Terminal) -> String {
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
    text.push_str(&nodes(topology, terminal));
    text.push_str(&distances(topology, terminal));
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

fn nodes(topology: &Topology, terminal: Terminal) -> String {
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
    let paint = |row: usize, column: usize| match head[column] {
        "free" => colour_of_free(&topology.nodes[row]),
        _ => None,
    };
    Table::new(&head, &rows).paint(&paint).text(terminal)
}

/// Where a node has little free memory, what its CPUs allocate goes to others.
fn colour_of_free(node: &NodeInfo) -> Option<Colour> {
    let (free, total) = (node.memory.free_kb, node.memory.total_kb);
    match total {
        0 => None,
        total if free < total / 50 => Some(Colour::Bad),
        total if free < total / 10 => Some(Colour::Poor),
        _ => None,
    }
}

fn node(node: &NodeInfo, told: KnownOfNodes) -> Vec<String> {
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

fn distances(topology: &Topology, terminal: Terminal) -> String {
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
    let all = || topology.distances.iter().flatten().copied();
    let farthest = all().max().unwrap_or(0);
    let paint = |row: usize, column: usize| {
        let distance = *topology.distances.get(row)?.get(column.checked_sub(1)?)?;
        match distance {
            _ if row + 1 == column => Some(Colour::Good),
            distance if distance == farthest => Some(Colour::Bad),
            _ => Some(Colour::Poor),
        }
    };
    let table = Table::new(&head, &rows).paint(&paint);
    format!("\n{}", table.text(terminal))
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

/// Column of the doctor's sentences, on what is too narrow for it, and what that is.
const FOUND_AT: usize = 30;
const NARROW_FOUND_AT: usize = 4;
const NARROW: usize = 72;

/// The doctor's findings, with remedies, and what policies would stand on.
pub fn doctor(checks: &[Check], standings: &[PolicyStanding], terminal: Terminal) -> String {
    let mut text = String::new();
    for check in checks {
        let answer = match check.works {
            true => ("works", Colour::Good),
            false => ("no", Colour::Poor),
        };
        let mut sentences = vec![check.found.clone()];
        if !check.remedy.is_empty() {
            sentences.push(format!("to enable it: {}", check.remedy));
        }
        text.push_str(&row(
            check.role.name(),
            check.name,
            answer,
            &sentences,
            terminal,
        ));
    }
    text.push_str("\nevidence of each policy here: pmu is better than software\n");
    for (number, standing) in standings.iter().enumerate() {
        let evidence = standing.rung.map_or("", |rung| rung.name());
        let answer = match standing.works {
            true => ("works", Colour::Good),
            false => ("no", Colour::Poor),
        };
        let mut sentences = vec![match standing.tracker {
            Some(tracker) => format!("{evidence} ({tracker}): {}", standing.found),
            None => standing.found.clone(),
        }];
        let same = |other: &&PolicyStanding| other.raise == standing.raise;
        match standings[..number].iter().find(same) {
            Some(other) if !standing.raise.is_empty() => {
                sentences.push(format!("for better evidence: as {}", other.policy));
            }
            _ => sentences.extend(standing.raise.iter().map(|raise| format!("for {raise}"))),
        }
        text.push_str(&row(
            "policy",
            standing.policy,
            answer,
            &sentences,
            terminal,
        ));
    }
    text
}

fn row(
    role: &str,
    name: &str,
    (answer, colour): (&str, Colour),
    sentences: &[String],
    terminal: Terminal,
) -> String {
    let width = terminal.width.unwrap_or(usize::MAX);
    let is_narrow = width < NARROW;
    let indent = match is_narrow {
        true => NARROW_FOUND_AT,
        false => FOUND_AT,
    };
    let pad = if is_narrow { 0 } else { 7 - answer.len() };
    let answer = terminal.paint(colour, answer);
    let mut text = format!("{role:<8} {name:<13} {answer}{:pad$}", "");
    let lines = sentences
        .iter()
        .flat_map(|sentence| print::lines(sentence, 0, width - indent));
    for (index, line) in lines.enumerate() {
        match index {
            0 if !is_narrow => text.push_str(&line),
            0 => text.push_str(&format!("\n{:indent$}{line}", "")),
            _ => text.push_str(&format!("{:indent$}{line}", "")),
        }
        text.push('\n');
    }
    text
}
