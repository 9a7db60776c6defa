//! Sharper boundaries for regions that access bits tell of, and the history of several aggregations.
//! Pure.
//!
//! A tracker that checks one page of a region at a time sees the share of its pages that are in
//! use. Where hot pages end inside a region, its count lies between those of its neighbours, and
//! says how far they reach: nine checks of twenty mean 45 % of it. So the boundary is found within
//! a region without a check more.

use crate::observation::RegionAccess;

/// Rates of access that count as hot and as cold.
const HOT: f64 = 0.75;
const COLD: f64 = 0.1;
/// Difference of rates that means another use and not chance: more than the largest standard deviation
/// of the difference of eight checks each (0.25).
const CHANGED: f64 = 0.3;
/// As near to a neighbour's rate a region is as that: a check of ten that comes out otherwise is no
/// boundary.
const ALIKE: f64 = 0.15;
/// Base page in bytes.
const PAGE: u64 = 4096;

/// Aggregations of which a history is made: four of eight checks are 32.
pub const HISTORY: usize = 4;

fn rate(region: &RegionAccess) -> f64 {
    f64::from(region.access_count) / f64::from(region.check_count.max(1))
}

/// Splits each region that lies between a hot and a cold neighbour, and whose rate is between
/// theirs, where its rate says that the hot pages end. The parts get the neighbours' counts.
///
/// `regions` is one aggregation of one process, ascending. A rate between hot and cold may also
/// mean pages that are used now and then: then both parts are wrong, in the same proportion.
/// Nothing is said of a region between two cold ones, however much of it is used: its count does
/// not tell where. Trackers split such regions until it does.
#[must_use]
pub fn sharpen(regions: &[RegionAccess]) -> Vec<RegionAccess> {
    let mut found = Vec::with_capacity(regions.len() + 8);
    for (index, region) in regions.iter().enumerate() {
        let touches = |other: &&RegionAccess| {
            other.pid == region.pid
                && (other.addresses.end == region.addresses.start
                    || other.addresses.start == region.addresses.end)
        };
        let before = index.checked_sub(1).map(|i| &regions[i]).filter(touches);
        let after = regions.get(index + 1).filter(touches);
        let boundary = before
            .zip(after)
            .and_then(|(before, after)| boundary(region, before, after));
        let Some((at, before, after)) = boundary else {
            found.push(region.clone());
            continue;
        };
        let (start, end) = (region.addresses.start, region.addresses.end);
        for (addresses, like) in [(start..at, before), (at..end, after)] {
            if !addresses.is_empty() {
                found.push(RegionAccess {
                    addresses,
                    access_count: like.access_count,
                    check_count: like.check_count,
                    ..region.clone()
                });
            }
        }
    }
    found
}

/// Puts aggregations of one process together, oldest first, each ascending: what regions of the newest
/// overlap with those of older ones gets the sum of their counts and checks, back to where use was
/// another. Tracker's regions differ from one aggregation to the next, so that the parts are smaller
/// than any of them, and a boundary that fell into another region each time is known the better.
#[must_use]
pub fn history(aggregations: &[Vec<RegionAccess>]) -> Vec<RegionAccess> {
    let Some((newest, older)) = aggregations.split_last() else {
        return Vec::new();
    };
    let edges = |region: &RegionAccess| [region.addresses.start, region.addresses.end];
    let mut cuts: Vec<u64> = aggregations.iter().flatten().flat_map(edges).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut found = Vec::with_capacity(cuts.len());
    for region in newest {
        let first = cuts.partition_point(|&cut| cut < region.addresses.start);
        let inside = cuts[first..].windows(2);
        for cut in inside.take_while(|cut| cut[1] <= region.addresses.end) {
            let mut part = RegionAccess {
                addresses: cut[0]..cut[1],
                ..region.clone()
            };
            for before in older.iter().rev() {
                let at = before.partition_point(|old| old.addresses.end <= cut[0]);
                let old = before.get(at).filter(|old| old.addresses.start <= cut[0]);
                let same = |old: &&RegionAccess| (rate(old) - rate(&part)).abs() <= CHANGED;
                let Some(old) = old.filter(same) else { break };
                part.access_count += old.access_count;
                part.check_count += old.check_count;
                part.length_ns += old.length_ns;
            }
            found.push(part);
        }
    }
    found
}

/// Where hot pages begin or end in a region, and its neighbours.
fn boundary<'a>(
    region: &RegionAccess,
    before: &'a RegionAccess,
    after: &'a RegionAccess,
) -> Option<(u64, &'a RegionAccess, &'a RegionAccess)> {
    let (own, left, right) = (rate(region), rate(before), rate(after));
    let (low, high) = (left.min(right), left.max(right));
    if high < HOT || low > COLD || own > high - ALIKE || own < low + ALIKE {
        return None;
    }
    // The share of pages that are as those before it.
    let share = (own - right) / (left - right);
    let bytes = region.addresses.end - region.addresses.start;
    let at = region.addresses.start + (share * bytes as f64) as u64;
    let at = (at + PAGE / 2) / PAGE * PAGE;
    Some((
        at.clamp(region.addresses.start, region.addresses.end),
        before,
        after,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Pid;

    fn region(pages: std::ops::Range<u64>, access_count: u32) -> RegionAccess {
        RegionAccess {
            time_ns: 1,
            length_ns: 1,
            pid: Some(Pid(1)),
            addresses: pages.start * PAGE..pages.end * PAGE,
            access_count,
            check_count: 20,
            age_count: None,
        }
    }

    /// Pages and counts.
    fn told(regions: &[RegionAccess]) -> Vec<(u64, u64, u32)> {
        regions
            .iter()
            .map(|r| {
                (
                    r.addresses.start / PAGE,
                    r.addresses.end / PAGE,
                    r.access_count,
                )
            })
            .collect()
    }

    #[test]
    fn a_boundary_is_where_the_count_says() {
        let regions = [region(0..100, 0), region(100..200, 5), region(200..300, 20)];
        let expected = [(0, 100, 0), (100, 175, 0), (175, 200, 20), (200, 300, 20)];
        assert_eq!(told(&sharpen(&regions)), expected);
        let regions = [region(0..100, 20), region(100..200, 5), region(200..300, 0)];
        let expected = [(0, 100, 20), (100, 125, 20), (125, 200, 0), (200, 300, 0)];
        assert_eq!(told(&sharpen(&regions)), expected);
    }

    #[test]
    fn what_the_count_does_not_tell_stays() {
        for regions in [
            vec![],
            vec![region(0..10, 9)],
            // A small hot set inside one region.
            vec![region(0..10, 0), region(10..20, 9), region(20..30, 0)],
            // A slope, not a boundary.
            vec![region(0..10, 14), region(10..20, 9), region(20..30, 4)],
            // A hole between them.
            vec![region(0..10, 20), region(10..20, 9), region(21..30, 0)],
            vec![region(0..10, 20), region(11..20, 9), region(20..30, 0)],
        ] {
            assert_eq!(sharpen(&regions), regions);
        }
        let mut other = [region(0..10, 20), region(10..20, 9), region(20..30, 0)];
        other[0].pid = Some(Pid(2));
        assert_eq!(sharpen(&other), other);
    }

    #[test]
    fn a_history_is_what_aggregations_say_together() {
        // Of 20 checks each: the boundary near 130 fell into another region each time.
        let aggregations = [
            vec![region(0..120, 19), region(120..160, 6), region(160..300, 0)],
            vec![
                region(0..100, 20),
                region(100..140, 16),
                region(140..300, 0),
            ],
            vec![region(0..130, 20), region(130..300, 1)],
        ];
        let found: Vec<_> = history(&aggregations)
            .into_iter()
            .map(|r| {
                let pages = (r.addresses.start / PAGE, r.addresses.end / PAGE);
                (pages, r.access_count, r.check_count, r.length_ns)
            })
            .collect();
        let expected = [
            ((0, 100), 59, 60, 3),
            ((100, 120), 55, 60, 3),
            // Six of twenty is another use than 36 of 40.
            ((120, 130), 36, 40, 2),
            ((130, 140), 1, 20, 1),
            ((140, 160), 7, 60, 3),
            ((160, 300), 1, 60, 3),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_was_before_a_change_is_no_history() {
        let moved = [
            vec![region(0..100, 20), region(100..300, 0)],
            vec![region(0..100, 12), region(100..200, 8), region(200..300, 0)],
            vec![region(0..100, 0), region(100..200, 20), region(200..300, 0)],
        ];
        let expected = [(0, 100, 0), (100, 200, 20), (200, 300, 0)];
        assert_eq!(told(&history(&moved)), expected);
        // Where the newest has nothing, nothing is; a hole in an older one ends its history.
        let holes = [
            vec![region(0..300, 9)],
            vec![region(0..50, 8), region(90..300, 8)],
            vec![region(0..100, 7), region(200..300, 7)],
        ];
        let expected = [(0, 50, 24), (50, 90, 7), (90, 100, 24), (200, 300, 24)];
        assert_eq!(told(&history(&holes)), expected);
        assert_eq!(history(&[]), []);
        assert_eq!(told(&history(&moved[2..])), told(&moved[2]));
    }

    #[test]
    fn no_byte_is_lost_or_told_twice() {
        let mut random = 7u64;
        for _ in 0..2000 {
            let mut next = || {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                random >> 33
            };
            let mut page = 0;
            let regions: Vec<_> = (0..12)
                .map(|_| {
                    let start = page + next() % 2;
                    page = start + 1 + next() % 9;
                    region(
                        start..page,
                        [0, 1, 19, 20, (next() % 21) as u32][next() as usize % 5],
                    )
                })
                .collect();
            let sharp = sharpen(&regions);
            let bytes = |all: &[RegionAccess]| -> u64 {
                all.iter()
                    .map(|r| r.addresses.end - r.addresses.start)
                    .sum()
            };
            assert_eq!(bytes(&sharp), bytes(&regions));
            assert!(sharp.iter().all(|r| !r.addresses.is_empty()));
            assert!(
                sharp
                    .windows(2)
                    .all(|w| w[0].addresses.end <= w[1].addresses.start)
            );
        }
    }
}
