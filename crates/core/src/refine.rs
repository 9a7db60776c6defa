//! Sharper boundaries for regions that access bits tell of. Pure.
//!
//! A tracker that checks one page of a region at a time sees the share of its pages that are in
//! use. Where hot pages end inside a region, its count lies between those of its neighbours, and
//! says how far they reach: nine checks of twenty mean 45 % of it. So the boundary is found within
//! a region without a check more.

use crate::observation::RegionAccess;

/// Rates of access that count as hot and as cold.
const HOT: f64 = 0.75;
const COLD: f64 = 0.1;
/// Base page in bytes.
const PAGE: u64 = 4096;

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

/// Where hot pages begin or end in a region, and its neighbours.
fn boundary<'a>(
    region: &RegionAccess,
    before: &'a RegionAccess,
    after: &'a RegionAccess,
) -> Option<(u64, &'a RegionAccess, &'a RegionAccess)> {
    let (own, left, right) = (rate(region), rate(before), rate(after));
    let (low, high) = (left.min(right), left.max(right));
    if high < HOT || low > COLD || own >= high || own <= low {
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
            age_count: 0,
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
