//! Keeps `fork` of the C library out of windows, where no event tells of forks.
//!
//! A child that is born in a window has holes where pages are away. With `CAP_SYS_PTRACE` the
//! kernel tells of every fork and the child gets its pages; without it, handlers of
//! pthread_atfork(3) wait until the window is closed (some 100 us at most). They do not see raw
//! `clone` calls; that is why the backend must be asked for explicitly in that case.
//!
//! Counters instead of a lock: the monitor leaves on behalf of a worker that died.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// Windows that are open. Written by workers; read by threads that fork.
static WINDOWS: AtomicU32 = AtomicU32::new(0);
/// Threads between the handlers. Written by them; read by workers.
static FORKING: AtomicU32 = AtomicU32::new(0);
static INSTALLED: Once = Once::new();

/// A look takes no longer than this to be repeated.
const NAP: Duration = Duration::from_micros(20);

/// Before a window opens: waits for forks under way, and keeps others waiting.
pub(super) fn enter() {
    INSTALLED.call_once(|| {
        // SAFETY: the handlers touch atomics and sleep; both may be done around a fork.
        let error = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        assert_eq!(error, 0, "no memory for fork handlers");
    });
    loop {
        WINDOWS.fetch_add(1, SeqCst);
        if FORKING.load(SeqCst) == 0 {
            return;
        }
        WINDOWS.fetch_sub(1, SeqCst);
        std::thread::sleep(NAP);
    }
}

/// The window is closed.
pub(super) fn leave() {
    WINDOWS.fetch_sub(1, SeqCst);
}

extern "C" fn prepare() {
    FORKING.fetch_add(1, SeqCst);
    while WINDOWS.load(SeqCst) != 0 {
        std::thread::sleep(NAP);
    }
}

extern "C" fn parent() {
    FORKING.fetch_sub(1, SeqCst);
}

/// Only the forking thread lives here, and no window is open.
extern "C" fn child() {
    FORKING.store(0, SeqCst);
    WINDOWS.store(0, SeqCst);
}
