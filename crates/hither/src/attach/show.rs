//! What a person sees: a line a second, and the report at the end; the same as `hither.attach/1`.

use super::select::Chosen;
use crate::print;
use crate::run::report;
use hither_agent::host::drive::{Decided, Second};
use hither_core::engine::{Summary, Verdict};
use hither_core::foreign::Foreign;
use hither_linux::sys::Usage;
use serde_json::{Value, json};
use std::time::Duration;

/// Verdicts of a kind over all scopes.
fn verdicts<'a>(summaries: impl Iterator<Item = &'a Summary>, verdict: Verdict) -> usize {
    let campaigns = summaries.flat_map(|summary| &summary.campaigns);
    campaigns.filter(|row| row.verdict == verdict).count()
}

/// What was seen, done and gained in a second.
pub fn second(second: &Second<'_>) -> String {
    let summaries: Vec<Summary> = second
        .engine
        .summary()
        .into_iter()
        .map(|(_, one)| one)
        .collect();
    let local = second.snapshot.metrics.local_access_ratio.get();
    let local = local.or_else(|| second.snapshot.sampled_local_access_ratio());
    let local = local.map_or(print::DASH.to_owned(), |local| {
        format!("{:.0} %", 100.0 * local)
    });
    format!(
        "{:7.1} s  {} processes, {} samples, local {local}; {} pages asked, {} moved, {} refused; \
         helped {}, harmed {}\n",
        second.now_us as f64 / 1e6,
        second.snapshot.processes.len(),
        second.since.sample_count,
        second.since.asked_pages,
        second.since.moved_pages,
        second.since.refused_pages,
        verdicts(summaries.iter(), Verdict::Success),
        verdicts(summaries.iter(), Verdict::Harmful),
    )
}

/// Everything that is reported.
pub struct Report<'a> {
    /// The scopes that were asked for.
    pub chosen: &'a [Chosen],
    /// What the loop has to tell.
    pub decided: &'a Decided,
    /// Who moved pages.
    pub backend: &'a str,
    /// What is missing for deciding, told at the start.
    pub missing: &'a [String],
    /// Was nothing to be moved?
    pub is_dry: bool,
    /// Was all put back? `None` where that was not asked for.
    pub undone: Option<bool>,
    /// How long it was watched, in us.
    pub watched_us: u64,
    /// What hither itself used.
    pub usage: Usage,
    /// From its start.
    pub elapsed: Duration,
}

impl Report<'_> {
    /// For a person.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "watched for {:.1} s, then detached\n",
            self.watched_us as f64 / 1e6
        );
        if self.is_dry {
            text += "a dry run: what was decided was not done\n";
        }
        text += &report::decided_text(self.decided, self.backend);
        match self.undone {
            Some(true) => text += "pages that were moved are back, but for those told above\n",
            Some(false) => text += "not all pages could be put back before the end\n",
            None => {}
        }
        text + &report::own_cost(&self.usage, self.elapsed)
    }

    /// The same as data.
    #[must_use]
    pub fn json(&self) -> Value {
        let scopes = self.chosen.iter().zip(&self.decided.scopes);
        let scopes: Vec<Value> = scopes
            .map(|(chosen, (_, summary))| {
                json!({
                    "name": chosen.name.shown().to_string(),
                    "selector": chosen.selector,
                    "policy": chosen.policy,
                    "summary": summary,
                })
            })
            .collect();
        json!({
            "schema": "hither.attach/1",
            "seconds": self.watched_us as f64 / 1e6,
            "dry_run": self.is_dry,
            "undone": self.undone,
            "missing": self.missing,
            "scopes": scopes,
            "own": report::own_json(&self.usage, self.elapsed),
            "decided": report::decided_json(self.decided, self.backend),
        })
    }
}
