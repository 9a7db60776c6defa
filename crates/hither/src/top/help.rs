//! The help: keys, columns, and why there are dashes.

use super::model::Model;
use super::text;
use ratatui::text::Line;

const KEYS: &str = "\
Up Down j k PgUp PgDn  mark      Enter  threads, then mappings
Esc  back                        s  sort by the next column
?  this help                     q Ctrl-C  quit      Ctrl-Z  stop

LOC%  accesses that the CPU's own node served    LATns  mean latency
MIS%  pages that would have to move to lie as the CPU time does
USE%  of the node's controller    READ WRITE  GB/s of its memory
PROM DEMO  pages per second promoted to, demoted from the node

Not told here (–):";

/// The lines, as wide as the screen.
pub fn lines(model: &Model, width: usize) -> Vec<Line<'static>> {
    let mut lines: Vec<Line<'static>> = KEYS
        .lines()
        .map(|line| Line::raw(super::figures::fit(line, width)))
        .collect();
    for sentence in text::unknowns(model) {
        lines.extend(wrap(&sentence, width).into_iter().map(Line::raw));
    }
    lines
}

/// Breaks a sentence between words; the lines after the first are set in.
fn wrap(sentence: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in sentence.split(' ') {
        let line = lines.last().map_or("", String::as_str);
        let fits = line.chars().count() + 1 + word.chars().count() <= width;
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if fits => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("  {word}")),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_broken_between_words() {
        assert_eq!(
            wrap("one two three four", 9),
            ["one two", "  three", "  four"]
        );
        assert_eq!(wrap("", 9), [""]);
        assert_eq!(wrap("longer-than-the-line x", 9).len(), 2);
    }
}
