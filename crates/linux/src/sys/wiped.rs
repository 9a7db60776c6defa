//! A word that the kernel sets to 0 in a child after `fork` (`MADV_WIPEONFORK`, Linux 4.14): by one load a process
//! learns that it is a child, where `getpid` would be a system call; also where a raw `clone` passes the handlers
//! of pthread_atfork(3).

use hither_core::snapshot::PAGE_BYTES;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ptr::{self, NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const BYTES: usize = PAGE_BYTES as usize;

/// The word, on a page of its own.
#[derive(Debug)]
pub struct WipedWord(NonNull<AtomicU64>);

// SAFETY: the page is this value's alone, and reached by atomic accesses only.
unsafe impl Send for WipedWord {}
// SAFETY: as above.
unsafe impl Sync for WipedWord {}

impl WipedWord {
    /// With this value, until a fork.
    ///
    /// # Errors
    /// No memory, or a kernel before 4.14.
    pub fn new(value: u64) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let page = unsafe { mmap_anonymous(null_mut(), BYTES, access, MapFlags::PRIVATE) }?;
        // SAFETY: the page just mapped; the advice concerns children alone.
        if let Err(error) = unsafe { madvise(page, BYTES, Advice::LinuxWipeOnFork) } {
            // SAFETY: nobody else knows of it yet.
            let _ = unsafe { munmap(page, BYTES) };
            return Err(error.into());
        }
        let Some(word) = NonNull::new(page.cast::<AtomicU64>()) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let wiped = Self(word);
        wiped.word().store(value, Ordering::Relaxed);
        Ok(wiped)
    }

    /// The word itself.
    #[inline]
    #[must_use]
    pub fn word(&self) -> &AtomicU64 {
        // SAFETY: mapped, aligned and as long-lived as this value.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for WipedWord {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`; no borrow of the word outlives `self`.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), BYTES) };
    }
}

/// One for the whole process, made when it is first asked for and never given back. It takes no lock, which
/// another thread might have held at a fork.
#[derive(Debug)]
pub struct WipedOnce(AtomicPtr<AtomicU64>);

impl WipedOnce {
    /// Not made yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// The word; `None` before it was made.
    #[inline]
    pub fn get(&self) -> Option<&'static AtomicU64> {
        // SAFETY: null, or the word of a page that is never unmapped.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// The word, made with this value where nobody has made it.
    ///
    /// # Errors
    /// As [`WipedWord::new`].
    pub fn get_or_make(&self, value: u64) -> io::Result<&'static AtomicU64> {
        if let Some(word) = self.get() {
            return Ok(word);
        }
        let made = WipedWord::new(value)?;
        let page = ptr::from_ref(made.word()).cast_mut();
        let kept = self
            .0
            .compare_exchange(null_mut(), page, Ordering::AcqRel, Ordering::Acquire);
        let page = match kept {
            Ok(_) => {
                std::mem::forget(made);
                page
            }
            // Another thread was first; this page is given back.
            Err(first) => first,
        };
        // SAFETY: as in `get`.
        Ok(unsafe { &*page })
    }
}

impl Default for WipedOnce {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_once_and_lives_on() {
        static ONCE: WipedOnce = WipedOnce::new();
        assert!(ONCE.get().is_none());
        let words: Vec<usize> = std::thread::scope(|scope| {
            let make = || ptr::from_ref(ONCE.get_or_make(7).unwrap()).addr();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let kept = ONCE.get().unwrap();
        assert!(words.iter().all(|&word| word == ptr::from_ref(kept).addr()));
        assert_eq!(kept.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_child_finds_it_empty() {
        let wiped = WipedWord::new(5).unwrap();
        // SAFETY: the child makes one load and ends without handlers.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let seen = wiped.word().load(Ordering::Relaxed);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(seen != 0)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(wiped.word().load(Ordering::Relaxed), 5);
    }
}
