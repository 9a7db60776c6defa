//! Rows beside what is kept: each with a verdict, or with the reason why there is none. Pure.

use super::experiments;
use super::formula::{self, Missing};
use super::judge::{self, RowVerdict};
use super::kept::{self, KeptResults};
use super::rows::{Ours, PaperRow};
use std::collections::BTreeSet;

/// A row with what became of it.
#[derive(Clone, Debug)]
pub struct Assessed {
    /// The row.
    pub row: PaperRow,
    /// What became of it.
    pub outcome: RowOutcome,
}

/// What became of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum RowOutcome {
    /// Our figure, how near it is, and the commits whose results it is of.
    Judged {
        /// In the row's unit.
        ours: f64,
        /// Beside the paper's.
        verdict: RowVerdict,
        /// Commits of the results, one in general; none where the program itself has it.
        commits: BTreeSet<String>,
    },
    /// An experiment of it has no result.
    NotRun(BTreeSet<&'static str>),
    /// An experiment of it failed.
    Failed(String),
    /// Not from what the text tells.
    Beyond(&'static str),
    /// Not done on purpose.
    Refused(&'static str),
    /// It goes into ours.
    Input(&'static str),
}

impl RowOutcome {
    /// One word for counting and for programs.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Judged { verdict, .. } => match verdict {
                RowVerdict::Ok => "ok",
                RowVerdict::Off(_) => "off",
                RowVerdict::Differs(_) => "no tolerance",
                RowVerdict::Shown => "no figure",
            },
            Self::NotRun(_) => "not run",
            Self::Failed(_) => "failed",
            Self::Beyond(_) => "not reproducible",
            Self::Refused(_) => "refused",
            Self::Input(_) => "input",
        }
    }

    /// All words, in the order of summaries.
    pub const WORDS: [&'static str; 9] = [
        "ok",
        "off",
        "no tolerance",
        "no figure",
        "not run",
        "failed",
        "not reproducible",
        "refused",
        "input",
    ];

    /// Verdict and reason, as a sentence without an end.
    #[must_use]
    pub fn told(&self) -> String {
        match self {
            Self::Judged { verdict, .. } => verdict.to_string(),
            Self::NotRun(experiments) => {
                let names: Vec<&str> = experiments.iter().copied().collect();
                format!("not run: {}", names.join(", "))
            }
            Self::Failed(why) => format!("failed: {why}"),
            Self::Beyond(why) => format!("not reproducible from the text, because {why}"),
            Self::Refused(why) => format!("refused: {why}"),
            Self::Input(of) => format!("an input: {of}"),
        }
    }
}

/// The rows with what became of them.
#[must_use]
pub fn assess(rows: Vec<PaperRow>, results: &KeptResults) -> Vec<Assessed> {
    let declared = formula::declared();
    let outcome = |row: &PaperRow| match &row.ours {
        Ours::Beyond(why) => RowOutcome::Beyond(why),
        Ours::Refused(why) => RowOutcome::Refused(why),
        Ours::Input(of) => RowOutcome::Input(of),
        Ours::Measured(text) => measured(row, text, results, &declared),
    };
    let assessed = rows.into_iter().map(|row| Assessed {
        outcome: outcome(&row),
        row,
    });
    assessed.collect()
}

fn measured(
    row: &PaperRow,
    text: &str,
    results: &KeptResults,
    declared: &formula::Values,
) -> RowOutcome {
    let of =
        |name: &str| experiments::find(name).and_then(|experiment| kept::of(results, experiment));
    let experiments = row.experiments();
    let missing = |name: &&&str| of(name).is_none();
    let missing: BTreeSet<&str> = experiments.iter().filter(missing).copied().collect();
    if !missing.is_empty() {
        return RowOutcome::NotRun(missing);
    }
    let kept = || experiments.iter().filter_map(|name| of(name));
    if let Some(failed) = kept().find(|kept| kept.failure.is_some()) {
        let why = failed.failure.as_deref().unwrap_or_default();
        return RowOutcome::Failed(format!("{}: {why}", failed.experiment));
    }
    let value = |name: &str| {
        let (experiment, value) = name.split_once('/')?;
        let kept = results
            .get(experiment)
            .and_then(|kept| kept.values.get(value));
        kept.or_else(|| declared.get(name)).copied()
    };
    match formula::evaluate(text, &value) {
        Err(Missing::Value(name)) => RowOutcome::Failed(format!("its result has no {name}")),
        Err(Missing::Malformed(why)) => RowOutcome::Failed(why),
        Ok(ours) if !ours.is_finite() => RowOutcome::Failed("its values give no number".into()),
        Ok(ours) => RowOutcome::Judged {
            ours,
            verdict: judge::judge(row.figure, row.tolerance, ours),
            commits: kept().map(|kept| kept.commit.clone()).collect(),
        },
    }
}

/// How many rows have each of [`RowOutcome::WORDS`].
#[must_use]
pub fn counts(rows: &[Assessed]) -> Vec<(&'static str, usize)> {
    let count = |word| rows.iter().filter(|row| row.outcome.word() == word).count();
    RowOutcome::WORDS
        .into_iter()
        .map(|word| (word, count(word)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::kept::{KeptResult, SCHEMA};
    use super::super::{Paper, rows};
    use super::*;

    fn kept(
        experiment: &str,
        failure: Option<&str>,
        values: &[(&str, f64)],
    ) -> (String, KeptResult) {
        let values = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value));
        let kept = KeptResult {
            schema: SCHEMA.into(),
            experiment: experiment.into(),
            commit: "c0ffee".into(),
            date: "2026-11-28".into(),
            host_seconds: 1.0,
            command: experiments::find(experiment).unwrap().line(),
            failure: failure.map(str::to_owned),
            values: values.collect(),
        };
        (experiment.into(), kept)
    }

    fn of(results: &KeptResults, id: &str) -> RowOutcome {
        let all = assess(rows::all(), results);
        all.into_iter()
            .find(|one| one.row.id() == id)
            .expect(id)
            .outcome
    }

    #[test]
    fn a_row_is_judged_by_what_is_kept() {
        let id = "carrefour/latency/a-remote-access-beside-a-local-one-longer-by";
        let none = of(&KeptResults::new(), id);
        assert_eq!(none.told(), "not run: carrefour-latency");
        let values = [
            ("node0.ns_per_access", 100.0),
            ("node1.ns_per_access", 520.0),
        ];
        let results = KeptResults::from([kept("carrefour-latency", None, &values)]);
        let RowOutcome::Judged { ours, commits, .. } = of(&results, id) else {
            panic!("it is there")
        };
        assert_eq!((ours.round(), commits.len()), (420.0, 1));
        let results = KeptResults::from([kept("carrefour-latency", Some("no QEMU"), &[])]);
        assert_eq!(
            of(&results, id).told(),
            "failed: carrefour-latency: no QEMU"
        );
        let results = KeptResults::from([kept("carrefour-latency", None, &values[..1])]);
        assert_eq!(
            of(&results, id).told(),
            "failed: its result has no carrefour-latency/node1.ns_per_access"
        );
        let nothing = [("node0.ns_per_access", 0.0), ("node1.ns_per_access", 520.0)];
        let results = KeptResults::from([kept("carrefour-latency", None, &nothing)]);
        assert!(of(&results, id).told().contains("no number"));
    }

    #[test]
    fn without_results_nothing_measured_is_ok_but_what_the_program_declares() {
        for one in assess(rows::all(), &KeptResults::new()) {
            if one.outcome.word() == "ok" {
                assert!(one.row.experiments().is_empty(), "{}", one.row.id());
            }
        }
        assert_eq!(
            of(&KeptResults::new(), "hydm/table-2/threshold-of-fast-memory").word(),
            "ok"
        );
    }

    #[test]
    fn every_row_is_counted_once() {
        let all = assess(rows::all(), &KeptResults::new());
        let sum: usize = counts(&all).into_iter().map(|(_, count)| count).sum();
        assert_eq!(sum, all.len());
        assert!(all.iter().any(|one| one.row.paper == Paper::Memif));
        assert!(!experiments::ALL.is_empty());
    }
}
