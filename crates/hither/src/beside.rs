//! Work beside a program: one thread, asleep between its turns.
//!
//! The program starts as a child with the same standard streams and signal mask, or runs already.
//! A timer, the signals and the program's end wake the loop; it ends at once when the program
//! does. What ends the program is passed on: signals sent to hither go to the program (those of a
//! terminal reach both by themselves). Signals end only the watching of a program that was
//! running before.

use anyhow::Context;
use hither_core::foreign::Foreign;
use hither_linux::root::Root;
use hither_linux::sys::{self, Ended, PidFd, Signals, Started, Timer, Waiter};
use hither_linux::{Error, filter};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process;

/// Generations of a program's children that are ended with it where hither fails.
const MOST_DEEP: usize = 64;

/// What mends a lack of descriptors.
const RAISE_FILES: &str = "close files, or raise the limit (ulimit -n)";

/// A program that work is done beside.
pub struct Beside {
    signals: Signals,
    timer: Timer,
    handle: PidFd,
    /// It was started here.
    child: Option<Started>,
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
        let signals =
            Signals::new(&signals).map_err(|error| none("signalfd", "no signals", error))?;
        sys::adopt_orphans().context("becoming the parent of the program's orphans")?;
        let timer = Timer::new().map_err(|error| none("timerfd_create", "no timer", error))?;
        // What would be refused afterwards is found before anything runs.
        PidFd::open(process::id() as i32).map_err(no_handles)?;
        let start_ns = sys::monotonic_ns();
        let mut command = process::Command::new(&words[0]);
        command.args(&words[1..]);
        prepare(&mut command)?;
        let child = sys::spawn_with_mask(command, signals.mask_before(), has_work)
            .map_err(|error| cannot_start(&words[0], error))?;
        let handle = PidFd::open(child.pid()).map_err(no_handles)?;
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
            signals: Signals::new(&sys::FORWARDED)
                .map_err(|error| none("signalfd", "no signals", error))?,
            timer: Timer::new().map_err(|error| none("timerfd_create", "no timer", error))?,
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
            if let Some(child) = &self.child {
                let mut ended = None;
                if wake.signal {
                    ended = self.take_signals(child);
                }
                if wake.ended && ended.is_none() {
                    ended = Some(child.wait().context("asking how the program ended")?);
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
    fn take_signals(&self, child: &Started) -> Option<Ended> {
        let mut ended = None;
        while let Some(arrived) = self.signals.take() {
            if arrived.signal == sys::SIGCHLD {
                // Orphans that this process adopted must not stay zombies.
                while let Some((pid, how)) = sys::reap_any() {
                    if pid == child.pid() && !child.was_reaped() {
                        child.set_reaped();
                        ended = Some(how);
                    }
                }
            } else if !arrived.from_kernel {
                // It may have ended meanwhile, which the loop sees next.
                child.signal(arrived.signal);
            }
        }
        ended
    }
}

impl Drop for Beside {
    /// An error must not leave the program running behind it, nor what it has started.
    fn drop(&mut self) {
        let Some(child) = self.child.take().filter(|child| !child.was_reaped()) else {
            return;
        };
        drop(child);
        // Children of one that ends become this process's own: their numbers are theirs until they
        // are reaped. As many rounds as they may be deep.
        for _ in 0..MOST_DEEP {
            let children = own_children();
            if children.is_empty() {
                return;
            }
            for pid in children {
                sys::signal_child(pid, sys::SIGKILL);
                let _ = sys::wait_child(pid);
            }
        }
    }
}

/// Children of this process that are not reaped.
fn own_children() -> Vec<i32> {
    let root = Root::host();
    let threads = root.names("proc/self/task").unwrap_or_default();
    let lists = threads
        .iter()
        .filter_map(|thread| root.text(&format!("proc/self/task/{thread}/children")).ok());
    let numbers = lists.flat_map(|list| {
        let numbers = list.split_whitespace().map(str::parse);
        numbers.collect::<Vec<_>>()
    });
    numbers.flatten().collect()
}

fn no_handles(error: io::Error) -> anyhow::Error {
    none("pidfd_open", "no handle of a process", error)
}

/// Something of the kernel's that takes a descriptor is not to be had.
fn none(call: &str, what: &str, error: io::Error) -> anyhow::Error {
    Error::call(call, format!("{what} can be had"), RAISE_FILES, error).into()
}

/// What to say of a program that the kernel does not start.
pub fn cannot_start(program: &OsStr, error: io::Error) -> anyhow::Error {
    let name = program.shown();
    let remedy = match error.raw_os_error() {
        Some(sys::EPERM) => not_permitted(&error),
        _ => {
            let path = Path::new(program);
            let is_path = program.as_encoded_bytes().contains(&b'/');
            let remedy = match error.kind() {
                io::ErrorKind::NotFound if is_path && path.exists() => {
                    "install what it is run by: the interpreter of its first line, or its dynamic \
                     linker (see `file`)"
                }
                io::ErrorKind::NotFound => "give a program that exists, by path or in PATH",
                io::ErrorKind::PermissionDenied if is_path && path.is_dir() => {
                    "it is a folder: give a program"
                }
                io::ErrorKind::PermissionDenied => {
                    "make it executable (chmod +x), on a file system that allows it (not noexec)"
                }
                _ if sys::no_descriptor(&error) => RAISE_FILES,
                io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => {
                    "end some processes, or raise the limit (ulimit -u, ulimit -v, pids.max of the \
                     control group)"
                }
                _ => "try to start it without hither",
            };
            remedy.to_owned()
        }
    };
    anyhow::Error::new(error).context(format!("program `{name}` cannot be started; {remedy}"))
}

/// Either no process can be had at all, or the program wants rights that nobody may have here.
fn not_permitted(error: &io::Error) -> String {
    let no_thread = filter::check_threads().is_err();
    let refused = no_thread.then(|| filter::remedy("clone3", error)).flatten();
    refused.unwrap_or_else(|| {
        "its file has capabilities that this process cannot get (see `getcap`): give it those, or \
         start a copy without"
            .to_owned()
    })
}
