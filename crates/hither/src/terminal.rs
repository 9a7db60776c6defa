//! How wide what is printed on is, and whether it shows colours: told here for every command.
//!
//! The width is `COLUMNS` where that is a number, else that of the terminal. A pipe or a file has none:
//! nothing is wrapped or shortened for it. Colours are for terminals alone, and for none whose `TERM` is
//! missing or `dumb`, and not with `NO_COLOR` (<https://no-color.org>).

use hither_lab::os::{is_terminal, window_size};
use std::env;
use std::ffi::OsStr;
use std::os::fd::RawFd;

/// Of a terminal that does not tell its width.
const UNTOLD_WIDTH: usize = 80;
/// What is narrower is taken for this: figures must have room.
const LEAST_WIDTH: usize = 40;

/// What is printed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// Letters in a line; `None` where lines are as long as they need be.
    pub width: Option<usize>,
    /// Are colours shown?
    pub colour: bool,
}

impl Terminal {
    /// A pipe or a file.
    #[cfg(test)]
    pub const PIPE: Self = Self {
        width: None,
        colour: false,
    };

    /// Standard output.
    #[must_use]
    pub fn of_output() -> Self {
        Self::of(1)
    }

    /// Standard error.
    #[must_use]
    pub fn of_errors() -> Self {
        Self::of(2)
    }

    fn of(fd: RawFd) -> Self {
        let told = is_terminal(fd).then(|| window_size(fd).map_or(0, |(_, columns)| columns));
        decide(
            told,
            env::var_os("COLUMNS").as_deref(),
            env::var_os("NO_COLOR").as_deref(),
            env::var_os("TERM").as_deref(),
        )
    }

    /// A word in a colour, where colours are shown.
    #[must_use]
    pub fn paint(self, colour: Colour, word: &str) -> String {
        match self.colour {
            true => format!("\x1b[{}m{word}\x1b[0m", colour.code()),
            false => word.to_owned(),
        }
    }
}

/// `told`: columns that the terminal tells, 0 where it does not; `None` where there is no terminal.
fn decide(
    told: Option<u16>,
    columns: Option<&OsStr>,
    no_color: Option<&OsStr>,
    term: Option<&OsStr>,
) -> Terminal {
    let asked = columns.and_then(|columns| columns.to_str()?.parse().ok());
    let own = told.map(|columns| match columns {
        0 => UNTOLD_WIDTH,
        columns => columns.into(),
    });
    let is_capable = term.is_some_and(|term| !term.is_empty() && term != "dumb");
    Terminal {
        width: asked
            .filter(|&columns: &usize| columns > 0)
            .or(own)
            .map(|width| width.max(LEAST_WIDTH)),
        colour: told.is_some() && is_capable && no_color.is_none_or(OsStr::is_empty),
    }
}

/// What a colour says; the words and figures say it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// As it should be.
    Good,
    /// Worth a look.
    Poor,
    /// What stands out most.
    Bad,
}

impl Colour {
    /// Parameters of the escape sequence "select graphic rendition": green, yellow, bold red.
    fn code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Poor => "33",
            Self::Bad => "1;31",
        }
    }

    /// Of a share of memory that is on the wrong node, or of accesses to another one: from a tenth on
    /// worth a look, from the half on bad.
    #[must_use]
    pub fn of_misplaced(share: f64) -> Option<Self> {
        match share {
            share if share >= 0.5 => Some(Self::Bad),
            share if share >= 0.1 => Some(Self::Poor),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_before_the_terminal_and_a_pipe_has_no_width() {
        let width =
            |told, columns: Option<&str>| decide(told, columns.map(OsStr::new), None, None).width;
        assert_eq!(width(None, None), None);
        assert_eq!(width(None, Some("60")), Some(60));
        assert_eq!(width(Some(100), None), Some(100));
        assert_eq!(width(Some(100), Some("120")), Some(120));
        assert_eq!(width(Some(0), None), Some(80));
        for nonsense in ["", "0", "wide", "-3"] {
            assert_eq!(width(Some(100), Some(nonsense)), Some(100), "{nonsense}");
            assert_eq!(width(None, Some(nonsense)), None, "{nonsense}");
        }
        assert_eq!(width(None, Some("3")), Some(40));
    }

    #[test]
    fn colours_are_for_terminals_that_have_them() {
        let colour = |told, no_color: Option<&str>, term: Option<&str>| {
            let [no_color, term] = [no_color, term].map(|word| word.map(OsStr::new));
            decide(told, Some(OsStr::new("80")), no_color, term).colour
        };
        assert!(colour(Some(80), None, Some("xterm")));
        assert!(colour(Some(80), Some(""), Some("xterm")));
        assert!(!colour(Some(80), Some("1"), Some("xterm")));
        assert!(!colour(Some(80), None, Some("dumb")));
        assert!(!colour(Some(80), None, None));
        assert!(!colour(None, None, Some("xterm")));
    }

    #[test]
    fn misplacement_stands_out_by_degrees() {
        let of = [0.0, 0.099, 0.1, 0.49, 0.5, 1.0].map(Colour::of_misplaced);
        let (poor, bad) = (Some(Colour::Poor), Some(Colour::Bad));
        assert_eq!(of, [None, None, poor, poor, bad, bad]);
        let shown = Terminal {
            colour: true,
            ..Terminal::PIPE
        };
        assert_eq!(shown.paint(Colour::Bad, "62.1"), "\x1b[1;31m62.1\x1b[0m");
        assert_eq!(Terminal::PIPE.paint(Colour::Bad, "62.1"), "62.1");
    }
}
