//! The tracker `damon`: which addresses are used, from the accessed bits of page tables.
//!
//! Linux's DAMON checks one page of each region per sampling interval, counts over an aggregation
//! how often it was accessed, and then merges what is alike and splits the rest at random. Each
//! watched process has a kdamond of its own ([`admin`]); physical addresses have one.
//!
//! **How results are read.** By the tracepoint `damon:damon_aggregated`, through a perf event on
//! the kdamond's thread, which also tells when that was on a CPU: 72 bytes per region into a
//! ring that is read without calls, with the kernel's own time of the aggregation, and gone with
//! this process however it ends. The other way, `update_schemes_tried_regions`, makes a folder with
//! files per region in sysfs: on Linux 7.3 in the lab 114 regions took 40 ms to update and 30 ms to
//! read by `cat`, of every 100 ms.
//!
//! **How many regions.** A hot set that fills less than about a tenth of a region is lost: its
//! checks are rarer than the difference (a tenth) up to which DAMON merges. So the least number
//! of regions counts, which DAMON also takes as the largest size of one: with its default of 10,
//! 16 MB in 4 GB is 4 % of a region. Here it is as large as the budget of CPU time allows, found
//! by measuring what the kdamonds take (`fit.rs`); the most is four times that, because DAMON
//! splits only while there are less than half of the most. They are spread over what is mapped
//! (`ranges.rs`). Where the least number would have to
//! be below [`LEAST_REGIONS`], the adaptive setting looks more rarely instead. DAMON's own tuning
//! (`intervals_goal`) is left off: it aims at a share of accesses and knows no cost, and it would
//! stretch the 3.2 s of the thesis's history. Boundaries inside a region are found from its count
//! by [`hither_core::refine`], after the fact: observations hold what the kernel told.
//!
//! What it does not tell: by whom, and how often a page is used between two checks. For who decides by
//! snapshots, pages are drawn from the regions of the aggregations since the last look, in proportion to
//! their use (`draws.rs`).

pub mod admin;
mod draws;
pub mod events;
mod fit;
mod ranges;

pub use fit::{LEAST_REGIONS, Pace, Setting};

use super::{Cost, Tracker};
use crate::error::{Error, Result};
use crate::filter;
use crate::parse;
use crate::perf::ring::Ring;
use crate::perf::switches::{self, OnCpu};
use crate::proc::maps;
use crate::proc::tree::{LiveProcess, Tree};
use crate::restore::{self, Journal};
use crate::root::Root;
use crate::sys::{self, EventAttribute, EventScope};
use admin::Target;
use draws::{Drawing, Used};
use events::{Collector, Layout};
use fit::Saturation;
use hither_core::ids::Pid;
use hither_core::observation::{Observations, RegionAccess};
use hither_core::plan::Sampling;
use hither_core::snapshot::{Evidence, GlobalMetrics, Snapshot};
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// Pages of a kdamond's ring: 512 KiB hold 7000 regions.
const RING_PAGES: usize = 128;
/// A process with fewer resident pages (1 MiB) is not worth a kdamond.
const WORTH_PAGES: u64 = 256;
/// `PERF_TYPE_TRACEPOINT`; `PERF_SAMPLE_RAW`.
const TRACEPOINT: u32 = 2;
const RAW: u64 = 1 << 10;
/// Mappings are looked at when there are more or fewer bytes of them, else as often; and so rarely
/// that it takes a share of a CPU of one in so many.
const LOOK_NS: u64 = 5_000_000_000;
const LOOK_SHARE: u64 = 200;
/// Cost is judged over at least this long.
const JUDGE_NS: u64 = 500_000_000;
/// Share of the budget at cheap sampling: what is seen must tell much use from little, or a change goes unnoticed.
const CHEAP_SHARE: f64 = 0.25;
const NOT_BY_WHOM: &str = "the tracker `damon` sees which addresses are used, not who uses them";

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// The virtual addresses of the watched processes.
    Virtual,
    /// The physical addresses of the machine, whoever uses them.
    Physical,
}

/// A kdamond at work.
#[derive(Debug)]
struct Watched {
    slot: u32,
    /// 0 for physical addresses.
    incarnation: u32,
    /// CPU time of its thread, out of the same ring.
    on_cpu: OnCpu,
    /// What it was told to watch of a process that had so many bytes mapped, when that was looked at,
    /// and what the look took.
    ranges: Vec<Range<u64>>,
    mapped_bytes: u64,
    looked: (u64, u64),
    /// What the aggregations since the last look found in use, or, where none has ended since, those before.
    used: Vec<Used>,
    /// The event lives as long as its ring.
    _event: File,
    ring: Ring,
    collector: Collector,
}

/// Watches through DAMON.
#[derive(Debug)]
pub struct DamonTracker {
    root: Root,
    addresses: Addresses,
    setting: Setting,
    pace: Pace,
    /// Share of the machine's CPU time that watching may take.
    budget: f64,
    sampling: Sampling,
    /// `None` once everything has been put back.
    journal: Option<Journal>,
    layout: Layout,
    physical: Vec<Range<u64>>,
    mark_us: u64,
    cpu_count: u32,
    watched: Vec<Watched>,
    /// Processes that the kernel refused, by incarnation.
    refused: Vec<u32>,
    told_full: bool,
    keep: bool,
    /// Are pages drawn?
    draws: bool,
    drawing: Drawing,
    /// CPU time of taking results in.
    drained_ns: u64,
    /// Of what was told since the last judgement.
    saturation: Saturation,
    found: Vec<RegionAccess>,
    opened_ns: u64,
    cost: Cost,
    /// CPU time that the pace determines, and time, at the last judgement.
    judged: (u64, u64),
    notes: Vec<String>,
}

impl DamonTracker {
    /// Takes DAMON, and notes what to put back in the user's runtime folder.
    ///
    /// # Errors
    /// No DAMON here, not root, no tracefs, or somebody else uses it.
    pub fn open(root: &Root, addresses: Addresses, setting: Setting, budget: f64) -> Result<Self> {
        let folder = restore::runtime_folder()?;
        Self::open_in(root, &folder, addresses, setting, budget)
    }

    /// The same with the journal in another folder.
    pub fn open_in(
        root: &Root,
        folder: &Path,
        addresses: Addresses,
        setting: Setting,
        budget: f64,
    ) -> Result<Self> {
        if root.is_host() && sys::effective_uid() != 0 {
            return Err(Error::new(
                root.path(admin::KDAMONDS),
                "DAMON is root's alone",
                "run hither as root",
            ));
        }
        // What a dead owner left is put back before anybody is asked whether DAMON is free.
        let (mut journal, note) = Journal::open(root, folder, "damon")?;
        admin::check_free(root)?;
        let layout = Layout::read(root)?;
        let physical = match addresses {
            Addresses::Virtual => Vec::new(),
            Addresses::Physical => memory(root)?,
        };
        let cpu_count = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        // How often new mappings are looked for: five times a second, give or take what marks our
        // kdamonds as this process's.
        let mark_us = 200_000 + u64::from(std::process::id() % 100_000);
        journal.begin(admin::settings(root, mark_us)?)?;
        let opened_ns = sys::monotonic_ns();
        let mut tracker = Self {
            root: root.clone(),
            addresses,
            setting,
            pace: setting.first(budget * f64::from(cpu_count)),
            budget,
            sampling: Sampling::Full,
            journal: Some(journal),
            layout,
            physical,
            mark_us,
            cpu_count,
            watched: Vec::new(),
            refused: Vec::new(),
            told_full: false,
            keep: false,
            draws: false,
            drawing: Drawing::new(root),
            drained_ns: 0,
            saturation: Saturation::default(),
            found: Vec::new(),
            opened_ns,
            cost: Cost::default(),
            judged: (0, opened_ns),
            notes: note.into_iter().collect(),
        };
        if admin::stat_is_on(root) {
            let note = "damon_stat is off while hither watches, because it holds the only slot";
            tracker.notes.push(note.to_owned());
        }
        // Where this fails, dropping the tracker puts back what was changed so far.
        admin::claim(root)?;
        Ok(tracker)
    }

    /// How densely it looks now.
    #[must_use]
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Aggregations that were lost because the ring was not read in time.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.watched.iter().map(|w| w.collector.dropped).sum()
    }

    fn start(&mut self, process: Option<&LiveProcess>) -> Result<()> {
        let taken = |slot: &u32| self.watched.iter().any(|watched| watched.slot == *slot);
        let Some(slot) = (0..admin::SLOTS).find(|slot| !taken(slot)) else {
            if !std::mem::replace(&mut self.told_full, true) {
                let most = admin::SLOTS;
                self.notes.push(format!(
                    "more than {most} processes: the others are not watched"
                ));
            }
            return Ok(());
        };
        let pid = process.map(|process| process.pid);
        let (target, ranges) = match pid {
            Some(pid) => {
                let ranges = ranges::worth(&maps::read(&self.root, pid)?, self.pace.min_regions);
                let unit = ranges::unit(&ranges, self.pace.min_regions);
                let pieces = ranges::pieces(&ranges, &[], unit);
                (Target::Process(pid, pieces), ranges)
            }
            None => (Target::Physical(self.physical.clone()), Vec::new()),
        };
        let kdamond = admin::start(&self.root, slot, &target, &self.pace, self.mark_us)?;
        let opened = self.attach(kdamond);
        let (event, ring) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                admin::stop(&self.root, slot)?;
                return Err(error);
            }
        };
        if self.watched.is_empty() {
            self.judged = (self.spent_ns(), sys::monotonic_ns());
        }
        self.watched.push(Watched {
            slot,
            incarnation: process.map_or(0, |process| process.incarnation),
            on_cpu: OnCpu::default(),
            ranges,
            mapped_bytes: process.map_or(0, |process| process.mapped_bytes),
            looked: (sys::monotonic_ns(), 0),
            used: Vec::new(),
            _event: event,
            ring,
            collector: Collector::new(
                self.layout.clone(),
                pid.map(Pid),
                self.pace.check_count(),
                sys::monotonic_ns(),
            ),
        });
        Ok(())
    }

    /// The tracepoint on a kdamond's thread.
    fn attach(&self, kdamond: i32) -> Result<(File, Ring)> {
        let mut attribute = EventAttribute::of_user_mode(TRACEPOINT, [self.layout.id, 0, 0]);
        attribute.sample_period = 1;
        attribute.sample_type = RAW;
        switches::ask(&mut attribute);
        let opened = sys::open_event(&attribute, EventScope::Task(kdamond), None);
        opened
            .and_then(|event| Ring::new(&event, RING_PAGES).map(|ring| (event, ring)))
            .map_err(|error| {
                Error::io(
                    "perf_event_open",
                    format!("the tracepoint of the kdamond cannot be watched ({error})"),
                    "run hither as root, outside of containers that have processes of their own",
                    error,
                )
            })
    }

    fn drain(&mut self) {
        for watched in &mut self.watched {
            let (ring, collector) = (&mut watched.ring, &mut watched.collector);
            let before = self.found.len();
            ring.drain(|record| {
                self.cost.kernel_ns += watched.on_cpu.add(record);
                collector.add(record, &mut self.found);
            });
            let found = &self.found[before..];
            if !self.draws || found.is_empty() {
                continue;
            }
            let aggregations = found.chunk_by(|a, b| a.time_ns == b.time_ns).count();
            let used = found
                .iter()
                .filter_map(|region| Used::of(region, aggregations));
            watched.used.clear();
            watched.used.extend(used);
            for region in found {
                self.saturation.add(region);
            }
        }
    }

    /// Stops the kdamonds that `gone` says.
    fn stop_those(&mut self, mut gone: impl FnMut(&Watched) -> bool) -> Result<()> {
        let mut result = Ok(());
        let root = &self.root;
        self.watched.retain(|watched| {
            let stay = !gone(watched);
            if !stay {
                let stopped = admin::stop(root, watched.slot);
                result = std::mem::replace(&mut result, Ok(())).and(stopped);
            }
            stay
        });
        result
    }

    fn follow(&mut self, tree: &Tree) -> Result<()> {
        // Nothing is started after the stop, when nobody would put it back.
        if self.sampling == Sampling::Off || self.journal.is_none() {
            return self.stop_those(|_| true);
        }
        if self.addresses == Addresses::Physical {
            return match self.watched.is_empty() {
                true => self.start(None),
                false => Ok(()),
            };
        }
        self.stop_those(|watched| tree.by_incarnation(watched.incarnation).is_none())?;
        self.refused
            .retain(|&refused| tree.by_incarnation(refused).is_some());
        // A process without a page map is somebody else's.
        let is_worth = |process: &&LiveProcess| {
            process.resident_pages >= WORTH_PAGES && process.pagemap.is_some()
        };
        let worth = tree.processes().iter().filter(is_worth);
        let count = worth.clone().count().min(admin::SLOTS as usize);
        if self.watched.is_empty() && count > 1 {
            // They share the budget from the start, before anything is measured.
            let budget = self.budget * f64::from(self.cpu_count);
            self.pace = self.setting.first(budget / count as f64);
        }
        for process in worth {
            let known = |w: &Watched| w.incarnation == process.incarnation;
            if self.watched.iter().any(known) || self.refused.contains(&process.incarnation) {
                continue;
            }
            if let Err(error) = self.start(Some(process)) {
                // It may just have ended; any other reason holds for all of them.
                if self.root.has(&format!("proc/{}", process.pid)) {
                    return Err(error);
                }
                self.refused.push(process.incarnation);
            }
        }
        Ok(())
    }

    /// Looks at the mappings of processes, and tells kdamonds of new ones.
    fn look(&mut self, tree: &Tree, now_ns: u64) -> Result<()> {
        let (root, pace) = (&self.root, self.pace);
        let mut refused = Vec::new();
        for watched in &mut self.watched {
            let process = tree.by_incarnation(watched.incarnation);
            let (looked_ns, took_ns) = watched.looked;
            let passed_ns = now_ns.saturating_sub(looked_ns);
            let is_due = |process: &&LiveProcess| {
                passed_ns >= LOOK_SHARE * took_ns
                    && (process.mapped_bytes != watched.mapped_bytes || passed_ns >= LOOK_NS)
            };
            let Some(process) = process.filter(is_due) else {
                continue;
            };
            let begun_ns = sys::thread_cpu_ns();
            // One that has just ended is dropped when the tree knows.
            let Ok(mappings) = maps::read(root, process.pid) else {
                continue;
            };
            let found = ranges::worth(&mappings, pace.min_regions);
            let unit = ranges::unit(&found, pace.min_regions);
            if !found.is_empty() && ranges::differ(&found, &watched.ranges, unit) {
                let pieces = ranges::pieces(&found, &watched.ranges, unit);
                if admin::commit(root, watched.slot, &pace, &pieces).is_err() {
                    refused.push(watched.slot);
                }
                watched.ranges = found;
            }
            watched.mapped_bytes = process.mapped_bytes;
            watched.looked = (now_ns, sys::thread_cpu_ns().saturating_sub(begun_ns));
        }
        self.stop_those(|watched| refused.contains(&watched.slot))
    }

    /// CPU time that the pace determines: neither changes of it do, nor pages that are drawn.
    fn spent_ns(&self) -> u64 {
        self.cost.kernel_ns + self.drained_ns
    }

    /// Looks at what watching costs, and changes the pace where it is too much or needlessly little.
    fn judge(&mut self, now_ns: u64) -> Result<()> {
        let (before, since_ns) = self.judged;
        let passed_ns = now_ns.saturating_sub(since_ns);
        if passed_ns < JUDGE_NS.max(3000 * self.pace.sample_us) || self.watched.is_empty() {
            return Ok(());
        }
        let spent = self.spent_ns().saturating_sub(before);
        let share = spent as f64 / passed_ns as f64 / f64::from(self.cpu_count);
        let budget = match self.sampling {
            Sampling::Full => self.budget,
            Sampling::Cheap | Sampling::Off => self.budget * CHEAP_SHARE,
        };
        let use_ = share / budget;
        let is_saturated = self.saturation.is_high();
        let Some(fitted) = fit::fit(&self.setting, self.pace, use_, passed_ns, is_saturated) else {
            if passed_ns >= fit::SURE_NS {
                self.judged = (self.spent_ns(), now_ns);
                self.saturation = Saturation::default();
            }
            return Ok(());
        };
        self.pace = fitted;
        self.judged = (self.spent_ns(), now_ns);
        self.saturation = Saturation::default();
        let (root, pace) = (&self.root, self.pace);
        let mut refused = Vec::new();
        for watched in &mut self.watched {
            match admin::commit(root, watched.slot, &pace, &[]) {
                Ok(()) => watched.collector.set_check_count(pace.check_count()),
                Err(_) => refused.push(watched.slot),
            }
        }
        // The next look starts these again, with the new pace and without what they knew.
        self.stop_those(|watched| refused.contains(&watched.slot))
    }
}

/// Physical memory that Linux uses.
fn memory(root: &Root) -> Result<Vec<Range<u64>>> {
    let ranges = root.parse("proc/iomem", parse::system_memory)?;
    if ranges.is_empty() {
        return Err(Error::new(
            root.path("proc/iomem"),
            "tells no physical addresses to this user",
            filter::as_root("SYS_ADMIN"),
        ));
    }
    Ok(ranges)
}

impl Tracker for DamonTracker {
    fn name(&self) -> &'static str {
        "damon"
    }

    /// `Cheap` has a quarter of the budget; `Off` stops the kdamonds.
    fn set_sampling(&mut self, sampling: Sampling) {
        self.sampling = sampling;
    }

    fn observe(&mut self, tree: &mut Tree, snapshot: &mut Snapshot) -> Result<()> {
        let begun_ns = sys::thread_cpu_ns();
        snapshot.metrics = GlobalMetrics::unknown(NOT_BY_WHOM);
        snapshot.sample_count = Evidence::unknown(NOT_BY_WHOM);
        snapshot.sample_period = 0;
        snapshot.samples_lost = 0;
        snapshot.pages.clear();
        self.drain();
        self.drained_ns += sys::thread_cpu_ns().saturating_sub(begun_ns);
        if self.draws {
            let regions = self.watched.iter().flat_map(|watched| {
                let process = tree.by_incarnation(watched.incarnation);
                let used = watched.used.iter();
                used.filter_map(move |used| Some((process?.pid, used)))
            });
            let most = draws::most(self.sampling, self.cpu_count);
            self.drawing.fill(regions, most, tree, snapshot);
        }
        if !self.keep {
            self.found.clear();
        }
        let now_ns = sys::monotonic_ns();
        let result = self
            .judge(now_ns)
            .and_then(|()| self.follow(tree))
            .and_then(|()| self.look(tree, now_ns));
        self.cost.own_ns += sys::thread_cpu_ns().saturating_sub(begun_ns);
        self.cost.wall_ns = now_ns.saturating_sub(self.opened_ns);
        result
    }

    fn keep_observations(&mut self, keep: bool) {
        self.keep = keep;
    }

    fn fill_in_pages(&mut self, fill_in: bool) {
        self.draws = fill_in;
    }

    fn take_observations(&mut self, into: &mut Observations) {
        into.regions.append(&mut self.found);
    }

    fn cost(&self) -> Option<Cost> {
        Some(self.cost)
    }

    fn stop(&mut self) {
        let stopped = self.stop_those(|_| true);
        let Some(mut journal) = self.journal.take() else {
            return;
        };
        if let Err(error) = stopped.and_then(|()| journal.put_back()) {
            self.notes.push(format!(
                "DAMON is not as it was: {error}; the next start of hither tries again"
            ));
        }
    }

    fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

impl Drop for DamonTracker {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
