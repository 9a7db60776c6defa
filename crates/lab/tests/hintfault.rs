//! The tracker `hintfault` on an emulated machine of four nodes, against a known placement.

use crate::common::bare;
use crate::common::together::{self, Part};

const SETTINGS: &str = "cat /proc/sys/kernel/numa_balancing \
                        /sys/kernel/debug/sched/numa_balancing/scan_*";

/// What stands behind a word that begins a line.
fn figure(text: &str, word: &str) -> f64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    let first = line.and_then(|line| line.split(' ').next()?.parse().ok());
    first.unwrap_or_else(|| panic!("no `{word}` in {text}"))
}

pub fn part() -> Part {
    let (watch, program) = (bare("examples/hintfault"), bare("memlat"));
    // All memory on node 1, used by CPU 0 of node 0; killed in the middle, and whole.
    let script = format!(
        "{SETTINGS}; $0 -- sleep 9 & sleep 1; echo during; {SETTINGS}; kill -9 $!; wait $!; \
         echo watched; $0 --bind 1 -- {} --mb 16 --cpu 0 --accesses 5000000; \
         echo after; {SETTINGS}",
        program.display()
    );
    Part {
        name: "hintfault",
        script,
        first: watch.clone(),
        files: vec![watch, program],
        back: None,
    }
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn the_pages_the_cpu_and_the_node_are_those_of_the_program() {
    let told = together::told("hintfault");
    let (before, rest) = told.split_once("during\n").unwrap();
    let (during, rest) = rest.split_once("watched\n").unwrap();
    let (text, after) = rest.split_once("after\n").unwrap();
    assert_ne!(before, during, "nothing was switched on");
    assert_eq!(before, after, "something was not put back");
    assert!(before.starts_with("0\n") && during.starts_with("1\n"));
    assert!(
        text.contains("ended without putting back"),
        "the killed one"
    );
    // Every sample is of the CPU and the node, and there are no others.
    let samples = figure(text, "hint_faults");
    let right = figure(text, "samples cpu 0 home 1 count");
    assert!(samples > 4000.0 && right > 0.99 * samples, "{text}");
    assert_eq!(figure(text, "lost"), 0.0);
    assert_eq!(figure(text, "kernel_pages_migrated"), 0.0);
    // As many as the kernel itself counts. The first write to a page that was only read before is a
    // fault on a present page, too: a few of a program's start are taken for hint faults.
    let counted = figure(text, "kernel_hint_faults");
    let alike = 0.98 * counted..=1.01 * counted;
    assert!(alike.contains(&samples), "{text}");
    // The pages are those of the array.
    let pages = figure(text, "largest_mapping_pages");
    assert!((4096.0..4200.0).contains(&pages), "{text}");
    assert!(figure(text, "largest_mapping_sampled_pages") > 0.98 * 4096.0);
    assert!(figure(text, "largest_mapping_samples") > 0.95 * samples);
}
