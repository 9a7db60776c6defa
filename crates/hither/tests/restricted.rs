//! hither where system calls are refused: in containers, and on kernels without NUMA.

use crate::common::filter::{CONTAINER, NUMA, refuse};
use crate::common::{Sleeper, hither, text, without_rights};
use std::process::Output;
use std::time::{Duration, Instant};

/// A container with a default profile, and a kernel without NUMA.
const RESTRICTED: [(i32, &[i64]); 2] = [(libc::EPERM, CONTAINER), (libc::ENOSYS, NUMA)];

fn run(errno: i32, calls: &[i64], arguments: &[&str]) -> Output {
    let mut command = hither(arguments);
    refuse(&mut command, errno, calls);
    command.output().unwrap()
}

fn first_cpu() -> String {
    let own = hither_linux::sys::allowed_cpus().unwrap();
    own.first().unwrap().0.to_string()
}

#[test]
fn what_needs_cpus_alone_runs() {
    let cpu = first_cpu();
    let (on, list) = (
        format!("cpus:{cpu}"),
        format!("Cpus_allowed_list:\t{cpu}\n"),
    );
    let node = "node:0 & allowed";
    for (errno, calls) in RESTRICTED {
        let said = |placed: &[&str]| {
            let words = ["grep", "Cpus_allowed_list", "/proc/self/status"];
            let ran = run(errno, calls, &[&["run"], placed, &words].concat());
            let error = text(&ran.stderr);
            assert_eq!(ran.status.code(), Some(0), "{placed:?} ({errno}): {error}");
            (text(&ran.stdout), error)
        };
        for placed in [
            &["-C", &cpu][..],
            &["--on", &on, "--"],
            &["--on", &on, "--verify", "--"],
            &["--on", &on, "--threads", "fill", "--"],
        ] {
            assert_eq!(said(placed).0, list, "{placed:?}");
        }
        said(&["-N", "0"]);
        // Memory is left alone where that is asked for, and nothing is to be set for it.
        let (_, told) = said(&["--on", node, "--memory", "float", "--"]);
        assert!(told.contains("memory default\n"), "{told}");
        let (_, told) = said(&["--threads", "fill", "--"]);
        assert!(told.contains("threads: 1 placed before"), "{told}");
    }
}

#[test]
fn what_is_shown_is_what_can_be_known() {
    for (errno, calls) in RESTRICTED {
        for (policy, shown) in [
            ("default", "policy: default\npreferred node: current\n"),
            ("bind:0", "policy: bind\npreferred node: 0\n"),
            (
                "interleave:0",
                "policy: interleave\npreferred node: 0 (interleave next)\n",
            ),
        ] {
            let mut command = hither(&["run", "--show"]);
            let policy = policy.parse().unwrap();
            hither_linux::sys::place_child(&mut command, None, Some(&policy)).unwrap();
            refuse(&mut command, errno, calls);
            let ran = command.output().unwrap();
            let (told, error) = (text(&ran.stdout), text(&ran.stderr));
            assert!(ran.status.success() && error.is_empty(), "{error}");
            assert!(told.starts_with(shown), "{told}");
            assert!(
                told.contains(&format!("physcpubind: {} ", first_cpu())),
                "{told}"
            );
        }
    }
}

#[test]
fn what_needs_memory_policies_says_what_allows_them_and_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mark, made) = (folder.path().join("ran"), folder.path().join("made"));
    let (mark, made) = (mark.to_str().unwrap(), made.to_str().unwrap());
    let shared = ["--shm", made, "--length=64k", "--membind=0"];
    for (errno, calls) in RESTRICTED {
        let remedy = match errno {
            libc::EPERM => "--cap-add SYS_NICE",
            _ => "use a kernel with CONFIG_NUMA; or",
        };
        for placed in [
            &["-m", "0", "touch", mark][..],
            &["--localalloc", "touch", mark],
            &["--on", "node:0", "--", "touch", mark],
            &["--choose", "--", "touch", mark],
            &["--place", "size>=1M: striped", "--", "touch", mark],
            &[
                "--memory",
                "weighted",
                "--weights",
                "1",
                "--",
                "touch",
                mark,
            ],
            &shared,
        ] {
            let ran = run(errno, calls, &[&["run"], placed].concat());
            let error = text(&ran.stderr);
            assert_eq!(ran.status.code(), Some(2), "{placed:?}: {error}");
            assert!(error.contains(remedy), "{placed:?}: {error}");
            assert!(!error.contains("name nodes that have memory"), "{error}");
            assert!(!std::path::Path::new(mark).exists(), "{placed:?}");
            assert!(!std::path::Path::new(made).exists(), "{placed:?}");
        }
    }
}

#[test]
fn what_moves_pages_is_told_that_no_capability_allows_it() {
    let sleeper = Sleeper::start();
    let pid = sleeper.pid();
    // As with --cap-add SYS_NICE: memory policies are allowed, move_pages is not.
    let calls = [libc::SYS_move_pages, libc::SYS_migrate_pages];
    for arguments in [
        &["move", "--pid", &pid, "--to", "0"][..],
        &["bench", "service"],
    ] {
        let ran = run(libc::EPERM, &calls, arguments);
        let error = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains("no capability does it"), "{error}");
    }
    let told = text(&run(libc::EPERM, &calls, &["topo", "--doctor"]).stdout);
    let mut lines = told.lines();
    let kernel = lines
        .find(|line| line.starts_with("backend  kernel"))
        .unwrap();
    assert!(
        kernel.contains(" no ") && kernel.contains("move_pages(2) is refused"),
        "{kernel}"
    );
    let remedy = lines.next().unwrap();
    assert!(
        remedy.contains("no capability") && !remedy.contains("SYS_NICE"),
        "{remedy}"
    );
    assert!(
        told.contains("numa_maps alone tells where pages are"),
        "{told}"
    );
}

#[test]
fn remedies_fit_who_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let doctor = |calls: &[i64], name: &str| {
        // Root has other ways.
        let mut command = without_rights(&folder);
        command.args(["topo", "--doctor"]);
        refuse(&mut command, libc::EPERM, calls);
        let told = text(&command.output().unwrap().stdout);
        let mut lines = told.lines().skip_while(|line| !line.starts_with(name));
        format!("{}\n{}", lines.next().unwrap(), lines.next().unwrap())
    };
    // The same number means that a capability is missing, or that nobody may at all.
    let swap = doctor(&[libc::SYS_userfaultfd], "backend  swap");
    assert!(
        swap.contains("no capability does it") && !swap.contains("SYS_PTRACE"),
        "{swap}"
    );
    let probe = run(libc::EPERM, &[libc::SYS_clone3], &["probe"]);
    let error = text(&probe.stderr);
    assert_eq!(probe.status.code(), Some(2), "{error}");
    assert!(
        error.contains("clone3 in its list") && !error.contains("free some"),
        "{error}"
    );
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    let script = script.to_str().unwrap();
    let refused = |words: &str| crate::common::refused(&["run", "-C", &first_cpu(), script], words);
    refused("make it executable (chmod +x)");
    // Not by this process: a file that one of its children holds open cannot be executed.
    let changed = std::process::Command::new("chmod")
        .args(["+x", script])
        .status();
    assert!(changed.unwrap().success());
    refused("the interpreter of its first line");
    let own = folder.path().to_str().unwrap();
    crate::common::refused(
        &["run", "-C", &first_cpu(), own],
        "it is a folder: give a program",
    );
    // What takes a descriptor each: timer, signals, handle, the start of a program. Who runs the tests may have left
    // some open, as flock(1) does.
    for files in [4, 5, 6] {
        let script =
            format!("exec 3<&- 4<&- 5<&-; ulimit -n {files}; exec \"$0\" run --on allowed -- true");
        let mut shell = std::process::Command::new("sh");
        let shell = shell.args(["-c", &script, env!("CARGO_BIN_EXE_hither")]);
        let ran = shell.output().unwrap();
        let error = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{files}: {error}");
        assert!(
            error.contains("raise the limit (ulimit -n)"),
            "{files}: {error}"
        );
    }
}

#[test]
fn what_looks_only_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let sleeper = Sleeper::start();
    for (errno, calls) in RESTRICTED {
        let recording = folder.path().join(errno.to_string());
        let recording = recording.to_str().unwrap();
        for arguments in [
            &["topo"][..],
            &["top", "--once", "--interval", "100ms"],
            &["record", "-o", recording, "--", "sleep", "0.2"],
            &["report", recording],
            &["zoom", &sleeper.pid(), "--seconds", "0.2"],
            &["partition", "show"],
            &["run", "--hardware"],
        ] {
            let ran = run(errno, calls, arguments);
            let error = text(&ran.stderr);
            assert_eq!(
                ran.status.code(),
                Some(0),
                "{arguments:?} ({errno}): {error}"
            );
        }
    }
}

/// Calls that hither cannot do without are asked for before the program is started.
#[test]
fn what_is_refused_is_found_before_the_program_starts() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("ran");
    let (mark, cpus) = (mark.to_str().unwrap(), format!("cpus:{}", first_cpu()));
    let recording = folder.path().join("recording");
    let recording = recording.to_str().unwrap();
    let beside = ["run", "--on", &cpus, "--", "touch", mark];
    let threads = ["run", "--threads", "fill", "--", "touch", mark];
    let record = ["record", "-o", recording, "--", "touch", mark];
    let zoom = ["zoom", "--", "touch", mark];
    let handle = libc::SYS_pidfd_open;
    for (call, name, arguments) in [
        (handle, "pidfd_open", &beside[..]),
        (handle, "pidfd_open", &record),
        (handle, "pidfd_open", &zoom),
        (libc::SYS_sched_setaffinity, "sched_setaffinity", &threads),
        (libc::SYS_sched_setaffinity, "sched_setaffinity", &beside),
        (libc::SYS_clone3, "clone3", &record),
    ] {
        let ran = run(libc::EPERM, &[call], arguments);
        let error = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{name}, {arguments:?}: {error}");
        assert!(
            error.contains(&format!("default profile with {name} in")),
            "{error}"
        );
        assert!(
            !error.contains("free some") && !error.contains("chmod"),
            "{error}"
        );
        assert!(
            !std::path::Path::new(mark).exists(),
            "{name}, {arguments:?}"
        );
    }
    // Without threads of its own hither places a program all the same.
    let ran = run(
        libc::EPERM,
        &[libc::SYS_clone3],
        &["run", "-C", &first_cpu(), "true"],
    );
    assert!(ran.status.success(), "{}", text(&ran.stderr));
}

/// What fails once the program runs ends it, and what it has started: whoever holds the standard
/// output is waited for here.
#[test]
fn no_program_is_left_running_behind_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording");
    let recording = recording.to_str().unwrap();
    let program = ["--", "sh", "-c", "(sleep 30; :) & sleep 30"];
    for words in [
        &["run", "--on", "allowed"][..],
        &["run", "--policy", "none"],
        &["record", "-o", recording],
        &["zoom"],
    ] {
        let start = Instant::now();
        // The start of a Rust program polls, too, and does without where there is no memory.
        let ran = run(libc::ENOMEM, &[libc::SYS_poll], &[words, &program].concat());
        let error = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{words:?}: {error}");
        assert!(error.contains("waiting for the program"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(20), "{words:?}");
    }
}
