//! Atomics, locks, threads and the two things a thread can sleep on, so that the model checkers
//! can put their own in their place.
//!
//! Built as usual this is the standard library plus the kernel's futex and eventfd. Built with
//! `--cfg loom` or `--cfg shuttle` every shared word, lock, thread and sleep belongs to the model
//! checker, which then tries the orders in which threads may meet. [`Plain32`] and [`Plain64`] are
//! never modelled: they hold data that one thread at a time owns (the tests put cells in the
//! checker's sight beside them to prove that), or figures for a report.

use std::sync::atomic;

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(loom)]
pub(crate) use loom::thread::JoinHandle;

#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
#[cfg(shuttle)]
pub(crate) use shuttle::thread::JoinHandle;

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{Mutex, MutexGuard};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::thread::JoinHandle;

#[cfg(any(loom, shuttle, miri))]
pub(crate) use modelled::{Bell, Flag};
#[cfg(not(any(loom, shuttle, miri)))]
pub(crate) use real::{Bell, Flag};
#[cfg(loom)]
pub(crate) use touched::{AtomicU64, quietly};

/// A 64-bit word that is only ever read and written whole, without order.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Plain64(atomic::AtomicU64);

impl Plain64 {
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(atomic::Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, atomic::Ordering::Relaxed);
    }

    /// For figures: adds without a lost update.
    #[inline]
    pub(crate) fn add(&self, value: u64) {
        self.0.fetch_add(value, atomic::Ordering::Relaxed);
    }
}

/// A 32-bit word that is only ever read and written whole, without order.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Plain32(atomic::AtomicU32);

impl Plain32 {
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.0.load(atomic::Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, value: u32) {
        self.0.store(value, atomic::Ordering::Relaxed);
    }
}

/// Locks; a panic under the lock leaves data that every holder here can go on with.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Fails where so much memory is not to be had now. To be asked before what would end the program for
/// want of memory, such as the start of a thread: the memory is given back at once.
///
/// # Errors
/// There is no memory.
pub fn room(bytes: usize) -> std::io::Result<()> {
    let mut memory = Vec::<u8>::new();
    let got = memory.try_reserve_exact(bytes);
    // Or it would never be asked for.
    std::hint::black_box(&mut memory);
    got.map_err(|_| std::io::ErrorKind::OutOfMemory.into())
}

/// Collects, or fails where there is no memory to.
///
/// # Errors
/// There is no memory.
pub fn boxed<T>(all: impl ExactSizeIterator<Item = T>) -> std::io::Result<Box<[T]>> {
    let mut list = Vec::new();
    list.try_reserve_exact(all.len())
        .map_err(|_| std::io::ErrorKind::OutOfMemory)?;
    list.extend(all);
    Ok(list.into_boxed_slice())
}

/// Starts a thread that has a name, and waits until it runs: until then it takes memory of its own, and
/// two that do so at once may each find too little where [`room`] found enough, which ends the program.
///
/// # Errors
/// As [`std::thread::Builder::spawn`].
#[cfg(not(any(loom, shuttle)))]
pub fn spawn<F>(name: String, body: F) -> std::io::Result<JoinHandle<()>>
where
    F: FnOnce() + Send + 'static,
{
    let runs = std::sync::Arc::new(std::sync::Barrier::new(2));
    let there = std::sync::Arc::clone(&runs);
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        there.wait();
        body();
    })?;
    runs.wait();
    Ok(thread)
}

/// Starts a thread that has a name.
#[cfg(any(loom, shuttle))]
pub(crate) fn spawn<F>(name: String, body: F) -> std::io::Result<JoinHandle<()>>
where
    F: FnOnce() + Send + 'static,
{
    #[cfg(loom)]
    use loom::thread::Builder;
    #[cfg(shuttle)]
    use shuttle::thread::Builder;
    Builder::new().name(name).spawn(body)
}

#[cfg(not(any(loom, shuttle, miri)))]
mod real {
    use super::{AtomicU32, Ordering};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
    use rustix::thread::futex;
    use std::io;
    use std::time::Duration;

    /// A word that threads sleep on: a count of rings, and the kernel's futex on it.
    #[derive(Debug)]
    #[repr(transparent)]
    pub struct Bell(AtomicU32);

    impl Bell {
        pub(crate) fn new() -> Self {
            Self(AtomicU32::new(0))
        }

        pub(crate) fn rings(&self) -> u32 {
            self.0.load(Ordering::Acquire)
        }

        pub(crate) fn ring(&self, sleepers: u32) {
            // Release: who finds the new count finds what was done before the ring.
            self.0.fetch_add(1, Ordering::Release);
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, sleepers);
        }

        /// Sleeps while the count is `seen`, and at most `limit`. May return early.
        pub(crate) fn wait(&self, seen: u32, limit: Option<Duration>) {
            let limit = limit.map(|limit| rustix::time::Timespec {
                tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: limit.subsec_nanos().into(),
            });
            // Every error (a signal, the time-out, another count) means: look again.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, seen, limit.as_ref());
        }
    }

    /// Something for `poll()`: readable from [`Flag::raise`] to [`Flag::lower`].
    #[derive(Debug)]
    pub struct Flag(OwnedFd);

    impl Flag {
        pub(crate) fn new() -> io::Result<Self> {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            Ok(Self(eventfd(0, flags)?))
        }

        pub(crate) fn raise(&self) {
            // Fails only where the count is full, and then it is readable already.
            let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }

        /// Returns how often it was raised since it was last lowered.
        pub(crate) fn lower(&self) -> u32 {
            let mut count = [0u8; 8];
            // Fails where it is not readable, which is what is wanted.
            let _ = rustix::io::read(&self.0, &mut count);
            u64::from_ne_bytes(count) as u32
        }

        pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}

#[cfg(any(loom, shuttle, miri))]
mod modelled {
    use super::{AtomicU32, Mutex, Ordering, lock};
    use std::time::Duration;

    #[cfg(loom)]
    use loom::sync::Condvar;
    #[cfg(shuttle)]
    use shuttle::sync::Condvar;
    #[cfg(not(any(loom, shuttle)))]
    use std::sync::Condvar;

    /// What the kernel's futex promises: comparing the count and going to sleep are one step as
    /// seen by a waker. Time-outs never pass in the model, so that a lost wake-up is a deadlock.
    #[derive(Debug)]
    pub struct Bell {
        count: AtomicU32,
        bucket: Mutex<()>,
        sleepers: Condvar,
    }

    impl Bell {
        pub(crate) fn new() -> Self {
            Self {
                count: AtomicU32::new(0),
                bucket: Mutex::new(()),
                sleepers: Condvar::new(),
            }
        }

        pub(crate) fn rings(&self) -> u32 {
            self.count.load(Ordering::Acquire)
        }

        pub(crate) fn ring(&self, sleepers: u32) {
            self.count.fetch_add(1, Ordering::Release);
            let _bucket = lock(&self.bucket);
            if sleepers == 1 {
                self.sleepers.notify_one();
            } else {
                self.sleepers.notify_all();
            }
        }

        pub(crate) fn wait(&self, seen: u32, _limit: Option<Duration>) {
            let bucket = lock(&self.bucket);
            if self.count.load(Ordering::Acquire) == seen {
                drop(self.sleepers.wait(bucket));
            }
        }
    }

    /// What the kernel's eventfd promises.
    #[derive(Debug)]
    pub struct Flag {
        raised: Mutex<u32>,
        pollers: Condvar,
    }

    impl Flag {
        pub(crate) fn new() -> std::io::Result<Self> {
            Ok(Self {
                raised: Mutex::new(0),
                pollers: Condvar::new(),
            })
        }

        pub(crate) fn raise(&self) {
            *lock(&self.raised) += 1;
            self.pollers.notify_all();
        }

        pub(crate) fn lower(&self) -> u32 {
            std::mem::take(&mut *lock(&self.raised))
        }

        /// `poll()` without a time-out.
        #[cfg(any(loom, shuttle))]
        pub(crate) fn poll(&self) {
            let mut raised = lock(&self.raised);
            while *raised == 0 {
                raised = self
                    .pollers
                    .wait(raised)
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
            }
        }
    }
}

/// loom 0.7 decides where to switch threads by the last access to a word alone. A thread that
/// loads and then swaps hides its own swap from it: the load is the last access, and loads do not
/// depend on loads, so that an earlier load by another thread is never tried after the swap. (A
/// push with `Relaxed` onto a queue that the server had only looked at was not found.) So here
/// every access also touches a word beside it by a read-modify-write without order, on which every
/// later access depends; it adds no synchronisation. Nor does it add switches: access and touch are
/// one step, as an order that parts them reads and writes what one that does not does, by as many
/// preemptions. loom tries another thread's access before the step as a whole, since that is the
/// last switch before the touch that it may change. A model that is too large so leaves touches
/// out for the words of queues that have a model of their own ([`quietly`]).
#[cfg(loom)]
mod touched {
    use super::Ordering;
    use loom::sync::atomic;
    use std::cell::Cell;

    thread_local! {
        static QUIET: Cell<bool> = const { Cell::new(false) };
    }

    /// Makes words in `body` whose accesses leave out the touch, but for [`AtomicU64::watched`].
    pub(crate) fn quietly<T>(body: impl FnOnce() -> T) -> T {
        QUIET.set(true);
        let made = body();
        QUIET.set(false);
        made
    }

    #[derive(Debug)]
    pub struct AtomicU64 {
        word: atomic::AtomicU64,
        touches: Option<atomic::AtomicU32>,
    }

    impl AtomicU64 {
        pub(crate) fn new(value: u64) -> Self {
            let touches = (!QUIET.get()).then(|| atomic::AtomicU32::new(0));
            let word = atomic::AtomicU64::new(value);
            Self { word, touches }
        }

        pub(crate) fn watched(value: u64) -> Self {
            let touches = Some(atomic::AtomicU32::new(0));
            let word = atomic::AtomicU64::new(value);
            Self { word, touches }
        }

        /// Follows every access of the word, in the same step.
        fn touch(&self) {
            if let Some(touches) = &self.touches {
                loom::stop_exploring();
                touches.fetch_add(1, Ordering::Relaxed);
                loom::explore();
            }
        }

        pub(crate) fn load(&self, order: Ordering) -> u64 {
            let found = self.word.load(order);
            self.touch();
            found
        }

        pub(crate) fn store(&self, value: u64, order: Ordering) {
            self.word.store(value, order);
            self.touch();
        }

        pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
            let found = self.word.swap(value, order);
            self.touch();
            found
        }

        pub(crate) fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
            let found = self.word.fetch_or(bits, order);
            self.touch();
            found
        }

        pub(crate) fn compare_exchange(
            &self,
            expected: u64,
            value: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            let found = self
                .word
                .compare_exchange(expected, value, success, failure);
            self.touch();
            found
        }
    }
}
