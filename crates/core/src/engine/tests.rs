//! The loop closed over the test world.

use super::world::{FIRST_PAGE, Loop, PID, Pattern, Seen, World};
use super::*;
use crate::ids::NodeId;
use crate::plan::{Listing, Mechanism, Refusal};
use crate::policy::wrong_node::WrongNode;
use crate::policy::{self, Context, EvidenceKind, Policy, Proposal};
use crate::snapshot::Evidence;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// 64 MiB, as in the lab's `cluster`.
const PAGES: usize = 16_384;

fn carrefour() -> Box<dyn Policy> {
    policy::by_name("carrefour").unwrap()
}

fn run(world: World, steps: usize) -> (Loop, Vec<Seen>) {
    let mut run = Loop::new(world, carrefour());
    let seen = run.run(steps);
    (run, seen)
}

fn pages_by(summary: &Summary, mechanism: Mechanism) -> u64 {
    summary
        .directions
        .iter()
        .filter(|row| row.mechanism == mechanism)
        .map(|row| row.page_count)
        .sum()
}

fn assert_no_page_moved_twice(world: &World) {
    let twice = world
        .move_counts
        .values()
        .filter(|&&count| count > 1)
        .count();
    assert_eq!(twice, 0, "{twice} pages moved more than once");
}

/// Work done over the steps as a share of what `rate` would have done.
fn speed(seen: &[Seen], rate: f64) -> f64 {
    let done: f64 = seen
        .iter()
        .map(|seen| seen.rate * seen.interval_us as f64)
        .sum();
    let time: f64 = seen.iter().map(|seen| seen.interval_us as f64).sum();
    done / (rate * time)
}

#[test]
fn a_shared_array_is_balanced_in_one_move_per_page() {
    let (run, seen) = run(World::new(Pattern::Shared, PAGES), 40);
    assert!((seen[0].imbalance - 3f64.sqrt()).abs() < 1e-9);
    // 45 fills per us are 4.5 million in 100 ms; one sample in 400 is 11,200, 0.7 per page. Five
    // steps see 97 % of the pages (1 - exp(-3.4)), and four more intervals judge them.
    assert!(
        seen[11].imbalance < 0.10,
        "imbalance {} after 12 intervals",
        seen[11].imbalance
    );
    assert_no_page_moved_twice(&run.world);
    let summary = run.summary();
    // Three of four pages have to leave; each is moved by interleaving.
    assert!(
        (0.72..0.78).contains(&(summary.moved_pages as f64 / PAGES as f64)),
        "{summary}"
    );
    assert_eq!(pages_by(&summary, Mechanism::Collocate), 0);
    assert_eq!(summary.campaigns[0].verdict, Verdict::Success);
    assert_eq!(summary.reverted_pages, 0);
}

#[test]
fn a_shared_array_runs_at_interleaves_speed_end_to_end() {
    let mut interleaved = World::new(Pattern::Shared, PAGES);
    interleaved.place_well();
    interleaved.snapshot(100_000, Sampling::Off);
    let (_, seen) = run(World::new(Pattern::Shared, PAGES), 40);
    let upto = seen.iter().scan(0, |time_us, seen| {
        *time_us += seen.interval_us;
        Some(*time_us)
    });
    let ten_seconds = upto.take_while(|&time_us| time_us <= 10_000_000).count();
    let share = speed(&seen[..ten_seconds], interleaved.rate);
    assert!(
        share > 0.95,
        "{share} of interleave's speed over {ten_seconds} steps"
    );
    let steady = seen.last().unwrap().rate / interleaved.rate;
    assert!(steady > 0.99, "{steady} of interleave's steady speed");
}

#[test]
fn known_residents_make_it_converge_in_one_step() {
    let mut world = World::new(Pattern::Shared, PAGES);
    world.listing = Listing::Slow;
    let (run, seen) = run(world, 6);
    assert!(
        seen[2].imbalance < 0.02,
        "imbalance {} after the first moves",
        seen[2].imbalance
    );
    assert_no_page_moved_twice(&run.world);
}

#[test]
fn partitions_become_local() {
    for pattern in [Pattern::Partitioned, Pattern::Striped] {
        let (run, seen) = run(World::new(pattern, PAGES), 40);
        let end = seen.last().unwrap();
        assert!(end.local > 0.97, "{pattern:?}: {} local", end.local);
        assert_no_page_moved_twice(&run.world);
        let summary = run.summary();
        assert_eq!(pages_by(&summary, Mechanism::Interleave), 0, "{pattern:?}");
        assert_eq!(summary.campaigns[0].verdict, Verdict::Success);
    }
}

#[test]
fn partitions_become_local_from_interleaved_too() {
    let mut world = World::new(Pattern::Partitioned, PAGES);
    world.homes = (0..PAGES).map(|page| page % 4).collect();
    // Balanced and 25 % local: only collocation is on, a page needs two samples.
    let (_, seen) = run(world, 60);
    assert!(
        seen.last().unwrap().local > 0.95,
        "{} local",
        seen.last().unwrap().local
    );
}

#[test]
fn an_array_swept_in_turns_is_not_taken_for_partitioned() {
    let (run, seen) = run(World::new(Pattern::Sweeping, PAGES), 40);
    let summary = run.summary();
    assert!(
        pages_by(&summary, Mechanism::Collocate) < PAGES as u64 / 50,
        "{summary}"
    );
    let spread = run.world.spread();
    assert!(
        spread.iter().all(|share| (0.2..0.3).contains(share)),
        "{spread:?}"
    );
    assert!(seen.last().unwrap().imbalance < 0.2);
}

#[test]
fn few_samples_take_longer_and_end_in_the_same_place() {
    for period in [2_000, 8_000] {
        let mut world = World::new(Pattern::Partitioned, PAGES);
        world.period = period;
        let (run, seen) = run(world, 150);
        let summary = run.summary();
        assert!(
            seen.last().unwrap().local > 0.9,
            "1 in {period}: {} local",
            seen.last().unwrap().local
        );
        assert!(
            pages_by(&summary, Mechanism::Interleave) < PAGES as u64 / 100,
            "{summary}"
        );
        let mut world = World::new(Pattern::Shared, PAGES);
        world.period = period;
        let (run, seen) = self::run(world, 150);
        let summary = run.summary();
        assert!(
            seen.last().unwrap().imbalance < 0.15,
            "1 in {period}: {}",
            seen.last().unwrap().imbalance
        );
        assert!(
            pages_by(&summary, Mechanism::Collocate) < PAGES as u64 / 100,
            "{summary}"
        );
    }
}

#[test]
fn a_filling_thread_is_not_taken_for_a_user() {
    // One thread fills the data for 0.5 s; then each node works on its own quarter. Pages were
    // seen from the filler and from their owner, and are still one node's.
    let mut world = World::new(Pattern::Shared, PAGES);
    world.alone = Some(0);
    world.period = 50;
    let mut run = Loop::new(world, carrefour());
    run.run(5);
    assert_eq!(run.summary().moved_pages, 0);
    run.world.pattern = Pattern::Partitioned;
    run.world.alone = None;
    run.world.period = 400;
    let seen = run.run(40);
    let summary = run.summary();
    assert_eq!(pages_by(&summary, Mechanism::Interleave), 0, "{summary}");
    assert!(
        seen.last().unwrap().local > 0.97,
        "{} local",
        seen.last().unwrap().local
    );
}

#[test]
fn a_local_program_is_left_alone_and_costs_nothing() {
    let mut world = World::new(Pattern::Partitioned, PAGES);
    world.place_well();
    let (run, seen) = run(world, 60);
    assert_eq!(run.summary().moved_pages, 0);
    let end = seen.last().unwrap();
    assert_eq!(
        (end.sampling, end.interval_us),
        (Sampling::Cheap, 1_000_000)
    );
    assert!(
        seen[1..]
            .iter()
            .all(|seen| seen.sampling == Sampling::Cheap)
    );
}

#[test]
fn when_all_is_done_sampling_becomes_cheap_or_stops() {
    for rest_sampling in [Sampling::Cheap, Sampling::Off] {
        let config = EngineConfig {
            rest_sampling,
            ..EngineConfig::default()
        };
        let mut run = Loop::with_config(World::new(Pattern::Shared, PAGES), carrefour(), config);
        let seen = run.run(60);
        let tail = &seen[40..];
        assert!(tail.iter().all(|seen| seen.interval_us == 1_000_000));
        let others = tail.iter().filter(|seen| seen.sampling != rest_sampling);
        // Where it stops: a look every 10 s.
        assert!(others.count() <= 3);
    }
}

#[test]
fn a_few_pages_moved_on_thin_evidence_are_no_failure_of_the_mechanism() {
    // Some 100 samples an interval on 16,384 pages: a few pages are known, and move, and balance
    // stays as it was. That must not switch interleaving off.
    let mut world = World::new(Pattern::Shared, PAGES);
    world.period = 40_000;
    let (run, _) = run(world, 40);
    let summary = run.summary();
    assert!(summary.moved_pages > 500, "{summary}");
    for row in &summary.campaigns {
        assert_ne!(row.verdict, Verdict::NoEffect, "{summary}");
        let came = row.after.imbalance.unwrap() - row.before.imbalance.unwrap();
        assert!((row.predicted.imbalance - came).abs() < 0.05, "{summary}");
    }
}

#[test]
fn what_is_predicted_of_a_whole_array_is_what_comes() {
    for listing in [Listing::Slow, Listing::Off] {
        let mut world = World::new(Pattern::Shared, PAGES);
        world.listing = listing;
        world.period = 1000;
        let (run, _) = run(world, 40);
        let summary = run.summary();
        let row = &summary.campaigns[0];
        let came = row.after.imbalance.unwrap() - row.before.imbalance.unwrap();
        assert!(
            (row.predicted.imbalance - came).abs() < 0.3,
            "predicted {}, came {came}: {summary}",
            row.predicted.imbalance
        );
    }
}

#[test]
fn a_change_wakes_it_up() {
    let mut world = World::new(Pattern::Partitioned, PAGES);
    world.place_well();
    let mut run = Loop::new(world, carrefour());
    run.run(60);
    // Every owner moves on by one node: all accesses become remote.
    run.world.rotation = 1;
    let seen = run.run(40);
    assert!(seen[0].local < 0.01);
    assert!(
        seen.last().unwrap().local > 0.97,
        "{} local",
        seen.last().unwrap().local
    );
}

#[test]
fn the_wrong_node_is_found_harmful_and_every_page_goes_back() {
    let mut world = World::new(Pattern::Partitioned, 4096);
    world.place_well();
    world.busy = 0.2;
    let homes = world.homes.clone();
    let mut run = Loop::new(world, policy::by_name("wrong-node").unwrap());
    let seen = run.run(60);
    let worst = seen.iter().map(|seen| seen.local).fold(1.0, f64::min);
    assert!(worst < 0.5, "the canary did not bite: {worst} local");
    let summary = run.summary();
    assert_eq!(summary.campaigns[0].verdict, Verdict::Harmful, "{summary}");
    assert_eq!(run.world.homes, homes, "pages are not back where they were");
    assert_eq!(summary.displaced_pages, 0);
    assert_eq!(
        summary.campaigns[0].reverted_count,
        summary.campaigns[0].page_count
    );
    assert!(
        run.engine
            .log()
            .iter()
            .any(|entry| entry.to_string().contains("harmful"))
    );
    assert!(
        run.engine
            .log()
            .iter()
            .any(|entry| entry.to_string().contains("are back where they were"))
    );
}

/// The canary with what it was told of arrived pages.
struct Told(Arc<Mutex<BTreeMap<u64, NodeId>>>);

impl Policy for Told {
    fn name(&self) -> &'static str {
        WrongNode.name()
    }

    fn needs(&self) -> &[EvidenceKind] {
        WrongNode.needs()
    }

    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        let arrived = context.arrived.iter().map(|page| (page.page, page.at));
        self.0.lock().unwrap().extend(arrived);
        WrongNode.decide(snapshot, context)
    }
}

#[test]
fn a_policy_is_told_where_its_pages_came_and_went_back() {
    let mut world = World::new(Pattern::Partitioned, 4096);
    world.place_well();
    let told = Arc::default();
    let mut run = Loop::new(world, Box::new(Told(Arc::clone(&told))));
    let mut were_away = false;
    for _ in 0..60 {
        run.step();
        let told = told.lock().unwrap();
        let is_home = |(&page, &at): (&u64, &NodeId)| {
            let home = run.world.homes[(page - FIRST_PAGE) as usize];
            run.world.ids[home] == at
        };
        // What came in this step is told in the next.
        if run.plan.requests.is_empty() && !told.is_empty() {
            assert!(told.iter().all(is_home));
            were_away |= run.summary().displaced_pages > 0;
        }
    }
    assert!(were_away, "the canary did not bite");
    let moved = run.world.move_counts.keys();
    assert!(moved.eq(told.lock().unwrap().keys()));
    assert_eq!(run.summary().displaced_pages, 0);
}

#[test]
fn a_harmful_mechanism_backs_off_for_longer_each_time() {
    let mut world = World::new(Pattern::Partitioned, 2048);
    world.place_well();
    let config = EngineConfig {
        max_interval_us: 100_000,
        ..EngineConfig::default()
    };
    let mut run = Loop::with_config(world, policy::by_name("wrong-node").unwrap(), config);
    run.run(1_200);
    let starts: Vec<u64> = run
        .summary()
        .campaigns
        .iter()
        .map(|row| row.started_us)
        .collect();
    // Off for 30 s after the first verdict and 60 s after the second: 120 s see three starts.
    assert_eq!(starts.len(), 3, "{starts:?}");
    assert!(
        (30_000_000..33_000_000).contains(&(starts[1] - starts[0])),
        "{starts:?}"
    );
    assert!(
        (60_000_000..63_000_000).contains(&(starts[2] - starts[1])),
        "{starts:?}"
    );
}

#[test]
fn a_full_node_gets_nothing() {
    let mut world = World::new(Pattern::Shared, PAGES);
    world.full = vec![2];
    let (run, _) = run(world, 20);
    let spread = run.world.spread();
    assert_eq!(spread[2], 0.0);
    assert!((0.28..0.40).contains(&spread[3]), "{spread:?}");
}

#[test]
fn a_process_gets_memory_only_where_it_may_have_some() {
    let mut world = World::new(Pattern::Shared, PAGES);
    world.allowed = Some(vec![NodeId(0), NodeId(4)]);
    let (run, _) = run(world, 20);
    let spread = run.world.spread();
    assert_eq!((spread[1], spread[3]), (0.0, 0.0));
    assert!((0.45..0.55).contains(&spread[2]), "{spread:?}");
}

#[test]
fn busy_pages_are_tried_again() {
    let mut world = World::new(Pattern::Shared, PAGES);
    world.busy = 0.5;
    let (run, seen) = run(world, 60);
    assert!(
        seen.last().unwrap().imbalance < 0.15,
        "{}",
        seen.last().unwrap().imbalance
    );
    let summary = run.summary();
    assert!(
        summary
            .refused
            .iter()
            .any(|&(refusal, count)| refusal == Refusal::Busy && count > 1000)
    );
}

#[test]
fn missing_evidence_is_refused_with_one_sentence() {
    let mut world = World::new(Pattern::Shared, 256);
    let mut engine = Engine::of_all(carrefour(), EngineConfig::default());
    let mut notes = Vec::new();
    for _ in 0..3 {
        let mut snapshot = world.snapshot(100_000, Sampling::Full);
        snapshot.sample_count = Evidence::unknown("nothing samples here");
        let plan = engine.step(snapshot.now_us, &snapshot, &[]);
        assert!(plan.requests.is_empty());
        notes.extend(plan.notes);
    }
    assert_eq!(
        notes,
        [
            "policy carrefour needs samples of pages with the node that used them, which is unknown: nothing \
          samples here; run in the lab (`hither lab run`), or with a tracker that samples accesses; \
          `hither topo --doctor` lists them"
        ]
    );
}

#[test]
fn where_the_rate_is_unknown_a_part_is_tried_first() {
    for (pattern, helps) in [(Pattern::Partitioned, true), (Pattern::Partitioned, false)] {
        let mut world = World::new(pattern, PAGES);
        world.listing = Listing::Slow;
        let mut engine = Engine::of_all(carrefour(), EngineConfig::default());
        let (mut outcomes, mut moved) = (Vec::new(), Vec::new());
        for _ in 0..40 {
            let mut snapshot = world.snapshot(100_000, Sampling::Full);
            let metrics = &mut snapshot.metrics;
            metrics.memory_accesses_per_us = Evidence::unknown("hint faults tell no rate");
            metrics.latency_ns = Evidence::unknown("hint faults tell no latency");
            snapshot.sample_period = 0;
            snapshot.processes[0].cpu_us = Evidence::measured(800_000, "the world");
            if !helps {
                // Whatever moves, accesses stay as remote as they were.
                metrics.local_access_ratio = Evidence::measured(0.25, "the world");
                metrics.controller_imbalance = Evidence::measured(0.0, "the world");
            }
            let plan = engine.step(snapshot.now_us, &snapshot, &outcomes);
            outcomes = world.execute(&plan);
            moved.push(outcomes.iter().map(|outcome| outcome.moved.len()).sum());
        }
        let (_, summary) = engine.summary().remove(0);
        let trial: usize = moved.iter().take(6).sum();
        assert!(
            (1..=PAGES / 4).contains(&trial),
            "{trial} in the trial: {moved:?}"
        );
        let all: usize = moved.iter().sum();
        match helps {
            true => assert!(all > PAGES * 7 / 10, "{all} moved: {summary}"),
            false => assert!(all <= PAGES / 4, "{all} moved: {summary}"),
        }
    }
}

#[test]
fn a_process_that_ends_is_forgotten() {
    let mut world = World::new(Pattern::Shared, 4096);
    let mut engine = Engine::of_all(carrefour(), EngineConfig::default());
    let mut outcomes = Vec::new();
    for _ in 0..3 {
        let snapshot = world.snapshot(100_000, Sampling::Full);
        let plan = engine.step(snapshot.now_us, &snapshot, &outcomes);
        outcomes = world.execute(&plan);
    }
    assert!(
        engine
            .ledger(ScopeId(0))
            .unwrap()
            .iter()
            .any(|(pid, ..)| pid == PID)
    );
    let mut snapshot = world.snapshot(100_000, Sampling::Full);
    snapshot.processes.clear();
    snapshot.pages.clear();
    engine.step(snapshot.now_us, &snapshot, &outcomes);
    assert_eq!(engine.ledger(ScopeId(0)).unwrap().iter().count(), 0);
}

#[test]
fn an_outcome_nobody_waits_for_is_reported() {
    let mut world = World::new(Pattern::Shared, 64);
    let mut engine = Engine::of_all(carrefour(), EngineConfig::default());
    let snapshot = world.snapshot(100_000, Sampling::Full);
    let stray = MoveOutcome {
        request: 77,
        moved: vec![1],
        already_there: 0,
        refused: Vec::new(),
        duration_ns: 1,
    };
    let plan = engine.step(snapshot.now_us, &snapshot, &[stray]);
    assert!(plan.notes[0].contains("#77"), "{:?}", plan.notes);
}

#[test]
fn the_policy_none_moves_and_samples_nothing() {
    let mut run = Loop::new(
        World::new(Pattern::Shared, PAGES),
        policy::by_name("none").unwrap(),
    );
    let seen = run.run(40);
    assert_eq!(run.summary().moved_pages, 0);
    assert!(seen[1..].iter().all(|seen| seen.sampling == Sampling::Off));
    assert_eq!(seen.last().unwrap().interval_us, 800_000);
}

#[test]
fn the_account_adds_up() {
    let (run, _) = run(World::new(Pattern::Shared, PAGES), 40);
    let summary = run.summary();
    let executed: u32 = run.world.move_counts.values().sum();
    assert_eq!(summary.moved_pages, u64::from(executed));
    assert_eq!(
        summary
            .directions
            .iter()
            .map(|row| row.page_count)
            .sum::<u64>(),
        summary.moved_pages
    );
    let judged: u64 = summary.campaigns.iter().map(|row| row.page_count).sum();
    assert_eq!(judged + summary.unjudged_pages, summary.moved_pages);
    let text = summary.to_string();
    assert!(
        text.contains("success") && text.contains("interleave node0 to node4"),
        "{text}"
    );
}
