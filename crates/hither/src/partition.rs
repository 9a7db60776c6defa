//! `hither partition`: a machine split into isolated parts, and nodes that move between them.

mod manage;
mod shift;
mod show;
mod unit;

use crate::print;
use anyhow::{Context, bail};
use hither_core::foreign::Foreign;
use hither_core::partition::file::{self, Wish};
use hither_core::rset::Resources;
use hither_linux::partition::{self as machine, Partitions, kept};
use hither_linux::proc::cgroup;
use hither_linux::root::Root;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Largest file of partitions that is read.
const MOST_BYTES: u64 = 1 << 20;

/// Split the machine into isolated parts, and move nodes between them
///
/// Each partition is a control group with CPUs and memory nodes of its own, on which nothing else
/// runs: other control groups, interrupts and the kernel's own work keep to the rest. Everything
/// that was changed is put back by `hither partition stop`, also after kill -9: whatever call comes
/// next finishes or takes back what was begun. No process is ended.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit status: 1 where a node could not be moved (everything is as it was before); 2 for bad input
and missing rights; 130 after Ctrl-C (128 plus the signal's number).

Examples:
  hither partition apply parts.toml --dry-run
  hither partition apply parts.toml
  hither partition run db -- postgres -D /data
  hither partition move node2 --from db --to web --rate 500M
  hither partition show
  hither partition stop")]
pub struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Split the machine as a file says
    Apply(Apply),
    /// Show the partitions of this machine
    Show {
        /// Print JSON (hither.partition/1) instead of the table
        #[arg(long)]
        json: bool,
    },
    /// Run a program in a partition; its children stay there
    Run {
        /// The partition
        name: String,
        /// The program and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Put running processes into a partition; their children follow
    Add {
        /// The partition
        name: String,
        /// The process; repeatable
        #[arg(long = "pid", required = true, value_parser = clap::value_parser!(i32).range(1..))]
        pids: Vec<i32>,
    },
    Move(shift::Command),
    Manage(manage::Command),
    /// Take all partitions back: processes go where they came from, settings are what they were
    Stop {
        /// Also where what was kept of them cannot be read or is lost: then groups go, and settings
        /// stay as they are
        #[arg(long)]
        force: bool,
    },
    /// Print a systemd unit that applies a file at boot
    Unit {
        /// The file
        file: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct Apply {
    /// The file, of format hither.partitions/1
    file: PathBuf,
    /// Print who would have what, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run: a captured machine, a folder with its sys
    #[arg(long, value_name = "DIR", requires = "dry_run")]
    root: Option<PathBuf>,
    /// Print JSON (hither.partition/1) instead of the table
    #[arg(long)]
    json: bool,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// Bad input, or something that the kernel refuses: nothing is changed then.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Apply(apply) => apply.run(),
            Action::Show { json } => {
                let kept = kept::read(&machine::folder())?;
                show::running(&Root::host(), kept.as_ref(), json)?;
                Ok(ExitCode::SUCCESS)
            }
            Action::Run { name, command } => run(&name, &command),
            Action::Add { name, pids } => {
                let mut partitions = open()?;
                for pid in pids {
                    partitions.add(&name, pid)?;
                }
                Ok(ExitCode::SUCCESS)
            }
            Action::Move(command) => command.run(),
            Action::Manage(command) => command.run(),
            Action::Stop { force } => stop(force),
            Action::Unit { file } => {
                print::out(&unit::text(&file)?)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

impl Apply {
    fn run(self) -> anyhow::Result<ExitCode> {
        let root = self.root.as_deref().map_or_else(Root::host, Root::new);
        let text = text(&self.file)?;
        // What a dead one left is mended before the machine is read.
        let partitions = match self.dry_run {
            true => None,
            false => Some(open()?),
        };
        let machine = machine::machine(&root).context("reading the machine")?;
        let wish = read(&self.file, &text, &machine)?;
        if let Some(mut partitions) = partitions {
            let notes = partitions.apply(&wish, &machine)?;
            print::err_lines(&notes.join("\n"));
        }
        show::layout(&wish, &machine, self.json)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A file's text.
fn text(path: &Path) -> anyhow::Result<String> {
    hither_files::read_named_text(path, MOST_BYTES).with_context(|| {
        format!(
            "{} cannot be read; give a file of partitions (docs/partitions.md)",
            path.shown()
        )
    })
}

/// What it says for a machine.
fn read(path: &Path, text: &str, machine: &Resources) -> anyhow::Result<Wish> {
    match file::read(text, machine) {
        Ok(wish) => Ok(wish),
        Err(fault) => bail!("{}:{}: {}", path.shown(), fault.line, fault.reason),
    }
}

/// The right to change partitions; what a dead one left is mended and told.
fn open() -> anyhow::Result<Partitions> {
    check_root()?;
    let (partitions, notes) = Partitions::open(&Root::host(), &machine::folder())?;
    print::err_lines(&notes.join("\n"));
    Ok(partitions)
}

fn check_root() -> anyhow::Result<()> {
    match hither_linux::sys::effective_uid() {
        0 => Ok(()),
        _ => bail!("partitions are root's to change: run hither as root"),
    }
}

fn run(name: &str, command: &[OsString]) -> anyhow::Result<ExitCode> {
    let mut partitions = open()?;
    partitions.add(name, std::process::id() as i32)?;
    // The program must not hold the right to change them.
    drop(partitions);
    let error = std::process::Command::new(&command[0])
        .args(&command[1..])
        .exec();
    Err(error).with_context(|| format!("{} cannot be started", command[0].shown()))
}

fn stop(force: bool) -> anyhow::Result<ExitCode> {
    check_root()?;
    let (root, folder) = (Root::host(), machine::folder());
    let mut notes = match force {
        true => machine::force_stop(&root, &folder)?,
        // Nothing is mended first: all of it is taken back anyway.
        false => Partitions::open_as_is(&root, &folder)?.stop()?,
    };
    if cgroup::check(&root).is_ok() {
        // Perhaps there are groups of which nothing is kept.
        notes.extend(Partitions::open(&root, &folder)?.1);
    }
    print::err_lines(&notes.join("\n"));
    Ok(ExitCode::SUCCESS)
}
