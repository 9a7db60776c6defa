//! Functions that stand in for the C library's, so that a program's system calls find their buffers open, and its own
//! handlers stay behind ours. [`crate::stand_in`] defines them in a program; nobody else is affected.
//!
//! Each opens what its buffers touch ([`super::open_ranges`]) and makes the bare system call. They are no cancellation points of
//! pthread_cancel(3). What the C library calls within itself, as `fread` does, does not come here.

use super::chain;
use super::handler::{Opened, leave, open_ranges};
use hither_linux::sys::fault::{FaultAction, signal_bit, swap_action};
use libc::{iovec, msghdr, sigset_t, size_t, sockaddr, socklen_t, ssize_t};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Opens a buffer.
fn buffer(start: *const c_void, bytes: size_t) -> Opened {
    open_ranges(std::iter::once((start as u64, bytes as u64)))
}

/// A table of buffers, and the buffers.
///
/// # Safety
/// The program passed them to a function of the C library.
unsafe fn vectors<'a>(table: *const iovec, count: c_int) -> impl Iterator<Item = (u64, u64)> + 'a {
    let count = if table.is_null() {
        0
    } else {
        count.clamp(0, 1024)
    };
    let entries = (0..count as usize).map(move |index| {
        // SAFETY: the table has so many entries, as the program vouches; it may itself lie in a region.
        let entry = unsafe { table.add(index).read() };
        (entry.iov_base as u64, entry.iov_len as u64)
    });
    let own = (table as u64, count as u64 * size_of::<iovec>() as u64);
    std::iter::once(own).chain(entries)
}

/// A message, and what it points to.
///
/// # Safety
/// As [`vectors`].
unsafe fn message<'a>(message: *const msghdr) -> impl Iterator<Item = (u64, u64)> + 'a {
    // SAFETY: as the caller vouches.
    let head = unsafe { message.read() };
    let own = [
        (message as u64, size_of::<msghdr>() as u64),
        (head.msg_name as u64, u64::from(head.msg_namelen)),
        (head.msg_control as u64, head.msg_controllen as u64),
    ];
    // SAFETY: as the caller vouches.
    let parts = unsafe { vectors(head.msg_iov, head.msg_iovlen as c_int) };
    own.into_iter().chain(parts)
}

/// Functions of the C library that make one system call with these arguments. In front of it the ranges are opened.
macro_rules! stand_in_for {
    ($($name:ident, $number:ident, ($($argument:ident: $type:ty),*), $ranges:expr;)*) => {$(
        /// Stands in for the function of the C library.
        ///
        /// # Safety
        /// As that.
        pub unsafe fn $name($($argument: $type),*) -> ssize_t {
            let _open: Opened = $ranges;
            // SAFETY: as the caller vouches. 64-bit systems take an offset as one word.
            unsafe { libc::syscall(libc::$number, $($argument),*) as ssize_t }
        }
    )*};
}

stand_in_for! {
    read, SYS_read, (file: c_int, start: *mut c_void, bytes: size_t), buffer(start, bytes);
    write, SYS_write, (file: c_int, start: *const c_void, bytes: size_t), buffer(start, bytes);
    pread, SYS_pread64, (file: c_int, start: *mut c_void, bytes: size_t, offset: i64), buffer(start, bytes);
    pwrite, SYS_pwrite64, (file: c_int, start: *const c_void, bytes: size_t, offset: i64), buffer(start, bytes);
    // SAFETY: as the callers of these vouch.
    readv, SYS_readv, (file: c_int, table: *const iovec, count: c_int), open_ranges(unsafe { vectors(table, count) });
    // SAFETY: as above.
    writev, SYS_writev, (file: c_int, table: *const iovec, count: c_int), open_ranges(unsafe { vectors(table, count) });
    // SAFETY: as above.
    recvmsg, SYS_recvmsg, (file: c_int, head: *mut msghdr, flags: c_int), open_ranges(unsafe { message(head) });
    // SAFETY: as above.
    sendmsg, SYS_sendmsg, (file: c_int, head: *const msghdr, flags: c_int), open_ranges(unsafe { message(head) });
    recvfrom, SYS_recvfrom,
        (file: c_int, start: *mut c_void, bytes: size_t, flags: c_int, name: *mut sockaddr, length: *mut socklen_t),
        buffer(start, bytes);
    sendto, SYS_sendto,
        (file: c_int, start: *const c_void, bytes: size_t, flags: c_int, name: *const sockaddr, length: socklen_t),
        buffer(start, bytes);
}

/// Stands in for `recv`.
///
/// # Safety
/// As that.
pub unsafe fn recv(file: c_int, start: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as the caller vouches.
    unsafe { recvfrom(file, start, bytes, flags, ptr::null_mut(), ptr::null_mut()) }
}

/// Stands in for `send`.
///
/// # Safety
/// As that.
pub unsafe fn send(file: c_int, start: *const c_void, bytes: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as the caller vouches.
    unsafe { sendto(file, start, bytes, flags, ptr::null(), 0) }
}

/// The kernel's part of a set of signals.
///
/// # Safety
/// Not null, and readable.
unsafe fn mask_of(set: *const sigset_t) -> u64 {
    // SAFETY: as the caller vouches; the kernel's mask is the first 8 bytes.
    unsafe { set.cast::<u64>().read() }
}

/// # Safety
/// Not null, and writable.
unsafe fn set_mask(set: *mut sigset_t, mask: u64) {
    // SAFETY: as the caller vouches; all zero is a set without signals.
    unsafe {
        set.write_bytes(0, 1);
        set.cast::<u64>().write(mask);
    }
}

fn failed(error: c_int) -> c_int {
    // SAFETY: this thread's word.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// Stands in for `sigaction`. The program's action for SIGSEGV is kept and called by ours; no handler holds SIGSEGV back,
/// as it may touch regions.
///
/// # Safety
/// As that.
pub unsafe fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // Signals that the C library keeps for itself.
    if signal == 32 || signal == 33 {
        return failed(libc::EINVAL);
    }
    // SAFETY: as the caller vouches.
    let wanted = (!new.is_null()).then(|| unsafe {
        let flags = (*new).sa_flags as u32;
        let mask = mask_of(&raw const (*new).sa_mask);
        FaultAction::new((*new).sa_sigaction, u64::from(flags), mask)
    });
    let before = if signal == libc::SIGSEGV && chain::is_set() {
        let before = chain::current();
        if let Some(action) = wanted {
            chain::set(action);
        }
        before
    } else {
        let open = wanted.map(|action| {
            FaultAction::new(
                action.handler,
                action.flags,
                action.mask & !signal_bit(libc::SIGSEGV),
            )
        });
        // SAFETY: as the caller vouches.
        match unsafe { swap_action(signal, open) } {
            Ok(before) => before,
            Err(error) => return failed(error.raw_os_error().unwrap_or(libc::EINVAL)),
        }
    };
    if !old.is_null() {
        // SAFETY: as the caller vouches.
        unsafe {
            old.write_bytes(0, 1);
            (*old).sa_sigaction = before.handler;
            (*old).sa_flags = before.flags as c_int;
            set_mask(&raw mut (*old).sa_mask, before.mask);
        }
    }
    0
}

/// Stands in for `signal`.
///
/// # Safety
/// As that.
pub unsafe fn signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: plain data.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = libc::SA_RESTART;
    // SAFETY: both are valid; the caller vouches for the handler.
    match unsafe { sigaction(signal, &raw const new, &raw mut old) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

/// Stands in for `pthread_sigmask`, and leaves SIGSEGV open: who holds it back is killed by a touch.
///
/// # Safety
/// As that.
pub unsafe fn pthread_sigmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    // The C library's own, and ours.
    const KEPT: u64 = signal_bit(32) | signal_bit(33) | signal_bit(libc::SIGSEGV);
    let mask = (!new.is_null()).then(|| {
        // SAFETY: as the caller vouches.
        let mask = unsafe { mask_of(new) };
        if how == libc::SIG_UNBLOCK {
            mask
        } else {
            mask & !KEPT
        }
    });
    let new = mask.as_ref().map_or(ptr::null(), ptr::from_ref::<u64>);
    let mut before = 0u64;
    // SAFETY: both have the 8 bytes that are announced.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            new,
            &raw mut before,
            size_of::<u64>(),
        )
    };
    if result != 0 {
        return libc::EINVAL;
    }
    if !old.is_null() {
        // SAFETY: as the caller vouches.
        unsafe { set_mask(old, before) };
    }
    0
}

/// Stands in for `sigprocmask`.
///
/// # Safety
/// As that.
pub unsafe fn sigprocmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: as the caller vouches.
    match unsafe { pthread_sigmask(how, new, old) } {
        0 => 0,
        error => failed(error),
    }
}

/// The C library's own function.
///
/// # Safety
/// `F` is a function pointer of its kind.
unsafe fn next<F: Copy>(kept: &AtomicPtr<c_void>, name: &std::ffi::CStr) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let mut found = kept.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: a name that ends with 0.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?} is in no library");
        kept.store(found, Ordering::Relaxed);
    }
    // SAFETY: as the caller vouches.
    unsafe { std::mem::transmute_copy(&found) }
}

/// What `pthread_create` is.
pub type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    extern "C" fn(*mut c_void) -> *mut c_void,
    *mut c_void,
) -> c_int;

/// Stands in for `pthread_create`: the thread that starts one leaves its domain, or the new one would inherit its CPUs.
///
/// # Safety
/// As that.
pub unsafe fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    leave();
    // SAFETY: the function of this name; the caller vouches for the arguments.
    unsafe { next::<Create>(&NEXT, c"pthread_create")(thread, attributes, start, argument) }
}

/// Defines functions in a program that stand in for those of the C library: `read`, `write`, `pread`, `pwrite`, `readv`,
/// `writev`, `recv`, `send`, `recvfrom`, `sendto`, `recvmsg` and `sendmsg`, which open their buffers beforehand;
/// `sigaction`, `signal`, `sigprocmask` and `pthread_sigmask`, which keep SIGSEGV open and the program's handler of it behind
/// ours; `pthread_create`, whose threads do not inherit a domain's CPUs.
///
/// Write it once, in the program itself, outside of functions. Libraries that are loaded call these too, as far as the linker
/// shows them to those.
#[macro_export]
macro_rules! stand_in {
    () => {
        $crate::stand_in! { @functions
            read(i32, *mut ::std::ffi::c_void, usize) -> isize;
            write(i32, *const ::std::ffi::c_void, usize) -> isize;
            pread(i32, *mut ::std::ffi::c_void, usize, i64) -> isize;
            pwrite(i32, *const ::std::ffi::c_void, usize, i64) -> isize;
            readv(i32, *const $crate::calls::Iovec, i32) -> isize;
            writev(i32, *const $crate::calls::Iovec, i32) -> isize;
            recv(i32, *mut ::std::ffi::c_void, usize, i32) -> isize;
            send(i32, *const ::std::ffi::c_void, usize, i32) -> isize;
            recvfrom(i32, *mut ::std::ffi::c_void, usize, i32, *mut $crate::calls::Sockaddr, *mut u32) -> isize;
            sendto(i32, *const ::std::ffi::c_void, usize, i32, *const $crate::calls::Sockaddr, u32) -> isize;
            recvmsg(i32, *mut $crate::calls::Msghdr, i32) -> isize;
            sendmsg(i32, *const $crate::calls::Msghdr, i32) -> isize;
            sigaction(i32, *const $crate::calls::Sigaction, *mut $crate::calls::Sigaction) -> i32;
            signal(i32, usize) -> usize;
            sigprocmask(i32, *const $crate::calls::Sigset, *mut $crate::calls::Sigset) -> i32;
            pthread_sigmask(i32, *const $crate::calls::Sigset, *mut $crate::calls::Sigset) -> i32;
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn pread64(file: i32, start: *mut ::std::ffi::c_void, bytes: usize, at: i64) -> isize {
            // SAFETY: as the caller vouches.
            unsafe { $crate::calls::pread(file, start, bytes, at) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn pwrite64(file: i32, start: *const ::std::ffi::c_void, bytes: usize, at: i64) -> isize {
            // SAFETY: as the caller vouches.
            unsafe { $crate::calls::pwrite(file, start, bytes, at) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn pthread_create(
            thread: *mut ::std::ffi::c_ulong,
            attributes: *const $crate::calls::Attributes,
            start: extern "C" fn(*mut ::std::ffi::c_void) -> *mut ::std::ffi::c_void,
            argument: *mut ::std::ffi::c_void,
        ) -> i32 {
            // SAFETY: as the caller vouches.
            unsafe { $crate::calls::pthread_create(thread, attributes, start, argument) }
        }
    };
    (@functions $($name:ident($($type:ty),*) -> $result:ty;)*) => {
        $($crate::stand_in! { @one $name ($($type),*) -> $result })*
    };
    (@one $name:ident ($one:ty, $two:ty) -> $result:ty) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(one: $one, two: $two) -> $result {
            // SAFETY: as the caller vouches.
            unsafe { $crate::calls::$name(one, two) }
        }
    };
    (@one $name:ident ($one:ty, $two:ty, $three:ty) -> $result:ty) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(one: $one, two: $two, three: $three) -> $result {
            // SAFETY: as the caller vouches.
            unsafe { $crate::calls::$name(one, two, three) }
        }
    };
    (@one $name:ident ($one:ty, $two:ty, $three:ty, $four:ty) -> $result:ty) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(one: $one, two: $two, three: $three, four: $four) -> $result {
            // SAFETY: as the caller vouches.
            unsafe { $crate::calls::$name(one, two, three, four) }
        }
    };
    (@one $name:ident ($one:ty, $two:ty, $three:ty, $four:ty, $five:ty, $six:ty) -> $result:ty) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(one: $one, two: $two, three: $three, four: $four, five: $five, six: $six) -> $result {
            // SAFETY: as the caller vouches.
            unsafe { $crate::calls::$name(one, two, three, four, five, six) }
        }
    };
}

/// For the macro: types of the C library.
pub use libc::{
    iovec as Iovec, msghdr as Msghdr, pthread_attr_t as Attributes, sigaction as Sigaction,
    sigset_t as Sigset, sockaddr as Sockaddr,
};
