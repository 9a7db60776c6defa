//! What the memory of each node can carry, as firmware rates it.

use crate::topology::Topology;
use hither_core::ids::NodeId;
use hither_core::snapshot::Evidence;

/// Rated bandwidths, by node position of whoever made them.
#[derive(Debug)]
pub(super) struct Ratings {
    /// Bytes per us.
    capacities: Vec<Option<f64>>,
}

impl Ratings {
    /// Of these nodes.
    pub fn new(topology: &Topology, ids: impl IntoIterator<Item = NodeId>) -> Self {
        // 1 MB/s is 1 byte per us.
        let capacity = |id| {
            let node = topology.nodes.iter().find(|node| node.id == id)?;
            let rated = node
                .access
                .iter()
                .find_map(|access| access.read_bandwidth_mbs);
            rated.filter(|&rated| rated > 0).map(|rated| rated as f64)
        };
        Self {
            capacities: ids.into_iter().map(capacity).collect(),
        }
    }

    /// Use of a node's controller at so many bytes in an interval.
    pub fn utilisation(&self, position: usize, bytes: u64, interval_us: u64) -> Evidence<f64> {
        match self.capacities.get(position).copied().flatten() {
            Some(capacity) if interval_us > 0 => {
                let share = bytes as f64 / (capacity * interval_us as f64);
                Evidence::estimated(
                    share.min(1.0),
                    "its traffic and the firmware's rating (HMAT)",
                )
            }
            _ => Evidence::unknown("firmware does not rate the bandwidth of its memory (no HMAT)"),
        }
    }
}
