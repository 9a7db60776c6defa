//! Does a program need the bandwidth of all its nodes, or is it better off on the near ones?
//!
//! Pages on a far node are worth their latency only while the near nodes' bandwidth is used up.
//! Two lines with room between them, several looks in a row, and a wait that doubles with each
//! change keep pages from going to and fro.

use std::fmt;

/// Of what the near nodes can give: a program on all nodes that uses less than this goes near.
const SPARE: f64 = 0.7;
/// A program on the near nodes that uses more than this goes to all.
const NEEDED: f64 = 0.85;
/// Looks in a row before the first change, and the most before any.
const LOOKS: u32 = 3;
const MOST_LOOKS: u32 = 96;
/// A program that uses less of one CPU than this does not tell what it needs.
const BUSY: f64 = 0.2;

/// Where a program's pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// On all nodes, by their weights.
    All,
    /// On the near nodes alone.
    Near,
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "all",
            Self::Near => "near",
        })
    }
}

/// What is believed of a program.
#[derive(Clone, Debug)]
pub struct Demand {
    near_gbs: f64,
    reach: Reach,
    streak: u32,
    patience: u32,
}

impl Demand {
    /// Of a program on all its nodes, of which the near ones give `near_gbs` at most.
    #[must_use]
    pub fn new(near_gbs: f64) -> Self {
        Self {
            near_gbs,
            reach: Reach::All,
            streak: 0,
            patience: LOOKS,
        }
    }

    /// Where the pages should be.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// After a while in which all its nodes gave `used_gbs`, and the program used so many CPUs.
    /// Tells whether the pages should go elsewhere now.
    pub fn look(&mut self, used_gbs: f64, cpus: f64) -> bool {
        let is_wrong = cpus >= BUSY
            && match self.reach {
                Reach::All => used_gbs < SPARE * self.near_gbs,
                Reach::Near => used_gbs > NEEDED * self.near_gbs,
            };
        self.streak = if is_wrong { self.streak + 1 } else { 0 };
        let is_time = self.streak >= self.patience;
        if is_time {
            self.reach = match self.reach {
                Reach::All => Reach::Near,
                Reach::Near => Reach::All,
            };
            self.streak = 0;
            self.patience = (2 * self.patience).min(MOST_LOOKS);
        }
        is_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(demand: &mut Demand, used_gbs: f64, cpus: f64, most: u32) -> Option<u32> {
        (1..=most).find(|_| demand.look(used_gbs, cpus))
    }

    #[test]
    fn a_program_that_needs_little_goes_near_and_comes_back_when_it_needs_more() {
        let mut demand = Demand::new(30.0);
        assert_eq!(looks(&mut demand, 45.0, 8.0, 1000), None);
        assert_eq!(looks(&mut demand, 2.0, 1.0, 1000), Some(3));
        assert_eq!(demand.reach(), Reach::Near);
        assert_eq!(looks(&mut demand, 2.0, 1.0, 1000), None);
        // Between the lines nothing changes, on either side.
        assert_eq!(looks(&mut demand, 24.0, 8.0, 1000), None);
        assert_eq!(looks(&mut demand, 29.0, 8.0, 1000), Some(6));
        assert_eq!(demand.reach(), Reach::All);
        assert_eq!(looks(&mut demand, 24.0, 8.0, 1000), None);
    }

    #[test]
    fn who_sleeps_tells_nothing() {
        let mut demand = Demand::new(30.0);
        assert_eq!(looks(&mut demand, 0.0, 0.1, 1000), None);
        // A look without need ends the row.
        assert!(!demand.look(1.0, 1.0) && !demand.look(1.0, 1.0) && !demand.look(1.0, 0.0));
        assert_eq!(looks(&mut demand, 1.0, 1.0, 1000), Some(3));
    }

    #[test]
    fn a_program_that_changes_its_mind_again_and_again_is_followed_ever_less_often() {
        let mut demand = Demand::new(30.0);
        let changes = (0..100_000).filter(|at| {
            let used = if at % 200 < 100 { 1.0 } else { 29.0 };
            demand.look(used, 8.0)
        });
        let when: Vec<u32> = changes.collect();
        assert!(when[..4] == [2, 105, 211, 323], "{:?}", &when[..4]);
        // With 96 looks of 100 in each phase, it stays behind by as much.
        assert!(when.len() <= 1001, "{}", when.len());
    }
}
