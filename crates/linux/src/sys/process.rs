//! Processes: handles that cannot name the wrong one, signals, waiting, own use of resources.

use super::check;
use hither_core::ids::CpuId;
use hither_core::set::CpuSet;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Release of the running kernel, as `uname -r` prints it.
#[must_use]
pub fn kernel_release() -> String {
    let mut names = MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: the call fills the structure, for which all zero is valid as well; its texts end with
    // a zero byte.
    let release = unsafe {
        libc::uname(names.as_mut_ptr());
        CStr::from_ptr((*names.as_ptr()).release.as_ptr())
    };
    release.to_string_lossy().into_owned()
}

/// A handle of one process; it stays its own even when the number is used again.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens a process by number.
    pub fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: takes two integers; no flags.
        let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
        // SAFETY: a new descriptor that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: an open descriptor, an integer, no info, no flags.
        let result = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        check(result).map(drop)
    }

    /// For polling: readable once the process has ended.
    pub(super) fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this status.
    Exited(u8),
    /// By this signal.
    Killed(i32),
}

impl Ended {
    /// The status that a shell would give: 128 + signal where killed.
    #[must_use]
    pub fn status(self) -> u8 {
        match self {
            Self::Exited(status) => status,
            Self::Killed(signal) => (128 + signal).clamp(0, 255) as u8,
        }
    }

    fn from_wait(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Killed(libc::WTERMSIG(status))
        } else {
            Self::Exited(libc::WEXITSTATUS(status) as u8)
        }
    }
}

/// Takes any ended child without waiting: its number and how it ended.
pub fn reap_any() -> Option<(i32, Ended)> {
    let mut status = 0;
    // SAFETY: `status` is valid for the call; it does not block.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
    (pid > 0).then(|| (pid, Ended::from_wait(status)))
}

/// Sends a signal to a child that was not reaped yet: its number is nobody else's. One that has ended
/// takes it without harm.
pub fn signal_child(pid: i32, signal: i32) {
    // SAFETY: integers only.
    unsafe { libc::kill(pid, signal) };
}

/// Waits for a child to end.
pub fn wait_child(pid: i32) -> io::Result<Ended> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for the call.
        match check(unsafe { libc::waitpid(pid, &mut status, 0) }.into()) {
            Ok(_) => return Ok(Ended::from_wait(status)),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Makes this process the parent of descendants whose own parent ends, so that a program that
/// forks and leaves is still seen. They get a new parent when this process ends, as ever.
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: integers only; concerns this process alone.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }.into()).map(drop)
}

/// What this process has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user mode, in us.
    pub user_us: u64,
    /// CPU time in kernel mode, in us.
    pub system_us: u64,
    /// Most memory that was resident at once, in KiB.
    pub peak_resident_kb: u64,
}

/// Has memory that this process frees stay its own, for what it allocates next: the kernel would
/// fill each page anew, at some 2,500 instructions. For who allocates much again and again.
pub fn keep_freed_memory() {
    /// Less than what is worth a mapping of its own (the most that mallopt(3) takes).
    const MOST: libc::c_int = 32 << 20;
    // SAFETY: plain numbers; the allocator guards its state itself. Where it refuses one, memory is
    // given back as before.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * MOST);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MOST);
        libc::mallopt(libc::M_TOP_PAD, 256 << 10);
    }
}

/// `getrusage(2)` of this process alone.
#[must_use]
pub fn own_usage() -> Usage {
    usage(libc::RUSAGE_SELF)
}

/// The same of all descendants that have ended and were waited for.
#[must_use]
pub fn children_usage() -> Usage {
    usage(libc::RUSAGE_CHILDREN)
}

fn usage(of: libc::c_int) -> Usage {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills the structure, for which all zero is valid as well.
    let usage = unsafe {
        libc::getrusage(of, usage.as_mut_ptr());
        usage.assume_init()
    };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    Usage {
        user_us: us(usage.ru_utime),
        system_us: us(usage.ru_stime),
        peak_resident_kb: usage.ru_maxrss as u64,
    }
}

/// CPU time of all threads of this process so far, user and kernel mode, in ns: the sum that
/// `getrusage(2)` gives in us (`CLOCK_PROCESS_CPUTIME_ID`).
#[must_use]
pub fn own_cpu_ns() -> u64 {
    super::clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of the calling thread so far, in ns.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    super::clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Keeps the calling thread, and threads and children that it starts from now on, on these CPUs.
///
/// Source: `sched_setaffinity(2)`. `EINVAL`: none of them may be used.
pub fn stay_on(cpus: &CpuSet) -> io::Result<()> {
    set_affinity(0, &cpu_mask(cpus))
}

/// From now on the calling thread runs only while nobody else wants its CPU, and who does gets it at
/// once instead of within some milliseconds.
///
/// # Errors
/// What the kernel said.
///
/// Source: `sched(7)`, `SCHED_IDLE`.
pub fn give_way() -> io::Result<()> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads one parameter.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) }.into())
        .map(drop)
}

/// The nice value of the calling thread, where threads may come back to it from a higher one: tried by a
/// thread that then ends, as neither capabilities in a user namespace nor limits tell.
///
/// Source: `setpriority(2)`.
pub fn nice_to_return_to() -> Option<i32> {
    let nice = rustix::process::getpriority_process(None).ok()?;
    let there_and_back = move || set_nice(nice + 1).and_then(|()| set_nice(nice));
    let tried = std::thread::Builder::new().spawn(there_and_back).ok()?;
    tried.join().ok()?.ok().map(|()| nice)
}

/// Gives the calling thread another nice value.
///
/// # Errors
/// What the kernel said. Source: `setpriority(2)`; threads of Linux have one each.
pub fn set_nice(nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, nice)?)
}

/// Keeps a thread, by its number, on these CPUs. `ESRCH`: it has ended; `EPERM`: it is another
/// user's.
pub fn keep_thread_on(thread: i32, cpus: &CpuSet) -> io::Result<()> {
    set_affinity(thread, &cpu_mask(cpus))
}

pub(super) fn cpu_mask(cpus: &CpuSet) -> Vec<u64> {
    let highest = cpus.iter().next_back().map_or(0, |cpu| cpu.0 as usize);
    let mut mask = vec![0u64; highest / 64 + 1];
    for cpu in cpus.iter() {
        mask[cpu.0 as usize / 64] |= 1 << (cpu.0 % 64);
    }
    mask
}

/// Allocates nothing.
pub(super) fn set_affinity(thread: i32, mask: &[u64]) -> io::Result<()> {
    // SAFETY: the call reads the bytes announced of `mask`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            thread,
            size_of_val(mask),
            mask.as_ptr(),
        )
    };
    check(result).map(drop)
}

/// The CPUs that the calling thread may run on.
///
/// # Errors
/// What the kernel says. Source: `sched_getaffinity(2)`.
pub fn allowed_cpus() -> io::Result<CpuSet> {
    allowed_cpus_of(0)
}

/// The same of any thread, by its number.
///
/// # Errors
/// What the kernel says; `ESRCH`: it has ended.
pub fn allowed_cpus_of(thread: i32) -> io::Result<CpuSet> {
    let mut mask = [0u64; 128];
    // SAFETY: the call writes at most the bytes announced of `mask`.
    let written = unsafe {
        let bytes = size_of_val(&mask);
        libc::syscall(
            libc::SYS_sched_getaffinity,
            thread,
            bytes,
            mask.as_mut_ptr(),
        )
    };
    check(written)?;
    let is_set = |cpu: &u32| mask[*cpu as usize / 64] >> (cpu % 64) & 1 == 1;
    Ok((0..64 * mask.len() as u32)
        .filter(is_set)
        .map(CpuId)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_handle_signals_its_process_only() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let handle = PidFd::open(child.id() as i32).unwrap();
        handle.signal(libc::SIGTERM).unwrap();
        assert_eq!(
            wait_child(child.id() as i32).unwrap(),
            Ended::Killed(libc::SIGTERM)
        );
        assert_eq!(
            handle.signal(0).unwrap_err().raw_os_error(),
            Some(libc::ESRCH)
        );
        assert!(child.try_wait().is_err(), "it was waited for already");
        assert_eq!(Ended::Killed(15).status(), 143);
    }

    #[test]
    fn own_use_is_measured() {
        let usage = own_usage();
        assert!(usage.peak_resident_kb > 100, "{usage:?}");
        let us = usage.user_us + usage.system_us;
        assert!(own_cpu_ns() / 1000 >= us, "the clock was read later");
    }

    #[test]
    fn a_thread_stays_where_it_is_put() {
        std::thread::spawn(|| {
            let read = || std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = |text: &str| {
                let found = text
                    .lines()
                    .find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
                found.unwrap().trim().to_owned()
            };
            let allowed: CpuSet = line(&read()).parse().unwrap();
            assert_eq!(allowed_cpus().unwrap(), allowed);
            let first: CpuSet = allowed.iter().take(1).collect();
            stay_on(&first).unwrap();
            assert_eq!(line(&read()), first.to_string());
            let none = stay_on(&CpuSet::new()).unwrap_err();
            assert_eq!(none.raw_os_error(), Some(libc::EINVAL));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_gives_way_alone_and_comes_back_where_it_may() {
        let own = || rustix::process::getpriority_process(None).unwrap();
        let others = own();
        std::thread::spawn(move || {
            let before = nice_to_return_to();
            assert!(before.is_none_or(|nice| nice == others));
            set_nice(others + 3).unwrap();
            assert_eq!(own(), others + 3);
            assert!(set_nice(others).is_ok() || before.is_none());
        })
        .join()
        .unwrap();
        assert_eq!(own(), others);
    }
}
