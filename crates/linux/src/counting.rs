//! Exact counts of accesses to chosen frames, by the Opium device's filters: per page, or per cache
//! line, and from each node (IBM ccNUMA paper, section 2).
//!
//! There are 32 filters, each of one range of physical memory, and 512 K counters. Frames of a
//! process are scattered: ranges go over small gaps, whose counts nobody asks for. Half of the
//! filters count memory fills, half of them transfers between caches. Two secondary counters tell how many of each
//! were for stores, and a third, of all together, tells when enough was counted.

use crate::error::{Error, Result};
use crate::opium::{Filter, Notice, OpiumDevice, Secondary, Source};
use crate::root::Root;
use hither_core::ids::NodeId;
use hither_core::opium::{COUNTERS, FILTERS, MAX_NODES, transaction};
use std::ops::Range;

/// log2 of a page.
pub const PAGE_SHIFT: u32 = 12;
/// Ranges of frames that can be counted at once.
const RANGES: usize = FILTERS / 2;
/// Every other filter: those of fills.
const EVEN: u32 = 0x5555_5555;
/// The secondary counter of all that is counted.
const ALL: usize = 2;

/// Counts of one place, from each device node position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Memory fills.
    pub fills: [u32; MAX_NODES],
    /// Lines that other CPUs' caches handed over.
    pub transfers: [u32; MAX_NODES],
}

/// Filters that count; they are switched off when it is dropped.
#[derive(Debug)]
pub struct Counting {
    device: OpiumDevice,
    /// Physical addresses, each with its first counters of fills and of transfers.
    ranges: Vec<(Range<u64>, u32, u32)>,
    shift: u32,
    /// Notices of the device before it counted.
    seen: u64,
}

impl Counting {
    /// Begins to count the accesses to these frames (ascending), each 2^`shift` bytes by
    /// themselves; `enough` accesses are told of ([`Counting::has_enough`]), 0 never.
    ///
    /// # Errors
    /// There is no device, another program has its filters, or the frames lie too far apart for its counters.
    pub fn begin(root: &Root, frames: &[u64], shift: u32, enough: u64) -> Result<Self> {
        Self::begin_of(root, frames, shift, false, enough)
    }

    /// The same of what user mode asks for alone.
    ///
    /// # Errors
    /// As [`Counting::begin`].
    pub fn begin_user(root: &Root, frames: &[u64], shift: u32) -> Result<Self> {
        Self::begin_of(root, frames, shift, true, 0)
    }

    fn begin_of(
        root: &Root,
        frames: &[u64],
        shift: u32,
        user_only: bool,
        enough: u64,
    ) -> Result<Self> {
        let device = OpiumDevice::open(root)?;
        let seen = device.notice_count();
        let line_shift = device.line_bytes().trailing_zeros();
        let shift = shift.clamp(line_shift, PAGE_SHIFT);
        let refuse = |reason: String| {
            Error::new(
                root.path("sys/bus/pci/devices"),
                reason,
                "look at a smaller area, and with one program at a time",
            )
        };
        let mut counting = Self {
            device,
            ranges: Vec::new(),
            shift,
            seen,
        };
        counting.device.claim_filters().map_err(&refuse)?;
        let mut next = 0_u64;
        for frames in cover(frames, RANGES) {
            let addresses = frames.start << PAGE_SHIFT..frames.end << PAGE_SHIFT;
            let count = (addresses.end - addresses.start) >> shift;
            if next + 2 * count > COUNTERS as u64 {
                return Err(refuse(format!(
                    "the pages lie too far apart in physical memory for {COUNTERS} counters"
                )));
            }
            let bases = (next as u32, (next + count) as u32);
            next += 2 * count;
            counting.ranges.push((addresses, bases.0, bases.1));
        }
        for (index, (addresses, fills, transfers)) in counting.ranges.iter().enumerate() {
            let wanted = |base_counter, types| Filter {
                start: addresses.start,
                end: addresses.end,
                shift,
                types,
                node: None,
                directions: 0,
                user_only,
                base_counter,
                threshold: 0,
            };
            for (place, wanted) in [
                (2 * index, wanted(*fills, transaction::FILLS)),
                (2 * index + 1, wanted(*transfers, transaction::TRANSFERS)),
            ] {
                let set = counting.device.set_filter(place, Some(wanted));
                set.map_err(&refuse)?;
            }
        }
        for (index, filters) in [EVEN, EVEN << 1].into_iter().enumerate() {
            let writes = Secondary {
                filters,
                types: transaction::WRITES,
                threshold: 0,
            };
            counting.device.set_secondary(index, Some(writes));
        }
        let all = Secondary {
            filters: u32::MAX,
            types: transaction::FILLS | transaction::TRANSFERS,
            threshold: enough,
        };
        counting.device.set_secondary(ALL, Some(all));
        Ok(counting)
    }

    /// Has the device told that `enough` was counted? Accesses to frames in gaps are in it, so that who asks looks at
    /// the counts then.
    #[must_use]
    pub fn has_enough(&self) -> bool {
        let is_of_all = |notice: &Notice| notice.source == Source::Secondary(ALL);
        self.device.notices(self.seen).0.iter().any(is_of_all)
    }

    /// The kernel's number of each node position.
    #[must_use]
    pub fn node_ids(&self) -> &[NodeId] {
        self.device.node_ids()
    }

    /// Bytes of a place that is counted by itself.
    #[must_use]
    pub fn place_bytes(&self) -> u64 {
        1 << self.shift
    }

    /// What was counted so far of the place of a physical address; `None` where it is not watched.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<Counts> {
        let (range, fills, transfers) = self.ranges.iter().find(|r| r.0.contains(&address))?;
        let place = ((address - range.start) >> self.shift) as usize;
        let read = |base: u32| {
            let mut words = [0; MAX_NODES / 2];
            self.device.read_counters(base as usize + place, &mut words);
            std::array::from_fn(|node| (words[node / 2] >> (node % 2 * 32)) as u32)
        };
        Some(Counts {
            fills: read(*fills),
            transfers: read(*transfers),
        })
    }

    /// Of all that the ranges hold: writes among fills and among transfers, which the secondary
    /// counters tell. Frames in gaps are in it.
    #[must_use]
    pub fn writes(&self) -> (u64, u64) {
        let sum = |index| self.device.secondary(index).iter().sum();
        (sum(0), sum(1))
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        for index in 0..2 * self.ranges.len() {
            // Switching off checks nothing that could fail.
            let _ = self.device.set_filter(index, None);
        }
        (0..=ALL).for_each(|index| self.device.set_secondary(index, None));
    }
}

/// At most `most` ranges that hold all frames (ascending), and as few others as possible: cut at the
/// widest gaps.
#[must_use]
pub fn cover(frames: &[u64], most: usize) -> Vec<Range<u64>> {
    let mut gaps: Vec<(u64, usize)> = frames
        .windows(2)
        .enumerate()
        .map(|(index, pair)| (pair[1].saturating_sub(pair[0]), index + 1))
        .filter(|&(gap, _)| gap > 1)
        .collect();
    gaps.sort_unstable_by(|a, b| b.cmp(a));
    gaps.truncate(most.saturating_sub(1));
    let mut cuts: Vec<usize> = gaps.into_iter().map(|(_, index)| index).collect();
    cuts.sort_unstable();
    cuts.push(frames.len());
    let mut from = 0;
    let mut ranges = Vec::with_capacity(cuts.len());
    for cut in cuts {
        if let (Some(first), Some(last)) = (frames.get(from), frames[..cut].last()) {
            ranges.push(*first..*last + 1);
        }
        from = cut;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_covered_and_cut_at_the_widest_gaps() {
        let frames = [5, 6, 7, 9, 100, 101, 5000];
        assert_eq!(cover(&frames, 8), [5..8, 9..10, 100..102, 5000..5001]);
        assert_eq!(cover(&frames, 3), [5..10, 100..102, 5000..5001]);
        assert_eq!(cover(&frames, 1), vec![5..5001; 1]);
        assert!(cover(&[], 8).is_empty());
    }
}
