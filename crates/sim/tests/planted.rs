//! Faults that are planted from outside, each of which a checker must find.

use crate::apart::helped_and_harmed;
use hither_core::ids::Pid;
use hither_core::snapshot::{NodeCounts, Snapshot};
use hither_sim::check::{Invariant, Violation};
use hither_sim::scenario::Scenario;
use std::collections::BTreeMap;

/// Seeds over which each is looked for.
const SEEDS: u64 = 60;

/// Of these seeds, those that break the rule; no plant breaks anything else than `consequences`.
fn finders(
    rule: Invariant,
    consequences: &[Invariant],
    play: impl Fn(u64) -> Vec<Violation>,
) -> Vec<u64> {
    let breaks = |seed: &u64| {
        let found = play(*seed);
        for violation in &found {
            let is_expected = violation.rule == rule || consequences.contains(&violation.rule);
            assert!(is_expected, "seed {seed}: {violation}");
        }
        found.iter().any(|violation| violation.rule == rule)
    };
    (1..=SEEDS).filter(breaks).collect()
}

#[test]
fn a_budget_of_bytes_that_is_overrun_is_found() {
    let finders = finders(Invariant::Rate, &[], |seed| {
        let overrun = Scenario::with_belief(seed, |config| {
            config.rate_bytes_per_s *= 3;
            config.burst_bytes *= 3;
        });
        overrun.play()
    });
    assert!(finders.len() >= 5, "found by seeds {finders:?} alone");
}

#[test]
fn a_node_that_is_filled_beyond_its_reserve_is_found() {
    let finders = finders(Invariant::Room, &[], |seed| {
        let mut scenario = Scenario::new(seed);
        scenario.simulation.tamper(|snapshot| {
            for node in &mut snapshot.nodes {
                node.free_bytes = node.total_bytes;
            }
        });
        scenario.play()
    });
    assert!(finders.len() >= 2, "found by seeds {finders:?} alone");
}

#[test]
fn a_budget_of_cpu_time_that_is_overrun_is_found() {
    let finders = finders(Invariant::Disturbance, &[], |seed| {
        let blind = Scenario::with_belief(seed, |config| config.disturbance_share = 1.0);
        blind.play()
    });
    assert!(finders.len() >= 2, "found by seeds {finders:?} alone");
}

#[test]
fn a_revert_that_is_lost_is_found() {
    // What says that it went back and did not is not back after an undo, either, nor known to be away.
    let finders = finders(
        Invariant::Revert,
        &[Invariant::Undo, Invariant::Ledger],
        |seed| {
            let scenario = Scenario::new(seed);
            scenario.simulation.world_mut().hands.loses_reverts = true;
            scenario.play()
        },
    );
    assert!(finders.len() >= 5, "found by seeds {finders:?} alone");
}

/// Every process is shown with the accesses of the next one.
fn swap_figures(snapshot: &mut Snapshot) {
    let mut of: BTreeMap<Pid, Vec<NodeCounts>> = BTreeMap::new();
    for page in &snapshot.pages {
        of.entry(page.pid).or_default().push(page.reads.clone());
    }
    let Some(first) = of.keys().next().copied() else {
        return;
    };
    let mut taken: BTreeMap<Pid, usize> = BTreeMap::new();
    for page in &mut snapshot.pages {
        let after = of.keys().find(|pid| **pid > page.pid);
        let reads = &of[after.unwrap_or(&first)];
        let at = taken.entry(page.pid).or_default();
        page.reads = reads[*at % reads.len()].clone();
        *at += 1;
    }
}

#[test]
fn a_verdict_by_a_neighbours_figures_is_found() {
    let mut simulation = helped_and_harmed();
    simulation.tamper(swap_figures);
    simulation.run(4_000_000);
    let found = simulation.end(false);
    assert!(
        found
            .iter()
            .any(|violation| violation.rule == Invariant::Verdict),
        "{found:?}"
    );
    let finders = finders(Invariant::Verdict, &[], |seed| {
        let mut scenario = Scenario::new(seed);
        scenario.simulation.tamper(swap_figures);
        scenario.play()
    });
    assert!(finders.len() >= 2, "found by seeds {finders:?} alone");
}
