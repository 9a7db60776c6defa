//! Attempts that tell whether the kernel would allow something; each undoes itself at once.

use super::check;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// `struct perf_event_attr`, first published version (64 bytes), enough to ask.
#[repr(C)]
#[derive(Default)]
struct PerfAttribute {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

const _: () = assert!(size_of::<PerfAttribute>() == 64);

/// Would `perf_event_open(2)` give this user this event on this process, user mode only?
/// `kind` 0 and `config` 0 are hardware cycles, `kind` 1 and `config` 2 software page faults.
pub fn perf_event_allowed(kind: u32, config: u64) -> io::Result<()> {
    let attribute = PerfAttribute {
        kind,
        size: size_of::<PerfAttribute>() as u32,
        config,
        // Bits: disabled 0, exclude_kernel 5, exclude_hv 6.
        flags: 1 | 1 << 5 | 1 << 6,
        ..PerfAttribute::default()
    };
    // SAFETY: the attribute has the size that it says; the other arguments are integers.
    let fd = check(unsafe { libc::syscall(libc::SYS_perf_event_open, &attribute, 0, -1, -1, 0) })?;
    // SAFETY: a new descriptor that nobody else owns; dropped, hence closed, here.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    Ok(())
}

/// The effective user of this process; 0 is root.
#[must_use]
pub fn effective_uid() -> u32 {
    // SAFETY: no arguments, always succeeds.
    unsafe { libc::geteuid() }
}
