//! What forming may cost: a share of the time, kept by thinning touches.
//!
//! The thesis spends 1 % of a program's time in regioning mode (2.3.2, figure 20). Here the work of a turn
//! grows with the touches of the history, so fewer touches cost less. They are left out at random: every
//! other one would take the same pages of a program that goes through them in steps.

/// How much faster than it fell the kept share does not grow, each turn.
const GROWTH: f64 = 1.1;
/// Share that is kept in any case: less could not tell whether it still costs too much.
const LEAST_KEPT: f64 = 0.01;

/// Decides which touches are taken in.
#[derive(Clone, Debug)]
pub struct Budget {
    most_cost: f64,
    kept: f64,
    seen_count: u64,
    last_turn_ns: Option<u64>,
}

impl Budget {
    /// For a share of the time.
    pub fn new(most_cost: f64) -> Self {
        Self {
            most_cost,
            kept: 1.0,
            seen_count: 0,
            last_turn_ns: None,
        }
    }

    /// Is the next touch taken in?
    pub fn takes(&mut self) -> bool {
        self.seen_count += 1;
        self.kept >= 1.0 || scattered(self.seen_count) < self.kept
    }

    /// A turn's time and what it cost.
    pub fn turn(&mut self, now_ns: u64, spent_ns: u64) {
        let before_ns = self.last_turn_ns.replace(now_ns);
        let Some(passed_ns) = before_ns.and_then(|before_ns| now_ns.checked_sub(before_ns)) else {
            return;
        };
        if passed_ns == 0 {
            return;
        }
        let cost = spent_ns as f64 / passed_ns as f64;
        let fits = self.most_cost / cost.max(f64::MIN_POSITIVE);
        self.kept = (self.kept * fits.min(GROWTH)).clamp(LEAST_KEPT, 1.0);
    }

    /// Share of the touches that are taken in.
    pub fn kept_share(&self) -> f64 {
        self.kept
    }
}

/// A number in 0..1 that looks drawn at random (the mixing of SplitMix64).
fn scattered(number: u64) -> f64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_costs_too_much_is_thinned_until_it_does_not() {
        // A touch costs 1 us; 40,000 a second are 4 %.
        let mut budget = Budget::new(0.01);
        let mut taken = Vec::new();
        budget.turn(0, 0);
        for turn in 1..=40_u64 {
            let count = (0..10_000).filter(|_| budget.takes()).count() as u64;
            budget.turn(turn * 250_000_000, 1000 * count);
            taken.push(count);
        }
        assert_eq!(taken[0], 10_000);
        // 2500 are 1 %.
        let later = taken[5..].iter().sum::<u64>() / 35;
        assert!((2300..2700).contains(&later), "{taken:?}");
        // Where they cost nothing any more all are taken again.
        for turn in 41..=80 {
            budget.turn(turn * 250_000_000, 0);
        }
        assert_eq!(budget.kept_share(), 1.0);
    }

    #[test]
    fn nothing_is_thinned_where_nobody_measures() {
        let mut budget = Budget::new(0.01);
        for turn in 0..10 {
            budget.turn(turn, 0);
        }
        assert!((0..1000).all(|_| budget.takes()));
        // A clock that stands still or goes back says nothing.
        budget.turn(9, 1 << 40);
        budget.turn(3, 1 << 40);
        assert_eq!(budget.kept_share(), 1.0);
    }
}
