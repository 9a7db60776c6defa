//! What can go wrong in the lab, each with place and remedy, and the exit status it gives.

use std::fmt;

/// Exit status for bad input and for pieces that are missing.
pub const STATUS_BAD_INPUT: u8 = 2;
/// Exit status of a run that was stopped by `--timeout`, as coreutils' `timeout` has it.
pub const STATUS_TIMED_OUT: u8 = 124;
/// Exit status where the lab itself failed: guest panic, QEMU gone, broken channel.
pub const STATUS_LAB_FAILED: u8 = 125;

/// A failure of the lab.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller asked for something that cannot be.
    #[error("{what}\n  to mend it: {remedy}")]
    BadInput {
        /// What is wrong, and where.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// A piece that the lab needs is not on this machine.
    #[error("{what}\n  to mend it: {remedy}")]
    Missing {
        /// What is missing.
        what: String,
        /// How to get it.
        remedy: String,
    },
    /// The boot or the program took longer than it was given.
    #[error(
        "stopped after {seconds} s: {during}\n  to mend it: give it longer with --timeout, or less work{console}"
    )]
    TimedOut {
        /// Host seconds that were allowed.
        seconds: u64,
        /// What was going on.
        during: String,
        /// The guest's last console lines.
        console: Console,
    },
    /// A signal asked hither to stop; the guest was ended with it.
    #[error("interrupted by signal {signal}; the guest was stopped")]
    Interrupted {
        /// Its number.
        signal: i32,
    },
    /// The reader of the output is gone.
    #[error("nobody reads the output any more; the guest was stopped")]
    OutputClosed,
    /// Guest or emulator failed.
    #[error("{what}{console}")]
    Guest {
        /// What happened.
        what: String,
        /// The guest's last console lines.
        console: Console,
    },
    /// The emulator crashed or hung before the guest was up: nothing has run yet.
    #[error("{what}{console}")]
    Crashed {
        /// What happened.
        what: String,
        /// The guest's last console lines.
        console: Console,
    },
    /// The operating system refused something.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, with the path.
        doing: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// The lab's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Last lines of the guest's console, shown under an error where there are any.
#[derive(Clone, Debug, Default)]
pub struct Console(pub Vec<String>);

impl fmt::Display for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, "\n  last lines of the guest's console:")?;
        self.0.iter().try_for_each(|line| write!(f, "\n  | {line}"))
    }
}

impl Error {
    /// Bad input, with its remedy.
    pub fn bad(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::BadInput {
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// A missing piece, with its remedy.
    pub fn missing(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Missing {
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// The guest sent what it should not.
    pub fn guest_sent(what: impl fmt::Display) -> Self {
        Self::Guest {
            what: format!("the guest sent {what}"),
            console: Console::default(),
        }
    }

    /// For `map_err`: says what was being done when the system refused.
    pub fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    /// The exit status for it.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::BadInput { .. } | Self::Missing { .. } => STATUS_BAD_INPUT,
            Self::TimedOut { .. } => STATUS_TIMED_OUT,
            Self::Interrupted { signal } => u8::try_from(128 + signal).unwrap_or(130),
            // A closed pipe is how `| head` says that it has enough.
            Self::OutputClosed => 0,
            Self::Guest { .. } | Self::Crashed { .. } | Self::Io { .. } => STATUS_LAB_FAILED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_follow_the_documented_table() {
        assert_eq!(Error::bad("a", "b").exit_status(), 2);
        assert_eq!(Error::missing("a", "b").exit_status(), 2);
        assert_eq!(Error::Interrupted { signal: 2 }.exit_status(), 130);
        let timed_out = Error::TimedOut {
            seconds: 1,
            during: "boot".into(),
            console: Console::default(),
        };
        assert_eq!(timed_out.exit_status(), 124);
        let guest = Error::Guest {
            what: "panic".into(),
            console: Console(vec!["x".into()]),
        };
        assert_eq!(guest.exit_status(), 125);
        assert!(guest.to_string().contains("| x"));
    }
}
