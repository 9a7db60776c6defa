//! `hither launch`, natively: with one node or more, as this machine has.

use crate::common::{output, refused, text};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Starts so many; what they printed, ascending, and the status.
fn launched(options: &[&str], script: &str) -> (Vec<String>, Option<i32>, String) {
    let words = [&["launch"], options, &["--", "sh", "-c", script]].concat();
    let output = output(&words);
    let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    (lines, output.status.code(), text(&output.stderr))
}

#[test]
fn each_process_has_its_place_and_is_told_of_it() {
    let cpus = hither_linux::sys::allowed_cpus().unwrap();
    let first = cpus.first().unwrap();
    let script = "echo $HITHER_RANK $HITHER_RANKS $HITHER_NODE $OMP_NUM_THREADS \
                  $(grep Cpus_allowed_list /proc/self/status | cut -f2) $(grep -c bind /proc/self/numa_maps)";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let on = format!("cpus:{}", first.0);
    let (lines, status, told) = launched(&["--on", &on, "--json", file.to_str().unwrap()], script);
    assert_eq!(status, Some(0), "{told}");
    let words: Vec<&str> = lines[0].split(' ').collect();
    assert_eq!(words[..2], ["0", "1"]);
    assert_eq!(words[3..5], ["1", &first.0.to_string()]);
    assert_ne!(words[5], "0", "memory is bound");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(report["schema"], "hither.launch/1");
    assert_eq!(report["ranks"][0]["status"], 0);
    assert_eq!(report["ranks"][0]["node"].to_string(), words[2]);
    assert!(told.contains("status 0"), "{told}");
    if cpus.len() >= 2 {
        let (lines, ..) = launched(&["--count", "2"], script);
        let cpus: std::collections::BTreeSet<&str> = lines
            .iter()
            .map(|line| line.split(' ').nth(4).unwrap())
            .collect();
        assert_eq!(cpus.len(), 2, "they share no CPU: {lines:?}");
    }
}

#[test]
fn where_one_fails_the_others_end_unless_they_are_to_go_on() {
    if hither_linux::sys::allowed_cpus().unwrap().len() < 2 {
        return;
    }
    let script = "[ $HITHER_RANK = 0 ] && exit 7; sleep 2 > /dev/null 2>&1; echo done";
    let start = Instant::now();
    let (lines, status, told) = launched(&["--count", "2"], script);
    assert_eq!((lines.len(), status), (0, Some(7)), "{told}");
    assert!(
        told.contains("signal 15") && start.elapsed() < Duration::from_secs(2),
        "{told}"
    );
    let (lines, status, _) = launched(&["--count", "2", "--keep-going"], script);
    assert_eq!(
        (lines.as_slice(), status),
        (["done".to_owned()].as_slice(), Some(7))
    );
}

#[test]
fn signals_reach_all_of_them() {
    let script = "trap 'echo heard; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_hither"))
        .args(["launch", "--count", "1", "--", "sh", "-c", script])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let process = hither_linux::sys::PidFd::open(child.id() as i32).unwrap();
    process.signal(hither_linux::sys::SIGTERM).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "heard");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn another_launchers_rank_takes_its_place() {
    let run = |variables: &[(&str, &str)]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_hither"));
        command.args([
            "launch",
            "--rank",
            "--",
            "sh",
            "-c",
            "echo $$ $HITHER_RANK $HITHER_RANKS",
        ]);
        command.envs(variables.iter().copied());
        let child = command
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        (pid, text(&child.wait_with_output().unwrap().stdout))
    };
    let (pid, told) = run(&[("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")]);
    assert_eq!(told, format!("{pid} 0 1\n"), "the same process");
    refused(
        &["launch", "--rank", "--", "true"],
        "no launcher told this process its rank",
    );
}

#[test]
fn what_cannot_be_is_refused_before_anything_runs() {
    refused(&["launch", "--count", "4096", "--", "true"], "start fewer");
    refused(&["launch", "--on", "node:99", "--", "true"], "99");
    refused(&["launch", "--", "/no/such/program"], "/no/such/program");
}
