//! What is written when: the slow half of every function that this library replaces.

use crate::state::STATE;
use crate::walk;
use hither_core::sites::{How, kind};
use std::sync::atomic::{AtomicBool, Ordering};

/// Was any mapping recorded in this process, or a parent of it? Else `munmap` need not tell.
static MAPS: AtomicBool = AtomicBool::new(false);

/// First word of a slot.
pub fn word(kind: u8, a: u8, b: u16, c: u32) -> u64 {
    u64::from(kind) | u64::from(a) << 8 | u64::from(b) << 16 | u64::from(c) << 32
}

/// The calling thread's number.
pub fn thread() -> u32 {
    // SAFETY: no arguments, no effect.
    (unsafe { libc::syscall(libc::SYS_gettid) }) as u32
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec that the call fills in; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// The calling thread's error number.
pub fn errno() -> i32 {
    // SAFETY: the C library returns the address of this thread's own.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub fn set_errno(number: i32) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = number }
}

/// Puts the error number back that the program had: success leaves it alone, and so must this.
pub struct Errno(i32);

impl Errno {
    /// To be put back when this goes.
    pub fn keep() -> Self {
        Self(errno())
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}

/// The program was given memory. `caller` is where its return address lies, or 0.
#[cold]
pub fn allocated(how: How, address: usize, bytes: usize, caller: usize) {
    let _errno = Errno::keep();
    let tid = thread();
    if !STATE.log.is_open(tid) {
        return;
    }
    if !STATE.log.has_room(STATE.tracked.live()) {
        return STATE.log.dropped_allocation();
    }
    let site = walk::site(caller, tid);
    if how.is_mapping() {
        MAPS.store(true, Ordering::Relaxed);
    } else if !STATE.tracked.insert(address) {
        return STATE.log.dropped_allocation();
    }
    let first = word(kind::ALLOCATION, how as u8, 0, tid);
    let body = [address as u64, bytes as u64, u64::from(site), 0, 0, 0];
    if !STATE.log.append(first, now_ns(), &body) {
        STATE.log.dropped_allocation();
        if !how.is_mapping() {
            STATE.tracked.remove(address);
        }
    }
}

/// An address that the filter knows is about to be freed: while it is still the program's, so that
/// nobody else can be given it before this is written.
#[cold]
pub fn freed(address: usize) {
    let _errno = Errno::keep();
    if STATE.tracked.remove(address) {
        write_free(address, now_ns());
    }
}

/// An address that may be resized. To be followed by [`resized`].
#[cold]
pub fn resizing(address: usize) -> Resizing {
    Resizing {
        address,
        was_tracked: STATE.tracked.may_contain(address) && STATE.tracked.remove(address),
        start_ns: now_ns(),
    }
}

/// What is between the two halves of a `realloc`.
pub struct Resizing {
    address: usize,
    was_tracked: bool,
    start_ns: u64,
}

/// The resizing is done: the old memory ended when it began, or is as it was where it failed.
#[cold]
pub fn resized(resizing: &Resizing, is_gone: bool) {
    let _errno = Errno::keep();
    if !resizing.was_tracked {
        return;
    }
    if is_gone {
        write_free(resizing.address, resizing.start_ns);
    } else if !STATE.tracked.insert(resizing.address) {
        STATE.log.dropped_other();
    }
}

/// What was tracked was written, so that the log is open. Which thread frees is left out: to ask the
/// kernel for it is most of what this would take.
fn write_free(address: usize, time_ns: u64) {
    let body = [address as u64, 0, 0, 0, 0, 0];
    let first = word(kind::FREE, 0, 0, 0);
    STATE.log.append_other(first, time_ns, &body);
}

/// Must the undoing of mappings be told?
#[inline(always)]
pub fn tells_unmaps() -> bool {
    MAPS.load(Ordering::Relaxed)
}

/// Mappings were undone at `time_ns`, before the kernel was asked: the addresses may have been given
/// to another thread since.
#[cold]
pub fn unmapped(address: usize, bytes: usize, time_ns: u64) {
    let _errno = Errno::keep();
    let tid = thread();
    if STATE.log.is_open(tid) {
        let body = [address as u64, bytes as u64, 0, 0, 0, 0];
        STATE
            .log
            .append(word(kind::UNMAP, 0, 0, tid), time_ns, &body);
    }
}
