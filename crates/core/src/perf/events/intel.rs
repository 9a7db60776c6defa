//! Intel's servers.
//!
//! Misses are counted by loads that retired (`MEM_LOAD_L3_MISS_RETIRED`): stores and prefetches are
//! not in them, so that a program that streams shows fewer than its memory serves. With sub-NUMA
//! clusters "local" is the socket, not the cluster.

use super::{Encoding, Family, Line, Role, Unit, named, raw, times};

const CORE: &[&str] = &["cpu"];
const CONTROLLERS: &[&str] = &["uncore_imc_#", "uncore_imc"];
const LINKS: &[&str] = &["uncore_upi_#", "uncore_upi"];

/// A line of the memory.
const LINE: Unit = Unit::Bytes(64.0);
/// A flit of data: 64 bytes take nine (`upi_data_transmit_bw` of perfmon's metrics).
const FLIT: Unit = Unit::Bytes(64.0 / 9.0);

/// Flits of data that left a socket: the masks of all three slots and of data.
const SENT_FLITS: &[Encoding] = &[raw("event=0x02,umask=0x0f")];

const REFERENCES: Line = core(
    Role::References,
    &[named("cache-references", "event=0x2e,umask=0x4f")],
    Unit::Accesses,
    "perfmon SKX/events/skylakex_core.json, LONGEST_LAT_CACHE.REFERENCE: an architectural event (SDM, volume 3B)",
);

/// Operations by how many values an instruction is on; masks of one event may be joined. A multiplication with
/// an addition counts twice by itself, as the event's description says.
const OPERATIONS: Line = core(
    Role::Operations,
    &[
        // Scalar, double and single.
        times(1, "event=0xc7,umask=0x03"),
        // 128 bits, double.
        times(2, "event=0xc7,umask=0x04"),
        // 128 bits single, 256 bits double.
        times(4, "event=0xc7,umask=0x18"),
        // 256 bits single, 512 bits double.
        times(8, "event=0xc7,umask=0x60"),
        // 512 bits, single.
        times(16, "event=0xc7,umask=0x80"),
    ],
    Unit::Operations,
    "pmu-events x86/skylakex/floating-point.json and those of later servers, FP_ARITH_INST_RETIRED.SCALAR, \
     .128B_PACKED_DOUBLE, .4_FLOPS, .8_FLOPS, .512B_PACKED_SINGLE",
);

const NOT_APART: &str = "reads and writes are told apart";
const BY_MEMORY: &str = "local and remote memory and remote caches are told apart";

/// Why there are no other lines.
const LACKS: &[(Role, &str)] = &[
    (Role::Misses, BY_MEMORY),
    (Role::Remote, BY_MEMORY),
    (Role::ControllerTraffic, NOT_APART),
];

const fn core(role: Role, events: &'static [Encoding], unit: Unit, source: &'static str) -> Line {
    Line {
        role,
        sources: CORE,
        events,
        unit,
        source,
    }
}

const fn controller(role: Role, events: &'static [Encoding], source: &'static str) -> Line {
    Line {
        role,
        sources: CONTROLLERS,
        events,
        unit: LINE,
        source,
    }
}

const fn link(source: &'static str) -> Line {
    Line {
        role: Role::LinkTraffic,
        sources: LINKS,
        events: SENT_FLITS,
        unit: FLIT,
        source,
    }
}

/// Skylake-SP and Cascade Lake-SP, Cooper Lake too: model 0x55, told apart by stepping, with the
/// same encodings in both of perfmon's folders.
pub const SKYLAKE_SP: Family = Family {
    name: "Intel Skylake-SP, Cascade Lake-SP",
    vendor: "GenuineIntel",
    family: 6,
    models: &[(0x55, 0x55)],
    lines: &[
        OPERATIONS,
        REFERENCES,
        core(
            Role::MemorySamples,
            &[named("mem-loads", "event=0xcd,umask=0x1,ldlat=30")],
            Unit::Samples,
            "perfmon SKX/events/skylakex_core.json, MEM_TRANS_RETIRED.LOAD_LATENCY_GT_32; \
             arch/x86/events/intel/core.c, mem_ld_hsw",
        ),
        core(
            Role::Instructions,
            &[named("instructions", "event=0xc0")],
            Unit::Instructions,
            "perfmon SKX/events/skylakex_core.json, INST_RETIRED.ANY_P",
        ),
        core(
            Role::Cycles,
            &[named("cpu-cycles", "event=0x3c")],
            Unit::Cycles,
            "perfmon SKX/events/skylakex_core.json, CPU_CLK_UNHALTED.THREAD_P",
        ),
        core(
            Role::LocalMemory,
            &[raw("event=0xd3,umask=0x01")],
            Unit::Loads,
            "perfmon SKX/events/skylakex_core.json, MEM_LOAD_L3_MISS_RETIRED.LOCAL_DRAM",
        ),
        core(
            Role::RemoteMemory,
            &[raw("event=0xd3,umask=0x02")],
            Unit::Loads,
            "perfmon SKX/events/skylakex_core.json, MEM_LOAD_L3_MISS_RETIRED.REMOTE_DRAM",
        ),
        core(
            Role::RemoteCache,
            // Masks of one event may be joined: REMOTE_HITM 0x04 and REMOTE_FWD 0x08.
            &[raw("event=0xd3,umask=0x0c")],
            Unit::Loads,
            "perfmon SKX/events/skylakex_core.json, MEM_LOAD_L3_MISS_RETIRED.REMOTE_HITM and \
             .REMOTE_FWD",
        ),
        core(
            Role::MemoryStalls,
            &[raw("event=0xa3,umask=0x06,cmask=6")],
            Unit::Cycles,
            "perfmon SKX/events/skylakex_core.json, CYCLE_ACTIVITY.STALLS_L3_MISS",
        ),
        controller(
            Role::ControllerReads,
            &[named("cas_count_read", "event=0x04,umask=0x03")],
            "perfmon SKX/events/skylakex_uncore.json, UNC_M_CAS_COUNT.RD; \
             arch/x86/events/intel/uncore_snbep.c, hswep_uncore_imc_events",
        ),
        controller(
            Role::ControllerWrites,
            &[named("cas_count_write", "event=0x04,umask=0x0c")],
            "perfmon SKX/events/skylakex_uncore.json, UNC_M_CAS_COUNT.WR; \
             arch/x86/events/intel/uncore_snbep.c, hswep_uncore_imc_events",
        ),
        link("perfmon SKX/events/skylakex_uncore.json, UNC_UPI_TxL_FLITS.ALL_DATA"),
    ],
    lacks: LACKS,
};

/// Ice Lake-SP and Ice Lake-D.
pub const ICE_LAKE_SP: Family = Family {
    name: "Intel Ice Lake-SP",
    vendor: "GenuineIntel",
    family: 6,
    models: &[(0x6a, 0x6a), (0x6c, 0x6c)],
    lines: &[
        OPERATIONS,
        REFERENCES,
        core(
            Role::MemorySamples,
            &[named("mem-loads", "event=0xcd,umask=0x1,ldlat=30")],
            Unit::Samples,
            "perfmon ICX/events/icelakex_core.json, MEM_TRANS_RETIRED.LOAD_LATENCY_GT_32; \
             arch/x86/events/intel/core.c, mem_ld_hsw",
        ),
        core(
            Role::Instructions,
            &[named("instructions", "event=0xc0")],
            Unit::Instructions,
            "perfmon ICX/events/icelakex_core.json, INST_RETIRED.ANY_P",
        ),
        core(
            Role::Cycles,
            &[named("cpu-cycles", "event=0x3c")],
            Unit::Cycles,
            "perfmon ICX/events/icelakex_core.json, CPU_CLK_UNHALTED.THREAD_P",
        ),
        core(
            Role::LocalMemory,
            &[raw("event=0xd3,umask=0x01")],
            Unit::Loads,
            "perfmon ICX/events/icelakex_core.json, MEM_LOAD_L3_MISS_RETIRED.LOCAL_DRAM",
        ),
        core(
            Role::RemoteMemory,
            &[raw("event=0xd3,umask=0x02")],
            Unit::Loads,
            "perfmon ICX/events/icelakex_core.json, MEM_LOAD_L3_MISS_RETIRED.REMOTE_DRAM",
        ),
        core(
            Role::RemoteCache,
            &[raw("event=0xd3,umask=0x0c")],
            Unit::Loads,
            "perfmon ICX/events/icelakex_core.json, MEM_LOAD_L3_MISS_RETIRED.REMOTE_HITM and \
             .REMOTE_FWD",
        ),
        core(
            Role::MemoryStalls,
            &[raw("event=0xa3,umask=0x06,cmask=6")],
            Unit::Cycles,
            "perfmon ICX/events/icelakex_core.json, CYCLE_ACTIVITY.STALLS_L3_MISS",
        ),
        controller(
            Role::ControllerReads,
            &[named("cas_count_read", "event=0x04,umask=0x0f")],
            "perfmon ICX/events/icelakex_uncore.json, UNC_M_CAS_COUNT.RD",
        ),
        controller(
            Role::ControllerWrites,
            &[named("cas_count_write", "event=0x04,umask=0x30")],
            "perfmon ICX/events/icelakex_uncore.json, UNC_M_CAS_COUNT.WR",
        ),
        link("perfmon ICX/events/icelakex_uncore.json, UNC_UPI_TxL_FLITS.ALL_DATA"),
    ],
    lacks: LACKS,
};

/// Sapphire Rapids and Emerald Rapids, with the same encodings in both of perfmon's folders.
pub const SAPPHIRE_RAPIDS: Family = Family {
    name: "Intel Sapphire Rapids, Emerald Rapids",
    vendor: "GenuineIntel",
    family: 6,
    models: &[(0x8f, 0x8f), (0xcf, 0xcf)],
    lines: &[
        OPERATIONS,
        REFERENCES,
        core(
            Role::MemorySamples,
            // Behind `mem-loads-aux`, which the sampler opens first.
            &[named("mem-loads", "event=0xcd,umask=0x1,ldlat=30")],
            Unit::Samples,
            "perfmon SPR/events/sapphirerapids_core.json, MEM_TRANS_RETIRED.LOAD_LATENCY_GT_32; \
             arch/x86/events/intel/core.c, glc_events_attrs",
        ),
        core(
            Role::Instructions,
            &[named("instructions", "event=0xc0")],
            Unit::Instructions,
            "perfmon SPR/events/sapphirerapids_core.json, INST_RETIRED.ANY_P",
        ),
        core(
            Role::Cycles,
            &[named("cpu-cycles", "event=0x3c")],
            Unit::Cycles,
            "perfmon SPR/events/sapphirerapids_core.json, CPU_CLK_UNHALTED.THREAD_P",
        ),
        core(
            Role::LocalMemory,
            &[raw("event=0xd3,umask=0x01")],
            Unit::Loads,
            "perfmon SPR/events/sapphirerapids_core.json, MEM_LOAD_L3_MISS_RETIRED.LOCAL_DRAM",
        ),
        core(
            Role::RemoteMemory,
            &[raw("event=0xd3,umask=0x02")],
            Unit::Loads,
            "perfmon SPR/events/sapphirerapids_core.json, MEM_LOAD_L3_MISS_RETIRED.REMOTE_DRAM",
        ),
        core(
            Role::RemoteCache,
            &[raw("event=0xd3,umask=0x0c")],
            Unit::Loads,
            "perfmon SPR/events/sapphirerapids_core.json, MEM_LOAD_L3_MISS_RETIRED.REMOTE_HITM \
             and .REMOTE_FWD",
        ),
        core(
            Role::MemoryStalls,
            &[raw("event=0x47,umask=0x09,cmask=9")],
            Unit::Cycles,
            "perfmon SPR/events/sapphirerapids_core.json, MEMORY_ACTIVITY.STALLS_L3_MISS",
        ),
        controller(
            Role::ControllerReads,
            &[named("cas_count_read", "event=0x05,umask=0xcf")],
            "perfmon SPR/events/sapphirerapids_uncore.json, UNC_M_CAS_COUNT.RD; \
             arch/x86/events/intel/uncore_snbep.c, spr_uncore_imc_events",
        ),
        controller(
            Role::ControllerWrites,
            &[named("cas_count_write", "event=0x05,umask=0xf0")],
            "perfmon SPR/events/sapphirerapids_uncore.json, UNC_M_CAS_COUNT.WR; \
             arch/x86/events/intel/uncore_snbep.c, spr_uncore_imc_events",
        ),
        link("perfmon SPR/events/sapphirerapids_uncore.json, UNC_UPI_TxL_FLITS.ALL_DATA"),
    ],
    lacks: LACKS,
};

/// Granite Rapids: each channel has two halves, which are counted apart.
pub const GRANITE_RAPIDS: Family = Family {
    name: "Intel Granite Rapids",
    vendor: "GenuineIntel",
    family: 6,
    models: &[(0xad, 0xae)],
    lines: &[
        OPERATIONS,
        REFERENCES,
        core(
            Role::MemorySamples,
            &[named("mem-loads", "event=0xcd,umask=0x1,ldlat=30")],
            Unit::Samples,
            "perfmon GNR/events/graniterapids_core.json, MEM_TRANS_RETIRED.LOAD_LATENCY_GT_32",
        ),
        core(
            Role::Instructions,
            &[named("instructions", "event=0xc0")],
            Unit::Instructions,
            "perfmon GNR/events/graniterapids_core.json, INST_RETIRED.ANY_P",
        ),
        core(
            Role::Cycles,
            &[named("cpu-cycles", "event=0x3c")],
            Unit::Cycles,
            "perfmon GNR/events/graniterapids_core.json, CPU_CLK_UNHALTED.THREAD_P",
        ),
        core(
            Role::LocalMemory,
            &[raw("event=0xd3,umask=0x01")],
            Unit::Loads,
            "perfmon GNR/events/graniterapids_core.json, MEM_LOAD_L3_MISS_RETIRED.LOCAL_DRAM",
        ),
        core(
            Role::RemoteMemory,
            &[raw("event=0xd3,umask=0x02")],
            Unit::Loads,
            "perfmon GNR/events/graniterapids_core.json, MEM_LOAD_L3_MISS_RETIRED.REMOTE_DRAM",
        ),
        core(
            Role::RemoteCache,
            &[raw("event=0xd3,umask=0x0c")],
            Unit::Loads,
            "perfmon GNR/events/graniterapids_core.json, MEM_LOAD_L3_MISS_RETIRED.REMOTE_HITM \
             and .REMOTE_FWD",
        ),
        core(
            Role::MemoryStalls,
            &[raw("event=0x47,umask=0x09,cmask=9")],
            Unit::Cycles,
            "perfmon GNR/events/graniterapids_core.json, MEMORY_ACTIVITY.STALLS_L3_MISS",
        ),
        controller(
            Role::ControllerReads,
            &[raw("event=0x05,umask=0xcf"), raw("event=0x06,umask=0xcf")],
            "perfmon GNR/events/graniterapids_uncore.json, UNC_M_CAS_COUNT_SCH0.RD and _SCH1.RD",
        ),
        controller(
            Role::ControllerWrites,
            &[raw("event=0x05,umask=0xf0"), raw("event=0x06,umask=0xf0")],
            "perfmon GNR/events/graniterapids_uncore.json, UNC_M_CAS_COUNT_SCH0.WR and _SCH1.WR",
        ),
        link("perfmon GNR/events/graniterapids_uncore.json, UNC_UPI_TxL_FLITS.ALL_DATA"),
    ],
    lacks: LACKS,
};
