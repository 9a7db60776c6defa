//! What the lab's kernel tells of use without addresses of accesses: the tracker `written` finds the
//! part of a program's memory that is written, and the multi-generational LRU tells memory in use
//! from memory that is idle.

use crate::common::{bare, built};
use hither_lab::image::AGENT_PATH;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Watches a load of its own, then records one that runs; then asks for ages beside an idle one. The
/// load that runs rests for long, since it changes its mappings in each pass: the kernel's look for
/// ages skips the rest of a process that does so meanwhile.
const SCRIPT: &str = "
$0 watch mb=64 hot=8 seconds=2 && echo watched
loads() {
    $0 load mb=64 hot=8 rest=100 > /tmp/busy & busy=$!
    $0 load mb=48 hot=1 rest=900000 > /tmp/idle & idle=$!
    until test -s /tmp/busy && test -s /tmp/idle; do sleep 0.1; done
}
loads
$1 record --tracker written --overhead 10 -o /tmp/rec --pid $busy --seconds 2 && echo recorded
$1 top --ages 1s --interval 1100ms --json > /tmp/top.json && echo aged
kill $busy $idle
";

const MB: f64 = 1048576.0;

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn written_and_idle_memory_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/opteron8385.toml");
    let program = bare("examples/written");
    let back = |name: &str| folder.path().join(name);
    let output = Command::new(built("hither"))
        .args(["lab", "run", "--cpus", "4", "--memory", "256"])
        .args(["--timeout", "5m", "--machine"])
        .arg(&file)
        .arg("--file")
        .arg(&program)
        .arg(format!("--back=/tmp/rec:{}", back("rec").display()))
        .arg(format!(
            "--back=/tmp/top.json:{}",
            back("top.json").display()
        ))
        .args(["--", "sh", "-c", SCRIPT])
        .arg(&program)
        .arg(AGENT_PATH)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let told = String::from_utf8_lossy(&output.stdout);
    println!("{told}{said}");
    for expected in ["watched", "recorded", "aged"] {
        assert!(told.lines().any(|line| line == expected), "no `{expected}`");
    }
    let found = told.lines().find_map(|line| line.strip_prefix("found: "));
    let words: Vec<&str> = found.unwrap_or_default().split(' ').collect();
    let ["precision", precision, "recall", recall] = words[..] else {
        panic!("nothing was found");
    };
    // Every page is looked at, and nothing else of the mapping is written.
    for figure in [precision, recall] {
        assert!(
            figure.parse::<f64>().unwrap() > 99.0,
            "{precision} {recall}"
        );
    }
    recording_tells_of_writes(&back("rec"));
    ages_tell_busy_from_idle(&back("top.json"));
}

fn recording_tells_of_writes(recording: &Path) {
    let output = Command::new(built("hither"))
        .arg("report")
        .arg(recording)
        .args(["--json", "-"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sentence = report["verdict"]["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("Soft-dirty bits"), "{sentence}");
    assert_eq!(report["heat"]["of"], "regions");
    let windows = report["working_set"]["windows"].as_array().unwrap();
    assert!(windows.len() >= 3, "{windows:?}");
    for window in windows {
        // Beside the hot part there is the program's stack.
        let written_mb = window["touched_bytes"].as_f64().unwrap() / MB;
        assert!((8.0..8.5).contains(&written_mb), "{window}");
    }
}

fn ages_tell_busy_from_idle(file: &Path) {
    let text = std::fs::read_to_string(file).unwrap();
    let top: Value = serde_json::from_str(&text).unwrap();
    let nodes = top["nodes"].as_array().unwrap();
    // Of each node its classes from the youngest on, in MB.
    let ages: Vec<Vec<f64>> = nodes
        .iter()
        .map(|node| node["ages"].as_array().unwrap())
        .map(|classes| {
            let bytes = classes.iter().map(|class| &class["anonymous_bytes"]);
            bytes.map(|bytes| bytes.as_f64().unwrap() / MB).collect()
        })
        .collect();
    let recent_mb: f64 = ages.iter().map(|classes| classes[0]).sum();
    let older_mb: f64 = ages.iter().flat_map(|classes| &classes[1..]).sum();
    // 64 MB are read in the 1.1 s between the two looks, 48 MB are not.
    assert!((60.0..90.0).contains(&recent_mb), "{ages:.1?} MB");
    assert!(older_mb > 44.0, "{ages:.1?} MB");
}
