//! The copy engine's instructions, and sleeping for a time that is known.

use hither_core::opium::{MARKER_DOORBELL, MARKER_LOOK, MARKER_MAGIC};
use std::cell::Cell;

macro_rules! mark {
    ($what:expr, $ring:expr) => {
        // SAFETY: `nop dword ptr [rax + imm32]` does nothing on a CPU. The engine reads and writes
        // the ring, and what its descriptors name: the compiler is told that memory changes.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!(
                ".byte 0x0f, 0x1f, 0x80",
                ".long {marker}",
                marker = const MARKER_MAGIC | $what,
                in("rax") $ring,
                options(nostack, preserves_flags),
            );
        }
    };
}

/// Rings the doorbell of the copy engine for a ring at this address (`hither_core::copy_engine`):
/// on machines without one it does nothing. The engine takes what descriptors name.
///
/// # Safety
/// Every descriptor that is new in the ring names a target that nobody relies on until its record
/// says that it is done.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
pub unsafe fn ring_doorbell(ring: u64) {
    mark!(MARKER_DOORBELL, ring);
}

/// Has the emulated engine bring its records up to date; a real one does that by itself.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
pub fn look_at_records(ring: u64) {
    mark!(MARKER_LOOK, ring);
}

/// Sleeps until a time of `CLOCK_MONOTONIC` in ns, and no later than the kernel can: the calling
/// thread's sleeps are exact from then on (`PR_SET_TIMERSLACK`; the kernel's own 50 us otherwise).
pub fn sleep_until(at_ns: u64) {
    thread_local! {
        static EXACT: Cell<bool> = const { Cell::new(false) };
    }
    if !EXACT.replace(true) {
        // SAFETY: a setting of the calling thread; where it is refused, sleeps are longer.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
    }
    let until = libc::timespec {
        tv_sec: (at_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (at_ns % 1_000_000_000) as _,
    };
    // A signal ends it: who waits looks again.
    // SAFETY: a valid time; the rest is not asked for.
    unsafe {
        let clock = libc::CLOCK_MONOTONIC;
        libc::clock_nanosleep(clock, libc::TIMER_ABSTIME, &until, std::ptr::null_mut());
    }
}
