//! Signal actions, signal masks and CPUs of the calling thread, by bare system calls: for handlers, where nothing may be
//! allocated or locked, and for functions that stand in for the C library's, which must not call themselves.

use super::check;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::size_of;

/// Words of a set of CPUs, as in `cpu_set_t`: 1024 CPUs.
pub const MASK_WORDS: usize = 16;
/// A set of CPUs, a bit for each.
pub type CpuMask = [u64; MASK_WORDS];

/// A handler of the kind that is told what happened (`SA_SIGINFO`).
pub type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// What is done about a signal: the kernel's `struct sigaction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FaultAction {
    /// `SIG_DFL`, `SIG_IGN` or a function.
    pub handler: usize,
    /// `SA_*`.
    pub flags: u64,
    restorer: usize,
    /// Signals that are held back meanwhile; bit 0 is signal 1.
    pub mask: u64,
}

impl FaultAction {
    /// With these fields.
    #[must_use]
    pub const fn new(handler: usize, flags: u64, mask: u64) -> Self {
        Self {
            handler,
            flags,
            restorer: 0,
            mask,
        }
    }
}

/// The bit of a signal in a mask.
#[must_use]
pub const fn signal_bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// `SA_RESTORER`, which the C library does not show.
const SA_RESTORER: u64 = 0x0400_0000;

/// Where a handler returns to. These bytes are what debuggers and unwinders know a signal frame by.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn restorer() {
    // mov rax, SYS_rt_sigreturn (7 bytes); syscall
    std::arch::naked_asm!(".byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05")
}

/// Sets what is done about a signal, where `new` is given, and returns what was done before.
///
/// # Errors
/// `EINVAL`: there is no such signal, or nothing can be done about it.
///
/// # Safety
/// A handler must be a function of the right kind that lives as long as it is set.
pub unsafe fn swap_action(signal: c_int, new: Option<FaultAction>) -> io::Result<FaultAction> {
    let mut new = new;
    if let Some(action) = &mut new {
        #[cfg(target_arch = "x86_64")]
        {
            action.flags |= SA_RESTORER;
            action.restorer = restorer as *const () as usize;
        }
    }
    let new = new
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref::<FaultAction>);
    let mut old = FaultAction::default();
    // SAFETY: both are of the kernel's layout, whose mask has 8 bytes; the caller vouches for the handler.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            new,
            &raw mut old,
            size_of::<u64>(),
        )
    };
    check(result)?;
    old.flags &= !SA_RESTORER;
    Ok(old)
}

/// The calling thread's signal mask; sets it, where one is given.
#[must_use]
pub fn swap_mask(new: Option<u64>) -> u64 {
    let new = new
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref::<u64>);
    let mut old = 0u64;
    // SAFETY: both masks have the 8 bytes that are announced. It cannot fail then.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            new,
            &raw mut old,
            size_of::<u64>(),
        )
    };
    old
}

/// The CPUs that a thread may run on (0: the calling one); all zero where the kernel does not tell, as on machines with more than
/// 1024 CPUs.
#[must_use]
pub fn affinity(thread: i32) -> CpuMask {
    let mut mask = [0; MASK_WORDS];
    // SAFETY: the call writes at most the bytes announced of `mask`.
    unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            thread,
            size_of::<CpuMask>(),
            mask.as_mut_ptr(),
        )
    };
    mask
}

/// Keeps a thread (0: the calling one) on these CPUs.
///
/// # Errors
/// `EINVAL`: it may use none of them; `ESRCH`: it has ended.
pub fn set_affinity(thread: i32, mask: &CpuMask) -> io::Result<()> {
    super::process::set_affinity(thread, mask)
}
