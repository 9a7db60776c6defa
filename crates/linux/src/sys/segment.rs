//! Memory that processes share by name: a file, or a System V segment.

use super::check;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Does a file belong to a file system whose files keep memory policies: tmpfs or hugetlbfs?
///
/// # Errors
/// What the kernel said.
pub fn keeps_policies(file: &File) -> io::Result<bool> {
    let mut about = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the call fills the structure, for which all zero is valid as well.
    let about = unsafe {
        check(libc::fstatfs(file.as_raw_fd(), about.as_mut_ptr()).into())?;
        about.assume_init()
    };
    Ok([libc::TMPFS_MAGIC, libc::HUGETLBFS_MAGIC].contains(&about.f_type))
}

/// Where other processes have it too; its bytes are never read or written here.
#[derive(Debug)]
pub struct Segment {
    address: u64,
    bytes: u64,
    /// To be detached; unmapped otherwise.
    is_attached: bool,
}

impl Segment {
    /// Maps a part of a file. `offset` must be page-aligned; the file should be that long.
    pub fn map(file: &File, offset: u64, bytes: u64) -> io::Result<Self> {
        let too_large = |_| io::Error::from_raw_os_error(libc::EOVERFLOW);
        let (offset, length) = (offset.try_into().map_err(too_large)?, bytes as usize);
        // SAFETY: a new mapping at an address that the kernel chooses; nothing else refers to it.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            address: address as u64,
            bytes,
            is_attached: false,
        })
    }

    /// Attaches a System V segment by its number.
    pub fn attach(id: i32) -> io::Result<Self> {
        let bytes = segment_bytes(id)?;
        // SAFETY: the kernel chooses the address of the new mapping.
        let address = unsafe { libc::shmat(id, std::ptr::null(), 0) };
        if address as isize == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            address: address as u64,
            bytes,
            is_attached: true,
        })
    }

    /// First address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Which of its pages of 4 KiB are in memory, by anybody's doing; none is brought there.
    ///
    /// Source: `mincore(2)`.
    pub fn resident(&self) -> io::Result<Vec<bool>> {
        let mut pages = vec![0u8; self.bytes.div_ceil(4096) as usize];
        // SAFETY: the addresses are this mapping's; the call writes one byte for each of its pages.
        let result = unsafe {
            let address = self.address as *mut libc::c_void;
            libc::mincore(address, self.bytes as usize, pages.as_mut_ptr())
        };
        check(result.into())?;
        Ok(pages.into_iter().map(|page| page & 1 == 1).collect())
    }

    /// Has it no byte?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let address = self.address as *mut libc::c_void;
        // SAFETY: what `map` or `attach` made, given back once; nobody has a reference into it.
        // Neither call can fail then.
        unsafe {
            match self.is_attached {
                true => libc::shmdt(address),
                false => libc::munmap(address, self.bytes as usize),
            }
        };
    }
}

/// The number of the System V segment with this key; or, with a mode in `create`, of one of `bytes`
/// that is made, of huge pages where `huge` says so.
///
/// `ENOENT`: there is none. `EEXIST`: there is one already. Source: `shmget(2)`.
pub fn segment_id(key: i32, bytes: u64, create: Option<u32>, huge: bool) -> io::Result<i32> {
    let mut flags = create.map_or(0, |mode| {
        libc::IPC_CREAT | libc::IPC_EXCL | (mode & 0o777) as i32
    });
    if huge {
        flags |= libc::SHM_HUGETLB;
    }
    // SAFETY: integers only.
    check(unsafe { libc::shmget(key, bytes as usize, flags) }.into()).map(|id| id as i32)
}

fn segment_bytes(id: i32) -> io::Result<u64> {
    let mut about = std::mem::MaybeUninit::<libc::shmid_ds>::zeroed();
    // SAFETY: the call fills the structure, for which all zero is valid as well.
    unsafe {
        check(libc::shmctl(id, libc::IPC_STAT, about.as_mut_ptr()).into())?;
        Ok(about.assume_init().shm_segsz as u64)
    }
}

/// Removes a System V segment once nobody has it attached. Source: `shmctl(2)`, `IPC_RMID`.
pub fn remove_segment(id: i32) -> io::Result<()> {
    // SAFETY: integers and no structure.
    check(unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) }.into()).map(drop)
}
