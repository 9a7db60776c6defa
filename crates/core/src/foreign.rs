//! Text of others, for a terminal.
//!
//! Processes, files, mappings and recordings have the names that their makers like: with sequences
//! that steer the terminal, marks that turn the direction of writing, letters that nobody sees, or an
//! end of line behind which something looks like another message. Whoever shows such a text writes
//! [`Foreign::shown`]; what is printed goes through [`lines`] besides, so that nothing steers a
//! terminal that was forgotten. Documents for programs keep every letter: [`lines`] writes as JSON does.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

/// Does a letter do something to a terminal, or to the letters beside it, other than to be seen?
#[must_use]
pub fn steers(letter: char) -> bool {
    // Unicode's control (Cc) and format (Cf) characters, and its ends of lines and paragraphs.
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
            | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Text that may hold anything.
pub trait Foreign {
    /// The same for a terminal: of as many letters, `?` in place of those that steer.
    fn shown(&self) -> Shown<'_>;
}

/// A text of others, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown<'a>(Cow<'a, str>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Foreign for str {
    fn shown(&self) -> Shown<'_> {
        Shown(plain(self.into()))
    }
}

impl Foreign for OsStr {
    fn shown(&self) -> Shown<'_> {
        Shown(plain(self.to_string_lossy()))
    }
}

impl Foreign for Path {
    fn shown(&self) -> Shown<'_> {
        self.as_os_str().shown()
    }
}

fn plain(text: Cow<'_, str>) -> Cow<'_, str> {
    if !text.contains(steers) {
        return text;
    }
    let letter = |letter| if steers(letter) { '?' } else { letter };
    Cow::Owned(text.chars().map(letter).collect())
}

/// Lines for a terminal or another program: what would steer is written as in JSON (`\u001b`), so that a
/// document says the same as before.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |_| 0)
}

/// The same of lines with colours of hither's own, which stay: `ESC [ NUMBERS m`.
#[must_use]
pub fn coloured_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |rest| {
        let Some(numbers) = rest.strip_prefix("\u{1b}[") else {
            return 0;
        };
        let end = numbers.find(|letter: char| !(letter.is_ascii_digit() || letter == ';'));
        match end {
            Some(end) if numbers[end..].starts_with('m') => "\u{1b}[".len() + end + 1,
            _ => 0,
        }
    })
}

/// `kept` says how many bytes of a text that begins with a letter that steers stay as they are.
fn escaped(text: &str, kept: impl Fn(&str) -> usize) -> Cow<'_, str> {
    let is_bad = |letter: char| letter != '\n' && steers(letter);
    if !text.contains(is_bad) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(at) = rest.find(is_bad) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let stay = kept(rest);
        out.push_str(&rest[..stay]);
        rest = &rest[stay..];
        if stay == 0 {
            let mut letters = rest.chars();
            for unit in letters.next().into_iter().flat_map(utf16) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
            rest = letters.as_str();
        }
    }
    out.push_str(rest);
    out.into()
}

fn utf16(letter: char) -> Vec<u16> {
    letter.encode_utf16(&mut [0; 2]).to_vec()
}

/// A word as a shell takes it.
#[must_use]
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    const BAD: &str =
        "a\u{1b}]0;x\u{7}\u{9b}31m\r\n\tb\u{202e}c\u{2066}\u{200d}\u{ad}\u{2028}\u{e0041}d";

    #[test]
    fn names_are_shown_letter_for_letter() {
        assert_eq!(BAD.shown().to_string(), "a?]0;x??31m???b?c?????d");
        assert_eq!(BAD.shown().to_string().chars().count(), BAD.chars().count());
        let plain = "/usr/bin/größe — 名前 🙂";
        assert_eq!(plain.shown().to_string(), plain);
        assert_eq!(format!("{:>4}|", "a\n".shown()), "  a?|");
        let bytes = OsStr::from_bytes(b"a\xff\x1bb");
        assert_eq!(bytes.shown().to_string(), "a\u{fffd}?b");
        assert_eq!(Path::new("/a\nb").shown().to_string(), "/a?b");
    }

    #[test]
    fn lines_stay_and_what_steers_is_written_out() {
        assert_eq!(lines("a\nb\u{1b}[2J\u{202e}\n"), "a\nb\\u001b[2J\\u202e\n");
        assert_eq!(lines("\u{e0041}"), "\\udb40\\udc41");
        assert!(matches!(lines("a\nb"), Cow::Borrowed(_)));
        assert!(!lines(BAD).contains(|letter| letter != '\n' && steers(letter)));
    }

    #[test]
    fn colours_stay_where_they_are_hithers_own() {
        let own = "\u{1b}[38;5;9mx\u{1b}[0m\n";
        assert_eq!(coloured_lines(own), own);
        assert_eq!(lines(own), "\\u001b[38;5;9mx\\u001b[0m\n");
        for bad in [
            "\u{1b}[2J",
            "\u{1b}]0;m\u{7}",
            "\u{1b}[3;m;",
            "\u{1b}[",
            "\u{1b}",
            "\u{9b}1m",
        ] {
            let shown = coloured_lines(bad);
            let steer = |letter: char| steers(letter);
            assert_eq!(shown.contains(steer), bad == "\u{1b}[3;m;", "{bad:?}");
        }
    }
}
