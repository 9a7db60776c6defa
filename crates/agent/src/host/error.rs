//! What keeps the loop from its work.

use std::io;

/// Of this layer.
pub type Result<T> = std::result::Result<T, Error>;

/// What, where, and how to mend it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused something.
    #[error("{what}")]
    System {
        /// What was to be done, and what would help.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel was asked in vain.
    #[error(transparent)]
    Linux(#[from] hither_linux::Error),
    /// A recording cannot be written or read.
    #[error(transparent)]
    Recording(#[from] hither_recording::Error),
    /// What was asked for makes no sense here.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// While doing something.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}
