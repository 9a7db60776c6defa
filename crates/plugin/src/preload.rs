//! C library functions that QEMU calls and `LD_PRELOAD` overrides, so that its virtual clock is
//! modelled time. (QEMU's own time control for plugins has no effect without `icount`, and
//! `icount` excludes parallel vCPUs.)
//!
//! - `clock_gettime(CLOCK_MONOTONIC)` answers guest time.
//! - `ppoll`, in which QEMU's main loop waits for its next timer, ends when guest time is there.
//!   The C library's would end after as much host time: many times too early, so that the main
//!   loop would poll a hundred times for each timer and take a tenth of the host.

use crate::plugin;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

/// A running guest that does not get there within this host time is looked at again.
const PATIENCE_NS: i64 = 50_000_000;
/// More descriptors than QEMU's main loop ever waits for in the laboratory.
const DESCRIPTORS: usize = 512;

/// Event descriptor that ends the main loop's wait; -1 before the first wait.
static BELL: AtomicI32 = AtomicI32::new(-1);

/// Ends the main loop's wait. Called by whoever finds that its time has come.
pub fn ring() {
    let bell = BELL.load(SeqCst);
    if bell >= 0 {
        let one = 1u64;
        // Not `write`: it is a cancellation point, which touches thread-local storage (see
        // `context`).
        // SAFETY: eight bytes of ours; a full counter rings as well.
        unsafe { libc::syscall(libc::SYS_write, bell, &raw const one, 8usize) };
    }
}

fn bell() -> c_int {
    let known = BELL.load(SeqCst);
    if known >= 0 {
        return known;
    }
    // SAFETY: no preconditions. Only the main loop's thread comes here.
    let made = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    BELL.store(made, SeqCst);
    made
}

/// The C library's function, overridden.
///
/// # Safety
/// As for the C library: `time` points to a timespec.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    if clock != libc::CLOCK_MONOTONIC || plugin::clock().is_none() {
        // SAFETY: the caller's obligations, passed on.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as c_int };
    }
    let ns = plugin::host_start_ns() + plugin::guest_time_ps() / 1000;
    // SAFETY: the caller's timespec.
    unsafe {
        (*time).tv_sec = (ns / 1_000_000_000) as libc::time_t;
        (*time).tv_nsec = (ns % 1_000_000_000) as _;
    }
    0
}

/// The C library's function, overridden.
///
/// # Safety
/// As for the C library: `count` descriptors, a time-out and a signal mask that are valid or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    descriptors: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let plain = |descriptors: *mut libc::pollfd, count: u64, timeout: *const libc::timespec| {
        // The kernel writes the time left into the time-out, which the C library hides.
        // SAFETY: the caller's obligations, passed on; the copy outlives the call.
        unsafe {
            let mut left = (!timeout.is_null()).then(|| *timeout);
            let left = left
                .as_mut()
                .map_or(std::ptr::null_mut(), std::ptr::from_mut);
            libc::syscall(libc::SYS_ppoll, descriptors, count, left, mask, 8usize) as c_int
        }
    };
    // SAFETY: null or valid, by the caller's obligations.
    let wanted = unsafe { timeout.as_ref() }
        .map(|wait| wait.tv_sec as u64 * 1_000_000_000 + wait.tv_nsec as u64);
    let (Some(wanted @ 1..), Some(clock)) = (wanted, plugin::clock()) else {
        return plain(descriptors, count, timeout);
    };
    let bell = bell();
    if plugin::on_vcpu_thread() || count as usize >= DESCRIPTORS || bell < 0 {
        return plain(descriptors, count, timeout);
    }
    if !clock.set_alarm(wanted) {
        return plain(descriptors, count, timeout); // nobody runs: guest time is host time
    }
    let none = libc::pollfd {
        fd: -1,
        events: 0,
        revents: 0,
    };
    let mut all = [none; DESCRIPTORS];
    // SAFETY: the caller's array of `count`, which is less than ours.
    unsafe { std::ptr::copy_nonoverlapping(descriptors, all.as_mut_ptr(), count as usize) };
    all[count as usize] = libc::pollfd {
        fd: bell,
        events: libc::POLLIN,
        revents: 0,
    };
    let patience = libc::timespec {
        tv_sec: 0,
        tv_nsec: PATIENCE_NS,
    };
    let ready = plain(all.as_mut_ptr(), count + 1, &raw const patience);
    clock.clear_alarm();
    let rung = all[count as usize].revents != 0;
    if rung {
        let mut drained = 0u64;
        // SAFETY: eight bytes of ours; it does not block.
        unsafe { libc::read(bell, (&raw mut drained).cast(), 8) };
    }
    // SAFETY: as above, the other way round.
    unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), descriptors, count as usize) };
    if ready > 0 {
        ready - c_int::from(rung)
    } else {
        ready
    }
}
