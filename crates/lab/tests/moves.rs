//! The asynchronous memory-move service on an emulated machine of two nodes, in short.

use crate::common::{bare, built};
use hither_lab::image::AGENT_PATH;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Two processes share memory that lies on node 1: root moves it, takes that back, spreads it, takes
/// that back, and moves it with the policy of the process that is alone in a control group. `$H` is
/// hither, `$P` the program; `show` prints pages by node and the policy as the kernel has them.
const SHARED: &str = r#"
cd /tmp; truncate -s 16M /dev/shm/seg; mkfifo go; exec 9<>go
$H run -m 1 $P --share /dev/shm/seg <go 9<&- >a & A=$!
until grep -q ready a; do sleep 0.05; done
$P --share /dev/shm/seg <go 9<&- >b & B=$!
until grep -q ready b; do sleep 0.05; done
show() { grep shm/seg /proc/$A/numa_maps | tr ' ' '
' | grep -E '^(N.=|bind|default)' | tr '
' ' '; echo; }
move() { $H move --json "$@" > now; mv now last; }
echo "== $(show)"
move --pid $A --to 0; cp last first
echo "== $(show)"
cat first
move --undo first
echo "== $(show)"
move --pid $A --to all
echo "== $(show)"
move --undo last
echo "== $(show)"
echo "== $($H move --pid $A --to 0 --dry-run | grep warning)"
G=/sys/fs/cgroup; [ -d $G/db ] || { grep -q cgroup2 /proc/mounts || mount -t cgroup2 none $G; }
echo +cpuset > $G/cgroup.subtree_control; mkdir $G/db; echo $A > $G/db/cgroup.procs
move --pid $A --to 0 --policy
echo "== $(show)$(cat $G/db/cpuset.mems) $(grep Mems_allowed_list /proc/$A/status)"
move --undo last
echo "== $(show)$(cat $G/db/cpuset.mems) $(grep Mems_allowed_list /proc/$A/status)"
echo $B > $G/db/cgroup.procs
echo "== $($H move --pid $A --to 0 --policy 2>&1 || true)"
exec 9<&-; echo -n > go; wait $A $B
echo "== $(cat a b | tr '
' ' ')"
echo "== $($H move --undo first 2>&1 || true)"
"#;

/// The answers of [`SHARED`].
fn shared_memory_has_moved(told: &str) {
    let answers: Vec<&str> = told.split("== ").skip(1).map(str::trim).collect();
    assert_eq!(answers.len(), 11, "{told}");
    assert_eq!(answers[0], "bind:1 N1=4096", "{told}");
    let (shown, report) = answers[1].split_once('\n').unwrap();
    assert_eq!(shown.trim(), "bind:1 N0=4096");
    let report: Value = serde_json::from_str(report).unwrap();
    let rows = report["mappings"].as_array().unwrap();
    let row = rows
        .iter()
        .find(|row| row["name"] == "/dev/shm/seg")
        .unwrap();
    assert_eq!(
        (&row["moved_pages"], &row["strayed_pages"]),
        (&4096.into(), &0.into())
    );
    assert_eq!(report["policies"][0]["policy"], "bind:1");
    assert_eq!(report["policies"][0]["leads_away"], true);
    let is_segment = |moved: &&Value| moved["moved_pages"] == 4096;
    let moved = report["moves"]
        .as_array()
        .unwrap()
        .iter()
        .find(is_segment)
        .unwrap();
    assert_eq!(
        (&moved["from"], &moved["range"]),
        (&1.into(), &row["range"])
    );
    assert_eq!(answers[2], "bind:1 N1=4096");
    assert_eq!(answers[3], "bind:1 N0=2048 N1=2048");
    assert_eq!(answers[4], "bind:1 N1=4096");
    assert!(
        answers[5].contains("come from nodes 1 still: their policy is `bind:1`"),
        "{told}"
    );
    assert_eq!(
        answers[6], "bind:0 N0=4096 0 Mems_allowed_list:\t0",
        "{told}"
    );
    // The kernel does not turn the nodes of a policy back.
    assert_eq!(
        answers[7], "bind:0 N1=4096  Mems_allowed_list:\t0-1",
        "{told}"
    );
    assert!(answers[8].contains("/db has 1 process besides"), "{told}");
    assert_eq!(answers[9], "ready kept ready kept", "{told}");
    assert!(
        answers[10].contains("has ended: there is nothing to take back"),
        "{told}"
    );
}

/// `hither lab run` of a shell's command on 4 + 4 CPUs, with the files it names; what it printed.
fn run(script: &str, files: &[&Path]) -> String {
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/skylake8160.toml");
    let output = Command::new(built("hither"))
        .args(["lab", "run", "--cpus", "8", "--timeout", "9m"])
        .arg("--machine")
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
fn long_requests_cost_less_than_calls() {
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
fn no_byte_is_lost_between_nodes_and_shared_memory_moves_for_root() {
    let program = bare("examples/move_torture");
    let torture = |scenario: &str| {
        format!(
            "'{}' {scenario} --nodes 2 --rounds 3 --stores 15000 --seed 7",
            program.display()
        )
    };
    // In the same boot.
    let placed = bare("examples/placed");
    let script = format!(
        "set -e\n{}\n{}\nH={AGENT_PATH} P='{}'\n{SHARED}",
        torture("writers"),
        torture("forks"),
        placed.display()
    );
    let told = run(&script, &[&program, &placed]);
    println!("{told}");
    shared_memory_has_moved(&told);
}
