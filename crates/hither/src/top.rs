//! `hither top`: processes by where their memory is and where they run, live or once.

mod ages;
pub mod figures;
mod help;
mod live;
mod once;
mod render;
pub mod screen;
mod text;
mod view;

use crate::terminal::Terminal;
use crate::{print, units, watchable};
use anyhow::{Context, anyhow};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use hither_agent::host::top::{Ageing, Session, machine, model, process};
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use hither_linux::tracker::table::{self, TrackerInputs};
use model::SortKey;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

/// Shortest interval in us: CPU time is told in steps of 10 ms.
const LEAST_INTERVAL_US: u64 = 100_000;
/// Longest interval in us.
const MOST_INTERVAL_US: u64 = 60_000_000;
/// Shortest and longest time between two generations in us: the kernel walks all page tables for
/// one, and keeps four.
const AGES_US: std::ops::RangeInclusive<u64> = 1_000_000..=3_600_000_000;

/// Show processes by where their memory is and where they run, live
///
/// Enter on a process shows its threads, then its mappings. Without a terminal as input and output
/// it behaves as with --once.
#[derive(Debug, clap::Args)]
pub struct Command {
    /// Time between readings: 100ms to 60s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: u64,
    /// Print a table after one interval, and end
    #[arg(long)]
    once: bool,
    /// Print JSON after one interval (hither.top/1), and end
    #[arg(long)]
    json: bool,
    /// Look at this process alone, and closely
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Show how much memory was used how lately, by node: has the kernel look at the accessed bits of
    /// all processes every TIME, 1s to 3600s (needs root and the multi-generational LRU)
    #[arg(long, value_name = "TIME", value_parser = parse_ages)]
    ages: Option<u64>,
    /// Order of the processes [default: local where a tracker tells, else cpu]
    #[arg(long, value_name = "KEY", value_parser = sort_keys(), hide_default_value = true)]
    sort: Option<SortKey>,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// A machine that cannot be read, a process that is not there or not the user's, a terminal
    /// that cannot be used.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let root = Root::host();
        if let Some(pid) = self.pid {
            watchable::check(&root, pid).with_context(|| format!("--pid {pid}"))?;
        }
        let topology = Topology::read(&root).context("reading the machine")?;
        let ages = self.ages.map(|every_us| Ageing::open(&root, every_us));
        let ages = ages
            .transpose()
            .map_err(|error| anyhow!("--ages: {error}"))?;
        let open = || {
            table::to_look(&TrackerInputs {
                root: &root,
                topology: &topology,
                ghz: None,
            })
        };
        let (every_us, sort, pid) = (self.interval, self.sort, self.pid);
        let mut session = Session::open(&root, &topology, every_us, sort, pid, ages, open);
        let is_live = io::stdin().is_terminal() && io::stdout().is_terminal();
        if is_live && !self.once && !self.json {
            if let Some(pid) = self.pid {
                session.step(&[]);
                session.focus_on(pid);
            }
            return live::run(session);
        }
        session.read_all(false);
        if let Some(pid) = self.pid {
            session.focus_on(pid);
        }
        std::thread::sleep(Duration::from_micros(self.interval));
        let left_out = session.read_all(true);
        if let Some(pid) = self.pid.filter(|&pid| session.model.process(pid).is_none()) {
            print::err_lines(&format!("process {pid} ended while it was looked at"));
            return Ok(ExitCode::from(crate::STATUS_FAILED));
        }
        let model = &session.model;
        match self.json {
            true => print::out(&once::document(model, left_out))?,
            false => print::report(&once::table(model, left_out, Terminal::of_output()))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn sort_keys() -> impl TypedValueParser<Value = SortKey> {
    let words = SortKey::ALL.map(|(_, word)| word);
    PossibleValuesParser::new(words).map(|word| {
        let found = SortKey::ALL.into_iter().find(|(_, known)| *known == word);
        found.map_or(SortKey::Cpu, |(key, _)| key)
    })
}

fn parse_interval(text: &str) -> Result<u64, String> {
    match units::parse_time_us(text)? {
        us if (LEAST_INTERVAL_US..=MOST_INTERVAL_US).contains(&us) => Ok(us),
        _ => Err("the interval must be 100ms to 60s".to_owned()),
    }
}

fn parse_ages(text: &str) -> Result<u64, String> {
    match units::parse_time_us(text)? {
        us if AGES_US.contains(&us) => Ok(us),
        _ => Err("the time must be 1s to 3600s".to_owned()),
    }
}

#[cfg(test)]
use hither_agent::host::top::reading;

#[cfg(test)]
#[path = "../../agent/src/host/top/examples.rs"]
mod examples;
#[cfg(test)]
mod tests;
