//! Drawings and pages of reports: plain data in, text out. Figures are SVG without script, and without
//! font or style from elsewhere, so that a browser without network shows them; they follow the reader's
//! light or dark scheme.
//!
//! Every axis title has its unit in parentheses. Values that are not finite count as not measured.

#![cfg_attr(
    not(test),
    expect(dead_code, unused_imports, reason = "reports draw the rest")
)]

mod axis;
mod bars;
mod canvas;
mod ceiling;
mod colour;
mod heatmap;
mod line;
mod page;

pub use axis::{Axis, Scale};
pub use bars::{BarChart, Part};
pub use ceiling::{Ceiling, around, roofline};
pub use heatmap::{Heatmap, Row};
pub use line::{LineChart, Series, Shape, stacked};
pub use page::{Alignment, Block, Page, Section};

#[cfg(test)]
mod examples;
