//! How much, over time and place: addresses of a program, or of memory.

mod svg;
mod terminal;

use super::axis::{Place, Scale, known};
use super::colour::LEVELS;
use std::ops::Range;

/// Powers of ten that a logarithmic scale of values has at most.
const MOST_RATIO: f64 = 1e6;

/// A row of a heatmap.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its first address, or another short name.
    pub label: String,
    /// What lies between it and the row above, where that is not its neighbour: "1.2 TiB not mapped".
    pub gap: Option<String>,
}

/// Values over time (columns) and place (rows).
#[derive(Clone, Debug)]
pub struct Heatmap {
    /// Above the figure.
    pub title: String,
    /// Below the title, smaller.
    pub subtitle: String,
    /// "time (s)".
    pub x_title: String,
    /// What the rows are: "address (hexadecimal)".
    pub y_title: String,
    /// What the cells are: "accesses (1/s)".
    pub value_title: String,
    /// Linear: from 0. Logarithmic: from the least value above 0, six powers of ten at most; what is
    /// less has the lowest colour, as 0 has.
    pub value_scale: Scale,
    /// Edges of the columns in seconds, ascending: one more than there are columns. A column whose
    /// edges are not so is left out.
    pub x: Vec<f64>,
    /// From the top.
    pub rows: Vec<Row>,
    /// Row by row, `rows.len() * (x.len() - 1)` values from 0. NaN, and what is missing: not measured.
    /// Where cells are too many to be seen, the mean of neighbours is drawn (by time; rows count alike),
    /// so they should be rates or shares, not sums.
    pub cells: Vec<f64>,
}

/// A stretch of time, in seconds.
type Span = (f64, f64);

/// What is drawn: rows and columns as many as have room.
struct Picture {
    bands: Vec<Band>,
    /// Of the columns.
    spans: Vec<Span>,
    /// From values to shares of the colour scale.
    scale: Place,
    /// Gaps that have no room.
    hidden_gaps: usize,
}

/// Rows without a gap between them.
struct Band {
    /// Above it.
    gap: Option<String>,
    lines: Vec<Line>,
}

/// One or several rows, drawn as one.
struct Line {
    label: String,
    values: Vec<Option<f64>>,
}

impl Heatmap {
    fn columns(&self) -> Vec<(usize, Span)> {
        let mut columns: Vec<(usize, Span)> = Vec::new();
        for (index, edges) in self.x.windows(2).enumerate() {
            let (Some(start), Some(end)) = (known(edges[0]), known(edges[1])) else {
                continue;
            };
            let follows = columns.last().is_none_or(|last| last.1.1 <= start);
            if start < end && follows {
                columns.push((index, (start, end)));
            }
        }
        columns
    }

    fn value(&self, row: usize, column: usize) -> Option<f64> {
        let index = row * (self.x.len() - 1) + column;
        Some(known(*self.cells.get(index)?)?.max(0.0))
    }

    /// Rows between gaps, and the number of gaps that were left out as they are more than `most`.
    fn bands(&self, most_gaps: usize) -> (Vec<Range<usize>>, usize) {
        let gaps = (1..self.rows.len()).filter(|&row| self.rows[row].gap.is_some());
        let mut edges: Vec<usize> = std::iter::once(0).chain(gaps).collect();
        let hidden = match edges.len() - 1 {
            count if count > most_gaps => {
                edges.truncate(1);
                count
            }
            _ => 0,
        };
        edges.push(self.rows.len());
        let bands = edges.windows(2).map(|pair| pair[0]..pair[1]);
        (bands.filter(|band| !band.is_empty()).collect(), hidden)
    }

    /// Each row and column where they have room, otherwise means. `lines` says how many of them the
    /// bands get; a band has no more lines than rows.
    fn picture(
        &self,
        spans: impl Fn(&[(usize, Span)]) -> Vec<Span>,
        most_gaps: usize,
        lines: impl Fn(&[Range<usize>]) -> Vec<usize>,
    ) -> Picture {
        let columns = self.columns();
        let spans = spans(&columns);
        let (ranges, hidden_gaps) = self.bands(most_gaps);
        let counts = lines(&ranges);
        let bands: Vec<Band> = ranges
            .iter()
            .zip(counts)
            .map(|(range, count)| {
                let count = count.clamp(1, range.len());
                let edge = |line: usize| range.start + line * range.len() / count;
                let line = |line: usize| Line {
                    label: self.rows[edge(line)].label.clone(),
                    values: self.means(edge(line)..edge(line + 1), &columns, &spans),
                };
                Band {
                    gap: self.rows[range.start]
                        .gap
                        .clone()
                        .filter(|_| range.start > 0),
                    lines: (0..count).map(line).collect(),
                }
            })
            .collect();
        Picture {
            scale: self.scale(&bands),
            bands,
            spans,
            hidden_gaps,
        }
    }

    fn means(
        &self,
        rows: Range<usize>,
        columns: &[(usize, Span)],
        spans: &[Span],
    ) -> Vec<Option<f64>> {
        let mean = |&(from, to): &Span| {
            let first = columns.partition_point(|column| column.1.1 <= from);
            let within = columns[first..].iter().take_while(|column| column.1.0 < to);
            let (mut sum, mut weight) = (0.0, 0.0);
            for &(column, (start, end)) in within {
                // Stretches too short for numbers to tell apart have no weight.
                let share = (end.min(to) - start.max(from)) / (to - from);
                if !(share > 0.0 && share <= 1.0) {
                    continue;
                }
                for value in rows.clone().filter_map(|row| self.value(row, column)) {
                    sum += value * share;
                    weight += share;
                }
            }
            (weight > 0.0).then(|| sum / weight)
        };
        spans.iter().map(mean).collect()
    }

    fn scale(&self, bands: &[Band]) -> Place {
        let lines = bands.iter().flat_map(|band| &band.lines);
        let values = lines.flat_map(|line| line.values.iter().copied().flatten());
        let zero = std::iter::once(0.0);
        let mut scale = Place::around(self.value_scale, values.chain(zero), (0.0, 1.0));
        if self.value_scale == Scale::Logarithmic {
            scale.limits.0 = scale.limits.0.max(scale.limits.1 / MOST_RATIO);
        }
        scale
    }

    /// With what cannot be seen.
    fn y_title(&self, picture: &Picture) -> String {
        match picture.hidden_gaps {
            0 => self.y_title.clone(),
            count => format!("{}; {count} gaps are not drawn", self.y_title),
        }
    }

    fn value_title(&self) -> String {
        match self.value_scale {
            Scale::Linear => self.value_title.clone(),
            Scale::Logarithmic => format!("{}, logarithmic", self.value_title),
        }
    }
}

impl Picture {
    /// Place of a value among [`LEVELS`] colours; nothing where it was not measured.
    fn level(&self, value: Option<f64>) -> Option<usize> {
        let share = self.scale.share(value?).unwrap_or(0.0).clamp(0.0, 1.0);
        Some((share * (LEVELS - 1) as f64).round() as usize)
    }

    fn is_empty(&self) -> bool {
        self.bands.is_empty() || self.spans.is_empty()
    }

    fn has_unmeasured(&self) -> bool {
        let mut lines = self.bands.iter().flat_map(|band| &band.lines);
        lines.any(|line| line.values.contains(&None))
    }

    /// The axis of time between two places.
    fn time(&self, ends: (f64, f64)) -> Place {
        let edges = self.spans.iter().flat_map(|&(start, end)| [start, end]);
        Place::around(Scale::Linear, edges, ends)
    }
}

/// Shares of `total` lines for bands of so many rows: one at least, and never more than rows.
fn allotted(bands: &[Range<usize>], total: usize) -> Vec<usize> {
    let rows: usize = bands.iter().map(Range::len).sum();
    if rows <= total {
        return bands.iter().map(Range::len).collect();
    }
    let spare = total.saturating_sub(bands.len());
    let mut rows_above = 0;
    let share = |band: &Range<usize>| {
        let before = spare * rows_above / rows;
        rows_above += band.len();
        (1 + spare * rows_above / rows - before).min(band.len())
    };
    bands.iter().map(share).collect()
}

/// A stretch of time as `count` equally long ones.
fn even_spans((start, end): Span, count: usize) -> Vec<Span> {
    let edge = |index: usize| start + (end - start) * (index as f64 / count as f64);
    (0..count)
        .map(|index| (edge(index), edge(index + 1)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Five columns of a second; value = row; a gap above every third row.
    pub fn heatmap(rows: usize) -> Heatmap {
        Heatmap {
            title: "Accesses <by> address".into(),
            subtitle: "a & b".into(),
            x_title: "time (s)".into(),
            y_title: "address (hexadecimal)".into(),
            value_title: "accesses (1/s)".into(),
            value_scale: Scale::Linear,
            x: (0..=5).map(f64::from).collect(),
            rows: (0..rows)
                .map(|row| Row {
                    label: format!("{:x}", 0x7f00_0000 + row * 4096),
                    gap: (row % 3 == 0).then(|| "1.2 TiB \"not\" mapped".to_owned()),
                })
                .collect(),
            cells: (0..rows * 5).map(|cell| (cell / 5) as f64).collect(),
        }
    }

    fn same(columns: &[(usize, Span)]) -> Vec<Span> {
        columns.iter().map(|column| column.1).collect()
    }

    #[test]
    fn rows_between_gaps_are_bands() {
        let heatmap = heatmap(7);
        assert_eq!(heatmap.bands(9), (vec![0..3, 3..6, 6..7], 0));
        let (bands, hidden) = heatmap.bands(1);
        assert_eq!((bands.len(), bands[0].clone(), hidden), (1, 0..7, 2));
        let picture = heatmap.picture(same, 9, |bands| allotted(bands, 3));
        let lines: Vec<usize> = picture.bands.iter().map(|band| band.lines.len()).collect();
        assert_eq!(lines, [1, 1, 1]);
        assert_eq!(picture.bands[0].gap, None, "nothing is above the first row");
        assert!(picture.bands[1].gap.is_some());
        assert_eq!(
            picture.bands[1].lines[0].values,
            [Some(4.0); 5],
            "mean of 3, 4 and 5"
        );
        assert_eq!(picture.scale.limits, (0.0, 6.0));
    }

    #[test]
    fn columns_too_narrow_to_be_seen_are_means_by_time() {
        let mut heatmap = heatmap(1);
        heatmap.x = vec![0.0, 3.0, 4.0];
        heatmap.cells = vec![1.0, 5.0];
        let whole = |_: &[(usize, Span)]| vec![(0.0, 4.0)];
        let value =
            |heatmap: &Heatmap| heatmap.picture(whole, 0, |_| vec![1]).bands[0].lines[0].values[0];
        assert_eq!(
            value(&heatmap),
            Some(2.0),
            "three seconds of 1 and one of 5"
        );
        heatmap.cells[1] = f64::NAN;
        assert_eq!(
            value(&heatmap),
            Some(1.0),
            "what was not measured has no weight"
        );
        heatmap.cells.clear();
        assert_eq!(value(&heatmap), None);
    }

    #[test]
    fn columns_that_do_not_ascend_are_left_out() {
        let mut heatmap = heatmap(1);
        heatmap.x = vec![0.0, 1.0, 1.0, f64::NAN, 2.0, 3.0, 0.5, 0.7];
        let columns: Vec<usize> = heatmap
            .columns()
            .into_iter()
            .map(|column| column.0)
            .collect();
        assert_eq!(columns, [0, 4]);
    }

    #[test]
    fn logarithmic_colours_span_six_powers_of_ten() {
        let mut heatmap = heatmap(1);
        heatmap.value_scale = Scale::Logarithmic;
        heatmap.cells = vec![0.0, 1e-9, 1.0, 1e3, 1e6];
        let picture = heatmap.picture(same, 0, |_| vec![1]);
        assert_eq!(picture.scale.limits, (1.0, 1e6));
        let values = &picture.bands[0].lines[0].values;
        let levels: Vec<Option<usize>> = values.iter().map(|&value| picture.level(value)).collect();
        assert_eq!(levels, [0, 0, 0, 16, 31].map(Some));
        assert_eq!(picture.level(None), None);
    }

    #[test]
    fn every_band_gets_a_line() {
        assert_eq!(allotted(&[0..3, 3..5], 5), [3, 2]);
        assert_eq!(
            allotted(&[0..100, 100..101], 10),
            [8, 1],
            "the second has one row"
        );
        assert_eq!(allotted(&[0..40, 40..60, 60..64], 14), [7, 5, 2]);
        assert_eq!(allotted(&[0..9, 9..18, 18..27], 2), [1, 1, 1]);
        assert_eq!(allotted(&[], 2), [0; 0]);
    }
}
