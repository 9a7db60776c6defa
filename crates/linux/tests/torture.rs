//! No byte is lost: the short form of `examples/move_torture`, in place on this machine.

use std::process::Command;

/// Runs scenarios; each fails at the first wrong byte, and where it never met what it is about.
fn survive(scenario: &str, more: &[&str]) {
    let test = std::env::current_exe().unwrap();
    let program = test
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples/move_torture");
    let run = |more: &[&str]| {
        let counts = ["--rounds", "12", "--stores", "300000", "--seed", "11"];
        let mut command = Command::new(&program);
        command
            .arg(scenario)
            .args(counts)
            .args(more)
            .output()
            .unwrap()
    };
    let mut output = run(more);
    // Status 3: an ordinary user may not hear of forks. What needs that is left out then.
    if output.status.code() == Some(3) && scenario == "writers" {
        output = run(&[more, &["--unprivileged"]].concat());
    }
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    println!("{told}");
    assert!(output.status.success(), "{told}");
}

#[test]
fn stores_to_pages_on_their_way() {
    survive("writers", &[]);
    survive("writers", &["--huge"]);
}

#[test]
fn forks_at_every_step() {
    survive("forks", &["--rounds", "100"]);
}

#[test]
fn changes_of_mappings() {
    survive("changes", &[]);
}

#[test]
fn pinned_pages() {
    survive("pinned", &[]);
}
