//! `hither run --learn` and `hither learned`, natively. On a machine with one memory node the lesson is that there
//! is nothing to do; what is learned on several nodes needs a tracker, and is tried in the laboratory.

use crate::common::{hither, text};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A program of its own and a place for what is learned of it.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("job");
        fs::write(&script, "#!/bin/sh\nexit ${1:-0}\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = hither(words);
        command.env("XDG_STATE_HOME", self.folder.path());
        command
    }

    fn said(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn run(&self, more: &[&str]) -> (Option<i32>, String) {
        let job = self.path("job");
        let output = self.said(&[&["run", "--learn", "--", &job], more].concat());
        (output.status.code(), text(&output.stderr))
    }

    fn records(&self) -> Vec<PathBuf> {
        let folder = self.folder.path().join("hither/learned");
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

/// With several nodes a policy judges, and without a tracker nothing is started.
fn has_one_node() -> bool {
    let here = hither_linux::bind::here().unwrap();
    here.usable().nodes.len() == 1
}

#[test]
fn with_one_node_there_is_nothing_to_do_and_that_is_kept() {
    if !has_one_node() {
        return;
    }
    let place = Place::new();
    let (job, report) = (place.path("job"), place.path("report.json"));
    let words = ["run", "--learn", "--explain", "--json", &report, "--", &job];
    let first = place.said(&words);
    let told = text(&first.stderr);
    assert!(first.status.success(), "{told}");
    for part in [
        "is not known yet (",
        "it begins with nothing: it was not run yet",
        "one memory node: nothing was watched",
        "learned: not known before, it began with nothing",
        "learned: nothing to do at the start: one node has all of its memory",
    ] {
        assert!(told.contains(part), "`{part}` is not in {told}");
    }
    let document: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let learned = &document["learned"];
    assert_eq!(
        (&learned["known_runs"], &learned["began_with"]),
        (&0.into(), &"nothing".into())
    );
    let key = learned["key"].as_str().unwrap();
    assert_eq!(place.records().len(), 1);
    assert!(place.run(&[]).1.contains("known by 1 run before"));
    // Other arguments are another program, and one that failed teaches nothing.
    let (status, told) = place.run(&["3"]);
    assert_eq!(status, Some(3));
    assert!(
        told.contains("nothing was learned: it ended with status 3"),
        "{told}"
    );

    let list = text(&place.said(&["learned"]).stdout);
    assert!(
        list.contains(key) && list.contains("one node has all of its memory"),
        "{list}"
    );
    let list: Value = serde_json::from_slice(&place.said(&["learned", "--json"]).stdout).unwrap();
    assert_eq!(list["schema"], "hither.learned/1");
    assert_eq!(list["programs"].as_array().unwrap().len(), 2);
    let shown = text(&place.said(&["learned", "show", key]).stdout);
    assert!(
        shown.contains("runs: 2,") && shown.contains("build size:"),
        "{shown}"
    );
    let both = place.said(&["learned", "show", "job", "--json"]);
    let both: Value = serde_json::from_slice(&both.stdout).unwrap();
    assert_eq!(both["programs"].as_array().unwrap().len(), 2);

    let gone = text(&place.said(&["learned", "forget", key]).stdout);
    assert!(gone.starts_with(&format!("forgotten: {key} ")), "{gone}");
    let unknown = place.said(&["learned", "forget", key]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        text(&unknown.stderr).contains("nothing is known of"),
        "{unknown:?}"
    );
    let all = place.said(&["learned", "forget", "--all", "--json"]);
    let all: Value = serde_json::from_slice(&all.stdout).unwrap();
    assert_eq!(all["forgotten"].as_array().unwrap().len(), 1);
    let list = text(&place.said(&["learned"]).stdout);
    assert!(
        list.starts_with("nothing is known of any program"),
        "{list}"
    );
}

#[test]
fn a_damaged_record_is_told_and_replaced() {
    if !has_one_node() {
        return;
    }
    let place = Place::new();
    assert_eq!(place.run(&[]).0, Some(0));
    let record = place.records().remove(0);
    let key = record.file_stem().unwrap().to_str().unwrap().to_owned();
    fs::write(&record, "{\"format\": 1}").unwrap();
    let list = place.said(&["learned"]);
    assert!(list.status.success());
    assert!(text(&list.stderr).contains(&format!("hither learned forget {key}")));
    let (status, told) = place.run(&[]);
    assert_eq!(status, Some(0));
    assert!(
        told.contains("it is no record") && told.contains("not known before"),
        "{told}"
    );
    assert!(place.run(&[]).1.contains("known by 1 run before"));
    // A link: not read, replaced, and what it names stays as it is.
    let target = place.path("target");
    fs::rename(&record, &target).unwrap();
    symlink(&target, &record).unwrap();
    let before = fs::read(&target).unwrap();
    let (status, told) = place.run(&[]);
    assert_eq!(status, Some(0));
    assert!(told.contains("it is a link"), "{told}");
    assert!(fs::symlink_metadata(&record).unwrap().is_file());
    assert_eq!(fs::read(&target).unwrap(), before);
    fs::write(&record, "").unwrap();
    assert!(place.said(&["learned", "forget", &key]).status.success());
    assert!(place.records().is_empty());
}

#[test]
fn a_full_disk_keeps_no_program_from_its_status() {
    if !has_one_node() {
        return;
    }
    let place = Place::new();
    let own = env!("CARGO_BIN_EXE_hither");
    let script = format!(
        "trap '' XFSZ; ulimit -f 0; exec {own} run --learn -- {}",
        place.path("job")
    );
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &(script + " 7")])
        .env("XDG_STATE_HOME", place.folder.path());
    let output = shell.output().unwrap();
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{told}");
    assert!(
        told.contains("what was learned cannot be kept in"),
        "{told}"
    );
    assert!(told.contains("that could not be kept"), "{told}");
    assert!(place.records().is_empty(), "{:?}", place.records());
}

#[test]
fn what_cannot_be_learned_from_is_refused() {
    let place = Place::new();
    let job = place.path("job");
    let refused = |words: &[&str], part: &str| {
        let output = place.said(words);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {told}");
        assert!(told.contains(part), "{words:?}: `{part}` is not in {told}");
        assert!(!Path::new(&place.path("hither")).exists());
    };
    refused(
        &["run", "--learn", "--policy", "none", "--", &job],
        "leave out --policy none",
    );
    refused(
        &["run", "--learn", "--interleave=all", "--", &job],
        "leave the options of placement out",
    );
    refused(
        &["run", "--learn", "--memory", "striped", "--", &job],
        "leave the options of placement out",
    );
    refused(
        &["learned", "show", "nobody"],
        "nothing is known of `nobody`",
    );
    refused(&["learned", "forget"], "KEY|PROGRAM");
    refused(&["learned", "forget", "x", "--all"], "cannot be used with");
    let mut homeless = place.command(&["run", "--learn", "--", &job]);
    let output = homeless
        .env_remove("XDG_STATE_HOME")
        .env_remove("HOME")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("neither XDG_STATE_HOME nor HOME"),
        "{output:?}"
    );
}
