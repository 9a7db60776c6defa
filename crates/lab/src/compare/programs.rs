//! Several programs under the same policies: where each policy is good, and what it comes to. Pure.

use super::Comparison;
use serde::{Deserialize, Serialize};

/// Schema of the JSON form; `docs/lab.md` documents it.
pub const SCHEMA: &str = "hither.lab.compare-programs/1";

/// A policy over all programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mean {
    /// Its name.
    pub policy: String,
    /// Speed over first-touch's with each program, in their order.
    pub speeds: Vec<Option<f64>>,
    /// Geometric mean of them; `None` where one is missing.
    pub mean: Option<f64>,
    /// The same of their steady parts.
    pub steady_mean: Option<f64>,
}

/// Comparisons of several programs: the JSON document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Programs {
    /// [`SCHEMA`].
    pub schema: String,
    /// One for each program.
    pub comparisons: Vec<Comparison>,
    /// One row for each policy.
    pub means: Vec<Mean>,
}

impl Programs {
    /// Of comparisons under the same policies.
    #[must_use]
    pub fn new(comparisons: Vec<Comparison>) -> Self {
        let policies = comparisons.first().map_or(0, |first| first.rows.len());
        let mean = |row: usize| {
            let rows = || comparisons.iter().map(|one| &one.rows[row]);
            let speeds: Vec<Option<f64>> = rows().map(|row| row.speed).collect();
            Mean {
                policy: comparisons[0].rows[row].policy.clone(),
                mean: geometric_mean(&speeds),
                steady_mean: geometric_mean(
                    &rows().map(|row| row.steady_speed).collect::<Vec<_>>(),
                ),
                speeds,
            }
        };
        Self {
            schema: SCHEMA.to_owned(),
            means: (0..policies).map(mean).collect(),
            comparisons,
        }
    }

    /// The policy that speeds are measured against.
    #[must_use]
    pub fn base(&self) -> &str {
        let first = self.comparisons.first();
        first
            .and_then(|first| super::base(&first.rows))
            .map_or("", |row| &row.policy)
    }

    /// Names of columns and a row for each policy: speeds with each program, their geometric mean, and
    /// that of the steady parts.
    #[must_use]
    pub fn table(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let mut head = vec!["policy".to_owned()];
        head.extend(
            self.comparisons
                .iter()
                .map(|one| name(&one.setting.command)),
        );
        head.extend(["geometric mean".to_owned(), "steady".to_owned()]);
        let cell = |speed: Option<f64>| speed.map_or("-".to_owned(), |speed| format!("{speed:.2}"));
        let rows = self.means.iter().map(|mean| {
            let mut row = vec![mean.policy.clone()];
            row.extend(mean.speeds.iter().copied().map(cell));
            row.extend([cell(mean.mean), cell(mean.steady_mean)]);
            row
        });
        (head, rows.collect())
    }
}

/// A program's file name and the words before its first option.
fn name(command: &[String]) -> String {
    let file = command
        .first()
        .map_or("", |path| path.rsplit('/').next().unwrap_or(path));
    let words = command
        .iter()
        .skip(1)
        .take_while(|word| !word.starts_with('-'));
    std::iter::once(file)
        .chain(words.map(String::as_str))
        .collect::<Vec<_>>()
        .join(" ")
}

fn geometric_mean(values: &[Option<f64>]) -> Option<f64> {
    let logarithms: Option<Vec<f64>> = values
        .iter()
        .map(|value| value.filter(|&value| value > 0.0).map(f64::ln))
        .collect();
    let logarithms = logarithms.filter(|all| !all.is_empty())?;
    Some((logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::super::Setting;
    use super::*;

    fn comparison(words: &str, speeds: [Option<f64>; 2]) -> Comparison {
        let setting = Setting {
            command: words.split(' ').map(str::to_owned).collect(),
            ..Setting::default()
        };
        let names = ["first-touch".to_owned(), "auto".to_owned()];
        let mut comparison = Comparison::new(setting, &names, &[]);
        for (row, speed) in comparison.rows.iter_mut().zip(speeds) {
            (row.speed, row.steady_speed) = (speed, speed);
        }
        comparison
    }

    #[test]
    fn means_are_geometric_and_a_program_that_failed_leaves_none() {
        let programs = Programs::new(vec![
            comparison(
                "target/release/cluster shared --rounds 3",
                [Some(1.0), Some(2.0)],
            ),
            comparison("cg -x", [Some(1.0), Some(0.5)]),
        ]);
        assert_eq!(programs.base(), "first-touch");
        let (head, rows) = programs.table();
        assert_eq!(
            head,
            ["policy", "cluster shared", "cg", "geometric mean", "steady"]
        );
        assert_eq!(rows[1], ["auto", "2.00", "0.50", "1.00", "1.00"]);
        let failed = Programs::new(vec![
            comparison("a", [Some(1.0), None]),
            comparison("b", [Some(1.0), Some(3.0)]),
        ]);
        assert_eq!(failed.table().1[1], ["auto", "-", "3.00", "-", "-"]);
        assert_eq!(failed.means[0].mean, Some(1.0));
    }
}
