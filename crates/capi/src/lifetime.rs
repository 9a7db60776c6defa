//! Whether this process is the one that opened movers, or a child of it after `fork`.
//!
//! A child has no worker threads, and a lock that another thread held at the fork stays held for
//! ever. So nothing is touched before this was asked. It is asked at every call and must not cost
//! a system call: a word that the kernel wipes at fork tells ([`WipedOnce`]).

use crate::constants::{HITHER_EFORK, HITHER_ENOMEM};
use crate::failure::{Failure, Outcome};
use hither_linux::sys::WipedOnce;
use std::sync::atomic::Ordering;

const ALIVE: u64 = 1;

/// Made when the first mover is opened or memory is allocated in a set. A child that inherits none may open
/// movers of its own.
static WORD: WipedOnce = WipedOnce::new();

/// Before the first mover is opened, or memory is allocated.
pub(crate) fn begin() -> Outcome<()> {
    WORD.get_or_make(ALIVE).map_err(|error| {
        let text = format!("no page to note forks in: {error}; free memory, or use Linux 4.14");
        Failure::new(HITHER_ENOMEM, text)
    })?;
    check()
}

/// Refuses children. Fine before the first mover was opened, when nothing can be found anyway.
#[inline]
pub(crate) fn check() -> Outcome<()> {
    let word = WORD.get();
    if word.is_none_or(|word| word.load(Ordering::Relaxed) == ALIVE) {
        return Ok(());
    }
    Err(Failure::new(
        HITHER_EFORK,
        "this process is a child after fork(), and the movers are its parent's: call exec(), or \
         fork before the first hither_open() or hither_alloc()",
    ))
}
