//! `hither record` and `hither report` on an emulated machine: what they say of a program whose use
//! of memory is known, and what that costs it.

use crate::common::built;
use crate::common::together::{self, Part};
use hither_lab::image::AGENT_PATH;
use serde_json::Value;
use std::process::Command;

/// Size of the array.
const MB: f64 = 32.0;

pub fn part() -> Part {
    let program = built("cluster");
    let script =
        format!("{AGENT_PATH} record -o /tmp/rec -- $0 partitioned --mb {MB} --rounds 168 >&2");
    Part {
        name: "record",
        script,
        first: program.clone(),
        files: vec![program],
        back: Some("/tmp/rec"),
    }
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn a_recording_tells_whose_parts_are_where_and_what_to_do() {
    together::told("record");
    let output = Command::new(built("hither"))
        .arg("report")
        .arg(together::back("record"))
        .args(["--json", "-"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["verdict"]["finding"], "misplaced", "{report:#}");
    println!("{}", report["verdict"]["sentence"]);
    // The main thread wrote the array, each thread reads its own part of it.
    let area = &report["areas"][0];
    assert_eq!(area["used_by"], "divided", "{area:#}");
    assert_eq!(area["remedy"], "make local", "{area:#}");
    assert!(area["bytes"].as_f64().unwrap() >= MB * f64::from(1 << 20));
    // Each of the four nodes reads a quarter.
    let reads: Vec<f64> = area["reads"]
        .as_array()
        .unwrap()
        .iter()
        .map(number)
        .collect();
    let all: f64 = reads.iter().sum();
    assert!(
        reads
            .iter()
            .all(|reads| (0.22..0.28).contains(&(reads / all))),
        "{reads:?}"
    );
    // What was used is all of it. The program is long enough for samples that tell it to 3 %, so that
    // a tenth is more than three standard errors.
    for window in report["working_set"]["windows"].as_array().unwrap() {
        let [estimated, error] = ["weighted_bytes", "error_bytes"]
            .map(|field| number(&window[field]) / f64::from(1 << 20));
        println!("working set: {estimated:.1} MiB of {MB}, standard error {error:.2} MiB");
        assert!(error <= 0.03 * estimated, "{window:#}");
        assert!((estimated / MB - 1.0).abs() < 0.1, "{window:#}");
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}
