//! Shrinks a machine to fewer CPUs or less memory, so that a small host can emulate it.
//!
//! Problem: a placement that overloads one of four controllers with sixteen cores shall overload
//! it with eight too.
//!
//! Mechanism: what CPUs share (controllers, links, last-level caches) shrinks in the ratio of
//! the CPUs; what one CPU sees alone (latencies, curves over utilisation, clock, private cache,
//! translation buffer, event costs, stream bandwidth) stays. CPUs are shared out over the nodes
//! that have some, in proportion to what they had (Sainte-Laguë: alike nodes stay alike as far as
//! the number allows), and each node keeps at least one. Within a node as many domains stay as
//! can have two CPUs, so that sharing stays sharing.
//!
//! Properties: `utilisation` of controllers and links under a load that is alike on all CPUs is
//! the same before and after; the result is valid; ratio 1 changes nothing.

use super::parse::limits;
use super::{Cache, Capacity, Domain, Machine, Node};
use crate::ids::{CpuId, DomainId};
use crate::set::CpuSet;
use std::collections::BTreeMap;

/// Guest memory is handed out in steps of this many MiB.
const MEMORY_STEP_MB: u64 = limits::MEMORY_MB_MIN;

/// Why a machine cannot be scaled as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScaleError {
    /// More CPUs than the machine has.
    #[error("{machine} has {has} CPUs, not {asked}; ask for {least} to {has}")]
    TooMany {
        /// The machine's name.
        machine: String,
        /// CPUs asked for.
        asked: usize,
        /// CPUs of the machine.
        has: usize,
        /// Fewest that are possible.
        least: usize,
    },
    /// Fewer CPUs than nodes with CPUs.
    #[error(
        "{machine} has {least} nodes with CPUs, {asked} CPUs are too few; ask for {least} to {has}"
    )]
    TooFew {
        /// The machine's name.
        machine: String,
        /// CPUs asked for.
        asked: usize,
        /// CPUs of the machine.
        has: usize,
        /// Fewest that are possible.
        least: usize,
    },
    /// A node's memory would be out of bounds.
    #[error("{node} of {machine} cannot have {asked_mb} MiB; give it {least_mb} to {most_mb} MiB")]
    Memory {
        /// The machine's name.
        machine: String,
        /// The node.
        node: crate::ids::NodeId,
        /// MiB asked for.
        asked_mb: u64,
        /// Least MiB of a node.
        least_mb: u64,
        /// Most MiB of a node.
        most_mb: u64,
    },
}

/// The machine with `cpus` CPUs in all; see the module's text for what shrinks.
///
/// # Errors
/// [`ScaleError::TooMany`] above the machine's CPUs, [`ScaleError::TooFew`] below its nodes with
/// CPUs.
pub fn scale(machine: &Machine, cpus: usize) -> Result<Machine, ScaleError> {
    let has = machine.cpu_count();
    let least = machine
        .nodes
        .iter()
        .filter(|node| !node.cpus.is_empty())
        .count();
    let name = || machine.name.clone();
    if cpus > has {
        return Err(ScaleError::TooMany {
            machine: name(),
            asked: cpus,
            has,
            least,
        });
    }
    if cpus < least {
        return Err(ScaleError::TooFew {
            machine: name(),
            asked: cpus,
            has,
            least,
        });
    }
    if cpus == has {
        return Ok(machine.clone());
    }
    let ratio = cpus as f64 / has as f64;
    let mut scaled = machine.clone();
    scale_cpus(machine, &mut scaled, cpus, ratio);
    for node in &mut scaled.nodes {
        node.capacity = scale_capacity(&node.capacity, ratio);
    }
    for link in &mut scaled.links {
        link.gbs = scale_gbs(link.gbs, ratio);
    }
    scaled.coherence.unit_gbs = scaled.coherence.unit_gbs.map(|gbs| scale_gbs(gbs, ratio));
    if let Some(engine) = &mut scaled.engine {
        engine.bandwidth_gbs = scale_gbs(engine.bandwidth_gbs, ratio);
    }
    for level in &mut scaled.cache_bandwidths {
        level.all_gbs = level.all_gbs.map(|gbs| scale_gbs(gbs, ratio));
    }
    scaled.scaling = joined(
        &machine.scaling,
        format!(
            "scaled from {has} to {cpus} CPUs: controllers, links and last-level caches have \
             {:.4} of their capacity, latencies and all that one CPU has alone are unchanged",
            ratio
        ),
    );
    Ok(scaled)
}

/// The machine with at most `total_mb` MiB in all, shared out in proportion to the nodes'
/// memory in steps of 64 MiB; unchanged where it has no more than that.
///
/// # Errors
/// [`ScaleError::Memory`] where a node would have less than 64 MiB.
pub fn with_total_memory_mb(machine: &Machine, total_mb: u64) -> Result<Machine, ScaleError> {
    let has_mb: u64 = machine.nodes.iter().map(|node| node.memory_mb).sum();
    if total_mb >= has_mb {
        return Ok(machine.clone());
    }
    // One step for each first, so that a small node beside a large one keeps its minimum.
    let steps = total_mb / MEMORY_STEP_MB;
    let spare = steps.saturating_sub(machine.nodes.len() as u64);
    let base = u64::from(steps >= machine.nodes.len() as u64);
    with_memory_mb(machine, &|node| {
        let steps = base + spare * node.memory_mb / has_mb;
        (steps * MEMORY_STEP_MB).min(node.memory_mb)
    })
}

/// The machine with `memory_mb(node)` MiB in each node.
///
/// # Errors
/// [`ScaleError::Memory`] where that is below 64 MiB or above 16 TiB.
pub fn with_memory_mb(
    machine: &Machine,
    memory_mb: &dyn Fn(&Node) -> u64,
) -> Result<Machine, ScaleError> {
    let mut resized = machine.clone();
    let mut changes = Vec::new();
    for node in &mut resized.nodes {
        let asked_mb = memory_mb(node);
        // A node that is smaller than a step in its file is as small here.
        let least_mb = limits::MEMORY_MB_MIN.min(node.memory_mb);
        if !(least_mb..=limits::MEMORY_MB_MAX).contains(&asked_mb) {
            return Err(ScaleError::Memory {
                machine: machine.name.clone(),
                node: node.id,
                asked_mb,
                least_mb,
                most_mb: limits::MEMORY_MB_MAX,
            });
        }
        if asked_mb != node.memory_mb {
            changes.push(format!(
                "{} {} instead of {}",
                node.id, asked_mb, node.memory_mb
            ));
            node.memory_mb = asked_mb;
        }
    }
    if !changes.is_empty() {
        resized.scaling = joined(
            &machine.scaling,
            format!("memory in MiB: {}", changes.join(", ")),
        );
    }
    Ok(resized)
}

/// Adds a note on scaling; a note that grew beyond reading starts anew.
fn joined(old: &str, new: String) -> String {
    const MOST_BYTES: usize = 600;
    if old.is_empty() || old.len() > MOST_BYTES {
        new
    } else {
        format!("{old}; {new}")
    }
}

fn scale_gbs(gbs: f64, ratio: f64) -> f64 {
    (gbs * ratio).max(limits::GBS_MIN)
}

fn scale_capacity(capacity: &Capacity, ratio: f64) -> Capacity {
    let points = capacity
        .points
        .iter()
        .map(|&(share, gbs)| (share, scale_gbs(gbs, ratio)));
    Capacity {
        points: points.collect(),
    }
}

/// Chooses which CPUs and domains stay, numbers them anew, shrinks the caches.
fn scale_cpus(machine: &Machine, scaled: &mut Machine, cpus: usize, ratio: f64) {
    let had: Vec<usize> = machine.nodes.iter().map(|node| node.cpus.len()).collect();
    let mut kept: Vec<(CpuSet, Cache)> = Vec::new();
    for (node, count) in machine.nodes.iter().zip(share_out(&had, cpus)) {
        if count > 0 {
            kept.extend(scale_domains(machine, node, count, ratio));
        }
    }
    // The CPUs that stay keep their order, whatever scheme numbered them.
    let all = kept
        .iter()
        .fold(CpuSet::new(), |all, (cpus, _)| all.union(cpus));
    let numbers: BTreeMap<CpuId, CpuId> = all
        .iter()
        .zip(0..)
        .map(|(old, new)| (old, CpuId(new)))
        .collect();
    let renumber = |cpus: &CpuSet| -> CpuSet {
        cpus.iter()
            .filter_map(|cpu| numbers.get(&cpu))
            .copied()
            .collect()
    };
    for node in &mut scaled.nodes {
        node.cpus = renumber(&node.cpus);
    }
    scaled.domains = kept
        .into_iter()
        .zip(0..)
        .map(|((cpus, cache), id)| Domain {
            id: DomainId(id),
            cpus: renumber(&cpus),
            cache,
        })
        .collect();
}

/// The domains that stay in a node of `count` CPUs, with the old numbers of their CPUs.
fn scale_domains(machine: &Machine, node: &Node, count: usize, ratio: f64) -> Vec<(CpuSet, Cache)> {
    let mut domains: Vec<&Domain> = machine
        .domains
        .iter()
        .filter(|domain| !domain.cpus.intersection(&node.cpus).is_empty())
        .collect();
    let total_kb: u64 = domains.iter().map(|domain| domain.cache.size_kb).sum();
    // Largest first: they have room for `count` however unlike the domains are.
    domains.sort_by_key(|domain| std::cmp::Reverse(domain.cpus.len()));
    let shared = node.cpus.len() >= 2 * domains.len();
    domains.truncate(if shared { count.div_ceil(2) } else { count });
    domains.sort_by_key(|domain| domain.id);
    let sizes: Vec<usize> = domains.iter().map(|domain| domain.cpus.len()).collect();
    let kept_kb: u64 = domains.iter().map(|domain| domain.cache.size_kb).sum();
    domains
        .iter()
        .zip(share_out(&sizes, count))
        .map(|(domain, count)| {
            let part = domain.cache.size_kb as f64 / kept_kb as f64;
            let cache_kb = total_kb as f64 * ratio * part;
            let cpus = domain.cpus.iter().take(count).collect();
            (cpus, resized(&domain.cache, cache_kb, machine.line_bytes))
        })
        .collect()
}

/// Shares `count` out over parts of these sizes, at least one and at most its size to each that
/// has any (Sainte-Laguë). `count` is between their number and their sum.
fn share_out(sizes: &[usize], count: usize) -> Vec<usize> {
    let mut shares: Vec<usize> = sizes.iter().map(|&size| size.min(1)).collect();
    for _ in shares.iter().sum::<usize>()..count {
        let claim = |&part: &usize| sizes[part] as f64 / (2 * shares[part] + 1) as f64;
        let open = (0..sizes.len())
            .filter(|&part| shares[part] < sizes[part])
            .rev();
        let Some(next) = open.max_by(|a, b| claim(a).total_cmp(&claim(b))) else {
            break;
        };
        shares[next] += 1;
    }
    shares
}

/// A cache of about `size_kb`. The number of sets is a power of two, so the associativity gives
/// way: the one that comes closest to the size, of those near the old one.
fn resized(cache: &Cache, size_kb: f64, line_bytes: u32) -> Cache {
    let lines = (size_kb * 1024.0 / f64::from(line_bytes)).max(1.0);
    let candidates = cache.ways / 2 + 1..=(2 * cache.ways).min(limits::WAYS as u32);
    let best = candidates
        .flat_map(|ways| {
            let exponent = (lines / f64::from(ways)).max(1.0).log2().floor();
            [(ways, exponent.exp2()), (ways, (exponent + 1.0).exp2())]
        })
        .min_by(|a, b| {
            let unlike = |&(ways, sets): &(u32, f64)| {
                (
                    (f64::from(ways) * sets - lines).abs(),
                    ways.abs_diff(cache.ways),
                )
            };
            let ((off_a, near_a), (off_b, near_b)) = (unlike(a), unlike(b));
            off_a.total_cmp(&off_b).then(near_a.cmp(&near_b))
        });
    let (ways, sets) = best.unwrap_or((cache.ways, 1.0));
    let bytes = f64::from(ways) * sets * f64::from(line_bytes);
    Cache {
        size_kb: ((bytes / 1024.0).ceil() as u64).clamp(1, limits::CACHE_KB),
        ways,
        latency_ns: cache.latency_ns,
    }
}
