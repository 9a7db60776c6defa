//! While the program runs: its output to the host, the host's input to it, and the timeline.

use super::child::Started;
use super::counters::Meter;
use super::port::Port;
use super::resctrl::Feeder;
use super::{Result, doing, system};
use crate::measure::Point;
use crate::os::{self, Interest};
use crate::protocol::{CHUNK_BYTES, Frame, Kind, RunEnded};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

/// Bytes of input kept for a program that does not read them; beyond it the port is left alone
/// and the host waits.
const MAX_INPUT_BYTES: usize = 64 << 10;

/// One run being followed.
#[derive(Debug)]
pub struct Relay<'a> {
    run: u16,
    meter: Option<&'a Meter>,
    feeder: Option<&'a Feeder>,
    sample_ns: u64,
    timeline: Vec<Point>,
    input: Vec<u8>,
    input_ends: bool,
}

impl<'a> Relay<'a> {
    /// Takes the first point of the timeline now.
    pub fn new(
        run: u16,
        sample_ms: u64,
        meter: Option<&'a Meter>,
        feeder: Option<&'a Feeder>,
    ) -> Self {
        let mut relay = Self {
            run,
            meter,
            feeder,
            sample_ns: sample_ms * 1_000_000,
            timeline: Vec::new(),
            input: Vec::new(),
            input_ends: false,
        };
        relay.sample();
        relay
    }

    /// Follows the program to its end and to the end of its output.
    pub fn follow(&mut self, port: &mut Port, mut started: Started) -> Result<RunEnded> {
        let exit = pidfd(started.child.id()).map_err(doing("watching the program"))?;
        for fd in [&started.output, &started.errors, &started.input]
            .into_iter()
            .flatten()
        {
            os::set_nonblocking(fd.as_raw_fd())
                .map_err(doing("preparing the program's streams"))?;
        }
        let mut next_sample_ns = os::monotonic_ns() + self.sample_ns;
        loop {
            let interests = self.interests(&exit, port, &started);
            let wait = self.time_to(next_sample_ns);
            let ready = os::wait(&interests, wait).map_err(doing("waiting for the program"))?;
            if ready[0].read {
                break;
            }
            if ready[1].read {
                self.forward(port, Kind::Stdout, &mut started.output)?;
            }
            if ready[2].read {
                self.forward(port, Kind::Stderr, &mut started.errors)?;
            }
            if ready[3].read {
                let frames = port.receive()?;
                self.take(frames, &started);
            }
            self.feed(&mut started.input);
            if ready[5].read
                && let Some((feeder, meter)) = self.feeder.zip(self.meter)
            {
                feeder.feed(|cpu, mask| meter.device().set_way_mask(cpu, mask));
            }
            if self.sample_ns > 0 && os::monotonic_ns() >= next_sample_ns {
                self.sample();
                next_sample_ns = os::monotonic_ns() + self.sample_ns;
            }
        }
        let end_ns = os::monotonic_ns();
        self.sample();
        let status = started
            .child
            .wait()
            .map_err(doing("collecting the program"))?;
        // Programs left in the background would hold the streams open for ever.
        system::end_everything();
        for (kind, stream) in [
            (Kind::Stdout, &mut started.output),
            (Kind::Stderr, &mut started.errors),
        ] {
            while stream.is_some() && self.forward(port, kind, stream)? {}
        }
        let code = status
            .code()
            .or_else(|| status.signal().map(|signal| 128 + signal));
        Ok(RunEnded {
            status: code
                .and_then(|code| u8::try_from(code).ok())
                .unwrap_or(u8::MAX),
            start_ns: started.start_ns,
            end_ns,
            timeline: std::mem::take(&mut self.timeline),
            report: None,
        })
    }

    fn interests(&self, exit: &OwnedFd, port: &Port, started: &Started) -> [Interest; 6] {
        let of = |fd: &Option<OwnedFd>| fd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let reading = |fd: RawFd| Interest { fd, write: false };
        let port_fd = if self.input.len() < MAX_INPUT_BYTES {
            port.fd()
        } else {
            -1
        };
        // Only with bytes to write: an idle pipe's far end would otherwise wake us for ever.
        let feed_fd = if self.input.is_empty() {
            -1
        } else {
            of(&started.input)
        };
        [
            reading(exit.as_raw_fd()),
            reading(of(&started.output)),
            reading(of(&started.errors)),
            reading(port_fd),
            Interest {
                fd: feed_fd,
                write: true,
            },
            reading(self.feeder.map_or(-1, Feeder::fd)),
        ]
    }

    fn time_to(&self, next_sample_ns: u64) -> Option<Duration> {
        let left = next_sample_ns.saturating_sub(os::monotonic_ns());
        (self.sample_ns > 0 && self.meter.is_some()).then(|| Duration::from_nanos(left))
    }

    /// Sends what one stream holds now; false where nothing more can be had now.
    fn forward(&self, port: &mut Port, kind: Kind, stream: &mut Option<OwnedFd>) -> Result<bool> {
        let Some(fd) = stream.as_ref().map(AsRawFd::as_raw_fd) else {
            return Ok(false);
        };
        let mut buffer = [0; CHUNK_BYTES];
        match os::read(fd, &mut buffer) {
            Ok(count) if count > 0 => {
                port.send(kind, self.run, &buffer[..count])?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // End of file; a terminal whose last program is gone answers EIO instead.
            _ => {
                *stream = None;
                Ok(false)
            }
        }
    }

    fn take(&mut self, frames: Vec<Frame>, started: &Started) {
        for frame in frames {
            match frame.kind {
                Kind::Stdin => self.input.extend(frame.payload),
                Kind::StdinEnd => self.input_ends = true,
                Kind::WindowSize => {
                    if let (Some(terminal), &[a, b, c, d]) = (&started.output, &frame.payload[..]) {
                        let (rows, columns) =
                            (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
                        set_window_size(terminal.as_raw_fd(), rows, columns);
                    }
                }
                _ => {}
            }
        }
    }

    fn feed(&mut self, input: &mut Option<OwnedFd>) {
        while let Some(fd) = input.as_ref().filter(|_| !self.input.is_empty()) {
            match os::write(fd.as_raw_fd(), &self.input) {
                Ok(count) => drop(self.input.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The program does not want more.
                Err(_) => {
                    self.input.clear();
                    *input = None;
                }
            }
        }
        if self.input_ends {
            *input = None;
        }
    }

    fn sample(&mut self) {
        if let Some(meter) = self.meter {
            self.timeline.push(Point {
                time_ns: os::monotonic_ns(),
                counters: meter.read(),
            });
        }
    }
}

fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is fresh and owned by nobody else.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
        if fd < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(OwnedFd::from_raw_fd(fd as RawFd))
        }
    }
}

fn set_window_size(fd: RawFd, rows: u16, columns: u16) {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the request reads a plain structure; a descriptor that is no terminal refuses it.
    unsafe {
        libc::ioctl(fd, libc::TIOCSWINSZ, &raw const size);
    }
}
