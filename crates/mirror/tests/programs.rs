//! Programs that map files and do things to them (`mapped.c`), with the shim, which takes the machine's one
//! node for another.

use hither_core::mirror::environment;
use hither_core::mirror::report::{FileReport, ProcessReport};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

const BYTES: usize = 6 << 20;
const PLAN: &str = "min 1M; always";

/// The program, built once.
fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("mapped"))
}

fn built(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = folder.join(format!("{name}-{}", std::process::id()));
    let mut compiler = Command::new("cc");
    let compiler = compiler.args(["-O1", "-w", "-pthread"]).arg(source);
    let done = compiler.arg("-o").arg(&program).output().unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    program
}

/// Cargo leaves it beside the tests.
fn shim() -> PathBuf {
    std::env::current_exe()
        .unwrap()
        .with_file_name("libhither_mirror.so")
}

struct Bench {
    folder: tempfile::TempDir,
    file: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data");
        let words: Vec<u8> = (0..BYTES as u64 / 8)
            .flat_map(|word| (word * 7919 % 251).to_ne_bytes())
            .collect();
        fs::write(&file, words).unwrap();
        fs::create_dir(folder.path().join("reports")).unwrap();
        Self { folder, file }
    }

    fn command(&self, scenario: &str, plan: &str) -> Command {
        let mut command = Command::new(program());
        command
            .arg(scenario)
            .arg(&self.file)
            .env("LD_PRELOAD", shim())
            .env(environment::PLAN, plan)
            .env(environment::REPORTS, self.folder.path().join("reports"));
        command
    }

    fn run(&self, scenario: &str) -> String {
        let output: Output = self.command(scenario, PLAN).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{scenario}: {told}{errors} {:?}",
            self.reports()
        );
        told
    }

    fn reports(&self) -> Vec<FileReport> {
        let entries = fs::read_dir(self.folder.path().join("reports")).unwrap();
        let texts = entries.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
        texts
            .flat_map(|text| text.parse::<ProcessReport>().unwrap().files)
            .collect()
    }

    /// Copies of this file that are there.
    fn copies(&self) -> Vec<PathBuf> {
        // SAFETY: asks only.
        let user = unsafe { libc::geteuid() };
        let inode = format!("-{:x}-", fs::metadata(&self.file).unwrap().ino());
        let entries = fs::read_dir(hither_core::mirror::name::folder(user));
        let paths = entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        paths
            .filter(|path| path.to_str().unwrap().contains(&inode))
            .collect()
    }
}

/// What a scenario leaves: nothing but its report.
fn leaves_nothing(scenario: &str) -> Vec<FileReport> {
    let bench = Bench::new();
    assert_eq!(bench.run(scenario), "ok\n", "{scenario}");
    if bench.file.exists() {
        assert_eq!(bench.copies(), Vec::<PathBuf>::new(), "{scenario}");
    }
    bench.reports()
}

#[test]
fn a_file_that_is_read_gets_copies_which_go_with_the_program() {
    let reports = leaves_nothing("copies");
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].copied_bytes, BYTES as u64, "{reports:?}");
    assert_eq!(
        (reports[0].most_bytes, reports[0].collapse_count),
        (BYTES as u64, 0)
    );
    assert!(
        reports[0].path.ends_with("/data") && reports[0].reason.is_empty(),
        "{reports:?}"
    );
}

#[test]
fn writers_wait_until_nobody_reads_a_copy() {
    for scenario in ["write", "shared", "open"] {
        let reports = leaves_nothing(scenario);
        assert!(reports[0].collapse_count >= 1, "{scenario}: {reports:?}");
        if scenario != "open" {
            assert!(reports[0].reason.contains("writing"), "{reports:?}");
        }
    }
}

#[test]
fn readers_never_see_what_was_before_a_write() {
    let reports = leaves_nothing("threads");
    assert_eq!(reports[0].collapse_count, 3, "{reports:?}");
}

#[test]
fn truncated_files_end_where_they_end() {
    leaves_nothing("truncate");
}

#[test]
fn renamed_and_unlinked_files_keep_their_copies_and_new_ones_get_their_own() {
    leaves_nothing("rename");
    leaves_nothing("unlink");
}

#[test]
fn children_see_the_file_and_get_copies_of_their_own() {
    let reports = leaves_nothing("fork");
    assert_eq!(reports.len(), 2, "{reports:?}");
    leaves_nothing("exec");
}

#[test]
fn what_a_program_does_with_its_addresses_is_done_to_the_file() {
    for scenario in ["protect", "unmap", "lock", "close"] {
        leaves_nothing(scenario);
    }
}

#[test]
fn a_part_that_is_used_is_what_is_copied() {
    let bench = Bench::new();
    let told = bench.run("part");
    let words: Vec<&str> = told.split_whitespace().collect();
    let [ok, mapped, _, part] = words[..] else {
        panic!("{told}");
    };
    assert_eq!(ok, "ok");
    let (mapped, part): (usize, usize) = (mapped.parse().unwrap(), part.parse().unwrap());
    // One fault maps a folio of up to 2 MiB.
    assert!(mapped >= part && mapped <= part + (2 << 20), "{told}");
}

#[test]
fn processes_share_copies_and_the_last_one_removes_them() {
    let bench = Bench::new();
    let held = |bench: &Bench| {
        let mut child = bench
            .command("hold", PLAN)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "held\n");
        child
    };
    let mut one = held(&bench);
    let mut two = held(&bench);
    let copied: u64 = bench
        .reports()
        .iter()
        .map(|report| report.copied_bytes)
        .sum();
    assert_eq!(copied, BYTES as u64);
    assert_eq!(bench.copies().len(), 1);
    one.kill().unwrap();
    one.wait().unwrap();
    // The next that comes leaves what somebody uses, and shares it.
    assert_eq!(bench.run("copies"), "ok\n");
    assert_eq!(bench.copies().len(), 1);
    two.kill().unwrap();
    two.wait().unwrap();
    assert_eq!(bench.copies().len(), 1);
    // Killed programs left it; another program that has nothing to do with it removes it.
    let other = Bench::new();
    assert_eq!(other.run("copies"), "ok\n");
    assert_eq!(bench.copies(), Vec::<PathBuf>::new());
}

#[test]
fn what_is_refused_is_told_with_the_reason() {
    let bench = Bench::new();
    std::thread::sleep(Duration::from_millis(1100));
    for (plan, reason) in [
        ("min 1M; always; budget 64K", "budget"),
        ("min 1M", "one node"),
    ] {
        let output = bench.command("none", plan).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let reports = bench.reports();
        let is_told = reports.iter().any(|report| report.reason.contains(reason));
        assert!(is_told, "{plan}: {reports:?}");
        // One chunk is within the budget.
        assert!(told == "ok\n" || reason == "budget", "{plan}: {told}");
    }
    // Below the least size, and without a plan, nobody looks.
    for plan in ["min 64M; always", "nonsense"] {
        assert_eq!(
            bench.command("none", plan).output().unwrap().stdout,
            b"ok\n"
        );
    }
    // A file that somebody may write has none.
    let other = Bench::new();
    let _writer = fs::File::options().append(true).open(&other.file).unwrap();
    assert_eq!(other.run("none"), "ok\n");
    assert_eq!(other.reports()[0].reason, "it is open for writing");
}

#[test]
fn code_gets_copies_where_it_is_asked_for() {
    let program = built("code");
    let mut command = Command::new(&program);
    command.env("LD_PRELOAD", shim());
    let output = command
        .env(environment::PLAN, "min 1M; always; code")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n");
    assert!(output.status.success(), "{:?}", output.status);
}

fn is_root() -> bool {
    // SAFETY: asks only.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn without_the_right_to_a_lease_private_mappings_are_watched() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    // What another user can reach.
    let everybody =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let (program, library) = (
        bench.folder.path().join("program"),
        bench.folder.path().join("shim.so"),
    );
    fs::copy(self::program(), &program).unwrap();
    fs::copy(shim(), &library).unwrap();
    everybody(bench.folder.path(), 0o755);
    everybody(&bench.file, 0o644);
    everybody(&bench.folder.path().join("reports"), 0o777);
    let start = |scenario: &str| {
        let mut command = Command::new(&program);
        command
            .arg(scenario)
            .arg(&bench.file)
            .env("LD_PRELOAD", &library)
            .env(environment::PLAN, PLAN);
        command.env(environment::REPORTS, bench.folder.path().join("reports"));
        command
            .uid(65534)
            .gid(65534)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut child = start("watched");
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    let file = fs::File::options().write(true).open(&bench.file).unwrap();
    file.write_all_at(&[81], 8000).unwrap();
    drop(child.stdin.take());
    line.clear();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ok\n");
    assert!(child.wait().unwrap().success());
    drop(file);
    std::thread::sleep(Duration::from_millis(1100));
    // A shared mapping of it has none.
    let mut child = start("shared");
    std::thread::sleep(Duration::from_secs(2));
    child.kill().unwrap();
    child.wait().unwrap();
    let reports = bench.reports();
    let is_told = reports
        .iter()
        .any(|report| report.reason.contains("CAP_LEASE") && report.most_bytes == 0);
    assert!(is_told, "{reports:?}");
}

#[test]
fn a_program_may_become_another_user() {
    if is_root() {
        let bench = Bench::new();
        assert_eq!(bench.run("user"), "ok\n");
    }
}

#[test]
fn readers_that_are_killed_while_writers_write_leave_a_consistent_memory() {
    let bench = Bench::new();
    let fill = |value: u64| {
        let words: Vec<u8> = (0..BYTES / 8).flat_map(|_| value.to_ne_bytes()).collect();
        // Waits until nobody has copies.
        let file = fs::File::options().write(true).open(&bench.file).unwrap();
        file.write_all_at(&words, 0).unwrap();
    };
    let least = fs::File::create(bench.folder.path().join("data.least")).unwrap();
    let tell = |value: u64| least.write_all_at(&value.to_ne_bytes(), 0).unwrap();
    fill(1);
    tell(1);
    let start = || {
        bench
            .command("endless", PLAN)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut readers: Vec<_> = (0..4).map(|_| start()).collect();
    let mut copies = 0;
    for round in 2..6u64 {
        // Long enough for copies; then one dies while all give them up.
        std::thread::sleep(Duration::from_millis(2500));
        copies += bench.copies().len();
        let victim = round as usize % readers.len();
        std::thread::scope(|scope| {
            scope.spawn(|| fill(round));
            std::thread::sleep(Duration::from_micros(200 * round));
            readers[victim].kill().unwrap();
        });
        tell(round);
        let dead = std::mem::replace(&mut readers[victim], start())
            .wait_with_output()
            .unwrap();
        assert_eq!(
            dead.status.code(),
            None,
            "{}",
            String::from_utf8_lossy(&dead.stdout)
        );
    }
    assert!(copies > 0);
    for mut reader in readers {
        assert!(reader.try_wait().unwrap().is_none());
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
    // Whoever comes next removes what they left.
    let other = Bench::new();
    assert_eq!(other.run("copies"), "ok\n");
    assert_eq!(bench.copies(), Vec::<PathBuf>::new());
}
