//! The engine's thresholds, each with its unit, reason and source.

use crate::plan::Sampling;

/// Budgets, times and the efficacy rule.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Seed of the random source that is handed to the policy.
    pub seed: u64,
    /// Time between steps while there is something to do, in us. 100 ms: ten looks while a
    /// program of a second runs; Carrefour's own period is 1 s.
    pub interval_us: u64,
    /// Longest time between steps when nothing is left to do, in us. 1 s: Carrefour's period, and
    /// the delay with which a change is noticed.
    pub max_interval_us: u64,
    /// Free memory that is never filled on a target, as a share of its memory. 2 %: above the
    /// kernel's own watermarks (about 1 %), so that moves do not wake its reclaim.
    pub reserve_share: f64,
    /// The same as a floor, in bytes. 8 MiB.
    pub reserve_bytes: u64,
    /// Bytes moved per second at most. 1 GB/s: half of what batched `move_pages` reaches on one
    /// thread (3.3 GB/s on Zen 3, less on older machines), and a sixth of an Opteron's controller.
    pub rate_bytes_per_s: u64,
    /// Bytes that may be moved at once after a rest. 128 MiB: Carrefour's 30,000 pages a period.
    pub burst_bytes: u64,
    /// CPU time that hither itself may use, its movers included, as a share of the machine's: 2 %,
    /// half of the harm that a program may come to. Beyond it new moves wait and sampling is sparse.
    pub disturbance_share: f64,
    /// That share may be saved up for so long, in us: 30 s, so that what the start of a program needs
    /// can be used at once. 4.8 s on 8 CPUs, in which an old machine (22 us a page) moves 850 MB.
    pub disturbance_span_us: u64,
    /// CPU time that looking alone may use, as a share of one CPU: while a scope learns or rests, steps come so
    /// seldom that they use no more. 0.5 %: threads that wait for each other all wait for the one whose CPU
    /// hither has, so that this is what looking may cost such a program, beside what sampling costs it.
    pub look_share: f64,
    /// That share may be saved up for so long, in us: 6 s, so that what starts is looked at closely.
    pub look_span_us: u64,
    /// Base pages per request at most. 2048: 8 MiB keep the executor's answer within tens of ms.
    pub request_pages: usize,
    /// A page rests so long after its first move, in us; doubled with every further move. 2 s:
    /// longer than a campaign and its measurement, so that a page moves once per verdict.
    pub cooldown_us: u64,
    /// A page that could not be moved just now rests so long, in us. 1 s.
    pub refused_us: u64,
    /// A page that cannot be moved at all rests so long, in us. 60 s.
    pub refused_for_good_us: u64,
    /// When the policy is done, stragglers are left where they are while the moves together are
    /// predicted to change local-access ratio and imbalance by less than this. 0.5 points: a
    /// tenth of what the efficacy loop calls harm, and below what it can see.
    pub min_change: f64,
    /// Steps with moves after which the engine stops to measure. 5.
    pub campaign_steps: u32,
    /// Intervals after the last outcome that are not measured: caches refill and late threads
    /// catch up. 1, beside the interval in which the outcome came.
    pub settle_intervals: u32,
    /// Intervals measured for the verdict. 2.
    pub measure_intervals: u32,
    /// Intervals without usable figures after which a campaign is closed without a verdict. 20.
    pub patience_intervals: u32,
    /// Success: the local-access ratio rose by this. 10 points (Carrefour's code).
    pub success_local_ratio: f64,
    /// Success: the controller imbalance fell by this. 10 points: Carrefour's code, whose deviation is the
    /// sample's; of the population's, which is counted here, that is 9 points on four nodes.
    pub success_imbalance: f64,
    /// Success: the fastest memory tier serves a share of the accesses that rose by this. 5 points: half of
    /// what locality needs, as an access saves twice as much and more.
    pub success_fast_share: f64,
    /// Harm: the local-access ratio fell by this without a success. 5 points (Carrefour's code).
    pub harm_local_ratio: f64,
    /// Harm, whatever else improved: latency rose *and* memory accesses per us fell by this share.
    /// 10 %: the program waits longer and gets less; above the 2 to 4 % by which equal runs differ.
    pub harm_share: f64,
    /// Below this share of the former memory accesses per us the program does something else, and
    /// the comparison means nothing. 10 %.
    pub idle_share: f64,
    /// A mechanism that had no effect is off so long, in us; doubled with every repetition. 5 s
    /// (Carrefour's code).
    pub off_us: u64,
    /// A mechanism that did harm is off so long, in us; doubled with every repetition. 30 s.
    pub off_after_harm_us: u64,
    /// Attempts to put a page back before it is given up, one per step. 10: a second.
    pub revert_attempts: u32,
    /// Runs of pages that the ledgers of all scopes remember together; beyond it nothing new is
    /// moved, as it could not be put back. 1 M: 80 MB, and 7 GiB of interleaved pages (some 0.55
    /// runs a page) or any amount of neighbours that moved alike.
    pub ledger_runs: usize,
    /// Campaigns whose account is kept, the last ones. 1024: half an hour of the shortest.
    pub campaign_rows: usize,
    /// Entries of the log that are kept. 4096.
    pub log_entries: usize,
    /// Sampling while nothing is left to do, or while a policy's gates are shut, for policies that
    /// use samples at all. Cheap: some hundred samples an interval, whose price trackers bound to
    /// a fraction of a percent of a CPU. They keep what is reported of the whole run a sample of
    /// the whole run, and a policy whose gates open knows since when its pages have their users.
    pub rest_sampling: Sampling,
    /// Names of programs whose speed counts more than others', for policies that weigh programs.
    pub preferred: Vec<String>,
    /// When asleep and not sampling, look with cheap sampling this often, in us. 10 s.
    pub probe_us: u64,
}

impl EngineConfig {
    /// The default with this time between steps, in us; at rest it is no shorter.
    #[must_use]
    pub fn at_interval(interval_us: u64) -> Self {
        let default = Self::default();
        Self {
            interval_us,
            max_interval_us: default.max_interval_us.max(interval_us),
            ..default
        }
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            interval_us: 100_000,
            max_interval_us: 1_000_000,
            reserve_share: 0.02,
            reserve_bytes: 8 << 20,
            rate_bytes_per_s: 1_000_000_000,
            burst_bytes: 128 << 20,
            disturbance_share: 0.02,
            disturbance_span_us: 30_000_000,
            look_share: 0.005,
            look_span_us: 6_000_000,
            request_pages: 2048,
            cooldown_us: 2_000_000,
            refused_us: 1_000_000,
            refused_for_good_us: 60_000_000,
            min_change: 0.005,
            campaign_steps: 5,
            settle_intervals: 1,
            measure_intervals: 2,
            patience_intervals: 20,
            success_local_ratio: 0.10,
            success_imbalance: 0.10,
            success_fast_share: 0.05,
            harm_local_ratio: 0.05,
            harm_share: 0.10,
            idle_share: 0.10,
            off_us: 5_000_000,
            off_after_harm_us: 30_000_000,
            revert_attempts: 10,
            ledger_runs: 1 << 20,
            campaign_rows: 1024,
            log_entries: 4096,
            rest_sampling: Sampling::Cheap,
            preferred: Vec::new(),
            probe_us: 10_000_000,
        }
    }
}
