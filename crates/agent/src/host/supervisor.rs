//! The loop: one thread, asleep between the turns of its clients.
//!
//! A program starts as a child with the same standard streams and signal mask, or runs already, or
//! there is none whose end counts. A timer, signals, keys and the program's end wake the loop; it
//! ends at once when the program does. What ends the program is passed on: signals sent to hither
//! go to the program (those of a terminal reach both by themselves). Signals end only the watching
//! of what was running before.
//!
//! A *client* is work that comes due again and again. Each has its own time, whoever else is there.

use super::error::{Error, Result};
use hither_core::foreign::Foreign;
use hither_linux::filter;
use hither_linux::root::Root;
use hither_linux::sys::{self, Arrived, Ended, PidFd, Signals, Started, Timer, Waiter};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process;

/// Generations of a program's children that are ended with it where hither fails.
const MOST_DEEP: usize = 64;

/// What mends a lack of descriptors.
const RAISE_FILES: &str = "close files, or raise the limit (ulimit -n)";

/// Whose end ends the loop.
enum Beside {
    /// A program that was started here.
    Child(PidFd, Started),
    /// A process that ran before.
    Process(PidFd),
    /// Nobody's: signals, or the clients, end it.
    Nobody,
}

/// Gives clients their turns.
pub struct Supervisor {
    signals: Signals,
    timer: Timer,
    beside: Beside,
    /// Signals that clients are told of, and that end nothing.
    told: Vec<i32>,
    start_ns: u64,
}

/// How it came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The program that was started here ended.
    Ended(Ended),
    /// A process that ran before has ended.
    Gone,
    /// A signal ended the watching.
    Signal(i32),
    /// No client has anything left to do.
    Done,
}

/// Input that somebody typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// Whoever writes it is gone.
    pub hung_up: bool,
}

/// Why a client has a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Time since the start, in us.
    pub now_us: u64,
    /// Its time has come.
    pub is_due: bool,
    /// There is input, where that was asked for.
    pub input: Option<Input>,
    /// A signal arrived that the loop was told to tell of.
    pub signal: Option<i32>,
    /// The kernel sent it, as a terminal does to all processes that it runs.
    pub is_from_kernel: bool,
}

/// A turn: returns the time to the next in us; `None`: there is none.
pub type TurnOf<'a, E> = Box<dyn FnMut(&Beat) -> std::result::Result<Option<u64>, E> + 'a>;

/// Work that comes due again and again.
pub struct Client<'a, E = Error> {
    /// On the clock of [`Beat::now_us`]; `None`: it has had its last turn.
    due_us: Option<u64>,
    turn: TurnOf<'a, E>,
}

impl<'a, E> Client<'a, E> {
    /// Comes due first `first_us` after the loop begins.
    pub fn new(
        first_us: u64,
        turn: impl FnMut(&Beat) -> std::result::Result<Option<u64>, E> + 'a,
    ) -> Self {
        Self {
            due_us: Some(first_us),
            turn: Box::new(turn),
        }
    }
}

impl Supervisor {
    /// Starts a program; `prepare` may add to its environment and, where `has_work` says so, have
    /// the child do something before it executes.
    ///
    /// # Errors
    /// What keeps the program, or what is needed beside it, from being had; what `prepare` says.
    pub fn start<E: From<Error>>(
        words: &[OsString],
        has_work: bool,
        prepare: impl FnOnce(&mut process::Command) -> std::result::Result<(), E>,
    ) -> std::result::Result<Self, E> {
        let mut signals: Vec<i32> = sys::FORWARDED.to_vec();
        signals.push(sys::SIGCHLD);
        let signals = signals_of(&signals)?;
        sys::adopt_orphans().map_err(Error::system(
            "becoming the parent of the program's orphans",
        ))?;
        let timer = timer()?;
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
            beside: Beside::Child(handle, child),
            told: Vec::new(),
            start_ns,
        })
    }

    /// Beside a process that runs already, until it ends.
    ///
    /// # Errors
    /// It is not there.
    pub fn attach(pid: i32) -> Result<Self> {
        let handle = PidFd::open(pid).map_err(Error::system(format!(
            "process {pid} cannot be watched; give the number of a running one"
        )))?;
        Self::beside(Beside::Process(handle), &sys::FORWARDED, &[])
    }

    /// By itself: signals and clients end it. Signals of `told` do not, and clients hear of them.
    ///
    /// # Errors
    /// No descriptors are to be had.
    pub fn alone(told: &[i32]) -> Result<Self> {
        let mut signals = sys::FORWARDED.to_vec();
        signals.extend(told);
        Self::beside(Beside::Nobody, &signals, told)
    }

    fn beside(beside: Beside, signals: &[i32], told: &[i32]) -> Result<Self> {
        Ok(Self {
            signals: signals_of(signals)?,
            timer: timer()?,
            beside,
            told: told.to_vec(),
            start_ns: sys::monotonic_ns(),
        })
    }

    /// Starts one of several programs, whose ends its clients see to; its signals are blocked as they were before
    /// the loop took them.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(&self, command: process::Command, has_work: bool) -> Result<Started> {
        let program = command.get_program().to_owned();
        sys::spawn_with_mask(command, self.signals.mask_before(), has_work)
            .map_err(|error| cannot_start(&program, error))
    }

    /// When the program was started, or watching began, on CLOCK_MONOTONIC.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Time since then, in us.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        sys::monotonic_ns().saturating_sub(self.start_ns) / 1000
    }

    /// The one process whose end ends the loop.
    #[must_use]
    pub fn process(&self) -> Option<&PidFd> {
        match &self.beside {
            Beside::Child(handle, _) | Beside::Process(handle) => Some(handle),
            Beside::Nobody => None,
        }
    }

    /// Gives the clients turns until the end. A program that was started here is waited for even
    /// when no client has anything left to do.
    ///
    /// # Errors
    /// What a client says, or the kernel.
    pub fn run<E: From<Error>>(
        &self,
        clients: &mut [Client<'_, E>],
    ) -> std::result::Result<End, E> {
        self.run_with(None, clients)
    }

    /// The same, and clients have turns when there is input, too.
    ///
    /// # Errors
    /// As [`Supervisor::run`].
    pub fn run_with<E: From<Error>>(
        &self,
        input: Option<BorrowedFd<'_>>,
        clients: &mut [Client<'_, E>],
    ) -> std::result::Result<End, E> {
        let begin_us = self.now_us();
        for client in clients.iter_mut() {
            client.due_us = client.due_us.map(|first| begin_us.saturating_add(first));
        }
        let waiter = Waiter::new(&self.timer, &self.signals, self.process(), input);
        loop {
            match clients.iter().filter_map(|client| client.due_us).min() {
                Some(due_us) => self
                    .timer
                    .arm(due_us.saturating_sub(self.now_us()))
                    .map_err(Error::system("arming the timer"))?,
                None if !matches!(self.beside, Beside::Child(..)) => return Ok(End::Done),
                None => {}
            }
            let wake = waiter
                .wait()
                .map_err(Error::system("waiting for the program"))?;
            let arrived = match self.ended(wake)? {
                Some(Woken::End(end)) => return Ok(end),
                Some(Woken::Signal(arrived)) => Some(arrived),
                None => None,
            };
            let signal = arrived.map(|arrived| arrived.signal);
            let input = wake.input.then_some(Input {
                hung_up: wake.hung_up,
            });
            let now_us = self.now_us();
            for client in clients.iter_mut() {
                let Some(due_us) = client.due_us else {
                    continue;
                };
                let is_due = due_us <= now_us;
                if !is_due && input.is_none() && signal.is_none() {
                    continue;
                }
                let beat = Beat {
                    now_us,
                    is_due,
                    input,
                    signal,
                    is_from_kernel: arrived.is_some_and(|arrived| arrived.from_kernel),
                };
                let sleep_us = (client.turn)(&beat)?;
                client.due_us = sleep_us.map(|sleep_us| self.now_us().saturating_add(sleep_us));
            }
        }
    }

    /// What a wake comes to, besides turns.
    fn ended(&self, wake: sys::Wake) -> Result<Option<Woken>> {
        match &self.beside {
            Beside::Child(_, child) => {
                if wake.signal
                    && let Some(ended) = self.take_signals(child)
                {
                    return Ok(Some(Woken::End(End::Ended(ended))));
                }
                if wake.ended {
                    let ended = child
                        .wait()
                        .map_err(Error::system("asking how the program ended"))?;
                    return Ok(Some(Woken::End(End::Ended(ended))));
                }
                Ok(None)
            }
            Beside::Process(_) if wake.ended => Ok(Some(Woken::End(End::Gone))),
            Beside::Process(_) | Beside::Nobody if wake.signal => {
                let arrived = self.signals.take();
                Ok(
                    arrived.map(|arrived| match self.told.contains(&arrived.signal) {
                        true => Woken::Signal(arrived),
                        false => Woken::End(End::Signal(arrived.signal)),
                    }),
                )
            }
            Beside::Process(_) | Beside::Nobody => Ok(None),
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

/// What a wake came to.
enum Woken {
    /// The loop ends.
    End(End),
    /// Clients hear of it.
    Signal(Arrived),
}

fn signals_of(signals: &[i32]) -> Result<Signals> {
    Signals::new(signals).map_err(|error| none("signalfd", "no signals", error))
}

fn timer() -> Result<Timer> {
    Timer::new().map_err(|error| none("timerfd_create", "no timer", error))
}

impl Drop for Supervisor {
    /// An error must not leave the program running behind it, nor what it has started.
    fn drop(&mut self) {
        let beside = std::mem::replace(&mut self.beside, Beside::Nobody);
        let Beside::Child(_, child) = beside else {
            return;
        };
        if child.was_reaped() {
            return;
        }
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

fn no_handles(error: io::Error) -> Error {
    none("pidfd_open", "no handle of a process", error)
}

/// Something of the kernel's that takes a descriptor is not to be had.
fn none(call: &str, what: &str, error: io::Error) -> Error {
    hither_linux::Error::call(call, format!("{what} can be had"), RAISE_FILES, error).into()
}

/// What to say of a program that the kernel does not start.
#[must_use]
pub fn cannot_start(program: &OsStr, error: io::Error) -> Error {
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
    let what = format!("program `{name}` cannot be started; {remedy}");
    Error::system(what)(error)
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
