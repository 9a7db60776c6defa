//! What long measurements print: a table for people, a document for programs, progress meanwhile.

use crate::print;
use crate::terminal::Terminal;
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
            let written = write("--json", path, document);
            print::report(table)?;
            written?;
        }
        None => print::report(table)?,
    }
    Ok(())
}

/// Several files out of one piece of work: one that cannot be written keeps none of the others from
/// being written, and each is told by itself.
#[derive(Default)]
pub struct Files(Vec<anyhow::Error>);

impl Files {
    /// Writes one where it is asked for; `text` may fail too.
    pub fn write(
        &mut self,
        option: &str,
        path: Option<&Path>,
        text: impl FnOnce() -> anyhow::Result<String>,
    ) {
        let written = path.map_or(Ok(()), |path| {
            can_write(option, path)?;
            write(option, path, &text()?)
        });
        self.0.extend(written.err());
    }

    /// After the last.
    ///
    /// # Errors
    /// What failed last; what failed before is told here.
    pub fn finish(mut self) -> anyhow::Result<()> {
        let last = self.0.pop();
        self.0.iter().for_each(print::error);
        last.map_or(Ok(()), Err)
    }
}

/// Can each of these files be written, and is none meant twice? Found out now rather than after a long
/// run.
///
/// # Errors
/// The first that cannot be.
pub fn can_write_all(files: &[(&str, &Option<PathBuf>)]) -> anyhow::Result<()> {
    check_names(files)?;
    let mut asked = files
        .iter()
        .filter_map(|(option, path)| Some((option, path.as_ref()?)));
    asked.try_for_each(|(option, path)| can_write(option, path))
}

/// Is no file meant twice, and standard output for JSON alone?
///
/// # Errors
/// The first that is not so.
pub fn check_names(files: &[(&str, &Option<PathBuf>)]) -> anyhow::Result<()> {
    for (index, (option, path)) in files.iter().enumerate() {
        let is_same = |other: &&(&str, &Option<PathBuf>)| other.1 == *path;
        let Some(path) = path else { continue };
        if is_standard_output(path) {
            can_write(option, path)?;
            continue;
        }
        if let Some((other, _)) = files[..index].iter().find(is_same) {
            anyhow::bail!(
                "{other} and {option} are the same file, {}; give each its own",
                path.shown()
            );
        }
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
            // A longer line could not be taken away again.
            let width = Terminal::of_errors().width.unwrap_or(usize::MAX);
            print::err_progress(&print::elided(&format!("hither: {line}"), width - 1));
        }
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.is_there) {
            print::err_progress("");
        }
    }
}
