//! Axes: from values to places, round values, and how numbers are written.

/// Marks that an axis aims at.
const MARKS: f64 = 6.0;
/// What is farther from 0 is taken for not measured, and what is nearer for 0, so that no ratio or
/// difference of two values is ever infinite.
const FARTHEST: f64 = 1e150;
const NEAREST: f64 = 1e-150;
/// From here on numbers are written with letters for powers of 1000.
const LETTERS_FROM: f64 = 1e5;

/// How values become places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences are equally far apart. A y axis has 0 on it; an x axis where that is near.
    Linear,
    /// Equal ratios are equally far apart.
    Logarithmic,
}

/// An axis of a chart.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it shows, with its unit in parentheses.
    pub title: String,
    /// How its values become places.
    pub scale: Scale,
    /// Where it has marks, ascending, and what they say. Empty: at round values.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// With marks at round values.
    #[must_use]
    pub fn new(title: &str, scale: Scale) -> Self {
        Self {
            title: title.to_owned(),
            scale,
            ticks: Vec::new(),
        }
    }
}

/// The value, if it was measured.
pub fn known(value: f64) -> Option<f64> {
    match value.abs() {
        size if size < NEAREST => Some(0.0),
        size if size <= FARTHEST => Some(value),
        _ => None,
    }
}

/// From values between two limits to places between two others.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    scale: Scale,
    /// Least and greatest value; above 0 on a logarithmic scale, and never equal.
    pub limits: (f64, f64),
    /// Where they are.
    pub ends: (f64, f64),
}

impl Place {
    /// Limits around `values`, as near as can be.
    pub fn around(scale: Scale, values: impl Iterator<Item = f64>, ends: (f64, f64)) -> Self {
        let usable = values
            .filter_map(known)
            .filter(|&value| scale == Scale::Linear || value > 0.0);
        let nothing = (f64::INFINITY, f64::NEG_INFINITY);
        let (low, high) = usable.fold(nothing, |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let limits = match (scale, low, high) {
            (_, low, high) if low < high => (low, high),
            (Scale::Linear, low, high) if low > high => (0.0, 1.0),
            (Scale::Logarithmic, low, high) if low > high => (1.0, 10.0),
            (Scale::Linear, 0.0, _) => (0.0, 1.0),
            (Scale::Linear, value, _) => (value - value.abs() / 2.0, value + value.abs() / 2.0),
            (Scale::Logarithmic, value, _) => (value / 2.0, value * 2.0),
        };
        Self {
            scale,
            limits,
            ends,
        }
    }

    /// The same with round limits.
    pub fn rounded(mut self) -> Self {
        let (low, high) = self.limits;
        self.limits = match self.scale {
            Scale::Linear => {
                let step = step(high - low);
                ((low / step).floor() * step, (high / step).ceil() * step)
            }
            Scale::Logarithmic => {
                let below = round_values(low / 10.0, low * 1.001).next_back();
                let above = round_values(high * 0.999, high * 10.0).next();
                (below.unwrap_or(low), above.unwrap_or(high))
            }
        };
        self
    }

    /// Where a value is, if it was measured and the scale has it.
    pub fn of(&self, value: f64) -> Option<f64> {
        let share = self.share(known(value)?)?;
        Some(self.ends.0 + share * (self.ends.1 - self.ends.0))
    }

    /// How far a measured value is from the lower limit, as a share of the whole.
    pub fn share(&self, value: f64) -> Option<f64> {
        let (low, high) = self.limits;
        match self.scale {
            Scale::Linear => Some((value - low) / (high - low)),
            Scale::Logarithmic if value > 0.0 => Some((value / low).ln() / (high / low).ln()),
            Scale::Logarithmic => None,
        }
    }

    /// Round values within the limits, and what they say.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let (low, high) = self.limits;
        let powers = (high / low).log10();
        match self.scale {
            Scale::Logarithmic if powers >= 2.5 => {
                let every = (powers / MARKS).ceil();
                let exponents = (low.log10() - 1e-9).ceil() as i32..=high.log10().floor() as i32;
                exponents
                    .step_by(every as usize)
                    .map(|exponent| with_label(10_f64.powi(exponent)))
                    .collect()
            }
            Scale::Logarithmic if powers >= 0.7 => round_values(low * 0.999, high * 1.001)
                .map(with_label)
                .collect(),
            _ => {
                let step = step(high - low);
                let first = (low / step - 1e-6).ceil();
                (0..=(2.0 * MARKS) as usize)
                    .map(|index| (first + index as f64) * step)
                    .take_while(|&value| value <= high + step * 1e-6)
                    .map(|value| (value, label(value, step)))
                    .collect()
            }
        }
    }
}

fn with_label(value: f64) -> (f64, String) {
    (value, label(value, value))
}

/// 1, 2 and 5 times powers of ten, from `low` to `high`, both above 0.
fn round_values(low: f64, high: f64) -> impl DoubleEndedIterator<Item = f64> {
    let exponents = low.log10().floor() as i32..=high.log10().ceil() as i32;
    exponents
        .flat_map(|exponent| [1.0, 2.0, 5.0].map(|factor| factor * 10_f64.powi(exponent)))
        .filter(move |&value| value >= low && value <= high)
}

/// 1, 2 or 5 times a power of ten, for some [`MARKS`] steps in `span`.
fn step(span: f64) -> f64 {
    if !span.is_finite() || span <= 0.0 {
        return 1.0;
    }
    let rough = span / MARKS;
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|&step| step >= rough * 0.999)
        .unwrap_or(10.0 * power)
}

/// A value with the digits that its step needs.
pub fn label(value: f64, step: f64) -> String {
    let size = value.abs();
    // A step off 0 that is not quite 0 would be written "-0".
    if size < step * 1e-6 || value == 0.0 {
        return "0".to_owned();
    }
    if !(1e-4..1e18).contains(&size) {
        return format!("{value:.0e}");
    }
    let (unit, letter) = match size {
        size if size < LETTERS_FROM => (1.0, ""),
        size if size < 1e6 => (1e3, "k"),
        size if size < 1e9 => (1e6, "M"),
        size if size < 1e12 => (1e9, "G"),
        size if size < 1e15 => (1e12, "T"),
        _ => (1e15, "P"),
    };
    let digits = |unit: f64| (-(step / unit * 1.0001).log10().floor()).clamp(0.0, 9.0) as usize;
    match digits(unit) {
        // Neighbours that differ by little are told apart by all their digits.
        4.. if unit > 1.0 => format!("{value:.0$}", digits(1.0)),
        digits => format!("{:.digits$}{letter}", value / unit),
    }
}

/// A value that is not on a scale, with three digits or so.
pub fn short(value: f64) -> String {
    label(value, value.abs() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, values: &[f64]) -> Vec<String> {
        let place = Place::around(scale, values.iter().copied(), (0.0, 100.0)).rounded();
        place.ticks().into_iter().map(|tick| tick.1).collect()
    }

    #[test]
    fn steps_are_round() {
        for (top, expected) in [
            (6.0, 1.0),
            (11.0, 2.0),
            (0.3, 0.05),
            (40.0, 10.0),
            (100.0, 20.0),
        ] {
            assert!((step(top) - expected).abs() < 1e-9, "{top}: {}", step(top));
        }
        assert_eq!(step(0.0), 1.0);
    }

    #[test]
    fn numbers_have_the_digits_they_need() {
        for (value, step, expected) in [
            (0.15, 0.05, "0.15"),
            (20.0, 10.0, "20"),
            (0.0, 10.0, "0"),
            (-1e-12, 0.1, "0"),
            (1_000_000.02, 0.01, "1000000.02"),
            (50_000.0, 10_000.0, "50000"),
            (250_000.0, 50_000.0, "250k"),
            (1_500_000.0, 500_000.0, "1.5M"),
            (2e15, 1e15, "2P"),
            (1e-6, 1e-6, "1e-6"),
            (-3e20, 1e20, "-3e20"),
        ] {
            assert_eq!(label(value, step), expected);
        }
        assert_eq!([short(1234.5), short(0.01234)], ["1234", "0.0123"]);
    }

    #[test]
    fn marks_are_round_whatever_the_range() {
        assert_eq!(
            labels(Scale::Linear, &[0.0, 6.2]),
            ["0", "2", "4", "6", "8"]
        );
        assert_eq!(
            labels(Scale::Linear, &[-0.5, 1.0]),
            ["-0.5", "0", "0.5", "1.0"]
        );
        assert_eq!(
            labels(Scale::Logarithmic, &[3.0, 60.0]),
            ["2", "5", "10", "20", "50", "100"]
        );
        assert_eq!(
            labels(Scale::Logarithmic, &[1.0, 1e5]),
            ["1", "10", "100", "1000", "10000", "100k"]
        );
        assert_eq!(labels(Scale::Logarithmic, &[1.0, 1e12]).len(), 7);
        assert!(labels(Scale::Logarithmic, &[80.0, 135.0]).len() > 3);
    }

    #[test]
    fn limits_hold_for_values_that_cannot_be_drawn() {
        let odd = [f64::NAN, f64::INFINITY, -1e300, 1e-310];
        for scale in [Scale::Linear, Scale::Logarithmic] {
            let place = Place::around(scale, odd.into_iter(), (0.0, 100.0));
            assert!(place.limits.0 < place.limits.1, "{:?}", place.limits);
            assert_eq!(place.of(f64::NAN), None);
            assert_eq!(place.of(1e300), None);
        }
        let log = Place::around(Scale::Logarithmic, [4.0, 64.0].into_iter(), (0.0, 100.0));
        assert_eq!((log.of(0.0), log.of(-1.0)), (None, None));
        assert!((log.of(16.0).unwrap() - 50.0).abs() < 1e-9, "equal ratios");
    }
}
