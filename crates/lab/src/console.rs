//! The guest's console and QEMU's messages: kept, and shown only when something went wrong.

use std::collections::VecDeque;

/// Lines kept.
pub const KEPT_LINES: usize = 200;
/// Bytes kept of one line; a binary stream on the console must not fill memory.
const MAX_LINE_BYTES: usize = 1000;

/// The last lines of a byte stream.
#[derive(Debug, Default)]
pub struct Tail {
    lines: VecDeque<String>,
    open: Vec<u8>,
}

impl Tail {
    /// Takes bytes as they arrive.
    pub fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' {
                self.close();
            } else if self.open.len() < MAX_LINE_BYTES {
                self.open.push(byte);
            }
        }
    }

    /// The lines so far, the open one included.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.lines.iter().cloned().collect();
        let open = clean(&self.open);
        if !open.is_empty() {
            lines.push(open);
        }
        lines
    }

    /// The last line that holds this text.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<String> {
        self.lines()
            .into_iter()
            .rev()
            .find(|line| line.contains(text))
    }

    fn close(&mut self) {
        let line = clean(&self.open);
        self.open.clear();
        if line.is_empty() {
            return;
        }
        if self.lines.len() == KEPT_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

/// Printable text: firmware clears screens with escape sequences that must not reach a terminal.
fn clean(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut out = String::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == '\x1b' {
            // `ESC [ parameters final` and `ESC final`.
            if letters.next_if_eq(&'[').is_some() {
                while letters.next_if(|c| !c.is_ascii_alphabetic()).is_some() {}
            }
            letters.next();
        } else if letter == '\t' || !letter.is_control() {
            out.push(letter);
        }
    }
    out.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_lines_however_they_arrive() {
        let mut tail = Tail::default();
        let text: String = (0..KEPT_LINES + 5)
            .map(|n| format!("line {n}\r\n"))
            .collect();
        for piece in text.as_bytes().chunks(7) {
            tail.push(piece);
        }
        tail.push(b"open");
        let lines = tail.lines();
        assert_eq!(lines.len(), KEPT_LINES + 1);
        assert_eq!(lines[0], "line 5");
        assert_eq!(lines[KEPT_LINES], "open");
        assert_eq!(tail.find("line 20"), Some("line 204".into()));
        assert_eq!(tail.find("Kernel panic"), None);
    }

    #[test]
    fn escape_sequences_and_binary_do_not_reach_the_terminal() {
        let mut tail = Tail::default();
        tail.push(b"\x1bc\x1b[?7l\x1b[2J\x1b[0mKernel panic\x07\xff\n");
        assert_eq!(tail.lines(), ["Kernel panic\u{fffd}"]);
        tail.push(&vec![b'x'; 5000]);
        assert_eq!(tail.lines()[1].len(), MAX_LINE_BYTES);
    }
}
