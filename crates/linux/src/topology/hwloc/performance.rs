//! Distances (`distances2`), and latency and bandwidth (`memattr`), of hwloc's files.

use super::bitmap;
use super::xml::Element;
use crate::parse::{Parsed, clip};
use crate::topology::{AccessClass, NodeInfo};
use hither_core::set::{CpuSet, NodeSet};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What the kernel takes where firmware has no SLIT (`include/linux/topology.h`).
const LOCAL: u32 = 10;
const REMOTE: u32 = 20;
/// `HWLOC_DISTANCES_KIND_MEANS_LATENCY`.
const MEANS_LATENCY: u64 = 4;

/// The kernel's distances, by position in `nodes`.
///
/// ```text
/// <distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os">
///   <indexes length="4">0 8 </indexes>
///   <u64values length="12">10 40 40 10 </u64values>
/// </distances2>
/// ```
pub(super) fn read_distances(
    root: &Element,
    nodes: &[NodeInfo],
    notes: &mut Vec<String>,
) -> Parsed<Vec<Vec<u32>>> {
    let mut candidates: Vec<&Element> = Vec::new();
    for element in root.children_named("distances2") {
        let kind: u64 = element.required_number("kind")?;
        let is_of_nodes = element.attribute("type") == Some("NUMANode");
        if is_of_nodes && kind & MEANS_LATENCY != 0 {
            candidates.push(element);
        }
    }
    // The name is that of the matrix from the kernel; before hwloc 2.1 there were no names.
    candidates.sort_by_key(|element| element.attribute("name") != Some("NUMALatency"));
    let chosen = candidates.first();
    if let Some(distances) = chosen
        .map(|element| matrix(element, nodes))
        .transpose()?
        .flatten()
    {
        return Ok(distances);
    }
    let count = nodes.len();
    if count > 1 {
        let why = match chosen {
            Some(_) => "distances that are not those of an ACPI SLIT over all nodes",
            None => "no distances",
        };
        notes.push(format!(
            "the file has {why}: {LOCAL} to a node itself and {REMOTE} to others are taken, as Linux does"
        ));
    }
    let distance = |from, to| if from == to { LOCAL } else { REMOTE };
    let row = |from| (0..count).map(|to| distance(from, to)).collect();
    Ok((0..count).map(row).collect())
}

/// None where it is no SLIT, or not of all nodes.
fn matrix(element: &Element, nodes: &[NodeInfo]) -> Parsed<Option<Vec<Vec<u32>>>> {
    let indexes = numbers(element, "indexes", nodes.len())?;
    let values = numbers(element, "u64values", nodes.len() * nodes.len())?;
    if values.len() != indexes.len() * indexes.len() {
        let (values, indexes) = (values.len(), indexes.len());
        return Err(element.fault(format!("has {values} distances of {indexes} nodes")));
    }
    let place = |node: &NodeInfo| {
        let mut indexes = indexes.iter();
        indexes.position(|index| *index == u64::from(node.id.0))
    };
    let Some(places) = nodes.iter().map(place).collect::<Option<Vec<usize>>>() else {
        return Ok(None);
    };
    let distance = |from: usize, to: usize| {
        let distance = u32::try_from(values[from * indexes.len() + to]).ok();
        distance.filter(|distance| match from == to {
            true => *distance == LOCAL,
            false => (LOCAL..=255).contains(distance),
        })
    };
    let row = |from: &usize| places.iter().map(|to| distance(*from, *to)).collect();
    Ok(places.iter().map(row).collect())
}

/// Numbers of all children of this name, in their order.
fn numbers(element: &Element, name: &str, most: usize) -> Parsed<Vec<u64>> {
    let mut numbers = Vec::new();
    for child in element.children_named(name) {
        for word in child.text.split_whitespace() {
            let number = word.parse();
            numbers
                .push(number.map_err(|_| child.fault(format!("`{}` is no number", clip(word))))?);
            if numbers.len() > most {
                return Err(child.fault(format!("has more {name} than there are nodes for")));
            }
        }
    }
    Ok(numbers)
}

/// Latency and bandwidth as seen from the best initiators, into class 1: hwloc's initiators are
/// CPUs, and it takes the kernel's class 1 where there is one.
///
/// ```text
/// <memattr name="ReadLatency" flags="6">
///   <memattr_value target_obj_type="NUMANode" target_obj_gp_index="18" value="130"
///    initiator_cpuset="0x0000000f"/>
/// </memattr>
/// ```
pub(super) fn read_access(
    root: &Element,
    nodes: &mut [NodeInfo],
    targets: &BTreeMap<u64, usize>,
    sets: &BTreeMap<u64, CpuSet>,
) -> Parsed<()> {
    let mut seen: BTreeMap<(usize, NodeSet), AccessClass> = BTreeMap::new();
    // The means over reads and writes fill in where these are not told.
    for is_mean in [false, true] {
        for attribute in root.children_named("memattr") {
            let name = attribute.required("name")?;
            if is_mean != ["Latency", "Bandwidth"].contains(&name) {
                continue;
            }
            for value in attribute.children_named("memattr_value") {
                let target = value.required_number::<u64>("target_obj_gp_index")?;
                let number: u64 = value.required_number("value")?;
                let Some(&position) = targets.get(&target) else {
                    continue;
                };
                let cpus = initiator(value, sets)?;
                let near = nodes
                    .iter()
                    .filter(|node| !node.cpus.intersection(&cpus).is_empty());
                let initiators: NodeSet = near.map(|node| node.id).collect();
                if initiators.is_empty() {
                    continue;
                }
                let key = (position, initiators);
                let access = seen
                    .entry(key)
                    .or_insert_with_key(|(_, initiators)| AccessClass {
                        class: 1,
                        initiators: initiators.clone(),
                        read_latency_ns: None,
                        write_latency_ns: None,
                        read_bandwidth_mbs: None,
                        write_bandwidth_mbs: None,
                    });
                let slots = match name {
                    "ReadLatency" => vec![&mut access.read_latency_ns],
                    "WriteLatency" => vec![&mut access.write_latency_ns],
                    "ReadBandwidth" => vec![&mut access.read_bandwidth_mbs],
                    "WriteBandwidth" => vec![&mut access.write_bandwidth_mbs],
                    "Latency" => vec![&mut access.read_latency_ns, &mut access.write_latency_ns],
                    "Bandwidth" => {
                        vec![
                            &mut access.read_bandwidth_mbs,
                            &mut access.write_bandwidth_mbs,
                        ]
                    }
                    _ => continue,
                };
                for slot in slots {
                    slot.get_or_insert(number);
                }
            }
        }
    }
    for (position, node) in nodes.iter_mut().enumerate() {
        let of_node = seen.range((position, NodeSet::new())..(position + 1, NodeSet::new()));
        // sysfs tells nothing of a node without a figure for reads either.
        let told = of_node.map(|(_, access)| access).filter(|access| {
            access
                .read_latency_ns
                .or(access.read_bandwidth_mbs)
                .is_some()
        });
        let best = told.min_by_key(|access| {
            let latency_ns = access.read_latency_ns.unwrap_or(u64::MAX);
            (latency_ns, Reverse(access.read_bandwidth_mbs))
        });
        node.access = best.cloned().into_iter().collect();
    }
    Ok(())
}

/// CPUs that a value holds for.
fn initiator(value: &Element, sets: &BTreeMap<u64, CpuSet>) -> Parsed<CpuSet> {
    if let Some(text) = value.attribute("initiator_cpuset") {
        return bitmap::parse(text)
            .map_err(|wrong| value.fault(format!("initiator_cpuset `{}` {wrong}", clip(text))));
    }
    let object: Option<u64> = value.number("initiator_obj_gp_index")?;
    let cpus = object.and_then(|object| sets.get(&object));
    Ok(cpus.cloned().unwrap_or_default())
}

/// The class to write: what CPUs see, else what anything sees; with the CPUs that see it.
pub(super) fn access_to_write(
    node: &NodeInfo,
    nodes: &[NodeInfo],
) -> Option<(AccessClass, CpuSet)> {
    let access = node
        .access
        .iter()
        .max_by_key(|access| access.class.min(1))?;
    Some((access.clone(), cpus_of(&access.initiators, nodes)))
}

/// CPUs that are near a node: its own; those of the nodes that firmware calls its best initiators;
/// those of the nearest nodes with CPUs.
pub(super) fn near(position: usize, nodes: &[NodeInfo], distances: &[Vec<u32>]) -> CpuSet {
    let node = &nodes[position];
    if !node.cpus.is_empty() {
        return node.cpus.clone();
    }
    if let Some((_, cpus)) = access_to_write(node, nodes).filter(|(_, cpus)| !cpus.is_empty()) {
        return cpus;
    }
    let with_cpus = || (0..nodes.len()).filter(|at| !nodes[*at].cpus.is_empty());
    let distance = |at: usize| distances[at][position];
    let least = with_cpus().map(distance).min();
    let nearest = with_cpus().filter(|at| Some(distance(*at)) == least);
    let nearest: NodeSet = nearest.map(|at| nodes[at].id).collect();
    cpus_of(&nearest, nodes)
}

fn cpus_of(chosen: &NodeSet, nodes: &[NodeInfo]) -> CpuSet {
    let chosen = nodes.iter().filter(|node| chosen.contains(node.id));
    chosen.fold(CpuSet::new(), |cpus, node| cpus.union(&node.cpus))
}
