//! `hither record`: how a program uses memory, written down as it runs.

pub mod allocations;
pub mod choose;

use crate::print;
use crate::run::parse_interval;
use crate::units;
use crate::watchable;
use allocations::Allocations;
use anyhow::{Context, bail};
use hither_agent::host::Supervisor;
use hither_agent::host::record::{self, Session, Setup, ended};
use hither_core::foreign::Foreign;
use hither_core::snapshot::PAGE_BYTES;
use hither_linux::proc::frames::FrameNodes;
use hither_linux::proc::tree::Scope;
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::topology::{Topology, sysfs_cpu};
use hither_linux::tracker::table::{self, Recorder};
use hither_recording::meta::{Meta, MetaNode, MetaTracker, RecordingEnd, SCHEMA};
use hither_recording::{Folder, Writer};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Name of a recording that was given none.
pub const DEFAULT_NAME: &str = "hither-recording";

/// Record how a program uses memory
///
/// Starts the command, or watches running processes, and writes down what the trackers of this
/// machine tell: sampled accesses, regions, traffic of nodes, where pages are. `hither report` makes
/// tables and pictures out of it. The command's exit status becomes hither's.
///
/// A recording is a folder of Parquet files that pandas and DuckDB read; docs/recording.md. Killed
/// at any moment, it holds all but the last ten seconds, the names of processes and what --sites
/// tells.
#[derive(Debug, clap::Args)]
#[command(override_usage = "\
hither record [OPTIONS] -- CMD...
       hither record [OPTIONS] --pid PID...
       hither record [OPTIONS] --cgroup PATH",
    group(clap::ArgGroup::new("watched").required(true).args(["command", "pid", "cgroup"])),
    after_help = "\
Examples:
  hither record -- ./app --its options
  hither record --sites -- ./app
  hither record --pid 4711 --seconds 60 -o before
  hither record --cgroup system.slice/postgresql.service --seconds 60
  hither report before")]
pub struct Command {
    /// Folder for the recording; it must not hold anything [default: hither-recording, -2, -3, ...]
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Watch this running process and its descendants, until it ends or Ctrl-C; repeatable
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Vec<i32>,
    /// Watch the processes of a control group, until Ctrl-C
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// Stop recording after this time; a command runs on
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Length of the intervals that traffic is summed over: 10ms to 10s; up to eight times as long while
    /// so little is executed that they would cost more than their part of --overhead
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_interval)]
    interval: u64,
    /// What recording may cost, as a share of the CPU time of what is watched, in percent
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = parse_percent)]
    overhead: f64,
    /// Where samples come from: the best that works here, or one by name
    #[arg(long, value_name = "NAME", value_parser = choose::names())]
    tracker: Option<String>,
    /// Record where the command allocates memory, too: areas get names of source lines. From this
    /// size on [without a size: 64K]
    #[arg(long, value_name = "BYTES", num_args = 0..=1, require_equals = true,
          default_missing_value = "64K", conflicts_with_all = ["pid", "cgroup"],
          value_parser = units::parse_bytes)]
    sites: Option<u64>,
    /// Program and arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// A folder in use, processes that are not there, a program that cannot be started.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        sys::keep_freed_memory();
        let root = Root::host();
        let topology = Topology::read_layout(&root).context("reading the machine")?;
        let scope = self.scope(&root)?;
        let tracker = choose::tracker(self.tracker.as_deref(), &root, &topology)?;
        let meta = self.meta(&root, &topology, &tracker);
        let folder = folder(self.output.as_deref())?;
        let writer = Writer::create(folder.clone(), meta)?;
        let beside = match (self.command.is_empty(), &self.pid[..]) {
            (false, _) => Companion::Command(&self.command),
            (true, &[pid]) => Companion::Process(pid),
            // Several have no one end: recording stops when all have ended; a group may always get
            // new ones, so that somebody has to stop it.
            (true, _) => Companion::Nobody,
        };
        let (supervisor, allocations, mut writer) = begin(&beside, self.sites, writer)?;
        let mut notes = tracker.notes.clone();
        let mut session = Session::new(Setup {
            root: &root,
            topology: &topology,
            scope,
            tracker: tracker.tracker,
            start_ns: supervisor.start_ns(),
            interval_us: self.interval,
            overhead: self.overhead / 100.0,
        });
        let limit_ns = self
            .seconds
            .map(|seconds| seconds.saturating_mul(1_000_000_000));
        let recorded = record::run(
            &supervisor,
            &mut session,
            &mut writer,
            limit_ns,
            &notes,
            |now_ns, pids| {
                if let Some(allocations) = &allocations {
                    allocations.turn(now_ns, &root, pids);
                }
            },
        )?;
        notes.extend(session.take_notes());
        if let Some(allocations) = &allocations {
            match allocations.write(&mut writer, supervisor.start_ns()) {
                Ok(told) => notes.extend(told),
                Err(error) => notes.push(format!("allocation sites are missing: {error:#}")),
            }
        }
        let mut ended = ended(recorded.end, recorded.length_ns, notes);
        ended.watched_cpu_us = Some(recorded.watched_us);
        let status = ended.status;
        writer.meta_mut().ended = Some(ended.clone());
        let finished = writer.finish().map_err(anyhow::Error::new);
        let written = recorded.written.map_err(anyhow::Error::new);
        if let Some(error) = written.and(finished).err() {
            print::error(&error.context("the recording is not whole"));
            return Ok(ExitCode::from(status.filter(|&s| s != 0).unwrap_or(1)));
        }
        print::err_report(&account(&session, folder.path(), &ended));
        Ok(ExitCode::from(status.unwrap_or(0)))
    }

    fn scope(&self, root: &Root) -> anyhow::Result<Scope> {
        if let Some(group) = &self.cgroup {
            let folder =
                watchable::cgroup(root, group).with_context(|| format!("--cgroup {group}"))?;
            return Ok(Scope::Cgroup(folder));
        }
        for &pid in &self.pid {
            watchable::check(root, pid).with_context(|| format!("--pid {pid}"))?;
        }
        Ok(match self.pid.is_empty() {
            false => Scope::Processes(self.pid.clone()),
            true => Scope::Descendants(std::process::id() as i32),
        })
    }

    fn meta(&self, root: &Root, topology: &Topology, tracker: &Recorder) -> Meta {
        let watched = match (&self.cgroup, &self.pid[..]) {
            (Some(group), _) => format!("control group {group}"),
            (None, []) => "the command and its descendants".to_owned(),
            (None, pids) => format!("processes {pids:?} and their descendants"),
        };
        meta(
            root,
            topology,
            tracker,
            &self.command,
            watched,
            self.interval,
        )
    }
}

/// Whose end ends the watching.
pub enum Companion<'a> {
    /// A command that is started.
    Command(&'a [OsString]),
    /// A process that runs.
    Process(i32),
    /// Nobody's.
    Nobody,
}

/// Begins to wait, or starts the command, with its allocations recorded from a size on where that is
/// asked for. What cannot begin leaves no recording.
pub fn begin(
    beside: &Companion<'_>,
    sites: Option<u64>,
    writer: Writer,
) -> anyhow::Result<(Supervisor, Option<Allocations>, Writer)> {
    let new =
        |threshold_bytes| Allocations::new(writer.folder(), threshold_bytes).context("--sites");
    let begun = sites.map(new).transpose().and_then(|allocations| {
        let supervisor = match *beside {
            Companion::Process(pid) => Supervisor::attach(pid).map_err(anyhow::Error::new),
            Companion::Nobody => Supervisor::alone(&[]).map_err(anyhow::Error::new),
            Companion::Command(words) => {
                Supervisor::start(words, false, |command| match &allocations {
                    Some(allocations) => allocations.attach(command),
                    None => Ok(()),
                })
            }
        };
        if let (Err(_), Some(allocations)) = (&supervisor, &allocations) {
            allocations.abandon();
        }
        Ok((supervisor?, allocations))
    });
    match begun {
        Ok((supervisor, allocations)) => Ok((supervisor, allocations, writer)),
        Err(error) => {
            writer.abandon();
            Err(error)
        }
    }
}

/// What a person is told at the end.
fn account(session: &Session, folder: &Path, ended: &RecordingEnd) -> String {
    let totals = session.totals();
    let mut text = format!(
        "recorded {} in {}: {} samples, {} regions, by {}\n",
        units::time(ended.length_ns as f64),
        folder.shown(),
        totals.samples,
        totals.regions,
        session.tracker(),
    );
    if totals.lost > 0 {
        text += &format!("{} samples were lost, as buffers were full\n", totals.lost);
    }
    if let Some(cost) = cost(ended.own_cpu_us(), ended.watched_cpu_us) {
        text += &format!("recording cost {cost}\n");
    }
    for note in &ended.notes {
        text += &format!("{}\n", note.shown());
    }
    text += &format!("see `hither report {}`\n", folder.shown());
    text
}

/// What a recording cost, for a person, where it is known: of the CPU time of what was watched, too.
#[must_use]
pub fn cost(own_us: Option<u64>, watched_us: Option<u64>) -> Option<String> {
    let own_us = own_us?;
    let own = units::time(own_us as f64 * 1000.0);
    Some(match watched_us {
        None => format!("{own} of CPU time"),
        Some(0) => format!("{own} of CPU time, and what was watched used none"),
        Some(watched) => format!(
            "{own} of CPU time, {:.2} % of the CPU time of what was watched",
            100.0 * own_us as f64 / watched as f64
        ),
    })
}

/// The description of a recording that begins now.
pub fn meta(
    root: &Root,
    topology: &Topology,
    tracker: &Recorder,
    command: &[OsString],
    watched: String,
    interval_us: u64,
) -> Meta {
    // Only what has physical addresses needs to know whose they are.
    let frames = match tracker.entry.name == table::DAMON_PHYSICAL.name {
        true => FrameNodes::read(root),
        false => FrameNodes::default(),
    };
    let spans = |id| {
        let own = frames.spans().iter().filter(move |(_, node)| *node == id);
        own.map(|(span, _)| (span.start * PAGE_BYTES, span.end * PAGE_BYTES))
    };
    let node = |node: &hither_linux::topology::NodeInfo| MetaNode {
        id: node.id.0,
        cpus: node.cpus.to_string(),
        total_bytes: node.memory.total_kb << 10,
        spans: spans(node.id).collect(),
    };
    let first = topology.online.first();
    let line_bytes = first.and_then(|cpu| sysfs_cpu::line_bytes(root, cpu));
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Meta {
        schema: SCHEMA.to_owned(),
        hither: env!("CARGO_PKG_VERSION").to_owned(),
        began_unix_ms: since.ok().map(|since| since.as_millis() as u64),
        kernel: sys::kernel_release(),
        nodes: topology.nodes.iter().map(node).collect(),
        distances: topology.distances.clone(),
        line_bytes: line_bytes.map(|bytes| bytes as u32),
        command: command
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        watched,
        trackers: vec![MetaTracker {
            name: tracker.entry.name.to_owned(),
            about: tracker.entry.about.to_owned(),
        }],
        interval_us,
        ended: None,
    }
}

/// Numbers of what is named [`DEFAULT_NAME`] (1) and `DEFAULT_NAME-N` in a folder.
pub fn numbers(folder: &Path) -> std::io::Result<impl Iterator<Item = u64>> {
    let number = |name: String| match name.strip_prefix(DEFAULT_NAME)? {
        "" => Some(1),
        rest => rest.strip_prefix('-')?.parse().ok(),
    };
    let names = std::fs::read_dir(folder)?.flatten();
    Ok(names.filter_map(move |entry| number(entry.file_name().into_string().ok()?)))
}

/// What has this number.
pub fn numbered(number: u64) -> PathBuf {
    match number {
        1 => PathBuf::from(DEFAULT_NAME),
        _ => PathBuf::from(format!("{DEFAULT_NAME}-{number}")),
    }
}

/// The folder that was asked for, or one with a name of its own in the current folder.
pub fn folder(asked: Option<&Path>) -> anyhow::Result<Folder> {
    match asked {
        Some(path) => Ok(Folder::make_or_take(path)?),
        None => numbered_folder(Path::new("")),
    }
}

/// A new folder for a recording in another, behind all that are there: the newest has the highest
/// number.
fn numbered_folder(within: &Path) -> anyhow::Result<Folder> {
    let here = if within.as_os_str().is_empty() {
        Path::new(".")
    } else {
        within
    };
    loop {
        let highest = numbers(here).ok().and_then(Iterator::max).unwrap_or(0);
        let Some(next) = highest.checked_add(1) else {
            bail!(
                "{} has the last number that there is; name a folder with --output, or remove that one",
                numbered(highest).shown()
            );
        };
        match Folder::make(&within.join(numbered(next))) {
            // Somebody else began one just now: its number is the highest then.
            Err(error) if error.is_taken() && numbers(here)?.any(|number| number >= next) => {}
            made => return Ok(made?),
        }
    }
}

/// `1`, `0.5`, `2%`.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if (0.01..=100.0).contains(&percent) => Ok(percent),
        Ok(_) => Err("it must be 0.01 to 100".to_owned()),
        Err(_) => Err("write a number, as in 1 or 0.5".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_taken_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let next = || {
            let made = numbered_folder(folder.path())?;
            anyhow::Ok(made.path().file_name().unwrap().to_owned())
        };
        assert_eq!(next().unwrap(), "hither-recording");
        std::fs::create_dir(folder.path().join("hither-recording-x")).unwrap();
        assert_eq!(next().unwrap(), "hither-recording-2");
        // The place of one that was removed stays free, or it would be taken for an older one.
        std::fs::write(folder.path().join("hither-recording-7"), "").unwrap();
        assert_eq!(next().unwrap(), "hither-recording-8");
        // Behind the last number there is none, and an empty folder that has it is not taken.
        std::fs::create_dir(folder.path().join(numbered(u64::MAX))).unwrap();
        let refused = next().unwrap_err().to_string();
        assert!(refused.contains("has the last number"), "{refused}");
    }

    #[test]
    fn percents() {
        assert_eq!(parse_percent("0.5%"), Ok(0.5));
        assert!(parse_percent("0").is_err() && parse_percent("nan").is_err());
    }
}
