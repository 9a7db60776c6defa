//! Printing: standard output that may be closed, tables, sizes, error chains.

mod table;
mod wrap;

pub use table::Table;
pub use wrap::{command, elided, fold, lines, width_of};

use crate::terminal::Terminal;
use hither_core::foreign::{self, Foreign};
pub use hither_core::size::decimals;
use std::fmt;
use std::io::{self, Write};

/// A line of a report that is too long goes on so many letters farther in.
pub const HANG: usize = 2;

/// Prints to standard output; what would steer a terminal is written out ([`foreign::lines`]).
///
/// # Errors
/// What the kernel said; a closed pipe is recognised by [`is_broken_pipe`].
pub fn out(text: &str) -> io::Result<()> {
    write_out(&foreign::lines(text))
}

/// The same of text that hither has coloured.
///
/// # Errors
/// As [`out`].
pub fn out_coloured(text: &str) -> io::Result<()> {
    write_out(&foreign::coloured_lines(text))
}

fn write_out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => error,
        kind => io::Error::new(kind, Unprinted(error)),
    })
}

/// Prints a report to standard output: lines that are too long for it go on below.
///
/// # Errors
/// As of [`out`].
pub fn report(text: &str) -> io::Result<()> {
    let terminal = Terminal::of_output();
    let text = match terminal.colour {
        true => foreign::coloured_lines(text),
        false => foreign::lines(text),
    };
    write_out(&fold(&text, terminal.width, HANG))
}

/// Standard output did not take what was printed.
#[derive(Debug)]
struct Unprinted(io::Error);

impl fmt::Display for Unprinted {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(why) = self;
        write!(
            to,
            "standard output cannot be written ({why}); send it where there is room"
        )
    }
}

impl std::error::Error for Unprinted {}

/// Could the result not be printed?
pub fn is_unprinted(error: &anyhow::Error) -> bool {
    let unprinted = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<io::Error>();
        io.and_then(io::Error::get_ref)
            .is_some_and(|inner| inner.is::<Unprinted>())
    };
    error.chain().any(unprinted)
}

/// Prints lines to standard error, each behind the program's name. Nobody is told where even
/// that fails.
pub fn err_lines(text: &str) {
    let prefixed: String = text
        .lines()
        .map(|line| format!("hither: {line}\n"))
        .collect();
    err(&prefixed);
}

/// Prints to standard error, as [`out`] does. Nobody is told where even that fails.
pub fn err(text: &str) {
    let _ = io::stderr()
        .lock()
        .write_all(foreign::lines(text).as_bytes());
}

/// The same with colours of hither's own.
pub fn err_coloured(text: &str) {
    let text = foreign::coloured_lines(text);
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Writes over the last line of a terminal, and goes on in it.
pub fn err_progress(line: &str) {
    let _ = write!(io::stderr(), "\r{}\x1b[K", line.shown());
}

/// Prints a report to standard error, as [`err_lines`] and as wide as that is.
pub fn err_report(text: &str) {
    const NAME: usize = "hither: ".len();
    let width = Terminal::of_errors().width.map(|width| width - NAME);
    err_lines(&fold(text, width, HANG));
}

/// Prints an error with its chain of causes, once.
pub fn error(error: &anyhow::Error) {
    err_lines(&message(&format!("{error:#}")));
}

/// What is said in several lines goes on indented; another end of a line is one of a name that the
/// message holds, and what follows it would look like a message of its own.
fn message(text: &str) -> String {
    let mut lines = text.trim_end().split('\n');
    let mut message = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        message.push(if line.starts_with("  ") { '\n' } else { '?' });
        message.push_str(line);
    }
    message
}

/// Did the reader of our output close it?
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
    };
    error.chain().any(broken)
}

/// Stands for what nobody knows.
pub const DASH: &str = "–";

/// A figure, or the dash.
pub fn or_dash<T>(figure: Option<T>, show: impl FnOnce(T) -> String) -> String {
    figure.map_or_else(|| DASH.to_owned(), show)
}

/// A figure as text, or the dash.
pub fn or_none(figure: Option<String>) -> String {
    or_dash(figure, |text| text)
}

/// A number of bytes with the unit that fits.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        _ => size(bytes >> 10),
    }
}

/// A size given in KiB with the unit that fits.
pub fn size(kb: u64) -> String {
    match kb {
        0 => "0".to_owned(),
        kb if kb >= 1 << 20 && kb % (1 << 20) == 0 => format!("{} GiB", kb >> 20),
        kb if kb >= 1 << 20 => format!("{:.1} GiB", kb as f64 / f64::from(1 << 20)),
        kb if kb >= 1 << 10 && kb % (1 << 10) == 0 => format!("{} MiB", kb >> 10),
        kb if kb >= 1 << 10 => format!("{:.1} MiB", kb as f64 / 1024.0),
        kb => format!("{kb} KiB"),
    }
}

/// A document for programs. Zero has no sign there, wherever a sum of nothing or a rounding gave it
/// one.
pub fn json(mut document: serde_json::Value) -> String {
    unsign_zeros(&mut document);
    format!("{document:#}\n")
}

fn unsign_zeros(value: &mut serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::Number(number) if number.is_f64() && number.as_f64() == Some(0.0) => {
            *value = 0.0.into();
        }
        Value::Array(values) => values.iter_mut().for_each(unsign_zeros),
        Value::Object(fields) => fields.values_mut().for_each(unsign_zeros),
        _ => {}
    }
}

/// `1 node`, `2 nodes`, `2 processes`.
pub fn count(number: usize, what: &str) -> String {
    let end = match number {
        1 => "",
        _ if what.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {what}{end}")
}

/// A report as it is printed has no line that is wider than what it is printed on, and all figures
/// that it has where there is no width.
#[cfg(test)]
pub fn assert_fits(text: impl Fn(Terminal) -> String) {
    let whole = text(Terminal::PIPE);
    for width in [60, 80, 120] {
        let terminal = Terminal {
            width: Some(width),
            colour: false,
        };
        let shown = fold(&text(terminal), terminal.width, HANG);
        for line in shown.lines() {
            assert!(wrap::width_of(line) <= width, "{width}: {line}\n{shown}");
        }
        let count = |text: &str, word: &str| text.split_whitespace().filter(|w| *w == word).count();
        let is_figure = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
        for figure in whole.split_whitespace().filter(is_figure) {
            let counts = [&whole, &shown].map(|text| count(text, figure));
            assert!(
                counts[1] >= counts[0],
                "{width}: {figure} is lost:\n{shown}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_unit_that_fits() {
        assert_eq!(size(0), "0");
        assert_eq!(size(4), "4 KiB");
        assert_eq!(size(2048), "2 MiB");
        assert_eq!(size(2560), "2.5 MiB");
        assert_eq!(size(1 << 20), "1 GiB");
        assert_eq!(size(4_417_740), "4.2 GiB");
    }

    #[test]
    fn zero_has_no_sign() {
        assert_eq!(decimals(-0.0, 1), "0.0");
        assert_eq!(decimals(-0.04, 1), "0.0");
        assert_eq!(decimals(-0.06, 1), "-0.1");
        assert_eq!(decimals(-10.0, 0), "-10");
        let document = serde_json::json!({"a": [-0.0, -1.5, 0], "b": {"c": -0.0}});
        let text = json(document);
        assert_eq!(text.matches("-0.0").count(), 0, "{text}");
        assert!(text.contains("-1.5"));
    }

    #[test]
    fn an_error_has_no_lines_but_its_own() {
        let text = "program `a\nb` cannot be started\n  to mend it: x\n";
        assert_eq!(
            message(text),
            "program `a?b` cannot be started\n  to mend it: x"
        );
    }

    #[test]
    fn a_closed_pipe_is_recognised_in_the_chain() {
        let pipe =
            anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe)).context("printing");
        assert!(is_broken_pipe(&pipe));
        assert!(!is_broken_pipe(&anyhow::anyhow!("other")));
    }
}
