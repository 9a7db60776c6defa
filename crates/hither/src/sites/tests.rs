use super::*;
use std::process::Stdio;

fn frame(function: &str, file: &str, module: &str) -> Frame {
    Frame {
        function: function.into(),
        file: (!file.is_empty()).then(|| file.into()),
        module: module.into(),
        ..Frame::default()
    }
}

#[test]
fn the_shim_is_found_beside_the_program_or_installed_or_named() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let own = root.join("bin/hither");
    fs::create_dir(root.join("bin")).unwrap();
    let missing = Shim::find_near(&parts::SHIM, &own, None)
        .err()
        .unwrap()
        .to_string();
    assert!(missing.contains("make install"), "{missing}");
    let places =
        ["lib/hither", "bin", "other"].map(|place| root.join(place).join(parts::SHIM.file));
    for place in &places {
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, "").unwrap();
        let named = place.starts_with(root.join("other")).then(|| place.clone());
        assert_eq!(
            Shim::find_near(&parts::SHIM, &own, named).unwrap().path,
            *place
        );
    }
    let spaced = root.join("a b").join(parts::SHIM.file);
    fs::create_dir_all(spaced.parent().unwrap()).unwrap();
    fs::write(&spaced, "").unwrap();
    let refused = Shim::find_near(&parts::SHIM, &own, Some(spaced))
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("with a space"), "{refused}");
}

#[test]
fn what_the_user_preloads_is_kept() {
    let shim = Shim {
        path: "/lib/shim.so".into(),
    };
    let value = |command: &Command, name: &str| {
        let mut set = command.get_envs();
        let (_, value) = set.find(|(set, _)| *set == OsStr::new(name)).unwrap();
        value.unwrap().to_str().unwrap().to_owned()
    };
    let mut command = Command::new("true");
    command.env("LD_PRELOAD", "/lib/own.so");
    shim.attach(&mut command, Path::new("logs"), 4096);
    assert_eq!(value(&command, "LD_PRELOAD"), "/lib/shim.so:/lib/own.so");
    assert_eq!(value(&command, environment::THRESHOLD), "4096");
    let folder = value(&command, environment::FOLDER);
    assert!(folder.starts_with('/') && folder.ends_with("/logs"));
    let mut command = Command::new("true");
    command.env_remove("LD_PRELOAD");
    shim.attach(&mut command, Path::new("/logs"), 1);
    assert_eq!(value(&command, "LD_PRELOAD"), "/lib/shim.so");
}

#[test]
fn frames_of_runtimes_are_not_the_programs_own() {
    let program = "/home/a/program";
    assert!(is_own(&frame("main", "/home/a/main.c", program)));
    assert!(is_own(&frame("program+0x12", "", program)));
    assert!(is_own(&frame(
        "f",
        "/home/a/libc/f.c",
        "/usr/lib/libcurl.so.4"
    )));
    for other in [
        frame("__GI___strdup", "", "/lib/x86_64-linux-gnu/libc.so.6"),
        frame("operator new(unsigned long)", "", "/usr/lib/libstdc++.so.6"),
        frame(
            "allocate",
            "/usr/include/c++/12/bits/new_allocator.h",
            program,
        ),
        frame("alloc", "/rustc/5980/library/alloc/src/alloc.rs", program),
        frame("__rust_alloc", "", program),
        frame("0x7f00", "", ""),
    ] {
        assert!(!is_own(&other), "{other:?}");
    }
}

const SOURCE: &str = "\
#include <stdlib.h>
#include <unistd.h>
#include <sys/wait.h>
char *volatile kept, *volatile other;
int main(void) {
    kept = malloc(1 << 20);
    other = malloc(1 << 19);
    free(other);
    if (fork() == 0) {
        other = calloc(100000, 1);
        _exit(0);
    }
    wait(0);
    return 0;
}
";

#[test]
fn a_program_and_its_child_are_collected() {
    let folder = tempfile::tempdir().unwrap();
    let [source, program, logs] = ["p.c", "p", "logs"].map(|name| folder.path().join(name));
    fs::write(&source, SOURCE).unwrap();
    fs::create_dir(&logs).unwrap();
    let mut compiler = Command::new("cc");
    compiler
        .args(["-g", "-O1"])
        .arg(&source)
        .arg("-o")
        .arg(&program);
    assert!(compiler.status().unwrap().success());
    let mut command = Command::new(&program);
    command.stdin(Stdio::null());
    // Built for this crate's tests, beside them.
    Shim::find().unwrap().attach(&mut command, &logs, 65536);
    assert!(command.status().unwrap().success());
    // A log that is none does not hide the others.
    fs::write(logs.join("77.sites"), "text").unwrap();
    fs::write(logs.join("readme"), "text").unwrap();
    let processes = collect(&logs).unwrap();
    assert_eq!(processes.len(), 3, "{processes:#?}");
    let line = |process: &ProcessSites, allocation: &Allocation| {
        let site = &process.sites[allocation.site];
        let frame = &site.frames[site.first];
        assert_eq!(frame.file.as_deref(), source.to_str());
        assert_eq!(frame.function, "main");
        (
            frame.line.unwrap(),
            allocation.bytes,
            allocation.end_ns.is_some(),
        )
    };
    let parent = &processes[0];
    let lines = |process: &ProcessSites| {
        let mut lines = Vec::new();
        for allocation in &process.allocations {
            lines.push(line(process, allocation));
        }
        lines
    };
    assert_eq!(lines(parent), [(6, 1 << 20, false), (7, 1 << 19, true)]);
    assert!(
        parent
            .allocations
            .iter()
            .all(|a| a.tid == parent.pid && a.how == How::Malloc)
    );
    assert_eq!(parent.dropped_count, 0);
    let child = &processes[1];
    assert_eq!(child.parent, parent.pid);
    assert_eq!(lines(child), [(6, 1 << 20, false), (10, 100_000, false)]);
    assert_eq!(child.allocations[0].address, parent.allocations[0].address);
    assert!(child.allocations[0].is_inherited && !child.allocations[1].is_inherited);
    assert_eq!(processes[2].pid, 77);
    assert!(
        processes[2].notes[0].contains("no log"),
        "{:?}",
        processes[2].notes
    );
    let missing = collect(&folder.path().join("none")).err().unwrap();
    assert!(format!("{missing:#}").contains("none"), "{missing:#}");
}

const RUST_SOURCE: &str = "\
#[inline(never)]
fn fill(count: usize) -> Vec<u64> {
    let mut numbers = Vec::new();
    numbers.resize(count, 7); // grows at once
    numbers
}
fn main() {
    let zeros = std::hint::black_box(vec![0u8; 1 << 20]);
    let other = std::thread::spawn(|| fill(100_000)).join();
    std::process::exit(i32::from(other.is_ok_and(|other| other[5] != 7) || zeros[9] != 0));
}
";

#[test]
fn a_program_of_rust_is_named_by_its_own_lines() {
    let folder = tempfile::tempdir().unwrap();
    let [source, program, logs] = ["p.rs", "p", "logs"].map(|name| folder.path().join(name));
    fs::write(&source, RUST_SOURCE).unwrap();
    fs::create_dir(&logs).unwrap();
    let mut compiler = Command::new("rustc");
    let built = compiler
        .args(["-g", "-O"])
        .arg(&source)
        .arg("-o")
        .arg(&program);
    assert!(built.status().unwrap().success());
    let mut command = Command::new(&program);
    Shim::find().unwrap().attach(&mut command, &logs, 65536);
    assert!(command.status().unwrap().success());
    let processes = collect(&logs).unwrap();
    let [process] = &processes[..] else {
        panic!("one process: {processes:#?}")
    };
    let mut found = Vec::new();
    for allocation in &process.allocations {
        let site = &process.sites[allocation.site];
        let frame = &site.frames[site.first];
        let name = frame.file.as_deref().unwrap_or("").rsplit('/').next();
        found.push((name.unwrap_or("").to_owned(), frame.line, allocation.bytes));
        let is_main = allocation.tid == process.pid;
        assert_eq!(is_main, allocation.bytes == 1 << 20);
    }
    let own = |line, bytes| ("p.rs".to_owned(), Some(line), bytes);
    assert_eq!(
        found,
        [own(8, 1 << 20), own(4, 800_000)],
        "{:#?}",
        process.sites
    );
}
