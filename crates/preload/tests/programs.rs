//! Unmodified programs under the shim: what they do is the same, and the log says what they did.

use crate::common::{Stage, compile, frames, shim};
use hither_core::sites::How;
use hither_linux::sites::{self, SiteAllocation};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

fn stage() -> Stage {
    Stage::new("sites.c", None, &[])
}

/// The allocation at an address that a program told, with its log's index.
fn at(allocations: &[SiteAllocation], address: u64) -> &SiteAllocation {
    let found: Vec<_> = allocations
        .iter()
        .filter(|a| a.address == address)
        .collect();
    assert_eq!(found.len(), 1, "{address:#x}: {allocations:#x?}");
    found[0]
}

#[test]
fn a_wrapper_and_its_caller_are_named_with_thread_size_and_life() {
    let stage = stage();
    let run = stage.run(&["wrapped"]);
    assert!(run.output.status.success() && run.output.stderr.is_empty());
    assert_eq!(run.logs.len(), 1);
    let log = &run.logs[0];
    let (address, tid) = run.told["wrapped"][0];
    let found = at(&log.allocations, address);
    assert_eq!((found.bytes, found.tid), (100 << 10, tid));
    assert_eq!((found.how, log.sites.pid), (How::Malloc, tid));
    assert!(found.end_ns.unwrap() > found.start_ns && found.start_ns >= log.sites.start_ns);
    let lines = stage.lines(log, found);
    assert_eq!(lines[..2], [stage.line("wrapper"), stage.line("wrapped")]);
    assert_eq!(frames(log, found)[0].function, "wrapper");
    assert_eq!(log.sites.notes, Vec::<String>::new());
}

#[test]
fn every_function_of_the_allocator_is_seen() {
    let stage = stage();
    let run = stage.run(&["every"]);
    let log = &run.logs[0];
    for (name, kib, how) in [
        ("malloc", 70, How::Malloc),
        ("calloc", 71, How::Calloc),
        ("posix_memalign", 72, How::Aligned),
        ("aligned_alloc", 76, How::Aligned),
        ("memalign", 74, How::Aligned),
        ("valloc", 75, How::Aligned),
        ("pvalloc", 80, How::Aligned),
        ("reallocarray", 77, How::Realloc),
    ] {
        let (address, _) = run.told[name][0];
        let found = at(&log.allocations, address);
        assert_eq!(
            (found.bytes, found.how, found.end_ns),
            (kib << 10, how, None),
            "{name}"
        );
        assert_eq!(stage.lines(log, found)[0], stage.line(name), "{name}");
    }
    // Allocated by the C library for the program.
    let (address, _) = run.told["strdup"][0];
    let found = at(&log.allocations, address);
    assert_eq!(found.bytes, (78 << 10) + 1);
    assert_eq!(stage.lines(log, found)[0], stage.line("strdup"));
}

#[test]
fn what_is_resized_ends_and_begins_and_what_fails_stays() {
    let stage = stage();
    let run = stage.run(&["realloc"]);
    assert!(run.output.status.success(), "{:?}", run.output);
    let log = &run.logs[0];
    assert_eq!(log.allocations.len(), 2, "{:#x?}", log.allocations);
    let grown = at(&log.allocations, run.told["grown"][0].0);
    assert_eq!((grown.bytes, grown.how), (200 << 10, How::Realloc));
    assert_eq!(stage.lines(log, grown)[0], stage.line("grown"));
    assert!(grown.end_ns.is_some());
    let failing = at(&log.allocations, run.told["failing"][0].0);
    assert_eq!(failing.bytes, 300 << 10);
    assert!(failing.end_ns.unwrap() > grown.end_ns.unwrap());
}

#[test]
fn mappings_live_until_their_last_page_is_unmapped() {
    let stage = stage();
    let run = stage.run(&["mmap"]);
    let log = &run.logs[0];
    let expected = [
        ("mmap", 256, How::Map, true),
        ("mremap", 512, How::Remap, true),
        ("reserve", 1024, How::Reserve, false),
    ];
    assert_eq!(log.allocations.len(), expected.len());
    for ((name, kib, how, ends), found) in expected.into_iter().zip(&log.allocations) {
        assert_eq!(found.address, run.told[name][0].0, "{name}");
        assert_eq!((found.bytes, found.how), (kib << 10, how), "{name}");
        assert_eq!(found.end_ns.is_some(), ends, "{name}");
        assert_eq!(stage.lines(log, found)[0], stage.line(name), "{name}");
    }
    let [first, second, _] = log.allocations[..] else {
        unreachable!("three were expected above")
    };
    assert!(first.end_ns.unwrap() <= second.start_ns);
}

#[test]
fn threads_are_told_apart_also_after_their_end() {
    let stage = stage();
    let run = stage.run(&["threads"]);
    let log = &run.logs[0];
    let told = &run.told["thread"];
    assert_eq!((told.len(), log.allocations.len()), (3, 3));
    for ((address, tid), found) in told.iter().zip(&log.allocations) {
        assert_eq!((found.address, found.tid), (*address, *tid));
        assert_ne!(found.tid, log.sites.pid);
        assert!(found.end_ns.is_some());
        assert_eq!(stage.lines(log, found), [stage.line("thread")]);
    }
}

#[test]
fn forked_children_write_their_own_logs() {
    let stage = stage();
    let run = stage.run(&["fork"]);
    assert!(run.output.status.success());
    // The parent, a child of fork, and one of a bare clone that no library knows of.
    assert_eq!(run.logs.len(), 3);
    let parent = &run.logs[0];
    assert_eq!(parent.allocations.len(), 1);
    assert_eq!(
        stage.lines(parent, &parent.allocations[0])[0],
        stage.line("before_fork")
    );
    for (log, (address, _)) in run.logs[1..].iter().zip(&run.told["in_child"]) {
        assert_eq!(log.sites.parent, parent.sites.pid);
        assert_ne!(log.sites.pid, parent.sites.pid);
        assert_eq!(
            log.allocations.len(),
            1,
            "what it inherited is its parent's"
        );
        let found = at(&log.allocations, *address);
        assert_eq!((found.tid, found.bytes), (log.sites.pid, 500 << 10));
        assert!(found.end_ns.is_some());
        assert_eq!(stage.lines(log, found)[0], stage.line("in_child"));
    }
}

#[test]
fn a_program_that_becomes_another_leaves_two_logs() {
    let stage = stage();
    let run = stage.run(&["exec"]);
    assert_eq!(run.logs.len(), 2);
    assert_eq!(run.logs[0].sites.pid, run.logs[1].sites.pid);
    for log in &run.logs {
        assert_eq!(
            stage.lines(log, &log.allocations[0])[0],
            stage.line("wrapper")
        );
    }
}

#[test]
fn libraries_that_are_loaded_later_are_named() {
    let stage = stage();
    let source = stage.folder.path().join("plugin.c");
    let library = stage.folder.path().join("plugin.so");
    let text =
        "#include <stdlib.h>\nvoid *make(size_t n) { char *p = malloc(n); p[0] = 1; return p; }\n";
    fs::write(&source, text).unwrap();
    compile("cc", &source, &library, &["-shared", "-fPIC"]);
    let run = stage.run(&["dlopen", library.to_str().unwrap()]);
    let log = &run.logs[0];
    let found = at(&log.allocations, run.told["plugin"][0].0);
    let first = &frames(log, found)[0];
    assert_eq!((&*first.function, first.line), ("make", Some(2)));
    assert_eq!(first.file.as_deref(), source.to_str());
}

#[test]
fn a_killed_program_loses_nothing() {
    let stage = stage();
    let run = stage.run(&["killed", "5000"]);
    assert_eq!(run.output.status.signal(), Some(9));
    let log = &run.logs[0];
    assert_eq!(log.allocations.len(), 5001);
    let last = log.allocations.last().unwrap();
    assert_eq!((last.bytes, last.end_ns), (640 << 10, None));
    assert_eq!(stage.lines(log, last)[0], stage.line("killed"));
    let in_loop = &log.allocations[..5000];
    assert!(
        in_loop
            .iter()
            .all(|a| a.end_ns.is_some() && a.site == in_loop[0].site)
    );
    assert_eq!(stage.lines(log, &in_loop[0])[0], stage.line("loop"));
}

#[test]
fn many_threads_lose_nothing() {
    let stage = stage();
    let run = stage.run(&["storm"]);
    assert!(run.output.status.success(), "{:?}", run.output);
    let log = &run.logs[0];
    assert_eq!(log.sites.notes, Vec::<String>::new());
    // 8 threads x 20,000 steps, half of which are above the threshold; all is freed at the end.
    assert!(log.allocations.len() > 40_000, "{}", log.allocations.len());
    assert!(
        log.allocations
            .iter()
            .all(|a| a.end_ns.is_some() && a.bytes >= 64 << 10)
    );
    // No two that live at one time share an address.
    let mut by_address = log.allocations.clone();
    by_address.sort_by_key(|a| (a.address, a.start_ns));
    for pair in by_address.windows(2) {
        let apart = pair[0].address != pair[1].address || pair[0].end_ns <= Some(pair[1].start_ns);
        assert!(apart, "{pair:#x?}");
    }
}

#[test]
fn a_program_that_closes_descriptors_is_still_recorded() {
    let stage = stage();
    let run = stage.run(&["closed"]);
    assert!(run.output.status.success());
    assert_eq!(run.logs[0].allocations.len(), 3001);
    assert_eq!(run.logs[0].sites.notes, Vec::<String>::new());
}

#[test]
fn a_log_that_is_full_counts_what_it_leaves_out() {
    let stage = stage();
    let mut command = stage.command(&["loop", "5000"]);
    let run = stage.run_command(command.env("HITHER_PRELOAD_LIMIT", "100000"));
    assert!(run.output.status.success());
    let log = &run.logs[0];
    let recorded = log.allocations.len() as u64;
    assert!(recorded > 500 && log.sites.dropped.allocation_count > 3000);
    assert_eq!(recorded + log.sites.dropped.allocation_count, 5000);
    // What is recorded is recorded whole.
    assert!(log.allocations.iter().all(|a| a.end_ns.is_some()));
    assert!(
        log.sites
            .notes
            .iter()
            .any(|note| note.contains("found no room"))
    );
    let file = fs::read_dir(stage.logs()).unwrap().next().unwrap().unwrap();
    assert!(file.metadata().unwrap().len() <= 100_000);
}

#[test]
fn the_threshold_decides() {
    let stage = stage();
    let mut command = stage.command(&["every"]);
    let run = stage.run_command(command.env("HITHER_PRELOAD_THRESHOLD", "76000"));
    let sizes: Vec<u64> = run.logs[0].allocations.iter().map(|a| a.bytes).collect();
    // reallocarray's, strdup's and what it copies, aligned_alloc's, valloc's and pvalloc's.
    assert!(sizes.iter().all(|bytes| *bytes >= 76_000), "{sizes:?}");
    assert_eq!(run.logs[0].sites.threshold_bytes, 76_000);
    assert_eq!(sizes.len(), 6, "{sizes:?}");
}

#[test]
fn operator_new_is_malloc_with_the_programs_line() {
    let text = "\
#include <vector>
#include <cstdio>
int main() {
    std::vector<double> numbers(100000); /* @vector */
    char *more = new char[200000]; /* @new */
    more[numbers.size() % 7] = 1;
    std::printf(\"%g %d\\n\", numbers[5], more[5]);
    delete[] more;
}
";
    let stage = Stage::new("sites.cc", Some(text), &[]);
    let run = stage.run(&[]);
    let log = &run.logs[0];
    let sizes: Vec<u64> = log.allocations.iter().map(|a| a.bytes).collect();
    // libstdc++ allocates 72,704 bytes for exceptions in emergencies before main.
    assert!(sizes.ends_with(&[800_000, 200_000]), "{sizes:?}");
    let [.., vector, new] = &log.allocations[..] else {
        unreachable!("two were expected above")
    };
    assert_eq!(stage.lines(log, vector)[0], stage.line("vector"));
    assert_eq!(stage.lines(log, new)[0], stage.line("new"));
    assert!(vector.end_ns.is_some() && new.end_ns.is_some());
}

#[test]
fn a_preloaded_allocator_still_serves_the_program() {
    // It is looked up after the shim, and looks up its own next one while it is first called.
    let text = "\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static int count;
void *malloc(size_t bytes) {
    static void *(*next)(size_t);
    if (next == NULL) next = (void *(*)(size_t))dlsym(RTLD_NEXT, \"malloc\");
    count += bytes >= 65536;
    return next(bytes);
}
__attribute__((destructor)) static void tell(void) { fprintf(stderr, \"%d large\", count); }
";
    let stage = stage();
    let source = stage.folder.path().join("allocator.c");
    let library = stage.folder.path().join("allocator.so");
    fs::write(&source, text).unwrap();
    compile("cc", &source, &library, &["-shared", "-fPIC"]);
    for order in [[shim(), library.clone()], [library.clone(), shim()]] {
        let preload = order.map(|path| path.display().to_string()).join(":");
        let mut command = stage.command(&["loop", "100"]);
        let run = stage.run_command(command.env("LD_PRELOAD", preload));
        assert!(run.output.status.success());
        assert_eq!(String::from_utf8_lossy(&run.output.stderr), "100 large");
        let log = run.logs.last().unwrap();
        assert_eq!(log.allocations.len(), 100);
        assert!(log.allocations.iter().all(|a| a.end_ns.is_some()));
    }
}

#[test]
fn limits_of_any_size_are_taken() {
    let stage = stage();
    for limit in ["0", "4096", "5000", "18446744073709551615", "64M"] {
        let mut command = stage.command(&["loop", "10"]);
        let run = stage.run_command(command.env("HITHER_PRELOAD_LIMIT", limit));
        assert!(run.output.status.success(), "{limit}");
        let log = run.logs.last().unwrap();
        let dropped = log.sites.dropped.allocation_count;
        assert_eq!(log.allocations.len() as u64 + dropped, 10, "{limit}");
        assert_eq!(dropped == 0, limit.len() > 4 || limit == "64M", "{limit}");
    }
}

#[test]
fn without_a_folder_or_with_a_bad_one_the_program_runs_as_ever() {
    let stage = stage();
    for folder in ["", "relative", "/nowhere/at/all", "/proc"] {
        let mut command = stage.command(&["wrapped"]);
        let run = stage.run_command(command.env("HITHER_PRELOAD_DIR", folder));
        assert!(run.output.status.success() && run.output.stderr.is_empty());
        assert!(run.logs.is_empty());
    }
    let mut command = stage.command(&["storm"]);
    let run = stage.run_command(command.env_remove("HITHER_PRELOAD_DIR"));
    assert!(run.output.status.success() && run.logs.is_empty());
}

#[test]
fn programs_that_were_not_made_for_this_print_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let script = "printf 'b\\na\\n' | sort -S 4M; awk 'BEGIN { for (i = 0; i < 40000; i++) \
                  s = s \"x\"; print length(s) }'; find /proc/self/task -maxdepth 0";
    for command in [&["sh", "-c", script][..], &["cc", "--version"], &["false"]] {
        let run = |with: bool| {
            let mut process = Command::new(command[0]);
            process.args(&command[1..]);
            if with {
                process.env("LD_PRELOAD", shim());
                process.env("HITHER_PRELOAD_DIR", &logs);
            }
            process.output().unwrap()
        };
        assert_eq!(run(true), run(false), "{command:?}");
    }
    let count = fs::read_dir(&logs).unwrap().count();
    assert!(count > 0);
    for entry in fs::read_dir(&logs).unwrap() {
        sites::read(&entry.unwrap().path()).unwrap();
    }
}
