//! Planted regions are found again, and phases are followed.

use super::planted::{Least, Order, Plan, Random, Run, laid_out};
use super::{Config, Forming, Hint, Kind, SpaceId, TURN_NS, Touch};

fn run(plan: Plan, seed: u64) -> Run {
    Run::new(plan, Forming::new(Config::default()), seed)
}

/// Two and more regions of a plan that is easy: 10,000 samples a second, visits of 5 ms.
fn plain(sizes: &[usize], stripe: usize) -> Plan {
    Plan {
        regions: laid_out(sizes, stripe),
        globals: Vec::new(),
        global_share: 0.0,
        order: Order::Random,
        visit_ns: [5e6, 5e6],
        visits_are_even: false,
        gap_ns: 1e5,
        gaps_are_random: true,
        threads: 1,
    }
}

/// What it takes to find regions, and what it takes to find them within 2 s.
const ENOUGH: Least = Least {
    visit_samples: 4.0,
    page_samples: 8.0,
    visits: 10.0,
};
const SOON: Least = Least {
    visit_samples: 4.0,
    page_samples: 16.0,
    visits: 20.0,
};

/// The figure: 95 % of each region's pages, here within 3 s.
#[test]
fn planted_regions_are_recovered() {
    for seed in 0..60 {
        let plan = Plan::drawn(&mut Random(seed), ENOUGH);
        let mut run = run(plan, seed + 1000);
        run.turns(12);
        let score = run.score();
        assert!(score.is_good(), "seed {seed}: {score:?}, {:?}", run.plan);
        assert!(score.covered > 0.9, "seed {seed}: {score:?}");
    }
}

/// All pages are dealt out anew at once: within 2 s the new regions are there.
#[test]
fn a_phase_is_followed_within_two_seconds() {
    for seed in 0..40 {
        let plan = Plan::drawn(&mut Random(seed), SOON);
        let mut run = run(plan, seed + 2000);
        run.turns(12);
        run.part_of_a_turn(0.6);
        run.plan = run.plan.shuffled(&mut Random(seed));
        run.forget_counts();
        // 1.85 s after the change.
        run.turns(8);
        let score = run.score();
        assert!(score.is_good(), "seed {seed}: {score:?}, {:?}", run.plan);
    }
}

#[test]
fn what_did_not_change_keeps_its_name() {
    let mut run = run(plain(&[60, 80, 100, 40, 50, 70], 0), 1);
    run.turns(12);
    let name_of = |run: &Run, page: u64| {
        let regions = run.program().regions;
        let with = regions
            .iter()
            .find(|region| region.pages.iter().any(|pages| pages.contains(&page)));
        with.and_then(|region| region.name)
            .expect("it is in a region")
    };
    let first = |run: &Run, region: usize| name_of(run, run.plan.regions[region][0]);
    let before: Vec<u64> = (0..6).map(|region| first(&run, region)).collect();
    // Halves of two regions change places.
    let (half, other) = (
        run.plan.regions[0].split_off(30),
        run.plan.regions[1].split_off(40),
    );
    run.plan.regions[0].extend(other);
    run.plan.regions[1].extend(half);
    run.turns(8);
    assert!(run.score().is_good(), "{:?}", run.score());
    let after: Vec<u64> = (0..6).map(|region| first(&run, region)).collect();
    assert_eq!(before[2..], after[2..]);
}

#[test]
fn pages_that_were_not_sampled_are_filled_in_where_their_neighbours_agree() {
    // 4 regions of 4096 pages, 20,000 samples a second: 3 samples a page in 2.5 s.
    let mut plan = plain(&[4096; 4], 0);
    plan.gap_ns = 5e4;
    let mut run = run(plan, 1);
    run.turns(10);
    let program = run.program();
    let formed: Vec<_> = program
        .regions
        .iter()
        .filter(|region| region.name.is_some())
        .collect();
    assert_eq!(formed.len(), 4);
    for region in &formed {
        assert!(
            region.page_count() > 4050 && region.page_count() <= 4110,
            "{}",
            region.page_count()
        );
        assert!(region.seen_pages < region.page_count());
    }
    assert!(run.score().is_good(), "{:?}", run.score());
}

#[test]
fn large_striped_regions_are_recovered_from_few_samples_for_each_page() {
    let mut plan = plain(&[2048; 3], 1);
    plan.gap_ns = 5e4;
    let mut run = run(plan, 1);
    run.turns(12);
    assert!(run.score().is_good(), "{:?}", run.score());
    assert_eq!(run.formed(), 3);
}

#[test]
fn visits_and_working_sets_are_measured() {
    let mut plan = plain(&[16, 48], 0);
    (plan.visit_ns, plan.order) = ([8e6, 8e6], Order::Turns);
    let mut run = run(plan, 1);
    run.turns(16);
    let program = run.program();
    let sizes: Vec<u64> = program
        .regions
        .iter()
        .map(|region| region.seen_pages)
        .collect();
    assert_eq!(sizes, [48, 16]);
    for region in &program.regions {
        assert_eq!(
            (region.kind, region.threads.as_slice()),
            (Kind::Local, &[0][..])
        );
        let (access_ns, idle_ns) = (region.access_ns.unwrap(), region.idle_ns.unwrap());
        assert!((7e6..9e6).contains(&access_ns), "{access_ns}");
        assert!((7e6..9.5e6).contains(&idle_ns), "{idle_ns}");
        // 60 of them a second, since the first second.
        assert!(
            (150..260).contains(&region.entry_count),
            "{}",
            region.entry_count
        );
        // Every page was sampled in nearly every 100 ms.
        assert_eq!(region.working_set.touched_pages, region.seen_pages);
        assert!(region.working_set.weighted_pages > 0.9 * region.seen_pages as f64);
    }
    assert_eq!(program.working_set.touched_pages, 64);
    assert_eq!(program.touch_count, run.sample_count);
}

#[test]
fn regions_are_of_one_thread_or_shared_and_spaces_stay_apart() {
    let mut forming = Forming::new(Config::default());
    let plan = plain(&[20, 20, 20, 20], 0);
    let mut runs: Vec<Run> = (0..2).map(|seed| run(plan.clone(), seed)).collect();
    for turn in 1..=12 {
        for (number, run) in runs.iter_mut().enumerate() {
            for touch in run.samples(turn * TURN_NS) {
                // Of the second program, the first two regions are one thread's and the others another's.
                let region = run
                    .plan
                    .regions
                    .iter()
                    .position(|pages| pages.contains(&touch.page));
                let thread = if number == 0 {
                    touch.time_ns as i32 / 40_000_000 % 2
                } else {
                    region.unwrap() as i32 / 2
                };
                let space = SpaceId(number as u32);
                forming.touch(&Touch {
                    space,
                    thread: Some(thread),
                    ..touch
                });
            }
        }
        forming.turn(turn * TURN_NS, 0);
    }
    let kinds = |program: usize| -> Vec<Kind> {
        forming.programs()[program]
            .regions
            .iter()
            .map(|region| region.kind)
            .collect()
    };
    assert_eq!(kinds(0), [Kind::Shared; 4]);
    assert_eq!(kinds(1), [Kind::Local; 4]);
}

#[test]
fn code_and_stack_are_global_at_once_and_other_pages_where_they_are_used_from_everywhere() {
    let mut plan = plain(&[30, 40, 50, 60], 0);
    (plan.globals, plan.global_share) = (vec![0x1000, 0x1001, 0x1002], 0.15);
    let mut run = run(plan, 1);
    run.turns(1);
    let stack = Touch {
        time_ns: TURN_NS,
        space: SpaceId(1),
        thread: Some(0),
        page: 0x2000,
        hint: Hint::Stack,
    };
    run.forming.touch(&stack);
    let global = |run: &Run| {
        let regions = run.program().regions;
        regions
            .into_iter()
            .find(|region| region.kind == Kind::Global)
            .map(|region| region.pages)
    };
    let pages = std::ops::Range {
        start: 0x2000,
        end: 0x2001,
    };
    assert_eq!(global(&run), Some(vec![pages]));
    run.turns(11);
    assert_eq!(global(&run), Some(vec![0x1000..0x1003, 0x2000..0x2001]));
    assert!(run.score().is_good(), "{:?}", run.score());
}

/// Access bits: every 20 ms a look finds the pages that were touched since the last, in no order.
#[test]
fn access_bits_form_regions_too_where_visits_are_longer_than_a_look() {
    let (look_ns, mut random) = (20_000_000, Random(1));
    let regions = laid_out(&[40, 60, 80, 20], 4);
    let mut forming = Forming::new(Config::default());
    let (mut now_ns, mut region) = (0, 0);
    while now_ns < 6_000_000_000 {
        region = (region + 1 + random.below(3)) % 4;
        for _ in 0..3 + random.below(6) {
            now_ns += look_ns;
            let mut found: Vec<u64> = regions[region]
                .iter()
                .copied()
                .filter(|_| random.below(2) == 0)
                .collect();
            for at in (1..found.len()).rev() {
                found.swap(at, random.below(at + 1));
            }
            for page in found {
                let hint = Hint::None;
                forming.touch(&Touch {
                    time_ns: now_ns,
                    space: SpaceId(1),
                    thread: None,
                    page,
                    hint,
                });
            }
            if now_ns / TURN_NS > (now_ns - look_ns) / TURN_NS {
                forming.turn(now_ns, 0);
            }
        }
    }
    let formed = forming.programs().remove(0).regions;
    let sizes: Vec<u64> = formed.iter().map(|region| region.seen_pages).collect();
    assert_eq!(sizes, [80, 60, 40, 20]);
    // Nobody knows the threads.
    assert!(formed.iter().all(|region| region.kind == Kind::Regular));
}

/// The thesis's regioning mode: for 10 ms of each second every touch of another page is seen.
#[test]
fn bursts_of_entries_form_regions_too() {
    let mut plan = plain(&[30, 50, 20], 1);
    (plan.visit_ns, plan.gap_ns) = ([0.2e6, 0.4e6], 2e3);
    let mut run = run(plan, 1);
    for turn in 1..=24 {
        let touches = run.samples(turn * TURN_NS);
        if turn % 4 == 0 {
            let burst_ns = turn * TURN_NS - 10_000_000;
            touches
                .iter()
                .filter(|touch| touch.time_ns >= burst_ns)
                .for_each(|touch| run.forming.touch(touch));
        }
        run.forming.turn(turn * TURN_NS, 0);
    }
    assert!(run.score().is_good(), "{:?}", run.score());
}

/// A touch costs 1 us: 20,000 a second are 2 %.
#[test]
fn what_costs_too_much_is_thinned_and_regions_are_recovered_all_the_same() {
    let mut plan = plain(&[64; 8], 1);
    plan.gap_ns = 5e4;
    let mut run = run(plan, 1);
    let mut taken = 0;
    for turn in 1..=40 {
        for touch in run.samples(turn * TURN_NS) {
            run.forming.touch(&touch);
        }
        let programs = run.forming.programs();
        let count = programs[0].touch_count;
        run.forming.turn(turn * TURN_NS, 1000 * (count - taken));
        taken = count;
    }
    assert!((0.4..0.6).contains(&run.forming.kept_share()));
    assert!((0.4..0.65).contains(&(taken as f64 / run.sample_count as f64)));
    assert!(run.score().is_good(), "{:?}", run.score());
}

#[test]
fn the_same_touches_give_the_same_regions() {
    let told = || {
        let mut run = run(Plan::drawn(&mut Random(7), ENOUGH), 7);
        run.turns(9);
        run.program()
    };
    assert_eq!(told(), told());
}
