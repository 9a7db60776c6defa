//! A part of a file mapped for reading alone, to find and move what of it the machine has in memory.

use super::check;
use super::reach::{Access, populate};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const PAGE: u64 = 4096;

/// Its bytes are never read here: a file that somebody cuts short meanwhile kills nobody.
#[derive(Debug)]
pub struct FileWindow {
    address: u64,
    bytes: u64,
}

impl FileWindow {
    /// Maps a part of a file. `offset` must be page-aligned.
    pub fn map(file: &File, offset: u64, bytes: u64) -> io::Result<Self> {
        let too_large = |_| io::Error::from_raw_os_error(libc::EOVERFLOW);
        let offset: libc::off_t = offset.try_into().map_err(too_large)?;
        // SAFETY: a new mapping at an address that the kernel chooses; nothing else refers to it.
        let address = unsafe {
            let (any, length) = (std::ptr::null_mut(), bytes as usize);
            let file = file.as_raw_fd();
            libc::mmap(any, length, libc::PROT_READ, libc::MAP_SHARED, file, offset)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let window = Self {
            address: address as u64,
            bytes,
        };
        // Or a page that is brought into the page tables would have its neighbours read from the disk.
        // SAFETY: the mapping just made; the advice is about reading ahead alone.
        check(unsafe { libc::madvise(address, bytes as usize, libc::MADV_RANDOM) }.into())?;
        Ok(window)
    }

    /// First address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Which of its pages the machine has in memory; none is brought there. Of files that this user
    /// neither owns nor may write to the kernel answers yes for every page: see
    /// [`super::may_tell_cached`].
    ///
    /// Source: `mincore(2)`.
    pub fn cached(&self) -> io::Result<Vec<bool>> {
        let mut pages = vec![0u8; self.bytes.div_ceil(PAGE) as usize];
        // SAFETY: the addresses are this mapping's; the call writes one byte for each of its pages.
        let result = unsafe {
            let address = self.address as *mut libc::c_void;
            libc::mincore(address, self.bytes as usize, pages.as_mut_ptr())
        };
        check(result.into())?;
        Ok(pages.into_iter().map(|page| page & 1 == 1).collect())
    }

    /// Brings cached pages (by their place in the window) into this process's page tables, where they
    /// can be asked for. One that was dropped just now is read from its file again.
    ///
    /// # Errors
    /// `EFAULT`: the file has been cut short. `EINVAL`: Linux before 5.14.
    pub fn enter(&self, pages: std::ops::Range<u64>) -> io::Result<()> {
        let bytes = (pages.end - pages.start) * PAGE;
        populate(self.address + pages.start * PAGE, bytes, Access::Read)
    }
}

impl Drop for FileWindow {
    fn drop(&mut self) {
        // SAFETY: what `map` made, given back once; nobody has a reference into it.
        unsafe { libc::munmap(self.address as *mut libc::c_void, self.bytes as usize) };
    }
}

/// Does the kernel tell this user which pages of a file are cached: its owner, who may write to it,
/// or root (`can_do_mincore` of Linux 5.2)?
#[must_use]
pub fn may_tell_cached(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let user = super::effective_uid();
    let owns = file.metadata().is_ok_and(|about| about.uid() == user);
    let Ok(path) = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())) else {
        return false;
    };
    // SAFETY: a text that ends with a zero byte; AT_EACCESS asks for who this process acts as.
    let may_write = || unsafe {
        libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS) == 0
    };
    user == 0 || owns || may_write()
}
