//! `hither daemon` where nothing needs to move: who is looked after, what is answered to whom, kills and
//! reloads. That it moves pages, and puts them back after a kill, is tested in the laboratory.

use crate::common::{Sleeper, await_true, hither, text};
use hither_linux::opting::{self, Answer, Opting};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::Duration;

/// A daemon with files of its own.
struct Daemon {
    folder: tempfile::TempDir,
    child: Option<Child>,
}

impl Daemon {
    fn new(targets: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Other users reach the socket.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(folder.path(), open).unwrap();
        let daemon = Self {
            folder,
            child: None,
        };
        daemon.configure(targets);
        daemon
    }

    fn configure(&self, targets: &str) {
        let socket = self.socket();
        let metrics = self.folder.path().join("metrics");
        let text = format!(
            "format = \"hither.daemon/1\"\n[daemon]\nsocket = {socket:?}\nmetrics = \"unix:{}\"\n{targets}",
            metrics.display()
        );
        fs::write(self.config(), text).unwrap();
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("hither.toml")
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn start(&mut self) {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))
            .unwrap();
        let child = hither(&["daemon", "--config"])
            .arg(self.config())
            .stderr(log)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    fn ask(&self, words: &[&str]) -> Output {
        hither(words)
            .arg("--socket")
            .arg(self.socket())
            .output()
            .unwrap()
    }

    fn status(&self) -> Option<Value> {
        let output = self.ask(&["status", "--json"]);
        output
            .status
            .success()
            .then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        await_true(what, || self.status().is_some_and(|status| is_so(&status)));
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        let done = std::process::Command::new("kill")
            .args([signal, &pid])
            .status()
            .unwrap();
        assert!(done.success());
    }

    fn end(&mut self, signal: &str) -> Option<i32> {
        self.signal(signal);
        self.child.take().unwrap().wait().unwrap().code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            println!("{}", self.log());
        }
    }
}

fn names(status: &Value) -> Vec<String> {
    let scopes = status["scopes"].as_array().unwrap().iter();
    let live = scopes.filter(|scope| scope["retired"] == false);
    live.map(|scope| scope["target"].as_str().unwrap().to_owned())
        .collect()
}

fn refused(words: &[&str], file: &Path) -> String {
    let output = hither(words).arg(file).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{words:?}");
    text(&output.stderr)
}

/// One daemon at a time, as they share the journal of the machine: all in one test.
#[test]
fn a_daemon_looks_after_programs_and_can_be_asked_killed_and_told_otherwise() {
    let target = |name: &str, rest: &str| format!("[[target]]\nname = \"{name}\"\n{rest}\n");
    let both = target("a", "command = \"daemon-test-a\"")
        + &target("b", "command = \"daemon-test-b\"\ndry_run = true");
    let mut daemon = Daemon::new(&both);
    let (first, second) = (
        Sleeper::named("daemon-test-a"),
        Sleeper::named("daemon-test-b"),
    );
    daemon.start();
    daemon.until("both are looked after", |status| {
        let scopes = status["scopes"].as_array().unwrap().iter();
        let with = scopes.filter(|scope| scope["processes"].as_array().unwrap().len() == 1);
        with.count() == 2
    });
    let status = daemon.status().unwrap();
    assert_eq!(status["schema"], "hither.status/1");
    assert_eq!(names(&status), ["a", "b"]);
    let pids: Vec<String> = status["scopes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|scope| scope["processes"][0]["pid"].to_string())
        .collect();
    assert_eq!(pids, [first.pid(), second.pid()]);
    let told = text(&daemon.ask(&["status"]).stdout);
    assert!(
        told.contains("active, dry run") && told.contains("own cost: "),
        "{told}"
    );

    // Another one finds the journal taken.
    let output = hither(&["daemon", "--config"])
        .arg(daemon.config())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("another hither daemon runs"),
        "{}",
        text(&output.stderr)
    );

    assert!(text(&daemon.ask(&["pause", "a"]).stdout).contains("paused"));
    daemon.until("it is paused", |status| {
        status["scopes"][0]["standing"] == "paused"
    });
    assert!(daemon.ask(&["resume"]).status.success());
    daemon.until("it goes on", |status| {
        status["scopes"][0]["standing"] == "working"
    });
    let undone = text(&daemon.ask(&["undo", "a"]).stdout);
    assert!(
        undone.contains("all pages are where hither found them"),
        "{undone}"
    );
    assert!(text(&daemon.ask(&["explain", "a"]).stdout).contains("undone: 0 pages"));
    assert!(text(&daemon.ask(&["forecast"]).stdout).contains("no forecast yet"));
    let unknown = daemon.ask(&["pause", "nobody"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("no target or scope `nobody` of yours"));

    // One that opts out is gone from the scope until it ends.
    assert!(daemon.ask(&["opt-out", &second.pid()]).status.success());
    daemon.until("it is left alone", |status| {
        status["scopes"][1]["processes"]
            .as_array()
            .unwrap()
            .is_empty()
    });
    assert_eq!(daemon.ask(&["opt-out", "999999999"]).status.code(), Some(2));
    // A program tells of itself, by the library; its own user may tell of it, too.
    for (opting, says) in [(Opting::Out, "is left"), (Opting::In, "may be looked")] {
        let answer = opting::tell(&daemon.socket(), opting).unwrap();
        assert_eq!(answer, Answer::Heard);
        let line = format!("process {} {says}", std::process::id());
        await_true(&line, || daemon.log().contains(&line));
    }
    let question = format!(
        "{{\"hither\":1,\"ask\":\"opt_in\",\"pid\":{}}}\n",
        second.pid()
    );
    let stream = UnixStream::connect(daemon.socket()).unwrap();
    (&stream).write_all(question.as_bytes()).unwrap();
    daemon.until("it is looked after again", |status| {
        let pid = status["scopes"][1]["processes"][0]["pid"].as_i64();
        pid.map(|pid| pid.to_string()) == Some(second.pid())
    });

    // Another configuration: one target less, one more; and one that is not understood changes nothing.
    daemon.configure(
        &(target("a", "command = \"daemon-test-a\"\npolicy = \"none\"")
            + &target("c", "command = \"daemon-test-b\"")),
    );
    daemon.signal("-HUP");
    daemon.until("another policy", |status| {
        status["scopes"][0]["policy"] == "none" && names(status) == ["a"]
    });
    daemon.configure("x = 1\n");
    daemon.signal("-HUP");
    await_true("it says why", || {
        daemon.log().contains("the configuration is kept as it was")
    });
    assert_eq!(names(&daemon.status().unwrap()), ["a"]);
    daemon.configure(&both);

    // Killed at any moment, it comes up again.
    for kill in 0..20 {
        daemon.end("-KILL");
        daemon.start();
        std::thread::sleep(Duration::from_millis(kill * 17 % 200));
    }
    daemon.until("it answers", |status| names(status) == ["a", "b"]);
    assert_eq!(daemon.end("-TERM"), Some(0));
    assert!(!daemon.socket().exists());
    let gone = daemon.ask(&["status"]);
    assert_eq!(gone.status.code(), Some(2));
    assert!(
        text(&gone.stderr).contains("no daemon answers at"),
        "{}",
        text(&gone.stderr)
    );
}

#[test]
fn configurations_are_checked_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.toml");
    fs::write(
        &file,
        "format = \"hither.daemon/1\"\n[[target]]\nname = \"a\"\nuser = \"0\"\n",
    )
    .unwrap();
    let checked = hither(&["config", "check"]).arg(&file).output().unwrap();
    assert!(
        text(&checked.stdout).contains("1 target"),
        "{}",
        text(&checked.stderr)
    );
    let shown = hither(&["config", "show"]).arg(&file).output().unwrap();
    let whole = folder.path().join("whole.toml");
    fs::write(&whole, &shown.stdout).unwrap();
    let again = hither(&["config", "show"]).arg(&whole).output().unwrap();
    assert_eq!(text(&again.stdout), text(&shown.stdout));
    fs::write(
        &file,
        "format = \"hither.daemon/1\"\n[[target]]\nname = \"a\"\n",
    )
    .unwrap();
    let why = refused(&["config", "check"], &file);
    assert!(
        why.contains("c.toml: line 2: nothing chooses its processes"),
        "{why}"
    );
    assert!(refused(&["daemon", "--config"], &file).contains("line 2"));
    assert!(refused(&["config", "show"], &folder.path().join("none")).contains("cannot be read"));
}
