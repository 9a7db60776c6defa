//! Short forms of the torture of the backend `swap` on this machine's own kernel; `make evidence`
//! has the long ones, the laboratory those across nodes. The program is `examples/move_torture`.

use hither_linux::backend::swap::SwapBackend;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Mutex;

/// One at a time: each uses all CPUs, and some change settings of the machine.
static TURN: Mutex<()> = Mutex::new(());

fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples/move_torture");
    assert!(
        path.is_file(),
        "{} is missing: run `cargo test` without --test",
        path.display()
    );
    path
}

/// An ordinary user may only ask for the form without privilege; where even that is not to be had,
/// the test fails and says why.
fn privilege() -> &'static [&'static str] {
    if SwapBackend::available(false).is_ok() {
        return &[];
    }
    match SwapBackend::available(true) {
        Ok(()) => &["--unprivileged"],
        Err(why) => panic!("the backend `swap` cannot be tested here: {why}"),
    }
}

/// Runs a scenario, and once more with huge pages.
fn torture(scenario: &str, arguments: &[&str]) {
    let _turn = TURN.lock().unwrap_or_else(|poison| poison.into_inner());
    for huge in [&[][..], &["--huge"]] {
        let Output {
            status,
            stdout,
            stderr,
        } = Command::new(program())
            .arg(scenario)
            .args(arguments)
            .args(huge)
            .args(privilege())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&stdout);
        println!("{text}");
        assert!(
            status.success(),
            "{text}{}",
            String::from_utf8_lossy(&stderr)
        );
    }
}

#[test]
fn stores_to_pages_on_their_way_are_kept() {
    torture("writers", &["--stores", "100000"]);
}

#[test]
fn children_have_what_their_parents_had() {
    torture("forks", &["--rounds", "20"]);
}

#[test]
fn changes_of_a_mapping_look_as_without_a_mover() {
    torture("changes", &["--rounds", "10"]);
}

#[test]
fn what_is_discarded_stays_away() {
    torture("discards", &["--rounds", "4"]);
}

#[test]
fn the_kernel_reads_and_writes_pages_on_their_way() {
    // Without privilege the kernel's accesses fail in windows; that is what the documents say.
    if privilege().is_empty() {
        torture("kernel", &["--rounds", "100"]);
    }
}

#[test]
fn pinned_pages_stay() {
    torture("pinned", &["--rounds", "20"]);
}

#[test]
fn merged_pages_keep_their_content() {
    torture("ksm", &["--rounds", "10", "--stores", "20000"]);
}

#[test]
fn threads_of_the_mover_may_end_at_any_step() {
    torture("worker", &["--rounds", "20"]);
}

#[test]
fn a_killed_process_leaves_its_children_whole() {
    torture("process", &["--rounds", "10"]);
}

#[test]
fn little_memory_loses_nothing() {
    torture("pressure", &["--rounds", "5"]);
}

#[test]
fn several_movers_on_the_same_pages_lose_nothing() {
    torture("overlap", &["--stores", "50000"]);
}

#[test]
#[ignore = "fails: pages that a pipe refers to by vmsplice are used again for others"]
fn pages_that_a_pipe_refers_to_are_left_alone() {
    torture("splice", &["--rounds", "100"]);
}

#[test]
fn everything_that_a_process_has_may_be_asked_to_move() {
    torture("own", &["--rounds", "3"]);
}

#[test]
fn wrong_calls_are_told() {
    for arguments in [
        &["nothing"][..],
        &[],
        &["writers", "--rounds", "x"],
        &["writers", "--none"],
    ] {
        let output = Command::new(program()).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("usage: move_torture"));
    }
}
