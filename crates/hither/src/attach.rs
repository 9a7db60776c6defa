//! `hither attach`: drives programs that run already, their new children and threads included.

mod placed;
pub mod select;
mod show;

use crate::output::{can_write, is_standard_output, write};
use crate::{print, run, signal_status, units};
use anyhow::{Context, anyhow};
use hither_agent::host::drive::{self, DriveReport, Session};
use hither_agent::host::{End, Hands, Supervisor};
use hither_agent::{Dry, Execute, Gate};
use hither_core::engine::{Engine, EngineConfig};
use hither_core::foreign::{Foreign, shell_word};
use hither_core::policy;
use hither_core::scope::ScopeSpec;
use hither_linux::proc::tree::Scope;
use hither_linux::rivals;
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_linux::tracker::table::{self, TrackerInputs};
use hither_linux::watch::Watch;
use placed::Placed;
use select::Chosen;
use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Move the memory of running programs where it is used
///
/// Each of --pid, --cgroup, --name and --user is a scope: it is judged by its own figures. Ctrl-C ends
/// the watching, not the programs.
#[derive(Debug, clap::Args)]
#[command(infer_long_args = true)]
pub struct Command {
    #[command(flatten)]
    who: select::Who,
    /// What decides: NAME for all scopes, or SCOPE=NAME for the one that was chosen by that word
    /// [default: auto]
    #[arg(long, value_name = "[SCOPE=]NAME")]
    policy: Vec<String>,
    /// How much of the fastest memory tier may be used, with the policy tiers: QUOTA for all scopes, or
    /// SCOPE=QUOTA for one; a size as 512M, a part as shares:2, working-set, or unlimited
    /// [default: unlimited]
    #[arg(long, value_name = "[SCOPE=]QUOTA")]
    fast: Vec<String>,
    /// Detach after this time, as 10s or 2m [default: at Ctrl-C, or when those that --pid names and
    /// their children have ended and nobody else is chosen]
    #[arg(long = "for", value_name = "TIME", value_parser = units::parse_time_us)]
    limit: Option<u64>,
    /// Time between decisions: 10ms to 10s; more while hither only looks and that takes over 1 % of one CPU
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = run::parse_interval)]
    interval: u64,
    /// Decide and move nothing; pages that the kernel moves meanwhile, where hither watches by its hint
    /// faults, are put back
    #[arg(long)]
    dry_run: bool,
    /// First put pages that are astray, and cached pages of the programs' files on nodes where they do not
    /// run, where they belong, as `hither move --astray` and `--files` do
    #[arg(long, conflicts_with = "undo")]
    mend: bool,
    /// Put pages back where they were on leaving
    #[arg(long)]
    undo: bool,
    /// Name of a program whose speed counts more than others', for policy caches
    #[arg(long, value_name = "NAME")]
    prefer: Vec<String>,
    /// Machine file that tells the sizes of the last-level caches, where the kernel does not know them
    #[arg(long, value_name = "NAME")]
    machine: Option<PathBuf>,
    /// Print every decision as it is made
    #[arg(long)]
    explain: bool,
    /// Write the report to a file, or to standard output (hither.attach/1)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const NO_BACKEND: &str = "none, it is a dry run";

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// Nobody is chosen, or somebody who may not be; missing evidence; nothing that moves pages.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let start = Instant::now();
        sys::keep_freed_memory();
        let root = Root::host();
        let chosen = select::choose(&self, &root)?;
        if let Some(path) = &self.json
            && !is_standard_output(path)
        {
            can_write("--json", path)?;
        }
        let mut topology = Topology::read(&root).context("reading the machine")?;
        if let Some(machine) = &self.machine {
            topology.take_cache_sizes(&run::read_machine(machine)?);
        }
        let others = rivals::notes(&root);
        let (tracker, why) = self.tracker(&chosen, &root, &topology)?;
        let scope = Scope::Any(chosen.iter().map(|chosen| chosen.watched.clone()).collect());
        let mended = match self.mend {
            false => None,
            true => match placed::mend(&root, &topology, &scope, self.dry_run) {
                Ok(found) => Some(found),
                Err(status) => return Ok(ExitCode::from(status)),
            },
        };
        let engine = self.engine(&chosen)?;
        let supervisor = Supervisor::alone(&[])?;
        // By such a tracker the kernel moves pages also in a dry run: they are put back.
        let goes_back = self.undo || self.dry_run && table::moves_pages(tracker.name());
        let watch = Watch::new(&root, &topology, scope, tracker);
        let (executor, backend): (Box<dyn Execute>, _) = match (self.dry_run, goes_back) {
            (true, false) => (Box::new(Dry), NO_BACKEND),
            (true, true) => {
                let mut gate = Gate::new(Hands::find()?.movers()?);
                engine.scopes().for_each(|scope| gate.set_dry(scope, true));
                (Box::new(gate), NO_BACKEND)
            }
            (false, _) => {
                let hands = Hands::find()?;
                let name = hands.name;
                (Box::new(hands.movers()?), name)
            }
        };
        let mut is_first = true;
        // Those that were seen last, and a look at those that were seen first.
        let (seen, early) = (RefCell::new(Vec::new()), RefCell::new(None));
        let sink = |told: DriveReport<'_>| match told {
            DriveReport::Entry(entry) => print::err_lines(&format!("{entry}\n")),
            DriveReport::Second(second) => {
                let processes = second.snapshot.processes.iter();
                *seen.borrow_mut() = processes.map(|process| process.pid.0).collect();
                if is_first && mended.is_none() {
                    let pids = seen.borrow().clone();
                    *early.borrow_mut() = placed::look_aside(&root, &topology, pids);
                }
                if std::mem::take(&mut is_first) {
                    for name in show::empty(&chosen, second.engine) {
                        let name = name.shown();
                        print::err_lines(&format!(
                            "{name}: no process yet; those that come are taken\n"
                        ));
                    }
                }
                print::err_lines(&show::second(&second));
            }
        };
        let mut session = Session::new(watch, engine, executor, self.interval, Box::new(sink));
        if self.explain {
            session.follow_log();
        }
        for reason in why.iter().chain(&others) {
            print::err_lines(&format!("{reason}\n"));
        }
        let end = drive::run(&supervisor, &mut session, self.limit, Vec::new())?;
        let undone = match goes_back {
            true => Some(drive::undo(&supervisor, &mut session)?),
            false => None,
        };
        let decided = session.finish(supervisor.now_us());
        let early = early.take().and_then(|thread| thread.join().ok());
        let placed = mended.or(early).map(|before| Placed {
            before,
            after: placed::look(&root, &topology, &seen.borrow()),
        });
        let report = show::Report {
            chosen: &chosen,
            decided: &decided,
            backend,
            missing: &why,
            placed: placed.as_ref(),
            does_it: self.dry_run.then(|| self.without_dry_run()),
            undone,
            watched_us: supervisor.now_us(),
            usage: decided.usage(),
            elapsed: start.elapsed(),
        };
        match &self.json {
            Some(path) if is_standard_output(path) => print::out(&print::json(report.json()))?,
            Some(path) => {
                print::err_report(&report.text());
                write("--json", path, &print::json(report.json()))?;
            }
            None => print::err_report(&report.text()),
        }
        Ok(match end {
            End::Signal(signal) if signal != sys::SIGINT => ExitCode::from(signal_status(signal)),
            _ => ExitCode::SUCCESS,
        })
    }

    /// The command that does what a dry run decided.
    fn without_dry_run(&self) -> String {
        let words = [
            ("--pid", &self.who.pid),
            ("--cgroup", &self.who.cgroup),
            ("--name", &self.who.name),
            ("--user", &self.who.user),
            ("--policy", &self.policy),
            ("--fast", &self.fast),
        ];
        let mut command = "hither attach".to_owned();
        for (option, values) in words {
            for value in values {
                command += &format!(" {option} {}", shell_word(value));
            }
        }
        command
    }

    fn engine(&self, chosen: &[Chosen]) -> anyhow::Result<Engine> {
        let mut engine = Engine::new(EngineConfig {
            preferred: self.prefer.clone(),
            ..EngineConfig::at_interval(self.interval)
        });
        for chosen in chosen {
            let scope = engine.add_scope(ScopeSpec {
                name: chosen.name.clone(),
                selector: chosen.selector.clone(),
                policy: policy::by_name(&chosen.policy)?,
            });
            engine.set_quota(scope, chosen.quota);
        }
        Ok(engine)
    }

    /// The tracker for all policies, and sentences about what is missing. Who only looks on gets what
    /// there is.
    fn tracker(
        &self,
        chosen: &[Chosen],
        root: &Root,
        topology: &Topology,
    ) -> anyhow::Result<(Box<dyn Tracker>, Vec<String>)> {
        let mut policies = Vec::new();
        for chosen in chosen {
            policies.push(policy::by_name(&chosen.policy)?);
        }
        let needs = policy::needs_of(policies.iter().map(|policy| &**policy));
        let whom = match &policies[..] {
            [one] => format!("policy {}", one.name()),
            _ => "this choice of policies".to_owned(),
        };
        let here = TrackerInputs {
            root,
            topology,
            ghz: None,
        };
        match table::to_serve(&whom, &needs, &here) {
            Ok((mut tracker, missing)) => {
                let sampling = tracker.first_sampling();
                tracker.set_sampling(sampling);
                Ok((tracker, missing))
            }
            Err(why) if self.dry_run => {
                let tracker = (table::NONE.open)(&here).map_err(|why| anyhow!(why))?;
                let mut notes: Vec<String> = why.to_string().lines().map(str::to_owned).collect();
                notes.push("processes are watched, and nothing is decided".to_owned());
                Ok((tracker, notes))
            }
            Err(why) => Err(why.into()),
        }
    }
}
