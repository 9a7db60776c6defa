//! What forming may cost: a share of the time, kept by thinning touches.
//!
//! The thesis spends 1 % of a program's time in regioning mode (2.3.2, figure 20). Here the work of a turn
//! grows with the touches of the history, so fewer touches cost less. They are left out at random: every
//! other one would take the same pages of a program that goes through them in steps.

/// What is left of older costs at each turn, as turns that form take many times what others do.
const FADE: f64 = 0.85;
/// By how much the kept share falls and grows at each turn at most.
const FALL: f64 = 0.85;
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
    /// Time that passed, and was spent, lately.
    passed_ns: f64,
    spent_ns: f64,
}

impl Budget {
    /// For a share of the time.
    pub fn new(most_cost: f64) -> Self {
        Self {
            most_cost,
            kept: 1.0,
            seen_count: 0,
            last_turn_ns: None,
            passed_ns: 0.0,
            spent_ns: 0.0,
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
        self.passed_ns = FADE * self.passed_ns + passed_ns as f64;
        self.spent_ns = FADE * self.spent_ns + spent_ns as f64;
        let fits = self.most_cost * self.passed_ns / self.spent_ns.max(f64::MIN_POSITIVE);
        self.kept = (self.kept * fits.clamp(FALL, GROWTH)).clamp(LEAST_KEPT, 1.0);
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
        // A touch costs 1 us; 40,000 a second are 4 %. Every fourth turn pays for all four.
        let mut budget = Budget::new(0.01);
        let mut taken = Vec::new();
        budget.turn(0, 0);
        for turn in 1..=100_u64 {
            taken.push((0..10_000).filter(|_| budget.takes()).count() as u64);
            let is_paid = turn % 4 == 0;
            let cost: u64 = taken.iter().rev().take(4).sum();
            budget.turn(turn * 250_000_000, if is_paid { 1000 * cost } else { 0 });
        }
        assert_eq!(taken[0], 10_000);
        // 2500 are 1 %.
        let later = taken[40..].iter().sum::<u64>() / 60;
        assert!((2100..2700).contains(&later), "{taken:?}");
        assert!(
            taken[40..].iter().all(|taken| (1500..4000).contains(taken)),
            "{taken:?}"
        );
        // Where they cost nothing any more all are taken again.
        for turn in 101..=160 {
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
