//! The rows as a table, as `hither.reproduce/1` (`docs/cli.md`), and what would be run.

use super::Shown;
use super::perform::minutes;
use crate::print::{self, Table};
use crate::terminal::Terminal;
use hither_lab::reproduce::assess::{self, Assessed, RowOutcome};
use hither_lab::reproduce::judge::{Distance, Figure, RowVerdict, Tolerance, number};
use hither_lab::reproduce::kept;
use hither_lab::reproduce::mechanisms::{self, MechanismState, MemifMechanism};
use hither_lab::reproduce::{Experiment, Paper, PaperRow, experiments, tables};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// Of the JSON form.
const SCHEMA: &str = "hither.reproduce/1";

/// A row as it is shown: name, the paper's, ours, unit, tolerance, verdict.
pub fn cells(one: &Assessed) -> [String; 6] {
    let row = &one.row;
    let ours = match one.outcome {
        RowOutcome::Judged { ours, .. } => number(ours),
        _ => "–".to_owned(),
    };
    [
        row.name.clone(),
        row.figure.to_string(),
        ours,
        row.unit.to_owned(),
        row.tolerance.to_string(),
        verdict(one),
    ]
}

/// The verdict in few words; [`note`] has the reason.
fn verdict(one: &Assessed) -> String {
    match &one.outcome {
        RowOutcome::Judged { verdict, .. } => verdict.to_string(),
        RowOutcome::Beyond(_) => "not reproducible from the text".to_owned(),
        other => other.word().to_owned(),
    }
}

/// Why a row is not ok, where that is known.
pub fn note(one: &Assessed) -> Option<String> {
    match &one.outcome {
        RowOutcome::Judged { verdict, .. } => match verdict {
            RowVerdict::Off(_) | RowVerdict::Differs(_) if !one.row.why.is_empty() => {
                Some(one.row.why.to_owned())
            }
            RowVerdict::Off(_) => Some("why is not known".to_owned()),
            RowVerdict::Ok | RowVerdict::Differs(_) | RowVerdict::Shown => None,
        },
        RowOutcome::NotRun(_) => Some(format!(
            "`hither reproduce {} {}`",
            one.row.paper.name(),
            one.row.table
        )),
        RowOutcome::Failed(why) => Some(why.clone()),
        RowOutcome::Beyond(why) | RowOutcome::Refused(why) | RowOutcome::Input(why) => {
            Some((*why).to_owned())
        }
    }
}

/// Rows of a table with numbers of notes behind their verdicts, and the notes.
pub fn noted(rows: &[&Assessed]) -> (Vec<Vec<String>>, Vec<String>) {
    let mut notes: Vec<String> = Vec::new();
    let with_number = |one: &&Assessed| {
        let mut cells = Vec::from(cells(one));
        if let Some(note) = note(one) {
            let at = notes
                .iter()
                .position(|known| *known == note)
                .unwrap_or_else(|| {
                    notes.push(note);
                    notes.len() - 1
                });
            cells[5] += &format!(" [{}]", at + 1);
        }
        cells
    };
    let rows = rows.iter().map(with_number).collect();
    (rows, notes)
}

/// Heads of [`cells`].
pub const HEAD: [&str; 6] = ["row", "paper", "ours", "unit", "tolerance", "verdict"];

/// Papers with their tables.
pub fn grouped(rows: &[Assessed]) -> Vec<(Paper, &'static str, Vec<&Assessed>)> {
    let plain: Vec<PaperRow> = rows.iter().map(|one| one.row.clone()).collect();
    let papers = Paper::ALL.into_iter();
    let groups = papers.flat_map(|paper| {
        let tables = tables(&plain, paper).into_iter();
        tables.map(move |table| (paper, table)).collect::<Vec<_>>()
    });
    let of = |(paper, table): (Paper, &'static str)| {
        let is_of = |one: &&Assessed| one.row.paper == paper && one.row.table == table;
        (paper, table, rows.iter().filter(is_of).collect())
    };
    groups.map(of).collect()
}

/// How many rows have which outcome.
pub fn summary(rows: &[Assessed]) -> String {
    let counts = assess::counts(rows).into_iter();
    let told: Vec<String> = counts
        .filter(|(_, count)| *count > 0)
        .map(|(word, count)| format!("{count} {word}"))
        .collect();
    format!("{} rows: {}", rows.len(), told.join(", "))
}

/// For a person.
pub fn table(shown: &Shown, terminal: Terminal) -> String {
    let mut text = String::new();
    for (paper, table, rows) in grouped(&shown.rows) {
        let source = rows.first().map_or("", |one| one.row.source);
        text += &format!("{} {table} ({source})\n", paper.name());
        let (cells, notes) = noted(&rows);
        text += &Table::new(&HEAD, &cells).indent(2).text(terminal);
        for (number, note) in notes.iter().enumerate() {
            let note = format!("  [{}] {note}", number + 1);
            text += &print::fold(&(note + "\n"), terminal.width, 6);
        }
        text.push('\n');
    }
    if shown.has_mechanisms {
        text += "memif mechanisms\n";
        let rows: Vec<Vec<String>> = mechanisms::ALL
            .iter()
            .map(|one| Vec::from(mechanism(one)))
            .collect();
        text += &Table::new(&MECHANISM_HEAD, &rows).indent(2).text(terminal);
        text.push('\n');
    }
    text + &summary(&shown.rows) + "\n"
}

/// Heads of [`mechanism`].
pub const MECHANISM_HEAD: [&str; 4] = ["mechanism", "section", "state", "test, or reason"];

/// A mechanism as it is shown.
pub fn mechanism(of: &MemifMechanism) -> [String; 4] {
    let (state, reason) = match of.state {
        MechanismState::Built(what, file, test) => ("built", format!("{what}; {test} in {file}")),
        MechanismState::Refused(why) => ("refused", why.to_owned()),
    };
    [
        of.name.to_owned(),
        of.source.to_owned(),
        state.to_owned(),
        reason,
    ]
}

/// What there is.
pub fn list(rows: &[PaperRow], terminal: Terminal) -> String {
    let mut cells = Vec::new();
    for paper in Paper::ALL {
        for table in tables(rows, paper) {
            let of_table = || {
                rows.iter()
                    .filter(|row| row.paper == paper && row.table == table)
            };
            let served: BTreeSet<&str> = of_table().flat_map(PaperRow::experiments).collect();
            cells.push(vec![
                paper.name().to_owned(),
                table.to_owned(),
                of_table().count().to_string(),
                served.into_iter().collect::<Vec<_>>().join(", "),
                of_table().next().map_or("", |row| row.source).to_owned(),
            ]);
        }
    }
    let head = ["paper", "table", "rows", "experiments", "in the paper"];
    let mut text = Table::new(&head, &cells).keys(2).text(terminal);
    let served: Vec<&Experiment> = experiments::serving(rows).collect();
    if !served.is_empty() {
        text.push('\n');
        text += &costs(&served, terminal);
    }
    text
}

/// Experiments with what they take.
fn costs(experiments: &[&Experiment], terminal: Terminal) -> String {
    let rows: Vec<Vec<String>> = experiments
        .iter()
        .map(|one| vec![one.name.to_owned(), estimate(one), one.what.to_owned()])
        .collect();
    Table::new(&["experiment", "about", "what"], &rows).text(terminal)
}

/// What an experiment takes of the host, about.
pub fn estimate(experiment: &Experiment) -> String {
    minutes(Duration::from_secs_f64(experiment.minutes * 60.0))
}

/// What would be run.
pub fn plan(plan: &[&Experiment], budget: Option<Duration>, terminal: Terminal) -> String {
    if plan.is_empty() {
        return "nothing to run: all has a result of this commit, or no row that is asked for is measured\n".into();
    }
    let text = costs(plan, terminal);
    let all = Duration::from_secs_f64(plan.iter().map(|one| one.minutes * 60.0).sum());
    let within = match budget {
        Some(budget) if all > budget => format!("; --budget {} ends it earlier", minutes(budget)),
        Some(budget) => format!(", within --budget {}", minutes(budget)),
        None => String::new(),
    };
    format!(
        "{text}\n{} experiments, about {}{within}\n",
        plan.len(),
        minutes(all)
    )
}

/// `hither.reproduce/1`.
pub fn json(shown: &Shown) -> Value {
    let experiments = experiments::serving(shown.rows.iter().map(|one| &one.row));
    let mechanisms = mechanisms::ALL.iter().filter(|_| shown.has_mechanisms);
    let counts = assess::counts(&shown.rows).into_iter();
    json!({
        "schema": SCHEMA,
        "commit": shown.commit,
        "rows": shown.rows.iter().map(row_json).collect::<Vec<_>>(),
        "counts": counts.map(|(word, count)| (word.to_owned(), json!(count))).collect::<serde_json::Map<_, _>>(),
        "mechanisms": mechanisms.map(|one| {
            let [name, section, state, reason] = mechanism(one);
            json!({"name": name, "section": section, "state": state, "reason": reason})
        }).collect::<Vec<_>>(),
        "experiments": experiments.map(|one| {
            let kept = kept::of(&shown.results, one);
            json!({
                "name": one.name,
                "what": one.what,
                "command": one.line(),
                "estimated_seconds": one.minutes * 60.0,
                "commit": kept.map(|kept| &kept.commit),
                "date": kept.map(|kept| &kept.date),
                "host_seconds": kept.map(|kept| kept.host_seconds),
                "failure": kept.and_then(|kept| kept.failure.as_ref()),
            })
        }).collect::<Vec<_>>(),
    })
}

fn row_json(one: &Assessed) -> Value {
    let row = &one.row;
    let (least, most) = match row.figure {
        Figure::Near(value) => (Some(value), Some(value)),
        Figure::Between(least, most) => (Some(least), Some(most)),
        Figure::AtMost(most) => (None, Some(most)),
        Figure::AtLeast(least) => (Some(least), None),
        Figure::Unprinted => (None, None),
    };
    let (percent, points) = match row.tolerance {
        Tolerance::Percent(percent) => (Some(percent), None),
        Tolerance::Points(points) => (None, Some(points)),
        Tolerance::Unstated => (None, None),
    };
    let (ours, distance, commits) = match &one.outcome {
        RowOutcome::Judged {
            ours,
            verdict,
            commits,
        } => {
            let distance = match verdict {
                RowVerdict::Off(distance) | RowVerdict::Differs(distance) => Some(distance),
                RowVerdict::Ok | RowVerdict::Shown => None,
            };
            (Some(*ours), distance, commits.iter().collect())
        }
        _ => (None, None, Vec::new()),
    };
    json!({
        "id": row.id(),
        "paper": row.paper.name(),
        "table": row.table,
        "name": row.name,
        "source": row.source,
        "unit": row.unit,
        "paper_least": least,
        "paper_most": most,
        "tolerance_percent": percent,
        "tolerance_points": points,
        "ours": ours,
        "verdict": one.outcome.word(),
        "off_percent": match distance { Some(Distance::Percent(percent)) => Some(percent), _ => None },
        "off_points": match distance { Some(Distance::Points(points)) => Some(points), _ => None },
        "told": one.outcome.told(),
        "why": note(one),
        "experiments": row.experiments(),
        "commits": commits,
    })
}
