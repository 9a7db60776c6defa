//! The asynchronous memory-move service on an emulated machine of two nodes, in short.

use crate::common::built;
use hither_lab::image::AGENT_PATH;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// `hither lab run` of a shell's command on 4 + 4 CPUs, with the files it names; what it printed.
fn run(script: &str, files: &[&Path]) -> String {
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/skylake8160.toml");
    let output = Command::new(built("hither"))
        .args(["lab", "run", "--cpus", "8", "--timeout", "9m", "--machine"])
        .arg(&machine)
        .args(files.iter().flat_map(|file| [Path::new("--file"), file]))
        .args(["--", "sh", "-c", script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{told}");
    told
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn requests_cost_less_than_calls() {
    let words = "bench service --json - --pages small --sizes 64K,1M --repeat 32";
    let told = run(&format!("{AGENT_PATH} {words}"), &[]);
    let report: Value = serde_json::from_str(&told).unwrap();
    let swap = &report["backends"][1];
    assert_eq!(swap["name"], "swap");
    assert!(swap["unavailable"].is_null(), "{swap}");
    let rows = report["streams"].as_array().unwrap();
    // Time of a request, in ns.
    let each = |bytes: u64, traffic: &str, by: &str, field: &str| {
        let is =
            |row: &&Value| row["bytes"] == bytes && row["traffic"] == traffic && row["by"] == by;
        let row = rows.iter().find(is).unwrap();
        assert_eq!(row["refused_pages"], 0, "{row}");
        row[field].as_f64().unwrap() / row["requests"].as_f64().unwrap()
    };
    for bytes in [64 << 10, 1 << 20] {
        // Long runs have 2.3, 1.3 and 1.2; of a few rounds one may fall into other work.
        for (traffic, by, least) in [
            ("both ways", "service, recycling", 1.8),
            ("both ways", "service", 1.0),
            ("one way", "service", 1.0),
        ] {
            let wall = |by| each(bytes, traffic, by, "wall_ns");
            let gain = wall("move_pages") / wall(by);
            println!("{bytes} bytes, {traffic}, {by}: {gain:.2} times as fast");
            assert!(gain > least, "{report}");
        }
    }
    let latency = |by: &str, field: &str| report["latency"][by][field].as_f64().unwrap();
    let mean = latency("service", "mean_ns") / latency("move_pages", "mean_ns");
    let cpu = latency("move_pages", "submitter_cpu_ns") / latency("service", "submitter_cpu_ns");
    println!("latency {mean:.2} of a call's, {cpu:.1} times less CPU for who submits");
    assert!(mean < 0.8 && cpu > 2.5, "{report}");
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn no_byte_is_lost_between_nodes() {
    let program = built("examples/move_torture");
    let torture = |scenario: &str| {
        format!(
            "'{}' {scenario} --nodes 2 --rounds 16 --stores 100000 --seed 7",
            program.display()
        )
    };
    let script = format!("{} && {}", torture("writers"), torture("forks"));
    println!("{}", run(&script, &[&program]));
}
