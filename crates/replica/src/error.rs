//! What can go wrong, each with what to do about it.

use std::time::Duration;

/// Why a call on a replicated array failed; the array is as before.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument has no meaning.
    #[error("{0}")]
    Invalid(String),
    /// A child after `fork`.
    #[error(
        "this process is a child after fork, and the replicated array is its parent's: make one after fork, or \
         read through a guard that was held at the fork"
    )]
    Forked,
    /// Readers, a writer or a builder did not let go in time.
    #[error(
        "{what} after {} ms: let guards go sooner, or wait longer", waited.as_millis()
    )]
    Busy {
        /// Who was in the way.
        what: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// All slots for readers are in use.
    #[error("all {0} readers are in use: drop some, or make the array with a larger `max_readers`")]
    NoReader(usize),
    /// The kernel refuses.
    #[error(transparent)]
    Linux(#[from] hither_linux::Error),
    /// The system has no memory or thread to give.
    #[error("{what}: {source}")]
    System {
        /// What was wanted.
        what: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}
