//! Trackers: what tells how memory is used. A tracker reports and never moves anything.

pub mod aggregate;
mod blocks;
mod by_page;
pub mod damon;
pub mod hintfault;
mod listing;
mod none;
pub mod opium;
pub mod perf;
mod rating;
pub mod residency;
pub mod table;
pub mod view;
pub mod written;

use crate::error::Result;
use crate::proc::tree::Tree;
use hither_core::observation::Observations;
use hither_core::plan::Sampling;
use hither_core::policy::Rung;
use hither_core::snapshot::Snapshot;
use view::SampleView;

/// What a tracker itself has taken since it was opened, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Time that has passed.
    pub wall_ns: u64,
    /// CPU time of the tracker in this process.
    pub own_ns: u64,
    /// CPU time of kernel threads that work for it alone.
    pub kernel_ns: u64,
}

impl Cost {
    /// CPU time altogether.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.own_ns + self.kernel_ns
    }

    /// CPU time per time passed: 0.01 is one per cent of one CPU.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.total_ns() as f64 / self.wall_ns.max(1) as f64
    }
}

/// Observes the machine and the watched processes. Whoever has one may hand it to another thread.
pub trait Tracker: Send {
    /// The word that names it in reports.
    fn name(&self) -> &'static str;

    /// Where its evidence comes from; `None` where nobody decides by it.
    fn rung(&self) -> Option<Rung> {
        table::rung(self.name())
    }

    /// How densely to sample at first. A few samples tell whether there is anything to do, and cost next to
    /// nothing; by hint faults a program must be gone over whole.
    fn first_sampling(&self) -> Sampling {
        match self.rung() {
            Some(Rung::Software) => Sampling::Full,
            _ => Sampling::Cheap,
        }
    }

    /// How densely to sample from now on.
    fn set_sampling(&mut self, sampling: Sampling);

    /// Fills in what it knows of the interval since its last call: metrics, traffic, pages. The
    /// nodes are there already, with their ids and sizes, and `snapshot.interval_us` too.
    fn observe(&mut self, tree: &mut Tree, snapshot: &mut Snapshot) -> Result<()>;

    /// CPU time of this process so far in ns, where the tracker knows it better than the kernel.
    fn own_cpu_ns(&mut self) -> Option<u64> {
        None
    }

    /// It is counted from now on what each process executes. Trackers that cannot ignore it.
    fn count_work(&mut self) {}

    /// It is counted from now on what each process asks of the last-level caches, too. Trackers that cannot
    /// ignore it.
    fn count_references(&mut self) {}

    /// Is it?
    fn counts_references(&self) -> bool {
        false
    }

    /// Fills in what each process of the snapshot executed since the last call, where that is counted.
    fn fill_in_work(&mut self, _tree: &Tree, _snapshot: &mut Snapshot) {}

    /// What the samples of the last interval say of the whole machine; `None` for trackers that
    /// take none.
    fn view(&self) -> Option<&SampleView> {
        None
    }

    /// Share of one CPU that samples may cost from now on, whatever the sampling; trackers whose
    /// cost does not depend on samples ignore it.
    fn set_budget(&mut self, _cpu_share: f64) {}

    /// Share of the instructions executed in user mode that samples may cost besides: a program that
    /// waits for memory executes few, and what takes little of its time may be much of those. Trackers
    /// that do not count instructions ignore it.
    fn set_instruction_budget(&mut self, _share: f64) {}

    /// Whether raw observations are kept from now on for [`Tracker::take_observations`]. Trackers
    /// that have none ignore it.
    fn keep_observations(&mut self, _keep: bool) {}

    /// Whether snapshots' pages, and the view, are filled in from now on; but for access bits they are at
    /// first. Who takes observations alone saves what that costs. Trackers to whom it costs nothing ignore it.
    fn fill_in_pages(&mut self, _fill_in: bool) {}

    /// Appends what was seen by the last [`Tracker::observe`] and has not been taken yet.
    fn take_observations(&mut self, _into: &mut Observations) {}

    /// What the tracker itself took since it was opened; `None` where that is not measured.
    fn cost(&self) -> Option<Cost> {
        None
    }

    /// Leaves everything as it was found.
    fn stop(&mut self);

    /// Sentences for a person that came up since the last call.
    fn take_notes(&mut self) -> Vec<String>;
}
