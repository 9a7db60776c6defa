//! The command line as a person sees it: what is typed, what comes out, the exit status.

use crate::common::{hither, output, refused, text};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn machines() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines")
}

#[test]
fn each_captured_machine_is_shown_as_expected() {
    let mut count = 0;
    for entry in fs::read_dir(machines()).unwrap() {
        let folder = entry.unwrap().path();
        let root = folder.to_str().unwrap();
        let shown = output(&["topo", "--root", root]);
        assert!(shown.status.success(), "{root}: {}", text(&shown.stderr));
        assert_eq!(
            text(&shown.stdout),
            fs::read_to_string(folder.join("topo.txt")).unwrap(),
            "{root}"
        );
        let json = output(&["topo", "--json", "--root", root]);
        let document: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(document["schema"], "hither.topo/1");
        let nodes = document["nodes"].as_array().unwrap();
        assert_eq!(document["distances"].as_array().unwrap().len(), nodes.len());
        assert!(document.get("doctor").is_none());
        count += 1;
    }
    assert!(count >= 6, "{count} machines");
}

#[test]
fn json_keeps_the_kernels_node_numbers() {
    let root = machines().join("sparse-nodes");
    let json = output(&["topo", "--json", "--root", root.to_str().unwrap()]);
    let document: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let ids: Vec<_> = document["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["id"].as_u64())
        .collect();
    assert_eq!(ids, [Some(0), Some(8), Some(252)]);
    assert_eq!(document["nodes"][2]["cpus"], "");
    assert_eq!(document["cpus"]["offline"], "8-9");
}

#[test]
fn the_doctor_names_works_and_remedies() {
    let shown = output(&["topo", "--doctor"]);
    assert!(shown.status.success());
    let printed = text(&shown.stdout);
    for name in [
        "opium",
        "residency",
        "pagemap_scan",
        "perf",
        "hintfault",
        "damon",
        "mglru",
        "kernel",
        "copy",
        "swap",
    ] {
        assert!(printed.contains(name), "{name}: {printed}");
    }
    let json = output(&["topo", "--doctor", "--json"]);
    let document: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    for check in document["doctor"].as_array().unwrap() {
        let remedy = check["remedy"].as_str().unwrap();
        assert_eq!(check["works"].as_bool(), Some(remedy.is_empty()), "{check}");
    }
    // Of each policy: the evidence that it would stand on, or what would give it some.
    let policies = document["policies"].as_array().unwrap();
    let names: Vec<&str> = policies
        .iter()
        .filter_map(|one| one["policy"].as_str())
        .collect();
    assert_eq!(
        names,
        [
            "none",
            "auto",
            "carrefour",
            "tiers",
            "tiers-paper",
            "hydm",
            "value",
            "value-fair",
            "caches",
            "guard",
            "wrong-node"
        ]
    );
    for one in policies {
        let needs_none = one["policy"] == "none" || one["policy"] == "guard";
        let is_told = one["evidence"].is_string() || needs_none;
        let can_be_raised = !one["raise"].as_array().unwrap().is_empty();
        assert!(is_told || can_be_raised, "{one}");
        assert_eq!(
            one["tracker"].is_string(),
            one["evidence"].is_string(),
            "{one}"
        );
        assert!(!one["found"].as_str().unwrap().is_empty(), "{one}");
    }
}

#[test]
fn bad_command_lines_are_refused_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(
        path("bad.toml"),
        "format = \"hither.machine/1\"\nname = 7\n",
    )
    .unwrap();
    fs::write(path("plain"), "no program").unwrap();
    fs::create_dir_all(folder.path().join("tree/sys/devices/system/cpu")).unwrap();
    fs::write(path("tree/sys/devices/system/cpu/online"), "0,zero\n").unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["tpo"], "unrecognized subcommand"),
        (&["topo", "--rot", "/"], "--rot"),
        (&["topo", "--root"], "--root <DIR>"),
        (&["topo", "--root", &path("missing")], "is no folder"),
        (&["topo", "--root", &path("plain")], "is no folder"),
        (
            &["topo", "--root", folder.path().to_str().unwrap()],
            "cpu/online: there is no such file",
        ),
        (
            &["topo", "--root", &path("tree")],
            "cpu/online:1: `0,zero` is not a list",
        ),
        (&["topo", "extra"], "extra"),
        (&["probe", "--seconds", "0"], "--seconds"),
        (&["probe", "--rounds", "1"], "--rounds"),
        (&["probe", "--cpus", "x"], "--cpus"),
        (&["probe", "--cpus", "60000"], "name some of those"),
        (&["probe", "--json", &path("none/x")], "cannot be written"),
        (&["probe", "--work", "triad"], "write one of read"),
        (&["probe", "--size", "1M"], "--work"),
        (
            &["probe", "--work", "copy", "--svg", &path("x")],
            "cannot be used with",
        ),
        (
            &["probe", "--work", "copy", "--size", "1K"],
            "512 KiB at least",
        ),
        (
            &["probe", "--machine-file", &path("Mine")],
            "as in mine.toml",
        ),
        (&["run"], "there is no program to run"),
        (&["run", "--policy", "none"], "there is no program to run"),
        (&["run", "--policy", "carefour", "--", "true"], "carefour"),
        (&["run", "--policy", "--", "true"], "--policy"),
        (&["run", "--interval", "100", "--", "true"], "100ms"),
        (&["run", "--interval", "1ms", "--", "true"], "10ms to 10s"),
        (&["run", "--interval", "-5s", "--", "true"], "-5"),
        (
            &["run", "--policy", "none", "--interval", "1h", "--", "true"],
            "unit",
        ),
        (
            &[
                "run",
                "--policy",
                "none",
                "--machine",
                &path("missing"),
                "--",
                "true",
            ],
            "name a machine file",
        ),
        (
            &[
                "run",
                "--policy",
                "none",
                "--machine",
                &path("bad.toml"),
                "--",
                "true",
            ],
            "bad.toml",
        ),
        (
            &[
                "run",
                "--policy",
                "none",
                "--json",
                "/no/such/folder/x",
                "--",
                "true",
            ],
            "give --json",
        ),
        (
            &["run", "--policy", "none", "--json", "-", "--", "true"],
            "standard output is the program's",
        ),
        (
            &["run", "--policy", "none", "--", &path("missing")],
            "cannot be started",
        ),
        (
            &["run", "--policy", "none", "--", &path("plain")],
            "chmod +x",
        ),
        (&["run", "--policy", "none", "--", ""], "cannot be started"),
    ];
    for (arguments, words) in cases {
        refused(arguments, words);
    }
}

#[test]
fn missing_evidence_is_said_before_the_program_starts() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("started");
    if Path::new("/sys/bus/pci/devices").exists()
        && text(&output(&["topo", "--doctor"]).stdout).contains("the lab's device answers")
    {
        return;
    }
    let arguments = [
        "run",
        "--policy",
        "carrefour",
        "--",
        "touch",
        mark.to_str().unwrap(),
    ];
    refused(&arguments, "tracker opium:");
    refused(&arguments, "hither lab run");
    refused(&arguments, "tracker hintfault:");
    assert!(!mark.exists(), "the program was started all the same");
}

#[test]
fn the_programs_status_and_streams_are_passed_on() {
    let shown = output(&[
        "run",
        "--policy",
        "none",
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2; exit 7",
    ]);
    assert_eq!(shown.status.code(), Some(7));
    assert_eq!(text(&shown.stdout), "out\n");
    let error = text(&shown.stderr);
    assert!(
        error.starts_with("err\n") && error.contains("hither: sh ran"),
        "{error}"
    );
    assert!(
        error.contains("exit status 7") && error.contains("own cost"),
        "{error}"
    );
    let killed = output(&["run", "--policy", "none", "--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!(killed.status.code(), Some(128 + 9));
    let mut child = hither(&["run", "--policy", "none", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through\n").unwrap();
    let mut read = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut read)
        .unwrap();
    assert_eq!(
        (read.as_str(), child.wait().unwrap().code()),
        ("through\n", Some(0))
    );
}

#[test]
fn the_report_is_written_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let shown = output(&[
        "run",
        "--policy",
        "none",
        "--json",
        path.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        "exit 3",
    ]);
    assert_eq!(shown.status.code(), Some(3));
    let document: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert_eq!(document["schema"], "hither.run/1");
    assert_eq!(
        (&document["policy"], document["status"].as_u64()),
        (&"none".into(), Some(3))
    );
    assert_eq!(document["command"][2], "exit 3");
    assert!(document["seconds"].as_f64().unwrap() > 0.0 && document["decided"].is_null());
    assert!(document["own"]["peak_resident_kb"].as_u64().unwrap() > 100);
}

/// Waits until the program behind a running hither has printed its first line.
fn wait_for_line(child: &mut Child) {
    let mut byte = [0];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut byte)
        .unwrap();
}

#[test]
fn signals_reach_the_program() {
    for (signal, script, status) in [
        (
            "-TERM",
            "trap 'exit 41' TERM; echo x; while :; do sleep 0.05; done",
            41,
        ),
        (
            "-INT",
            "trap 'exit 42' INT; echo x; while :; do sleep 0.05; done",
            42,
        ),
        (
            "-USR1",
            "trap 'exit 43' USR1; echo x; while :; do sleep 0.05; done",
            43,
        ),
        ("-TERM", "echo x; exec sleep 60", 128 + 15),
    ] {
        // A job of a script's background ignores SIGINT, and a shell cannot trap what was ignored.
        let mut child = Command::new("env")
            .arg("--default-signal=INT,TERM,USR1")
            .arg(env!("CARGO_BIN_EXE_hither"))
            .args(["run", "--policy", "none", "--", "sh", "-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for_line(&mut child);
        let sent = Instant::now();
        crate::common::signal(child.id(), signal);
        assert_eq!(child.wait().unwrap().code(), Some(status), "{signal}");
        assert!(sent.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn the_program_gets_a_clean_signal_mask() {
    let shown = output(&[
        "run",
        "--policy",
        "none",
        "--",
        "grep",
        "SigBlk",
        "/proc/self/status",
    ]);
    assert_eq!(
        text(&shown.stdout).split_whitespace().last(),
        Some("0000000000000000")
    );
}

#[test]
fn orphans_are_adopted_and_hither_ends_with_the_program() {
    let start = Instant::now();
    let script = "(sleep 0.2 & ) ; (sleep 30 >/dev/null 2>&1 & echo $! ) ; sleep 0.4; exit 5";
    let shown = output(&["run", "--policy", "none", "--", "sh", "-c", script]);
    assert_eq!(shown.status.code(), Some(5));
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "it waited for the orphan"
    );
    crate::common::signal(text(&shown.stdout).trim().parse().unwrap(), "-KILL");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    for arguments in [&["topo"][..], &["topo", "--json"], &["topo", "--doctor"]] {
        let mut child = hither(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut error = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut error)
            .unwrap();
        assert_eq!(
            (child.wait().unwrap().code(), error.as_str()),
            (Some(0), ""),
            "{arguments:?}"
        );
    }
}

#[test]
fn help_and_version_are_there() {
    for arguments in [
        &["--help"][..],
        &["run", "--help"],
        &["topo", "--help"],
        &["move", "--help"],
        &["bench", "--help"],
        &["bench", "move", "--help"],
        &["probe", "--help"],
        &["--version"],
    ] {
        let shown = output(arguments);
        assert!(
            shown.status.success() && !shown.stdout.is_empty(),
            "{arguments:?}"
        );
    }
    assert!(text(&output(&["run", "--help"]).stdout).contains("carrefour"));
}

#[test]
fn record_and_zoom_without_arguments_name_all_their_forms() {
    for form in ["-- CMD...", "--pid PID...", "--cgroup PATH"] {
        refused(&["record"], &format!("hither record [OPTIONS] {form}"));
        refused(&["record", "--seconds", "5"], form);
    }
    for form in ["-- CMD...", "PID", "FOLDER"] {
        refused(&["zoom"], &format!("hither zoom [OPTIONS] {form}\n"));
    }
}
