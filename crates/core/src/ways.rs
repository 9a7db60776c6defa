//! Ways of a shared cache, divided by masks: who may fill which. Pure.
//!
//! A mask has bit w for way w. Intel's CAT takes runs of neighbouring bits alone. AMD's takes any bits, runs
//! among them; so every mask that is made here is a run.

/// What masks of a cache may be, as resctrl tells it (`info/L3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayLimits {
    /// All ways (`cbm_mask`).
    all: u32,
    /// Fewest bits of a mask (`min_cbm_bits`).
    least_count: u32,
    /// Ways that devices fill too (`shareable_bits`).
    shared: u32,
}

/// A cache divided in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaySplit {
    /// Ways of those who go first.
    pub priority: u32,
    /// Ways of all others: the remaining ones.
    pub rest: u32,
}

/// Why a mask or a split cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WayError {
    /// No cache has such ways.
    #[error("{0:#x} is no run of ways")]
    NoRun(u32),
    /// A mask with too few bits.
    #[error("{mask:#x} has fewer than {least_count} ways")]
    TooFew {
        /// The mask.
        mask: u32,
        /// Fewest bits.
        least_count: u32,
    },
    /// A mask with ways that are not there.
    #[error("{mask:#x} has ways that the cache ({all:#x}) has not")]
    Beyond {
        /// The mask.
        mask: u32,
        /// The cache's ways.
        all: u32,
    },
    /// Two masks do not fit.
    #[error("{count} ways cannot be divided where each part has {least_count} or more")]
    NoSplit {
        /// The cache's ways.
        count: u32,
        /// Fewest bits of a mask.
        least_count: u32,
    },
}

/// Is the mask a run of neighbouring ways, and not empty?
#[must_use]
pub fn is_run(mask: u32) -> bool {
    let lowest_is_first = mask.checked_shr(mask.trailing_zeros()).unwrap_or(0);
    mask != 0 && (u64::from(lowest_is_first) + 1).is_power_of_two()
}

/// So many ways from one on.
fn run(first: u32, count: u32) -> u32 {
    (((1u64 << count) - 1) << first) as u32
}

impl WayLimits {
    /// Of a cache with these ways. A least number of 0 is taken for 1.
    ///
    /// # Errors
    /// The ways are no run, or fewer than a mask must have.
    pub fn new(all: u32, least_count: u32, shared: u32) -> Result<Self, WayError> {
        let limits = Self {
            all,
            least_count: least_count.max(1),
            shared: shared & all,
        };
        limits.check(all)?;
        Ok(limits)
    }

    /// All ways.
    #[must_use]
    pub fn all(&self) -> u32 {
        self.all
    }

    /// How many they are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.all.count_ones()
    }

    /// Ways that devices fill too.
    #[must_use]
    pub fn shared(&self) -> u32 {
        self.shared
    }

    /// May this be somebody's mask?
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, mask: u32) -> Result<(), WayError> {
        let (all, least_count) = (self.all, self.least_count);
        if !is_run(mask) {
            return Err(WayError::NoRun(mask));
        }
        if mask & !all != 0 {
            return Err(WayError::Beyond { mask, all });
        }
        if mask.count_ones() < least_count {
            return Err(WayError::TooFew { mask, least_count });
        }
        Ok(())
    }

    /// Divides the cache: so many ways for those who go first, or as near as both parts' least allows, and
    /// the rest for all others. The parts have no way in common. Those who go first get the end of the cache
    /// where fewer ways are filled by devices too; by the lowest ways where that is alike.
    ///
    /// Of 0x7ff, 4 wanted, devices fill 0x600: 0x00f and 0x7f0.
    ///
    /// # Errors
    /// The cache has too few ways for two parts.
    pub fn split(&self, wanted_count: u32) -> Result<WaySplit, WayError> {
        let (count, least_count) = (self.count(), self.least_count);
        if count < 2 * least_count {
            return Err(WayError::NoSplit { count, least_count });
        }
        let wanted = wanted_count.clamp(least_count, count - least_count);
        let first = self.all.trailing_zeros();
        let low = run(first, wanted);
        let high = run(first + count - wanted, wanted);
        let by_devices = |mask: u32| (mask & self.shared).count_ones();
        let priority = if by_devices(high) < by_devices(low) {
            high
        } else {
            low
        };
        Ok(WaySplit {
            priority,
            rest: self.all & !priority,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn runs_are_neighbouring_bits() {
        for mask in [1, 0b110, 0x7ff, 0xffff_0000, 1 << 31, u32::MAX] {
            assert!(is_run(mask), "{mask:#x}");
        }
        for mask in [0, 0b101, 0x8000_0001, 0xf0f] {
            assert!(!is_run(mask), "{mask:#x}");
        }
    }

    #[test]
    fn who_goes_first_stays_off_the_ways_of_devices() {
        let split = |shared, wanted| {
            let limits = WayLimits::new(0x7ff, 1, shared).unwrap();
            let split = limits.split(wanted).unwrap();
            (split.priority, split.rest)
        };
        assert_eq!(split(0x600, 4), (0x00f, 0x7f0));
        assert_eq!(split(0x003, 4), (0x780, 0x07f));
        assert_eq!(split(0, 0), (0x001, 0x7fe));
        assert_eq!(split(0, 99), (0x3ff, 0x400));
        let two = WayLimits::new(0xff, 2, 0).unwrap().split(1).unwrap();
        assert_eq!((two.priority, two.rest), (0x03, 0xfc));
    }

    #[test]
    fn what_cannot_be_is_said() {
        let said = |result: Result<(), WayError>| result.unwrap_err().to_string();
        let limits = WayLimits::new(0xfff, 2, 0).unwrap();
        assert_eq!(said(limits.check(0x505)), "0x505 is no run of ways");
        assert_eq!(said(limits.check(0x800)), "0x800 has fewer than 2 ways");
        let beyond = "0x1800 has ways that the cache (0xfff) has not";
        assert_eq!(said(limits.check(0x1800)), beyond);
        assert_eq!(limits.check(0xc00), Ok(()));
        for bad in [(0, 1), (0x5, 1), (0x1, 2)] {
            assert!(WayLimits::new(bad.0, bad.1, 0).is_err(), "{bad:?}");
        }
        let narrow = WayLimits::new(0x7, 2, 0).unwrap();
        let error = narrow.split(1).unwrap_err().to_string();
        let words = "3 ways cannot be divided where each part has 2 or more";
        assert_eq!(error, words);
    }

    proptest! {
        #[test]
        fn parts_are_apart_and_whole(
            first in 0u32..8,
            count in 1u32..25,
            least in 0u32..5,
            shared: u32,
            wanted in 0u32..40,
        ) {
            let all = run(first, count);
            let Ok(limits) = WayLimits::new(all, least, shared) else {
                prop_assert!(count < least);
                return Ok(());
            };
            let Ok(split) = limits.split(wanted) else {
                prop_assert!(count < 2 * least.max(1));
                return Ok(());
            };
            prop_assert_eq!(split.priority & split.rest, 0);
            prop_assert_eq!(split.priority | split.rest, all);
            prop_assert_eq!(limits.check(split.priority), Ok(()));
            prop_assert_eq!(limits.check(split.rest), Ok(()));
            // As near to what is wanted as any split of two runs.
            let nearest = (1..count).filter(|&part| part.min(count - part) >= least);
            let off = |part: u32| part.abs_diff(wanted);
            prop_assert_eq!(nearest.map(off).min(), Some(off(split.priority.count_ones())));
            // The other end is no better.
            let other = if split.priority & 1 << first != 0 {
                run(first + count - split.priority.count_ones(), split.priority.count_ones())
            } else {
                run(first, split.priority.count_ones())
            };
            let by_devices = |mask: u32| (mask & shared).count_ones();
            prop_assert!(by_devices(split.priority) <= by_devices(other));
        }
    }
}
