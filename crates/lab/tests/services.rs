//! Services of the operating system on a guest with a disk and a network: both workloads run, what is theirs and what is the
//! kernel's is told apart, and everything is put back, also after a kill.

use crate::common::{built, ran};
use hither_lab::image::AGENT_PATH;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// `$0` is hither, `$1` and `$2` the workloads, which never run on CPUs 6 and 7: work of both classes is there where it is
/// arranged. The settings are compared as text; of threads, those that can be moved.
const SCRIPT: &str = "
state() {
  for file in /proc/irq/*/smp_affinity_list /sys/class/net/*/queues/*/rps_cpus \\
    /sys/block/vda/queue/rq_affinity /sys/devices/virtual/workqueue/cpumask \\
    /sys/devices/virtual/workqueue/*/cpumask; do echo $file $(cat $file); done
  for process in /proc/[0-9]*; do
    grep -q ^jbd2 $process/comm && echo jbd2 $(grep Cpus_allowed_list $process/status)
  done
}
try() { $hither services try --cpus 6-7 --pairs 3 --stretch 100ms --settle 20ms --warm 100ms \"$@\"; }
hither=$0
state > /tmp/before
$hither services show
try --class file,any --json /tmp/file.json -- taskset 3f $1 --no-pin --threads 1 --files 16 --file-kb 64 --seconds 1 || echo failed
try --class network,any --json /tmp/network.json -- taskset 3f $2 --no-pin --threads 1 --value-bytes 1024 \\
  --address 10.77.0.1 --peer /run/netns/peer --peer-cpus 4,5 --seconds 1 || echo failed
state > /tmp/after; cmp /tmp/before /tmp/after && echo put back
$hither services hold --cpus 6-7 & holder=$!
until state > /tmp/held; ! cmp -s /tmp/before /tmp/held; do sleep 0.1; done
kill -9 $holder; wait $holder
state > /tmp/killed; cmp -s /tmp/before /tmp/killed || echo left behind
grep -E 'virtio1-virt|jbd2|eth0/queues/rx' /tmp/killed; cat /proc/irq/27/smp_affinity_list
$hither services undo
state > /tmp/undone; cmp /tmp/before /tmp/undone && echo undone
";

#[test]
#[ignore = "boots QEMU"]
fn services_are_measured_apart_and_put_back() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/opteron8385.toml");
    let (file, network) = (built("fileserve"), built("netserve"));
    let back = |name: &str| format!("/tmp/{name}.json:{}", folder.path().join(name).display());
    let (told, _) = ran(Command::new(built("hither"))
        .args([
            "lab",
            "run",
            "--cpus",
            "8",
            "--memory",
            "256",
            "--timeout",
            "20m",
        ])
        .args(["--disk", "64", "--network"])
        .arg("--machine")
        .arg(machine)
        .args(["--back", &back("file"), "--back", &back("network")])
        .arg("--file")
        .arg(&file)
        .arg("--file")
        .arg(&network)
        .args(["--", "sh", "-c", SCRIPT, AGENT_PATH])
        .args([&file, &network]));
    let has = |line: &str| told.lines().any(|seen| seen.trim() == line);
    assert!(!has("failed"));
    for line in ["put back", "left behind", "undone"] {
        assert!(has(line), "{line}");
    }
    // Work of each kind was found, and the peer's card was not.
    let rows = |words: &[&str]| {
        let all = |line: &&str| words.iter().all(|word| line.contains(word));
        told.lines().filter(all).count()
    };
    for words in [
        ["interrupt", "virtio1-virtqueues"],
        ["interrupt", "virtio2-input"],
        ["receive", "eth0 rx-0"],
        ["workqueue", "writeback"],
        ["thread", "jbd2/vda"],
    ] {
        assert_eq!(rows(&words), 1, "{words:?}");
    }
    assert_eq!(rows(&["interrupt", "virtio3"]), 0);
    // Both served, without a wrong word.
    assert_eq!(
        told.lines()
            .filter(|line| *line == "wrong_words: 0")
            .count(),
        2
    );
    for name in ["file", "network"] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["source"], "device", "{report}");
        assert!(report["moved"].as_u64().unwrap() >= 4, "{report}");
        let pairs = report["pairs"].as_array().unwrap();
        assert_eq!(pairs.len(), 3, "{report}");
        let mut missed = 0.0;
        for pair in pairs {
            let figure = |side: &str, cpus: &str, mode: &str, figure: &str| {
                pair[side][cpus][mode][figure].as_f64().unwrap()
            };
            // User and kernel mode apart: both ran, and asked the caches for lines.
            for mode in ["user", "kernel"] {
                for what in ["instructions", "references"] {
                    assert!(
                        figure("plain", "other_cpus", mode, what) > 0.0,
                        "{mode} {what}: {pair}"
                    );
                }
            }
            missed += figure("plain", "other_cpus", "kernel", "misses");
            assert!(figure("arranged", "service_cpus", "kernel", "instructions") > 0.0);
        }
        // Pages and packets come and go.
        assert!(missed > 0.0, "{report}");
    }
}
