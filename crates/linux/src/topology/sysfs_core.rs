//! Cores: which CPUs share one, from `/sys/devices/system/cpu/cpuN/topology`.

use crate::error::{Error, Result};
use crate::parse;
use crate::root::Root;
use hither_core::set::CpuSet;

const CPUS: &str = "sys/devices/system/cpu";

/// CPUs of each core, ascending by their lowest CPU; none where the kernel tells of none.
pub fn read(root: &Root, online: &CpuSet) -> Result<Vec<CpuSet>> {
    let mut cores: Vec<CpuSet> = Vec::new();
    for cpu in online.iter() {
        let Some((file, siblings)) = siblings(root, &format!("{CPUS}/{cpu}/topology"))? else {
            return Ok(Vec::new());
        };
        let core = siblings.intersection(online);
        let fail = |reason: String| Err(Error::new(root.path(&file), reason, root.tree_remedy()));
        if !core.contains(cpu) {
            return fail(format!("`{siblings}` does not contain {cpu} itself"));
        }
        // Cores are made by their lowest CPU, so that a later one finds its own or a contradiction.
        if core.first() == Some(cpu) {
            cores.push(core);
        } else if !cores.contains(&core) {
            return fail(format!(
                "says that {core} share a core, and others of them do not"
            ));
        }
    }
    let members: usize = cores.iter().map(CpuSet::len).sum();
    if members != online.len() {
        return Err(Error::new(
            root.path(CPUS),
            "a CPU is said to be of two cores (topology/core_cpus_list)",
            root.tree_remedy(),
        ));
    }
    Ok(cores)
}

/// `core_cpus_list`, before Linux 5.3 `thread_siblings_list`.
///
/// ```text
/// 0,56
/// ```
fn siblings(root: &Root, folder: &str) -> Result<Option<(String, CpuSet)>> {
    for name in ["core_cpus_list", "thread_siblings_list"] {
        let file = format!("{folder}/{name}");
        if let Some(set) = root.parse_if_any(&file, parse::list)? {
            return Ok(Some((file, set)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn cores(lists: &[&str], name: &str) -> Result<Vec<CpuSet>> {
        let folder = tempfile::tempdir().unwrap();
        for (cpu, list) in lists.iter().enumerate() {
            let topology = folder.path().join(format!("{CPUS}/cpu{cpu}/topology"));
            fs::create_dir_all(&topology).unwrap();
            fs::write(topology.join(name), list).unwrap();
        }
        let online = (0..lists.len() as u32)
            .map(hither_core::ids::CpuId)
            .collect();
        read(&Root::new(folder.path()), &online)
    }

    #[test]
    fn siblings_make_cores() {
        for name in ["core_cpus_list", "thread_siblings_list"] {
            // CPU 4 is offline.
            let found = cores(&["0,2\n", "1\n", "0,2\n", "3-4\n"], name).unwrap();
            let lists: Vec<String> = found.iter().map(CpuSet::to_string).collect();
            assert_eq!(lists, ["0,2", "1", "3"]);
        }
        assert!(cores(&["0", "1"], "core_id").unwrap().is_empty());
    }

    #[test]
    fn contradictions_are_errors() {
        for (lists, words) in [
            (["0", "0"], "does not contain cpu1 itself"),
            (["0", "0-1"], "share a core, and others"),
            (["0-1", "1"], "of two cores"),
        ] {
            let error = cores(&lists, "core_cpus_list").unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn this_machine_has_cores() {
        let online: CpuSet = Root::host()
            .parse(&format!("{CPUS}/online"), parse::list)
            .unwrap();
        let cores = read(&Root::host(), &online).unwrap();
        assert!(!cores.is_empty() && cores.len() <= online.len());
    }
}
