//! What a person sees: a line a second, and the report at the end; the same as `hither.attach/1`.

use super::placed::Placed;
use super::select::Chosen;
use crate::print;
use crate::run::report;
use hither_agent::host::drive::{Decided, Second};
use hither_core::engine::{Engine, Summary, Verdict};
use hither_core::foreign::Foreign;
use hither_linux::sys::Usage;
use serde_json::{Value, json};
use std::time::Duration;

/// Campaigns that ended so.
fn verdicts(summary: &Summary, verdict: Verdict) -> usize {
    let campaigns = summary.campaigns.iter();
    campaigns.filter(|row| row.verdict == verdict).count()
}

/// What was seen, done and gained in a second; of several scopes, a line of each besides.
pub fn second(second: &Second<'_>) -> String {
    let scopes = second.engine.summary();
    let all = |verdict| -> usize {
        let counts = scopes.iter().map(|(_, summary)| verdicts(summary, verdict));
        counts.sum()
    };
    let local = second.snapshot.metrics.local_access_ratio.get();
    let local = local.or_else(|| second.snapshot.sampled_local_access_ratio());
    let local = local.map_or(print::DASH.to_owned(), |local| {
        format!("{:.0} %", 100.0 * local)
    });
    let mut text = format!(
        "{:7.1} s  {} processes, {} samples, local {local}; {} pages asked, {} moved, {} refused; \
         helped {}, harmed {}\n",
        second.now_us as f64 / 1e6,
        second.snapshot.processes.len(),
        second.since.sample_count,
        second.since.asked_pages,
        second.since.moved_pages,
        second.since.refused_pages,
        all(Verdict::Success),
        all(Verdict::Harmful),
    );
    if scopes.len() > 1 {
        for ((name, summary), members) in scopes.iter().zip(second.engine.member_counts()) {
            text += &format!(
                "           {}: {members} processes; since the start {} pages moved, {} back; helped {}, harmed {}\n",
                name.shown(),
                summary.moved_pages,
                summary.reverted_pages,
                verdicts(summary, Verdict::Success),
                verdicts(summary, Verdict::Harmful),
            );
        }
    }
    text
}

/// The scopes to which no process belongs.
pub fn empty<'a>(chosen: &'a [Chosen], engine: &Engine) -> Vec<&'a str> {
    let counts = chosen.iter().zip(engine.member_counts());
    let empty = counts.filter(|&(_, members)| members == 0);
    empty.map(|(chosen, _)| chosen.name.as_str()).collect()
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
    /// What of the programs' memory is not where it is bound to; `None` where nobody looked.
    pub placed: Option<&'a Placed>,
    /// Where nothing was to be moved: the command that moves it.
    pub does_it: Option<String>,
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
        if self.does_it.is_some() {
            text += "a dry run: what was decided was not done\n";
        }
        text += &report::decided_text(self.decided, self.backend);
        match &self.does_it {
            Some(command) if self.has_work() => {
                text += &format!("to do it: {}\n", command.shown());
            }
            Some(_) => text += "nothing is to be done\n",
            None => {}
        }
        match self.undone {
            Some(true) => text += "pages that were moved are back, but for those told above\n",
            Some(false) => text += "not all pages could be put back before the end\n",
            None => {}
        }
        text += &self.placed.map_or_else(String::new, Placed::text);
        text + &report::own_cost(&self.usage, self.elapsed)
    }

    /// Was anything decided?
    fn has_work(&self) -> bool {
        let scopes = self.decided.scopes.iter();
        let by_kernel: u64 = scopes.map(|(_, summary)| summary.kernel_pages).sum();
        // What the kernel moved to their users would move so again.
        self.decided.sums.asked_pages + by_kernel > 0
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
            "dry_run": self.does_it.is_some(),
            "does_it": self.does_it.as_deref().filter(|_| self.has_work()),
            "undone": self.undone,
            "missing": self.missing,
            "astray": self.placed.map(Placed::json),
            "scopes": scopes,
            "own": report::own_json(&self.usage, self.elapsed),
            "decided": report::decided_json(self.decided, self.backend),
        })
    }
}
