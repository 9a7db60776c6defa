//! The daemon's journal under simulated machines on which it is killed at any moment, its movers in the
//! middle of their work: the next daemon puts every page back to where the first one found it.

use hither_core::engine::Engine;
use hither_core::ids::{Pid, SpaceId};
use hither_core::policy::random::Random;
use hither_daemon::journal::{self, Earlier, Journal};
use hither_linux::proc::tree::Birth;
use hither_sim::Simulation;
use hither_sim::scenario::Scenario;
use std::collections::HashMap;
use std::path::Path;

/// Machines, of which each sees one to three kills.
const SEEDS: u64 = 500;
/// Time until a kill at most, in us.
const MOST_US: u64 = 6_000_000;
/// Turns within which an undo must end.
const MOST_TURNS: usize = 2_000;

fn birth(pid: Pid, space: SpaceId) -> Birth {
    Birth {
        pid: pid.0,
        start_ticks: u64::from(space.0),
        stack_start: 0,
    }
}

fn engine(seed: u64) -> Engine {
    Scenario::new(seed).simulation.into_engine()
}

/// Takes down what moves, as the daemon does.
fn watch(simulation: &mut Simulation, mut journal: Journal) {
    simulation.set_witness(Box::new(move |engine, snapshot, requests| {
        let processes = snapshot.processes.iter();
        let births: HashMap<SpaceId, Birth> = processes
            .map(|process| (process.space, birth(process.pid, process.space)))
            .collect();
        let noted = journal.note(engine, snapshot, requests, &births);
        noted.map_err(|error| error.to_string())
    }));
}

/// A daemon is killed and another begins: what the first one moved is told to the second.
fn kill(simulation: &mut Simulation, seed: u64, path: &Path) -> Earlier {
    // With the agent goes its witness, and with that the lock.
    simulation.restart(engine(seed));
    let (journal, earlier, note) = Journal::open(path).unwrap();
    assert_eq!(note, None, "seed {seed}");
    watch(simulation, journal);
    earlier
}

/// Turns for so long. Scopes know their members after a turn, in which pages may have moved again.
fn run(simulation: &mut Simulation, earlier: &mut Earlier, length_us: u64) {
    let end_us = simulation.world().now_us() + length_us;
    while simulation.world().now_us() < end_us {
        simulation.turn();
        take_over(simulation, earlier);
    }
}

fn take_over(simulation: &mut Simulation, earlier: &mut Earlier) {
    let living: Vec<(Pid, SpaceId)> = {
        let world = simulation.world();
        let living = world.processes.values();
        living.map(|process| (process.pid, process.space)).collect()
    };
    for (pid, space) in living {
        if simulation.engine_mut().is_member(pid, space) {
            let moved = earlier.remove(&birth(pid, space)).unwrap_or_default();
            journal::adopt(simulation.engine_mut(), pid, space, moved);
        }
    }
}

/// Moving units that are not where they were before hither moved them, of those that scopes can know.
fn away(simulation: &mut Simulation) -> usize {
    let mut away = 0;
    let members: Vec<Pid> = {
        let world = simulation.world();
        world.processes.keys().copied().collect()
    };
    for pid in members {
        if simulation.engine_mut().scope_of(pid).is_some() {
            let world = simulation.world();
            let pages = world.processes[&pid].pages.iter();
            away += pages.filter(|page| page.home != page.origin).count();
        }
    }
    away
}

#[test]
fn whenever_it_is_killed_the_next_one_puts_everything_back() {
    let (mut kills, mut told, mut displaced) = (0, 0, 0);
    for seed in 0..SEEDS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("moved");
        let mut random = Random::new(seed ^ 0x5eed);
        let mut simulation = Scenario::new(seed).simulation;
        let (journal, ..) = Journal::open(&path).unwrap();
        watch(&mut simulation, journal);
        let mut earlier = Earlier::new();
        for _ in 0..1 + random.next_u64() % 3 {
            run(&mut simulation, &mut earlier, random.next_u64() % MOST_US);
            earlier = kill(&mut simulation, seed, &path);
            told += earlier.values().map(Vec::len).sum::<usize>();
            kills += 1;
        }
        simulation.calm(false);
        run(&mut simulation, &mut earlier, 1_000_000);
        displaced += away(&mut simulation);
        simulation.engine_mut().begin_undo_all();
        for _ in 0..MOST_TURNS {
            simulation.turn();
            let engine = simulation.engine_mut();
            if engine.is_undone() && engine.pending_count() == 0 {
                break;
            }
        }
        assert!(
            simulation.engine_mut().is_undone(),
            "seed {seed}: the undo does not end"
        );
        // A unit that was given up is one that a full node has no room for.
        let left: u64 = simulation
            .summaries()
            .iter()
            .map(|summary| summary.displaced_pages)
            .sum();
        let away = away(&mut simulation);
        assert!(
            away == 0 || left > 0,
            "seed {seed}: {away} units are away, and nobody knows of them"
        );
    }
    println!("{kills} kills, {told} runs of pages told, {displaced} units put back");
    assert!(kills >= 900, "{kills}");
    assert!(told > 10_000 && displaced > 10_000, "{told} {displaced}");
}
