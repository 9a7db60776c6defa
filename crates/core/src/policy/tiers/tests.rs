//! The policy alone, on snapshots made by hand.

use super::*;
use crate::declared::{Declared, Hint};
use crate::engine::ledger::Ledger;
use crate::ids::{NodeId, Pid, SpaceId};
use crate::policy::asked;
use crate::policy::random::Random;
use crate::snapshot::{
    Evidence, GlobalMetrics, NodeCounts, NodeState, PageStats, ProcessState, Rated,
};
use std::collections::BTreeSet;

const PID: Pid = Pid(9);
const FAST: NodeId = NodeId(0);
const SLOW: NodeId = NodeId(3);
/// Accesses that a sample stands for.
const PERIOD: u32 = 1000;

/// A process on a node of fast memory and one of slow memory.
struct Town {
    policy: Hot,
    /// Home of each page.
    homes: Vec<NodeId>,
    /// Base pages for which each node has room.
    room: [u64; 2],
    quota: Option<u64>,
    latencies: [Option<f64>; 2],
    declared: Declared,
    sampling: Sampling,
    budget: u64,
    look_us: Option<u64>,
    unjudged_pages: u64,
    /// Does the kernel's balancing move pages?
    kernel_moves: bool,
    /// Accesses that a sample stands for.
    period: u32,
    /// Do samples tell the use of pages alone?
    by_use: bool,
    now_us: u64,
    random: Random,
}

impl Town {
    fn new(homes: Vec<NodeId>, fast_room: u64) -> Self {
        Self {
            policy: Hot::default(),
            homes,
            room: [fast_room, 1 << 30],
            quota: None,
            latencies: [None; 2],
            declared: Declared::default(),
            sampling: Sampling::Full,
            budget: 1 << 20,
            look_us: None,
            unjudged_pages: 0,
            kernel_moves: false,
            period: PERIOD,
            by_use: false,
            now_us: 1_000_000,
            random: Random::new(5),
        }
    }

    fn node(&self, at: usize) -> NodeState {
        NodeState {
            id: [FAST, SLOW][at],
            cpu_count: [4, 0][at],
            free_bytes: self.room[at] * 4096,
            total_bytes: 1 << 34,
            cache_bytes: 0,
            idle_ns: Some([100.0, 300.0][at]),
            rated: Rated {
                tier: Some(at as u32),
                kept_bytes: 100 * 4096,
                balanced_bytes: 164 * 4096,
                ..Rated::default()
            },
            latency_ns: self.latencies[at],
            read_bytes: Evidence::unknown("test"),
            write_bytes: Evidence::unknown("test"),
            utilisation: Evidence::unknown("test"),
        }
    }

    /// An interval in which `samples` fell on pages that `draw` chooses; all pages are listed.
    fn step(&mut self, samples: usize, draw: impl Fn(&mut Random) -> usize) -> Proposal {
        self.now_us += 100_000;
        let mut counts = vec![0u32; self.homes.len()];
        for _ in 0..samples {
            counts[draw(&mut self.random)] += 1;
        }
        let pages = self.homes.iter().zip(&counts).enumerate();
        let pages = pages.map(|(page, (&home, &count))| PageStats {
            pid: PID,
            page: page as u64,
            home,
            was: self.kernel_moves.then_some(SLOW),
            reads: NodeCounts::from_slice(&[count]),
            writes: NodeCounts::new(),
            huge: false,
        });
        let snapshot = Snapshot {
            now_us: self.now_us,
            interval_us: 100_000,
            nodes: vec![self.node(0), self.node(1)],
            caches: Vec::new(),
            distances: vec![vec![10, 30], vec![30, 10]],
            metrics: GlobalMetrics::unknown("test"),
            pages: pages.collect(),
            present: Vec::new(),
            sample_count: Evidence::measured(samples as u64, "test"),
            sample_period: self.period,
            samples_lost: 0,
            by_use: self.by_use,
            processes: vec![ProcessState::of_test(PID, SpaceId(1))],
            own_cpu_us: Evidence::unknown("test"),
        };
        let ledger = Ledger::new();
        let mut context = Context {
            now_us: self.now_us,
            random: &mut self.random,
            page_budget: self.budget,
            room_pages: &self.room,
            ledger: &ledger,
            arrived: &[],
            sampling: self.sampling,
            switched_off: &[],
            proven: &BTreeSet::new(),
            unjudged_pages: self.unjudged_pages,
            fast_pages: self.quota,
            declared: &self.declared,
            preferred: &[],
            move_ns: Some(5000.0),
            look_us: self.look_us,
        };
        let proposal = self.policy.decide(&snapshot, &mut context);
        for order in &proposal.moves {
            let page = order.page as usize;
            assert_eq!((order.from, order.pid), (self.homes[page], PID));
            assert_ne!(order.from, order.to);
            self.homes[page] = order.to;
            let at = |node| usize::from(node == SLOW);
            self.room[at(order.to)] -= 1;
            self.room[at(order.from)] += 1;
        }
        proposal
    }

    fn fast(&self) -> Vec<usize> {
        let homes = self.homes.iter().enumerate();
        homes
            .filter(|&(_, &home)| home == FAST)
            .map(|(page, _)| page)
            .collect()
    }
}

/// Draws a page of a stretch.
fn within(first: usize, count: usize) -> impl Fn(&mut Random) -> usize {
    move |random| first + (random.next_u64() % count as u64) as usize
}

#[test]
fn hot_pages_go_up_into_room_once_they_were_seen_in_three_intervals() {
    let mut town = Town::new(vec![SLOW; 4096], 4096);
    assert!(town.step(2000, within(1024, 1024)).moves.is_empty());
    assert!(town.step(2000, within(1024, 1024)).moves.is_empty());
    let proposal = town.step(2000, within(1024, 1024));
    assert_eq!(proposal.moves.len(), 1024, "{:?}", proposal.outlook);
    assert!(
        proposal
            .moves
            .iter()
            .all(|order| order.mechanism == Mechanism::Promote)
    );
    assert_eq!(town.fast(), (1024..2048).collect::<Vec<_>>());
    // What is never used stays where it is.
    assert!(town.step(2000, within(1024, 1024)).moves.is_empty());
}

#[test]
fn nothing_moves_where_a_move_does_not_pay() {
    // One sample a second for 1024 pages: 1000 accesses that save 200 ns each, in five seconds 1 ms over
    // all; moves take 5 ms.
    let mut town = Town::new(vec![SLOW; 1024], 4096);
    for step in 0..40 {
        let proposal = town.step(usize::from(step % 10 == 0), within(0, 1024));
        assert!(proposal.moves.is_empty(), "{step}");
    }
}

#[test]
fn moves_pay_for_the_looks_that_follow_them() {
    // Two million accesses in an interval, which save 200 ns each: 20 s in the horizon of 50 intervals.
    let draw = || within(0, 1024);
    let mut town = Town::new(vec![SLOW; 1024], 4096);
    town.look_us = Some(6_000_000);
    for step in 0..10 {
        let proposal = town.step(2000, draw());
        assert!(proposal.moves.is_empty(), "{step}");
        assert_eq!(proposal.outlook, PolicyActivity::Learning);
    }
    // Of a campaign under way the looks come anyway. What did not pay is judged again after 500 ms.
    town.unjudged_pages = 1;
    let moved: usize = (0..3).map(|_| town.step(2000, draw()).moves.len()).sum();
    assert_eq!(moved, 1024);
    let mut town = Town::new(vec![SLOW; 1024], 4096);
    town.look_us = Some(4_000_000);
    let moved: usize = (0..3).map(|_| town.step(2000, draw()).moves.len()).sum();
    assert_eq!(moved, 1024);
}

#[test]
fn colder_pages_make_room_and_equals_do_not_change_places() {
    // The fast tier is full of pages of which half are used a tenth as much.
    let mut homes = vec![FAST; 1024];
    homes.extend(vec![SLOW; 1024]);
    let mut town = Town::new(homes, 64);
    let draw = |random: &mut Random| match random.next_u64() % 11 {
        // 0 to 511 are lukewarm, 512 to 1535 hot, the rest unused.
        0 => within(0, 512)(random),
        _ => within(512, 1024)(random),
    };
    for _ in 0..60 {
        town.step(3000, draw);
    }
    let fast = town.fast();
    let hot = fast
        .iter()
        .filter(|&&page| (512..1536).contains(&page))
        .count();
    assert!(hot >= 1000, "{hot} of {}", fast.len());
    // All is as it should be: chance moves nothing.
    let moved: usize = (0..40).map(|_| town.step(3000, draw).moves.len()).sum();
    assert!(moved <= 20, "{moved}");
}

#[test]
fn pages_leave_at_once_as_many_as_take_their_places() {
    // Half of the fast tier is unused; what is hot is in the slow one, and nothing is free.
    for (kernel_moves, leaving) in [(false, 512), (true, 64)] {
        let mut homes = vec![FAST; 1024];
        homes.extend(vec![SLOW; 512]);
        let mut town = Town::new(homes, 0);
        town.kernel_moves = kernel_moves;
        let draw = || within(512, 1024);
        let count = |moves: &[ProposedMove], to| moves.iter().filter(|one| one.to == to).count();
        // Seen in three intervals, and on trial in one.
        let moves = (0..4).map(|_| town.step(5000, draw()).moves);
        let moves = moves.last().unwrap();
        assert_eq!([count(&moves, SLOW), count(&moves, FAST)], [leaving, 0]);
        // The kernel does not say yet that places are free: for whom they are, no others leave.
        town.room[0] = 0;
        let moves = town.step(5000, draw()).moves;
        let more = if kernel_moves { 64 } else { 0 };
        assert_eq!([count(&moves, SLOW), count(&moves, FAST)], [more, 0]);
        town.room[0] = 128;
        let moves = town.step(5000, draw()).moves;
        assert_eq!(count(&moves, FAST), 128);
    }
}

#[test]
fn pages_that_were_lucky_take_no_places() {
    // One sample a page in some seconds, and in each block one page with fifty times as many.
    let mut homes = vec![FAST; 1024];
    homes.extend(vec![SLOW; 3072]);
    let mut town = Town::new(homes, 16);
    let draw = |random: &mut Random| match random.next_u64() % 11 {
        0 => within(0, 8)(random) * 512,
        _ => within(0, 4096)(random),
    };
    let moved: usize = (0..100).map(|_| town.step(200, draw).moves.len()).sum();
    let hot = town.fast().iter().filter(|page| **page % 512 == 0).count();
    assert_eq!(hot, 8, "of the hot pages");
    assert!(moved < 64, "{moved} moves for 6 pages");
}

#[test]
fn access_bits_tell_what_is_hot_and_of_equals_none_move() {
    let mut homes = vec![FAST; 1024];
    homes.extend(vec![SLOW; 3072]);
    let mut town = Town::new(homes, 16);
    (town.by_use, town.period) = (true, 0);
    // All that is in use is alike: nobody has the places of others.
    let moved: usize = (0..100)
        .map(|_| town.step(1000, within(0, 4096)).moves.len())
        .sum();
    assert!(moved < 64, "{moved} moves among equals");
    // Then a part alone, which lies in slow memory.
    for _ in 0..100 {
        town.step(1000, within(2048, 800));
    }
    let hot = town
        .fast()
        .iter()
        .filter(|page| (2048..2848).contains(*page))
        .count();
    assert!(hot > 720, "{hot} of 800 hot pages");
}

#[test]
fn rounds_are_told_from_samples_whose_period_is_missing_for_once() {
    let mut town = Town::new(vec![SLOW; 1024], 16);
    for (period, by_use, by_rounds) in [
        (0, false, true),
        (0, true, false),
        (PERIOD, false, false),
        (0, false, false),
    ] {
        (town.period, town.by_use) = (period, by_use);
        town.step(10, within(0, 1024));
        assert_eq!(town.policy.by_rounds, by_rounds, "{period} {by_use}");
    }
}

#[test]
fn use_is_weighed_by_the_time_that_could_be_waited_at_most() {
    // 4 CPUs for 5 s: all pages together could save 13 s, one of them 3 ms, four of them less than four looks of 7 ms.
    let moved = |room, look_us| {
        let mut town = Town::new(vec![SLOW; 4096], room);
        (town.by_use, town.period, town.look_us) = (true, 0, Some(look_us));
        let steps = (0..20).map(|_| town.step(1000, within(0, 4096)).moves.len());
        steps.sum::<usize>()
    };
    assert_eq!(moved(4, 7_000), 0);
    assert_eq!(moved(4, 1_000), 4);
    assert_eq!(moved(64, 7_000), 64);
}

#[test]
fn a_scan_takes_no_place_of_what_is_hot() {
    let mut homes = vec![FAST; 1024];
    homes.extend(vec![SLOW; 15 * 1024]);
    let mut town = Town::new(homes, 16);
    for step in 0..100usize {
        // A quarter of the samples falls on a block of a scan, each block in one interval.
        let scanned = 1024 + step * 512 % (15 * 1024);
        let draw = |random: &mut Random| match random.next_u64() % 4 {
            0 => within(scanned, 512)(random),
            _ => within(0, 1024)(random),
        };
        let proposal = town.step(2000, draw);
        assert!(
            proposal.moves.is_empty(),
            "{step}: {} moves",
            proposal.moves.len()
        );
    }
}

#[test]
fn a_hot_spot_that_moves_is_followed() {
    let mut homes = vec![FAST; 1024];
    homes.extend(vec![SLOW; 7 * 1024]);
    let mut town = Town::new(homes, 128);
    for spot in [0, 3, 5] {
        for _ in 0..60 {
            town.step(3000, within(spot * 1024, 1024));
        }
        let fast = town.fast();
        let share = fast.iter().filter(|&&page| page / 1024 == spot).count();
        assert!(share >= 1000, "{share} at {spot}");
    }
}

#[test]
fn a_quota_is_kept_and_a_smaller_one_sends_the_coldest_down() {
    let mut homes = vec![FAST; 512];
    homes.extend(vec![SLOW; 3584]);
    let mut town = Town::new(homes, 1 << 20);
    town.quota = Some(1000);
    for _ in 0..60 {
        town.step(4000, within(0, 2048));
        assert!(town.fast().len() <= 1000, "{}", town.fast().len());
    }
    assert!(town.fast().len() >= 990, "{}", town.fast().len());
    town.quota = Some(300);
    let draw = |random: &mut Random| match random.next_u64() % 2 {
        0 => within(0, 256)(random),
        _ => within(0, 2048)(random),
    };
    town.step(4000, draw);
    assert_eq!(town.fast().len(), 300);
}

#[test]
fn an_overloaded_fast_tier_is_not_fast() {
    let mut homes = vec![FAST; 2048];
    homes.extend(vec![SLOW; 2048]);
    let mut town = Town::new(homes, 1 << 20);
    // Under load memory of the fast tier answers later than that of the slow one.
    town.latencies = [Some(400.0), Some(310.0)];
    let draw = within(0, 4096);
    let proposal = (0..4).map(|_| town.step(4000, &draw)).last().unwrap();
    assert!(!proposal.moves.is_empty());
    let spread = proposal.moves.iter();
    assert!(
        spread
            .clone()
            .all(|order| (order.mechanism, order.to) == (Mechanism::Interleave, SLOW))
    );
    // Both answer alike: it is at rest.
    town.latencies = [Some(312.0), Some(310.0)];
    assert!(town.step(4000, &draw).moves.is_empty());
}

#[test]
fn one_tier_is_said_once_and_nothing_is_done() {
    let mut town = Town::new(vec![FAST; 64], 64);
    let proposal = town.step(10, within(0, 64));
    assert!(proposal.notes.is_empty());
    let mut policy = Hot::default();
    let snapshot = Snapshot::of_nodes(vec![town.node(0)], "test");
    let mut look = || {
        asked(&mut policy, &snapshot, &[10], |context| {
            context.page_budget = 10;
            context.sampling = Sampling::Full;
        })
    };
    let first = look();
    assert_eq!(
        (first.outlook, first.notes.len()),
        (PolicyActivity::Shut, 1)
    );
    assert!(look().notes.is_empty());
}

#[test]
fn the_hottest_are_found_among_a_million_pages() {
    let mut homes = vec![FAST; 1 << 18];
    homes.extend(vec![SLOW; 3 << 18]);
    let mut town = Town::new(homes, 512);
    let draw = |random: &mut Random| (1 << 18) + (random.next_u64() % 512) as usize;
    for _ in 0..4 {
        town.step(2000, draw);
    }
    assert!(
        town.homes[1 << 18..(1 << 18) + 512]
            .iter()
            .all(|&home| home == FAST)
    );
}

/// Of the last pages that were moved: how many by this mechanism.
fn by(proposal: &Proposal, mechanism: Mechanism) -> usize {
    let moves = proposal.moves.iter();
    moves.filter(|order| order.mechanism == mechanism).count()
}

#[test]
fn what_a_program_expects_to_use_goes_up_unseen_and_is_believed_for_a_while() {
    // The fast tier is full of pages that nobody uses; the slow one has some that are in use.
    let homes = [vec![FAST; 512], vec![SLOW; 2048]].concat();
    let mut town = Town::new(homes, 0);
    for _ in 0..4 {
        town.step(0, within(0, 1));
    }
    let now_us = town.now_us;
    let said = town
        .declared
        .declare(PID, 1024..1280, Some(Hint::Hot), now_us);
    said.unwrap();
    // A colder page leaves for each, which then goes up.
    let first = town.step(0, within(0, 1));
    assert_eq!(by(&first, Mechanism::Demote), 256, "{first:?}");
    town.room[0] = 256;
    let second = town.step(0, within(0, 1));
    assert_eq!(by(&second, Mechanism::Advise), 256);
    assert!(town.fast().contains(&1024) && town.fast().contains(&1279));
    // Once the time is over, what is used takes their places.
    for _ in 0..120 {
        town.step(2000, within(1536, 512));
    }
    let fast = town.fast();
    assert!(
        fast.iter().all(|page| (1536..2048).contains(page)),
        "{fast:?}"
    );
}

#[test]
fn pins_hold_whatever_is_seen_and_cold_pages_leave_first() {
    let homes = [vec![FAST; 1024], vec![SLOW; 1024]].concat();
    let mut town = Town::new(homes, 0);
    let mut say = |pages, hint| town.declared.declare(PID, pages, Some(hint), 0).unwrap();
    say(0..256, Hint::PinSlow);
    say(1024..1280, Hint::PinFast);
    // Used: what is pinned to the slow tier, and of the rest of the fast one all but the last 256.
    for _ in 0..60 {
        town.step(4000, within(0, 768));
    }
    let (fast, is_in) = (town.fast(), |range: std::ops::Range<usize>| {
        let fast = town.fast();
        range.filter(|page| fast.contains(page)).count()
    });
    assert_eq!(
        (is_in(0..256), is_in(1024..1280)),
        (0, 256),
        "{}",
        fast.len()
    );
    assert_eq!(is_in(256..768), 512, "what is used and not spoken of stays");
    // Taken back, they are pages as others.
    town.declared.declare(PID, 0..2048, None, 0).unwrap();
    for _ in 0..60 {
        town.step(4000, within(0, 768));
    }
    assert_eq!(town.fast().iter().filter(|&&page| page < 256).count(), 256);
    // Of pages that are used alike, those that are said to be cold leave for hotter ones.
    let now_us = town.now_us;
    town.declared
        .declare(PID, 300..400, Some(Hint::Cold), now_us)
        .unwrap();
    for _ in 0..10 {
        town.step(8000, |random: &mut Random| match random.next_u64() % 4 {
            0 => within(0, 768)(random),
            _ => within(1900, 50)(random),
        });
    }
    let fast = town.fast();
    assert!((1900..1950).all(|page| fast.contains(&page)));
}

#[test]
fn it_learns_for_a_while_before_it_says_that_nothing_is_to_be_done() {
    // All of it is in the fast tier.
    let mut town = Town::new(vec![FAST; 1024], 4096);
    let at = |town: &mut Town| town.step(500, within(0, 1024)).outlook;
    let seen: Vec<PolicyActivity> = (0..60).map(|_| at(&mut town)).collect();
    let learned = seen
        .iter()
        .take_while(|&&is| is == PolicyActivity::Learning);
    // 4 s, with the interval that ends them.
    assert_eq!(learned.count(), 39);
    assert!(seen[39..].iter().all(|&is| is == PolicyActivity::Done));
    // At rest it stays done; woken, it looks for 2 s.
    town.sampling = Sampling::Cheap;
    assert_eq!(at(&mut town), PolicyActivity::Done);
    town.sampling = Sampling::Full;
    let woken: Vec<PolicyActivity> = (0..30).map(|_| at(&mut town)).collect();
    assert!(woken[..19].iter().all(|&is| is == PolicyActivity::Learning));
    assert!(woken[19..].iter().all(|&is| is == PolicyActivity::Done));
}
