//! System calls: with the copy loops of [`crate::backend::copy`] the only home of `unsafe` in this
//! crate. Thin wrappers with owned types and `io::Result`; no policy, no parsing.

mod area;
mod doorbell;
mod events;
pub mod fault;
mod map;
mod mappings;
mod memory;
mod node_memory;
mod perf_event;
pub mod pkey;
mod policy;
mod private;
mod probe;
mod process;
mod reach;
mod robust;
mod route;
mod segment;
mod smaps;
mod spawn;
mod statics;
mod thread;
mod userfault;
mod window;
mod wiped;

pub use area::{MemoryArea, discard, fill, is_resident};
pub use doorbell::{look_at_records, ring_doorbell, sleep_until};
pub use events::{Arrived, Signals, Timer, Waiter, Wake, stop_here};
pub use map::{SharedMap, memory_file};
pub use mappings::{OwnMapping, query_mapping};
pub use memory::{
    PAGE_IS_FILE, PAGE_IS_HUGE, PAGE_IS_PRESENT, PAGE_IS_SOFT_DIRTY, PAGE_IS_ZERO, PageRegion,
    ScanQuery, may_move_shared_pages, move_pages, move_shared_pages, pagemap_scan, query_pages,
};
pub use node_memory::NodeMemory;
pub use perf_event::{
    EventAttribute, EventScope, event_flag, open_event, read_count, set_event_period, switch_event,
};
pub use policy::{
    Present, bind_memory, bind_range, next_interleaved, node_at, own_policy, place_child,
    policy_at, set_home_node, set_own_policy, with_preferred_node,
};
pub use private::PrivateMemory;
pub use probe::effective_uid;
pub use process::{
    Ended, PidFd, Usage, adopt_orphans, allowed_cpus, allowed_cpus_of, children_usage, give_way,
    keep_freed_memory, keep_thread_on, kernel_release, nice_to_return_to, own_cpu_ns, own_usage,
    reap_any, set_nice, signal_child, stay_on, thread_cpu_ns, wait_child,
};
pub use reach::{Access, copy_by_kernel, is_mapped, page_bytes, populate};
pub use robust::{RobustGuard, RobustMutex};
pub use route::{Route, interface_name, is_unreachable, route_to};
pub use segment::{Segment, keeps_policies, remove_segment, segment_id};
pub use smaps::wiped_mappings;
pub use spawn::{Started, spawn_with_mask};
pub use statics::own_statics;
pub use thread::{
    EventFd, bind_thread, current_cpu, first_stack_address, thread_descriptor,
    thread_descriptor_address, thread_id, thread_lives, wait_readable,
};
pub use userfault::{FaultEvent, Progress, Userfault, feature};
pub use window::{FileWindow, may_tell_cached};
pub use wiped::{WipedOnce, WipedWord};

use std::io;

/// Signals that a person or another program sends to end or to tell a program something.
pub const FORWARDED: [i32; 6] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
];
/// A person asks to stop (Ctrl-C).
pub const SIGINT: i32 = libc::SIGINT;
/// A program asks to stop.
pub const SIGTERM: i32 = libc::SIGTERM;
/// The terminal is gone.
pub const SIGHUP: i32 = libc::SIGHUP;
/// A person asks to end at once (Ctrl-\).
pub const SIGQUIT: i32 = libc::SIGQUIT;
/// A person or a program asks to be suspended (Ctrl-Z).
pub const SIGTSTP: i32 = libc::SIGTSTP;
/// It goes on after that.
pub const SIGCONT: i32 = libc::SIGCONT;
/// Nobody can hold it back.
pub const SIGKILL: i32 = libc::SIGKILL;
/// The terminal has another size.
pub const SIGWINCH: i32 = libc::SIGWINCH;
/// Error number: there is no such process.
pub const ESRCH: i32 = libc::ESRCH;
/// Something that was asked for makes no sense, or there is none of it.
pub const EINVAL: i32 = libc::EINVAL;
/// This process may open no more descriptors, or nobody may.
#[must_use]
pub fn no_descriptor(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}
/// Error number: nobody may, or not this user.
pub const EPERM: i32 = libc::EPERM;
/// Error number: a page is not where it should be.
pub const EIO: i32 = libc::EIO;
/// Error number: no memory.
pub const ENOMEM: i32 = libc::ENOMEM;
/// Somebody uses it just now.
pub const EBUSY: i32 = libc::EBUSY;
/// A child has ended.
pub const SIGCHLD: i32 = libc::SIGCHLD;

/// Turns a system call's -1 into the error it set.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// The same of functions that return their error, as those of POSIX threads do. Allocates nothing.
fn check_returned(error: libc::c_int) -> io::Result<()> {
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Minutes since midnight, local time.
#[must_use]
pub fn local_minute() -> u32 {
    // SAFETY: `tm` is plain data; both calls write only what they are given.
    let local = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut local = std::mem::zeroed::<libc::tm>();
        libc::localtime_r(&now, &mut local);
        local
    };
    (60 * local.tm_hour + local.tm_min).max(0) as u32
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[must_use]
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds since boot, suspended or not: what starts of processes are counted in.
#[must_use]
pub fn boottime_ns() -> u64 {
    clock_ns(libc::CLOCK_BOOTTIME)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec that the call fills in; the clocks asked for always exist.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
