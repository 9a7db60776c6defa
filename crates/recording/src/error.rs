//! What keeps a recording from being written or read.

use hither_core::foreign::Foreign;
use std::io;
use std::path::{Path, PathBuf};

/// What, where, and how to mend it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}; {remedy}", path.shown())]
pub struct Error {
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
    /// What would help.
    pub remedy: &'static str,
    /// What the system said.
    #[source]
    pub source: Option<io::Error>,
}

/// Of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Does something have the name already?
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.is(io::ErrorKind::AlreadyExists)
    }

    /// Is the folder above not there?
    pub(crate) fn is_missing(&self) -> bool {
        self.is(io::ErrorKind::NotFound)
    }

    fn is(&self, kind: io::ErrorKind) -> bool {
        let source = self.source.as_ref();
        source.is_some_and(|error| error.kind() == kind)
    }

    pub(crate) fn new(path: &Path, reason: impl Into<String>, remedy: &'static str) -> Self {
        Self {
            path: path.to_owned(),
            reason: reason.into(),
            remedy,
            source: None,
        }
    }

    pub(crate) fn io(path: &Path, doing: &str, remedy: &'static str, error: io::Error) -> Self {
        Self {
            source: Some(error),
            ..Self::new(path, doing, remedy)
        }
    }
}
