//! What long measurements print: a table for people, a document for programs, progress meanwhile.

use crate::print;
use anyhow::{Context, ensure};
use hither_core::foreign::Foreign;
use hither_linux::sys;
use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

/// Time between two lines of progress, in ns.
const PROGRESS_EVERY_NS: u64 = 100_000_000;

/// The document to a file and the table to a person, or the document alone to standard output.
pub fn show(json: &Option<PathBuf>, document: &str, table: &str) -> anyhow::Result<()> {
    match json {
        Some(path) if is_standard_output(path) => print::out(document)?,
        Some(path) => {
            write("--json", path, document)?;
            print::out_coloured(table)?;
        }
        None => print::out_coloured(table)?,
    }
    Ok(())
}

/// Is it `-`?
pub fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Found out now rather than after a long run; nothing is overwritten yet.
pub fn can_write(option: &str, path: &Path) -> anyhow::Result<()> {
    if option == "--json" && is_standard_output(path) {
        return Ok(());
    }
    ensure!(
        !is_standard_output(path),
        "{option} -: only --json prints to standard output; give {option} a file"
    );
    let mut options = std::fs::OpenOptions::new();
    match options.append(true).create_new(true).open(path) {
        // Where the work fails, no empty file is left.
        Ok(_) => std::fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            match options.create_new(false).open(path) {
                // A link to a file that is not there yet: it is made in the end.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                opened => opened.map(drop),
            }
        }
        Err(error) => Err(error),
    }
    .with_context(|| cannot_write(option, path))
}

/// The whole file at once.
pub fn write(option: &str, path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| cannot_write(option, path))
}

fn cannot_write(option: &str, path: &Path) -> String {
    format!(
        "{} cannot be written; give {option} a file in a folder of yours",
        path.shown()
    )
}

/// One line on a terminal that says how far it is.
pub struct Progress {
    is_shown: bool,
    /// When the next line may be shown.
    due_ns: u64,
    /// A line is to be seen.
    is_there: bool,
}

impl Progress {
    /// Shown where standard error is a terminal.
    pub fn new() -> Self {
        Self::after(0)
    }

    /// The same, of what is worth a line only if it takes so long, in ns.
    pub fn after(ns: u64) -> Self {
        Self {
            is_shown: io::stderr().is_terminal(),
            due_ns: sys::monotonic_ns() + ns,
            is_there: false,
        }
    }

    /// Says something, if the last was not said just now.
    pub fn tell(&mut self, line: impl Display) {
        let now_ns = sys::monotonic_ns();
        if self.is_shown && now_ns >= self.due_ns {
            self.due_ns = now_ns + PROGRESS_EVERY_NS;
            self.is_there = true;
            print::err_progress(&format!("hither: {line}"));
        }
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.is_there) {
            print::err_progress("");
        }
    }
}
