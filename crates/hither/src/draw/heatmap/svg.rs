//! A heatmap as SVG.

use super::super::axis::{Scale, label};
use super::super::canvas::{Canvas, INK, NONE, QUIET, WIDTH, escaped};
use super::super::colour::{LEVELS, hex};
use super::{Heatmap, Line, Picture, Span, allotted};
use std::fmt::Write;

/// Edges of the plotting area.
const LEFT: f64 = 160.0;
const RIGHT: f64 = 800.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 470.0;
const HEIGHT: f64 = 540.0;
/// The colour scale right of it.
const BAR_LEFT: f64 = 830.0;
const BAR_WIDTH: f64 = 18.0;
/// Rows and columns that are drawn one by one: two pixels or more for each.
const MOST_LINES: usize = 128;
const MOST_COLUMNS: usize = 320;
/// Gaps that are drawn one by one.
const MOST_GAPS: usize = 64;
/// Height of a gap, and what all gaps may take of the plotting area.
const GAP: f64 = 18.0;
const GAPS_SHARE: f64 = 0.25;
/// Between two labels of rows, and the height that a gap needs to say what it is.
const LABEL: f64 = 14.0;

impl Heatmap {
    /// The file. Its size does not grow without limit: rows and columns too small to be seen are
    /// drawn as their means.
    #[must_use]
    pub fn svg(&self) -> String {
        let picture = self.picture(spans, MOST_GAPS, |bands| allotted(bands, MOST_LINES));
        let mut canvas = Canvas::new(LEFT, &self.title, &self.subtitle);
        if picture.is_empty() {
            let middle = (f64::midpoint(LEFT, RIGHT), f64::midpoint(TOP, BOTTOM));
            let attributes = format!("{QUIET} text-anchor=\"middle\"");
            canvas.text(middle, &attributes, "nothing was measured");
        } else {
            self.draw_bands(&mut canvas, &picture);
        }
        let time = picture.time((LEFT, RIGHT));
        canvas.line((LEFT, BOTTOM), (RIGHT, BOTTOM), INK);
        canvas.x_ticks(&time, BOTTOM, &time.ticks());
        canvas.x_title((LEFT, RIGHT), BOTTOM + 48.0, &self.x_title);
        canvas.y_title(24.0, (TOP, BOTTOM), &self.y_title(&picture));
        self.draw_scale(&mut canvas, &picture);
        canvas.finish(HEIGHT, 0.0)
    }

    fn draw_bands(&self, canvas: &mut Canvas, picture: &Picture) {
        let count = (picture.bands.len() - 1) as f64;
        let room = (BOTTOM - TOP) * GAPS_SHARE;
        let gap_height = if count * GAP <= room {
            GAP
        } else {
            room / count
        };
        let lines: usize = picture.bands.iter().map(|band| band.lines.len()).sum();
        let height = (BOTTOM - TOP - count * gap_height) / lines as f64;
        let time = picture.time((LEFT, RIGHT));
        let places = |&(start, end): &Span| Some((time.of(start)?, time.of(end)?));
        let columns: Vec<Option<(f64, f64)>> = picture.spans.iter().map(places).collect();
        let mut paths = Paths::new();
        let (mut y, mut labelled) = (TOP, f64::NEG_INFINITY);
        for band in &picture.bands {
            if let Some(gap) = &band.gap {
                if gap_height >= LABEL {
                    let at = (f64::midpoint(LEFT, RIGHT), y + gap_height / 2.0 + 4.0);
                    let attributes = format!("{QUIET} font-size=\"11\" text-anchor=\"middle\"");
                    canvas.fitted(at, &attributes, &format!("↕ {gap}"), 50.0);
                }
                y += gap_height;
            }
            for line in &band.lines {
                let middle = y + height / 2.0 + 4.0;
                if middle >= labelled + LABEL {
                    let attributes =
                        "font-family=\"monospace\" font-size=\"11\" text-anchor=\"end\"";
                    canvas.fitted((LEFT - 8.0, middle), attributes, &line.label, 10.5);
                    labelled = middle;
                }
                paths.add(picture, line, &columns, (y, y + height));
                y += height;
            }
        }
        paths.finish(canvas);
    }

    fn draw_scale(&self, canvas: &mut Canvas, picture: &Picture) {
        canvas.raw("<g class=\"legend\">\n");
        let step = (BOTTOM - TOP) / LEVELS as f64;
        for level in 0..LEVELS {
            let fill = format!("fill=\"{}\" shape-rendering=\"crispEdges\"", hex(level));
            let y = BOTTOM - (level + 1) as f64 * step;
            canvas.rectangle((BAR_LEFT, y), (BAR_WIDTH, step + 0.5), &fill);
        }
        let right = BAR_LEFT + BAR_WIDTH;
        let share = picture.scale;
        let mut ticks = share.ticks();
        if self.value_scale == Scale::Logarithmic {
            // What is less, 0 above all, has the lowest colour too.
            let low = share.limits.0;
            ticks.retain(|tick| share.share(tick.0).is_some_and(|share| share > 0.04));
            ticks.push((low, format!("≤ {}", label(low, low))));
        }
        for (value, name) in ticks {
            let Some(share) = share.of(value) else {
                continue;
            };
            let y = BOTTOM - share * (BOTTOM - TOP);
            canvas.line((right, y), (right + 5.0, y), INK);
            canvas.text((right + 9.0, y + 4.0), "", &name);
        }
        canvas.y_title(WIDTH - 18.0, (TOP, BOTTOM), &self.value_title());
        if picture.has_unmeasured() {
            let y = BOTTOM + 20.0;
            canvas.rectangle((BAR_LEFT, y), (BAR_WIDTH, 12.0), NONE);
            canvas.text((right + 9.0, y + 11.0), "", "not measured");
        }
        canvas.raw("</g>\n");
    }
}

/// Each column, or as many equally long stretches of time as have room.
fn spans(columns: &[(usize, Span)]) -> Vec<Span> {
    match columns {
        [(_, first), .., (_, last)] if columns.len() > MOST_COLUMNS => {
            super::even_spans((first.0, last.1), MOST_COLUMNS)
        }
        _ => columns.iter().map(|column| column.1).collect(),
    }
}

/// Rectangles, by colour: one path is much shorter than a thousand rectangles.
struct Paths {
    /// Of each level, and of what was not measured.
    paths: [String; LEVELS + 1],
    /// What is said where the pointer rests on a row.
    titles: Vec<(String, (f64, f64))>,
}

impl Paths {
    fn new() -> Self {
        Self {
            paths: std::array::from_fn(|_| String::new()),
            titles: Vec::new(),
        }
    }

    /// A row; neighbours of one colour become one rectangle.
    fn add(
        &mut self,
        picture: &Picture,
        line: &Line,
        columns: &[Option<(f64, f64)>],
        (top, bottom): (f64, f64),
    ) {
        self.titles.push((line.label.clone(), (top, bottom)));
        let mut cells = Vec::new();
        for (&value, column) in line.values.iter().zip(columns) {
            if let Some(ends) = column {
                cells.push((picture.level(value).unwrap_or(LEVELS), *ends));
            }
        }
        // Columns that are left out leave a hole.
        for run in cells.chunk_by(|one, other| one.0 == other.0 && one.1.1 == other.1.0) {
            let ([(level, (left, _)), ..], [.., (_, (_, right))]) = (run, run) else {
                continue;
            };
            let _ = write!(
                self.paths[*level],
                "M{left:.1} {top:.1}H{right:.1}V{bottom:.1}H{left:.1}z"
            );
        }
    }

    fn finish(self, canvas: &mut Canvas) {
        canvas.raw("<g class=\"cells\" shape-rendering=\"crispEdges\">\n");
        for (level, path) in self
            .paths
            .iter()
            .enumerate()
            .filter(|path| !path.1.is_empty())
        {
            let attributes = match level {
                LEVELS => NONE.to_owned(),
                level => format!("fill=\"{}\"", hex(level)),
            };
            canvas.raw(&format!("<path {attributes} d=\"{path}\"/>\n"));
        }
        for (label, (top, bottom)) in self.titles {
            canvas.raw(&format!(
                "<path fill=\"none\" pointer-events=\"all\" \
                 d=\"M{LEFT} {top:.1}H{RIGHT}V{bottom:.1}H{LEFT}z\"><title>{}</title></path>\n",
                escaped(&label)
            ));
        }
        canvas.raw("</g>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::canvas::tests::{is_sound, values};
    use super::super::tests::heatmap;
    use super::super::{Heatmap, Row, Scale};
    use proptest::prelude::*;

    #[test]
    fn it_has_axes_cells_gaps_and_a_scale() {
        let svg = heatmap(7).svg();
        assert!(is_sound(&svg), "{svg}");
        for part in [
            "<title>Accesses &lt;by&gt; address</title>",
            ">time (s)</text>",
            ">address (hexadecimal)</text>",
            ">accesses (1/s)</text>",
            ">7f003000</text>",
            ">↕ 1.2 TiB &quot;not&quot; mapped</text>",
            "class=\"legend\"",
        ] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        assert!(!svg.contains("not measured"));
        // Equal neighbours are one: seven rows of one rectangle each.
        let cells = svg
            .lines()
            .filter(|line| line.starts_with("<path fill=\"#"));
        assert_eq!(
            cells.map(|line| line.matches('M').count()).sum::<usize>(),
            7
        );
    }

    #[test]
    fn every_cell_of_an_ordinary_heatmap_is_drawn_in_little_room() {
        let mut large = heatmap(64);
        large.x = (0..=256).map(|edge| f64::from(edge) * 0.1).collect();
        // No two neighbours alike.
        large.cells = (0..64 * 256)
            .map(|cell| ((cell * 7 + cell / 256) % 32) as f64)
            .collect();
        let svg = large.svg();
        assert!(
            is_sound(&svg) && svg.len() < 1_000_000,
            "{} bytes",
            svg.len()
        );
        let cells = svg
            .lines()
            .filter(|line| line.starts_with("<path fill=\"#"));
        assert_eq!(
            cells.map(|line| line.matches('M').count()).sum::<usize>(),
            64 * 256
        );
        // A hundred times as many are drawn as means.
        large.rows = vec![
            Row {
                label: "x".into(),
                gap: None
            };
            1280
        ];
        large.x = (0..=1280).map(f64::from).collect();
        large.cells = (0..1280 * 1280).map(|cell| (cell % 977) as f64).collect();
        assert!(large.svg().len() < 2_000_000, "{} bytes", large.svg().len());
    }

    #[test]
    fn degenerate_data_are_figures() {
        let base = heatmap(4);
        let odd = [
            Heatmap {
                rows: Vec::new(),
                ..base.clone()
            },
            Heatmap {
                x: Vec::new(),
                ..base.clone()
            },
            Heatmap {
                x: vec![1.0],
                ..base.clone()
            },
            Heatmap {
                x: vec![0.0, 1e-300],
                ..base.clone()
            },
            Heatmap {
                x: vec![5.0, 6.0],
                cells: vec![1.0, 2.0, 3.0, 4.0],
                ..base.clone()
            },
            Heatmap {
                cells: vec![0.0; 20],
                ..base.clone()
            },
            Heatmap {
                cells: vec![0.0; 20],
                value_scale: Scale::Logarithmic,
                ..base.clone()
            },
            Heatmap {
                cells: vec![f64::NAN; 20],
                ..base.clone()
            },
            Heatmap {
                cells: vec![f64::INFINITY, 1e308, -4.0, 1e-320],
                ..base.clone()
            },
        ];
        for heatmap in odd {
            let svg = heatmap.svg();
            assert!(is_sound(&svg), "{heatmap:?}\n{svg}");
        }
        let none = Heatmap {
            x: Vec::new(),
            ..base.clone()
        };
        assert!(none.svg().contains("nothing was measured"));
        let partly = Heatmap {
            cells: vec![1.0],
            ..base
        };
        assert!(partly.svg().contains(">not measured</text>"));
    }

    proptest! {
        #[test]
        fn whatever_the_data_it_is_a_figure(
            x in prop::collection::vec(values(), 0..40),
            rows in prop::collection::vec(any::<bool>(), 0..200),
            cells in prop::collection::vec(values(), 0..2000),
            is_sorted: bool,
            is_linear: bool,
        ) {
            let mut x = x;
            if is_sorted {
                x.sort_by(f64::total_cmp);
            }
            let rows = rows.into_iter();
            let gap = |has_gap: bool| has_gap.then(|| "hole".to_owned());
            let heatmap = Heatmap {
                x,
                rows: rows.map(|has| Row { label: "y".into(), gap: gap(has) }).collect(),
                cells,
                value_scale: if is_linear { Scale::Linear } else { Scale::Logarithmic },
                ..heatmap(0)
            };
            prop_assert!(is_sound(&heatmap.svg()), "{}", heatmap.svg());
        }
    }
}
