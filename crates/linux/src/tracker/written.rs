//! The tracker `written`: which pages are written, from the soft-dirty bits of page tables.
//!
//! In rounds it reads the bits of the watched processes ([`soft_dirty`]), hands out what was
//! written since the last round, and clears them. Every page that is in memory is looked at, not one
//! of each region as DAMON does, so that a range's share is exact: [`RegionAccess::check_count`] is
//! the pages of the range that are in memory, and `access_count` those of them that were written.
//! Reads are not seen: where they matter, `damon` is the tracker.
//!
//! **What it costs.** The walk over the page tables of a round, which holds a lock that page
//! faults wait for, is CPU time of this process and is measured. Each page that is written for the
//! first time after a round costs the program a fault, which is estimated, at [`FAULT_NS`] a page
//! that was found written (an upper bound: pages that were new took their fault anyway). Both
//! together are held to a share of a CPU by waiting longer between rounds, so that a program
//! that writes much is looked at more rarely. `cost()` says what was measured; the estimate is told
//! when it stops.
//!
//! **Whose bits they are.** A process has one set. Who else clears them (CRIU, some debuggers and
//! emulators) hides writes from this tracker, and this tracker from them: a checkpoint that is
//! taken in steps would miss pages. The kernel does not tell who uses them. Nothing has to be put
//! back: bits are set again as pages are written.
//!
//! It does not tell by whom, nor from which node. Snapshots hold no pages from it.

mod ranges;

use super::{Cost, Tracker};
use crate::error::Result;
use crate::filter;
use crate::proc::soft_dirty::{self, Way};
use crate::proc::tree::{LiveProcess, Tree};
use crate::root::Root;
use crate::sys;
use hither_core::ids::Pid;
use hither_core::observation::{Observations, RegionAccess};
use hither_core::plan::Sampling;
use hither_core::snapshot::{Evidence, GlobalMetrics, HUGE_PAGES, Snapshot};
use ranges::Ranges;

/// What a write to a protected page costs a program. Measured: 0.8 us of CPU time a page on a
/// virtual machine (AMD EPYC, Linux 6.18), by userfaultfd's asynchronous protection, which takes the
/// same way through the kernel; docs/written.md.
const FAULT_NS: u64 = 1000;
/// Shortest time between two rounds: finer than a person, or a recording, makes use of.
const LEAST_NS: u64 = 200_000_000;
/// Longest, however dear a round was: an hour.
const MOST_NS: u64 = 3_600_000_000_000;
/// A process with fewer resident pages (1 MiB) is not worth a round.
const WORTH_PAGES: u64 = 256;
const NOT_BY_WHOM: &str = "the tracker `written` sees which pages are written, not by whom";

/// A process whose bits were cleared.
#[derive(Clone, Copy, Debug)]
struct Watched {
    incarnation: u32,
    since_ns: u64,
}

/// Watches by soft-dirty bits.
#[derive(Debug)]
pub struct WrittenTracker {
    root: Root,
    way: Way,
    /// Share of one CPU that the tracker and the faults it causes may take together.
    budget: f64,
    sampling: Sampling,
    watched: Vec<Watched>,
    /// Processes whose bits may not be cleared, by incarnation.
    refused: Vec<u32>,
    /// When the next round is due.
    due_ns: u64,
    keep: bool,
    found: Vec<RegionAccess>,
    opened_ns: u64,
    cost: Cost,
    /// Rounds so far, and faults that they may have caused.
    round_count: u64,
    fault_count: u64,
    is_stopped: bool,
    notes: Vec<String>,
}

impl WrittenTracker {
    /// A tracker that may take that share of one CPU, until it is given another.
    ///
    /// # Errors
    /// The kernel keeps no soft-dirty bits.
    pub fn open(root: &Root, budget: f64) -> Result<Self> {
        soft_dirty::check(root)?;
        Ok(Self::new(root, budget))
    }

    fn new(root: &Root, budget: f64) -> Self {
        Self {
            root: root.clone(),
            way: Way::Scan,
            budget,
            sampling: Sampling::Full,
            watched: Vec::new(),
            refused: Vec::new(),
            due_ns: 0,
            keep: false,
            found: Vec::new(),
            opened_ns: sys::monotonic_ns(),
            cost: Cost::default(),
            round_count: 0,
            fault_count: 0,
            is_stopped: false,
            notes: Vec::new(),
        }
    }

    /// Faults that the programs took because of it up to the last round: as many as pages were found
    /// written, which is too many where those were new.
    #[must_use]
    pub fn fault_count(&self) -> u64 {
        self.fault_count
    }

    /// Reads and clears the bits of every process; returns faults that the last clearing caused.
    fn round(&mut self, tree: &mut Tree, now_ns: u64) -> u64 {
        self.watched
            .retain(|watched| tree.by_incarnation(watched.incarnation).is_some());
        self.refused
            .retain(|&refused| tree.by_incarnation(refused).is_some());
        let (mut fault_count, mut void) = (0, Vec::new());
        for process in tree.processes() {
            if process.resident_pages < WORTH_PAGES || self.refused.contains(&process.incarnation) {
                continue;
            }
            match self.look(process, now_ns) {
                Ok(Some(faults)) => fault_count += faults,
                Ok(None) => void.push(process.pid),
                // It is ending.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
                Err(error) => {
                    self.refused.push(process.incarnation);
                    self.notes.push(format!(
                        "writes of process {} ({}) are not seen: its soft-dirty bits may not be \
                         read and cleared ({error}); {}",
                        process.pid,
                        process.name,
                        filter::to_see_others()
                    ));
                }
            }
        }
        // They have executed another program, and are looked at anew.
        void.into_iter().for_each(|pid| tree.renew(pid));
        self.fault_count += fault_count;
        fault_count
    }

    /// One process: what it wrote, then clears. Returns faults that it took; `None` where
    /// its page map is void.
    fn look(&mut self, process: &LiveProcess, now_ns: u64) -> std::io::Result<Option<u64>> {
        // A process without a page map is somebody else's, and the tree has said so.
        let Some(map) = &process.pagemap else {
            return Ok(Some(0));
        };
        let (pid, incarnation) = (process.pid, process.incarnation);
        let known = self
            .watched
            .iter()
            .position(|w| w.incarnation == incarnation);
        let mut fault_count = 0;
        if let Some(index) = known {
            let since_ns = self.watched[index].since_ns;
            let mut ranges = Ranges::new();
            soft_dirty::read(&self.root, pid, map, &mut self.way, |run| {
                if run.is_written {
                    let pages = run.pages.end - run.pages.start;
                    let unit = if run.is_huge { HUGE_PAGES } else { 1 };
                    fault_count += pages.div_ceil(unit);
                }
                ranges.push(run.pages, run.is_written);
            })?;
            let ranges = ranges.finish();
            if ranges.is_empty() {
                return Ok(None);
            }
            let count = |pages: u64| u32::try_from(pages).unwrap_or(u32::MAX);
            self.found.extend(ranges.iter().map(|range| RegionAccess {
                time_ns: now_ns,
                length_ns: now_ns.saturating_sub(since_ns),
                pid: Some(Pid(pid)),
                addresses: range.pages.start << 12..range.pages.end << 12,
                access_count: count(range.written_count),
                check_count: count(range.present_count).max(1),
                age_count: None,
            }));
        }
        soft_dirty::clear(&self.root, pid)?;
        let since_ns = sys::monotonic_ns();
        match known {
            Some(index) => self.watched[index].since_ns = since_ns,
            None => self.watched.push(Watched {
                incarnation,
                since_ns,
            }),
        }
        Ok(Some(fault_count))
    }

    /// What may be spent now.
    fn share(&self) -> f64 {
        match self.sampling {
            Sampling::Full => self.budget,
            Sampling::Cheap | Sampling::Off => self.budget / 10.0,
        }
    }
}

/// Time from the end of a round to the next that keeps what a round costs within a share of a CPU.
fn rest_ns(round_ns: u64, share: f64) -> u64 {
    let rest = round_ns as f64 / share.max(1e-6);
    (rest as u64).clamp(LEAST_NS, MOST_NS)
}

impl Tracker for WrittenTracker {
    fn name(&self) -> &'static str {
        "written"
    }

    /// `Cheap` has a tenth of the budget; `Off` clears nothing.
    fn set_sampling(&mut self, sampling: Sampling) {
        self.sampling = sampling;
    }

    /// Of one CPU, faults that the programs take because of it included.
    fn set_budget(&mut self, cpu_share: f64) {
        self.budget = cpu_share;
    }

    fn observe(&mut self, tree: &mut Tree, snapshot: &mut Snapshot) -> Result<()> {
        snapshot.metrics = GlobalMetrics::unknown(NOT_BY_WHOM);
        snapshot.sample_count = Evidence::unknown(NOT_BY_WHOM);
        snapshot.sample_period = 0;
        snapshot.samples_lost = 0;
        snapshot.pages.clear();
        let now_ns = sys::monotonic_ns();
        self.cost.wall_ns = now_ns.saturating_sub(self.opened_ns);
        // Programs pay for it: without anybody who wants to know there is none.
        if self.is_stopped || !self.keep || self.sampling == Sampling::Off {
            self.watched.clear();
            return Ok(());
        }
        if now_ns < self.due_ns {
            return Ok(());
        }
        let begun_ns = sys::thread_cpu_ns();
        let fault_count = self.round(tree, now_ns);
        let own_ns = sys::thread_cpu_ns().saturating_sub(begun_ns);
        self.cost.own_ns += own_ns;
        self.round_count += 1;
        let rest_ns = rest_ns(own_ns + fault_count * FAULT_NS, self.share());
        self.due_ns = sys::monotonic_ns() + rest_ns;
        Ok(())
    }

    fn keep_observations(&mut self, keep: bool) {
        self.keep = keep;
        if !keep {
            self.found.clear();
        }
    }

    fn take_observations(&mut self, into: &mut Observations) {
        into.regions.append(&mut self.found);
    }

    fn cost(&self) -> Option<Cost> {
        Some(self.cost)
    }

    fn stop(&mut self) {
        if std::mem::replace(&mut self.is_stopped, true) || self.round_count == 0 {
            return;
        }
        let seconds = |ns: u64| ns as f64 / 1e9;
        self.notes.push(format!(
            "written pages were looked for {} times in {:.1} s, which took {:.3} s of CPU time and \
             cost the programs some {} faults, {:.3} s by estimate; a mapping that is made or grows \
             counts as written as a whole",
            self.round_count,
            seconds(self.cost.wall_ns),
            seconds(self.cost.own_ns),
            self.fault_count,
            seconds(self.fault_count * FAULT_NS),
        ));
    }

    fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

#[cfg(test)]
mod tests;
