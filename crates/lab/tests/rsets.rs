//! The example of resource sets in C on emulated machines: it binds threads by `fill` and `round-robin`, has each
//! allocate memory `local`, `remote` and `striped`, and looks up every thread's node and every page's. It ends with
//! an error where one is not as promised; that it looked at all of them is checked here.

use crate::common::{built, compiled_example};
use std::path::Path;
use std::process::Command;

/// Pages that each thread allocates under each pair of policies, as the example has it.
const PAGES: usize = 64;
/// Pairs of policies.
const PAIRS: usize = 6;

fn run(machine: &str, cpus: usize, threads: usize) -> String {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled_example("rsets", folder.path());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines");
    let mut lab = Command::new(built("hither"));
    lab.args(["lab", "run", "--timeout", "10m", "--machine"]);
    lab.arg(file.join(format!("{machine}.toml")));
    lab.args(["--cpus", &cpus.to_string(), "--"]);
    let output = lab
        .arg(&program)
        .args(["allowed", &threads.to_string()])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{told}");
    printed
}

#[test]
#[ignore = "boots QEMU; make test runs it"]
fn every_thread_and_page_is_where_the_policies_promise() {
    let (cpus, threads) = (8, 6);
    let printed = run("opteron8385", cpus, threads);
    let all = format!(", {0} of {0} pages as promised\n", PAGES * threads);
    assert_eq!(printed.matches(&all).count(), PAIRS, "{printed}");
    // Two CPUs on each of four nodes.
    assert_eq!(
        printed.matches("nodes of threads 0 0 1 1 2 2,").count(),
        3,
        "{printed}"
    );
    assert_eq!(
        printed.matches("nodes of threads 0 1 2 3 0 1,").count(),
        3,
        "{printed}"
    );
    assert!(!printed.contains("refused"), "{printed}");
}
