//! The word that threads meet at and sleep on, and cells of one thread at a time; so that loom can put its own in
//! their place.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(not(loom))]
use std::cell::UnsafeCell;

/// A value that one thread at a time uses: the protocol hands it over, and loom checks that it does.
#[derive(Debug)]
pub(crate) struct Owned<T>(UnsafeCell<T>);

impl<T: Copy> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// # Safety
    /// No other thread uses it now.
    #[inline]
    pub(crate) unsafe fn get(&self) -> T {
        #[cfg(loom)]
        // SAFETY: as the caller vouches; loom fails the test otherwise.
        return self.0.with(|value| unsafe { *value });
        #[cfg(not(loom))]
        // SAFETY: as the caller vouches.
        return unsafe { *self.0.get() };
    }

    /// # Safety
    /// As [`Owned::get`].
    #[inline]
    pub(crate) unsafe fn set(&self, value: T) {
        #[cfg(loom)]
        // SAFETY: as the caller vouches; loom fails the test otherwise.
        self.0.with_mut(|old| unsafe { *old = value });
        #[cfg(not(loom))]
        // SAFETY: as the caller vouches.
        unsafe {
            *self.0.get() = value;
        }
    }
}

pub(crate) use word::Word;

#[cfg(not(loom))]
mod word {
    use super::{AtomicUsize, Ordering};

    /// No thread sleeps for longer at once. Where a handler forks between the look at [`crate::life`] and the
    /// kernel's sleep, the child looks again after this; a kernel sleep with a limit also ends with every signal,
    /// whatever SA_RESTART says (`futex(2)`, `signal(7)`).
    const LONGEST_SLEEP: libc::timespec = libc::timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };

    /// An atomic word, on whose lower half the kernel lets threads sleep.
    #[derive(Debug)]
    #[repr(transparent)]
    pub(crate) struct Word(AtomicUsize);

    /// Where a thread may sleep. The memory may be gone: the kernel compares addresses, and a wake that meets
    /// another sleeper there makes that look again.
    pub(crate) struct Bed(*const u32);

    impl Word {
        pub(crate) fn new(value: usize) -> Self {
            Self(AtomicUsize::new(value))
        }

        #[inline]
        pub(crate) fn load(&self, order: Ordering) -> usize {
            self.0.load(order)
        }

        #[inline]
        pub(crate) fn swap(&self, value: usize, order: Ordering) -> usize {
            self.0.swap(value, order)
        }

        #[inline]
        pub(crate) fn compare_exchange(
            &self,
            expected: usize,
            value: usize,
            success: Ordering,
        ) -> Result<usize, usize> {
            let word = &self.0;
            word.compare_exchange(expected, value, success, Ordering::Relaxed)
        }

        #[inline]
        pub(crate) fn bed(&self) -> Bed {
            let halves = (&raw const self.0).cast::<u32>();
            Bed(halves.wrapping_add(usize::from(cfg!(target_endian = "big"))))
        }

        /// Sleeps while the lower half is `value`. May return early: at a signal, at the limit, at a wake that was
        /// meant for another.
        pub(crate) fn sleep(&self, value: u32) {
            let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            let limit = std::ptr::from_ref(&LONGEST_SLEEP);
            // SAFETY: the kernel reads the word, which `self` keeps alive, and the limit.
            unsafe { libc::syscall(libc::SYS_futex, self.bed().0, operation, value, limit) };
        }
    }

    impl Bed {
        /// Wakes who sleeps there, if anybody.
        pub(crate) fn wake(self) {
            let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: a private wake uses the address as a name and reads nothing there.
            unsafe { libc::syscall(libc::SYS_futex, self.0, operation, 1) };
        }
    }
}

#[cfg(loom)]
mod word {
    use super::{AtomicUsize, Ordering};
    use loom::sync::{Arc, Condvar, Mutex};

    /// What the kernel's futex promises: comparing the word and going to sleep are one step as seen by a waker. No
    /// sleep ends by itself, so that a lost wake-up is a deadlock, which loom reports.
    #[derive(Debug)]
    pub(crate) struct Word {
        value: AtomicUsize,
        /// loom decides where to switch threads by the last access of a word, and loads depend on no loads: a load
        /// before a swap hides the swap. A read-modify-write beside each access, without order and in the same step,
        /// shows it (as in `crates/mover`).
        touches: AtomicUsize,
        bed: Arc<(Mutex<()>, Condvar)>,
    }

    /// Outlives the word, as an address does.
    pub(crate) struct Bed(Arc<(Mutex<()>, Condvar)>);

    impl Word {
        pub(crate) fn new(value: usize) -> Self {
            Self {
                value: AtomicUsize::new(value),
                touches: AtomicUsize::new(0),
                bed: Arc::new((Mutex::new(()), Condvar::new())),
            }
        }

        /// Before the access, as the word may be gone after it.
        fn touch(&self) {
            self.touches.fetch_add(1, Ordering::Relaxed);
            loom::stop_exploring();
        }

        fn touched<T>(found: T) -> T {
            loom::explore();
            found
        }

        pub(crate) fn load(&self, order: Ordering) -> usize {
            self.touch();
            Self::touched(self.value.load(order))
        }

        pub(crate) fn swap(&self, value: usize, order: Ordering) -> usize {
            self.touch();
            Self::touched(self.value.swap(value, order))
        }

        pub(crate) fn compare_exchange(
            &self,
            expected: usize,
            value: usize,
            success: Ordering,
        ) -> Result<usize, usize> {
            self.touch();
            let word = &self.value;
            Self::touched(word.compare_exchange(expected, value, success, Ordering::Relaxed))
        }

        pub(crate) fn bed(&self) -> Bed {
            Bed(Arc::clone(&self.bed))
        }

        pub(crate) fn sleep(&self, value: u32) {
            let bucket = self.bed.0.lock().unwrap();
            if self.load(Ordering::Relaxed) == value as usize {
                drop(self.bed.1.wait(bucket));
            }
        }
    }

    impl Bed {
        pub(crate) fn wake(self) {
            let _bucket = self.0.0.lock().unwrap();
            self.0.1.notify_one();
        }
    }
}
