//! How densely DAMON looks: the settings, and fitting them to a budget of CPU time. Pure.

/// Fewer regions than this per process are not worth looking at.
pub const LEAST_REGIONS: u32 = 20;
/// Most of the least: 4 GB in regions of 2 MB, the size of a huge page.
const MOST_REGIONS: u32 = 2000;
/// What a check takes, for the first guess: two walks of page tables whose lines are in no cache.
const CHECK_NS: f64 = 4000.0;
/// Regions that are checked per least region: DAMON has split each in two or three.
const SPLITS: f64 = 2.5;
/// Cost over budget beyond which, and below which, the pace is fitted anew.
const TOO_DEAR: f64 = 1.2;
const TOO_CHEAP: f64 = 0.4;

/// Intervals, and whether they may be stretched to keep the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The word for it.
    pub name: &'static str,
    /// Between two checks of a region.
    pub sample_us: u64,
    /// Checks in an aggregation.
    pub check_count: u32,
    /// How many times as long the intervals may become, a power of two.
    pub most_stretch: u64,
}

impl Setting {
    /// The memory-region thesis's: 100 ms and 3.2 s, so that a region's count is the number of
    /// ones of a history of 32 bits. Its intervals stay as they are.
    pub const THESIS: Self = Self {
        name: "thesis",
        sample_us: 100_000,
        check_count: 32,
        most_stretch: 1,
    };
    /// Quick: 5 ms and 100 ms, or up to eight times that where the budget asks for it.
    pub const ADAPTIVE: Self = Self {
        name: "adaptive",
        sample_us: 5_000,
        check_count: 20,
        most_stretch: 8,
    };

    /// Where to begin, with so much CPU time per second.
    #[must_use]
    pub fn first(&self, budget: f64) -> Pace {
        let rate = 1e6 / self.sample_us as f64;
        let affordable = budget * 1e9 / (CHECK_NS * SPLITS * rate);
        self.within(1, affordable)
    }

    /// The finest pace whose regions, at this stretch or a longer one, are no more than that.
    fn within(&self, stretch: u64, regions: f64) -> Pace {
        let (mut stretch, mut regions) = (stretch, regions);
        while regions < LEAST_REGIONS.into() && stretch < self.most_stretch {
            (stretch, regions) = (stretch * 2, regions * 2.0);
        }
        while regions >= (4 * LEAST_REGIONS).into() && stretch > 1 {
            (stretch, regions) = (stretch / 2, regions / 2.0);
        }
        let sample_us = self.sample_us * stretch;
        Pace {
            sample_us,
            aggregation_us: sample_us * u64::from(self.check_count),
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

/// The pace to go on with after `passed_ns` at `now`, whose cost was `use_` times the budget;
/// `None` to stay. What is too dear is changed at once, what is too cheap after an aggregation.
#[must_use]
pub fn fit(setting: &Setting, now: Pace, use_: f64, passed_ns: u64) -> Option<Pace> {
    let whole = passed_ns >= 1000 * now.aggregation_us;
    let fits = use_ <= TOO_DEAR && (use_ >= TOO_CHEAP || !whole);
    if fits || !use_.is_finite() {
        return None;
    }
    // Growing is slower: the cost of more regions is a guess.
    let factor = (0.9 / use_.max(1e-3)).min(4.0);
    let stretch = now.sample_us / setting.sample_us;
    let fitted = setting.within(stretch.max(1), f64::from(now.min_regions) * factor);
    // A few regions more are not worth beginning anew.
    let same = fitted.sample_us == now.sample_us;
    let little = fitted.min_regions.abs_diff(now.min_regions) * 8 < now.min_regions;
    (!(same && little)).then_some(fitted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_thesis_has_a_bit_per_check() {
        let pace = Setting::THESIS.first(0.04);
        assert_eq!((pace.sample_us, pace.aggregation_us), (100_000, 3_200_000));
        assert_eq!(pace.check_count(), 32);
        // 40 ms a second pay for 10,000 checks of 4 us: 400 regions at 10 a second and 2.5 splits.
        assert_eq!((pace.min_regions, pace.max_regions()), (400, 1600));
        // However little there is, its intervals stay.
        let poor = fit(&Setting::THESIS, pace, 500.0, SECOND).unwrap();
        assert_eq!((poor.sample_us, poor.min_regions), (100_000, LEAST_REGIONS));
        assert_eq!(fit(&Setting::THESIS, poor, 500.0, SECOND), None);
    }

    #[test]
    fn what_is_too_dear_is_made_coarser_then_slower() {
        let setting = Setting::ADAPTIVE;
        let pace = Pace {
            sample_us: 5_000,
            aggregation_us: 100_000,
            min_regions: 200,
        };
        let fitted = fit(&setting, pace, 2.0, SECOND / 2).unwrap();
        assert_eq!((fitted.sample_us, fitted.min_regions), (5_000, 90));
        let fitted = fit(&setting, pace, 36.0, SECOND / 2).unwrap();
        assert_eq!((fitted.sample_us, fitted.min_regions), (20_000, 20));
        assert_eq!((fitted.aggregation_us, fitted.check_count()), (400_000, 20));
        // Beyond the longest there is nothing left.
        let slowest = fit(&setting, pace, 1e6, SECOND / 2).unwrap();
        assert_eq!(
            (slowest.sample_us, slowest.min_regions),
            (40_000, LEAST_REGIONS)
        );
        assert_eq!(fit(&setting, slowest, 3.0, SECOND), None);
    }

    #[test]
    fn what_is_cheap_grows_after_an_aggregation() {
        let setting = Setting::ADAPTIVE;
        let pace = Pace {
            sample_us: 40_000,
            aggregation_us: 800_000,
            min_regions: 40,
        };
        assert_eq!(fit(&setting, pace, 0.1, SECOND / 2), None);
        let fitted = fit(&setting, pace, 0.1, SECOND).unwrap();
        // Four times as much: half as regions' time, twice.
        assert_eq!((fitted.sample_us, fitted.min_regions), (10_000, 40));
        assert_eq!(fit(&setting, pace, 0.8, 9 * SECOND), None);
        assert_eq!(fit(&setting, pace, f64::NAN, 9 * SECOND), None);
        let most = Pace {
            sample_us: 5_000,
            aggregation_us: 100_000,
            min_regions: MOST_REGIONS,
        };
        assert_eq!(fit(&setting, most, 0.0, 9 * SECOND), None);
    }

    #[test]
    fn fitting_ends() {
        // A cost that is a constant per check settles within the bounds, whatever it is.
        for check_us in [0.05, 0.7, 4.0, 21.0, 300.0] {
            for setting in [Setting::THESIS, Setting::ADAPTIVE] {
                let budget = 0.04;
                let mut pace = setting.first(budget);
                let cost = |pace: Pace| {
                    let checks = f64::from(pace.min_regions) * SPLITS * 1e6 / pace.sample_us as f64;
                    checks * check_us / 1e6 / budget
                };
                let mut steps = 0;
                while let Some(next) = fit(&setting, pace, cost(pace), 10 * SECOND) {
                    (pace, steps) = (next, steps + 1);
                    assert!(steps < 12, "{setting:?} {check_us} {pace:?}");
                }
                let at_an_end = pace.min_regions == LEAST_REGIONS
                    && pace.sample_us == setting.sample_us * setting.most_stretch;
                assert!(
                    cost(pace) <= TOO_DEAR || at_an_end,
                    "{setting:?} {check_us} {pace:?}"
                );
            }
        }
    }
}
