//! The gates and the beliefs, worked by hand.

use super::*;
use crate::engine::ledger::Ledger;
use crate::policy::random::Random;
use crate::snapshot::{Evidence, GlobalMetrics, NodeCounts, NodeState, PageStats, ProcessState};
use std::collections::BTreeSet;

const PID: Pid = Pid(5);

/// Metrics and pages of one interval on four nodes with two CPUs each.
struct Scene {
    rate: f64,
    local: f64,
    imbalance: f64,
    cpu_counts: [u32; 4],
    sampling: Sampling,
    page_budget: u64,
    switched_off: Vec<Mechanism>,
    huge: bool,
}

impl Default for Scene {
    fn default() -> Self {
        Self {
            rate: 40.0,
            local: 0.25,
            imbalance: 1.73,
            cpu_counts: [2; 4],
            sampling: Sampling::Full,
            page_budget: 1_000_000,
            switched_off: Vec::new(),
            huge: false,
        }
    }
}

/// `(page, home position, samples per node position)`
type Page = (u64, usize, [u32; 4]);

impl Scene {
    fn snapshot(&self, pages: &[Page]) -> Snapshot {
        let measured = |value| Evidence::measured(value, "test");
        let node = |position: usize| NodeState {
            id: NodeId(10 * position as u32),
            cpu_count: self.cpu_counts[position],
            free_bytes: 1 << 30,
            total_bytes: 1 << 30,
            cache_bytes: 0,
            idle_ns: None,
            rated: crate::snapshot::Rated::default(),
            latency_ns: None,
            read_bytes: Evidence::unknown("test"),
            write_bytes: Evidence::unknown("test"),
            utilisation: Evidence::unknown("test"),
        };
        let page = |&(page, home, reads): &Page| PageStats {
            pid: PID,
            page,
            home: NodeId(10 * home as u32),
            was: None,
            reads: NodeCounts::from_slice(&reads),
            writes: NodeCounts::new(),
            huge: self.huge,
        };
        Snapshot {
            now_us: 0,
            interval_us: 100_000,
            nodes: (0..4).map(node).collect(),
            caches: Vec::new(),
            distances: Vec::new(),
            metrics: GlobalMetrics {
                memory_accesses_per_us: measured(self.rate),
                local_access_ratio: measured(self.local),
                controller_imbalance: measured(self.imbalance),
                ..GlobalMetrics::unknown("test")
            },
            pages: pages.iter().map(page).collect(),
            present: Vec::new(),
            sample_count: Evidence::measured(1, "test"),
            sample_period: 100,
            samples_lost: 0,
            by_use: false,
            own_cpu_us: Evidence::unknown("test"),
            processes: vec![ProcessState {
                name: "test".into(),
                ..ProcessState::of_test(PID, SpaceId(1))
            }],
        }
    }

    fn decide(&self, policy: &mut Carrefour, random: &mut Random, pages: &[Page]) -> Proposal {
        let ledger = Ledger::new();
        let mut context = Context {
            now_us: 0,
            random,
            page_budget: self.page_budget,
            room_pages: &[1_000_000; 4],
            ledger: &ledger,
            arrived: &[],
            sampling: self.sampling,
            switched_off: &self.switched_off,
            proven: &BTreeSet::new(),
            unjudged_pages: 0,
            fast_pages: None,
            declared: &crate::declared::Declared::default(),
            move_ns: None,
            look_us: None,
            preferred: &[],
        };
        policy.decide(&self.snapshot(pages), &mut context)
    }

    /// Shows the same intervals' pages one after the other and returns the last proposal.
    fn show(&self, intervals: &[Vec<Page>]) -> Proposal {
        let mut policy = Carrefour::new(Config::default());
        let mut random = Random::new(3);
        let mut last = Proposal::default();
        for pages in intervals {
            last = self.decide(&mut policy, &mut random, pages);
        }
        last
    }
}

/// Pages on node position 0, page `i` used by node position `i % 4` with `count` samples.
fn private(pages: u64, count: u32) -> Vec<Page> {
    let users = |page: u64| {
        let mut reads = [0; 4];
        reads[(page % 4) as usize] = count;
        reads
    };
    (0..pages).map(|page| (page, 0, users(page))).collect()
}

/// Pages on node position 0, each used by two nodes.
fn shared(pages: u64) -> Vec<Page> {
    let users = |page: u64| {
        let mut reads = [0; 4];
        reads[(page % 4) as usize] = 1;
        reads[((page + 1 + page / 4 % 3) % 4) as usize] = 1;
        reads
    };
    (0..pages).map(|page| (page, 0, users(page))).collect()
}

fn count(proposal: &Proposal, mechanism: Mechanism) -> usize {
    proposal
        .moves
        .iter()
        .filter(|order| order.mechanism == mechanism)
        .count()
}

#[test]
fn too_little_traffic_shuts_everything() {
    // 8 CPUs at 3.125 per us each: 25. The first interval starts a phase and is not used.
    let pages = [shared(200), shared(200)];
    let below = Scene {
        rate: 24.9,
        ..Scene::default()
    }
    .show(&pages);
    assert_eq!(
        (below.moves.len(), below.outlook),
        (0, PolicyActivity::Shut)
    );
    assert!(
        count(
            &Scene {
                rate: 25.0,
                ..Scene::default()
            }
            .show(&pages),
            Mechanism::Interleave
        ) > 100
    );
}

#[test]
fn interleaving_needs_imbalance() {
    let pages = [shared(200), shared(200)];
    assert!(
        Scene {
            imbalance: 0.35,
            ..Scene::default()
        }
        .show(&pages)
        .moves
        .is_empty()
    );
    assert!(
        !Scene {
            imbalance: 0.36,
            ..Scene::default()
        }
        .show(&pages)
        .moves
        .is_empty()
    );
}

#[test]
fn collocation_needs_a_low_local_ratio() {
    // Agreement needs two intervals with the same users, after the first of the phase.
    let pages = [private(200, 2), private(200, 2), private(200, 2)];
    let balanced = |local| {
        Scene {
            local,
            imbalance: 0.0,
            ..Scene::default()
        }
        .show(&pages)
    };
    assert_eq!(balanced(0.80).moves.len(), 0);
    // Three of four pages are used by another node than the one they are on.
    let on = balanced(0.79);
    assert_eq!(count(&on, Mechanism::Collocate), 150);
    for order in &on.moves {
        assert_eq!(order.to, NodeId(10 * (order.page % 4) as u32));
    }
}

#[test]
fn one_sample_is_enough_only_while_interleaving_is_on() {
    // Every page is seen twice but for the last 40, seen once each in the last interval.
    let mut pages = [
        private(160, 1),
        private(160, 1),
        private(160, 1),
        private(160, 1),
    ];
    pages[3] = private(200, 1);
    let moved = |imbalance| {
        let mut policy = Carrefour::new(Config::default());
        let mut random = Random::new(3);
        let quiet = Scene {
            page_budget: 0,
            imbalance,
            ..Scene::default()
        };
        for interval in &pages[..3] {
            quiet.decide(&mut policy, &mut random, interval);
        }
        let proposal = Scene {
            imbalance,
            ..Scene::default()
        }
        .decide(&mut policy, &mut random, &pages[3]);
        proposal
            .moves
            .iter()
            .filter(|order| order.page >= 160)
            .count()
    };
    assert_eq!(moved(0.2), 0);
    assert_eq!(moved(0.5), 30);
}

#[test]
fn shared_pages_are_never_collocated_and_private_ones_never_interleaved() {
    let mixed = |pages: u64| {
        // Two blocks of 512 pages each, so that each block speaks for its own.
        let second = private(pages, 1)
            .into_iter()
            .map(|(page, home, reads)| (page + 1024, home, reads));
        shared(pages)
            .into_iter()
            .chain(second)
            .collect::<Vec<Page>>()
    };
    let mut policy = Carrefour::new(Config::default());
    let mut random = Random::new(3);
    let mut moves = Vec::new();
    for _ in 0..6 {
        moves.extend(
            Scene::default()
                .decide(&mut policy, &mut random, &mixed(300))
                .moves,
        );
    }
    assert!(moves.len() > 200);
    for order in &moves {
        let expected = if order.page < 1024 {
            Mechanism::Interleave
        } else {
            Mechanism::Collocate
        };
        assert_eq!(order.mechanism, expected, "{order:?}");
    }
}

#[test]
fn the_period_has_its_page_limits() {
    let pages = [shared(50_000), shared(50_000)];
    // Three of four leave: 37,500, cut at 30,000 or, sampled cheaply, at 10,000.
    let full = Scene::default().show(&pages);
    assert!(
        (29_500..=30_000).contains(&full.moves.len()),
        "{}",
        full.moves.len()
    );
    let cheap = Scene {
        sampling: Sampling::Cheap,
        ..Scene::default()
    }
    .show(&pages);
    assert!(
        (9_500..=10_000).contains(&cheap.moves.len()),
        "{}",
        cheap.moves.len()
    );
    let poor = Scene {
        page_budget: 100,
        ..Scene::default()
    }
    .show(&pages);
    assert!(
        (60..=100).contains(&poor.moves.len()),
        "{}",
        poor.moves.len()
    );
}

#[test]
fn few_orders_mean_little_is_left() {
    // 12 shared pages on an overloaded node: 9 orders, below 10.
    let few = Scene::default().show(&[shared(12), shared(12), shared(12), shared(12)]);
    assert!(few.moves.len() < 10);
    assert_eq!(few.outlook, PolicyActivity::Done);
    let many = Scene::default().show(&[shared(400), shared(400)]);
    assert_eq!(many.outlook, PolicyActivity::Working);
}

#[test]
fn a_mechanism_that_is_switched_off_is_not_used() {
    let pages = [shared(200), shared(200)];
    let off = |switched_off| {
        Scene {
            switched_off,
            ..Scene::default()
        }
        .show(&pages)
    };
    assert_eq!(off(vec![Mechanism::Interleave]).moves.len(), 0);
    assert_eq!(
        off(vec![Mechanism::Interleave, Mechanism::Collocate]).outlook,
        PolicyActivity::Shut
    );
}

#[test]
fn memory_without_cpus_takes_no_part() {
    let cpu_counts = [2, 2, 2, 0];
    let moved = Scene {
        cpu_counts,
        rate: 90.0,
        ..Scene::default()
    }
    .show(&[shared(200), shared(200)]);
    assert!(moved.moves.len() > 100);
    assert!(moved.moves.iter().all(|order| order.to != NodeId(30)));
    let far: Vec<Page> = shared(200)
        .into_iter()
        .map(|(page, _, reads)| (page, 3, reads))
        .collect();
    assert!(
        Scene {
            cpu_counts,
            rate: 90.0,
            ..Scene::default()
        }
        .show(&[far.clone(), far])
        .moves
        .is_empty()
    );
}

#[test]
fn a_huge_page_moves_whole_and_once() {
    // Samples on pages of 40 huge pages: the move names the first page of each.
    let pages: Vec<Page> = (0..160)
        .map(|page| (page / 4 * 512 + page % 4 * 7, 0, [1, 1, 1, 1]))
        .collect();
    let moved = Scene {
        huge: true,
        ..Scene::default()
    }
    .show(&[pages.clone(), pages]);
    assert!(
        (28..=32).contains(&moved.moves.len()),
        "{}",
        moved.moves.len()
    );
    assert!(
        moved
            .moves
            .iter()
            .all(|order| order.huge && order.page % 512 == 0 && order.base_pages() == 512)
    );
}

#[test]
fn nothing_is_proposed_before_there_is_evidence() {
    // One interval: the first of a phase. Two: private pages have not been seen twice.
    assert_eq!(
        Scene::default().show(&[shared(200)]).outlook,
        PolicyActivity::Learning
    );
    let early = Scene::default().show(&[private(200, 3), private(200, 3)]);
    assert_eq!(
        (early.moves.len(), early.outlook),
        (0, PolicyActivity::Learning)
    );
}

#[test]
fn the_same_seed_draws_the_same_targets() {
    let pages = [shared(300), shared(300)];
    assert_eq!(Scene::default().show(&pages), Scene::default().show(&pages));
}

#[test]
fn the_gates_are_told_once() {
    let mut policy = Carrefour::new(Config::default());
    let mut random = Random::new(3);
    let notes = |policy: &mut Carrefour, random: &mut Random, rate| {
        Scene {
            rate,
            ..Scene::default()
        }
        .decide(policy, random, &shared(20))
        .notes
    };
    let first = notes(&mut policy, &mut random, 12.0);
    assert_eq!(
        first,
        ["carrefour: off, 12.0 memory accesses per us are below 25.0; placement cannot pay"]
    );
    assert!(notes(&mut policy, &mut random, 13.0).is_empty());
    assert!(
        notes(&mut policy, &mut random, 40.0)[0]
            .contains("interleaving on (controller imbalance 173 %)")
    );
}

#[test]
fn shared_pages_stay_shared_however_long_one_looks() {
    // 2,000 pages, each sampled once per interval from a random node: over 60 intervals every
    // page is seen six times in a row from one node by chance in 60 / 4^5 = 6 % of the cases.
    let scene = Scene {
        imbalance: 0.0,
        ..Scene::default()
    };
    let mut policy = Carrefour::new(Config::default());
    let (mut random, mut chance) = (Random::new(3), Random::new(4));
    let mut moved = 0;
    for _ in 0..60 {
        let page = |page: u64| {
            let mut reads = [0; 4];
            reads[(chance.unit() * 4.0) as usize] = 1;
            (page, (page % 4) as usize, reads)
        };
        let pages: Vec<Page> = (0..2000).map(page).collect();
        moved += scene.decide(&mut policy, &mut random, &pages).moves.len();
    }
    assert!(moved <= 2, "{moved} pages collocated");
}

#[test]
fn pages_filled_by_one_thread_are_judged_by_their_later_users() {
    // Node 0 fills all pages for three intervals; then each page has one user, and only one page
    // in eight is sampled per interval. Without forgetting, the first sample of every page would
    // be its second user.
    let mut policy = Carrefour::new(Config::default());
    let mut random = Random::new(3);
    let filled: Vec<Page> = (0..2000).map(|page| (page, 0, [1, 0, 0, 0])).collect();
    for _ in 0..3 {
        Scene::default().decide(&mut policy, &mut random, &filled);
    }
    let (mut interleaved, mut collocated) = (0, 0);
    for turn in 0..24 {
        let pages: Vec<Page> = private(2000, 1)
            .into_iter()
            .filter(|(page, ..)| page / 4 * 7 % 8 == turn % 8)
            .collect();
        let proposal = Scene::default().decide(&mut policy, &mut random, &pages);
        interleaved += count(&proposal, Mechanism::Interleave);
        collocated += count(&proposal, Mechanism::Collocate);
    }
    assert_eq!(interleaved, 0);
    assert!(collocated >= 1400, "{collocated} of 1500 collocated");
}

#[test]
fn users_that_take_turns_are_learned_after_a_while() {
    // In each interval one node runs, on its own pages: the users change completely every time.
    let mut policy = Carrefour::new(Config::default());
    let mut random = Random::new(3);
    let mut moved = BTreeMap::new();
    for turn in 0..40 {
        let pages: Vec<Page> = private(2000, 1)
            .into_iter()
            .filter(|(page, ..)| page % 4 == turn % 4)
            .collect();
        for order in Scene::default()
            .decide(&mut policy, &mut random, &pages)
            .moves
        {
            assert_eq!(order.mechanism, Mechanism::Collocate);
            moved.insert(order.page, order.to);
        }
    }
    assert_eq!(moved.len(), 1500);
}
