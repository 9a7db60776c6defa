//! Counts of events: differences of readings, rates, and the share of accesses that are local.
//!
//! A PMU has fewer counters than there are events to count. Events that do not fit take turns, and
//! the kernel tells for how long an event was asked for and for how long it had a counter. What it
//! would have counted in all that time is an estimate: count times asked over counted. That it is one
//! is told with it.

use super::events::Role;
use crate::snapshot::Evidence;
use std::fmt;

/// A counter that ran this share of the time or more counts as having run all of it: the kernel's
/// two clocks are read one after the other.
const WHOLE: f64 = 0.999;
/// Fewer accesses than this in an interval tell no share: at 1,000 a share of one half is known to 3 %
/// (two standard deviations of a binomial count).
pub const LEAST_ACCESSES: f64 = 1000.0;

const BY_MEMORY: &str = "counted misses that local and remote memory served";
const BY_MISSES: &str = "counted misses of the last cache, and accesses that other sockets served";
const NEITHER: &str = "no counter tells local misses from remote ones";
const TOO_FEW: &str = "too few misses were counted";

/// What a counter shows: since it was opened, or between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Events counted.
    pub value: u64,
    /// Time for which it was switched on, and its thread ran (ns).
    pub enabled_ns: u64,
    /// Time for which it had a counter of the PMU (ns).
    pub running_ns: u64,
}

impl Count {
    /// What came since an earlier reading; `None` where any figure went down, as after a restart.
    #[must_use]
    pub fn since(&self, before: &Self) -> Option<Self> {
        Some(Self {
            value: self.value.checked_sub(before.value)?,
            enabled_ns: self.enabled_ns.checked_sub(before.enabled_ns)?,
            running_ns: self.running_ns.checked_sub(before.running_ns)?,
        })
    }

    /// What it would have counted in all the time; `None` where it never had a counter though it was
    /// switched on.
    #[must_use]
    pub fn estimate(&self) -> Option<Estimate> {
        if self.enabled_ns == 0 {
            // Its thread did not run: nothing happened.
            return Some(Estimate {
                value: self.value as f64,
                counted_share: 1.0,
            });
        }
        let share = self.running_ns as f64 / self.enabled_ns as f64;
        match share {
            share if share >= WHOLE => Some(Estimate {
                value: self.value as f64,
                counted_share: 1.0,
            }),
            share if share > 0.0 => Some(Estimate {
                value: self.value as f64 / share,
                counted_share: share,
            }),
            _ => None,
        }
    }
}

/// A count for the whole of a time, and for how much of it was counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Events, or what they stand for.
    pub value: f64,
    /// Share of the time for which it was counted, from above 0 to 1.
    pub counted_share: f64,
}

impl Estimate {
    /// Did it share its counter with other events?
    #[must_use]
    pub fn is_multiplexed(&self) -> bool {
        self.counted_share < 1.0
    }

    /// Two of the same kind together: of threads, CPUs or controllers. The share is the smaller one.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            value: self.value + other.value,
            counted_share: self.counted_share.min(other.counted_share),
        }
    }

    /// The same in units of which one count has so many.
    #[must_use]
    pub fn times(self, each: f64) -> Self {
        Self {
            value: self.value * each,
            ..self
        }
    }

    /// By second; `None` where no time passed.
    #[must_use]
    pub fn rate(&self, passed_ns: u64) -> Option<Rate> {
        (passed_ns > 0).then(|| Rate {
            per_second: self.value / (passed_ns as f64 / 1e9),
            counted_share: self.counted_share,
        })
    }
}

/// Events a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Events, or what they stand for, a second.
    pub per_second: f64,
    /// As of [`Estimate`].
    pub counted_share: f64,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.per_second {
            value if value >= 1e9 => (value / 1e9, " G/s"),
            value if value >= 1e6 => (value / 1e6, " M/s"),
            value if value >= 1e3 => (value / 1e3, " k/s"),
            value => (value, "/s"),
        };
        write!(f, "{value:.1}{unit}")?;
        if self.counted_share < 1.0 {
            let percent = (self.counted_share * 100.0).ceil();
            write!(f, " (multiplexed: counted {percent} % of the time)")?;
        }
        Ok(())
    }
}

/// Estimates of a process, a CPU or a node by role.
pub type Estimates = std::collections::BTreeMap<Role, Estimate>;

/// The share of misses that local memory served, from what was counted of a process or of a CPU.
///
/// Where the cores tell local and remote memory, it is local over both (remote caches are no matter
/// of placing pages). Where they tell misses and what other sockets served (Arm), it is the misses
/// that no other socket served, over all. Its error is that of the counters, and of what they count:
/// on Intel loads that retired, on AMD fills.
#[must_use]
pub fn local_share(counted: &Estimates) -> Evidence<f64> {
    let value = |role| counted.get(&role).map(|estimate: &Estimate| estimate.value);
    let (local, all, basis) = match (
        value(Role::LocalMemory).zip(value(Role::RemoteMemory)),
        value(Role::Misses).zip(value(Role::Remote)),
    ) {
        (Some((local, remote)), _) => (local, local + remote, BY_MEMORY),
        (None, Some((misses, remote))) => ((misses - remote).max(0.0), misses, BY_MISSES),
        (None, None) => return Evidence::unknown(NEITHER),
    };
    match all >= LEAST_ACCESSES {
        true => Evidence::estimated(local / all, basis),
        false => Evidence::unknown(TOO_FEW),
    }
}

/// Share of the cycles in which a program stalled for want of data from memory, 0 to 1.
#[must_use]
pub fn stall_share(counted: &Estimates) -> Evidence<f64> {
    let value = |role| counted.get(&role).map(|estimate: &Estimate| estimate.value);
    match value(Role::MemoryStalls).zip(value(Role::Cycles)) {
        Some((stalls, cycles)) if cycles > 0.0 => {
            // Estimates of two events that took turns may disagree.
            let share = (stalls / cycles).min(1.0);
            Evidence::estimated(
                share,
                "counted cycles that stalled on memory, of all cycles",
            )
        }
        Some(_) => Evidence::unknown("it did not run"),
        None => Evidence::unknown("no counter tells stalls on memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(value: u64, enabled_ns: u64, running_ns: u64) -> Count {
        Count {
            value,
            enabled_ns,
            running_ns,
        }
    }

    fn estimates(values: &[(Role, f64)]) -> Estimates {
        let estimate = |&(role, value)| {
            let estimate = Estimate {
                value,
                counted_share: 1.0,
            };
            (role, estimate)
        };
        values.iter().map(estimate).collect()
    }

    #[test]
    fn a_count_is_scaled_by_the_time_without_a_counter() {
        // 300 in a quarter of the time: 1,200 in all of it.
        let scaled = count(300, 4_000_000, 1_000_000).estimate().unwrap();
        assert_eq!((scaled.value, scaled.counted_share), (1200.0, 0.25));
        assert!(scaled.is_multiplexed());
        let whole = count(300, 1_000_100, 1_000_000).estimate().unwrap();
        assert_eq!(whole.value, 300.0);
        assert!(!whole.is_multiplexed());
        assert_eq!(count(0, 5, 0).estimate(), None, "it never had a counter");
        assert_eq!(
            count(0, 0, 0).estimate().unwrap().value,
            0.0,
            "it never ran"
        );
        // Clocks that disagree are no reason for fewer events.
        assert_eq!(count(9, 10, 11).estimate().unwrap().value, 9.0);
    }

    #[test]
    fn rates_tell_that_they_are_estimates() {
        let scaled = count(300, 4_000_000, 1_000_000).estimate().unwrap();
        let rate = scaled.rate(1_000_000).unwrap();
        assert_eq!(
            rate.to_string(),
            "1.2 M/s (multiplexed: counted 25 % of the time)"
        );
        let bytes = count(10, 8, 8).estimate().unwrap().times(64.0);
        assert_eq!(bytes.rate(1_000_000_000).unwrap().to_string(), "640.0/s");
        assert_eq!(bytes.rate(0), None);
        let both = bytes.plus(scaled);
        assert_eq!((both.value, both.counted_share), (1840.0, 0.25));
    }

    #[test]
    fn differences_are_of_one_life_of_the_counter() {
        let before = count(5, 10, 10);
        assert_eq!(count(7, 20, 15).since(&before), Some(count(2, 10, 5)));
        assert_eq!(count(4, 20, 15).since(&before), None);
    }

    #[test]
    fn the_local_share_comes_from_what_the_cores_tell() {
        // 3,000 of 4,000 fills came from the own node.
        let amd = estimates(&[(Role::LocalMemory, 3000.0), (Role::RemoteMemory, 1000.0)]);
        assert_eq!(local_share(&amd).value(), Some(&0.75));
        // 5,000 misses, of which another socket served 1,000.
        let arm = estimates(&[(Role::Misses, 5000.0), (Role::Remote, 1000.0)]);
        assert_eq!(local_share(&arm).value(), Some(&0.8));
        let more = estimates(&[(Role::Misses, 5000.0), (Role::Remote, 9000.0)]);
        assert_eq!(local_share(&more).value(), Some(&0.0));
        let few = estimates(&[(Role::LocalMemory, 30.0), (Role::RemoteMemory, 10.0)]);
        assert_eq!(local_share(&few).value(), None);
        let one = estimates(&[(Role::LocalMemory, 3000.0)]);
        assert_eq!(local_share(&one).value(), None);
    }

    #[test]
    fn stalls_are_a_share_of_cycles() {
        let stalls = |stalls, cycles| {
            let counted = estimates(&[(Role::MemoryStalls, stalls), (Role::Cycles, cycles)]);
            stall_share(&counted).value().copied()
        };
        assert_eq!(stalls(30.0, 40.0), Some(0.75));
        assert_eq!(stalls(50.0, 40.0), Some(1.0));
        assert_eq!(stalls(0.0, 0.0), None);
        assert_eq!(stall_share(&Estimates::new()).value(), None);
    }

    proptest::proptest! {
        #[test]
        fn any_reading_gives_a_finite_figure(value: u64, enabled: u64, running: u64) {
            if let Some(estimate) = count(value, enabled, running).estimate() {
                proptest::prop_assert!(estimate.value.is_finite() && estimate.value >= 0.0);
                let share = estimate.counted_share;
                proptest::prop_assert!(share > 0.0 && share <= 1.0);
            }
        }
    }
}
