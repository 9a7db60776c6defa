//! `hither top` as a person and a program use it: the table, its twin in JSON, and the live view in
//! a terminal of its own (util-linux's script(1) and an interactive bash).

use crate::common::{Sleeper, await_true, copy, hither, output, refused, text};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

fn document(arguments: &[&str]) -> Value {
    let shown = output(arguments);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    serde_json::from_slice(&shown.stdout).unwrap()
}

#[test]
fn the_table_shows_processes_and_what_is_not_told() {
    let sleeper = Sleeper::named("top-sleeper-a");
    // A pipe as output: it behaves as with --once without being asked.
    let shown = output(&["top", "--interval", "100ms", "--sort", "pid"]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let printed = text(&shown.stdout);
    let line = printed
        .lines()
        .find(|line| line.contains("top-sleeper-a"))
        .unwrap_or_else(|| panic!("{printed}"));
    let mut words = line.split_whitespace();
    assert_eq!(words.next(), Some(sleeper.pid().as_str()));
    for word in [
        "PAGES% BY NODE",
        "pages/s: moved",
        "not told here",
        "own CPU",
    ] {
        assert!(printed.contains(word), "{word}: {printed}");
    }
    assert!(!printed.contains('\x1b'), "no terminal, no escapes");
}

#[test]
fn json_has_the_documented_fields() {
    let sleeper = Sleeper::named("top-sleeper-b");
    let pid = sleeper.pid();
    let document = document(&["top", "--json", "--interval", "100ms", "--pid", &pid]);
    assert_eq!(document["schema"], "hither.top/1");
    assert_eq!(document["interval_us"], 100_000);
    let manual = include_str!("../../../docs/cli.md");
    let (_, schema) = manual.split_once("### Schema hither.top/1").unwrap();
    let schema = schema.split_once("\n## ").map_or(schema, |(own, _)| own);
    let mut fields = Vec::new();
    collect(&document, &mut fields);
    for field in fields {
        let is_there = schema.contains(&format!("`{field}`"))
            || schema.contains(&format!("`{field}[]`"))
            || schema.contains(&format!(".{field}[]`"))
            || schema.contains(&format!("{field},"))
            || schema.contains(&format!("{field}}}"));
        assert!(is_there, "{field} is not documented");
    }
    let processes = document["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 1);
    assert_eq!(processes[0]["name"], "top-sleeper-b");
    assert!(processes[0]["memory_kb"].as_u64() > Some(100));
    let focus = &document["focus"];
    assert_eq!(focus["pid"].to_string(), pid);
    assert_eq!(focus["threads"].as_array().unwrap().len(), 1);
    let mappings = focus["mappings"].as_array().unwrap();
    assert!(mappings.iter().any(|mapping| mapping["name"] == "[stack]"));
    assert!(document["moves"]["pairs"].is_null());
    let why = document["moves"]["pairs_why"].as_str().unwrap();
    assert!(why.contains("nothing by pair of nodes"), "{why}");
}

/// All names of fields.
fn collect(value: &Value, names: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                names.push(name.clone());
                collect(value, names);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, names)),
        _ => {}
    }
}

#[test]
fn bad_arguments_are_refused_with_a_remedy() {
    refused(&["top", "--interval", "1"], "100ms");
    refused(&["top", "--interval", "50ms"], "100ms to 60s");
    refused(&["top", "--sort", "size"], "misplaced");
    refused(&["top", "--pid", "0"], "0");
    refused(&["top", "--pid", "me"], "me");
    refused(&["top", "--pid", "2147483647"], "no such process");
    refused(&["top", "extra"], "extra");
}

#[test]
fn processes_that_come_and_go_meanwhile_are_no_failure() {
    let churn = |stop: Arc<Mutex<bool>>| {
        while !*stop.lock().unwrap() {
            Command::new("true").status().unwrap();
        }
    };
    let stop = Arc::new(Mutex::new(false));
    let busy = thread::spawn({
        let stop = Arc::clone(&stop);
        move || churn(stop)
    });
    for _ in 0..3 {
        let shown = output(&["top", "--once", "--interval", "100ms"]);
        assert!(shown.status.success(), "{}", text(&shown.stderr));
        assert_eq!(text(&shown.stderr), "");
    }
    *stop.lock().unwrap() = true;
    busy.join().unwrap();
    // The one that is looked at ends: exit status 1 and a sentence. On a busy machine it may end
    // before the first look, or after the second: then they are farther apart the next time.
    let told = [500, 2000, 8000].into_iter().find_map(|after_ms| {
        let mut sleeper = Sleeper::named("top-sleeper-c");
        let (interval, pid) = (format!("{}ms", 4 * after_ms), sleeper.pid());
        let top = hither(&["top", "--json", "--interval", &interval, "--pid", &pid])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(after_ms));
        sleeper.end();
        let ended = top.wait_with_output().unwrap();
        let said = text(&ended.stderr);
        match ended.status.code() {
            Some(0) => None,
            Some(2) if said.contains("give the number of a running one") => None,
            status => Some((status, said)),
        }
    });
    let (status, said) = told.expect("it always ended before or after both looks");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("ended while it was looked at"), "{said}");
}

#[test]
fn another_user_sees_own_processes_and_what_root_would_add() {
    let folder = tempfile::tempdir().unwrap();
    if fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) != 0) {
        let shown = output(&["top", "--once", "--interval", "100ms"]);
        assert!(text(&shown.stdout).contains("run hither as root"));
        return;
    }
    // Root becomes nobody; the program lies where nobody may go.
    open_to_all(folder.path());
    let program = folder.path().join("hither");
    copy(env!("CARGO_BIN_EXE_hither"), &program);
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).uid(65_534).gid(65_534);
        command.current_dir("/").output().unwrap()
    };
    let shown = as_nobody(&["top", "--json", "--interval", "100ms"]);
    let document: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(document["own"]["own_processes_only"], true);
    let names: Vec<&str> = document["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|process| process["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"hither"), "{names:?}");
    let own_pid = std::process::id();
    let told = document["processes"].as_array().unwrap().iter();
    assert!(told.into_iter().all(|process| process["pid"] != own_pid));
    let shown = as_nobody(&["top", "--once", "--pid", &own_pid.to_string()]);
    assert_eq!(shown.status.code(), Some(2));
    let said = text(&shown.stderr);
    assert!(said.contains("is not yours"), "{said}");
}

fn open_to_all(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
}

/// An interactive shell in a terminal of 80x24 letters of its own.
struct Shell {
    child: Child,
    input: ChildStdin,
    seen: Arc<Mutex<String>>,
    folder: tempfile::TempDir,
}

impl Shell {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new("script")
            .args(["-qec", "bash --norc --noprofile -i", "/dev/null"])
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm")
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("script(1) of util-linux gives the test its terminal");
        let input = child.stdin.take().unwrap();
        let mut terminal = child.stdout.take().unwrap();
        let seen = Arc::new(Mutex::new(String::new()));
        let into = Arc::clone(&seen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(got @ 1..) = terminal.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..got]).into_owned();
                into.lock().unwrap().push_str(&text);
            }
        });
        let mut shell = Self {
            child,
            input,
            seen,
            folder,
        };
        shell.keys("stty rows 24 cols 80; stty -g > before\n");
        shell.await_file("before");
        shell
    }

    fn keys(&mut self, keys: &str) {
        self.input.write_all(keys.as_bytes()).unwrap();
        self.input.flush().unwrap();
    }

    /// Waits for a word that is drawn after what was seen before. Words only: the view draws no
    /// blanks where there were some.
    fn await_word(&self, word: &str) {
        let start = Instant::now();
        loop {
            let mut seen = self.seen.lock().unwrap();
            if seen.contains(word) {
                return seen.clear();
            }
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "no {word} in {seen:?}"
            );
            drop(seen);
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn await_file(&self, name: &str) -> String {
        let file = self.file(name);
        let read = || fs::read_to_string(&file).unwrap_or_default();
        await_true(name, || read().ends_with('\n'));
        read()
    }

    /// The modes of the terminal now are those from before.
    fn assert_restored(&mut self, name: &str) {
        self.keys(&format!("stty -g > {name}\n"));
        assert_eq!(self.await_file(name), self.await_file("before"), "{name}");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_live_view_survives_its_processes_and_gives_the_terminal_back() {
    let program = env!("CARGO_BIN_EXE_hither");
    let mut shell = Shell::start();
    let mut sleeper = Sleeper::named("top-sleeper-d");
    let pid = sleeper.pid();
    // Drilled down to its threads, then its mappings.
    shell.keys(&format!(
        "{program} top --pid {pid} --interval 100ms; echo $? > status\n"
    ));
    shell.await_word("top-sleeper-d");
    shell.keys("\r");
    shell.await_word("[stack]");
    // Ctrl-Z: the shell has its terminal; then on where it was.
    shell.keys("\x1a");
    shell.await_word("Stopped");
    shell.assert_restored("stopped");
    assert_eq!(shell.await_file("status"), "148\n", "128 and SIGTSTP");
    fs::remove_file(shell.file("status")).unwrap();
    shell.keys("fg; echo $? > status\n");
    shell.await_word("[stack]");
    // It ends under the view.
    sleeper.end();
    shell.await_word("ended");
    shell.keys("?");
    shell.await_word("LATns");
    shell.keys("q");
    assert_eq!(shell.await_file("status"), "0\n");
    shell.assert_restored("quit");
}

#[test]
fn the_list_of_processes_takes_keys_and_signals_restore_the_terminal() {
    let program = env!("CARGO_BIN_EXE_hither");
    let mut shell = Shell::start();
    shell.keys(&format!(
        "{program} top --interval 100ms; echo $? > status\n"
    ));
    shell.await_word("hither");
    // Down, up, to the end, deeper, back, another order, another size, back up: nothing breaks.
    shell.keys("jk\x1b[B\x1b[A\x1b[6~\x1b[5~Gg\r\x1b[D");
    shell.keys("s");
    shell.await_word("local");
    shell.keys("\x03");
    assert_eq!(shell.await_file("status"), "0\n");
    shell.assert_restored("interrupted");
    fs::remove_file(shell.file("status")).unwrap();
    // A signal that ends it, sent by another program.
    shell.keys(&format!(
        "{program} top & echo $! > pid; fg; echo $? > status\n"
    ));
    let pid = shell.await_file("pid");
    shell.await_word("Enter");
    // Another size: everything is drawn anew, and too small a terminal says so.
    let terminal = format!("/proc/{}/fd/0", pid.trim());
    for (rows, columns, word) in [
        ("30", "100", "Enter"),
        ("8", "40", "60x12"),
        ("24", "80", "Enter"),
    ] {
        let size = ["-F", &terminal, "rows", rows, "cols", columns];
        assert!(Command::new("stty").args(size).status().unwrap().success());
        shell.await_word(word);
    }
    let sent = Command::new("sh")
        .args(["-c", "kill -TERM \"$0\"", pid.trim()])
        .status();
    assert!(sent.unwrap().success());
    assert_eq!(shell.await_file("status"), "143\n");
    shell.assert_restored("terminated");
}
