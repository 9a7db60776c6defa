//! The trackers there are: how each is opened, and what it is said to tell. Who wants one lists
//! those that serve it, the best first.

use hither_core::policy::EvidenceKind;
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_linux::tracker::damon::{Addresses, DamonTracker, Setting};
use hither_linux::tracker::hintfault::HintFaultTracker;
use hither_linux::tracker::opium::OpiumTracker;
use hither_linux::tracker::perf::PerfTracker;
use hither_linux::tracker::residency::ResidencyTracker;
use hither_linux::tracker::written::WrittenTracker;

/// What kdamonds may use of the machine's CPU time.
const DAMON_BUDGET: f64 = 0.01;
/// What looking for written pages may use of one CPU, faults of the programs included, before
/// somebody gives it another share.
const WRITTEN_BUDGET: f64 = 0.01;

/// What a tracker is opened with.
pub struct Here<'a> {
    /// Where `/proc` and `/sys` are.
    pub root: &'a Root,
    /// The machine.
    pub topology: &'a Topology,
    /// Clock of the CPUs, where it is known.
    pub ghz: Option<f64>,
}

/// A tracker.
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// What it tells.
    pub about: &'static str,
    /// Opens it, or says why not and what would help.
    pub open: fn(&Here<'_>) -> Result<Box<dyn Tracker>, String>,
}

/// The lab's device.
pub const OPIUM: Entry = Entry {
    name: "opium",
    about: "memory fills sampled by the lab's device, with address, CPU, node and latency",
    open: |here| told(OpiumTracker::open(here.root, here.topology, here.ghz)),
};

/// The PMU.
pub const PERF: Entry = Entry {
    name: "perf",
    about: "memory accesses sampled by the PMU, with address, CPU, data source and latency",
    open: |here| told(PerfTracker::open(here.root, here.topology, here.ghz)),
};

/// NUMA hint faults.
pub const HINTFAULT: Entry = Entry {
    name: "hintfault",
    about: "NUMA hint faults: which CPU touches which page, once per page and scan; the kernel also \
            moves pages meanwhile",
    open: |here| told(HintFaultTracker::open(here.root, here.topology)),
};

/// Access bits of processes' pages.
pub const DAMON: Entry = Entry {
    name: "damon",
    about: "access bits of page tables by DAMON: what is hot, not who uses it from where",
    open: |here| damon(here, Addresses::Virtual),
};

/// Access bits of the machine's memory.
pub const DAMON_PHYSICAL: Entry = Entry {
    name: "damon-physical",
    about: "access bits of all physical memory by DAMON: which memory is hot, not whose it is",
    open: |here| damon(here, Addresses::Physical),
};

fn damon(here: &Here<'_>, addresses: Addresses) -> Result<Box<dyn Tracker>, String> {
    let opened = DamonTracker::open(here.root, addresses, Setting::ADAPTIVE, DAMON_BUDGET);
    told(opened)
}

/// Soft-dirty bits.
pub const WRITTEN: Entry = Entry {
    name: "written",
    about: "soft-dirty bits of page tables: which pages are written, exactly, and no reads; costs \
            the program a fault for each page that it writes after a look",
    open: |here| told(WrittenTracker::open(here.root, WRITTEN_BUDGET)),
};

/// Where pages are.
pub const RESIDENCY: Entry = Entry {
    name: "residency",
    about: "where pages are, not who uses them",
    open: |here| Ok(Box::new(ResidencyTracker::new(here.root.clone()))),
};

/// A tracker, or why there is none and what would help.
fn told<T: Tracker + 'static>(opened: hither_linux::Result<T>) -> Result<Box<dyn Tracker>, String> {
    match opened {
        Ok(tracker) => Ok(Box::new(tracker)),
        Err(error) => Err(format!("{}; {}", error.reason, error.remedy)),
    }
}

/// A tracker that samples accesses and changes nothing of what it watches, for who only looks.
///
/// # Errors
/// Why none can, in a sentence.
pub fn sampling(here: &Here<'_>) -> Result<Box<dyn Tracker>, String> {
    let mut reasons = Vec::new();
    for entry in [OPIUM, PERF] {
        match (entry.open)(here) {
            Ok(tracker) if tracker.gives().contains(&EvidenceKind::PageAccesses) => {
                return Ok(tracker);
            }
            Ok(_) => {}
            Err(why) => reasons.push(format!("tracker {}: {why}", entry.name)),
        }
    }
    Err(reasons.join("; "))
}
