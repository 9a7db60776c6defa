//! `hither attach` beside running programs, where nothing needs to move: who is watched, how it ends,
//! and what it refuses. That it moves pages is tested in the laboratory.

use crate::common::{self, Sleeper, await_true, hither, refused, refused_to_others, text};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// A dry run's report and what a person saw.
fn report(arguments: &[&str]) -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let output = hither(&["attach", "--dry-run", "--json"])
        .arg(&file)
        .args(arguments)
        .output()
        .unwrap();
    let told = text(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {told}");
    (
        serde_json::from_slice(&fs::read(&file).unwrap()).unwrap(),
        told,
    )
}

#[test]
fn each_scope_has_its_processes_its_line_and_its_account() {
    let (first, second) = (
        Sleeper::named("attach-pair-a"),
        Sleeper::named("attach-pair-b"),
    );
    let pid = second.pid();
    let (report, told) = report(&[
        "-p",
        &pid,
        "--name",
        "attach-pair-?",
        "--name",
        "attach-none",
        "--policy",
        "attach-pair-?=none",
        "--for",
        "1500ms",
    ]);
    assert_eq!(report["schema"], "hither.attach/1");
    assert_eq!(
        (&report["dry_run"], &report["undone"]),
        (&true.into(), &Value::Null)
    );
    assert!(report["seconds"].as_f64().unwrap() >= 1.5, "{report}");
    let scopes = report["scopes"].as_array().unwrap();
    let named = |at: usize| (scopes[at]["name"].as_str(), scopes[at]["policy"].as_str());
    assert_eq!(named(0), (Some(&*pid), Some("auto")));
    assert_eq!(named(1), (Some("attach-pair-?"), Some("none")));
    for scope in scopes {
        assert_eq!(scope["summary"]["moved_pages"], 0);
        assert!(
            scope["summary"]["step_count"].as_u64().unwrap() > 1,
            "{scope}"
        );
    }
    // The first scope takes the second sleeper, so that the name has the other alone.
    for line in [
        "  2 processes, ",
        &format!(" {pid}: 1 processes; "),
        " attach-pair-?: 1 processes; ",
        "attach-none: no process yet; those that come are taken",
        "a dry run: what was decided was not done",
        "nothing is to be done",
    ] {
        assert!(told.contains(line), "`{line}` is not in {told}");
    }
    assert!(!told.contains("attach-pair-?: no process yet"), "{told}");
    drop(first);
}

#[test]
fn it_ends_with_the_processes_that_were_named_by_number() {
    let mut sleeper = Sleeper::start();
    let pid = sleeper.pid();
    let mut attached = hither(&["attach", "--dry-run", "-p", &pid])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(attached.stderr.take().unwrap()).lines();
    let seen = told.find(|line| line.as_ref().unwrap().contains(" 1 processes, "));
    assert!(seen.is_some(), "it ended before its process");
    sleeper.end();
    let rest: Vec<String> = told.map(Result::unwrap).collect();
    assert!(attached.wait().unwrap().success());
    assert!(
        rest.iter().any(|line| line.contains("then detached")),
        "{rest:?}"
    );
}

#[test]
fn an_interrupt_detaches_and_reports() {
    let sleeper = Sleeper::named("attach-c");
    let folder = tempfile::tempdir().unwrap();
    let (file, said) = (
        folder.path().join("report.json"),
        folder.path().join("said"),
    );
    let mut attached = hither(&["attach", "--dry-run", "--name", "attach-c", "--json"])
        .arg(&file)
        .stderr(fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    await_true("a second is told", || {
        fs::read_to_string(&said)
            .unwrap()
            .contains(" 1 processes, ")
    });
    common::signal(attached.id(), "-INT");
    assert!(attached.wait().unwrap().success());
    let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(report["scopes"][0]["name"], "attach-c");
    // The program runs on.
    assert!(fs::exists(format!("/proc/{}/maps", sleeper.pid())).unwrap());
}

#[test]
fn who_may_not_be_attached_to_is_refused() {
    refused(&["attach"], "nobody is chosen; give --pid");
    refused(&["attach", "-p", "0"], "there is no such process");
    refused(&["attach", "--cgroup", "no/such"], "--cgroup no/such");
    refused(
        &["attach", "--user", "nobody-here"],
        "there is no such user",
    );
    refused(&["attach", "--name", "x", "--for", "soon"], "soon");
    let sleeper = Sleeper::start();
    refused_to_others(&sleeper.pid(), |pid| {
        ["attach", "--dry-run", "-p", pid]
            .map(str::to_owned)
            .to_vec()
    });
}
