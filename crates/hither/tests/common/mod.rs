//! A command line as a person types it, and what came out.

pub mod filter;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

/// `hither` with the shim that was built with this test.
pub fn hither(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hither"));
    command.args(arguments).env("HITHER_PRELOAD", shim());
    command.env("HITHER_MIRROR", mirror_shim());
    // Whoever runs the tests may have told it others.
    command.env_remove("COLUMNS").env_remove("NO_COLOR");
    command
}

/// Cargo leaves it beside the tests; `cargo build` alone puts it beside the program.
pub fn shim() -> PathBuf {
    std::env::current_exe()
        .unwrap()
        .with_file_name("libhither_preload.so")
}

/// As [`shim`].
pub fn mirror_shim() -> PathBuf {
    shim().with_file_name("libhither_mirror.so")
}

pub fn output(arguments: &[&str]) -> Output {
    hither(arguments).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Exit status and standard error of a command line that must be refused.
pub fn refused(arguments: &[&str], words: &str) {
    let output = output(arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert!(
        error.contains(words),
        "{arguments:?}: `{words}` is not in {error}"
    );
    assert!(!error.contains("panicked"), "{arguments:?}: {error}");
}

/// hither by a user without any rights: another one where this is root.
pub fn without_rights(folder: &tempfile::TempDir) -> Command {
    const NOBODY: u32 = 65_534;
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return Command::new(env!("CARGO_BIN_EXE_hither"));
    }
    // The build folder may be closed to others.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("hither");
    copy(env!("CARGO_BIN_EXE_hither"), &program);
    let mut command = Command::new(&program);
    command.uid(NOBODY);
    command
}

/// A process of somebody else is refused. As root, another user asks for a process of ours;
/// otherwise we ask for root's. `words`: the command line for the process of this number.
pub fn refused_to_others(pid: &str, words: impl Fn(&str) -> Vec<String>) {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        let words = words("1");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        return refused(&words, "not yours");
    }
    let folder = tempfile::tempdir().unwrap();
    let shown = without_rights(&folder).args(words(pid)).output().unwrap();
    let error = text(&shown.stderr);
    assert_eq!(shown.status.code(), Some(2), "{error}");
    assert!(
        error.contains("not yours; run hither as its owner"),
        "{error}"
    );
}

/// A program that only sleeps; ended when dropped.
pub struct Sleeper {
    child: Child,
    _folder: Option<tempfile::TempDir>,
}

impl Sleeper {
    pub fn start() -> Self {
        Self::of(Command::new("sleep"), None, "sleep")
    }

    /// Under a command name of its own, at most 15 characters.
    pub fn named(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(name);
        copy("/bin/sleep", &program);
        Self::of(Command::new(program), Some(folder), name)
    }

    /// Waits until it is itself, and not the copy of this test that will become it.
    fn of(mut command: Command, folder: Option<tempfile::TempDir>, name: &str) -> Self {
        let sleeper = Self {
            child: command.arg("120").spawn().unwrap(),
            _folder: folder,
        };
        let comm = format!("/proc/{}/comm", sleeper.pid());
        await_true("the process has its name", || {
            fs::read_to_string(&comm).is_ok_and(|found| found.trim() == name)
        });
        sleeper
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// By another process: a child of a test beside this one could hold the file open for writing, and
/// then it cannot be run.
pub fn copy(from: &str, to: &Path) {
    assert!(
        Command::new("cp")
            .arg(from)
            .arg(to)
            .status()
            .unwrap()
            .success()
    );
}

pub fn await_true(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal, as `-INT`.
pub fn signal(pid: u32, signal: &str) {
    assert!(
        // The shell's own: Debian's smallest installation has no `kill` program.
        Command::new("sh")
            .args(["-c", &format!("kill {signal} {pid}")])
            .status()
            .unwrap()
            .success()
    );
}
