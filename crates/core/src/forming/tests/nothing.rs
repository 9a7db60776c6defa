//! Nothing is found where nothing is, and bounds hold.

use super::planted::{Order, Plan, Random, Run, laid_out};
use super::{Config, Forming, Hint, Kind, SpaceId, TURN_NS, Touch};

/// Samples of a program with these regions, at 10,000 a second.
fn plan(sizes: &[usize], visit_ns: f64) -> Plan {
    Plan {
        regions: laid_out(sizes, 0),
        globals: Vec::new(),
        global_share: 0.0,
        order: Order::Random,
        visit_ns: [visit_ns, visit_ns],
        visits_are_even: false,
        gap_ns: 1e5,
        gaps_are_random: true,
        threads: 1,
    }
}

/// The most regions that a run has at any turn, after the first second.
fn most_formed(run: &mut Run, turns: u64) -> usize {
    run.turns(4);
    let mut most = 0;
    for _ in 0..turns {
        run.turns(1);
        most = most.max(run.formed());
    }
    most
}

#[test]
fn one_region_that_is_used_evenly_stays_one() {
    for (seed, pages) in [16, 100, 700, 3000].into_iter().enumerate() {
        for threads in [1, 3] {
            let mut plan = plan(&[pages], 5e6);
            plan.threads = threads;
            let mut run = Run::new(plan, Forming::new(Config::default()), seed as u64);
            run.turns(12);
            let largest = run.program().regions[0].seen_pages as f64;
            assert!(run.formed() <= 2, "{pages} pages: {} regions", run.formed());
            assert!(
                largest > 0.97 * run.program().working_set.touched_pages as f64,
                "{pages} pages"
            );
        }
    }
}

#[test]
fn pages_that_are_used_unalike_are_one_region() {
    // Page n is used as often as 1 / n, by chance.
    let mut random = Random(3);
    let mut forming = Forming::new(Config::default());
    for sample in 0..40_000_u64 {
        let page = random.between(1.0, 1000.0) as u64;
        let (time_ns, hint) = (sample * 100_000, Hint::None);
        forming.touch(&Touch {
            time_ns,
            space: SpaceId(1),
            thread: Some(1),
            page,
            hint,
        });
        if sample % 2500 == 2499 {
            forming.turn(time_ns, 0);
        }
    }
    let regions = &forming.programs()[0].regions;
    let formed = regions
        .iter()
        .filter(|region| region.name.is_some())
        .count();
    assert!(formed <= 2 && regions[0].seen_pages > 900, "{regions:?}");
}

#[test]
fn what_takes_turns_faster_than_it_is_sampled_is_one_region() {
    // Visits of 20 us, a sample every 100 us.
    let mut run = Run::new(plan(&[50; 12], 2e4), Forming::new(Config::default()), 1);
    assert!(most_formed(&mut run, 12) <= 3);
    assert!(run.program().regions[0].seen_pages > 550);
}

#[test]
fn a_region_that_goes_on_is_not_taken_apart_by_tearing_it_down() {
    let mut run = Run::new(
        plan(&[600, 100, 100], 5e6),
        Forming::new(Config::default()),
        1,
    );
    run.turns(8);
    for _ in 0..24 {
        run.turns(1);
        assert!(
            run.score().is_good() && run.formed() == 3,
            "{:?} {}",
            run.score(),
            run.formed()
        );
    }
}

#[test]
fn bounds_hold_and_what_is_left_out_is_counted() {
    let config = Config {
        most_touches: 500,
        most_pages: 100,
        most_threads: 2,
        most_spaces: 2,
        ..Config::default()
    };
    let mut forming = Forming::new(config);
    let touch = |time_ns, space, thread, page| Touch {
        time_ns,
        space: SpaceId(space),
        thread: Some(thread),
        page,
        hint: Hint::None,
    };
    for number in 0..1000_u64 {
        forming.touch(&touch(number, 1, 0, number % 150));
    }
    // A third of the pages has no room.
    let left_out = 1000 / 150 * 50;
    assert_eq!(forming.left_out_count(), left_out);
    forming.touch(&touch(2000, 1, 1, 1));
    forming.touch(&touch(2000, 1, 2, 1));
    assert_eq!(forming.left_out_count(), left_out + 1);
    forming.touch(&touch(2000, 2, 0, 1));
    forming.touch(&touch(2000, 3, 0, 1));
    assert_eq!(forming.left_out_count(), left_out + 2);
    assert_eq!(forming.programs().len(), 2);
    // After a minute both spaces are forgotten, and others have room.
    forming.turn(61_000_000_000, 0);
    forming.touch(&touch(61_000_000_001, 3, 0, 1));
    let programs = forming.programs();
    assert_eq!((programs.len(), programs[0].space), (1, SpaceId(3)));
    assert_eq!(forming.left_out_count(), left_out + 2);
}

#[test]
fn pages_leave_their_region_after_their_space_ran_for_3_2_seconds_without_them() {
    let mut run = Run::new(plan(&[40, 40, 40], 5e6), Forming::new(Config::default()), 1);
    run.turns(8);
    let all = run.plan.regions.clone();
    assert_eq!(run.formed(), 3);
    // A space that sleeps keeps its regions.
    let until_ns = 2_000_000_000 + 20 * TURN_NS;
    for turn in 9..=28 {
        run.forming.turn(turn * TURN_NS, 0);
    }
    assert_eq!(run.formed(), 3);
    // One region is not visited any more.
    let mut others = Run::new(plan(&[40, 40], 5e6), Forming::new(Config::default()), 2);
    others.plan.regions = all[..2].to_vec();
    for turn in 1..=14 {
        for touch in others.samples(turn * TURN_NS) {
            let time_ns = until_ns + touch.time_ns;
            run.forming.touch(&Touch { time_ns, ..touch });
        }
        run.forming.turn(until_ns + turn * TURN_NS, 0);
        let has_third = run
            .program()
            .regions
            .iter()
            .any(|region| region.pages.iter().any(|pages| pages.contains(&all[2][0])));
        assert_eq!(has_third, turn < 13, "turn {turn}");
    }
    assert!(
        run.program()
            .regions
            .iter()
            .all(|region| region.kind == Kind::Local)
    );
    assert_eq!(run.formed(), 2);
}

#[test]
fn no_touches_and_few_are_no_regions() {
    let mut forming = Forming::new(Config::default());
    forming.turn(TURN_NS, 0);
    assert!(forming.programs().is_empty());
    forming.touch(&Touch {
        time_ns: TURN_NS,
        space: SpaceId(1),
        thread: None,
        page: 5,
        hint: Hint::None,
    });
    (2..8).for_each(|turn| forming.turn(turn * TURN_NS, 0));
    let program = forming.programs().remove(0);
    assert_eq!(program.regions.len(), 1);
    assert_eq!(
        (program.regions[0].kind, &program.regions[0].pages[..]),
        (Kind::Seed, &[std::ops::Range { start: 5, end: 6 }][..])
    );
}
