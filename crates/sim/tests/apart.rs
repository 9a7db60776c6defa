//! Scopes are judged apart: what happens to one says nothing of another.

use crate::street::{kind, lying_on, spread, street, summary};
use hither_core::engine::{CampaignRow, EngineConfig, Verdict};
use hither_core::ids::{NodeId, Pid};
use hither_core::policy::by_name;
use hither_sim::policies::Gather;
use hither_sim::scenario::machine;
use hither_sim::{INIT, Pattern, ProcessKind, SimHands, SimTracker, Simulation};

const A: Pid = Pid(101);
const B: Pid = Pid(102);

/// `a` and `b` are gathered on the first node, where only `a` runs.
pub fn helped_and_harmed() -> Simulation {
    let gather = || Box::new(Gather::new(NodeId(0)));
    let a = lying_on(1, kind(0, Pattern::Shared, &[2, 0]));
    let b = kind(1, Pattern::Shared, &[0, 2]);
    let programs: Vec<(ProcessKind, Box<dyn hither_core::policy::Policy>)> =
        vec![(a, gather()), (b, gather())];
    street(machine(1, 2, 0), programs, EngineConfig::default())
}

fn verdicts(simulation: &Simulation, scope: usize) -> Vec<Verdict> {
    let campaigns = summary(simulation, scope).campaigns;
    campaigns.iter().map(|row| row.verdict).collect()
}

fn assert_sound(simulation: Simulation) {
    let found = simulation.end(false);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_same_mechanism_helps_one_and_harms_the_other() {
    let mut simulation = helped_and_harmed();
    simulation.run(4_000_000);
    assert_eq!(verdicts(&simulation, 0), [Verdict::Success]);
    assert_eq!(verdicts(&simulation, 1), [Verdict::Harmful]);
    assert_eq!(spread(&simulation, A), [100, 0]);
    assert_eq!(spread(&simulation, B), [0, 100]);
    let (a, b) = (summary(&simulation, 0), summary(&simulation, 1));
    assert_eq!((a.displaced_pages, a.reverted_pages), (100, 0));
    assert_eq!((b.displaced_pages, b.reverted_pages), (0, 100));
    // What is switched off for `b` still helps who joins `a`.
    let late = lying_on(1, kind(0, Pattern::Shared, &[2, 0]));
    let late = simulation.world_mut().spawn(late, INIT);
    simulation.run(4_000_000);
    assert_eq!(spread(&simulation, late), [100, 0]);
    assert_eq!(spread(&simulation, B), [0, 100]);
    assert_sound(simulation);
}

#[test]
fn the_canary_goes_back_while_its_neighbour_keeps_its_gain() {
    let a = lying_on(0, kind(0, Pattern::Partitioned, &[1, 1, 1, 1]));
    let b = kind(1, Pattern::Shared, &[0, 2, 0, 0]);
    let programs = vec![
        (a, by_name("carrefour").unwrap()),
        (b, by_name("wrong-node").unwrap()),
    ];
    let mut simulation = street(machine(1, 4, 0), programs, EngineConfig::default());
    simulation.run(8_000_000);
    assert_eq!(verdicts(&simulation, 1), [Verdict::Harmful]);
    assert_eq!(spread(&simulation, B), [0, 100, 0, 0]);
    assert!(verdicts(&simulation, 0).contains(&Verdict::Success));
    assert!(!verdicts(&simulation, 0).contains(&Verdict::Harmful));
    let world = simulation.world();
    let gained = &world.processes[&A];
    let users = 4;
    let at_home = gained.pages.iter().enumerate();
    let at_home = at_home.filter(|(unit, page)| page.home == unit * users / gained.pages.len());
    let share = at_home.count() as f64 / gained.pages.len() as f64;
    assert!(share > 0.95, "{share} of the pages are where they are used");
    drop(world);
    assert_sound(simulation);
}

/// What is decided about `a` beside this neighbour, where memory and movers have room for both.
fn beside(seed: u64, pattern: Pattern, threads: &[u32], policy: &str) -> Vec<CampaignRow> {
    let mut world = machine(seed, 4, 0);
    world.memory.capacity_gbs = vec![1e6; 4];
    world.hands = SimHands::new(seed, 0.0, 1024);
    world.tracker = SimTracker {
        is_steady: true,
        ..SimTracker::default()
    };
    let config = EngineConfig {
        max_interval_us: EngineConfig::default().interval_us,
        ..EngineConfig::default()
    };
    let policies = ["carrefour", "wrong-node"];
    let a = lying_on(0, kind(0, Pattern::Partitioned, &[2, 2, 2, 2]));
    let programs = vec![
        (a, by_name(policies[seed as usize % 2]).unwrap()),
        (kind(1, pattern, threads), by_name(policy).unwrap()),
    ];
    let mut simulation = street(world, programs, config);
    simulation.run(6_000_000);
    let mut campaigns = summary(&simulation, 0).campaigns;
    for row in &mut campaigns {
        // Numbers are given out over all scopes.
        row.campaign = 0;
    }
    campaigns
}

#[test]
fn another_neighbour_changes_nothing() {
    for seed in 0..10 {
        let alone = beside(seed, Pattern::Idle, &[0, 1, 0, 0], "none");
        assert!(!alone.is_empty(), "nothing was judged");
        for policy in ["carrefour", "wrong-node"] {
            let neighbours = [
                (Pattern::Shared, [1, 1, 1, 1]),
                (Pattern::Partitioned, [0, 2, 2, 0]),
                (Pattern::Sweeping, [2, 0, 0, 2]),
            ];
            for (pattern, threads) in neighbours {
                let other = beside(seed, pattern, &threads, policy);
                assert_eq!(alone, other, "seed {seed}, {policy}, {pattern:?}");
            }
        }
    }
}
