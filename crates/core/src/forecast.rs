//! Forecast: how much faster programs run with their pages where Carrefour would put them, told before
//! anything moves.
//!
//! Problem: moving costs time, and people want to know beforehand. Approach: figures of one interval are
//! carried over to the best placement.
//!
//! - *Who uses what*: samples are summed up by process and 2 MiB block. A block that one node uses for
//!   [`CERTAINTY`] of its accesses would be on that node; others would be spread evenly over the nodes with
//!   CPUs where controllers are unevenly loaded, and stay where they are otherwise. Blocks with fewer
//!   than [`BLOCK_SAMPLES`] are taken to be like the others.
//! - *Latency*: an access from one node to another takes its distance (the kernel's table, 10 is local)
//!   times what waiting at the controller adds at its load ([`loaded`], fitted to measured curves). At
//!   a controller near its limit the wait has no limit of its own: there the latency that was measured
//!   counts, where it is longer, and firmware rates idle memory. Where it is not known (streams, whose
//!   loads find their lines on the way), the gain lies between what the curve says and what bandwidth and
//!   stalls allow, and that whole range is told.
//! - *Time*: a share of the CPU time is spent waiting for memory. That share shrinks with the latency,
//!   the rest stays; a faster program loads the controllers more, so the two are solved together, and no
//!   controller carries more than it can.
//!
//! The error is the larger of what samples leave open (90 %) and [`MODEL_ERROR`] of the gain together, and
//! [`LEAST_ERROR`]. A forecast is made of what is measured; where a figure is unknown there is none.

use crate::ids::Pid;
use crate::metrics;
use crate::policy::carrefour::config::{CERTAINTY, UNEVEN};
use crate::snapshot::{HUGE_PAGES, Snapshot};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;

/// Samples from which a block tells its users.
const BLOCK_SAMPLES: f64 = 8.0;
/// Samples that a forecast needs: the local-access ratio is then known within 4 points.
const LEAST_SAMPLES: f64 = 400.0;
/// Intervals that are summed up at most: what a program did earlier says little.
const WINDOW: u32 = 30;
/// Blocks that are remembered at most: 128 GiB.
const MOST_BLOCKS: usize = 1 << 16;
/// Error of the model, as a share of the gain that it tells: an estimate. What was told and what came is
/// in docs/cli.md.
const MODEL_ERROR: f64 = 0.4;
/// Below this share of the run time nobody can tell a gain from noise.
const LEAST_ERROR: f64 = 0.02;
/// Use of a controller from which on its latency says more than its use: it rises steeply, and firmware's
/// ratings are rough.
const NEAR_LIMIT: f64 = 0.7;
/// Most use of a controller: the cap of the memory-time model.
const MOST_USE: f64 = crate::timing::MAX_UTILISATION;

/// What the best placement is expected to bring.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// How many times as fast the programs run.
    pub speed_up: f64,
    /// Half of the width of the interval in which the speed-up is expected.
    pub error: f64,
    /// Local-access ratio now and then.
    pub local_ratio: [f64; 2],
    /// Controller imbalance of the sampled accesses now and then.
    pub imbalance: [f64; 2],
    /// Share of the CPU time that waits for memory now.
    pub stall_share: f64,
    /// Samples that it rests on.
    pub sample_count: u64,
}

/// Why there is no forecast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Samples, so far: there are so many.
    Samples(u64),
    /// A figure that nobody tells here: half a sentence.
    Figure(String),
}

impl Forecast {
    /// The speed-up with its interval.
    #[must_use]
    pub fn range(&self) -> String {
        format!(
            "{:.2} times as fast, {:.2} to {:.2}",
            self.speed_up,
            (self.speed_up - self.error).max(0.0),
            self.speed_up + self.error
        )
    }

    /// Is the gain larger than its error?
    #[must_use]
    pub fn is_gain(&self) -> bool {
        self.speed_up - 1.0 > self.error
    }
}

impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [local, local_then] = self.local_ratio.map(|ratio| 100.0 * ratio);
        let [uneven, uneven_then] = self.imbalance.map(|share| 100.0 * share);
        write!(
            f,
            "{} (local accesses {local:.0} % to {local_then:.0} %, controller \
             imbalance {uneven:.0} % to {uneven_then:.0} %, {:.0} % of the CPU time waits for memory; {} samples)",
            self.range(),
            100.0 * self.stall_share,
            self.sample_count,
        )
    }
}

/// Sums up who uses what, over intervals in which nothing is moved.
#[derive(Debug, Default)]
pub struct Forecaster {
    blocks: HashMap<(Pid, u64), Matrix>,
    interval_count: u32,
}

impl Forecaster {
    /// Takes in the samples of an interval.
    pub fn take(&mut self, snapshot: &Snapshot) {
        let nodes = snapshot.nodes.len();
        let is_other = self.blocks.values().any(|block| block.nodes != nodes);
        if self.interval_count >= WINDOW || is_other {
            self.forget();
        }
        self.interval_count += 1;
        for page in snapshot.pages.iter().filter(|page| page.total() > 0) {
            let Some(home) = snapshot.node_position(page.served_by()) else {
                continue;
            };
            let key = (page.pid, page.page / HUGE_PAGES);
            if self.blocks.len() >= MOST_BLOCKS && !self.blocks.contains_key(&key) {
                continue;
            }
            let block = self.blocks.entry(key);
            let block = block.or_insert_with(|| Matrix::new(nodes));
            let users = page.reads.iter().chain(page.writes.iter());
            for (from, count) in users.filter(|&(from, _)| from < nodes) {
                block.add(from, home, f64::from(count));
            }
        }
    }

    /// Forgets what was seen: pages have moved since, or will.
    pub fn forget(&mut self) {
        self.blocks.clear();
        self.interval_count = 0;
    }

    /// What the best placement would bring; `snapshot`: the figures of the last interval.
    ///
    /// # Errors
    /// What is missing.
    pub fn forecast(&self, snapshot: &Snapshot) -> Result<Forecast, Missing> {
        forecast(snapshot, &Accesses::of(self.blocks.values(), snapshot))
    }
}

fn forecast(snapshot: &Snapshot, accesses: &Accesses) -> Result<Forecast, Missing> {
    let missing = |what: String| Err(Missing::Figure(what));
    let stall_share = &snapshot.metrics.stall_share;
    let Some(stalled) = stall_share.get().filter(|share| share.is_finite()) else {
        return missing(format!(
            "how much time waits for memory is unknown ({})",
            stall_share.basis()
        ));
    };
    let nodes = snapshot.nodes.len();
    let is_complete = |row: &Vec<u32>| row.len() == nodes && row.iter().all(|&far| far >= 10);
    if snapshot.distances.len() != nodes || !snapshot.distances.iter().all(is_complete) {
        return missing("the distances of nodes are unknown".to_owned());
    }
    if accesses.all < LEAST_SAMPLES {
        return Err(Missing::Samples(accesses.all as u64));
    }
    let now = &accesses.now;
    let uneven = now.imbalance(snapshot);
    let then = match uneven > UNEVEN {
        true => &accesses.spread,
        false => &accesses.collocated,
    };
    let uses = snapshot.nodes.iter().map(|node| node.utilisation.get());
    let uses: Option<Vec<f64>> = uses.collect();
    let moves_load = (then.imbalance(snapshot) - uneven).abs() > 0.1;
    if uses.is_none() && moves_load {
        return missing("how much controllers are used is unknown".to_owned());
    }
    let uses = uses.unwrap_or_else(|| vec![0.0; nodes]);
    let stalled = stalled.clamp(0.0, 1.0);
    let [least, most] = speed_up(snapshot, (now, then), &uses, stalled);
    let speed_up = f64::midpoint(least, most);
    let gain = least - 1.0;
    // The shares that moved are known by so many samples, and count by what distance costs.
    let from_samples = 1.64 * 0.5 / accesses.all.sqrt() * stalled * speed_up;
    let error = from_samples.hypot(MODEL_ERROR * gain).max(LEAST_ERROR) + (most - least) / 2.0;
    Ok(Forecast {
        speed_up,
        error,
        local_ratio: [now.local_ratio(), then.local_ratio()],
        imbalance: [uneven, then.imbalance(snapshot)],
        stall_share: stalled,
        sample_count: accesses.all as u64,
    })
}

/// What waiting at a controller of this use adds to an access that finds it idle, as a factor: 1.13 at
/// half, 1.39 at nine tenths, 2.5 where it is saturated, as measured curves have it (Mess data; see
/// [`crate::timing`]).
fn loaded(used: f64) -> f64 {
    let used = used.clamp(0.0, MOST_USE);
    1.0 + 0.25 * used + 0.02 * used * used / (1.0 - used)
}

/// The measured latency, where an idle local access takes 1; `None` where it is not known.
fn measured(snapshot: &Snapshot) -> Option<f64> {
    let with_cpus = || snapshot.nodes.iter().filter(|node| node.has_cpus());
    let idle: Option<f64> = with_cpus().map(|node| node.idle_ns).sum();
    let idle = idle.filter(|&sum| sum > 0.0)? / with_cpus().count() as f64;
    let latency = snapshot.metrics.latency_ns.get();
    latency
        .filter(|latency| latency.is_finite())
        .map(|latency| latency / idle)
}

/// Solves for the speed-up between two placements: the least and the most.
fn speed_up(
    snapshot: &Snapshot,
    (now, then): (&Matrix, &Matrix),
    uses: &[f64],
    stalled: f64,
) -> [f64; 2] {
    // Controllers are taken to be alike: the use of all is what there is to carry.
    let load: f64 = uses.iter().sum();
    let [use_now, use_then] = [now, then].map(|matrix| {
        let shares = matrix.shares();
        shares.iter().map(|share| share * load).collect::<Vec<_>>()
    });
    let busiest = |uses: &[f64]| uses.iter().copied().fold(0.0, f64::max);
    let by_use = now.latency(snapshot, &use_now);
    if by_use <= 0.0 {
        return [1.0; 2];
    }
    let is_near = busiest(&use_now) > NEAR_LIMIT && busiest(&use_then) < busiest(&use_now);
    let latency = measured(snapshot);
    let before = match (is_near, latency) {
        (true, Some(latency)) => by_use.max(latency),
        _ => by_use,
    };
    let busiest = busiest(&use_then);
    let most = match busiest > 0.0 {
        true => (MOST_USE / busiest).max(1.0),
        false => f64::INFINITY,
    };
    let mut faster = 1.0;
    for _ in 0..50 {
        let uses: Vec<f64> = use_then.iter().map(|used| used * faster).collect();
        let ratio = then.latency(snapshot, &uses) / before;
        let next = (1.0 / (1.0 - stalled + stalled * ratio)).min(most);
        faster = 0.5 * (faster + next);
    }
    match is_near && latency.is_none() {
        true => [faster, most.min(1.0 / (1.0 - stalled)).max(faster)],
        false => [faster; 2],
    }
}

/// Accesses from each node position to each: `from * nodes + home`.
#[derive(Clone, Debug)]
struct Matrix {
    counts: Vec<f64>,
    nodes: usize,
}

impl Matrix {
    fn new(nodes: usize) -> Self {
        Self {
            counts: vec![0.0; nodes * nodes],
            nodes,
        }
    }

    fn add(&mut self, from: usize, home: usize, count: f64) {
        self.counts[from * self.nodes + home] += count;
    }

    fn each(&self) -> impl Iterator<Item = (usize, usize, f64)> + '_ {
        let all = self.counts.iter().enumerate();
        all.map(|(at, &count)| (at / self.nodes, at % self.nodes, count))
    }

    fn total(&self) -> f64 {
        self.counts.iter().sum()
    }

    fn local_ratio(&self) -> f64 {
        let local = self.each().filter(|(from, home, _)| from == home);
        local.map(|(.., count)| count).sum::<f64>() / self.total().max(1.0)
    }

    /// Of all accesses, by home.
    fn shares(&self) -> Vec<f64> {
        let mut sums = vec![0.0; self.nodes];
        for (_, home, count) in self.each() {
            sums[home] += count;
        }
        metrics::shares(&sums)
    }

    /// Over the nodes with CPUs.
    fn imbalance(&self, snapshot: &Snapshot) -> f64 {
        let shares = self.shares();
        let with_cpus = shares.iter().zip(&snapshot.nodes);
        let shares: Vec<f64> = with_cpus
            .filter(|(_, node)| node.has_cpus())
            .map(|(&share, _)| share)
            .collect();
        metrics::imbalance(&shares).unwrap_or(0.0)
    }

    /// Mean, where a local access to an idle controller takes 1.
    fn latency(&self, snapshot: &Snapshot, uses: &[f64]) -> f64 {
        let distance = |from: usize, home: usize| f64::from(snapshot.distances[from][home]) / 10.0;
        let sum: f64 = self
            .each()
            .map(|(from, home, count)| count * distance(from, home) * loaded(uses[home]))
            .sum();
        sum / self.total().max(1.0)
    }
}

/// Accesses now and with blocks where they belong.
struct Accesses {
    now: Matrix,
    /// Private blocks with their users, others where they are.
    collocated: Matrix,
    /// Others spread, too.
    spread: Matrix,
    /// Samples of blocks that tell their users.
    all: f64,
}

impl Accesses {
    fn of<'a>(blocks: impl Iterator<Item = &'a Matrix>, snapshot: &Snapshot) -> Self {
        let nodes = snapshot.nodes.len();
        let with_cpus: Vec<usize> = (0..nodes)
            .filter(|&node| snapshot.nodes[node].has_cpus())
            .collect();
        let [now, collocated, spread] = [(); 3].map(|()| Matrix::new(nodes));
        let mut all = Self {
            now,
            collocated,
            spread,
            all: 0.0,
        };
        for block in blocks.filter(|block| block.nodes == nodes) {
            all.take(block, &with_cpus);
        }
        all
    }

    fn take(&mut self, block: &Matrix, with_cpus: &[usize]) {
        let total = block.total();
        if total < BLOCK_SAMPLES || with_cpus.is_empty() {
            return;
        }
        self.all += total;
        let mut users = vec![0.0; block.nodes];
        for (from, home, count) in block.each() {
            users[from] += count;
            self.now.add(from, home, count);
        }
        let user = (0..block.nodes).find(|&from| users[from] >= CERTAINTY * total);
        for (from, home, count) in block.each().filter(|&(.., count)| count > 0.0) {
            match user {
                // Memory without CPUs is another tier, not a wrong place.
                _ if !with_cpus.contains(&home) => {
                    self.collocated.add(from, home, count);
                    self.spread.add(from, home, count);
                }
                Some(user) => {
                    self.collocated.add(from, user, count);
                    self.spread.add(from, user, count);
                }
                None => {
                    self.collocated.add(from, home, count);
                    for &node in with_cpus {
                        self.spread.add(from, node, count / with_cpus.len() as f64);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
