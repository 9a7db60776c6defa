//! Who fits where: how much each tier holds, and the heat at which it is full.

use super::heat::Judged;
use crate::ids::NodeId;
use crate::policy::Context;
use crate::quota::Use;
use crate::snapshot::{Snapshot, base_pages};
use crate::tiers::Tiers;

/// Share of the accesses that the working set has.
const WORKING_SHARE: f64 = 0.9;
/// Buckets of a factor of two.
const PER_OCTAVE: f64 = 4.0;
/// Bucket of a heat of one.
const ONE: f64 = 80.0;
/// Buckets: from 2^-20 to 2^12; pages that were not seen are in the first.
const BUCKETS: usize = 129;

/// The bucket of a heat: a quarter of an octave each.
fn bucket(heat: f64) -> usize {
    match heat > 0.0 {
        true => (heat.log2() * PER_OCTAVE + ONE).clamp(1.0, BUCKETS as f64 - 1.0) as usize,
        false => 0,
    }
}

/// The least heat of a bucket.
fn floor(bucket: usize) -> f64 {
    match bucket {
        0 => 0.0,
        bucket => ((bucket as f64 - ONE) / PER_OCTAVE).exp2(),
    }
}

/// Where a tier and the next slower one part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Border {
    /// The tier's rank.
    pub rank: u32,
    /// The heat at which it is full; 0 where all fits.
    pub heat: f64,
    bucket: usize,
    /// Base pages that it holds beyond its quota.
    pub excess_pages: u64,
    /// Does it hold any beyond?
    pub is_excess: bool,
}

impl Border {
    /// May a page of this heat belong into the tier?
    pub fn is_above(&self, heat: f64) -> bool {
        heat > 0.0 && bucket(heat) >= self.bucket
    }

    /// May a page of this heat have to leave it?
    pub fn is_below(&self, heat: f64) -> bool {
        bucket(heat) <= self.bucket
    }
}

/// The tiers with what they hold and have room for.
#[derive(Debug)]
pub(super) struct Ladder<'a> {
    snapshot: &'a Snapshot,
    tiers: &'a Tiers,
    /// Base pages by heat, of all tiers.
    histogram: [u64; BUCKETS],
    /// Base pages known in each rank.
    held: Vec<u64>,
    /// Base pages for which each node has room.
    room: Vec<u64>,
    /// Base pages that the fastest tier may hold.
    quota: Option<u64>,
}

impl<'a> Ladder<'a> {
    /// Nothing is counted yet.
    pub fn new(snapshot: &'a Snapshot, context: &Context<'_>, tiers: &'a Tiers) -> Self {
        Self {
            snapshot,
            tiers,
            histogram: [0; BUCKETS],
            held: vec![0; tiers.len() as usize],
            room: context.room_pages.to_vec(),
            quota: context.fast_pages,
        }
    }

    /// Rank of a node by position.
    pub fn rank(&self, position: usize) -> u32 {
        self.tiers.rank(position)
    }

    /// Counts a page.
    pub fn count(&mut self, page: &Judged) {
        let pages = base_pages(page.huge);
        self.histogram[bucket(page.heat)] += pages;
        self.held[self.tiers.rank(page.home) as usize] += pages;
    }

    /// The borders between the tiers, from the fastest on; a quota takes from the room of the first.
    pub fn borders(&mut self) -> Vec<Border> {
        let mut borders = Vec::new();
        let (mut at, mut left) = (BUCKETS, 0);
        for rank in 0..self.tiers.len().saturating_sub(1) {
            // A rank of nodes without memory is no tier.
            if self
                .tiers
                .nodes(rank + 1)
                .all(|at| self.snapshot.nodes[at].total_bytes == 0)
            {
                break;
            }
            let held = self.held[rank as usize];
            let mut excess_pages = 0;
            if let Some(quota) = self.quota.filter(|_| rank == 0) {
                excess_pages = held.saturating_sub(quota);
                self.shrink_room(rank, quota.saturating_sub(held));
            }
            let room: u64 = self.tiers.nodes(rank).map(|node| self.room[node]).sum();
            let mut capacity = held + room - excess_pages;
            while capacity > 0 && (left > 0 || at > 0) {
                if left == 0 {
                    at -= 1;
                    left = self.histogram[at];
                }
                let taken = left.min(capacity);
                (left, capacity) = (left - taken, capacity - taken);
            }
            let bucket = at.min(BUCKETS - 1);
            borders.push(Border {
                rank,
                heat: floor(bucket),
                bucket,
                excess_pages,
                is_excess: excess_pages > 0,
            });
        }
        borders
    }

    /// What is held of the fastest tier, and used: the hottest pages that have most of the accesses.
    pub fn fast_use(&self) -> Use {
        let heat = |bucket: usize| floor(bucket) * self.histogram[bucket] as f64;
        let mut left = WORKING_SHARE * (0..BUCKETS).map(heat).sum::<f64>();
        let mut working_pages = 0;
        for bucket in (1..BUCKETS).rev() {
            if left <= 0.0 {
                break;
            }
            left -= heat(bucket);
            working_pages += self.histogram[bucket];
        }
        Use {
            held_pages: self.held.first().copied().unwrap_or(0),
            all_pages: self.held.iter().sum(),
            working_pages,
        }
    }

    /// Leaves at most so much room in a tier.
    fn shrink_room(&mut self, rank: u32, most: u64) {
        let mut left = most;
        for node in self.tiers.nodes(rank) {
            self.room[node] = self.room[node].min(left);
            left -= self.room[node];
        }
    }

    /// Takes the room for a page in a tier: on the node nearest to where it is, of several the one with
    /// most room. Where it is and where it goes; `None` where there is no room.
    pub fn place(&mut self, page: &Judged, rank: u32) -> Option<(NodeId, NodeId)> {
        let pages = base_pages(page.huge);
        let nodes = &self.snapshot.nodes;
        let distance = |to: usize| {
            let row = self.snapshot.distances.get(page.home);
            row.and_then(|row| row.get(to)).copied().unwrap_or(u32::MAX)
        };
        let with_room = self
            .tiers
            .nodes(rank)
            .filter(|&node| self.room[node] >= pages);
        let to = with_room.min_by_key(|&node| (distance(node), u64::MAX - self.room[node]))?;
        self.room[to] -= pages;
        Some((nodes.get(page.home)?.id, nodes[to].id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_quarters_of_an_octave_and_cover_all_heats() {
        for heat in [1e-7, 0.01, 1.0, 1.18, 3.0, 100.0, 4000.0] {
            let at = bucket(heat);
            assert!(floor(at) <= heat * 1.0001 || at == 1, "{heat}: {at}");
            assert!(at == BUCKETS - 1 || floor(at + 1) > heat, "{heat}: {at}");
        }
        assert_eq!((bucket(0.0), bucket(1.0), floor(80)), (0, 80, 1.0));
        assert_eq!(bucket(1e9), BUCKETS - 1);
    }
}
