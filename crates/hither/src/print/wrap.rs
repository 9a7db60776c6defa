//! Text in lines of a width: words are kept whole, figures stay with their units.

use ratatui::text::Span;

/// Longer than any figure or list of them that cannot be broken: then it is a name.
const MOST_FIGURE: usize = 64;
/// A number, and a unit or a word behind it that belongs to it, have at most so many letters.
const MOST_NUMBER: usize = 12;
const MOST_UNIT: usize = 8;

/// Width on the screen; colours take none.
pub fn width_of(text: &str) -> usize {
    if !text.contains('\x1b') {
        return Span::raw(text).width();
    }
    let mut parts = text.split('\x1b');
    let first = Span::raw(parts.next().unwrap_or_default()).width();
    let rest = parts.map(|part| Span::raw(part.split_once('m').map_or(part, |two| two.1)).width());
    first + rest.sum::<usize>()
}

/// What a line is not broken within.
pub struct Piece {
    /// The text.
    pub text: String,
    /// Is it apart from the one before?
    pub is_apart: bool,
}

/// Words, numbers with their units, and parts of lists of numbers.
pub fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut is_number = false;
    for word in text.split_whitespace() {
        let starts_number = word
            .trim_start_matches(['+', '-', '<', '='])
            .starts_with(|c: char| c.is_ascii_digit());
        let is_unit = is_number
            && !starts_number
            && !word.starts_with(['-', '(', '[', '/'])
            && word.chars().count() <= MOST_UNIT;
        // As in `[default: 3]` of help.
        let is_label = |text: &str| text.starts_with('[') && text.ends_with(':');
        let belongs = |last: &&mut Piece| is_unit || is_label(&last.text);
        match pieces.last_mut().filter(belongs) {
            Some(last) => {
                last.text.push(' ');
                last.text.push_str(word);
            }
            None if is_list(word) => {
                let parts = word.split_inclusive(',').enumerate();
                pieces.extend(parts.map(|(index, part)| Piece {
                    text: part.to_owned(),
                    is_apart: index == 0,
                }));
            }
            None => pieces.push(Piece {
                text: word.to_owned(),
                is_apart: true,
            }),
        }
        is_number = starts_number
            && word.chars().count() <= MOST_NUMBER
            && !word.ends_with([',', ';', ':', '.', ')']);
    }
    pieces
}

/// Numbers with commas: `0-3,8`.
fn is_list(word: &str) -> bool {
    word.contains(',')
        && word
            .chars()
            .all(|c| c.is_ascii_digit() || ",-:".contains(c))
}

/// What says how much or where: nothing of it may be left out.
pub fn is_figure(piece: &str) -> bool {
    let length = piece.chars().count();
    let is_digits = |c: char| c.is_ascii_hexdigit() || "-–+.,:%x<>=~() ".contains(c);
    length <= 16 || (length <= MOST_FIGURE && piece.chars().all(is_digits))
}

/// Lines of at most `width`, the first of them `first` less; a longer word has a line of its own.
pub fn lines(text: &str, first: usize, width: usize) -> Vec<String> {
    let mut done = Vec::new();
    let (mut line, mut used) = (String::new(), first);
    for piece in pieces(text) {
        let gap = usize::from(piece.is_apart && !line.is_empty());
        let length = width_of(&piece.text);
        let is_fresh = line.is_empty() && used == 0;
        if used + gap + length > width && !is_fresh {
            done.push(std::mem::take(&mut line));
            used = 0;
        }
        let gap = if line.is_empty() { 0 } else { gap };
        line.push_str(&" ".repeat(gap));
        line.push_str(&piece.text);
        used += gap + length;
    }
    done.push(line);
    done
}

/// Lines that are longer than `width`, broken; what follows stands below the text of the line: behind
/// the gap after its label, or `more` farther in than it began.
pub fn fold(text: &str, width: Option<usize>, more: usize) -> String {
    let Some(width) = width else {
        return text.to_owned();
    };
    let mut folded = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let own = line.trim_end_matches('\n');
        if width_of(own) <= width {
            folded.push_str(line);
            continue;
        }
        let (start, hang) = hanging(own, width, more);
        let (label, rest) = own.split_at(start);
        let room = width - hang;
        let first = width_of(label).saturating_sub(hang);
        for (index, part) in lines(rest, first, room).iter().enumerate() {
            match index {
                0 => folded.push_str(format!("{label}{part}").trim_end()),
                _ => folded.push_str(&format!("{:hang$}{part}", "")),
            }
            folded.push('\n');
        }
        if !line.ends_with('\n') {
            folded.pop();
        }
    }
    folded
}

/// Where the text of a line begins, in bytes, and the column below which it goes on.
fn hanging(line: &str, width: usize, more: usize) -> (usize, usize) {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let mut label = line[indent..].find("  ").map(|at| indent + at);
    if line[indent..].starts_with("- ") {
        // In lists of clap the longest name has one blank behind it.
        label = line[indent..].find(": ").map(|at| indent + at + 1);
    }
    let text = label.map(|at| at + line[at..].len() - line[at..].trim_start_matches(' ').len());
    match text.map(|at| (at, width_of(&line[..at]))) {
        Some((at, column)) if column <= width / 2 => (at, column),
        _ => (indent, (indent + more).min(width / 2)),
    }
}

/// A command to copy, behind a label: broken between its words, with a backslash at the end of the
/// line as shells want it. Not within quotes.
pub fn command(label: &str, command: &str, width: Option<usize>) -> String {
    let most = width.unwrap_or(usize::MAX);
    let indent = label.len() - label.trim_start().len() + 4;
    let (mut text, mut used) = (label.to_owned(), width_of(label));
    let words = words(command);
    for (index, word) in words.iter().enumerate() {
        let length = width_of(word);
        // Where more follows, the backslash needs room.
        let after = if index + 1 < words.len() { 2 } else { 0 };
        let gap = usize::from(index > 0);
        if used.saturating_add(gap + length + after) > most && index > 0 {
            text.push_str(&format!(" \\\n{:indent$}{word}", ""));
            used = indent + length;
        } else {
            text.push_str(&format!("{:gap$}{word}", ""));
            used += gap + length;
        }
    }
    text + "\n"
}

/// Words of a command line, with their quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let (mut quote, mut is_escaped) = (None, false);
    for letter in command.chars() {
        if letter == ' ' && quote.is_none() && !is_escaped {
            words.push(String::new());
            continue;
        }
        quote = match (quote, letter) {
            _ if is_escaped => quote,
            (None, '\'' | '"') => Some(letter),
            (Some(open), letter) if open == letter => None,
            _ => quote,
        };
        is_escaped = letter == '\\' && quote != Some('\'') && !is_escaped;
        words.last_mut().expect("there is one").push(letter);
    }
    words
}

/// Cut in the middle to a width on the screen, with a mark: the end of a name tells as much as its
/// beginning.
pub fn elided(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let Some(room) = width.checked_sub(1) else {
        return String::new();
    };
    let take = |letters: &mut dyn Iterator<Item = char>, room: usize| {
        let mut taken = Vec::new();
        let mut used = 0;
        for letter in letters {
            let mut bytes = [0; 4];
            used += width_of(letter.encode_utf8(&mut bytes));
            if used > room {
                break;
            }
            taken.push(letter);
        }
        taken
    };
    let start: String = take(&mut text.chars(), room.div_ceil(2)).iter().collect();
    let end = take(&mut text.chars().rev(), room / 2);
    start + "…" + &end.iter().rev().collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(text: &str) -> Vec<String> {
        pieces(text).into_iter().map(|piece| piece.text).collect()
    }

    #[test]
    fn numbers_stay_with_their_units() {
        assert_eq!(
            texts("about 384.5 MiB of 2 nodes: 0.4 % there"),
            ["about", "384.5 MiB", "of", "2 nodes:", "0.4 %", "there"]
        );
        assert_eq!(texts("--mb 8 --rounds"), ["--mb", "8", "--rounds"]);
        assert_eq!(texts("most [default: 3]"), ["most", "[default: 3]"]);
        assert_eq!(texts("cpu 3: +0 +8; 12"), ["cpu", "3:", "+0", "+8;", "12"]);
        assert_eq!(texts("CPUs 0-3,8,10"), ["CPUs", "0-3,", "8,", "10"]);
        assert_eq!(texts("a,b"), ["a,b"]);
    }

    #[test]
    fn long_lines_go_on_below_their_text() {
        let text = "short\n  area: one two three four\nlabel    one two three four\nverylongword\n";
        assert_eq!(
            fold(text, Some(20), 2),
            "short\n  area: one two\n    three four\nlabel    one two\n         three four\n\
             verylongword\n"
        );
        assert_eq!(fold(text, None, 2), text);
        // A word is never cut.
        assert_eq!(
            fold("see /a/very/long/path/of/a/file now", Some(20), 2),
            "see\n  /a/very/long/path/of/a/file\n  now"
        );
        assert_eq!(fold("a 12.5 MiB\n", Some(8), 2), "a\n  12.5 MiB\n");
    }

    #[test]
    fn commands_can_be_copied_from_several_lines() {
        let long = "hither run -N 0 -- ./app 'two words' \"a 'b\" c\\ d";
        assert_eq!(
            command("  try next: ", long, Some(34)),
            "  try next: hither run -N 0 -- \\\n      ./app 'two words' \"a 'b\" \\\n      c\\ d\n"
        );
        assert_eq!(command("  ", long, None), format!("  {long}\n"));
    }

    #[test]
    fn names_lose_their_middle() {
        assert_eq!(elided("/usr/lib/libc.so.6", 9), "/usr…so.6");
        assert_eq!(elided("short", 5), "short");
        assert_eq!(elided("漢字漢字", 5), "漢…字");
        assert_eq!(
            (elided("abc", 1), elided("abc", 0)),
            ("…".into(), String::new())
        );
    }

    #[test]
    fn colours_have_no_width() {
        assert_eq!(width_of("\x1b[1;31m62.1\x1b[0m %"), 6);
    }

    proptest! {
        #[test]
        fn no_line_is_longer_but_a_word(
            words in prop::collection::vec("[a-z0-9,]{1,30}", 0..40),
            width in 40_usize..120,
        ) {
            let text = format!("  {}\n", words.join(" "));
            let folded = fold(&text, Some(width), 2);
            for line in folded.lines() {
                prop_assert!(width_of(line) <= width, "{line}");
            }
            let letters = |text: &str| -> String { text.split_whitespace().collect() };
            prop_assert_eq!(letters(&folded), letters(&text));
        }
    }
}
