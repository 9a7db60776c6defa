//! The plugin's side of the Opium device: typed access to the shared pages.
//!
//! Layout: `hither_core::opium`. Every word is an atomic with relaxed ordering; a word has one
//! writer (a vCPU's thread for its block and ring, the thread that closes an epoch for nodes and
//! links, the guest for the control page), except the base counters, which are added to.

use hither_core::opium;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The mapped device.
pub struct Device {
    base: *mut u8,
}

// SAFETY: the mapping lives as long as the process and is accessed through atomics only.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Maps the shared memory at `path`, or private memory where there is none (nobody reads it
    /// then, and the model runs unchanged).
    pub fn map(path: Option<&Path>) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        let file = path
            .map(|path| {
                std::fs::OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(path)
            })
            .transpose()?;
        let (fd, flags) = match &file {
            Some(file) => {
                if file.metadata()?.len() < opium::SIZE as u64 {
                    return Err(io::Error::other("the file is smaller than the device"));
                }
                (file.as_raw_fd(), libc::MAP_SHARED)
            }
            None => (
                -1,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            ),
        };
        // SAFETY: a fresh mapping of a length that the file has; no address is asked for.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                opium::SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                fd,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base.cast() })
    }

    /// The u64 at this offset.
    #[inline]
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        // In one comparison: no bit beyond the size, which is a power of two, nor below eight.
        const { assert!(opium::SIZE.is_power_of_two()) };
        assert!(offset & !(opium::SIZE - 8) == 0);
        // SAFETY: in bounds and aligned (just checked); the mapping is never unmapped.
        unsafe { &*self.base.add(offset).cast() }
    }

    /// The u32 at this offset.
    #[inline]
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= opium::SIZE && offset.is_multiple_of(4));
        // SAFETY: as in `u64`.
        unsafe { &*self.base.add(offset).cast() }
    }

    /// The byte at this offset.
    #[inline]
    pub fn u8(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < opium::SIZE);
        // SAFETY: as in `u64`.
        unsafe { &*self.base.add(offset).cast() }
    }

    /// Adds to a u64 that only the calling thread writes: no locked instruction.
    #[inline]
    pub fn add(&self, offset: usize, value: u64) {
        let word = self.u64(offset);
        word.store(
            word.load(Ordering::Relaxed).wrapping_add(value),
            Ordering::Relaxed,
        );
    }

    /// Reads a u64.
    #[inline]
    pub fn get(&self, offset: usize) -> u64 {
        self.u64(offset).load(Ordering::Relaxed)
    }

    /// Writes a u64.
    #[inline]
    pub fn set(&self, offset: usize, value: u64) {
        self.u64(offset).store(value, Ordering::Relaxed);
    }
}
