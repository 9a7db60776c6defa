//! `hither forecast RECORDING --machine FILE`, with recordings whose answers are worked by hand.

use crate::common::{output, refused, text};
use hither_recording::meta::{Meta, MetaNode, MetaTracker, RecordingEnd, SCHEMA};
use hither_recording::rows::{Interval, Residency, Sample};
use hither_recording::{Folder, Writer};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Pages of each of the two regions, and samples of the whole.
const PAGES: u64 = 64;
const SAMPLES: u64 = PAGES * 11 * 20;
const LENGTH_NS: u64 = 1_000_000_000;

/// Two regions, the first ten times as hot, in node 1; a fill in 1 us by one CPU that waits for 60 % of its
/// time, at 282 ns.
fn record(folder: &Path, stall_share: Option<f64>, samples: u64) {
    let node = |id, cpus: &str| MetaNode {
        id,
        cpus: cpus.to_owned(),
        total_bytes: 1 << 30,
        spans: Vec::new(),
    };
    let meta = Meta {
        schema: SCHEMA.into(),
        hither: "test".into(),
        began_unix_ms: Some(1),
        kernel: "7.3".into(),
        nodes: vec![node(0, "0-5"), node(1, "")],
        distances: vec![vec![10, 21], vec![21, 10]],
        line_bytes: Some(64),
        command: vec!["./app".into()],
        watched: "the command".into(),
        trackers: vec![MetaTracker {
            name: "opium".into(),
            about: "test".into(),
        }],
        interval_us: 1_000_000,
        ended: Some(RecordingEnd {
            length_ns: LENGTH_NS,
            status: Some(0),
            signal: None,
            own_user_us: Some(1),
            own_system_us: Some(2),
            watched_cpu_us: Some(1_000_000),
            own_peak_kb: None,
            notes: Vec::new(),
        }),
    };
    let mut writer = Writer::create(Folder::make_or_take(folder).unwrap(), meta).unwrap();
    let page = |turn: u64| match turn % 11 {
        10 => PAGES + turn / 11 % PAGES,
        hot => (turn / 11 * 10 + hot) % PAGES,
    };
    let sample = |turn: u64| Sample {
        time_ns: turn * LENGTH_NS / SAMPLES,
        pid: 7,
        tid: None,
        cpu: Some(0),
        from_node: Some(0),
        home_node: Some(1),
        address: page(turn) << 12,
        code: None,
        is_write: None,
        latency_ns: Some(282),
        from_cache: None,
        weight: 64,
    };
    writer.add((0..samples).map(sample)).unwrap();
    let interval = Interval {
        time_ns: LENGTH_NS,
        length_ns: LENGTH_NS,
        local_access_ratio: Some(0.0),
        latency_ns: Some(282.0),
        controller_imbalance: None,
        link_use: None,
        accesses_per_us: Some(1.0),
        instructions_per_us: Some(100.0),
        flops_per_us: None,
        stall_share,
        l3_mpki: None,
        sample_count: samples,
        lost_count: 0,
        own_cpu_us: None,
    };
    writer.add([interval]).unwrap();
    let resident = Residency {
        time_ns: 1,
        pid: 7,
        start: 0,
        node: 1,
        bytes: (2 * PAGES) << 12,
        asked_pages: None,
    };
    writer.add([resident]).unwrap();
    writer.finish().unwrap();
}

fn machine(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../machines/{name}.toml"));
    path.to_str().unwrap().to_owned()
}

fn recorded(stall_share: Option<f64>, samples: u64) -> (tempfile::TempDir, PathBuf) {
    let within = tempfile::tempdir().unwrap();
    let folder = within.path().join("rec");
    record(&folder, stall_share, samples);
    (within, folder)
}

fn near(found: &Value, expected: f64) {
    let found = found.as_f64().unwrap();
    assert!(
        (found / expected - 1.0).abs() < 0.01,
        "{found}, not {expected}"
    );
}

#[test]
fn the_curve_is_the_one_worked_by_hand() {
    let (within, folder) = recorded(Some(0.6), SAMPLES);
    let svg = within.path().join("curve.svg");
    let (folder, westmere) = (folder.to_str().unwrap(), machine("westmere-m2"));
    let options = ["forecast", folder, "--machine", &westmere];
    let mut with_files = options.to_vec();
    with_files.extend(["--recorded-on", &westmere, "--json"]);
    with_files.extend(["--svg", svg.to_str().unwrap()]);
    let told = output(&with_files);
    assert!(told.status.success(), "{}", text(&told.stderr));
    let told: Value = serde_json::from_str(&text(&told.stdout)).unwrap();
    assert_eq!(told["schema"], "hither.forecast-recording/1");
    assert_eq!(told["footprint_bytes"], (2 * PAGES) << 12);
    // Fast memory takes 82 ns, slow memory 244 and the link's 38.
    near(&told["check_speed"], 1.0);
    near(&told["rows"][0]["speed"], 1.0);
    near(&told["rows"][3]["fast_share"], 10.0 / 11.0);
    let half_ns = (10.0 * 82.0 + 282.0) / 11.0;
    near(
        &told["rows"][3]["speed"],
        1.0 / (0.4 + 0.6 * half_ns / 282.0),
    );
    near(&told["rows"][5]["speed"], 1.0 / (0.4 + 0.6 * 82.0 / 282.0));
    for row in told["rows"].as_array().unwrap() {
        let of = |field: &str| row[field].as_f64().unwrap();
        assert!(of("speed_low") < of("speed") && of("speed") < of("speed_high"));
    }
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(drawn.contains("westmere-m2") && drawn.contains("fast memory (MiB)"));
    let printed = output(&options);
    let printed = text(&printed.stdout);
    assert!(
        printed.contains("1.74") && printed.contains("1.63"),
        "{printed}"
    );
    assert!(printed.contains("60 % of the CPU time waits"), "{printed}");
}

#[test]
fn memory_that_answers_later_brings_nothing_without_load() {
    // Knights Landing: DDR4 takes 147 ns, MCDRAM 176, at next to no traffic.
    let (_within, folder) = recorded(Some(0.6), SAMPLES);
    let knl = machine("knl7250");
    let folder = folder.to_str().unwrap();
    let told = output(&[
        "forecast",
        folder,
        "--machine",
        &knl,
        "--fast",
        "0,1M",
        "--json",
    ]);
    let told: Value = serde_json::from_str(&text(&told.stdout)).unwrap();
    let expected = 1.0 / (0.4 + 0.6 * 147.0 / 282.0);
    for row in 0..2 {
        near(&told["rows"][row]["speed"], expected);
        assert_eq!(told["rows"][row]["used_bytes"], 0);
    }
}

#[test]
fn stalls_that_were_not_recorded_make_a_range() {
    let (_within, folder) = recorded(None, SAMPLES);
    let westmere = machine("westmere-m2");
    let folder = folder.to_str().unwrap();
    let told = output(&[
        "forecast",
        folder,
        "--machine",
        &westmere,
        "--fast",
        "1M",
        "--json",
    ]);
    let told: Value = serde_json::from_str(&text(&told.stdout)).unwrap();
    // One CPU, a fill in 1 us of 282 ns: 28 % of the time at most.
    near(&told["stall_share_high"], 0.282);
    assert_eq!(told["rows"][0]["speed"], Value::Null);
    near(
        &told["rows"][0]["speed_high"],
        (1.0_f64 / (0.718 + 0.282 * 82.0 / 282.0)).powf(1.4),
    );
}

#[test]
fn every_recording_of_the_corpus_has_a_forecast_or_a_sentence() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings");
    let machine = machine("spr-2s-cxl");
    let mut count = 0;
    for entry in std::fs::read_dir(fixtures).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.is_dir() {
            continue;
        }
        count += 1;
        let folder = folder.to_str().unwrap();
        let told = output(&["forecast", folder, "--machine", &machine, "--json"]);
        let errors = text(&told.stderr);
        assert!(!errors.contains("panicked"), "{folder}: {errors}");
        match told.status.code() {
            Some(0) => {
                let told: Value = serde_json::from_str(&text(&told.stdout)).unwrap();
                for row in told["rows"].as_array().unwrap() {
                    let [low, high] = ["speed_low", "speed_high"].map(|end| row[end].as_f64());
                    assert!(low.unwrap() <= high.unwrap(), "{folder}: {row}");
                }
            }
            Some(2) => assert!(errors.contains("; "), "{folder}: {errors}"),
            status => panic!("{folder}: status {status:?}: {errors}"),
        }
    }
    assert!(count >= 8);
}

#[test]
fn what_cannot_be_forecast_is_refused() {
    let (_within, folder) = recorded(Some(0.6), 100);
    let folder = folder.to_str().unwrap();
    let westmere = machine("westmere-m2");
    refused(
        &["forecast", folder, "--machine", &westmere],
        "has 100 samples, and a forecast needs 400; record longer",
    );
    refused(&["forecast", folder], "give its file, as in --machine");
    refused(
        &["forecast", "--machine", &westmere],
        "name the folder of one recording",
    );
    refused(
        &["forecast", folder, "--machine", "no-such"],
        "no such file",
    );
    refused(&["forecast", folder, "--fast", "1M"], "--machine");
    refused(
        &["forecast", folder, "--machine", &westmere, "--fast", "1.5x"],
        "write a whole number",
    );
    let (_whole, whole) = recorded(Some(0.6), SAMPLES);
    let whole = whole.to_str().unwrap();
    refused(
        &[
            "forecast",
            whole,
            "--machine",
            &machine("uniform"),
            "--fast",
            "1M",
        ],
        "one tier",
    );
    let knl = machine("knl7250");
    refused(
        &[
            "forecast",
            whole,
            "--machine",
            &westmere,
            "--recorded-on",
            &knl,
        ],
        "is not the machine of the recording",
    );
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings");
    let damo = fixtures.join("damo");
    refused(
        &["forecast", damo.to_str().unwrap(), "--machine", &westmere],
        "no samples",
    );
}
