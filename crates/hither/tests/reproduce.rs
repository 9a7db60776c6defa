//! `hither reproduce` as a person types it, with a program in place of the one that an experiment starts.

use crate::common::{hither, output, refused, text};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

/// A folder with `npb`, which the native experiment of the kernels starts, as this script.
fn folder(script: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("npb");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// The kernels' experiment alone; results and documents are in the folder.
fn kernels(folder: &Path, more: &[&str]) -> Output {
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let words = ["reproduce", "hydm", "table-1", "--json", "-", "--programs"];
    let mut command = hither(&words);
    command
        .arg(folder)
        .args(["--results", &at("kept"), "--html", &at("page.html")]);
    command
        .args(["--markdown", &at("page.md")])
        .args(more)
        .output()
        .unwrap()
}

fn row(document: &[u8], id: &str) -> Value {
    let document: Value = serde_json::from_slice(document).unwrap();
    let rows = document["rows"].as_array().unwrap();
    rows.iter()
        .find(|row| row["id"] == id)
        .unwrap_or_else(|| panic!("no {id}"))
        .clone()
}

const ROW: &str = "hydm/table-1/is-operations-for-a-byte";

#[test]
fn what_was_run_is_kept_and_not_run_again() {
    let folder = folder("echo flops: 300; echo read_bytes: 600; echo write_bytes: 400");
    let first = kernels(folder.path(), &[]);
    let told = text(&first.stderr);
    assert!(first.status.success(), "{told}");
    assert!(
        told.contains("1 of 1: hydm-kernels") && told.contains("took"),
        "{told}"
    );
    let judged = row(&first.stdout, ROW);
    assert_eq!(
        (&judged["ours"], &judged["verdict"]),
        (&0.3.into(), &"no tolerance".into())
    );
    for page in ["page.html", "page.md"] {
        let page = fs::read_to_string(folder.path().join(page)).unwrap();
        assert!(page.contains("is: operations for a byte") && page.contains("0.3"));
    }
    // The program is gone: what is kept does not need it.
    fs::remove_file(folder.path().join("npb")).unwrap();
    let second = kernels(folder.path(), &[]);
    assert_eq!(
        (text(&second.stderr), second.stdout),
        (String::new(), first.stdout)
    );
    let again = kernels(folder.path(), &["--again"]);
    assert_eq!(again.status.code(), Some(1), "{}", text(&again.stderr));
    assert_eq!(row(&again.stdout, ROW)["verdict"], "failed");
    let kept = fs::read_to_string(folder.path().join("kept")).unwrap();
    assert_eq!(kept.lines().count(), 2);
}

#[test]
fn a_program_that_fails_is_told_in_its_words() {
    let folder = folder("echo npb: no such kernel >&2; exit 2");
    let failed = kernels(folder.path(), &[]);
    assert_eq!(failed.status.code(), Some(1));
    let row = row(&failed.stdout, ROW);
    assert!(
        row["told"]
            .as_str()
            .unwrap()
            .contains("npb: no such kernel"),
        "{row}"
    );
    assert!(text(&failed.stderr).contains("hydm-kernels: failed"));
}

#[test]
fn plans_run_nothing() {
    let folder = folder("exit 9");
    let at = folder.path().join("kept");
    let words = ["reproduce", "--dry-run", "--results", at.to_str().unwrap()];
    let plan = output(&words);
    assert!(plan.status.success() && text(&plan.stdout).contains("within --budget 12.0 h"));
    let list = output(&["reproduce", "--list"]);
    assert!(text(&list.stdout).contains("table-9") && list.status.success());
    let kept = output(&[
        "reproduce",
        "regions",
        "hot-pages",
        "--results",
        at.to_str().unwrap(),
    ]);
    assert!(
        text(&kept.stdout).contains("4 rows: 4 ok"),
        "{}",
        text(&kept.stdout)
    );
    let none = kernels(folder.path(), &["--budget", "1s"]);
    assert!(
        text(&none.stderr).contains("left out"),
        "{}",
        text(&none.stderr)
    );
    assert!(!at.exists());
}

#[test]
fn bad_input_is_refused() {
    let folder = folder("");
    let bad = folder.path().join("bad");
    fs::write(&bad, "{}\n").unwrap();
    refused(
        &["reproduce", "carrefor"],
        "carrefour, ibm, memif, hydm, regions",
    );
    refused(&["reproduce", "ibm", "table-9"], "table-1");
    refused(&["reproduce", "--experiment", "x"], "ibm-two-node");
    refused(
        &["reproduce", "--kept", "--results", bad.to_str().unwrap()],
        "line 1",
    );
    refused(
        &[
            "reproduce",
            "hydm",
            "--programs",
            "/nowhere",
            "--results",
            "/nowhere/r",
        ],
        "/nowhere",
    );
    refused(
        &["reproduce", "--kept", "--html", "/nowhere/page"],
        "--html",
    );
}
