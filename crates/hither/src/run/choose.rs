//! Which tracker and which backend: the tables, and what to say where none fits.

use anyhow::bail;
use hither_core::policy::{EvidenceKind, Policy};
use hither_linux::backend::kernel::KernelBackend;
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_linux::tracker::hintfault::HintFaultTracker;
use hither_linux::tracker::opium::OpiumTracker;
use hither_linux::tracker::perf::PerfTracker;
use hither_linux::tracker::residency::ResidencyTracker;
use hither_mover::Backend;

/// What a tracker is opened with.
struct Here<'a> {
    root: &'a Root,
    topology: &'a Topology,
    ghz: Option<f64>,
}

/// Opens a tracker, or says why not and what would help.
type Open = fn(&Here<'_>) -> Result<Box<dyn Tracker>, String>;

/// All trackers, the best first.
const TRACKERS: &[(&str, Open)] = &[
    ("opium", |here| {
        match OpiumTracker::open(here.root, here.topology, here.ghz) {
            Ok(tracker) => Ok(Box::new(tracker)),
            Err(error) => Err(format!("{}; {}", error.reason, error.remedy)),
        }
    }),
    ("perf", |here| {
        match PerfTracker::open(here.root, here.topology, here.ghz) {
            Ok(tracker) => Ok(Box::new(tracker)),
            Err(error) => Err(format!("{}; {}", error.reason, error.remedy)),
        }
    }),
    ("hintfault", |here| {
        match HintFaultTracker::open(here.root, here.topology) {
            Ok(tracker) => Ok(Box::new(tracker)),
            Err(error) => Err(format!("{}; {}", error.reason, error.remedy)),
        }
    }),
    ("residency", |here| {
        Ok(Box::new(ResidencyTracker::new(here.root.clone())))
    }),
];

/// The first tracker that gives all that the policy needs.
///
/// # Errors
/// Where none does: what is missing, why each tracker cannot give it, and how to get it.
pub fn tracker(
    policy: &dyn Policy,
    root: &Root,
    topology: &Topology,
    ghz: Option<f64>,
) -> anyhow::Result<Box<dyn Tracker>> {
    // Distances come with the topology, whatever the tracker.
    let needs = || {
        policy
            .needs()
            .iter()
            .filter(|&&kind| kind != EvidenceKind::Distances)
    };
    let here = Here {
        root,
        topology,
        ghz,
    };
    let mut reasons = Vec::new();
    for (name, open) in TRACKERS {
        match open(&here) {
            Err(why) => reasons.push(format!("tracker {name}: {why}")),
            Ok(tracker) => match needs().find(|kind| !tracker.gives().contains(kind)) {
                None => return Ok(tracker),
                Some(kind) => {
                    reasons.push(format!("tracker {name}: it does not tell {}", kind.name()))
                }
            },
        }
    }
    let kinds: Vec<&str> = needs().map(|kind| kind.name()).collect();
    bail!(
        "policy {} needs {}, and no tracker can give that here\n  {}\n  to mend it: {}",
        policy.name(),
        kinds.join(", "),
        reasons.join("\n  "),
        EvidenceKind::PageAccesses.remedy(),
    )
}

/// The first backend that works here.
///
/// # Errors
/// Where none does, with the reason of each.
pub fn backend() -> anyhow::Result<Box<dyn Backend>> {
    let backends: [Box<dyn Backend>; 1] = [Box::new(KernelBackend::new())];
    let mut reasons = Vec::new();
    for backend in backends {
        match backend.probe() {
            Ok(()) => return Ok(backend),
            Err(why) => reasons.push(format!("backend {}: {why}", backend.name())),
        }
    }
    bail!("nothing can move pages here\n  {}", reasons.join("\n  "))
}

/// A tracker that samples accesses and changes nothing of what it watches, for who only looks.
///
/// # Errors
/// Why none can, in a sentence.
pub fn sampling_tracker(root: &Root, topology: &Topology) -> Result<Box<dyn Tracker>, String> {
    let here = Here {
        root,
        topology,
        ghz: None,
    };
    let mut reasons = Vec::new();
    for (name, open) in TRACKERS {
        if !["opium", "perf"].contains(name) {
            continue;
        }
        match open(&here) {
            Ok(tracker) if tracker.gives().contains(&EvidenceKind::PageAccesses) => {
                return Ok(tracker);
            }
            Ok(_) => {}
            Err(why) => reasons.push(format!("tracker {name}: {why}")),
        }
    }
    Err(reasons.join("; "))
}
