//! System calls that the standard library does not have, as functions without preconditions on memory that
//! anybody else uses.

use std::ffi::{CString, c_int, c_long, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::Duration;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Signal of broken leases, and of new work, to the helper's thread alone, which has it blocked. Far from
/// those that programs and C libraries take first.
pub fn signal() -> c_int {
    libc::SIGRTMAX() - 5
}

fn check(result: c_long) -> io::Result<c_long> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

/// A range of addresses that is this library's own, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    address: usize,
    bytes: usize,
}

impl Mapping {
    /// Maps a file, here alone: a forked child does not have it.
    pub fn of(
        file: &File,
        offset: u64,
        bytes: usize,
        protection: c_int,
        shared: bool,
    ) -> io::Result<Self> {
        let flags = if shared {
            libc::MAP_SHARED
        } else {
            libc::MAP_PRIVATE
        };
        let bytes = bytes.next_multiple_of(PAGE);
        let (null, fd) = (std::ptr::null_mut::<c_void>(), file.as_raw_fd());
        // SAFETY: a new mapping wherever there is room.
        let address = check(unsafe {
            libc::syscall(libc::SYS_mmap, null, bytes, protection, flags, fd, offset)
        })?;
        let mapping = Self {
            address: address as usize,
            bytes,
        };
        mapping.inherit(false)?;
        Ok(mapping)
    }

    /// Leaves it mapped, in children as well. Returns where it begins.
    pub fn keep(self) -> Option<usize> {
        let address = self.address;
        let kept = self.inherit(true).ok().map(|()| address);
        if kept.is_some() {
            std::mem::forget(self);
        }
        kept
    }

    /// Whether children have it that are forked from now on, and what is mapped from it from now on.
    pub fn inherit(&self, is_inherited: bool) -> io::Result<()> {
        let advice = match is_inherited {
            true => libc::MADV_DOFORK,
            false => libc::MADV_DONTFORK,
        };
        advise(self.address, self.bytes, advice)
    }

    /// Where it begins.
    pub fn address(&self) -> usize {
        self.address
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.address, self.bytes);
    }
}

/// Unmaps what is this library's own.
pub fn unmap(address: usize, bytes: usize) {
    // SAFETY: own addresses, that nobody else knows.
    unsafe { libc::syscall(libc::SYS_munmap, address, bytes) };
}

/// Advice on whole pages, of the kinds that change nothing of file mappings that nobody has written.
pub fn advise(address: usize, bytes: usize, advice: c_int) -> io::Result<()> {
    // SAFETY: pages of a file come back as they were.
    check(unsafe { libc::syscall(libc::SYS_madvise, address, bytes, advice) }).map(drop)
}

/// Moves a mapping over another; a moved one of the same file stays where it was, empty.
///
/// # Safety
/// Source and destination are mappings of the same content, that nobody unmaps meanwhile.
pub unsafe fn move_over(source: usize, destination: usize, bytes: usize) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: as the caller says.
    let result =
        unsafe { libc::syscall(libc::SYS_mremap, source, bytes, bytes, flags, destination) };
    check(result).map(drop)
}

/// Maps a part of a shared mapping a second time, over another mapping, for children if they have the first.
/// The kernel refuses before it unmaps anything where it has not enough mappings left.
///
/// # Safety
/// As [`move_over`].
pub unsafe fn double_over(source: usize, destination: usize, bytes: usize) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: as the caller says.
    let result =
        unsafe { libc::syscall(libc::SYS_mremap, source, 0usize, bytes, flags, destination) };
    check(result).map(drop)
}

/// Copies within this process; what cannot be read is an error and no signal. Returns bytes.
///
/// # Safety
/// The destination is the caller's alone, and so long.
pub unsafe fn copy_within(source: usize, destination: usize, bytes: usize) -> io::Result<usize> {
    let part = |address: usize| libc::iovec {
        iov_base: address as *mut c_void,
        iov_len: bytes,
    };
    let (from, to) = (part(source), part(destination));
    // SAFETY: the kernel checks addresses; the destination is the caller's.
    let result = unsafe {
        libc::syscall(
            libc::SYS_process_vm_readv,
            libc::getpid(),
            &raw const to,
            1usize,
            &raw const from,
            1usize,
            0usize,
        )
    };
    check(result).map(|bytes| bytes as usize)
}

/// Has pages of a range come from a node where it has some.
pub fn prefer(address: usize, bytes: usize, node: u32) -> io::Result<()> {
    let mut mask = [0u64; 16];
    let word = mask
        .get_mut(node as usize / 64)
        .ok_or(io::ErrorKind::InvalidInput)?;
    *word = 1 << (node % 64);
    const MPOL_PREFERRED: c_int = 1;
    // SAFETY: a policy for own addresses; the mask lives through the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            address,
            bytes,
            MPOL_PREFERRED,
            mask.as_ptr(),
            mask.len() * 64 + 1,
            0,
        )
    };
    check(result).map(drop)
}

/// Nodes of pages; negative where there is none in the page table.
pub fn nodes_of(pages: &[usize]) -> io::Result<Vec<c_int>> {
    let mut nodes: Vec<c_int> = vec![-1; pages.len()];
    let null = std::ptr::null::<c_void>();
    // SAFETY: asks only; both arrays are so long.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            null,
            nodes.as_mut_ptr(),
            0,
        )
    };
    check(result)?;
    Ok(nodes)
}

/// This thread's number.
pub fn thread() -> i32 {
    // SAFETY: asks only.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Wakes a thread of this process that waits for [`signal`].
pub fn wake(thread: i32) {
    // SAFETY: a signal that this thread has blocked.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal()) };
}

/// Waits for [`signal`]. Returns whether it came.
pub fn wait(limit: Duration) -> bool {
    let limit = libc::timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    // SAFETY: plain data that is written before it is read; what came is not asked for.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal());
        let nothing = std::ptr::null_mut();
        libc::sigtimedwait(&raw const set, nothing, &raw const limit) == signal()
    }
}

/// Gives this thread a table of descriptors of its own, an empty one.
pub fn own_descriptors() -> io::Result<()> {
    const CLOSE_RANGE_UNSHARE: u32 = 2;
    // SAFETY: the thread uses no descriptor yet, and those of others stay theirs.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, 0u32, u32::MAX, CLOSE_RANGE_UNSHARE) };
    check(result).map(drop)
}

/// Signals as they were.
pub struct Blocked(libc::sigset_t);

impl Blocked {
    /// Blocks all signals of this thread until it is dropped.
    pub fn all() -> Self {
        // SAFETY: plain data that is written before it is read.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set that was.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}

/// Opens without waiting, and without a terminal.
pub fn open(path: &str, flags: c_int, mode: u32) -> io::Result<File> {
    let path = CString::new(path)?;
    let flags = flags | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: a terminated string; the descriptor is nobody else's.
    unsafe {
        let fd = check(c_long::from(libc::open(path.as_ptr(), flags, mode)))?;
        Ok(File::from_raw_fd(fd as c_int))
    }
}

/// A lease on reading: who opens the file to write waits until it is given back, and [`signal`] comes to
/// the calling thread. It lasts until it is given back, or the last descriptor of this opening is closed.
pub fn lease(file: &File) -> io::Result<()> {
    #[repr(C)]
    struct Owner {
        kind: c_int,
        thread: i32,
    }
    const F_SETSIG: c_int = 10;
    const F_SETOWN_EX: c_int = 15;
    const F_OWNER_TID: c_int = 0;
    let owner = Owner {
        kind: F_OWNER_TID,
        thread: thread(),
    };
    let fd = file.as_raw_fd();
    // SAFETY: settings of an own descriptor; the owner lives through the call.
    unsafe {
        check(c_long::from(libc::fcntl(fd, F_SETSIG, signal())))?;
        check(c_long::from(libc::fcntl(fd, F_SETOWN_EX, &raw const owner)))?;
        check(c_long::from(libc::fcntl(
            fd,
            libc::F_SETLEASE,
            libc::F_RDLCK,
        )))?;
    }
    Ok(())
}

/// Is a lease as it was given? Else somebody waits for it.
pub fn is_leased(file: &File) -> bool {
    // SAFETY: asks only.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) == libc::F_RDLCK }
}

/// Gives a lease back.
pub fn unlease(file: &File) {
    // SAFETY: an own descriptor.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
}

/// Locks a whole file, without waiting: `LOCK_SH` or `LOCK_EX`.
pub fn lock(file: &File, kind: c_int) -> io::Result<()> {
    // SAFETY: an own descriptor.
    let result = unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) };
    check(c_long::from(result)).map(drop)
}

/// Takes memory for a part of a file, so that no later store can fail for want of it.
pub fn reserve(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    // SAFETY: an own descriptor.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), 0, offset as i64, bytes as i64) };
    check(c_long::from(result)).map(drop)
}

/// Does a process live?
pub fn lives(pid: u32) -> bool {
    // SAFETY: no signal is sent.
    let result = unsafe { libc::kill(pid as i32, 0) };
    result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Most mappings of a process (`vm.max_map_count`).
pub fn most_mappings() -> usize {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(65_530)
}

/// Is the address space of this process limited (`ulimit -v`)?
pub fn is_limited() -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: plain data that is written by the call.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    limit.rlim_cur != libc::RLIM_INFINITY
}

/// CPUs that a thread may use, as words of bits.
pub fn affinity(thread: i32) -> io::Result<Vec<u64>> {
    let mut words = vec![0u64; 128];
    // SAFETY: so many bytes are written at most.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            thread,
            words.len() * 8,
            words.as_mut_ptr(),
        )
    };
    check(result)?;
    Ok(words)
}
