//! What trackers see of the machine: the snapshot that it hands out.

use crate::chance::{below, happens};
use crate::process::{Process, Stretch};
use crate::world::World;
use hither_core::flow::{Demand, Flow, LINE_BYTES};
use hither_core::ids::Pid;
use hither_core::metrics;
use hither_core::plan::Sampling;
use hither_core::snapshot::{
    Evidence, GlobalMetrics, NodeCounts, NodeState, PAGE_BYTES, PageStats, PresentPage,
    ProcessState, Rated, Snapshot, Work,
};
use std::collections::BTreeMap;

/// Own CPU time of an observation, in us.
const LOOK_US: f64 = 100.0;
/// Own CPU time of a sample, in us.
const SAMPLE_US: f64 = 0.2;

/// Which evidence there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sight {
    /// The machine's counters, and samples of known period.
    #[default]
    Counters,
    /// Samples of known period alone.
    Samples,
    /// Hint faults: of a page one at most in an interval, which stands for nobody knows how many
    /// accesses.
    HintFaults,
    /// Access bits: samples in proportion to use, which nobody knows by whom, nor how many accesses they stand for.
    AccessBits,
}

/// What observes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimTracker {
    /// What it tells.
    pub sight: Sight,
    /// Fills a sample at full sampling.
    pub period: u32,
    /// It samples as densely as ever whatever it is told.
    pub is_steady: bool,
}

impl Default for SimTracker {
    fn default() -> Self {
        Self {
            sight: Sight::Counters,
            period: 10_000,
            is_steady: false,
        }
    }
}

impl SimTracker {
    /// Fills a sample; 0: there are no samples.
    pub(crate) fn period(self, sampling: Sampling) -> u32 {
        match sampling {
            _ if self.is_steady => self.period,
            Sampling::Full => self.period,
            Sampling::Cheap => self.period * 10,
            Sampling::Off => 0,
        }
    }
}

/// What happened since the last observation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interval {
    length_us: u64,
    fills: f64,
    local_fills: f64,
    waited_ns: f64,
    bytes: Vec<f64>,
    busy_us: Vec<f64>,
    cpu_us: BTreeMap<Pid, f64>,
    /// Fills of each process, and the time that they waited, in ns of CPUs.
    works: BTreeMap<Pid, (f64, f64)>,
    samples: BTreeMap<(Pid, usize), NodeCounts>,
    lost: u64,
    own_cpu_us: f64,
}

impl Interval {
    pub fn new(nodes: usize) -> Self {
        Self {
            bytes: vec![0.0; nodes],
            busy_us: vec![0.0; nodes],
            ..Self::default()
        }
    }

    pub fn count(&mut self, demand: &Demand, fills: f64, latency_ns: f64) {
        self.fills += fills;
        self.local_fills += fills * demand.shares[demand.from];
        self.waited_ns += fills * latency_ns;
    }

    pub fn cpu_us(&mut self, pid: Pid, us: f64) {
        *self.cpu_us.entry(pid).or_default() += us;
    }

    pub fn worked(&mut self, pid: Pid, fills: f64, stalled_ns: f64) {
        let work = self.works.entry(pid).or_default();
        work.0 += fills;
        work.1 += stalled_ns;
    }

    pub fn own_cpu_us(&mut self, us: f64) {
        self.own_cpu_us += us;
    }

    pub fn sample(
        &mut self,
        tracker: SimTracker,
        loses: f64,
        process: &mut Process,
        from: usize,
        used: Stretch,
        count: u64,
    ) {
        for _ in 0..count {
            let unit = used.get(below(&mut process.random, used.count()));
            if loses > 0.0 && happens(&mut process.random, loses) {
                self.lost += 1;
                continue;
            }
            let counts = self.samples.entry((process.pid, unit)).or_default();
            match tracker.sight {
                Sight::HintFaults if counts.total() > 0 => {}
                Sight::AccessBits => counts.add(0, 1),
                Sight::Counters | Sight::Samples | Sight::HintFaults => counts.add(from, 1),
            }
        }
    }

    pub fn pass(&mut self, interval_us: u64, flow: &Flow) {
        self.length_us += interval_us;
        for (node, traffic) in flow.traffic.iter().enumerate() {
            self.bytes[node] += traffic * interval_us as f64 * 1000.0;
            self.busy_us[node] += flow.utilisation[node] * interval_us as f64;
        }
    }

    /// What was seen of a life that is over.
    pub fn forget(&mut self, pid: Pid) {
        self.cpu_us.remove(&pid);
        self.works.remove(&pid);
        let of: Vec<_> = self.samples.range((pid, 0)..=(pid, usize::MAX)).collect();
        let keys: Vec<_> = of.into_iter().map(|(&key, _)| key).collect();
        for key in keys {
            self.samples.remove(&key);
        }
    }
}

impl World {
    /// Ends the interval; `None` where it cannot be told of, and the next one is longer.
    pub fn observe(&mut self) -> Option<Snapshot> {
        let blind = self.faults.blind;
        if happens(&mut self.random, blind) {
            return None;
        }
        let nodes = self.nodes.len();
        let mut interval = std::mem::replace(&mut self.interval, Interval::new(nodes));
        let seen: u64 = interval.samples.values().map(NodeCounts::total).sum();
        interval.own_cpu_us += LOOK_US + SAMPLE_US * seen as f64;
        let pages = self.pages(&mut interval);
        let present = self.list_residents();
        let period = self.tracker.period(self.sampling);
        for process in self.processes.values_mut() {
            process.is_seen = true;
        }
        Some(Snapshot {
            now_us: self.now_us,
            interval_us: interval.length_us,
            nodes: (0..nodes)
                .map(|at| self.node_state(at, &interval))
                .collect(),
            caches: Vec::new(),
            distances: self.distances.clone(),
            metrics: self.metrics(&interval),
            sample_count: match period {
                0 => Evidence::unknown("sampling is off"),
                _ => Evidence::measured(seen, "the simulation"),
            },
            sample_period: match self.tracker.sight {
                Sight::HintFaults | Sight::AccessBits => 0,
                Sight::Counters | Sight::Samples => period,
            },
            samples_lost: interval.lost,
            by_use: self.tracker.sight == Sight::AccessBits,
            pages,
            present,
            processes: self.process_states(&interval),
            own_cpu_us: Evidence::measured(interval.own_cpu_us as u64, "the simulation"),
        })
    }

    fn pages(&self, interval: &mut Interval) -> Vec<PageStats> {
        let samples = std::mem::take(&mut interval.samples);
        let stats = |((pid, unit), reads): ((Pid, usize), NodeCounts)| {
            Some(self.stats(self.processes.get(&pid)?, unit, reads))
        };
        samples.into_iter().filter_map(stats).collect()
    }

    fn stats(&self, process: &Process, unit: usize, reads: NodeCounts) -> PageStats {
        PageStats {
            pid: process.pid,
            page: process.page_number(unit),
            home: self.nodes[process.pages[unit].home].id,
            was: None,
            reads,
            writes: NodeCounts::new(),
            huge: process.kind.huge,
        }
    }

    /// Some of the units, from where the last interval stopped.
    fn list_residents(&mut self) -> Vec<PresentPage> {
        let mut present = Vec::new();
        if self.lists == 0 {
            return present;
        }
        let (mut left, from) = (self.lists, std::mem::replace(&mut self.listed, (Pid(0), 0)));
        for process in self.processes.range(from.0..).map(|(_, process)| process) {
            let first = if process.pid == from.0 { from.1 } else { 0 };
            for unit in first..process.pages.len() {
                if left == 0 {
                    self.listed = (process.pid, unit);
                    return present;
                }
                left -= 1;
                present.push(PresentPage {
                    pid: process.pid,
                    page: process.page_number(unit),
                    home: self.nodes[process.pages[unit].home].id,
                    huge: process.kind.huge,
                    accesses: 0,
                });
            }
        }
        present
    }

    fn node_state(&self, at: usize, interval: &Interval) -> NodeState {
        let node = &self.nodes[at];
        let length_us = interval.length_us.max(1) as f64;
        let is_counted = self.tracker.sight == Sight::Counters;
        let counted = |bytes: u64| match is_counted {
            true => Evidence::measured(bytes, "the simulation"),
            false => Evidence::unknown("nothing counts it here"),
        };
        NodeState {
            id: node.id,
            cpu_count: node.cpu_count,
            cache_bytes: 0,
            free_bytes: node.free_pages * PAGE_BYTES,
            total_bytes: node.total_pages * PAGE_BYTES,
            idle_ns: self
                .memory
                .idle_ns
                .iter()
                .map(|row| row[at])
                .reduce(f64::min),
            rated: Rated {
                tier: Some(u32::from((node.cpu_count == 0) != self.fast_is_far)),
                read_gbs: Some(self.memory.capacity_gbs[at]),
                ..Rated::default()
            },
            latency_ns: None,
            read_bytes: counted(interval.bytes[at] as u64),
            write_bytes: counted(0),
            utilisation: match is_counted {
                true => Evidence::measured(interval.busy_us[at] / length_us, "the simulation"),
                false => Evidence::unknown("nothing counts it here"),
            },
        }
    }

    fn metrics(&self, interval: &Interval) -> GlobalMetrics {
        if self.tracker.sight != Sight::Counters {
            return GlobalMetrics::unknown("nothing counts it here");
        }
        let measured = |value: Option<f64>| match value {
            Some(value) => Evidence::measured(value, "the simulation"),
            None => Evidence::unknown("nothing was used"),
        };
        let ratio = |part: f64| (interval.fills > 0.0).then(|| part / interval.fills);
        let lines = interval.bytes.iter().map(|bytes| bytes / LINE_BYTES);
        let lines: Vec<f64> = lines.collect();
        GlobalMetrics {
            memory_accesses_per_us: measured(Some(
                interval.fills / interval.length_us.max(1) as f64,
            )),
            local_access_ratio: measured(ratio(interval.local_fills)),
            latency_ns: measured(ratio(interval.waited_ns)),
            controller_imbalance: measured(metrics::imbalance(&lines)),
            ..GlobalMetrics::unknown("the simulation has none")
        }
    }

    /// Programs differ in what they compute for each byte: 1 to 7 operations.
    fn work_of(&self, interval: &Interval, process: &Process) -> Evidence<Work> {
        if self.tracker.sight != Sight::Counters {
            return Evidence::unknown("nothing counts it here");
        }
        let (fills, stalled_ns) = (interval.works.get(&process.pid).copied()).unwrap_or_default();
        let read_bytes = (fills * LINE_BYTES) as u64;
        let work = Work {
            instructions: (fills * 100.0) as u64,
            flops: read_bytes * (1 + u64::from(process.pid.0.unsigned_abs()) % 7),
            read_bytes,
            written_bytes: None,
            stall_ns: Some(stalled_ns as u64),
        };
        Evidence::measured(work, "the simulation")
    }

    fn process_states(&self, interval: &Interval) -> Vec<ProcessState> {
        let state = |process: &Process| ProcessState {
            pid: process.pid,
            space: process.space,
            parent: process.parent,
            user: process.kind.user,
            group: Some(process.kind.group.clone()),
            allowed_nodes: None,
            opted_in: false,
            name: process.kind.name.clone(),
            resident_pages: Evidence::measured(
                process.pages.len() as u64 * process.kind.unit_pages(),
                "the simulation",
            ),
            cpu_us: Evidence::measured(
                interval.cpu_us.get(&process.pid).copied().unwrap_or(0.0) as u64,
                "the simulation",
            ),
            faults: Evidence::measured(0, "the simulation"),
            work: self.work_of(interval, process),
            ..ProcessState::unknown(process.pid, process.space, "the simulation has no caches")
        };
        self.processes.values().map(state).collect()
    }
}
