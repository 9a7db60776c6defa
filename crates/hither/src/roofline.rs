//! `hither roofline`: running programs as points below the roofs of each memory.

mod plot;
mod roofs;
mod show;

use crate::attach::select::{self, Who};
use crate::output::{can_write_all, is_standard_output, write};
use crate::{print, run, signal_status, units};
use anyhow::{Context, anyhow};
use hither_agent::host::{Beat, Client, End, Error as HostError, Supervisor};
use hither_core::plan::Sampling;
use hither_core::policy::EvidenceKind;
use hither_core::snapshot::Snapshot;
use hither_linux::proc::tree::Scope;
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::topology::Topology;
use hither_linux::tracker::table::{self, TrackerInputs};
use hither_linux::watch::Watch;
use plot::Plot;
use roofs::Roofs;
use show::Seen;
use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show running programs below the roofline of each memory
///
/// Each program is a point: its floating-point operations for each byte of memory traffic, and its speed.
/// The roofs, which `hither probe --json FILE` measures, tell what each memory would allow it. Ctrl-C ends
/// the watching, not the programs.
#[derive(Debug, clap::Args)]
#[command(infer_long_args = true)]
pub struct Command {
    #[command(flatten)]
    who: Who,
    /// Roofs: what `hither probe --json FILE` wrote
    #[arg(long, value_name = "FILE")]
    probe: Option<PathBuf>,
    /// Time between readings: 10ms to 10s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = run::parse_interval)]
    interval: u64,
    /// End after this time, as 10s or 2m [default: at Ctrl-C, or when all have ended]
    #[arg(long = "for", value_name = "TIME", value_parser = units::parse_time_us)]
    limit: Option<u64>,
    /// Draw the points with their trails, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a page with table and drawing, as HTML
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the figures to a file, or to standard output (hither.roofline/1)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// Nobody is chosen, or somebody who may not be; nothing here counts what programs execute; a file of
    /// roofs that is none.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let root = Root::host();
        let chosen = select::scopes(&self.who, &root)?;
        can_write_all(&[
            ("--svg", &self.svg),
            ("--html", &self.html),
            ("--json", &self.json),
        ])?;
        let roofs = match &self.probe {
            Some(path) => Roofs::read(path)?,
            None => Roofs::default(),
        };
        let topology = Topology::read(&root).context("reading the machine")?;
        let here = TrackerInputs {
            root: &root,
            topology: &topology,
            ghz: None,
        };
        let needs = [EvidenceKind::ProgramWork];
        let mut tracker = table::that_gives(&needs, &here).map_err(|why| anyhow!("{why}"))?;
        tracker.set_sampling(Sampling::Off);
        let scope = Scope::Any(chosen.iter().map(|chosen| chosen.watched.clone()).collect());
        let mut watch = Watch::new(&root, &topology, scope, tracker);
        let supervisor = Supervisor::alone(&[])?;
        watch.begin(supervisor.now_us());
        let seen = RefCell::new(Seen::default());
        let mut plot = Plot::open();
        let mut failure = None;
        let limit = self.limit;
        let mut clients = vec![Client::new(self.interval, |beat: &Beat| {
            if !beat.is_due {
                return Ok(Some(self.interval));
            }
            let snapshot: &Snapshot = match watch.observe(beat.now_us) {
                Ok(snapshot) => snapshot,
                Err(error) => {
                    failure = Some(error);
                    return Ok(None);
                }
            };
            let mut seen = seen.borrow_mut();
            seen.take(snapshot);
            match &mut plot {
                Some(plot) => plot.draw(&roofs, &seen),
                None => print::err_lines(&seen.second(&roofs)),
            }
            let has_ended = snapshot.processes.is_empty() && !seen.is_empty();
            let is_over = limit.is_some_and(|limit| beat.now_us >= limit);
            Ok::<_, HostError>((!has_ended && !is_over).then_some(self.interval))
        })];
        let end = supervisor.run(&mut clients)?;
        drop(clients);
        drop(plot);
        if let Some(error) = failure {
            return Err(error.into());
        }
        let seen = seen.into_inner();
        if let Some(path) = &self.svg {
            write("--svg", path, &seen.chart(&roofs).svg())?;
        }
        if let Some(path) = &self.html {
            write("--html", path, &seen.page(&roofs).html())?;
        }
        match &self.json {
            Some(path) if is_standard_output(path) => {
                print::out(&print::json(seen.json(&roofs)))?;
            }
            Some(path) => {
                print::report(&seen.table(&roofs))?;
                write("--json", path, &print::json(seen.json(&roofs)))?;
            }
            None => print::report(&seen.table(&roofs))?,
        }
        Ok(match end {
            End::Signal(signal) if signal != sys::SIGINT => ExitCode::from(signal_status(signal)),
            _ => ExitCode::SUCCESS,
        })
    }
}
