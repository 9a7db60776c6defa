//! Whole programs in fast memory: many that start and end at random.

use crate::street::kind;
use hither_core::engine::{Engine, EngineConfig};
use hither_core::ids::Pid;
use hither_core::plan::Mechanism;
use hither_core::policy::by_name;
use hither_sim::check::Rules;
use hither_sim::scenario::machine;
use hither_sim::{INIT, Pattern, ProcessKind, Simulation, World};

const SECOND_US: u64 = 1_000_000;
const FAST_PAGES: u64 = 2_000;

/// A node with 16 CPUs and slow memory, and fast memory without CPUs that carries four times as much.
fn knl() -> World {
    let mut world = machine(3, 1, 1);
    world.fast_is_far = true;
    for (node, pages) in world.nodes.iter_mut().zip([60_000, FAST_PAGES]) {
        node.total_pages = pages;
        node.free_pages = pages;
    }
    world.nodes[0].cpu_count = 16;
    world.memory.capacity_gbs = vec![8.0, 32.0];
    world.memory.idle_ns = vec![vec![147.0, 176.0]; 2];
    world
}

fn program(number: usize, units: usize) -> ProcessKind {
    ProcessKind {
        units,
        group: "/sim/all".to_owned(),
        ..kind(number, Pattern::Shared, &[1, 0])
    }
}

/// Ten minutes of 32 programs at a time; returns pages promoted.
fn street_of_32(policy: &str) -> u64 {
    let config = EngineConfig {
        reserve_bytes: 16 * 4096,
        ..EngineConfig::default()
    };
    let engine = Engine::of_all(by_name(policy).unwrap(), config.clone());
    let rules = Rules {
        config,
        scopes: vec![None],
        quotas: Vec::new(),
        is_for_all: true,
    };
    let mut simulation = Simulation::new(knl(), engine, rules);
    // A generator of its own: whatever decides, the same programs come and go.
    let mut state = 7u64;
    let mut draw = move |most: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % most
    };
    let mut alive: Vec<(Pid, u64)> = Vec::new();
    let mut started = 0;
    for second in 0..600 {
        let now_us = second * SECOND_US;
        alive.retain(|&(pid, end_us)| {
            let is_over = end_us <= now_us;
            if is_over {
                simulation.world_mut().kill(pid);
            }
            !is_over
        });
        while alive.len() < 32 {
            let kind = program(started, 260 + draw(200) as usize);
            started += 1;
            let pid = simulation.world_mut().spawn(kind, INIT);
            alive.push((pid, now_us + SECOND_US * (2 + draw(40))));
        }
        simulation.run(SECOND_US);
        let used = FAST_PAGES - simulation.world().nodes[1].free_pages;
        let most = match policy {
            "hydm" => FAST_PAGES * 9 / 10,
            // What the engine leaves free everywhere.
            _ => FAST_PAGES * 98 / 100,
        };
        assert!(used <= most, "{policy}: {used} pages at {second} s");
    }
    // All end: nothing is left in fast memory, or on its way.
    for (pid, _) in alive {
        simulation.world_mut().kill(pid);
    }
    simulation.run(5 * SECOND_US);
    assert_eq!(
        simulation.world().nodes[1].free_pages,
        FAST_PAGES,
        "{policy}"
    );
    let told = simulation.summaries().swap_remove(0);
    let by = |row: &&hither_core::engine::DirectionRow| row.mechanism == Mechanism::Promote;
    let promoted = told
        .directions
        .iter()
        .filter(by)
        .map(|row| row.page_count)
        .sum();
    let found = simulation.end(false);
    assert!(found.is_empty(), "{policy}: {found:?}\n{told}");
    promoted
}

#[test]
fn programs_that_come_and_go_leave_no_reservation_behind() {
    for policy in ["hydm", "value", "value-fair"] {
        let promoted = street_of_32(policy);
        assert!(promoted > FAST_PAGES, "{policy}: {promoted} pages");
    }
}
