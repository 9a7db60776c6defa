//! A tiny closed-loop world for unit tests: one process, nodes, threads, pages with homes, and the traffic
//! model of [`crate::flow`]. It is a test double: what the engine asks for happens, and changes what the
//! next snapshot shows. Many processes, faults and lateness are `crates/sim`'s, which unit tests of this
//! crate cannot link.

use super::{Engine, EngineConfig, Summary};
use crate::flow::{self, Demand, FlowMemory, LINE_BYTES};
use crate::ids::{NodeId, Pid, SpaceId};
use crate::machine::Curve;
use crate::metrics;
use crate::plan::{Listing, MoveOutcome, Plan, Refusal, Sampling};
use crate::policy::Policy;
use crate::policy::random::Random;
use crate::snapshot::{
    Evidence, GlobalMetrics, NodeCounts, NodeState, PAGE_BYTES, PageStats, PresentPage,
    ProcessState, Snapshot,
};
use std::collections::{BTreeMap, BTreeSet};

/// The process of a world, unless it is told another.
pub const PID: Pid = Pid(41);
/// Its first page.
pub const FIRST_PAGE: u64 = 0x7_f123_4567;
/// CPUs per node.
const CPUS: u32 = 2;
/// Independent misses per CPU.
const MLP: f64 = 1.5;
/// Time between misses when memory takes none.
const COMPUTE_NS: f64 = 20.0;

/// Who uses which pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Every node uses every page.
    Shared,
    /// Every node uses its own stretch.
    Partitioned,
    /// Page `i` belongs to node `i % nodes`.
    Striped,
    /// Every node uses every page, but in one interval each only its quarter; quarters rotate.
    Sweeping,
}

/// The world.
pub struct World {
    /// Its only process.
    pub pid: Pid,
    /// Which life of its memory.
    pub space: SpaceId,
    /// Node ids: sparse on purpose.
    pub ids: Vec<NodeId>,
    /// Home position of each page.
    pub homes: Vec<usize>,
    /// Who uses which pages now.
    pub pattern: Pattern,
    /// Fills per sample at full sampling.
    pub period: u32,
    /// Position of the only running thread's node; `None`: all run.
    pub alone: Option<usize>,
    /// Are unsampled pages listed too?
    pub listing: Listing,
    /// Moves are refused as busy with this probability.
    pub busy: f64,
    /// Times each page moved.
    pub move_counts: BTreeMap<u64, u32>,
    /// Fills per us of the latest interval.
    pub rate: f64,
    /// Nodes with no memory left beyond what they hold.
    pub full: Vec<usize>,
    /// Nodes that the process may use, where not all.
    pub allowed: Option<Vec<NodeId>>,
    /// Owners are rotated by this many nodes.
    pub rotation: usize,
    /// Pages that the kernel moves when they are sampled next, and to which position.
    pub kernel_moves: BTreeMap<usize, usize>,
    interval_count: usize,
    random: Random,
    now_us: u64,
}

/// Rates and latencies of an interval.
struct Flow {
    /// Fills per ns: `[user][home]`.
    rates: Vec<Vec<f64>>,
    latency_ns: f64,
    utilisation: Vec<f64>,
}

impl World {
    /// Four nodes, `pages` pages all on the first.
    pub fn new(pattern: Pattern, pages: usize) -> Self {
        Self {
            pid: PID,
            space: SpaceId(1),
            ids: [0, 1, 4, 9].map(NodeId).to_vec(),
            homes: vec![0; pages],
            pattern,
            period: 400,
            alone: None,
            listing: Listing::Off,
            busy: 0.0,
            move_counts: BTreeMap::new(),
            rate: 0.0,
            full: Vec::new(),
            allowed: None,
            rotation: 0,
            kernel_moves: BTreeMap::new(),
            interval_count: 0,
            random: Random::new(99),
            now_us: 5_000_000,
        }
    }

    fn nodes(&self) -> usize {
        self.ids.len()
    }

    /// The pages that a node uses: `start..end` by `step`.
    fn pages_of(&self, user: usize) -> (usize, usize, usize) {
        let (pages, nodes) = (self.homes.len(), self.nodes());
        let user = (user + self.rotation) % nodes;
        match self.pattern {
            Pattern::Shared => (0, pages, 1),
            Pattern::Sweeping => {
                let (start, count) = self.window(user);
                (start, start + count, 1)
            }
            Pattern::Partitioned => (user * pages / nodes, (user + 1) * pages / nodes, 1),
            Pattern::Striped => (user, pages, nodes),
        }
    }

    /// The pages that a node uses in this interval, first and count, for a sweeping pattern.
    fn window(&self, user: usize) -> (usize, usize) {
        let quarter = self.homes.len() / self.nodes();
        (
            (user + self.interval_count) % self.nodes() * quarter,
            quarter,
        )
    }

    /// Homes such that every page is on the node that uses it (shared: round robin).
    pub fn place_well(&mut self) {
        let nodes = self.nodes();
        for page in 0..self.homes.len() {
            self.homes[page] = page % nodes;
        }
        if self.pattern == Pattern::Partitioned {
            for user in 0..nodes {
                let (start, end, _) = self.pages_of(user);
                self.homes[start..end].fill(user);
            }
        }
    }

    /// Nodes in a square: opposite corners are two hops apart.
    fn hops(a: usize, b: usize) -> u32 {
        ((a ^ b) as u32).count_ones()
    }

    fn flow(&self) -> Flow {
        let nodes = self.nodes();
        let idle_ns = |user: usize| {
            let homes = 0..nodes;
            homes.map(move |home| 87.0 + 26.0 * f64::from(Self::hops(user, home)))
        };
        let memory = FlowMemory {
            idle_ns: (0..nodes).map(|user| idle_ns(user).collect()).collect(),
            capacity_gbs: vec![3.07; nodes],
            curves: vec![
                Curve {
                    a_ns: 20.0,
                    b_ns: 8.0,
                    n: 2.0,
                };
                nodes
            ],
        };
        let runs = |user: usize| self.alone.is_none_or(|alone| alone == user);
        let demand = |user: usize| Demand {
            from: user,
            cpus: if runs(user) { f64::from(CPUS) } else { 0.0 },
            shares: self.shares_of(user),
            compute_ns: COMPUTE_NS,
            overlap: MLP,
        };
        let demands: Vec<Demand> = (0..nodes).map(demand).collect();
        let settled = flow::settle(&memory, &demands, &mut vec![0.0; nodes], 400);
        let rates = demands.iter().zip(&settled.rates);
        Flow {
            rates: rates
                .map(|(demand, rate)| demand.shares.iter().map(|share| rate * share).collect())
                .collect(),
            latency_ns: settled.latency_ns().unwrap_or(0.0),
            utilisation: settled.utilisation,
        }
    }

    fn shares_of(&self, user: usize) -> Vec<f64> {
        let (start, end, step) = self.pages_of(user);
        let mut shares = vec![0.0; self.nodes()];
        let pages = (start..end).step_by(step);
        let count = pages.len() as f64;
        for page in pages {
            shares[self.homes[page]] += 1.0 / count;
        }
        shares
    }

    /// Lets an interval pass and says what trackers would see of it.
    pub fn snapshot(&mut self, interval_us: u64, sampling: Sampling) -> Snapshot {
        self.now_us += interval_us;
        self.interval_count += 1;
        let flow = self.flow();
        let (mut local, mut all) = (0.0, 0.0);
        for user in 0..self.nodes() {
            local += flow.rates[user][user];
            all += flow.rates[user].iter().sum::<f64>();
        }
        self.rate = all * 1000.0;
        let period = match sampling {
            Sampling::Full => self.period,
            Sampling::Cheap => self.period * 10,
            Sampling::Off => 0,
        };
        let pages = self.samples(&flow, interval_us, period);
        let by_node =
            |home: usize| flow.rates.iter().map(|rates| rates[home]).sum::<f64>() * LINE_BYTES;
        let traffic: Vec<f64> = (0..self.nodes()).map(by_node).collect();
        let node = |position: usize| NodeState {
            id: self.ids[position],
            cpu_count: CPUS,
            cache_bytes: 0,
            free_bytes: if self.full.contains(&position) {
                0
            } else {
                (1 << 30)
                    - self.homes.iter().filter(|&&home| home == position).count() as u64
                        * PAGE_BYTES
            },
            total_bytes: 1 << 30,
            idle_ns: None,
            rated: crate::snapshot::Rated::default(),
            latency_ns: None,
            read_bytes: Evidence::measured(
                (traffic[position] * interval_us as f64 * 1000.0) as u64,
                "the world",
            ),
            write_bytes: Evidence::measured(0, "the world"),
            utilisation: Evidence::measured(flow.utilisation[position], "the world"),
        };
        let measured = |value: f64| Evidence::measured(value, "the world");
        let listed = match self.listing > Listing::Off && period > 0 {
            true => self.homes.len(),
            false => 0,
        };
        let present = (0..listed).map(|page| PresentPage {
            pid: self.pid,
            page: FIRST_PAGE + page as u64,
            home: self.ids[self.homes[page]],
            huge: false,
            accesses: 0,
        });
        let present = present.collect();
        let sampled = pages.iter().map(PageStats::total).sum();
        Snapshot {
            now_us: self.now_us,
            interval_us,
            nodes: (0..self.nodes()).map(node).collect(),
            caches: Vec::new(),
            distances: (0..4)
                .map(|a| (0..4).map(|b| 10 + 3 * Self::hops(a, b)).collect())
                .collect(),
            metrics: GlobalMetrics {
                memory_accesses_per_us: measured(self.rate),
                local_access_ratio: measured(local / all),
                latency_ns: measured(flow.latency_ns),
                controller_imbalance: measured(metrics::imbalance(&traffic).unwrap()),
                ..GlobalMetrics::unknown("the world has none")
            },
            present,
            sample_count: match sampling {
                Sampling::Off => Evidence::unknown("sampling is off"),
                _ => Evidence::measured(sampled, "the world"),
            },
            sample_period: period,
            samples_lost: 0,
            by_use: false,
            pages,
            own_cpu_us: Evidence::unknown("test"),
            processes: vec![ProcessState {
                parent: Pid(1),
                allowed_nodes: self.allowed.clone(),
                name: "world".into(),
                resident_pages: Evidence::measured(self.homes.len() as u64, "the world"),
                ..ProcessState::unknown(self.pid, self.space, "not modelled")
            }],
        }
    }

    fn samples(&mut self, flow: &Flow, interval_us: u64, period: u32) -> Vec<PageStats> {
        let mut counts: BTreeMap<usize, NodeCounts> = BTreeMap::new();
        if period > 0 {
            for user in 0..self.nodes() {
                let fills = flow.rates[user].iter().sum::<f64>() * interval_us as f64 * 1000.0;
                let (start, end, step) = self.pages_of(user);
                let pages = (end - start).div_ceil(step);
                for _ in 0..(fills / f64::from(period)) as u64 {
                    let page = start + step * ((self.random.unit() * pages as f64) as usize);
                    counts.entry(page).or_default().add(user, 1);
                }
            }
        }
        let mut was = BTreeMap::new();
        for &page in counts.keys() {
            if let Some(to) = self.kernel_moves.remove(&page) {
                was.insert(page, self.ids[self.homes[page]]);
                self.homes[page] = to;
            }
        }
        let stats = |(page, reads): (usize, NodeCounts)| PageStats {
            pid: self.pid,
            page: FIRST_PAGE + page as u64,
            home: self.ids[self.homes[page]],
            was: was.get(&page).copied(),
            reads,
            writes: NodeCounts::new(),
            huge: false,
        };
        counts.into_iter().map(stats).collect()
    }

    /// Executes a plan; the outcomes come with the next snapshot.
    pub fn execute(&mut self, plan: &Plan) -> Vec<MoveOutcome> {
        let mut outcomes = Vec::new();
        for request in &plan.requests {
            let to = self.ids.iter().position(|&id| id == request.to).unwrap();
            let mut outcome = MoveOutcome {
                request: request.id,
                moved: Vec::new(),
                already_there: 0,
                refused: Vec::new(),
                duration_ns: 5_000 * request.pages.len() as u64,
            };
            let unique: BTreeSet<u64> = request.pages.iter().copied().collect();
            assert_eq!(
                unique.len(),
                request.pages.len(),
                "a page twice in one request"
            );
            for &page in &request.pages {
                let home = &mut self.homes[(page - FIRST_PAGE) as usize];
                if *home == to {
                    outcome.already_there += 1;
                } else if self.random.unit() < self.busy {
                    outcome.refused.push((Refusal::Busy, 1));
                } else {
                    *home = to;
                    outcome.moved.push(page);
                    *self.move_counts.entry(page).or_default() += 1;
                }
            }
            outcomes.push(outcome);
        }
        outcomes
    }

    /// Share of pages on each node.
    pub fn spread(&self) -> Vec<f64> {
        let mut counts = vec![0.0; self.nodes()];
        for &home in &self.homes {
            counts[home] += 1.0;
        }
        metrics::shares(&counts)
    }
}

/// A world under an engine, with a record of each step.
pub struct Loop {
    /// The world.
    pub world: World,
    /// The engine.
    pub engine: Engine,
    /// The latest plan.
    pub plan: Plan,
    outcomes: Vec<MoveOutcome>,
}

/// What one step showed.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Length of the interval that was looked at.
    pub interval_us: u64,
    /// How it was sampled.
    pub sampling: Sampling,
    /// Local-access ratio in it.
    pub local: f64,
    /// Controller imbalance in it.
    pub imbalance: f64,
    /// Fills per us in it.
    pub rate: f64,
}

impl Loop {
    /// A fresh engine in a world.
    pub fn new(world: World, policy: Box<dyn Policy>) -> Self {
        Self::with_config(world, policy, EngineConfig::default())
    }

    /// The same with a configuration.
    pub fn with_config(world: World, policy: Box<dyn Policy>, config: EngineConfig) -> Self {
        let plan = Plan {
            next_interval_us: config.interval_us,
            ..Plan::default()
        };
        Self {
            world,
            engine: Engine::of_all(policy, config),
            plan,
            outcomes: Vec::new(),
        }
    }

    /// One step.
    pub fn step(&mut self) -> Seen {
        let (interval_us, sampling) = (self.plan.next_interval_us, self.plan.sampling);
        let snapshot = self.world.snapshot(interval_us, sampling);
        self.plan = self.engine.step(snapshot.now_us, &snapshot, &self.outcomes);
        self.outcomes = self.world.execute(&self.plan);
        Seen {
            interval_us,
            sampling,
            local: snapshot.metrics.local_access_ratio.get().unwrap(),
            imbalance: snapshot.metrics.controller_imbalance.get().unwrap(),
            rate: self.world.rate,
        }
    }

    /// The account of the only scope.
    pub fn summary(&self) -> Summary {
        self.engine.summary().swap_remove(0).1
    }

    /// Many steps.
    pub fn run(&mut self, steps: usize) -> Vec<Seen> {
        (0..steps).map(|_| self.step()).collect()
    }
}
