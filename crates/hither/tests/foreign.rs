//! Names that others choose do nothing to the terminal: a process, its mappings, folders, files and
//! arguments that are named as somebody would who means harm.

use crate::common::{hither, text};
use hither_recording::meta::{Meta, MetaNode, RecordingEnd, SCHEMA};
use hither_recording::rows::{Allocation, Frame, Mapping, Process, Sample};
use hither_recording::{Folder, Writer};
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
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let own = maps.lines().find(|line| line.contains("x\u{1b}")).unwrap();
    let address = own.split('-').next().unwrap();
    let look = ["zoom", &pid, "--page", address, "--tracker", "none"];
    let told = shown(&[&look[..], &["--seconds", "0.2"]].concat());
    assert!(
        told.matches(SHOWN).count() >= 2,
        "program and mapping: {told}"
    );
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

/// Two nodes write to words of one line of an area that was allocated and to one of a mapping.
fn accesses() -> impl Iterator<Item = Sample> {
    (0..4000u64).map(|number| Sample {
        time_ns: number * 100_000,
        pid: 7,
        tid: Some(7 + (number % 2) as i32),
        cpu: Some((number % 2) as u32),
        from_node: Some((number % 2) as u32),
        home_node: Some(0),
        address: 0x10_0000 + number / 2 % 2 * 0x10_0000 + number % 2 * 8,
        code: None,
        is_write: Some(true),
        latency_ns: Some(300),
        from_cache: Some(true),
        weight: 512,
    })
}

fn malicious_recording(folder: &Path) {
    let node = |id: u32| MetaNode {
        id,
        cpus: id.to_string(),
        total_bytes: 1 << 30,
        spans: Vec::new(),
    };
    let own = || NAME.to_owned();
    let meta = Meta {
        schema: SCHEMA.to_owned(),
        hither: own(),
        began_unix_ms: Some(1),
        kernel: own(),
        nodes: vec![node(0), node(1)],
        distances: vec![vec![10, 20], vec![20, 10]],
        line_bytes: Some(64),
        command: vec![own(), own()],
        watched: own(),
        trackers: Vec::new(),
        interval_us: 100_000,
        ended: Some(RecordingEnd {
            length_ns: 400_000_000,
            status: Some(0),
            signal: None,
            own_user_us: Some(1),
            own_system_us: Some(1),
            watched_cpu_us: None,
            own_peak_kb: Some(1),
            notes: vec![own()],
        }),
    };
    let mapping = |start: u64| Mapping {
        time_ns: 0,
        pid: 7,
        start,
        end: start + 0x1000,
        permissions: "rw-p".to_owned(),
        name: own(),
    };
    let mut writer = Writer::create(Folder::make(folder).unwrap(), meta).unwrap();
    writer.add(accesses()).unwrap();
    writer
        .add([mapping(0x10_0000), mapping(0x20_0000)])
        .unwrap();
    writer
        .add([Process {
            pid: 7,
            name: own(),
            start_ns: 0,
            end_ns: None,
            peak_bytes: None,
        }])
        .unwrap();
    writer
        .add([Allocation {
            pid: 7,
            tid: 7,
            address: 0x20_0000,
            bytes: 64,
            start_ns: 0,
            end_ns: None,
            site: 0,
            is_mapping: false,
        }])
        .unwrap();
    writer
        .add([Frame {
            pid: 7,
            site: 0,
            depth: 0,
            module: own(),
            offset: 16,
            function: Some(own()),
            file: Some(own()),
            line: Some(3),
        }])
        .unwrap();
    writer.finish().unwrap();
}

#[test]
fn nothing_that_a_recording_holds_steers() {
    let above = tempfile::tempdir().unwrap();
    let folder = above.path().join("recording");
    malicious_recording(&folder);
    let (folder, page) = (folder.to_str().unwrap(), above.path().join("page.html"));
    let page_words = ["report", folder, "--html", page.to_str().unwrap()];
    for words in [
        &["report", folder][..],
        &page_words,
        &["zoom", folder],
        &["zoom", folder, "--page", "100000"],
        &["zoom", folder, "--page", "200000"],
        &["zoom", folder, "--area", "nothing"],
    ] {
        let told = shown(words);
        assert!(told.contains(SHOWN), "{words:?}: {told}");
    }
    // Each step was reached, so that all its sentences were.
    let told = shown(&["zoom", folder]);
    for step in ["step 1: ", "step 2: pages of x?", "step 3: lines of x?"] {
        assert!(told.contains(step), "{step}: {told}");
    }
    assert_eq!(steering(&fs::read_to_string(page).unwrap()), None);
    // Documents hold every letter.
    let document = text(&run(&["zoom", folder, "--json", "-"]).stdout);
    assert_eq!(steering(&document), None, "{document:?}");
    let document: Value = serde_json::from_str(&document).unwrap();
    let names = document["areas"].as_array().unwrap().iter();
    let names: Vec<&str> = names.map(|area| area["name"].as_str().unwrap()).collect();
    assert!(names.iter().all(|name| name.contains(NAME)), "{names:?}");
}
