//! CPUs, packages and cache domains, from `/sys/devices/system/cpu`.

use super::{CacheDomain, Package};
use crate::error::{Error, Result};
use crate::parse;
use crate::root::Root;
use hither_core::ids::CpuId;
use hither_core::set::CpuSet;
use std::collections::BTreeMap;

const CPUS: &str = "sys/devices/system/cpu";
/// No CPU has more caches than this (levels times kinds).
const MAX_CACHES: usize = 16;

/// CPUs that run, and those that are present and do not.
pub fn read(root: &Root) -> Result<(CpuSet, CpuSet)> {
    let online: CpuSet = root.parse(&format!("{CPUS}/online"), parse::list)?;
    if online.is_empty() {
        return Err(Error::new(
            root.path(&format!("{CPUS}/online")),
            "names no CPU, and a machine has at least one",
            root.tree_remedy(),
        ));
    }
    let present: CpuSet = root
        .parse_if_any(&format!("{CPUS}/present"), parse::list)?
        .unwrap_or_else(CpuSet::new);
    let offline = present
        .iter()
        .filter(|&cpu| !online.contains(cpu))
        .collect();
    Ok((online, offline))
}

/// Groups the CPUs by `topology/physical_package_id`. Kernels that print none have one package.
pub fn read_packages(root: &Root, online: &CpuSet) -> Result<Vec<Package>> {
    let mut packages: BTreeMap<i64, CpuSet> = BTreeMap::new();
    for cpu in online.iter() {
        let file = format!("{CPUS}/{cpu}/topology/physical_package_id");
        let id = root.parse_if_any(&file, parse::signed)?.unwrap_or(-1);
        packages.entry(id).or_default().insert(cpu);
    }
    Ok(packages
        .into_iter()
        .map(|(id, cpus)| Package { id, cpus })
        .collect())
}

/// Groups the CPUs by the cache of the highest level that holds data.
pub fn read_domains(
    root: &Root,
    online: &CpuSet,
    notes: &mut Vec<String>,
) -> Result<Vec<CacheDomain>> {
    let mut domains: Vec<CacheDomain> = Vec::new();
    let mut of_cpu: BTreeMap<CpuId, usize> = BTreeMap::new();
    for cpu in online.iter() {
        let Some((domain, file)) = last_level_cache(root, cpu, online)? else {
            continue;
        };
        match of_cpu.get(&cpu) {
            Some(&known) if domains[known] == domain => {}
            Some(_) => return Err(disagree(root, &file, cpu, &domain)),
            None => {
                // A sharer that an earlier CPU claimed would have claimed this CPU too.
                if let Some(other) = domain.cpus.iter().find(|cpu| of_cpu.contains_key(cpu)) {
                    return Err(disagree(root, &file, other, &domain));
                }
                of_cpu.extend(domain.cpus.iter().map(|cpu| (cpu, domains.len())));
                domains.push(domain);
            }
        }
    }
    let lone: CpuSet = online
        .iter()
        .filter(|cpu| !of_cpu.contains_key(cpu))
        .collect();
    if !lone.is_empty() {
        notes.push(format!(
            "the kernel tells no cache of CPUs {lone}; each package counts as one cache domain"
        ));
        for package in read_packages(root, &lone)? {
            domains.push(CacheDomain {
                cpus: package.cpus,
                level: 0,
                size_kb: None,
                line_bytes: None,
            });
        }
    }
    domains.sort_by_key(|domain| domain.cpus.first());
    Ok(domains)
}

/// Bytes of a cache line, where a CPU's first cache tells.
#[must_use]
pub fn line_bytes(root: &Root, cpu: CpuId) -> Option<u64> {
    let file = format!("{CPUS}/{cpu}/cache/index0/coherency_line_size");
    root.parse_if_any(&file, parse::number).ok().flatten()
}

fn disagree(root: &Root, file: &str, cpu: CpuId, domain: &CacheDomain) -> Error {
    Error::new(
        root.path(file),
        format!(
            "says that {} share a cache, and {cpu} says otherwise",
            domain.cpus
        ),
        root.tree_remedy(),
    )
}

/// The last-level cache of a CPU and the file that names its sharers.
fn last_level_cache(
    root: &Root,
    cpu: CpuId,
    online: &CpuSet,
) -> Result<Option<(CacheDomain, String)>> {
    let caches = format!("{CPUS}/{cpu}/cache");
    let mut best: Option<(u64, u32)> = None;
    for index in root
        .numbered(&caches, "index")?
        .into_iter()
        .take(MAX_CACHES)
    {
        let folder = format!("{caches}/index{index}");
        let kind = root
            .text_if_any(&format!("{folder}/type"))?
            .unwrap_or_default();
        if kind.trim() == "Instruction" {
            continue;
        }
        let level = root.parse(&format!("{folder}/level"), parse::number)?;
        if !(1..=8).contains(&level) {
            return Err(Error::new(
                root.path(&format!("{folder}/level")),
                format!("level {level} is not in 1 to 8"),
                root.tree_remedy(),
            ));
        }
        if best.is_none_or(|(highest, _)| level > highest) {
            best = Some((level, index));
        }
    }
    let Some((level, index)) = best else {
        return Ok(None);
    };
    let folder = format!("{caches}/index{index}");
    let file = format!("{folder}/shared_cpu_list");
    let sharers: CpuSet = root.parse(&file, parse::list)?;
    if !sharers.contains(cpu) {
        return Err(Error::new(
            root.path(&file),
            format!("`{sharers}` does not contain {cpu} itself"),
            root.tree_remedy(),
        ));
    }
    let domain = CacheDomain {
        cpus: sharers.intersection(online),
        level: level as u32,
        size_kb: root.parse_if_any(&format!("{folder}/size"), parse::cache_size_kb)?,
        line_bytes: root.parse_if_any(&format!("{folder}/coherency_line_size"), parse::number)?,
    };
    Ok(Some((domain, file)))
}
