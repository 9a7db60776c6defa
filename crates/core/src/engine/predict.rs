//! What would these moves change? Asked of the interval's samples, before anything moves.
//!
//! Local-access ratio and imbalance are recounted with the pages at their new homes. What a page
//! carries is not what it was seen to carry: of many pages, those with a sample are the lucky
//! ones, and counting each sample in full would promise the whole effect from the few pages that
//! thin evidence shows. With `n1` pages seen once and `n2` seen twice among `n` samples:
//!
//! - pages that were seen carry a share `1 - n1/n` of all accesses (Good 1953, coverage), and
//!   each of their samples counts for that much;
//! - there are about `n1 (n1 - 1) / (2 (n2 + 1))` pages yet unseen (Chao 1984), which carry the
//!   rest, `n1` samples' worth: `2 (n2 + 1) / (n1 - 1)` each. With fewer than ten pages seen twice
//!   that is a guess, and all resident pages are taken to share the rest where they are more.
//!   Their users are taken to be those of all pages, or, where they are collocated, the node that
//!   they go to.
//!
//! Stall time:
//!
//! - An access that becomes local saves `latency * (1 - 10 / distance)`: the kernel's distance
//!   table states latency relative to a local 10 (ACPI, system locality table), so this is the
//!   remote share of the mean latency; one that becomes more remote costs the same way.
//! - Between memory tiers it saves the difference of their latencies, where these are known: distances
//!   tell of nodes of one kind.
//! - Where the busiest node's traffic falls from `b` to `a`, every access to it saves
//!   `latency * utilisation * (1 - a / b)`: of the waiting at a controller, the part that its
//!   utilisation explains shrinks with its traffic. The saving is shared by the pages that leave.
//!
//! Both are first-order estimates, meant to be compared with what is measured afterwards.
//!
//! Latencies of misses that overlap add up to more time than there is: 60 accesses per us of 500 ns
//! on four CPUs are 30 us of latency in 4 us of CPU time. Waiting is therefore told in CPU time: where
//! the sum is larger, each latency counts for its share, and no gain exceeds what an interval has.

use crate::ids::{NodeId, Pid};
use crate::metrics;
use crate::plan::Mechanism;
use crate::policy::{ProposedMove, moving_unit};
use crate::snapshot::{Evidence, Snapshot};
use crate::tiers::Tiers;
use serde::{Deserialize, Serialize};

/// Predicted change of the machine's metrics, as fractions of 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PredictedChange {
    /// Rise of the local-access ratio.
    pub local_ratio: f64,
    /// Rise of the controller imbalance (a fall is negative).
    pub imbalance: f64,
    /// Rise of the share of accesses that the fastest memory tier serves.
    #[serde(default)]
    pub fast_share: f64,
}

impl PredictedChange {
    /// Does any figure change by this much?
    #[must_use]
    pub fn is_at_least(&self, change: f64) -> bool {
        let figures = [self.local_ratio, self.imbalance, self.fast_share];
        figures.iter().any(|figure| figure.abs() >= change)
    }
}

/// A prediction for a list of moves.
#[derive(Clone, Debug)]
pub(super) struct Prediction {
    /// Change of the machine's metrics.
    pub change: PredictedChange,
    /// Stall time saved per interval by each move, in ns, in the order of the moves.
    pub gains_ns: Evidence<Vec<f64>>,
}

/// What a seen and an unseen page carry, in samples.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Weights {
    /// Per sample of a page that was seen.
    seen: f64,
    /// Per page that was not.
    unseen: f64,
}

/// Pages seen twice from which the number of unseen ones can be told: its error is then below 30 %.
const ENOUGH_TWICE: f64 = 10.0;

impl Weights {
    /// `all` samples, on pages of which `once` have one and `twice` have two; `resident`: pages
    /// that were not seen and are in memory.
    ///
    /// 10,000 samples thrown at 16,384 pages: 5,440 once, 1,660 twice. Seen pages carry
    /// 1 - 0.544 of each sample; 8,900 unseen ones 0.61 each, as many as fell on the mean page.
    fn new(all: f64, once: f64, twice: f64, resident: f64) -> Self {
        if all <= 0.0 {
            return Self {
                seen: 0.0,
                unseen: 0.0,
            };
        }
        let guessed = once * (once - 1.0) / (2.0 * (twice + 1.0));
        let pages = if twice < ENOUGH_TWICE {
            guessed.max(resident)
        } else {
            guessed
        };
        Self {
            seen: 1.0 - once / all,
            unseen: if pages > 0.0 {
                (once / pages).min(1.0)
            } else {
                0.0
            },
        }
    }
}

/// Samples of each unit that moves, per node position: `nodes` figures per move.
struct Samples {
    counts: Vec<f64>,
    nodes: usize,
    /// `(process, page, move)`, sorted.
    index: Vec<(Pid, u64, usize)>,
}

impl Samples {
    fn new(moves: &[ProposedMove], nodes: usize) -> Self {
        let mut index: Vec<_> = moves
            .iter()
            .enumerate()
            .map(|(at, order)| (order.pid, order.page, at))
            .collect();
        index.sort_unstable();
        Self {
            counts: vec![0.0; nodes * moves.len()],
            nodes,
            index,
        }
    }

    /// Turns counts into what the pages carry.
    fn weigh(
        &mut self,
        moves: &[ProposedMove],
        snapshot: &Snapshot,
        weights: &Weights,
        used: &[f64],
    ) {
        let all: f64 = used.iter().sum();
        for (counts, order) in self.counts.chunks_mut(self.nodes).zip(moves) {
            if counts.iter().any(|&count| count > 0.0) {
                counts.iter_mut().for_each(|count| *count *= weights.seen);
            } else if order.mechanism == Mechanism::Collocate {
                if let Some(to) = snapshot.node_position(order.to) {
                    counts[to] = weights.unseen;
                }
            } else if all > 0.0 {
                for (count, used) in counts.iter_mut().zip(used) {
                    *count = weights.unseen * used / all;
                }
            }
        }
    }

    fn of_move(&self, at: usize) -> &[f64] {
        &self.counts[at * self.nodes..][..self.nodes]
    }

    fn of_unit_mut(&mut self, pid: Pid, page: u64) -> Option<&mut [f64]> {
        let found = self
            .index
            .binary_search_by_key(&(pid, page), |&(pid, page, _)| (pid, page))
            .ok()?;
        Some(&mut self.counts[self.index[found].2 * self.nodes..][..self.nodes])
    }
}

/// Predicts what the moves change, from the interval's samples. `home_of` corrects what the
/// snapshot says of a unit's home by what is known of later moves.
pub(super) fn predict(
    snapshot: &Snapshot,
    moves: &[ProposedMove],
    home_of: impl Fn(Pid, u64, NodeId) -> NodeId,
) -> Prediction {
    let nodes = snapshot.nodes.len();
    let mut samples = Samples::new(moves, nodes);
    let (mut traffic, mut used) = (vec![0.0; nodes], vec![0.0; nodes]);
    let (mut once, mut twice, mut seen) = (0.0, 0.0, 0.0);
    let mut local = 0.0;
    for page in snapshot.pages.iter() {
        match page.total() {
            0 => continue,
            1 => once += 1.0,
            2 => twice += 1.0,
            _ => {}
        }
        seen += 1.0;
        let unit = moving_unit(page.page, page.huge);
        let home = snapshot.node_position(home_of(page.pid, unit, page.home));
        let mut sums = samples.of_unit_mut(page.pid, unit);
        for (position, count) in page
            .reads
            .iter()
            .chain(page.writes.iter())
            .filter(|&(p, _)| p < nodes)
        {
            used[position] += f64::from(count);
            if let Some(home) = home {
                traffic[home] += f64::from(count);
                local += if home == position {
                    f64::from(count)
                } else {
                    0.0
                };
            }
            if let Some(sums) = &mut sums {
                sums[position] += f64::from(count);
            }
        }
    }
    let resident = snapshot.processes.iter();
    let resident = resident.filter_map(|process| process.resident_pages.get());
    let unseen = (resident.sum::<u64>() as f64 - seen).max(0.0);
    let weights = Weights::new(used.iter().sum(), once, twice, unseen);
    samples.weigh(moves, snapshot, &weights, &used);
    let mut after = traffic.clone();
    let mut local_after = local;
    for (at, order) in moves.iter().enumerate() {
        let users = samples.of_move(at);
        let count: f64 = users.iter().sum();
        if let Some(from) = snapshot.node_position(order.from) {
            after[from] -= count;
            local_after -= users[from];
        }
        if let Some(to) = snapshot.node_position(order.to) {
            after[to] += count;
            local_after += users[to];
        }
    }
    let all: f64 = traffic.iter().sum();
    let imbalance = |values: &[f64]| metrics::imbalance(values).unwrap_or(0.0);
    let tiers = Tiers::of(&snapshot.nodes);
    let fast = |traffic: &[f64]| tiers.nodes(0).map(|node| traffic[node]).sum::<f64>();
    let change = PredictedChange {
        local_ratio: match all > 0.0 && !snapshot.by_use {
            true => (local_after - local) / all,
            false => 0.0,
        },
        imbalance: imbalance(&after) - imbalance(&traffic),
        fast_share: match all > 0.0 && tiers.are_several() {
            true => (fast(&after) - fast(&traffic)) / all,
            false => 0.0,
        },
    };
    Prediction {
        change,
        gains_ns: gains(
            snapshot,
            moves,
            &samples,
            used.iter().sum(),
            (&traffic, &after),
            &tiers,
        ),
    }
}

/// CPU time of the snapshot's interval over all CPUs, in ns.
pub(super) fn cpu_time_ns(snapshot: &Snapshot) -> f64 {
    f64::from(snapshot.cpu_count()) * snapshot.interval_us as f64 * 1000.0
}

/// What a ns of latency is in CPU time, where all of them add up to `waited_ns`.
fn overlap(waited_ns: f64, cpu_time_ns: f64) -> f64 {
    match waited_ns > cpu_time_ns {
        true => cpu_time_ns / waited_ns,
        false => 1.0,
    }
}

/// CPU time saved by a change of the mean latency of so many accesses, in ns; negative where they wait
/// longer.
pub(super) fn saved_ns(before_ns: f64, after_ns: f64, accesses: f64, cpu_time_ns: f64) -> f64 {
    let waited_ns = before_ns.max(after_ns) * accesses;
    (before_ns - after_ns) * accesses * overlap(waited_ns, cpu_time_ns)
}

fn gains(
    snapshot: &Snapshot,
    moves: &[ProposedMove],
    samples: &Samples,
    used: f64,
    (before, after): (&[f64], &[f64]),
    tiers: &Tiers,
) -> Evidence<Vec<f64>> {
    let Some(latency_ns) = snapshot
        .metrics
        .latency_ns
        .get()
        .filter(|latency| latency.is_finite())
    else {
        return Evidence::unknown(format!(
            "the latency is unknown: {}",
            snapshot.metrics.latency_ns.basis()
        ));
    };
    if snapshot.sample_period == 0 {
        return Evidence::unknown("how many accesses a sample stands for is unknown");
    }
    let cpu_time_ns = cpu_time_ns(snapshot);
    let per_sample_ns = latency_ns * f64::from(snapshot.sample_period);
    let per_sample_ns = per_sample_ns * overlap(used * per_sample_ns, cpu_time_ns);
    let relief = Relief::new(snapshot, before, after);
    let gain = |(at, order): (usize, &ProposedMove)| {
        let users = samples.of_move(at);
        let (from, to) = (
            snapshot.node_position(order.from),
            snapshot.node_position(order.to),
        );
        let faster = from.zip(to).filter(|_| order.mechanism.is_between_tiers());
        let faster = faster.and_then(|(from, to)| {
            let ns = |node| tiers.read_ns(snapshot, tiers.rank(node));
            Some((ns(from)? - ns(to)?) / latency_ns)
        });
        let nearer: f64 = users
            .iter()
            .enumerate()
            .map(|(user, count)| {
                let by_distance = || remote(snapshot, user, from) - remote(snapshot, user, to);
                count * faster.unwrap_or_else(by_distance)
            })
            .sum();
        let count: f64 = users.iter().sum();
        let relieved = if from == relief.busiest {
            relief.per_sample * count
        } else {
            0.0
        };
        per_sample_ns * (nearer + relieved)
    };
    let mut gains: Vec<f64> = moves.iter().enumerate().map(gain).collect();
    // Distance and queueing are estimated apart, and could each take all of the latency.
    let sum: f64 = gains.iter().map(|gain| gain.abs()).sum();
    let factor = overlap(sum, cpu_time_ns);
    gains.iter_mut().for_each(|gain| *gain *= factor);
    Evidence::estimated(
        gains,
        "samples of the last interval, its mean latency, node distances and controller utilisation",
    )
}

/// Share of the latency from `user` to `node` that is due to distance.
fn remote(snapshot: &Snapshot, user: usize, node: Option<usize>) -> f64 {
    let distance = node
        .and_then(|node| snapshot.distances.get(user)?.get(node))
        .copied()
        .unwrap_or(10);
    1.0 - 10.0 / f64::from(distance.max(10))
}

/// What the busiest node's accesses save when traffic leaves it.
struct Relief {
    busiest: Option<usize>,
    /// In mean latencies, per sample that leaves.
    per_sample: f64,
}

impl Relief {
    fn new(snapshot: &Snapshot, before: &[f64], after: &[f64]) -> Self {
        let busiest =
            (0..before.len()).max_by(|&a, &b| before[a].total_cmp(&before[b]).then(b.cmp(&a)));
        let per_sample = busiest.map_or(0.0, |node| {
            let leaving = before[node] - after[node];
            let utilisation = snapshot.nodes[node]
                .utilisation
                .get()
                .unwrap_or(0.0)
                .clamp(0.0, 1.0);
            if leaving <= 0.0 || before[node] <= 0.0 {
                return 0.0;
            }
            before[node] * utilisation * (1.0 - after[node] / before[node]) / leaving
        });
        Self {
            busiest,
            per_sample,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn savings_are_cpu_time_and_no_more_than_there_is() {
        // Carrefour's Streamcluster on four CPUs for 100 ms, 400 ms of CPU time: 6 million accesses of
        // 500 ns wait 3 s in sum, so that a ns of latency is 0.1333 ns of CPU time.
        let saved = saved_ns(500.0, 207.0, 6e6, 4e8);
        assert!((saved - 293.0 * 6e6 * 4.0 / 30.0).abs() < 1.0, "{saved}");
        // The other way round it is lost.
        assert_eq!(saved_ns(207.0, 500.0, 6e6, 4e8), -saved);
        // One million wait for 0.1 s: nothing needs to overlap.
        assert_eq!(saved_ns(100.0, 80.0, 1e6, 4e8), 20e6);
        // All of it, at most.
        assert_eq!(saved_ns(1e6, 0.0, 6e6, 4e8), 4e8);
        assert_eq!(saved_ns(100.0, 80.0, 0.0, 0.0), 0.0);
    }

    #[test]
    fn weights_by_hand() {
        // 10,000 samples at 16,384 pages, as in the text: mean 0.61 a page.
        let weights = Weights::new(10_000.0, 5_440.0, 1_660.0, 50_000.0);
        assert!((weights.seen - 0.456).abs() < 1e-9);
        assert!((weights.unseen - 0.61).abs() < 0.005, "{weights:?}");
        // Every page was seen often: samples count in full.
        assert_eq!(Weights::new(1000.0, 0.0, 0.0, 0.0).seen, 1.0);
        // Every page was seen once: what was seen says nothing of what they carry.
        let thin = Weights::new(75.0, 75.0, 0.0, 15_000.0);
        assert_eq!((thin.seen, thin.unseen), (0.0, 0.005));
        assert_eq!(Weights::new(0.0, 0.0, 0.0, 0.0).unseen, 0.0);
    }
}
