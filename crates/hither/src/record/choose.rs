//! Which tracker records, and what it is said to tell.

use crate::trackers::{self, Entry, Here};
use anyhow::{anyhow, bail};
use clap::builder::{PossibleValue, PossibleValuesParser};
use hither_core::plan::Sampling;
use hither_core::policy::EvidenceKind;
use hither_core::snapshot::{Evidence, GlobalMetrics, Snapshot};
use hither_linux::proc::tree::Tree;
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_recording::meta::MetaTracker;

/// Trackers that recordings are made by, the best first; `none` works everywhere. What follows it is
/// never taken unasked: physical memory is everybody's, hint faults have the kernel move pages of
/// programs that hither did not bind, and of written pages reads are missing, while somebody else may
/// use the process's soft-dirty bits.
const TRACKERS: &[Entry] = &[
    trackers::OPIUM,
    trackers::PERF,
    trackers::DAMON,
    Entry {
        name: "none",
        about: "no accesses: processes, their mappings and where their pages are",
        open: |_| Ok(Box::new(NoAccesses)),
    },
    trackers::DAMON_PHYSICAL,
    trackers::HINTFAULT,
    trackers::WRITTEN,
];

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
    let here = Here {
        root,
        topology,
        ghz: None,
    };
    let mut notes = Vec::new();
    for entry in TRACKERS
        .iter()
        .filter(|entry| name.is_none_or(|name| name == entry.name))
    {
        match (entry.open)(&here) {
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
