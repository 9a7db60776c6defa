//! How closely to watch: hither's own cost must vanish when nothing is left to do.
//!
//! While a policy works or learns: full sampling, short intervals, unless looking has used up its CPU time and
//! the policy has learned for a while or may move nothing now; for a policy that decides by counters
//! alone no more samples than verdicts need. While a campaign is measured:
//! short intervals, and as many samples as its policy has use for. When it has nothing to do, or
//! its gates are shut: as little sampling as [`EngineConfig::rest_sampling`] says, at growing
//! intervals. Asleep, the scope's figures (which cost a few reads) are compared with those at
//! falling asleep; a change, or a new process, wakes it. A wake-up that led to no move makes the
//! next one need more of a change, or, for new processes and figures that become known, more time:
//! where processes come and go all the time, each is new. A policy that only learns is not waited
//! for without end.

use super::config::EngineConfig;
use super::verdict::Reading;
use crate::ids::SpaceId;
use crate::plan::Sampling;
use crate::policy::PolicyActivity;

/// Steps with nothing to do that are still sampled fully cheaply at the short interval.
const CHEAP_STEPS: u32 = 3;
/// Steps with nothing to do after which sampling stops.
const OFF_STEPS: u32 = 8;
/// Steps after which the interval doubles, and doubles again.
const STRETCH_STEPS: u32 = 10;
/// Change of the local-access ratio that wakes: Carrefour's harm, 5 points.
const WAKE_LOCAL: f64 = 0.05;
/// Change of the controller imbalance that wakes: a little above its success, 10 points, since
/// one interval scatters more than the mean of a campaign.
const WAKE_IMBALANCE: f64 = 0.15;
/// Change of the share of accesses that the fastest memory tier serves that wakes, where it is beyond what chance
/// explains: twice what the efficacy loop calls a success, as an interval at rest has few samples.
const WAKE_FAST: f64 = 0.10;
/// Standard errors of a difference that chance does not explain.
const BEYOND_CHANCE: f64 = 3.0;
/// Relative change of the memory accesses per us that wakes.
const WAKE_RATE: f64 = 0.5;
/// Factor by which a fruitless wake-up raises the thresholds.
const FRUITLESS_FACTOR: f64 = 1.5;
/// Fruitless wake-ups that count.
const MAX_FRUITLESS: i32 = 5;
/// Short intervals for which a policy may learn without moving anything: 5 s, more than the longest memory of
/// a policy.
const LEARNING_INTERVALS: u64 = 50;
/// Short intervals at the start of learning in which looking is not spaced: what is found in them gains for
/// the longest, and costs no more than each waking up. Where nothing may be moved it gains nothing.
const CLOSE_INTERVALS: u64 = 5;
/// Most short intervals between two steps of a policy that learns: its samples must fit into the rings.
const LEARNING_STRETCH: u64 = 4;

/// The state.
#[derive(Clone, Debug, Default)]
pub(super) struct Attention {
    idle_steps: u32,
    is_shut: bool,
    /// What the world looked like at falling asleep: figures, and the lives of memory, ascending.
    asleep: Option<(Reading, Vec<SpaceId>)>,
    fruitless: i32,
    moved_since_waking: bool,
    probed_us: u64,
    /// For how long the policy learned, since it woke up or moved something.
    learned_us: u64,
    /// When the last step was.
    stepped_us: u64,
    /// New processes wake it from this time on.
    sleeps_until_us: u64,
}

/// What the engine knows when it decides how closely to watch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation<'a> {
    pub now_us: u64,
    pub outlook: PolicyActivity,
    /// A campaign is open or being measured or reverted.
    pub is_busy: bool,
    /// A campaign is being measured.
    pub is_measured: bool,
    /// This step asked for moves.
    pub has_moves: bool,
    /// The next step may ask for moves; not while a campaign is measured.
    pub may_move: bool,
    pub reading: Reading,
    /// The lives of memory that are watched, ascending.
    pub spaces: &'a [SpaceId],
    /// Does the policy use samples?
    pub uses_samples: bool,
    /// Figures come at the ends of rounds alone.
    pub by_rounds: bool,
    /// What looking has used of its CPU time is earned again in so long.
    pub rest_us: u64,
    /// Nothing new may be moved now, as hither's CPU time is used up or the machine is short of something.
    pub is_held: bool,
}

impl Situation<'_> {
    /// An interval that looking can afford, `longest_us` at most; policies that decide by windows of counters
    /// have theirs as they ask for them.
    fn spaced(&self, interval_us: u64, longest_us: u64) -> u64 {
        match self.uses_samples {
            true => interval_us.max(self.rest_us.min(longest_us)),
            false => interval_us,
        }
    }

    /// Sampling while there is nothing to do.
    fn rest(&self, config: &EngineConfig) -> Sampling {
        if self.uses_samples {
            config.rest_sampling
        } else {
            Sampling::Off
        }
    }
}

impl Attention {
    /// Sampling and interval (us) until the next step.
    pub fn next(&mut self, config: &EngineConfig, situation: &Situation<'_>) -> (Sampling, u64) {
        let stepped_us = std::mem::replace(&mut self.stepped_us, situation.now_us);
        if situation.has_moves {
            self.fruitless = 0;
            self.moved_since_waking = true;
            self.learned_us = 0;
        }
        let is_shut = situation.outlook == PolicyActivity::Shut;
        let opened = std::mem::replace(&mut self.is_shut, is_shut) && !is_shut;
        let is_pressed = situation.outlook == PolicyActivity::Pressed;
        let longest_learning_us = LEARNING_STRETCH.saturating_mul(config.interval_us);
        let has_work = match situation.outlook {
            PolicyActivity::Working | PolicyActivity::Pressed => true,
            PolicyActivity::Learning => {
                let since_us = situation.now_us.saturating_sub(stepped_us);
                self.learned_us += since_us.clamp(config.interval_us, longest_learning_us);
                self.learned_us <= LEARNING_INTERVALS.saturating_mul(config.interval_us)
            }
            PolicyActivity::Shut | PolicyActivity::Done => false,
        };
        // Without samples a policy cannot see work: its word counts only where it had some.
        let is_blind = self.asleep.is_some();
        let must_look = situation.is_busy || situation.has_moves || opened || is_pressed;
        if must_look || (has_work && !is_blind) {
            self.wake();
            let lacks_figures =
                situation.is_measured && situation.uses_samples && !situation.reading.is_usable();
            let sampling = match situation.outlook {
                // Figures of one scope of several are those of its samples: too few tell nothing.
                _ if lacks_figures => Sampling::Full,
                PolicyActivity::Shut => situation.rest(config),
                PolicyActivity::Pressed if !situation.uses_samples => Sampling::Off,
                // Verdicts alone use them.
                _ if !situation.uses_samples => Sampling::Cheap,
                PolicyActivity::Done if !opened => Sampling::Cheap,
                // What was left to do is decided afresh when the verdict is there.
                PolicyActivity::Working if !situation.may_move => Sampling::Cheap,
                _ => Sampling::Full,
            };
            let is_close = self.learned_us <= CLOSE_INTERVALS.saturating_mul(config.interval_us);
            let only_learns = situation.outlook == PolicyActivity::Learning && !is_close;
            let interval_us = match !must_look && (only_learns || situation.is_held) {
                true => situation.spaced(config.interval_us, longest_learning_us),
                false => config.interval_us,
            };
            return (sampling, interval_us);
        }
        if let Some((then, spaces)) = &self.asleep
            && self.is_to_wake(then, spaces, situation)
        {
            self.fruitless = if self.moved_since_waking {
                0
            } else {
                (self.fruitless + 1).min(MAX_FRUITLESS)
            };
            self.moved_since_waking = false;
            self.learned_us = 0;
            let rest_us = config.max_interval_us << self.fruitless;
            self.sleeps_until_us = situation.now_us.saturating_add(rest_us);
            self.wake();
            return (
                if is_shut || !situation.uses_samples {
                    situation.rest(config)
                } else {
                    Sampling::Full
                },
                config.interval_us,
            );
        }
        self.idle_steps = self.idle_steps.saturating_add(1);
        (
            self.idle_sampling(config, situation),
            self.interval_us(config, situation),
        )
    }

    /// Had it nothing to do at the last step?
    pub fn rests(&self) -> bool {
        self.idle_steps > 0
    }

    /// Watches closely again.
    pub fn wake(&mut self) {
        self.idle_steps = 0;
        self.asleep = None;
    }

    fn idle_sampling(&mut self, config: &EngineConfig, situation: &Situation<'_>) -> Sampling {
        if situation.outlook == PolicyActivity::Shut {
            return situation.rest(config);
        }
        if self.idle_steps < OFF_STEPS {
            return Sampling::Cheap;
        }
        if self.asleep.is_none() {
            self.asleep = Some((situation.reading, situation.spaces.to_vec()));
            self.probed_us = situation.now_us;
        }
        if situation.now_us.saturating_sub(self.probed_us) >= config.probe_us {
            self.probed_us = situation.now_us;
            return Sampling::Cheap;
        }
        situation.rest(config)
    }

    fn interval_us(&self, config: &EngineConfig, situation: &Situation<'_>) -> u64 {
        let doublings = match self.idle_steps {
            // A gate that opens is seen soon, where each interval tells of it.
            steps if self.is_shut && !situation.by_rounds => steps / STRETCH_STEPS,
            steps => steps.saturating_sub(CHEAP_STEPS),
        };
        let longest_us = config.max_interval_us.max(config.interval_us);
        let interval_us = config.interval_us.saturating_mul(1 << doublings.min(20));
        situation.spaced(interval_us.min(longest_us), longest_us)
    }

    fn is_to_wake(&self, then: &Reading, spaces: &[SpaceId], situation: &Situation<'_>) -> bool {
        let now = &situation.reading;
        if !self.is_shut && self.has_changed(then, now) {
            return true;
        }
        let is_new = |space: &SpaceId| spaces.binary_search(space).is_err();
        situation.now_us >= self.sleeps_until_us
            && (situation.spaces.iter().any(is_new) || (!then.is_usable() && now.is_usable()))
    }

    fn has_changed(&self, then: &Reading, now: &Reading) -> bool {
        let factor = FRUITLESS_FACTOR.powi(self.fruitless);
        let differs = |then: Option<f64>, now: Option<f64>, limit: f64| match (then, now) {
            (Some(then), Some(now)) => (then - now).abs() > limit * factor,
            _ => false,
        };
        let rate = then.accesses_per_us.unwrap_or(0.0);
        let errors = then.fast_error.zip(now.fast_error);
        let chance = errors.map(|(then, now)| BEYOND_CHANCE * then.hypot(now));
        let is_certain =
            chance.is_some_and(|chance| differs(then.fast_share, now.fast_share, chance));
        differs(then.local_ratio, now.local_ratio, WAKE_LOCAL)
            || (is_certain && differs(then.fast_share, now.fast_share, WAKE_FAST))
            || differs(then.imbalance, now.imbalance, WAKE_IMBALANCE)
            || differs(then.accesses_per_us, now.accesses_per_us, WAKE_RATE * rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A policy that uses samples, of which nothing is under way and nothing known.
    fn quiet(now_us: u64, outlook: PolicyActivity) -> Situation<'static> {
        Situation {
            now_us,
            outlook,
            is_busy: false,
            is_measured: false,
            has_moves: false,
            may_move: true,
            reading: Reading::default(),
            spaces: &[SpaceId(1)],
            uses_samples: true,
            by_rounds: false,
            rest_us: 0,
            is_held: false,
        }
    }

    fn step(
        attention: &mut Attention,
        now_us: u64,
        outlook: PolicyActivity,
        local: f64,
    ) -> (Sampling, u64) {
        let reading = Reading {
            local_ratio: Some(local),
            ..Reading::default()
        };
        let situation = Situation {
            reading,
            ..quiet(now_us, outlook)
        };
        let config = EngineConfig {
            rest_sampling: Sampling::Off,
            ..EngineConfig::default()
        };
        attention.next(&config, &situation)
    }

    #[test]
    fn rest_is_sampled_as_configured_and_only_for_policies_that_use_samples() {
        for (uses_samples, expected) in [(true, Sampling::Cheap), (false, Sampling::Off)] {
            let mut attention = Attention::default();
            for turn in 0..20 {
                let situation = Situation {
                    uses_samples,
                    ..quiet(turn * 100_000, PolicyActivity::Shut)
                };
                let (sampling, _) = attention.next(&EngineConfig::default(), &situation);
                assert_eq!(sampling, expected);
            }
        }
    }

    #[test]
    fn a_policy_that_works_by_counters_is_not_sampled_fully() {
        for (uses_samples, expected) in [(true, Sampling::Full), (false, Sampling::Cheap)] {
            let situation = Situation {
                uses_samples,
                has_moves: true,
                ..quiet(0, PolicyActivity::Working)
            };
            let (sampling, _) = Attention::default().next(&EngineConfig::default(), &situation);
            assert_eq!(sampling, expected);
        }
    }

    #[test]
    fn what_is_measured_without_figures_is_sampled_fully() {
        let figures = Reading {
            local_ratio: Some(0.5),
            ..Reading::default()
        };
        for (reading, expected) in [
            (Reading::default(), Sampling::Full),
            (figures, Sampling::Cheap),
        ] {
            let situation = Situation {
                is_busy: true,
                is_measured: true,
                may_move: false,
                reading,
                ..quiet(0, PolicyActivity::Working)
            };
            let next = Attention::default().next(&EngineConfig::default(), &situation);
            assert_eq!(next, (expected, 100_000));
        }
    }

    #[test]
    fn it_falls_asleep_and_a_change_wakes_it() {
        let mut attention = Attention::default();
        assert_eq!(
            step(&mut attention, 0, PolicyActivity::Learning, 0.25),
            (Sampling::Full, 100_000)
        );
        let mut seen = Vec::new();
        for turn in 1..=12 {
            seen.push(step(
                &mut attention,
                turn * 100_000,
                PolicyActivity::Done,
                0.25,
            ));
        }
        assert_eq!(seen[0], (Sampling::Cheap, 100_000));
        assert_eq!(seen[11], (Sampling::Off, 1_000_000));
        assert_eq!(
            step(&mut attention, 2_000_000, PolicyActivity::Done, 0.22).0,
            Sampling::Off,
            "3 points are noise"
        );
        assert_eq!(
            step(&mut attention, 3_000_000, PolicyActivity::Done, 0.18),
            (Sampling::Full, 100_000)
        );
    }

    #[test]
    fn the_fast_tiers_share_wakes_it_where_it_is_beyond_chance() {
        let woken = |share: f64, error: f64| {
            let mut attention = Attention::default();
            let mut next = |now_us, fast_share| {
                let situation = Situation {
                    reading: Reading {
                        fast_share: Some(fast_share),
                        fast_error: Some(error),
                        ..Reading::default()
                    },
                    ..quiet(now_us, PolicyActivity::Done)
                };
                attention.next(&EngineConfig::default(), &situation).0
            };
            for turn in 0..12 {
                next(turn * 100_000, 0.9);
            }
            next(5_000_000, share) == Sampling::Full
        };
        assert!(woken(0.2, 0.05), "the hot part has moved");
        assert!(!woken(0.85, 0.005), "5 points are not worth a look");
        assert!(!woken(0.7, 0.05), "20 points may be chance");
    }

    #[test]
    fn asleep_it_looks_now_and_then() {
        let mut attention = Attention::default();
        let looks = (0..40).filter(|turn| {
            step(&mut attention, turn * 1_000_000, PolicyActivity::Done, 0.25).0 == Sampling::Cheap
        });
        // 7 before sampling stops (steps 1 to 7), then one every 10 s of the remaining 32.
        assert_eq!(looks.count(), 7 + 3);
    }

    #[test]
    fn shut_gates_cost_no_samples_and_opening_them_wakes() {
        let mut attention = Attention::default();
        assert_eq!(
            step(&mut attention, 0, PolicyActivity::Shut, 1.0),
            (Sampling::Off, 100_000)
        );
        for turn in 1..60 {
            step(&mut attention, turn * 100_000, PolicyActivity::Shut, 1.0);
        }
        assert_eq!(
            step(&mut attention, 7_000_000, PolicyActivity::Shut, 1.0),
            (Sampling::Off, 1_000_000)
        );
        assert_eq!(
            step(&mut attention, 8_000_000, PolicyActivity::Done, 0.5),
            (Sampling::Full, 100_000)
        );
    }

    /// Looking alone waits until it has earned its CPU time, within limits; what is under way does not.
    #[test]
    fn looking_that_costs_much_comes_less_often() {
        let after = |learned_us, outlook, is_busy, uses_samples, rest_us| {
            let situation = Situation {
                is_busy,
                uses_samples,
                rest_us,
                ..quiet(0, outlook)
            };
            let mut attention = Attention {
                learned_us,
                ..Attention::default()
            };
            attention.next(&EngineConfig::default(), &situation).1
        };
        let next = |outlook, is_busy, uses_samples, rest_us| {
            after(500_000, outlook, is_busy, uses_samples, rest_us)
        };
        use PolicyActivity::{Done, Learning, Working};
        for (outlook, rest_us, expected) in [
            (Learning, 50_000, 100_000),
            (Learning, 250_000, 250_000),
            (Learning, 900_000, 400_000),
            (Done, 900_000, 900_000),
            (Done, 5_000_000, 1_000_000),
            (Working, 900_000, 100_000),
        ] {
            assert_eq!(next(outlook, false, true, rest_us), expected, "{outlook:?}");
        }
        assert_eq!(next(Learning, true, true, 900_000), 100_000);
        assert_eq!(next(Learning, false, false, 900_000), 100_000);
        // What has just begun is looked at closely.
        assert_eq!(after(400_000, Learning, false, true, 900_000), 100_000);
        assert_eq!(after(400_001, Learning, false, true, 900_000), 400_000);
        // What may not be moved is looked at less often, so that it soon may again.
        for (is_busy, expected) in [(false, 400_000), (true, 100_000)] {
            let situation = Situation {
                is_busy,
                is_held: true,
                rest_us: 900_000,
                ..quiet(0, Working)
            };
            let next = Attention::default().next(&EngineConfig::default(), &situation);
            assert_eq!(next.1, expected, "busy: {is_busy}");
        }
    }

    #[test]
    fn processes_that_come_and_go_wake_it_ever_more_seldom() {
        let config = EngineConfig::default();
        let mut attention = Attention::default();
        let mut full_us = 0;
        let mut now_us = 0;
        let mut life = 0;
        while now_us < 120_000_000 {
            life += 1;
            // Ever new processes, of which nothing is ever learned.
            let situation = Situation {
                spaces: &[SpaceId(life)],
                ..quiet(now_us, PolicyActivity::Learning)
            };
            let (sampling, interval_us) = attention.next(&config, &situation);
            now_us += interval_us;
            if sampling == Sampling::Full {
                full_us += interval_us;
            }
        }
        // At first for 5 s, and then for an interval and 5 s at each of the wake-ups, which come
        // after 1, 2, 4, 8, 16 and 32 s.
        assert!((5_000_000..45_000_000).contains(&full_us), "{full_us}");
        // Somebody who comes after a rest is looked at at once.
        let newcomer = |now_us, spaces: &[SpaceId], attention: &mut Attention| {
            let situation = Situation {
                spaces,
                ..quiet(now_us, PolicyActivity::Done)
            };
            attention.next(&config, &situation).0
        };
        for _ in 0..100 {
            now_us += 1_000_000;
            newcomer(now_us, &[SpaceId(life)], &mut attention);
        }
        let both = [SpaceId(life), SpaceId(life + 1)];
        assert_eq!(newcomer(now_us, &both, &mut attention), Sampling::Full);
    }
}
