//! All caches, not the last level alone, from `/sys/devices/system/cpu/cpuN/cache`: for those who
//! write the whole machine down.

use crate::error::{Error, Result};
use crate::parse;
use crate::root::Root;
use hither_core::set::CpuSet;

const CPUS: &str = "sys/devices/system/cpu";
/// No CPU has more caches than this (levels times kinds).
const MAX_CACHES: usize = 16;

/// A cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// 1 is next to the core.
    pub level: u32,
    /// What it holds.
    pub kind: CacheKind,
    /// Online CPUs that share it.
    pub cpus: CpuSet,
    /// Size in KiB, where told.
    pub size_kb: Option<u64>,
    /// Line size in bytes, where told.
    pub line_bytes: Option<u64>,
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheKind {
    /// Data and instructions.
    Unified,
    /// Data.
    Data,
    /// Instructions.
    Instruction,
}

/// Every cache once, under its lowest online CPU.
///
/// # Errors
/// A file that cannot be read or contradicts itself, with place and remedy.
pub fn read(root: &Root, online: &CpuSet) -> Result<Vec<Cache>> {
    let mut caches = Vec::new();
    for cpu in online.iter() {
        let folder = format!("{CPUS}/{cpu}/cache");
        for index in root
            .numbered(&folder, "index")?
            .into_iter()
            .take(MAX_CACHES)
        {
            let cache = read_cache(root, &format!("{folder}/index{index}"), online)?;
            if let Some(cache) = cache.filter(|cache| cache.cpus.first() == Some(cpu)) {
                caches.push(cache);
            }
        }
    }
    Ok(caches)
}

/// None where the kernel does not tell what it holds.
fn read_cache(root: &Root, folder: &str, online: &CpuSet) -> Result<Option<Cache>> {
    let kind = match root
        .text_if_any(&format!("{folder}/type"))?
        .unwrap_or_default()
        .trim()
    {
        "Unified" => CacheKind::Unified,
        "Data" => CacheKind::Data,
        "Instruction" => CacheKind::Instruction,
        _ => return Ok(None),
    };
    let file = format!("{folder}/level");
    let level = root.parse(&file, parse::number)?;
    let level = u32::try_from(level).ok().filter(|level| *level <= 8);
    let Some(level) = level.filter(|level| *level > 0) else {
        let reason = "the level is not in 1 to 8";
        return Err(Error::new(root.path(&file), reason, root.tree_remedy()));
    };
    let sharers: CpuSet = root.parse(&format!("{folder}/shared_cpu_list"), parse::list)?;
    Ok(Some(Cache {
        level,
        kind,
        cpus: sharers.intersection(online),
        size_kb: root.parse_if_any(&format!("{folder}/size"), parse::cache_size_kb)?,
        line_bytes: root.parse_if_any(&format!("{folder}/coherency_line_size"), parse::number)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_cache_is_listed_once() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines");
        let root = Root::new(folder.join("two-socket"));
        let caches = read(&root, &"0-7".parse().unwrap()).unwrap();
        let shown = |level| -> Vec<String> {
            let of_level = caches.iter().filter(|cache| cache.level == level);
            of_level.map(|cache| cache.cpus.to_string()).collect()
        };
        assert_eq!(shown(3), ["0-1,4-5", "2-3,6-7"]);
        assert_eq!(shown(2).len(), 8);
        // Only cpu0's were captured.
        let first: Vec<CacheKind> = caches.iter().take(2).map(|cache| cache.kind).collect();
        assert_eq!(first, [CacheKind::Data, CacheKind::Instruction]);
        assert_eq!(shown(1), ["0", "0"]);
    }
}
