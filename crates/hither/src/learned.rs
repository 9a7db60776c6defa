//! `hither learned`: what `hither run --learn` keeps of programs; shown, and forgotten.

pub mod store;

use crate::print::{self, DASH, Table};
use crate::terminal::Terminal;
use anyhow::{bail, ensure};
use hither_core::foreign::Foreign;
use hither_core::learned::{Kept, Program, Run, TRUSTED_RUNS, TRUSTED_S};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use store::{Entry, Store};

/// Show or forget what runs of programs have taught (hither run --learn)
#[derive(Debug, clap::Args)]
pub struct Command {
    #[command(subcommand)]
    what: Option<What>,
    /// Print it as JSON (hither.learned/1)
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Show all that is known of a program
    Show {
        /// Its key, its path, or the name of its file
        #[arg(value_name = "KEY|PROGRAM")]
        program: String,
    },
    /// Forget a program, or all
    Forget {
        /// Its key, its path, or the name of its file
        #[arg(value_name = "KEY|PROGRAM", required_unless_present = "all")]
        program: Option<String>,
        /// Forget all programs
        #[arg(long, conflicts_with = "program")]
        all: bool,
    },
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// The store cannot be read, or there is no such program.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let store = Store::of_user()?;
        let entries = store.all()?;
        match &self.what {
            None => self.list(&entries)?,
            Some(What::Show { program }) => self.show(&meant(entries, program)?)?,
            Some(What::Forget { program, .. }) => {
                let entries = match program {
                    Some(program) => meant(entries, program)?,
                    None => entries,
                };
                self.forget(&store, &entries)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn list(&self, entries: &[Entry]) -> anyhow::Result<()> {
        tell_unused(entries);
        let programs: Vec<&Program> = used(entries).collect();
        if self.json {
            let programs: Vec<Value> = programs.into_iter().map(document).collect();
            return self.document(json!({"schema": SCHEMA, "programs": programs}));
        }
        if programs.is_empty() {
            return Ok(print::report(
                "nothing is known of any program; run one by `hither run --learn -- CMD`\n",
            )?);
        }
        let now_s = now_s();
        let rows: Vec<Vec<String>> = programs
            .into_iter()
            .map(|program| {
                let advice = program.advise(now_s);
                vec![
                    program.key.name(),
                    program.command(),
                    advice.start.to_string(),
                    program.run_count.to_string(),
                    print::or_dash(program.last.as_ref(), |run| age(now_s, run.at_s)),
                    advice.why,
                ]
            })
            .collect();
        let head = ["key", "program", "begins with", "runs", "last run", "why"];
        let table = Table::new(&head, &rows).keys(1).text(Terminal::of_output());
        Ok(print::out(&table)?)
    }

    fn show(&self, entries: &[Entry]) -> anyhow::Result<()> {
        tell_unused(entries);
        let programs: Vec<&Program> = used(entries).collect();
        ensure!(
            !programs.is_empty(),
            "what is known of it cannot be used; see above"
        );
        if self.json {
            let programs: Vec<Value> = programs.into_iter().map(document).collect();
            return self.document(json!({"schema": SCHEMA, "programs": programs}));
        }
        let now_s = now_s();
        let texts: Vec<String> = programs
            .iter()
            .map(|program| told(program, now_s))
            .collect();
        Ok(print::report(&texts.join("\n"))?)
    }

    fn forget(&self, store: &Store, entries: &[Entry]) -> anyhow::Result<()> {
        let mut forgotten = Vec::new();
        for entry in entries {
            if store.forget(&entry.name)? {
                forgotten.push(entry);
            }
        }
        if self.json {
            let names: Vec<&str> = forgotten.iter().map(|entry| entry.name.as_str()).collect();
            return self.document(json!({"schema": SCHEMA, "forgotten": names}));
        }
        let lines = forgotten.iter().map(|entry| match &entry.program {
            Ok(program) => format!("forgotten: {} {}\n", entry.name, program.command()),
            Err(_) => format!("forgotten: {}\n", entry.name.shown()),
        });
        let text = match forgotten.is_empty() {
            true => "there was nothing to forget\n".to_owned(),
            false => lines.collect(),
        };
        Ok(print::report(&text)?)
    }

    fn document(&self, document: Value) -> anyhow::Result<()> {
        Ok(print::out(&print::json(document))?)
    }
}

const SCHEMA: &str = "hither.learned/1";

/// Entries that a word means: of a program that ran with several arguments there are several.
fn meant(entries: Vec<Entry>, word: &str) -> anyhow::Result<Vec<Entry>> {
    let is_meant = |entry: &Entry| {
        let program = entry.program.as_ref();
        entry.name == word || program.is_ok_and(|program| program.is_meant(word))
    };
    let meant: Vec<Entry> = entries.into_iter().filter(is_meant).collect();
    if meant.is_empty() {
        bail!(
            "nothing is known of `{}`; `hither learned` lists what is, by key and program",
            word.shown()
        );
    }
    Ok(meant)
}

fn used(entries: &[Entry]) -> impl Iterator<Item = &Program> {
    entries
        .iter()
        .filter_map(|entry| entry.program.as_ref().ok())
}

/// Says which records are not used, and why.
fn tell_unused(entries: &[Entry]) {
    let errors = entries
        .iter()
        .filter_map(|entry| entry.program.as_ref().err());
    errors.for_each(print::error);
}

/// A record as it is stored, with its name and what the next run begins with.
fn document(program: &Program) -> Value {
    let advice = program.advise(now_s());
    json!({
        "key": program.key.name(),
        "begins_with": advice.start,
        "why": advice.why,
        "record": program,
    })
}

/// Everything, for a person.
fn told(program: &Program, now_s: u64) -> String {
    let advice = program.advise(now_s);
    let mut text = format!(
        "{}: {}\nbuild {}, memory on nodes {}\nthe next run begins with {}: {}\n",
        program.key.name(),
        program.command(),
        program.key.build.shown(),
        program.key.nodes,
        advice.start,
        advice.why.shown()
    );
    text += &format!(
        "runs: {}, {} of them since the last measured one were as good; it is measured anew after {TRUSTED_RUNS}, or \
         {} days\n",
        program.run_count,
        program.trusted_runs,
        TRUSTED_S / (24 * 60 * 60)
    );
    if program.unlearned_count > 0 {
        text += &format!(
            "unlearned: {} times; nothing is learned for {} more runs\n",
            program.unlearned_count, program.barred_runs
        );
    }
    for (what, run) in [("measured", &program.reference), ("last", &program.last)] {
        if let Some(run) = run {
            text += &format!("{what} {}\n", run_told(run, now_s));
        }
    }
    text
}

fn run_told(run: &Run, now_s: u64) -> String {
    let percent =
        |figure: Option<f64>| print::or_dash(figure, |figure| format!("{:.0} %", 100.0 * figure));
    let mut text = format!(
        "run ({} ago): {:.2} s, status {}, began with {}, evidence {}; local {}, imbalance {}, latency {}",
        age(now_s, run.at_s),
        run.seconds,
        run.status,
        run.start,
        run.evidence.map_or(DASH, |rung| rung.name()),
        percent(run.figures.local_ratio),
        percent(run.figures.imbalance),
        print::or_dash(run.figures.latency_ns, |ns| format!("{ns:.0} ns")),
    );
    for Kept {
        mechanism,
        page_count,
        ..
    } in &run.kept
    {
        text += &format!("\n  {mechanism} paid on {page_count} pages");
    }
    text
}

/// Seconds since 1970; 0 where the clock is before that.
pub fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// How long ago, in one unit.
fn age(now_s: u64, at_s: u64) -> String {
    match now_s.saturating_sub(at_s) {
        seconds if seconds < 120 => format!("{seconds} s"),
        seconds if seconds < 7200 => format!("{} min", seconds / 60),
        seconds if seconds < 48 * 3600 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        for (seconds, expected) in [
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7200, "2 h"),
            (172_800, "2 d"),
        ] {
            assert_eq!(age(1_000_000 + seconds, 1_000_000), expected);
        }
        assert_eq!(age(5, 9), "0 s");
    }
}
