//! Atomics, so that loom can put its own in their place; and a word that a forked child finds zero.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// In a cache line of its own; two, as processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Line<T>(pub T);

/// The child learns by the load that every reader makes anyway that writers and copies are its parent's.
#[cfg(not(any(loom, miri)))]
pub(crate) use hither_linux::sys::WipedWord as Wiped;

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
