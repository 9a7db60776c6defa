//! Names that others choose do nothing to the terminal: a process, its mappings, folders, files and
//! arguments that are named as somebody would who means harm.

use crate::common::{hither, text};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Clears the screen, and turns the direction of writing; of 15 bytes at most, as names of processes.
const NAME: &str = "x\u{1b}[2J\u{202e}\u{9b}1m\nΩ";

/// A program of that name in a folder of that name, and what is in the folder besides.
struct Stage {
    _above: tempfile::TempDir,
    folder: PathBuf,
    child: Child,
}

impl Stage {
    fn new() -> Self {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join(NAME);
        fs::create_dir(&folder).unwrap();
        // Written by another process, or a child of a test beside this one might hold it open.
        let program = folder.join(NAME);
        let sleep = "cp \"$(command -v sleep)\" \"$0\"";
        let copied = Command::new("sh")
            .args(["-c", sleep])
            .arg(&program)
            .status();
        assert!(copied.unwrap().success());
        let child = Command::new(&program).arg("60").spawn().unwrap();
        let comm = format!("/proc/{}/comm", child.id());
        while !fs::read_to_string(&comm).unwrap().starts_with("x\u{1b}") {
            std::thread::yield_now();
        }
        Self {
            _above: above,
            folder,
            child,
        }
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Control characters but the ends of lines, format characters that turn text.
fn steering(text: &str) -> Option<char> {
    let turns = |letter: char| matches!(letter, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}');
    text.chars()
        .find(|&letter| letter != '\n' && (letter.is_control() || turns(letter)))
}

fn run(words: &[&str]) -> Output {
    hither(words).stdin(Stdio::null()).output().unwrap()
}

/// What is said of the name holds it as it is shown, in one line.
fn shown(words: &[&str]) -> String {
    let output = run(words);
    let told = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(steering(&told), None, "{words:?}: {told:?}");
    for line in told.lines() {
        let line = line.trim_start_matches("hither: ");
        assert!(
            !line.starts_with('Ω'),
            "{words:?}: a line was broken: {told}"
        );
    }
    told
}

const SHOWN: &str = "x?[2J??1m";

#[test]
fn names_of_processes_and_mappings_are_shown_without_what_steers() {
    let stage = Stage::new();
    let pid = stage.child.id().to_string();
    let recording = stage.path("recording");
    for words in [
        &["move", "--pid", &pid, "--to", "0", "--dry-run"][..],
        &["move", "--pid", &pid, "--to", "0", "--mapping", "nothing"],
        &["top", "--once", "--interval", "100ms", "--pid", &pid],
        &[
            "record",
            "--tracker",
            "none",
            "--seconds",
            "1",
            "-p",
            &pid,
            "-o",
            &recording,
        ],
        &["report", &recording],
        &["run", "--verify", "--", &stage.path(NAME), "0"],
        &["run", "--threads", "fill", "--", &stage.path(NAME), "0"],
    ] {
        let told = shown(words);
        assert!(told.contains(SHOWN), "{words:?}: {told}");
    }
    shown(&["zoom", &pid, "--tracker", "none", "--seconds", "0.2"]);
    // The page keeps to it, and holds no letter that turns the others.
    let page = stage.path("page.html");
    shown(&["report", &recording, "--html", &page]);
    assert_eq!(steering(&fs::read_to_string(page).unwrap()), None);
}

#[test]
fn documents_hold_the_name_as_it_is() {
    let stage = Stage::new();
    let pid = stage.child.id().to_string();
    let document = |words: &[&str]| -> Value {
        let told = text(&run(words).stdout);
        assert_eq!(steering(&told), None, "{words:?}: {told:?}");
        serde_json::from_str(&told).unwrap()
    };
    let moved = document(&["move", "--pid", &pid, "--to", "0", "--dry-run", "--json"]);
    let names = moved["mappings"].as_array().unwrap().iter();
    let names: Vec<&str> = names.map(|row| row["name"].as_str().unwrap()).collect();
    let own = stage.path(NAME);
    // The kernel writes ends of lines as digits.
    let written = own.replace('\n', "\\012");
    assert!(
        names.contains(&&own[..]) || names.contains(&&written[..]),
        "{names:?}"
    );
    let top = document(&["top", "--json", "--interval", "100ms", "--pid", &pid]);
    assert!(
        top.to_string()
            .contains(&serde_json::to_string(NAME).unwrap()),
        "{top}"
    );
}

#[test]
fn files_and_arguments_in_errors_are_shown_without_what_steers() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let named = path(NAME);
    fs::write(&named, NAME).unwrap();
    fs::set_permissions(&named, fs::Permissions::from_mode(0o755)).unwrap();
    let option = format!("--{NAME}");
    let set = format!("node:0 + {NAME}");
    for words in [
        &["report", &named][..],
        &["zoom", &named],
        &["import", &named],
        &["import", &path(&format!("none{NAME}"))],
        &["record", "-o", &named, "--", "true"],
        &["record", "--", &path(&format!("none{NAME}"))],
        &["report", &option],
        &["record", &option, "--", "true"],
        &["record", "--tracker", NAME, "--", "true"],
        &["top", "--sort", NAME],
        &["top", NAME],
        &[NAME],
        &["topo", "--root", &named],
        &["topo", "--hwloc", &format!("{named}/x")],
        &["topo", "--set", &set],
        &["run", "--machine", &named, "--", "true"],
        &["run", "-m", NAME, "true"],
        &["run", "--place", &format!("site={NAME}: bind"), "true"],
        &["run", "--file", &named, "-m", "0"],
        &["move", "--pid", "1", "--to", NAME],
        &["lab", "run", "--machine", &named, "--", "true"],
        &["partition", "unit", &named],
        &["probe", "--json", &format!("{named}/x")],
    ] {
        let told = shown(words);
        assert!(told.contains("[2J"), "{words:?}: {told}");
    }
}

#[test]
fn nothing_that_a_recording_holds_steers() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings/whole");
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let about = folder.path().join("recording.json");
    let mut meta: Value = serde_json::from_slice(&fs::read(&about).unwrap()).unwrap();
    for field in ["hither", "kernel", "watched"] {
        meta[field] = NAME.into();
    }
    meta["command"] = vec![NAME; 2].into();
    meta["trackers"][0]["name"] = NAME.into();
    meta["ended"]["notes"] = vec![NAME].into();
    fs::write(&about, meta.to_string()).unwrap();
    let folder = folder.path().to_str().unwrap();
    let told = shown(&["report", folder]);
    assert!(told.contains(SHOWN), "{told}");
    shown(&["zoom", folder]);
}
