//! Bounded work: what is read in an interval is paid from an allowance of CPU time, and what has
//! waited longest is read first. Pure: the clocks are arguments.

/// CPU time that may be saved up, in intervals.
const SAVED_INTERVALS: f64 = 2.0;
/// Debt that is remembered, in intervals: one long reading of a very large process is paid off
/// over this time at most.
const OWED_INTERVALS: f64 = 30.0;
/// What is shown counts as if it had waited so many times longer.
const SHOWN_WEIGHT: u64 = 4;

/// An allowance of CPU time for one kind of readings: a share of one CPU, earned as time goes by.
#[derive(Clone, Debug)]
pub struct Allowance {
    share: f64,
    balance_ns: f64,
    earned_us: u64,
}

impl Allowance {
    /// An allowance that begins at this time.
    pub fn new(share: f64, at_us: u64) -> Self {
        Self {
            share,
            balance_ns: 0.0,
            earned_us: at_us,
        }
    }

    /// An interval has passed.
    pub fn earn(&mut self, at_us: u64) {
        let earned = at_us.saturating_sub(self.earned_us) as f64 * 1e3 * self.share;
        self.earned_us = at_us;
        let limits = (-OWED_INTERVALS * earned, SAVED_INTERVALS * earned);
        self.balance_ns = (self.balance_ns + earned).clamp(limits.0, limits.1);
    }

    /// May another reading be made?
    #[must_use]
    pub fn allows(&self) -> bool {
        self.balance_ns > 0.0
    }

    /// A reading took this much CPU time.
    pub fn spend(&mut self, cpu_ns: u64) {
        self.balance_ns -= cpu_ns as f64;
    }
}

/// Something to be read again.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    /// Process.
    pub pid: i32,
    /// When it was read last; `None` never.
    pub read_us: Option<u64>,
    /// Is it to be seen on the screen?
    pub is_shown: bool,
}

/// The order in which to read: what was never read, then what has waited longest; what is shown
/// before what is not, but not to the exclusion of it.
#[must_use]
pub fn order(mut due: Vec<Due>, at_us: u64) -> Vec<i32> {
    let waited = |due: &Due| {
        let weight = if due.is_shown { SHOWN_WEIGHT } else { 1 };
        match due.read_us {
            Some(read_us) => at_us.saturating_sub(read_us).saturating_mul(weight),
            None => u64::MAX - u64::from(!due.is_shown),
        }
    };
    due.sort_by_key(|due| (std::cmp::Reverse(waited(due)), due.pid));
    due.iter().map(|due| due.pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn readings_stop_when_the_allowance_is_spent_and_debts_are_paid() {
        let mut allowance = Allowance::new(0.01, 0);
        assert!(!allowance.allows(), "nothing is earned yet");
        allowance.earn(SECOND);
        allowance.spend(9_000_000);
        assert!(allowance.allows(), "10 ms were earned");
        // One reading took 51 ms: five intervals pass before the next.
        allowance.spend(51_000_000);
        for second in 2..=6 {
            allowance.earn(second * SECOND);
            assert!(!allowance.allows(), "{second}");
        }
        allowance.earn(7 * SECOND);
        assert!(allowance.allows());
        // Saved up is little.
        for second in 8..100 {
            allowance.earn(second * SECOND);
        }
        allowance.spend(20_000_000);
        assert!(!allowance.allows());
        // A debt is forgotten some day: of 60 s, 30 intervals are paid.
        allowance.spend(60_000_000_000);
        for second in 100..130 {
            allowance.earn(second * SECOND);
            assert!(!allowance.allows(), "{second}");
        }
        allowance.earn(131 * SECOND);
        assert!(allowance.allows());
    }

    #[test]
    fn what_waited_longest_comes_first_and_what_is_shown_sooner() {
        let due = |pid, read_us, is_shown| Due {
            pid,
            read_us,
            is_shown,
        };
        let all = vec![
            due(1, Some(8 * SECOND), true),
            due(2, Some(5 * SECOND), false),
            due(3, None, false),
            due(4, None, true),
            due(5, Some(SECOND), false),
        ];
        assert_eq!(order(all, 10 * SECOND), [4, 3, 5, 1, 2]);
    }

    #[test]
    fn nobody_starves() {
        let mut read = vec![Some(0); 50];
        for second in 1..=60 {
            let due = |pid: usize| Due {
                pid: pid as i32,
                read_us: read[pid],
                is_shown: pid < 10,
            };
            let now = second * SECOND;
            for pid in order((0..50).map(due).collect(), now).into_iter().take(5) {
                read[pid as usize] = Some(now);
            }
        }
        // 5 a second for 10 with weight 4 and 40 with weight 1: a round of these takes 16 s.
        assert!(
            read.iter().all(|read| read.unwrap() > 40 * SECOND),
            "{read:?}"
        );
    }
}
