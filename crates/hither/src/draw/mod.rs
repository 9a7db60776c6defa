//! Drawings and pages of reports: plain data in, text out. Figures are SVG without script, and without
//! font or style from elsewhere, so that a browser without network shows them; they follow the reader's
//! light or dark scheme.
//!
//! Every axis title has its unit in parentheses. Values that are not finite count as not measured.

mod bars;
mod heatmap;
mod line;
mod page;

pub use line::{Axis, LineChart, Scale, Series, Shape};
