//! Pages drawn from regions, in proportion to their use. Pure.
//!
//! Problem: policies decide by samples of pages, and DAMON tells of regions, which may be as large as all memory.
//! Mechanism: each page of a region is in use for the share of the checks that found the region used. Of the time for
//! which all pages are in use together, one page is drawn in every so much: what is used more is drawn more often, as by
//! a PMU. Draws are at equal distances from a random start on (systematic sampling), so that they scatter less than
//! independent ones.

use hither_core::policy::random::Random;
use std::ops::Range;

/// Draws of a page that is always in use, a second.
const PER_PAGE: f64 = 2.0;

/// A region that is in use.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Used {
    /// Numbers of its pages.
    pub pages: Range<u64>,
    /// Share of the checks that found it used, above 0.
    pub share: f64,
}

impl Used {
    /// Page-seconds in a second.
    fn use_(&self) -> f64 {
        (self.pages.end - self.pages.start) as f64 * self.share
    }
}

/// Draws from the regions of several processes for `seconds`, `most` a second at most.
pub(super) fn draw<'a>(
    regions: impl Iterator<Item = (i32, &'a Used)> + Clone,
    seconds: f64,
    most: f64,
    random: &mut Random,
    mut each: impl FnMut(i32, u64),
) {
    let all: f64 = regions.clone().map(|(_, used)| used.use_()).sum();
    let count = (all * PER_PAGE).min(most) * seconds;
    if count <= 0.0 {
        return;
    }
    let distance = all / count;
    let mut next = random.unit() * distance;
    for (pid, used) in regions {
        let length = used.use_();
        while next < length {
            let page = used.pages.start + (next / used.share) as u64;
            each(pid, page.min(used.pages.end - 1));
            next += distance;
        }
        next -= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn used(pages: Range<u64>, share: f64) -> Used {
        Used { pages, share }
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

    #[test]
    fn pages_are_drawn_as_much_as_they_are_used() {
        let regions = [
            (1, used(100..150, 1.0)),
            (1, used(150..250, 0.1)),
            (2, used(7..57, 0.5)),
        ];
        // 10 s: 20 draws of each page that is always in use.
        let counts = drawn(&regions, f64::INFINITY, 100);
        let of = |pid: i32, pages: Range<u64>| -> u32 {
            counts
                .range((pid, pages.start)..(pid, pages.end))
                .map(|(_, count)| count)
                .sum()
        };
        assert!((980..=1020).contains(&of(1, 100..150)), "{counts:?}");
        assert!((190..=210).contains(&of(1, 150..250)), "{counts:?}");
        assert!((490..=510).contains(&of(2, 7..57)), "{counts:?}");
        // No page is left out, and none is drawn that is not there.
        let hot = counts.range((1, 100)..(1, 150));
        assert!(
            hot.clone().count() == 50 && hot.clone().all(|(_, &count)| (8..=32).contains(&count))
        );
        assert_eq!(
            counts.len(),
            counts.range((1, 100)..(1, 250)).count() + counts.range((2, 7)..(2, 57)).count()
        );
    }

    #[test]
    fn what_is_too_much_is_drawn_more_rarely_and_nothing_from_nothing() {
        let regions = [
            (1, used(0..1 << 20, 1.0)),
            (1, used(1 << 20..1 << 21, 0.25)),
        ];
        let counts = drawn(&regions, 10_000.0, 10);
        let all: u32 = counts.values().sum();
        let low: u32 = counts
            .range((1, 0)..(1, 1 << 20))
            .map(|(_, count)| count)
            .sum();
        assert!((9_990..=10_010).contains(&all), "{all}");
        assert!((7_990..=8_010).contains(&low), "{low}");
        assert!(drawn(&[], 10_000.0, 10).is_empty());
    }
}
