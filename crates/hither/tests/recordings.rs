//! Reports on every recording of the corpus (`fixtures/recordings`, see its README.md), and what
//! other tools recorded: whatever is damaged, a report comes out or a sentence, and no panic.

use crate::common::{hither, output, refused, text};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn corpus(name: &str) -> String {
    let folder = fixtures().join("recordings").join(name);
    folder.to_str().unwrap().to_owned()
}

/// A report's forms: its options, and the file that it writes.
const FORMS: [(&[&str], Option<&str>); 7] = [
    (&[], None),
    (&["--json", "-"], None),
    (&["--html"], Some("page.html")),
    (&["--svg"], Some("heat.svg")),
    (&["--perfetto"], Some("trace.json")),
    (&["--regions"], None),
    (&["--regions", "--json", "-"], None),
];

/// What came out of one form: the output, and the file where one was written.
fn report(folder: &str, form: usize) -> (Output, Option<String>) {
    let (options, file) = FORMS[form];
    let into = tempfile::tempdir().unwrap();
    let path = file.map(|name| into.path().join(name));
    let mut arguments = vec!["report", folder];
    arguments.extend(options);
    arguments.extend(path.iter().map(|path| path.to_str().unwrap()));
    let output = output(&arguments);
    let errors = text(&output.stderr);
    assert!(!errors.contains("panicked"), "{arguments:?}: {errors}");
    match output.status.code() {
        Some(0) => {}
        // A sentence, with what would help behind a semicolon.
        Some(2) => assert!(
            errors.starts_with("hither: ") && errors.contains("; "),
            "{arguments:?}: {errors}"
        ),
        status => panic!("{arguments:?}: status {status:?}: {errors}"),
    }
    let written = path.and_then(|path| fs::read_to_string(path).ok());
    (output, written)
}

#[test]
fn every_recording_of_the_corpus_has_reports_or_a_sentence() {
    let mut count = 0;
    for entry in fs::read_dir(fixtures().join("recordings")).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.is_dir() {
            continue;
        }
        count += 1;
        let folder = folder.to_str().unwrap();
        for form in 0..FORMS.len() {
            let (output, written) = report(folder, form);
            if !output.status.success() {
                continue;
            }
            let printed = text(&output.stdout);
            assert!(!printed.is_empty());
            match (form, written) {
                (1 | 6, _) => {
                    let document: Value = serde_json::from_str(&printed).unwrap();
                    assert_eq!(document["schema"], "hither.report/1");
                    assert_eq!(document["formed"].is_null(), form == 1);
                }
                (2, Some(page)) => assert!(page.starts_with("<!") && page.contains("</html>")),
                (3, Some(picture)) => assert!(picture.contains("</svg>")),
                (4, Some(trace)) => {
                    let trace: Value = serde_json::from_str(&trace).unwrap();
                    assert!(!trace["traceEvents"].as_array().unwrap().is_empty());
                }
                (0, None) => {}
                (5, None) => assert!(printed.contains("Formed from "), "{printed}"),
                (form, _) => panic!("{folder}: form {form} wrote nothing"),
            }
        }
    }
    assert!(count >= 7, "{count} recordings");
}

/// Text of a report that must come out.
fn shown(name: &str) -> String {
    let (output, _) = report(&corpus(name), 0);
    assert!(output.status.success(), "{name}: {}", text(&output.stderr));
    // Notes are broken into lines.
    let printed = text(&output.stdout);
    printed.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_whole_recording_is_shown_in_every_form() {
    for (form, options) in FORMS.iter().enumerate() {
        let (output, _) = report(&corpus("whole"), form);
        let errors = text(&output.stderr);
        assert!(output.status.success(), "{options:?}: {errors}");
    }
    let whole = shown("whole");
    assert!(!whole.contains("left out"), "{whole}");
}

#[test]
fn a_report_that_cannot_be_made_leaves_no_files() {
    let into = tempfile::tempdir().unwrap();
    let path = |name: &str| into.path().join(name).to_str().unwrap().to_owned();
    let (page, figures) = (path("page.html"), path("report.json"));
    refused(
        &[
            "report",
            "/nonexistent",
            "--html",
            &page,
            "--json",
            &figures,
        ],
        "/nonexistent",
    );
    let whole = corpus("whole");
    refused(
        &["report", &whole, "--pid", "424242", "--html", &page],
        "no such process was recorded; these were: ",
    );
    refused(&["report", &whole, "--html", "-"], "only --json prints to");
    assert_eq!(fs::read_dir(into.path()).unwrap().count(), 0);
}

#[test]
fn output_that_finds_no_room_is_a_failure_of_its_own() {
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut command = hither(&["report", &corpus("whole")]);
    let done = command.stdout(full).output().unwrap();
    let errors = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("standard output cannot be written"),
        "{errors}"
    );
}

#[test]
fn where_nothing_was_sampled_nothing_is_said_of_placement() {
    let shown = output(&["zoom", &corpus("empty")]);
    let tables = text(&shown.stdout) + &text(&shown.stderr);
    assert!(tables.contains("open: no access was sampled"), "{tables}");
    assert!(!tables.contains("memory is where it is used"), "{tables}");
    refused(
        &["zoom", &corpus("whole"), "--sites=64"],
        "cannot be used with",
    );
}

#[test]
fn samples_of_reads_do_not_make_memory_only_read() {
    // All its samples are read fills, of four threads on four nodes; whether they wrote is not told.
    let report = output(&["report", &corpus("whole"), "--json", "-"]);
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let area = &report["areas"][0];
    assert!(
        area["writes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|of| of == 0.0)
    );
    assert_eq!(area["written"], Value::Null, "{area:#}");
    let basis = area["written_basis"].as_str().unwrap();
    assert!(basis.contains("proves nothing"), "{basis}");
    assert_eq!(area["remedy"], "interleave");
    let zoom = output(&["zoom", &corpus("whole")]);
    for told in [shown("whole"), text(&zoom.stdout)] {
        assert!(told.contains("interleave it over the nodes"), "{told}");
        for wrong in ["only read", "replicate", "copy", "not written"] {
            assert!(!told.contains(wrong), "{wrong}: {told}");
        }
    }
    // The program's file is mapped without the right to write.
    let rest = report["areas"].as_array().unwrap();
    let code = rest
        .iter()
        .find(|area| area["kind"] == "mapping" && area["written"] == false);
    assert_eq!(
        code.unwrap()["written_basis"],
        "its mapping does not allow writing"
    );
}

#[test]
fn what_is_missing_of_a_recording_is_said() {
    let cut = shown("cut-off");
    assert!(
        cut.contains("the recorder did not come to its end"),
        "{cut}"
    );
    for name in ["truncated", "flipped"] {
        let damaged = shown(name);
        assert!(
            damaged.contains("samples-00000.parquet was left out: it does not have its sum"),
            "{name}: {damaged}"
        );
    }
    let empty = shown("empty");
    assert!(empty.contains("samples 0"), "{empty}");
}

#[test]
fn descriptions_that_cannot_be_read_are_refused() {
    refused(
        &["report", &corpus("unreadable")],
        "recording.json: is no JSON",
    );
    let nothing = tempfile::tempdir().unwrap();
    refused(
        &["report", nothing.path().to_str().unwrap()],
        "recording.json: cannot be read",
    );
}

#[test]
fn a_trace_holds_what_the_report_shows() {
    let (_, written) = report(&corpus("whole"), 4);
    let trace: Value = serde_json::from_str(&written.unwrap()).unwrap();
    assert_eq!(trace["otherData"]["schema"], "hither.trace/1");
    let events = trace["traceEvents"].as_array().unwrap();
    let has = |phase: &str, name: &str| {
        let found = |event: &&Value| event["ph"] == phase && event["name"] == name;
        assert!(events.iter().any(|e| found(&e)), "no {phase} `{name}`");
    };
    for track in ["local accesses", "latency", "node0", "node3", "working set"] {
        has("C", track);
    }
    has("X", "cluster");
    has("X", "phase 1");
    has("M", "thread_name");
    for event in events {
        let is_meta = event["ph"] == "M";
        assert!(is_meta || event["ts"].as_f64().unwrap() >= 0.0, "{event}");
        assert!(event["pid"].is_i64(), "{event}");
    }
}

#[test]
fn files_of_other_tools_become_recordings() {
    let into = tempfile::tempdir().unwrap();
    for (file, told) in [
        ("damo/records.json", "0 samples, 136 regions, 2 processes"),
        ("damo/records.zlib", "0 samples, 136 regions, 2 processes"),
        ("damo/trace.txt", "0 samples, 136 regions, 2 processes"),
        (
            "perf-data/page-faults.data",
            "322 samples, 0 regions, 2 processes",
        ),
        (
            "perf-data/physical.data",
            "319 samples, 0 regions, 2 processes",
        ),
    ] {
        let folder = into.path().join(file.replace('/', "-"));
        let (file, folder) = (fixtures().join(file), folder.to_str().unwrap());
        let done = output(&["import", file.to_str().unwrap(), "-o", folder]);
        let errors = text(&done.stderr);
        assert!(done.status.success() && errors.contains(told), "{errors}");
        for form in 0..FORMS.len() {
            let (output, _) = report(folder, form);
            assert!(
                output.status.success(),
                "{folder} {form}: {}",
                text(&output.stderr)
            );
        }
    }
}

#[test]
fn files_that_cannot_be_imported_are_refused_with_their_place() {
    let into = tempfile::tempdir().unwrap();
    let path = |name: &str| into.path().join(name).to_str().unwrap().to_owned();
    let folder = path("recording");
    let fixture = |name: &str| fixtures().join(name).to_str().unwrap().to_owned();
    let import = |file: &str, words: &str| {
        refused(&["import", file, "-o", &folder], words);
        assert!(!Path::new(&folder).exists(), "{file} left a folder");
    };
    import(&path("none"), "cannot be read; give a file");
    import(into.path().to_str().unwrap(), "is a folder");
    import(
        &fixture("perf-data/pipe.data"),
        "byte 8: the file was written through a pipe",
    );
    import(
        &fixture("perf-data/compressed.data"),
        "the records are compressed",
    );
    import(&fixture("perf-data/faults.c"), "neither damo");
    let json = fs::read(fixtures().join("damo/records.json")).unwrap();
    fs::write(path("cut.json"), &json[..4000]).unwrap();
    import(&path("cut.json"), "byte 4000: no list of damo records");
    let perf = fixture("perf-data/page-faults.data");
    refused(
        &["import", "--format", "damo", &perf, "-o", &folder],
        "byte 1: no list of damo records",
    );
    // A folder that holds something is left alone.
    let taken = into.path().to_str().unwrap();
    refused(&["import", &perf, "-o", taken], "is not empty");
}

/// A program's arguments may be longer than a width that can be written in a format.
#[test]
fn a_command_of_any_length_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("r");
    let whole = fixtures().join("recordings/whole");
    fs::create_dir(&into).unwrap();
    for entry in fs::read_dir(whole).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, into.join(path.file_name().unwrap())).unwrap();
    }
    let path = into.join("recording.json");
    let mut meta: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let numbers = (1..14_000).map(|number| Value::String(number.to_string()));
    meta["command"] = numbers.collect();
    fs::write(&path, meta.to_string()).unwrap();
    for form in 0..FORMS.len() {
        let (output, _) = report(into.to_str().unwrap(), form);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

/// What never ends, and what nobody writes to, is a sentence at once.
#[test]
fn what_is_no_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let whole = corpus("whole");
    refused(&["import", "/dev/zero"], "is a device");
    refused(
        &["partition", "apply", "/dev/zero", "--dry-run"],
        "is a device",
    );
    refused(&["topo", "--from", "/dev/zero"], "is a device");
    refused(
        &["report", &whole, "--roofline", "/dev/zero"],
        "is a device",
    );
    refused(
        &["lab", "run", "--machine", "/dev/zero", "--", "true"],
        "is a device",
    );
    // In place of a recording's parts.
    for (name, source) in [("pipe", pipe.as_path()), ("zero", Path::new("/dev/zero"))] {
        let into = folder.path().join(format!("recording-{name}"));
        fs::create_dir(&into).unwrap();
        std::os::unix::fs::symlink(source, into.join("recording.json")).unwrap();
        refused(&["report", into.to_str().unwrap()], "not a regular file");
    }
}

/// A shell's `<(command)` is a pipe, and goes on being read.
#[test]
fn a_pipe_that_a_person_names_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("r");
    let file = fixtures().join("damo/records.json");
    let script = format!(
        "exec \"$0\" import <(cat {}) -o {}",
        file.display(),
        into.display()
    );
    let status = std::process::Command::new("bash")
        .args(["-c", &script])
        .arg(env!("CARGO_BIN_EXE_hither"))
        .status()
        .unwrap();
    assert!(status.success());
    assert!(into.join("regions-00000.parquet").exists());
}
