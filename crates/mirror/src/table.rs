//! Mappings that may have copies: a table of fixed size that the program's calls and the helper share.
//!
//! Calls of the program look at two words first: the least and the greatest address of any mapping here.
//! Those that do not touch one never lock. Who does blocks signals before it locks, so that no handler
//! waits for the thread that it interrupted; nothing is allocated under the lock, and nothing waits.

use crate::sys::{self, Blocked};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

/// Most mappings; what a program maps beyond keeps its original.
pub const MOST_RANGES: usize = 256;

/// A mapping of a file.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// First address.
    pub start: usize,
    /// Bytes, whole pages.
    pub bytes: usize,
    /// Where in the file it begins.
    pub offset: u64,
    /// As given to mmap.
    pub protection: i32,
    /// Do all see what one writes?
    pub is_shared: bool,
    /// File system and file.
    pub device: u64,
    /// File there.
    pub inode: u64,
    /// Bytes of the file when it was mapped.
    pub file_bytes: u64,
    /// A second mapping of the same part of the file.
    pub original: usize,
    /// Are there copies over it?
    pub is_mirrored: bool,
    /// Given once: another mapping at the same address has another one.
    pub number: u64,
}

impl Range {
    /// The address behind it.
    pub fn end(&self) -> usize {
        self.start + self.bytes
    }

    fn meets(&self, start: usize, end: usize) -> bool {
        self.start < end && start < self.end()
    }

    /// Does this kernel move the original over a mapping as it is needed (5.13)? Tried where nothing changes.
    pub fn try_out(&self) -> bool {
        // SAFETY: as in `give_back`.
        unsafe { sys::move_over(self.original, self.start, self.bytes) }.is_ok()
    }

    /// Maps the original over all copies. A moment later no thread of this process sees them.
    pub fn give_back(&mut self) {
        if self.is_mirrored {
            // SAFETY: both are mappings of the same part of the same file, known here alone, and no call
            // of the program's unmaps one, as it would have to lock.
            let done = unsafe { sys::move_over(self.original, self.start, self.bytes) };
            self.is_mirrored = done.is_err();
        }
    }
}

/// What the lock guards.
#[derive(Debug)]
pub struct Inner {
    ranges: [Option<Range>; MOST_RANGES],
    next_number: u64,
    /// Mappings that found no place.
    pub unnoted_count: u64,
}

impl Inner {
    /// All mappings.
    pub fn ranges(&self) -> impl Iterator<Item = &Range> {
        self.ranges.iter().flatten()
    }

    /// All mappings.
    pub fn ranges_mut(&mut self) -> impl Iterator<Item = &mut Range> {
        self.ranges.iter_mut().flatten()
    }

    /// One mapping.
    pub fn find(&mut self, number: u64) -> Option<&mut Range> {
        self.ranges_mut().find(|range| range.number == number)
    }

    /// Notes one; false where there is no place.
    pub fn add(&mut self, mut range: Range) -> bool {
        let place = self.ranges.iter_mut().find(|place| place.is_none());
        let Some(place) = place.filter(|_| !is_closed()) else {
            self.unnoted_count += 1;
            return false;
        };
        self.next_number += 1;
        range.number = self.next_number;
        *place = Some(range);
        self.bound();
        true
    }

    /// Gives back and forgets what meets these addresses.
    pub fn remove(&mut self, start: usize, end: usize) {
        for place in &mut self.ranges {
            if let Some(range) = place.as_mut().filter(|range| range.meets(start, end)) {
                range.give_back();
                sys::unmap(range.original, range.bytes);
                *place = None;
            }
        }
        self.bound();
    }

    /// Gives back and forgets all; nothing is noted any more.
    pub fn close(&mut self) {
        CLOSED.store(true, Ordering::Release);
        self.remove(0, usize::MAX);
    }

    fn bound(&self) {
        let least = self.ranges().map(|range| range.start).min();
        let most = self.ranges().map(Range::end).max();
        LEAST.store(least.unwrap_or(usize::MAX), Ordering::Release);
        MOST.store(most.unwrap_or(0), Ordering::Release);
    }
}

/// Written under the lock, read by anybody: first address of all mappings, and the one behind the last.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
static MOST: AtomicUsize = AtomicUsize::new(0);
/// Is nothing noted any more? Written under the lock.
static CLOSED: AtomicBool = AtomicBool::new(false);
/// The helper's thread; 0 where there is none. Written under the lock.
pub static HELPER: AtomicI32 = AtomicI32::new(0);

struct Table {
    /// 0 free, 1 taken. Acquired by the exchange, released by the store; waiters yield, as it is held for
    /// system calls that do not wait.
    lock: AtomicU32,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is used by the holder of `lock` alone.
unsafe impl Sync for Table {}

static TABLE: Table = Table {
    lock: AtomicU32::new(0),
    inner: UnsafeCell::new(Inner {
        ranges: [None; MOST_RANGES],
        next_number: 0,
        unnoted_count: 0,
    }),
};

/// May a mapping meet these addresses?
#[inline]
pub fn may_meet(start: usize, bytes: usize) -> bool {
    start < MOST.load(Ordering::Acquire)
        && start.saturating_add(bytes) > LEAST.load(Ordering::Acquire)
}

/// Is nothing noted any more?
pub fn is_closed() -> bool {
    CLOSED.load(Ordering::Acquire)
}

/// Takes the lock, for [`release`] to give back.
pub fn take() {
    let free = || (TABLE.lock).compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
    while free().is_err() {
        std::thread::yield_now();
    }
}

/// Gives the lock back: of who took it, or of a child that was forked while it was taken.
pub fn release() {
    TABLE.lock.store(0, Ordering::Release);
}

/// Does something with the table, with signals blocked.
pub fn with<T>(action: impl FnOnce(&mut Inner) -> T) -> T {
    let _signals = Blocked::all();
    take();
    // SAFETY: the lock is held.
    let result = action(unsafe { &mut *TABLE.inner.get() });
    release();
    result
}

/// Does something with the table while the caller holds the lock by [`take`].
pub fn while_taken<T>(action: impl FnOnce(&mut Inner) -> T) -> T {
    // SAFETY: the caller holds the lock.
    action(unsafe { &mut *TABLE.inner.get() })
}
