//! Work beside a program: one thread, asleep between its turns.
//!
//! The program starts as a child with the same standard streams and signal mask, or runs already.
//! A timer, the signals and the program's end wake the loop; it ends at once when the program
//! does. What ends the program is passed on: signals sent to hither go to the program (those of a
//! terminal reach both by themselves). Signals end only the watching of a program that was
//! running before.

use anyhow::Context;
use hither_core::foreign::Foreign;
use hither_linux::sys::{self, Ended, PidFd, Signals, Timer, Waiter};
use std::ffi::{OsStr, OsString};
use std::io;
use std::process;

/// A program that work is done beside.
pub struct Beside {
    signals: Signals,
    timer: Timer,
    handle: PidFd,
    /// It was started here.
    child: Option<i32>,
    start_ns: u64,
}

/// How it came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The program that was started here ended.
    Ended(Ended),
    /// A program that ran before has ended.
    Gone,
    /// A signal, or the work itself, ended the watching.
    Stopped,
}

impl Beside {
    /// Starts a program; `prepare` may add to its environment and, where `has_work` says so, have
    /// the child do something before it executes.
    pub fn start(
        words: &[OsString],
        has_work: bool,
        prepare: impl FnOnce(&mut process::Command) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let mut signals: Vec<i32> = sys::FORWARDED.to_vec();
        signals.push(sys::SIGCHLD);
        let signals = Signals::new(&signals).context("reading signals as data")?;
        sys::adopt_orphans().context("becoming the parent of the program's orphans")?;
        let timer = Timer::new().context("making a timer")?;
        let start_ns = sys::monotonic_ns();
        let mut command = process::Command::new(&words[0]);
        command.args(&words[1..]);
        prepare(&mut command)?;
        let child = sys::spawn_with_mask(command, signals.mask_before(), has_work)
            .map_err(|error| cannot_start(&words[0], error))?;
        let handle = PidFd::open(child).context("opening a handle of the program")?;
        Ok(Self {
            signals,
            timer,
            handle,
            child: Some(child),
            start_ns,
        })
    }

    /// Beside a process that runs already.
    pub fn attach(pid: i32) -> anyhow::Result<Self> {
        let handle = PidFd::open(pid).with_context(|| {
            format!("process {pid} cannot be watched; give the number of a running one")
        })?;
        Ok(Self {
            signals: Signals::new(&sys::FORWARDED).context("reading signals as data")?,
            timer: Timer::new().context("making a timer")?,
            handle,
            child: None,
            start_ns: sys::monotonic_ns(),
        })
    }

    /// When the program was started, or watching began, on CLOCK_MONOTONIC.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Takes turns until the end: the first after `first_us`, each next after what the turn
    /// returns. A turn that returns `None` is the last; a program that was started here is waited
    /// for even so. Without a first turn there is none.
    pub fn run(
        &self,
        first_us: Option<u64>,
        mut turn: impl FnMut(&PidFd) -> Option<u64>,
    ) -> anyhow::Result<End> {
        const ARM: &str = "arming the timer";
        if let Some(first_us) = first_us {
            self.timer.arm(first_us).context(ARM)?;
        }
        let waiter = Waiter::new(&self.timer, &self.signals, &self.handle);
        loop {
            let wake = waiter.wait().context("waiting for the program")?;
            if let Some(child) = self.child {
                let mut ended = None;
                if wake.signal {
                    ended = self.take_signals(child);
                }
                if wake.ended && ended.is_none() {
                    ended = Some(sys::wait_child(child).context("asking how the program ended")?);
                }
                if let Some(ended) = ended {
                    return Ok(End::Ended(ended));
                }
            } else if wake.ended {
                return Ok(End::Gone);
            } else if wake.signal && self.signals.take().is_some() {
                return Ok(End::Stopped);
            }
            if wake.timer {
                match turn(&self.handle) {
                    Some(sleep_us) => self.timer.arm(sleep_us).context(ARM)?,
                    None if self.child.is_none() => return Ok(End::Stopped),
                    None => {}
                }
            }
        }
    }

    /// Passes signals on and takes ended children; tells how the program itself ended.
    fn take_signals(&self, child: i32) -> Option<Ended> {
        let mut ended = None;
        while let Some(arrived) = self.signals.take() {
            if arrived.signal == sys::SIGCHLD {
                // Orphans that this process adopted must not stay zombies.
                while let Some((pid, how)) = sys::reap_any() {
                    if pid == child {
                        ended = Some(how);
                    }
                }
            } else if !arrived.from_kernel {
                // It may have ended meanwhile, which the loop sees next.
                let _ = self.handle.signal(arrived.signal);
            }
        }
        ended
    }
}

/// What to say of a program that the kernel does not start.
pub fn cannot_start(program: &OsStr, error: io::Error) -> anyhow::Error {
    let name = program.shown();
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "give a program that exists, by path or in PATH",
        io::ErrorKind::PermissionDenied => "make it executable (chmod +x)",
        _ => "try to start it without hither",
    };
    anyhow::Error::new(error).context(format!("program `{name}` cannot be started; {remedy}"))
}
