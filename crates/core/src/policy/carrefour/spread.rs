//! Interleaving: which shared pages leave an overloaded node, and where to.
//!
//! Problem: traffic is unevenly spread over the nodes; shared pages can carry it elsewhere.
//! Mechanism: see [`Draw`](super::config::Draw). Every draw is charged to its target, and the node
//! that is owed most is drawn next, by lot among equals. Of four equal nodes every four pages in
//! a row go to each once, in an order that changes: threads that walk through neighbouring pages
//! load all controllers at every moment, as under the kernel's interleave policy, while a stride
//! in the program cannot meet a stride in the placement. Independent draws would balance only on
//! average, and queues form where it is not.

use super::config::Draw;
use crate::policy::random::Random;

/// Debts that differ by less are equal.
const SAME: f64 = 1e-9;

/// The draw for one interval.
#[derive(Debug)]
pub(super) struct Spread {
    /// Probability to go to each node, per home position (`quota[home][node]`); the home's own
    /// entry is the probability to stay.
    quota: Vec<Vec<f64>>,
    /// What each node is owed, in pages, per home.
    owed: Vec<Vec<f64>>,
}

impl Spread {
    /// `traffic` per node position, in any unit; `movable`: how much of it is made by pages that
    /// may be drawn; `targets`: positions that may receive. Shares are taken over the targets and
    /// the nodes that hold movable traffic.
    pub fn new(draw: Draw, traffic: &[f64], movable: &[f64], targets: &[bool]) -> Self {
        let total: f64 = traffic.iter().sum();
        let target_count = targets
            .iter()
            .filter(|&&is_target| is_target)
            .count()
            .max(1) as f64;
        let fair = |node: usize| {
            if targets[node] {
                total / target_count
            } else {
                0.0
            }
        };
        let nodes = traffic.len();
        let quota = (0..nodes)
            .map(|home| {
                let weights: Vec<f64> = (0..nodes)
                    .map(|node| match draw {
                        _ if node == home || !targets[node] || total <= 0.0 => 0.0,
                        Draw::Surplus => (fair(node) - traffic[node]).max(0.0),
                        Draw::Published => 1.0 - traffic[node] / total,
                    })
                    .collect();
                let leave = match draw {
                    _ if total <= 0.0 => 0.0,
                    Draw::Surplus if movable[home] <= 0.0 => 0.0,
                    Draw::Surplus => ((traffic[home] - fair(home)) / movable[home]).clamp(0.0, 1.0),
                    Draw::Published => traffic[home] / total,
                };
                let sum: f64 = weights.iter().sum();
                let mut row: Vec<f64> = weights
                    .iter()
                    .map(|weight| if sum > 0.0 { leave * weight / sum } else { 0.0 })
                    .collect();
                row[home] = 1.0 - row.iter().sum::<f64>();
                row
            })
            .collect();
        Self {
            quota,
            owed: vec![vec![0.0; nodes]; nodes],
        }
    }

    /// Probability that a page on `home` leaves.
    pub fn leaving(&self, home: usize) -> f64 {
        1.0 - self.quota[home][home]
    }

    /// Where the next page on `home` goes; `home` itself where it stays.
    pub fn draw(&mut self, home: usize, random: &mut Random) -> usize {
        let owed = &mut self.owed[home];
        for (owed, quota) in owed.iter_mut().zip(&self.quota[home]) {
            *owed += quota;
        }
        let most = owed.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let first: Vec<f64> = owed
            .iter()
            .zip(&self.quota[home])
            .map(|(&owed, &quota)| f64::from(u8::from(quota > 0.0 && owed >= most - SAME)))
            .collect();
        let target = random.weighted(&first).unwrap_or(home);
        owed[target] -= 1.0;
        target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(spread: &mut Spread, pages: usize) -> Vec<usize> {
        let mut random = Random::new(5);
        let mut counts = vec![0; spread.quota.len()];
        for _ in 0..pages {
            counts[spread.draw(0, &mut random)] += 1;
        }
        counts
    }

    fn all_on_one_of_four() -> Spread {
        let load = [100.0, 0.0, 0.0, 0.0];
        Spread::new(Draw::Surplus, &load, &load, &[true; 4])
    }

    fn drawn_400() -> Vec<usize> {
        let (mut spread, mut random) = (all_on_one_of_four(), Random::new(9));
        (0..400).map(|_| spread.draw(0, &mut random)).collect()
    }

    #[test]
    fn all_on_one_of_four_is_balanced_in_one_step() {
        // Fair is 25, surplus 75 of 100 movable: leave with 0.75, to three equal deficits.
        let mut spread = all_on_one_of_four();
        assert!((spread.leaving(0) - 0.75).abs() < 1e-12);
        for count in counts(&mut spread, 400) {
            assert!((96..=104).contains(&count));
        }
    }

    #[test]
    fn neighbours_go_to_different_nodes() {
        let drawn = drawn_400();
        for window in drawn.windows(32) {
            // 8 of 32; a window may begin and end within a round of four.
            for node in 0..4 {
                let count = window.iter().filter(|&&drawn| drawn == node).count();
                assert!(
                    (7..=9).contains(&count),
                    "node {node} drawn {count} times of 32"
                );
            }
        }
    }

    #[test]
    fn the_order_of_targets_is_no_stride() {
        let drawn = drawn_400();
        let rounds: std::collections::BTreeSet<&[usize]> = drawn.chunks(4).collect();
        // Of the 24 orders of four nodes, 100 rounds show nearly all.
        assert!(rounds.len() > 18, "{} orders", rounds.len());
        for node in 0..4 {
            let on_stride = drawn.iter().step_by(4).filter(|&&drawn| drawn == node);
            assert!((12..=40).contains(&on_stride.count()));
        }
    }

    #[test]
    fn a_partly_movable_surplus_moves_all_it_can() {
        // Node 0 has 70, node 1 has 30: surplus 20. Only 10 may move: all of that leaves.
        let spread = Spread::new(Draw::Surplus, &[70.0, 30.0], &[10.0, 30.0], &[true; 2]);
        assert_eq!(spread.leaving(0), 1.0);
        assert_eq!(spread.leaving(1), 0.0);
    }

    #[test]
    fn a_node_that_may_not_receive_gets_nothing_and_gives_all() {
        let mut spread = Spread::new(
            Draw::Surplus,
            &[60.0, 0.0, 0.0],
            &[60.0, 0.0, 0.0],
            &[true, true, false],
        );
        let drawn = counts(&mut spread, 100);
        assert_eq!(drawn, [50, 50, 0]);
        let spread = Spread::new(
            Draw::Surplus,
            &[60.0, 0.0, 0.0],
            &[60.0, 0.0, 0.0],
            &[false, true, true],
        );
        assert_eq!(spread.leaving(0), 1.0);
    }

    #[test]
    fn the_published_draw_empties_the_overloaded_node() {
        // Leave with probability 1, to weights 1, 1, 1.
        let mut spread = Spread::new(
            Draw::Published,
            &[9.0, 0.0, 0.0, 0.0],
            &[9.0; 4],
            &[true; 4],
        );
        assert_eq!(counts(&mut spread, 300)[0], 0);
        // Shares 0.5, 0.3, 0.2: leave with 0.5, to weights 0.7 and 0.8.
        let spread = Spread::new(Draw::Published, &[5.0, 3.0, 2.0], &[1.0; 3], &[true; 3]);
        assert!((spread.quota[0][1] - 0.5 * 0.7 / 1.5).abs() < 1e-12);
    }

    #[test]
    fn silence_moves_nothing() {
        let spread = Spread::new(Draw::Surplus, &[0.0; 3], &[0.0; 3], &[true; 3]);
        assert_eq!(spread.leaving(1), 0.0);
    }
}
