//! `hither probe` on an emulated machine finds what the machine file says.

use crate::common::built;
use hither_core::machine::{parse, scale};
use hither_lab::image::AGENT_PATH;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const CPUS: usize = 2;

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn the_machine_file_is_found_again() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/skylake8160.toml");
    let whole = parse::parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let machine = scale::scale(&whole, CPUS).unwrap();
    let output = Command::new(built("hither"))
        .args(["lab", "run", "--cpus", &CPUS.to_string(), "--timeout", "9m"])
        .arg("--machine")
        .arg(&file)
        .args(["--", "sh", "-c"])
        .arg(format!(
            "{AGENT_PATH} probe --seconds 1 --rounds 2 --json -"
        ))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let check = |what: &str, found: &Value, expected: f64, most: f64| {
        let found = found["median"].as_f64().unwrap();
        let off = found / expected - 1.0;
        println!(
            "{what}: {found:.2}, expected {expected:.2}, {:+.1} %",
            off * 100.0
        );
        assert!(off.abs() <= most, "{what}: {report:#}");
    };
    let link = &machine.links[0];
    let read = &report["bandwidth"][0];
    assert_eq!(read["work"], "read");
    for [from, to] in [[0, 0], [0, 1], [1, 0], [1, 1]] {
        let cell = |matrix: &Value| matrix[from][to].clone();
        let node = &machine.nodes[to];
        let capacity = node.capacity.at(1.0);
        // A load at a time is a load too, on a machine scaled down to so few CPUs.
        let idle_ns = machine.idle_latency_ns(from, to);
        let own_gbs = f64::from(machine.line_bytes) / idle_ns;
        let at_node = node.curve.queueing_ns(own_gbs / capacity);
        let (ns, gbs) = match from == to {
            true => (idle_ns + at_node, capacity),
            false => {
                let on_link = link.curve.queueing_ns(own_gbs / link.gbs);
                (idle_ns + at_node + on_link, link.gbs)
            }
        };
        let name = |what: &str| format!("{what} from node{from} to node{to}");
        check(&name("latency"), &cell(&report["latency_ns"]), ns, 0.03);
        check(&name("reading"), &cell(&read["all_gbs"]), gbs, 0.05);
    }
    // CPUs share no unit, and who reads the clock takes none of their time.
    for peak in report["flops"].as_array().unwrap() {
        let one = peak["one_gflops"][0]["median"].as_f64().unwrap();
        let name = format!("{} by {}", peak["precision"], peak["instructions"]);
        check(&name, &peak["all_gflops"], one * CPUS as f64, 0.1);
    }
}
