//! Machines with fast and slow memory, made by hand.

use crate::street::{kind, street, summary};
use hither_core::engine::{EngineConfig, Verdict};
use hither_core::ids::{Pid, ScopeId};
use hither_core::plan::Mechanism;
use hither_core::policy::by_name;
use hither_core::quota::Quota;
use hither_sim::scenario::machine;
use hither_sim::{Pattern, ProcessKind, Sight, SimHands, Simulation, World};

/// A node with CPUs and one of slow memory; the fast one has room for so many pages.
fn two_tiers(fast_pages: u64, slow_pages: u64) -> World {
    let mut world = machine(11, 1, 1);
    for (node, pages) in world.nodes.iter_mut().zip([fast_pages, slow_pages]) {
        node.total_pages = pages;
        node.free_pages = pages;
    }
    world
}

/// A program of so many units of which the last eighth is used.
fn late(program: usize, units: usize, huge: bool) -> ProcessKind {
    ProcessKind {
        units,
        huge,
        ..kind(program, Pattern::Late, &[2, 0])
    }
}

fn config() -> EngineConfig {
    EngineConfig {
        reserve_bytes: 64 * 4096,
        ..EngineConfig::default()
    }
}

/// Shares of what the programs use, the last eighths of their memory, that are in fast memory.
fn fast_shares(simulation: &Simulation) -> Vec<f64> {
    let world = simulation.world();
    let share = |pages: &[hither_sim::SimPage]| {
        let used = &pages[pages.len() - pages.len().div_ceil(8)..];
        used.iter().filter(|page| page.home == 0).count() as f64 / used.len() as f64
    };
    world
        .processes
        .values()
        .map(|process| share(&process.pages))
        .collect()
}

fn fast_pages(simulation: &Simulation, pid: Pid) -> u64 {
    let world = simulation.world();
    let process = &world.processes[&pid];
    let pages = process.pages.iter().filter(|page| page.home == 0).count() as u64;
    pages * process.kind.unit_pages()
}

#[test]
fn what_is_used_takes_the_place_of_what_is_not_and_goes_back_at_the_end() {
    let cases = [
        ("tiers", Sight::Counters),
        ("auto", Sight::Counters),
        ("tiers", Sight::AccessBits),
    ];
    for (policy, sight) in cases {
        let programs = vec![(late(0, 16_384, false), by_name(policy).unwrap())];
        let mut world = two_tiers(6_000, 40_000);
        world.tracker.sight = sight;
        let mut simulation = street(world, programs, config());
        simulation.run(20_000_000);
        let told = summary(&simulation, 0);
        let shares = fast_shares(&simulation);
        assert!(
            shares[0] > 0.95,
            "{policy} by {sight:?}: {shares:?}\n{told}"
        );
        assert!(
            !told
                .verdicts
                .iter()
                .any(|&(verdict, _)| verdict == Verdict::Harmful),
            "{told}"
        );
        let by = |mechanism| told.directions.iter().any(|row| row.mechanism == mechanism);
        assert!(by(Mechanism::Promote) && by(Mechanism::Demote), "{told}");
        simulation.undo();
        let found = simulation.end(true);
        assert!(found.is_empty(), "{policy} by {sight:?}: {found:?}");
    }
}

#[test]
fn three_by_shares_have_them_and_a_greedy_one_takes_nothing() {
    let quotas = [
        Quota::Shares(1.0),
        Quota::Shares(2.0),
        Quota::Shares(5.0),
        Quota::Pages(500),
    ];
    let programs =
        (0..quotas.len()).map(|program| (late(program, 32_768, false), by_name("tiers").unwrap()));
    // Each uses 4096 pages, more than its part.
    let mut simulation = street(two_tiers(5_000, 160_000), programs.collect(), config());
    for (scope, quota) in (0..).zip(quotas) {
        simulation.engine_mut().set_quota(ScopeId(scope), quota);
    }
    simulation.run(20_000_000);
    let pids: Vec<Pid> = simulation.world().processes.keys().copied().collect();
    let told = |simulation: &Simulation| {
        let summaries = simulation.summaries();
        let told = summaries.iter().map(|told| format!("{told}\n"));
        told.collect::<String>()
    };
    // Once settled they stay: means over each second.
    for second in 20..60 {
        let mut sums = vec![0.0; pids.len()];
        for _ in 0..10 {
            simulation.run(100_000);
            for (sum, &pid) in sums.iter_mut().zip(&pids) {
                *sum += fast_pages(&simulation, pid) as f64 / 10.0;
            }
        }
        assert!(
            sums[3] <= 500.0,
            "{second}: {sums:?}\n{}",
            told(&simulation)
        );
        let rest: f64 = sums[..3].iter().sum();
        for (sum, part) in sums.iter().zip([0.125, 0.25, 0.625]) {
            let is_kept = (sum / rest - part).abs() < 0.03;
            assert!(is_kept, "{second}: {sums:?}\n{}", told(&simulation));
        }
    }
    let found = simulation.end(false);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn a_tebibyte_is_managed() {
    // 512 Ki huge pages; 128 GiB are used, and some 85 GiB are fast.
    let pages = 1 << 28;
    let programs = vec![(
        ProcessKind {
            threads: vec![256, 0],
            ..late(0, 1 << 19, true)
        },
        by_name("tiers").unwrap(),
    )];
    let mut world = two_tiers(pages / 12, 2 * pages);
    // As many CPUs as such a machine has, and controllers for them.
    world.nodes[0].cpu_count = 256;
    world.hands = SimHands::new(5, 1.0, 4096);
    world.memory.capacity_gbs = vec![600.0, 300.0];
    let mut simulation = street(world, programs, config());
    let before = fast_shares(&simulation)[0];
    simulation.run(25_000_000);
    let after = fast_shares(&simulation)[0];
    let told = summary(&simulation, 0);
    // A GB a second, half of it down, with a pause after each campaign: some 8 of 128 GiB.
    assert!(before == 0.0 && after > 0.04, "{before} {after}\n{told}");
    let found = simulation.end(false);
    assert!(found.is_empty(), "{found:?}");
}
