//! The functions that are replaced. Each does what the C library documents; those that change addresses of a
//! noted mapping have it given back before.

#![allow(
    clippy::missing_safety_doc,
    reason = "what these ask of their callers is what the C library documents"
)]

use crate::start;
use crate::sys::PAGE;
use crate::table::{self, Range};
use hither_core::mirror::Asked;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

type Pointer = *mut c_void;

/// The next function of that name behind this library; 0 until it was looked up.
pub static NEXT_MMAP: AtomicUsize = AtomicUsize::new(0);
/// As [`NEXT_MMAP`].
pub static NEXT_MUNMAP: AtomicUsize = AtomicUsize::new(0);
/// As [`NEXT_MMAP`].
pub static NEXT_MREMAP: AtomicUsize = AtomicUsize::new(0);

type Map = unsafe extern "C" fn(Pointer, usize, c_int, c_int, c_int, i64) -> Pointer;
type Unmap = unsafe extern "C" fn(Pointer, usize) -> c_int;
type Remap = unsafe extern "C" fn(Pointer, usize, usize, c_int, Pointer) -> Pointer;

/// Whole pages that hold these bytes.
fn pages(address: Pointer, bytes: usize) -> (usize, usize) {
    let start = address as usize & !(PAGE - 1);
    let end = (address as usize).saturating_add(bytes);
    (
        start,
        end.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX) - start,
    )
}

/// The program changes these addresses: they have their originals when this returns.
#[inline]
fn leave(address: Pointer, bytes: usize) {
    let (start, bytes) = pages(address, bytes);
    if table::may_meet(start, bytes) {
        table::with(|table| table.remove(start, start.saturating_add(bytes)));
    }
}

/// As in the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    address: Pointer,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Pointer {
    const FIXED: c_int = libc::MAP_FIXED;
    if flags & FIXED != 0 {
        leave(address, bytes);
    }
    let pointer = match NEXT_MMAP.load(Ordering::Relaxed) {
        // SAFETY: the program's own request; so in all below.
        0 => unsafe {
            libc::syscall(
                libc::SYS_mmap,
                address,
                bytes,
                protection,
                flags,
                fd,
                offset,
            ) as Pointer
        },
        // SAFETY: the C library's function of that name, or another's.
        next => unsafe {
            std::mem::transmute::<usize, Map>(next)(address, bytes, protection, flags, fd, offset)
        },
    };
    if fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 && pointer != libc::MAP_FAILED {
        // SAFETY: this thread's own word.
        let errno = unsafe { *libc::__errno_location() };
        consider(pointer as usize, bytes, protection, flags, fd, offset);
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
    pointer
}

/// As in the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    address: Pointer,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Pointer {
    // SAFETY: the caller's request.
    unsafe { mmap(address, bytes, protection, flags, fd, offset) }
}

/// Notes a new mapping, if it may have copies.
fn consider(start: usize, bytes: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) {
    let Some(plan) = start::plan() else { return };
    let kind = flags & libc::MAP_TYPE;
    let others = [
        libc::MAP_LOCKED,
        libc::MAP_HUGETLB,
        libc::MAP_GROWSDOWN,
        libc::MAP_SYNC,
    ];
    let is_plain = kind != libc::MAP_SHARED_VALIDATE && others.iter().all(|flag| flags & flag == 0);
    let is_read_only =
        protection & libc::PROT_READ != 0 && protection & !(libc::PROT_READ | libc::PROT_EXEC) == 0;
    // What is small is most: the file is asked about what is left.
    if !is_plain || !is_read_only || table::is_closed() || (bytes as u64) < plan.least_bytes {
        return;
    }
    // SAFETY: plain data, written by the call.
    let (status, system) = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        let mut system: libc::statfs = std::mem::zeroed();
        if libc::fstat(fd, &raw mut status) != 0 || libc::fstatfs(fd, &raw mut system) != 0 {
            return;
        }
        (status, system)
    };
    let is_regular = status.st_mode & libc::S_IFMT == libc::S_IFREG;
    let rest = (status.st_size as u64).saturating_sub(offset as u64);
    let asked = Asked {
        is_read_only,
        is_plain_file: is_regular && system.f_type != libc::HUGETLBFS_MAGIC,
        bytes: rest.min(bytes as u64),
    };
    if !asked.is_candidate(plan) {
        return;
    }
    let bytes = bytes.next_multiple_of(PAGE);
    let null = std::ptr::null_mut::<c_void>();
    // SAFETY: a second mapping wherever there is room.
    let original =
        unsafe { libc::syscall(libc::SYS_mmap, null, bytes, protection, kind, fd, offset) };
    if original == -1 {
        return;
    }
    let range = Range {
        start,
        bytes,
        offset: offset as u64,
        protection,
        is_shared: kind == libc::MAP_SHARED,
        device: status.st_dev,
        inode: status.st_ino,
        file_bytes: status.st_size as u64,
        original: original as usize,
        is_mirrored: false,
        number: 0,
    };
    start::note(range);
}

/// As in the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn munmap(address: Pointer, bytes: usize) -> c_int {
    leave(address, bytes);
    match NEXT_MUNMAP.load(Ordering::Relaxed) {
        // SAFETY: as in mmap.
        0 => unsafe { libc::syscall(libc::SYS_munmap, address, bytes) as c_int },
        // SAFETY: as in mmap.
        next => unsafe { std::mem::transmute::<usize, Unmap>(next)(address, bytes) },
    }
}

/// As in the C library. The last argument is there for some flags alone, and as good as any without.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mremap(
    old: Pointer,
    old_bytes: usize,
    bytes: usize,
    flags: c_int,
    new: Pointer,
) -> Pointer {
    leave(old, old_bytes.max(1));
    if flags & libc::MREMAP_FIXED != 0 {
        leave(new, bytes);
    }
    match NEXT_MREMAP.load(Ordering::Relaxed) {
        // SAFETY: as in mmap.
        0 => unsafe {
            libc::syscall(libc::SYS_mremap, old, old_bytes, bytes, flags, new) as Pointer
        },
        // SAFETY: as in mmap.
        next => unsafe {
            std::mem::transmute::<usize, Remap>(next)(old, old_bytes, bytes, flags, new)
        },
    }
}

/// Functions that change what may be done with addresses: passed on to the kernel, after the originals are back.
macro_rules! changing {
    ($name:ident($($argument:ident: $kind:ty),*) $call:ident) => {
        /// As in the C library.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(address: Pointer, bytes: usize $(, $argument: $kind)*) -> c_int {
            leave(address, bytes);
            // SAFETY: as in mmap.
            unsafe { libc::syscall(libc::$call, address, bytes $(, $argument)*) as c_int }
        }
    };
}
changing!(mprotect(protection: c_int) SYS_mprotect);
changing!(pkey_mprotect(protection: c_int, key: c_int) SYS_pkey_mprotect);
changing!(mlock() SYS_mlock);
changing!(mlock2(flags: c_int) SYS_mlock2);

/// As in the C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    // Copies would not be locked, and originals besides what is used would be.
    if start::plan().is_some() {
        table::with(table::Inner::close);
    }
    // SAFETY: as in mmap.
    unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int }
}
