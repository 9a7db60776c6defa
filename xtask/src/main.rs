//! Chores of the repository: `cargo xtask check | tidy | gen [--check] | evidence FILE |
//! mix-report FILE... | unification-map SVG FILE...`.
//!
//! What a compiler cannot know about this repository is checked here, and what can be derived from
//! its sources is generated here, so that neither depends on anybody's memory.
#![forbid(unsafe_code)]

mod check;
mod evidence;
mod files;
mod generate;
mod header;
mod mix;
mod tidy;
mod unification;

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  check            formatting, clippy without warnings, tidy, generated text up to date
  tidy             rules of this repository (docs/ARCHITECTURE.md, \"Rules that tidy checks\")
  gen              writes the generated parts of README.md and docs/, and the C header
  gen --check      says which of them are not up to date
  evidence FILE    prints the table of a `hither lab compare --json` result as Markdown
  mix-report FILE...
                   compares outputs of the program `mix` under several policies, the first
                   with the others (docs/workloads.md)
  unification-map SVG FILE...
                   draws outputs of the example `tworegion` (docs/regions.md)";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let root = root();
    let outcome = match words.as_slice() {
        ["check"] => check::run(&root),
        ["tidy"] => tidy::run(&root),
        ["gen"] => generate::write(&root),
        ["gen", "--check"] => generate::check(&root),
        ["evidence", file] => evidence::print(Path::new(file)),
        ["mix-report", files @ ..] if !files.is_empty() => {
            let Err(error) = mix::print(files) else {
                return ExitCode::SUCCESS;
            };
            eprintln!("xtask: {error:#}");
            return ExitCode::from(2);
        }
        ["unification-map", svg, files @ ..] if !files.is_empty() => {
            unification::draw(Path::new(svg), files)
        }
        ["unification-map", ..] => {
            eprintln!(
                "xtask: unification-map needs a drawing to write and files: outputs of `tworegion`"
            );
            return ExitCode::from(2);
        }
        ["mix-report"] => {
            eprintln!("xtask: mix-report needs files: outputs of the program `mix`");
            return ExitCode::from(2);
        }
        [] | ["--help" | "-h" | "help"] => {
            println!("{USAGE}");
            Ok(())
        }
        other => {
            eprintln!(
                "xtask: there is no command `{}`\n\n{USAGE}",
                other.join(" ")
            );
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The repository: the folder above this crate.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .map_or_else(|| here.to_path_buf(), Path::to_path_buf)
}

/// Fails with a count unless it is zero.
fn none(count: usize, what: &str) -> Result<()> {
    if count > 0 {
        bail!("{count} {what}");
    }
    Ok(())
}
