//! Huge pages: reserved ones per node, and the mode of transparent ones.

use super::{HugePages, Node};
use crate::error::{Error, Result};
use crate::parse;
use crate::root::{Root, TREE_REMEDY};

/// Transparent huge pages.
pub struct Transparent {
    /// `always`, `madvise` or `never`.
    pub mode: Option<String>,
    /// Size in KiB.
    pub size_kb: Option<u64>,
}

/// Fills in each node's reserved huge pages and returns the transparent ones' mode.
pub fn read(root: &Root, nodes: &mut [Node]) -> Result<Transparent> {
    for node in nodes.iter_mut() {
        let folder = format!("sys/devices/system/node/{}/hugepages", node.id);
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
                    TREE_REMEDY,
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
    let thp = "sys/kernel/mm/transparent_hugepage";
    let bytes = root.parse_if_any(&format!("{thp}/hpage_pmd_size"), parse::number)?;
    Ok(Transparent {
        mode: root.parse_if_any(&format!("{thp}/enabled"), parse::chosen)?,
        size_kb: bytes.map(|bytes| bytes / 1024),
    })
}
