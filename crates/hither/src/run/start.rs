//! `--choose`: the nodes that a program starts on, picked by what is free now.

use crate::print;
use anyhow::{anyhow, bail, ensure};
use hither_core::bind::choose::{self, Candidate, Criterion};
use hither_core::bind::ranks;
use hither_core::ids::CpuId;
use hither_core::rset::resolve::near_position;
use hither_core::rset::{ResourceSet, Resources};
use hither_core::set::CpuSet;
use hither_linux::proc::cpu_times;
use hither_linux::root::Root;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long CPUs are looked at: ten ticks of the kernel's clock.
const LOOK: Duration = Duration::from_millis(100);

/// What the nodes are chosen for.
pub struct Wanted<'a> {
    /// How many nodes.
    pub count: usize,
    /// Memory that they must have free together, in bytes.
    pub needed_bytes: u64,
    /// A device or node to be near.
    pub near: Option<&'a str>,
    /// Nodes are taken from here; from all that may be used where it names no memory.
    pub from: &'a ResourceSet,
}

/// The chosen nodes with their CPUs, and sentences that say why.
///
/// # Errors
/// There are not so many nodes with CPUs and memory, they have not so much memory free, or the
/// device has no place.
pub fn choose(
    wanted: &Wanted<'_>,
    resources: &Resources,
    root: &Root,
) -> anyhow::Result<(ResourceSet, Vec<String>)> {
    let usable = resources.usable();
    let from = match wanted.from.is_empty() {
        true => &usable,
        false => wanted.from,
    };
    let device = wanted.near.map(|name| near_position(resources, name));
    let device = device.transpose();
    let device = device.map_err(|why| anyhow!("--near: {why}"))?;
    let idle = idle_shares(root)?;
    let candidates = ranks::nodes(from, resources)
        .into_iter()
        .filter_map(|(id, cpus)| {
            let at = resources.position(id)?;
            let node = &resources.nodes[at];
            Some(Candidate {
                node: id,
                cpu_count: cpus.len(),
                idle_cpus: cpus.iter().filter_map(|cpu| idle.get(&cpu)).sum(),
                available_bytes: node.available_bytes,
                bandwidth_mbs: node.read_bandwidth_mbs,
                device_distance: device.map(|device| resources.distances[at][device]),
            })
        });
    let per_node = wanted.needed_bytes.div_ceil(wanted.count.max(1) as u64);
    let ranked = choose::rank(candidates.collect(), per_node);
    ensure!(
        ranked.len() >= wanted.count,
        "--choose {}: there are {} nodes with CPUs and memory to choose from; choose fewer, or from a \
         larger set",
        wanted.count,
        ranked.len()
    );
    let chosen = &ranked[..wanted.count];
    let available: u64 = chosen
        .iter()
        .map(|(candidate, _)| candidate.available_bytes)
        .sum();
    if available < wanted.needed_bytes {
        bail!(
            "--needs {}: the best {} of {} nodes have {} available; choose more, or free some",
            print::bytes(wanted.needed_bytes),
            wanted.count,
            ranked.len(),
            print::bytes(available)
        );
    }
    let mut set = ResourceSet::new();
    for (candidate, _) in chosen {
        let node = resources.node(candidate.node);
        let cpus: CpuSet = node.map_or(CpuSet::new(), |node| node.cpus.intersection(&from.cpus));
        let nodes = [candidate.node].into_iter().collect();
        set = set.union(&ResourceSet { cpus, nodes });
    }
    Ok((set, reasons(&ranked, wanted.count)))
}

/// A sentence for each node, and one that says why the last of the chosen came before the next.
fn reasons(ranked: &[(Candidate, Criterion)], count: usize) -> Vec<String> {
    let mut told = Vec::new();
    for (at, (candidate, criterion)) in ranked.iter().enumerate() {
        let mut text = format!(
            "{} {}: {:.1} of {} CPUs idle, {} available",
            if at < count { "chosen" } else { "left" },
            candidate.node,
            candidate.idle_cpus,
            candidate.cpu_count,
            print::bytes(candidate.available_bytes)
        );
        if let Some(mbs) = candidate.bandwidth_mbs {
            text += &format!(", {:.0} GB/s", mbs as f64 / 1000.0);
        }
        if let Some(distance) = candidate.device_distance {
            text += &format!(", distance {distance} to what it should be near");
        }
        if let (true, Some((next, _))) = (at + 1 == count, ranked.get(count)) {
            text += &format!("; before {}: {}", next.node, criterion.why());
        }
        told.push(text);
    }
    told
}

fn idle_shares(root: &Root) -> anyhow::Result<BTreeMap<CpuId, f64>> {
    let read = || root.parse("proc/stat", cpu_times::parse);
    let before = read()?;
    std::thread::sleep(LOOK);
    let after = read()?.into_iter();
    Ok(after
        .map(|(cpu, now)| {
            let then = before.get(&cpu).copied().unwrap_or(now);
            (cpu, cpu_times::idle_share(then, now))
        })
        .collect())
}
