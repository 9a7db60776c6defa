//! `hither launch`: processes for threads. One process for each node, or several, each with its node's memory
//! and its share of the node's CPUs.

use crate::output::{can_write, write};
use crate::print::{self, Table};
use crate::run::{memory_policies, read_host};
use crate::terminal::Terminal;
use anyhow::{Context, bail};
use hither_agent::host::{Beat, Client, Error, Supervisor, cannot_start};

use hither_core::bind::MemoryPolicy;
use hither_core::bind::ranks::{self, Rank};
use hither_core::rset::{ResourceSet, Resources};
use hither_linux::bind::{self, Binding};
use hither_linux::sys::{self, Ended, Started};
use serde_json::json;
use std::cell::RefCell;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{self, ExitCode};

/// Time between looks for ended processes, in us, should a signal be lost.
const LOOK_US: u64 = 1_000_000;

/// Start one process for each node, with its memory and its share of CPUs
///
/// For programs that run as several processes: inference servers, forked workers, MPI ranks. Each process
/// finds HITHER_RANK, HITHER_RANKS and HITHER_NODE in its environment, and OMP_NUM_THREADS where that is not set.
/// Where one fails, the others get SIGTERM. The exit status is that of the first that failed.
#[derive(Debug, clap::Args)]
pub struct Command {
    /// How many processes, spread over the nodes [default: one for each node]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=4096))]
    count: Option<u16>,
    /// Spread them over the nodes of a set, as in 'node:0-1' (docs/resource-sets.md) [default: all that may be used]
    #[arg(long, value_name = "EXPR", allow_negative_numbers = true)]
    on: Option<String>,
    /// How each takes pages from its node
    #[arg(long, value_name = "POLICY", value_parser = memory_policies(), default_value = "bind")]
    memory: MemoryPolicy,
    /// Start nothing besides: become the program, in the place of the rank that another launcher gave this
    /// process (mpirun, srun, torchrun)
    #[arg(long, conflicts_with_all = ["count", "keep_going", "json"])]
    rank: bool,
    /// Let the others go on where one fails
    #[arg(long)]
    keep_going: bool,
    /// Write the report to a file (hither.launch/1)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Program and arguments
    #[arg(trailing_var_arg = true, value_name = "CMD", required = true)]
    command: Vec<OsString>,
}

/// A process that was started.
struct Process {
    rank: Rank,
    started: Started,
    /// How it ended, and when, in us.
    ended: Option<(Ended, u64)>,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// No such places, or a program that cannot be started; nothing runs then.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let (_, _, resources) = read_host()?;
        let from = match &self.on {
            None => ResourceSet::new(),
            Some(text) => {
                let resolved = bind::resolve("--on", text, &resources)?;
                for warning in &resolved.warnings {
                    print::err_lines(warning);
                }
                resolved.set
            }
        };
        let nodes = ranks::nodes(&from, &resources);
        if self.rank {
            return self.become_rank(&nodes, &resources);
        }
        if let Some(path) = &self.json {
            can_write("--json", path)?;
        }
        let count = self.count.map_or(nodes.len(), usize::from);
        let places = ranks::places(count.max(1), &nodes, &resources)?;
        let supervisor = Supervisor::alone(&told_signals())?;
        let processes = RefCell::new(Vec::with_capacity(places.len()));
        for (number, rank) in places.iter().enumerate() {
            let started = self
                .prepared(rank, number, places.len(), &resources)
                .and_then(|command| Ok(supervisor.spawn(command, true)?));
            match started {
                Ok(started) => processes.borrow_mut().push(Process {
                    rank: rank.clone(),
                    started,
                    ended: None,
                }),
                Err(error) => {
                    end_all(&processes.borrow());
                    return Err(error);
                }
            }
        }
        let turn = |beat: &Beat| Ok::<_, Error>(self.attend(beat, &mut processes.borrow_mut()));
        supervisor.run(&mut [Client::new(LOOK_US, turn)])?;
        Ok(self.report(&processes.into_inner()))
    }

    /// The command of a rank, bound.
    fn prepared(
        &self,
        rank: &Rank,
        number: usize,
        count: usize,
        resources: &Resources,
    ) -> anyhow::Result<process::Command> {
        let mut command = process::Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        tell(&mut command, rank, number, count);
        let binding = Binding::on(&rank.set(), Some(self.memory), resources)?;
        binding.place(&mut command)?;
        Ok(command)
    }

    /// Passes signals on, and takes ended processes; `None` once all have ended.
    fn attend(&self, beat: &Beat, processes: &mut [Process]) -> Option<u64> {
        if let Some(signal) = beat.signal.filter(|&signal| signal != sys::SIGCHLD)
            && !beat.is_from_kernel
        {
            for process in processes.iter().filter(|process| process.ended.is_none()) {
                process.started.signal(signal);
            }
        }
        let mut has_failed = false;
        while let Some((pid, how)) = sys::reap_any() {
            let own = processes.iter_mut();
            if let Some(process) = own.into_iter().find(|own| own.started.pid() == pid) {
                process.started.set_reaped();
                process.ended = Some((how, beat.now_us));
                has_failed |= how.status() != 0;
            }
        }
        if has_failed && !self.keep_going {
            end_all(processes);
        }
        let is_over = processes.iter().all(|process| process.ended.is_some());
        (!is_over).then_some(LOOK_US)
    }

    fn report(&self, processes: &[Process]) -> ExitCode {
        let rows: Vec<Vec<String>> = processes.iter().enumerate().map(row).collect();
        let head = ["rank", "node", "CPUs", "seconds", "ended"];
        print::err_report(&Table::new(&head, &rows).text(Terminal::of_errors()));
        if let Some(path) = &self.json {
            let ranks = processes.iter().enumerate().map(|(number, process)| {
                let (ended, at_us) = process.ended.unzip();
                json!({
                    "rank": number,
                    "node": process.rank.node.0,
                    "cpus": process.rank.cpus.to_string(),
                    "seconds": at_us.map(|us| us as f64 / 1e6),
                    "status": ended.map(Ended::status),
                    "signal": ended.and_then(signal_of),
                })
            });
            let command = self.command.iter().map(|word| word.to_string_lossy());
            let document = json!({
                "schema": "hither.launch/1",
                "command": command.collect::<Vec<_>>(),
                "ranks": ranks.collect::<Vec<_>>(),
            });
            // The programs have run: their status must not be lost for a full disk.
            if let Err(error) = write("--json", path, &print::json(document)) {
                print::error(&error);
            }
        }
        let mut ends: Vec<_> = processes
            .iter()
            .filter_map(|process| process.ended)
            .collect();
        ends.sort_by_key(|&(_, at_us)| at_us);
        let failed = ends.iter().find(|(how, _)| how.status() != 0);
        ExitCode::from(failed.map_or(0, |(how, _)| how.status()))
    }

    /// Becomes the program where another launcher's rank belongs.
    fn become_rank(
        &self,
        nodes: &[(hither_core::ids::NodeId, hither_core::set::CpuSet)],
        resources: &Resources,
    ) -> anyhow::Result<ExitCode> {
        let Some((number, count)) = ranks::told(|name| std::env::var(name).ok()) else {
            let names: Vec<String> = ranks::VARIABLES
                .iter()
                .map(|(of, rank, count)| format!("{rank} and {count} ({of})"))
                .collect();
            bail!(
                "--rank: no launcher told this process its rank: none of {} is in the environment; start it by one, \
                 or leave --rank out",
                names.join(", ")
            );
        };
        let places = ranks::places(count, nodes, resources)?;
        let rank = places
            .get(number)
            .context("--rank: there is no such place")?;
        let mut command = process::Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        tell(&mut command, rank, number, count);
        Binding::on(&rank.set(), Some(self.memory), resources)?.apply()?;
        let error = command.exec();
        Err(cannot_start(&self.command[0], error).into())
    }
}

/// Signals that are passed on, and the one that tells of ends.
fn told_signals() -> Vec<i32> {
    let mut told = sys::FORWARDED.to_vec();
    told.push(sys::SIGCHLD);
    told
}

/// What a process finds in its environment.
fn tell(command: &mut process::Command, rank: &Rank, number: usize, count: usize) {
    command
        .env("HITHER_RANK", number.to_string())
        .env("HITHER_RANKS", count.to_string())
        .env("HITHER_NODE", rank.node.0.to_string());
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        command.env("OMP_NUM_THREADS", rank.cpus.len().to_string());
    }
}

fn end_all(processes: &[Process]) {
    for process in processes.iter().filter(|process| process.ended.is_none()) {
        process.started.signal(sys::SIGTERM);
    }
}

fn signal_of(ended: Ended) -> Option<i32> {
    match ended {
        Ended::Exited(_) => None,
        Ended::Killed(signal) => Some(signal),
    }
}

fn row((number, process): (usize, &Process)) -> Vec<String> {
    let (ended, at_us) = process.ended.unzip();
    let ended = match ended {
        None => "runs on".to_owned(),
        Some(Ended::Exited(status)) => format!("status {status}"),
        Some(Ended::Killed(signal)) => format!("signal {signal}"),
    };
    vec![
        number.to_string(),
        process.rank.node.0.to_string(),
        process.rank.cpus.to_string(),
        print::or_dash(at_us, |us| format!("{:.2}", us as f64 / 1e6)),
        ended,
    ]
}
