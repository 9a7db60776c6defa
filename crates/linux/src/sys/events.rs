//! Waiting for several things at once: a timer, signals as data, and the end of a process.

use super::{PidFd, check, check_returned};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A timer that is re-armed by hand.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// A disarmed timer on `CLOCK_MONOTONIC`.
    pub fn new() -> io::Result<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: integers only.
        let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) }.into())?;
        // SAFETY: a new descriptor that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Fires once, `delay_us` from now (at least 1 us).
    pub fn arm(&self, delay_us: u64) -> io::Result<()> {
        let delay_us = delay_us.max(1);
        let zero = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let value = libc::itimerspec {
            it_interval: zero,
            it_value: libc::timespec {
                tv_sec: (delay_us / 1_000_000) as libc::time_t,
                tv_nsec: (delay_us % 1_000_000 * 1000) as libc::c_long,
            },
        };
        // SAFETY: an open timer and a valid value; the old value is not asked for.
        let result =
            unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &value, std::ptr::null_mut()) };
        check(result.into()).map(drop)
    }

    fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: 8 bytes are valid for the read; it does not block. EAGAIN is as good.
        unsafe {
            libc::read(
                self.0.as_raw_fd(),
                (&raw mut count).cast(),
                size_of::<u64>(),
            )
        };
    }
}

/// Signals read as data. They stay blocked for this process as long as it lives.
pub struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its number.
    pub signal: i32,
    /// Did the kernel itself send it, such as a terminal to its whole foreground group?
    pub from_kernel: bool,
}

impl Signals {
    /// Blocks these signals and reads them from now on.
    pub fn new(signals: &[i32]) -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: sigemptyset initialises `set`; the other calls get valid sets, and all zero is
        // a valid set as well.
        let (fd, before) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for &signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            check_returned(libc::pthread_sigmask(
                libc::SIG_BLOCK,
                set.as_ptr(),
                before.as_mut_ptr(),
            ))?;
            let flags = libc::SFD_NONBLOCK | libc::SFD_CLOEXEC;
            (
                check(libc::signalfd(-1, set.as_ptr(), flags).into())?,
                before.assume_init(),
            )
        };
        // SAFETY: a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        Ok(Self { fd, before })
    }

    /// The mask as it was before, for children.
    #[must_use]
    pub fn mask_before(&self) -> libc::sigset_t {
        self.before
    }

    /// The next signal that has arrived.
    #[must_use]
    pub fn take(&self) -> Option<Arrived> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let bytes = size_of::<libc::signalfd_siginfo>();
        // SAFETY: `bytes` are valid for the read; all zero is a valid value of the structure.
        let (got, info) = unsafe {
            let got = libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), bytes);
            (got, info.assume_init())
        };
        (got == bytes as isize).then_some(Arrived {
            signal: info.ssi_signo as i32,
            from_kernel: info.ssi_code == libc::SI_KERNEL,
        })
    }
}

/// Suspends this process as Ctrl-Z does, with its whole process group where asked for, until
/// somebody lets it go on; at once where nobody could (an orphaned process group). `SIGTSTP` may be
/// blocked.
pub fn stop_here(whole_group: bool) -> io::Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigemptyset initialises `set`; the other calls get valid sets and integers. The
    // signal's action is the default one, so that no handler runs.
    let sent = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTSTP);
        check_returned(libc::pthread_sigmask(
            libc::SIG_UNBLOCK,
            set.as_ptr(),
            before.as_mut_ptr(),
        ))?;
        let target = if whole_group { 0 } else { libc::getpid() };
        let sent = check(libc::kill(target, libc::SIGTSTP).into());
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        sent
    };
    sent.map(drop)
}

impl PidFd {
    /// Has the process ended? Does not wait.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let mut entry = libc::pollfd {
            fd: self.descriptor(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid entry; does not block.
        unsafe { libc::poll(&mut entry, 1, 0) == 1 }
    }
}

/// Why a wait ended; several may be true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wake {
    /// The timer fired.
    pub timer: bool,
    /// A signal arrived.
    pub signal: bool,
    /// The process ended.
    pub ended: bool,
    /// There is input, or its end.
    pub input: bool,
    /// Whoever writes the input is gone.
    pub hung_up: bool,
}

/// Waits for a timer and signals, and for the end of one process and input, where there are such.
pub struct Waiter<'a> {
    timer: &'a Timer,
    signals: &'a Signals,
    process: Option<&'a PidFd>,
    input: Option<BorrowedFd<'a>>,
}

impl<'a> Waiter<'a> {
    /// For these.
    #[must_use]
    pub fn new(
        timer: &'a Timer,
        signals: &'a Signals,
        process: Option<&'a PidFd>,
        input: Option<BorrowedFd<'a>>,
    ) -> Self {
        Self {
            timer,
            signals,
            process,
            input,
        }
    }

    /// Sleeps until at least one of them has something. A timer that fired is cleared.
    pub fn wait(&self) -> io::Result<Wake> {
        let entry = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut entries = [
            entry(self.timer.0.as_raw_fd()),
            entry(self.signals.fd.as_raw_fd()),
            // The kernel passes over negative numbers.
            entry(self.process.map_or(-1, PidFd::descriptor)),
            entry(self.input.map_or(-1, |input| input.as_raw_fd())),
        ];
        loop {
            // SAFETY: four valid entries; waits without limit.
            match check(unsafe { libc::poll(entries.as_mut_ptr(), 4, -1) }.into()) {
                Ok(_) => break,
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
        let gone = libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
        let hung_up = entries[3].revents & gone != 0;
        let [timer, signal, ended, input] = entries.map(|entry| entry.revents != 0);
        if timer {
            self.timer.clear();
        }
        Ok(Wake {
            timer,
            signal,
            ended,
            input,
            hung_up,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn input_and_its_end_wake() {
        use std::io::Write;
        use std::os::fd::AsFd;
        let (reader, mut writer) = io::pipe().unwrap();
        let signals = Signals::new(&[libc::SIGWINCH]).unwrap();
        let timer = Timer::new().unwrap();
        let waiter = Waiter::new(&timer, &signals, None, Some(reader.as_fd()));
        let wait = |timeout_us| {
            timer.arm(timeout_us).unwrap();
            waiter.wait().unwrap()
        };
        assert_eq!(
            wait(1000),
            Wake {
                timer: true,
                ..Wake::default()
            }
        );
        writer.write_all(b"q").unwrap();
        assert!(wait(60_000_000).input && !wait(60_000_000).hung_up);
        drop(writer);
        // A child that another test has just forked has the other end too, until it executes.
        let patience = Instant::now() + Duration::from_secs(60);
        while !wait(60_000_000).hung_up {
            assert!(Instant::now() < patience, "the end is never told");
            std::thread::yield_now();
        }
    }

    #[test]
    fn timer_and_end_of_process_wake() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = PidFd::open(child.id() as i32).unwrap();
        let timer = Timer::new().unwrap();
        let signals = Signals::new(&[libc::SIGUSR2]).unwrap();
        timer.arm(1000).unwrap();
        let waiter = Waiter::new(&timer, &signals, Some(&process), None);
        assert_eq!(
            waiter.wait().unwrap(),
            Wake {
                timer: true,
                ..Wake::default()
            }
        );
        assert!(!process.has_ended());
        child.kill().unwrap();
        assert!(waiter.wait().unwrap().ended && process.has_ended());
        child.wait().unwrap();
        assert_eq!(signals.take(), None);
    }
}
