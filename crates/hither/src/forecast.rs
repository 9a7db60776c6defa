//! `hither forecast`: what the daemon expects of better places, or what a recorded program would gain on
//! another machine.

mod show;

use crate::{ask, output, print, units};
use anyhow::{Context, bail, ensure};
use hither_core::foreign::Foreign;
use hither_core::machine::{Machine, parse, scale};
use hither_linux::parts;
use hither_recording::Recording;
use hither_recording::analysis::Data;
use hither_recording::analysis::what_if::{self, WhatIfQuestion};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Largest size that is asked about: beyond it a number of bytes is a slip.
const MOST_BYTES: u64 = 1 << 50;
/// Sizes that are asked about at most.
const MOST_SIZES: usize = 64;

/// Forecast what better places of pages, or other memory, would bring
///
/// Without --machine the daemon is asked what moving pages would bring now. With --machine a recording
/// (hither record) tells what its program would gain on that machine, by the size of its fast memory: speed
/// beside the recorded run, with the range in which it is expected. The hottest memory is in the fast tier all
/// the time, which is the best that a placement without moves can do.
#[derive(Debug, clap::Args)]
// The daemon's arguments have the group of this name.
#[group(skip)]
#[command(
    override_usage = "\
hither forecast [TARGET]... [--json] [--socket PATH]
       hither forecast RECORDING --machine FILE [--fast SIZE,...] [--recorded-on FILE] [--cpus N] [--json] [--svg FILE]",
    after_help = "\
Examples:
  hither forecast
  hither forecast hither-recording --machine westmere-m2
  hither forecast before --machine mine.toml --fast 0,256M,1G --svg curve.svg"
)]
pub struct Command {
    #[command(flatten)]
    ask: ask::Command,
    /// Forecast from a recording for this machine: a machine file, or the name of one that comes with hither
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    machine: Option<PathBuf>,
    /// Sizes of fast memory [default: 0, 1/8, 1/4, 1/2, 3/4 and all of what the program has in memory]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', requires = "machine",
          value_parser = parse_size)]
    fast: Vec<u64>,
    /// Machine of the recording: other cores are then reckoned with, and the model is checked by the recorded run
    #[arg(long, value_name = "FILE", requires = "machine")]
    recorded_on: Option<PathBuf>,
    /// Scale both machines to so many CPUs, as `hither lab --cpus` does
    #[arg(long, value_name = "N", requires = "machine")]
    cpus: Option<usize>,
    /// Draw speed by size of fast memory
    #[arg(long, value_name = "FILE", requires = "machine")]
    svg: Option<PathBuf>,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// No daemon runs; the recording lacks what a forecast needs; a machine file that is none.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Some(machine) = &self.machine else {
            if let Some(folder) = self.ask.scopes().iter().find(|name| is_recording(name)) {
                bail!(
                    "{}: a recording is forecast for a machine; give its file, as in --machine westmere-m2",
                    folder.shown()
                );
            }
            return self.ask.run(ask::Verb::Forecast);
        };
        let [folder] = self.ask.scopes() else {
            bail!(
                "--machine: name the folder of one recording, as in `hither forecast hither-recording --machine FILE`"
            );
        };
        output::can_write_all(&[("--svg", &self.svg)])?;
        let target = self.machine("--machine", machine)?;
        let recorded_on = self.recorded_on.as_ref();
        let recorded_on = recorded_on
            .map(|file| self.machine("--recorded-on", file))
            .transpose()?;
        ensure!(
            self.fast.len() <= MOST_SIZES,
            "--fast: {} sizes are too many; give {MOST_SIZES} at most",
            self.fast.len()
        );
        let data = Data::read(&Recording::open(Path::new(folder))?);
        let question = WhatIfQuestion {
            target: &target,
            recorded_on: recorded_on.as_ref(),
            sizes: &self.fast,
        };
        let told =
            what_if::what_if(&data, &question).with_context(|| folder.shown().to_string())?;
        let shown = show::Shown {
            told: &told,
            data: &data,
            question: &question,
            folder: Path::new(folder),
        };
        if let Some(path) = &self.svg {
            output::write("--svg", path, &shown.chart().svg())?;
        }
        match self.ask.is_json() {
            true => print::out(&print::json(shown.json()))?,
            false => print::report(&shown.text(crate::terminal::Terminal::of_output()))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn machine(&self, option: &str, name: &Path) -> anyhow::Result<Machine> {
        let own = std::env::current_exe().context("asking for the path of hither itself")?;
        let path = &parts::find_machine(&own, name).with_context(|| option.to_owned())?;
        let text = hither_files::read_named_text(path, parse::limits::TEXT_BYTES as u64)
            .with_context(|| {
                format!(
                    "{} cannot be read; give {option} a machine file",
                    path.shown()
                )
            })?;
        let machine =
            parse::parse(&text).with_context(|| format!("machine file {}", path.shown()))?;
        match self.cpus {
            Some(cpus) => scale::scale(&machine, cpus).context("choose another --cpus"),
            None => Ok(machine),
        }
    }
}

/// A folder with a recording in it?
fn is_recording(name: &str) -> bool {
    Path::new(name).join("recording.json").is_file()
}

/// `0`, `256M`.
fn parse_size(text: &str) -> Result<u64, String> {
    match units::parse_bytes(text)? {
        bytes if bytes > MOST_BYTES => Err("it must be 1024T at most".to_owned()),
        bytes => Ok(bytes),
    }
}
