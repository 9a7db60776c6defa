//! Carrefour's thresholds, each with its unit, reason and source.
//!
//! *Paper* is "Challenges of Memory Management on Modern NUMA Systems" (Gaud and others), *code*
//! the authors' published program, *hither* a decision of this project.

use crate::engine::phase::{MIN_SAMPLES, OTHER_USERS};

/// Share of local accesses below which pages are brought to their users: [`Config::collocate_below_local_ratio`].
pub const LOCAL: f64 = 0.80;
/// Imbalance of controllers above which shared memory is spread: [`Config::interleave_above_imbalance`].
pub const UNEVEN: f64 = 0.35;
/// Certainty with which memory is called private: [`Config::certainty`].
pub const CERTAINTY: f64 = 0.8;

/// How the target of an interleaved page is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// To the rule's fixed point in one step: a page leaves its home with the probability of the
    /// home's surplus over its fair share, to a node drawn by its deficit, and no page moves
    /// twice. The paper's own draw tends to the same balance over several periods, but within one
    /// period empties the overloaded node (all traffic on one of four nodes becomes 0, 1/3, 1/3,
    /// 1/3).
    Surplus,
    /// As published: a page leaves with probability equal to its home's share of the traffic, to
    /// another node drawn with weight (1 - that node's share). For comparison.
    Published,
}

/// The thresholds.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Everything is off below this many memory fills per us *and busy CPU*. Reason: with little
    /// traffic placement cannot pay for the moves. Paper: 50 per us on 16 CPUs = 3.125; the later
    /// code's 15 per us and node is 3.75 on the same machine. Counted per CPU so that a machine
    /// scaled to fewer CPUs, or a larger one, keeps the meaning; per CPU that the processes keep
    /// busy, so that two threads on a large machine, or one program of many, are judged by what
    /// they do.
    pub min_accesses_per_us_per_cpu: f64,
    /// Where the rate of accesses is unknown: everything is off while the programs use fewer CPUs than
    /// this. Hither: below a tenth of one CPU nothing that placement gains can pay for looking.
    pub min_busy_cpus: f64,
    /// The part of the pages that a mechanism may move before it was found to help, where the rate of
    /// accesses is unknown. Hither: a quarter of the pages changes local accesses by 10 points, which is
    /// a success, wherever 40 % of them are on the wrong node.
    pub trial_share: f64,
    /// Pages that a trial may move at least. Hither: 8 MiB cost some 50 ms at the rates that moves have.
    pub trial_pages: u64,
    /// Collocation is on below this local-access ratio. Paper: 80 %.
    pub collocate_below_local_ratio: f64,
    /// Collocation, once on, stays on up to this local-access ratio. Hither: with 80 % reached
    /// half way through, the rest of a partitioned array would stay remote for good.
    pub collocate_until_local_ratio: f64,
    /// Interleaving turns on above this controller imbalance (deviation of the population, as the
    /// paper counts it). Paper: 35 %, which is 1.6 times the even share on one of four nodes.
    pub interleave_above_imbalance: f64,
    /// Interleaving, once on, stays on down to this imbalance. Hither: a little above
    /// what interleaving by the kernel leaves (paper, table 1: 5 to 8 %); stopping at 35 % would leave
    /// the busiest of four nodes with twice the traffic of each other.
    pub interleave_until_imbalance: f64,
    /// Samples that a page needs to be collocated. Code: 2.
    pub min_samples: u32,
    /// The same while interleaving is on. Code: 1.
    pub min_samples_when_interleaving: u32,
    /// Pages ordered per period at full sampling. Code: 30,000.
    pub max_pages: u64,
    /// The same at cheap sampling. Code: 10,000.
    pub max_pages_cheap: u64,
    /// An interval with so many samples counts as sampled fully. Hither: a tenth of a second of
    /// what trackers give at full sampling.
    pub full_samples: u64,
    /// Fewer orders than this: sample cheaply. Code: 10.
    pub few_orders: usize,
    /// How interleaving draws. Hither: [`Draw::Surplus`].
    pub draw: Draw,
    /// A page is private above this probability and shared below one minus it; between, it waits
    /// for samples. Hither: wrong in one of five is what a move still pays for, since the
    /// alternative is that the page stays on the wrong node.
    pub certainty: f64,
    /// Intervals after which an observation no longer counts. Hither: at 100 ms intervals 3 s,
    /// the span over which an access history is called a working set (memory-region thesis).
    pub window_intervals: u32,
    /// A process whose users (share of samples per node) change by more than this between
    /// intervals (total variation, 0..=1) starts a new phase: old observations are dropped.
    /// The engine's own [`OTHER_USERS`].
    pub phase_change: f64,
    /// Samples an interval needs to be tested for a change of phase: the engine's [`MIN_SAMPLES`].
    pub phase_min_samples: u64,
    /// Pages remembered at most, over all processes; the rest is sampled but not remembered.
    /// Hither: 1 M pages are 4 GiB of small pages and cost about 100 MB.
    pub max_tracked_pages: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            min_accesses_per_us_per_cpu: 50.0 / 16.0,
            min_busy_cpus: 0.1,
            trial_share: 0.25,
            trial_pages: 2048,
            collocate_below_local_ratio: LOCAL,
            collocate_until_local_ratio: 0.99,
            interleave_above_imbalance: UNEVEN,
            interleave_until_imbalance: 0.10,
            min_samples: 2,
            min_samples_when_interleaving: 1,
            max_pages: 30_000,
            max_pages_cheap: 10_000,
            full_samples: 5_000,
            few_orders: 10,
            draw: Draw::Surplus,
            certainty: CERTAINTY,
            window_intervals: 30,
            phase_change: OTHER_USERS,
            phase_min_samples: MIN_SAMPLES as u64,
            max_tracked_pages: 1 << 20,
        }
    }
}
