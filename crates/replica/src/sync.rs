//! Atomics, so that loom can put its own in their place; and a word that a forked child finds zero.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// In a cache line of its own; two, as processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Line<T>(pub T);

/// A word that the kernel sets to 0 in a child after `fork` (`MADV_WIPEONFORK`, Linux 4.14): the child learns
/// by the load that every reader makes anyway that writers and copies are its parent's.
#[cfg(not(any(loom, miri)))]
#[derive(Debug)]
pub(crate) struct Wiped(std::ptr::NonNull<AtomicU64>);

// SAFETY: the page is this value's alone, and reached by atomic accesses only.
#[cfg(not(any(loom, miri)))]
unsafe impl Send for Wiped {}
// SAFETY: as above.
#[cfg(not(any(loom, miri)))]
unsafe impl Sync for Wiped {}

#[cfg(not(any(loom, miri)))]
const PAGE: usize = hither_core::snapshot::PAGE_BYTES as usize;

#[cfg(not(any(loom, miri)))]
impl Wiped {
    pub(crate) fn new(value: u64) -> std::io::Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let page =
            unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, access, MapFlags::PRIVATE) }?;
        // SAFETY: the page just mapped; the advice concerns children alone.
        if let Err(error) = unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) } {
            // SAFETY: nobody else knows of it yet.
            let _ = unsafe { munmap(page, PAGE) };
            return Err(error.into());
        }
        let Some(word) = std::ptr::NonNull::new(page.cast::<AtomicU64>()) else {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        };
        let wiped = Self(word);
        wiped.word().store(value, Ordering::Relaxed);
        Ok(wiped)
    }

    #[inline]
    pub(crate) fn word(&self) -> &AtomicU64 {
        // SAFETY: mapped, aligned and as long-lived as this value.
        unsafe { self.0.as_ref() }
    }
}

#[cfg(not(any(loom, miri)))]
impl Drop for Wiped {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`; no borrow of the word outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

#[cfg(any(loom, miri))]
#[derive(Debug)]
pub(crate) struct Wiped(AtomicU64);

#[cfg(any(loom, miri))]
impl Wiped {
    pub(crate) fn new(value: u64) -> std::io::Result<Self> {
        Ok(Self(AtomicU64::new(value)))
    }

    pub(crate) fn word(&self) -> &AtomicU64 {
        &self.0
    }
}
