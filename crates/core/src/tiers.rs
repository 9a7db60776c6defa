//! Memory tiers of a snapshot's nodes: which memory is fast, and by how much.
//!
//! The kernel's own ranks count where it tells them (`/sys/devices/virtual/memory_tiering`). Where it
//! does not, the ranks follow its formula from the figures of firmware (HMAT): a node's *abstract
//! distance* is that of ordinary DRAM, times its latency over DRAM's, times DRAM's bandwidth over its own
//! (Linux, `mm/memory-tiers.c`, `mt_perf_to_adistance`). Nodes whose distances differ by less than a
//! quarter are one tier, as the kernel's chunks are (128 of 576). Without either there is one tier.

use crate::snapshot::{NodeState, Snapshot};
use std::cmp::Ordering;

/// Factor of abstract distance from which memory is another tier: the kernel's chunk of 128 beside the
/// 576 of DRAM.
const OTHER_TIER: f64 = 1.0 + 128.0 / 576.0;
/// Samples from which a share of a part is told.
const MIN_SAMPLES: u64 = 20;

/// Memory of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// All of it.
    pub total: u64,
    /// Of that available.
    pub available: u64,
}

impl Bytes {
    /// In use.
    #[must_use]
    pub fn used(self) -> u64 {
        self.total.saturating_sub(self.available)
    }
}

/// Ranks of nodes by position: 0 is the fastest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tiers {
    ranks: Vec<u32>,
}

impl Tiers {
    /// The tiers of these nodes. Nodes without memory have the last rank, and are no tier.
    #[must_use]
    pub fn of(nodes: &[NodeState]) -> Self {
        let has_memory = |node: &&NodeState| node.total_bytes > 0;
        let told = nodes.iter().filter(has_memory).map(|node| node.rated.tier);
        let ranks = match told.collect::<Option<Vec<u32>>>() {
            Some(_) => nodes
                .iter()
                .map(|node| node.rated.tier.map(u64::from))
                .collect(),
            None => by_figures(nodes),
        };
        let mut known: Vec<u64> = ranks.iter().copied().flatten().collect();
        known.sort_unstable();
        known.dedup();
        let rank = |rank: &Option<u64>| match rank {
            Some(rank) => known.partition_point(|known| known < rank) as u32,
            None => known.len() as u32,
        };
        Self {
            ranks: ranks.iter().map(rank).collect(),
        }
    }

    /// Is there more than one?
    #[must_use]
    pub fn are_several(&self) -> bool {
        self.ranks.contains(&0) && self.ranks.contains(&1)
    }

    /// Rank of the node at a position; 0 is the fastest.
    #[must_use]
    pub fn rank(&self, position: usize) -> u32 {
        self.ranks.get(position).copied().unwrap_or(0)
    }

    /// Number of ranks that a node with memory can have.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.ranks.iter().max().map_or(0, |&last| last + 1)
    }

    /// Has it no node at all?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Memory of the nodes of a rank.
    #[must_use]
    pub fn bytes(&self, snapshot: &Snapshot, rank: u32) -> Bytes {
        let nodes = || self.nodes(rank).map(|node| &snapshot.nodes[node]);
        Bytes {
            total: nodes().map(|node| node.total_bytes).sum(),
            available: nodes().map(NodeState::available_bytes).sum(),
        }
    }

    /// Positions of the nodes of a rank.
    pub fn nodes(&self, rank: u32) -> impl Iterator<Item = usize> + '_ {
        let nodes = self.ranks.iter().enumerate();
        nodes
            .filter(move |&(_, &other)| other == rank)
            .map(|(at, _)| at)
    }

    /// Mean of a figure over the nodes of a rank, where all of them have it.
    fn mean(&self, rank: u32, figure: impl Fn(usize) -> Option<f64>) -> Option<f64> {
        let all: Vec<f64> = self.nodes(rank).map(figure).collect::<Option<_>>()?;
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    }

    /// Latency of a read from memory of a rank in ns: as samples measured it under the present load, or
    /// as firmware rates the idle memory.
    #[must_use]
    pub fn read_ns(&self, snapshot: &Snapshot, rank: u32) -> Option<f64> {
        let nodes = &snapshot.nodes;
        let measured = |at: usize| nodes[at].latency_ns.filter(|ns| ns.is_finite());
        self.mean(rank, |at| measured(at).or(nodes[at].idle_ns))
    }

    /// Latency of a read from idle memory of a rank in ns, as firmware rates it.
    #[must_use]
    pub fn idle_ns(&self, snapshot: &Snapshot, rank: u32) -> Option<f64> {
        self.mean(rank, |at| snapshot.nodes[at].idle_ns)
    }

    /// How much a write counts beside a read, between two ranks: the ratio of the times that each saves
    /// in the faster, 1 to 4; 1 where firmware tells nothing.
    #[must_use]
    pub fn write_weight(&self, snapshot: &Snapshot, fast: u32, slow: u32) -> f64 {
        let nodes = &snapshot.nodes;
        let write = |rank| self.mean(rank, |at| nodes[at].rated.write_ns);
        let saved = |fast: Option<f64>, slow: Option<f64>| Some(slow? - fast?);
        let reads = saved(self.idle_ns(snapshot, fast), self.idle_ns(snapshot, slow));
        let writes = saved(write(fast), write(slow));
        match (reads, writes) {
            (Some(reads), Some(writes)) if reads > 0.0 => (writes / reads).clamp(1.0, 4.0),
            _ => 1.0,
        }
    }

    /// Share of the sampled accesses that memory of the fastest rank served, with its standard error; `None`
    /// where there is but one, or too few samples.
    #[must_use]
    pub fn fast_share(&self, snapshot: &Snapshot) -> Option<(f64, f64)> {
        if !self.are_several() || !snapshot.sample_count.is_known() {
            return None;
        }
        let (mut fast, mut all) = (0, 0);
        for page in &snapshot.pages {
            let count = page.total();
            let Some(at) = (count > 0).then(|| snapshot.node_position(page.served_by())) else {
                continue;
            };
            all += count;
            fast += match at {
                Some(at) if self.rank(at) == 0 => count,
                _ => 0,
            };
        }
        (all >= MIN_SAMPLES).then(|| {
            let share = fast as f64 / all as f64;
            // As of one sample more of either kind: a share of 0 or 1 has an error, too.
            let scatter = (fast + 1) as f64 / (all + 2) as f64;
            (share, (scatter * (1.0 - scatter) / all as f64).sqrt())
        })
    }
}

/// Ranks from the figures of firmware: all the same where one node has none.
fn by_figures(nodes: &[NodeState]) -> Vec<Option<u64>> {
    let mut rated: Vec<(f64, usize)> = Vec::new();
    let with_memory = || {
        nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.total_bytes > 0)
    };
    for (at, node) in with_memory() {
        match (node.idle_ns, node.rated.read_gbs) {
            // The constant factors of DRAM are the same for all, and cancel.
            (Some(ns), Some(gbs)) if gbs > 0.0 => rated.push((ns / gbs, at)),
            _ => {
                rated.clear();
                break;
            }
        }
    }
    let mut ranks = vec![None; nodes.len()];
    for (at, _) in with_memory() {
        ranks[at] = Some(0);
    }
    rated.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap_or(Ordering::Equal));
    let (mut rank, mut first) = (0, None);
    for (distance, at) in rated {
        let first = first.get_or_insert(distance);
        if distance > *first * OTHER_TIER {
            rank += 1;
            *first = distance;
        }
        ranks[at] = Some(rank);
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;
    use crate::snapshot::{Evidence, Rated};

    fn node(id: u32, idle_ns: f64, read_gbs: f64) -> NodeState {
        NodeState {
            id: NodeId(id),
            cpu_count: 1,
            free_bytes: 1 << 30,
            total_bytes: 1 << 30,
            cache_bytes: 0,
            idle_ns: Some(idle_ns),
            rated: Rated {
                read_gbs: Some(read_gbs),
                ..Rated::default()
            },
            latency_ns: None,
            read_bytes: Evidence::unknown("test"),
            write_bytes: Evidence::unknown("test"),
            utilisation: Evidence::unknown("test"),
        }
    }

    fn ranks(nodes: &[NodeState]) -> Vec<u32> {
        let tiers = Tiers::of(nodes);
        (0..nodes.len()).map(|at| tiers.rank(at)).collect()
    }

    #[test]
    fn memory_on_package_is_faster_though_its_idle_latency_is_higher() {
        // Knights Landing: DDR 147 ns and 78 GB/s, MCDRAM 176 ns and 350 GB/s.
        assert_eq!(
            ranks(&[node(0, 147.0, 78.0), node(1, 176.0, 350.0)]),
            [1, 0]
        );
        // Two sockets and CXL memory: nodes that are alike are one tier.
        let cxl = [
            node(0, 114.0, 232.0),
            node(1, 115.0, 230.0),
            node(4, 300.0, 40.0),
        ];
        assert_eq!(ranks(&cxl), [0, 0, 1]);
        assert!(Tiers::of(&cxl).are_several());
    }

    #[test]
    fn the_kernel_is_believed_and_where_nothing_is_known_there_is_one_tier() {
        let mut nodes = [node(0, 100.0, 100.0), node(1, 100.0, 100.0)];
        assert!(!Tiers::of(&nodes).are_several());
        nodes[0].rated.tier = Some(2);
        nodes[1].rated.tier = Some(1);
        assert_eq!(ranks(&nodes), [1, 0]);
        nodes[0].rated.tier = None;
        nodes[0].idle_ns = None;
        assert_eq!(ranks(&nodes), [0, 0]);
        // A node that has CPUs alone is no tier.
        let mut nodes = [
            node(0, 100.0, 100.0),
            node(1, 300.0, 30.0),
            node(2, 1.0, 1.0),
        ];
        nodes[2].total_bytes = 0;
        assert_eq!(ranks(&nodes), [0, 1, 2]);
    }

    #[test]
    fn writes_count_for_what_they_save() {
        let mut nodes = [node(0, 100.0, 100.0), node(1, 300.0, 30.0)];
        let snapshot = |nodes: &[NodeState]| Snapshot::of_nodes(nodes.to_vec(), "test");
        let weight = |nodes: &[NodeState]| Tiers::of(nodes).write_weight(&snapshot(nodes), 0, 1);
        assert_eq!(weight(&nodes), 1.0);
        nodes[0].rated.write_ns = Some(100.0);
        nodes[1].rated.write_ns = Some(600.0);
        assert_eq!(weight(&nodes), 2.5);
    }
}
