//! Threads on CPUs, one each, before their first instruction.
//!
//! A place in the order of CPUs is taken by the thread that makes another, so that threads have
//! places in the order in which they are made, whichever runs first. The new one moves there, and
//! notes its number on the board; when it ends, a thread-specific value's destructor takes the note
//! away, also where it was cancelled. What ends without that (`_exit`, a signal) hither finds gone.

use super::plan::plan;
use super::{board, own_thread};
use crate::{bootstrap, exports};
use hither_core::shim::board::{THREADS, THREADS_REFUSED};
use hither_core::shim::{MOST_CPUS, Seats};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static IS_ON: AtomicBool = AtomicBool::new(false);
static KEY: AtomicU32 = AtomicU32::new(0);

type Pointer = *mut c_void;
type Start = unsafe extern "C-unwind" fn(Pointer) -> Pointer;
type Create = unsafe extern "C" fn(Pointer, Pointer, Start, Pointer) -> c_int;

/// What a new thread is told.
struct Told {
    start: Start,
    argument: Pointer,
    place: usize,
}

fn seats() -> Option<Seats<'static>> {
    board::seats(plan().cpus().len())
}

/// Places the first thread, if the plan has CPUs.
pub fn start() {
    if plan().cpus().is_empty() || seats().is_none() {
        return;
    }
    let mut key = 0;
    // SAFETY: the destructor has the type asked for, and this library is never unloaded.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(ended)) } != 0 {
        return;
    }
    KEY.store(key, Ordering::Relaxed);
    IS_ON.store(true, Ordering::Release);
    begin();
    // SAFETY: a function that stays. It makes system calls, and waits for nobody.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// The first thread of a process: it may have a place, of the program that it was before.
fn begin() {
    let Some(seats) = seats() else {
        return;
    };
    match seats.place(own_thread()) {
        Some(place) => drop(stay(place)),
        None => seats.take_place().map_or((), settle),
    }
}

extern "C" fn in_child() {
    let _errno = crate::record::Errno::keep();
    begin();
}

/// Keeps the calling thread on the CPU of a place. Says whether the kernel does.
fn stay(place: usize) -> bool {
    let Some(&cpu) = plan().cpus().get(place) else {
        return false;
    };
    let mut mask = [0u64; MOST_CPUS / 64 * 8];
    match mask.get_mut(cpu as usize / 64) {
        Some(word) => *word |= 1 << (cpu % 64),
        None => return false,
    }
    // SAFETY: reads as many bytes as announced.
    unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            0,
            size_of_val(&mask),
            mask.as_ptr(),
        ) == 0
    }
}

/// The calling thread has a place that was taken for it.
fn settle(place: usize) {
    let Some(seats) = seats() else {
        return;
    };
    if !stay(place) {
        seats.leave_place(place);
        return board::add(THREADS_REFUSED, 1);
    }
    seats.sit(own_thread(), place);
    board::add(THREADS, 1);
}

unsafe extern "C" fn ended(_: Pointer) {
    if let Some(seats) = seats() {
        seats.stand_up(own_thread());
    }
}

unsafe extern "C-unwind" fn begin_thread(told: Pointer) -> Pointer {
    // SAFETY: `create` made it for this thread alone.
    let Told {
        start,
        argument,
        place,
    } = unsafe { told.cast::<Told>().read() };
    exports::give_back(told);
    settle(place);
    // SAFETY: the key of `start`; any value but null has the destructor run.
    unsafe { libc::pthread_setspecific(KEY.load(Ordering::Relaxed), 1 as Pointer) };
    // SAFETY: the program's own function with its argument.
    unsafe { start(argument) }
}

/// Makes a thread, with a CPU of its own where the plan has some.
///
/// # Safety
/// As the C library's `pthread_create`.
pub unsafe fn create(
    thread: Pointer,
    attributes: Pointer,
    start: Start,
    argument: Pointer,
) -> c_int {
    let address = bootstrap::PTHREAD_CREATE.address();
    if address == 0 {
        return libc::EAGAIN;
    }
    // SAFETY: the function of that name has this type.
    let next = unsafe { std::mem::transmute::<usize, Create>(address) };
    let place = match IS_ON.load(Ordering::Acquire) {
        true => seats().and_then(|seats| seats.take_place().map(|place| (seats, place))),
        false => None,
    };
    let Some((seats, place)) = place else {
        // SAFETY: the program's own request.
        return unsafe { next(thread, attributes, start, argument) };
    };
    let told = exports::take(size_of::<Told>(), 16);
    if told.is_null() {
        seats.leave_place(place);
        return libc::EAGAIN;
    }
    // SAFETY: memory of that size, which is nobody else's.
    unsafe {
        told.cast::<Told>().write(Told {
            start,
            argument,
            place,
        })
    };
    // SAFETY: `begin_thread` calls the program's function.
    let failure = unsafe { next(thread, attributes, begin_thread, told) };
    if failure != 0 {
        seats.leave_place(place);
        exports::give_back(told);
    }
    failure
}
