//! Short forms of the torture of the backend `swap` on this machine's own kernel; `make evidence`
//! has the long ones, the laboratory those across nodes. The program is `examples/move_torture`.

use hither_linux::backend::swap::SwapBackend;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock};

/// One at a time: each uses all CPUs, and some change settings of the machine.
static TURN: Mutex<()> = Mutex::new(());

/// The program, in this test's profile. Cargo builds examples for a whole `cargo test` only.
fn program() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let test = std::env::current_exe().unwrap();
        let folder = test.ancestors().nth(2).unwrap();
        let profile = if folder.ends_with("release") {
            "release"
        } else {
            "dev"
        };
        let status = Command::new(env!("CARGO"))
            // With the whole workspace, as other choices of features would build its libraries anew.
            .args(["build", "--quiet", "--workspace"])
            .args(["--example", "move_torture", "--profile", profile])
            .arg("--target-dir")
            .arg(folder.parent().unwrap())
            .status()
            .unwrap();
        assert!(status.success(), "the program cannot be built");
        folder.join("examples/move_torture")
    };
    BUILT.get_or_init(build).clone()
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

/// Runs a scenario with small and with huge pages.
fn torture(scenario: &str, arguments: &[&str]) {
    survive(scenario, arguments, &[&[], &["--huge"]]);
}

/// The same, and once more where no page is ever in stock: all are got on the way.
fn torture_without_stock(scenario: &str, arguments: &[&str]) {
    survive(scenario, arguments, &[&[], &["--huge"], &["--no-stock"]]);
}

fn survive(scenario: &str, arguments: &[&str], forms: &[&[&str]]) {
    let _turn = TURN.lock().unwrap_or_else(|poison| poison.into_inner());
    for form in forms {
        let Output {
            status,
            stdout,
            stderr,
        } = Command::new(program())
            .arg(scenario)
            .args(arguments)
            .args(*form)
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
    torture_without_stock("writers", &["--stores", "100000"]);
}

#[test]
fn children_have_what_their_parents_had() {
    torture_without_stock("forks", &["--rounds", "10"]);
}

#[test]
fn changes_of_a_mapping_look_as_without_a_mover() {
    torture_without_stock("changes", &["--rounds", "3"]);
}

#[test]
fn what_is_discarded_stays_away() {
    torture("discards", &["--rounds", "2"]);
}

#[test]
fn the_kernel_reads_and_writes_pages_on_their_way() {
    // Without privilege the kernel's accesses fail in windows; that is what the documents say.
    if privilege().is_empty() {
        torture_without_stock("kernel", &["--rounds", "50"]);
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
    torture_without_stock("worker", &["--rounds", "20"]);
}

#[test]
fn a_killed_process_leaves_its_children_whole() {
    torture_without_stock("process", &["--rounds", "6"]);
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
fn what_a_pipe_refers_to_stays() {
    torture("splice", &["--rounds", "50"]);
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
