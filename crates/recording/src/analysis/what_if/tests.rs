//! Answers that are worked by hand.

use super::super::data::tests::{access, empty};
use super::place::tests::machine;
use super::windows::tests::interval;
use super::*;
use crate::meta::RecordingEnd;
use crate::rows::{Process, Residency};

/// Two regions of 64 pages, the first ten times as hot, all in the second node, whose latency is `latency_ns`;
/// one interval of 100 ms in which one CPU waits for `stalled`, with so many fills per us.
fn two_regions(stalled: Option<f64>, latency_ns: f64, fills_per_us: f64) -> Data {
    let mut data = empty();
    for (node, cpus) in data.meta.nodes.iter_mut().zip(["0-5", ""]) {
        node.cpus = cpus.to_owned();
    }
    data.meta.nodes[1].id = 1;
    data.nodes = vec![0, 1];
    let page = |turn: u64| match turn % 11 {
        10 => 64 + turn / 11 % 64,
        hot => (turn / 11 * 10 + hot) % 64,
    };
    let count = 64 * 11 * 20;
    let accesses =
        (0..count).map(|turn| access(turn * 100_000_000 / count, page(turn) << 12, 0, 1));
    data.accesses = accesses.collect();
    let mut told = interval(100, fills_per_us);
    (told.stall_share, told.latency_ns) = (stalled, Some(latency_ns));
    data.intervals = vec![told];
    data.residency = vec![Residency {
        time_ns: 1,
        pid: 7,
        start: 0,
        node: 1,
        bytes: 128 * PAGE_BYTES,
        asked_pages: None,
    }];
    data.meta.ended = Some(RecordingEnd {
        length_ns: 100_000_000,
        status: Some(0),
        signal: None,
        own_user_us: None,
        own_system_us: None,
        watched_cpu_us: Some(100_000),
        own_peak_kb: None,
        notes: Vec::new(),
    });
    data
}

fn asked<'a>(target: &'a Machine, sizes: &'a [u64]) -> WhatIfQuestion<'a> {
    WhatIfQuestion {
        target,
        recorded_on: None,
        sizes,
    }
}

fn near(found: f64, expected: f64) {
    assert!(
        (found / expected - 1.0).abs() < 0.01,
        "{found}, not {expected}"
    );
}

#[test]
fn the_hot_half_brings_most_on_westmere() {
    // A fill in 1 us. Slow memory 282 ns, fast memory 82 ns; half of the footprint takes 10 of 11.
    let data = two_regions(Some(0.6), 282.0, 1.0);
    let target = machine("westmere-m2");
    let told = what_if(&data, &asked(&target, &[])).unwrap();
    assert_eq!(told.footprint_bytes, 128 * PAGE_BYTES);
    // It grew after the only look.
    let mut grown = data.clone();
    grown.processes = vec![Process {
        pid: 7,
        name: "app".into(),
        start_ns: 0,
        end_ns: None,
        peak_bytes: Some(160 * PAGE_BYTES),
    }];
    let later = what_if(&grown, &asked(&target, &[])).unwrap();
    assert_eq!(later.footprint_bytes, 160 * PAGE_BYTES);
    assert_eq!((told.stall_share, told.cpus), ([0.6, 0.6], Some(1.0)));
    let sizes: Vec<u64> = told
        .rows
        .iter()
        .map(|row| row.fast_bytes / PAGE_BYTES)
        .collect();
    assert_eq!(sizes, [0, 16, 32, 64, 96, 128]);
    let speeds: Vec<f64> = told.rows.iter().map(|row| row.speed.unwrap()).collect();
    near(speeds[0], 1.0);
    let half_ns = (10.0 * 82.0 + 282.0) / 11.0;
    near(speeds[3], 1.0 / (0.4 + 0.6 * half_ns / 282.0));
    near(speeds[5], 1.0 / (0.4 + 0.6 * 82.0 / 282.0));
    near(told.rows[3].fast_share[1], 10.0 / 11.0);
    assert!(speeds.is_sorted(), "{speeds:?}");
    for row in &told.rows {
        let speed = row.speed.unwrap();
        assert!(row.low < speed && speed < row.high, "{row:?}");
    }
    // Two fifths of the logarithm of the change.
    near(told.rows[5].high, speeds[5].powf(1.4));
}

#[test]
fn fast_memory_that_answers_later_is_left_alone_without_load() {
    // Knights Landing: DDR4 takes 147 ns, MCDRAM 176.
    let mut data = two_regions(Some(0.5), 147.0, 1.0);
    data.accesses
        .iter_mut()
        .for_each(|access| *access = self::access(access.time_ns, access.address, 0, 0));
    let target = machine("knl7250");
    let told = what_if(&data, &asked(&target, &[128 * PAGE_BYTES])).unwrap();
    assert_eq!(told.rows[0].used_bytes, 0);
    near(told.rows[0].speed.unwrap(), 1.0);
    // 150 GB/s as recorded at 190 ns, where DDR4 carries 78: nearly half as fast without MCDRAM.
    let data = two_regions(Some(0.8), 190.0, 150_000.0 / 64.0);
    let told = what_if(
        &data,
        &asked(&target, &[0, 64 * PAGE_BYTES, 128 * PAGE_BYTES]),
    )
    .unwrap();
    let speeds: Vec<f64> = told.rows.iter().map(|row| row.speed.unwrap()).collect();
    assert!((0.45..0.54).contains(&speeds[0]), "{speeds:?}");
    assert!(speeds[1] > 0.9, "{speeds:?}");
}

#[test]
fn an_unknown_stall_share_makes_a_range() {
    // A fill in 1 us on one CPU with 282 ns: it waits for 28 % of its time at most.
    let data = two_regions(None, 282.0, 1.0);
    let target = machine("westmere-m2");
    let told = what_if(&data, &asked(&target, &[128 * PAGE_BYTES])).unwrap();
    near(told.stall_share[1], 0.282);
    let row = told.rows[0];
    assert_eq!((told.stall_share[0], row.speed), (0.0, None));
    near(row.low, (-LEAST_ERROR).exp());
    near(
        row.high,
        (1.0_f64 / (0.718 + 0.282 * 82.0 / 282.0)).powf(1.4),
    );
}

#[test]
fn the_recorded_run_checks_the_model() {
    let target = machine("westmere-m2");
    let question = WhatIfQuestion {
        recorded_on: Some(&target),
        ..asked(&target, &[0])
    };
    let check = |latency_ns| {
        let told = what_if(&two_regions(Some(0.6), latency_ns, 1.0), &question);
        told.unwrap()
    };
    near(check(282.0).check.unwrap(), 1.0);
    // The recording says half of the latency that the file does: 1 / (0.4 + 0.6 * 2).
    let told = check(141.0);
    near(told.check.unwrap(), 0.625);
    // Without fast memory that is the recorded run, which is as fast as it is.
    near(told.rows[0].speed.unwrap(), 1.0);
    assert!(
        told.rows[0].high > told.rows[0].speed.unwrap() * 1.59,
        "{told:?}"
    );
    let other = machine("knl7250");
    let question = WhatIfQuestion {
        recorded_on: Some(&other),
        ..question
    };
    let why = what_if(&two_regions(Some(0.6), 282.0, 1.0), &question).unwrap_err();
    assert!(
        why.what.contains("is not the machine of the recording"),
        "{why}"
    );
}

#[test]
fn what_is_missing_is_said() {
    let target = machine("westmere-m2");
    let refused = |change: fn(&mut Data), words: &str| {
        let mut data = two_regions(Some(0.6), 282.0, 1.0);
        change(&mut data);
        let why = what_if(&data, &asked(&target, &[]))
            .unwrap_err()
            .to_string();
        assert!(why.contains(words), "`{words}` is not in {why}");
    };
    refused(|data| data.accesses.clear(), "no samples");
    refused(|data| data.accesses.truncate(399), "399 samples");
    refused(|data| data.intervals.clear(), "how many memory fills");
    refused(
        |data| {
            data.intervals[0].latency_ns = None;
            data.accesses
                .iter_mut()
                .for_each(super::super::data::Access::forget_latency);
        },
        "what a memory access takes",
    );
    // Samples tell the latency where no counter does.
    let mut data = two_regions(Some(0.6), 282.0, 1.0);
    data.intervals[0].latency_ns = None;
    let told = what_if(&data, &asked(&target, &[])).unwrap();
    assert_eq!((told.latency_ns, told.latency_basis), (100.0, "samples"));
    let uniform = machine("uniform");
    let why = what_if(&data, &asked(&uniform, &[4096])).unwrap_err();
    assert!(why.what.contains("one tier"), "{why}");
    assert_eq!(what_if(&data, &asked(&uniform, &[])).unwrap().rows.len(), 1);
}
