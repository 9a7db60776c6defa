//! Short tests of one machine in one boot, which takes as long as each of them.

use super::{built, ran};
use crate::{damon, hintfault, monitor, record};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// What one test has run in the guest.
pub struct Part {
    pub name: &'static str,
    /// For `sh -c`, and what is `$0` there.
    pub script: String,
    pub first: PathBuf,
    /// Programs that it needs.
    pub files: Vec<PathBuf>,
    /// A folder or file of the guest that is brought back.
    pub back: Option<&'static str>,
}

/// Runs each part: `NAME SCRIPT FIRST` are three words.
const RUNNER: &str = "while [ $# -gt 0 ]; do echo \"== $1\"; sh -c \"$2\" \"$3\"; echo \"== status $?\"; shift 3; done";

/// A folder for what is compiled and brought back, emptied by the next boot.
fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/together"))
}

static TOLD: LazyLock<String> = LazyLock::new(|| {
    let _ = std::fs::remove_dir_all(folder());
    std::fs::create_dir_all(folder()).unwrap();
    let parts = [
        damon::part(),
        hintfault::part(),
        monitor::part(folder()),
        record::part(),
    ];
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/opteron8385.toml");
    let mut lab = Command::new(built("hither"));
    lab.args(["lab", "run", "--cpus", "4", "--timeout", "15m", "--machine"]);
    lab.arg(machine);
    for part in &parts {
        for file in &part.files {
            lab.arg("--file").arg(file);
        }
        if let Some(guest) = part.back {
            let host = folder().join(part.name);
            lab.arg(format!("--back={guest}:{}", host.display()));
        }
    }
    lab.args(["--", "sh", "-c", RUNNER, "sh"]);
    for part in parts {
        lab.args([part.name, &part.script]).arg(part.first);
    }
    ran(&mut lab).0
});

/// What a part printed; it must have ended well.
pub fn told(name: &str) -> &'static str {
    let told = &*TOLD;
    let part = told.split_once(&format!("== {name}\n"));
    let (part, rest) = part
        .and_then(|(_, rest)| rest.split_once("== status "))
        .unwrap_or_else(|| panic!("no `{name}` in\n{told}"));
    assert!(rest.starts_with("0\n"), "{name} failed:\n{part}");
    part
}

/// Where a part's folder or file was brought.
pub fn back(name: &str) -> PathBuf {
    LazyLock::force(&TOLD);
    folder().join(name)
}
