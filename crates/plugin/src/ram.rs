//! The guest's memory, as the copy engine reaches it: files that QEMU's memory backends share with
//! this mapping, one for each node.
//!
//! Plugins cannot write to the guest by QEMU's own means (API 4). What is written here QEMU does
//! not hear of: its translated code would stay, so that nobody may write to what is executed
//! (`walk` refuses such pages).

use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

/// One node's memory.
struct Part {
    base: *mut u8,
    bytes: u64,
}

/// The memory of all nodes, by their positions.
pub struct Ram(Vec<Part>);

// SAFETY: the mappings live as long as the process; the guest's own accesses race with ours as
// those of a device race with a CPU's.
unsafe impl Send for Ram {}
// SAFETY: as above.
unsafe impl Sync for Ram {}

impl Ram {
    /// Maps the files, of which each has the given number of bytes.
    pub fn map(files: &[(PathBuf, u64)]) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        let part = |(path, bytes): &(PathBuf, u64)| {
            let file = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)?;
            if file.metadata()?.len() < *bytes {
                return Err(io::Error::other(format!(
                    "{} is smaller than its node's memory",
                    path.display()
                )));
            }
            // SAFETY: a fresh mapping of a length that the file has; no address is asked for.
            let base = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    *bytes as usize,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_NORESERVE,
                    file.as_raw_fd(),
                    0,
                )
            };
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            Ok(Part {
                base: base.cast(),
                bytes: *bytes,
            })
        };
        files.iter().map(part).collect::<io::Result<_>>().map(Self)
    }

    /// `bytes` bytes from an offset into a node's memory; `None` where they are not all there.
    pub fn at(&self, node: usize, offset: u64, bytes: u64) -> Option<*mut u8> {
        let part = self.0.get(node)?;
        let end = offset.checked_add(bytes)?;
        // SAFETY: within the mapping (just checked).
        (end <= part.bytes).then(|| unsafe { part.base.add(offset as usize) })
    }

    /// A word, at an offset that is a multiple of eight.
    pub fn word(&self, node: usize, offset: u64) -> Option<&AtomicU64> {
        let place = self
            .at(node, offset, 8)
            .filter(|_| offset.is_multiple_of(8))?;
        // SAFETY: aligned and within the mapping, which is never unmapped.
        Some(unsafe { &*place.cast::<AtomicU64>() })
    }
}
