//! One QEMU process: started, listened to, and never left behind.
//!
//! All files that QEMU reads besides kernel and plugin are memory files handed over by
//! descriptor, so nothing is left on disk however hither ends. QEMU asks the kernel to be killed
//! when its parent dies, and is killed when [`Emulator`] is dropped. One thread, one poll loop.

use crate::console::Tail;
use crate::error::{Console, Error, Result};
use crate::os::{self, Interest, Signals};
use crate::protocol::{self, Decoder, Frame, Kind};
use crate::viewer;
use crate::waiting::{Stuck, Waiting};
use hither_core::foreign::Foreign;
use hither_linux::proc::stat;
use hither_linux::root::Root;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long QEMU may take to end after the guest has said that it is done.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(30);

/// How to start QEMU.
#[derive(Debug)]
pub struct Start<'a> {
    /// The program.
    pub qemu: &'a Path,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Library to preload: the plugin, which answers QEMU's clock.
    pub preload: Option<PathBuf>,
    /// Descriptors that QEMU inherits under their own numbers.
    pub inherit: Vec<RawFd>,
    /// Host time after which everything is stopped.
    pub timeout: Option<Duration>,
    /// CPUs of the guest.
    pub cpus: u32,
}

/// What a session does with what the guest sends.
pub trait Session {
    /// A frame arrived.
    ///
    /// # Errors
    /// Any error stops the guest.
    fn frame(&mut self, frame: Frame) -> Result<()>;

    /// What is going on, for the message of a time-out.
    fn activity(&self) -> String;

    /// Has the guest said that it is up?
    fn is_up(&self) -> bool;

    /// Descriptor of the standard input to forward, while there is one.
    fn input(&self) -> Option<RawFd> {
        None
    }

    /// May Ctrl-C end the lab? Not where a terminal hands it to the guest.
    fn window_size(&self) -> Option<(u16, u16)> {
        None
    }
}

/// A running QEMU.
#[derive(Debug)]
pub struct Emulator {
    child: Child,
    channel: OwnedFd,
    signals: Signals,
    decoder: Decoder,
    outgoing: Vec<u8>,
    console: Tail,
    messages: Tail,
    input_open: bool,
    timeout: Option<Duration>,
    started: Instant,
    waiting: Waiting,
    stuck: Stuck,
    cpus: u32,
    done: Option<Instant>,
}

impl Emulator {
    /// Starts QEMU. `channel` is this side of the socket whose other side QEMU inherits.
    ///
    /// # Errors
    /// Where QEMU cannot be started.
    pub fn start(start: Start<'_>, channel: OwnedFd) -> Result<Self> {
        let signals = Signals::take().map_err(Error::io("taking signals"))?;
        let parent = std::process::id();
        let inherit = start.inherit;
        let mut command = Command::new(start.qemu);
        command
            .args(&start.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.env_remove("LD_PRELOAD");
        // Huge pages for the model's tables: 5 % less time in `cluster shared` (glibc 2.35 and
        // later; others ignore it).
        command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
        if let Some(library) = &start.preload {
            command.env("LD_PRELOAD", library);
        }
        // SAFETY: the closure makes only system calls that are allowed between fork and exec, and
        // allocates nothing.
        unsafe {
            command.pre_exec(move || {
                os::follow_parent(parent)?;
                inherit.iter().try_for_each(|&fd| os::inherit(fd))
            });
        }
        let child = command.spawn().map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => crate::fetch::qemu_missing(),
            _ => Error::Io {
                doing: format!("starting {}", start.qemu.shown()),
                source: cause,
            },
        })?;
        let emulator = Self {
            child,
            channel,
            signals,
            decoder: Decoder::default(),
            outgoing: Vec::new(),
            console: Tail::default(),
            messages: Tail::default(),
            input_open: true,
            timeout: start.timeout,
            started: Instant::now(),
            waiting: Waiting::default(),
            stuck: Stuck::default(),
            cpus: start.cpus,
            done: None,
        };
        for fd in [
            emulator.channel.as_raw_fd(),
            emulator.console_fd(),
            emulator.messages_fd(),
        ] {
            os::set_nonblocking(fd).map_err(Error::io("preparing the channel to QEMU"))?;
        }
        Ok(emulator)
    }

    /// Serves the guest until it has powered off.
    ///
    /// # Errors
    /// Whatever ended it otherwise; QEMU is gone then, too.
    pub fn serve(mut self, session: &mut dyn Session) -> Result<()> {
        self.send_window_size(session);
        loop {
            let input = session
                .input()
                .filter(|_| self.input_open && self.outgoing.is_empty());
            let interests = [
                Interest {
                    fd: self.channel.as_raw_fd(),
                    write: !self.outgoing.is_empty(),
                },
                Interest {
                    fd: self.console_fd(),
                    write: false,
                },
                Interest {
                    fd: self.messages_fd(),
                    write: false,
                },
                Interest {
                    fd: self.signals.as_raw_fd(),
                    write: false,
                },
                Interest {
                    fd: input.unwrap_or(-1),
                    write: false,
                },
            ];
            let mut left = self.time_left(session)?;
            if !session.is_up() {
                self.give_up_on_stuck()?;
                let until_next = self.tell_waiting();
                left = Some(left.map_or(until_next, |left| left.min(until_next)));
            }
            let ready = os::wait(&interests, left).map_err(Error::io("waiting for QEMU"))?;
            self.take_signals(session)?;
            if ready[1].read {
                drain(self.console_fd(), &mut self.console);
            }
            if ready[2].read {
                drain(self.messages_fd(), &mut self.messages);
            }
            if let Some(fd) = input.filter(|_| ready[4].read) {
                self.take_input(fd);
            }
            self.flush()?;
            if ready[0].read && !self.take_frames(session)? {
                return self.finish(session);
            }
        }
    }

    /// Time until the next thing that must happen; an error where it is past.
    fn time_left(&self, session: &dyn Session) -> Result<Option<Duration>> {
        let power_off = self
            .done
            .map(|since| POWER_OFF_LIMIT.saturating_sub(since.elapsed()));
        if power_off == Some(Duration::ZERO) {
            return Err(self.failed("the guest was done but did not power off".into()));
        }
        let Some(timeout) = self.timeout else {
            return Ok(power_off);
        };
        let left = timeout.saturating_sub(self.started.elapsed());
        if left.is_zero() {
            return Err(Error::TimedOut {
                seconds: timeout.as_secs(),
                during: session.activity(),
                console: self.console_lines(),
            });
        }
        Ok(Some(power_off.map_or(left, |limit| limit.min(left))))
    }

    /// Says that the guest is still booting where that is due; the time until it is due again.
    fn tell_waiting(&mut self) -> Duration {
        let (line, until_next) = self.waiting.turn(self.started.elapsed());
        if let Some(line) = line {
            viewer::note(&line);
        }
        until_next
    }

    /// An error where the guest will never be up.
    fn give_up_on_stuck(&mut self) -> Result<()> {
        let pid = self.child.id() as i32;
        let ticks = stat::read(&Root::host(), pid).map_or(0, |stat| stat.cpu_ticks);
        let used = Duration::from_millis(ticks * 1000 / stat::TICKS_PER_SECOND);
        match self.stuck.turn(self.started.elapsed(), used, self.cpus) {
            None => Ok(()),
            Some(why) => Err(Error::Crashed {
                what: format!("QEMU hung while the guest was booting: {why}"),
                console: self.console_lines(),
            }),
        }
    }

    fn take_signals(&mut self, session: &dyn Session) -> Result<()> {
        while let Some(signal) = self.signals.next() {
            if signal != libc::SIGWINCH {
                return Err(Error::Interrupted { signal });
            }
            self.send_window_size(session);
        }
        Ok(())
    }

    fn send_window_size(&mut self, session: &dyn Session) {
        if let Some((rows, columns)) = session.window_size() {
            let mut payload = rows.to_le_bytes().to_vec();
            payload.extend(columns.to_le_bytes());
            self.outgoing
                .extend(protocol::encode(Kind::WindowSize, 0, &payload));
        }
    }

    fn take_input(&mut self, fd: RawFd) {
        let mut buffer = [0; 4096];
        match os::read(fd, &mut buffer) {
            Ok(count) if count > 0 => {
                self.outgoing
                    .extend(protocol::encode(Kind::Stdin, 0, &buffer[..count]));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => {
                self.input_open = false;
                self.outgoing
                    .extend(protocol::encode(Kind::StdinEnd, 0, b""));
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        while !self.outgoing.is_empty() {
            match os::write(self.channel.as_raw_fd(), &self.outgoing) {
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The reading side reports the end of the channel with its reason.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.outgoing.clear(),
                Err(error) => return Err(Error::io("writing to the guest")(error)),
            }
        }
        Ok(())
    }

    /// Reads the channel; false at its end.
    fn take_frames(&mut self, session: &mut dyn Session) -> Result<bool> {
        let mut buffer = [0; 64 << 10];
        match os::read(self.channel.as_raw_fd(), &mut buffer) {
            Ok(0) => return Ok(false),
            Ok(count) => self.decoder.push(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(Error::io("reading from the guest")(error)),
        }
        while let Some(frame) = self
            .decoder
            .next_frame()
            .map_err(|error| self.failed(format!("the guest sent what is no message: {error}")))?
        {
            match frame.kind {
                Kind::Done => {
                    self.done = Some(Instant::now());
                    self.outgoing.extend(protocol::encode(Kind::Bye, 0, b""));
                    self.flush()?;
                }
                Kind::Fault => {
                    let text = String::from_utf8_lossy(&frame.payload).into_owned();
                    return Err(self.failed(format!("the guest's agent cannot go on: {text}")));
                }
                _ => session.frame(frame)?,
            }
        }
        Ok(true)
    }

    /// The channel is closed: QEMU has ended or is about to.
    fn finish(mut self, session: &dyn Session) -> Result<()> {
        let status = self.wait_for_exit()?;
        drain(self.console_fd(), &mut self.console);
        drain(self.messages_fd(), &mut self.messages);
        if self.done.is_some() && status.success() {
            return Ok(());
        }
        let activity = session.activity();
        let crashed = [libc::SIGABRT, libc::SIGSEGV]
            .map(Some)
            .contains(&status.signal());
        let what = match self.console.find("Kernel panic") {
            Some(line) => format!("the guest's kernel panicked ({activity}): {line}"),
            None => format!("QEMU ended too early ({activity}): {}", describe(status)),
        };
        Err(match self.failed(what) {
            Error::Guest { what, console } if crashed && !session.is_up() => {
                Error::Crashed { what, console }
            }
            other => other,
        })
    }

    fn wait_for_exit(&mut self) -> Result<ExitStatus> {
        let limit = Instant::now() + POWER_OFF_LIMIT;
        loop {
            let status = self
                .child
                .try_wait()
                .map_err(Error::io("waiting for QEMU to end"))?;
            if let Some(status) = status {
                return Ok(status);
            }
            if Instant::now() > limit {
                return Err(self.failed("QEMU closed its channel but did not end".into()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn failed(&self, what: String) -> Error {
        let messages = self.messages.lines().join("\n  ");
        let what = if messages.is_empty() {
            what
        } else {
            format!("{what}\n  QEMU says: {messages}")
        };
        Error::Guest {
            what,
            console: self.console_lines(),
        }
    }

    fn console_lines(&self) -> Console {
        Console(self.console.lines())
    }

    fn console_fd(&self) -> RawFd {
        self.child.stdout.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    fn messages_fd(&self) -> RawFd {
        self.child.stderr.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn drain(fd: RawFd, tail: &mut Tail) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = os::read(fd, &mut buffer) {
        tail.push(&buffer[..count]);
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(libc::SIGKILL)) => {
            "killed (signal 9): the host may be out of memory, try a smaller --memory".into()
        }
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "unknown status".into(),
    }
}
