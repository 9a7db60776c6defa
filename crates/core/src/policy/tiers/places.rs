//! Who fits where: how much each tier holds, and the heat at which it is full.

use crate::ids::NodeId;
use crate::policy::Context;
use crate::policy::heat::{Heat, Judged, View};
use crate::quota::Use;
use crate::snapshot::{PAGE_BYTES, Snapshot, base_pages};
use crate::tiers::Tiers;

/// Share of the accesses that the working set has.
const WORKING_SHARE: f64 = 0.9;
/// Bits of a number's mantissa that tell buckets apart: four in each octave.
const BITS: u32 = 2;
/// Exponent of the first bucket above zero: 2^-20.
const LEAST: u32 = 127 - 20;
/// Buckets: from 2^-20 to 2^12; pages that were not seen are in the first.
const BUCKETS: usize = 1 + (32 << BITS);

/// The bucket of a heat.
fn bucket(heat: f64) -> usize {
    if heat <= 0.0 {
        return 0;
    }
    let above = (heat as f32).to_bits() >> (f32::MANTISSA_DIGITS - 1 - BITS);
    let above = above.saturating_sub(LEAST << BITS) as usize;
    (1 + above).min(BUCKETS - 1)
}

/// The least heat of a bucket.
fn floor(bucket: usize) -> f64 {
    match bucket {
        0 => 0.0,
        bucket => {
            let bits = (bucket as u32 - 1 + (LEAST << BITS)) << (f32::MANTISSA_DIGITS - 1 - BITS);
            f64::from(f32::from_bits(bits))
        }
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

    /// Counts all pages.
    pub fn count(&mut self, heat: &Heat) {
        let (histogram, held, tiers) = (&mut self.histogram, &mut self.held, self.tiers);
        let wants = |block: &View<'_>| {
            for &(home, units) in block.held {
                let pages = u64::from(units) * block.unit_pages;
                held[tiers.rank(usize::from(home)) as usize] += pages;
                if let Some(heat) = block.heat {
                    histogram[bucket(heat)] += pages;
                }
            }
            block.heat.is_none()
        };
        let mut differing = [0u64; BUCKETS];
        heat.visit(wants, |page| differing[bucket(page.heat)] += 1);
        for (sum, more) in self.histogram.iter_mut().zip(differing) {
            *sum += more;
        }
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
            let room = self.room(rank);
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

    /// Base pages for which a tier has room.
    pub fn room(&self, rank: u32) -> u64 {
        self.tiers.nodes(rank).map(|node| self.room[node]).sum()
    }

    /// Base pages of a tier that may change places with others in one step: a part of what it holds, so that a step
    /// costs little; 16 MiB at least.
    pub fn exchanged(&self, rank: u32) -> u64 {
        (self.held[rank as usize] / 8).max(4096)
    }

    /// Base pages that may get free in a tier before the kernel's balancing fills it; all, where it does not tell its
    /// mark.
    pub fn unseen_room(&self, rank: u32) -> u64 {
        let unseen = |at: usize| {
            let rated = &self.snapshot.nodes[at].rated;
            let mark = rated.balanced_bytes.checked_sub(rated.kept_bytes)?;
            (mark > 0).then(|| (mark / PAGE_BYTES).saturating_sub(self.room[at]))
        };
        let sum: Option<u64> = self.tiers.nodes(rank).map(unseen).sum();
        sum.unwrap_or(u64::MAX)
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
        let targets = self.tiers.nodes(rank);
        let to = nearest_with_room(self.snapshot, page.home, targets, &self.room, pages)?;
        self.room[to] -= pages;
        Some((nodes.get(page.home)?.id, nodes[to].id))
    }
}

/// Of the targets with room for so many base pages, the node nearest to where a page is; of several the one with
/// most room.
pub(in crate::policy) fn nearest_with_room(
    snapshot: &Snapshot,
    home: usize,
    targets: impl Iterator<Item = usize>,
    room: &[u64],
    pages: u64,
) -> Option<usize> {
    let row = snapshot.distances.get(home);
    let distance = |to: usize| row.and_then(|row| row.get(to)).copied().unwrap_or(u32::MAX);
    let with_room = targets.filter(|&to| room[to] >= pages);
    with_room.min_by_key(|&to| (distance(to), u64::MAX - room[to]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_parts_of_an_octave_and_cover_all_heats() {
        for heat in [1e-7, 0.01, 1.0, 1.18, 1.3, 3.0, 100.0, 4000.0] {
            let at = bucket(heat);
            assert!(floor(at) <= heat * 1.0001 || at == 1, "{heat}: {at}");
            assert!(at == BUCKETS - 1 || floor(at + 1) > heat, "{heat}: {at}");
        }
        assert_eq!((bucket(0.0), bucket(1.0), floor(81)), (0, 81, 1.0));
        assert_eq!([floor(82), floor(85)], [1.25, 2.0]);
        assert_eq!(bucket(1e9), BUCKETS - 1);
    }
}
