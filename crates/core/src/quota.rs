//! Who may have how much of the fast memory.
//!
//! Problem: several programs want the fast tier, and whoever comes first has it. Rule: what is fixed is
//! granted first; the rest is shared out by weight among those who can use it, and what one does not
//! need goes to the others (weighted max-min fairness). Where more is fixed than there is, each gets the
//! same part of what was promised to it.
//!
//! Quotas, and CPU time, that follow a goal are steps of a fixed size, the thesis's E-states (4.3.3): [`Goal`] goes up
//! where the service is worse than wanted and down where it is better by a margin; [`Thrift`] goes down
//! as long as that costs nothing, and back up where it did.

use crate::size::{parse_bytes, short_bytes};
use crate::snapshot::{PAGE_BYTES, Snapshot};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How much of the fastest memory tier a scope may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quota {
    /// As much as there is: nothing is shared out, who moves first has it.
    #[default]
    Unlimited,
    /// So many base pages.
    Pages(u64),
    /// A part of what is not fixed, by this weight.
    Shares(f64),
    /// The same, by the size of what it uses (its working set).
    WorkingSet,
}

/// A text that is no quota.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write {FORMS}: {why}")]
pub struct BadQuota {
    why: String,
}

/// How a quota is written.
pub const FORMS: &str = "a size as `512M`, a part as `shares:2`, `working-set`, or `unlimited`";

impl FromStr for Quota {
    type Err = BadQuota;

    fn from_str(text: &str) -> Result<Self, BadQuota> {
        let bad = |why: String| BadQuota { why };
        match text.split_once(':') {
            Some(("shares", weight)) => match weight.parse::<f64>() {
                Ok(weight) if weight > 0.0 && weight <= 1e6 => Ok(Self::Shares(weight)),
                _ => Err(bad(
                    "a weight is a number above 0 and at most 1000000".to_owned()
                )),
            },
            Some(_) => Err(bad("only `shares` takes a number".to_owned())),
            None if text == "working-set" => Ok(Self::WorkingSet),
            None if text == "unlimited" => Ok(Self::Unlimited),
            None => Ok(Self::Pages(parse_bytes(text).map_err(bad)? / PAGE_BYTES)),
        }
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Pages(pages) => f.write_str(&short_bytes(pages * PAGE_BYTES)),
            Self::Shares(weight) => write!(f, "shares:{weight}"),
            Self::WorkingSet => f.write_str("working-set"),
        }
    }
}

/// What a scope has and uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    /// Base pages that it has in the fastest tier.
    pub held_pages: u64,
    /// Base pages that it has in all.
    pub all_pages: u64,
    /// Base pages that it uses, as far as their accesses are seen.
    pub working_pages: u64,
}

impl Use {
    /// With all that the processes of a snapshot have in memory, where that is more than was told page by
    /// page: a listing takes its time, and who is believed to be small gets little.
    #[must_use]
    pub fn with_resident(self, snapshot: &Snapshot) -> Self {
        Self {
            all_pages: self.all_pages.max(snapshot.resident_pages()),
            ..self
        }
    }
}

/// Shares out `capacity` base pages of fast memory: what each of the scopes may have, in their order; `None`
/// where it has no quota.
#[must_use]
pub fn share_out(capacity: u64, scopes: &[(Quota, Use)]) -> Vec<Option<u64>> {
    let held_freely = scopes
        .iter()
        .filter(|(quota, _)| *quota == Quota::Unlimited);
    let free: u64 = held_freely.map(|(_, used)| used.held_pages).sum();
    let mut left = capacity.saturating_sub(free) as f64;
    let fixed = |quota: &Quota| match *quota {
        Quota::Pages(pages) => Some(pages as f64),
        _ => None,
    };
    let promised: f64 = scopes.iter().filter_map(|(quota, _)| fixed(quota)).sum();
    let kept = if promised > left {
        left / promised
    } else {
        1.0
    };
    left -= promised * kept;
    let weight = |(quota, used): &(Quota, Use)| match *quota {
        Quota::Shares(weight) if weight.is_finite() => weight.max(0.0),
        Quota::WorkingSet => used.working_pages as f64,
        _ => 0.0,
    };
    // Who needs less than its part has what it needs; the others share what that leaves.
    let mut granted: Vec<Option<f64>> = vec![None; scopes.len()];
    loop {
        let open = || (0..scopes.len()).filter(|&at| granted[at].is_none());
        let weights: f64 = open().map(|at| weight(&scopes[at])).sum();
        let need = |at: usize| scopes[at].1.all_pages as f64;
        let part = |at: usize| match weights > 0.0 {
            true => left * weight(&scopes[at]) / weights,
            false => 0.0,
        };
        let small: Vec<usize> = open()
            .filter(|&at| weight(&scopes[at]) > 0.0 && need(at) < part(at))
            .collect();
        if small.is_empty() {
            let parts: Vec<(usize, f64)> = open().map(|at| (at, part(at))).collect();
            parts
                .into_iter()
                .for_each(|(at, part)| granted[at] = Some(part));
            break;
        }
        for at in small {
            granted[at] = Some(need(at));
            left -= need(at);
        }
    }
    let scopes = scopes.iter().zip(granted);
    scopes
        .map(|((quota, _), granted)| match quota {
            Quota::Unlimited => None,
            Quota::Pages(pages) => Some((*pages as f64 * kept) as u64),
            Quota::Shares(_) | Quota::WorkingSet => granted.map(|pages| pages as u64),
        })
        .collect()
}

/// A ladder of E-states: amounts of something in steps of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steps {
    /// A step: base pages of fast memory, or thousandths of a CPU.
    pub step: u64,
    /// Steps of the smallest amount: none of fast memory; without CPU time nothing runs.
    pub least: u32,
    /// Steps of the largest amount.
    pub most: u32,
    /// Steps of the present one.
    pub now: u32,
}

impl Steps {
    /// The amount of the present state.
    #[must_use]
    pub fn amount(&self) -> u64 {
        self.step * u64::from(self.now)
    }

    /// The thesis's name of the state: E0 is the largest amount.
    #[must_use]
    pub fn state(&self) -> u32 {
        self.most - self.now.min(self.most)
    }

    fn up(&mut self) -> bool {
        let is_possible = self.now < self.most;
        self.now += u32::from(is_possible);
        is_possible
    }

    fn down(&mut self) -> bool {
        let is_possible = self.now > self.least;
        self.now -= u32::from(is_possible);
        is_possible
    }
}

/// Which way a figure of a service is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// A latency.
    Low,
    /// A throughput.
    High,
}

/// Readings after a change of state that are not judged: memory is on its way.
const SETTLE: u32 = 2;
/// Readings that are averaged.
const READINGS: usize = 3;
/// Readings until there are enough for a mean.
#[derive(Clone, Debug, Default)]
struct Readings {
    values: Vec<f64>,
    /// Readings yet to skip.
    settle: u32,
}

impl Readings {
    /// Takes in a reading; the mean with the last of so many.
    fn take(&mut self, reading: f64) -> Option<f64> {
        if !reading.is_finite() {
            return None;
        }
        if self.settle > 0 {
            self.settle -= 1;
            return None;
        }
        self.values.push(reading);
        (self.values.len() == READINGS)
            .then(|| self.values.drain(..).sum::<f64>() / READINGS as f64)
    }
}

/// A step down is tried where the goal is exceeded by so much. A tenth: less than what a step brings.
const SLACK: f64 = 0.1;
/// Readings for which a state is left alone after going down proved wrong; doubled each time.
const REST: u32 = 10;

/// Holds a goal of a service with as little fast memory or CPU time as that takes (QoS-driven).
#[derive(Clone, Debug)]
pub struct Goal {
    /// The figure that is wanted.
    pub wanted: f64,
    /// Which way is good.
    pub better: Better,
    steps: Steps,
    readings: Readings,
    /// A state that did not hold the goal, and for how many readings it is not tried again.
    failed: Option<(u32, u32)>,
    rest: u32,
}

impl Goal {
    /// Begins in the present state.
    #[must_use]
    pub fn new(wanted: f64, better: Better, steps: Steps) -> Self {
        Self {
            wanted,
            better,
            steps,
            readings: Readings::default(),
            failed: None,
            rest: REST,
        }
    }

    /// The present state.
    #[must_use]
    pub fn steps(&self) -> Steps {
        self.steps
    }

    /// Takes in a reading of the service; true where the state changed.
    pub fn take(&mut self, reading: f64) -> bool {
        if let Some((_, left)) = self.failed.as_mut().filter(|_| reading.is_finite()) {
            *left = left.saturating_sub(1);
        }
        let Some(mean) = self.readings.take(reading) else {
            return false;
        };
        // Above 0 where the service is better than wanted.
        let margin = match self.better {
            Better::Low => 1.0 - mean / self.wanted,
            Better::High => mean / self.wanted - 1.0,
        };
        let has_changed = if margin < 0.0 {
            let state = self.steps.now;
            let is_up = self.steps.up();
            if is_up {
                self.failed = Some((state, self.rest));
                self.rest = (self.rest * 2).min(REST * 32);
            }
            is_up
        } else {
            let next = self.steps.now.saturating_sub(1);
            let is_known_bad = self
                .failed
                .is_some_and(|(state, left)| state == next && left > 0);
            margin > SLACK && !is_known_bad && self.steps.down()
        };
        self.readings.settle = if has_changed { SETTLE } else { 0 };
        has_changed
    }
}

/// Gives back what does not pay (resource-driven).
#[derive(Clone, Debug)]
pub struct Thrift {
    /// Share of its speed that a service may lose. 0.02: what runs of one program differ by.
    pub may_lose: f64,
    steps: Steps,
    readings: Readings,
    /// Speed with the state above, and that state.
    before: Option<f64>,
    rest: u32,
    wait: u32,
}

impl Thrift {
    /// Begins in the present state.
    #[must_use]
    pub fn new(may_lose: f64, steps: Steps) -> Self {
        Self {
            may_lose,
            steps,
            readings: Readings::default(),
            before: None,
            rest: REST,
            wait: 0,
        }
    }

    /// The present state.
    #[must_use]
    pub fn steps(&self) -> Steps {
        self.steps
    }

    /// Takes in a reading of the speed (work done in a time); true where the state changed.
    pub fn take(&mut self, speed: f64) -> bool {
        let Some(mean) = self.readings.take(speed) else {
            return false;
        };
        let has_changed = match self.before.take() {
            Some(before) if mean < before * (1.0 - self.may_lose) => {
                // It was missed: back, and for a while.
                self.wait = self.rest;
                self.rest = (self.rest * 2).min(REST * 32);
                self.steps.up()
            }
            _ if self.wait > 0 => {
                self.wait = self.wait.saturating_sub(READINGS as u32);
                false
            }
            _ => {
                let is_down = self.steps.down();
                self.before = is_down.then_some(mean);
                is_down
            }
        };
        self.readings.settle = if has_changed { SETTLE } else { 0 };
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn used(all_pages: u64) -> Use {
        Use {
            all_pages,
            ..Use::default()
        }
    }

    #[test]
    fn quotas_are_written_as_they_are_read() {
        for (text, quota) in [
            ("512M", Quota::Pages(131_072)),
            ("shares:2.5", Quota::Shares(2.5)),
            ("working-set", Quota::WorkingSet),
            ("unlimited", Quota::Unlimited),
        ] {
            assert_eq!(
                (text.parse(), quota.to_string()),
                (Ok(quota), text.to_owned())
            );
        }
        for text in ["", "shares:0", "shares:x", "share:1", "12Q", "-1"] {
            let error = text.parse::<Quota>().unwrap_err().to_string();
            assert!(error.starts_with("write a size as `512M`"), "{error}");
        }
    }

    #[test]
    fn shares_by_hand() {
        let big = used(10_000);
        let shares = |weights: [f64; 3], needs: [u64; 3]| {
            let scopes: Vec<_> = weights
                .iter()
                .zip(needs)
                .map(|(&weight, need)| (Quota::Shares(weight), used(need)))
                .collect();
            share_out(800, &scopes)
        };
        // 1:2:5 of 800 pages.
        assert_eq!(
            shares([1.0, 2.0, 5.0], [10_000; 3]),
            [Some(100), Some(200), Some(500)]
        );
        // The third needs 80 alone: the others share 720 by 1:2.
        assert_eq!(
            shares([1.0, 2.0, 5.0], [10_000, 10_000, 80]),
            [Some(240), Some(480), Some(80)]
        );
        // Fixed first, the rest by the working set.
        let working = |working_pages| Use {
            working_pages,
            ..big
        };
        let scopes = [
            (Quota::Pages(200), big),
            (Quota::WorkingSet, working(300)),
            (Quota::WorkingSet, working(100)),
        ];
        assert_eq!(share_out(800, &scopes), [Some(200), Some(450), Some(150)]);
        // More is promised than there is: each gets the same part.
        let scopes = [
            (Quota::Pages(1200), big),
            (Quota::Pages(400), big),
            (Quota::Shares(1.0), big),
        ];
        assert_eq!(share_out(800, &scopes), [Some(600), Some(200), Some(0)]);
        // Who has no quota keeps what it has.
        let free = Use {
            held_pages: 300,
            ..big
        };
        assert_eq!(
            share_out(800, &[(Quota::Unlimited, free), (Quota::Shares(3.0), big)]),
            [None, Some(500)]
        );
        assert_eq!(share_out(800, &[]), []);
    }

    fn steps(now: u32) -> Steps {
        Steps {
            step: 16_384,
            least: 0,
            most: 8,
            now,
        }
    }

    #[test]
    fn a_goal_is_held_with_as_little_as_that_takes() {
        // Latency 34 ms without fast memory, 8 with all of it; 20 wanted, which 5 steps hold (17.75),
        // and 4 do not (21).
        let latency = |steps: Steps| 34.0 - 3.25 * f64::from(steps.now);
        for first in [0, 8] {
            let mut goal = Goal::new(20.0, Better::Low, steps(first));
            let mut in_goal = 0;
            for _ in 0..400 {
                goal.take(latency(goal.steps()));
                in_goal += u32::from(latency(goal.steps()) <= 20.0);
            }
            assert_eq!(goal.steps().now, 5);
            assert_eq!(goal.steps().state(), 3);
            assert!(in_goal > 360, "{in_goal}");
        }
    }

    #[test]
    fn something_is_always_left_where_it_must() {
        let least = Steps {
            least: 1,
            ..steps(3)
        };
        let mut goal = Goal::new(20.0, Better::Low, least);
        for _ in 0..100 {
            goal.take(1.0);
        }
        assert_eq!(goal.steps().now, 1);
    }

    #[test]
    fn what_does_not_pay_is_given_back_and_what_does_is_kept() {
        // Speed grows up to 3 steps.
        let speed = |steps: Steps| 100.0 + 20.0 * f64::from(steps.now.min(3));
        let mut thrift = Thrift::new(0.02, steps(8));
        for _ in 0..100 {
            thrift.take(speed(thrift.steps()));
        }
        // It tries one state less now and then, ever more seldom, and never two.
        let mut at = [0; 9];
        for _ in 0..400 {
            thrift.take(speed(thrift.steps()));
            at[thrift.steps().now as usize] += 1;
        }
        assert!(at[3] >= 370 && at[2] + at[3] == 400, "{at:?}");
        assert!(!thrift.take(f64::NAN));
    }

    proptest! {
        #[test]
        fn no_more_is_granted_than_there_is(
            capacity in 0u64..100_000,
            scopes in proptest::collection::vec((0u8..4, 0u64..50_000, 0u64..50_000, 0u64..50_000), 0..6),
        ) {
            let scopes: Vec<(Quota, Use)> = scopes.into_iter().map(|(kind, value, all, held)| {
                let quota = match kind {
                    0 => Quota::Unlimited,
                    1 => Quota::Pages(value),
                    2 => Quota::Shares(value as f64 / 1000.0),
                    _ => Quota::WorkingSet,
                };
                (quota, Use { held_pages: held, all_pages: all, working_pages: value })
            }).collect();
            let granted = share_out(capacity, &scopes);
            prop_assert_eq!(granted.len(), scopes.len());
            prop_assert!(granted.iter().flatten().sum::<u64>() <= capacity);
            for (granted, (quota, _)) in granted.iter().zip(&scopes) {
                prop_assert_eq!(granted.is_none(), *quota == Quota::Unlimited);
                if let (Some(granted), Quota::Pages(pages)) = (granted, quota) {
                    prop_assert!(granted <= pages);
                }
            }
        }
    }
}
