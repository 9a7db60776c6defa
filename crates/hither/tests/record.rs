//! `hither record` and `hither report` on this machine, which need not have a tracker of accesses.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn hither() -> Command {
    Command::new(env!("CARGO_BIN_EXE_hither"))
}

fn words(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn run(command: &mut Command) -> (Option<i32>, String, String) {
    words(&command.output().unwrap())
}

fn report(folder: &Path) -> serde_json::Value {
    let (status, out, errors) = run(hither().args(["report", "--json", "-"]).arg(folder));
    assert_eq!(status, Some(0), "{errors}");
    serde_json::from_str(&out).unwrap()
}

/// Until a recording has begun, however busy the machine is.
fn await_begin(recording: &Path) {
    let start = Instant::now();
    while !recording.join("recording.json").exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "never began");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_command_keeps_its_output_and_status_and_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("rec");
    let (status, out, errors) = run(hither().args(["record", "-o"]).arg(&recording).args([
        "--tracker",
        "none",
        "--",
        "sh",
        "-c",
        "echo out; sleep 1.3; exit 7",
    ]));
    assert_eq!((status, out.as_str()), (Some(7), "out\n"), "{errors}");
    assert!(
        errors.contains("by none") && errors.contains("recording cost"),
        "{errors}"
    );
    // One cost: the recorder's last words, its recording and the report of it say the same.
    let words = hither().arg("report").arg(&recording).output().unwrap();
    let table = String::from_utf8_lossy(&words.stdout).into_owned();
    let cost = |text: &str| -> String {
        let line = text.lines().find(|line| line.contains("recording cost"));
        let line = line.unwrap_or_else(|| panic!("no cost in {text}"));
        let after = line.split_once("recording cost").map(|parts| parts.1);
        after.unwrap_or_default().trim().to_owned()
    };
    assert_eq!(cost(&table), cost(&errors));
    let report = report(&recording);
    let of = |field: &str| report["recording"]["ended"][field].as_u64().unwrap();
    assert_eq!(
        report["overall"]["own_cpu_us"].as_u64(),
        Some(of("own_user_us") + of("own_system_us"))
    );
    assert_eq!(report["overall"]["watched_cpu_us"], of("watched_cpu_us"));
    assert_eq!(report["schema"], "hither.report/1");
    assert_eq!(report["recording"]["ended"]["status"], 7);
    assert_eq!(report["verdict"]["finding"], "not seen");
    let residents = report["residents"].as_array().unwrap();
    assert!(
        residents.iter().any(|r| r["most_bytes"].as_u64() > Some(0)),
        "{report}"
    );
    // Text and page have what the JSON has.
    let page = folder.path().join("page.html");
    let (status, text, _) = run(hither()
        .arg("report")
        .arg(&recording)
        .arg("--html")
        .arg(&page));
    assert_eq!(status, Some(0));
    assert!(
        text.starts_with("recording ")
            && text.contains("\n\nsummary\n")
            && text.contains("try next: hither topo --doctor")
    );
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("<h2>Summary</h2>") && html.contains("hither topo --doctor"));
    // Nothing was accessed, so that there is no heat to draw.
    let drawing = folder.path().join("heat.svg");
    let (status, _, errors) = run(hither()
        .arg("report")
        .arg(&recording)
        .arg("--svg")
        .arg(drawing));
    assert_eq!(status, Some(2));
    assert!(errors.contains("there is nothing to draw"), "{errors}");
}

#[test]
fn a_running_process_is_watched_until_it_ends_and_after_a_kill_its_recording_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = child.id().to_string();
    for kill in [true, false] {
        let recording = folder.path().join(format!("rec-{kill}"));
        let mut recorder = hither()
            .args(["record", "--pid", &pid, "-o"])
            .arg(&recording)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        await_begin(&recording);
        match kill {
            true => recorder.kill().unwrap(),
            false => child.kill().unwrap(),
        }
        let status = recorder.wait().unwrap();
        assert_eq!(status.success(), !kill);
        let report = report(&recording);
        assert_eq!(report["recording"]["ended"].is_null(), kill, "{report}");
    }
    child.wait().unwrap();
}

#[test]
fn recording_stops_at_its_limit_and_the_command_runs_on() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("rec");
    let (status, out, errors) = run(hither()
        .args(["record", "--seconds", "1", "-o"])
        .arg(&recording)
        .args(["--tracker", "none", "--", "sh", "-c", "sleep 5; echo done"]));
    assert_eq!((status, out.as_str()), (Some(0), "done\n"), "{errors}");
    assert_eq!(report(&recording)["recording"]["ended"]["status"], 0);
    let length_ns = report(&recording)["length_ns"].as_u64().unwrap();
    // Far from the program's 5 s, also where the machine is busy.
    assert!(
        (1_000_000_000..4_500_000_000).contains(&length_ns),
        "{length_ns}"
    );
}

#[test]
fn what_was_recorded_up_to_the_limit_is_whole_while_the_command_runs_on() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("rec");
    let mut recorder = hither()
        .args(["record", "--seconds", "1", "-o"])
        .arg(&recording)
        .args(["--tracker", "none", "--", "sleep", "60"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    await_begin(&recording);
    let start = Instant::now();
    while report(&recording)["recording"]["ended"].is_null() {
        assert!(start.elapsed() < Duration::from_secs(30), "never whole");
        std::thread::sleep(Duration::from_millis(100));
    }
    let report = report(&recording);
    assert!(
        report["length_ns"].as_u64() >= Some(1_000_000_000),
        "{report}"
    );
    assert!(
        !report["residents"].as_array().unwrap().is_empty(),
        "{report}"
    );
    recorder.kill().unwrap();
    recorder.wait().unwrap();
}

#[test]
fn time_of_short_processes_counts_as_used() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("rec");
    // Each is gone before the first look, after 100 ms or later.
    let busy =
        "for i in 1 2 3 4; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done";
    let (_, _, errors) = run(hither()
        .args(["record", "--interval", "10s", "--tracker", "none", "-o"])
        .arg(&recording)
        .args(["--", "sh", "-c", busy]));
    assert!(
        errors.contains("% of the CPU time of what was watched"),
        "{errors}"
    );
}

#[test]
fn of_several_processes_the_last_ends_the_recording() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("rec");
    // Each lives until it is told, so that the recorder has found both.
    let children = [(); 2].map(|()| {
        let mut cat = Command::new("cat");
        cat.stdin(Stdio::piped()).spawn().unwrap()
    });
    let mut recorder = hither();
    recorder
        .args(["record", "--tracker", "none", "-o"])
        .arg(&recording);
    for child in &children {
        recorder.arg("--pid").arg(child.id().to_string());
    }
    let mut recorder = recorder.stderr(Stdio::piped()).spawn().unwrap();
    await_begin(&recording);
    for mut child in children {
        // Time for a look at where its memory is.
        std::thread::sleep(Duration::from_secs(1));
        assert!(recorder.try_wait().unwrap().is_none(), "one still runs");
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    let (status, _, errors) = words(&recorder.wait_with_output().unwrap());
    assert_eq!(status, Some(0), "{errors}");
    let report = report(&recording);
    let residents = report["residents"].as_array().unwrap();
    assert_eq!(residents.len(), 2, "{report}");
}

#[test]
fn what_cannot_be_recorded_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("rec");
    let refused = |arguments: &[&str]| {
        let (status, _, errors) = run(hither()
            .arg("record")
            .arg("-o")
            .arg(&recording)
            .args(arguments));
        assert_eq!(status, Some(2), "{arguments:?}: {errors}");
        assert!(!recording.exists(), "{arguments:?}");
        errors
    };
    assert!(refused(&["--", "/nonexistent/program"]).contains("cannot be started"));
    assert!(refused(&["--pid", "2147483647"]).contains("there is no such process"));
    // The kernel's kthreadd, where this is no container.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        assert!(refused(&["--pid", "2"]).contains("a thread of the kernel"));
    }
    let thread = std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(20));
    });
    let own = std::process::id();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let mut other = tasks.filter_map(|task| task.ok()?.file_name().into_string().ok());
    let other = other.find(|task| *task != own.to_string()).unwrap();
    assert!(refused(&["--pid", &other]).contains(&format!("a thread of process {own};")));
    drop(thread);
    assert!(refused(&["--cgroup", "../../etc"]).contains("no such control group"));
    assert!(refused(&["--overhead", "0", "--", "true"]).contains("0.01 to 100"));
    assert!(refused(&[]).contains("required"));
    std::fs::create_dir(&recording).unwrap();
    std::fs::write(recording.join("mine"), "").unwrap();
    let (status, _, errors) = run(hither()
        .arg("record")
        .arg("-o")
        .arg(&recording)
        .args(["--", "true"]));
    assert!(
        status == Some(2) && errors.contains("is not empty"),
        "{errors}"
    );
    let (status, _, errors) = run(hither().arg("report").arg(&recording));
    assert!(
        status == Some(2) && errors.contains("hither record"),
        "{errors}"
    );
    let (status, _, errors) = run(hither().arg("report").current_dir(folder.path()));
    assert!(
        status == Some(2) && errors.contains("make one: hither record"),
        "{errors}"
    );
}

#[test]
fn recordings_without_a_name_are_numbered_and_the_newest_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    for status in [0, 3] {
        let mut command = hither();
        let script = format!("exit {status}");
        command.args(["record", "--tracker", "none", "--", "sh", "-c", &script]);
        let done = run(command.current_dir(folder.path()));
        assert_eq!(done.0, Some(status), "{}", done.2);
    }
    let (_, out, errors) = run(hither()
        .args(["report", "--json", "-"])
        .current_dir(folder.path()));
    let report: serde_json::Value = serde_json::from_str(&out).expect(&errors);
    assert_eq!(report["recording"]["ended"]["status"], 3);
    // The first one's place is not taken again: it would look like the older one.
    std::fs::remove_dir_all(folder.path().join("hither-recording")).unwrap();
    let mut command = hither();
    command.args(["record", "--tracker", "none", "--", "true"]);
    run(command.current_dir(folder.path()));
    assert!(folder.path().join("hither-recording-3").exists());
}
