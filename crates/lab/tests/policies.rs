//! Short forms of the claims about policies; `make evidence` has the long ones.

mod common;

use common::built;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// `hither lab WORDS --machine opteron8385 -- PROGRAM ARGUMENTS`.
fn lab(words: &[&str], program: &str, arguments: &[&str]) -> Output {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/opteron8385.toml");
    let output = Command::new(built("hither"))
        .arg("lab")
        .args(words)
        .args(["--cpus", "8", "--timeout", "9m", "--machine"])
        .arg(&file)
        .arg("--")
        .arg(built(program))
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    println!("{text}");
    output
}

/// The same as `hither lab run` under a policy: what it says, and its report.
fn reported(policy: &str, program: &str, arguments: &[&str]) -> (String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let words = [
        "run",
        "--policy",
        policy,
        "--json",
        &report.display().to_string(),
    ];
    let output = lab(&words, program, arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let report = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    (text, report)
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
        "cluster",
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

/// hither must be believed where no exact counters are: its samples say the same as they do, while
/// pages move too. Runs are as long as it takes for the samples' own noise to stay far below 3
/// points.
#[test]
#[ignore = "boots QEMU; make test runs it"]
fn samples_agree_with_exact_counts() {
    let mut apart = Vec::new();
    for (program, arguments) in [
        ("cluster", "shared --rounds 24"),
        ("cluster", "partitioned --rounds 160"),
        ("cluster", "mixed --rounds 24"),
        ("cluster", "local --rounds 96"),
        ("memlat", ""),
        ("stream", ""),
        ("gups", "--updates 4000000"),
        ("cg", "--products 40"),
        ("kvstore", "--operations 2000000"),
    ] {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let (_, report) = reported("carrefour", program, &arguments);
        for figure in ["local_access_ratio", "controller_imbalance"] {
            let exact = 100.0 * number(&report, &format!("/figures/{figure}"));
            let sampled = 100.0 * number(&report, &format!("/hither/decided/sampled/{figure}"));
            let line = format!(
                "{program} {}: {figure}: exact {exact:.1}, from samples {sampled:.1}",
                arguments.join(" ")
            );
            println!("{line}");
            if (exact - sampled).abs() > 3.0 {
                apart.push(line);
            }
        }
    }
    assert!(apart.is_empty(), "{apart:#?}");
}

/// The canary: were this not reported, every other result of the laboratory would mean nothing.
#[test]
#[ignore = "boots QEMU; make test runs it"]
fn a_harmful_policy_is_reported_and_reverted() {
    let arguments = ["local", "--mb", "32", "--rounds", "200"];
    let (text, report) = reported("wrong-node", "cluster", &arguments);
    assert!(
        text.contains("(misplace, "),
        "nothing was misplaced: {text}"
    );
    assert!(text.contains(": harmful; "), "no harm was reported: {text}");
    assert!(
        text.contains("pages put back"),
        "nothing was put back: {text}"
    );
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
