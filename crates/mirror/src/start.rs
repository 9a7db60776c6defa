//! What was asked for, read once from the environment before the program's first instruction, and the
//! helper's first start.

use crate::exports::{NEXT_MMAP, NEXT_MREMAP, NEXT_MUNMAP};
use crate::table::{self, HELPER, Range};
use crate::{code, fork, helper, sys};
use hither_core::mirror::{Plan, environment};
use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug)]
struct Told {
    plan: Plan,
    reports: Option<PathBuf>,
}

static TOLD: OnceLock<Told> = OnceLock::new();

/// What is asked for; `None` where nothing is.
#[inline]
pub fn plan() -> Option<&'static Plan> {
    TOLD.get().map(|told| &told.plan)
}

/// Folder of reports.
pub fn reports() -> Option<&'static PathBuf> {
    TOLD.get()?.reports.as_ref()
}

/// Notes a mapping, and has the helper look at it.
pub fn note(range: Range) {
    if !table::with(|table| table.add(range)) {
        sys::unmap(range.original, range.bytes);
        return;
    }
    match HELPER.load(Ordering::Acquire) {
        0 => helper::spawn(),
        thread => sys::wake(thread),
    }
}

fn look_up(place: &AtomicUsize, name: &CStr) {
    // SAFETY: a terminated name; the process has one thread.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    place.store(address as usize, Ordering::Relaxed);
}

extern "C" fn start() {
    let Ok(text) = std::env::var(environment::PLAN) else {
        return;
    };
    look_up(&NEXT_MMAP, c"mmap");
    look_up(&NEXT_MUNMAP, c"munmap");
    look_up(&NEXT_MREMAP, c"mremap");
    let Ok(plan) = text.parse() else { return };
    // Each file takes its addresses a second time, and its copy twice: the program would miss them.
    if sys::is_limited() {
        return;
    }
    let reports = std::env::var_os(environment::REPORTS).map(PathBuf::from);
    let _ = TOLD.set(Told { plan, reports });
    fork::install();
    if TOLD.get().is_some_and(|told| told.plan.code) {
        code::note();
    }
}

extern "C" fn finish() {
    helper::leave();
}

/// Run by the dynamic linker before the program's own constructors.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = start;
/// Run when the program ends by exit(3) or by returning from main.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = finish;
#[cfg(test)]
const _: [extern "C" fn(); 2] = [start, finish];
