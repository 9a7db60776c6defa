//! The tracker `perf`: sampled accesses with address, source and latency, from the PMU.
//!
//! What is sampled: on Intel loads that take [`LEAST_CYCLES`] or more (PEBS, the event `mem-loads`
//! with `ldlat`, behind `mem-loads-aux` where the hardware wants that); on AMD operations (IBS),
//! of which loads and stores count. Arm SPE writes packets to a ring of another kind, which this
//! release does not read. The kernel finds the period for a set number of samples per second.
//!
//! Accesses that memory served count; what caches served is no matter of placement. Where memory
//! served from, near or far, is told by the hardware, the node by where the page is. Rates, stalls and
//! traffic come from counting events (`counts`).
//!
//! Not measured so far: no machine with a PMU was at hand. What is tested is the choice of the
//! event, its opening up to the kernel's refusal, and the reading of samples.

mod counts;

use super::Tracker;
use super::by_page::{ByPage, home_of};
use crate::error::{Error, Result};
use crate::parse;
use crate::perf::pmu::Pmu;
use crate::perf::record::{PerfSample, field};
use crate::perf::sampler::{EventSpec, Sampler};
use crate::perf::source::{DataSource, Operation};
use crate::proc::cpuinfo;
use crate::proc::tree::Tree;
use crate::root::Root;
use crate::sys::{EventAttribute, event_flag};
use crate::topology::Topology;
use counts::Counts;
use hither_core::ids::{CpuId, NodeId, Pid};
use hither_core::metrics::sampled_latency_ns;
use hither_core::observation::{AccessKind, Observations, SampledAccess};
use hither_core::plan::Sampling;
use hither_core::set::CpuSet;
use hither_core::snapshot::{Evidence, GlobalMetrics, LINE_BYTES, Snapshot};
use hither_core::working_set::WorkingSets;
use std::collections::HashSet;

/// Loads that take fewer cycles were served by a near cache (`perf mem` takes 30, too).
pub const LEAST_CYCLES: u64 = 30;
/// Samples per second over all CPUs, at full and at cheap sampling; as the tracker `opium`.
const FULL_RATE: u64 = 50_000;
const CHEAP_RATE: u64 = 2_000;
/// Samples per second and CPU: bounds for very large and very small machines.
const LEAST_PER_CPU: u64 = 10;
pub(super) const MOST_PER_CPU: u64 = 4_000;
const BASIS: &str = "sampled accesses that memory served";
const NO_COUNTERS: &str =
    "no counting event of this machine tells it (`hither topo --doctor`, counts)";

const SAMPLE_TYPE: u64 = field::IP
    | field::TID
    | field::TIME
    | field::ADDR
    | field::CPU
    | field::PERIOD
    | field::DATA_SRC;

/// An event source that samples memory accesses.
#[derive(Clone, Debug)]
pub struct MemoryEvent {
    /// Name of the source in sysfs.
    pub pmu: String,
    /// What is asked of it.
    pub spec: EventSpec,
    /// Its CPUs; `None`: all.
    pub cpus: Option<CpuSet>,
}

/// The memory events of this machine: one, or one for each kind of core.
///
/// # Errors
/// There is none: why, and what would help.
pub fn memory_events(root: &Root) -> Result<Vec<MemoryEvent>> {
    events_of(root, false)
}

/// The same; `with_hits`: what caches served shall be sampled, too.
fn events_of(root: &Root, with_hits: bool) -> Result<Vec<MemoryEvent>> {
    let mut found = Vec::new();
    let mut without = None;
    for name in ["cpu", "cpu_core", "cpu_atom"] {
        match Pmu::read(root, name)? {
            Some(pmu) if pmu.has_event("mem-loads") => found.push(intel(&pmu)?),
            Some(_) => without = without.or(Some(name)),
            None => {}
        }
    }
    if found.is_empty()
        && let Some(pmu) = Pmu::read(root, "ibs_op")?
    {
        found.push(amd(&pmu, with_hits)?);
    }
    if !found.is_empty() {
        return Ok(found);
    }
    let place = root.path("sys/bus/event_source/devices");
    if Pmu::read(root, "arm_spe_0")?.is_some() {
        return Err(Error::new(
            place.join("arm_spe_0"),
            "samples of Arm SPE are packets in an auxiliary ring, which this release does not read",
            "use the tracker `hintfault`",
        ));
    }
    Err(match without {
        Some(name) => Error::new(
            place.join(name),
            "the PMU counts and does not sample memory accesses (no event `mem-loads`, no \
             `ibs_op`): a virtual machine gets no more, or the hardware is too old",
            "use real hardware, or the tracker `hintfault`",
        ),
        None => Error::new(
            place,
            "this machine has no PMU (a virtual machine without one, or perf is not built in)",
            "let the hypervisor pass the PMU through (QEMU: -cpu host,pmu=on), or use real \
             hardware",
        ),
    })
}

fn intel(pmu: &Pmu) -> Result<MemoryEvent> {
    let own: &[_] = match pmu.has_term("ldlat") {
        true => &[("ldlat", LEAST_CYCLES)],
        false => &[],
    };
    let mut attribute = sampled(pmu.kind, pmu.event("mem-loads", own)?.words);
    attribute.flags |= event_flag::PRECISE;
    let aux = pmu.has_event("mem-loads-aux");
    let leader = aux.then(|| pmu.event("mem-loads-aux", &[])).transpose()?;
    Ok(MemoryEvent {
        pmu: pmu.name.clone(),
        spec: EventSpec {
            what: "loads from memory",
            attribute,
            leader: leader.map(|code| EventAttribute::of_user_mode(pmu.kind, code.words)),
        },
        cpus: pmu.cpus.clone(),
    })
}

fn amd(pmu: &Pmu, with_hits: bool) -> Result<MemoryEvent> {
    // By operations rather than cycles, and, from Zen 4 on, only those that missed the last cache.
    let wanted: &[_] = match with_hits {
        true => &["cnt_ctl"],
        false => &["cnt_ctl", "l3missonly"],
    };
    let terms: Vec<_> = (wanted.iter().copied())
        .filter(|term| pmu.has_term(term))
        .map(|term| (term, 1))
        .collect();
    Ok(MemoryEvent {
        pmu: pmu.name.clone(),
        spec: EventSpec {
            what: "operations on memory",
            attribute: sampled(pmu.kind, pmu.event_of(&terms)?.words),
            leader: None,
        },
        cpus: None,
    })
}

fn sampled(kind: u32, words: [u64; 3]) -> EventAttribute {
    let mut attribute = EventAttribute::of_user_mode(kind, words);
    attribute.sample_type = SAMPLE_TYPE | field::WEIGHT_STRUCT;
    attribute.flags |= event_flag::FREQUENCY;
    attribute.sample_period = LEAST_PER_CPU;
    attribute
}

/// What was seen since the tracker was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Samples of watched processes that memory served.
    pub from_memory: u64,
    /// Samples of watched processes that a cache served, or nobody knows what.
    pub from_elsewhere: u64,
    /// Samples of watched processes whose line another CPU had changed.
    pub modified_elsewhere: u64,
    /// Samples of others. Their addresses are not looked at.
    pub foreign: u64,
    /// Samples that did not fit into the rings.
    pub lost: u64,
    /// Times that the kernel stopped sampling for a while.
    pub throttled: u64,
}

/// Sums of an interval over all processes, by period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    near: f64,
    far: f64,
    cycles: f64,
    samples: u64,
}

/// Reads sampled accesses.
#[derive(Debug)]
pub struct PerfTracker {
    samplers: Vec<Sampler>,
    /// Snapshot position and number of the node of each CPU, by the CPU's number.
    nodes: Vec<Option<(usize, NodeId)>>,
    per_cpu: [u64; 2],
    ghz: Option<f64>,
    sampling: Sampling,
    begun: bool,
    by_page: ByPage,
    keep: bool,
    samples: Vec<SampledAccess>,
    totals: Totals,
    counts: Counts,
    /// Is it asked what each process executes?
    counts_work: bool,
    /// Working sets of processes, where they are asked for.
    sets: Option<WorkingSets<i32>>,
    root: Root,
    online: CpuSet,
    notes: Vec<String>,
}

impl PerfTracker {
    /// Opens the memory event of this machine on all its CPUs, switched off. `ghz`: the clock of
    /// the cores, which latencies are told in; without it the kernel is asked for the nominal one.
    pub fn open(root: &Root, topology: &Topology, ghz: Option<f64>) -> Result<Self> {
        let ghz = ghz.or_else(|| cpuinfo::clock_ghz(root));
        Self::with_events(root, topology, ghz, memory_events(root)?)
    }

    /// Can it work on this machine? On a captured one only files are looked at.
    ///
    /// # Errors
    /// The reason, and what would help.
    pub fn probe(root: &Root) -> Result<Vec<MemoryEvent>> {
        let mut events = memory_events(root)?;
        if root.is_host() {
            let online: CpuSet = root.parse("sys/devices/system/cpu/online", parse::list)?;
            for event in &mut events {
                settle(root, event, &online)?;
            }
        }
        Ok(events)
    }

    fn with_events(
        root: &Root,
        topology: &Topology,
        ghz: Option<f64>,
        mut events: Vec<MemoryEvent>,
    ) -> Result<Self> {
        let mut samplers = Vec::new();
        for event in &mut events {
            let cpus = settle(root, event, &topology.online)?;
            samplers.push(Sampler::open(root, &event.spec, &cpus)?);
        }
        let count = topology.online.iter().next_back();
        let count = count.map_or(0, |cpu| cpu.0 + 1);
        let node = |cpu| {
            let id = topology.node_of_cpu(CpuId(cpu))?;
            Some((topology.position(id)?, id))
        };
        let limit = root.parse_if_any("proc/sys/kernel/perf_event_max_sample_rate", parse::number);
        let limit = limit.ok().flatten().unwrap_or(MOST_PER_CPU);
        let rate = |all: u64| per_cpu(all, topology.online.len() as u64, limit);
        Ok(Self {
            samplers,
            nodes: (0..count).map(node).collect(),
            per_cpu: [rate(FULL_RATE), rate(CHEAP_RATE)],
            ghz,
            sampling: Sampling::Cheap,
            begun: false,
            by_page: ByPage::new(root),
            keep: false,
            samples: Vec::new(),
            totals: Totals::default(),
            counts: Counts::open(root, topology),
            counts_work: false,
            sets: None,
            root: root.clone(),
            online: topology.online.clone(),
            notes: Vec::new(),
        })
    }

    /// Samples what caches served, too, where the hardware can leave it out.
    fn sample_hits(&mut self) -> Result<()> {
        let mut samplers = Vec::new();
        for event in &mut events_of(&self.root, true)? {
            let cpus = settle(&self.root, event, &self.online)?;
            samplers.push(Sampler::open(&self.root, &event.spec, &cpus)?);
        }
        self.samplers = samplers;
        self.begun = false;
        Ok(())
    }

    /// What was seen so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    fn switch(&mut self) -> Result<()> {
        let on = self.sampling != Sampling::Off;
        let rate = self.per_cpu[usize::from(self.sampling != Sampling::Full)];
        for sampler in &self.samplers {
            if on {
                sampler.set_period(rate)?;
            }
            sampler.switch(on)?;
        }
        Ok(())
    }

    /// Empties the rings into the interval's sums and pages; returns samples of watched processes
    /// that count, and how many were lost.
    fn read(&mut self, tree: &Tree) -> (Sums, u64, u64) {
        let watched: HashSet<i32> = tree.processes().iter().map(|p| p.pid).collect();
        let (mut sums, mut counted, mut lost) = (Sums::default(), 0, 0);
        for sampler in &mut self.samplers {
            let (nodes, totals) = (&self.nodes, &mut self.totals);
            let (by_page, samples) = (&mut self.by_page, &mut self.samples);
            let sets = &mut self.sets;
            let reading = sampler.drain(|sample| {
                let Some(seen) = Seen::of(sample) else { return };
                let weight = sample.period.unwrap_or(1).max(1);
                let from_memory = seen.source.is_memory();
                if from_memory {
                    let side = match seen.source.is_remote() {
                        true => &mut sums.far,
                        false => &mut sums.near,
                    };
                    *side += weight as f64;
                    sums.cycles += sample.weight.unwrap_or(0) as f64;
                    sums.samples += 1;
                }
                if !watched.contains(&seen.pid) {
                    totals.foreign += 1;
                    return;
                }
                if let Some(sets) = sets
                    && seen.source.reached_last_cache()
                {
                    sets.take(seen.pid, seen.address / LINE_BYTES);
                }
                totals.modified_elsewhere += u64::from(seen.source.is_modified_elsewhere());
                // A line that another cache had modified is a transfer, which recordings keep.
                let is_transfer = seen.source.is_modified_elsewhere();
                totals.from_elsewhere += u64::from(!from_memory);
                if !(from_memory || self.keep && is_transfer) {
                    return;
                }
                let Some(&Some((position, from))) = nodes.get(seen.cpu as usize) else {
                    return;
                };
                if from_memory {
                    totals.from_memory += 1;
                    counted += 1;
                    let write = seen.kind == AccessKind::Write;
                    by_page.add(seen.pid, seen.address >> 12, position, write);
                }
                if self.keep {
                    samples.push(SampledAccess {
                        time_ns: sample.time_ns.unwrap_or(0),
                        pid: Pid(seen.pid),
                        tid: sample.tid,
                        cpu: Some(CpuId(seen.cpu)),
                        from: Some(from),
                        home: None,
                        address: seen.address,
                        code: sample.ip,
                        kind: seen.kind,
                        latency_ns: latency_ns(sample.weight, self.ghz),
                        from_cache: Some(!from_memory),
                        weight: u32::try_from(weight).unwrap_or(u32::MAX),
                    });
                }
            });
            lost += reading.lost;
            self.totals.lost += reading.lost;
            self.totals.throttled += reading.throttled;
        }
        (sums, counted, lost)
    }
}

/// The CPUs of an event, once the kernel takes it: older kernels (before 5.12) know the weight as
/// one number only.
fn settle(root: &Root, event: &mut MemoryEvent, online: &CpuSet) -> Result<Vec<CpuId>> {
    let own = |cpu: &CpuId| event.cpus.as_ref().is_none_or(|cpus| cpus.contains(*cpu));
    let cpus: Vec<CpuId> = online.iter().filter(own).collect();
    let Some(&first) = cpus.first() else {
        return Ok(cpus);
    };
    if let Err(error) = Sampler::probe(root, &event.spec, first) {
        if error.errno() != Some(libc::EINVAL) {
            return Err(error);
        }
        event.spec.attribute.sample_type = SAMPLE_TYPE | field::WEIGHT;
        Sampler::probe(root, &event.spec, first)?;
    }
    Ok(cpus)
}

/// What matters of a sample: one in user mode, of an access, at a known address.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    pid: i32,
    cpu: u32,
    address: u64,
    kind: AccessKind,
    source: DataSource,
}

impl Seen {
    fn of(sample: &PerfSample) -> Option<Self> {
        let source = DataSource::decode(sample.data_source?);
        let kind = match source.operation {
            Operation::Load => AccessKind::Read,
            Operation::Store => AccessKind::Write,
            Operation::Prefetch | Operation::Execute | Operation::Unknown => return None,
        };
        let address = sample.address.filter(|&address| address != 0)?;
        sample.is_user.then_some(Self {
            pid: sample.pid?,
            cpu: sample.cpu?,
            address,
            kind,
            source,
        })
    }
}

/// A weight is cycles of the core; 0 where the hardware did not tell (stores).
fn latency_ns(cycles: Option<u64>, ghz: Option<f64>) -> Option<u32> {
    let (cycles, ghz) = (cycles.filter(|&cycles| cycles > 0)?, ghz?);
    (ghz > 0.0).then(|| (cycles as f64 / ghz) as u32)
}

/// Samples per second and CPU; `limit` is the kernel's own.
fn per_cpu(all: u64, cpus: u64, limit: u64) -> u64 {
    let fair = (all / cpus.max(1)).clamp(LEAST_PER_CPU, MOST_PER_CPU);
    fair.min(limit).max(1)
}

fn metrics(sums: &Sums, ghz: Option<f64>) -> GlobalMetrics {
    let mut metrics = GlobalMetrics::unknown(NO_COUNTERS);
    if sums.near + sums.far > 0.0 {
        let ratio = sums.near / (sums.near + sums.far);
        metrics.local_access_ratio = Evidence::estimated(ratio, BASIS);
        let ghz = ghz.filter(|&ghz| ghz > 0.0 && sums.cycles > 0.0);
        let latency = ghz.and_then(|ghz| sampled_latency_ns(sums.cycles / ghz, sums.samples));
        if let Some(latency) = latency {
            metrics.latency_ns = Evidence::estimated(latency, BASIS);
        }
    }
    metrics
}

impl Tracker for PerfTracker {
    fn name(&self) -> &'static str {
        "perf"
    }

    fn fill_in_work(&mut self, _tree: &Tree, snapshot: &mut Snapshot) {
        if self.counts_work {
            self.counts.fill_in_work(snapshot);
        }
        if let Some(sets) = &mut self.sets {
            let bytes = |pid| Some(sets.lines(&pid)? * LINE_BYTES);
            self.counts.fill_in_uses(snapshot, bytes);
            sets.turn(snapshot.now_us);
        }
    }

    fn count_work(&mut self) {
        self.counts_work = true;
        self.counts.count_work();
    }

    fn count_references(&mut self) {
        self.counts.count_references();
        self.sets.get_or_insert_default();
        if let Err(error) = self.sample_hits() {
            self.notes.push(format!(
                "perf: working sets are told from misses alone: {error}"
            ));
        }
    }

    fn counts_references(&self) -> bool {
        self.sets.is_some()
    }

    fn set_sampling(&mut self, sampling: Sampling) {
        if self.sampling == sampling {
            return;
        }
        self.sampling = sampling;
        if self.begun
            && let Err(error) = self.switch()
        {
            self.notes.push(format!("perf: {error}"));
        }
    }

    fn observe(&mut self, tree: &mut Tree, snapshot: &mut Snapshot) -> Result<()> {
        if !self.begun {
            self.switch()?;
            self.begun = true;
        }
        let (sums, counted, lost) = self.read(tree);
        self.by_page.finish(tree, &mut snapshot.pages);
        for sample in self.samples.iter_mut().filter(|s| s.home.is_none()) {
            sample.home = home_of(&snapshot.pages, sample.pid.0, sample.address >> 12);
        }
        snapshot.metrics = metrics(&sums, self.ghz);
        self.counts.fill_in(tree, snapshot);
        // Loads are picked at random among those that take long, so that a period does not tell
        // how many fills there were.
        snapshot.sample_period = 0;
        snapshot.samples_lost = lost;
        snapshot.sample_count = match self.sampling {
            Sampling::Off => Evidence::unknown("sampling is switched off"),
            Sampling::Full | Sampling::Cheap => Evidence::measured(counted, BASIS),
        };
        Ok(())
    }

    fn keep_observations(&mut self, keep: bool) {
        self.keep = keep;
        self.samples.clear();
    }

    fn take_observations(&mut self, into: &mut Observations) {
        into.samples.append(&mut self.samples);
    }

    fn stop(&mut self) {
        self.set_sampling(Sampling::Off);
    }

    fn take_notes(&mut self) -> Vec<String> {
        self.notes.append(&mut self.counts.take_notes());
        std::mem::take(&mut self.notes)
    }
}

#[cfg(test)]
mod tests;
