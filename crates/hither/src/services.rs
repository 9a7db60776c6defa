//! `hither services`: operating-system work on chosen CPUs, kept where it pays.

mod show;
mod trial;

use crate::print;
use crate::signal_status;
use anyhow::{Context, bail};
use hither_core::services::Class;
use hither_core::set::CpuSet;
use hither_linux::restore;
use hither_linux::root::Root;
use hither_linux::services::{Arranged, Services, find};
use hither_linux::sys::{self, Signals};
use std::process::ExitCode;
use std::time::Duration;

/// How often signals and the program's end are looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Put operating-system work on CPUs and caches of its own, where that pays
///
/// Interrupts of disks and network cards, what receives and sends packets (RPS, XPS), unbound
/// workqueues, writeback, journals and the threads that submit for io_uring go to the chosen CPUs.
/// `try` measures a program by turns under plain scheduling and so arranged, and keeps what pays;
/// all is put back at the end, and by the next call after kill -9.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit status: of the program that was tried; 2 for bad input and missing rights; 130 after Ctrl-C
(128 plus the signal's number).

Examples:
  hither services show
  hither services try --cpus 6-7 --class file -- ./server
  hither services hold --cpus 6-7
  hither services undo")]
pub struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the work that can be placed, and where it may be done now
    Show {
        /// Print JSON (hither.services/1) instead of the table
        #[arg(long)]
        json: bool,
    },
    Try(trial::Command),
    /// Keep the work on the chosen CPUs until Ctrl-C or SIGTERM, unmeasured
    Hold(Place),
    /// Put back what a hither that was killed has left
    Undo,
}

/// Which work, and where to.
#[derive(Debug, clap::Args)]
struct Place {
    /// CPUs that do the work: 6-7, best all of one cache
    #[arg(long, value_name = "LIST")]
    cpus: CpuSet,
    /// Which work: file, network, and any (unbound work and io_uring, which serve both)
    #[arg(
        long = "class",
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "file,network,any"
    )]
    classes: Vec<Class>,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// Bad input, missing rights, something that cannot be put back.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Show { json } => {
                show::work(&find(&Root::host(), &Class::ALL)?, json)?;
                Ok(ExitCode::SUCCESS)
            }
            Action::Try(command) => command.run(),
            Action::Hold(place) => hold(&place),
            Action::Undo => {
                let (mut services, note) = open(&Class::ALL)?;
                services.put_back()?;
                print::err_lines(&note.unwrap_or_else(|| "there is nothing to put back".into()));
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// The right to arrange services; what a dead one left is put back first.
fn open(classes: &[Class]) -> anyhow::Result<(Services, Option<String>)> {
    if sys::effective_uid() != 0 {
        bail!("operating-system work is root's to place: run hither as root");
    }
    restore::make_runtime_folder()?;
    Ok(Services::open(
        &Root::host(),
        &restore::runtime_folder()?,
        classes,
    )?)
}

impl Place {
    /// All CPUs that are on-line, the chosen ones among them.
    fn check(&self) -> anyhow::Result<CpuSet> {
        let online = Root::host().text("sys/devices/system/cpu/online")?;
        let online: CpuSet = online.trim().parse().context("reading the CPUs on-line")?;
        let missing = self.cpus.difference(&online);
        if self.cpus.is_empty() || !missing.is_empty() {
            bail!(
                "--cpus {}: this machine has the CPUs {online}\n  to mend it: name some of them",
                self.cpus
            );
        }
        if self.cpus == online {
            bail!(
                "--cpus {}: these are all CPUs, so that nothing would be apart\n  to mend it: name fewer",
                self.cpus
            );
        }
        Ok(online)
    }
}

fn hold(place: &Place) -> anyhow::Result<ExitCode> {
    place.check()?;
    let (mut services, note) = open(&place.classes)?;
    print::err_lines(&note.unwrap_or_default());
    let signals = Signals::new(&[sys::SIGINT, sys::SIGTERM]).context("reading signals as data")?;
    let arranged = services.arrange(&place.cpus)?;
    print::err_lines(&told(&arranged, &place.cpus));
    let signal = loop {
        match signals.take() {
            Some(arrived) => break arrived.signal,
            None => std::thread::sleep(LOOK),
        }
    };
    services.put_back()?;
    print::err_lines("all work is where it was");
    Ok(ExitCode::from(signal_status(signal)))
}

/// What was moved and what was not, for a person.
fn told(arranged: &Arranged, cpus: &CpuSet) -> String {
    let pieces = match arranged.moved {
        1 => "1 piece".to_owned(),
        many => format!("{many} pieces"),
    };
    let mut text = format!("{pieces} of work on the CPUs {cpus}");
    for (name, reason) in &arranged.refused {
        text += &format!("\nnot moved: {name}: {reason}");
    }
    text
}
