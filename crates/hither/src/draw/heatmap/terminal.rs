//! A heatmap as text for a terminal.

use super::super::axis::{Place, Scale, label, short};
use super::super::canvas::{plain, shortened};
use super::super::colour::{LEVELS, TERMINAL, terminal};
use super::{Heatmap, Line, Picture, Span, allotted};
use std::ops::Range;

/// Darkness by letters, where colours may not be used.
const RAMP: [char; 10] = [' ', '.', ':', '-', '=', '+', '*', '#', '%', '@'];
/// A cell that was not measured: a letter, or grey.
const NONE: char = '?';
const NONE_COLOUR: u8 = 240;
/// Lines around the plot: title, subtitle, two titles of axes, axis, marks, and two of the legend.
const AROUND: usize = 8;
/// Sizes below which nothing could be read, and above which nothing is gained.
const LEAST_WIDTH: usize = 30;
const MOST_WIDTH: usize = 1000;
const LEAST_HEIGHT: usize = AROUND + 3;

impl Heatmap {
    /// At most `width` columns and `height` lines (30 and 11 at least), with 256 colours, or as
    /// plain text in ASCII but for what labels hold.
    #[must_use]
    pub fn terminal(&self, width: usize, height: usize, colour: bool) -> String {
        let width = width.clamp(LEAST_WIDTH, MOST_WIDTH);
        let most_lines = height.max(LEAST_HEIGHT) - AROUND;
        let longest = self.rows.iter().map(|row| plain(&row.label).count()).max();
        let margin = longest.unwrap_or(0).clamp(1, width / 3);
        let plot = width - margin - 2;
        // A gap takes a line and leaves at least one for the rows below it.
        let most_gaps = (most_lines - 1) / 2;
        let gap_count = self.bands(most_gaps).0.len().saturating_sub(1);
        let room = most_lines - gap_count;
        // Two rows share a line where that is needed.
        let rows_per_line = if colour && self.rows.len() > room {
            2
        } else {
            1
        };
        let lines = |bands: &[Range<usize>]| {
            let lines = allotted(bands, room).into_iter();
            lines.map(|lines| lines * rows_per_line).collect()
        };
        let mut picture = self.picture(|columns| spans(columns, plot), most_gaps, lines);

        let mut text = Vec::new();
        for line in [&self.title, &self.subtitle, &self.y_title(&picture)] {
            text.push(shortened(line, width));
        }
        if picture.is_empty() {
            text.push(shortened("nothing was measured", width));
            picture.bands.clear();
        }
        for band in &picture.bands {
            if let Some(gap) = &band.gap {
                let gap = shortened(&format!("~ {gap} ~"), plot);
                text.push(format!("{:margin$}  {gap}", ""));
            }
            for pair in band.lines.chunks(rows_per_line) {
                let label = shortened(&pair[0].label, margin);
                let bar = if colour { '│' } else { '|' };
                let cells = match colour {
                    true => coloured(&picture, &pair[0], &pair[pair.len() - 1]),
                    false => plain_cells(&picture, &pair[0]),
                };
                text.push(format!("{label:>margin$} {bar}{cells}"));
            }
        }
        let time = picture.time((0.0, (plot - 1) as f64));
        let (rule, marks) = axis(&time, plot, colour);
        text.push(format!("{:margin$} {rule}", ""));
        text.push(format!("{:margin$}  {marks}", ""));
        text.push(format!(
            "{:margin$}  {:^plot$}",
            "",
            shortened(&self.x_title, plot)
        ));
        text.push(shortened(&self.value_title(), width));
        text.push(self.legend(&picture, colour));
        let mut all = String::new();
        for line in text.iter().filter(|line| !line.trim().is_empty()) {
            all.push_str(line.trim_end());
            all.push('\n');
        }
        match colour {
            true => all,
            false => all.replace('…', "~"),
        }
    }

    fn legend(&self, picture: &Picture, colour: bool) -> String {
        let (low, high) = picture.scale.limits;
        let low = match self.value_scale {
            Scale::Linear => label(low, 1.0),
            Scale::Logarithmic => format!("<={}", short(low)),
        };
        let ramp: String = match colour {
            true => {
                let blocks = TERMINAL.iter().map(|code| format!("\x1b[38;5;{code}m█"));
                blocks.chain(["\x1b[0m".to_owned()]).collect()
            }
            false => RAMP.iter().collect(),
        };
        let none = match (picture.has_unmeasured(), colour) {
            (false, _) => String::new(),
            (true, true) => format!("   \x1b[38;5;{NONE_COLOUR}m█\x1b[0m not measured"),
            (true, false) => format!("   {NONE} not measured"),
        };
        format!("{low} [{ramp}] {}{none}", short(high))
    }
}

/// As many equally long stretches of time as there are letters.
fn spans(columns: &[(usize, Span)], count: usize) -> Vec<Span> {
    match (columns.first(), columns.last()) {
        (Some(first), Some(last)) => super::even_spans((first.1.0, last.1.1), count),
        _ => Vec::new(),
    }
}

fn plain_cells(picture: &Picture, line: &Line) -> String {
    let letter = |&value: &Option<f64>| match picture.level(value) {
        None => NONE,
        // Blank is the lowest colour alone.
        Some(0) => RAMP[0],
        Some(level) => RAMP[1 + (level - 1) * (RAMP.len() - 1) / (LEVELS - 1)],
    };
    line.values.iter().map(letter).collect()
}

/// Two rows in a line: blocks of the upper half, on the colour of the lower.
fn coloured(picture: &Picture, upper: &Line, lower: &Line) -> String {
    let code = |value: Option<f64>| picture.level(value).map_or(NONE_COLOUR, terminal);
    let mut text = String::new();
    let mut last = None;
    for (&up, &down) in upper.values.iter().zip(&lower.values) {
        let codes = (code(up), code(down));
        if last != Some(codes) {
            text.push_str(&format!("\x1b[38;5;{};48;5;{}m", codes.0, codes.1));
            last = Some(codes);
        }
        text.push('▀');
    }
    text.push_str("\x1b[0m");
    text
}

/// The axis and what its marks say.
fn axis(time: &Place, width: usize, colour: bool) -> (String, String) {
    let (corner, along, mark) = if colour {
        ('└', '─', '┬')
    } else {
        ('+', '-', '+')
    };
    let mut rule = vec![along; width];
    let mut marks = vec![' '; width];
    let mut free = 0;
    for (value, name) in time.ticks() {
        let Some(at) = time.of(value) else { continue };
        let at = (at.round() as usize).min(width - 1);
        rule[at] = mark;
        let length = name.chars().count();
        let start = at
            .saturating_sub(length / 2)
            .min(width.saturating_sub(length));
        if start >= free && start + length <= width {
            for (place, letter) in marks[start..].iter_mut().zip(name.chars()) {
                *place = letter;
            }
            free = start + length + 1;
        }
    }
    let rule: String = std::iter::once(corner).chain(rule).collect();
    (rule, marks.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::super::super::canvas::tests::values;
    use super::super::tests::heatmap;
    use super::super::{Heatmap, Row};
    use super::*;
    use proptest::prelude::*;

    /// What is seen of it: without escape sequences.
    fn seen(text: &str) -> String {
        let mut parts = text.split('\x1b');
        let first = parts.next().unwrap_or_default().to_owned();
        let rest = parts.map(|part| part.split_once('m').unwrap_or_default().1);
        first + &rest.collect::<String>()
    }

    #[test]
    fn plain_text_has_title_axes_and_legend() {
        let mut heatmap = heatmap(4);
        heatmap.cells[2] = f64::NAN;
        let expected = "\
Accesses <by> address
a & b
address (hexadecimal)
7f000000 |            ??????
7f001000 |------------------------------
7f002000 |******************************
          ~ 1.2 TiB \"not\" mapped ~
7f003000 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
         ++-----+-----+----+-----+-----+
          0     1     2    3     4     5
                     time (s)
accesses (1/s)
0 [ .:-=+*#%@] 3.00   ? not measured
";
        assert_eq!(heatmap.terminal(40, 24, false), expected);
        let wide = heatmap.terminal(80, 24, false);
        assert!(
            wide.lines().any(|line| line.chars().count() == 80),
            "{wide}"
        );
    }

    #[test]
    fn two_rows_share_a_line_in_colours() {
        let text = heatmap(50).terminal(60, 24, true);
        // Sixteen gaps have no room in sixteen lines.
        assert!(
            seen(&text).contains("hexadecimal); 16 gaps are not drawn"),
            "{text}"
        );
        assert_eq!(text.matches('▀').count(), 16 * (60 - 10), "{text}");
        assert!(text.contains("7f003000 │\x1b[38;5;"), "{text}");
        assert!(text.contains("38;5;53;48;5;53m") && text.contains("38;5;226;48;5;226m"));
        let few = heatmap(2).terminal(60, 24, true);
        assert_eq!(few.matches("\x1b[38;5;53;48;5;53m▀").count(), 1, "{few}");
        assert_eq!(few.matches("\x1b[38;5;226;48;5;226m▀").count(), 1, "{few}");
        assert!(seen(&few).contains("0 [██████████] 1.00\n"), "{few}");
    }

    #[test]
    fn any_size_will_do() {
        let sizes = [(0, 0), (usize::MAX, usize::MAX)];
        for (text, lines) in sizes
            .iter()
            .zip([11, 13])
            .map(|(size, lines)| (heatmap(4).terminal(size.0, size.1, true), lines))
        {
            assert_eq!(text.lines().count(), lines, "{text}");
        }
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        let mut heatmap = heatmap(2);
        heatmap.title = "\x1b]0;mine\x07 title".into();
        heatmap.rows[0].label = "\x1b[2Jrow\u{9b}".into();
        let text = heatmap.terminal(60, 24, false);
        assert!(
            !text.contains(|letter: char| letter.is_control() && letter != '\n'),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn whatever_the_data_it_fits(
            x in prop::collection::vec(values(), 0..40),
            labels in prop::collection::vec(("\\PC{0,60}", any::<bool>()), 0..100),
            cells in prop::collection::vec(values(), 0..1000),
            size in (0..200_usize, 0..60_usize),
            flags in any::<[bool; 3]>(),
        ) {
            let [colour, is_sorted, is_linear] = flags;
            let is_number_lost = |text: &str| text.contains("NaN") || text.contains("inf");
            // A name may hold the word.
            let is_named = labels.iter().any(|(label, _)| is_number_lost(label));
            let mut x = x;
            if is_sorted {
                x.sort_by(f64::total_cmp);
            }
            let row = |(label, has_gap): (String, bool)| Row {
                gap: has_gap.then(|| label.clone()),
                label,
            };
            let heatmap = Heatmap {
                x,
                rows: labels.into_iter().map(row).collect(),
                cells,
                value_scale: if is_linear { Scale::Linear } else { Scale::Logarithmic },
                ..heatmap(0)
            };
            let text = heatmap.terminal(size.0, size.1, colour);
            let text = seen(&text);
            let most = size.0.max(LEAST_WIDTH);
            // The legend is as long as its numbers are.
            let legend = text.lines().count().saturating_sub(1);
            for line in text.lines().take(legend) {
                prop_assert!(line.chars().count() <= most, "{} of {most}: {line}", line.chars().count());
            }
            prop_assert!(text.lines().count() <= size.1.max(LEAST_HEIGHT), "{text}");
            prop_assert!(is_named || !is_number_lost(&text), "{text}");
        }
    }
}
