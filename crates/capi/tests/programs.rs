//! The examples as a user builds and runs them: warnings are errors, memory checkers are clean.

use crate::common::{compile, compile_by, compiler, home, installed, run};
use std::process::Command;

const EXAMPLES: [(&str, &str); 8] = [
    ("figure2", "10 of 10 regions moved"),
    ("replicate", "replication done by copy: 512 pages moved"),
    ("event_loop", "64 of 64 copies"),
    ("replicated", "4 of 4 threads saw whole epochs in order"),
    ("regions", "128000 of 128000 keys counted"),
    ("stream", "5242880 of 5242880 elements are right"),
    ("place", "1024 of 1024 pages are in memory, 0 astray"),
    (
        "rsets",
        "every thread and every page is where it was promised",
    ),
];

fn source(name: &str) -> String {
    format!("examples/{name}.c")
}

#[test]
fn examples_run() {
    for (name, words) in EXAMPLES {
        let printed = run(&mut Command::new(compile(&source(name), name, &[])));
        assert!(printed.contains(words), "{name}: {printed}");
    }
}

/// The program of figure 2, many times: it sleeps in poll() although it may have retrieved only
/// one of several completions before.
#[test]
fn the_papers_program_never_sleeps_for_ever() {
    let program = compile(&source("figure2"), "figure2-again", &[]);
    for _ in 0..200 {
        let printed = run(Command::new("timeout").arg("20").arg(&program));
        assert!(printed.contains("10 of 10"), "{printed}");
    }
}

/// On this machine there may be nothing that counts: then it says so. That it counts is tried in the laboratory.
#[test]
fn a_program_that_watches_itself_says_where_nothing_counts() {
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let program = compile(&source("monitor"), "monitor-sanitized", &flags);
    let output = Command::new(&program).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let said = told.contains("nothing counts here: no device") || told.contains("has one node");
    assert!(output.status.success() || said, "{told}");
}

#[test]
fn examples_are_good_as_cpp() {
    if !installed("g++") {
        return;
    }
    for name in EXAMPLES.iter().map(|(name, _)| name).chain([&"monitor"]) {
        run(compiler("g++")
            .args(["-std=c++20", "-x", "c++", "-fsyntax-only"])
            .arg(home().join(source(name))));
    }
}

fn suppressions() -> String {
    format!(
        "--suppressions={}",
        home().join("tests/valgrind.supp").display()
    )
}

/// valgrind 3.19 does not know userfaultfd: there `kernel` moves pages, and the library says so.
#[test]
fn valgrind_finds_nothing() {
    if !installed("valgrind") {
        return;
    }
    let check = |name: &str, words: &str| {
        let program = compile(&source(name), &format!("{name}-valgrind"), &[]);
        let printed = run(Command::new("valgrind")
            .args(["--quiet", "--error-exitcode=99", "--leak-check=full"])
            // One thread runs at a time: else readers that spin keep a writer waiting for minutes.
            .arg("--fair-sched=yes")
            .arg("--errors-for-leak-kinds=definite,possible")
            .arg(suppressions())
            .arg(&program));
        assert!(printed.contains(words), "{name}: {printed}");
    };
    // Each uses one CPU for seconds.
    std::thread::scope(|scope| {
        for (name, words) in EXAMPLES {
            scope.spawn(move || check(name, words));
        }
    });
}

/// With every backend of this machine, `swap` included.
#[test]
fn the_address_sanitizer_finds_nothing() {
    for (name, words) in EXAMPLES {
        let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        let program = compile(&source(name), &format!("{name}-sanitized"), &flags);
        let printed = run(&mut Command::new(&program));
        assert!(printed.contains(words), "{name}: {printed}");
    }
}

#[test]
fn every_misuse_is_an_error() {
    let program = compile("tests/errors.c", "errors", &[]);
    run(&mut Command::new(&program));
    if installed("valgrind") {
        run(Command::new("valgrind")
            .args(["--quiet", "--error-exitcode=99"])
            .arg(&program)
            .arg("no-limits"));
    }
}

#[test]
fn replicated_arrays_refuse_every_misuse() {
    let program = compile("tests/replicated.c", "replicated-misuse", &[]);
    run(&mut Command::new(&program));
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let program = compile("tests/replicated.c", "replicated-sanitized", &flags);
    run(&mut Command::new(&program));
}

#[test]
fn regions_refuse_every_misuse() {
    let program = compile("tests/regions.c", "regions-misuse", &[]);
    run(&mut Command::new(&program));
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let program = compile("tests/regions.c", "regions-sanitized", &flags);
    run(&mut Command::new(&program));
}

#[test]
fn streams_refuse_every_misuse() {
    let program = compile("tests/stream.c", "stream-misuse", &[]);
    run(&mut Command::new(&program));
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let program = compile("tests/stream.c", "stream-sanitized", &flags);
    run(&mut Command::new(&program));
}

/// On a machine with one node fast memory is on the same node: it is used where it is asked for.
#[test]
fn a_stream_in_c_computes_from_fast_memory() {
    let program = compile(&source("stream"), "stream-always", &[]);
    let printed = run(Command::new(&program).arg("always"));
    assert!(printed.contains("5242880 of 5242880 elements"), "{printed}");
    let told = " of 640 blocks were computed from fast memory";
    let line = printed.lines().find_map(|line| line.strip_suffix(told));
    let fast: u64 = line.unwrap().parse().unwrap();
    assert!(fast > 0, "{printed}");
}

/// On a machine with one node there are copies only where they are asked for.
#[test]
fn threads_read_several_copies() {
    let program = compile(&source("replicated"), "replicated-four", &[]);
    let printed = run(Command::new(&program).arg("4"));
    assert!(printed.contains("48 of 48 copies of chunks"), "{printed}");
    assert!(printed.contains("4 of 4 threads"), "{printed}");
}

#[test]
fn the_wrapper_for_cpp_works() {
    if !installed("g++") {
        return;
    }
    for standard in ["c++17", "c++20"] {
        let mut compiler = compiler("g++");
        compiler.arg(format!("-std={standard}"));
        let name = format!("replicated-{standard}");
        let program = compile_by(&mut compiler, "tests/replicated.cpp", &name);
        assert_eq!(run(&mut Command::new(&program)), "good\n");
    }
}

/// 161 children, each with 1 MiB more than the one before: none of them dies.
#[test]
fn want_of_memory_is_an_error() {
    let program = compile("tests/memory.c", "memory", &[]);
    let printed = run(&mut Command::new(&program));
    assert_eq!(printed, "refused and opened\n");
}
