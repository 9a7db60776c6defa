//! The emulator is right where it can be checked: figures that a program measures inside, held
//! against the machine file. Two boots in all, shared by the tests; ignored by plain `cargo test`.

use crate::common::{bare, built};
use hither_core::machine::{Machine, parse, scale};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

/// What one boot printed, and the machine that it emulated.
struct Boot {
    machine: Machine,
    lines: Vec<Value>,
}

impl Boot {
    fn run(name: &str, cpus: usize, checks: &[&str]) -> Self {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../machines/{name}.toml"));
        let whole = parse::parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let machine = scale::scale(&whole, cpus).unwrap();
        let output = Command::new(built("hither"))
            .args([
                "lab",
                "run",
                "--timeout",
                "5m",
                "--cpus",
                &cpus.to_string(),
                "--machine",
            ])
            .arg(&file)
            .arg("--")
            .arg(bare("examples/yardstick"))
            .args(checks)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let lines = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        Self { machine, lines }
    }

    fn lines(&self, check: &str) -> Vec<&Value> {
        let found: Vec<_> = self
            .lines
            .iter()
            .filter(|line| line["check"] == check)
            .collect();
        assert!(!found.is_empty(), "no line of {check}");
        found
    }

    fn capacity_gbs(&self, line: &Value) -> f64 {
        let (read, written) = (number(line, "read_gbs"), number(line, "written_gbs"));
        self.machine.nodes[0].capacity.at(read / (read + written))
    }
}

fn number(line: &Value, key: &str) -> f64 {
    line[key]
        .as_f64()
        .unwrap_or_else(|| panic!("no number {key} in {line}"))
}

#[track_caller]
fn assert_near(what: &str, measured: f64, expected: f64, tolerance: f64) {
    let off = measured / expected - 1.0;
    println!(
        "{what}: {measured:.2}, expected {expected:.2} ({:+.1} %)",
        off * 100.0
    );
    assert!(
        off.abs() <= tolerance,
        "{what}: {measured} instead of {expected}"
    );
}

static SKYLAKE: LazyLock<Boot> = LazyLock::new(|| {
    let capacity = 105.0 * 8.0 / 48.0;
    let curve = format!("curve={capacity}");
    Boot::run(
        "skylake8160",
        8,
        &[
            "latency",
            "capacity",
            "counts",
            "coherence",
            "events",
            &curve,
        ],
    )
});
/// Twice the CPUs, and more bandwidth for each: less of a node's capacity is the measuring thread's own.
static CXL: LazyLock<Boot> = LazyLock::new(|| Boot::run("spr-2s-cxl", 16, &["latency", "memcpy"]));

fn check_latency(boot: &Boot) {
    let lines = boot.lines("latency");
    assert_eq!(lines.len(), boot.machine.nodes.len());
    for line in lines {
        let node = line["node"].as_u64().unwrap() as usize;
        let (ns, idle) = (number(line, "ns"), boot.machine.idle_latency_ns(0, node));
        println!(
            "node {node}: {ns:.1} ns, {:+.1} % of idle",
            (ns / idle - 1.0) * 100.0
        );
        // A line per `ns` is a load too: on a small controller or link a few per cent of it.
        let line_gbs = f64::from(boot.machine.line_bytes) / ns;
        let target = &boot.machine.nodes[node];
        let own = target.curve.queueing_ns(line_gbs / target.capacity.at(1.0));
        let route = &boot.machine.routes[node][0][0];
        let links = route.links.iter().map(|&link| &boot.machine.links[link]);
        let links: f64 = links
            .map(|link| link.curve.queueing_ns(line_gbs * link.overhead / link.gbs))
            .sum();
        assert_near(
            &format!("latency to node {node}"),
            ns,
            idle + own + links,
            0.03,
        );
    }
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn dependent_loads_take_the_configured_latency_to_each_node() {
    check_latency(&SKYLAKE);
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn nodes_without_cpus_have_their_latency() {
    check_latency(&CXL);
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn memcpy_reaches_the_cores_bandwidth() {
    let line = CXL.lines("memcpy")[1];
    // Both nodes with CPUs are alike.
    let node = &CXL.machine.nodes[0];
    // The bytes in flight are fixed, so the bandwidth is that of the idle memory times idle over
    // loaded latency; the copy's own traffic loads its controller.
    let moved = number(line, "fill_gbs") + number(line, "write_back_gbs");
    let read_share = number(line, "fill_gbs") / moved;
    let queueing = node.curve.queueing_ns(moved / node.capacity.at(read_share));
    let expected = CXL.machine.cpu.stream_gbs * node.idle_ns / (node.idle_ns + queueing);
    assert_near("memcpy traffic, GB/s", moved, expected, 0.10);
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn local_streams_reach_the_controllers_capacity() {
    let line = SKYLAKE.lines("capacity")[0];
    let moved = number(line, "read_gbs") + number(line, "written_gbs");
    assert_near("controller, GB/s", moved, SKYLAKE.capacity_gbs(line), 0.05);
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn remote_streams_reach_the_links_capacity() {
    let link = (SKYLAKE
        .machine
        .links
        .iter()
        .position(|link| link.from == 0 && link.to == 1))
    .unwrap();
    let measured = SKYLAKE.lines("link")[0]["gbs"][link].as_f64().unwrap();
    assert_near(
        "link, GB/s",
        measured,
        SKYLAKE.machine.links[link].gbs,
        0.05,
    );
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn loaded_latency_follows_the_curve() {
    let lines = SKYLAKE.lines("curve");
    assert_eq!(lines.len(), 3);
    for line in lines {
        let moved = number(line, "read_gbs") + number(line, "written_gbs");
        let load = moved / SKYLAKE.capacity_gbs(line);
        let target = number(line, "target");
        assert!(
            (load - target).abs() < 0.06,
            "load {load} is not near {target}"
        );
        let node = &SKYLAKE.machine.nodes[0];
        let expected = node.idle_ns + node.curve.queueing_ns(load);
        assert_near(
            &format!("latency at {:.0} %", load * 100.0),
            number(line, "ns"),
            expected,
            0.05,
        );
    }
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn accesses_to_a_known_array_are_counted_exactly() {
    let line = SKYLAKE.lines("counts")[0];
    let lines = line["lines"].as_u64().unwrap();
    assert_eq!(line["once"].as_u64().unwrap(), lines);
    assert_eq!(line["twice"].as_u64().unwrap(), 2 * lines);
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn writers_of_one_line_pay_the_transfers_others_nothing() {
    let coherence = &SKYLAKE.machine.coherence;
    let hop_ns = SKYLAKE.machine.idle_latency_ns(0, 1) - SKYLAKE.machine.nodes[1].idle_ns;
    for line in SKYLAKE.lines("coherence") {
        let transfer = match line["pair"].as_str().unwrap() {
            "same" => coherence.same_domain_ns,
            _ => coherence.cross_domain_ns + hop_ns,
        };
        for ns in line["ns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|ns| ns.as_f64().unwrap())
        {
            match line["what"].as_str().unwrap() {
                "line" => assert_near(&format!("one line, {}", line["pair"]), ns, transfer, 0.10),
                _ => assert!(ns < transfer / 20.0, "{line}"),
            }
        }
    }
}

/// Expected time of a piece of work: its instructions and stalls as counted, its events as priced.
fn expected_ns(machine: &Machine, line: &Value) -> f64 {
    let costs = &machine.costs;
    let events = [
        ("syscalls", costs.syscall_ns),
        ("exceptions", costs.exception_ns),
        ("interrupts", costs.interrupt_ns),
        ("switches", costs.page_table_switch_ns),
        ("flushes", costs.invlpg_ns),
        ("ipis", costs.ipi_ns),
        ("wakeups", costs.wakeup_ns),
    ];
    number(line, "instructions") * machine.cpu.cpi / machine.cpu.ghz
        + number(line, "stall_ns")
        + events
            .iter()
            .map(|(key, ns)| number(line, key) * ns)
            .sum::<f64>()
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn system_calls_page_faults_and_wake_ups_cost_the_configured_amounts() {
    let mut lines = SKYLAKE.lines("events");
    assert_eq!(lines.len(), 5);
    // The guest's own timers and threads disturb the wake-ups: the median of three rounds.
    lines[2..].sort_by(|one, other| number(one, "ns").total_cmp(&number(other, "ns")));
    let lines = [lines[0], lines[1], lines[3]];
    for line in lines {
        let what = line["what"].as_str().unwrap();
        let (times, machine) = (number(line, "times"), &SKYLAKE.machine);
        // A CPU that is called before it has halted needs no wake-up, and how often that happens is
        // left to the host: skew allows it.
        let (counted, limit) = match what {
            "syscall" => (number(line, "syscalls"), 0.05),
            "fault" => (number(line, "exceptions"), 0.05),
            _ => (number(line, "wakeups") / 2.0, 0.20),
        };
        assert!(
            (counted / times - 1.0).abs() < limit,
            "{what}: {counted} of {times}"
        );
        let expected = expected_ns(machine, line) / times;
        assert_near(
            &format!("{what}, ns"),
            number(line, "ns") / times,
            expected,
            0.20,
        );
    }
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn vcpus_stay_within_the_skew_limit() {
    const LIMIT_NS: f64 = 10_000.0;
    for boot in [&*SKYLAKE, &*CXL] {
        let line = boot.lines("skew")[0];
        println!(
            "largest skew {} ns, {} breaks",
            line["max_ns"], line["breaks"]
        );
        // A vCPU looks at the clock between blocks, from 8 us ahead on: what a block takes then comes on
        // top, however long it is. Mostly that is less than 2 us; of some thirty boots one came to 14.
        assert!(number(line, "max_ns") <= 2.0 * LIMIT_NS, "{line}");
    }
}
