//! The device's figures as far as a processor's PMU tells them, at a PMU's rates: the lab's evidence
//! `pmu`. docs/lab.md says which event of hardware each figure stands for, and what stays better than on
//! hardware.
//!
//! What a PMU does not tell is left out: accesses by stores are not sampled (but the load of an instruction that
//! stores to the same place is one), the kernel's neither; of a load that finds its line on its way, as a
//! stream's, the address is known and not what it took; latency is that of other sampled loads; of what links can carry nothing is known, of what controllers can only
//! the firmware's rating.

use super::super::rating::Ratings;
use super::figures::Loads;
use crate::topology::Topology;
use hither_core::ids::NodeId;
use hither_core::metrics;
use hither_core::snapshot::{Evidence, GlobalMetrics};

/// Samples per second and CPU, at most: as the tracker `perf` asks for.
pub(super) const MOST_PER_CPU: f64 = crate::tracker::perf::MOST_PER_CPU as f64;

/// What is known besides what the device counts.
#[derive(Debug)]
pub(super) struct Pmu {
    /// Those of the interval.
    pub sampled: Loads,
    /// By node position of the device.
    pub ratings: Ratings,
}

impl Pmu {
    /// For the nodes of a device.
    pub fn new(topology: &Topology, node_ids: &[NodeId]) -> Self {
        Self {
            sampled: Loads::default(),
            ratings: Ratings::new(topology, node_ids.iter().copied()),
        }
    }
}

/// Leaves of the device's figures what a PMU tells. `lines`: lines read from all memory.
pub(super) fn restrict(figures: &mut GlobalMetrics, sampled: Loads, lines: u64, interval_us: u64) {
    figures.memory_accesses_per_us = match metrics::accesses_per_us(lines, interval_us) {
        Some(rate) => Evidence::measured(rate, "lines read by the memory controllers"),
        None => Evidence::unknown("the interval is empty"),
    };
    figures.latency_ns = match sampled.mean_ns() {
        Some(latency) => Evidence::estimated(latency, "the latency of sampled loads"),
        None => Evidence::unknown("hardly a load was sampled that was not a stream's"),
    };
    figures.read_share = Evidence::unknown("loads alone are counted");
    figures.flops_per_us = Evidence::unknown("not counted at this rung");
    for figure in [&mut figures.link_use, &mut figures.link_imbalance] {
        *figure = Evidence::unknown("a PMU does not tell what links can carry");
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::Sums;
    use super::*;

    #[test]
    fn only_what_a_pmu_counts_is_told() {
        let sums = Sums {
            user_reads: 1000,
            user_writes: 500,
            user_local: 1500,
            instructions: 80_000,
            latency_ns: 1,
            misses: 1,
            ..Sums::default()
        };
        let all = sums.figures(&[3.0, 1.0], 10, None);
        let mut sampled = Loads::default();
        for latency_ns in [100, 300].repeat(15) {
            sampled.add(latency_ns);
        }
        let mut told = all.clone();
        restrict(&mut told, sampled, 1000, 10);
        assert_eq!(told.memory_accesses_per_us.get(), Some(100.0));
        assert_eq!(told.local_access_ratio, all.local_access_ratio);
        assert_eq!(told.latency_ns.get(), Some(200.0));
        assert!(!told.latency_ns.is_measured());
        assert_eq!(told.controller_imbalance, all.controller_imbalance);
        assert_eq!(told.instructions_per_us, all.instructions_per_us);
        for unknown in [told.link_use, told.read_share, told.flops_per_us] {
            assert!(!unknown.is_known());
        }
        let (mut none, mut few) = (all, Loads::default());
        few.add(550);
        restrict(&mut none, few, 0, 0);
        assert!(!none.latency_ns.is_known() && !none.memory_accesses_per_us.is_known());
    }
}
