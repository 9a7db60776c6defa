//! Which tracker and which backend: the tables, and what to say where none fits.

use crate::trackers::{self, Entry, Here};
use anyhow::{Context, bail};
use hither_agent::Movers;
use hither_agent::host::MOST_MOVERS;
use hither_core::policy::{EvidenceKind, Policy};
use hither_linux::backend::kernel::KernelBackend;
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_mover::Backend;
use hither_mover::executor::{Factory, Limits};

/// Trackers that policies may decide by, the best first.
const TRACKERS: &[Entry] = &[
    trackers::OPIUM,
    trackers::PERF,
    trackers::HINTFAULT,
    trackers::RESIDENCY,
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
    for Entry { name, open, .. } in TRACKERS {
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

/// A backend that was chosen.
pub struct Chosen {
    /// Its name.
    pub name: &'static str,
    /// Makes one for each mover.
    factory: Factory,
}

impl Chosen {
    /// Threads that move pages by it.
    ///
    /// # Errors
    /// They cannot be started.
    pub fn movers(self) -> anyhow::Result<Movers> {
        let movers = Movers::start(Limits::default(), MOST_MOVERS, self.factory);
        movers.context("starting what moves pages")
    }
}

/// The backends there are, the best first.
const BACKENDS: [fn() -> Box<dyn Backend + Send>; 1] = [|| Box::new(KernelBackend::new())];

/// The first backend that works here.
///
/// # Errors
/// Where none does, with the reason of each.
pub fn backend() -> anyhow::Result<Chosen> {
    let mut reasons = Vec::new();
    for make in BACKENDS {
        let backend = make();
        let name = backend.name();
        match backend.probe() {
            Ok(()) => {
                let factory = Box::new(move |_| make());
                return Ok(Chosen { name, factory });
            }
            Err(why) => reasons.push(format!("backend {name}: {why}")),
        }
    }
    bail!("nothing can move pages here\n  {}", reasons.join("\n  "))
}
