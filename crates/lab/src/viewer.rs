//! What the person sees while the guest works, and what is kept of it.

use crate::back::{Back, Receiver};
use crate::boot::Session;
use crate::compare::Run;
use crate::error::{Error, Result};
use crate::os;
use crate::protocol::{Frame, Hello, Kind, RunEnded};
use hither_core::foreign::Foreign;
use serde::de::DeserializeOwned;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::time::Instant;

/// How a program's output is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// As it comes: standard output to standard output, standard error to standard error.
    Stream,
    /// Line by line on standard error, each after the name of its policy.
    Prefixed,
    /// Through a terminal in raw mode.
    Terminal,
}

/// Keeps results and shows output.
#[derive(Debug)]
pub struct Viewer {
    show: Show,
    names: Vec<String>,
    started: Option<(usize, Instant)>,
    boot: Instant,
    partial: Vec<u8>,
    files: Receiver,
    raw: Option<os::RawTerminal>,
    greeted: bool,
    /// `uname -r` of the guest.
    pub kernel: String,
    /// Runs that have ended, in order.
    pub runs: Vec<Run>,
}

impl Viewer {
    /// For runs with these names.
    #[must_use]
    pub fn new(show: Show, names: Vec<String>, back: Vec<Back>) -> Self {
        Self {
            show,
            names,
            started: None,
            boot: Instant::now(),
            partial: Vec::new(),
            files: Receiver::new(back),
            raw: None,
            greeted: false,
            kernel: String::new(),
            runs: Vec::new(),
        }
    }

    /// After the guest is gone: is everything there?
    ///
    /// # Errors
    /// Where runs are missing.
    pub fn finish(&mut self) -> Result<()> {
        self.raw = None;
        for path in &self.files.received {
            note(&format!("brought back {}", path.shown()));
        }
        if self.runs.len() == self.names.len() {
            return Ok(());
        }
        Err(Error::guest_sent(format!(
            "{} results for {} runs",
            self.runs.len(),
            self.names.len()
        )))
    }

    fn hello(&mut self, hello: Hello) {
        self.greeted = true;
        self.kernel = hello.kernel;
        note(&format!(
            "Linux {} is up after {:.1} s",
            self.kernel,
            self.boot.elapsed().as_secs_f64()
        ));
        if self.show == Show::Terminal {
            note("leave the shell with `exit` or Ctrl-D");
            self.raw = os::RawTerminal::enter(0).ok();
        }
    }

    fn run_started(&mut self, run: u16) {
        let run = usize::from(run);
        self.started = Some((run, Instant::now()));
        if self.show == Show::Prefixed {
            note(&format!(
                "run {} of {}: {}",
                run + 1,
                self.names.len(),
                self.name(run)
            ));
        }
    }

    fn run_ended(&mut self, run: u16, ended: RunEnded) -> Result<()> {
        let run = usize::from(run);
        self.flush_partial()?;
        if run != self.runs.len() || run >= self.names.len() {
            return Err(Error::guest_sent(format!(
                "the result of run {run} after {} results",
                self.runs.len()
            )));
        }
        let host_seconds = self
            .started
            .take()
            .map_or(0.0, |(_, since)| since.elapsed().as_secs_f64());
        let guest_seconds = ended.end_ns.saturating_sub(ended.start_ns) as f64 / 1e9;
        if self.show == Show::Prefixed {
            let status = if ended.status == 0 {
                String::new()
            } else {
                format!(", exit status {}", ended.status)
            };
            note(&format!(
                "{}: {guest_seconds:.3} s ({host_seconds:.1} s of the host){status}",
                self.name(run)
            ));
        }
        self.runs.push(Run {
            policy: 0,
            ended,
            host_seconds,
        });
        Ok(())
    }

    fn output(&mut self, kind: Kind, bytes: &[u8]) -> Result<()> {
        let shown = match (self.show, kind) {
            (Show::Prefixed, _) => return self.prefixed(bytes),
            (_, Kind::Stderr) => put(io::stderr().lock(), bytes),
            _ => put(io::stdout().lock(), bytes),
        };
        closed(shown)
    }

    /// Whole lines only: the two streams of a program share the lines of one.
    fn prefixed(&mut self, bytes: &[u8]) -> Result<()> {
        self.partial.extend_from_slice(bytes);
        let Some(end) = self.partial.iter().rposition(|&byte| byte == b'\n') else {
            return Ok(());
        };
        let whole: Vec<u8> = self.partial.drain(..=end).collect();
        let run = self.started.map_or(0, |(run, _)| run);
        let mut text = Vec::new();
        for line in whole.split_inclusive(|&byte| byte == b'\n') {
            text.extend_from_slice(format!("{:>12} | ", self.name(run)).as_bytes());
            text.extend_from_slice(line);
        }
        closed(put(io::stderr().lock(), &text))
    }

    fn flush_partial(&mut self) -> Result<()> {
        if self.partial.is_empty() {
            Ok(())
        } else {
            self.prefixed(b"\n")
        }
    }

    fn name(&self, run: usize) -> &str {
        self.names.get(run).map_or("?", String::as_str)
    }
}

impl Session for Viewer {
    fn frame(&mut self, frame: Frame) -> Result<()> {
        match frame.kind {
            Kind::Hello => self.hello(json(&frame)?),
            Kind::RunStarted => self.run_started(frame.run),
            Kind::RunEnded => self.run_ended(frame.run, json(&frame)?)?,
            Kind::Stdout | Kind::Stderr => self.output(frame.kind, &frame.payload)?,
            Kind::Notice => note(&String::from_utf8_lossy(&frame.payload)),
            Kind::FileBegin => self.files.begin(&json(&frame)?)?,
            Kind::FileData => self.files.data(&frame.payload)?,
            Kind::FileEnd => self.files.end()?,
            other => {
                return Err(Error::guest_sent(format!(
                    "a message that only the host sends: {other:?}"
                )));
            }
        }
        Ok(())
    }

    fn activity(&self) -> String {
        match self.started {
            Some((run, _)) => format!(
                "run {} of {}, {}",
                run + 1,
                self.names.len(),
                self.name(run)
            ),
            None if !self.greeted => "the guest was booting".into(),
            None if self.runs.len() == self.names.len() => "the runs were over".into(),
            None => format!("before run {} of {}", self.runs.len() + 1, self.names.len()),
        }
    }

    fn is_up(&self) -> bool {
        self.greeted
    }

    fn input(&self) -> Option<RawFd> {
        // A raw terminal is read once the guest's shell is there to take what is typed.
        match self.show {
            Show::Prefixed => None,
            Show::Terminal if !self.greeted => None,
            _ => Some(0),
        }
    }

    fn window_size(&self) -> Option<(u16, u16)> {
        if self.show == Show::Terminal {
            os::window_size(1)
        } else {
            None
        }
    }
}

/// Lines for the person, on standard error.
pub fn note(text: &str) {
    for line in text.lines() {
        let line = line.shown();
        // In raw mode a line feed alone does not return to the first column.
        let end = if os::is_terminal(2) { "\r\n" } else { "\n" };
        // A closed standard error leaves nobody to tell.
        let _ = write!(io::stderr().lock(), "lab: {line}{end}");
    }
}

fn put(mut out: impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.flush()
}

fn closed(result: io::Result<()>) -> Result<()> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Error::OutputClosed,
        _ => Error::io("writing the program's output")(error),
    })
}

fn json<T: DeserializeOwned>(frame: &Frame) -> Result<T> {
    serde_json::from_slice(&frame.payload)
        .map_err(|error| Error::guest_sent(format!("{:?}: {error}", frame.kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: Kind, run: u16, payload: &[u8]) -> Frame {
        Frame {
            kind,
            run,
            payload: payload.to_vec(),
        }
    }

    fn ended() -> Vec<u8> {
        br#"{"status":3,"start_ns":1000000000,"end_ns":3500000000,"timeline":[],"report":null}"#
            .to_vec()
    }

    #[test]
    fn results_are_kept_in_order_and_activity_follows() {
        let mut viewer = Viewer::new(Show::Prefixed, vec!["a".into(), "b".into()], vec![]);
        assert_eq!(viewer.activity(), "the guest was booting");
        viewer
            .frame(frame(
                Kind::Hello,
                0,
                br#"{"version":1,"kernel":"7.2","uptime_s":3.0}"#,
            ))
            .unwrap();
        assert_eq!(viewer.activity(), "before run 1 of 2");
        viewer.frame(frame(Kind::RunStarted, 0, b"")).unwrap();
        assert_eq!(viewer.activity(), "run 1 of 2, a");
        viewer.frame(frame(Kind::Stdout, 0, b"half a li")).unwrap();
        viewer.frame(frame(Kind::RunEnded, 0, &ended())).unwrap();
        assert_eq!(viewer.runs[0].ended.status, 3);
        assert!(viewer.finish().is_err());
        viewer.frame(frame(Kind::RunStarted, 1, b"")).unwrap();
        viewer.frame(frame(Kind::RunEnded, 1, &ended())).unwrap();
        assert_eq!(viewer.activity(), "the runs were over");
        assert!(viewer.finish().is_ok());
        assert_eq!(viewer.kernel, "7.2");
    }

    #[test]
    fn nonsense_from_the_guest_is_an_error() {
        let fresh = || Viewer::new(Show::Stream, vec!["a".into()], vec![]);
        assert!(fresh().frame(frame(Kind::Hello, 0, b"{")).is_err());
        assert!(fresh().frame(frame(Kind::RunEnded, 5, &ended())).is_err());
        assert!(fresh().frame(frame(Kind::FileData, 0, b"x")).is_err());
        assert!(fresh().frame(frame(Kind::Bye, 0, b"")).is_err());
        let error = fresh().frame(frame(Kind::RunEnded, 0, b"[]")).unwrap_err();
        assert_eq!(error.exit_status(), 125);
    }
}
