//! Goals of services, held by steps of fast memory or of CPU time.
//!
//! Steps are of a fixed size, the thesis's E-states (4.3.3): [`Goal`] goes up where the service is worse than wanted and
//! down where it is better by a margin; [`Thrift`] goes down as long as that costs nothing, and back up where it did.

use serde::{Deserialize, Serialize};

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
///
/// Mechanism: a step down stays where the service is at most `may_lose` slower than with ample memory under the present load,
/// so that small losses do not add up; else it is taken back, and tried again ever more seldom. A service that becomes slower
/// without a step has another load, which may need more: steps go up as long as each brings something. What it then
/// reaches is its speed with ample memory from there on.
#[derive(Clone, Debug)]
pub struct Thrift {
    /// Share of its speed that a service may lose. 0.02: what runs of one program differ by.
    pub may_lose: f64,
    steps: Steps,
    readings: Readings,
    /// Speed with ample memory, as far as the present load has shown it.
    ample: f64,
    tried: Option<Tried>,
    rest: u32,
    wait: u32,
}

/// A step that the next mean judges.
#[derive(Clone, Copy, Debug)]
enum Tried {
    Down,
    /// From this speed.
    Up(f64),
}

impl Thrift {
    /// Begins in the present state.
    #[must_use]
    pub fn new(may_lose: f64, steps: Steps) -> Self {
        Self {
            may_lose,
            steps,
            readings: Readings::default(),
            ample: 0.0,
            tried: None,
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
        let is_slower = mean < self.ample * (1.0 - self.may_lose);
        let has_changed = match self.tried.take() {
            Some(Tried::Down) if is_slower => {
                // It was missed: back, and for a while.
                self.wait = self.rest;
                self.rest = (self.rest * 2).min(REST * 32);
                self.steps.up()
            }
            Some(Tried::Up(before)) if mean < before * (1.0 + self.may_lose) => {
                // It brought nothing: that is what the load reaches.
                self.ample = mean;
                self.wait = REST;
                self.steps.down()
            }
            Some(Tried::Up(_)) => self.ask_for_more(mean),
            None if is_slower => {
                self.rest = REST;
                self.ask_for_more(mean)
            }
            _ => {
                // Less than that is noise, of which the largest would stay.
                if mean > self.ample * (1.0 + self.may_lose) {
                    self.ample = mean;
                }
                match self.wait.checked_sub(READINGS as u32) {
                    Some(left) => {
                        self.wait = left;
                        false
                    }
                    None => {
                        let is_down = self.steps.down();
                        self.tried = is_down.then_some(Tried::Down);
                        is_down
                    }
                }
            }
        };
        self.readings.settle = if has_changed { SETTLE } else { 0 };
        has_changed
    }

    fn ask_for_more(&mut self, mean: f64) -> bool {
        self.ample = mean;
        let is_up = self.steps.up();
        self.tried = is_up.then_some(Tried::Up(mean));
        is_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// A service that has so much data in use, in steps: its speed in thousandths, by how much of it is in fast memory.
    fn service(used: f64, steps: Steps) -> f64 {
        let fast = (f64::from(steps.now) / used).min(1.0);
        1000.0 / (0.4 + 0.6 * (1.0 - fast) + 0.05 * used)
    }

    #[test]
    fn losses_of_single_steps_do_not_add_up() {
        // Each step costs 1.5 %, less than may be lost.
        let mut thrift = Thrift::new(0.02, steps(8));
        let speed = |steps: Steps| 100.0 * 0.985f64.powi(8 - steps.now as i32);
        for _ in 0..2000 {
            thrift.take(speed(thrift.steps()));
            assert!(thrift.steps().now >= 6, "one step, and one that is tried");
        }
        assert_eq!(thrift.steps().now, 7);
    }

    #[test]
    fn what_a_heavier_load_needs_is_given_and_what_a_lighter_one_leaves_is_taken() {
        let mut thrift = Thrift::new(0.02, steps(8));
        let (mut held, mut lost) = (0, 0.0);
        let mut random = crate::policy::random::Random::new(7);
        let loads = [2.0, 6.0, 3.0, 7.0, 2.0];
        let readings = 400;
        for used in loads {
            for at in 0..readings {
                let now = thrift.steps();
                // Readings scatter by 1 %.
                thrift.take(service(used, now) * (0.99 + 0.02 * random.unit()));
                held += now.now;
                lost += 1.0 - service(used, now) / service(used, steps(8));
                // Half of the time is enough to find the new state.
                if at > readings / 2 {
                    assert!(f64::from(now.now) >= used - 1.0, "{used}: {now:?}");
                    assert!(f64::from(now.now) <= used + 1.0, "{used}: {now:?}");
                }
            }
        }
        let count = f64::from(readings) * loads.len() as f64;
        assert!(f64::from(held) < 0.7 * 8.0 * count, "{held}");
        assert!(lost < 0.02 * count, "{}", lost / count);
    }
}
