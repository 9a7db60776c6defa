//! Touching memory of this process at addresses that may be bad: answers instead of signals.

use super::check;
use std::io;

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads.
    Read,
    /// Stores.
    Write,
}

/// Lets the kernel do what the first access to each page of a range of this process would do, and
/// tell what would go wrong: `ENOMEM` (nothing mapped, or no memory), `EINVAL` (not permitted, or
/// a device's memory), `EFAULT` (the access would raise a signal: behind a file's end, a guard,
/// a protection key of this thread), `EHWPOISON`. Contents do not change.
///
/// Source: `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE` of madvise(2), Linux 5.14; older kernels
/// answer `EINVAL`. `address` and `bytes` are multiples of the page size.
pub fn populate(address: u64, bytes: u64, access: Access) -> io::Result<()> {
    let advice = match access {
        Access::Read => libc::MADV_POPULATE_READ,
        Access::Write => libc::MADV_POPULATE_WRITE,
    };
    // SAFETY: this advice allocates pages as an access would and changes no contents; the kernel
    // checks the addresses, which are passed as numbers.
    let result = unsafe { libc::syscall(libc::SYS_madvise, address, bytes, advice) };
    check(result).map(drop)
}

/// Is something mapped at every page of a range of this process? Whatever its protection.
/// `address` is a multiple of the page size.
///
/// Source: mincore(2), which answers `ENOMEM` where there is no mapping.
#[must_use]
pub fn is_mapped(address: u64, bytes: u64) -> bool {
    let mut resident = [0u8; 4096];
    let step = 4096 * resident.len() as u64;
    (0..bytes).step_by(step as usize).all(|from| {
        let part = step.min(bytes - from);
        // SAFETY: the buffer has a byte for each page of the part; the addresses are only looked up.
        let result = unsafe {
            let buffer = resident.as_mut_ptr();
            libc::syscall(libc::SYS_mincore, address + from, part, buffer)
        };
        result == 0
    })
}

/// Copies bytes of this process by the kernel and returns how many: fewer than asked, or
/// `EFAULT`, where it meets a bad address.
///
/// # Safety
/// As for a store to every byte of the target that is mapped and writable: nobody relies on what
/// was there.
///
/// Source: process_vm_readv(2).
pub unsafe fn copy_by_kernel(from: u64, to: u64, bytes: usize) -> io::Result<usize> {
    let of = |address: u64| libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: bytes,
    };
    // SAFETY: one range each; the kernel checks their addresses, and the caller gives the target.
    let copied =
        unsafe { libc::process_vm_readv(std::process::id() as i32, &of(to), 1, &of(from), 1, 0) };
    check(copied as libc::c_long).map(|copied| copied as usize)
}

/// Size of a page, in bytes.
#[must_use]
pub fn page_bytes() -> u64 {
    // SAFETY: one integer; the value always exists.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}
