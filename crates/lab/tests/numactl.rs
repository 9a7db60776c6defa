//! numactl's documented uses, with numactl and with `hither run`, on an emulated machine of four
//! nodes: the same CPUs, the same policy, the same node for each page, the same class of exit
//! status.

use crate::common::{bare, built};
use std::path::Path;
use std::process::Command;

/// Command lines of numactl(8) and of its test scripts (`regress`, `checkaffinity`, `bind_range`,
/// `shmtest`), and what the manual's lists allow. `N` is the tool, `P` the program that says where
/// it was placed, `F` a name in tmpfs that nobody else uses. The machine has CPUs 0 to 7, two on
/// each of nodes 0 to 3.
const CASES: &[&str] = &[
    // The manual's examples.
    "N --physcpubind=+0-4,6-7 P arguments",
    "N --interleave=all P",
    "N --cpunodebind=0 --membind=0,1 P",
    "N --cpunodebind=0 --membind=0,1 -- P -l",
    "N --cpunodebind=0 --balancing --membind=0,1 P",
    "N --cpunodebind=netdev:eth0 --membind=netdev:eth0 P",
    "N --preferred=1 N --show",
    "N --preferred-many=0x3 N --show",
    "N --interleave=all --length=64k --shm F N",
    "N --length=64k --shm F --interleave=all --touch --dump --dump-nodes; \
     N --length=64k --shm F --dump",
    "N --membind=2 dd if=/dev/zero of=F bs=64k count=1 && \
     N --membind=3 dd if=/dev/zero of=F bs=64k seek=1 count=1 && \
     N --length=128k --file F --dump-nodes",
    "N --localalloc /dev/shm/file",
    // Lists.
    "N --interleave=0,2 P",
    "N --interleave=1-3 P",
    "N -i +1,2 P",
    "N -i '!1' P",
    "N -i '!+1' P",
    "N --interleave 1 P",
    "N -i '' P",
    "N -i 0-1,3 N --show",
    "N --interleave=9 P",
    "N --interleave=0- P",
    "N --interleave=x P",
    "N --membind=3 P",
    "N -m 0,3 P",
    "N -m all P",
    "N -m '!0' P",
    "N -m '' P",
    "N -m 0x2 N -s",
    "N -m +0,+2 P",
    "N -i 1,+3 P",
    "N -i +1-+2,+0 P",
    "N -m ++3 P",
    "N -i 0,all P",
    "N -m 3-1 P",
    "N -m ' 1, 2' P",
    "N -m -0 P",
    "N -m -1 P",
    "N -p -1 P",
    "N -m 2, P",
    "N -m 08 P",
    "N -i '!+0,+3' P",
    "N -p '!0-2' P",
    "N --membind=1 N --show",
    "N --preferred=2 P",
    "N -p +1 P",
    "N --preferred=1,2 P",
    "N -P 1,3 P",
    "N --preferred-many=all P",
    "N --localalloc P",
    "N -l P",
    // CPUs.
    "N --cpunodebind=1 P",
    "N -N 0,3 N --show",
    "N --cpunodebind=all P",
    "N -N '!2' P",
    "N --cpubind=1 P",
    "N -N 4 P",
    "N --physcpubind=5 N --show",
    "N -C 0-2,5 P",
    "N --physcpubind=all P",
    "N -C '!0' P",
    "N -C 8 P",
    "N -C +1,+3 P",
    "N -C '!+0,+7' P",
    "N -C '!all' P",
    "N -C 5-2 P",
    "N -C -1 P",
    // Repeated.
    "N -C 8 -C 1 P",
    "N -C 1 -C 2-3 P",
    "N -N 1 --cpunodebind=2,3 P",
    "N -N 1 -N same -m 2 P",
    "N -N 0 -N 3 -m same P",
    "N -a -a -N 1 P",
    "N -m 1 -m 1 P",
    "N -l -l P",
    "N -m 1 -i 2 P",
    "N --length=1m --length=64k --file F --membind=0 --membind=0",
    "N --length=1m --length=64k --offset=4k --offset=0 --file F --membind=1 --dump",
    "N -N 1 -m same P",
    "N -m 2 -N same P",
    "N -m same P",
    // What the process was started with (bind_range).
    "taskset -c 0 N --physcpubind=7 P",
    "taskset -c 0 N --all --physcpubind=7 P",
    "taskset -c 0,1 N --cpunodebind=3 P",
    "taskset -c 0,1 N --all --cpunodebind=3 P",
    "taskset -c 2,5 N --physcpubind=+1 P",
    "taskset -c 2-5 N -C all N --show",
    "taskset -c 2-5 N -C '!3' P",
    "taskset -c 2-5 N -C '!+0' P",
    "taskset -c 2-5 N -C +0,+3 P",
    // Places that are at no node.
    "N -m ip:127.0.0.1 P",
    "N -m ip:10.9.0.1 P",
    "N -m netdev:lo P",
    "N -m block:eth0 P",
    "N -m file:/dev/null P",
    "N -m file:/proc/self P",
    "N -m pci:0:0:0 P",
    "N -m 1 N -C 2 P",
    "N -i 1,2 N -l P",
    // Misuse.
    "N --membind=0 --interleave=1 P",
    "N --membind=0 no-such-program",
    "N --membind=0",
    "N --dump P",
    "N --length=1m P",
    "N --nonsense P",
    "N --strict P",
    "N --balancing P",
    "N --membind=0 sh -c 'exit 7'",
    // Tables.
    "N --show",
    "N --hardware",
    "N -H",
    // Shared memory (shmtest).
    "N --length=256k --file F --dump",
    "N --length=256k --file F --interleave=all && N --offset=64k --length=128k --file F --strict \
     --membind=1 --verify --dump && N --length=64k --file F --dump && \
     N --offset=192k --length=64k --file F --dump",
    "N --length=64k --file F --strict --interleave=0,1 --verify --dump-nodes",
    "N --length=128k --file F --membind=0 --touch --dump --dump-nodes",
    "N --length=256k --shm=F --interleave=all && N --offset=64k --length=128k --shm=F --strict \
     --membind=1 --verify --dump && N --length=64k --shm=F --dump && \
     N --offset=192k --length=64k --shm=F --dump",
    "N --length=64k --shm=F --strict --interleave=0,1 --verify --dump-nodes",
    "N --length=64k --file F --membind=1 --touch && N --length=64k --file F --strict --membind=2",
    "N --length=64k --file F --membind=1 --touch && N --length=64k --file F --membind=2 && \
     N --length=64k --file F --dump --dump-nodes",
    "N --file F --interleave=0 --dump",
    "N --length=100 --file F --interleave=0",
    "N --length=64k --shmid=7 --shm F --localalloc --dump",
    "N --length=64k --shmmode=640 --file F --membind=3 && stat -c %a F",
];

/// The same for numactl 2.0.19 (`scripts/fetch-numactl.sh`), in which weighted interleave is new.
/// Nodes 0 to 3 have the weights 3, 1, 2, 1. It prints that policy as `[6]`, and gives shared memory
/// plain turns instead: no cases of these.
const NEWER: &[&str] = &[
    "N --weighted-interleave=all P",
    "N --weighted-interleave=0,2 P",
    "N -w 1-3 P",
    "N -w '!1' P",
    "N -w 2 P",
    "N -w '' P",
    "N -w 9 P",
    "N -w x P",
    "N --cpunodebind=1 --weighted-interleave=0-1 P",
    "N -m 1 N -w 0,2 P",
    "N --weighted-interleave=0 --membind=1 P",
    "N --weighted-interleave=0 --interleave=1 P",
    "taskset -c 2,5 N -w +1 P",
    "N --preferred-many=1,2 P",
    "N --balancing --membind=0,1 P",
];

/// A sequence of nodes without the place where its turns begin, which depends on what the tool has
/// used itself, and of shared memory on its inode: of all places where the shortest turn could
/// begin, the first by order. What does not go in turns stays whole.
fn one_turn(nodes: &[&str]) -> String {
    let goes_in = |turn: &usize| nodes.iter().zip(&nodes[*turn..]).all(|(a, b)| a == b);
    match (1..=nodes.len() / 2).find(goes_in) {
        Some(turn) => {
            let begins = (0..turn).map(|at| nodes[at..at + turn].join(","));
            format!("{} times {}", nodes.len(), begins.min().unwrap_or_default())
        }
        None => nodes.join(","),
    }
}

/// An answer as far as the two tools can agree. Left out are free memory, and the line `preferred
/// node`, which numactl 2.0.16 leaves empty with the policy local and fills with 0 with
/// preferred-many. Nor are there cases above of what it has no good answer to: it prints the nodes
/// of one policy for all of a dump, refuses `--preferred` for shared memory, and wants `--length`
/// where its manual does not.
fn comparable(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut dumped = Vec::new();
    for line in text.lines() {
        let is_free = line.starts_with("node ") && line.contains(" free: ");
        let is_next = line.starts_with("interleavenode:") || line.starts_with("preferred node:");
        // A run of `--dump-nodes`.
        let run = line.split_once(": ").and_then(|(range, node)| {
            let (from, to) = range.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            let is_node = node.chars().all(|letter| letter.is_ascii_digit());
            is_node.then_some((number(from)?, number(to)?, node))
        });
        match (run, line.split_once(" pages ")) {
            (Some((from, to, node)), _) => dumped.extend((from..to).step_by(4096).map(|_| node)),
            (None, Some((before, pages))) => {
                let nodes: Vec<&str> = pages.split(',').collect();
                lines.push(format!("{before} pages {}", one_turn(&nodes)));
            }
            (None, None) if is_free || is_next => {}
            (None, None) => lines.push(line.trim_end().to_owned()),
        }
    }
    lines.push(one_turn(&dumped));
    lines
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn documented_uses_of_numactl_place_alike() {
    let (hither, placed) = (built("hither"), bare("examples/placed"));
    let numactl = Path::new("/usr/bin/numactl");
    assert!(
        numactl.is_file(),
        "numactl is not installed: scripts/setup.sh gets it"
    );
    let newer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/numactl");
    assert!(
        newer.join("numactl").is_file(),
        "numactl 2.0.19 is not here: scripts/fetch-numactl.sh gets it"
    );
    let newer = newer.canonicalize().unwrap();
    let with_libraries = format!(
        "{0}/ld-linux-x86-64.so.2 --library-path {0} {0}/numactl",
        newer.display()
    );
    let mut script = String::from("cd /sys/kernel/mm/mempolicy/weighted_interleave\n");
    for (node, weight) in [3, 1, 2, 1].iter().enumerate() {
        script += &format!("echo {weight} > node{node}\n");
    }
    script += "cd /\nbusybox ip link set lo up\n";
    // The guest's own.
    let run = "/hither/hither run";
    let cases = CASES.iter().map(|case| (*case, "numactl"));
    let cases = cases.chain(NEWER.iter().map(|case| (*case, &*with_libraries)));
    let cases: Vec<(&str, &str)> = cases.collect();
    for (at, (case, numactl)) in cases.iter().enumerate() {
        for (who, tool) in [("theirs", *numactl), ("ours", run)] {
            let words = case.split(' ').map(|word| match word {
                "N" => tool.to_owned(),
                "P" => placed.display().to_string(),
                _ => word.replace("F", &format!("/dev/shm/{who}{at}")),
            });
            let words: Vec<String> = words.collect();
            let line = words.join(" ");
            script += &format!(
                "echo '=='; ( {line} ) 2>/tmp/error; echo \"status $?\"; \
                                tail -n 2 /tmp/error | sed 's/^/error: /'\n"
            );
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("script");
    std::fs::write(&file, script).unwrap();
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/opteron8385.toml");
    let mut command = Command::new(&hither);
    // Places are looked at, no times: without the plugin that takes a fraction.
    command.args([
        "lab",
        "run",
        "--no-plugin",
        "--cpus",
        "8",
        "--timeout",
        "9m",
        "--machine",
    ]);
    command.arg(machine);
    for packed in [&file, &placed, &numactl.to_owned(), &newer] {
        command.arg("--file").arg(packed);
    }
    let output = command.args(["--", "sh"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{told}");
    let answers: Vec<&str> = told.split("==\n").skip(1).collect();
    assert_eq!(answers.len(), 2 * cases.len(), "{told}");
    let mut differences = String::new();
    let mut failed_count = 0;
    for ((case, _), pair) in cases.iter().zip(answers.chunks(2)) {
        let split = |answer: &str| {
            let (text, status) = answer.split_once("status ").unwrap();
            (comparable(text), status.starts_with("0\n"))
        };
        let (theirs, ours) = (split(pair[0]), split(pair[1]));
        failed_count += usize::from(!theirs.1);
        // What a tool prints before it fails is its own affair.
        if theirs.1 != ours.1 || (theirs.1 && theirs.0 != ours.0) {
            differences += &format!(
                "{case}\ntheirs: {:?}\n{}ours: {:?}\n{}\n",
                theirs.0, pair[0], ours.0, pair[1]
            );
        }
    }
    println!(
        "{} command lines, of which {failed_count} fail with both",
        cases.len()
    );
    assert!(differences.is_empty(), "{differences}");
    assert!((5..50).contains(&failed_count), "{told}");
}
