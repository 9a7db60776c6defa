//! Threads of this process: numbers, life and death, where they run and where their own data lie.

use super::{check, check_returned};
use hither_core::ids::CpuId;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

/// `O_EXCL`: the descriptor stands for one thread (Linux 6.9).
const PIDFD_THREAD: libc::c_uint = libc::O_EXCL as libc::c_uint;

/// This thread's number.
#[must_use]
pub fn thread_id() -> i32 {
    // SAFETY: no arguments, always succeeds.
    unsafe { libc::gettid() }
}

/// The CPU that this thread runs on now.
///
/// By the C library, which reads it from the thread's restartable-sequence area (glibc 2.35) without a call;
/// rustix looks for the kernel's vDSO instead, and dies where valgrind hides that.
#[must_use]
pub fn current_cpu() -> Option<CpuId> {
    // SAFETY: no arguments; -1 where the kernel does not tell.
    u32::try_from(unsafe { libc::sched_getcpu() })
        .ok()
        .map(CpuId)
}

/// Does a thread of this process live?
#[must_use]
pub fn thread_lives(thread: i32) -> bool {
    // SAFETY: integers; signal 0 only asks.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0 }
}

/// A descriptor that becomes readable when a thread of this process ends.
pub fn thread_descriptor(thread: i32) -> io::Result<OwnedFd> {
    // SAFETY: integers only.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, thread, PIDFD_THREAD) })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Where a thread of this process keeps the list of its robust locks: in its thread descriptor,
/// hence beside its thread-local storage and restartable-sequence area, at the upper end of its
/// stack (glibc and musl). `None`: it has none, or is no more.
#[must_use]
pub fn thread_descriptor_address(thread: i32) -> Option<u64> {
    let mut head = 0u64;
    let mut length = 0usize;
    // SAFETY: both results are valid for the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            thread,
            &raw mut head,
            &raw mut length,
        )
    };
    (result == 0 && head != 0).then_some(head)
}

/// Lets a thread run on these CPUs only (the kernel's numbers). `EINVAL`: this process may use
/// none of them.
pub fn bind_thread<T>(thread: &JoinHandle<T>, cpus: &[u32]) -> io::Result<()> {
    let mut words = vec![0 as libc::c_ulong; mask_words(cpus)];
    let bits = libc::c_ulong::BITS;
    for cpu in cpus {
        words[(cpu / bits) as usize] |= 1 << (cpu % bits);
    }
    // SAFETY: the handle names a thread that has not been joined; the mask has the length that is
    // passed, and the call only reads it.
    let errno = unsafe {
        libc::pthread_setaffinity_np(
            thread.as_pthread_t(),
            size_of_val(words.as_slice()),
            words.as_ptr().cast(),
        )
    };
    check_returned(errno)
}

fn mask_words(cpus: &[u32]) -> usize {
    let highest = cpus.iter().copied().max().unwrap_or(0);
    (highest / libc::c_ulong::BITS) as usize + 1
}

/// An address in the stack that the process began with: the kernel put its random bytes there.
#[must_use]
pub fn first_stack_address() -> u64 {
    // SAFETY: an integer; 0 where the kernel gave none.
    unsafe { libc::getauxval(libc::AT_RANDOM) }
}

/// A counter that wakes whoever polls it.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Not readable yet.
    pub fn new() -> io::Result<Self> {
        // SAFETY: integers only.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }.into())?;
        // SAFETY: a new descriptor that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Makes it readable.
    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: 8 bytes are valid for the write; it does not block (at the counter's limit it is
        // readable anyhow).
        unsafe {
            libc::write(
                self.0.as_raw_fd(),
                (&raw const one).cast(),
                size_of::<u64>(),
            )
        };
    }

    /// Makes it unreadable.
    pub fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: 8 bytes are valid for the read; it does not block.
        unsafe {
            libc::read(
                self.0.as_raw_fd(),
                (&raw mut count).cast(),
                size_of::<u64>(),
            )
        };
    }

    /// For polling.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.0.as_fd()
    }
}

/// Waits until one of these is readable, and tells which are.
pub fn wait_readable<const N: usize>(descriptors: [Option<BorrowedFd<'_>>; N]) -> [bool; N] {
    let mut polled = descriptors.map(|descriptor| libc::pollfd {
        // A negative number is left out.
        fd: descriptor.map_or(-1, |descriptor| descriptor.as_raw_fd()),
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: `polled` has N entries and outlives the call.
    unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, -1) };
    polled.map(|one| one.revents != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_runs_where_it_is_bound() {
        std::thread::spawn(|| {
            let allowed = crate::sys::allowed_cpus().unwrap();
            for cpu in allowed.iter() {
                crate::sys::stay_on(&[cpu].into_iter().collect()).unwrap();
                assert_eq!(current_cpu(), Some(cpu));
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_is_bound_and_a_cpu_that_is_not_there_is_refused() {
        let (sender, receiver) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = receiver.recv();
            std::fs::read_to_string("/proc/thread-self/status").unwrap()
        });
        let refused = bind_thread(&thread, &[60_000]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let allowed = |status: &str| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
                .unwrap();
            line.trim().to_owned()
        };
        let list = allowed(&own);
        let first: u32 = list.split(['-', ',']).next().unwrap().parse().unwrap();
        bind_thread(&thread, &[first]).unwrap();
        sender.send(()).unwrap();
        assert_eq!(allowed(&thread.join().unwrap()), first.to_string());
    }
}
