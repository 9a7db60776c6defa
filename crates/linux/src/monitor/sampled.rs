//! Estimates by samples of memory accesses: of a processor's PMU, or of the laboratory's device where it tells no more.
//!
//! A sample counts as much as it stands for. The tracker is the one that recordings use; it watches this process alone.

use super::{Counts, Reached, Sum, WatchedArea, What, refuse};
use crate::error::Result;
use crate::proc::tree::{Scope, Tree};
use crate::root::Root;
use crate::sys;
use crate::topology::Topology;
use crate::tracker::Tracker;
use crate::tracker::table::{self, Records};
use crate::watch::empty_snapshot;
use hither_core::ids::NodeId;
use hither_core::observation::{AccessKind, Observations, SampledAccess};
use hither_core::opium::{filter, transaction};
use hither_core::plan::Sampling;
use hither_core::snapshot::Snapshot;
use std::time::Duration;

/// Time between two looks of who waits: a look reads the rings of all CPUs.
pub(super) const LOOK: Duration = Duration::from_millis(10);
/// Share of one CPU that samples may cost.
const BUDGET: f64 = 0.05;
/// What no sample tells.
const UNTOLD: u32 = transaction::WRITE_BACK | transaction::OWNERSHIP;

/// A tracker and what it told since the start.
pub(super) struct Sampled {
    root: Root,
    tracker: Box<dyn Tracker>,
    tree: Tree,
    snapshot: Snapshot,
    observations: Observations,
    nodes: Vec<NodeId>,
    /// By area, then by grain and node.
    counts: Vec<Vec<u64>>,
    sums: Vec<Vec<u64>>,
    sample_count: u64,
    lost_count: u64,
}

/// Refuses what samples cannot tell of.
pub(super) fn check(area: &WatchedArea) -> Result<()> {
    if area.types & UNTOLD != 0 {
        return Err(refuse(
            "samples tell of no write-backs and no changes of ownership",
            "ask for fills and transfers alone",
        ));
    }
    if area.node.is_some() && area.directions & filter::INBOUND != 0 {
        return Err(refuse(
            "samples are of this process alone, so that they do not tell what comes in to a node",
            "leave the node out, or ask for outbound and local",
        ));
    }
    Ok(())
}

impl Sampled {
    pub(super) fn open(root: &Root, topology: &Topology) -> std::result::Result<Self, String> {
        let here = table::TrackerInputs {
            root,
            topology,
            ghz: None,
        };
        let mut reasons = Vec::new();
        let is_meant =
            |entry: &&table::Entry| entry.only_looks && entry.records == Records::Unasked;
        let entries = table::deciding().filter(is_meant);
        for entry in entries {
            match (entry.open)(&here) {
                Ok(tracker) => return Ok(Self::new(root, topology, tracker)),
                Err(reason) => reasons.push(format!("no samples of `{}` ({reason})", entry.name)),
            }
        }
        Err(reasons.join(", "))
    }

    fn new(root: &Root, topology: &Topology, mut tracker: Box<dyn Tracker>) -> Self {
        tracker.fill_in_pages(false);
        tracker.set_budget(BUDGET);
        tracker.keep_observations(true);
        Self {
            root: root.clone(),
            tracker,
            tree: Tree::new(root.clone(), own_process()),
            snapshot: empty_snapshot(topology),
            observations: Observations::default(),
            nodes: topology.nodes.iter().map(|node| node.id).collect(),
            counts: Vec::new(),
            sums: Vec::new(),
            sample_count: 0,
            lost_count: 0,
        }
    }

    pub(super) fn limits(&self) -> String {
        format!(
            "samples of `{}`: estimates, each sample counts as the accesses it stands for; no write-backs, no changes of \
             ownership, nothing inbound to one node, no packets; read or wait at least once a second, or samples are \
             lost ({} seen, {} lost)",
            self.tracker.name(),
            self.sample_count,
            self.lost_count
        )
    }

    pub(super) fn start(&mut self, areas: &[WatchedArea], sums: &[Sum]) -> Result<()> {
        let columns = self.nodes.len();
        let grains = |area: &WatchedArea| {
            (area.addresses.end - area.addresses.start).div_ceil(area.grain_bytes)
        };
        self.counts = areas
            .iter()
            .map(|area| vec![0; grains(area) as usize * columns])
            .collect();
        self.sums = vec![vec![0; columns]; sums.len()];
        self.tree = Tree::new(self.root.clone(), own_process());
        self.tracker.set_sampling(Sampling::Full);
        // What was seen before is not counted.
        self.observe()?;
        self.observations.clear();
        (self.sample_count, self.lost_count) = (0, 0);
        Ok(())
    }

    pub(super) fn stop(&mut self, areas: &[WatchedArea], sums: &[Sum]) -> Result<()> {
        let looked = self.look(areas, sums).map(drop);
        self.tracker.set_sampling(Sampling::Off);
        looked
    }

    fn observe(&mut self) -> Result<()> {
        let now_us = sys::monotonic_ns() / 1000;
        self.snapshot.interval_us = now_us.saturating_sub(self.snapshot.now_us).max(1);
        self.snapshot.now_us = now_us;
        self.tree.refresh(now_us)?;
        self.tracker.observe(&mut self.tree, &mut self.snapshot)?;
        self.tracker.take_observations(&mut self.observations);
        Ok(())
    }

    /// Takes the samples that are there, and tells which thresholds they reached.
    pub(super) fn look(&mut self, areas: &[WatchedArea], sums: &[Sum]) -> Result<Vec<Reached>> {
        self.observe()?;
        let observations = std::mem::take(&mut self.observations);
        self.sample_count += observations.samples.len() as u64;
        self.lost_count += self.snapshot.samples_lost;
        let mut reached = Vec::new();
        for sample in &observations.samples {
            self.count(areas, sums, sample, &mut reached);
        }
        self.observations = observations;
        self.observations.clear();
        Ok(reached)
    }

    fn count(
        &mut self,
        areas: &[WatchedArea],
        sums: &[Sum],
        sample: &SampledAccess,
        reached: &mut Vec<Reached>,
    ) {
        let Some((position, node)) = sample.from.and_then(|from| {
            let position = self.nodes.iter().position(|&id| id == from)?;
            Some((position, from))
        }) else {
            return;
        };
        let weight = u64::from(sample.weight);
        let kind = kind(sample);
        let mut counted = 0_u32;
        for (index, area) in areas.iter().enumerate() {
            if !area.addresses.contains(&sample.address)
                || area.types & kind == 0
                || !passes(area, sample)
            {
                continue;
            }
            counted |= 1 << index;
            let grain = ((sample.address - area.addresses.start) / area.grain_bytes) as usize;
            let count = &mut self.counts[index][grain * self.nodes.len() + position];
            let before = std::mem::replace(count, *count + weight);
            let threshold = u64::from(area.threshold);
            if threshold > 0 && (before..*count).contains(&(threshold - 1)) {
                let what = What::Grain { area: index, grain };
                reached.push(Reached { what, node });
            }
        }
        for (index, sum) in sums.iter().enumerate() {
            let times = sum
                .areas
                .iter()
                .filter(|&&area| counted >> area & 1 != 0)
                .count() as u64;
            if sum.types & kind == 0 || times == 0 {
                continue;
            }
            // An access to two of its areas counts twice, as by the device.
            let before: u64 = self.sums[index].iter().sum();
            self.sums[index][position] += weight * times;
            let after = before + weight * times;
            if sum.threshold > 0 && (before..after).contains(&(sum.threshold - 1)) {
                let what = What::Sum(index);
                reached.push(Reached { what, node });
            }
        }
    }

    pub(super) fn read_area(&self, area: usize) -> Counts {
        Counts {
            counts: self.counts[area].clone(),
            missed_pages: 0,
        }
    }

    pub(super) fn read_sum(&self, sum: usize) -> Vec<u64> {
        self.sums[sum].clone()
    }
}

fn own_process() -> Scope {
    Scope::Processes(vec![std::process::id() as i32])
}

/// Types that a sample may be of: it does not tell what a stream brought.
fn kind(sample: &SampledAccess) -> u32 {
    let (read, write) = match sample.from_cache {
        Some(true) => (transaction::TRANSFER, transaction::TRANSFER_WRITE),
        _ => (
            transaction::READ | transaction::PREFETCH,
            transaction::WRITE | transaction::PREFETCH_WRITE,
        ),
    };
    match sample.kind {
        AccessKind::Read => read,
        AccessKind::Write => write,
        AccessKind::Unknown => read | write,
    }
}

/// Do the directions of an area let a sample through? One without the memory's node passes where all do.
fn passes(area: &WatchedArea, sample: &SampledAccess) -> bool {
    if area.directions == 0 && area.node.is_none() {
        return true;
    }
    let (Some(from), Some(home)) = (sample.from, sample.home) else {
        return false;
    };
    filter::lets_through(area.directions, area.node, from, home)
}

impl Drop for Sampled {
    fn drop(&mut self) {
        self.tracker.stop();
    }
}
