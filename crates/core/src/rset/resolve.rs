//! From expression to [`ResourceSet`], on one machine.
//!
//! 1. Every term is looked up on the whole machine; what is not there is an error that says what
//!    is. Only `allowed`, `allowed-node` and `fastest` look at what the process may use: the first
//!    two mean it, and the third would promise memory that cannot be had.
//! 2. Operators are those of sets.
//! 3. The result is clipped to what is allowed. What is left out is said. It is an error where
//!    nothing is left, and where CPUs were asked for and none is left, or memory and none is left:
//!    whoever binds a program would take such a set for one that says nothing of that part, and
//!    let the program run anywhere.

use super::ResourceSet;
use super::expression::{Expression, Term, What};
use super::parse::ExpressionFault;
use super::resources::{Level, Node, Resources, union};
use crate::foreign::Foreign;
use crate::ids::NodeId;
use crate::set::{CpuSet, IdSet, NodeSet, NumberSet, Numbered};
use crate::size::short_bytes;

/// Most devices that a message lists.
const MOST_LISTED: usize = 24;

/// What an expression comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// On the whole machine.
    pub asked: ResourceSet,
    /// What of it is allowed: `asked` and `allowed` intersected. Never empty.
    pub set: ResourceSet,
    /// One sentence for each thing left out.
    pub warnings: Vec<String>,
}

impl Resolved {
    /// What was asked for and is not allowed.
    #[must_use]
    pub fn left_out(&self) -> ResourceSet {
        self.asked.difference(&self.set)
    }
}

impl Expression {
    /// Works it out on a machine and clips it.
    ///
    /// # Errors
    /// A term names what is not there or not known, or nothing is left of the CPUs, of the memory,
    /// or of the whole.
    pub fn resolve(&self, resources: &Resources) -> Result<Resolved, ExpressionFault> {
        let mut warnings = Vec::new();
        let asked = evaluate(self, resources, &mut warnings)?;
        if asked.is_empty() {
            return Err(ExpressionFault::whole(format!(
                "`{self}` comes to nothing here, neither a CPU nor memory; \
                 see what its parts come to"
            )));
        }
        if let Self::Difference(left, _) = self
            && asked.cpus.is_empty()
            && !evaluate(left, resources, &mut Vec::new())?.cpus.is_empty()
        {
            warnings.push(format!(
                "`{self}` takes all CPUs away and has memory alone, which says nothing of where \
                 threads run"
            ));
        }
        let set = clip(&asked, resources, &mut warnings)?;
        Ok(Resolved {
            asked,
            set,
            warnings,
        })
    }

    /// What of it is allowed; may be nothing. For comparisons and for operators on sets that have
    /// nothing in common: whoever binds a program asks [`Expression::resolve`].
    ///
    /// # Errors
    /// A term names what is not there or not known.
    pub fn usable(&self, resources: &Resources) -> Result<ResourceSet, ExpressionFault> {
        let asked = evaluate(self, resources, &mut Vec::new())?;
        Ok(asked.intersection(&resources.usable()))
    }
}

/// Takes away what is not allowed, and says so.
fn clip(
    asked: &ResourceSet,
    resources: &Resources,
    warnings: &mut Vec<String>,
) -> Result<ResourceSet, ExpressionFault> {
    let usable = resources.usable();
    let set = asked.intersection(&usable);
    let (cpus, nodes) = (&asked.cpus, &asked.nodes);
    if set.cpus.is_empty() && !cpus.is_empty() {
        return Err(ExpressionFault::whole(format!(
            "the set has CPUs {cpus} and none of them is allowed: \
             cpuset or affinity leave this process CPUs {}; name some of those",
            or_none(&usable.cpus)
        )));
    }
    if set.nodes.is_empty() && !nodes.is_empty() {
        return Err(ExpressionFault::whole(format!(
            "the set has memory of {} and none of it is allowed: \
             the cpuset leaves this process memory of {}; name some of those",
            of_nodes(nodes),
            of_nodes(&usable.nodes)
        )));
    }
    let out = asked.difference(&set);
    if !out.cpus.is_empty() {
        warnings.push(format!(
            "CPUs {} are left out: cpuset or affinity leave this process CPUs {}",
            out.cpus, usable.cpus
        ));
    }
    if !out.nodes.is_empty() {
        warnings.push(format!(
            "memory of {} is left out: the cpuset leaves this process memory of {}",
            of_nodes(&out.nodes),
            of_nodes(&usable.nodes)
        ));
    }
    Ok(set)
}

/// The set on the whole machine.
pub(super) fn evaluate(
    expression: &Expression,
    resources: &Resources,
    warnings: &mut Vec<String>,
) -> Result<ResourceSet, ExpressionFault> {
    let mut go = |expression: &Expression| evaluate(expression, resources, warnings);
    Ok(match expression {
        Expression::Term(term) => return look_up(term, resources, warnings),
        Expression::Complement(inner) => go(inner)?.complement(&resources.machine()),
        Expression::Intersection(left, right) => go(left)?.intersection(&go(right)?),
        Expression::Union(left, right) => go(left)?.union(&go(right)?),
        Expression::Difference(left, right) => go(left)?.difference(&go(right)?),
    })
}

fn look_up(
    term: &Term,
    resources: &Resources,
    warnings: &mut Vec<String>,
) -> Result<ResourceSet, ExpressionFault> {
    let found = match &term.what {
        What::Machine => Ok(resources.machine()),
        What::Allowed => Ok(resources.usable()),
        What::Parts(level, numbers) => parts(resources, *level, numbers),
        What::MachineNodes(numbers) => machine_nodes(resources, numbers),
        What::AllowedNodes(numbers) => allowed_nodes(resources, numbers),
        What::Cpus(cpus) => cpus_alone(resources, cpus),
        What::Memory(nodes) => memory_alone(resources, nodes),
        What::Tiers(ranks) => tiers(resources, ranks),
        What::LocalTo(device) => {
            device_position(resources, device).map(|at| resources.nodes[at].set())
        }
        What::Near(place) => near_position(resources, place).map(|at| resources.near(at)),
        What::Fastest(bytes) => fastest(resources, *bytes, warnings),
    };
    found.map_err(|reason| ExpressionFault::at(term.at.clone(), reason))
}

/// The chosen ones, or which are not there, and which are.
fn choose<T: Numbered>(
    wanted: &IdSet<T>,
    have: &[(T, ResourceSet)],
    word: &str,
) -> Result<ResourceSet, String> {
    let known: IdSet<T> = have.iter().map(|(number, _)| *number).collect();
    let missing = wanted.difference(&known);
    if !missing.is_empty() {
        return Err(format!(
            "there is no {word} {missing}; this machine has {word} {known}"
        ));
    }
    let chosen = have.iter().filter(|(number, _)| wanted.contains(*number));
    Ok(union(chosen.map(|(_, set)| set.clone())))
}

fn parts(resources: &Resources, level: Level, numbers: &NumberSet) -> Result<ResourceSet, String> {
    let have = resources.parts(level);
    if have.is_empty() {
        return Err(match level {
            Level::Package => "firmware numbers no packages here; name nodes or CPUs".to_owned(),
            _ => format!(
                "it is not known which CPUs share a {} here; name CPUs",
                level.word()
            ),
        });
    }
    choose(numbers, &have, level.word())
}

fn machine_nodes(resources: &Resources, numbers: &NumberSet) -> Result<ResourceSet, String> {
    let sets = resources.nodes.iter().map(Node::set);
    let have: Vec<(u32, ResourceSet)> = (0..).zip(sets).collect();
    choose(numbers, &have, "machine-node").map_err(|reason| {
        // Who gives the kernel's number of a sparse node is told how it is counted.
        let confused = (0u32..)
            .zip(&resources.nodes)
            .find(|(count, node)| numbers.contains(node.id.0) && *count != node.id.0);
        let hint = confused.map(|(count, node)| format!("; {} is machine-node:{count}", node.id));
        format!("{reason}, counted from 0{}", hint.unwrap_or_default())
    })
}

fn allowed_nodes(resources: &Resources, numbers: &NumberSet) -> Result<ResourceSet, String> {
    let usable = resources.usable().nodes;
    let nodes = resources.nodes.iter().filter(|n| usable.contains(n.id));
    let have: Vec<(u32, ResourceSet)> = (0..).zip(nodes.map(Node::set)).collect();
    choose(numbers, &have, "allowed-node").map_err(|reason| {
        format!(
            "{reason}, counted from 0: this process may use memory of {}",
            of_nodes(&usable)
        )
    })
}

fn cpus_alone(resources: &Resources, cpus: &CpuSet) -> Result<ResourceSet, String> {
    let known = resources.machine().cpus;
    let missing = cpus.difference(&known);
    let offline = missing.intersection(&resources.offline);
    if !offline.is_empty() {
        return Err(format!("CPUs {offline} are offline; CPUs {known} run here"));
    }
    if !missing.is_empty() {
        return Err(format!(
            "there are no CPUs {missing}; CPUs {known} run here"
        ));
    }
    Ok(ResourceSet::of_cpus(cpus.clone()))
}

fn memory_alone(resources: &Resources, nodes: &NodeSet) -> Result<ResourceSet, String> {
    let known: NodeSet = resources.nodes.iter().map(|node| node.id).collect();
    let with_memory = resources.machine().nodes;
    let missing = nodes.difference(&known);
    if !missing.is_empty() {
        return Err(format!(
            "there is no node {missing}; {} have memory here",
            of_nodes(&with_memory)
        ));
    }
    let without = nodes.difference(&with_memory);
    if !without.is_empty() {
        return Err(format!(
            "{without} is a node without memory; {} have some",
            of_nodes(&with_memory)
        ));
    }
    Ok(ResourceSet::of_memory(nodes.clone()))
}

fn tiers(resources: &Resources, ranks: &NumberSet) -> Result<ResourceSet, String> {
    let in_tiers = resources.nodes.iter().filter(|node| node.has_memory());
    let have: Vec<(u32, ResourceSet)> = in_tiers
        .filter_map(|node| Some((node.tier?, ResourceSet::of_memory(node.set().nodes))))
        .collect();
    if have.is_empty() {
        return Err(
            "this kernel names no memory tiers (Linux 6.1 and later do); \
                    name nodes, as in mem:0"
                .to_owned(),
        );
    }
    choose(ranks, &have, "tier")
}

/// Position of the node that a device is attached to.
///
/// # Errors
/// There is no such device, or nobody knows its node.
pub fn device_position(resources: &Resources, name: &str) -> Result<usize, String> {
    let device = resources.devices.iter().find(|device| device.name == name);
    let Some(device) = device else {
        return Err(format!(
            "there is no device `{}`; {}",
            name.shown(),
            known_devices(resources)
        ));
    };
    match device.node {
        Some(node) => resources
            .position(node)
            .ok_or_else(|| format!("`{name}` is attached to {node}, which is not online")),
        // The kernel gives no node on a machine with one: it can only be that.
        None if resources.nodes.len() == 1 => Ok(0),
        None => Err(format!(
            "firmware does not say which node `{name}` is attached to; name the node"
        )),
    }
}

/// Position of a device's node, or of a node, as in `gpu0` or `node2`.
///
/// # Errors
/// There is neither, or nobody knows the device's node.
pub fn near_position(resources: &Resources, place: &str) -> Result<usize, String> {
    let number = place
        .strip_prefix("node")
        .and_then(|digits| digits.parse().ok());
    let is_device = resources.devices.iter().any(|device| device.name == place);
    match number {
        Some(number) if !is_device => resources.position(NodeId(number)).ok_or_else(|| {
            let known: NodeSet = resources.nodes.iter().map(|node| node.id).collect();
            format!("there is no {place}; this machine has {}", of_nodes(&known))
        }),
        _ => device_position(resources, place),
    }
}

/// Devices in a sentence. Those that have no better name than their address are not listed.
fn known_devices(resources: &Resources) -> String {
    let (addresses, names): (Vec<&str>, Vec<&str>) = resources
        .devices
        .iter()
        .map(|device| device.name.as_str())
        .partition(|name| name.contains(':'));
    let mut text = match names.len() {
        0 => "none has a name here".to_owned(),
        _ => format!(
            "there are {}",
            names[..names.len().min(MOST_LISTED)].join(", ")
        ),
    };
    if names.len() > MOST_LISTED {
        text.push_str(&format!(" and {} more", names.len() - MOST_LISTED));
    }
    if let Some(first) = addresses.first() {
        text.push_str(&format!(", and devices by PCI address, as in {first}"));
    }
    text
}

/// Allowed memory by falling bandwidth, until so much of it is free. Of equal nodes the lower
/// number comes first.
fn fastest(
    resources: &Resources,
    bytes: u64,
    warnings: &mut Vec<String>,
) -> Result<ResourceSet, String> {
    let usable = resources.usable().nodes;
    let mut nodes: Vec<&Node> = resources.nodes.iter().collect();
    nodes.retain(|node| usable.contains(node.id));
    let unknown: NodeSet = nodes
        .iter()
        .filter(|node| node.read_bandwidth_mbs.is_none())
        .map(|node| node.id)
        .collect();
    if nodes.len() > 1 && !unknown.is_empty() {
        return Err(format!(
            "the bandwidth of {} is not known, for firmware has no figures (HMAT); \
             name nodes, as in mem:0, or a tier",
            of_nodes(&unknown)
        ));
    }
    // The sort keeps the order of numbers among equals.
    nodes.sort_by_key(|node| std::cmp::Reverse(node.read_bandwidth_mbs));
    let mut available_bytes = 0u64;
    let mut slowest_mbs = None;
    let mut chosen = NodeSet::new();
    for node in &nodes {
        if available_bytes >= bytes {
            break;
        }
        available_bytes = available_bytes.saturating_add(node.available_bytes);
        slowest_mbs = node.read_bandwidth_mbs;
        chosen.insert(node.id);
    }
    if available_bytes < bytes {
        return Err(format!(
            "{} are available in all memory that this process may use ({}), less than was asked for",
            short_bytes(available_bytes >> 20 << 20),
            of_nodes(&usable)
        ));
    }
    let passed: NodeSet = resources
        .nodes
        .iter()
        .filter(|node| node.has_memory() && !usable.contains(node.id))
        .filter(|node| slowest_mbs.is_some() && node.read_bandwidth_mbs > slowest_mbs)
        .map(|node| node.id)
        .collect();
    if !passed.is_empty() {
        warnings.push(format!(
            "memory of {} is faster and passed over: the cpuset leaves this process memory of {}",
            of_nodes(&passed),
            of_nodes(&usable)
        ));
    }
    Ok(ResourceSet::of_memory(chosen))
}

/// `node 1`, `nodes 0,8`, `no node`.
fn of_nodes(nodes: &NodeSet) -> String {
    match nodes.len() {
        0 => "no node".to_owned(),
        1 => format!("node {nodes}"),
        _ => format!("nodes {nodes}"),
    }
}

fn or_none(cpus: &CpuSet) -> String {
    match cpus.is_empty() {
        true => "none".to_owned(),
        false => cpus.to_string(),
    }
}
