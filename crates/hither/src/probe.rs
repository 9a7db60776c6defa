//! `hither probe`: latency and bandwidth of the memory under it, and peak floating point, measured.

mod alone;
mod document;
mod machine;
mod report;
mod roofline;

pub use document::{read, without_roofline};

use crate::output::{self, Files, Progress, show};
use crate::terminal::Terminal;
use crate::units::parse_bytes;
use alone::Pages;
use anyhow::Context;
use hither_core::foreign::Foreign;
use hither_core::machine::parse;
use hither_core::set::CpuSet;
use hither_linux::bind;
use hither_linux::filter;
use hither_linux::probe::alone::Memory;
use hither_linux::probe::{self, ProbeWork, Settings};
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::topology::{Topology, sysfs_cache};
use report::Report;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Measure latency and bandwidth of this machine's memory, and peak floating point
///
/// From every node with CPUs to every node with memory: the time of a load that needs the one before
/// it, and what one thread, and a thread on each CPU of the node, read, write and copy. Then reading
/// by 1, 2, ... threads, latency under load, latency by size of the working set, and the time in which
/// a line goes from one core to another; what each level of caches delivers; and peak floating point,
/// which with the bandwidths gives rooflines. Every figure is the median of several rounds.
///
/// It needs idle CPUs and, on each node, memory of four times the last-level cache. Rounds that differ
/// much are said.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither probe
  hither probe --seconds 60 --json probe.json --svg probe.svg
  hither probe --machine-file mine.toml && hither lab run --machine mine.toml -- ./app
  hither probe --cpus 0-3
  hither probe --cpus 0 --work copy,copy-streaming --size 512M --pages small")]
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
    /// Draw latency by size of the working set and under load, bandwidth by threads, and rooflines
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a machine file, for the lab and for policies; each number says whether it was measured
    #[arg(long, value_name = "FILE", conflicts_with = "cpus")]
    machine_file: Option<PathBuf>,
    /// Measure only these, by one thread on the first CPU: read, write, write-streaming, copy,
    /// copy-streaming, copy-interleaved; JSON is then hither.probe-work/1
    #[arg(long, value_name = "WORK,...", value_delimiter = ',', value_parser = alone::parse_work,
          conflicts_with_all = ["svg", "machine_file"])]
    work: Vec<ProbeWork>,
    /// Memory for --work, source and target of a copy together, as in 512M
    #[arg(long, requires = "work", value_parser = parse_bytes)]
    size: Option<u64>,
    /// Pages of that memory; huge ones without it, where the kernel has them
    #[arg(long, requires = "work")]
    pages: Option<Pages>,
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
            path.shown()
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
        output::can_write_all(&[
            ("--json", &self.json),
            ("--svg", &self.svg),
            ("--machine-file", &self.machine_file),
        ])?;
        let allowed = sys::allowed_cpus().context("asking which CPUs may be used")?;
        let cpus = match &self.cpus {
            None => allowed,
            Some(asked) => {
                let usable = asked.intersection(&allowed);
                anyhow::ensure!(
                    usable == *asked && !asked.is_empty(),
                    "--cpus {asked}: this process may use {allowed} only; name some of those"
                );
                usable
            }
        };
        let topology = Topology::read(&Root::host()).context("reading the machine")?;
        let settings = Settings {
            budget: Duration::from_secs(self.seconds),
            rounds: self.rounds,
            cpus,
            caches: sysfs_cache::read(&Root::host(), &topology.online)
                .context("reading the caches")?,
        };
        if !self.work.is_empty() {
            return self.alone(&topology, &settings);
        }
        filter::check_threads()?;
        if let Some(node) = topology.nodes.iter().find(|node| node.memory.total_kb > 0) {
            bind::can_choose_node(node.id)?;
        }
        let measured = shown(|tell| probe::measure(&topology, &settings, tell));
        let report = Report {
            measured: measured.context(
                "measuring; free some memory, raise a limit (ulimit -v), or use fewer nodes by --cpus and \
                 a cpuset",
            )?,
            rounds: self.rounds,
        };
        let mut files = Files::default();
        files.write("--svg", self.svg.as_deref(), || Ok(report.svg()));
        files.write("--machine-file", self.machine_file.as_deref(), || {
            let name = machine_name.as_deref().unwrap_or_default();
            machine::file(name, &topology, &report.measured, machine::Core::read())
        });
        let shown = show(
            &self.json,
            &report.json(),
            &report.text(Terminal::of_output()),
        );
        files.finish()?;
        shown?;
        Ok(ExitCode::SUCCESS)
    }

    fn alone(&self, topology: &Topology, settings: &Settings) -> anyhow::Result<ExitCode> {
        let memory = Memory {
            bytes: self.size,
            huge: self.pages.map(|pages| pages == Pages::Huge),
        };
        let works = &self.work;
        let measured =
            shown(|tell| probe::alone::measure(topology, settings, works, &memory, tell));
        let report = measured.context("measuring --work; give another --size or --pages")?;
        let rounds = self.rounds;
        let document = alone::json(&report, rounds);
        let table = alone::text(&report, rounds, Terminal::of_output());
        show(&self.json, &document, &table)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Measures with a line of progress.
fn shown<T>(measure: impl FnOnce(&mut dyn FnMut(usize, usize, &str)) -> T) -> T {
    let mut progress = Progress::new();
    let measured = measure(&mut |done, total, what| {
        progress.tell(format_args!("{done} of {total}: {what}"));
    });
    progress.clear();
    measured
}
