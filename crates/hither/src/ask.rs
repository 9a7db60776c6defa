//! `hither status`, `explain`, `forecast`, `pause`, `resume`, `undo`, `opt-out`: asks the daemon.

mod show;

use crate::print;
use anyhow::{Context, bail};
use hither_core::foreign::Foreign;
use hither_daemon::protocol::{Ask, Question};
use hither_linux::opting::default_socket;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Bytes of an answer at most.
const MOST_ANSWER: u64 = 256 << 20;
/// The daemon answers within seconds; an undo may take longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long pages may take on their way back.
const UNDO_PATIENCE: Duration = Duration::from_secs(120);

/// Whom it is about, and how it is told.
#[derive(Debug, clap::Args)]
pub struct Command {
    /// Targets (`db`), or scopes (`db@postgres`) [default: all that are yours]
    #[arg(value_name = "TARGET")]
    scopes: Vec<String>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
    /// The daemon's control socket [default: $HITHER_SOCKET, or /run/hither/control.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Have the daemon leave a process alone until it ends
#[derive(Debug, clap::Args)]
pub struct OptOut {
    /// Its number; it must be yours
    pid: i32,
    /// The daemon's control socket [default: $HITHER_SOCKET, or /run/hither/control.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// How everything stands.
    Status,
    /// What was decided, and why.
    Explain,
    /// What moving would bring.
    Forecast,
    /// No new moves.
    Pause,
    /// Moves again.
    Resume,
    /// Everything back.
    Undo,
}

impl Command {
    /// The targets and scopes that were named.
    pub fn scopes(&self) -> &[String] {
        &self.scopes
    }

    /// Is the answer wanted as JSON?
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Runs it.
    ///
    /// # Errors
    /// No daemon runs, or it refuses.
    pub fn run(self, verb: Verb) -> anyhow::Result<ExitCode> {
        let socket = self.socket.clone().unwrap_or_else(default_socket);
        let question = |ask| Question::new(ask, self.scopes.clone());
        match verb {
            Verb::Status | Verb::Forecast => {
                let answer = asked(&socket, &question(Ask::Status))?;
                let status = &answer["status"];
                match (self.json, verb) {
                    (true, _) => print::out(&print::json(status.clone()))?,
                    (false, Verb::Forecast) => print::report(&show::forecasts(status))?,
                    (false, _) => print::report(&show::status(status))?,
                }
            }
            Verb::Explain => {
                let answer = asked(&socket, &question(Ask::Explain))?;
                match self.json {
                    true => print::out(&print::json(answer))?,
                    false => print::report(&show::log(&answer))?,
                }
            }
            Verb::Pause => self.changed(&asked(&socket, &question(Ask::Pause))?, "paused")?,
            Verb::Resume => {
                self.changed(&asked(&socket, &question(Ask::Resume))?, "moves again")?
            }
            Verb::Undo => {
                let answer = asked(&socket, &question(Ask::Undo))?;
                let names = answer["did"].as_array().cloned().unwrap_or_default();
                let status = until_undone(&socket, &names)?;
                match self.json {
                    true => print::out(&print::json(status))?,
                    false => print::report(&show::undone(&status, &names))?,
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn changed(&self, answer: &Value, what: &str) -> anyhow::Result<()> {
        if self.json {
            return Ok(print::out(&print::json(answer.clone()))?);
        }
        let names = answer["did"].as_array().into_iter().flatten();
        let lines = names.map(|name| format!("{}: {what}\n", name.as_str().unwrap_or_default()));
        Ok(print::out(&lines.collect::<String>())?)
    }
}

impl OptOut {
    /// Runs it.
    ///
    /// # Errors
    /// No daemon runs, or the process is not one's own.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let socket = self.socket.clone().unwrap_or_else(default_socket);
        let mut question = Question::new(Ask::OptOut, Vec::new());
        question.pid = Some(self.pid);
        asked(&socket, &question)?;
        print::out(&format!("{}: left alone until it ends\n", self.pid))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Asks, and gives the answer where it is none of an error.
fn asked(socket: &Path, question: &Question) -> anyhow::Result<Value> {
    let what = || {
        format!(
            "no daemon answers at {}; start it by `systemctl start hither` or `hither daemon`",
            socket.shown()
        )
    };
    let stream = UnixStream::connect(socket).with_context(what)?;
    stream
        .set_read_timeout(Some(PATIENCE))
        .and(stream.set_write_timeout(Some(PATIENCE)))
        .with_context(what)?;
    let mut line = serde_json::to_vec(question)?;
    line.push(b'\n');
    (&stream).write_all(&line).with_context(what)?;
    let mut answer = Vec::new();
    BufReader::new(&stream)
        .take(MOST_ANSWER)
        .read_until(b'\n', &mut answer)
        .with_context(what)?;
    let answer: Value = serde_json::from_slice(&answer).with_context(|| {
        format!(
            "the daemon at {} gave no answer; see its log",
            socket.shown()
        )
    })?;
    if let Some(why) = answer["error"].as_str() {
        bail!("the daemon refuses: {why}");
    }
    Ok(answer)
}

/// Waits until the pages of these scopes are back.
fn until_undone(socket: &Path, names: &[Value]) -> anyhow::Result<Value> {
    let begun = Instant::now();
    loop {
        // What was ordered just now is told within a second.
        std::thread::sleep(Duration::from_millis(300));
        let answer = asked(socket, &Question::new(Ask::Status, Vec::new()))?;
        let status = &answer["status"];
        let scopes = status["scopes"].as_array().into_iter().flatten();
        let mut own = scopes.filter(|scope| names.contains(&scope["name"]));
        if own.all(|scope| scope["standing"] == "undone") {
            return Ok(status.clone());
        }
        if begun.elapsed() > UNDO_PATIENCE {
            bail!("pages are still on their way back; see `hither status`");
        }
    }
}
