//! `hither partition` as a person sees it, on captured machines and without the right to change this
//! one.

use crate::common::{hither, output, refused, text};
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

fn machine(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines");
    path.join(name).to_str().unwrap().to_owned()
}

fn file(folder: &Path, text: &str) -> String {
    let path: PathBuf = folder.join("parts.toml");
    std::fs::write(&path, format!("format = \"hither.partitions/1\"\n{text}")).unwrap();
    path.to_str().unwrap().to_owned()
}

const PARTS: &str = "[[partition]]\nname = \"db\"\non = \"node:1\"\n\
                     [[partition]]\nname = \"web\"\non = \"node:2\"\nkind = \"isolated\"\n";

#[test]
fn a_dry_run_says_who_would_have_what() {
    let folder = tempfile::tempdir().unwrap();
    let parts = file(folder.path(), PARTS);
    let root = machine("four-node-hmat");
    let words = ["partition", "apply", &parts, "--dry-run", "--root", &root];
    let shown = output(&words);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let shown = text(&shown.stdout);
    let rows: Vec<Vec<&str>> = shown
        .lines()
        .map(|l| l.split_whitespace().take(4).collect())
        .collect();
    assert_eq!(rows[1][..3], ["rest", "0-1,6-7", "0,3"], "{shown}");
    assert_eq!(rows[2], ["db", "root", "2-3", "1"], "{shown}");
    assert_eq!(rows[3], ["web", "isolated", "4-5", "2"], "{shown}");
    let shown = output(&[&words[..], &["--json"]].concat());
    let document: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(document["schema"], "hither.partition/1");
    assert_eq!(document["partitions"][1]["nodes"], "1");
    assert!(document["partitions"][1]["memory_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn memory_without_cpus_and_sparse_nodes_can_be_given() {
    let folder = tempfile::tempdir().unwrap();
    for (name, on, nodes) in [
        ("sparse-nodes", "node:8 + mem:252", "8,252"),
        ("two-socket", "node:1", "1"),
    ] {
        let parts = file(
            folder.path(),
            &format!("[[partition]]\nname = \"db\"\non = \"{on}\"\n"),
        );
        let root = machine(name);
        let shown = output(&[
            "partition",
            "apply",
            &parts,
            "--dry-run",
            "--json",
            "--root",
            &root,
        ]);
        let document: Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!(document["partitions"][1]["nodes"], nodes, "{name}");
    }
}

#[test]
fn what_is_wrong_is_said_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let root = machine("four-node-hmat");
    for (text, words) in [
        (
            PARTS.replace("node:2", "node:1"),
            "parts.toml:7: `web` has the CPUs 2-3 of db too",
        ),
        (
            PARTS.replace("node:2", "node:7"),
            "parts.toml:7: there is no node 7",
        ),
        (
            PARTS
                .replace("node:1", "node:0,3")
                .replace("node:2", "node:1-2"),
            "`rest` has no CPU",
        ),
        (PARTS.replace("web", "rest"), "`rest` is hither's own word"),
        ("[[partition]]\n".to_owned(), "missing field `name`"),
    ] {
        let parts = file(folder.path(), &text);
        refused(
            &["partition", "apply", &parts, "--dry-run", "--root", &root],
            words,
        );
    }
    refused(
        &["partition", "apply", "/no/such/file"],
        "cannot be read; give a file of partitions",
    );
    refused(&["partition", "apply", "x", "--root", "/"], "--dry-run");
    refused(
        &["partition", "move", "x", "--from", "a", "--to", "b"],
        "write a node as 2 or node2",
    );
    refused(
        &[
            "partition",
            "move",
            "1",
            "--from",
            "a",
            "--to",
            "b",
            "--rate",
            "0",
        ],
        "nothing would ever move",
    );
    refused(&["partition", "run", "db"], "required");
    // Any bytes are an argument; it is the partition that is missing, or the right.
    let program = OsStr::from_bytes(b"/no/such/\xff");
    let mut run = hither(&["partition", "run", "no-such", "--"]);
    let told = run.arg(program).output().unwrap();
    assert_eq!(told.status.code(), Some(2), "{told:?}");
    assert!(!text(&told.stderr).contains("UTF-8"), "{told:?}");
    refused(
        &["partition", "unit", "/no/such/file"],
        "/no/such/file is not there",
    );
}

#[test]
fn a_machine_that_is_whole_says_so() {
    // Where somebody has split this machine, the test is of no use and the words are others.
    if Path::new("/run/hither/partitions.toml").exists() {
        return;
    }
    let shown = output(&["partition", "show"]);
    assert_eq!(text(&shown.stdout), "this machine has no partitions\n");
    let shown = output(&["partition", "show", "--json"]);
    let document: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(document["partitions"].as_array().unwrap().len(), 0);
}

#[test]
fn the_unit_applies_and_takes_back() {
    let folder = tempfile::tempdir().unwrap();
    let parts = file(folder.path(), PARTS);
    let shown = output(&["partition", "unit", &parts]);
    let unit = text(&shown.stdout);
    let path = Path::new(&parts).canonicalize().unwrap();
    let start = format!(" partition apply {}\n", path.display());
    assert!(
        unit.lines().any(|line| line.starts_with("ExecStart=/")),
        "{unit}"
    );
    assert!(
        unit.contains(&start) && unit.contains("Delegate=cpuset\n"),
        "{unit}"
    );
    assert!(unit.contains(" partition stop\n"), "{unit}");
    let plain = folder.path().join("with space.toml");
    std::fs::copy(&parts, &plain).unwrap();
    refused(
        &["partition", "unit", plain.to_str().unwrap()],
        "cannot stand in a systemd unit",
    );
}
