//! Private anonymous memory straight from the kernel.

use super::check;
use std::io;
use std::ptr::NonNull;

/// Bytes of a huge page on x86-64.
const HUGE_BYTES: usize = 2 << 20;
/// Bytes of a page.
const PAGE_BYTES: usize = 4096;

/// A private anonymous mapping, aligned to huge pages: untouched until written, so that its
/// placement can be chosen first. Unmapped when dropped.
#[derive(Debug)]
pub struct PrivateMemory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is this value's alone, and its bytes are reached by its borrows only.
unsafe impl Send for PrivateMemory {}
// SAFETY: as above; shared borrows only read.
unsafe impl Sync for PrivateMemory {}

impl PrivateMemory {
    /// Maps `bytes`, rounded up to whole huge pages, and advises the kernel for or against huge
    /// pages (`MADV_HUGEPAGE`, `MADV_NOHUGEPAGE`).
    ///
    /// # Errors
    /// No memory, or a kernel without transparent huge pages that is asked for them.
    pub fn new(bytes: usize, huge: bool) -> io::Result<Self> {
        let memory = Self::unadvised(bytes)?;
        let advice = match huge {
            true => libc::MADV_HUGEPAGE,
            false => libc::MADV_NOHUGEPAGE,
        };
        let (base, bytes) = (memory.base.as_ptr().cast(), memory.bytes);
        // SAFETY: the range is this mapping; advice on page sizes changes no content.
        match check(unsafe { libc::madvise(base, bytes, advice) }.into()) {
            Err(error) if huge => Err(error),
            // A kernel without huge pages refuses advice against them, and needs none.
            _ => Ok(memory),
        }
    }

    /// The same, with pages of the sizes that the system chooses.
    ///
    /// # Errors
    /// No memory.
    pub fn unadvised(bytes: usize) -> io::Result<Self> {
        let whole = bytes.max(1).checked_next_multiple_of(HUGE_BYTES);
        let whole = whole.filter(|whole| whole.checked_add(HUGE_BYTES).is_some());
        let bytes = whole.ok_or(io::ErrorKind::OutOfMemory)?;
        let mapped = bytes + HUGE_BYTES;
        // SAFETY: a new mapping at an address that the kernel chooses; nothing else refers to it.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = start.cast::<u8>();
        let head = start.align_offset(HUGE_BYTES);
        // SAFETY: `head` is below HUGE_BYTES, by which the mapping is longer than `bytes`. What
        // lies before and behind the aligned part belongs to this mapping and is given back.
        let base = unsafe {
            let base = start.add(head);
            if head > 0 {
                libc::munmap(start.cast(), head);
            }
            libc::munmap(base.add(bytes).cast(), mapped - head - bytes);
            base
        };
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }

    /// First address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never: a mapping has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable, as long as `self`, and written only through `&mut`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }

    /// The bytes, to write.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }

    /// Writes to every page, so that each has memory of its own: `byte` plus the page's number.
    pub fn fill_pages(&mut self, byte: u8) {
        let pages = self.bytes_mut().chunks_exact_mut(PAGE_BYTES);
        for (index, page) in pages.enumerate() {
            page.fill(byte.wrapping_add(index as u8));
        }
    }
}

impl Drop for PrivateMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, unmapped once; no reference outlives `self`.
        let _ = check(unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) }.into());
    }
}
