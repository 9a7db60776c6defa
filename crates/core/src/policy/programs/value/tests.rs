use super::super::tests::{Program as Made, World};
use super::*;
use crate::ids::NodeId;
use crate::rset::Node;

fn made(pages: u64, bytes: u64, stall_share: f64) -> Made {
    Made {
        stall_share,
        ..Made::new(pages, 1000, bytes)
    }
}

#[test]
fn who_loads_the_slow_memory_goes_and_the_idle_stays() {
    // 100 ms of 50 and 25 GB/s of the 78 that slow memory carries.
    let mut world = World::new(
        2000,
        [
            (1, made(600, 5_000_000_000, 0.9)),
            (2, made(600, 2_500_000_000, 0.9)),
            (3, made(600, 1_000_000, 0.1)),
        ],
    );
    let mut policy = Value::default();
    for _ in 0..30 {
        world.step(&mut policy);
    }
    assert!(
        world.fast().contains(&1) && !world.fast().contains(&3),
        "{:?}",
        world.fast()
    );
}

#[test]
fn a_machine_at_rest_is_left_alone_and_a_choice_stands() {
    let mut world = World::new(2000, [(1, made(600, 50_000_000, 0.4))]);
    let mut policy = Value::default();
    let moved: usize = (0..30).map(|_| world.step(&mut policy).moves.len()).sum();
    assert_eq!(moved, 0);
    assert_eq!(world.step(&mut policy).outlook, PolicyActivity::Done);
    // Figures that scatter by a few per cent do not turn a choice round.
    let mut world = World::new(
        700,
        [
            (1, made(600, 4_000_000_000, 0.9)),
            (2, made(600, 3_900_000_000, 0.9)),
        ],
    );
    let mut policy = Value::default();
    let mut moved = Vec::new();
    for turn in 0..60u64 {
        world.programs.get_mut(&2).unwrap().bytes = 3_900_000_000 + turn % 3 * 100_000_000;
        moved.push(world.step(&mut policy).moves.len());
    }
    assert!(moved[..20].iter().sum::<usize>() > 0);
    assert_eq!(moved[20..].iter().sum::<usize>(), 0, "{moved:?}");
}

#[test]
fn what_began_in_fast_memory_stays_until_something_is_to_be_gained() {
    let begun = Made {
        fast: (0..600).collect(),
        ..made(600, 50_000_000, 0.05)
    };
    let mut world = World::new(2000, [(1, begun.clone()), (2, begun)]);
    let mut policy = Value::default();
    let moved: usize = (0..30).map(|_| world.step(&mut policy).moves.len()).sum();
    assert_eq!(moved, 0);
}

#[test]
fn who_has_just_begun_is_moved_where_that_pays_as_soon() {
    let moved = |pages: u64, steps: usize| {
        let program = made(pages, 3_000_000_000, 0.7);
        let mut world = World::new(150_000, [(1, program.clone()), (2, program)]);
        let mut policy = Value::default();
        (0..steps).any(|_| !world.step(&mut policy).moves.is_empty())
    };
    assert!(moved(600, 10), "little memory, at once");
    assert!(
        !moved(60_000, 20),
        "much of a program of 2 s, which may end in 2 s"
    );
    assert!(moved(60_000, 60));
}

#[test]
fn the_listed_pages_stand_for_those_that_are_not() {
    let half = Made {
        fast: (0..600).filter(|page| page / 4 % 2 == 0).collect(),
        ..made(600, 50_000_000, 0.05)
    };
    let mut world = World::new(2000, [(1, half)]);
    world.listed = 4;
    let mut policy = Value::default();
    for look in 1..LISTING_LOOKS.end {
        world.step(&mut policy);
        let expected = match LISTING_LOOKS.contains(&look) {
            true => Listing::Fast,
            false => Listing::Counted,
        };
        assert_eq!(policy.listing(), expected);
    }
    let mut then = |target| {
        policy.programs.get_mut(&Pid(1)).unwrap().target = Some(target);
        let moved = world.step(&mut policy).moves.len();
        (moved, policy.listing())
    };
    assert_eq!(then(0.5), (0, Listing::Slow));
    // A quarter of the 150 more is known.
    assert_eq!(then(0.75), (75, Listing::Fast));
}

#[test]
fn pages_that_are_counted_are_listed_only_to_be_moved() {
    let half = Made {
        fast: (0..300).collect(),
        ..made(600, 50_000_000, 0.05)
    };
    let mut world = World::new(2000, [(1, half)]);
    world.counts = true;
    let mut policy = Value::default();
    for _ in 0..40 {
        assert_eq!(world.step(&mut policy).moves.len(), 0);
        assert_eq!(policy.listing(), Listing::Counted);
    }
    policy.programs.get_mut(&Pid(1)).unwrap().target = Some(0.75);
    // Moves that are under way are not asked for again; the count tells of none yet.
    let asked: Vec<usize> = (0..50)
        .map(|_| world.propose(&mut policy).moves.len())
        .collect();
    assert_eq!(asked[0], 150);
    assert_eq!(asked[1..], [0; 49]);
}

#[test]
fn moves_are_charged_to_the_cpus_that_there_are() {
    let moved = |cpus: u32| {
        let each = (1..=16).map(|pid| (pid, made(5000, 1_000_000_000, 0.5)));
        let mut world = World::new(200_000, each);
        world.cpus = cpus;
        let mut policy = Value::default();
        (0..9).any(|_| !world.step(&mut policy).moves.is_empty())
    };
    assert!(moved(16));
    assert!(!moved(1));
}

#[test]
fn programs_begin_in_turns_where_that_makes_nothing_remote() {
    let node = |id, cpus: &str, tier| Node {
        id: NodeId(id),
        cpus: cpus.parse().unwrap(),
        total_bytes: 1 << 30,
        free_bytes: 1 << 30,
        available_bytes: 1 << 30,
        tier,
        read_bandwidth_mbs: None,
    };
    let begun = |nodes: Vec<Node>| {
        let mut machine = Resources {
            nodes,
            ..Resources::default()
        };
        machine.allowed = machine.machine();
        start(&machine)
    };
    let slow = node(0, "0-3", Some(1));
    assert_eq!(
        begun(vec![slow.clone(), node(1, "", Some(0))]),
        Start::Turns
    );
    assert_eq!(begun(vec![slow.clone()]), Start::Nothing);
    let second = node(1, "4-7", Some(1));
    assert_eq!(
        begun(vec![slow.clone(), second, node(2, "", Some(0))]),
        Start::Nothing
    );
    assert_eq!(begun(vec![slow, node(1, "", Some(1))]), Start::Nothing);
}
