//! Whether this process is the one that opened movers, or a child of it after `fork`.
//!
//! A child has no worker threads, and a lock that another thread held at the fork stays held for
//! ever. So nothing is touched before this was asked. It is asked at every call and must not cost
//! a system call, as `getpid` does: a page that the kernel wipes at fork tells, also where a raw
//! `clone` passes the handlers of pthread_atfork(3).

use crate::constants::{HITHER_EFORK, HITHER_ENOMEM};
use crate::failure::{Failure, Outcome};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

const BYTES: usize = 4096;
const ALIVE: u32 = 1;

/// The page, never unmapped; null until the first mover is opened or memory is allocated in a set. A
/// child that inherits null may open movers of its own.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

/// Before the first mover is opened, or memory is allocated.
pub(crate) fn begin() -> Outcome<()> {
    if PAGE.load(Ordering::Acquire).is_null() {
        let page = wiped_at_fork().map_err(|error| {
            let text = format!("no page to note forks in: {error}; free memory, or use Linux 4.14");
            Failure::new(HITHER_ENOMEM, text)
        })?;
        let kept = PAGE.compare_exchange(null_mut(), page, Ordering::AcqRel, Ordering::Acquire);
        if kept.is_err() {
            // SAFETY: another thread was first, so that nobody knows this page.
            let _ = unsafe { munmap(page.cast(), BYTES) };
        }
    }
    check()
}

/// Refuses children. Fine before the first mover was opened, when nothing can be found anyway.
#[inline]
pub(crate) fn check() -> Outcome<()> {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: what is not null is the page of `begin`, which is never unmapped.
    if page.is_null() || unsafe { &*page }.load(Ordering::Relaxed) == ALIVE {
        return Ok(());
    }
    Err(Failure::new(
        HITHER_EFORK,
        "this process is a child after fork(), and the movers are its parent's: call exec(), or \
         fork before the first hither_open() or hither_alloc()",
    ))
}

fn wiped_at_fork() -> io::Result<*mut AtomicU32> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe { mmap_anonymous(null_mut(), BYTES, protection, MapFlags::PRIVATE)? };
    // SAFETY: the page is ours alone.
    if let Err(error) = unsafe { madvise(page, BYTES, Advice::LinuxWipeOnFork) } {
        // SAFETY: nobody knows the page.
        let _ = unsafe { munmap(page, BYTES) };
        return Err(error.into());
    }
    let page = page.cast::<AtomicU32>();
    // SAFETY: mapped, writable, aligned, and nobody else's yet.
    unsafe { &*page }.store(ALIVE, Ordering::Relaxed);
    Ok(page)
}
