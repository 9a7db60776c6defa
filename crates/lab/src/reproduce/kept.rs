//! Results that are kept: one line of JSON for each experiment that ended, with the commit it was run at. Pure.
//!
//! A file of these grows at its end; the last line of an experiment counts. So a run that is broken off loses at
//! most the experiment that was under way.

use super::Experiment;
use super::formula::Values;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Of a line.
pub const SCHEMA: &str = "hither.reproduce.kept/1";

/// What an experiment gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// Its name.
    pub experiment: String,
    /// The commit it was run at.
    pub commit: String,
    /// Day, as 2026-11-28.
    pub date: String,
    /// Time it took.
    pub host_seconds: f64,
    /// The command, as one line.
    pub command: String,
    /// Why it failed; `null` where it did not.
    pub failure: Option<String>,
    /// What it gave.
    pub values: Values,
}

/// Results by experiment.
pub type KeptResults = BTreeMap<String, KeptResult>;

/// The last of each experiment.
///
/// # Errors
/// The line that is none, with its number.
pub fn parse(text: &str) -> Result<KeptResults, String> {
    let mut results = KeptResults::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let kept: KeptResult =
            serde_json::from_str(line).map_err(|error| format!("line {}: {error}", number + 1))?;
        if kept.schema != SCHEMA {
            return Err(format!(
                "line {}: the schema is {}, this reads {SCHEMA}",
                number + 1,
                kept.schema
            ));
        }
        results.insert(kept.experiment.clone(), kept);
    }
    Ok(results)
}

/// The result of an experiment; none where its command was another then.
#[must_use]
pub fn of<'a>(results: &'a KeptResults, experiment: &Experiment) -> Option<&'a KeptResult> {
    let kept = results.get(experiment.name)?;
    (kept.command == experiment.line()).then_some(kept)
}

/// Has the experiment to be run? Not where this commit has a result of it.
#[must_use]
pub fn is_due(results: &KeptResults, experiment: &Experiment, commit: &str) -> bool {
    of(results, experiment).is_none_or(|kept| kept.commit != commit || kept.failure.is_some())
}

/// The day of a time since 1970 in seconds, UTC, as 2026-11-28.
#[must_use]
pub fn day(seconds: u64) -> String {
    // Civil from days, after Howard Hinnant: eras of 400 years, years from March on.
    let days = seconds / 86_400 + 719_468;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = days / 146_097 * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::super::experiments;
    use super::*;

    fn kept(experiment: &str, commit: &str, failure: Option<&str>) -> KeptResult {
        KeptResult {
            schema: SCHEMA.into(),
            experiment: experiment.into(),
            commit: commit.into(),
            date: "2026-11-28".into(),
            host_seconds: 1.5,
            command: "hither lab run".into(),
            failure: failure.map(str::to_owned),
            values: Values::from([("a.b".into(), 2.0)]),
        }
    }

    #[test]
    fn the_last_result_counts() {
        let lines = [
            kept("x", "old", None),
            kept("y", "old", None),
            kept("x", "new", None),
        ];
        let text: String = lines
            .iter()
            .map(|kept| serde_json::to_string(kept).unwrap() + "\n")
            .collect();
        let results = parse(&text).unwrap();
        assert_eq!((results.len(), results["x"].commit.as_str()), (2, "new"));
    }

    #[test]
    fn what_failed_or_was_another_command_or_commit_is_run() {
        let one = &experiments::ALL[0];
        let of = |kept: KeptResult| {
            KeptResults::from([(
                one.name.to_owned(),
                KeptResult {
                    command: one.line(),
                    ..kept
                },
            )])
        };
        assert!(!is_due(&of(kept(one.name, "new", None)), one, "new"));
        assert!(is_due(&of(kept(one.name, "old", None)), one, "new"));
        assert!(is_due(
            &of(kept(one.name, "new", Some("no QEMU"))),
            one,
            "new"
        ));
        assert!(is_due(&KeptResults::new(), one, "new"));
        let other = KeptResults::from([(one.name.to_owned(), kept(one.name, "new", None))]);
        assert!(is_due(&other, one, "new") && super::of(&other, one).is_none());
    }

    #[test]
    fn lines_of_something_else_are_refused() {
        assert!(parse("{}\n").unwrap_err().starts_with("line 1"));
        let other = serde_json::to_string(&KeptResult {
            schema: "x/1".into(),
            ..kept("x", "c", None)
        })
        .unwrap();
        assert!(
            parse(&format!("\n{other}\n"))
                .unwrap_err()
                .contains("line 2: the schema is x/1")
        );
        assert_eq!(parse("").unwrap(), KeptResults::new());
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (1_795_824_000, "2026-11-28"),
        ] {
            assert_eq!(day(seconds), text);
        }
    }
}
