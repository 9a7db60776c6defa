//! The trackers there are: what each tells, what it is good for, how it is opened. Who wants one
//! takes the first that serves, in the order of [`TABLE`].

use super::Tracker;
use super::damon::{Addresses, DamonTracker, Setting};
use super::hintfault::HintFaultTracker;
use super::none::NoAccesses;
use super::opium::OpiumTracker;
use super::perf::PerfTracker;
use super::residency::ResidencyTracker;
use super::written::WrittenTracker;
use crate::root::Root;
use crate::topology::Topology;
use hither_core::policy::{EvidenceKind, Policy, Rung};

/// What kdamonds may use of the machine's CPU time.
const DAMON_BUDGET: f64 = 0.01;
/// What looking for written pages may use of one CPU, faults of the programs included, before
/// somebody gives it another share.
const WRITTEN_BUDGET: f64 = 0.01;

/// What a tracker is opened with.
#[derive(Clone, Copy, Debug)]
pub struct TrackerInputs<'a> {
    /// Where `/proc` and `/sys` are.
    pub root: &'a Root,
    /// The machine.
    pub topology: &'a Topology,
    /// Clock of the CPUs, where it is known.
    pub ghz: Option<f64>,
}

/// Does a tracker make recordings?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Records {
    /// The first of these that works.
    Unasked,
    /// Where it is named: physical memory is everybody's, hint faults have the kernel move pages of
    /// programs that hither did not bind, and of written pages reads are missing, while somebody
    /// else may use the process's soft-dirty bits.
    Asked,
    /// Not at all.
    Never,
}

/// A tracker.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// What it tells.
    pub about: &'static str,
    /// Where its evidence comes from, where policies decide by it.
    pub rung: Option<Rung>,
    /// Does it make recordings?
    pub records: Records,
    /// Does it sample accesses and change nothing of what it watches? So that it serves who only looks.
    pub only_looks: bool,
    /// Opens it, or says why not and what would help.
    pub open: fn(&TrackerInputs<'_>) -> Opened,
}

/// Trackers by which policies decide, the best first.
pub fn deciding() -> impl Iterator<Item = &'static Entry> {
    TABLE.iter().filter(|entry| entry.rung.is_some())
}

/// Where the evidence of the tracker of this name comes from.
#[must_use]
pub fn rung(name: &str) -> Option<Rung> {
    TABLE.iter().find(|entry| entry.name == name)?.rung
}

/// Does the tracker of this name have the kernel move pages that it tells of?
#[must_use]
pub fn moves_pages(name: &str) -> bool {
    name == HINTFAULT.name
}

/// A tracker, or why there is none and what would help.
pub type Opened = Result<Box<dyn Tracker>, String>;

/// The lab's device: the only one that counts the traffic of nodes.
pub const OPIUM: Entry = Entry {
    name: "opium",
    about: "memory fills sampled by the lab's device, with address, CPU, node and latency",
    rung: Some(Rung::Device),
    records: Records::Unasked,
    only_looks: true,
    open: |here| opened(OpiumTracker::open(here.root, here.topology, here.ghz)),
};

/// The same device with a counter for each page.
pub const OPIUM_PAGES: Entry = Entry {
    name: "opium-pages",
    about: "memory fills of every page, counted by the lab's device, on machines of at most 2 GiB",
    rung: Some(Rung::Device),
    records: Records::Never,
    only_looks: true,
    open: |here| {
        opened(OpiumTracker::open_counting(
            here.root,
            here.topology,
            here.ghz,
        ))
    },
};

/// Access bits of the memory of processes.
pub const DAMON: Entry = Entry {
    name: "damon",
    about: "access bits of page tables by DAMON: what is hot, not who uses it from where",
    rung: Some(Rung::Software),
    records: Records::Unasked,
    only_looks: false,
    open: |here| damon(here, Addresses::Virtual),
};

/// The kernel's hint faults.
pub const HINTFAULT: Entry = Entry {
    name: "hintfault",
    about: "NUMA hint faults: which CPU touches which page, once per page and scan; the kernel also \
            moves pages meanwhile",
    rung: Some(Rung::Software),
    records: Records::Asked,
    only_looks: false,
    open: |here| opened(HintFaultTracker::open(here.root, here.topology)),
};

/// Access bits of the machine's memory.
pub const DAMON_PHYSICAL: Entry = Entry {
    name: "damon-physical",
    about: "access bits of all physical memory by DAMON: which memory is hot, not whose it is",
    rung: None,
    records: Records::Asked,
    only_looks: false,
    open: |here| damon(here, Addresses::Physical),
};

/// Nothing but processes, for who watches where no evidence can be had.
pub const NONE: Entry = Entry {
    name: "none",
    about: "no accesses: processes, their mappings and where their pages are",
    rung: None,
    records: Records::Unasked,
    only_looks: false,
    open: |_| Ok(Box::new(NoAccesses)),
};

/// Where pages are: works everywhere, and for policies that need no accesses.
pub const RESIDENCY: Entry = Entry {
    name: "residency",
    about: "where pages are, not who uses them",
    rung: None,
    records: Records::Never,
    only_looks: false,
    open: |here| Ok(Box::new(ResidencyTracker::new(here.root.clone()))),
};

/// All of them, the best first.
pub const TABLE: &[Entry] = &[
    OPIUM,
    Entry {
        name: "perf",
        about: "memory accesses sampled by the PMU, with address, CPU, data source and latency",
        rung: Some(Rung::Pmu),
        records: Records::Unasked,
        only_looks: true,
        open: |here| opened(PerfTracker::open(here.root, here.topology, here.ghz)),
    },
    DAMON,
    // Works everywhere: what follows records where it is asked for.
    NONE,
    DAMON_PHYSICAL,
    HINTFAULT,
    Entry {
        name: "written",
        about: "soft-dirty bits of page tables: which pages are written, exactly, and no reads; costs \
                the program a fault for each page that it writes after a look",
        rung: None,
        records: Records::Asked,
        only_looks: false,
        open: |here| opened(WrittenTracker::open(here.root, WRITTEN_BUDGET)),
    },
    RESIDENCY,
    OPIUM_PAGES,
];

fn damon(here: &TrackerInputs<'_>, addresses: Addresses) -> Opened {
    opened(DamonTracker::open(
        here.root,
        addresses,
        Setting::ADAPTIVE,
        DAMON_BUDGET,
    ))
}

fn opened<T: Tracker + 'static>(opened: crate::Result<T>) -> Opened {
    match opened {
        Ok(tracker) => Ok(Box::new(tracker)),
        Err(error) => Err(format!("{}; {}", error.reason, error.remedy)),
    }
}

/// No tracker gives what a policy needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{whom} needs {needs}, and no tracker can give that here\n  {}\n  to mend it: {}",
    reasons.join("\n  "),
    remedy
)]
pub struct NoEvidence {
    whom: String,
    needs: String,
    /// Of each tracker, why not.
    reasons: Vec<String>,
    remedy: &'static str,
}

/// Does this tracker tell what is needed? Who needs every page has use for no sample, and the reverse; what
/// programs execute is counted by the device and by PMUs; access bits tell of the use of pages alone.
#[must_use]
pub fn serves(entry: &Entry, needs: &[EvidenceKind]) -> bool {
    if entry.name == DAMON.name {
        return needs == [EvidenceKind::PageUse];
    }
    let counts_work = entry.name == OPIUM.name || entry.rung == Some(Rung::Pmu);
    if needs.contains(&EvidenceKind::ProgramWork) && !counts_work {
        return false;
    }
    if needs.contains(&EvidenceKind::CacheUse) && !counts_work {
        return false;
    }
    needs.contains(&EvidenceKind::EveryPage) == (entry.name == OPIUM_PAGES.name)
}

/// The first tracker that gives all that the policy needs.
///
/// # Errors
/// Where none does: what is missing, why each tracker cannot give it, and how to get it.
pub fn to_decide(
    policy: &dyn Policy,
    here: &TrackerInputs<'_>,
) -> Result<Box<dyn Tracker>, NoEvidence> {
    let whom = format!("policy {}", policy.name());
    open(&whom, policy.needs(), here)
}

/// The first tracker that gives all of this, for somebody who decides nothing.
///
/// # Errors
/// As [`to_decide`].
pub fn that_gives(
    needs: &[EvidenceKind],
    here: &TrackerInputs<'_>,
) -> Result<Box<dyn Tracker>, NoEvidence> {
    open("this", needs, here)
}

/// The first tracker that gives what several policies need together ([`hither_core::policy::needs_of`]), or, where none
/// does, what those of them need that decide by samples; and what is missing then. `whom` names them in a sentence.
///
/// # Errors
/// As [`to_decide`].
pub fn to_serve(
    whom: &str,
    needs: &[EvidenceKind],
    here: &TrackerInputs<'_>,
) -> Result<(Box<dyn Tracker>, Vec<String>), NoEvidence> {
    let why = match open(whom, needs, here) {
        Ok(tracker) => return Ok((tracker, Vec::new())),
        Err(why) => why,
    };
    let sampled = needs.iter().copied().filter(|kind| kind.is_sampled());
    let sampled: Vec<EvidenceKind> = sampled.collect();
    if sampled.is_empty() || sampled == needs {
        return Err(why);
    }
    let tracker = open(whom, &sampled, here)?;
    Ok((
        tracker,
        why.to_string().lines().map(str::to_owned).collect(),
    ))
}

fn open(
    whom: &str,
    needs: &[EvidenceKind],
    here: &TrackerInputs<'_>,
) -> Result<Box<dyn Tracker>, NoEvidence> {
    // Distances come with the topology, whatever the tracker.
    let needs = needs.iter();
    let needs: Vec<EvidenceKind> = needs
        .copied()
        .filter(|&kind| kind != EvidenceKind::Distances)
        .collect();
    let without = needs.is_empty().then_some(&RESIDENCY);
    let mut reasons = Vec::new();
    let serving = deciding().filter(|entry| serves(entry, &needs));
    for entry in serving.chain(without) {
        match (entry.open)(here) {
            Err(why) => reasons.push(format!("tracker {}: {why}", entry.name)),
            Ok(mut tracker) => {
                if needs.iter().any(|kind| kind.is_sampled()) {
                    tracker.fill_in_pages(true);
                }
                if needs.contains(&EvidenceKind::ProgramWork) {
                    tracker.count_work();
                }
                if needs.contains(&EvidenceKind::CacheUse) {
                    tracker.count_references();
                }
                return Ok(tracker);
            }
        }
    }
    let names: Vec<&str> = needs.iter().map(|kind| kind.name()).collect();
    Err(NoEvidence {
        whom: whom.to_owned(),
        needs: names.join(", "),
        reasons,
        remedy: [
            EvidenceKind::EveryPage,
            EvidenceKind::ProgramWork,
            EvidenceKind::CacheUse,
        ]
        .into_iter()
        .find(|kind| needs.contains(kind))
        .unwrap_or(EvidenceKind::PageAccesses)
        .remedy(),
    })
}

/// A tracker that makes recordings.
pub struct Recorder {
    /// Its line of the table.
    pub entry: &'static Entry,
    /// Open.
    pub tracker: Box<dyn Tracker>,
    /// Why better ones were not taken.
    pub notes: Vec<String>,
}

/// The tracker of a name that makes recordings, or the first that does so unasked and works here.
///
/// # Errors
/// Why the one that was asked for does not work here, and what would help.
pub fn to_record(name: Option<&str>, here: &TrackerInputs<'_>) -> Result<Recorder, String> {
    let mut notes = Vec::new();
    let meant = |entry: &&Entry| match name {
        Some(name) => name == entry.name && entry.records != Records::Never,
        None => entry.records == Records::Unasked,
    };
    for entry in TABLE.iter().filter(meant) {
        match (entry.open)(here) {
            Ok(tracker) => {
                return Ok(Recorder {
                    entry,
                    tracker,
                    notes,
                });
            }
            Err(why) => notes.push(format!("tracker {} does not work here: {why}", entry.name)),
        }
    }
    Err(notes.join("\n  "))
}

/// A tracker that samples accesses and changes nothing of what it watches.
///
/// # Errors
/// Why none can, in a sentence.
pub fn to_look(here: &TrackerInputs<'_>) -> Opened {
    let mut reasons = Vec::new();
    for entry in TABLE.iter().filter(|entry| entry.only_looks) {
        match (entry.open)(here) {
            Ok(tracker) => return Ok(tracker),
            Err(why) => reasons.push(format!("tracker {}: {why}", entry.name)),
        }
    }
    Err(reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_and_one_tracker_records_everywhere() {
        let mut names: Vec<&str> = TABLE.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
        let unasked = TABLE
            .iter()
            .rfind(|entry| entry.records == Records::Unasked);
        assert_eq!(unasked.unwrap().name, "none");
    }

    #[test]
    fn access_bits_serve_who_asks_for_no_user() {
        let serving = |needs: &[EvidenceKind]| -> Vec<&str> {
            let entries = deciding().filter(|entry| serves(entry, needs));
            entries.map(|entry| entry.name).collect()
        };
        let users = serving(&[EvidenceKind::PageAccesses]);
        assert_eq!(users, ["opium", "perf", "hintfault"]);
        let use_ = serving(&[EvidenceKind::PageUse]);
        assert_eq!(use_, ["opium", "perf", "damon", "hintfault"]);
        let both = serving(&[EvidenceKind::PageUse, EvidenceKind::PageAccesses]);
        assert_eq!(both, users);
        assert!(moves_pages("hintfault") && !moves_pages("damon") && !moves_pages("perf"));
    }
}
