//! `hither run --replicate-files`: programs load the shim, and what it did is told.

use crate::common::{hither, refused, text};
use std::process::Command;

/// Maps its file, reads it for a while.
const READER: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int count, char **words) {
    int fd = open(words[1], O_RDONLY);
    volatile char *map = mmap(NULL, 8 << 20, PROT_READ, MAP_SHARED, fd, 0);
    int sum = 0;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 8 << 20; i += 4096) sum += map[i];
        usleep(1000);
    }
    printf("%d\n", sum);
    return 0;
}
"#;

#[test]
fn files_are_told_and_the_program_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("reader.c"), READER).unwrap();
    let built = Command::new("cc")
        .args(["-O1", "-w", "-o", &path("reader"), &path("reader.c")])
        .status();
    assert!(built.unwrap().success());
    std::fs::write(path("data"), vec![1; 8 << 20]).unwrap();
    let (reader, data, report) = (path("reader"), path("data"), path("report"));
    let words = [
        "run",
        "--replicate-files=1M",
        "--place",
        "size>=1M: local",
        "--json",
        &report,
        "--",
        &reader,
        &data,
    ];
    let output = hither(&words).output().unwrap();
    let told = text(&output.stderr);
    assert_eq!(text(&output.stdout), format!("{}\n", 200 * 2048), "{told}");
    let document: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let files = document["files"].as_array().unwrap();
    assert_eq!(files.len(), 1, "{document}");
    // On a machine with several nodes it is told where the file lies.
    if std::fs::read_dir("/sys/devices/system/node/node1").is_err() {
        assert!(
            told.contains("files: 1 process; this machine has one node\n"),
            "{told}"
        );
        assert_eq!(files[0]["files"][0]["reason"], "this machine has one node");
    }
    assert_eq!(document["policy"], "none");
    assert_eq!(document["placed"]["shim"]["processes"], 1);
}

#[test]
fn words_about_copies_go_with_files() {
    refused(
        &["run", "--replica-budget", "1G", "--", "true"],
        "--replicate-files",
    );
    refused(
        &["run", "--replicate-files=x", "--", "true"],
        "write a whole number",
    );
    let words = [
        "run",
        "--replicate-files",
        "--replica-parts",
        "all",
        "--",
        "true",
    ];
    let output = hither(&words).output().unwrap();
    let told = text(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("files: no program mapped one"), "{told}");
}
