//! `check`: everything that reads the sources without running them.

use crate::{generate, tidy};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Runs every check, goes on after a failure, and fails if any did.
pub fn run(root: &Path) -> Result<()> {
    let clippy = [
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    let steps: [(&str, &dyn Fn() -> Result<()>); 4] = [
        ("formatting", &|| cargo(root, &["fmt", "--all", "--check"])),
        ("tidy", &|| tidy::run(root)),
        ("generated text", &|| generate::check(root)),
        ("clippy", &|| cargo(root, &clippy)),
    ];
    let mut failed = Vec::new();
    for (name, step) in steps {
        let start = Instant::now();
        let outcome = step();
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => println!("check: {name} is good ({seconds:.1} s)"),
            Err(error) => {
                println!("check: {name} FAILED ({seconds:.1} s): {error:#}");
                failed.push(name);
            }
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("failed: {}", failed.join(", "))
}

fn cargo(root: &Path, words: &[&str]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(words)
        .current_dir(root)
        .status()
        .with_context(|| format!("cannot run cargo {}", words[0]))?;
    if !status.success() {
        bail!("cargo {} ended with {status}", words.join(" "));
    }
    Ok(())
}
