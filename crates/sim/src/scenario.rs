//! From a seed to a machine with programs, scopes, policies and faults.

use crate::chance::{below, between, happens, pick};
use crate::check::{Rules, Violation};
use crate::faults::Faults;
use crate::hands::SimHands;
use crate::observe::{Sight, SimTracker};
use crate::policies::Restless;
use crate::process::{Pattern, ProcessKind, ProcessPhase};
use crate::simulation::Simulation;
use crate::world::{INIT, Node, World};
use hither_core::engine::{Engine, EngineConfig, Summary};
use hither_core::flow::FlowMemory;
use hither_core::ids::{NodeId, Pid};
use hither_core::machine::Curve;
use hither_core::policy::random::Random;
use hither_core::policy::{EvidenceKind, Policy, by_name, tiers};
use hither_core::quota::Quota;
use hither_core::scope::{ScopeSpec, Selector};
use hither_core::snapshot::PAGE_BYTES;

/// Time in which things go wrong, in us.
const FAULTY_US: u64 = 6_000_000;
/// Base pages of a node.
const NODE_PAGES: u64 = 40_000;

/// A simulation that has not begun.
pub struct Scenario {
    /// It.
    pub simulation: Simulation,
    /// Do its policies ever have nothing to do?
    pub becomes_quiet: bool,
}

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_belief(seed, |_| {})
    }

    /// The same, with an engine that believes in other settings than the checkers: how a budget that
    /// is not kept is planted.
    #[must_use]
    pub fn with_belief(seed: u64, believe: impl Fn(&mut EngineConfig)) -> Self {
        let mut random = Random::new(seed);
        let config = config(&mut random);
        let mut believed = config.clone();
        believe(&mut believed);
        Self::with_budgets(seed, &mut random, &config, &believed)
    }

    fn with_budgets(
        seed: u64,
        random: &mut Random,
        config: &EngineConfig,
        believed: &EngineConfig,
    ) -> Self {
        let mut world = faulty_machine(seed, random);
        let is_for_all = happens(random, 0.25);
        let scope_count = match is_for_all {
            true => 1,
            false => between(random, 1, 4) as usize,
        };
        let program_count = between(random, scope_count as u64, 5) as usize;
        // The first programs are one of each scope; of the others some belong to none.
        let scopes: Vec<Option<usize>> = (0..program_count)
            .map(|program| match program < scope_count {
                true => Some(program),
                false if happens(random, 0.3) => None,
                false => Some(below(random, scope_count)),
            })
            .collect();
        let roots: Vec<Pid> = scopes
            .iter()
            .enumerate()
            .map(|(program, &scope)| start(&mut world, random, program, scope))
            .collect();
        let mut engine = Engine::new(believed.clone());
        let mut becomes_quiet = true;
        let has_tiers = world.nodes.iter().any(|node| node.cpu_count == 0);
        let mut quotas = Vec::new();
        let mut wants_users = false;
        for scope in 0..scope_count {
            let policy = policy(random, has_tiers);
            let is_by_tiers = policy.name() == tiers::NAME;
            becomes_quiet &= policy.name() != Restless.name();
            wants_users |= policy.needs() != [EvidenceKind::PageUse];
            let id = engine.add_scope(ScopeSpec {
                name: match is_for_all {
                    true => String::new(),
                    false => format!("s{scope}"),
                },
                selector: match is_for_all {
                    true => Selector::All,
                    false => selector(random, scope, &scopes, &roots),
                },
                policy,
            });
            let quota = (is_by_tiers && happens(random, 0.5)).then(|| between(random, 10, 1_000));
            if let Some(pages) = quota {
                engine.set_quota(id, Quota::Pages(pages));
            }
            quotas.push(quota);
        }
        // Where nobody asks who uses a page, access bits do.
        if !wants_users && world.tracker.sight != Sight::Counters {
            world.tracker.sight = Sight::AccessBits;
        }
        let rules = Rules {
            config: config.clone(),
            scopes,
            quotas,
            is_for_all,
        };
        Self {
            simulation: Simulation::new(world, engine, rules),
            becomes_quiet,
        }
    }

    /// Faults, calm, undo; returns what was found.
    #[must_use]
    pub fn play(self) -> Vec<Violation> {
        self.play_and_tell().0
    }

    /// The same, with the account of each scope.
    #[must_use]
    pub fn play_and_tell(self) -> (Vec<Violation>, Vec<Summary>) {
        let mut simulation = self.simulation;
        simulation.run(FAULTY_US);
        simulation.calm(self.becomes_quiet);
        simulation.undo();
        let summaries = simulation.summaries();
        (simulation.end(true), summaries)
    }
}

/// Budgets that are felt on machines and in times as small as these.
fn config(random: &mut Random) -> EngineConfig {
    EngineConfig {
        seed: random.next_u64(),
        reserve_bytes: between(random, 4, 600) * PAGE_BYTES,
        rate_bytes_per_s: between(random, 2_000, 20_000) * PAGE_BYTES,
        burst_bytes: between(random, 600, 3_000) * PAGE_BYTES,
        request_pages: between(random, 16, 2048) as usize,
        cooldown_us: between(random, 300_000, 3_000_000),
        // On some machines what may be used of CPU time is soon used.
        disturbance_share: pick(random, &[0.001, 0.01]),
        disturbance_span_us: pick(random, &[100_000, 500_000, 30_000_000]),
        ..EngineConfig::default()
    }
}

/// A machine on which nothing goes wrong: so many nodes of four CPUs, and so many slower ones without.
#[must_use]
pub fn machine(seed: u64, with_cpus: usize, without: usize) -> World {
    let count = with_cpus + without;
    let has_cpus = |at: usize| at < with_cpus;
    let node = |at: usize| Node {
        // Sparse, as the kernel's numbers may be.
        id: NodeId((at * at) as u32),
        cpu_count: if has_cpus(at) { 4 } else { 0 },
        total_pages: NODE_PAGES,
        free_pages: NODE_PAGES,
    };
    let hops = |a: usize, b: usize| (a ^ b).count_ones();
    let distance = |a: usize, b: usize| match a == b {
        true => 10,
        false => 10 + 3 * hops(a, b) + if has_cpus(b) { 0 } else { 10 },
    };
    let idle_ns = |a: usize, b: usize| {
        87.0 + 26.0 * f64::from(hops(a, b)) + if has_cpus(b) { 0.0 } else { 80.0 }
    };
    let memory = FlowMemory {
        idle_ns: table(count, idle_ns),
        capacity_gbs: (0..count)
            .map(|home| if has_cpus(home) { 3.07 } else { 1.5 })
            .collect(),
        curves: vec![
            Curve {
                a_ns: 20.0,
                b_ns: 8.0,
                n: 2.0,
            };
            count
        ],
    };
    let nodes = (0..count).map(node).collect();
    World::new(seed, nodes, table(count, distance), memory)
}

fn table<T>(count: usize, of: impl Fn(usize, usize) -> T) -> Vec<Vec<T>> {
    let row = |a: usize| (0..count).map(|b| of(a, b)).collect();
    (0..count).map(row).collect()
}

/// Two to four nodes with CPUs, sometimes a slower one without, and things that go wrong.
fn faulty_machine(seed: u64, random: &mut Random) -> World {
    let with_cpus = between(random, 2, 5) as usize;
    let without = usize::from(happens(random, 0.3));
    let mut world = machine(seed, with_cpus, without);
    if happens(random, 0.3) {
        // Others hold nearly all of one.
        let node = below(random, with_cpus + without);
        world.nodes[node].free_pages = between(random, 700, 3_000);
    }
    world.faults = faults(random);
    let sights = [
        Sight::Counters,
        Sight::Counters,
        Sight::Samples,
        Sight::HintFaults,
    ];
    world.tracker = SimTracker {
        sight: pick(random, &sights),
        period: between(random, 5_000, 20_000) as u32,
        is_steady: false,
    };
    let slice_pages = between(random, 16, 4096);
    world.hands = SimHands::new(random.next_u64(), 5.0 + 25.0 * random.unit(), slice_pages);
    world
}

/// Each kind of fault in some of the scenarios, none in some.
fn faults(random: &mut Random) -> Faults {
    let mut at_times = |probability: f64, most: f64| match happens(random, probability) {
        true => random.unit() * most,
        false => 0.0,
    };
    Faults {
        busy: at_times(0.5, 0.5),
        late_us: at_times(0.5, 1_500_000.0) as u64,
        slow: at_times(0.3, 50.0),
        loses: at_times(0.3, 0.9),
        blind: at_times(0.2, 0.3),
        events_per_s: at_times(0.6, 8.0),
        most_processes: 12,
    }
}

/// Starts a program: a root and some children.
fn start(world: &mut World, random: &mut Random, program: usize, scope: Option<usize>) -> Pid {
    let whose = scope.map_or("free".to_owned(), |scope| format!("s{scope}"));
    let nodes = world.nodes.clone();
    let mut threads: Vec<u32> = nodes.iter().map(|_| 0).collect();
    let users = nodes.iter().filter(|node| node.cpu_count > 0).count();
    for _ in 0..between(random, 1, 5) {
        threads[below(random, users)] += 1;
    }
    let huge = happens(random, 0.2);
    let kind = ProcessKind {
        program,
        user: 1000 + scope.unwrap_or(99) as u32,
        group: format!("/sim/{whose}/p{program}"),
        name: format!("{whose}-p{program}"),
        threads,
        lies_on: None,
        phases: phases(random),
        units: match huge {
            true => between(random, 2, 10) as usize,
            false => between(random, 30, 300) as usize,
        },
        huge,
        pinned: if happens(random, 0.3) {
            0.2 * random.unit()
        } else {
            0.0
        },
    };
    let root = world.spawn(kind.clone(), INIT);
    for _ in 0..below(random, 3) {
        world.spawn(kind.clone(), root);
    }
    root
}

/// Perhaps set-up, then one thing, then perhaps another.
fn phases(random: &mut Random) -> Vec<ProcessPhase> {
    let patterns = [
        Pattern::Shared,
        Pattern::Partitioned,
        Pattern::Partitioned,
        Pattern::Striped,
        Pattern::Sweeping,
        Pattern::Late,
        Pattern::Late,
        Pattern::Idle,
    ];
    let mut phases = Vec::new();
    if happens(random, 0.5) {
        phases.push(ProcessPhase {
            pattern: Pattern::Filling,
            length_us: between(random, 200_000, 1_500_000),
        });
    }
    for _ in 0..between(random, 1, 4) {
        phases.push(ProcessPhase {
            pattern: pick(random, &patterns),
            length_us: between(random, 500_000, 4_000_000),
        });
    }
    phases
}

fn policy(random: &mut Random, has_tiers: bool) -> Box<dyn Policy> {
    let name = match has_tiers {
        true => pick(
            random,
            &[
                "tiers",
                "tiers",
                "tiers",
                "auto",
                "carrefour",
                "wrong-node",
                "none",
            ],
        ),
        false => pick(
            random,
            &["carrefour", "carrefour", "wrong-node", "restless", "none"],
        ),
    };
    match name {
        "restless" => Box::new(Restless),
        name => by_name(name).unwrap_or_else(|error| panic!("{error}")),
    }
}

/// One of the ways to name the programs of a scope.
fn selector(
    random: &mut Random,
    scope: usize,
    scopes: &[Option<usize>],
    roots: &[Pid],
) -> Selector {
    let group = Selector::Cgroup(format!("/sim/s{scope}"));
    let name = Selector::Name(format!("s{scope}-*"));
    let programs = scopes.iter().zip(roots);
    let own = programs.filter(|(of, _)| **of == Some(scope));
    let trees = own.map(|(_, &root)| Selector::Tree(root)).collect();
    match below(random, 5) {
        0 => group,
        1 => name,
        2 => Selector::User(1000 + scope as u32),
        3 => Selector::Any(trees),
        _ => Selector::Any(vec![name, group]),
    }
}
