//! The program's own handler of SIGSEGV: what is no touch of a region goes to it, as if the kernel had called it.
//!
//! It is the one that was set before, or by [`super::calls`] since. Where those do not stand in for the C
//! library's functions, a handler that is set later takes the place of ours: [`is_in_front`] tells.

use super::handler::on_fault;
use hither_linux::sys::fault::{self, FaultAction, signal_bit};
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Signals are sent with codes up to this one; the kernel's own have higher ones.
const LAST_SENT: c_int = 0;
/// Actions that were set last: one that a handler is just reading is not written anew before so many others.
const KEPT: usize = 64;

struct Kept {
    handler: AtomicUsize,
    flags: AtomicU64,
    mask: AtomicU64,
}

static ACTIONS: [Kept; KEPT] = [const { Kept::new() }; KEPT];
/// Of [`ACTIONS`], modulo their number: the last one that was begun, and the one that holds.
static BEGUN: AtomicUsize = AtomicUsize::new(0);
static CURRENT: AtomicUsize = AtomicUsize::new(0);
static IS_SET: AtomicBool = AtomicBool::new(false);

impl Kept {
    const fn new() -> Self {
        Self {
            handler: AtomicUsize::new(0),
            flags: AtomicU64::new(0),
            mask: AtomicU64::new(0),
        }
    }
}

/// Our action in front of the program's. It runs on the alternate stack where the program's does: a program that has made one for
/// its handler may have none that is large enough for others, whose handlers may be entered again by a touch.
fn ours(theirs: FaultAction) -> FaultAction {
    let stack = theirs.flags & libc::SA_ONSTACK as u64;
    let flags = libc::SA_SIGINFO as u64 | stack;
    FaultAction::new(on_fault as *const () as usize, flags, u64::MAX)
}

/// Puts ours in front of what is set now, unless it is there.
pub(super) fn install() -> io::Result<()> {
    // SAFETY: only asks.
    let before = unsafe { fault::swap_action(libc::SIGSEGV, None)? };
    if before.handler == on_fault as *const () as usize {
        return Ok(());
    }
    // First, so that a fault in another thread finds it.
    keep(before);
    // SAFETY: the handler lives as long as the program; this library is never unloaded while it is set.
    unsafe { fault::swap_action(libc::SIGSEGV, Some(ours(before)))? };
    IS_SET.store(true, Ordering::Release);
    Ok(())
}

/// Is it ours that the kernel calls?
pub(super) fn is_in_front() -> bool {
    // SAFETY: only asks.
    let now = unsafe { fault::swap_action(libc::SIGSEGV, None) };
    now.is_ok_and(|now| now.handler == on_fault as *const () as usize)
}

/// Has [`install`] put ours there, so that the program's actions are kept here?
pub(super) fn is_set() -> bool {
    IS_SET.load(Ordering::Acquire)
}

/// The program's action.
pub(super) fn current() -> FaultAction {
    let kept = &ACTIONS[CURRENT.load(Ordering::Acquire) % KEPT];
    FaultAction::new(
        kept.handler.load(Ordering::Relaxed),
        kept.flags.load(Ordering::Relaxed),
        kept.mask.load(Ordering::Relaxed),
    )
}

/// The program's action is this from now on, behind ours.
pub(super) fn set(action: FaultAction) {
    keep(action);
    if is_in_front() {
        // SAFETY: as in `install`.
        let _ = unsafe { fault::swap_action(libc::SIGSEGV, Some(ours(action))) };
    }
}

fn keep(action: FaultAction) {
    let next = BEGUN.fetch_add(1, Ordering::AcqRel) + 1;
    let kept = &ACTIONS[next % KEPT];
    kept.handler.store(action.handler, Ordering::Relaxed);
    kept.flags.store(action.flags, Ordering::Relaxed);
    kept.mask.store(action.mask, Ordering::Relaxed);
    CURRENT.store(next, Ordering::Release);
}

/// Does about a SIGSEGV what the program wants.
///
/// The program's handler has SIGSEGV open, even where it did not ask for it: it may touch regions, too.
///
/// # Safety
/// Within our handler, with its arguments.
pub(super) unsafe fn pass(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let action = current();
    // SAFETY: as the caller vouches.
    let is_sent = unsafe { (*info).si_code } <= LAST_SENT;
    if action.handler == libc::SIG_IGN && is_sent {
        return;
    }
    if action.handler == libc::SIG_DFL || action.handler == libc::SIG_IGN {
        // The access is made again and ends the program, with its own address in the core file.
        let default = FaultAction::new(libc::SIG_DFL, 0, 0);
        // SAFETY: no handler.
        let _ = unsafe { fault::swap_action(signal, Some(default)) };
        if is_sent {
            // SAFETY: to this thread, which takes it when our handler has returned.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
        }
        return;
    }
    if action.flags & libc::SA_RESETHAND as u32 as u64 != 0 {
        keep(FaultAction::new(libc::SIG_DFL, 0, 0));
    }
    // SAFETY: as the caller vouches; the kernel's mask is the first 8 bytes.
    let outside = unsafe {
        let context = context.cast::<libc::ucontext_t>();
        (&raw const (*context).uc_sigmask).cast::<u64>().read()
    };
    // The frame holds what is set when our handler returns.
    let _ = fault::swap_mask(Some((outside | action.mask) & !signal_bit(libc::SIGSEGV)));
    // SAFETY: the program set it as a handler of this signal, of the kind that its flags say.
    unsafe {
        if action.flags & libc::SA_SIGINFO as u64 == 0 {
            let handler: extern "C" fn(c_int) = std::mem::transmute(action.handler);
            handler(signal);
        } else {
            let handler: fault::Handler = std::mem::transmute(action.handler);
            handler(signal, info, context);
        }
    }
}
