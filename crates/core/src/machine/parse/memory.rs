//! Memory nodes and the cache domains of their CPUs.

use super::core_side::{CACHE, cache, narrow, place_of};
use super::document::{Field, Result, Section, clip};
use super::limits;
use crate::ids::{CpuId, DomainId, NodeId};
use crate::machine::{Cache, Capacity, Curve, Domain, MemoryKind, Node};
use crate::set::CpuSet;

/// Fields that `[node_defaults]` may give.
const NODE_DEFAULTS: &[&str] = &[
    "memory_mb",
    "tier",
    "kind",
    "idle_ns",
    "curve",
    "capacity_gbs",
];
const NODE: &[&str] = &[
    "id",
    "cpus",
    "memory_mb",
    "tier",
    "kind",
    "idle_ns",
    "curve",
    "capacity_gbs",
];

/// `[[node]]` and `[node_defaults]`: ascending by id, CPUs 0..n without holes.
pub(super) fn nodes(root: &Section) -> Result<Vec<Node>> {
    let Some(field) = root.get("node") else {
        let remedy = format!("add [[node]] with {}", NODE.join(", "));
        return Err(root.place.at("node").error("there is no node", remedy));
    };
    let sections = field.sections(limits::NODES, NODE)?;
    let defaults = defaults(root, "node_defaults", NODE_DEFAULTS, &sections)?;
    let mut nodes: Vec<Node> = Vec::with_capacity(sections.len());
    for (position, section) in sections.into_iter().enumerate() {
        let section = section.with_defaults(defaults.as_ref());
        let node = node(&section, position)?;
        if let Some(other) = nodes.iter().find(|other| other.id == node.id) {
            return Err(place_of(&section, "id").error(
                format!("two nodes have the id {}", other.id.0),
                "give each node an id of its own",
            ));
        }
        for other in &nodes {
            if let Some(cpu) = other.cpus.intersection(&node.cpus).first() {
                return Err(place_of(&section, "cpus").error(
                    format!("CPU {} is in {} too", cpu.0, other.id),
                    "put each CPU into one node",
                ));
            }
        }
        nodes.push(node);
    }
    nodes.sort_by_key(|node| node.id);
    check_cpus(&field, &nodes)?;
    check_tiers(&field, &nodes)?;
    Ok(nodes)
}

/// A section of defaults, refused where a field of it serves nobody: it would go unread.
pub(super) fn defaults<'a>(
    root: &Section<'a>,
    name: &str,
    known: &[&str],
    users: &[Section<'a>],
) -> Result<Option<Section<'a>>> {
    let Some(field) = root.get(name) else {
        return Ok(None);
    };
    let section = field.section(known)?;
    if let Some(idle) = section
        .names()
        .find(|name| users.iter().all(|user| user.has_own(name)))
    {
        return Err(place_of(&section, idle).error(
            "nothing takes this default",
            "delete it, each has a value of its own",
        ));
    }
    Ok(Some(section))
}

fn node(section: &Section, position: usize) -> Result<Node> {
    let id = match section.get("id") {
        Some(field) => field.whole(0, limits::NODE_ID)?,
        None => position as u64,
    };
    let cpus = match section.get("cpus") {
        Some(field) => cpu_list(&field)?,
        None => CpuSet::new(),
    };
    let tier = section
        .get("tier")
        .map_or(Ok(0), |field| field.whole(0, limits::TIER))?;
    let least_mb = match cpus.is_empty() {
        true => limits::MEMORY_MB_MIN_ALONE,
        false => limits::MEMORY_MB_MIN,
    };
    Ok(Node {
        id: NodeId(narrow(id)),
        cpus,
        memory_mb: section.whole("memory_mb", least_mb, limits::MEMORY_MB_MAX)?,
        tier: narrow(tier),
        kind: section
            .get("kind")
            .map_or(Ok(MemoryKind::Dram), |field| kind(&field))?,
        idle_ns: section.number("idle_ns", limits::LATENCY_NS_MIN, limits::NS)?,
        curve: curve(section)?,
        capacity: capacity(section)?,
    })
}

/// `cpus = "0-3,8"`
fn cpu_list(field: &Field) -> Result<CpuSet> {
    const REMEDY: &str = "write a list like \"0-3,8\"";
    let text = field.text(4096)?;
    // Bounded here, before the list is spelled out: its own limit is far higher.
    let too_high = text.split(|c: char| !c.is_ascii_digit()).find(|digits| {
        digits
            .parse::<u32>()
            .map_or(!digits.is_empty(), |n| n >= limits::CPUS as u32)
    });
    if let Some(digits) = too_high {
        return Err(field.place.error(
            format!("there is no CPU {}", clip(digits)),
            format!("CPUs are numbered from 0 to at most {}", limits::CPUS - 1),
        ));
    }
    text.parse().map_err(|error: crate::set::ListError| {
        field.place.error(
            format!("\"{}\": {}", clip(text), clip(&error.reason)),
            REMEDY,
        )
    })
}

fn kind(field: &Field) -> Result<MemoryKind> {
    let text = field.text(100)?;
    match MemoryKind::ALL.into_iter().find(|kind| kind.word() == text) {
        Some(kind) => Ok(kind),
        None => Err(field.place.error(
            format!("there is no memory of kind \"{}\"", clip(text)),
            format!(
                "write one of {}",
                MemoryKind::ALL.map(MemoryKind::word).join(", ")
            ),
        )),
    }
}

/// `curve = { a_ns = 0, b_ns = 10, n = 1 }`
pub(super) fn curve(section: &Section) -> Result<Curve> {
    let curve = section
        .need("curve", "{ a_ns = .., b_ns = .., n = .. }")?
        .section(&["a_ns", "b_ns", "n"])?;
    Ok(Curve {
        a_ns: curve.number("a_ns", 0.0, limits::NS)?,
        b_ns: curve.number("b_ns", 0.0, limits::NS)?,
        n: curve.number("n", 1.0, 8.0)?,
    })
}

/// `capacity_gbs = 6.15`, or by read share `capacity_gbs = [[0.56, 87], [0.96, 105]]`
fn capacity(section: &Section) -> Result<Capacity> {
    const EXAMPLE: &str = "[[0.5, 80], [1.0, 100]]";
    let field = section.need("capacity_gbs", &format!("GB/s, or a list like {EXAMPLE}"))?;
    if !field.is_array() {
        return Ok(Capacity {
            points: vec![(1.0, field.number(limits::GBS_MIN, limits::GBS_MAX)?)],
        });
    }
    let mut points: Vec<(f64, f64)> = Vec::new();
    for point in field.array(limits::CAPACITY_POINTS, EXAMPLE)? {
        let pair = point.array(limits::CAPACITY_POINTS, "[read share, GB/s]")?;
        let [share, gbs] = pair.as_slice() else {
            return Err(point
                .place
                .error("a point has two numbers", "write [read share, GB/s]"));
        };
        let share_value = share.number(0.0, 1.0)?;
        if points.last().is_some_and(|&(last, _)| share_value <= last) {
            return Err(share.place.error(
                "read shares do not ascend",
                "sort the points by read share, each once",
            ));
        }
        points.push((share_value, gbs.number(limits::GBS_MIN, limits::GBS_MAX)?));
    }
    if points.is_empty() {
        return Err(field
            .place
            .error("the list is empty", format!("write one like {EXAMPLE}")));
    }
    Ok(Capacity { points })
}

fn check_cpus(field: &Field, nodes: &[Node]) -> Result<()> {
    let cpus = nodes
        .iter()
        .fold(CpuSet::new(), |all, node| all.union(&node.cpus));
    if cpus.is_empty() {
        return Err(field
            .place
            .error("no node has a CPU", "give one `cpus = \"0-3\"`"));
    }
    match cpus
        .iter()
        .enumerate()
        .find(|&(position, cpu)| cpu.0 as usize != position)
    {
        Some((hole, _)) => Err(field.place.error(
            format!("no node has CPU {hole}, though there are higher ones"),
            "number the CPUs from 0 without holes",
        )),
        None => Ok(()),
    }
}

fn check_tiers(field: &Field, nodes: &[Node]) -> Result<()> {
    let highest = nodes.iter().map(|node| node.tier).max().unwrap_or(0);
    match (0..=highest).find(|&tier| nodes.iter().all(|node| node.tier != tier)) {
        Some(tier) => Err(field.place.error(
            format!("no node has tier {tier}, though there are higher ones"),
            "number the tiers from 0 (fastest) without holes",
        )),
        None => Ok(()),
    }
}

/// `[llc]` (one per node, or per `cpus_per_domain` CPUs of it) or `[[domain]]` (listed): every
/// CPU in exactly one domain, every domain within one node.
pub(super) fn domains(root: &Section, nodes: &[Node], line_bytes: u32) -> Result<Vec<Domain>> {
    match (root.get("llc"), root.get("domain")) {
        (Some(llc), None) => {
            let section = llc.section(&["size_kb", "ways", "latency_ns", "cpus_per_domain"])?;
            equal_domains(&section, nodes, line_bytes)
        }
        (None, Some(domain)) => listed_domains(&domain, nodes, line_bytes),
        (Some(_), Some(domain)) => Err(domain.place.error(
            "there are [llc] and [[domain]]",
            "keep one: [llc] where all are alike",
        )),
        (None, None) => Err(root.place.at("llc").error(
            "the section is missing",
            format!(
                "add [llc] with {} (or list [[domain]] sections)",
                CACHE.join(", ")
            ),
        )),
    }
}

fn equal_domains(section: &Section, nodes: &[Node], line_bytes: u32) -> Result<Vec<Domain>> {
    let cache = cache(section, line_bytes)?;
    let per_domain = match section.get("cpus_per_domain") {
        Some(field) => Some((field.whole(1, limits::CPUS as u64)? as usize, field)),
        None => None,
    };
    let mut domains = Vec::new();
    for node in nodes.iter().filter(|node| !node.cpus.is_empty()) {
        let cpus: Vec<CpuId> = node.cpus.iter().collect();
        let size = match &per_domain {
            Some((size, field)) if !cpus.len().is_multiple_of(*size) => {
                return Err(field.place.error(
                    format!("{} has {} CPUs, no multiple of {size}", node.id, cpus.len()),
                    "write a divisor, or list [[domain]] sections",
                ));
            }
            Some((size, _)) => *size,
            None => cpus.len(),
        };
        for chunk in cpus.chunks(size) {
            push_domain(&mut domains, chunk.iter().copied().collect(), cache.clone());
        }
    }
    Ok(domains)
}

fn listed_domains(field: &Field, nodes: &[Node], line_bytes: u32) -> Result<Vec<Domain>> {
    let mut domains: Vec<Domain> = Vec::new();
    for section in field.sections(limits::CPUS, &["cpus", "size_kb", "ways", "latency_ns"])? {
        let field = section.need("cpus", "a list like \"0-3\"")?;
        let cpus = cpu_list(&field)?;
        let Some(first) = cpus.first() else {
            return Err(field
                .place
                .error("the domain has no CPU", "delete it, or name its CPUs"));
        };
        let Some(home) = nodes.iter().find(|node| node.cpus.contains(first)) else {
            return Err(field.place.error(
                format!("no node has CPU {}", first.0),
                "name CPUs of the nodes",
            ));
        };
        if let Some(stray) = cpus.iter().find(|&cpu| !home.cpus.contains(cpu)) {
            return Err(field.place.error(
                format!(
                    "CPU {} is not in {} as CPU {} is",
                    stray.0, home.id, first.0
                ),
                "keep a domain within one node",
            ));
        }
        for other in &domains {
            if let Some(cpu) = other.cpus.intersection(&cpus).first() {
                return Err(field.place.error(
                    format!("CPU {} is in {} too", cpu.0, other.id),
                    "put each CPU into one domain",
                ));
            }
        }
        let cache = cache(&section, line_bytes)?;
        push_domain(&mut domains, cpus, cache);
    }
    let held = domains
        .iter()
        .fold(CpuSet::new(), |all, domain| all.union(&domain.cpus));
    let mut cpus = nodes.iter().flat_map(|node| node.cpus.iter());
    match cpus.find(|&cpu| !held.contains(cpu)) {
        Some(cpu) => Err(field.place.error(
            format!("no domain has CPU {}", cpu.0),
            "put each CPU into one domain",
        )),
        None => Ok(domains),
    }
}

fn push_domain(domains: &mut Vec<Domain>, cpus: CpuSet, cache: Cache) {
    let id = DomainId(narrow(domains.len() as u64));
    domains.push(Domain { id, cpus, cache });
}
