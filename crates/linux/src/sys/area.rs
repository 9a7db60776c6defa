//! Private memory of this process, page by page: reserving, filling, dropping.

use super::{Access, check, populate};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

const HUGE: u64 = 2 << 20;

/// Private anonymous addresses of this process, aligned to 2 MiB, not inherited by children, not
/// part of core dumps; unmapped when dropped.
#[derive(Debug)]
pub struct MemoryArea {
    mapped: Range<u64>,
    usable: Range<u64>,
}

impl MemoryArea {
    /// Reserves `bytes` (a multiple of 2 MiB), for small pages or for huge ones.
    pub fn new(bytes: u64, huge: bool) -> io::Result<Self> {
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (bytes + HUGE) as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = start as u64;
        let mapped = start..start + bytes + HUGE;
        let first = start.next_multiple_of(HUGE);
        let area = Self {
            mapped,
            usable: first..first + bytes,
        };
        let size = if huge {
            libc::MADV_HUGEPAGE
        } else {
            libc::MADV_NOHUGEPAGE
        };
        // A kernel without huge pages refuses the first two; then all pages are small anyway.
        let _ = advise(&area.mapped, size);
        advise(&area.mapped, libc::MADV_DONTFORK)?;
        advise(&area.mapped, libc::MADV_DONTDUMP)?;
        Ok(area)
    }

    /// Its addresses.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.usable.clone()
    }
}

impl Drop for MemoryArea {
    fn drop(&mut self) {
        let length = (self.mapped.end - self.mapped.start) as usize;
        // SAFETY: mapped by `new`, and nobody has a reference into it.
        unsafe { libc::munmap(self.mapped.start as *mut _, length) };
    }
}

fn advise(range: &Range<u64>, advice: libc::c_int) -> io::Result<()> {
    let length = (range.end - range.start) as usize;
    // SAFETY: callers pass addresses of an `Area` only, to whose content nobody holds references.
    check(unsafe { libc::madvise(range.start as *mut _, length, advice) }.into()).map(drop)
}

/// Gets a page for every address of a part of an [`MemoryArea`], by this thread's memory policy.
pub fn fill(part: &Range<u64>) -> io::Result<()> {
    populate(part.start, part.end - part.start, Access::Write)
}

/// Gives the pages of a part of an [`MemoryArea`] back to the system.
pub fn discard(part: &Range<u64>) {
    // It can only fail for want of memory for page tables, and is tried again then.
    while let Err(error) = advise(part, libc::MADV_DONTNEED) {
        if error.raw_os_error() != Some(libc::EAGAIN) && error.raw_os_error() != Some(libc::ENOMEM)
        {
            return;
        }
    }
}

/// Is there a page at an address of an [`MemoryArea`], in memory or in swap space? `pagemap` is an open
/// `/proc/self/pagemap`.
#[must_use]
pub fn is_resident(pagemap: &File, address: u64) -> bool {
    let mut entry = [0u8; 8];
    let read = pagemap.read_exact_at(&mut entry, (address >> 12) * 8);
    // Bit 63: in memory; bit 62: in swap space.
    read.is_ok() && u64::from_ne_bytes(entry) >> 62 != 0
}
