//! The crate's one error: what could not be read or done, where, and how to mend it.

use hither_core::foreign::Foreign;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Shorthand for this crate's results.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure with its place and its remedy. Things that happen to moves (page busy, process
/// gone) are outcomes and never errors.
#[derive(Debug)]
pub struct Error {
    /// The file, or the kernel interface, concerned.
    pub place: PathBuf,
    /// Line in that file, counted from 1, where one is known.
    pub line: Option<usize>,
    /// What is wrong, without a full stop.
    pub reason: String,
    /// What a person can do about it, without a full stop.
    pub remedy: String,
    /// The kernel's own answer, where it gave one.
    pub source: Option<io::Error>,
}

/// A fault in a text, found by a pure parser that knows no path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line counted from 1.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

impl Fault {
    /// A fault on a line (counted from 1).
    pub fn new(line: usize, reason: impl Into<String>) -> Self {
        Self {
            line,
            reason: reason.into(),
        }
    }

    /// Adds the path, and the remedy that fits a file of that kind.
    #[must_use]
    pub fn at(self, path: &Path, remedy: &str) -> Error {
        Error {
            place: path.to_owned(),
            line: Some(self.line),
            reason: self.reason,
            remedy: remedy.to_owned(),
            source: None,
        }
    }
}

impl Error {
    /// A fault of a place as a whole.
    pub fn new(
        place: impl Into<PathBuf>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            place: place.into(),
            line: None,
            reason: reason.into(),
            remedy: remedy.into(),
            source: None,
        }
    }

    /// The kernel refused.
    pub fn io(
        place: impl Into<PathBuf>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
        source: io::Error,
    ) -> Self {
        Self {
            source: Some(source),
            ..Self::new(place, reason, remedy)
        }
    }

    /// The kernel's error number, where there is one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.source.as_ref().and_then(io::Error::raw_os_error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place.shown())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.reason)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_where_what_and_how_to_mend_it() {
        let error = Fault::new(3, "`x` is no number").at(Path::new("/sys/a"), "copy it again");
        assert_eq!(
            error.to_string(),
            "/sys/a:3: `x` is no number; copy it again"
        );
    }
}
