//! Moves across nodes lose no byte: short forms of `examples/move_torture` on an emulated machine.

mod common;

use common::built;
use std::path::Path;
use std::process::Command;

/// Runs scenarios in one boot, and checks that none was skipped for want of something that the
/// laboratory's kernel has.
fn torture(scenario: &str, arguments: &[&str]) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/skylake8160.toml");
    let output = Command::new(built("hither"))
        .args(["lab", "run", "--cpus", "8", "--timeout", "9m", "--machine"])
        .arg(&file)
        .arg("--")
        .arg(built("examples/move_torture"))
        .args([scenario, "--nodes", "2", "--threads", "8"])
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = format!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{scenario}: {text}");
    println!("{text}");
    text
}

/// The line of a scenario has this count, and it is not zero.
fn assert_met(text: &str, scenario: &str, name: &str) {
    let line = text
        .lines()
        .find_map(|line| line.split_once(&format!("{scenario}: ")));
    let (_, counts) = line.unwrap_or_else(|| panic!("no line of {scenario} in {text}"));
    let count = counts.split([',', ';']).find_map(|part| {
        let count = part.trim().strip_prefix(name)?.trim();
        count.split(' ').next()?.parse::<u64>().ok()
    });
    assert!(count.is_some_and(|count| count > 0), "{name} in {counts}");
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn stores_across_nodes_are_kept() {
    for pages in [&[][..], &["--huge"]] {
        let mut arguments = vec!["--stores", "200000"];
        arguments.extend(pages);
        let text = torture("writers", &arguments);
        for name in [
            "stores in flight",
            "stores with a window open",
            "pages moved",
            "stalls",
        ] {
            assert_met(&text, "writers", name);
        }
    }
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn children_across_nodes_have_what_their_parents_had() {
    let text = torture("forks", &["--rounds", "10"]);
    for name in [
        "forks that fell into windows",
        "children with all they should have",
    ] {
        assert_met(&text, "forks", name);
    }
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn changes_deaths_and_movers_across_nodes_lose_nothing() {
    let text = torture("changes", &["--rounds", "10"]);
    assert_met(&text, "changes", "changes with a window open");
    let text = torture("worker", &["--rounds", "20"]);
    assert_met(&text, "worker", "workers that ended");
    let text = torture("overlap", &["--stores", "50000"]);
    assert_met(&text, "overlap", "stores with a window open");
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn a_full_target_node_and_pinned_pages_lose_nothing() {
    let text = torture("pressure", &["--rounds", "2"]);
    assert_met(&text, "pressure", "pages that did not arrive");
    let text = torture("pinned", &["--rounds", "20"]);
    assert!(
        text.contains("not run: io_uring") || text.contains("pages refused (pinned)"),
        "{text}"
    );
}
