//! Which share of the accesses the hottest memory takes, as far as samples tell.
//!
//! Problem: pages that are sorted by their samples and judged by the same samples look better than they
//! are: of memory that is used evenly, the pages that happened to be sampled come first. Mechanism: samples
//! are split by chance into two halves. Each half ranks the memory, the other half tells what that ranking
//! takes (cross-validation). What the samples themselves would take is kept as the upper end.
//!
//! Few samples tell more of larger units. The unit, a page up to 2 MiB, is the one whose ranking takes most
//! of the other half. What differs within a unit is not told apart.

use super::super::data::Access;
use std::collections::HashMap;

/// log2 of the units that are tried.
const SHIFTS: [u32; 6] = [12, 14, 16, 18, 20, 21];
/// Sizes at which two units are compared, as parts of the footprint.
const COMPARED: u32 = 16;
/// Standard errors between which 90 % lie.
const NINETY: f64 = 1.64;

/// An access with its place in the ranking.
#[derive(Clone, Copy, Debug)]
struct Placed {
    time_ns: u64,
    weight: f64,
    /// Bytes of units that are as hot or hotter and come first; `None`: the other half had none of it.
    start: Option<f64>,
}

/// A ranking of memory by one set of samples, told by another.
#[derive(Clone, Debug)]
struct Ranking {
    /// By time.
    accesses: Vec<Placed>,
    unit_bytes: f64,
    /// Bytes that were ranked, by fold.
    ranked_bytes: [f64; 2],
    /// Of which fold each access is not.
    folds: Vec<u8>,
}

/// What the hottest memory takes.
#[derive(Clone, Debug)]
pub struct Hottest {
    crossed: Ranking,
    itself: Ranking,
    footprint_bytes: f64,
    /// Samples, in the number of equally weighted ones that tell as much.
    effective: f64,
}

/// A share with the ends between which it is expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// As the other half tells it.
    pub value: f64,
    /// Less by what chance leaves open.
    pub low: f64,
    /// As the same samples tell it, and what chance leaves open.
    pub high: f64,
}

impl Hottest {
    /// Ranks the memory of these accesses, which are ordered by time; `footprint_bytes` is all that the
    /// programs have in memory. `None` without an access.
    #[must_use]
    pub fn new(accesses: &[Access], footprint_bytes: u64) -> Option<Self> {
        let footprint_bytes = footprint_bytes as f64;
        let sum: f64 = accesses.iter().map(|a| f64::from(a.weight)).sum();
        let squares: f64 = accesses.iter().map(|a| f64::from(a.weight).powi(2)).sum();
        let worth = |shift: u32| {
            let crossed = Ranking::crossed(accesses, shift);
            let sizes = (1..COMPARED).map(|part| f64::from(part) / f64::from(COMPARED));
            let worth: f64 = sizes
                .map(|part| crossed.share(0..u64::MAX, part * footprint_bytes, footprint_bytes))
                .sum();
            (worth, shift, crossed)
        };
        let fits =
            |shift: &u32| *shift == SHIFTS[0] || f64::from(1 << shift) * 8.0 <= footprint_bytes;
        let rankings = SHIFTS.iter().copied().filter(fits).map(worth);
        // Of two that take alike the smaller.
        let (_, shift, crossed) = rankings.reduce(|a, b| if b.0 > a.0 + 1e-9 { b } else { a })?;
        (sum > 0.0).then(|| Self {
            crossed,
            itself: Ranking::itself(accesses, shift),
            footprint_bytes,
            effective: sum * sum / squares,
        })
    }

    /// Bytes of the unit by which memory is ranked.
    #[must_use]
    pub fn unit_bytes(&self) -> u64 {
        self.crossed.unit_bytes as u64
    }

    /// Share of all accesses that the hottest `bytes` take.
    #[must_use]
    pub fn share(&self, bytes: u64) -> Share {
        let of = |ranking: &Ranking| ranking.share(0..u64::MAX, bytes as f64, self.footprint_bytes);
        let (value, most) = (of(&self.crossed), of(&self.itself));
        let error = |share: f64| NINETY * (share * (1.0 - share) / self.effective).max(0.0).sqrt();
        Share {
            value,
            low: (value - error(value)).max(0.0),
            high: (most + error(most)).clamp(value, 1.0),
        }
    }

    /// Share of the accesses within these times that the hottest `bytes` of the whole recording take.
    #[must_use]
    pub fn share_within(&self, times_ns: std::ops::Range<u64>, bytes: u64) -> f64 {
        self.crossed
            .share(times_ns, bytes as f64, self.footprint_bytes)
    }
}

impl Ranking {
    /// Each half by what the other ranks.
    fn crossed(accesses: &[Access], shift: u32) -> Self {
        let fold = |index: usize| (mixed(index as u64) & 1) as u8;
        Self::new(accesses, shift, fold, |index| 1 - fold(index))
    }

    /// All by what all rank.
    fn itself(accesses: &[Access], shift: u32) -> Self {
        Self::new(accesses, shift, |_| 0, |_| 0)
    }

    fn new(
        accesses: &[Access],
        shift: u32,
        ranks: impl Fn(usize) -> u8,
        told_by: impl Fn(usize) -> u8,
    ) -> Self {
        let unit_bytes = f64::from(1 << shift);
        let mut counts: [HashMap<(i32, u64), u64>; 2] = Default::default();
        for (index, access) in accesses.iter().enumerate() {
            let key = (access.pid, access.address >> shift);
            *counts[usize::from(ranks(index))].entry(key).or_default() += u64::from(access.weight);
        }
        let starts = counts.map(|counts| {
            let mut order: Vec<((i32, u64), u64)> = counts.into_iter().collect();
            order.sort_unstable_by_key(|&(unit, count)| (std::cmp::Reverse(count), unit));
            let units = order.iter().enumerate();
            let starts = units.map(|(place, &(unit, _))| (unit, place as f64 * unit_bytes));
            starts.collect::<HashMap<(i32, u64), f64>>()
        });
        let folds: Vec<u8> = (0..accesses.len()).map(told_by).collect();
        let placed = accesses.iter().zip(&folds).map(|(access, &fold)| Placed {
            time_ns: access.time_ns,
            weight: f64::from(access.weight),
            start: starts[usize::from(fold)]
                .get(&(access.pid, access.address >> shift))
                .copied(),
        });
        Self {
            accesses: placed.collect(),
            unit_bytes,
            ranked_bytes: starts
                .each_ref()
                .map(|starts| starts.len() as f64 * unit_bytes),
            folds,
        }
    }

    /// Share of the accesses within these times to the first `bytes`; of none, of the whole: 0.
    fn share(&self, times_ns: std::ops::Range<u64>, bytes: f64, footprint_bytes: f64) -> f64 {
        if bytes >= footprint_bytes {
            return 1.0;
        }
        let at = |time_ns: u64| self.accesses.partition_point(|a| a.time_ns < time_ns);
        let within = at(times_ns.start)..at(times_ns.end);
        let (mut taken, mut all) = (0.0, 0.0);
        let folds = &self.folds[within.clone()];
        for (access, &fold) in self.accesses[within].iter().zip(folds) {
            let ranked = self.ranked_bytes[usize::from(fold)];
            let part = match access.start {
                Some(start) => (bytes - start) / self.unit_bytes,
                // Somewhere in what is left of the footprint.
                None => (bytes - ranked) / (footprint_bytes - ranked).max(self.unit_bytes),
            };
            taken += access.weight * part.clamp(0.0, 1.0);
            all += access.weight;
        }
        if all > 0.0 { taken / all } else { 0.0 }
    }
}

/// A number that looks drawn by chance, always the same for one index (SplitMix64).
fn mixed(index: u64) -> u64 {
    let mut mixed = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::super::super::data::tests::access;
    use super::*;

    const PAGE: u64 = 4096;

    #[test]
    fn a_hot_region_takes_what_it_has() {
        // 64 pages with 10 accesses for each of 64 others: 10 of 11.
        let accesses: Vec<Access> = (0..64 * 11 * 20)
            .map(|turn| {
                let page = match turn % 11 {
                    10 => 64 + turn / 11 % 64,
                    hot => (turn / 11 * 10 + hot) % 64,
                };
                access(turn, page * PAGE, 0, 0)
            })
            .collect();
        let hottest = Hottest::new(&accesses, 128 * PAGE).unwrap();
        let half = hottest.share(64 * PAGE);
        assert!((half.value - 10.0 / 11.0).abs() < 1e-9, "{half:?}");
        assert!(half.low < half.value && half.value < half.high);
        assert_eq!(hottest.share(0).value, 0.0);
        assert_eq!(hottest.share(128 * PAGE).low, 1.0);
        // 32 of the 64 take half of it.
        let quarter = hottest.share(32 * PAGE).value;
        assert!((quarter - 5.0 / 11.0).abs() < 0.02, "{quarter}");
    }

    #[test]
    fn memory_that_is_used_evenly_has_no_hot_part() {
        // Two samples for each of 4096 pages, drawn by chance: those that were drawn often are no hotter.
        let accesses: Vec<Access> = (0..8192)
            .map(|turn| access(turn, mixed(turn ^ 0xabcd) % 4096 * PAGE, 0, 0))
            .collect();
        let hottest = Hottest::new(&accesses, 4096 * PAGE).unwrap();
        let quarter = hottest.share(1024 * PAGE);
        assert!((quarter.value - 0.25).abs() < 0.02, "{quarter:?}");
        assert!(quarter.low < 0.25 && quarter.high > 0.25, "{quarter:?}");
    }

    #[test]
    fn what_was_never_sampled_is_spread_over_the_rest() {
        // One page of samples in a footprint of 101 pages.
        let accesses: Vec<Access> = (0..1000).map(|turn| access(turn, 0, 0, 0)).collect();
        let hottest = Hottest::new(&accesses, 101 * PAGE).unwrap();
        assert_eq!(hottest.share(PAGE).value, 1.0);
        assert_eq!(hottest.share(PAGE / 2).value, 0.5);
        assert!(Hottest::new(&[], PAGE).is_none());
    }

    #[test]
    fn a_part_of_the_time_has_a_share_of_its_own() {
        let accesses: Vec<Access> = (0..2000)
            .map(|turn| access(turn, if turn < 1500 { 0 } else { PAGE }, 0, 0))
            .collect();
        let hottest = Hottest::new(&accesses, 2 * PAGE).unwrap();
        assert_eq!(hottest.share_within(0..1500, PAGE), 1.0);
        assert_eq!(hottest.share_within(1500..2000, PAGE), 0.0);
    }
}
