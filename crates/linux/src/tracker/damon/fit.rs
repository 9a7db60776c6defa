//! How densely DAMON looks: the settings, and fitting them to a budget of CPU time. Pure.

use hither_core::observation::RegionAccess;

/// Fewer regions than this per process are not worth looking at: DAMON's own default is 10.
pub const LEAST_REGIONS: u32 = 16;
/// The same where checks are saturated: many regions that all look alike tell less.
const LEAST_SATURATED: u32 = LEAST_REGIONS / 2;
/// With so many, shorter intervals tell more than further regions.
const ENOUGH_REGIONS: u32 = 128;
/// Most of the least: 4 GB in regions of 2 MB, the size of a huge page.
const MOST_REGIONS: u32 = 2000;
/// What a check of a region takes, for the first guess: two walks of page tables whose lines are in no
/// cache, and its share of what else a kdamond does. 1.4 us on the lab's westmere-m2, 250 regions 100 times a second;
/// 2.8 to 3.0 us on its opteron8385, from 40 regions 25 times a second to 80 of them 200 times.
const CHECK_NS: f64 = 1_500.0;
/// Regions that are checked per least region: DAMON has split each in two or three.
const SPLITS: f64 = 2.5;
/// Cost over budget beyond which the pace is changed at once; beyond which, and below which, it is
/// changed when that is sure: cost varies with what the program does.
const FAR_TOO_DEAR: f64 = 2.0;
const TOO_DEAR: f64 = 1.0;
const TOO_CHEAP: f64 = 0.3;
/// Share of the budget that a new pace aims at.
const AIM: f64 = 0.8;
/// Cost near the budget is believed after this long: some aggregations, each of which looks at other
/// pages.
pub const SURE_NS: u64 = 3_000_000_000;

/// Intervals, and whether they may be stretched to keep the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The word for it.
    pub name: &'static str,
    /// Between two checks of a region.
    pub sample_us: u64,
    /// Checks in an aggregation, or as many as fit in the longest.
    pub check_count: u32,
    /// Longest aggregation.
    pub most_aggregation_us: u64,
    /// How many times as long the intervals may become, a power of two.
    pub most_stretch: u64,
}

impl Setting {
    /// The memory-region thesis's: a check each 100 ms and a history of 32. Four aggregations of 8
    /// are that history ([`hither_core::refine::history`]); in one of 32, what was used before a
    /// change looks like what is used now for up to 3.2 s. Its intervals stay as they are.
    pub const THESIS: Self = Self {
        name: "thesis",
        sample_us: 100_000,
        check_count: 8,
        most_aggregation_us: 800_000,
        most_stretch: 1,
    };
    /// Quick: 5 ms and 50 ms, or up to 40 ms and 400 ms where the budget asks for it, so that what
    /// changes is seen within a second. Ten checks tell an edge within a region to a sixth of it
    /// (the deviation of ten throws), and DAMON divides regions once an aggregation: more
    /// of them tell more than longer ones.
    pub const ADAPTIVE: Self = Self {
        name: "adaptive",
        sample_us: 5_000,
        check_count: 10,
        most_aggregation_us: 400_000,
        most_stretch: 8,
    };

    /// Where to begin, with so much CPU time per second; it aims at the same share as later paces. From
    /// the longest intervals down: an edge is known to a share of a region, so that many regions tell
    /// more than many looks, as long as some aggregations fit into a second.
    #[must_use]
    pub fn first(&self, budget: f64) -> Pace {
        let stretch = self.most_stretch;
        let rate = 1e6 / (self.sample_us * stretch) as f64;
        self.within(stretch, AIM * budget * 1e9 / (CHECK_NS * SPLITS * rate))
    }

    /// The finest pace whose regions, at this stretch or a longer one, are no more than that.
    fn within(&self, stretch: u64, regions: f64) -> Pace {
        let (mut stretch, mut regions) = (stretch, regions);
        while regions < LEAST_REGIONS.into() && stretch < self.most_stretch {
            (stretch, regions) = (stretch * 2, regions * 2.0);
        }
        while regions >= ENOUGH_REGIONS.into() && stretch > 1 {
            (stretch, regions) = (stretch / 2, regions / 2.0);
        }
        let sample_us = self.sample_us * stretch;
        Pace {
            sample_us,
            aggregation_us: (sample_us * u64::from(self.check_count)).min(self.most_aggregation_us),
            min_regions: regions.clamp(LEAST_REGIONS.into(), MOST_REGIONS.into()) as u32,
        }
    }
}

/// How densely a kdamond looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Between two checks of a region.
    pub sample_us: u64,
    /// Between two results.
    pub aggregation_us: u64,
    /// Least number of regions; also what bounds a region's size.
    pub min_regions: u32,
}

impl Pace {
    /// Most regions. DAMON splits while there are less than half of it, and splitting doubles.
    #[must_use]
    pub fn max_regions(&self) -> u32 {
        self.min_regions * 4
    }

    /// Checks in an aggregation.
    #[must_use]
    pub fn check_count(&self) -> u32 {
        (self.aggregation_us / self.sample_us.max(1)).clamp(1, u32::MAX.into()) as u32
    }
}

/// How many of the checks of memory in use found it used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Saturation {
    /// Bytes of regions that were used, and of them what checks found used.
    bytes: f64,
    found: f64,
}

impl Saturation {
    /// Takes in a region of an aggregation.
    pub fn add(&mut self, region: &RegionAccess) {
        if region.access_count > 0 {
            let bytes = (region.addresses.end - region.addresses.start) as f64;
            self.bytes += bytes;
            self.found +=
                bytes * f64::from(region.access_count) / f64::from(region.check_count.max(1));
        }
    }

    /// Are most found used? Then checks are too far apart to tell much use from more.
    pub fn is_high(&self) -> bool {
        self.found > 0.5 * self.bytes
    }
}

/// The pace to go on with after `passed_ns` at `now`, whose cost was `use_` times the budget;
/// `None` to stay. Where checks are saturated, shorter intervals are worth half of the regions.
#[must_use]
pub fn fit(
    setting: &Setting,
    now: Pace,
    use_: f64,
    passed_ns: u64,
    is_saturated: bool,
) -> Option<Pace> {
    let is_sure = passed_ns >= SURE_NS;
    let fits = use_ <= FAR_TOO_DEAR && (!is_sure || (TOO_CHEAP..=TOO_DEAR).contains(&use_));
    if fits && is_saturated {
        let finer = Pace {
            sample_us: now.sample_us / 2,
            aggregation_us: now.aggregation_us / 2,
            min_regions: now.min_regions / 2,
        };
        let is_possible =
            finer.sample_us >= setting.sample_us && finer.min_regions >= LEAST_SATURATED;
        return is_possible.then_some(finer);
    }
    if fits || !use_.is_finite() {
        return None;
    }
    // Growing is slower: what more regions cost is a guess.
    let factor = (AIM / use_.max(1e-3)).min(4.0);
    let stretch = now.sample_us / setting.sample_us;
    let fitted = setting.within(stretch.max(1), f64::from(now.min_regions) * factor);
    (fitted != now).then_some(fitted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn pace(sample_us: u64, check_count: u64, min_regions: u32) -> Pace {
        Pace {
            sample_us,
            aggregation_us: sample_us * check_count,
            min_regions,
        }
    }

    #[test]
    fn the_thesis_has_a_bit_per_check() {
        let first = Setting::THESIS.first(0.04);
        assert_eq!((first.sample_us, first.aggregation_us), (100_000, 800_000));
        assert_eq!(
            first.check_count() as usize * hither_core::refine::HISTORY,
            32
        );
        // 0.8 of 40 ms a second pay for 21,333 checks of 1.5 us: 853 regions at 10 a second and 2.5 splits.
        assert_eq!((first.min_regions, first.max_regions()), (853, 3412));
        // However little there is, its intervals stay.
        let poor = fit(&Setting::THESIS, first, 500.0, SECOND, false).unwrap();
        assert_eq!(poor, pace(100_000, 8, LEAST_REGIONS));
        assert_eq!(fit(&Setting::THESIS, poor, 500.0, SECOND, false), None);
    }

    #[test]
    fn what_is_too_dear_is_made_coarser_then_slower() {
        let setting = Setting::ADAPTIVE;
        // Of 341 regions 25 times a second, a quarter of them four times as often.
        assert_eq!(setting.first(0.04), pace(10_000, 10, 85));
        assert_eq!(setting.first(0.004), pace(40_000, 10, 34));
        assert_eq!(setting.first(0.001), pace(40_000, 10, LEAST_REGIONS));
        assert_eq!(setting.first(0.4), pace(5_000, 10, 426));
        let now = pace(5_000, 10, 200);
        // Slightly too dear: only where that is sure.
        assert_eq!(fit(&setting, now, 1.6, SECOND, false), None);
        assert_eq!(
            fit(&setting, now, 1.6, SURE_NS, false),
            Some(pace(5_000, 10, 100))
        );
        assert_eq!(
            fit(&setting, now, 3.2, SECOND / 2, false),
            Some(pace(5_000, 10, 50))
        );
        assert_eq!(
            fit(&setting, now, 16.0, SECOND / 2, false),
            Some(pace(10_000, 10, 20))
        );
        // Beyond the longest there is nothing left.
        let slowest = pace(40_000, 10, LEAST_REGIONS);
        assert_eq!(fit(&setting, now, 1e6, SECOND / 2, false), Some(slowest));
        assert_eq!(fit(&setting, slowest, 3.0, SECOND, false), None);
    }

    #[test]
    fn what_is_cheap_grows_when_that_is_sure() {
        let setting = Setting::ADAPTIVE;
        let now = pace(40_000, 10, 50);
        assert_eq!(fit(&setting, now, 0.1, SECOND, false), None);
        // Four times as much: of what is spent, first the intervals shrink.
        assert_eq!(
            fit(&setting, now, 0.1, SURE_NS, false),
            Some(pace(20_000, 10, 100))
        );
        assert_eq!(fit(&setting, now, 0.8, 9 * SECOND, false), None);
        assert_eq!(fit(&setting, now, f64::NAN, 9 * SECOND, false), None);
        let most = pace(5_000, 10, MOST_REGIONS);
        assert_eq!(fit(&setting, most, 0.0, 9 * SECOND, false), None);
        let now = Setting::THESIS.first(0.04);
        assert_eq!(
            fit(&Setting::THESIS, now, 0.1, SURE_NS, false),
            Some(pace(100_000, 8, MOST_REGIONS))
        );
    }

    #[test]
    fn saturated_checks_come_sooner_of_fewer_regions() {
        let setting = Setting::ADAPTIVE;
        let finer = |now, use_| fit(&setting, now, use_, SECOND, true);
        let now = pace(40_000, 10, 85);
        assert_eq!(finer(now, 0.5), Some(pace(20_000, 10, 42)));
        assert_eq!(finer(pace(20_000, 10, 42), 0.5), Some(pace(10_000, 10, 21)));
        assert_eq!(finer(pace(20_000, 10, 16), 0.5), Some(pace(10_000, 10, 8)));
        assert_eq!(finer(pace(10_000, 10, 8), 0.5), None);
        assert_eq!(finer(pace(5_000, 10, 200), 0.5), None);
        assert_eq!(
            fit(&Setting::THESIS, pace(100_000, 8, 400), 0.5, SECOND, true),
            None
        );
        let region = |bytes, access_count| RegionAccess {
            time_ns: 0,
            length_ns: 1,
            pid: None,
            addresses: 0..bytes,
            access_count,
            check_count: 10,
            age_count: None,
        };
        let mut saturation = Saturation::default();
        assert!(!saturation.is_high());
        // What is not used has no part in it.
        for (bytes, count) in [(1 << 30, 0), (1 << 20, 8), (1 << 20, 1)] {
            saturation.add(&region(bytes, count));
        }
        assert!(!saturation.is_high());
        saturation.add(&region(1 << 20, 10));
        assert!(saturation.is_high());
    }

    #[test]
    fn fitting_ends() {
        // A cost that is a constant per check settles within the bounds, whatever it is.
        for check_us in [0.05, 0.7, 4.0, 21.0, 300.0] {
            for setting in [Setting::THESIS, Setting::ADAPTIVE] {
                let budget = 0.04;
                let mut now = setting.first(budget);
                let cost = |pace: Pace| {
                    let checks = f64::from(pace.min_regions) * SPLITS * 1e6 / pace.sample_us as f64;
                    checks * check_us / 1e6 / budget
                };
                let mut steps = 0;
                while let Some(next) = fit(&setting, now, cost(now), 10 * SECOND, true) {
                    (now, steps) = (next, steps + 1);
                    assert!(steps < 12, "{setting:?} {check_us} {now:?}");
                }
                let at_an_end = now.min_regions == LEAST_REGIONS
                    && now.sample_us == setting.sample_us * setting.most_stretch;
                assert!(
                    cost(now) <= TOO_DEAR || at_an_end,
                    "{setting:?} {check_us} {now:?}"
                );
            }
        }
    }
}
