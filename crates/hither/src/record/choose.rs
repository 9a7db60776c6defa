//! Which tracker records, and what it is said to tell.

use anyhow::{anyhow, bail};
use clap::builder::{PossibleValue, PossibleValuesParser};
use hither_core::plan::Sampling;
use hither_core::policy::EvidenceKind;
use hither_core::snapshot::{Evidence, GlobalMetrics, Snapshot};
use hither_linux::proc::tree::Tree;
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_linux::tracker::damon::{Addresses, DamonTracker, Setting};
use hither_linux::tracker::hintfault::HintFaultTracker;
use hither_linux::tracker::opium::OpiumTracker;
use hither_linux::tracker::perf::PerfTracker;
use hither_recording::meta::MetaTracker;

/// Opens a tracker, or says why not and what would help.
type Open = fn(&Root, &Topology) -> Result<Box<dyn Tracker>, String>;

/// A row of the table.
struct Entry {
    name: &'static str,
    about: &'static str,
    open: Open,
}

/// All trackers that recordings are made by, the best first; `none` works everywhere.
const TRACKERS: &[Entry] = &[
    Entry {
        name: "opium",
        about: "memory fills sampled by the lab's device, with address, CPU, node and latency",
        open: |root, topology| told(OpiumTracker::open(root, topology, None)),
    },
    Entry {
        name: "perf",
        about: "memory accesses sampled by the PMU, with address, CPU, data source and latency",
        open: |root, topology| told(PerfTracker::open(root, topology, None)),
    },
    Entry {
        name: "damon",
        about: "access bits of page tables by DAMON: what is hot, not who uses it from where",
        open: |root, _| {
            told(DamonTracker::open(
                root,
                Addresses::Virtual,
                Setting::ADAPTIVE,
                DAMON_BUDGET,
            ))
        },
    },
    Entry {
        name: "none",
        about: "no accesses: processes, their mappings and where their pages are",
        open: |_, _| Ok(Box::new(NoAccesses)),
    },
    // Never by itself: it has the kernel move pages of programs that hither did not bind.
    Entry {
        name: "hintfault",
        about: "NUMA hint faults: which CPU touches which page, once per page and scan; the kernel \
                also moves pages meanwhile",
        open: |root, topology| told(HintFaultTracker::open(root, topology)),
    },
];

/// What kdamonds may use of the machine's CPU time.
const DAMON_BUDGET: f64 = 0.01;

/// A tracker, or why there is none and what would help.
fn told<T: Tracker + 'static>(opened: hither_linux::Result<T>) -> Result<Box<dyn Tracker>, String> {
    match opened {
        Ok(tracker) => Ok(Box::new(tracker)),
        Err(error) => Err(format!("{}; {}", error.reason, error.remedy)),
    }
}

/// A tracker that was chosen.
pub struct Chosen {
    /// Open.
    pub tracker: Box<dyn Tracker>,
    /// For the recording.
    pub meta: MetaTracker,
    /// Why better ones were not taken.
    pub notes: Vec<String>,
}

/// For the help and for refusals.
pub fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(
        TRACKERS
            .iter()
            .map(|entry| PossibleValue::new(entry.name).help(entry.about)),
    )
}

/// The tracker of a name, or the first that works here.
///
/// # Errors
/// The one that was asked for does not work here: why, and what would help.
pub fn tracker(name: Option<&str>, root: &Root, topology: &Topology) -> anyhow::Result<Chosen> {
    let mut notes = Vec::new();
    for entry in TRACKERS
        .iter()
        .filter(|entry| name.is_none_or(|name| name == entry.name))
    {
        match (entry.open)(root, topology) {
            Ok(tracker) => {
                return Ok(Chosen {
                    tracker,
                    meta: MetaTracker {
                        name: entry.name.to_owned(),
                        about: entry.about.to_owned(),
                    },
                    notes,
                });
            }
            Err(why) if name.is_some() => bail!("--tracker {}: {why}", entry.name),
            Err(why) => notes.push(format!("tracker {} does not work here: {why}", entry.name)),
        }
    }
    Err(anyhow!("no tracker works here\n  {}", notes.join("\n  ")))
}

/// Sees no accesses, and says so.
struct NoAccesses;

impl Tracker for NoAccesses {
    fn name(&self) -> &'static str {
        "none"
    }

    fn gives(&self) -> &'static [EvidenceKind] {
        &[]
    }

    fn set_sampling(&mut self, _: Sampling) {}

    fn observe(&mut self, _: &mut Tree, snapshot: &mut Snapshot) -> hither_linux::Result<()> {
        const WHY: &str = "no tracker of accesses works here";
        snapshot.metrics = GlobalMetrics::unknown(WHY);
        snapshot.sample_count = Evidence::unknown(WHY);
        Ok(())
    }

    fn stop(&mut self) {}

    fn take_notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}
