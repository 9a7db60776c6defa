//! Figures of an interval from the device's counters. Pure.

use crate::opium::VcpuCounters;
use hither_core::metrics;
use hither_core::opium::{MAX_NODES, vcpu};
use hither_core::snapshot::{Evidence, GlobalMetrics};

/// What the figures rest on.
pub(super) const COUNTERS: &str = "opium counters";
/// Why there is no figure of an interval of no length.
const EMPTY: &str = "the interval is empty";
const QUIET: &str = "no memory access in the interval";

/// Sums of an interval over all vCPUs.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    pub user_reads: u64,
    pub user_writes: u64,
    pub user_local: u64,
    pub kernel_fills: u64,
    pub instructions: u64,
    pub flops: u64,
    pub latency_ns: u64,
    pub misses: u64,
    pub busy_ns: u64,
    pub stall_ns: u64,
    pub lost: u64,
    pub transfers: u64,
    pub time_ns: u64,
}

/// Sampled loads that waited for memory alone: no streams', no transfers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loads {
    latency_ns: u64,
    count: u64,
}

impl Loads {
    /// Adds one.
    pub fn add(&mut self, latency_ns: u32) {
        self.latency_ns += u64::from(latency_ns);
        self.count += 1;
    }

    /// Their mean latency, where there are enough.
    pub fn mean_ns(self) -> Option<f64> {
        metrics::sampled_latency_ns(self.latency_ns as f64, self.count)
    }
}

impl Sums {
    /// Adds what a vCPU of node position `own` counted, on a machine with so many nodes.
    pub fn add(&mut self, change: &VcpuCounters, own: usize, nodes: usize) {
        for node in 0..nodes.min(MAX_NODES) {
            let (reads, writes) = (change.fills(0, node), change.fills(1, node));
            self.user_reads += reads;
            self.user_writes += writes;
            if node == own {
                self.user_local += reads + writes;
            }
            self.kernel_fills += change.fills(2, node) + change.fills(3, node);
        }
        self.instructions += change.at(vcpu::INSTRUCTIONS_USER);
        self.flops += change.at(vcpu::FLOPS);
        self.latency_ns += change.at(vcpu::LATENCY_SUM_NS);
        self.misses += change.at(vcpu::DEMAND_MISSES);
        let idle_ns = change.at(vcpu::IDLE_NS);
        self.busy_ns += change.at(vcpu::TIME_NS).saturating_sub(idle_ns);
        self.transfers += change.at(vcpu::TRANSFERS);
        self.stall_ns += change.at(vcpu::STALL_NS);
        self.lost += change.at(vcpu::RING_LOST);
    }

    /// All that the device counts, but for links. `traffic`: bytes of each node; `ghz`: the clock of
    /// the CPUs, where it is known.
    pub fn figures(&self, traffic: &[f64], interval_us: u64, ghz: Option<f64>) -> GlobalMetrics {
        let user = self.user_reads + self.user_writes;
        let rate = |count| known(metrics::accesses_per_us(count, interval_us), EMPTY);
        let ipc = ghz
            .and_then(|ghz| metrics::instructions_per_cycle(self.instructions, self.busy_ns, ghz));
        GlobalMetrics {
            memory_accesses_per_us: rate(user + self.kernel_fills),
            local_access_ratio: known(metrics::local_access_ratio(self.user_local, user), QUIET),
            latency_ns: known(
                metrics::mean_latency_ns(self.latency_ns, self.misses),
                QUIET,
            ),
            controller_imbalance: known(metrics::imbalance(traffic), QUIET),
            link_use: Evidence::unknown("set below"),
            link_imbalance: Evidence::unknown("set below"),
            read_share: known(
                metrics::read_share(self.user_reads, self.user_writes),
                QUIET,
            ),
            l3_mpki: known(
                metrics::misses_per_kilo_instruction(user, self.instructions),
                "no instruction in the interval",
            ),
            instructions_per_us: rate(self.instructions),
            flops_per_us: rate(self.flops),
            ipc: known(ipc, "the clock of the CPUs is unknown: give --machine FILE"),
            stall_share: known(
                (self.busy_ns > 0).then(|| (self.stall_ns as f64 / self.busy_ns as f64).min(1.0)),
                "no CPU was busy in the interval",
            ),
            others_share: Evidence::unknown("set by whoever watches"),
        }
    }
}

/// Mean of a utilisation whose integral is given in ppm * us.
pub(super) fn mean_share(integral: u64, interval_us: u64) -> f64 {
    if interval_us == 0 {
        0.0
    } else {
        (integral as f64 / interval_us as f64 / 1e6).min(1.0)
    }
}

pub(super) fn known(figure: Option<f64>, why_not: &'static str) -> Evidence<f64> {
    match figure {
        Some(figure) => Evidence::measured(figure, COUNTERS),
        None => Evidence::unknown(why_not),
    }
}
