//! Pages of our own.

use hither_regions::{Registered, Transparent};
use std::sync::atomic::AtomicU64;

pub const PAGE: usize = 4096;

/// Mapped pages.
pub struct Pages {
    pub start: *mut u8,
    pub bytes: usize,
}

// SAFETY: plain memory, reached by atomic or raw accesses.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub fn new(pages: usize) -> Self {
        Self::with(pages, libc::PROT_READ | libc::PROT_WRITE)
    }

    pub fn with(pages: usize, access: i32) -> Self {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let bytes = pages * PAGE;
        // SAFETY: a new mapping, with a page before and after it that stays closed, so that no other joins it.
        let start = unsafe {
            let all = libc::mmap(
                std::ptr::null_mut(),
                bytes + 2 * PAGE,
                libc::PROT_NONE,
                kind,
                -1,
                0,
            );
            assert_ne!(all, libc::MAP_FAILED);
            let start = all.byte_add(PAGE);
            assert_eq!(libc::mprotect(start, bytes, access), 0);
            start.cast()
        };
        Self { start, bytes }
    }

    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index * 8 < self.bytes);
        // SAFETY: within the mapping, which lives as long as this value.
        unsafe { &*self.start.cast::<AtomicU64>().add(index) }
    }

    pub fn register(&self, regions: &Transparent, domain: usize) -> Registered {
        // SAFETY: mapped as long as this value; tests keep it beyond the regions.
        unsafe { regions.register(domain, self.start, self.bytes) }.unwrap()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `with`.
        unsafe { libc::munmap(self.start.byte_sub(PAGE).cast(), self.bytes + 2 * PAGE) };
    }
}
