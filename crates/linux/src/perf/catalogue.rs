//! What this machine counts: the event table of its processor, put into words by its own sysfs.
//!
//! A role is served by the first line of the table whose sources are there and whose events can be
//! put together; for all others there is a reason and what would help. Nothing is opened here.

use super::pmu::{self, EventCode, Pmu};
use crate::error::{Error, Result};
use crate::proc::cpuinfo;
use crate::root::Root;
use hither_core::perf::events::{
    self, Encoding, Family, GENERIC, Line, Processor, Role, Unit, source_matches,
};
use hither_core::set::CpuSet;

/// `PERF_TYPE_HARDWARE`: events that the kernel maps by itself.
const GENERIC_KIND: u32 = 0;
/// Sources of cores: where one is, generic events are too.
const CORES: [&str; 7] = [
    "cpu",
    "cpu_core",
    "armv8_pmuv3_#",
    "armv8_pmuv3",
    "armv8_neoverse_n1",
    "armv8_neoverse_v1",
    "armv8_cortex_a#",
];

/// An event source that serves a role.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Its name in sysfs; `generic` for the kernel's own.
    pub name: String,
    /// The number that stands for it in attributes.
    pub kind: u32,
    /// Events whose counts are added.
    pub codes: Vec<EventCode>,
    /// Units that one count stands for: bytes, or 1 of what the line's unit is.
    pub each: f64,
    /// Besides, of each event.
    pub times: Vec<u32>,
    /// CPUs on which it is read (outside the cores), or which it counts; `None`: all.
    pub cpus: Option<CpuSet>,
}

/// A role that the machine serves.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// The role.
    pub role: Role,
    /// The line of the table, with unit and where it is written down.
    pub line: &'static Line,
    /// Who counts, by name.
    pub sources: Vec<Source>,
}

/// A role that it does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The role.
    pub role: Role,
    /// Why.
    pub why: String,
    /// What would help; empty: nothing on this hardware.
    pub remedy: String,
}

/// What the machine counts.
#[derive(Clone, Debug)]
pub struct Catalogue {
    /// The processor; `None` where `/proc/cpuinfo` names none.
    pub processor: Option<Processor>,
    /// Its table; [`GENERIC`] where there is none.
    pub family: &'static Family,
    /// Roles served, in the order of [`Role::ALL`].
    pub served: Vec<Served>,
    /// Roles not served, in the same order.
    pub missing: Vec<Missing>,
}

impl Catalogue {
    /// Reads the processor and the sources. A source whose files make no sense serves nothing, and the
    /// role's reason names the file.
    ///
    /// # Errors
    /// The folder of sources cannot be listed, or `/proc/cpuinfo` not be read.
    pub fn read(root: &Root) -> Result<Self> {
        let processor = cpuinfo::read(root)?;
        let family = processor.as_ref().map_or(&GENERIC, events::family_of);
        let names = pmu::names(root)?;
        let (mut served, mut missing) = (Vec::new(), Vec::new());
        for role in Role::ALL {
            match serve(root, family, role, &names) {
                Ok(found) => served.push(found),
                Err(why) => missing.push(why),
            }
        }
        Ok(Self {
            processor,
            family,
            served,
            missing,
        })
    }

    /// Has the processor no table of its own?
    #[must_use]
    pub fn is_generic(&self) -> bool {
        self.family.vendor.is_empty()
    }

    /// Who serves a role.
    #[must_use]
    pub fn of(&self, role: Role) -> Option<&Served> {
        self.served.iter().find(|served| served.role == role)
    }

    /// Roles not served, without those that the table has in another way.
    pub fn wanting(&self) -> impl Iterator<Item = &Missing> {
        self.missing.iter().filter(|missing| {
            let others = missing.role.instead();
            !others
                .iter()
                .any(|&other| self.family.lines_for(other).next().is_some())
        })
    }

    /// Of roles that are not served, the one whose reason tells most: that can be helped.
    #[must_use]
    pub fn obstacle(&self, roles: &[Role]) -> Option<&Missing> {
        let asked = || {
            self.wanting()
                .filter(|missing| roles.contains(&missing.role))
        };
        asked()
            .find(|missing| !missing.remedy.is_empty())
            .or_else(|| asked().next())
    }
}

fn serve(
    root: &Root,
    family: &'static Family,
    role: Role,
    names: &[String],
) -> std::result::Result<Served, Missing> {
    let missing = |why: String, remedy: String| Missing { role, why, remedy };
    if let Some(why) = family.lack(role) {
        let remedy = match family.vendor.is_empty() {
            true => "report the processor, so that its events are added",
            false => "",
        };
        return Err(missing(why.to_owned(), remedy.to_owned()));
    }
    let mut fault = None;
    for line in family.lines_for(role) {
        match resolve(root, line, names) {
            Ok(sources) if !sources.is_empty() => {
                return Ok(Served {
                    role,
                    line,
                    sources,
                });
            }
            Ok(_) => {}
            Err(error) => fault = fault.or(Some(error)),
        }
    }
    Err(match fault {
        Some(error) => missing(
            match error.line {
                Some(line) => format!("{}:{line}: {}", shown(&error), error.reason),
                None => format!("{}: {}", shown(&error), error.reason),
            },
            error.remedy,
        ),
        None => missing(absent(family, role), enabling(family, role).to_owned()),
    })
}

fn shown(error: &Error) -> String {
    use hither_core::foreign::Foreign;
    error.place.shown().to_string()
}

fn absent(family: &'static Family, role: Role) -> String {
    let mut patterns: Vec<&str> = Vec::new();
    for line in family.lines_for(role) {
        patterns.extend(line.sources);
    }
    match patterns.is_empty() {
        true => "the kernel shows no PMU of the cores".to_owned(),
        false => format!("the kernel shows no event source {}", patterns.join(", ")),
    }
}

/// What makes the sources of a role appear.
fn enabling(family: &'static Family, role: Role) -> &'static str {
    match (role.is_uncore(), family.vendor) {
        (true, "GenuineIntel") => {
            "load the module intel_uncore, on real hardware; virtual machines have none"
        }
        (true, "AuthenticAMD") => {
            "load the module amd_uncore, on real hardware; virtual machines have none"
        }
        (true, _) => "load the module arm-cmn, on real hardware; virtual machines have none",
        (false, "0x41") if role == Role::MemorySamples => "load the module arm_spe_pmu",
        (false, _) => {
            "let the hypervisor pass the PMU through (QEMU: -cpu host,pmu=on), or use real hardware"
        }
    }
}

/// The sources of a line with its events in their words; empty where none is there.
///
/// # Errors
/// A file that cannot be read or makes no sense, or an event that does not fit its format.
pub fn resolve(root: &Root, line: &'static Line, names: &[String]) -> Result<Vec<Source>> {
    if line.sources.is_empty() {
        return generic(line, names);
    }
    let mut sources = Vec::new();
    for name in names {
        let fits = |pattern: &&str| source_matches(pattern, name);
        if !line.sources.iter().any(fits) {
            continue;
        }
        let Some(pmu) = Pmu::read(root, name)? else {
            continue;
        };
        let mut codes = Vec::with_capacity(line.events.len());
        let mut each = table_each(line);
        for event in line.events {
            let (code, bytes) = put_together(&pmu, event)?;
            codes.push(code);
            each = bytes.filter(|_| line.role.is_uncore()).unwrap_or(each);
        }
        sources.push(Source {
            name: pmu.name,
            kind: pmu.kind,
            codes,
            each,
            times: line.events.iter().map(|event| event.times).collect(),
            cpus: pmu.readers.or(pmu.cpus),
        });
    }
    Ok(sources)
}

fn generic(line: &'static Line, names: &[String]) -> Result<Vec<Source>> {
    let is_core = |name: &String| CORES.iter().any(|pattern| source_matches(pattern, name));
    if !names.iter().any(is_core) {
        return Ok(Vec::new());
    }
    // The terms of generic events are one word, which the table's test holds them to.
    let word = |event: &Encoding| {
        let terms = pmu::event_terms(event.terms).ok()?;
        let value = terms.first()?.1?;
        Some(EventCode {
            words: [value, 0, 0],
        })
    };
    Ok(vec![Source {
        name: "generic".to_owned(),
        kind: GENERIC_KIND,
        codes: line.events.iter().filter_map(word).collect(),
        each: table_each(line),
        times: line.events.iter().map(|event| event.times).collect(),
        cpus: None,
    }])
}

fn table_each(line: &Line) -> f64 {
    match line.unit {
        Unit::Bytes(bytes) => bytes,
        _ => 1.0,
    }
}

/// The event's words, and the bytes that one count stands for where the kernel says so.
///
/// The words are the table's, which are the vendor's, also where the kernel has the event by name: on
/// Ice Lake older kernels' `cas_count_read` and `_write` were those of Skylake, and missed most of it
/// (fixed by "perf/x86/intel/uncore: Fix CAS_COUNT_WRITE issue for ICX").
fn put_together(pmu: &Pmu, event: &Encoding) -> Result<(EventCode, Option<f64>)> {
    let bytes = match !event.name.is_empty() && pmu.has_event(event.name) {
        true => pmu.bytes_of(event.name)?,
        false => None,
    };
    Ok((pmu.event_of_text(event.terms)?, bytes))
}

#[cfg(test)]
mod tests;
