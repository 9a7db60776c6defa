//! The device's figures as far as a processor's PMU tells them, at a PMU's rates: the lab's evidence
//! `pmu`. [`TOLD`] says which event of hardware each figure stands for.
//!
//! What a PMU does not tell is left out: accesses by stores and by streams are not sampled, the kernel's
//! neither, nobody knows the use of controllers and links as a share of what they can do, and latency is
//! that of sampled loads. What stays better than hardware: a sample costs what reading it takes, while a
//! PMU writes it by microcode (some 200 to 1,000 cycles) and interrupts by the buffer; and no sample
//! is attributed to the instruction after its own.

use super::figures::Sums;
use hither_core::metrics;
use hither_core::snapshot::{Evidence, GlobalMetrics};

/// Samples per second and CPU, at most: as the tracker `perf` asks for.
pub(super) const MOST_PER_CPU: f64 = crate::tracker::perf::MOST_PER_CPU as f64;

/// A figure, and the events that tell it on real processors: Intel from Skylake-SP on, AMD from Zen 2 on.
pub struct Told {
    /// The figure, as in `GlobalMetrics` or of a sample.
    pub figure: &'static str,
    /// Intel's event (perfmon's names).
    pub intel: &'static str,
    /// AMD's (names of the kernel's tables in tools/perf/pmu-events/arch/x86/amdzen*).
    pub amd: &'static str,
}

/// All that is told.
pub const TOLD: &[Told] = &[
    Told {
        figure: "memory_accesses_per_us, controller_imbalance",
        intel: "UNC_M_CAS_COUNT.RD and .WR of each memory controller, 64 bytes each",
        amd: "dram_channel_data_controller_* (Zen 2, 3), umc_cas_cmd.rd and .wr (Zen 4 on)",
    },
    Told {
        figure: "local_access_ratio, l3_mpki",
        intel: "MEM_LOAD_L3_MISS_RETIRED.LOCAL_DRAM and .REMOTE_DRAM",
        amd: "ls_dmnd_fills_from_sys.mem_io_local and .mem_io_remote (Zen 2), .dram_io_near and .dram_io_far",
    },
    Told {
        figure: "instructions_per_us, ipc",
        intel: "INST_RETIRED.ANY, CPU_CLK_UNHALTED.THREAD",
        amd: "ex_ret_instr, ls_not_halted_cyc",
    },
    Told {
        figure: "samples of pages, latency_ns",
        intel: "MEM_TRANS_RETIRED.LOAD_LATENCY_GT_32 (PEBS: address, data source, latency)",
        amd: "IBS op samples of loads that missed the L3 cache (address, data source, latency)",
    },
];

/// What a PMU tells besides what the device counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sampled {
    latency_ns: u64,
    loads: u64,
}

impl Sampled {
    /// Adds a load.
    pub fn add(&mut self, latency_ns: u32) {
        self.latency_ns += u64::from(latency_ns);
        self.loads += 1;
    }
}

/// Leaves of the device's figures what a PMU tells. `lines`: lines read from all memory.
pub(super) fn restrict(
    figures: &mut GlobalMetrics,
    sums: &Sums,
    sampled: Sampled,
    lines: u64,
    interval_us: u64,
) {
    let measured = |figure: Option<f64>, event| match figure {
        Some(figure) => Evidence::measured(figure, event),
        None => Evidence::unknown("nothing was counted in the interval"),
    };
    figures.memory_accesses_per_us = measured(
        metrics::accesses_per_us(lines, interval_us),
        "lines read by the memory controllers",
    );
    figures.local_access_ratio = measured(
        metrics::local_access_ratio(sums.demand_local_loads, sums.demand_loads),
        "loads that local and remote memory served",
    );
    figures.latency_ns = match metrics::mean_latency_ns(sampled.latency_ns, sampled.loads) {
        Some(latency) => Evidence::estimated(latency, "the latency of sampled loads"),
        None => Evidence::unknown("no load was sampled in the interval"),
    };
    figures.l3_mpki = measured(
        metrics::misses_per_kilo_instruction(sums.demand_loads, sums.instructions),
        "loads that memory served",
    );
    figures.read_share = Evidence::unknown("loads alone are counted");
    figures.flops_per_us = Evidence::unknown("not counted at this rung");
    for figure in [&mut figures.link_use, &mut figures.link_imbalance] {
        *figure = Evidence::unknown("a PMU does not tell what links can carry");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_pmu_counts_is_told() {
        let sums = Sums {
            user_reads: 1000,
            user_writes: 500,
            user_local: 1500,
            demand_loads: 400,
            demand_local_loads: 100,
            demand_stores: 50,
            instructions: 80_000,
            latency_ns: 1,
            misses: 1,
            ..Sums::default()
        };
        let all = sums.figures(&[3.0, 1.0], 10, None);
        let mut sampled = Sampled::default();
        sampled.add(100);
        sampled.add(300);
        let mut told = all.clone();
        restrict(&mut told, &sums, sampled, 1000, 10);
        assert_eq!(told.memory_accesses_per_us.get(), Some(100.0));
        assert_eq!(told.local_access_ratio.get(), Some(0.25));
        assert_eq!(told.latency_ns.get(), Some(200.0));
        assert!(!told.latency_ns.is_measured());
        assert_eq!(told.l3_mpki.get(), Some(5.0));
        assert_eq!(told.controller_imbalance, all.controller_imbalance);
        assert_eq!(told.instructions_per_us, all.instructions_per_us);
        for unknown in [told.link_use, told.read_share, told.flops_per_us] {
            assert!(!unknown.is_known());
        }
        let mut none = all;
        restrict(&mut none, &Sums::default(), Sampled::default(), 0, 10);
        assert!(!none.latency_ns.is_known() && !none.local_access_ratio.is_known());
    }
}
