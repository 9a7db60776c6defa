//! Whether this process is the one that made a region, or a child of it after `fork`.
//!
//! A child has no workers. It is told by a word that the kernel sets to 0 in it ([`WipedOnce`]), at the price of one
//! load at each visit. The word holds the process's number in the line of
//! forks that made regions, so that a child makes its own and is still known as a child by those of its parent.

use hither_linux::sys::WipedOnce;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Made with the first region.
static WORD: WipedOnce = WipedOnce::new();
/// The last number that was given, which a child inherits.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The process that made a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    word: &'static AtomicU64,
    number: u64,
}

impl Life {
    /// Of this process.
    pub(crate) fn here() -> io::Result<Self> {
        let word = WORD.get_or_make(0)?;
        let seen = word.load(Ordering::Relaxed);
        if seen != 0 {
            return Ok(Self { word, number: seen });
        }
        let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        // Another thread may be first.
        let given = word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
        let number = given.map_or_else(|first| first, |_| next);
        Ok(Self { word, number })
    }

    /// Is this the same process?
    #[inline]
    pub(crate) fn goes_on(self) -> bool {
        self.word.load(Ordering::Relaxed) == self.number
    }
}

thread_local! {
    /// Of a thread that waits, or answers: the process that it does so in.
    static OWN: std::cell::Cell<Option<Life>> = const { std::cell::Cell::new(None) };
}

/// Notes in which process the calling thread is about to wait; returns what was noted before.
#[inline]
pub(crate) fn note(life: Option<Life>) -> Option<Life> {
    OWN.replace(life)
}

/// Ends a child that was forked in a visit or during a wait and has returned from there: the worker, or the caller,
/// whom it would go on with is in its parent alone, and it would wait for ever.
pub(crate) fn end_lost_child() {
    if OWN.get().is_some_and(|life| !life.goes_on()) {
        lost();
    }
}

#[cold]
fn lost() -> ! {
    let text = b"hither: this process was forked in a visit to a region, or by a signal handler during one, and has \
        returned to it, where nobody answers: call exec() or _exit() before returning\n";
    // Neither locks nor memory of the standard library: another thread may have held them at the fork.
    // SAFETY: the kernel reads so many bytes of the text.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    std::process::abort();
}
