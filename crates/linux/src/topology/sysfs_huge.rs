//! Huge pages: reserved ones per node, and the mode of transparent ones.

use super::{HugePages, NodeInfo};
use crate::error::{Error, Result};
use crate::parse;
use crate::root::Root;

/// Transparent huge pages.
pub struct Transparent {
    /// `always`, `madvise` or `never`.
    pub mode: Option<String>,
    /// Size in KiB.
    pub size_kb: Option<u64>,
}

/// Reads the mode and size of transparent huge pages.
pub fn read_transparent(root: &Root) -> Result<Transparent> {
    let folder = "sys/kernel/mm/transparent_hugepage";
    let bytes = root.parse_if_any(&format!("{folder}/hpage_pmd_size"), parse::number)?;
    Ok(Transparent {
        mode: root.parse_if_any(&format!("{folder}/enabled"), parse::chosen)?,
        size_kb: bytes.map(|bytes| bytes / 1024),
    })
}

/// Fills in each node's reserved huge pages.
pub fn read_reserved(root: &Root, nodes: &mut [NodeInfo]) -> Result<()> {
    // A kernel without nodes has the counts of the whole machine alone.
    let has_nodes = root.has("sys/devices/system/node");
    for node in nodes.iter_mut() {
        let folder = match has_nodes {
            true => format!("sys/devices/system/node/{}/hugepages", node.id),
            false => "sys/kernel/mm/hugepages".to_owned(),
        };
        for name in root.names(&folder)? {
            let Some(size_kb) = parse::kilobyte_folder(&name, "hugepages-") else {
                continue;
            };
            let file = format!("{folder}/{name}/free_hugepages");
            let total = root.parse(&format!("{folder}/{name}/nr_hugepages"), parse::number)?;
            let free = root.parse(&file, parse::number)?;
            if free > total {
                return Err(Error::new(
                    root.path(&file),
                    format!("{free} pages are free of {total}"),
                    root.tree_remedy(),
                ));
            }
            node.huge_pages.push(HugePages {
                size_kb,
                total,
                free,
            });
        }
        node.huge_pages.sort_by_key(|pages| pages.size_kb);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;
    use std::fs;
    use std::path::Path;

    #[test]
    fn a_kernel_without_nodes_has_huge_pages_too() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("sys/devices/system/cpu/online", "0\n"),
            ("proc/meminfo", "MemTotal: 8192 kB\nMemFree: 1 kB\n"),
            (
                "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                "2\n",
            ),
            (
                "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
                "1\n",
            ),
        ] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
            fs::write(path, text).unwrap();
        }
        let topology = Topology::read(&Root::new(folder.path())).unwrap();
        let pages = HugePages {
            size_kb: 2048,
            total: 2,
            free: 1,
        };
        assert_eq!(topology.nodes[0].huge_pages, [pages]);
    }
}
