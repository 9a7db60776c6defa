//! Which events tell what hither wants to know, by processor family: a table, each line with its
//! source.
//!
//! What is wanted has a [`Role`]. A [`Family`] has lines for the roles that it serves, the preferred
//! one first, and a sentence for each role that it does not serve. A processor that no family
//! claims has [`GENERIC`]: the events that the kernel maps by itself.
//!
//! Terms are those of sysfs (`event=0xcd,umask=0x1`): `crates/linux` turns them into words of the
//! attribute by the machine's own format files. Nothing here was tried on hardware: no machine with
//! a PMU was at hand.
//!
//! Where sources are named: `perfmon SKX/...` is a file of github.com/intel/perfmon (commit
//! 6dadedf3aa48), `pmu-events x86/...` one below `tools/perf/pmu-events/arch` of Linux, and
//! `drivers/perf/...` or `arch/x86/...` a file of Linux.

mod amd;
mod arm;
mod intel;

#[cfg(test)]
mod tests;

/// What hither wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Sampled accesses with address, place and latency.
    MemorySamples,
    /// Instructions that retired.
    Instructions,
    /// Cycles of the core in which the thread ran.
    Cycles,
    /// Accesses that reached the last cache.
    References,
    /// Accesses that the last cache missed, wherever they were served.
    Misses,
    /// Of them those that memory of the CPU's own node served (Intel without sub-NUMA clusters: of its
    /// socket).
    LocalMemory,
    /// Those that memory of another node served.
    RemoteMemory,
    /// Those that a cache of another node served.
    RemoteCache,
    /// Those that another socket served, from memory or cache.
    Remote,
    /// Cycles in which nothing was executed, or nothing retired, for want of data from memory.
    MemoryStalls,
    /// Floating-point operations that retired, of vector units: one on n values counts n, a multiplication
    /// with an addition 2.
    Operations,
    /// What memory controllers read.
    ControllerReads,
    /// What memory controllers wrote.
    ControllerWrites,
    /// Both, where the hardware does not tell them apart.
    ControllerTraffic,
    /// Data that a socket sent to others.
    LinkTraffic,
}

impl Role {
    /// All, in the order in which they are told.
    pub const ALL: [Self; 15] = [
        Self::MemorySamples,
        Self::Instructions,
        Self::Cycles,
        Self::References,
        Self::Misses,
        Self::LocalMemory,
        Self::RemoteMemory,
        Self::RemoteCache,
        Self::Remote,
        Self::MemoryStalls,
        Self::Operations,
        Self::ControllerReads,
        Self::ControllerWrites,
        Self::ControllerTraffic,
        Self::LinkTraffic,
    ];

    /// Words for a sentence.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MemorySamples => "memory samples",
            Self::Instructions => "instructions",
            Self::Cycles => "cycles",
            Self::References => "references to the last cache",
            Self::Misses => "misses of the last cache",
            Self::LocalMemory => "local memory",
            Self::RemoteMemory => "remote memory",
            Self::RemoteCache => "remote caches",
            Self::Remote => "other sockets",
            Self::MemoryStalls => "stalls on memory",
            Self::Operations => "floating-point operations",
            Self::ControllerReads => "controller reads",
            Self::ControllerWrites => "controller writes",
            Self::ControllerTraffic => "controller traffic",
            Self::LinkTraffic => "link traffic",
        }
    }

    /// Is it counted outside the cores, for all programs together?
    #[must_use]
    pub fn is_uncore(self) -> bool {
        matches!(
            self,
            Self::ControllerReads
                | Self::ControllerWrites
                | Self::ControllerTraffic
                | Self::LinkTraffic
        )
    }

    /// Is it counted by a core, and so for a thread or a CPU?
    #[must_use]
    pub fn is_counted_by_core(self) -> bool {
        self != Self::MemorySamples && !self.is_uncore()
    }

    /// Roles that tell the same in another way: one of them is enough.
    #[must_use]
    pub fn instead(self) -> &'static [Self] {
        match self {
            Self::ControllerReads | Self::ControllerWrites => &[Self::ControllerTraffic],
            Self::ControllerTraffic => &[Self::ControllerReads],
            Self::LocalMemory | Self::RemoteMemory => &[Self::Remote],
            Self::Remote | Self::Misses => &[Self::RemoteMemory],
            _ => &[],
        }
    }
}

/// What one count stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// A sample.
    Samples,
    /// An instruction.
    Instructions,
    /// A cycle of the core.
    Cycles,
    /// A load that retired; stores and prefetches are not in it.
    Loads,
    /// A line that came to the first-level data cache, on demand alone.
    DemandFills,
    /// The same, prefetches included.
    Fills,
    /// An access of the core, as the manual defines it.
    Accesses,
    /// A floating-point operation, as often as the event says.
    Operations,
    /// So many bytes.
    Bytes(f64),
}

/// An event of a source: its name in sysfs (empty where the kernel gives it none), and its terms.
/// Of a name that the kernel has, scale and unit are believed; the terms are those here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// File below `events/`.
    pub name: &'static str,
    /// `event=0x04,umask=0x03`.
    pub terms: &'static str,
    /// Units of the line that one count stands for, besides what the unit says.
    pub times: u32,
}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// What it tells.
    pub role: Role,
    /// Event sources by name; `#` stands for a number. Every one that matches counts, and the
    /// counts are added. None: generic events, whose terms are `config=N`.
    pub sources: &'static [&'static str],
    /// Events whose counts are added.
    pub events: &'static [Encoding],
    /// What one count stands for.
    pub unit: Unit,
    /// Where the encoding is written down.
    pub source: &'static str,
}

/// Processors with the same events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Family {
    /// For a person.
    pub name: &'static str,
    /// Vendor as `/proc/cpuinfo` names it (Arm: the implementer, `0x41`).
    pub vendor: &'static str,
    /// Family (Arm: the architecture, 8).
    pub family: u32,
    /// First and last model of each range (Arm: the part).
    pub models: &'static [(u32, u32)],
    /// What it serves; of two lines for a role the first whose sources are there.
    pub lines: &'static [Line],
    /// What it does not serve, and why.
    pub lacks: &'static [(Role, &'static str)],
}

impl Family {
    /// The lines for a role, the preferred one first.
    pub fn lines_for(&self, role: Role) -> impl Iterator<Item = &'static Line> {
        self.lines.iter().filter(move |line| line.role == role)
    }

    /// Why it has no line for a role.
    #[must_use]
    pub fn lack(&self, role: Role) -> Option<&'static str> {
        let found = self.lacks.iter().find(|(lacking, _)| *lacking == role);
        found.map(|&(_, why)| why)
    }
}

/// A processor, as `/proc/cpuinfo` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processor {
    /// `GenuineIntel`, `AuthenticAMD`; Arm: the implementer, `0x41`.
    pub vendor: String,
    /// The family (Arm: the architecture).
    pub family: u32,
    /// The model (Arm: the part).
    pub model: u32,
}

/// All families. No two claim a processor.
pub const FAMILIES: &[&Family] = &[
    &intel::SKYLAKE_SP,
    &intel::ICE_LAKE_SP,
    &intel::SAPPHIRE_RAPIDS,
    &intel::GRANITE_RAPIDS,
    &amd::ZEN_2,
    &amd::ZEN_3,
    &amd::ZEN_4,
    &amd::ZEN_5,
    &arm::NEOVERSE_N1,
    &arm::NEOVERSE_V1,
];

const UNKNOWN: &str = "hither has no event table for this processor";

/// What every processor has: the kernel chooses the event. `linux/perf_event.h`, `perf_hw_id`.
pub const GENERIC: Family = Family {
    name: "unknown processor",
    vendor: "",
    family: 0,
    models: &[],
    lines: &[
        generic(Role::Instructions, &[raw("config=1")], Unit::Instructions),
        generic(Role::Cycles, &[raw("config=0")], Unit::Cycles),
        // PERF_COUNT_HW_CACHE_REFERENCES: of the last cache, as the kernel's documentation says.
        generic(Role::References, &[raw("config=2")], Unit::Accesses),
        // The kernel's PERF_COUNT_HW_CACHE_MISSES: of the last cache, as its documentation says.
        generic(Role::Misses, &[raw("config=3")], Unit::Accesses),
    ],
    lacks: &[
        (Role::MemorySamples, UNKNOWN),
        (Role::LocalMemory, UNKNOWN),
        (Role::RemoteMemory, UNKNOWN),
        (Role::RemoteCache, UNKNOWN),
        (Role::Remote, UNKNOWN),
        (Role::MemoryStalls, UNKNOWN),
        (Role::Operations, UNKNOWN),
        (Role::ControllerReads, UNKNOWN),
        (Role::ControllerWrites, UNKNOWN),
        (Role::ControllerTraffic, UNKNOWN),
        (Role::LinkTraffic, UNKNOWN),
    ],
};

/// The family of a processor; [`GENERIC`] where no table has it.
#[must_use]
pub fn family_of(processor: &Processor) -> &'static Family {
    let claims = |family: &&&'static Family| {
        family.vendor == processor.vendor
            && family.family == processor.family
            && family
                .models
                .iter()
                .any(|&(first, last)| (first..=last).contains(&processor.model))
    };
    FAMILIES.iter().find(claims).copied().unwrap_or(&GENERIC)
}

/// Is a source's name the pattern, with decimal digits in place of a `#` at its end?
#[must_use]
pub fn source_matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('#') {
        None => pattern == name,
        Some(prefix) => name.strip_prefix(prefix).is_some_and(|number| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        }),
    }
}

const fn generic(role: Role, events: &'static [Encoding], unit: Unit) -> Line {
    Line {
        role,
        sources: &[],
        events,
        unit,
        source: "linux/perf_event.h, enum perf_hw_id",
    }
}

/// An event without a name in sysfs.
const fn raw(terms: &'static str) -> Encoding {
    times(1, terms)
}

/// An event that the kernel names.
const fn named(name: &'static str, terms: &'static str) -> Encoding {
    Encoding {
        name,
        terms,
        times: 1,
    }
}

/// An event without a name in sysfs, of which one count stands for so many units.
const fn times(times: u32, terms: &'static str) -> Encoding {
    Encoding {
        name: "",
        terms,
        times,
    }
}
