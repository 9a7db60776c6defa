//! How much sampling may cost: a pure controller that holds the whole of recording to its budget.
//!
//! Trackers know what reading samples costs them, not what recording costs in all (look-ups, files,
//! mappings). So the share of a CPU that a tracker gets follows what the whole process used.

/// CPU time over which cost is judged, in us: below it one look at mappings would swing it.
const JUDGED_US: u64 = 500_000;
/// Least and most by which one judgement changes the share.
const STEP: (f64, f64) = (0.5, 1.5);
/// Parts of the budget that turns, looks at where pages are, and samples may take of the instructions.
const TURNS: f64 = 0.15;
const LOOKS: f64 = 0.15;
const SAMPLES: f64 = 0.45;
/// The same of turns and samples until the rest of the budget has paid for start and end: so little that a
/// program which ends then has cost no more than the budget.
const FIRST_TURNS: f64 = 0.08;
const FIRST_SAMPLES: f64 = 0.12;
/// What start and end of a recording cost in instructions, by the lab's counters: `hither record -- true` takes
/// 5.1 million where another process has hither's pages entered, 5.6 where not.
const START_INSTRUCTIONS: f64 = 5_300_000.0;
/// What a turn costs in instructions, by the lab's counters around its parts: reading counters and rings
/// 90,000, processes 40,000 in the mean, rows 20,000; to be woken and to sleep 40,000, an estimate.
const TURN_INSTRUCTIONS: f64 = 190_000.0;
/// Intervals are stretched at most so many times: processes that come and go in between are missed.
const MOST_STRETCH: f64 = 8.0;

/// Holds the cost.
#[derive(Clone, Debug)]
pub struct Overhead {
    /// Allowed share of the CPU time of what is watched.
    budget: f64,
    /// Share of one CPU that the tracker gets.
    share: f64,
    /// Since the last judgement.
    recent: Used,
    /// Since the beginning.
    whole: Used,
    /// Instructions since the beginning.
    executed: f64,
}

/// Time that was used.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    watched_us: u64,
    wall_us: u64,
    own_us: u64,
}

impl Used {
    fn add(&mut self, wall_us: u64, watched_us: u64, own_us: u64) {
        self.wall_us += wall_us;
        self.watched_us += watched_us;
        self.own_us += own_us;
    }

    fn cost(&self) -> f64 {
        self.own_us as f64 / self.watched_us.max(1) as f64
    }
}

impl Overhead {
    /// For a budget, 0..=1, of the CPU time of what is watched.
    #[must_use]
    pub fn new(budget: f64) -> Self {
        Self {
            budget,
            share: budget / 2.0,
            recent: Used::default(),
            whole: Used::default(),
            executed: 0.0,
        }
    }

    /// Share of one CPU that the tracker may use.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.share
    }

    /// How long an interval shall be where one of `asked_us` is asked for: longer while so little is
    /// executed that turns would take more than their part. Instructions are unknown on most machines.
    #[must_use]
    pub fn interval_us(&self, asked_us: u64, instructions_per_us: Option<f64>) -> u64 {
        let Some(per_us) = instructions_per_us else {
            return asked_us;
        };
        let part = self.part(FIRST_TURNS, TURNS);
        let stretch = TURN_INSTRUCTIONS / (part * self.budget * per_us * asked_us as f64);
        (asked_us as f64 * stretch.clamp(1.0, MOST_STRETCH)) as u64
    }

    /// Instructions per us that looks at where pages are may take.
    #[must_use]
    pub fn looks_per_us(&self, instructions_per_us: Option<f64>) -> Option<f64> {
        instructions_per_us.map(|per_us| LOOKS * self.budget * per_us)
    }

    /// Adds instructions that the machine executed.
    pub fn add_executed(&mut self, instructions: f64) {
        self.executed += instructions;
    }

    /// Share of the instructions that samples may take.
    #[must_use]
    pub fn samples(&self) -> f64 {
        self.part(FIRST_SAMPLES, SAMPLES) * self.budget
    }

    /// The first until what turns, looks and samples left of the budget has paid for start and end.
    fn part(&self, first: f64, later: f64) -> f64 {
        let saved = (1.0 - FIRST_TURNS - LOOKS - FIRST_SAMPLES) * self.budget * self.executed;
        match saved < START_INSTRUCTIONS {
            true => first,
            false => later,
        }
    }

    /// Adds an interval: how long it was, the CPU time of what is watched, and hither's own.
    /// Returns whether the share has changed.
    pub fn add(&mut self, wall_us: u64, watched_us: u64, own_us: u64) -> bool {
        self.recent.add(wall_us, watched_us, own_us);
        self.whole.add(wall_us, watched_us, own_us);
        if self.recent.watched_us < JUDGED_US {
            return false;
        }
        let recent = std::mem::take(&mut self.recent);
        let cpus = recent.watched_us as f64 / recent.wall_us.max(1) as f64;
        // What was overdrawn is saved again: files are written in bursts, which come late.
        let cost = recent.cost().max(self.whole.cost());
        let wanted = if cost > 0.0 {
            self.budget / cost
        } else {
            STEP.1
        };
        let before = self.share;
        // All of the budget for samples is the most; a hundredth of it keeps a picture.
        let most = self.budget * cpus.max(1.0);
        self.share = (self.share * wanted.clamp(STEP.0, STEP.1)).clamp(most / 100.0, most);
        self.share != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs 200 intervals of 100 ms of a program on `cpus` CPUs; what hither uses beside the
    /// samples is fixed. Returns its last cost.
    fn settled(cpus: u64, fixed_us: u64, taken: f64) -> f64 {
        let mut overhead = Overhead::new(0.01);
        let mut cost = 0.0;
        for _ in 0..200 {
            let own_us = fixed_us + (overhead.share() * taken * 100_000.0) as u64;
            cost = own_us as f64 / (cpus * 100_000) as f64;
            overhead.add(100_000, cpus * 100_000, own_us);
        }
        cost
    }

    #[test]
    fn the_whole_is_held_to_the_budget() {
        // Samples cost what the tracker takes them for, or twice that.
        for taken in [1.0, 2.0] {
            for (cpus, fixed_us) in [(1, 300), (8, 300), (8, 4000)] {
                let cost = settled(cpus, fixed_us, taken);
                assert!(
                    (0.004..0.0105).contains(&cost),
                    "{cpus} CPUs, {fixed_us} us: {cost}"
                );
            }
        }
    }

    #[test]
    fn what_bursts_overdraw_is_saved_again() {
        let mut overhead = Overhead::new(0.01);
        let mut own = 0;
        for turn in 0..200 {
            let samples_us = (overhead.share() * 100_000.0) as u64;
            // Every ten seconds a file takes as long as the samples in it.
            let file_us = if turn % 100 == 99 {
                100 * samples_us
            } else {
                0
            };
            own += samples_us + file_us;
            overhead.add(100_000, 800_000, samples_us + file_us);
        }
        let cost = own as f64 / (200.0 * 800_000.0);
        assert!((0.005..0.0125).contains(&cost), "{cost}");
    }

    /// One at 1 % that has executed so many million instructions.
    fn after(millions: f64) -> Overhead {
        let mut overhead = Overhead::new(0.01);
        overhead.add_executed(millions * 1e6);
        overhead
    }

    #[test]
    fn who_executes_little_is_disturbed_less_often() {
        let overhead = after(1000.0);
        let interval = |per_us| overhead.interval_us(100_000, per_us);
        // 190,000 instructions are 0.15 % of the 127 million of 100 ms at 1,270 a us.
        assert_eq!(
            [None, Some(2000.0), Some(1270.0)].map(interval),
            [100_000; 3]
        );
        assert_eq!(interval(Some(500.0)), 253_333);
        assert_eq!([Some(1.0), Some(0.0)].map(interval), [800_000; 2]);
        assert_eq!(
            Overhead::new(0.1).interval_us(100_000, Some(240.0)),
            100_000
        );
    }

    #[test]
    fn start_and_end_are_paid_before_much_else_is() {
        // 0.65 % of 815 million are 5.3 million. A turn is 0.08 % of 475 million, 0.15 % of 253.
        for (millions, samples, interval_us) in [
            (0.0, FIRST_SAMPLES, 475_000),
            (810.0, FIRST_SAMPLES, 475_000),
            (820.0, SAMPLES, 253_333),
        ] {
            let overhead = after(millions);
            assert_eq!(overhead.samples(), samples * 0.01);
            assert_eq!(overhead.interval_us(100_000, Some(500.0)), interval_us);
        }
        // Five times the budget pays five times as soon.
        let mut overhead = Overhead::new(0.05);
        overhead.add_executed(0.17e9);
        assert_eq!(overhead.samples(), SAMPLES * 0.05);
    }

    #[test]
    fn what_costs_too_much_by_itself_leaves_samples_a_hundredth() {
        let mut overhead = Overhead::new(0.01);
        for _ in 0..100 {
            overhead.add(100_000, 100_000, 5000);
        }
        assert!((overhead.share() - 0.0001).abs() < 1e-9);
    }
}
