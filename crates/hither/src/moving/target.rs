//! Where pages shall go: a node, several in turns, or a tier.

use super::aim::Aim;
use crate::units::parse_node;
use anyhow::{anyhow, bail};
use hither_core::bind::numactl;
use hither_core::ids::NodeId;
use hither_core::set::NodeSet;
use hither_linux::topology::Topology;
use std::fmt;

/// What `--to` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// `2` or `node2`.
    Node(u32),
    /// `0,2-3`, `all`: a list as numactl has it.
    Nodes(String),
    /// `tier:0`: by rank, 0 is fastest.
    Tier(u32),
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(number) => write!(f, "node{number}"),
            Self::Nodes(list) => f.write_str(list),
            Self::Tier(rank) => write!(f, "tier:{rank}"),
        }
    }
}

/// Reads `2`, `node2`, `0,2-3`, `node0,node2`, `all` or `tier:0`. What a list comes to is worked out
/// on a machine.
pub fn parse(text: &str) -> Result<Wanted, String> {
    let list = text.replace("node", "");
    let is_list = |list: &str| {
        let signed = list.trim_start_matches(['!', '+', '-', ' ']);
        signed == "all" || signed.starts_with(|letter: char| letter.is_ascii_digit())
    };
    let found = match text.strip_prefix("tier:") {
        Some(rank) => rank.parse().ok().map(Wanted::Tier),
        None => match parse_node(text) {
            Ok(node) => Some(Wanted::Node(node)),
            Err(_) => is_list(&list).then_some(Wanted::Nodes(list)),
        },
    };
    found.ok_or_else(|| {
        "write a node as 2 or node2, several as 0,2-3 or all, or a tier as tier:0".to_owned()
    })
}

/// A node that takes pages, and how many pages it can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Which.
    pub node: NodeId,
    /// Available base pages when it was looked at.
    pub available_pages: u64,
}

/// What was asked for, on a machine, for a process that may use some of its nodes.
///
/// # Errors
/// There is no such node or tier, or it has no memory: with what there is instead.
pub fn resolve(wanted: &Wanted, topology: &Topology, allowed: &NodeSet) -> anyhow::Result<Aim> {
    let Wanted::Nodes(list) = wanted else {
        return rooms(wanted, topology).map(Aim::Fill);
    };
    let nodes = topology.nodes.iter();
    let nodes: NodeSet = nodes
        .filter(|node| node.memory.total_kb > 0 && allowed.contains(node.id))
        .map(|node| node.id)
        .collect();
    let nameable = numactl::Nameable {
        usable: &nodes,
        present: &nodes,
    };
    let place = |_: &str| Err("nodes are numbers here".to_owned());
    let named = numactl::parse(list, nameable, place).map_err(|why| anyhow!("--to {why}"))?;
    let named: Vec<NodeId> = named.iter().collect();
    match named[..] {
        [] => bail!("--to {wanted}: no node is left; name some of {nodes}"),
        [only] => rooms(&Wanted::Node(only.0), topology).map(Aim::Fill),
        _ => Ok(Aim::Spread(named)),
    }
}

/// The nodes of one node's or tier's name, ascending; never none.
fn rooms(wanted: &Wanted, topology: &Topology) -> anyhow::Result<Vec<Room>> {
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
            Wanted::Node(number) => node.id == NodeId(*number),
            Wanted::Tier(rank) => node.tier.is_some_and(|tier| tier.rank == *rank),
            Wanted::Nodes(_) => false,
        })
        .map(|node| Room {
            node: node.id,
            available_pages: node.memory.available_kb() / 4,
        })
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    match wanted {
        Wanted::Node(number) if topology.position(NodeId(*number)).is_some() => {
            bail!(
                "--to {wanted}: this node has no memory; choose one of {}",
                names()
            )
        }
        Wanted::Node(_) | Wanted::Nodes(_) => {
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
        for list in ["0,1", "all", "!0", "+0,+2", "-1", "0-3", " 2"] {
            assert_eq!(parse(list), Ok(Wanted::Nodes(list.to_owned())));
        }
        assert_eq!(parse("node0,node2"), Ok(Wanted::Nodes("0,2".to_owned())));
        for bad in [
            "", "node", "tier", "tier:", "tier0", "x", "nodes", "tier:0,1", "-",
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
        let nodes = rooms(&Wanted::Tier(slowest), &machine).unwrap();
        assert_eq!(
            nodes.len(),
            tiers.iter().filter(|&&rank| rank == slowest).count()
        );
        for room in &nodes {
            let node = &machine.nodes[machine.position(room.node).unwrap()];
            assert_eq!(room.available_pages, node.memory.available_kb() / 4);
        }
        let refusal = |wanted| rooms(&wanted, &machine).unwrap_err().to_string();
        assert!(refusal(Wanted::Tier(99)).contains("choose one of tier:0"));
        assert!(refusal(Wanted::Node(99)).contains("no such node here; choose one of node0"));
        let sparse = captured("sparse-nodes");
        for node in &sparse.nodes {
            let answer = rooms(&Wanted::Node(node.id.0), &sparse);
            assert_eq!(answer.is_ok(), node.memory.total_kb > 0, "{}", node.id);
        }
    }

    #[test]
    fn lists_are_of_nodes_with_memory_that_the_process_may_use() {
        let sparse = captured("sparse-nodes");
        let aim = |text: &str, allowed: &str| {
            let allowed: NodeSet = allowed.parse().unwrap();
            let aim = resolve(&parse(text).unwrap(), &sparse, &allowed);
            aim.map(|aim| match aim {
                Aim::Spread(nodes) => nodes.iter().map(|node| node.0).collect(),
                Aim::Fill(rooms) => vec![rooms[0].node.0; rooms.len()],
                Aim::Back(_) | Aim::Bound(_) => vec![],
            })
            .map_err(|error| error.to_string())
        };
        assert_eq!(aim("all", "0-300"), Ok(vec![0, 8, 252]));
        assert_eq!(aim("0,252", "0-300"), Ok(vec![0, 252]));
        assert_eq!(aim("node0-node8", "0-300"), Ok(vec![0, 8]));
        assert_eq!(aim("+1,+2", "0-300"), Ok(vec![8, 252]));
        assert_eq!(aim("!0", "0,8"), Ok(vec![8]), "one node is filled");
        assert_eq!(aim("all", "0,252"), Ok(vec![0, 252]));
        for (list, part) in [
            ("-1", "--to `-1`: -1 is no number of a node"),
            (
                "0,7",
                "--to `0,7`: 7 is not there or may not be used; 0,8 may",
            ),
            ("0,252", "252 is not there or may not be used"),
            ("!all", "no node is left; name some of 0,8"),
            ("99999999999", "99999999999 is not there"),
        ] {
            let why = aim(list, "0,8").unwrap_err();
            assert!(why.contains(part), "{list}: {why}");
        }
    }
}
