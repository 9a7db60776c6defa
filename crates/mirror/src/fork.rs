//! Forks. A child has its parent's mappings, those of copies included, and neither its leases nor its
//! helper: nobody would tell it of a write. So its first act, before any of the program's code runs in it, is
//! to map the originals back; then it begins anew with a helper of its own.
//!
//! The parent forks with the table's lock held, so that no mapping is half replaced in the child. A child
//! made by a bare `clone` or `_Fork` without `CLONE_VM` runs no handlers: it keeps the copies as they were,
//! and would read them also after the file was written.

use crate::helper;
use crate::sys::Blocked;
use crate::table::{self, HELPER};
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering;

struct Held(UnsafeCell<Option<Blocked>>);
// SAFETY: used by the holder of the table's lock alone.
unsafe impl Sync for Held {}
/// Signals of the forking thread, blocked for as long as it holds the lock.
static HELD: Held = Held(UnsafeCell::new(None));

extern "C" fn before() {
    let blocked = Blocked::all();
    table::take();
    // SAFETY: the lock is held.
    unsafe { *HELD.0.get() = Some(blocked) };
}

/// Gives the lock back, and the signals as they were.
fn release() {
    // SAFETY: the lock is held.
    let blocked = unsafe { (*HELD.0.get()).take() };
    table::release();
    drop(blocked);
}

extern "C" fn in_parent() {
    release();
}

extern "C" fn in_child() {
    let is_empty = table::while_taken(|table| {
        for range in table.ranges_mut() {
            range.give_back();
        }
        table.ranges().next().is_none()
    });
    HELPER.store(0, Ordering::Release);
    helper::forget();
    release();
    if !is_empty {
        helper::spawn();
    }
}

/// Has them called.
pub fn install() {
    // SAFETY: three functions that live as long as the process.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}
