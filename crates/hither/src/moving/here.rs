//! This machine, as a move sees it.

use super::perform::{Stop, Surroundings};
use super::undo::Undo;
use crate::output::Progress;
use anyhow::Context;
use hither_linux::root::Root;
use hither_linux::sys::{self, PidFd, Signals, Timer, Waiter};
use std::io;

/// A move that takes longer than this shows its progress, in ns.
const PROGRESS_AFTER_NS: u64 = 500_000_000;

/// This machine: the process, signals of a person, the clock, the terminal.
pub struct LocalMachine {
    pid: i32,
    process: PidFd,
    /// Once pages move.
    pub signals: Option<Signals>,
    timer: Timer,
    pub start_ns: u64,
    pub progress: Progress,
}

impl LocalMachine {
    /// Whoever is meant by a report that is taken back is looked at once the process is held.
    pub fn new(pid: i32, undo: Option<&Undo>) -> anyhow::Result<Self> {
        let process = PidFd::open(pid);
        if let Some(undo) = undo {
            undo.check(&Root::host()).context("--undo")?;
        }
        let process = process.map_err(|error| {
            // ENOENT or EINVAL: a thread, which is no process of its own.
            let what = match error.raw_os_error() {
                Some(sys::ESRCH) => "there is no such process; give the number of a running one",
                _ => "it cannot be opened as a process; give the process, not a thread of it",
            };
            anyhow::Error::new(error).context(format!("--pid {pid}: {what}"))
        })?;
        Ok(Self {
            pid,
            process,
            signals: None,
            timer: Timer::new().context("making a timer")?,
            start_ns: sys::monotonic_ns(),
            progress: Progress::after(PROGRESS_AFTER_NS),
        })
    }

    pub fn stop(&self) -> Option<Stop> {
        if let Some(arrived) = self.signals.as_ref().and_then(Signals::take) {
            return Some(Stop::Signal(arrived.signal));
        }
        self.process.has_ended().then_some(Stop::Gone)
    }
}

impl Surroundings for LocalMachine {
    fn locate(&mut self, pages: &[u64], status: &mut [i32]) -> io::Result<()> {
        let addresses: Vec<u64> = pages.iter().map(|page| page << 12).collect();
        sys::query_pages(self.pid, &addresses, status)
    }

    fn pause(&mut self, sleep_us: u64) -> Option<Stop> {
        let stop = self.stop();
        if stop.is_some() || sleep_us == 0 {
            return stop;
        }
        // Without a timer there is no rate to keep: going on is better than never waking.
        if let (Some(signals), Ok(())) = (&self.signals, self.timer.arm(sleep_us)) {
            let _ = Waiter::new(&self.timer, signals, Some(&self.process), None).wait();
        }
        self.stop()
    }

    fn elapsed_us(&self) -> u64 {
        sys::monotonic_ns().saturating_sub(self.start_ns) / 1000
    }

    fn progress(&mut self, tried: u64, of: u64, moved: u64) {
        let percent = 100.0 * tried as f64 / of.max(1) as f64;
        let gbs = moved as f64 / (self.elapsed_us() as f64 * 1e3);
        self.progress.tell(format_args!(
            "{percent:3.0} %, {tried} of {of} pages, {gbs:.2} GB/s"
        ));
    }
}
