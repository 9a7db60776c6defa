//! `hither import` of other tools' files, and what the reports make of what these do not tell.

use crate::common::{output, refused, text};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    folder.join(name).to_str().unwrap().to_owned()
}

/// Imports a fixture into a folder, and what that said.
fn imported(name: &str, folder: &Path) -> (String, String) {
    let to = folder.join("recording").to_str().unwrap().to_owned();
    let run = output(&["import", &fixture(name), "-o", &to]);
    assert_eq!(run.status.code(), Some(0), "{name}: {}", text(&run.stderr));
    (to, text(&run.stderr))
}

fn shown(arguments: &[&str]) -> String {
    let run = output(arguments);
    assert!(run.status.success(), "{}", text(&run.stderr));
    text(&run.stdout)
}

fn document(arguments: &[&str]) -> (String, Value) {
    let text = shown(&[arguments, &["--json", "-"]].concat());
    let value = serde_json::from_str(&text).unwrap();
    (text, value)
}

#[test]
fn what_is_not_known_of_access_bits_is_a_dash_and_null() {
    let folder = tempfile::tempdir().unwrap();
    let (to, _) = imported("damo/negzero.txt", folder.path());
    let table = shown(&["report", &to]);
    assert!(!table.contains("-0.0"), "{table}");
    // In the first of three windows nothing was touched.
    let least = table
        .lines()
        .find(|line| line.trim_start().starts_with("min"));
    let least: Vec<&str> = least.unwrap().split_whitespace().collect();
    assert_eq!(least[1..], ["0.0", "MiB", "0.0", "MiB"], "{table}");
    for row in ["lost samples", "recording cost"] {
        let line = table.lines().find(|line| line.contains(row)).unwrap();
        assert!(line.ends_with('–'), "{line}");
    }
    let (text, document) = document(&["report", &to]);
    assert!(!text.contains("-0.0"), "{text}");
    let recording = &document["recording"];
    let overall = &document["overall"];
    for (of, field) in [
        (overall, "lost_count"),
        (overall, "own_cpu_us"),
        (overall, "bytes_per_us"),
        (overall, "local_access_ratio"),
        (recording, "began_unix_ms"),
        (recording, "line_bytes"),
        (&recording["ended"], "own_user_us"),
        (&recording["ended"], "own_system_us"),
        (&recording["ended"], "own_peak_kb"),
    ] {
        assert!(of.get(field).is_some_and(Value::is_null), "{field} in {of}");
    }
    // 0 where nothing was touched is known.
    assert_eq!(document["working_set"]["windows"][0]["touched_bytes"], 0.0);
}

#[test]
fn what_is_not_known_of_samples_is_a_dash_and_null() {
    let folder = tempfile::tempdir().unwrap();
    let (to, _) = imported("perf-data/page-faults.data", folder.path());
    // Page faults tell addresses, threads and instructions; nothing of kinds, CPUs and caches.
    let table = shown(&["report", &to]);
    let from = table.find("data areas").unwrap();
    let until = table.find("heat by address").unwrap();
    assert!(!table[from..until].contains(" 0.0 %"), "{table}");
    let reads = table
        .lines()
        .find(|line| line.contains("area  ") && line.contains("node0"));
    assert!(reads.unwrap().trim_end().ends_with("node0"), "{table}");
    let (_, document) = document(&["report", &to]);
    let area = &document["areas"][0];
    for field in ["reads", "writes", "homes", "owned_share", "part_bytes"] {
        assert!(
            area.get(field).is_some_and(Value::is_null),
            "{field} in {area}"
        );
    }
    // perf says what it lost: nothing.
    assert_eq!(document["overall"]["lost_count"], 0);
    assert_eq!(document["overall"]["own_cpu_us"], Value::Null);
}

#[test]
fn a_page_of_samples_that_tell_no_kinds_has_accesses() {
    let folder = tempfile::tempdir().unwrap();
    let (to, _) = imported("perf-data/page-faults.data", folder.path());
    let (_, report) = document(&["report", &to]);
    let start = report["areas"][0]["start"].as_u64().unwrap();
    let pages = format!("{:x}-{:x}", start + (128 << 12), start + (160 << 12));
    let arguments = ["zoom", &to, "--page", &pages];
    let run = output(&arguments);
    let told = text(&run.stdout);
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert!(
        told.contains("accesses") && !told.contains("reads"),
        "{told}"
    );
    let (_, document) = document(&arguments);
    let node = told
        .lines()
        .find(|line| line.trim_start().starts_with("node0"));
    assert_eq!(node.unwrap().matches('–').count(), 4, "{told}");
    assert_eq!(document["by_node"][0]["accesses"], Value::Null);
    let user = &document["users"][0];
    assert!(user["accesses"].as_f64().unwrap() > 0.0, "{document:#}");
    for field in ["reads", "writes", "transfers"] {
        assert!(user.get(field).is_some_and(Value::is_null), "{user}");
    }
}

#[test]
fn what_is_left_out_is_said_once_and_kept_among_the_notes() {
    for (name, words) in [
        ("damo/probe-hits.txt", "(probe_hits: 4)"),
        ("perf-data/stacks.data", "(call chains, registers, stacks)"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (to, said) = imported(name, folder.path());
        assert_eq!(said.matches(words).count(), 1, "{said}");
        let (_, document) = document(&["report", &to]);
        let notes = document["notes"].to_string();
        assert_eq!(notes.matches(words).count(), 1, "{notes}");
    }
}

#[test]
fn a_file_that_yields_nothing_is_an_error_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("empty.json");
    let to = folder.path().join("recording");
    let names = [file.to_str().unwrap(), "-o", to.to_str().unwrap()];
    for content in [
        "[]",
        r#"[{"target_id": 0, "intervals": null, "snapshots": []}]"#,
    ] {
        fs::write(&file, content).unwrap();
        let words = [&["import"], &names[..]].concat();
        refused(
            &words,
            "ends without a sample or a region that could be imported",
        );
        assert!(!to.exists());
    }
}
