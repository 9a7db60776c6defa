//! Where pages shall go: a node, or a tier of several.

use crate::units::parse_node;
use anyhow::bail;
use hither_core::ids::NodeId;
use hither_linux::topology::Topology;
use std::fmt;

/// What `--to` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// `2` or `node2`.
    Node(u32),
    /// `tier:0`: by rank, 0 is fastest.
    Tier(u32),
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(number) => write!(f, "node{number}"),
            Self::Tier(rank) => write!(f, "tier:{rank}"),
        }
    }
}

/// Reads `2`, `node2` or `tier:0`.
pub fn parse(text: &str) -> Result<Wanted, String> {
    match text.strip_prefix("tier:") {
        Some(rank) => rank.parse().ok().map(Wanted::Tier),
        None => parse_node(text).ok().map(Wanted::Node),
    }
    .ok_or_else(|| "write a node as 2 or node2, or a tier as tier:0".to_owned())
}

/// A node that takes pages, and how many pages of it are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Which.
    pub node: NodeId,
    /// Free base pages when it was looked at.
    pub free_pages: u64,
}

/// The nodes behind what was asked for, ascending; never none.
///
/// # Errors
/// There is no such node or tier, or it has no memory: with what there is instead.
pub fn resolve(wanted: Wanted, topology: &Topology) -> anyhow::Result<Vec<Room>> {
    let with_memory = || {
        topology
            .nodes
            .iter()
            .filter(|node| node.memory.total_kb > 0)
    };
    let names = || {
        let names: Vec<String> = with_memory().map(|node| node.id.to_string()).collect();
        names.join(", ")
    };
    let found: Vec<Room> = with_memory()
        .filter(|node| match wanted {
            Wanted::Node(number) => node.id == NodeId(number),
            Wanted::Tier(rank) => node.tier.is_some_and(|tier| tier.rank == rank),
        })
        .map(|node| Room {
            node: node.id,
            free_pages: node.memory.free_kb / 4,
        })
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    match wanted {
        Wanted::Node(number) if topology.position(NodeId(number)).is_some() => {
            bail!(
                "--to {wanted}: this node has no memory; choose one of {}",
                names()
            )
        }
        Wanted::Node(_) => {
            bail!(
                "--to {wanted}: there is no such node here; choose one of {}",
                names()
            )
        }
        Wanted::Tier(_) => {
            let tiers: std::collections::BTreeSet<u32> = with_memory()
                .filter_map(|node| Some(node.tier?.rank))
                .collect();
            let tiers: Vec<String> = tiers.iter().map(|rank| format!("tier:{rank}")).collect();
            if tiers.is_empty() {
                bail!(
                    "--to {wanted}: this kernel names no memory tiers (Linux 6.1 and later do); \
                     name a node: {}",
                    names()
                )
            }
            bail!(
                "--to {wanted}: there is no such tier here; choose one of {}, or a node: {}",
                tiers.join(", "),
                names()
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_linux::root::Root;
    use std::path::Path;

    #[test]
    fn nodes_and_tiers_are_read() {
        assert_eq!(parse("2"), Ok(Wanted::Node(2)));
        assert_eq!(parse("node2"), Ok(Wanted::Node(2)));
        assert_eq!(parse("tier:0"), Ok(Wanted::Tier(0)));
        for bad in [
            "",
            "node",
            "tier",
            "tier:",
            "tier0",
            "-1",
            "x",
            "node 2",
            "4294967296",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for text in ["node7", "tier:1"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }

    fn captured(name: &str) -> Topology {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines");
        Topology::read(&Root::new(folder.join(name))).unwrap()
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_is() {
        let machine = captured("hbm-and-cxl");
        let tiers: Vec<u32> = machine
            .nodes
            .iter()
            .filter_map(|node| Some(node.tier?.rank))
            .collect();
        let slowest = *tiers.iter().max().unwrap();
        assert!(slowest > 0, "the fixture has several tiers");
        let nodes = resolve(Wanted::Tier(slowest), &machine).unwrap();
        assert_eq!(
            nodes.len(),
            tiers.iter().filter(|&&rank| rank == slowest).count()
        );
        for room in &nodes {
            let node = &machine.nodes[machine.position(room.node).unwrap()];
            assert_eq!(room.free_pages, node.memory.free_kb / 4);
        }
        let refusal = |wanted| resolve(wanted, &machine).unwrap_err().to_string();
        assert!(refusal(Wanted::Tier(99)).contains("choose one of tier:0"));
        assert!(refusal(Wanted::Node(99)).contains("no such node here; choose one of node0"));
        let sparse = captured("sparse-nodes");
        for node in &sparse.nodes {
            let answer = resolve(Wanted::Node(node.id.0), &sparse);
            assert_eq!(answer.is_ok(), node.memory.total_kb > 0, "{}", node.id);
        }
    }
}
