//! `hither run` where it places programs, natively: with one node or more, as this machine has.

use crate::common::{output, refused, text};
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
