//! Stacked bars: shares of a whole, one bar each for names without an order of numbers.

/// One part of every bar.
#[derive(Clone, Debug)]
pub struct Part {
    /// For the legend.
    pub name: String,
    /// Which colour, as in [`Series`](super::Series).
    pub colour: usize,
    /// How much of each bar, in their order, from 0.
    pub values: Vec<f64>,
}

/// Bars from the left, one below the other.
#[derive(Clone, Debug)]
pub struct BarChart {
    /// Above the chart.
    pub title: String,
    /// Below the title, smaller.
    pub subtitle: String,
    /// What the bars are, such as "data area (file:line)".
    pub names_title: String,
    /// What their length is, with its unit: "bytes read (MB)".
    pub value_title: String,
    /// Names of the bars, from the top.
    pub names: Vec<String>,
    /// What they are made of, from the left and in the order of the legend.
    pub parts: Vec<Part>,
}

// To come: `BarChart::svg(&self) -> String`.
