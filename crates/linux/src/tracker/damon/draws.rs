//! Pages drawn from regions, in proportion to their use.
//!
//! Problem: policies decide by samples of pages, and DAMON tells of regions, which may be as large as all memory, in how
//! many checks each was found used. Mechanism: a check finds a page used that was used once since the last check, or a
//! thousand times. Were uses at random, a share `p` of the checks would find it used at `-ln(1 - p)` uses a check
//! (Poisson): between 8 and 10 of ten checks lies a factor of two, and not a quarter. Of all uses of all pages one in so
//! many is drawn, as by a PMU. Draws are at equal distances from a random start on (systematic sampling), so that they
//! scatter less than independent ones.

use super::super::by_page::ByPage;
use crate::proc::tree::Tree;
use crate::root::Root;
use hither_core::observation::RegionAccess;
use hither_core::plan::Sampling;
use hither_core::policy::random::Random;
use hither_core::snapshot::{Evidence, Snapshot};
use std::ops::Range;

/// Uses of which one is drawn: of a page that every check of 40 ms finds used, five a second.
const USES: f64 = 16.0;
/// Pages drawn a second for each CPU, at full and at cheap sampling, and at most: each has its place looked for. Of
/// 500, an interval's on two CPUs, a share has a standard error of 2.2 points.
const FULL_DRAWS: f64 = 2_500.0;
const CHEAP_DRAWS: f64 = 250.0;
const MOST_DRAWS: f64 = 40_000.0;
const BASIS: &str =
    "pages drawn from DAMON's regions by how much they were used, by whom is not known";

/// A region that is in use.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Used {
    /// Numbers of its pages.
    pub pages: Range<u64>,
    /// Uses of each a second, above 0: no fewer than there are.
    pub rate: f64,
}

impl Used {
    /// What so many aggregations say of a region that one of them told; `None` where it was not used.
    pub fn of(region: &RegionAccess, aggregations: usize) -> Option<Self> {
        let pages = region.addresses.start >> 12..region.addresses.end >> 12;
        let checks = f64::from(region.check_count.max(1));
        // As of half a check more that found nothing: more than every check cannot be told.
        let share = f64::from(region.access_count) / (checks + 0.5);
        let seconds = region.length_ns as f64 / 1e9 * aggregations as f64;
        let rate = -(1.0 - share).ln() * checks / seconds;
        (rate > 0.0 && rate.is_finite() && !pages.is_empty()).then_some(Self { pages, rate })
    }

    /// Uses of all of its pages a second.
    fn uses(&self) -> f64 {
        (self.pages.end - self.pages.start) as f64 * self.rate
    }
}

/// Draws a second at most at this sampling of a machine with so many CPUs.
pub(super) fn most(sampling: Sampling, cpu_count: u32) -> f64 {
    let of_cpu = match sampling {
        Sampling::Full => FULL_DRAWS,
        Sampling::Cheap | Sampling::Off => CHEAP_DRAWS,
    };
    (of_cpu * f64::from(cpu_count)).min(MOST_DRAWS)
}

/// Draws pages, and looks where they are.
#[derive(Debug)]
pub(super) struct Drawing {
    by_page: ByPage,
    random: Random,
}

impl Drawing {
    /// For the machine below `root`.
    pub fn new(root: &Root) -> Self {
        Self {
            by_page: ByPage::new(root),
            random: Random::new(1),
        }
    }

    /// Fills in pages of the interval, `most` a second at most, for who decides by them.
    pub fn fill<'a>(
        &mut self,
        regions: impl Iterator<Item = (i32, &'a Used)> + Clone,
        most: f64,
        tree: &Tree,
        snapshot: &mut Snapshot,
    ) {
        let seconds = snapshot.interval_us as f64 / 1e6;
        let (by_page, mut count) = (&mut self.by_page, 0);
        draw(regions, seconds, most, &mut self.random, |pid, page| {
            count += 1;
            by_page.add(pid, page, 0, false);
        });
        by_page.finish(tree, &mut snapshot.pages);
        snapshot.by_use = true;
        snapshot.sample_count = Evidence::estimated(count, BASIS);
    }
}

/// Draws from the regions of several processes for `seconds`, `most` a second at most.
fn draw<'a>(
    regions: impl Iterator<Item = (i32, &'a Used)> + Clone,
    seconds: f64,
    most: f64,
    random: &mut Random,
    mut each: impl FnMut(i32, u64),
) {
    let all: f64 = regions.clone().map(|(_, used)| used.uses()).sum();
    let count = (all / USES).min(most) * seconds;
    if count <= 0.0 {
        return;
    }
    let distance = all / count;
    let mut next = random.unit() * distance;
    for (pid, used) in regions {
        let uses = used.uses();
        while next < uses {
            let page = used.pages.start + (next / used.rate) as u64;
            each(pid, page.min(used.pages.end - 1));
            next += distance;
        }
        next -= uses;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn used(pages: Range<u64>, rate: f64) -> Used {
        Used { pages, rate }
    }

    /// Draws of a tenth of a second, so many times.
    fn drawn(regions: &[(i32, Used)], most: f64, times: u32) -> BTreeMap<(i32, u64), u32> {
        let mut random = Random::new(7);
        let mut counts = BTreeMap::new();
        for _ in 0..times {
            let regions = regions.iter().map(|(pid, used)| (*pid, used));
            draw(regions, 0.1, most, &mut random, |pid, page| {
                *counts.entry((pid, page)).or_insert(0) += 1;
            });
        }
        counts
    }

    fn of(counts: &BTreeMap<(i32, u64), u32>, pid: i32, pages: Range<u64>) -> u32 {
        let counts = counts.range((pid, pages.start)..(pid, pages.end));
        counts.map(|(_, count)| count).sum()
    }

    #[test]
    fn pages_are_drawn_as_much_as_they_are_used() {
        let regions = [
            (1, used(100..150, 32.0)),
            (1, used(150..250, 3.2)),
            (2, used(7..57, 16.0)),
        ];
        // 10 s: 20 draws of each page that is used most.
        let counts = drawn(&regions, f64::INFINITY, 100);
        assert!(
            (980..=1020).contains(&of(&counts, 1, 100..150)),
            "{counts:?}"
        );
        assert!(
            (190..=210).contains(&of(&counts, 1, 150..250)),
            "{counts:?}"
        );
        assert!((490..=510).contains(&of(&counts, 2, 7..57)), "{counts:?}");
        // No page is left out.
        let hot = counts.range((1, 100)..(1, 150));
        assert!(
            hot.clone().count() == 50 && hot.clone().all(|(_, count)| (8..=32).contains(count))
        );
    }

    #[test]
    fn what_is_too_much_is_drawn_more_rarely_and_nothing_from_nothing() {
        let regions = [(1, used(0..1 << 20, 8.0)), (1, used(1 << 20..1 << 21, 2.0))];
        let counts = drawn(&regions, 10_000.0, 10);
        let (low, high) = (of(&counts, 1, 0..1 << 20), of(&counts, 1, 1 << 20..1 << 21));
        assert!(
            (7_990..=8_010).contains(&low) && (1_990..=2_010).contains(&high),
            "{low}, {high}"
        );
        assert!(drawn(&[], 10_000.0, 10).is_empty());
    }

    #[test]
    fn checks_tell_of_more_uses_than_one() {
        let region = |access_count, check_count| RegionAccess {
            time_ns: 0,
            length_ns: 400_000_000,
            pid: None,
            addresses: 0x10_000..0x20_000,
            access_count,
            check_count,
            age_count: None,
        };
        let rate =
            |count, aggregations| Used::of(&region(count, 10), aggregations).map(|used| used.rate);
        assert_eq!(rate(0, 1), None);
        // One of ten in 0.4 s: 0.1 uses a check, 25 checks a second.
        assert!((rate(1, 1).unwrap() - 2.5).abs() < 0.1);
        assert!((rate(1, 2).unwrap() - 1.25).abs() < 0.05);
        // 8 of ten: 1.4; all: 3.
        let (much, all) = (rate(8, 1).unwrap(), rate(10, 1).unwrap());
        assert!(
            (much - 36.0).abs() < 1.0 && (all - 76.0).abs() < 1.0,
            "{much} {all}"
        );
        let one = Used::of(&region(7, 7), 1).unwrap();
        assert_eq!(one.pages, 0x10..0x20);
    }
}
