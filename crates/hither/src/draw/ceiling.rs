//! What floating point and memory allow together (Williams, Waterman and Patterson, 2009): at so many
//! operations per byte a program does no more than the peak, and no more than that many times what
//! memory delivers. The two meet at the ridge.

use super::axis::{Axis, Scale};
use super::line::{LineChart, Series};

/// A chart shows this many times less than the least place it is about, and more than the greatest.
const AROUND: f64 = 16.0;

/// A roof of a roofline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceiling {
    /// Peak of floating point, in GFLOP/s.
    pub gflops: f64,
    /// What memory delivers, in GB/s.
    pub gbs: f64,
}

impl Ceiling {
    /// Operations per byte from which on memory is no limit; not finite where it delivers nothing.
    pub fn ridge(&self) -> f64 {
        self.gflops / self.gbs
    }

    /// GFLOP/s that can be reached at so many operations per byte.
    pub fn at(&self, flops_per_byte: f64) -> f64 {
        (flops_per_byte * self.gbs).min(self.gflops)
    }

    /// From one intensity by the ridge to another.
    pub fn points(&self, (least, most): (f64, f64)) -> Vec<(f64, f64)> {
        let ridge = Some(self.ridge()).filter(|ridge| (least..most).contains(ridge));
        let places = [Some(least), ridge, Some(most)];
        places
            .into_iter()
            .flatten()
            .map(|x| (x, self.at(x)))
            .collect()
    }
}

/// The intensities that a chart about these shows.
pub fn around(flops_per_byte: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    (
        flops_per_byte.clone().fold(f64::MAX, f64::min) / AROUND,
        flops_per_byte.fold(0.0, f64::max) * AROUND,
    )
}

/// A chart of roofs, and of what lies below them.
pub fn roofline(title: String, subtitle: String, series: Vec<Series>) -> LineChart {
    LineChart {
        title,
        subtitle,
        x: Axis::new("arithmetic intensity (FLOP/byte)", Scale::Logarithmic),
        y: Axis::new("speed (GFLOP/s)", Scale::Logarithmic),
        series,
    }
}
