//! Programs that the preload shim must not stop, and what is said of those that do not load it.

use crate::common::{hither, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const RULE: &str = "size>=1M: striped";

/// One block of 64 MiB, for longer than the first looks.
const BLOCK: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(void) {
    char *block = malloc(64 << 20);
    if (block == NULL) return 3;
    memset(block, 1, 64 << 20);
    puts("alive");
    fflush(stdout);
    usleep(300000);
    return 0;
}
"#;

const CHECKED: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef OWN
const char *__asan_default_options(void) { return "detect_leaks=0"; }
#endif
int main(int count, char **words) {
    char *volatile block = malloc(8 << 20);
    memset(block, 1, 8 << 20);
    puts("alive");
    free(block);
    return count > 1 ? block[5] : 0;
}
"#;

fn built(folder: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (file, program) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&file, source).unwrap();
    let mut compiler = Command::new("cc");
    let compiler = compiler.args(["-O1", "-w"]).args(flags);
    let done = compiler
        .arg(&file)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    program
}

fn ran(arguments: &[&str]) -> (Output, String) {
    let output = hither(arguments).output().unwrap();
    let told = text(&output.stderr);
    (output, told)
}

#[test]
fn programs_that_a_sanitizer_checks_run_as_ever() {
    let folder = tempfile::tempdir().unwrap();
    let plain = built(folder.path(), "plain", CHECKED, &["-fsanitize=address"]);
    let own = built(
        folder.path(),
        "own",
        CHECKED,
        &["-fsanitize=address", "-DOWN"],
    );
    let plain = plain.to_str().unwrap();
    let script = format!("ASAN_OPTIONS=detect_leaks=0 {plain}");
    let place = ["run", "--place", RULE, "--"];
    for words in [
        &[&place[..], &[plain]].concat(),
        &[&place[..], &[own.to_str().unwrap()]].concat(),
        // Options of its own take the place of hither's.
        &[&place[..], &["sh", "-c", &script]].concat(),
        &["run", "--threads", "fill", "--", plain].to_vec(),
    ] {
        let (output, told) = ran(words);
        assert_eq!(text(&output.stdout), "alive\n", "{words:?}: {told}");
        assert!(output.status.success(), "{words:?}: {told}");
        assert!(
            told.contains("shim: stands aside in 1 program that"),
            "{words:?}: {told}"
        );
    }
    // The sanitizer sees what it is there for.
    let (output, told) = ran(&[&place[..], &[plain, "use"]].concat());
    assert!(
        !output.status.success() && told.contains("heap-use-after-free"),
        "{told}"
    );
    let recording = folder.path().join("recording");
    let (output, told) = ran(&[
        "record",
        "--sites",
        "-o",
        recording.to_str().unwrap(),
        "--",
        plain,
    ]);
    assert_eq!(text(&output.stdout), "alive\n", "{told}");
    assert!(
        told.contains("is checked by a sanitizer: its allocations are not"),
        "{told}"
    );
}

#[test]
fn who_does_not_load_the_shim_is_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let program = built(folder.path(), "block", BLOCK, &[]);
    let program = program.to_str().unwrap();
    let cleared = format!("exec env -i {program}");
    let replaced = format!("LD_PRELOAD=libjemalloc.so.2 exec {program}");
    let file = folder.path().join("report.json");
    for (script, reason, word) in [
        (
            &cleared,
            "block, started with an environment of its own (env -i",
            "environment",
        ),
        (
            &replaced,
            "block, started by somebody who set LD_PRELOAD anew",
            "ld_preload",
        ),
    ] {
        let json = file.to_str().unwrap();
        let (output, told) = ran(&[
            "run", "--place", RULE, "--json", json, "--", "sh", "-c", script,
        ]);
        assert_eq!(text(&output.stdout), "alive\n", "{told}");
        assert!(
            told.contains(&format!("shim: not loaded by {reason}")),
            "{told}"
        );
        assert!(told.contains("0 blocks of 0 B placed"), "{told}");
        let document = std::fs::read(&file).unwrap();
        let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
        let missed = serde_json::json!([{"why": word, "programs": ["block"]}]);
        assert_eq!(document["placed"]["shim"]["missed"], missed);
        let recording = tempfile::tempdir().unwrap();
        let recording = recording.path().join("recording");
        let recording = recording.to_str().unwrap();
        let (_, told) = ran(&[
            "record", "--sites", "-o", recording, "--", "sh", "-c", script,
        ]);
        assert!(
            told.contains(&format!("shim: not loaded by {reason}")),
            "{told}"
        );
    }
    // What is said to help does.
    let appended = format!("LD_PRELOAD=$LD_PRELOAD:libjemalloc.so.2 exec {program}");
    let kept = format!(
        "exec env -i LD_PRELOAD=$LD_PRELOAD HITHER_PLACE_PLAN=\"$HITHER_PLACE_PLAN\" \
         HITHER_PLACE_BOARD=$HITHER_PLACE_BOARD {program}"
    );
    for script in [&appended, &kept] {
        let (_, told) = ran(&["run", "--place", RULE, "--", "sh", "-c", script]);
        assert!(
            told.contains("1 block of 64 MiB placed\n"),
            "{script}: {told}"
        );
        assert!(!told.contains("not loaded"), "{script}: {told}");
    }
}

#[test]
fn a_limited_address_space_has_room_for_blocks_or_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let program = built(folder.path(), "block", BLOCK, &[]);
    let program = program.to_str().unwrap();
    let within = |kib: u64| {
        let script = format!("ulimit -v {kib}; exec {program}");
        let (output, told) = ran(&["run", "--place", RULE, "--", "sh", "-c", &script]);
        assert_eq!(text(&output.stdout), "alive\n", "{kib}: {told}");
        told
    };
    for kib in [6_000_000, 2_000_000] {
        let told = within(kib);
        assert!(told.contains("1 block of 64 MiB placed\n"), "{kib}: {told}");
    }
    for kib in [300_000, 90_000] {
        let told = within(kib);
        let words = "1 went elsewhere, as address space is limited: raise the limit (ulimit -v)\n";
        assert!(told.contains(words), "{kib}: {told}");
    }
    // A log of allocations takes its part, and not more than there is.
    let recording = folder.path().join("recording");
    let script = format!("ulimit -v 90000; exec {program}");
    let words = [
        "record",
        "--sites",
        "-o",
        recording.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        &script,
    ];
    let (output, told) = ran(&words);
    assert_eq!(text(&output.stdout), "alive\n", "{told}");
    assert!(
        recording.join("allocations-00000.parquet").is_file(),
        "{told}"
    );
}
