//! `hither daemon` and `hither config`: the loop as a service, and what it is told by.

use crate::print;
use crate::signal_status;
use anyhow::{Context, anyhow};
use hither_agent::host::End;
use hither_core::foreign::Foreign;
use hither_daemon::config::{self, Config};
use hither_daemon::service;
use hither_linux::rivals;
use hither_linux::root::Root;
use hither_linux::sys;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

/// Look after programs as a service
///
/// Reads which programs from a file (docs/daemon.md; `hither config show` prints one). SIGHUP reads it
/// anew; SIGTERM ends the daemon: settings go back, pages stay where they are, and `hither undo` of the
/// next daemon can still put them back.
#[derive(Debug, clap::Args)]
pub struct Command {
    /// The configuration [default: /etc/hither/hither.toml where it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Decide and move nothing, whatever the configuration says
    #[arg(long)]
    dry_run: bool,
    /// Only put back settings of the kernel that a hither which was killed has left, and end
    #[arg(long, conflicts_with_all = ["config", "dry_run"])]
    restore: bool,
}

/// Check or show the configuration of the daemon
#[derive(Debug, clap::Args)]
pub struct ConfigCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Say whether a configuration is understood
    Check {
        /// The file [default: /etc/hither/hither.toml]
        file: Option<PathBuf>,
    },
    /// Print a configuration with all defaults
    Show {
        /// The file [default: /etc/hither/hither.toml where it is there]
        file: Option<PathBuf>,
    },
}

impl Command {
    /// Runs it until a signal.
    ///
    /// # Errors
    /// A configuration that is not understood; another daemon; sockets that cannot be had.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.restore {
            for note in rivals::mend_leftovers(&Root::host())? {
                print::err_lines(&note);
            }
            return Ok(ExitCode::SUCCESS);
        }
        sys::keep_freed_memory();
        let config = self.read()?;
        let source = move || self.read().map_err(|error| format!("{error:#}"));
        let sink = |text: &str| print::err_lines(text);
        let end = service::run(config, Box::new(source), Rc::new(sink))?;
        Ok(match end {
            End::Signal(signal) if signal != sys::SIGINT && signal != sys::SIGTERM => {
                ExitCode::from(signal_status(signal))
            }
            _ => ExitCode::SUCCESS,
        })
    }

    fn read(&self) -> anyhow::Result<Config> {
        let mut config = read(self.config.as_deref())?;
        config.dry_run |= self.dry_run;
        Ok(config)
    }
}

impl ConfigCommand {
    /// Runs it.
    ///
    /// # Errors
    /// A configuration that is not understood.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Check { file } => {
                let file = file.unwrap_or_else(|| PathBuf::from(config::DEFAULT_FILE));
                let config = read(Some(&file))?;
                let count = config.targets.len();
                let ending = if count == 1 { "" } else { "s" };
                print::out(&format!("{}: {count} target{ending}\n", file.shown()))?;
            }
            What::Show { file } => print::out(&read(file.as_deref())?.to_string())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The configuration of a file, or of the usual one, or the default where that is not there.
fn read(file: Option<&Path>) -> anyhow::Result<Config> {
    let path = file.unwrap_or_else(|| Path::new(config::DEFAULT_FILE));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if file.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Config::default());
        }
        Err(error) => {
            let what = format!(
                "{}: the configuration cannot be read; give a file by --config, as `hither config show` \
                 prints one",
                path.shown()
            );
            return Err(error).context(what);
        }
    };
    config::read(&text, &Root::host()).map_err(|fault| anyhow!("{}: {fault}", path.shown()))
}
