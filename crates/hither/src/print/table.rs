//! Rows as aligned columns that fit a width.
//!
//! What is too wide is made narrower in this order: heads are broken into lines; then the widest
//! columns, whose cells are broken at blanks and whose names lose their middle; then the table is
//! printed as several below each other, each with the columns that name the rows. Figures are never
//! shortened. Without a width every row is one line.

use super::wrap::{elided, is_figure, lines, pieces, width_of};
use crate::terminal::{Colour, Terminal};
use hither_core::foreign::Foreign;

/// Blanks between columns.
const GAP: usize = 2;
/// A name, alone in its cell, and a word among others keep so many letters at least.
const LEAST_NAME: usize = 16;
const LEAST_WORD: usize = 32;
/// A cell has about so many lines before the table is broken instead, unless it were wider than this.
const FEW_LINES: usize = 3;
const WIDE: usize = 24;
/// Lines of a cell at most; all its text is in pipes and JSON.
const MOST_LINES: usize = 24;

/// A table.
pub struct Table<'a> {
    head: &'a [&'a str],
    rows: Vec<Vec<String>>,
    keys: usize,
    indent: usize,
    paint: Option<&'a dyn Fn(usize, usize) -> Option<Colour>>,
}

/// A column that is shown.
#[derive(Clone)]
struct Column {
    at: usize,
    /// Of its head in one line, in two, and so on.
    head: Vec<usize>,
    /// Of its cells where nothing is broken.
    cells: usize,
    /// At least.
    least: usize,
}

impl<'a> Table<'a> {
    /// Columns that are empty below their head are left out. Cells may hold anything.
    pub fn new(head: &'a [&'a str], rows: &[Vec<String>]) -> Self {
        let shown = |row: &Vec<String>| row.iter().map(|cell| cell.shown().to_string()).collect();
        let rows = rows.iter().map(shown).collect();
        Self {
            head,
            rows,
            keys: 1,
            indent: 0,
            paint: None,
        }
    }

    /// So many columns at the left name a row; one if this is not called.
    pub fn keys(self, keys: usize) -> Self {
        Self { keys, ..self }
    }

    /// Blanks before each line.
    pub fn indent(self, indent: usize) -> Self {
        Self { indent, ..self }
    }

    /// Colours of cells by row and column, on terminals that show them.
    pub fn paint(self, paint: &'a dyn Fn(usize, usize) -> Option<Colour>) -> Self {
        Self {
            paint: Some(paint),
            ..self
        }
    }

    /// As text.
    pub fn text(&self, terminal: Terminal) -> String {
        let columns: Vec<Column> = (0..self.head.len())
            .filter(|&at| self.cells(at).any(|cell| !cell.is_empty()))
            .map(|at| self.column(at))
            .collect();
        let Some(width) = terminal.width else {
            let widths: Vec<usize> = columns.iter().map(|column| column.natural()).collect();
            return self.block(&columns, &widths, terminal);
        };
        let width = width.saturating_sub(self.indent);
        let mut text = String::new();
        for block in blocks(&columns, self.keys, width) {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&self.block(&block, &widths(&block, width), terminal));
        }
        text
    }

    fn cells(&self, at: usize) -> impl Iterator<Item = &String> {
        self.rows.iter().filter_map(move |row| row.get(at))
    }

    fn column(&self, at: usize) -> Column {
        let cells = self.cells(at).map(|cell| width_of(cell));
        let least = self.cells(at).map(|cell| least(cell));
        let head = head_widths(self.head[at]);
        Column {
            at,
            cells: cells.max().unwrap_or(0),
            least: least.chain(head.last().copied()).max().unwrap_or(0),
            head,
        }
    }

    /// Some of the columns, each in its width.
    fn block(&self, columns: &[Column], widths: &[usize], terminal: Terminal) -> String {
        let is_limited = terminal.width.is_some();
        let cell = |text: &str, width: usize| match is_limited && width_of(text) > width {
            true => fitted(text, width),
            false => vec![text.to_owned()],
        };
        let mut text = String::new();
        let heads: Vec<Vec<String>> = columns
            .iter()
            .zip(widths)
            .map(|(column, &width)| cell(self.head[column.at], width))
            .collect();
        self.row(&mut text, &heads, widths, |_, word| word.to_owned());
        for (row, cells) in self.rows.iter().enumerate() {
            let shown: Vec<Vec<String>> = columns
                .iter()
                .zip(widths)
                .map(|(column, &width)| cell(cells.get(column.at).map_or("", |c| c), width))
                .collect();
            self.row(&mut text, &shown, widths, |column, word| {
                let colour = self.paint.and_then(|paint| paint(row, columns[column].at));
                colour.map_or_else(|| word.to_owned(), |colour| terminal.paint(colour, word))
            });
        }
        text
    }

    /// One row, of as many lines as its longest cell.
    fn row(
        &self,
        text: &mut String,
        cells: &[Vec<String>],
        widths: &[usize],
        paint: impl Fn(usize, &str) -> String,
    ) {
        let count = cells.iter().map(Vec::len).max().unwrap_or(0);
        for line in 0..count.max(1) {
            // Blanks are owed until a word follows: none stand at the end of a line.
            let mut owed = self.indent;
            for (column, (cell, &width)) in cells.iter().zip(widths).enumerate() {
                let word = cell.get(line).map_or("", |word| word);
                let pad = width.saturating_sub(width_of(word)) + GAP;
                if word.trim().is_empty() {
                    owed += width_of(word) + pad;
                    continue;
                }
                text.push_str(&" ".repeat(owed));
                text.push_str(&paint(column, word));
                owed = pad;
            }
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
        }
    }
}

impl Column {
    fn natural(&self) -> usize {
        self.head[0].max(self.cells)
    }
}

/// How narrow a cell may become.
fn least(cell: &str) -> usize {
    let pieces = pieces(cell);
    let keep = if pieces.len() == 1 {
        LEAST_NAME
    } else {
        LEAST_WORD
    };
    let piece = |piece: &super::wrap::Piece| match is_figure(&piece.text) {
        true => width_of(&piece.text),
        false => width_of(&piece.text).min(keep),
    };
    let longest = pieces.iter().map(piece).max().unwrap_or(0);
    match pieces.len() {
        0 | 1 => longest,
        _ => longest.max(width_of(cell).div_ceil(FEW_LINES).min(WIDE)),
    }
}

/// The lines of a cell in its column.
fn fitted(cell: &str, width: usize) -> Vec<String> {
    let mut lines = lines(cell, 0, width);
    for line in &mut lines {
        if !is_figure(line) {
            *line = elided(line, width);
        }
    }
    if lines.len() > MOST_LINES {
        lines.truncate(MOST_LINES);
        lines[MOST_LINES - 1] = "…".to_owned();
    }
    lines
}

fn sum(widths: impl ExactSizeIterator<Item = usize>) -> usize {
    let gaps = GAP * widths.len().saturating_sub(1);
    widths.sum::<usize>() + gaps
}

/// The columns in as many tables as are needed; those that name rows are in each.
fn blocks(columns: &[Column], keys: usize, width: usize) -> Vec<Vec<Column>> {
    let least = |columns: &[Column]| sum(columns.iter().map(|column| column.least));
    let (keys, others) = columns.split_at(keys.min(columns.len()));
    let mut blocks = vec![keys.to_vec()];
    for column in others {
        let block = blocks.last_mut().expect("there is one");
        block.push(column.clone());
        if least(block) > width && block.len() > keys.len() + 1 {
            block.pop();
            blocks.push(keys.iter().chain([column]).cloned().collect());
        }
    }
    blocks
}

/// Widths that fit, where the least do.
fn widths(columns: &[Column], width: usize) -> Vec<usize> {
    let mut widths: Vec<usize> = columns.iter().map(|column| column.cells).collect();
    if let Some(fitting) = with_heads(columns, &widths, width) {
        return fitting;
    }
    for (own, column) in widths.iter_mut().zip(columns) {
        *own = (*own).max(column.least);
    }
    while sum(widths.iter().copied()) > width {
        let over = sum(widths.iter().copied()) - width;
        let shrinkable = |&at: &usize| widths[at] > columns[at].least;
        let Some(widest) = (0..widths.len())
            .filter(shrinkable)
            .max_by_key(|&at| widths[at])
        else {
            break;
        };
        // Down to the next widest that can be shrunk, so that both go on together.
        let others = (0..widths.len()).filter(|&at| at != widest);
        let next = others.filter(shrinkable).map(|at| widths[at]).max();
        let own = widths[widest];
        let target = next.unwrap_or(0).min(own - 1).max(own.saturating_sub(over));
        widths[widest] = target.max(columns[widest].least);
    }
    with_heads(columns, &widths, width).unwrap_or(widths)
}

/// The same with room for heads in as few lines as fit.
fn with_heads(columns: &[Column], widths: &[usize], width: usize) -> Option<Vec<usize>> {
    let most_words = columns.iter().map(|column| column.head.len()).max()?;
    (0..most_words).find_map(|index| {
        let head = |column: &Column| column.head[index.min(column.head.len() - 1)];
        let all = columns.iter().zip(widths);
        let all: Vec<usize> = all.map(|(column, &own)| own.max(head(column))).collect();
        (sum(all.iter().copied()) <= width).then_some(all)
    })
}

/// Widths of a head in one line, in two, and so on.
fn head_widths(head: &str) -> Vec<usize> {
    let words = head.split(' ').count();
    let broken = (1..=words).map(|count| {
        let widths = 1..=width_of(head);
        let mut fitting = widths.filter(|&width| {
            let lines = lines(head, 0, width);
            lines.len() <= count && lines.iter().all(|line| width_of(line) <= width)
        });
        fitting.next().unwrap_or(0)
    });
    broken.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(width: usize) -> Terminal {
        Terminal {
            width: Some(width),
            colour: false,
        }
    }

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|&cell| cell.to_owned()).collect()
    }

    #[test]
    fn empty_columns_are_left_out() {
        let rows = [row(&["node0", "", "4"]), row(&["node10"])];
        assert_eq!(
            Table::new(&["node", "tier", "MB"], &rows).text(Terminal::PIPE),
            "node    MB\nnode0   4\nnode10\n"
        );
    }

    #[test]
    fn cells_stay_in_their_row() {
        let rows = [row(&["a\n\u{1b}[2J\u{202e}", "b"])];
        let text = Table::new(&["x", "y"], &rows).text(Terminal::PIPE);
        assert_eq!(text, "x        y\na??[2J?  b\n");
    }

    const HEAD: [&str; 5] = ["area", "size", "from caches", "used by", "next"];

    fn areas() -> [Vec<String>; 2] {
        [
            row(&[
                "/usr/lib/x86_64-linux-gnu/libc.so.6",
                "384.5 MiB",
                "12.3 %",
                "parts by one node each",
                "settled",
            ]),
            row(&["heap", "8 KiB", "–", "node0", "its pages"]),
        ]
    }

    #[test]
    fn what_fits_is_left_alone() {
        let rows = areas();
        let table = Table::new(&HEAD, &rows);
        let natural = table.text(Terminal::PIPE);
        assert!(natural.starts_with("area                                 size       from"));
        assert_eq!(table.text(at(100)), natural);
    }

    #[test]
    fn heads_then_words_then_names_give_way() {
        let rows = areas();
        let text = Table::new(&HEAD, &rows).text(at(66));
        assert_eq!(
            text,
            "\
area               size       from    used by            next
                              caches
/usr/lib…ibc.so.6  384.5 MiB  12.3 %  parts by one node  settled
                                      each
heap               8 KiB      –       node0              its pages
"
        );
    }

    #[test]
    fn what_has_no_room_is_a_table_below() {
        let rows = areas();
        let text = Table::new(&HEAD, &rows).indent(2).text(at(40));
        let expected = "
  area                 size       from
                                  caches
  /usr/lib/…libc.so.6  384.5 MiB  12.3 %
  heap                 8 KiB      –

  area              used by    next
  /usr/lib…bc.so.6  parts by   settled
                    one node
                    each
  heap              node0      its pages
";
        assert_eq!(format!("\n{text}"), expected);
    }

    #[test]
    fn cells_of_any_length_are_printed() {
        let numbers: Vec<String> = (0..14_000).map(|number| number.to_string()).collect();
        let rows = [
            row(&["watched", &numbers.join(" ")]),
            row(&["length", "1 s"]),
        ];
        let table = Table::new(&["what", "figure"], &rows);
        assert!(table.text(Terminal::PIPE).contains(" 13999\n"));
        let text = table.text(at(80));
        assert!(text.lines().all(|line| width_of(line) <= 80) && text.contains("…"));
        assert_eq!(text.lines().count(), 2 + MOST_LINES);
        let word = "x".repeat(70_000);
        let rows = [row(&[&word, "1"])];
        assert!(Table::new(&["a", "b"], &rows).text(Terminal::PIPE).len() > 70_000);
        assert!(width_of(Table::new(&["a", "b"], &rows).text(at(60)).trim()) < 160);
    }

    #[test]
    fn colours_are_put_on_words_and_change_no_place() {
        let rows = [row(&["a", "62.1", "x"]), row(&["b", "1.0", "y"])];
        let bad = |row, column| ((row, column) == (0, 1)).then_some(Colour::Bad);
        let table = Table::new(&["n", "MIS%", "z"], &rows).paint(&bad);
        let coloured = table.text(Terminal {
            width: None,
            colour: true,
        });
        assert_eq!(
            coloured,
            "n  MIS%  z\na  \x1b[1;31m62.1\x1b[0m  x\nb  1.0   y\n"
        );
        assert!(!table.text(Terminal::PIPE).contains('\x1b'));
    }

    proptest! {
        #[test]
        fn whatever_the_cells_they_fit_and_no_figure_is_lost(
            cells in prop::collection::vec(
                ("[a-z/]{0,60}", "[0-9]{1,12}", "[a-z]{1,9}( [a-z]{1,9}){0,6}", "[0-9]{1,3}\\.[0-9] %"),
                1..6,
            ),
            repeat in 1_usize..5,
            width in 40_usize..200,
        ) {
            let wide = |(name, figure, words, share): &(String, String, String, String)| {
                let mut row = vec![name.clone()];
                for _ in 0..repeat {
                    row.extend([figure.clone(), words.clone(), share.clone()]);
                }
                row
            };
            let rows: Vec<Vec<String>> = cells.iter().map(wide).collect();
            let head = vec!["a head"; rows[0].len()];
            let text = Table::new(&head, &rows).text(at(width));
            for line in text.lines() {
                prop_assert!(width_of(line) <= width, "{}", text);
                prop_assert!(!line.ends_with(' '));
            }
            for (_, figure, _, share) in &cells {
                prop_assert!(text.matches(figure.as_str()).count() >= repeat, "{figure}: {}", text);
                prop_assert!(text.matches(share.as_str()).count() >= repeat, "{share}: {}", text);
            }
        }
    }
}
