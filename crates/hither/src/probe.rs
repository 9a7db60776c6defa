//! `hither probe`: latency and bandwidth of the memory under it, measured.

mod machine;
mod report;

use crate::output::{Progress, can_write, show, write};
use anyhow::Context;
use hither_core::machine::parse;
use hither_core::set::CpuSet;
use hither_linux::probe::{self, Settings};
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::topology::Topology;
use report::Report;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Measure latency and bandwidth of this machine's memory
///
/// From every node with CPUs to every node with memory: the time of a load that needs the one before
/// it, and what one thread, and a thread on each CPU of the node, read, write and copy. Then reading
/// by 1, 2, ... threads, latency under load, latency by size of the working set, and the time in which
/// a line goes from one core to another. Every figure is the median of several rounds.
///
/// It needs idle CPUs and, on each node, memory of four times the last-level cache. Rounds that differ
/// much are said.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither probe
  hither probe --seconds 60 --json probe.json --svg probe.svg
  hither probe --machine-file mine.toml && hither lab run --machine mine.toml -- ./app
  hither probe --cpus 0-3")]
pub struct Command {
    /// Time for all measurements together, without that for getting the memory
    #[arg(long, value_name = "S", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Rounds of each measurement
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..=100))]
    rounds: usize,
    /// Use these CPUs only, as in 0-3,8
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuSet>,
    /// Write hither.probe/1 to a file; `-` prints it instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw latency by size of the working set and under load, and bandwidth by threads
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a machine file, for the lab and for policies; each number says whether it was measured
    #[arg(long, value_name = "FILE", conflicts_with = "cpus")]
    machine_file: Option<PathBuf>,
}

/// The name that a machine file has by its own.
fn machine_name(path: &Path) -> anyhow::Result<String> {
    let stem = path
        .file_name()
        .and_then(|name| name.to_str()?.strip_suffix(".toml"));
    match stem {
        Some(stem) if parse::is_name(stem) => Ok(stem.to_owned()),
        _ => anyhow::bail!(
            "--machine-file {}: name it with lower-case letters, digits and `-`, as in mine.toml",
            path.display()
        ),
    }
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// CPUs that may not be used, files that cannot be written, too little memory.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let machine_name = self.machine_file.as_deref().map(machine_name).transpose()?;
        for (option, path) in [
            ("--json", &self.json),
            ("--svg", &self.svg),
            ("--machine-file", &self.machine_file),
        ] {
            if let Some(path) = path {
                can_write(option, path)?;
            }
        }
        let allowed = sys::allowed_cpus().context("asking which CPUs may be used")?;
        let cpus = match self.cpus {
            None => allowed,
            Some(asked) => {
                let usable = asked.intersection(&allowed);
                anyhow::ensure!(
                    usable == asked && !asked.is_empty(),
                    "--cpus {asked}: this process may use {allowed} only; name some of those"
                );
                asked
            }
        };
        let topology = Topology::read(&Root::host()).context("reading the machine")?;
        let settings = Settings {
            budget: Duration::from_secs(self.seconds),
            rounds: self.rounds,
            cpus,
        };
        let mut progress = Progress::new();
        let mut tell = |done, total, what: &str| {
            progress.tell(format_args!("{done} of {total}: {what}"));
        };
        let measured = probe::measure(&topology, &settings, &mut tell);
        progress.clear();
        let report = Report {
            measured: measured.context(
                "measuring; free some memory, or use fewer nodes by --cpus and a cpuset",
            )?,
            rounds: self.rounds,
        };
        if let Some(path) = &self.svg {
            write("--svg", path, &report.svg())?;
        }
        if let (Some(path), Some(name)) = (&self.machine_file, machine_name) {
            let core = machine::Core::read();
            let text = machine::file(&name, &topology, &report.measured, core)?;
            write("--machine-file", path, &text)?;
        }
        show(&self.json, &report.json(), &report.text())?;
        Ok(ExitCode::SUCCESS)
    }
}
