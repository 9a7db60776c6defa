//! How much sampling may cost: a pure controller that holds the whole of recording to its budget.
//!
//! Trackers know what reading samples costs them, not what recording costs in all (look-ups, files,
//! mappings). So the share of a CPU that a tracker gets follows what the whole process used.

/// CPU time over which cost is judged, in us: below it one look at mappings would swing it.
const JUDGED_US: u64 = 500_000;
/// Least and most by which one judgement changes the share.
const STEP: (f64, f64) = (0.5, 1.5);

/// Holds the cost.
#[derive(Clone, Debug)]
pub struct Overhead {
    /// Allowed share of the CPU time of what is watched.
    budget: f64,
    /// Share of one CPU that the tracker gets.
    share: f64,
    watched_us: u64,
    wall_us: u64,
    own_us: u64,
}

impl Overhead {
    /// For a budget, 0..=1, of the CPU time of what is watched.
    #[must_use]
    pub fn new(budget: f64) -> Self {
        Self {
            budget,
            share: budget / 2.0,
            watched_us: 0,
            wall_us: 0,
            own_us: 0,
        }
    }

    /// Share of one CPU that the tracker may use.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Adds an interval: how long it was, the CPU time of what is watched, and hither's own.
    /// Returns whether the share has changed.
    pub fn add(&mut self, wall_us: u64, watched_us: u64, own_us: u64) -> bool {
        self.wall_us += wall_us;
        self.watched_us += watched_us;
        self.own_us += own_us;
        if self.watched_us < JUDGED_US {
            return false;
        }
        let cpus = self.watched_us as f64 / self.wall_us.max(1) as f64;
        let cost = self.own_us as f64 / self.watched_us as f64;
        let wanted = if cost > 0.0 {
            self.budget / cost
        } else {
            STEP.1
        };
        let before = self.share;
        // All of the budget for samples is the most; a hundredth of it keeps a picture.
        let most = self.budget * cpus.max(1.0);
        self.share = (self.share * wanted.clamp(STEP.0, STEP.1)).clamp(most / 100.0, most);
        (self.watched_us, self.wall_us, self.own_us) = (0, 0, 0);
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
    fn what_costs_too_much_by_itself_leaves_samples_a_hundredth() {
        let mut overhead = Overhead::new(0.01);
        (0..100).for_each(|_| drop(overhead.add(100_000, 100_000, 5000)));
        assert!((overhead.share() - 0.0001).abs() < 1e-9);
    }
}
