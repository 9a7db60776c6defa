//! Keeps `fork` of the C library out of windows.
//!
//! A child that is born in a window has holes where pages are away. Where the kernel tells of forks
//! (`CAP_SYS_PTRACE`) the monitor gives the child its pages, unless the whole process is killed in
//! that moment: then the child would live on with holes. Handlers of pthread_atfork(3) wait until
//! the window is closed, some 100 us at most, and need no privilege. They do not see raw `clone`
//! calls; that is why, without the privilege, the backend must be asked for explicitly.
//!
//! Counters instead of a lock: the monitor leaves on behalf of a worker that died.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// Windows that are open. Written by workers; read by threads that fork.
static WINDOWS: AtomicU32 = AtomicU32::new(0);
/// Threads between the handlers. Written by them; read by workers.
static FORKING: AtomicU32 = AtomicU32::new(0);
static INSTALLED: Once = Once::new();

/// A look takes no longer than this to be repeated.
const NAP: Duration = Duration::from_micros(20);

/// Before a window opens: waits for forks under way, and keeps others waiting. `inside` is the
/// backend's own note of that.
pub(super) fn enter(inside: &AtomicBool) {
    INSTALLED.call_once(|| {
        // SAFETY: the handlers touch atomics and sleep; both may be done around a fork.
        let error = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        assert_eq!(error, 0, "no memory for fork handlers");
    });
    loop {
        WINDOWS.fetch_add(1, SeqCst);
        if FORKING.load(SeqCst) == 0 {
            inside.store(true, SeqCst);
            return;
        }
        WINDOWS.fetch_sub(1, SeqCst);
        std::thread::sleep(NAP);
    }
}

/// The window is closed, by whoever closed it.
pub(super) fn leave(inside: &AtomicBool) {
    if inside.swap(false, SeqCst) {
        WINDOWS.fetch_sub(1, SeqCst);
    }
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
