//! How much, over time and place: addresses of a program, or of memory.

use super::Scale;

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
    /// Logarithmic: from the least value above 0, six powers of ten at most; 0 has the lowest colour.
    pub value_scale: Scale,
    /// Edges of the columns in seconds, ascending: one more than there are columns.
    pub x: Vec<f64>,
    /// From the top.
    pub rows: Vec<Row>,
    /// Row by row, `rows.len() * (x.len() - 1)` values from 0. NaN, and what is missing: not measured.
    /// Where cells are too many to be seen, the mean of neighbours is drawn (by time; rows count alike),
    /// so they should be rates or shares, not sums.
    pub cells: Vec<f64>,
}

// To come: `Heatmap::svg(&self) -> String` and
// `Heatmap::terminal(&self, width: usize, height: usize, colour: bool) -> String`, columns and lines.
