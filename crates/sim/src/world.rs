//! The simulated machine: nodes of several tiers, processes, and what time does to them.
//!
//! Time passes in [`World::advance`]: processes fork, execute, end; those that set up data take
//! memory; traffic settles by [`hither_core::flow`]; trackers see some of it; movers work on what
//! they were given. Everything is drawn from seeded sources, a process's doings from its own.

use crate::chance::happens;
use crate::faults::Faults;
use crate::hands::SimHands;
use crate::observe::{Interval, SimTracker};
use crate::process::{Pattern, Process, ProcessKind, SimPage};
use hither_core::flow::{self, Demand, FlowMemory};
use hither_core::ids::{NodeId, Pid, SpaceId};
use hither_core::plan::Sampling;
use hither_core::policy::random::Random;
use std::collections::BTreeMap;

/// Parent of what the machine itself starts.
pub const INIT: Pid = Pid(1);
/// Parent of processes that are in no program.
pub const STRANGER: Pid = Pid(2);
/// Program of processes that are in none.
pub const NO_PROGRAM: usize = usize::MAX;
/// Time between misses of a CPU when memory takes none, in ns.
const COMPUTE_NS: f64 = 20.0;
/// Independent misses of a CPU.
const OVERLAP: f64 = 1.5;
/// Rounds in which traffic settles, from where it was an interval ago.
const ROUNDS: u32 = 40;

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The kernel's number.
    pub id: NodeId,
    /// CPUs; zero for memory alone.
    pub cpu_count: u32,
    /// Base pages.
    pub total_pages: u64,
    /// Base pages that nobody has.
    pub free_pages: u64,
}

/// The machine.
pub struct World {
    /// Nodes, by position.
    pub nodes: Vec<Node>,
    /// ACPI distances by position.
    pub distances: Vec<Vec<u32>>,
    /// Latencies and capacities.
    pub memory: FlowMemory,
    /// Nodes without CPUs are the fast tier, as on Knights Landing; the slow one otherwise.
    pub fast_is_far: bool,
    /// Who runs.
    pub processes: BTreeMap<Pid, Process>,
    /// What goes wrong.
    pub faults: Faults,
    /// What can be known of it.
    pub tracker: SimTracker,
    /// Who moves pages.
    pub hands: SimHands,
    pub(crate) interval: Interval,
    pub(crate) sampling: Sampling,
    /// Units that are listed in each interval though they were not sampled, part after part.
    pub(crate) lists: usize,
    pub(crate) listed: (Pid, usize),
    pub(crate) random: Random,
    pub(crate) now_us: u64,
    queues_ns: Vec<f64>,
    seed: u64,
    last_space: u32,
    last_pid: i32,
}

impl World {
    /// A machine on which nothing runs.
    #[must_use]
    pub fn new(seed: u64, nodes: Vec<Node>, distances: Vec<Vec<u32>>, memory: FlowMemory) -> Self {
        Self {
            queues_ns: vec![0.0; nodes.len()],
            interval: Interval::new(nodes.len()),
            nodes,
            distances,
            memory,
            fast_is_far: false,
            processes: BTreeMap::new(),
            faults: Faults::default(),
            tracker: SimTracker::default(),
            hands: SimHands::default(),
            sampling: Sampling::Full,
            lists: 0,
            listed: (Pid(0), 0),
            random: Random::new(seed),
            now_us: 5_000_000,
            seed,
            last_space: 0,
            last_pid: 100,
        }
    }

    /// Now, in us.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// The position of a node.
    #[must_use]
    pub fn position(&self, id: NodeId) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id)
    }

    /// The process, if this life of it is not over.
    #[must_use]
    pub fn alive(&self, pid: Pid, space: SpaceId) -> Option<&Process> {
        let process = self.processes.get(&pid)?;
        (process.space == space).then_some(process)
    }

    /// Starts a process. What it does not set up itself lies where its first thread is.
    pub fn spawn(&mut self, kind: ProcessKind, parent: Pid) -> Pid {
        self.last_pid += 1;
        let pid = Pid(self.last_pid);
        self.spawn_as(pid, kind, parent);
        pid
    }

    pub(crate) fn spawn_as(&mut self, pid: Pid, kind: ProcessKind, parent: Pid) {
        self.last_space += 1;
        let space = SpaceId(self.last_space);
        let own = self.seed ^ (u64::from(space.0) << 32) ^ kind.program as u64;
        let mut process = Process {
            pid,
            space,
            parent,
            pages: Vec::with_capacity(kind.units),
            kind,
            fills: 0.0,
            is_seen: false,
            random: Random::new(own),
            born_us: self.now_us,
            turn: 0,
        };
        if process.pattern(self.now_us) != Pattern::Filling {
            let units = process.kind.units;
            self.fill(&mut process, units);
        }
        self.processes.insert(pid, process);
    }

    /// Gives a process memory until it has so many units, as first touch does: on the node of its
    /// first thread, or the nearest with room.
    fn fill(&mut self, process: &mut Process, units: usize) {
        let first = process.kind.users().first().copied().unwrap_or(0);
        let first = process.kind.lies_on.unwrap_or(first);
        let size = process.kind.unit_pages();
        while process.pages.len() < units {
            let fitting = (0..self.nodes.len()).filter(|&node| self.nodes[node].free_pages >= size);
            let Some(home) = fitting.min_by_key(|&node| (self.distances[first][node], node)) else {
                return;
            };
            self.nodes[home].free_pages -= size;
            let is_pinned = happens(&mut process.random, process.kind.pinned);
            process.pages.push(SimPage {
                home,
                origin: home,
                is_pinned,
            });
        }
    }

    /// Ends a process: its memory is free, its children are init's.
    pub fn kill(&mut self, pid: Pid) {
        let Some(process) = self.processes.remove(&pid) else {
            return;
        };
        self.release(&process);
        for child in self.processes.values_mut() {
            if child.parent == pid {
                child.parent = INIT;
                child.is_seen = false;
            }
        }
    }

    fn release(&mut self, process: &Process) {
        for page in &process.pages {
            self.nodes[page.home].free_pages += process.kind.unit_pages();
        }
        self.interval.forget(process.pid);
        self.hands.forget(process.space);
    }

    /// Lets a process execute another program: its memory is another.
    pub fn exec(&mut self, pid: Pid, kind: ProcessKind) {
        let Some(process) = self.processes.remove(&pid) else {
            return;
        };
        self.release(&process);
        self.spawn_as(pid, kind, process.parent);
    }

    /// Everything that goes wrong stops, and every process goes on with what it does.
    pub fn calm(&mut self) {
        self.faults = Faults::default();
        for process in self.processes.values_mut() {
            process.freeze(self.now_us);
        }
    }

    /// Lets time pass; returns the time then, in us.
    pub fn advance(&mut self, interval_us: u64) -> u64 {
        self.now_us += interval_us;
        self.churn(interval_us);
        self.set_up(interval_us);
        self.run(interval_us);
        self.work(interval_us);
        self.now_us
    }

    /// Processes in a filling phase take the memory that they have come to.
    fn set_up(&mut self, interval_us: u64) {
        let pids: Vec<Pid> = self.processes.keys().copied().collect();
        for pid in pids {
            let Some(mut process) = self.processes.remove(&pid) else {
                continue;
            };
            process.turn += 1;
            let units = process.kind.units;
            if process.pattern(self.now_us) == Pattern::Filling {
                let length_us = process.kind.phases[0].length_us.max(1);
                let more = units as u64 * interval_us / length_us + 1;
                let until = (process.pages.len() + more as usize).min(units);
                self.fill(&mut process, until);
            } else if process.pages.len() < units && process.kind.phases.len() > 1 {
                self.fill(&mut process, units);
            }
            self.processes.insert(pid, process);
        }
    }

    /// Memory traffic of the interval, and what trackers see of it.
    fn run(&mut self, interval_us: u64) {
        let mut running = vec![0u32; self.nodes.len()];
        for process in self.processes.values() {
            if process.pattern(self.now_us) != Pattern::Idle {
                for (sum, threads) in running.iter_mut().zip(&process.kind.threads) {
                    *sum += threads;
                }
            }
        }
        let mut demands = Vec::new();
        let mut owners = Vec::new();
        for process in self.processes.values() {
            let users = process.kind.users();
            for (rank, &from) in users.iter().enumerate() {
                let used = process.used_by(self.now_us, rank, users.len());
                if used.count() == 0 {
                    continue;
                }
                let threads = f64::from(process.kind.threads[from]);
                // Threads beyond the CPUs take turns.
                let turns = f64::from(self.nodes[from].cpu_count) / f64::from(running[from].max(1));
                let mut shares = vec![0.0; self.nodes.len()];
                for unit in used.iter() {
                    shares[process.pages[unit].home] += 1.0 / used.count() as f64;
                }
                demands.push(Demand {
                    from,
                    cpus: threads * turns.min(1.0),
                    shares,
                    compute_ns: COMPUTE_NS,
                    overlap: OVERLAP,
                });
                owners.push((process.pid, used));
            }
        }
        let flow = flow::settle(&self.memory, &demands, &mut self.queues_ns, ROUNDS);
        let interval_ns = interval_us as f64 * 1000.0;
        let period = self.tracker.period(self.sampling);
        for (at, (demand, (pid, used))) in demands.iter().zip(owners).enumerate() {
            let fills = flow.rates[at] * interval_ns;
            if let Some(process) = self.processes.get_mut(&pid) {
                process.fills += fills;
                self.interval.count(demand, fills, flow.latencies_ns[at]);
                self.interval.cpu_us(pid, demand.cpus * interval_us as f64);
                let computed_ns = fills * COMPUTE_NS;
                let stalled_ns = demand.cpus * interval_ns - computed_ns;
                self.interval.worked(pid, fills, stalled_ns.max(0.0));
                let samples = (period > 0).then(|| (fills / f64::from(period)) as u64);
                let (tracker, loses) = (self.tracker, self.faults.loses);
                self.interval.sample(
                    tracker,
                    loses,
                    process,
                    demand.from,
                    used,
                    samples.unwrap_or(0),
                );
            }
        }
        self.interval.pass(interval_us, &flow);
    }
}
