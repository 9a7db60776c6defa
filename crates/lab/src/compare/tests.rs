//! Order, statistics, table and JSON of comparisons.

use super::*;
use crate::measure::{Counters, Point};

#[test]
fn every_policy_takes_every_place() {
    assert_eq!(order(4, 2), [0, 1, 2, 3, 1, 2, 3, 0]);
    assert_eq!(order(2, 3), [0, 1, 1, 0, 0, 1]);
    assert_eq!(order(1, 2), [0, 0]);
    assert!(order(3, 0).is_empty());
    // Four rounds of four: each policy once in each place.
    let order = order(4, 4);
    for policy in 0..4 {
        let mut places: Vec<usize> = order
            .iter()
            .enumerate()
            .filter(|&(_, &p)| p == policy)
            .map(|(place, _)| place % 4)
            .collect();
        places.sort_unstable();
        assert_eq!(places, [0, 1, 2, 3]);
    }
}

#[test]
fn spreads_by_hand() {
    assert_eq!((deviation(&[]), deviation(&[3.0])), (None, None));
    // 2 and 4: a deviation of a sample of the root of 2, around 3.
    assert_eq!(deviation(&[2.0, 4.0]), Some(2f64.sqrt() / 3.0));
    assert_eq!(Spread::of([]), None);
    assert_eq!(Spread::of([f64::NAN]), None);
    assert_eq!(
        Spread::of([3.0]),
        Some(Spread {
            median: 3.0,
            min: 3.0,
            max: 3.0
        })
    );
    assert_eq!(
        Spread::of([9.0, 1.0, 2.0]),
        Some(Spread {
            median: 2.0,
            min: 1.0,
            max: 9.0
        })
    );
    assert_eq!(
        Spread::of([4.0, 1.0, 2.0, 9.0]),
        Some(Spread {
            median: 3.0,
            min: 1.0,
            max: 9.0
        })
    );
}

#[test]
fn bars_are_whole_and_eighths() {
    assert_eq!(bar(2.0, 2.0), "█".repeat(20));
    assert_eq!(bar(1.0, 2.0), "█".repeat(10));
    // 1 of 16: 1.25 cells are ten eighths.
    assert_eq!(bar(1.0, 16.0), "█▎");
    assert_eq!(bar(0.0, 2.0), "");
    assert_eq!(bar(1.0, 0.0), "");
    assert_eq!(bar(f64::NAN, 1.0), "");
}

/// A point at `ms` of four nodes; `local` of `fills` user fills are local.
fn point(ms: u64, instructions_user: u64, fills: u64, local: u64, moved_pages: u64) -> Point {
    let counters = Counters {
        instructions_user,
        user_fills: fills,
        user_local_fills: local,
        latency_sum_ns: fills * 400,
        demand_misses: fills,
        node_bytes: vec![fills * 64, 0, 0, 0],
        link_bytes: vec![fills, 0],
        link_ppm_us: vec![ms * 1000 * 600_000, 0],
        node_ppm_us: vec![0; 4],
        moved_pages,
        ..Counters::default()
    };
    Point {
        time_ns: ms * 1_000_000,
        counters,
    }
}

fn run(policy: usize, timeline: Vec<Point>, status: u8) -> Run {
    let start_ns = timeline[0].time_ns;
    let end_ns = timeline[timeline.len() - 1].time_ns;
    Run {
        policy,
        ended: RunEnded {
            status,
            start_ns,
            end_ns,
            timeline,
            report: None,
        },
        host_seconds: 8.0,
    }
}

/// Two rounds of first-touch and carrefour: 2 s and 2.2 s against 1.2 s, of which the first
/// 0.3 s (10 % of the work) are spent before the last move.
fn comparison() -> Comparison {
    let settle = |offset: u64| {
        vec![
            point(offset, 0, 0, 0, 0),
            point(offset + 300, 100, 100, 30, 50),
            point(offset + 1_200, 1_000, 1_000, 800, 50),
        ]
    };
    let runs = [
        run(
            0,
            vec![point(0, 0, 0, 0, 0), point(2_000, 1_000, 1_000, 250, 0)],
            0,
        ),
        run(1, settle(2_000), 0),
        run(1, settle(4_000), 0),
        run(
            0,
            vec![
                point(6_000, 0, 0, 0, 50),
                point(8_200, 1_000, 1_000, 250, 50),
            ],
            0,
        ),
    ];
    let setting = Setting {
        machine: "square".into(),
        cpus: 8,
        memory_mb: vec![512; 4],
        kernel: "7.2.12".into(),
        thp: "madvise".into(),
        modelled: true,
        command: vec!["./cluster".into(), "shared".into()],
        ..Setting::default()
    };
    Comparison::new(setting, &["first-touch".into(), "carrefour".into()], &runs)
}

#[test]
fn rows_hold_medians_and_speeds_against_the_first() {
    let got = comparison();
    assert!((got.steady_start - 0.1).abs() < 1e-12);
    let [base, ours] = &got.rows[..] else {
        panic!("{} rows", got.rows.len())
    };
    assert_eq!(
        base.seconds,
        Some(Spread {
            median: 2.1,
            min: 2.0,
            max: 2.2
        })
    );
    assert_eq!(base.speed, Some(1.0));
    // 2.1 s against 1.2 s.
    assert!((ours.speed.unwrap() - 1.75).abs() < 1e-9);
    // 0.9 s for the last 90 %: 1 s for all; first-touch is even, so 2.1 s stay 2.1 s.
    assert!((ours.steady_seconds.unwrap().median - 1.0).abs() < 1e-9);
    assert!((ours.steady_speed.unwrap() - 2.1).abs() < 1e-9);
    assert_eq!(base.local_access_ratio, Some(0.25));
    assert_eq!(ours.moved_pages, Some(50.0));
    assert_eq!(base.moved_pages, Some(0.0));
    assert_eq!(ours.runs.len(), 2);
    // The steady part of our run: 770 of 900 fills are local.
    assert!((ours.runs[0].steady.local_access_ratio.unwrap() - 770.0 / 900.0).abs() < 1e-12);
}

#[test]
fn the_table_is_as_documented() {
    let expected = "\
./cluster shared
on square, 8 CPUs, 4 nodes, Linux 7.2.12, huge pages madvise

policy       seconds                    steady  local  latency  imbalance  links  their imb.  moved  speed  speed (first-touch = 1)
first-touch    2.100  (2.000 to 2.200)   2.100   25 %   400 ns      173 %   30 %       100 %      0   1.00  ███████████▍
carrefour      1.200  (1.200 to 1.200)   1.000   80 %   400 ns      173 %   30 %       100 %     50   1.75  ████████████████████

seconds: guest time from exec to exit, median (least to most). steady: the whole work at the speed of its last 90 %.
";
    assert_eq!(table(&comparison()), expected);
}

#[test]
fn the_json_form_has_the_documented_fields_and_reads_back() {
    let value = serde_json::to_value(comparison()).unwrap();
    assert_eq!(value["schema"], SCHEMA);
    for field in [
        "policy",
        "seconds",
        "steady_seconds",
        "local_access_ratio",
        "latency_ns",
        "controller_imbalance",
        "link_use",
        "link_imbalance",
        "instructions",
        "moved_pages",
        "host_seconds",
    ] {
        assert!(!value["rows"][1][field].is_null(), "{field}");
    }
    assert_eq!(value["rows"][0]["seconds"]["median"], 2.1);
    assert_eq!(
        serde_json::from_value::<Comparison>(value).unwrap(),
        comparison()
    );
}

#[test]
fn failed_runs_are_named_and_do_not_count() {
    let runs = [
        run(0, vec![point(0, 0, 0, 0, 0), point(1_000, 10, 10, 5, 0)], 0),
        run(0, vec![point(0, 0, 0, 0, 0), point(10, 1, 1, 1, 0)], 139),
    ];
    let got = Comparison::new(Setting::default(), &["kernel".into()], &runs);
    assert_eq!(got.rows[0].seconds.unwrap().median, 1.0);
    assert_eq!(got.failures().collect::<Vec<_>>(), [("kernel", 2, 139)]);
    assert!(table(&got).contains("run 2 of kernel ended with status 139"));
}

#[test]
fn without_counters_there_are_times_only() {
    let ended = RunEnded {
        status: 0,
        start_ns: 0,
        end_ns: 5_000_000_000,
        timeline: vec![],
        report: None,
    };
    let runs = [Run {
        policy: 0,
        ended,
        host_seconds: 1.0,
    }];
    let got = Comparison::new(Setting::default(), &["carrefour".into()], &runs);
    assert_eq!(got.rows[0].seconds.unwrap().median, 5.0);
    assert_eq!(got.rows[0].steady_seconds, None);
    assert!(table(&got).contains("say nothing about placement"));
}

#[test]
fn a_late_move_leaves_a_quarter_and_the_kernels_moves_do_not_count() {
    let late = vec![
        point(0, 0, 0, 0, 0),
        point(900, 950, 9, 9, 5),
        point(1_000, 1_000, 10, 10, 6),
    ];
    let start = |name: &str| steady_start(&[name.to_owned()], &[run(0, late.clone(), 0)]);
    assert_eq!(start("carrefour"), measure::LATEST_START);
    assert_eq!(start("kernel"), 0.0);
}
