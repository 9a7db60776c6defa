//! Every number of a machine file says where it is from.
//!
//! A mark is `R` (read in the named source), `D` (derived or fitted) or `E` (estimate), in a
//! comment on the number's line, or in the comment right above the lines that it speaks for.

use super::Finding;
use crate::files::Source;

/// Lines with a number and no mark.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut marked_above = false;
    let mut in_comment = false;
    for (number, line) in source.text.lines().enumerate() {
        let (code, comment) = split(line);
        if code.trim().is_empty() {
            match comment {
                // The first line of a comment decides anew; further ones add to it.
                Some(comment) => marked_above = has_mark(comment) || (in_comment && marked_above),
                None => marked_above = false,
            }
            in_comment = comment.is_some();
            continue;
        }
        in_comment = false;
        let marked = marked_above || comment.is_some_and(has_mark);
        if has_number(code) && !marked {
            findings.push(Finding::new(
                &source.path,
                number + 1,
                "a number without its source: add a comment with R, D or E and the source",
            ));
        }
    }
    findings
}

/// A line's code and comment. A `#` within a string belongs to the string.
fn split(line: &str) -> (&str, Option<&str>) {
    let mut quoted = false;
    for (at, letter) in line.char_indices() {
        match letter {
            '"' => quoted = !quoted,
            '#' if !quoted => return (&line[..at], Some(&line[at + 1..])),
            _ => {}
        }
    }
    (line, None)
}

fn has_mark(comment: &str) -> bool {
    comment
        .split(|letter: char| !letter.is_alphanumeric())
        .any(|word| matches!(word, "R" | "D" | "E"))
}

/// Is there a digit outside of strings, and not in a table's header or a key?
fn has_number(code: &str) -> bool {
    if code.trim_start().starts_with('[') && code.trim_end().ends_with(']') && !code.contains('=') {
        return code.contains(|letter: char| letter.is_ascii_digit()) && code.contains(',');
    }
    let value = code.split_once('=').map_or(code, |(_, value)| value);
    let mut quoted = false;
    value.chars().any(|letter| {
        if letter == '"' {
            quoted = !quoted;
        }
        !quoted && letter.is_ascii_digit()
    })
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    #[test]
    fn numbers_need_a_mark_on_their_line_or_right_above() {
        let text = "\
# D fitted to table 1
idle_ns = 87.0
hop_ns = 26.0

ghz = 2.3 # R paper
name = \"opteron8385\"
[node1]
l3_kb = 6144
route = [\"n0-n1\", \"n1-n0\"]
";
        let lines: Vec<usize> = check(&source("machines/x.toml", text))
            .iter()
            .map(|finding| finding.line)
            .collect();
        assert_eq!(lines, [8]);
    }
}
