//! Several scopes at once: each is judged by its own figures, and budgets are shared.

use super::world::{FIRST_PAGE, Pattern, World};
use super::*;
use crate::ids::{NodeId, Pid, SpaceId};
use crate::plan::{Mechanism, Refusal};
use crate::policy::{self, Context, EvidenceKind, Policy, PolicyActivity, Proposal, ProposedMove};
use crate::snapshot::{Evidence, GlobalMetrics, PageStats};

const PAGES: usize = 4096;

/// Several processes on one machine, each a world of its own: they do not slow each other down.
struct Street {
    worlds: Vec<World>,
    engine: Engine,
    plan: Plan,
    outcomes: Vec<MoveOutcome>,
    /// Outcomes come only when this is lifted.
    holds_outcomes: bool,
    own_cpu_us: u64,
    notes: Vec<String>,
}

impl Street {
    /// A scope for each world, by its process.
    fn new(worlds: Vec<(World, Box<dyn Policy>)>, config: EngineConfig) -> Self {
        let mut engine = Engine::new(config);
        let mut street = Vec::new();
        for (at, (mut world, policy)) in worlds.into_iter().enumerate() {
            world.pid = Pid(100 + at as i32);
            world.space = SpaceId(100 + at as u32);
            let id = engine.add_scope(ScopeSpec {
                name: format!("s{at}"),
                selector: Selector::Tree(world.pid),
                policy,
            });
            assert_eq!(id, ScopeId(at as u32));
            street.push(world);
        }
        Self {
            worlds: street,
            engine,
            plan: Plan {
                next_interval_us: 100_000,
                ..Plan::default()
            },
            outcomes: Vec::new(),
            holds_outcomes: false,
            own_cpu_us: 0,
            notes: Vec::new(),
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        let (interval_us, sampling) = (self.plan.next_interval_us, self.plan.sampling);
        let worlds = self.worlds.iter_mut();
        let mut all: Vec<Snapshot> = worlds
            .map(|world| world.snapshot(interval_us, sampling))
            .collect();
        let mut street = all.remove(0);
        let add = |sum: &Evidence<f64>, more: &Evidence<f64>, weight: f64| {
            let (sum, more) = (sum.get().unwrap(), more.get().unwrap());
            Evidence::measured(sum + more * weight, "the street")
        };
        // Machine-wide figures mix the neighbours: a verdict that stood on them would be wrong.
        let metrics = &mut street.metrics;
        let count = all.len() as f64 + 1.0;
        for next in all {
            let more: &GlobalMetrics = &next.metrics;
            metrics.local_access_ratio = add(
                &metrics
                    .local_access_ratio
                    .clone()
                    .map(|ratio| ratio / count),
                &more.local_access_ratio,
                1.0 / count,
            );
            metrics.controller_imbalance = add(
                &metrics.controller_imbalance,
                &more.controller_imbalance,
                1.0,
            );
            metrics.memory_accesses_per_us = add(
                &metrics.memory_accesses_per_us,
                &more.memory_accesses_per_us,
                1.0,
            );
            street.pages.extend(next.pages);
            street.processes.extend(next.processes);
        }
        street.own_cpu_us = Evidence::measured(self.own_cpu_us, "the street");
        street
    }

    fn step(&mut self) -> Snapshot {
        let snapshot = self.snapshot();
        self.act(&snapshot);
        snapshot
    }

    fn act(&mut self, snapshot: &Snapshot) {
        let outcomes = match self.holds_outcomes {
            true => Vec::new(),
            false => std::mem::take(&mut self.outcomes),
        };
        self.plan = self.engine.step(snapshot.now_us, snapshot, &outcomes);
        self.notes.extend(self.plan.notes.iter().cloned());
        for world in &mut self.worlds {
            let mut own = self.plan.clone();
            own.requests.retain(|request| request.pid == world.pid);
            self.outcomes.extend(world.execute(&own));
        }
    }

    fn run(&mut self, steps: usize) {
        (0..steps).for_each(|_| drop(self.step()));
    }

    fn summary(&self, at: usize) -> Summary {
        self.engine.summary().swap_remove(at).1
    }

    fn local(&mut self, at: usize) -> f64 {
        let snapshot = self.worlds[at].snapshot(100_000, Sampling::Off);
        snapshot.metrics.local_access_ratio.get().unwrap()
    }
}

/// Deals every page that it sees round robin over the nodes, whoever uses it.
struct Deal;

impl Policy for Deal {
    fn name(&self) -> &'static str {
        "deal"
    }

    fn needs(&self) -> &[EvidenceKind] {
        &[EvidenceKind::PageAccesses]
    }

    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        if !context.allows(Mechanism::Interleave) {
            return Proposal::default();
        }
        let nodes = snapshot.nodes.len();
        let moves = snapshot.pages.iter().map(|page| ProposedMove {
            pid: page.pid,
            page: page.page,
            huge: false,
            from: page.home,
            to: snapshot.nodes[(page.page as usize) % nodes].id,
            mechanism: Mechanism::Interleave,
        });
        Proposal {
            moves: moves.filter(|order| order.from != order.to).collect(),
            outlook: PolicyActivity::Working,
            ..Proposal::default()
        }
    }
}

fn deal() -> Box<dyn Policy> {
    Box::new(Deal)
}

fn policy(name: &str) -> Box<dyn Policy> {
    policy::by_name(name).unwrap()
}

fn misplaced(pattern: Pattern) -> World {
    World::new(pattern, PAGES)
}

fn well_placed(pattern: Pattern) -> World {
    let mut world = World::new(pattern, PAGES);
    world.place_well();
    world
}

#[test]
fn one_helped_and_one_harmed_by_the_same_mechanism_are_judged_apart() {
    let worlds = vec![
        (misplaced(Pattern::Shared), deal()),
        (well_placed(Pattern::Partitioned), deal()),
    ];
    let mut street = Street::new(worlds, EngineConfig::default());
    let homes = street.worlds[1].homes.clone();
    street.run(40);
    let (helped, harmed) = (street.summary(0), street.summary(1));
    assert_eq!(helped.campaigns[0].verdict, Verdict::Success, "{helped}");
    assert_eq!(harmed.campaigns[0].verdict, Verdict::Harmful, "{harmed}");
    // Both used the same mechanism: what the one lost switched nothing off in the other.
    for summary in [&helped, &harmed] {
        assert_eq!(summary.campaigns[0].mechanisms, [Mechanism::Interleave]);
    }
    assert!(street.worlds[1].homes == homes, "{harmed}");
    assert_eq!((harmed.displaced_pages, helped.reverted_pages), (0, 0));
    let spread = street.worlds[0].spread();
    assert!(
        spread.iter().all(|share| (0.24..0.26).contains(share)),
        "{spread:?}"
    );
    let off: Vec<String> = street
        .engine
        .log()
        .iter()
        .filter(|entry| matches!(entry.event, Event::SwitchedOff { .. }))
        .map(|entry| entry.scope.clone())
        .collect();
    assert!(
        !off.is_empty() && off.iter().all(|scope| scope == "s1"),
        "{off:?}"
    );
}

#[test]
fn the_canary_goes_back_while_its_neighbour_keeps_its_gain() {
    let worlds = vec![
        (misplaced(Pattern::Partitioned), policy("carrefour")),
        (well_placed(Pattern::Partitioned), policy("wrong-node")),
    ];
    let mut street = Street::new(worlds, EngineConfig::default());
    let homes = street.worlds[1].homes.clone();
    street.run(60);
    let (kept, canary) = (street.summary(0), street.summary(1));
    assert_eq!(kept.campaigns[0].verdict, Verdict::Success, "{kept}");
    assert_eq!(kept.reverted_pages, 0);
    assert_eq!(canary.campaigns[0].verdict, Verdict::Harmful, "{canary}");
    assert!(street.worlds[1].homes == homes);
    assert!(street.local(0) > 0.97, "{}", street.local(0));
    assert!(
        street
            .notes
            .iter()
            .any(|note| note.starts_with("s1: campaign") && note.contains("harmful"))
    );
}

#[test]
fn whatever_the_neighbour_does_a_scope_is_judged_alike() {
    let told = |neighbour: World, turns: bool| {
        let worlds = vec![
            (misplaced(Pattern::Shared), deal()),
            (neighbour, policy("none")),
        ];
        let mut street = Street::new(worlds, EngineConfig::default());
        for step in 0..30 {
            if turns {
                // Now one node of it runs alone, now all.
                street.worlds[1].alone = (step % 2 == 0).then_some(3);
                street.worlds[1].rotation = step;
            }
            street.step();
        }
        street.summary(0).campaigns
    };
    let calm = told(well_placed(Pattern::Partitioned), false);
    assert!(!calm.is_empty());
    assert_eq!(told(misplaced(Pattern::Shared), true)[0], calm[0]);
    assert_eq!(told(misplaced(Pattern::Striped), true)[0], calm[0]);
}

#[test]
fn a_scope_asks_for_its_own_pages_alone() {
    let worlds = vec![
        (misplaced(Pattern::Shared), deal()),
        (misplaced(Pattern::Shared), policy("none")),
    ];
    let mut street = Street::new(worlds, EngineConfig::default());
    for _ in 0..20 {
        street.step();
        for request in &street.plan.requests {
            assert_eq!((request.scope, request.pid), (ScopeId(0), Pid(100)));
            assert_eq!(request.space, SpaceId(100));
        }
    }
    assert!(street.summary(0).moved_pages > 0);
    assert_eq!(street.summary(1).moved_pages, 0);
}

#[test]
fn two_that_want_all_get_half_each() {
    let worlds = vec![
        (misplaced(Pattern::Shared), deal()),
        (misplaced(Pattern::Shared), deal()),
        (misplaced(Pattern::Shared), policy("none")),
    ];
    // 100 pages a step, and campaigns that never end.
    let config = EngineConfig {
        rate_bytes_per_s: 1000 * 4096,
        burst_bytes: 200 * 4096,
        campaign_steps: u32::MAX,
        ..EngineConfig::default()
    };
    let mut street = Street::new(worlds, config);
    // Who is asked first finds the bucket full, once.
    street.run(3);
    let moved = |street: &Street| [0, 1].map(|at| street.summary(at).moved_pages as f64);
    let first = moved(&street);
    street.run(30);
    let moved = moved(&street);
    let moved = [moved[0] - first[0], moved[1] - first[1]];
    assert!((moved[0] / moved[1] - 1.0).abs() < 0.1, "{moved:?}");
    assert!(
        (2_700.0..=3_200.0).contains(&(moved[0] + moved[1])),
        "{moved:?}"
    );
}

/// Runs until something was moved, then lets requests wait for their outcomes.
fn with_pending(policy: Box<dyn Policy>) -> Street {
    let worlds = vec![
        (misplaced(Pattern::Shared), policy),
        (misplaced(Pattern::Shared), self::policy("none")),
    ];
    let mut street = Street::new(worlds, EngineConfig::default());
    street.run(3);
    street.holds_outcomes = true;
    street.run(1);
    assert!(street.engine.pending_count() > 0);
    assert!(street.summary(0).displaced_pages > 0);
    street
}

#[test]
fn after_exec_nothing_is_known_of_the_old_pages() {
    let mut street = with_pending(deal());
    street.worlds[0].space = SpaceId(900);
    street.worlds[0].homes.fill(0);
    street.holds_outcomes = false;
    let mut snapshot = street.snapshot();
    // Whatever lies there now was not looked at yet.
    snapshot.pages.retain(|page| page.pid != Pid(100));
    street.act(&snapshot);
    assert_eq!(street.engine.pending_count(), 0);
    let ledger = street.engine.ledger(ScopeId(0)).unwrap();
    assert_eq!(
        ledger.run_count(),
        0,
        "an old life's outcome was booked to the new one"
    );
    assert_eq!(street.summary(0).displaced_pages, 0);
    // It goes on with the new life, whose pages have their own origin.
    street.run(4);
    let ledger = street.engine.ledger(ScopeId(0)).unwrap();
    assert!(ledger.run_count() > 0);
    assert!(ledger.iter().all(|(.., entry)| entry.origin == NodeId(0)));
    assert_eq!(ledger.space(Pid(100)), Some(SpaceId(900)));
}

#[test]
fn a_harmful_campaign_does_not_go_back_in_another_life() {
    let worlds = vec![
        (well_placed(Pattern::Partitioned), policy("wrong-node")),
        (misplaced(Pattern::Shared), policy("none")),
    ];
    let mut street = Street::new(worlds, EngineConfig::default());
    while street.summary(0).moved_pages == 0 {
        street.step();
    }
    street.worlds[0].space = SpaceId(900);
    street.worlds[0].place_well();
    let homes = street.worlds[0].homes.clone();
    for _ in 0..5 {
        let mut snapshot = street.snapshot();
        snapshot.pages.retain(|page| page.pid != Pid(100));
        street.act(&snapshot);
        assert!(street.plan.requests.is_empty());
    }
    assert!(street.worlds[0].homes == homes);
    let summary = street.summary(0);
    assert!(
        summary.unjudged_pages > 0 && summary.campaigns.is_empty(),
        "{summary}"
    );
}

#[test]
fn a_scope_that_ends_with_moves_under_way_leaves_nothing_behind() {
    let mut street = with_pending(deal());
    street.holds_outcomes = false;
    let moved: usize = street
        .outcomes
        .iter()
        .map(|outcome| outcome.moved.len())
        .sum();
    let before = street.summary(0).moved_pages;
    let mut snapshot = street.snapshot();
    snapshot.pages.retain(|page| page.pid != Pid(100));
    snapshot.processes.retain(|process| process.pid != Pid(100));
    street.act(&snapshot);
    let summary = street.summary(0);
    assert_eq!(street.engine.pending_count(), 0);
    assert_eq!(street.engine.ledger(ScopeId(0)).unwrap().run_count(), 0);
    assert_eq!(
        summary.moved_pages,
        before + moved as u64,
        "what was done is told"
    );
    assert_eq!(summary.displaced_pages, 0);
    assert!(street.plan.requests.is_empty());
}

#[test]
fn an_undo_puts_every_page_back_within_the_budgets_and_then_moves_nothing() {
    let config = EngineConfig {
        rate_bytes_per_s: 5000 * 4096,
        burst_bytes: 1000 * 4096,
        ..EngineConfig::default()
    };
    let worlds = vec![
        (misplaced(Pattern::Shared), policy("carrefour")),
        (misplaced(Pattern::Partitioned), policy("carrefour")),
    ];
    let mut street = Street::new(worlds, config);
    street.worlds[0].busy = 0.3;
    street.worlds[1].busy = 0.3;
    let homes = [0, 1].map(|at: usize| street.worlds[at].homes.clone());
    street.run(12);
    assert!(street.summary(0).displaced_pages > 0 && street.summary(1).displaced_pages > 0);
    assert!(street.engine.is_undone(), "nothing was to be undone yet");
    street.engine.begin_undo_all();
    assert!(!street.engine.is_undone());
    let mut steps = 0;
    while !street.engine.is_undone() {
        street.step();
        assert!(street.plan.page_count() <= 1000);
        steps += 1;
        assert!(steps < 200, "the undo does not end");
    }
    for at in [0, 1] {
        let summary = street.summary(at);
        assert_eq!(summary.displaced_pages, 0, "{summary}");
        assert!(street.worlds[at].homes == homes[at], "{summary}");
    }
    street.run(10);
    assert!(street.worlds[0].homes == homes[0]);
    assert!(
        street
            .notes
            .iter()
            .any(|note| note.starts_with("s0: undone:")),
        "{:?}",
        street.notes
    );
}

#[test]
fn an_undo_of_one_scope_leaves_the_other_its_gain_and_tells_what_stays() {
    let worlds = vec![
        (misplaced(Pattern::Shared), deal()),
        (misplaced(Pattern::Shared), deal()),
    ];
    let mut street = Street::new(worlds, EngineConfig::default());
    street.run(12);
    let kept = street.worlds[1].homes.clone();
    // There is no room where the pages came from.
    street.worlds[0].full = vec![0];
    street.engine.begin_undo(ScopeId(0));
    let mut steps = 0;
    while !street.engine.is_undone() {
        street.step();
        steps += 1;
        assert!(steps < 30, "an undo that cannot succeed must end too");
    }
    let left = street.summary(0).displaced_pages;
    assert!(left > 0);
    let told = format!(
        "s0: undone: 0 pages were put back, {left} could not be ({left} no memory on the target)"
    );
    assert!(
        street.notes.iter().any(|note| note.starts_with(&told)),
        "{:?}",
        street.notes
    );
    assert!(street.worlds[1].homes == kept);
}

#[test]
fn own_cpu_time_over_budget_holds_new_moves_and_not_reverts() {
    let worlds = vec![
        (misplaced(Pattern::Shared), deal()),
        (well_placed(Pattern::Partitioned), policy("wrong-node")),
    ];
    // 8 CPUs at 2 % for 30 s are 4.8 s.
    let mut street = Street::new(worlds, EngineConfig::default());
    let homes = street.worlds[1].homes.clone();
    street.worlds[1].busy = 0.2;
    while street.summary(1).moved_pages == 0 {
        street.step();
    }
    let moved = street.summary(0).moved_pages;
    street.own_cpu_us = 6_000_000;
    let mut reverted = 0;
    for _ in 0..20 {
        street.step();
        street.own_cpu_us = 100_000;
        assert_ne!(street.plan.sampling, Sampling::Full);
        for request in &street.plan.requests {
            assert_eq!(request.reason.mechanism, Mechanism::Revert);
            reverted += request.pages.len();
        }
    }
    assert!(reverted > 0);
    assert!(street.worlds[1].homes == homes);
    assert!(street.summary(0).moved_pages >= moved);
}

#[test]
fn what_cannot_be_remembered_is_not_moved() {
    let config = EngineConfig {
        ledger_runs: 500,
        cooldown_us: u64::MAX / 128,
        campaign_steps: u32::MAX,
        ..EngineConfig::default()
    };
    let worlds = vec![
        (misplaced(Pattern::Shared), deal()),
        (misplaced(Pattern::Shared), deal()),
    ];
    let mut street = Street::new(worlds, config);
    street.worlds.iter_mut().for_each(|world| world.busy = 0.5);
    street.run(20);
    let runs: usize = [0, 1]
        .map(|at| street.engine.ledger(ScopeId(at)).unwrap().run_count())
        .iter()
        .sum();
    assert!((250..=500).contains(&runs), "{runs} runs");
    let told = street
        .notes
        .iter()
        .filter(|note| note.contains("could not be put back"));
    assert!((1..=2).contains(&told.count()), "{:?}", street.notes);
    let away = street
        .worlds
        .iter()
        .map(|world| world.homes.iter().filter(|&&home| home != 0).count());
    let displaced = [0, 1]
        .map(|at| street.summary(at).displaced_pages)
        .iter()
        .sum::<u64>();
    let pending: usize = street
        .outcomes
        .iter()
        .map(|outcome| outcome.moved.len())
        .sum();
    assert_eq!(displaced as usize + pending, away.sum::<usize>());
}

#[test]
fn children_and_late_comers_are_judged_with_their_scope() {
    let worlds = vec![
        (misplaced(Pattern::Shared), deal()),
        (misplaced(Pattern::Shared), policy("none")),
    ];
    let mut street = Street::new(worlds, EngineConfig::default());
    // The second process is a child of the first: it belongs to the first scope. What the first step sees
    // is no reading to begin with.
    for _ in 0..2 {
        let mut snapshot = street.snapshot();
        snapshot.processes[1].parent = Pid(100);
        street.act(&snapshot);
    }
    let mut pids: Vec<Pid> = street
        .plan
        .requests
        .iter()
        .map(|request| request.pid)
        .collect();
    pids.dedup();
    pids.sort();
    pids.dedup();
    assert_eq!(pids, [Pid(100), Pid(101)]);
    assert!(
        street
            .plan
            .requests
            .iter()
            .all(|request| request.scope == ScopeId(0))
    );
}

#[test]
fn a_page_that_was_there_already_is_at_home_there() {
    let worlds = vec![(misplaced(Pattern::Shared), deal())];
    let mut street = Street::new(worlds, EngineConfig::default());
    street.run(2);
    let asked: Vec<u64> = street.plan.requests[0].pages.clone();
    assert!(asked[0] >= FIRST_PAGE);
    // The kernel was faster.
    for outcome in &mut street.outcomes {
        outcome.already_there = outcome.moved.len() as u64;
        outcome.moved.clear();
    }
    street.step();
    let summary = street.summary(0);
    assert_eq!((summary.moved_pages, summary.displaced_pages), (0, 0));
    let refused = summary.refused.iter().any(|&(why, _)| why != Refusal::Busy);
    assert!(!refused);
}

/// Moves some pages off the first node whenever it may.
struct Flee;

impl Policy for Flee {
    fn name(&self) -> &'static str {
        "flee"
    }

    fn needs(&self) -> &[EvidenceKind] {
        &[EvidenceKind::PageAccesses]
    }

    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        let from = snapshot.nodes[0].id;
        let there = |page: &&PageStats| page.home == from && context.may_move(page.pid, page.page);
        let moves = snapshot.pages.iter().filter(there).take(8);
        let order = |page: &PageStats| ProposedMove {
            pid: page.pid,
            page: page.page,
            huge: false,
            from,
            to: snapshot.nodes[1].id,
            mechanism: Mechanism::Relieve,
        };
        Proposal {
            moves: moves.map(order).collect(),
            outlook: PolicyActivity::Pressed,
            ..Proposal::default()
        }
    }
}

#[test]
fn moves_that_must_be_do_not_wait_for_a_verdict() {
    let worlds = vec![(
        well_placed(Pattern::Partitioned),
        Box::new(Flee) as Box<dyn Policy>,
    )];
    let mut street = Street::new(worlds, EngineConfig::default());
    street.run(24);
    let summary = street.summary(0);
    // A step decides and the next has the outcomes; a campaign takes five, and one more to end.
    assert!(summary.moved_pages >= 8 * 8, "{summary}");
    assert_eq!(summary.reverted_pages, 0, "{summary}");
    assert!(summary.campaigns.len() >= 2, "{summary}");
    for campaign in &summary.campaigns {
        assert_eq!(campaign.verdict, Verdict::Inconclusive, "{summary}");
    }
}

#[test]
fn what_was_not_listed_yet_counts_as_held_until_it_is() {
    use crate::snapshot::{NodeState, ProcessState, Rated};
    let node = |at: u32, free: u64| NodeState {
        id: NodeId(at),
        cpu_count: 1 - at,
        free_bytes: free * PAGE_BYTES,
        total_bytes: 10_000 * PAGE_BYTES,
        cache_bytes: 0,
        idle_ns: None,
        rated: Rated {
            tier: Some(at),
            ..Rated::default()
        },
        latency_ns: None,
        read_bytes: Evidence::unknown("test"),
        write_bytes: Evidence::unknown("test"),
        utilisation: Evidence::unknown("test"),
    };
    let mut snapshot = Snapshot::of_nodes(vec![node(0, 1_000), node(1, 5_000)], "test");
    snapshot.processes = vec![ProcessState {
        resident_pages: Evidence::measured(8_000, "test"),
        ..ProcessState::of_test(Pid(1), SpaceId(1))
    }];
    let tiers = Tiers::of(&snapshot.nodes);
    let unseen =
        |all_pages: u64, held_pages: u64| unseen_pages(&snapshot, &tiers, all_pages, held_pages);
    assert_eq!(unseen(0, 0), 8_000);
    // A scope is as large as its processes are, whatever was listed.
    let known = Use {
        all_pages: 100,
        ..Use::default()
    };
    assert_eq!(known.with_resident(&snapshot).all_pages, 8_000);
    assert_eq!(unseen(3_000, 3_000), 5_000);
    // The fast tier has no more than 9,000 in use.
    assert_eq!(unseen(1_000, 3_000), 6_000);
    // Nearly all is listed: the rest is what several processes map.
    assert_eq!(unseen(7_500, 2_000), 0);
}
