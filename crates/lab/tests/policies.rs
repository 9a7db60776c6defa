//! Short forms of the claims about policies; `make evidence` has the long ones. Each boots once.

mod common;

use common::built;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// `hither lab WORDS --machine opteron8385 -- cluster CLUSTER`.
fn lab(words: &[&str], cluster: &[&str]) -> Output {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/opteron8385.toml");
    let output = Command::new(built("hither"))
        .arg("lab")
        .args(words)
        .args(["--cpus", "8", "--timeout", "9m", "--machine"])
        .arg(&file)
        .arg("--")
        .arg(built("cluster"))
        .args(cluster)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    println!("{text}");
    output
}

fn number(value: &Value, path: &str) -> f64 {
    let found = value
        .pointer(path)
        .unwrap_or_else(|| panic!("no {path} in {value}"));
    found
        .as_f64()
        .unwrap_or_else(|| panic!("{path} is no number: {found}"))
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn a_controller_in_overload_is_relieved() {
    let policies = "first-touch,interleave,carrefour";
    let output = lab(
        &["compare", "--json", "--policies", policies],
        &["shared", "--rounds", "12"],
    );
    let comparison: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = |policy: &str| {
        let rows = comparison["rows"].as_array().unwrap();
        let found = rows.iter().find(|row| row["policy"] == policy);
        found
            .unwrap_or_else(|| panic!("no row of {policy}"))
            .clone()
    };
    let (first, spread, own) = (row("first-touch"), row("interleave"), row("carrefour"));
    // All threads on all nodes read one node's memory: a quarter is local, one controller works.
    assert!((number(&first, "/local_access_ratio") - 0.25).abs() < 0.03);
    assert!(number(&first, "/controller_imbalance") > 1.9);
    assert!(number(&spread, "/controller_imbalance") < 0.1);
    // Carrefour's paper: +100 %; the long run has it within 20 points, this one has start-up too.
    let gain = number(&first, "/seconds/median") / number(&spread, "/seconds/median");
    assert!(
        (1.75..2.25).contains(&gain),
        "interleave is {gain} times as fast"
    );
    assert!(number(&own, "/moved_pages") > 8_000.0, "{own}");
    let gain = number(&first, "/steady_seconds/median") / number(&own, "/steady_seconds/median");
    assert!(gain > 1.6, "carrefour ends up {gain} times as fast");
    let gain = number(&first, "/seconds/median") / number(&own, "/seconds/median");
    assert!(
        gain > 1.25,
        "carrefour is {gain} times as fast from end to end"
    );
}

/// The canary: were this not reported, every other result of the laboratory would mean nothing.
#[test]
#[ignore = "boots QEMU; make test runs it"]
fn a_harmful_policy_is_reported_and_reverted() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let report_name = report.display().to_string();
    let output = lab(
        &["run", "--policy", "wrong-node", "--json", &report_name],
        &["local", "--mb", "32", "--rounds", "200"],
    );
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("(misplace, "),
        "nothing was misplaced: {text}"
    );
    assert!(text.contains(": harmful; "), "no harm was reported: {text}");
    assert!(
        text.contains("pages put back"),
        "nothing was put back: {text}"
    );
    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let (before, after) = (
        number(&report, "/hither/decided/before/local_access_ratio"),
        number(&report, "/hither/decided/after/local_access_ratio"),
    );
    // The exact counters of the device, not hither's samples.
    let whole = number(&report, "/figures/local_access_ratio");
    assert!(before > 0.97, "the program starts local: {before}");
    assert!(whole < 0.9, "the canary did move pages: {whole}");
    assert!(after > 0.95, "all is back where it was: {after}");
}
