//! AMD's servers.
//!
//! Fills are counted: lines that come to the first-level data cache, by what served them. From Zen 3
//! on prefetches are in them, before that demand alone. "Near" is the NUMA node as the firmware is set
//! (NPS1: the socket). Encodings of Zen 3 and 4 are also in AMD's Processor Programming References
//! (55898 for family 19h model 01h, 55901 for model 11h), by the same names. Models are told apart as in
//! `arch/x86/kernel/cpu/amd.c`.

use super::{Encoding, Family, Line, Role, Unit, named, raw};

const CORE: &[&str] = &["cpu"];
const SAMPLES: &[&str] = &["ibs_op"];
/// Counters of the data fabric.
const FABRIC: &[&str] = &["amd_df"];
/// Counters of the memory controllers: from Zen 4 and Linux 6.8 on.
const CONTROLLERS: &[&str] = &["amd_umc_#"];

const LINE: Unit = Unit::Bytes(64.0);
/// A packet of the links of Zen 2 and 3.
const PACKET: Unit = Unit::Bytes(32.0);

const NO_STALLS: &str = "AMD documents no event for stalls on memory before Zen 4";
const BY_MEMORY: &str = "near and far memory and far caches are told apart";
const NOT_APART: &str = "the data fabric counts reads and writes together before Zen 4";

const fn core(role: Role, events: &'static [Encoding], unit: Unit, source: &'static str) -> Line {
    Line {
        role,
        sources: CORE,
        events,
        unit,
        source,
    }
}

const fn fabric(role: Role, events: &'static [Encoding], unit: Unit, source: &'static str) -> Line {
    Line {
        role,
        sources: FABRIC,
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

/// Operations by instruction-based sampling: `cnt_ctl` counts operations rather than cycles. The
/// tracker adds `l3missonly` where the format is there (Zen 4 on).
const IBS: Line = Line {
    role: Role::MemorySamples,
    sources: SAMPLES,
    events: &[raw("cnt_ctl=1")],
    unit: Unit::Samples,
    source: "arch/x86/events/amd/ibs.c, perf_ibs_op",
};

const INSTRUCTIONS: Line = core(
    Role::Instructions,
    &[named("instructions", "event=0xc0")],
    Unit::Instructions,
    "pmu-events x86/amdzen2/core.json, ex_ret_instr; arch/x86/events/amd/core.c, \
     amd_zen2_perfmon_event_map",
);

const CYCLES: Line = core(
    Role::Cycles,
    &[named("cpu-cycles", "event=0x76")],
    Unit::Cycles,
    "pmu-events x86/amdzen2/memory.json, ls_not_halted_cyc; arch/x86/events/amd/core.c, \
     amd_zen2_perfmon_event_map",
);

/// Operations of vector units; a multiplication with an addition counts 2. Zen 3's table is that of Zen 2.
/// Data that the second level lacked; what its prefetcher asks for is not in it.
const REFERENCES: Line = core(
    Role::References,
    &[raw("event=0x64,umask=0x08")],
    Unit::Accesses,
    "pmu-events x86/amdzen2/cache.json, l2_cache_req_stat.ls_rd_blk_c; the same in amdzen3 to amdzen5",
);

const OPERATIONS: Line = core(
    Role::Operations,
    &[raw("event=0x03,umask=0xff")],
    Unit::Operations,
    "pmu-events x86/amdzen2/floating-point.json, fp_ret_sse_avx_ops.all",
);

const OPERATIONS_ZEN_4: Line = core(
    Role::Operations,
    &[raw("event=0x03,umask=0x1f")],
    Unit::Operations,
    "pmu-events x86/amdzen4/floating-point.json, fp_ret_sse_avx_ops.all",
);

const OPERATIONS_ZEN_5: Line = core(
    Role::Operations,
    &[raw("event=0x03,umask=0x0f")],
    Unit::Operations,
    "pmu-events x86/amdzen5/floating-point.json, fp_ret_sse_avx_ops.all",
);

/// Eight channels of a die, each with its own event.
const CHANNELS: &[Encoding] = &[
    raw("event=0x07,umask=0x38"),
    raw("event=0x47,umask=0x38"),
    raw("event=0x87,umask=0x38"),
    raw("event=0xc7,umask=0x38"),
    raw("event=0x107,umask=0x38"),
    raw("event=0x147,umask=0x38"),
    raw("event=0x187,umask=0x38"),
    raw("event=0x1c7,umask=0x38"),
];

/// Four links of a die.
const REMOTE_LINKS: &[Encoding] = &[
    raw("event=0x7c7,umask=0x02"),
    raw("event=0x807,umask=0x02"),
    raw("event=0x847,umask=0x02"),
    raw("event=0x887,umask=0x02"),
];

/// Zen 2: Rome, and what else of family 17h is Zen 2.
pub const ZEN_2: Family = Family {
    name: "AMD Zen 2 (Rome)",
    vendor: "AuthenticAMD",
    family: 0x17,
    models: &[(0x30, 0x4f), (0x60, 0x7f), (0x90, 0x91), (0xa0, 0xaf)],
    lines: &[
        OPERATIONS,
        REFERENCES,
        IBS,
        INSTRUCTIONS,
        CYCLES,
        core(
            Role::LocalMemory,
            &[raw("event=0x43,umask=0x08")],
            Unit::DemandFills,
            "pmu-events x86/amdzen2/memory.json, ls_refills_from_sys.ls_mabresp_lcl_dram",
        ),
        core(
            Role::RemoteMemory,
            &[raw("event=0x43,umask=0x40")],
            Unit::DemandFills,
            "pmu-events x86/amdzen2/memory.json, ls_refills_from_sys.ls_mabresp_rmt_dram",
        ),
        core(
            Role::RemoteCache,
            &[raw("event=0x43,umask=0x10")],
            Unit::DemandFills,
            "pmu-events x86/amdzen2/memory.json, ls_refills_from_sys.ls_mabresp_rmt_cache",
        ),
        fabric(
            Role::ControllerTraffic,
            CHANNELS,
            LINE,
            "pmu-events x86/amdzen2/data-fabric.json, dram_channel_data_controller_0 to _7 (read in \
             amdzen3's, which has the same names)",
        ),
        fabric(
            Role::LinkTraffic,
            REMOTE_LINKS,
            PACKET,
            "pmu-events x86/amdzen2/data-fabric.json, remote_outbound_data_controller_0 to _3 (read \
             in amdzen3's, which has the same names)",
        ),
    ],
    lacks: &[
        (Role::Misses, BY_MEMORY),
        (Role::Remote, BY_MEMORY),
        (Role::MemoryStalls, NO_STALLS),
        (Role::ControllerReads, NOT_APART),
        (Role::ControllerWrites, NOT_APART),
    ],
};

/// Zen 3: Milan.
pub const ZEN_3: Family = Family {
    name: "AMD Zen 3 (Milan)",
    vendor: "AuthenticAMD",
    family: 0x19,
    models: &[(0x00, 0x0f), (0x20, 0x5f)],
    lines: &[
        OPERATIONS,
        REFERENCES,
        IBS,
        INSTRUCTIONS,
        CYCLES,
        core(
            Role::LocalMemory,
            &[raw("event=0x44,umask=0x08")],
            Unit::Fills,
            "pmu-events x86/amdzen3/memory.json, ls_any_fills_from_sys.mem_io_local",
        ),
        core(
            Role::RemoteMemory,
            &[raw("event=0x44,umask=0x40")],
            Unit::Fills,
            "pmu-events x86/amdzen3/memory.json, ls_any_fills_from_sys.mem_io_remote",
        ),
        core(
            Role::RemoteCache,
            &[raw("event=0x44,umask=0x10")],
            Unit::Fills,
            "pmu-events x86/amdzen3/memory.json, ls_any_fills_from_sys.ext_cache_remote",
        ),
        fabric(
            Role::ControllerTraffic,
            CHANNELS,
            LINE,
            "pmu-events x86/amdzen3/data-fabric.json, dram_channel_data_controller_0 to _7",
        ),
        fabric(
            Role::LinkTraffic,
            REMOTE_LINKS,
            PACKET,
            "pmu-events x86/amdzen3/data-fabric.json, remote_outbound_data_controller_0 to _3",
        ),
    ],
    lacks: &[
        (Role::Misses, BY_MEMORY),
        (Role::Remote, BY_MEMORY),
        (Role::MemoryStalls, NO_STALLS),
        (Role::ControllerReads, NOT_APART),
        (Role::ControllerWrites, NOT_APART),
    ],
};

/// Twelve channels of a socket: reads.
const READ_BEATS: &[Encoding] = &[
    raw("event=0x1f,umask=0xffe"),
    raw("event=0x5f,umask=0xffe"),
    raw("event=0x9f,umask=0xffe"),
    raw("event=0xdf,umask=0xffe"),
    raw("event=0x11f,umask=0xffe"),
    raw("event=0x15f,umask=0xffe"),
    raw("event=0x19f,umask=0xffe"),
    raw("event=0x1df,umask=0xffe"),
    raw("event=0x21f,umask=0xffe"),
    raw("event=0x25f,umask=0xffe"),
    raw("event=0x29f,umask=0xffe"),
    raw("event=0x2df,umask=0xffe"),
];

/// Twelve channels of a socket: writes.
const WRITE_BEATS: &[Encoding] = &[
    raw("event=0x1f,umask=0xfff"),
    raw("event=0x5f,umask=0xfff"),
    raw("event=0x9f,umask=0xfff"),
    raw("event=0xdf,umask=0xfff"),
    raw("event=0x11f,umask=0xfff"),
    raw("event=0x15f,umask=0xfff"),
    raw("event=0x19f,umask=0xfff"),
    raw("event=0x1df,umask=0xfff"),
    raw("event=0x21f,umask=0xfff"),
    raw("event=0x25f,umask=0xfff"),
    raw("event=0x29f,umask=0xfff"),
    raw("event=0x2df,umask=0xfff"),
];

/// Six links between sockets, outbound.
const OUTBOUND_BEATS: &[Encoding] = &[
    raw("event=0xd5f,umask=0xf3e"),
    raw("event=0xd9f,umask=0xf3e"),
    raw("event=0xddf,umask=0xf3e"),
    raw("event=0xe1f,umask=0xf3e"),
    raw("event=0xe5f,umask=0xf3e"),
    raw("event=0xe9f,umask=0xf3e"),
];

const APART: &[(Role, &str)] = &[
    (Role::Misses, BY_MEMORY),
    (Role::Remote, BY_MEMORY),
    (Role::ControllerTraffic, "reads and writes are told apart"),
];

/// Zen 4: Genoa, Bergamo, Siena. Controllers are counted by themselves where the kernel can, else
/// by the data fabric, which has fewer counters than channels.
pub const ZEN_4: Family = Family {
    name: "AMD Zen 4 (Genoa)",
    vendor: "AuthenticAMD",
    family: 0x19,
    models: &[(0x10, 0x1f), (0x60, 0xaf)],
    lines: &[
        OPERATIONS_ZEN_4,
        REFERENCES,
        IBS,
        INSTRUCTIONS,
        CYCLES,
        core(
            Role::LocalMemory,
            &[raw("event=0x44,umask=0x08")],
            Unit::Fills,
            "pmu-events x86/amdzen4/cache.json, ls_any_fills_from_sys.dram_io_near",
        ),
        core(
            Role::RemoteMemory,
            &[raw("event=0x44,umask=0x40")],
            Unit::Fills,
            "pmu-events x86/amdzen4/cache.json, ls_any_fills_from_sys.dram_io_far",
        ),
        core(
            Role::RemoteCache,
            &[raw("event=0x44,umask=0x10")],
            Unit::Fills,
            "pmu-events x86/amdzen4/cache.json, ls_any_fills_from_sys.far_cache",
        ),
        core(
            Role::MemoryStalls,
            &[raw("event=0xd6,umask=0xa2")],
            Unit::Cycles,
            "pmu-events x86/amdzen4/core.json, ex_no_retire.load_not_complete",
        ),
        controller(
            Role::ControllerReads,
            &[raw("event=0x0a,rdwrmask=0x1")],
            "pmu-events x86/amdzen4/memory-controller.json, umc_cas_cmd.rd",
        ),
        controller(
            Role::ControllerWrites,
            &[raw("event=0x0a,rdwrmask=0x2")],
            "pmu-events x86/amdzen4/memory-controller.json, umc_cas_cmd.wr",
        ),
        fabric(
            Role::ControllerReads,
            READ_BEATS,
            LINE,
            "pmu-events x86/amdzen4/data-fabric.json, \
             local_or_remote_socket_read_data_beats_dram_0 to _11 (read in amdzen5's, which has \
             the same names)",
        ),
        fabric(
            Role::ControllerWrites,
            WRITE_BEATS,
            LINE,
            "pmu-events x86/amdzen4/data-fabric.json, \
             local_or_remote_socket_write_data_beats_dram_0 to _11 (read in amdzen5's, which has \
             the same names)",
        ),
        fabric(
            Role::LinkTraffic,
            OUTBOUND_BEATS,
            LINE,
            "pmu-events x86/amdzen4/data-fabric.json, local_socket_outbound_data_beats_link_0 to \
             _5 (link 0 was read, the others follow by 0x40)",
        ),
    ],
    lacks: APART,
};

/// Zen 5: Turin.
pub const ZEN_5: Family = Family {
    name: "AMD Zen 5 (Turin)",
    vendor: "AuthenticAMD",
    family: 0x1a,
    models: &[(0x00, 0x2f), (0x40, 0x4f), (0x60, 0x7f)],
    lines: &[
        OPERATIONS_ZEN_5,
        REFERENCES,
        IBS,
        INSTRUCTIONS,
        CYCLES,
        core(
            Role::LocalMemory,
            &[raw("event=0x44,umask=0x08")],
            Unit::Fills,
            "pmu-events x86/amdzen5/load-store.json, ls_any_fills_from_sys.dram_io_near",
        ),
        core(
            Role::RemoteMemory,
            &[raw("event=0x44,umask=0x40")],
            Unit::Fills,
            "pmu-events x86/amdzen5/load-store.json, ls_any_fills_from_sys.dram_io_far",
        ),
        core(
            Role::RemoteCache,
            &[raw("event=0x44,umask=0x10")],
            Unit::Fills,
            "pmu-events x86/amdzen5/load-store.json, ls_any_fills_from_sys.far_cache",
        ),
        core(
            Role::MemoryStalls,
            &[raw("event=0xd6,umask=0xa2")],
            Unit::Cycles,
            "pmu-events x86/amdzen5/execution.json, ex_no_retire.load_not_complete",
        ),
        controller(
            Role::ControllerReads,
            &[raw("event=0x0a,rdwrmask=0x1")],
            "pmu-events x86/amdzen5/memory-controller.json, umc_cas_cmd.rd",
        ),
        controller(
            Role::ControllerWrites,
            &[raw("event=0x0a,rdwrmask=0x2")],
            "pmu-events x86/amdzen5/memory-controller.json, umc_cas_cmd.wr",
        ),
        fabric(
            Role::ControllerReads,
            READ_BEATS,
            LINE,
            "pmu-events x86/amdzen5/data-fabric.json, \
             local_or_remote_socket_read_data_beats_dram_0 to _11",
        ),
        fabric(
            Role::ControllerWrites,
            WRITE_BEATS,
            LINE,
            "pmu-events x86/amdzen5/data-fabric.json, \
             local_or_remote_socket_write_data_beats_dram_0 to _11",
        ),
        fabric(
            Role::LinkTraffic,
            OUTBOUND_BEATS,
            LINE,
            "pmu-events x86/amdzen5/data-fabric.json, local_socket_outbound_data_beats_link_0 to \
             _5 (link 0 was read in a patch of Zen 4 or 5, the others follow by 0x40)",
        ),
    ],
    lacks: APART,
};
