//! The loop that tries unification and keeps it where it pays. No clock, no threads: windows of visits are told, and
//! what is to be done until the next one is the answer.
//!
//! Sizes that cannot gain are left alone. Others are tried by pairs of windows, one in place and one handed over, until
//! two pairs gained or two did not: the program may have gone on to something else in between, and another program
//! may have taken a CPU. Each window begins after visits that are not counted, which are as long as it takes to
//! fetch all lines of the working sets: right after a change the caches hold the wrong ones.
//!
//! What was decided rests for a hundred times the length of a pair, so that trials cost a few per cent at most, and
//! is then tried again; what is on stays so by one pair that gained. Each trial without success makes the next ones longer and rarer, twice each time: a
//! program that uses its working set slowly fills the caches slowly.

use super::rule::{self, Reason, Tally};

/// Fetching a line from memory, by one thread that waits for it, with a page walk.
const LINE_NS: u64 = 150;
/// Bytes of a line; where lines are longer, there are fewer.
const LINE: u64 = 64;
/// Shortest part of a window.
const LEAST_NS: u64 = 2_000_000;
/// Visits to each region that a window has at least, in the mean.
const LEAST_VISITS: u64 = 2;
/// Pairs of windows that must gain before it is turned on, and that must not before it is off.
const PAIRS: u32 = 2;
/// How many times as long as two windows a decision rests.
const RARELY: u64 = 100;
/// Trials get longer and rarer this often.
const MOST_DOUBLINGS: u32 = 6;

/// How the regions are to be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegionUse {
    /// As it pays.
    #[default]
    Auto,
    /// Each in its cache, always.
    Always,
    /// Visits run in place, always.
    Never,
}

/// What was decided, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnifyState {
    /// Are visits handed over to where their region is?
    pub is_on: bool,
    /// Is nothing being tried just now?
    pub is_settled: bool,
    /// Why.
    pub reason: Reason,
    /// A visit in place, in the mean of the last window, where one was measured.
    pub visit_ns: Option<f64>,
    /// A hand-over, where it was measured.
    pub cost_ns: Option<f64>,
}

/// What is to be watched until the judge is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// Nothing: only another declaration can change the decision.
    Nothing,
    /// Visits of so many ns, about.
    Rest { ns: u64 },
    /// After visits of `skip_ns`, each visit, until there are so many and they took so long.
    Window { skip_ns: u64, ns: u64, visits: u64 },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// Visits are handed over.
    pub(crate) is_on: bool,
    pub(crate) watch: Watch,
}

/// Where it stands.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// For good.
    Off(Reason),
    /// A pair's first window.
    InPlace(Score),
    /// A pair's second one; what the first one had, and how much faster it must be.
    HandedOver {
        score: Score,
        in_place: Vec<Tally>,
        needed: f64,
    },
    /// For a while.
    Rests(Reason),
}

/// What is left of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Score {
    /// Pairs that must still gain,
    gains: u32,
    /// or must still not.
    losses: u32,
}

/// The decision about one program's regions and the machine's caches.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    sets: Vec<u64>,
    caches: Vec<u64>,
    wish: RegionUse,
    step: Step,
    places: Vec<usize>,
    /// Trials without success, one after the other.
    failures: u32,
    visit_ns: Option<f64>,
    cost_ns: Option<f64>,
}

impl Judge {
    /// Of regions with these working sets and caches of these sizes, in bytes.
    pub(crate) fn new(sets: Vec<u64>, caches: Vec<u64>) -> Self {
        let mut judge = Self {
            places: vec![0; sets.len()],
            sets,
            caches,
            wish: RegionUse::Auto,
            step: Step::Off(Reason::OneCache),
            failures: 0,
            visit_ns: None,
            cost_ns: None,
        };
        judge.start();
        judge
    }

    /// A region's working set is of this size. Says whether that is new.
    pub(crate) fn declare(&mut self, region: usize, bytes: u64) -> bool {
        let is_new = self.sets[region] != bytes;
        if is_new {
            self.sets[region] = bytes;
            self.start();
        }
        is_new
    }

    /// The program's wish.
    pub(crate) fn wish(&mut self, wish: RegionUse) {
        self.wish = wish;
        self.start();
    }

    fn start(&mut self) {
        self.failures = 0;
        (self.visit_ns, self.cost_ns) = (None, None);
        self.step = match rule::places(&self.sets, &self.caches) {
            Ok(places) => {
                self.places = places;
                Step::InPlace(Score {
                    gains: PAIRS,
                    losses: PAIRS,
                })
            }
            Err(reason) => {
                // In turns, for who wants it all the same.
                let count = self.caches.len().max(1);
                self.places = (0..self.sets.len()).map(|region| region % count).collect();
                Step::Off(reason)
            }
        };
    }

    /// The cache of each region.
    pub(crate) fn places(&self) -> &[usize] {
        &self.places
    }

    /// What was decided.
    pub(crate) fn state(&self) -> UnifyState {
        let (is_settled, reason) = match (self.wish, &self.step) {
            (RegionUse::Always | RegionUse::Never, _) => (true, Reason::Asked),
            (RegionUse::Auto, Step::Off(reason) | Step::Rests(reason)) => (true, *reason),
            (RegionUse::Auto, _) => (false, Reason::Tried),
        };
        UnifyState {
            is_on: self.order().is_on,
            is_settled,
            reason,
            visit_ns: self.visit_ns,
            cost_ns: self.cost_ns,
        }
    }

    /// What is to be done until [`Judge::rested`] or [`Judge::measured`].
    pub(crate) fn order(&self) -> Order {
        let (skip_ns, ns) = self.window_ns();
        let window = Watch::Window {
            skip_ns,
            ns,
            visits: LEAST_VISITS * self.sets.len() as u64,
        };
        let rest = Watch::Rest {
            ns: RARELY * 2 * (skip_ns + ns),
        };
        let (is_on, watch) = match (self.wish, &self.step) {
            (RegionUse::Always, _) => (self.caches.len() > 1, Watch::Nothing),
            (RegionUse::Never, _) | (RegionUse::Auto, Step::Off(_)) => (false, Watch::Nothing),
            (RegionUse::Auto, Step::InPlace(_)) => (false, window),
            (RegionUse::Auto, Step::HandedOver { .. }) => (true, window),
            (RegionUse::Auto, Step::Rests(reason)) => {
                (matches!(reason, Reason::Gained { .. }), rest)
            }
        };
        Order { is_on, watch }
    }

    /// What is not counted of a window, and what is.
    fn window_ns(&self) -> (u64, u64) {
        let bytes = self
            .sets
            .iter()
            .fold(0u64, |sum, set| sum.saturating_add(*set));
        let fetch_ns = (bytes / LINE).saturating_mul(LINE_NS).max(LEAST_NS);
        let skip_ns = fetch_ns.saturating_mul(1 << self.failures.min(MOST_DOUBLINGS));
        // So that sums of some of these stay far from overflow.
        let skip_ns = skip_ns.min(1 << 50);
        (skip_ns, (skip_ns / 4).max(LEAST_NS))
    }

    /// A rest is over.
    pub(crate) fn rested(&mut self) {
        if let Step::Rests(reason) = self.step {
            let gains = match reason {
                Reason::Gained { .. } => 1,
                _ => PAIRS,
            };
            self.step = Step::InPlace(Score {
                gains,
                losses: PAIRS,
            });
        }
    }

    /// A window is over; visits by region. `cost` measures a hand-over, in ns, where visits take so many ns.
    pub(crate) fn measured(&mut self, window: &[Tally], cost: impl FnOnce(f64) -> f64) {
        match std::mem::replace(&mut self.step, Step::Off(Reason::Tried)) {
            Step::InPlace(score) => {
                let visit_ns = rule::mean_ns(window).unwrap_or(0.0);
                let cost_ns = cost(visit_ns);
                (self.visit_ns, self.cost_ns) = (Some(visit_ns), Some(cost_ns));
                match rule::needed_gain(visit_ns, cost_ns) {
                    Ok(needed) => {
                        self.step = Step::HandedOver {
                            score,
                            in_place: window.to_vec(),
                            needed,
                        };
                    }
                    Err(reason) => self.fail(reason),
                }
            }
            Step::HandedOver {
                score,
                in_place,
                needed,
            } => {
                let gain = rule::gain(&in_place, window).unwrap_or(1.0);
                let Score { gains, losses } = score;
                let left = match gain >= needed {
                    true => Score {
                        gains: gains - 1,
                        losses,
                    },
                    false => Score {
                        gains,
                        losses: losses - 1,
                    },
                };
                if left.gains == 0 {
                    self.failures = 0;
                    self.step = Step::Rests(Reason::Gained { gain });
                } else if left.losses == 0 {
                    self.fail(Reason::NothingGained { gain });
                } else {
                    self.step = Step::InPlace(left);
                }
            }
            step => self.step = step,
        }
    }

    /// Visits as in this window have proved too short for what a hand-over costs, in ns, and are not handed over any more.
    pub(crate) fn give_up(&mut self, window: &[Tally], cost_ns: f64) {
        let visit_ns = rule::mean_ns(window).unwrap_or(0.0);
        self.step = Step::Off(Reason::TooShort { visit_ns, cost_ns });
    }

    fn fail(&mut self, reason: Reason) {
        self.failures = (self.failures + 1).min(MOST_DOUBLINGS);
        self.step = Step::Rests(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn judge(mb: u64) -> Judge {
        Judge::new(vec![mb * MB; 2], vec![4 * MB; 2])
    }

    /// Two regions with visits of this length.
    fn window(ns: u64) -> [Tally; 2] {
        [Tally {
            visits: 10,
            ns: 10 * ns,
        }; 2]
    }

    /// Windows of a program whose visits take so long in place and handed over, until something is decided; how many.
    fn settle(judge: &mut Judge, in_place: u64, handed_over: u64, cost: f64) -> usize {
        judge.rested();
        for count in 0..20 {
            if judge.state().is_settled {
                return count;
            }
            let ns = match judge.order().is_on {
                true => handed_over,
                false => in_place,
            };
            judge.measured(&window(ns), |visit_ns| {
                assert_eq!(visit_ns, in_place as f64);
                cost
            });
        }
        panic!("{judge:?} decides nothing");
    }

    #[test]
    fn what_pays_is_tried_twice_and_kept() {
        let mut judge = judge(3);
        assert!(!judge.state().is_on && !judge.state().is_settled);
        assert_eq!(settle(&mut judge, 100_000, 30_000, 2000.0), 4);
        let state = judge.state();
        assert!(state.is_on, "{state:?}");
        assert!(
            matches!(state.reason, Reason::Gained { gain } if (gain - 3.33).abs() < 0.01),
            "{state:?}"
        );
        assert_eq!(
            (state.visit_ns, state.cost_ns),
            (Some(100_000.0), Some(2000.0))
        );
        // After the rest one pair is enough, and it is given up once nothing is gained any more.
        assert_eq!(settle(&mut judge, 100_000, 30_000, 2000.0), 2);
        assert!(judge.state().is_on);
        assert_eq!(settle(&mut judge, 100_000, 99_000, 2000.0), 4);
        let state = judge.state();
        assert!(
            !state.is_on && matches!(state.reason, Reason::NothingGained { .. }),
            "{state:?}"
        );
    }

    #[test]
    fn the_four_regions_of_the_map_stay_off() {
        // Too small and too large: nothing is tried, nothing is watched.
        for (mb, word) in [(1, "fit-one"), (5, "too-large")] {
            let judge = judge(mb);
            assert_eq!(judge.state().reason.word(), word);
            assert_eq!(
                judge.order(),
                Order {
                    is_on: false,
                    watch: Watch::Nothing
                }
            );
        }
        // Too short: no window is handed over.
        let mut short = judge(3);
        assert_eq!(settle(&mut short, 900, 100, 2000.0), 1);
        assert_eq!(short.state().reason.word(), "too-short");
        // Nothing gained.
        let mut in_vain = judge(3);
        assert_eq!(settle(&mut in_vain, 10_000, 10_000, 2000.0), 4);
        assert_eq!(in_vain.state().reason.word(), "nothing-gained");
        assert!(!in_vain.state().is_on && !short.state().is_on);
    }

    #[test]
    fn what_was_given_up_stays_off() {
        let mut judge = judge(3);
        judge.measured(&window(100_000), |_| 2000.0);
        assert!(judge.order().is_on);
        judge.give_up(&window(2_500), 2000.0);
        let state = judge.state();
        assert!(!state.is_on && state.is_settled, "{state:?}");
        assert_eq!(state.reason.word(), "too-short");
        assert_eq!(judge.order().watch, Watch::Nothing);
    }

    #[test]
    fn visits_near_a_hand_over_must_gain_more() {
        // 1.3 hand-overs long, of which a trial may err by 1.31.
        for (handed_over, is_on) in [(8_000, true), (11_000, false)] {
            let mut judge = judge(3);
            settle(&mut judge, 13_000, handed_over, 10_000.0);
            assert_eq!(judge.state().is_on, is_on, "{judge:?}");
        }
    }

    /// Pairs of windows with visits of these lengths.
    fn pairs(judge: &mut Judge, lengths: &[(u64, u64)]) {
        for &(in_place, handed_over) in lengths {
            for (ns, is_on) in [(in_place, false), (handed_over, true)] {
                assert_eq!(judge.order().is_on, is_on, "{judge:?}");
                judge.measured(&window(ns * 1000), |_| 0.0);
            }
        }
    }

    #[test]
    fn one_pair_alone_decides_nothing() {
        // Once by chance.
        let mut judge = judge(3);
        pairs(&mut judge, &[(100, 30), (30, 30), (30, 30)]);
        assert_eq!(judge.state().reason, Reason::NothingGained { gain: 1.0 });
        // Once another program had the worker's CPU, then the caller's.
        judge.rested();
        pairs(&mut judge, &[(100, 900), (100, 50), (100, 50)]);
        assert_eq!(judge.state().reason, Reason::Gained { gain: 2.0 });
        judge.rested();
        pairs(&mut judge, &[(100, 900), (100, 50)]);
        assert!(judge.state().is_on);
    }

    #[test]
    fn trials_in_vain_get_longer_and_rarer_to_a_limit() {
        let mut judge = judge(3);
        let mut last = 0;
        for trial in 0..10 {
            settle(&mut judge, 10_000, 20_000, 100.0);
            let Watch::Rest { ns } = judge.order().watch else {
                panic!("{judge:?} does not rest");
            };
            assert!(ns >= last, "{trial}");
            if trial < MOST_DOUBLINGS {
                assert!(trial == 0 || ns == 2 * last, "{trial}");
            } else {
                assert_eq!(ns, last, "{trial}");
            }
            last = ns;
        }
        // Success is as quick to be asked about again as at first.
        settle(&mut judge, 10_000, 5_000, 100.0);
        assert!(matches!(judge.order().watch, Watch::Rest { ns } if ns < last / 32));
    }

    #[test]
    fn windows_are_as_long_as_the_sets_take_to_fetch() {
        // 98,304 lines of 150 ns.
        let Watch::Window {
            skip_ns,
            ns,
            visits,
        } = judge(3).order().watch
        else {
            panic!("nothing is tried");
        };
        assert_eq!((skip_ns, ns, visits), (14_745_600, 3_686_400, 4));
        let huge = Judge::new(vec![1 << 60; 2], vec![1 << 60; 2]);
        assert!(matches!(huge.order().watch, Watch::Window { skip_ns, .. } if skip_ns == 1 << 50));
    }

    #[test]
    fn declarations_and_wishes_start_anew() {
        let mut judge = judge(3);
        settle(&mut judge, 10_000, 20_000, 100.0);
        assert!(!judge.declare(0, 3 * MB), "it is the same");
        assert!(judge.state().is_settled);
        assert!(judge.declare(0, 4 * MB));
        assert!(!judge.state().is_settled);
        assert!(judge.declare(1, 9 * MB));
        assert_eq!(judge.state().reason.word(), "too-large");
        judge.wish(RegionUse::Always);
        assert!(judge.state().is_on && judge.state().is_settled);
        assert_eq!(judge.places(), [0, 1]);
        judge.wish(RegionUse::Never);
        assert_eq!(judge.state().reason, Reason::Asked);
        assert!(!judge.state().is_on);
        judge.wish(RegionUse::Auto);
        assert_eq!(judge.state().reason.word(), "too-large");
    }
}
