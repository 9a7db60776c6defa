//! `hither zoom`: successive refinement, from the areas of a program to pages to cache lines.

mod code;
mod live;
mod page;
mod show;
mod show_page;

use crate::moving::select::Asked;
use crate::output::{can_write, write};
use crate::print;
use crate::report;
use crate::terminal::Terminal;
use crate::watchable;
use anyhow::{Context, bail, ensure};
use hither_agent::host::zoom::steps::{self, ZoomSteps};
use hither_core::foreign::Foreign;
use hither_linux::root::Root;
use hither_recording::Recording;
use hither_recording::analysis::{Data, page as pages};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Go from the whole program down to what is worth changing
///
/// Step 1: the data areas, who uses them from which node, what would help. Step 2: the pages of
/// areas that step 1 leaves open, counted exactly where a device can. Step 3: the cache lines that
/// bounce between CPUs (HITM), and whether they use the same words. Each step says what it looks at next,
/// and why; it ends when it is known what would help.
///
/// A running process or a command is looked at anew for each step, the more closely the smaller the
/// place is. A recording holds one look only: it is said where that is too little.
///
/// With --page the look goes to one page at once: who reads and writes which of its lines, from which
/// node and source line, what data it belongs to, and what would help.
#[derive(Debug, clap::Args)]
#[command(override_usage = "\
hither zoom [OPTIONS] -- CMD...
       hither zoom [OPTIONS] PID
       hither zoom [OPTIONS] FOLDER",
    group(clap::ArgGroup::new("watched").required(true).args(["command", "what"])),
    after_help = "\
Examples:
  hither zoom -- ./app --its options
  hither zoom --sites=64 -- ./app
  hither zoom 4711 --seconds 2
  hither zoom 4711 --page 7f3c8d2a1040
  hither zoom hither-recording --area '[heap]'")]
pub struct Command {
    /// A running process by its number, or the folder of a recording
    #[arg(value_name = "PID|FOLDER")]
    what: Option<PathBuf>,
    /// Time that a step looks; counting pages ends sooner, when the device tells that enough was counted
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    seconds: f64,
    /// Steps at most: 1 areas, 2 pages, 3 lines
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=3))]
    steps: u8,
    /// Follow this area down, whatever is known of it: its name or a part of it
    #[arg(long, value_name = "NAME")]
    area: Option<String>,
    /// Look at the page of this address, or at these pages (START-END), in hexadecimal, and at nothing
    /// else
    #[arg(long, value_name = "ADDRESS", value_parser = page::parse,
          conflicts_with_all = ["command", "steps", "area"])]
    page: Option<Asked>,
    /// Rows of the tables at most
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1000))]
    top: usize,
    /// What looking may cost, as a share of the CPU time of what is watched, in percent
    #[arg(long, value_name = "PERCENT", default_value = "5",
          value_parser = crate::record::parse_percent)]
    overhead: f64,
    /// Where samples come from: the best that works here, or one by name
    #[arg(long, value_name = "NAME", value_parser = crate::record::choose::names())]
    tracker: Option<String>,
    /// Keep what was recorded in this folder, which must not hold anything
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Write hither.zoom/1 to a file; `-` prints it instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Name areas by the source lines that allocated them, from this size on [without a size: 64K];
    /// a small one finds what shares a line, at a higher cost
    #[arg(long, value_name = "BYTES", num_args = 0..=1, require_equals = true,
          default_missing_value = "64K", conflicts_with = "what",
          value_parser = crate::units::parse_bytes)]
    sites: Option<u64>,
    /// Program and arguments; its standard output stays its own, the tables go to standard error
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// No such process or recording, an area that is not there, files that cannot be written.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(path) = &self.json {
            can_write("--json", path)?;
        }
        let pid = match &self.what {
            Some(what) if !what.is_dir() => match what.to_str().map(str::parse::<i32>) {
                Some(Ok(pid)) if pid > 0 => Some(pid),
                _ => bail!(
                    "{} is no folder and no number of a process; give one of them, or a command \
                     behind `--`",
                    what.shown()
                ),
            },
            _ => None,
        };
        if let Some(pid) = pid {
            watchable::check(&Root::host(), pid).with_context(|| format!("process {pid}"))?;
        }
        let wanted = Wanted {
            top: self.top,
            again: self.what.as_ref().map(|what| what.shown().to_string()),
            about: match pid {
                Some(pid) => format!("process {pid}"),
                None => {
                    let words = self.command.iter().map(|word| word.shown().to_string());
                    words.collect::<Vec<_>>().join(" ")
                }
            },
            terminal: match self.command.is_empty() {
                true => Terminal::of_output(),
                false => Terminal::of_errors(),
            },
        };
        let (steps, page, status) = match (&self.what, pid) {
            (Some(folder), None) => {
                ensure!(
                    self.output.is_none(),
                    "--output: a recording is kept already; leave --output out"
                );
                ensure!(
                    self.tracker.is_none(),
                    "--tracker: a recording was made by the tracker it was made by; leave --tracker out"
                );
                let (steps, page) = self.on_recording(folder, wanted)?;
                (steps, page, ExitCode::SUCCESS)
            }
            (_, pid) => live::run(&self, pid, &wanted)?,
        };
        if let Some(path) = &self.json {
            let document = match &page {
                Some(page) => show_page::json(page, &steps.notes),
                None => show::json(&steps),
            };
            match path.as_os_str() == "-" {
                true => print::out(&document)?,
                false => write("--json", path, &document)?,
            }
        }
        Ok(status)
    }

    /// What the steps themselves are told.
    fn wanted(&self) -> steps::Wanted {
        steps::Wanted {
            area: self.area.clone(),
            top: self.top,
        }
    }

    fn on_recording(
        &self,
        folder: &Path,
        mut wanted: Wanted,
    ) -> anyhow::Result<(ZoomSteps, Option<page::PageLook>)> {
        let data = Data::read(&Recording::open(folder)?);
        wanted.about = report::about(folder, &data.meta);
        let mut steps = ZoomSteps::new(self.wanted());
        if let Some(asked) = &self.page {
            let (pid, mappings) = page::process_of(&data, asked)?;
            let look = pages::look(&data, pid, page::bytes(asked), None);
            steps.notes.extend(data.notes.iter().cloned());
            let told =
                page::PageLook::new(&data, asked, mappings, look, page::DetailInputs::default());
            let page = self.tell_page(&mut steps, told, &wanted)?;
            return Ok((steps, Some(page)));
        }
        steps.look_at_areas(&data)?;
        self.tell(&show::areas(&steps, &data, &wanted))?;
        if self.steps > 1 && !steps.open_areas().is_empty() {
            steps.look_at_pages(&data, None);
            self.tell(&show::pages(&steps, &wanted))?;
        }
        if self.steps > 2 && !steps.contested_areas().is_empty() {
            steps.look_at_lines(&data, None);
            self.tell(&show::lines(&steps, &wanted))?;
        }
        steps.notes.extend(data.notes.iter().cloned());
        steps.conclude(&data);
        self.tell(&show::conclusions(&steps, &wanted))?;
        Ok((steps, None))
    }

    /// Shows and keeps what was seen of a page.
    fn tell_page(
        &self,
        steps: &mut ZoomSteps,
        (page, notes): (page::PageLook, Vec<String>),
        wanted: &Wanted,
    ) -> anyhow::Result<page::PageLook> {
        steps.notes.extend(notes);
        self.tell(&show_page::tables(&page, wanted))?;
        let width = wanted.terminal.width;
        self.tell(&show_page::conclusion(&page, &steps.notes, width))?;
        Ok(page)
    }

    /// Shows a table, where tables are wanted: a command's output stays its own.
    fn tell(&self, text: &str) -> anyhow::Result<()> {
        let is_document = self.json.as_ref().is_some_and(|p| p.as_os_str() == "-");
        match (is_document, self.command.is_empty()) {
            (true, _) => {}
            (false, true) => print::report(text)?,
            (false, false) => {
                print::err(&print::fold(text, Terminal::of_errors().width, print::HANG))
            }
        }
        Ok(())
    }
}

/// How it is shown.
pub struct Wanted {
    /// Rows of a table at most.
    pub top: usize,
    /// What can be looked at again: a process or a recording, as it was given.
    pub again: Option<String>,
    /// What it is, for headings.
    pub about: String,
    /// What is printed on.
    pub terminal: Terminal,
}

/// `1`, `0.5`, `2s`.
fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('s').parse::<f64>() {
        Ok(seconds) if (0.2..=3600.0).contains(&seconds) => Ok(seconds),
        Ok(_) => Err("it must be 0.2 to 3600".to_owned()),
        Err(_) => Err("write a number, as in 1 or 0.5".to_owned()),
    }
}
