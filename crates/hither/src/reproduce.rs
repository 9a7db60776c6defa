//! `hither reproduce`: the five papers' figures beside ours.

mod document;
mod perform;
mod show;

use crate::lab::{self, TimeLimit};
use crate::output;
use crate::print;
use crate::terminal::Terminal;
use anyhow::{Context, anyhow, bail, ensure};
use hither_core::foreign::Foreign;
use hither_lab::reproduce::assess::{self, Assessed};
use hither_lab::reproduce::kept::{self, KeptResults};
use hither_lab::reproduce::{Experiment, Paper, PaperRow, experiments, rows, tables};
use perform::{Performer, Place};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where results are kept unless something else is said.
const RESULTS: &str = "reproduce.jsonl";

/// Run the five papers' experiments and show their figures beside ours
///
/// Every figure that the papers quote has a row: the paper's, ours, how near one has to come, and the verdict, or
/// why there is none. An experiment that serves several rows is run once. Each result is kept as soon as it is
/// there, with the commit: who was interrupted goes on where it stopped, and what this commit has is not run again.
/// Most experiments boot the laboratory (`hither lab setup`); it is for a checkout of the repository, with its
/// programs built.
#[derive(Debug, clap::Args)]
#[command(infer_long_args = true)]
#[command(after_help = "Examples:
  hither reproduce --list
  hither reproduce ibm latency
  hither reproduce --budget 30m --each 4m --html papers.html
  hither reproduce --kept --markdown docs/reproduce.md")]
pub struct Command {
    /// carrefour, ibm, memif, hydm or regions [default: all]
    paper: Option<String>,
    /// A table of the paper, as --list has them [default: all]
    table: Option<String>,
    /// List papers, tables and experiments, and run nothing
    #[arg(long)]
    list: bool,
    /// Say what would be run and how long that takes, and run nothing
    #[arg(long, conflicts_with = "list")]
    dry_run: bool,
    /// Run nothing: show what is kept
    #[arg(long, conflicts_with_all = ["list", "dry_run"])]
    kept: bool,
    /// Run this experiment alone; several with commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    experiment: Vec<String>,
    /// Run again what this commit has a result of
    #[arg(long)]
    again: bool,
    /// Host time for all experiments, by their estimates: 30m or 2h; 0 without end
    #[arg(long, value_name = "TIME", default_value = "12h", value_parser = lab::parse_time)]
    budget: TimeLimit,
    /// Leave out experiments that are estimated to take longer
    #[arg(long, value_name = "TIME", value_parser = lab::parse_time)]
    each: Option<TimeLimit>,
    /// Keep results in this file, which grows at its end
    #[arg(long, value_name = "FILE", default_value = RESULTS)]
    results: PathBuf,
    /// Folder of hither and of the repository's programs [default: that of this hither]
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// Folder of the repository's scripts
    #[arg(long, value_name = "FOLDER", default_value = "scripts")]
    scripts: PathBuf,
    /// Write the rows to a file, or to standard output in place of the table (hither.reproduce/1)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write one page with all that was asked for, as HTML
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the same as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// What is shown: rows with their outcomes, and the results behind them.
struct Shown {
    rows: Vec<Assessed>,
    results: KeptResults,
    /// Of the checkout, or what stands for it.
    commit: String,
    /// memif's mechanisms are shown with its rows.
    has_mechanisms: bool,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// Names that are none, results that are none, files that cannot be written.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let wanted = chosen(self.paper.as_deref(), self.table.as_deref())?;
        let named = named(&self.experiment)?;
        if self.list {
            print::report(&show::list(&wanted, Terminal::of_output()))?;
            return Ok(ExitCode::SUCCESS);
        }
        output::can_write_all(&[
            ("--json", &self.json),
            ("--html", &self.html),
            ("--markdown", &self.markdown),
        ])?;
        let mut results = read(&self.results)?;
        let commit = perform::commit();
        let plan = match self.kept {
            true => Vec::new(),
            false => self.plan(&wanted, &named, &results, &commit),
        };
        if self.dry_run {
            print::report(&show::plan(&plan, self.budget.0, Terminal::of_output()))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut failures = 0;
        if !plan.is_empty() {
            let place = Place::find(self.programs.as_deref(), &self.scripts)?;
            let performer = Performer::new(place, &self.results, &commit);
            failures = performer.run_all(&plan, self.budget.0)?;
            results = read(&self.results)?;
        }
        let is_memifs = |row: &PaperRow| row.paper == Paper::Memif;
        self.write(&Shown {
            has_mechanisms: wanted.iter().any(is_memifs) && self.table.is_none(),
            rows: assess::assess(wanted, &results),
            results,
            commit,
        })?;
        Ok(ExitCode::from(match failures {
            0 => 0,
            _ => crate::STATUS_FAILED,
        }))
    }

    /// Experiments to run, in the order of their list.
    fn plan(
        &self,
        wanted: &[PaperRow],
        named: &BTreeSet<&'static str>,
        results: &KeptResults,
        commit: &str,
    ) -> Vec<&'static Experiment> {
        let longest = self.each.and_then(|limit| limit.0);
        let is_planned = |experiment: &&Experiment| {
            (named.is_empty() || named.contains(experiment.name))
                && (self.again || kept::is_due(results, experiment, commit))
                && longest.is_none_or(|longest| experiment.minutes * 60.0 <= longest.as_secs_f64())
        };
        experiments::serving(wanted).filter(is_planned).collect()
    }

    fn write(&self, shown: &Shown) -> anyhow::Result<()> {
        let document = document::document(shown);
        let mut files = output::Files::default();
        files.write("--html", self.html.as_deref(), || Ok(document.html()));
        files.write("--markdown", self.markdown.as_deref(), || {
            Ok(document::markdown(&document))
        });
        let table = show::table(shown, Terminal::of_output());
        let printed = output::show(&self.json, &print::json(show::json(shown)), &table);
        files.finish()?;
        printed
    }
}

/// The rows that are asked for.
fn chosen(paper: Option<&str>, table: Option<&str>) -> anyhow::Result<Vec<PaperRow>> {
    let rows = rows::all();
    let Some(paper) = paper else { return Ok(rows) };
    let names = Paper::ALL.map(Paper::name).join(", ");
    let paper = Paper::of(paper)
        .ok_or_else(|| anyhow!("there is no paper `{}`; use one of {names}", paper.shown()))?;
    if let Some(table) = table {
        let known = tables(&rows, paper);
        ensure!(
            known.contains(&table),
            "{} has no table `{}`; use one of {}",
            paper.name(),
            table.shown(),
            known.join(", ")
        );
    }
    let is_chosen =
        |row: &PaperRow| row.paper == paper && table.is_none_or(|table| row.table == table);
    Ok(rows.into_iter().filter(is_chosen).collect())
}

/// Names of experiments, as they are known.
fn named(names: &[String]) -> anyhow::Result<BTreeSet<&'static str>> {
    let find = |name: &String| {
        let found = experiments::find(name);
        found.map(|experiment| experiment.name).ok_or_else(|| {
            let known: Vec<&str> = experiments::ALL.iter().map(|one| one.name).collect();
            anyhow!(
                "--experiment: there is no `{}`; use one of {}",
                name.shown(),
                known.join(", ")
            )
        })
    };
    names.iter().map(find).collect()
}

/// What is kept; nothing yet where the file is not there.
fn read(path: &Path) -> anyhow::Result<KeptResults> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(KeptResults::new()),
        Err(error) => {
            return Err(error).with_context(|| format!("--results {}: reading it", path.shown()));
        }
    };
    match kept::parse(&text) {
        Ok(results) => Ok(results),
        Err(why) => bail!(
            "--results {}: {why}; give it a file that `hither reproduce` has written, or a new one",
            path.shown()
        ),
    }
}

#[cfg(test)]
mod tests;
