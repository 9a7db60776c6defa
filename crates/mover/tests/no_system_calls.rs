//! A steady stream of submissions makes no system call, as seen by `strace` (`scripts/setup.sh`
//! installs it).

use std::path::PathBuf;
use std::process::Command;

/// Builds the example and returns its path: `cargo test --test` alone does not.
fn example() -> PathBuf {
    let built = Command::new(env!("CARGO"))
        // With the whole workspace, as other choices of features would build its libraries anew.
        .args(["build", "--quiet", "--workspace"])
        .args(["--example", "stream_submit"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo");
    assert!(built.success());
    // This test is target/debug/deps/no_system_calls-HASH.
    let own = std::env::current_exe().expect("a path");
    let folder = own.ancestors().nth(2).expect("a target folder");
    folder.join("examples/stream_submit")
}

/// The submitting thread's system calls between its two marks.
fn calls(mode: &str) -> Vec<String> {
    let folder = std::env::temp_dir().join(format!("hither-strace-{}-{mode}", std::process::id()));
    std::fs::create_dir(&folder).expect("a temporary folder");
    let trace = folder.join("trace");
    let output = Command::new("strace")
        .args(["-f", "-qq", "-o"])
        .arg(&trace)
        .arg(example())
        .args([mode, "20000"])
        .output()
        .expect("strace runs: make setup installs it");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{output:?}");
    let trace = std::fs::read_to_string(&trace).expect("a trace");
    std::fs::remove_dir_all(&folder).expect("removable");
    let thread = printed
        .lines()
        .find_map(|line| line.strip_prefix("thread "))
        .expect("the thread's number");
    // A line: `1234  futex(0x7f0000000000, FUTEX_WAKE, 1) = 0`.
    let mut own = trace.lines().filter_map(|line| {
        let (number, call) = line.split_once(' ')?;
        (number == thread).then(|| call.trim_start().to_owned())
    });
    let is_mark = |call: &String| call.starts_with("getppid(");
    own.find(is_mark).expect("the stream begins");
    let mut between = Vec::new();
    for call in own {
        if is_mark(&call) {
            return between;
        }
        between.push(call);
    }
    panic!("the stream does not end: {between:?}");
}

#[test]
fn a_steady_stream_makes_no_system_call() {
    assert_eq!(calls("awake"), [""; 0]);
    assert_eq!(calls("polled"), [""; 0]);
}

/// What shows that the test above can fail.
#[test]
fn a_stream_to_a_sleeping_worker_makes_some() {
    let calls = calls("asleep");
    assert!(
        calls.iter().any(|call| call.starts_with("futex(")),
        "{calls:?}"
    );
}
