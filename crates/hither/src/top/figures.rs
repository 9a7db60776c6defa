//! Figures as text, the same in the live view and in the table. What nobody knows is a dash.

use super::process::Process;
use crate::print::{DASH, or_dash};
use crate::terminal::Colour;
use hither_core::foreign::Foreign;
use hither_core::snapshot::Evidence;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// A share in percent with one digit behind the point.
pub fn percent(share: &Evidence<f64>) -> String {
    or_dash(share.get(), |share| format!("{:.1}", share * 100.0))
}

/// The same with its sign.
pub fn percent_sign(share: &Evidence<f64>) -> String {
    or_dash(share.get(), |share| format!("{:.1} %", share * 100.0))
}

/// 10^9 bytes per second.
pub fn gbs(figure: &Evidence<f64>) -> String {
    or_dash(figure.get(), |figure| format!("{figure:.2}"))
}

/// A whole number: a latency, a rate.
pub fn whole(figure: &Evidence<f64>) -> String {
    or_dash(figure.get(), |figure| format!("{figure:.0}"))
}

/// Memory in at most five letters: `812K`, `3.9G`.
pub fn memory(kb: u64) -> String {
    let units = [("T", 30), ("G", 20), ("M", 10)];
    for (unit, shift) in units {
        if kb >= 1 << shift {
            let size = kb as f64 / f64::from(1u32 << shift);
            return match size < 10.0 {
                true => format!("{size:.1}{unit}"),
                false => format!("{size:.0}{unit}"),
            };
        }
    }
    format!("{kb}K")
}

/// Shares of pages by node in percent: `0:62 1:38`. Nodes are named by the kernel's numbers;
/// those with less than half a percent are left out.
pub fn by_node(pages: &[u64], names: &[u32]) -> String {
    let all: u64 = pages.iter().sum();
    let counts = |count: u64| u128::from(count) * 200 >= u128::from(all.max(1));
    let shown = pages.iter().zip(names).filter(|(count, _)| counts(**count));
    let one =
        |(&count, name): (&u64, &u32)| format!("{name}:{:.0}", count as f64 / all as f64 * 100.0);
    let words: Vec<String> = shown.map(one).collect();
    match words.is_empty() {
        true => DASH.to_owned(),
        false => words.join(" "),
    }
}

/// The same of shares of CPU time.
pub fn running(shares: Option<Vec<f64>>, names: &[u32]) -> String {
    let parts: Vec<u64> = shares
        .unwrap_or_default()
        .into_iter()
        .map(|share| (share * 1000.0).round() as u64)
        .collect();
    by_node(&parts, names)
}

/// A column: its head, its width, and whether it is flush right.
pub type Column = (&'static str, usize, bool);

/// Columns of the processes; the last takes what is left of the line.
pub const PROCESSES: [Column; 9] = [
    ("PID", 7, true),
    ("NAME", 15, false),
    ("CPU%", 5, true),
    ("THR", 4, true),
    ("MEM", 5, true),
    ("LOC%", 5, true),
    ("LATns", 5, true),
    ("MIS%", 5, true),
    ("PAGES% BY NODE", 21, false),
];

/// The cells of a process.
pub fn process(process: &Process, names: &[u32]) -> Vec<String> {
    vec![
        process.pid.to_string(),
        process.task.stat.name.shown().to_string(),
        percent(&process.cpu),
        process.task.thread_count.to_string(),
        memory(process.resident_kb()),
        percent(&process.local),
        whole(&process.latency_ns),
        percent(&process.misplaced()),
        or_dash(process.residency.value(), |pages| by_node(pages, names)),
    ]
}

/// What stands out: much memory on the wrong node, many accesses to another one.
pub fn colour(head: &str, cell: &str) -> Option<Colour> {
    let share = || cell.parse::<f64>().ok().map(|percent| percent / 100.0);
    match head {
        "MIS%" => Colour::of_misplaced(share()?),
        "LOC%" | "local %" => Colour::of_misplaced(1.0 - share()?),
        _ => None,
    }
}

/// Cells in their columns, one space apart, cut where the line ends.
pub fn line(cells: &[String], columns: &[Column], width: usize) -> String {
    let text: String = placed(cells, columns, width).collect();
    fit(text.trim_end(), width)
}

/// The same, each cell in its colour.
pub fn coloured(cells: &[String], columns: &[Column], width: usize) -> Line<'static> {
    let mut used = 0;
    let spans = placed(cells, columns, width).zip(cells.iter().zip(columns));
    spans
        .map(|(text, (cell, (head, ..)))| {
            let text = fit(&text, width.saturating_sub(used));
            used += columns_of(&text);
            let style = match colour(head, cell) {
                Some(Colour::Bad) => Style::new().red().bold(),
                Some(Colour::Poor) => Style::new().yellow(),
                Some(Colour::Good) => Style::new().green(),
                None => Style::new(),
            };
            Span::styled(text, style)
        })
        .collect()
}

/// Cells with the blanks around them.
fn placed(cells: &[String], columns: &[Column], width: usize) -> impl Iterator<Item = String> {
    let all = cells.iter().zip(columns).enumerate();
    all.map(move |(index, (cell, &(_, column, right)))| {
        let cell = fit(cell, column.min(width));
        let pad = " ".repeat(column.saturating_sub(columns_of(&cell)));
        let gap = if index == 0 { "" } else { " " };
        match right {
            true => format!("{gap}{pad}{cell}"),
            false => format!("{gap}{cell}{pad}"),
        }
    })
}

/// The heads in their columns.
pub fn head(columns: &[Column], width: usize) -> String {
    let heads: Vec<String> = columns
        .iter()
        .map(|(head, ..)| (*head).to_owned())
        .collect();
    line(&heads, columns, width)
}

/// Cut to a width on the screen, with a mark where something was cut.
pub fn fit(text: &str, width: usize) -> String {
    if columns_of(text) <= width {
        return text.to_owned();
    }
    let mut cut = String::new();
    for letter in text.chars() {
        let mut longer = cut.clone();
        longer.push(letter);
        if columns_of(&longer) + 1 > width {
            break;
        }
        cut = longer;
    }
    match width {
        0 => String::new(),
        _ => cut + "…",
    }
}

/// Width on the screen.
pub fn columns_of(text: &str) -> usize {
    Span::raw(text).width()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_unknown_ones_are_dashes() {
        let known = |figure| Evidence::measured(figure, "test");
        let unknown = || Evidence::unknown("test");
        assert_eq!(percent(&known(0.6213)), "62.1");
        assert_eq!(percent(&unknown()), DASH);
        assert_eq!(
            (gbs(&known(1.234)), whole(&known(143.4))),
            ("1.23".into(), "143".into())
        );
        for (kb, text) in [
            (0, "0K"),
            (812, "812K"),
            (2048, "2.0M"),
            (1 << 24, "16G"),
            (5 << 30, "5.0T"),
        ] {
            assert_eq!(memory(kb), text);
        }
        assert_eq!(by_node(&[62, 0, 38], &[0, 1, 8]), "0:62 8:38");
        assert_eq!(by_node(&[0, 0], &[0, 1]), DASH);
        assert_eq!(by_node(&[995, 4, 1], &[0, 1, 2]), "0:100");
        assert_eq!(running(Some(vec![0.25, 0.75]), &[0, 1]), "0:25 1:75");
        assert_eq!(running(None, &[0, 1]), DASH);
    }

    #[test]
    fn cells_stay_in_their_columns() {
        let columns: [Column; 3] = [("A", 3, true), ("NAME", 5, false), ("X", 2, true)];
        let cells = ["7", "much too long", "1"].map(str::to_owned);
        assert_eq!(line(&cells, &columns, 80), "  7 much…  1");
        assert_eq!(line(&cells, &columns, 7), "  7 mu…");
        // Letters of two columns.
        let cells = ["7", "漢字漢字", "1"].map(str::to_owned);
        assert_eq!(line(&cells, &columns, 80), "  7 漢字…  1");
        assert_eq!(fit("abc", 0), "");
    }
}
