//! Memory tiers, from `/sys/devices/virtual/memory_tiering` (6.1 and later).

use super::{NodeInfo, Tier};
use crate::error::{Error, Result};
use crate::parse;
use crate::root::Root;
use hither_core::set::NodeSet;

const TIERS: &str = "sys/devices/virtual/memory_tiering";

/// Gives every node its tier. Ranks count the tiers that hold an online node, fastest first.
pub fn read(root: &Root, nodes: &mut [NodeInfo], notes: &mut Vec<String>) -> Result<()> {
    let mut rank = 0;
    for number in root.numbered(TIERS, "memory_tier")? {
        let file = format!("{TIERS}/memory_tier{number}/nodelist");
        let members: NodeSet = root.parse(&file, parse::list)?;
        let mut used = false;
        for node in nodes.iter_mut().filter(|node| members.contains(node.id)) {
            if let Some(other) = node.tier.replace(Tier { rank, number }) {
                return Err(Error::new(
                    root.path(&file),
                    format!(
                        "names {}, which is in memory_tier{} already",
                        node.id, other.number
                    ),
                    root.tree_remedy(),
                ));
            }
            used = true;
        }
        rank += u32::from(used);
    }
    if rank == 0 {
        notes.push(
            "the kernel names no memory tiers (Linux 6.1 and later do): all memory counts as one"
                .to_owned(),
        );
    }
    Ok(())
}
