//! The example of monitors in C on an emulated machine: it allocates data on the wrong nodes, waits for a threshold of its
//! own data, places it by what it reads, and checks pages and counts itself. That it did all that is checked here, by the
//! device and by samples; and that nobody but root gets the device.

use crate::common::compiled_example;
use crate::common::together::{self, Part};
use std::path::Path;

/// Slices of the example, one for each node, and pages of all.
const NODES: u64 = 4;
const PAGES: u64 = NODES * 1024;
/// Lines of all slices: those of six rounds cross between nodes.
const LINES: u64 = NODES * (4 << 20) / 64;

/// The number before a text.
fn number_before(printed: &str, text: &str) -> u64 {
    let at = printed
        .find(text)
        .unwrap_or_else(|| panic!("no `{text}` in {printed}"));
    let word = printed[..at].split_whitespace().last();
    word.and_then(|word| word.parse().ok())
        .unwrap_or_else(|| panic!("`{text}` in {printed}"))
}

pub fn part(folder: &Path) -> Part {
    let program = compiled_example("monitor", folder);
    // A guest's user 1 is no root.
    let script = "$0 || exit 1; echo ---; $0 samples || exit 1; echo ---; \
         setpriv --reuid 1 --regid 1 --clear-groups $0 2>&1; echo status $?";
    Part {
        name: "monitor",
        script: script.to_owned(),
        first: program.clone(),
        files: vec![program, "setpriv".into()],
        back: None,
    }
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn a_program_places_its_own_data_by_what_it_reads() {
    let printed = together::told("monitor");
    let parts: Vec<&str> = printed.split("---\n").collect();
    let [counted, sampled, refused] = parts[..] else {
        panic!("{printed}");
    };
    assert!(
        counted.starts_with("device: every transaction is counted, from 64 bytes on"),
        "{counted}"
    );
    // One sum was told of while the threads worked; each slice by the page, most for its own node.
    assert!(
        counted.contains("told while they work: sum 0, last asked by node"),
        "{counted}"
    );
    for node in 0..NODES {
        let line = format!("area {node}: 1024 grains, ");
        let own = format!("most for node{node}, 0 pages missed");
        let found = counted.lines().find(|of| of.starts_with(&line));
        assert!(found.is_some_and(|of| of.ends_with(&own)), "{counted}");
    }
    // Each round loads each line once; the stores find them in the cache. The caches keep a part of them.
    let loads = number_before(counted, " lines across nodes for loads");
    assert!(
        (LINES * 5 / 2..=LINES * 6).contains(&loads),
        "{loads} of {LINES}: {counted}"
    );
    for of in [counted, sampled] {
        let arrived = format!("{PAGES} of {PAGES} pages are on the node that works on them\n");
        assert!(of.contains(&arrived), "{of}");
        assert!(of.contains(", 0 thresholds\n"), "{of}");
        assert!(of.ends_with("the program placed its own data\n"), "{of}");
    }
    assert!(
        sampled.starts_with("samples of `opium`: estimates"),
        "{sampled}"
    );
    // By samples as by counts, within a third.
    let estimated = number_before(sampled, " lines across nodes for loads");
    let ratio = estimated as f64 / loads as f64;
    assert!(
        (0.67..1.5).contains(&ratio),
        "{estimated} estimated, {loads} counted: {printed}"
    );
    assert!(
        refused.contains("nothing counts here: no device"),
        "{refused}"
    );
    assert!(refused.ends_with("status 1\n"), "{refused}");
}
