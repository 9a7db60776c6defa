//! `hither report`: tables and pictures out of a recording, and what to do next.

mod areas;
mod document;
mod figures;
mod formed;
mod json;
mod pictures;
mod roofline;
mod tables;

use crate::output::{self, Files, show};
use crate::print;
use crate::record::{DEFAULT_NAME, numbered, numbers};
use crate::terminal::Terminal;
use anyhow::{Context, anyhow, ensure};
use figures::Figures;
use formed::FormedRegions;
use hither_core::foreign::Foreign;
use hither_recording::Recording;
use hither_recording::analysis::{Data, heat};
use hither_recording::exchange::perfetto;
use hither_recording::meta::Meta;
use roofline::Roofline;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Letters of a command in headings at most.
const MOST_WATCHED: usize = 120;

/// Show what a recording holds, and what to do about it
///
/// A verdict with the command to try next; per data area who reads and writes it from which node,
/// and what would help; lines that CPUs share; heat by address and time; the working set; where
/// memory was. What is damaged or cut off of a recording is left out, and said.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither report
  hither report before --html before.html
  hither report before --regions
  hither report before --json - | jq .verdict")]
pub struct Command {
    /// What `hither record` wrote [default: the newest hither-recording here]
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Process whose heat is shown [default: the one with most accesses]
    #[arg(long, value_name = "PID")]
    pid: Option<i32>,
    /// Rows of the tables at most
    #[arg(long, value_name = "N", default_value_t = 12,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1000))]
    top: usize,
    /// Write everything as one HTML file, which needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Draw the heat by address and time
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write hither.report/1 to a file; `-` prints it instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Place the run below the ceilings that `hither probe --json FILE` measured
    #[arg(long, value_name = "FILE")]
    roofline: Option<PathBuf>,
    /// Form regions of memory that is used together, by access and idle time
    #[arg(long)]
    regions: bool,
    /// Write trace events for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// No recording, or one of another version; files that cannot be written.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        output::check_names(&[
            ("--html", &self.html),
            ("--svg", &self.svg),
            ("--json", &self.json),
            ("--perfetto", &self.perfetto),
        ])?;
        let folder = match self.folder {
            Some(folder) => folder,
            None => newest(Path::new("."))?,
        };
        let recording = Recording::open(&folder)?;
        let data = Data::read(&recording);
        if let Some(pid) = self.pid {
            check(&data, pid)?;
        }
        let mut figures = Figures::new(data, self.pid, self.top);
        if let Some(path) = &self.roofline {
            figures.roofline = Some(Roofline::read(path, &figures.overall)?);
        }
        if self.regions {
            figures.formed = Some(FormedRegions::of(&figures.data)?);
        }
        let about = about(&folder, &figures.data.meta);
        let document = document::document(&figures);
        let mut files = Files::default();
        files.write("--svg", self.svg.as_deref(), || {
            let mut heat = pictures::heat(&figures).context(
                "--svg: no access was seen of this process, so that there is nothing to draw; leave \
                 --svg out, or give another --pid",
            )?;
            heat.title = format!("{}: {}", name(&folder), heat.title);
            Ok(heat.svg())
        });
        files.write("--html", self.html.as_deref(), || {
            Ok(document.html(&format!("hither: {about}")))
        });
        files.write("--perfetto", self.perfetto.as_deref(), || {
            let trace = perfetto::trace(&figures.data, &figures.working_set, &figures.phases);
            Ok(trace.to_string())
        });
        let text = format!(
            "recording {about}\n\n{}",
            document.text(Terminal::of_output())
        );
        let shown = show(&self.json, &json::json(&figures), &text);
        files.finish()?;
        shown?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Which recording it is: its folder and what was watched.
pub fn about(folder: &Path, meta: &Meta) -> String {
    let watched = match meta.command.is_empty() {
        true => meta.watched.clone(),
        false => meta.command.join(" "),
    };
    let watched = print::elided(&watched.shown().to_string(), MOST_WATCHED);
    format!("{}: {watched}", folder.shown())
}

/// The name of its folder, also where that was given as `.`.
fn name(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.into());
    let name = whole.file_name().unwrap_or(whole.as_os_str());
    name.shown().to_string()
}

/// The recording without a name that was made last.
fn newest(folder: &Path) -> anyhow::Result<PathBuf> {
    let newest = numbers(folder).context("reading the current folder")?.max();
    newest
        .map(numbered)
        .ok_or_else(|| {
            anyhow!("there is no {DEFAULT_NAME} here; give the folder of a recording, or make one: hither record -- CMD")
        })
}

/// Is anything known of this process?
fn check(data: &Data, pid: i32) -> anyhow::Result<()> {
    let named = data.processes.iter().map(|process| process.pid);
    let seen = heat::processes(data).into_iter().flatten();
    let known: BTreeSet<i32> = named.chain(seen).collect();
    let list: Vec<String> = known.iter().map(i32::to_string).collect();
    ensure!(
        known.contains(&pid),
        "--pid {pid}: no such process was recorded; these were: {}",
        list.join(", ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_recording_has_the_highest_number() {
        let folder = tempfile::tempdir().unwrap();
        assert!(newest(folder.path()).is_err());
        for name in ["", "-2", "-10", "-x", "s"] {
            std::fs::create_dir(folder.path().join(format!("{DEFAULT_NAME}{name}"))).unwrap();
        }
        assert_eq!(
            newest(folder.path()).unwrap(),
            Path::new("hither-recording-10")
        );
    }
}
