//! Figures from what experiments gave: `100 * ( a/x / a/y - 1 )`.
//!
//! Words stand apart by blanks: numbers, names of values (`EXPERIMENT/VALUE`), `+ - * / max min` and brackets.
//! `* /` bind more than `+ - max min`; otherwise from left to right. A name that begins with [`DECLARED`] is a
//! constant of the program itself, so that a paper's setting is compared with what is in force.

use hither_core::engine::EngineConfig;
use hither_core::opium;
use hither_core::policy::carrefour;
use hither_core::policy::programs::hydm;
use hither_core::policy::tiers::paper;
use hither_linux::monitor;
use std::collections::BTreeMap;

/// Where constants of the program are.
pub const DECLARED: &str = "declared";

/// Values by name.
pub type Values = BTreeMap<String, f64>;

/// Why there is no figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// No such value was given.
    Value(String),
    /// The formula is none.
    Malformed(String),
}

/// Constants of the program that a paper names as well.
#[must_use]
pub fn declared() -> Values {
    let carrefour = carrefour::Config::default();
    let engine = EngineConfig::default();
    let values = [
        ("engine.success_local_ratio", engine.success_local_ratio),
        ("engine.success_imbalance", engine.success_imbalance),
        ("engine.harm_local_ratio", engine.harm_local_ratio),
        (
            "carrefour.accesses_per_us_per_cpu",
            carrefour.min_accesses_per_us_per_cpu,
        ),
        (
            "carrefour.collocate_below",
            carrefour.collocate_below_local_ratio,
        ),
        (
            "carrefour.interleave_above",
            carrefour.interleave_above_imbalance,
        ),
        ("carrefour.min_samples", f64::from(carrefour.min_samples)),
        ("carrefour.max_pages", carrefour.max_pages as f64),
        (
            "carrefour.max_pages_cheap",
            carrefour.max_pages_cheap as f64,
        ),
        ("carrefour.few_orders", carrefour.few_orders as f64),
        ("hydm.windows", hydm::WINDOWS as f64),
        ("hydm.threshold", hydm::THRESHOLD),
        ("tiers.look_us", paper::LOOK_US as f64),
        ("tiers.hot_bits", f64::from(paper::HOT_BITS)),
        ("tiers.max_scan", paper::MAX_SCAN as f64),
        ("tiers.window_us", paper::WINDOW_US as f64),
        ("opium.filters", opium::FILTERS as f64),
        ("opium.counters", opium::COUNTERS as f64),
        ("opium.secondaries", opium::SECONDARIES as f64),
        ("opium.least_grain", monitor::LEAST_GRAIN as f64),
        ("opium.most_grain", monitor::MOST_GRAIN as f64),
    ];
    let named = values.into_iter();
    named
        .map(|(name, value)| (format!("{DECLARED}/{name}"), value))
        .collect()
}

/// Names of values in a formula.
#[must_use]
pub fn names(text: &str) -> Vec<&str> {
    let is_name = |word: &&str| word.contains('/') && word.len() > 1;
    text.split_whitespace().filter(is_name).collect()
}

/// Is it one?
///
/// # Errors
/// What is wrong with it.
pub fn check(text: &str) -> Result<(), String> {
    match evaluate(text, &|_| Some(1.0)) {
        Ok(_) => Ok(()),
        Err(Missing::Malformed(why) | Missing::Value(why)) => Err(why),
    }
}

/// The figure.
///
/// # Errors
/// A value that is not there.
pub fn evaluate(text: &str, value: &dyn Fn(&str) -> Option<f64>) -> Result<f64, Missing> {
    let mut parser = Parser {
        words: text.split_whitespace().collect(),
        at: 0,
        value,
    };
    let result = parser.sum()?;
    match parser.words.get(parser.at) {
        None => Ok(result),
        Some(word) => Err(Missing::Malformed(format!(
            "`{word}` is too much in `{text}`"
        ))),
    }
}

struct Parser<'a> {
    words: Vec<&'a str>,
    at: usize,
    value: &'a dyn Fn(&str) -> Option<f64>,
}

impl Parser<'_> {
    fn take(&mut self, wanted: &[&str]) -> Option<String> {
        let word = self
            .words
            .get(self.at)
            .filter(|word| wanted.contains(word))?;
        self.at += 1;
        Some((*word).to_owned())
    }

    fn sum(&mut self) -> Result<f64, Missing> {
        let mut left = self.product()?;
        while let Some(operator) = self.take(&["+", "-", "max", "min"]) {
            let right = self.product()?;
            left = match operator.as_str() {
                "+" => left + right,
                "-" => left - right,
                "max" => left.max(right),
                _ => left.min(right),
            };
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<f64, Missing> {
        let mut left = self.factor()?;
        while let Some(operator) = self.take(&["*", "/"]) {
            let right = self.factor()?;
            left = match operator.as_str() {
                "*" => left * right,
                _ => left / right,
            };
        }
        Ok(left)
    }

    fn factor(&mut self) -> Result<f64, Missing> {
        let malformed = |why: String| Err(Missing::Malformed(why));
        let Some(word) = self.words.get(self.at).copied() else {
            return malformed("it ends too early".into());
        };
        self.at += 1;
        if word == "(" {
            let inner = self.sum()?;
            return match self.take(&[")"]) {
                Some(_) => Ok(inner),
                None => malformed("a bracket stays open".into()),
            };
        }
        if let Ok(number) = word.parse::<f64>() {
            return Ok(number);
        }
        match names(word).is_empty() {
            true => malformed(format!("`{word}` is no value")),
            false => (self.value)(word).ok_or_else(|| Missing::Value(word.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<f64, Missing> {
        let values = BTreeMap::from([("e/a.b", 6.0), ("e/c@d-1", 4.0)]);
        evaluate(text, &|name| values.get(name).copied())
    }

    #[test]
    fn operators_bind_as_one_reads_them() {
        assert_eq!(of("1 + 2 * 3"), Ok(7.0));
        assert_eq!(of("( 1 + 2 ) * 3"), Ok(9.0));
        assert_eq!(of("100 * ( e/a.b / e/c@d-1 - 1 )"), Ok(50.0));
        assert_eq!(of("8 - 3 - 2"), Ok(3.0));
        assert_eq!(of("e/a.b max 7"), Ok(7.0));
        assert_eq!(of("e/a.b min e/c@d-1 / 2"), Ok(2.0));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        assert_eq!(of("1 + e/z"), Err(Missing::Value("e/z".into())));
        for bad in ["", "1 +", "( 1", "1 )", "1 2", "a", "*"] {
            assert!(matches!(of(bad), Err(Missing::Malformed(_))), "{bad}");
            assert!(check(bad).is_err());
        }
        assert_eq!(names("2 * e/a / ( f/b-c - 1 )"), ["e/a", "f/b-c"]);
    }

    #[test]
    fn constants_are_the_programs_own() {
        let declared = declared();
        assert_eq!(declared["declared/opium.counters"], 524_288.0);
        assert!(declared["declared/carrefour.interleave_above"] > 0.0);
    }
}
