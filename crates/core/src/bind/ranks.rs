//! One process for each node: which node and CPUs each of several processes gets.

use super::ThreadPolicy;
use crate::ids::NodeId;
use crate::rset::{ResourceSet, Resources};
use crate::set::CpuSet;

/// Where a process belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Its node, for memory.
    pub node: NodeId,
    /// Its CPUs, all of that node.
    pub cpus: CpuSet,
}

impl Rank {
    /// As a set.
    #[must_use]
    pub fn set(&self) -> ResourceSet {
        ResourceSet {
            cpus: self.cpus.clone(),
            nodes: [self.node].into_iter().collect(),
        }
    }
}

/// There are not the CPUs for so many processes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRanks {
    /// No node has both CPUs and memory.
    #[error("no node of the set has CPUs and memory that may be used")]
    NoNodes,
    /// A node has too few CPUs.
    #[error("{node} has {cpus} CPUs for {processes} processes; start fewer")]
    TooMany {
        /// The node.
        node: NodeId,
        /// Its CPUs that may be used.
        cpus: usize,
        /// The processes that it would get.
        processes: usize,
    },
}

/// The nodes of a set, of all where it is empty, that have CPUs and memory that may be used.
#[must_use]
pub fn nodes(from: &ResourceSet, resources: &Resources) -> Vec<(NodeId, CpuSet)> {
    let usable = resources.usable();
    let nodes = resources.nodes.iter().filter_map(|node| {
        let mut cpus = node.cpus.intersection(&usable.cpus);
        if !from.cpus.is_empty() {
            cpus = cpus.intersection(&from.cpus);
        }
        let is_meant = from.nodes.is_empty() || from.nodes.contains(node.id);
        (!cpus.is_empty() && is_meant && usable.nodes.contains(node.id)).then_some((node.id, cpus))
    });
    nodes.collect()
}

/// The places of `count` processes, by rank: as many to each node as to the next, give or take one, neighbours
/// together; processes of one node share its CPUs alike, whole caches and cores first.
///
/// # Errors
/// There is no node, or a node has fewer CPUs than it would get processes.
pub fn places(
    count: usize,
    nodes: &[(NodeId, CpuSet)],
    resources: &Resources,
) -> Result<Vec<Rank>, NoRanks> {
    if nodes.is_empty() {
        return Err(NoRanks::NoNodes);
    }
    let node_of = |rank: usize| rank * nodes.len() / count;
    let mut ranks = Vec::with_capacity(count);
    for (at, (node, cpus)) in nodes.iter().enumerate() {
        let processes = (0..count).filter(|&rank| node_of(rank) == at).count();
        let order = ThreadPolicy::Fill.order(cpus, resources);
        if processes > order.len() {
            return Err(NoRanks::TooMany {
                node: *node,
                cpus: order.len(),
                processes,
            });
        }
        for own in 0..processes {
            let (first, end) = (
                own * order.len() / processes,
                (own + 1) * order.len() / processes,
            );
            ranks.push(Rank {
                node: *node,
                cpus: order[first..end].iter().copied().collect(),
            });
        }
    }
    Ok(ranks)
}

/// Variables by which launchers tell a process its rank on this machine, and how many there are on it.
pub const VARIABLES: [(&str, &str, &str); 5] = [
    (
        "Open MPI",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("MPICH, Intel MPI", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    (
        "MVAPICH",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    ("Slurm", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    ("torchrun", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
];

/// The rank of this process on this machine and how many there are, as a launcher told by its environment.
#[must_use]
pub fn told(variable: impl Fn(&str) -> Option<String>) -> Option<(usize, usize)> {
    VARIABLES.iter().find_map(|(_, rank, count)| {
        let rank: usize = variable(rank)?.parse().ok()?;
        // Slurm's `4(x2),3` has the numbers of all machines: of one, or of alike, the first holds.
        let count = variable(count)?;
        let digits = count
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(count.len());
        let count: usize = count[..digits].parse().ok()?;
        (rank < count).then_some((rank, count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::CpuId;

    fn four() -> Vec<(NodeId, CpuSet)> {
        let cpus = |first: u32| (first..first + 4).map(CpuId).collect();
        (0..4).map(|node| (NodeId(node), cpus(4 * node))).collect()
    }

    fn of(count: usize) -> Vec<(u32, usize)> {
        let ranks = places(count, &four(), &Resources::default()).unwrap();
        ranks
            .iter()
            .map(|rank| (rank.node.0, rank.cpus.len()))
            .collect()
    }

    #[test]
    fn processes_are_spread_and_share_cpus_alike() {
        assert_eq!(of(4), [(0, 4), (1, 4), (2, 4), (3, 4)]);
        assert_eq!(of(2), [(0, 4), (2, 4)]);
        assert_eq!(of(6), [(0, 2), (0, 2), (1, 4), (2, 2), (2, 2), (3, 4)]);
        let all = places(16, &four(), &Resources::default()).unwrap();
        assert!(all.iter().all(|rank| rank.cpus.len() == 1));
        let cpus: std::collections::BTreeSet<_> =
            all.iter().flat_map(|rank| rank.cpus.iter()).collect();
        assert_eq!(cpus.len(), 16);
        assert_eq!(
            places(17, &four(), &Resources::default()),
            Err(NoRanks::TooMany {
                node: NodeId(0),
                cpus: 4,
                processes: 5
            })
        );
        let none = places(1, &[], &Resources::default());
        assert_eq!(none, Err(NoRanks::NoNodes));
    }

    #[test]
    fn ranks_are_read_as_launchers_tell_them() {
        let told = |set: &[(&str, &str)]| {
            super::told(|name| {
                let found = set.iter().find(|(of, _)| *of == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(told(&[]), None);
        let open = [
            ("OMPI_COMM_WORLD_LOCAL_RANK", "3"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "8"),
        ];
        assert_eq!(told(&open), Some((3, 8)));
        let slurm = [
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_TASKS_PER_NODE", "4(x2),3"),
        ];
        assert_eq!(told(&slurm), Some((1, 4)));
        for bad in ["", "x", "-1", "9"] {
            let set = [("LOCAL_RANK", bad), ("LOCAL_WORLD_SIZE", "8")];
            assert_eq!(told(&set), None, "{bad}");
        }
    }
}
