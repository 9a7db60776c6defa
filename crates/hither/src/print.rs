//! Printing: standard output that may be closed, tables, sizes, error chains.

use std::fmt;
use std::io::{self, Write};

/// Prints to standard output.
///
/// # Errors
/// What the kernel said; a closed pipe is recognised by [`is_broken_pipe`].
pub fn out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => error,
        kind => io::Error::new(kind, Unprinted(error)),
    })
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
    let _ = io::stderr().lock().write_all(prefixed.as_bytes());
}

/// Prints an error with its chain of causes, once.
pub fn error(error: &anyhow::Error) {
    err_lines(&format!("{error:#}"));
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

/// A name that may hold anything, without what would disturb a terminal.
pub fn printable(name: &str) -> String {
    let letter = |letter: char| match letter.is_control() {
        true => '?',
        false => letter,
    };
    name.chars().map(letter).collect()
}

/// Rows as aligned columns, two spaces apart; columns that are empty below their head are left
/// out.
pub fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let used: Vec<usize> = (0..head.len())
        .filter(|&column| {
            rows.iter()
                .any(|row| row.get(column).is_some_and(|cell| !cell.is_empty()))
        })
        .collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
            .max(head[column].chars().count())
    };
    let widths: Vec<usize> = used.iter().map(|&column| width(column)).collect();
    let line = |cell: &dyn Fn(usize) -> String| {
        let mut line = String::new();
        for (&column, &width) in used.iter().zip(&widths) {
            // Not by a width of `format!`, which panics beyond 65,535.
            let cell = cell(column);
            let room = width.saturating_sub(cell.chars().count()) + 2;
            line.push_str(&cell);
            line.extend(std::iter::repeat_n(' ', room));
        }
        line.truncate(line.trim_end().len());
        line + "\n"
    };
    let mut text = line(&|column| head[column].to_owned());
    for row in rows {
        text.push_str(&line(&|column| {
            row.get(column).cloned().unwrap_or_default()
        }));
    }
    text
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

/// `1 node`, `2 nodes`.
pub fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
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
    fn empty_columns_are_left_out() {
        let rows = [
            vec!["node0".into(), String::new(), "4".into()],
            vec!["node10".into()],
        ];
        assert_eq!(
            columns(&["node", "tier", "MB"], &rows),
            "node    MB\nnode0   4\nnode10\n"
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
