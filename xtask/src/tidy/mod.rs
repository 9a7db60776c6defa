//! `tidy`: rules of this repository that a compiler does not know.
//!
//! Every rule is a function from text to findings, with the path, the line and the remedy in each.

mod edges;
mod layers;
mod machines;
mod printing;
mod sources;
mod verdicts;

use crate::files::{self, Source};
use anyhow::Result;
use std::fmt;
use std::path::{Path, PathBuf};

/// Something against a rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// File, relative to the repository.
    pub path: PathBuf,
    /// Line from 1; 0 for the whole file.
    pub line: usize,
    /// What is wrong and what to do.
    pub text: String,
}

impl Finding {
    fn new(path: &Path, line: usize, text: impl Into<String>) -> Self {
        Self {
            path: path.to_path_buf(),
            line,
            text: text.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.text)
    }
}

/// Applies every rule and prints what it finds.
pub fn run(root: &Path) -> Result<()> {
    let sources = files::all(root)?;
    let mut findings = findings(&sources);
    findings.extend(verdicts::check(root)?);
    for finding in &findings {
        println!("{finding}");
    }
    crate::none(findings.len(), "finding(s) of tidy, listed above")
}

fn findings(sources: &[Source]) -> Vec<Finding> {
    let mut findings = edges::check(sources);
    findings.extend(layers::check(sources));
    for source in sources {
        findings.extend(sources::check(source));
        findings.extend(printing::check(source));
        if source.path.starts_with("machines") && source.is("toml") {
            findings.extend(machines::check(source));
        }
    }
    findings.extend(sources::dead_files(sources));
    findings
}

#[cfg(test)]
fn source(path: &str, text: &str) -> Source {
    Source {
        path: path.into(),
        text: text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_files_and_sources_meet_their_rules() {
        let sources = [
            source("docs/ARCHITECTURE.md", "| `crates/a` | x | nothing |\n"),
            source("crates/a/Cargo.toml", "[package]\nname = \"hither-a\"\n"),
            source("crates/a/src/lib.rs", "pub fn num_nodes() {}\n"),
            source("crates/a/src/unused.rs", ""),
            source("machines/m.toml", "ghz = 2.3\n"),
            source("fuzz/m.toml", "ghz = 2.3\n"),
        ];
        let texts: Vec<_> = findings(&sources).iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 3, "{texts:#?}");
        assert!(texts[0].starts_with("crates/a/src/lib.rs:1: `num_nodes`"));
        assert!(texts[1].starts_with("machines/m.toml:1: "));
        assert!(texts[2].starts_with("crates/a/src/unused.rs:0: "));
    }
}
