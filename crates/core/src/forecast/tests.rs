//! Forecasts worked by hand.

use super::*;
use crate::ids::{NodeId, SpaceId};
use crate::snapshot::{Evidence, GlobalMetrics, NodeCounts, NodeState, PageStats, ProcessState};

/// Four nodes with two CPUs each, 10 here and 20 elsewhere; all pages are on the first.
fn scene(users: impl Fn(u64) -> [u32; 4], used: Option<f64>, stalled: Option<f64>) -> Snapshot {
    let figure = |value: Option<f64>| match value {
        Some(value) => Evidence::measured(value, "test"),
        None => Evidence::unknown("nobody told"),
    };
    let node = |position: u32| NodeState {
        id: NodeId(position),
        cpu_count: 2,
        free_bytes: 1 << 30,
        total_bytes: 1 << 30,
        cache_bytes: 0,
        idle_ns: None,
        rated: crate::snapshot::Rated::default(),
        latency_ns: None,
        read_bytes: Evidence::unknown("test"),
        write_bytes: Evidence::unknown("test"),
        utilisation: figure(used.map(|used| if position == 0 { used } else { 0.0 })),
    };
    let page = |block: u64| PageStats {
        pid: Pid(5),
        page: block * HUGE_PAGES,
        home: NodeId(0),
        was: None,
        reads: NodeCounts::from_slice(&users(block)),
        writes: NodeCounts::new(),
        huge: false,
    };
    let row = |own: usize| (0..4).map(|far| if far == own { 10 } else { 20 }).collect();
    Snapshot {
        now_us: 0,
        interval_us: 100_000,
        nodes: (0..4).map(node).collect(),
        caches: Vec::new(),
        distances: (0..4).map(row).collect(),
        metrics: GlobalMetrics {
            stall_share: figure(stalled),
            ..GlobalMetrics::unknown("test")
        },
        pages: (0..40).map(page).collect(),
        present: Vec::new(),
        sample_count: Evidence::measured(1, "test"),
        sample_period: 100,
        samples_lost: 0,
        by_use: false,
        own_cpu_us: Evidence::unknown("test"),
        processes: vec![ProcessState {
            name: "test".into(),
            ..ProcessState::of_test(Pid(5), SpaceId(1))
        }],
    }
}

fn made(snapshot: &Snapshot) -> Result<Forecast, Missing> {
    let mut forecaster = Forecaster::default();
    forecaster.take(snapshot);
    forecaster.forecast(snapshot)
}

/// Of each block 100 samples, by one node in turn.
fn partitioned(block: u64) -> [u32; 4] {
    let mut users = [0; 4];
    users[block as usize % 4] = 100;
    users
}

#[test]
fn without_load_distance_decides() {
    let forecast = made(&scene(partitioned, Some(0.0), Some(0.5))).unwrap();
    // 1/4 of 10 and 3/4 of 20 become 10: 1.75 to 1; half of the time shrinks to 1/1.75.
    let expected = 1.0 / (0.5 + 0.5 / 1.75);
    assert!((forecast.speed_up - expected).abs() < 1e-6, "{forecast}");
    assert_eq!(forecast.local_ratio, [0.25, 1.0]);
    assert!((forecast.imbalance[0] - 3f64.sqrt()).abs() < 1e-9);
    assert_eq!((forecast.imbalance[1], forecast.sample_count), (0.0, 4000));
    assert!(forecast.is_gain());
    assert!(forecast.to_string().starts_with("1.27 times as fast, "));
}

#[test]
fn a_controller_in_overload_is_relieved_by_spreading() {
    let forecast = made(&scene(|_| [25; 4], Some(1.0), Some(0.6))).unwrap();
    assert_eq!(forecast.local_ratio, [0.25, 0.25]);
    assert!(forecast.imbalance[1] < 1e-9);
    // It is full, and the latency is not known: between what the curve says and 1 / (1 - 0.6).
    let scene = scene(|_| [25; 4], Some(1.0), Some(0.6));
    let accesses = {
        let mut forecaster = Forecaster::default();
        forecaster.take(&scene);
        Accesses::of(forecaster.blocks.values(), &scene)
    };
    let uses = [1.0, 0.0, 0.0, 0.0];
    let [least, most] = speed_up(&scene, (&accesses.now, &accesses.spread), &uses, 0.6);
    // 2.53 times what an idle controller takes; a quarter of the load, times the speed-up k, waits
    // loaded(k / 4) of that.
    let ratio = loaded(least / 4.0) / loaded(1.0);
    assert!((least - 1.0 / (0.4 + 0.6 * ratio)).abs() < 1e-6, "{least}");
    assert!((most - 2.5).abs() < 1e-9, "{most}");
    assert!((forecast.speed_up - f64::midpoint(least, most)).abs() < 1e-9);
    assert!(forecast.is_gain() && forecast.error > (most - least) / 2.0);
}

/// Near the limit the use says little of the wait: what was measured counts.
#[test]
fn at_a_controllers_limit_the_measured_latency_counts() {
    let mut full = scene(partitioned, Some(0.8), Some(1.0));
    full.metrics.latency_ns = Evidence::estimated(1.0, "test");
    for node in &mut full.nodes {
        node.idle_ns = Some(100.0);
    }
    // Shorter than the curve says: it is left aside.
    let without = made(&full).unwrap().speed_up;
    full.metrics.latency_ns = Evidence::estimated(500.0, "test");
    let with = made(&full).unwrap().speed_up;
    assert!(with > without);
    // A quarter of the load each, times the speed-up: 5 / loaded(0.2 k), unless controllers are full.
    assert!((with - 5.0 / loaded(0.2 * with)).abs() < 1e-6 || with <= 4.0 * MOST_USE / 0.8 + 1e-6);
    // Where none is near it, a latency of few samples is left aside.
    full.nodes[0].utilisation = Evidence::measured(0.3, "test");
    let far = made(&full).unwrap().speed_up;
    assert!(far < without + 0.2, "{far} {without}");
}

#[test]
fn nothing_is_promised_where_nothing_is_to_be_gained() {
    let mut local = scene(partitioned, Some(0.3), Some(0.8));
    for page in &mut local.pages {
        page.home = NodeId((page.page / HUGE_PAGES % 4) as u32);
    }
    let forecast = made(&local).unwrap();
    assert!((forecast.speed_up - 1.0).abs() < 1e-9 && !forecast.is_gain());
    assert!(forecast.error >= LEAST_ERROR);
    // Who hardly waits gains nothing that could be told from noise.
    let forecast = made(&scene(partitioned, Some(0.0), Some(0.02))).unwrap();
    assert!(!forecast.is_gain(), "{forecast}");
}

#[test]
fn what_is_unknown_is_said() {
    let refused = |snapshot: &Snapshot| format!("{:?}", made(snapshot).unwrap_err());
    assert!(refused(&scene(partitioned, Some(0.5), None)).contains("nobody told"));
    assert!(refused(&scene(|_| [25; 4], None, Some(0.5))).contains("controllers"));
    assert!(refused(&scene(|_| [1; 4], Some(0.5), Some(0.5))).contains("Samples(0)"));
    let mut nowhere = scene(partitioned, Some(0.5), Some(0.5));
    nowhere.distances.clear();
    assert!(refused(&nowhere).contains("distances"));
}

#[test]
fn thin_samples_add_up_until_pages_move() {
    let snapshot = scene(|_| [2; 4], Some(1.0), Some(1.0));
    let mut forecaster = Forecaster::default();
    forecaster.take(&snapshot);
    forecaster.take(&snapshot);
    let forecast = forecaster.forecast(&snapshot).unwrap();
    assert_eq!(forecast.sample_count, 640);
    forecaster.forget();
    assert!(forecaster.forecast(&snapshot).is_err());
}
