//! What is wrong with a text that a person wrote, and where.

use std::fmt;

/// A fault with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFault {
    /// Line, counted from 1.
    pub line: usize,
    /// What is wrong and how to mend it.
    pub reason: String,
}

impl TextFault {
    /// On the line in which this byte of the text is.
    #[must_use]
    pub fn at(text: &str, offset: usize, reason: impl Into<String>) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        Self {
            line: before.matches('\n').count() + 1,
            reason: reason.into(),
        }
    }
}

impl fmt::Display for TextFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl std::error::Error for TextFault {}
