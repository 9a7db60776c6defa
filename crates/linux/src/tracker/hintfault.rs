//! The tracker `hintfault`: who uses which page, from NUMA hint faults, without a PMU.
//!
//! Mechanism: NUMA balancing takes page-table entries away, so that the next access to each page
//! faults. A software event of `perf_event_open(2)` on every CPU, with period 1, makes each fault
//! a sample: address, code, thread, CPU, time. That takes neither hardware nor a changed kernel.
//!
//! What a sample says: this CPU touched this page at this time. It comes once per page (or huge
//! page) and scan, however often the page is used, so that samples tell *who* uses a page and not
//! how much: they have no period, and no ratio of accesses follows from them. Whether it was a
//! load or a store is not told; page statistics count it as a read.
//!
//! First touches fault, too, and the event does not tell them apart. The first fault of a page
//! that was not in memory when watching began counts as its first touch, and is left out: who
//! fills a page is often not who uses it. What is known to be wrong
//! with that: a page that was filled without a fault of its own (a read-ahead of a file's pages,
//! memory inherited over a fork) loses its first sample; one that was given back and filled again
//! at the same address, and one that is copied on the first store after a fork, gains one. The
//! kernel's own count of hint faults ([`Totals::kernel`]) bounds that.
//!
//! What it does to others: the scan goes over every process. And the kernel does with hint faults
//! what it does them for: it moves pages to the node that touched them. Only memory that is bound
//! is left in place, and that is not scanned unless the policy says so: a program that hither
//! starts itself can be bound with `MPOL_F_NUMA_BALANCING` ([`crate::sys::place_child`]);
//! then it is sampled, and pages move only among the nodes that it is bound to. Foreign processes
//! cannot be given such a policy. So that it is told where accesses went, the last place of each page is
//! remembered, from its first touch, or from a look at all memory when watching begins, on: a page that
//! the kernel moved has both, where it was and where it is.

mod balancing;
mod known;

use known::Known;

pub use balancing::{Balancing, BalancingCounters, parse_counters};

use super::Tracker;
use super::by_page::{ByPage, home_of};
use crate::error::{Error, Result};
use crate::parse;
use crate::perf::sampler::{EventSpec, Sampler};
use crate::proc::{stat, tree::Tree};
use crate::restore;
use crate::root::Root;
use crate::sys;
use crate::topology::Topology;
use hither_core::ids::{CpuId, NodeId, Pid};
use hither_core::observation::{AccessKind, Observations, SampledAccess};
use hither_core::plan::Sampling;
use hither_core::set::{CpuSet, NodeSet};
use hither_core::snapshot::{Evidence, GlobalMetrics, PageStats, Snapshot};
use std::collections::HashMap;
use std::path::PathBuf;

/// Watched pages gone over per second at full sampling. In the lab a hint fault takes 2.1 us of
/// the program's time and 2.2 us of this tracker's: 8 % of one CPU each. On hardware: not measured.
const FULL_RATE: u64 = 40_000;
/// At cheap sampling: under 0.3 % of one CPU.
const CHEAP_RATE: u64 = 1_000;
/// Pages that are looked for when watching begins, at most (1 GiB): where others are is known from their
/// second fault on.
const MOST_LOOKED_AT: u64 = 1 << 18;
/// Time between two looks at memory in use and at the kernel's counts.
const PACE_NS: u64 = 1_000_000_000;
const BASIS: &str = "NUMA hint faults, sampled as page faults";
const NO_RATES: &str = "the tracker `hintfault` sees one access per page and scan, not how many; ratios \
                        are told by rounds of the scan";
const KERNEL_MOVES: &str = "hintfault: NUMA balancing is on while hither watches: the kernel moves \
                            pages of any process to the node that touched them, unless they are \
                            bound";

/// Reads hint faults.
#[derive(Debug)]
pub struct HintFaultTracker {
    root: Root,
    journals: PathBuf,
    /// Snapshot position and number of the node of each CPU, by the CPU's number.
    nodes: Vec<Option<(usize, NodeId)>>,
    cpus: Vec<CpuId>,
    sampling: Sampling,
    running: Option<Running>,
    by_page: ByPage,
    known: Known,
    /// The tree's, when the dead were forgotten last.
    generation: u32,
    faults: Vec<Fault>,
    /// Pages whose place was looked for besides.
    places: Vec<PageStats>,
    /// First touches of the interval: page, and incarnation of the process.
    touched: Vec<(u64, u32)>,
    paced_ns: u64,
    keep: bool,
    samples: Vec<SampledAccess>,
    totals: Totals,
    notes: Vec<String>,
    moves_told: bool,
}

/// What has to be ended again.
#[derive(Debug)]
struct Running {
    sampler: Sampler,
    balancing: Balancing,
    before: BalancingCounters,
    /// Of the watched, and of others, when they were looked at last.
    pages: (u64, u64),
    /// Are faults told, and was it looked before what programs have in memory?
    has_met: bool,
    /// When it began, in clock ticks since boot, and what had been taken away by then.
    began_ticks: u64,
    began_updates: u64,
}

/// What was seen since the tracker was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Faults of watched processes that count as hint faults.
    pub hint_faults: u64,
    /// Faults of watched processes that count as first touches.
    pub first_touches: u64,
    /// Faults of processes that are not watched. Their addresses are not looked at.
    pub foreign: u64,
    /// Samples that did not fit into the rings.
    pub lost: u64,
    /// What the kernel counted, of all processes.
    pub kernel: BalancingCounters,
    /// The time in which a watched process was gone over last, in ms, where it could be set.
    pub period_ms: Option<u64>,
}

/// One fault in user mode.
#[derive(Clone, Copy, Debug)]
struct Fault {
    time_ns: u64,
    pid: i32,
    tid: i32,
    cpu: u32,
    address: u64,
    code: u64,
}

impl HintFaultTracker {
    /// Checks that it can work. Nothing is changed before the first interval is observed.
    pub fn open(root: &Root, topology: &Topology) -> Result<Self> {
        Self::probe(root)?;
        let journals = restore::runtime_folder()?;
        let cpus: Vec<CpuId> = topology.online.iter().collect();
        let count = cpus.last().map_or(0, |cpu| cpu.0 as usize + 1);
        let node = |cpu| {
            let id = topology.node_of_cpu(CpuId(cpu))?;
            Some((topology.position(id)?, id))
        };
        Ok(Self {
            root: root.clone(),
            journals,
            nodes: (0..count as u32).map(node).collect(),
            cpus,
            sampling: Sampling::Cheap,
            running: None,
            by_page: ByPage::new(root),
            known: Known::default(),
            generation: 0,
            faults: Vec::new(),
            places: Vec::new(),
            touched: Vec::new(),
            paced_ns: 0,
            keep: false,
            samples: Vec::new(),
            totals: Totals::default(),
            notes: Vec::new(),
            moves_told: false,
        })
    }

    /// Can it work on this machine? On a captured one only files are looked at.
    ///
    /// # Errors
    /// The reason, and what would help.
    pub fn probe(root: &Root) -> Result<()> {
        let nodes = "sys/devices/system/node/has_memory";
        let with_memory = root.parse_if_any(nodes, parse::list::<NodeId>)?;
        if with_memory.is_some_and(|nodes: NodeSet| nodes.len() < 2) {
            return Err(Error::new(
                root.path(nodes),
                "a machine with one node has no hint faults",
                "use a machine with several nodes, or the lab",
            ));
        }
        Balancing::probe(root)?;
        if root.is_host() {
            let online: CpuSet = root.parse("sys/devices/system/cpu/online", parse::list)?;
            let cpu = online.iter().next().unwrap_or(CpuId(0));
            Sampler::probe(root, &EventSpec::page_faults(), cpu)?;
        }
        Ok(())
    }

    /// What was seen so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// What starts after this is gone over soon: how soon is decided when a process executes its program.
    /// Faults are told from [`Self::meet`] on.
    fn start(&mut self) -> Result<()> {
        let sampler = Sampler::open(&self.root, &EventSpec::page_faults(), &self.cpus)?;
        let balancing = Balancing::begin(&self.root, &self.journals, &mut self.notes)?;
        if !std::mem::replace(&mut self.moves_told, true) {
            self.notes.push(KERNEL_MOVES.to_owned());
        }
        self.paced_ns = 0;
        self.running = Some(Running {
            sampler,
            balancing,
            before: BalancingCounters::read(&self.root).unwrap_or_default(),
            pages: (0, 0),
            has_met: false,
            began_ticks: stat::ticks_now(),
            began_updates: self.totals.kernel.updates,
        });
        Ok(())
    }

    /// Takes the faults of the interval out of the rings, ascending by process, page and time; returns
    /// how many were lost.
    fn read_faults(&mut self) -> u64 {
        self.faults.clear();
        let Some(running) = &mut self.running else {
            return 0;
        };
        let faults = &mut self.faults;
        let reading = running.sampler.drain(|sample| {
            let fault = || {
                Some(Fault {
                    time_ns: sample.time_ns?,
                    pid: sample.pid?,
                    tid: sample.tid?,
                    cpu: sample.cpu?,
                    address: sample.address?,
                    code: sample.ip?,
                })
            };
            faults.extend(fault());
        });
        // Neighbours together, each page in time: what is known of them is found by blocks.
        faults.sort_unstable_by_key(|fault| (fault.pid, fault.address >> 12, fault.time_ns));
        self.totals.lost += reading.lost;
        reading.lost
    }

    /// Sorts the faults into hint faults and first touches; returns how many hint faults there
    /// were.
    fn count(&mut self, tree: &Tree, snapshot: &mut Snapshot) -> u64 {
        let watched = lives(tree);
        if std::mem::replace(&mut self.generation, tree.generation()) != tree.generation() {
            self.known
                .keep(|owner| tree.by_incarnation(owner).is_some());
        }
        let mut hint_faults = 0;
        self.touched.clear();
        for own in self.faults.chunk_by(|a, b| a.pid == b.pid) {
            let pid = own[0].pid;
            let Some(&owner) = watched.get(&pid) else {
                self.totals.foreign += own.len() as u64;
                continue;
            };
            let pages = own.iter().map(|fault| fault.address >> 12);
            let mut faults = own.iter();
            self.known.touch(owner, pages, |page, was_there| {
                let Some(fault) = faults.next() else {
                    return;
                };
                let Some(&Some((position, from))) = self.nodes.get(fault.cpu as usize) else {
                    return;
                };
                if !was_there {
                    self.touched.push((page, owner));
                    return;
                }
                hint_faults += 1;
                self.by_page.add(pid, page, position, false);
                if self.keep {
                    self.samples.push(sampled(fault, from));
                }
            });
        }
        self.totals.hint_faults += hint_faults;
        self.totals.first_touches += self.touched.len() as u64;
        self.by_page.finish(tree, &mut snapshot.pages);
        note(&mut self.known, &watched, &mut snapshot.pages);
        for &(page, owner) in &self.touched {
            if let Some(process) = tree.by_incarnation(owner) {
                self.by_page.add(process.pid, page, 0, false);
            }
        }
        self.note_places(tree, &watched);
        self.know_huge(tree);
        self.samples.sort_unstable_by_key(|sample| sample.time_ns);
        for sample in self.samples.iter_mut().filter(|s| s.home.is_none()) {
            sample.home = home_of(&snapshot.pages, sample.pid.0, sample.address >> 12);
        }
        hint_faults
    }

    /// Looks what programs have in memory, and has faults told from then on: a page that is filled before
    /// costs a fraction of its first touch told.
    fn meet(&mut self, tree: &Tree) -> Result<()> {
        if self.running.as_ref().is_none_or(|running| running.has_met) {
            return Ok(());
        }
        self.known = Known::of(tree.processes().iter());
        self.look_around(tree);
        if let Some(running) = &mut self.running {
            running.sampler.switch(true)?;
            running.has_met = true;
        }
        Ok(())
    }

    /// Where all memory of the watched is that was there before, as far as that much can be remembered.
    fn look_around(&mut self, tree: &Tree) {
        let mut left = MOST_LOOKED_AT;
        for process in tree.processes() {
            let Some(map) = &process.pagemap else {
                continue;
            };
            let owner = process.incarnation;
            let mut ranges = self.known.at_start(owner).to_vec();
            for range in &mut ranges {
                range.end = range.end.min(range.start + left);
                left -= range.end - range.start;
            }
            let places = self.by_page.places(process.pid, map, &ranges);
            self.known.place(owner, places.into_iter());
        }
    }

    /// Notes where the pages are that were added to `by_page`.
    fn note_places(&mut self, tree: &Tree, watched: &HashMap<i32, u32>) {
        self.by_page.finish(tree, &mut self.places);
        note(&mut self.known, watched, &mut self.places);
    }

    /// A huge page faults at any address: all of it is known where a first touch made one.
    fn know_huge(&mut self, tree: &Tree) {
        self.touched
            .sort_unstable_by_key(|&(page, owner)| (owner, page));
        for own in self.touched.chunk_by_mut(|a, b| a.1 == b.1) {
            let owner = own[0].1;
            let process = tree.by_incarnation(owner);
            let Some(map) = process.and_then(|process| process.pagemap.as_ref()) else {
                continue;
            };
            let mut huge = Vec::new();
            for (index, entry) in own.iter_mut().enumerate() {
                entry.1 = index as u32;
            }
            self.by_page.each_huge(map, own, |index| huge.push(index));
            for index in huge {
                self.known.add_huge(owner, own[index as usize].0);
            }
        }
    }

    /// The pace for the memory that there is now, and the kernel's counts; not in every interval,
    /// as both are long texts.
    fn pace(&mut self, tree: &Tree) -> Result<()> {
        let now_ns = sys::monotonic_ns();
        let Some(running) = &mut self.running else {
            return Ok(());
        };
        running.balancing.go_on(now_ns)?;
        if now_ns.saturating_sub(self.paced_ns) < PACE_NS {
            return Ok(());
        }
        self.paced_ns = now_ns;
        let pages = tree.processes().iter().map(|p| p.resident_pages).sum();
        let memory = self.root.parse("proc/meminfo", parse::proc_meminfo)?;
        let used = memory.total_kb.saturating_sub(memory.free_kb) / 4;
        running.pages = (pages, used.saturating_sub(pages));
        self.add_kernel_counts();
        if let Some(running) = &mut self.running {
            let processes = tree.processes().iter();
            let ran_before = processes.filter(|p| p.birth().start_ticks < running.began_ticks);
            let older = ran_before.map(|process| process.resident_pages).sum();
            let updates = self.totals.kernel.updates - running.began_updates;
            running.balancing.stretch(updates, older)?;
        }
        self.set_pace()
    }

    /// For the sampling that is wanted, and the memory that was seen last.
    fn set_pace(&mut self) -> Result<()> {
        let rate = match self.sampling {
            Sampling::Full => FULL_RATE,
            Sampling::Cheap | Sampling::Off => CHEAP_RATE,
        };
        match &mut self.running {
            Some(Running {
                balancing,
                pages: (watched @ 1.., others),
                ..
            }) => {
                balancing.pace(*watched, *others, rate, sys::monotonic_ns())?;
                self.totals.period_ms = balancing.period_ms();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn add_kernel_counts(&mut self) {
        let Some(running) = &mut self.running else {
            return;
        };
        let now = BalancingCounters::read(&self.root).unwrap_or_default();
        let change = now.since(&running.before);
        running.before = now;
        let sum = &mut self.totals.kernel;
        sum.updates += change.updates;
        sum.hint_faults += change.hint_faults;
        sum.local_hint_faults += change.local_hint_faults;
        sum.pages_migrated += change.pages_migrated;
    }
}

/// Incarnation of each watched process, by its number.
fn lives(tree: &Tree) -> HashMap<i32, u32> {
    let processes = tree.processes().iter();
    processes
        .map(|process| (process.pid, process.incarnation))
        .collect()
}

/// Notes where pages, ascending by process, are and were.
fn note(known: &mut Known, lives: &HashMap<i32, u32>, pages: &mut [PageStats]) {
    for own in pages.chunk_by_mut(|a, b| a.pid == b.pid) {
        if let Some(&owner) = lives.get(&own[0].pid.0) {
            known.note(owner, own);
        }
    }
}

fn sampled(fault: &Fault, from: NodeId) -> SampledAccess {
    SampledAccess {
        time_ns: fault.time_ns,
        pid: Pid(fault.pid),
        tid: Some(fault.tid),
        cpu: Some(CpuId(fault.cpu)),
        from: Some(from),
        home: None,
        address: fault.address,
        code: Some(fault.code),
        kind: AccessKind::Unknown,
        latency_ns: None,
        from_cache: None,
        weight: 1,
    }
}

impl Tracker for HintFaultTracker {
    fn name(&self) -> &'static str {
        "hintfault"
    }

    fn set_sampling(&mut self, sampling: Sampling) {
        let has_changed = std::mem::replace(&mut self.sampling, sampling) != sampling;
        match sampling {
            Sampling::Off => self.stop(),
            // What is wrong is told when somebody looks.
            _ if self.running.is_none() => drop(self.start()),
            _ if has_changed => drop(self.set_pace()),
            _ => {}
        }
    }

    fn observe(&mut self, tree: &mut Tree, snapshot: &mut Snapshot) -> Result<()> {
        snapshot.metrics = GlobalMetrics::unknown(NO_RATES);
        snapshot.sample_period = 0;
        snapshot.samples_lost = 0;
        snapshot.pages.clear();
        if self.sampling == Sampling::Off {
            snapshot.sample_count = Evidence::unknown("sampling is switched off");
            return Ok(());
        }
        if self.running.is_none() {
            self.start()?;
        }
        self.meet(tree)?;
        snapshot.samples_lost = self.read_faults();
        let hint_faults = self.count(tree, snapshot);
        snapshot.sample_count = Evidence::measured(hint_faults, BASIS);
        self.pace(tree)
    }

    fn keep_observations(&mut self, keep: bool) {
        self.keep = keep;
        self.samples.clear();
    }

    fn take_observations(&mut self, into: &mut Observations) {
        into.samples.append(&mut self.samples);
    }

    fn stop(&mut self) {
        self.add_kernel_counts();
        let Some(mut running) = self.running.take() else {
            return;
        };
        let ended = running.balancing.end();
        self.notes.extend(ended.err().map(|error| {
            format!(
                "hintfault: a setting could not be put back, the next start tries again: {error}"
            )
        }));
    }

    fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured::Captured;

    #[test]
    fn a_machine_without_hint_faults_is_told_so() {
        let captured = Captured::new();
        let root = captured.root.clone();
        let why = || HintFaultTracker::probe(&root).unwrap_err().to_string();
        assert!(why().contains("no NUMA balancing"), "{}", why());
        captured.put("proc/sys/kernel/numa_balancing", "0\n");
        HintFaultTracker::probe(&root).unwrap();
        captured.put("sys/devices/system/node/has_memory", "0\n");
        assert!(why().contains("one node has no hint faults"), "{}", why());
        captured.put("sys/devices/system/node/has_memory", "0-1\n");
        HintFaultTracker::probe(&root).unwrap();
    }
}
