//! A file mapped shared: device pages that somebody else writes while we read.

use super::check;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A mapping of a part of a file, mostly shared. All access is by whole, aligned, atomic words, because the
/// other side writes at any time. Children do not get it: to copy the page tables of a device's
/// memory takes a fork longer than all else it does.
#[derive(Debug)]
pub struct SharedMap {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value, lives until it is dropped, and is not any thread's own; every access is
// atomic.
unsafe impl Send for SharedMap {}

impl SharedMap {
    /// Maps the first `bytes` of a file for reading and writing. The file must be that long, or
    /// an access behind its end would kill the process: the caller checks.
    pub fn new(file: &File, bytes: usize) -> io::Result<Self> {
        Self::at(file, 0, bytes)
    }

    /// Zeros that this process shares with nobody.
    pub fn of_nobody(bytes: usize) -> io::Result<Self> {
        Self::map(-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, 0, bytes)
    }

    /// The same from `start` on, a multiple of the page size; offsets then count from there.
    pub fn at(file: &File, start: usize, bytes: usize) -> io::Result<Self> {
        Self::map(file.as_raw_fd(), libc::MAP_SHARED, start, bytes)
    }

    fn map(file: i32, flags: i32, start: usize, bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses; nothing else refers to it.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                file,
                start as libc::off_t,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Where the kernel refuses, children get it after all, and only take longer to start.
        // SAFETY: the mapping just made; the advice changes nothing for this process.
        let _ = check(unsafe { libc::madvise(address, bytes, libc::MADV_DONTFORK) }.into());
        let base = NonNull::new(address.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { base, bytes })
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never: a mapping has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.bytes,
            "offset {offset:#x}"
        );
        // SAFETY: inside the mapping and aligned (the mapping is page-aligned), which lives as
        // long as `self`; every access on this side is atomic.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(
            offset.is_multiple_of(4) && offset + 4 <= self.bytes,
            "offset {offset:#x}"
        );
        // SAFETY: as in `word64`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// A word, not ordered against others.
    #[must_use]
    pub fn read64(&self, offset: usize) -> u64 {
        self.word64(offset).load(Ordering::Relaxed)
    }

    /// A word; what the other side wrote before it is visible afterwards (pairs with the other
    /// side's release store, such as a ring's head written after its samples).
    #[must_use]
    pub fn read64_acquire(&self, offset: usize) -> u64 {
        self.word64(offset).load(Ordering::Acquire)
    }

    /// A half word.
    #[must_use]
    pub fn read32(&self, offset: usize) -> u32 {
        self.word32(offset).load(Ordering::Relaxed)
    }

    /// Writes a word after everything read or written before it (a ring's tail: the other side
    /// may reuse the slots once it sees it).
    pub fn write64_release(&self, offset: usize, value: u64) {
        self.word64(offset).store(value, Ordering::Release);
    }

    /// Writes a half word after everything written before it.
    pub fn write32_release(&self, offset: usize, value: u32) {
        self.word32(offset).store(value, Ordering::Release);
    }

    /// Words from an offset on, for those who change them together with the other side.
    #[must_use]
    pub fn words64(&self, offset: usize, count: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(8) && offset + count * 8 <= self.bytes);
        // SAFETY: inside the mapping and aligned, which lives as long as `self`; all access is atomic.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset).cast(), count) }
    }

    /// The same of half words.
    #[must_use]
    pub fn words32(&self, offset: usize, count: usize) -> &[AtomicU32] {
        assert!(offset.is_multiple_of(4) && offset + count * 4 <= self.bytes);
        // SAFETY: as in `words64`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset).cast(), count) }
    }

    /// Copies aligned words out.
    pub fn read_block(&self, offset: usize, words: &mut [u64]) {
        let bytes = words.len() * 8;
        assert!(
            offset.is_multiple_of(8) && offset + bytes <= self.bytes,
            "offset {offset:#x}"
        );
        // SAFETY: the whole block is inside the mapping and aligned, checked above; each word is
        // read atomically. One check for the block keeps the sample loop cheap.
        let source = unsafe { self.base.as_ptr().add(offset).cast::<u64>() };
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: index < words.len(), so inside the block.
            *word = unsafe { AtomicU64::from_ptr(source.add(index)) }.load(Ordering::Relaxed);
        }
    }
}

/// A file of zeros in memory, for other processes to map by its name below `/proc`. Whoever opens it
/// can write to it, and not change its length: who has it mapped would be killed by that.
pub fn memory_file(bytes: u64) -> io::Result<File> {
    let new = |flags| {
        // SAFETY: the name ends in a zero; the descriptor is new and nobody else's.
        unsafe {
            let file = check(libc::memfd_create(c"hither".as_ptr(), flags).into())?;
            io::Result::Ok(File::from_raw_fd(file as i32))
        }
    };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Where files in memory must not be executable (vm.memfd_noexec); kernels before 6.3 know no such.
    let file = match new(flags | libc::MFD_NOEXEC_SEAL) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => new(flags)?,
        made => made?,
    };
    file.set_len(bytes)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: a descriptor of this process; only the file's rights change.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }.into())?;
    Ok(file)
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, unmapped once; no reference outlives `self`.
        let _ = check(unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) }.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn both_sides_see_each_other() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0; 4096]).unwrap();
        let one = SharedMap::new(&file, 4096).unwrap();
        let two = SharedMap::new(&file, 4096).unwrap();
        one.write64_release(8, 0x1122_3344_5566_7788);
        one.write32_release(16, 9);
        let mut words = [0; 3];
        two.read_block(0, &mut words);
        assert_eq!(words, [0, 0x1122_3344_5566_7788, 9]);
        assert_eq!(two.read64_acquire(8), words[1]);
        assert_eq!((two.read32(16), two.read64(16)), (9, 9));
        assert_eq!((two.len(), two.is_empty()), (4096, false));
    }

    #[test]
    #[should_panic(expected = "offset 0x1000")]
    fn nothing_behind_the_end_is_read() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0; 4096]).unwrap();
        let _ = SharedMap::new(&file, 4096).unwrap().read64(4096);
    }
}
