//! `hither run` where it places programs, natively: with one node or more, as this machine has.

use crate::common::{hither, output, refused, text};
use serde_json::Value;

fn said(arguments: &[&str]) -> String {
    let output = output(arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn first_cpu() -> String {
    let own = hither_linux::sys::allowed_cpus().unwrap();
    own.first().unwrap().0.to_string()
}

#[test]
fn with_numactls_options_hither_becomes_the_program() {
    let cpu = first_cpu();
    let script =
        "echo $$; grep -c bind:0 /proc/self/numa_maps; grep Cpus_allowed_list /proc/self/status";
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_hither"))
        .args(["run", "-C", &cpu, "--memb=0", "sh", "-c", script])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    let told = text(&output.stdout);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], pid.to_string(), "the same process");
    assert_ne!(lines[1], "0", "{told}");
    assert_eq!(lines[2], format!("Cpus_allowed_list:\t{cpu}"));
    // Its own options after the program's name are the program's.
    let words = ["run", "-m", "0", "echo", "-m", "7", "--show"];
    assert_eq!(said(&words), "-m 7 --show\n");
    let status = crate::common::output(&["run", "--localalloc", "--", "sh", "-c", "exit 9"]).status;
    assert_eq!(status.code(), Some(9));
}

#[test]
fn what_is_shown_is_what_was_set() {
    let hither = env!("CARGO_BIN_EXE_hither");
    let shown = said(&["run", "--interleave=all", hither, "run", "--show"]);
    assert!(shown.starts_with("policy: interleave\n"), "{shown}");
    assert!(shown.contains("\ninterleavemask: 0 "), "{shown}");
    assert!(said(&["run", "-s"]).starts_with("policy: default\npreferred node: current\n"));
    assert!(said(&["run", "--hardware"]).starts_with("available: "));
}

#[test]
fn a_placed_program_is_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let path = file.to_str().unwrap();
    let on = format!("cpus:{} + mem:0", first_cpu());
    let run = output(&[
        "run",
        "--on",
        &on,
        "--threads",
        "fill",
        "--json",
        path,
        "--",
        "sleep",
        "0.5",
    ]);
    let told = text(&run.stderr);
    assert!(
        run.status.success() && told.contains("memory bind:0"),
        "{told}"
    );
    assert!(told.contains("each where it should be"), "{told}");
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(document["policy"], "none");
    let placed = &document["placed"];
    assert_eq!(placed["cpus"], first_cpu());
    assert_eq!(
        (&placed["threads"], &placed["kept_threads"]),
        (&"fill".into(), &1.into())
    );
    assert_eq!(placed["seen"]["astray_pages"], 0);
    assert!(
        placed["seen"]["nodes"][0]["pages"].as_u64().unwrap() > 10,
        "{placed}"
    );
    let plain = output(&["run", "--policy", "none", "--json", path, "--", "true"]);
    assert!(plain.status.success());
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(document["placed"], Value::Null);
}

/// Memory that numa_maps shows with the name of a file is the program's own all the same.
#[test]
fn shared_memory_of_a_program_is_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let script = "\
import mmap, os, sys, time
def filled(memory, mb):
    memory.write(b'x' * (mb << 20))
    return memory
def of(fd, mb):
    os.ftruncate(fd, mb << 20)
    return filled(mmap.mmap(fd, mb << 20), mb)
path = '/dev/shm/hither-test a=b %d' % os.getpid()
shm = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
os.unlink(path)
kept = [filled(mmap.mmap(-1, 16 << 20), 16), of(os.memfd_create('a b=c'), 8), of(shm, 4)]
time.sleep(0.7)
";
    let words = [
        "run",
        "--verify",
        "--json",
        file.to_str().unwrap(),
        "--memory",
        "bind",
    ];
    let cpu = format!("cpus:{} + mem:0", first_cpu());
    let all = [&words[..], &["--on", &cpu, "--", "python3", "-c", script]].concat();
    let run = output(&all);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let seen = &document["placed"]["seen"];
    let pages = seen["nodes"][0]["pages"].as_u64().unwrap();
    // 28 MiB, and Python itself.
    assert!(pages >= 28 << 8, "{seen}");
    assert_eq!(seen["astray_pages"], 0);
}

#[test]
fn a_program_that_cuts_the_board_short_harms_nobody() {
    let script = "[ -e \"$HITHER_PLACE_BOARD\" ] || exit 3
        truncate -s 0 \"$HITHER_PLACE_BOARD\" && exit 4
        sleep 0.3; exit 5";
    let run = hither(&["run", "--threads", "fill", "--", "sh", "-c", script])
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(5), "{}", text(&run.stderr));
}

#[test]
fn a_chosen_node_is_told_with_the_reason() {
    let run = output(&[
        "run", "--choose", "--needs", "1M", "--near", "node0", "--", "sleep", "0.3",
    ]);
    let told = text(&run.stderr);
    assert!(run.status.success(), "{told}");
    assert!(told.contains("hither: chosen node0: "), "{told}");
    assert!(
        told.contains(" CPUs idle, ") && told.contains("distance 10 to what it should be near"),
        "{told}"
    );
    assert!(told.contains("memory bind:0"), "{told}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_runs() {
    for (words, part) in [
        (
            &["-m", "999", "true"][..],
            "--membind `999`: 999 is not there",
        ),
        (&["-i", "0-", "true"], "is no number"),
        (&["-m", "", "true"], "no node is left"),
        (&["-C", "9999", "true"], "--physcpubind `9999`"),
        (&["-N", "x", "true"], "netdev:eth0"),
        (&["-m", "same", "true"], "no other option names nodes"),
        (&["-m", "0", "-i", "0", "true"], "cannot be used with"),
        (
            &["-m", "0", "--memory", "bind", "true"],
            "cannot be used with",
        ),
        (
            &["--on", "node:0", "-N", "0", "true"],
            "cannot be used with",
        ),
        (&["--on", "node:999", "true"], "^^^^^^^^"),
        (&["--on", "node 0", "true"], "--on: "),
        (&["--memory", "near", "true"], "float, local, remote"),
        (&["--threads", "spread", "true"], "round-robin:package"),
        (&["--place", "size>1M: bind", "true"], "is no condition"),
        (&["--place", "size>=1M: binds", "true"], "no policy `binds`"),
        (
            &["--place", "size>=1M: bind node:999", "true"],
            "--place: there is no node 999",
        ),
        (
            &["--place", "site=no_such_name: bind", "true"],
            "no function `no_such_name`",
        ),
        (
            &["--place", "site=/no/such.so:f: bind", "true"],
            "/no/such.so",
        ),
        (
            &["--place", "site=f: bind", "no-such-program"],
            "is not there",
        ),
        (&["--choose", "--needs", "1000T", "true"], ": the best 1 of"),
        (&["--choose=99", "true"], "--choose 99: there are"),
        (&["--choose=0", "true"], "--choose"),
        (
            &["--choose", "--near", "warp0", "true"],
            "--near: there is no device `warp0`",
        ),
        (&["--choose", "-N", "0", "true"], "cannot be used with"),
        (&["--needs", "1G", "true"], "--choose"),
        (&["--membind=0"], "there is no program"),
        (&["--length=1m", "true"], "--length is about shared memory"),
        (&["--show", "true"], "would not be run"),
        (&["--shmmode=9", "--file", "x"], "modes are octal"),
        (
            &["--file", "/no/such/file", "--length=4k"],
            "/no/such/file: cannot be opened",
        ),
        (&["--file", "/no/such/file", "-l"], "--length"),
        (
            &["--file", "x", "-N", "0"],
            "--cpunodebind is about a program",
        ),
        (
            &["--shm", "x", "-C", "0"],
            "--physcpubind is about a program",
        ),
        (
            &["--file", "x", "--huge"],
            "--huge is about System V segments",
        ),
        (
            &["--file", "x", "-I", "1"],
            "--shmid is about System V segments",
        ),
        (&["-m", "0", "no-such-program"], "cannot be started"),
        (&["--nonsense", "true"], "--nonsense"),
    ] {
        let mut all = vec!["run"];
        all.extend(words);
        refused(&all, part);
    }
}

/// As numactl: the last of one option counts, each of them must be right, flags may be repeated, and
/// what follows an option that takes a list is its list.
#[test]
fn numactls_spellings_are_understood() {
    let cpu = first_cpu();
    let on = |words: &[&str]| {
        let program = ["grep", "Cpus_allowed_list", "/proc/self/status"];
        said(&[&["run"], words, &program].concat())
    };
    let only = format!("Cpus_allowed_list:\t{cpu}\n");
    for words in [
        &["-C", "all", "-C", &cpu][..],
        &["-C", &cpu, "--physcpubind=+0"],
        &["-N", "all", "-c", "0", "-C", "+0,+0"],
        &["-a", "-a", "-b", "-b", "-t", "-t", "-C", "++0"],
        &["-N", "0", "-N", "same", "-C", "+0-+0", "-V", "-V"],
    ] {
        assert_eq!(on(words), only, "{words:?}");
    }
    let node = |words: &[&str]| {
        let script = "grep -c bind:0 /proc/self/numa_maps";
        said(&[&["run"], words, &["sh", "-c", script]].concat())
    };
    for list in ["+0,+0", "0,all", " 0", "-0", "0-+0", "same"] {
        assert_ne!(node(&["-N", "0", "-m", list]), "0\n", "{list}");
    }
    for (words, part) in [
        (
            &["-m", "-1"][..],
            "--membind `-1`: -1 is no number of a node",
        ),
        (
            &["-C", "-1"],
            "--physcpubind `-1`: -1 is no number of a node",
        ),
        (
            &["-N", "-l", "-m", "0"],
            "--cpunodebind `-l`: `-l` is no number",
        ),
        (
            &["-C", "9999", "-C", "0"],
            "--physcpubind `9999`: 9999 is not",
        ),
        (&["-N", "x", "-N", "0"], "--cpunodebind `x`"),
        (&["-m", "0", "-m", "0"], "cannot be used multiple times"),
        (&["--on", "-1"], "`-1` does not say what it is"),
        (&["-o", "-1", "--file", "x"], "`-1` is no size"),
    ] {
        refused(&[&["run"], words, &["true"]].concat(), part);
    }
    refused(&["topo", "--set", "-1"], "`-1` does not say what it is");
}

/// The kernel's routing decides, in a network namespace with two interfaces: rules, tables, routes
/// that forbid, own addresses. Making one takes root.
#[test]
fn a_host_is_reached_by_the_interface_that_the_kernel_takes() {
    let script = "set -e; mount -t sysfs none /sys; ip() { busybox ip \"$@\"; }
        ip link set lo up; ip link add v0 type veth; ip link add v1 type veth
        ip addr add 10.1.0.1/24 dev v0; ip addr add 10.2.0.1/24 dev v1
        for link in v0 v1 veth0 veth1; do ip link set $link up; done
        ip rule add to 10.5.0.0/16 table 7; ip route add 10.5.0.0/16 dev v1 table 7
        ip route add 10.5.0.0/16 dev v0
        ip route add blackhole 10.6.0.0/16
        ip -6 addr add fd00:1::1/64 dev v0; ip -6 route add fd00:2::/64 dev v1
        for host in 10.1.0.9 10.5.0.1 10.6.0.1 10.9.0.1 10.1.0.1 fd00:2::9 fd00:3::1 fe80::9%v0; do
        \"$0\" run -m ip:$host true 2>&1 || true; done";
    let hither = env!("CARGO_BIN_EXE_hither");
    let unshared = std::process::Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", script, hither])
        .output()
        .unwrap();
    let (told, error) = (text(&unshared.stdout), text(&unshared.stderr));
    let here = |words| error.contains(words);
    if here("Operation not permitted") || here("not supported") {
        // Captured replies of the kernel are read by the tests of `sys::route_to`.
        println!("no network namespace with interfaces can be made here: {error}");
        return;
    }
    assert!(unshared.status.success(), "{told}{error}");
    let expected = [
        "`v0` is on no bus",
        // The main table, which /proc/net/route shows, has v0.
        "`v1` is on no bus",
        "no interface leads to 10.6.0.1",
        "no interface leads to 10.9.0.1",
        "10.1.0.1 is this machine's own",
        "`v1` is on no bus",
        "no interface leads to fd00:3::1",
        "`v0` is on no bus",
    ];
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{told}");
    for (line, part) in lines.iter().zip(expected) {
        assert!(line.contains(part), "`{part}` is not in {line}");
    }
}

#[test]
fn shared_memory_has_the_policy_it_was_given() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = folder.path().join("a");
    let path = file.to_str().unwrap();
    let told = said(&[
        "run",
        "--length=64k",
        "--file",
        path,
        "--membind=0",
        "-T",
        "-V",
        "--dump",
        "--dump-nodes",
    ]);
    assert_eq!(
        told,
        "0000000000000000-0000000000010000: bind : 0 \n0000000000000000-0000000000010000: 0\n"
    );
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 65536);
    assert_eq!(said(&["run", "--file", path, "--localalloc"]), "");
    assert_eq!(
        said(&["run", "--file", path, "--offset", "32k", "--dump"]),
        "0000000000008000-0000000000010000: local : \n"
    );
    // What is refused leaves nothing behind.
    let other = folder.path().join("b");
    let words = ["--file", other.to_str().unwrap(), "--length=64k"];
    refused(&[&["run", "--offset=1"], &words[..]].concat(), "offset");
    assert!(!other.exists());
}
