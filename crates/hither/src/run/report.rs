//! The report at the end of a run, for a person and as `hither.run/1` (`docs/cli.md`).

use super::Command;
use super::learn::Learned;
use super::mirrors::Mirrored;
use super::place::Placed;
use super::supervise::Finished;
use crate::print;
use hither_agent::host::drive::Decided;
use hither_agent::host::estimate::EstimatedFigures;
use hither_core::foreign::Foreign;
use hither_core::machine::Machine;
use hither_core::policy::Rung;
use hither_linux::sys::{Ended, Usage};
use serde_json::{Value, json};
use std::time::Duration;

/// Sentences of one kind that are printed; the rest is counted.
const MOST_NOTES: usize = 10;

/// Everything that is reported.
pub struct Report<'a> {
    command: &'a Command,
    machine: Option<&'a Machine>,
    finished: &'a Finished,
    /// From the start of hither, its own preparations included.
    elapsed: Duration,
}

impl<'a> Report<'a> {
    /// Of a run that has ended.
    #[must_use]
    pub fn new(
        command: &'a Command,
        machine: Option<&'a Machine>,
        finished: &'a Finished,
        elapsed: Duration,
    ) -> Self {
        Self {
            command,
            machine,
            finished,
            elapsed,
        }
    }

    /// For a person.
    #[must_use]
    pub fn text(&self) -> String {
        let finished = self.finished;
        let program = self.command.command[0].shown();
        let how = match finished.ended {
            Ended::Exited(status) => format!("exit status {status}"),
            Ended::Killed(signal) => format!("killed by signal {signal}"),
        };
        let mut text = format!(
            "{program} ran {:.3} s, {how}\n",
            finished.run_us as f64 / 1e6
        );
        if let Some(placed) = &finished.placed {
            text.push_str(&placed.text());
        }
        if let Some(mirrored) = &finished.mirrored {
            text.push_str(&mirrored.text());
        }
        match &finished.decided {
            None if finished.placed.is_some() || finished.mirrored.is_some() => {}
            None if finished.learned.is_some() => {
                text.push_str("one memory node: nothing was watched, nothing was moved\n");
            }
            None => text.push_str("policy none: nothing was watched, nothing was moved\n"),
            Some((decided, backend)) => text.push_str(&decided_text(decided, backend)),
        }
        if let Some(learned) = &finished.learned {
            text.push_str(&learned.text());
        }
        text + &own_cost(&finished.usage, self.elapsed)
    }

    /// The same as a document, indented, with a final newline.
    #[must_use]
    pub fn json(&self) -> String {
        let finished = self.finished;
        let words: Vec<_> = self
            .command
            .command
            .iter()
            .map(|word| word.to_string_lossy())
            .collect();
        let signal = match finished.ended {
            Ended::Exited(_) => None,
            Ended::Killed(signal) => Some(signal),
        };
        let mut document = json!({
            "schema": "hither.run/1",
            "command": words,
            "policy": self.command.policy(),
            "machine": self.machine.map(|machine| &machine.name),
            "interval_us": self.command.interval,
            "seconds": finished.run_us as f64 / 1e6,
            "status": finished.ended.status(),
            "signal": signal,
            "own": own_json(&finished.usage, self.elapsed),
            "decided": Value::Null,
            "placed": finished.placed.as_ref().map(Placed::json),
            "files": finished.mirrored.as_ref().map(Mirrored::json),
            "learned": finished.learned.as_ref().map(Learned::json),
        });
        if let Some((decided, backend)) = &finished.decided {
            document["decided"] = decided_json(decided, backend);
        }
        print::json(document)
    }
}

/// Share of one CPU that hither itself used.
fn own_share(usage: &Usage, elapsed: Duration) -> f64 {
    (usage.user_us + usage.system_us) as f64 / (elapsed.as_micros().max(1) as f64)
}

/// What hither itself used, for a person.
pub fn own_cost(usage: &Usage, elapsed: Duration) -> String {
    format!(
        "own cost: {:.3} s of CPU time ({:.2} % of one CPU), {:.1} MiB of memory at most\n",
        (usage.user_us + usage.system_us) as f64 / 1e6,
        100.0 * own_share(usage, elapsed),
        usage.peak_resident_kb as f64 / 1024.0,
    )
}

/// The same as data.
pub fn own_json(usage: &Usage, elapsed: Duration) -> Value {
    json!({
        "user_us": usage.user_us,
        "system_us": usage.system_us,
        "cpu_share": own_share(usage, elapsed),
        "peak_resident_kb": usage.peak_resident_kb,
    })
}

/// What was decided and done, for a person.
pub fn decided_text(decided: &Decided, backend: &str) -> String {
    let evidence = decided.rung.map_or("none", Rung::name);
    let mut text = format!(
        "tracker {} (evidence {evidence}), backend {backend}\n",
        decided.tracker
    );
    for (name, summary) in &decided.scopes {
        if decided.scopes.len() > 1 {
            text.push_str(&format!("{}: ", name.shown()));
        }
        text.push_str(&summary.to_string());
    }
    text.push_str(&figures_text(
        "before the first move",
        &decided.estimate.before(),
    ));
    if let Some(after) = decided.estimate.after() {
        text.push_str(&figures_text("after the last move", &after));
    }
    let sampled = decided.estimate.sampled();
    text.push_str(&match sampled.sample_count {
        None => "samples: none were taken\n".to_owned(),
        Some(count) => format!(
            "samples: {count} ({} lost): local {}, imbalance {}\n",
            sampled.lost_count,
            percent(sampled.local_access_ratio),
            percent(sampled.controller_imbalance),
        ),
    });
    for note in decided.notes.iter().take(MOST_NOTES) {
        text.push_str(&format!("note: {}\n", note.shown()));
    }
    let more = decided.notes.len().saturating_sub(MOST_NOTES) as u64 + decided.more_notes;
    if more > 0 {
        text.push_str(&format!("note: and {more} more\n"));
    }
    text
}

fn figures_text(when: &str, figures: &EstimatedFigures) -> String {
    if figures.seconds == 0.0 {
        return format!("{when}: no interval\n");
    }
    let latency = figures
        .latency_ns
        .map_or("unknown".to_owned(), |ns| format!("{ns:.0} ns"));
    format!(
        "{when} ({:.1} s): local {}, imbalance {}, latency {latency}, links {}\n",
        figures.seconds,
        percent(figures.local_access_ratio),
        percent(figures.controller_imbalance),
        percent(figures.link_use),
    )
}

fn percent(figure: Option<f64>) -> String {
    figure.map_or_else(
        || "unknown".to_owned(),
        |figure| format!("{:.1} %", 100.0 * figure),
    )
}

/// The same as data, but for scopes after the first.
pub fn decided_json(decided: &Decided, backend: &str) -> Value {
    json!({
        "tracker": decided.tracker,
        "evidence": decided.rung,
        "backend": backend,
        "summary": decided.scopes.first().map(|(_, summary)| summary),
        "whole": decided.estimate.whole(),
        "before": decided.estimate.before(),
        "after": decided.estimate.after(),
        "sampled": decided.estimate.sampled(),
        "notes": decided.notes,
        "log": decided.log,
        "log_dropped": decided.log_dropped,
    })
}
