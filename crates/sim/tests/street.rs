//! Machines made by hand: a scope for each program.

use hither_core::engine::{Engine, EngineConfig, Summary};
use hither_core::ids::Pid;
use hither_core::policy::Policy;
use hither_core::scope::{ScopeSpec, Selector};
use hither_sim::check::Rules;
use hither_sim::{INIT, Pattern, ProcessKind, ProcessPhase, Simulation, World};

/// A process of program `program` with threads on these nodes, by position.
pub fn kind(program: usize, pattern: Pattern, threads: &[u32]) -> ProcessKind {
    ProcessKind {
        program,
        user: 1000,
        group: format!("/sim/s{program}"),
        name: format!("s{program}"),
        threads: threads.to_vec(),
        lies_on: None,
        phases: vec![ProcessPhase {
            pattern,
            length_us: 0,
        }],
        units: 100,
        huge: false,
        pinned: 0.0,
    }
}

/// The same, with its memory on another node.
pub fn lying_on(node: usize, kind: ProcessKind) -> ProcessKind {
    ProcessKind {
        lies_on: Some(node),
        ..kind
    }
}

/// Programs `0..` in a scope each, under these policies.
pub fn street(
    mut world: World,
    programs: Vec<(ProcessKind, Box<dyn Policy>)>,
    config: EngineConfig,
) -> Simulation {
    let mut engine = Engine::new(config.clone());
    let scopes = (0..programs.len()).map(Some).collect();
    for (at, (kind, policy)) in programs.into_iter().enumerate() {
        engine.add_scope(ScopeSpec {
            name: format!("s{at}"),
            selector: Selector::Cgroup(kind.group.clone()),
            policy,
        });
        world.spawn(kind, INIT);
    }
    let rules = Rules {
        config,
        scopes,
        quotas: Vec::new(),
        is_for_all: false,
    };
    Simulation::new(world, engine, rules)
}

/// The account of a scope.
pub fn summary(simulation: &Simulation, scope: usize) -> Summary {
    simulation.summaries().swap_remove(scope)
}

/// How many of a process's pages lie on each node, by position.
pub fn spread(simulation: &Simulation, pid: Pid) -> Vec<u32> {
    let world = simulation.world();
    let process = &world.processes[&pid];
    let mut spread = vec![0; world.nodes.len()];
    for page in &process.pages {
        spread[page.home] += 1;
    }
    spread
}
