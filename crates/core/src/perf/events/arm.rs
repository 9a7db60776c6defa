//! Arm's servers: events of the architecture, which the kernel names itself.
//!
//! The cores tell what another socket served and not what memory of the own socket did: the local
//! share follows from misses and remote accesses. Samples (SPE) are packets in a ring of another
//! kind, which hither does not read so far.

use super::{Encoding, Family, Line, Role, Unit, named};

/// Names by ACPI, and by the device tree of newer kernels.
const N1: &[&str] = &["armv8_pmuv3_#", "armv8_pmuv3", "armv8_neoverse_n1"];
const V1: &[&str] = &["armv8_pmuv3_#", "armv8_pmuv3", "armv8_neoverse_v1"];

const SPE: Line = Line {
    role: Role::MemorySamples,
    sources: &["arm_spe_#"],
    events: &[super::raw("ts_enable=1,load_filter=1,store_filter=1")],
    unit: Unit::Samples,
    source: "drivers/perf/arm_spe_pmu.c, arm_spe_pmu_formats_attr",
};

const fn core(
    role: Role,
    sources: &'static [&'static str],
    events: &'static [Encoding],
    unit: Unit,
    source: &'static str,
) -> Line {
    Line {
        role,
        sources,
        events,
        unit,
        source,
    }
}

/// Requests of the mesh's home nodes to memory controllers, each of a line.
const MESH: Line = Line {
    role: Role::ControllerTraffic,
    sources: &["arm_cmn_#"],
    events: &[named("hnf_mc_reqs", "type=0x5,eventid=0xd")],
    unit: Unit::Bytes(64.0),
    source: "drivers/perf/arm-cmn.c, CMN_EVENT_HNF(CMN_ANY, mc_reqs, 0x0d)",
};

const INSTRUCTIONS: &[Encoding] = &[named("inst_retired", "event=0x0008")];
const CYCLES: &[Encoding] = &[named("cpu_cycles", "event=0x0011")];
const REFERENCES: &[Encoding] = &[named("ll_cache_rd", "event=0x0036")];
const MISSES: &[Encoding] = &[named("ll_cache_miss_rd", "event=0x0037")];
const REMOTE: &[Encoding] = &[named("remote_access", "event=0x0031")];

const STANDARD: &str = "pmu-events arm64/common-and-microarch.json";
const NOT_TOLD: &str = "the cores tell what other sockets served, memory and caches together";
const MESH_LINKS: &str =
    "link events of the mesh (CCLA) hang on its wiring, which no table can know";

const LACKS: &[(Role, &str)] = &[
    (
        Role::Operations,
        "the cores count operations by what a vector could hold (FP_SCALE_OPS_SPEC), not by what it held",
    ),
    (Role::LocalMemory, NOT_TOLD),
    (Role::RemoteMemory, NOT_TOLD),
    (Role::RemoteCache, NOT_TOLD),
    (
        Role::ControllerReads,
        "the mesh counts reads and writes together",
    ),
    (
        Role::ControllerWrites,
        "the mesh counts reads and writes together",
    ),
    (Role::LinkTraffic, MESH_LINKS),
];

/// Neoverse N1: Altra, Graviton 2.
pub const NEOVERSE_N1: Family = Family {
    name: "Arm Neoverse N1",
    vendor: "0x41",
    family: 8,
    models: &[(0xd0c, 0xd0c)],
    lines: &[
        SPE,
        core(
            Role::Instructions,
            N1,
            INSTRUCTIONS,
            Unit::Instructions,
            STANDARD,
        ),
        core(Role::Cycles, N1, CYCLES, Unit::Cycles, STANDARD),
        core(Role::References, N1, REFERENCES, Unit::Accesses, STANDARD),
        core(Role::Misses, N1, MISSES, Unit::Accesses, STANDARD),
        core(
            Role::Remote,
            N1,
            REMOTE,
            Unit::Accesses,
            "pmu-events arm64/arm/neoverse-n1/memory.json, REMOTE_ACCESS",
        ),
        core(
            Role::MemoryStalls,
            N1,
            // All stalls of the back end: N1 has no event for those on memory alone.
            &[named("stall_backend", "event=0x0024")],
            Unit::Cycles,
            "pmu-events arm64/arm/neoverse-n1/stall.json, STALL_BACKEND",
        ),
        MESH,
    ],
    lacks: LACKS,
};

/// Neoverse V1: Graviton 3.
pub const NEOVERSE_V1: Family = Family {
    name: "Arm Neoverse V1",
    vendor: "0x41",
    family: 8,
    models: &[(0xd40, 0xd40)],
    lines: &[
        SPE,
        core(
            Role::Instructions,
            V1,
            INSTRUCTIONS,
            Unit::Instructions,
            STANDARD,
        ),
        core(Role::Cycles, V1, CYCLES, Unit::Cycles, STANDARD),
        core(Role::References, V1, REFERENCES, Unit::Accesses, STANDARD),
        core(Role::Misses, V1, MISSES, Unit::Accesses, STANDARD),
        core(
            Role::Remote,
            V1,
            REMOTE,
            Unit::Accesses,
            "pmu-events arm64/arm/neoverse-v1/memory.json, REMOTE_ACCESS",
        ),
        core(
            Role::MemoryStalls,
            V1,
            &[named("stall_backend_mem", "event=0x4005")],
            Unit::Cycles,
            "pmu-events arm64/arm/neoverse-v1/stall.json, STALL_BACKEND_MEM",
        ),
        MESH,
    ],
    lacks: LACKS,
};
