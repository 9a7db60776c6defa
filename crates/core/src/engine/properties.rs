//! Properties that hold whatever a policy proposes and whatever the executor answers.

use super::*;
use crate::ids::{NodeId, Pid, SpaceId};
use crate::plan::{Mechanism, Refusal};
use crate::policy::{Context, EvidenceKind, Policy, PolicyActivity, Proposal, ProposedMove};
use crate::snapshot::{
    Evidence, GlobalMetrics, NodeCounts, NodeState, PAGE_BYTES, PageStats, ProcessState,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const NODES: u32 = 3;
const PAGES: u64 = 60;
/// Two scopes, of one process each.
const PIDS: [Pid; 2] = [Pid(9), Pid(10)];

/// Proposes what it was told, whether sensible or not.
struct Puppet(Pid, Script);

impl Policy for Puppet {
    fn name(&self) -> &'static str {
        "puppet"
    }
    fn needs(&self) -> &[EvidenceKind] {
        &[]
    }
    fn decide(&mut self, _: &Snapshot, _: &mut Context<'_>) -> Proposal {
        let pid = self.0;
        let moves = self
            .1
            .pop()
            .unwrap_or_default()
            .into_iter()
            .map(|(page, from, to)| ProposedMove {
                pid,
                page,
                huge: false,
                from: NodeId(from),
                to: NodeId(to),
                mechanism: Mechanism::Interleave,
            });
        Proposal {
            moves: moves.collect(),
            outlook: PolicyActivity::Working,
            ..Proposal::default()
        }
    }
}

type Homes = BTreeMap<(Pid, u64), u32>;

fn snapshot(now_us: u64, free_pages: &[u64], homes: &Homes, local: f64) -> Snapshot {
    let node = |id: u32| NodeState {
        id: NodeId(id),
        cpu_count: 1,
        free_bytes: free_pages[id as usize] * PAGE_BYTES,
        total_bytes: 1000 * PAGE_BYTES,
        cache_bytes: 0,
        idle_ns: None,
        rated: crate::snapshot::Rated::default(),
        latency_ns: None,
        read_bytes: Evidence::unknown("test"),
        write_bytes: Evidence::unknown("test"),
        utilisation: Evidence::unknown("test"),
    };
    let process = |pid: Pid| ProcessState {
        name: "puppet".into(),
        ..ProcessState::of_test(pid, SpaceId(1))
    };
    let page = |(pid, page): (Pid, u64)| PageStats {
        pid,
        page,
        home: NodeId(home_of(homes, pid, page)),
        was: None,
        reads: NodeCounts::from_slice(&[1, 2, 3]),
        writes: NodeCounts::new(),
        huge: false,
    };
    Snapshot {
        now_us,
        interval_us: 100_000,
        nodes: (0..NODES).map(node).collect(),
        caches: Vec::new(),
        distances: vec![vec![10; 3]; 3],
        metrics: GlobalMetrics {
            local_access_ratio: Evidence::measured(local, "test"),
            ..GlobalMetrics::unknown("test")
        },
        pages: PIDS
            .iter()
            .flat_map(|&pid| (0..PAGES).map(move |page| (pid, page)))
            .map(page)
            .collect(),
        present: Vec::new(),
        sample_count: Evidence::measured(1, "test"),
        sample_period: 1,
        samples_lost: 0,
        by_use: false,
        own_cpu_us: Evidence::unknown("test"),
        processes: PIDS.map(process).to_vec(),
    }
}

fn config() -> EngineConfig {
    EngineConfig {
        reserve_share: 0.0,
        reserve_bytes: 4 * PAGE_BYTES,
        rate_bytes_per_s: 100 * PAGE_BYTES,
        burst_bytes: 25 * PAGE_BYTES,
        request_pages: 7,
        cooldown_us: 350_000,
        ..EngineConfig::default()
    }
}

/// Where a page is: dealt round robin until it moves.
fn home_of(homes: &Homes, pid: Pid, page: u64) -> u32 {
    let dealt = (page % u64::from(NODES)) as u32;
    homes.get(&(pid, page)).copied().unwrap_or(dealt)
}

type Script = Vec<Vec<(u64, u32, u32)>>;

fn script() -> impl Strategy<Value = Script> {
    let order = (0..PAGES, 0..NODES, 0..NODES + 1);
    proptest::collection::vec(proptest::collection::vec(order, 0..50), 1..25)
}

/// The executor's side of a script: what is where, free, under way; checks every plan.
struct Executor {
    config: EngineConfig,
    free: Vec<u64>,
    homes: Homes,
    moved_at: BTreeMap<(Pid, u64), u64>,
    /// Process, target and pages by request.
    under_way: BTreeMap<u64, (Pid, u32, Vec<u64>)>,
    asked_pages: u64,
    /// Outcomes with the step in which they are due.
    waiting: Vec<(usize, MoveOutcome)>,
    seen_requests: BTreeSet<u64>,
}

impl Executor {
    fn due(&mut self, step: usize, now_us: u64) -> Vec<MoveOutcome> {
        let waiting = std::mem::take(&mut self.waiting);
        let (due, later): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(at, _)| *at <= step);
        self.waiting = later;
        for (_, outcome) in &due {
            let asked = self.under_way.remove(&outcome.request);
            let (pid, to, _) = asked.expect("an outcome answers a request");
            // Memory is taken when the move is done, not when it is asked for.
            for &page in &outcome.moved {
                let from = home_of(&self.homes, pid, page);
                self.homes.insert((pid, page), to);
                self.free[from as usize] += 1;
                self.free[to as usize] -= 1;
            }
            let moved = outcome.moved.iter();
            self.moved_at
                .extend(moved.map(|&page| ((pid, page), now_us)));
        }
        due.into_iter().map(|(_, outcome)| outcome).collect()
    }

    fn check(&mut self, plan: &Plan, now_us: u64) {
        let mut arriving = [0; NODES as usize];
        let mut busy: BTreeSet<(Pid, u64)> = BTreeSet::new();
        for (pid, to, pages) in self.under_way.values() {
            arriving[*to as usize] += pages.len() as u64;
            busy.extend(pages.iter().map(|&page| (*pid, page)));
        }
        let promised = arriving;
        for request in &plan.requests {
            let pages = &request.pages;
            assert!(
                !self.seen_requests.contains(&request.id),
                "request number {} repeats",
                request.id
            );
            assert!(!pages.is_empty() && pages.len() <= self.config.request_pages);
            assert!(
                pages.windows(2).all(|pair| pair[0] < pair[1]),
                "pages are not ascending"
            );
            arriving[request.to.0 as usize] += pages.len() as u64;
            let is_revert = request.reason.mechanism == Mechanism::Revert;
            assert_eq!(request.pid, PIDS[request.scope.0 as usize]);
            for page in pages {
                let key = (request.pid, *page);
                assert!(busy.insert(key), "page {page} is under way twice");
                let moved_at = self.moved_at.get(&key).filter(|_| !is_revert);
                let rested = moved_at.is_none_or(|at| now_us >= at + self.config.cooldown_us);
                assert!(rested, "page {page} moved again while cooling down");
            }
        }
        let burst_pages = self.config.burst_bytes / PAGE_BYTES;
        assert!(
            plan.page_count() as u64 <= burst_pages,
            "rate budget exceeded"
        );
        self.asked_pages += plan.page_count() as u64;
        let flowed_in = self.config.rate_bytes_per_s as f64 * (now_us - 100_000) as f64 / 1e6;
        assert!(
            self.asked_pages as f64 <= burst_pages as f64 + flowed_in / PAGE_BYTES as f64,
            "rate exceeded over {now_us} us"
        );
        for (node, &pages) in arriving.iter().enumerate() {
            assert!(
                pages == promised[node] || pages + 4 <= self.free[node],
                "capacity of node {node} exceeded"
            );
        }
    }

    fn execute(&mut self, request: &crate::plan::MoveRequest, fate: u8, step: usize) {
        let all = request.pages.len() as u64;
        let (moved, refused) = match fate % 4 {
            0 => (Vec::new(), vec![(Refusal::Busy, all)]),
            1 => (Vec::new(), vec![(Refusal::Pinned, all)]),
            _ => (request.pages.clone(), Vec::new()),
        };
        self.seen_requests.insert(request.id);
        let under_way = (request.pid, request.to.0, request.pages.clone());
        self.under_way.insert(request.id, under_way);
        let outcome = MoveOutcome {
            request: request.id,
            moved,
            already_there: 0,
            refused,
            duration_ns: 1,
        };
        self.waiting
            .push((step + 1 + usize::from(fate / 4 % 3), outcome));
    }
}

/// Runs two scripts, of a scope each, and then undoes everything; `fates` decide per request whether
/// it moves, and when its outcome comes. Checks every plan as it is made and returns all of them.
fn play(scripts: [Script; 2], fates: &[u8], free_pages: &[u64], local: &[f64]) -> Vec<Plan> {
    let steps = scripts[0].len() + scripts[1].len();
    let mut executor = Executor {
        config: config(),
        free: free_pages.to_vec(),
        homes: Homes::new(),
        moved_at: BTreeMap::new(),
        under_way: BTreeMap::new(),
        asked_pages: 0,
        waiting: Vec::new(),
        seen_requests: BTreeSet::new(),
    };
    let mut engine = Engine::new(config());
    for (pid, script) in PIDS.into_iter().zip(scripts) {
        engine.add_scope(ScopeSpec {
            name: pid.to_string(),
            selector: Selector::Tree(pid),
            policy: Box::new(Puppet(pid, script)),
        });
    }
    let mut fate = fates.iter().cycle();
    let mut plans = Vec::new();
    let mut step = 0;
    while step < steps + 40 || !engine.is_undone() {
        assert!(step < steps + 200, "the undo does not end");
        if step == steps {
            engine.begin_undo_all();
        }
        let now_us = (step as u64 + 1) * 100_000;
        let outcomes = executor.due(step, now_us);
        let snapshot = snapshot(
            now_us,
            &executor.free,
            &executor.homes,
            local[step % local.len()],
        );
        let plan = engine.step(now_us, &snapshot, &outcomes);
        executor.check(&plan, now_us);
        for request in &plan.requests {
            executor.execute(request, *fate.next().expect("fates are never empty"), step);
        }
        plans.push(plan);
        step += 1;
    }
    check_undone(&engine, &executor);
    plans
}

/// Every page is back, or its scope says that it is not.
fn check_undone(engine: &Engine, executor: &Executor) {
    let away = |pid: Pid| {
        let homes = executor.homes.iter();
        homes.filter(move |&(&(of, page), &home)| of == pid && home != (page % 3) as u32)
    };
    for (scope, (_, summary)) in engine.scopes().zip(engine.summary()) {
        let pid = PIDS[scope.0 as usize];
        assert_eq!(summary.displaced_pages, away(pid).count() as u64);
        let ledger = engine.ledger(scope).expect("the scope is there");
        for (&(pid, page), &home) in away(pid) {
            let entry = ledger.get(pid, page).expect("a page away is known");
            assert_eq!((entry.origin.0, entry.home.0), ((page % 3) as u32, home));
            assert!(entry.is_given_up);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn budgets_and_cool_down_hold_whatever_happens(
        scripts in [script(), script()],
        fates in proptest::collection::vec(any::<u8>(), 1..20),
        free in proptest::collection::vec(0u64..40, 3),
        local in proptest::collection::vec(0.0f64..1.0, 1..6),
    ) {
        play(scripts, &fates, &free, &local);
    }

    #[test]
    fn the_same_input_gives_the_same_plans(
        scripts in [script(), script()],
        fates in proptest::collection::vec(any::<u8>(), 1..20),
        local in proptest::collection::vec(0.0f64..1.0, 1..6),
    ) {
        let once = play(scripts.clone(), &fates, &[30, 30, 30], &local);
        let again = play(scripts, &fates, &[30, 30, 30], &local);
        prop_assert_eq!(once, again);
    }
}

/// A figure that a broken tracker may hand over.
fn figure() -> impl Strategy<Value = Evidence<f64>> {
    prop_oneof![
        Just(Evidence::unknown("test")),
        Just(Evidence::measured(f64::NAN, "test")),
        Just(Evidence::measured(f64::INFINITY, "test")),
        (-1.0f64..200.0).prop_map(|value| Evidence::measured(value, "test")),
    ]
}

/// A page on any home, known or not, with samples at any position, huge or not.
fn any_page() -> impl Strategy<Value = PageStats> {
    let counts = proptest::collection::vec(prop_oneof![0u32..4, Just(u32::MAX)], 0..12);
    (0u64..3000, 0u32..5, counts, any::<bool>(), 1i32..3).prop_map(
        |(page, home, counts, huge, pid)| PageStats {
            pid: Pid(pid),
            page,
            home: NodeId(home),
            was: None,
            reads: NodeCounts::from_slice(&counts),
            writes: NodeCounts::new(),
            huge,
        },
    )
}

fn any_snapshot() -> impl Strategy<Value = Snapshot> {
    let pages = proptest::collection::vec(any_page(), 0..60);
    let figures = (figure(), figure(), figure(), figure());
    (0usize..4, pages, figures, 0u64..3_000_000, 0u32..9).prop_map(
        |(nodes, pages, figures, now_us, period)| {
            let mut snapshot = snapshot(now_us, &[10, 1000, 0], &Homes::new(), 0.5);
            snapshot.nodes.truncate(nodes);
            snapshot.pages = pages;
            snapshot.sample_period = period;
            snapshot.metrics.memory_accesses_per_us = figures.0;
            snapshot.metrics.local_access_ratio = figures.1;
            snapshot.metrics.controller_imbalance = figures.2;
            snapshot.metrics.latency_ns = figures.3;
            snapshot.processes[0].pid = Pid(1);
            snapshot
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_snapshot_is_too_broken(
        snapshots in proptest::collection::vec(any_snapshot(), 1..15),
        name in prop_oneof![Just("carrefour"), Just("wrong-node"), Just("none")],
    ) {
        // Time runs as the snapshots say, backwards too; every request is carried out.
        let mut engine = Engine::of_all(crate::policy::by_name(name).unwrap(), EngineConfig::default());
        let mut outcomes = Vec::new();
        for snapshot in &snapshots {
            let plan = engine.step(snapshot.now_us, snapshot, &outcomes);
            prop_assert!(plan.next_interval_us >= 100_000);
            outcomes.clear();
            // No more waiting can be saved than CPU time has passed.
            let most_ns = f64::from(snapshot.cpu_count()) * snapshot.interval_us as f64 * 1e3;
            let gains = plan.requests.iter().filter_map(|request| request.predicted_gain_ns.get());
            let gain: f64 = gains.map(f64::abs).sum();
            prop_assert!(gain <= most_ns * (1.0 + 1e-9), "{gain} of {most_ns}");
            for request in plan.requests {
                prop_assert!(snapshot.node_position(request.to).is_some());
                prop_assert!(request.predicted_gain_ns.get().is_none_or(|gain| !gain.is_nan()));
                outcomes.push(MoveOutcome {
                    request: request.id,
                    moved: request.pages,
                    already_there: 0,
                    refused: Vec::new(),
                    duration_ns: 1,
                });
            }
        }
        prop_assert!(!engine.summary()[0].1.to_string().is_empty());
    }
}

/// A server that has read files for days has nearly nothing free, and much that it can give.
#[test]
fn half_of_the_page_cache_is_room() {
    let mut snapshot = snapshot(0, &[10, 10, 10], &Homes::new(), 1.0);
    snapshot.nodes[1].cache_bytes = 600 * PAGE_BYTES;
    snapshot.nodes[2].cache_bytes = 60 * PAGE_BYTES;
    let config = EngineConfig {
        reserve_share: 0.02,
        reserve_bytes: 0,
        ..EngineConfig::default()
    };
    let room = budget::room_pages(&config, &snapshot, &[0, 40]);
    assert_eq!(room, [0, 250, 20]);
}
