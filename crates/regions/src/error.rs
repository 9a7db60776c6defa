//! What can go wrong, each with what to do about it.

/// Why a region or a domain could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument has no meaning.
    #[error("{0}")]
    Invalid(String),
    /// The kernel refuses, or a set cannot be read.
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
