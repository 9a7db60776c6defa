//! Raw observations, as trackers hand them to recordings: what was seen, of whom, and when.
//!
//! A [`Snapshot`](crate::snapshot::Snapshot) sums an interval up for a policy; an observation is
//! what it was summed from. Times are ns of CLOCK_MONOTONIC, addresses are virtual.

use crate::ids::{CpuId, NodeId, Pid};
use crate::plan::{Listing, Sampling};
use crate::snapshot::Snapshot;
use std::ops::Range;

/// What tells of a machine, real or simulated, as the loop asks it. A bound, not an object: one
/// loop has one of them.
pub trait Observer {
    /// Ends an interval, and tells what is known of it.
    ///
    /// # Errors
    /// Why this interval cannot be told of, in half a sentence; the next may.
    fn observe(&mut self, now_us: u64) -> Result<&Snapshot, String>;

    /// How densely to sample from now on.
    fn set_sampling(&mut self, sampling: Sampling);

    /// Whether to list, from now on, pages that were not sampled, too: part after part, each with no
    /// samples. An observer that cannot lists none.
    fn list_residents(&mut self, _listing: Listing) {}

    /// Sentences for a person that came up since the last call.
    fn take_notes(&mut self) -> Vec<String>;
}

/// What an access did, as far as the tracker can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// The tracker does not tell (a hint fault).
    Unknown,
}

/// One sampled access of a watched process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledAccess {
    /// When.
    pub time_ns: u64,
    /// Whose.
    pub pid: Pid,
    /// The thread, where known.
    pub tid: Option<i32>,
    /// The CPU that accessed, where known.
    pub cpu: Option<CpuId>,
    /// The node of that CPU, where known.
    pub from: Option<NodeId>,
    /// The node whose memory served, or holds the line where a cache served; where known.
    pub home: Option<NodeId>,
    /// Virtual address.
    pub address: u64,
    /// Address of the instruction, where known.
    pub code: Option<u64>,
    /// Load or store.
    pub kind: AccessKind,
    /// What the access took, where known.
    pub latency_ns: Option<u32>,
    /// Served by another CPU's cache that had modified the line (a *transfer*: Intel's HITM), not by
    /// memory; `None` where the tracker does not tell.
    pub from_cache: Option<bool>,
    /// Accesses (or memory fills) that this sample stands for; at least 1.
    pub weight: u32,
}

/// A range of pages as access bits tell of it, over one aggregation. The tracker `written` checks
/// each page once, for writes: its checks are the pages of the range that are in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct RegionAccess {
    /// End of the aggregation.
    pub time_ns: u64,
    /// Its length.
    pub length_ns: u64,
    /// Whose; `None` for physical addresses.
    pub pid: Option<Pid>,
    /// Half-open, in bytes.
    pub addresses: Range<u64>,
    /// Checks that found the region accessed.
    pub access_count: u32,
    /// Checks in the aggregation; at least 1.
    pub check_count: u32,
    /// Aggregations for which it has been about as hot, where the tracker tells.
    pub age_count: Option<u32>,
}

/// What a tracker saw since it was last asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observations {
    /// Sampled accesses, in any order.
    pub samples: Vec<SampledAccess>,
    /// Regions, those of one aggregation together.
    pub regions: Vec<RegionAccess>,
}

impl Observations {
    /// Keeps the buffers.
    pub fn clear(&mut self) {
        self.samples.clear();
        self.regions.clear();
    }
}
