//! The log of this process: a file, mapped shared, that grows as it is filled.
//!
//! A store into a shared mapping is in the file for good, however the process ends. The file is
//! grown with `fallocate` before it is written, as a store into a hole of a full disk would kill the
//! program. Its descriptor is closed at once, since programs close descriptors that they do not know
//! and open others in their place; to grow, the file is opened again by name. The system calls are
//! made directly: the C library's functions of these names are those that this library replaces.

use crate::{config, record};
use hither_core::sites::{HEADER_BYTES, MAGIC, SLOT_BYTES, VERSION, header};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// What a log begins with; it doubles from there.
const FIRST_BYTES: u64 = 64 << 10;
/// Images that one process number can have in one folder.
const MOST_IMAGES: u32 = 1000;

const NONE: u32 = 0;
const OPENING: u32 = 1;
const OPEN: u32 = 2;
const REFUSED: u32 = 3;

const IDLE: u32 = 0;
const GROWING: u32 = 1;
const GIVEN_UP: u32 = 2;

/// The log, from nothing to open or refused.
pub struct Log {
    phase: AtomicU32,
    /// The thread that opens it.
    opener: AtomicU32,
    /// Which image of this process number: part of the file's name.
    image: AtomicU32,
    /// Address of the mapping.
    base: AtomicUsize,
    /// Slots that the file has room for.
    granted: AtomicU64,
    /// Is somebody growing it, or can nobody?
    growing: AtomicU32,
}

/// A file's name with its closing zero.
struct Name([u8; 4096]);

impl Log {
    /// No log.
    pub const fn new() -> Self {
        Self {
            phase: AtomicU32::new(NONE),
            opener: AtomicU32::new(0),
            image: AtomicU32::new(0),
            base: AtomicUsize::new(0),
            granted: AtomicU64::new(0),
            growing: AtomicU32::new(IDLE),
        }
    }

    /// Is there a log that `thread` may write to now? The first that asks opens it.
    pub fn is_open(&self, thread: u32) -> bool {
        match self.phase.load(Ordering::Acquire) {
            OPEN => true,
            NONE => self.open(thread),
            // Opening calls nothing that allocates, but a signal may come in between.
            OPENING if self.opener.load(Ordering::Relaxed) == thread => false,
            OPENING => self.wait(),
            _ => false,
        }
    }

    #[cold]
    fn wait(&self) -> bool {
        for _ in 0..10_000 {
            match self.phase.load(Ordering::Acquire) {
                OPEN => return true,
                // SAFETY: gives up the rest of this thread's turn.
                OPENING => unsafe { libc::syscall(libc::SYS_sched_yield) },
                _ => return false,
            };
        }
        false
    }

    #[cold]
    fn open(&self, thread: u32) -> bool {
        let taken =
            self.phase
                .compare_exchange(NONE, OPENING, Ordering::Acquire, Ordering::Acquire);
        if taken.is_err() {
            return self.wait();
        }
        self.opener.store(thread, Ordering::Relaxed);
        let phase = if self.create().is_some() {
            OPEN
        } else {
            REFUSED
        };
        self.phase.store(phase, Ordering::Release);
        phase == OPEN
    }

    fn create(&self) -> Option<()> {
        // SAFETY: no arguments, no effect.
        let (pid, parent) = unsafe {
            (
                libc::syscall(libc::SYS_getpid) as u32,
                libc::syscall(libc::SYS_getppid) as u32,
            )
        };
        let flags =
            libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let (image, file) = (0..MOST_IMAGES).find_map(|image| {
            match open_file(&Name::new(pid, image)?, flags) {
                Ok(file) => Some(Some((image, file))),
                // Another program of this process, before exec, or of an earlier process.
                Err(libc::EEXIST) => None,
                Err(_) => Some(None),
            }
        })??;
        self.image.store(image, Ordering::Relaxed);
        let slots = config::slots();
        let bytes = HEADER_BYTES as u64 + slots * SLOT_BYTES as u64;
        let granted = grow_file(file, FIRST_BYTES.min(bytes));
        let base = if granted { map(file, bytes) } else { None };
        close(file);
        let base = base?;
        self.base.store(base, Ordering::Relaxed);
        let first = (FIRST_BYTES.min(bytes)).checked_sub(HEADER_BYTES as u64)?;
        self.granted
            .store(first / SLOT_BYTES as u64, Ordering::Relaxed);
        self.field32(header::VERSION)
            .store(VERSION, Ordering::Relaxed);
        self.field32(header::PID).store(pid, Ordering::Relaxed);
        self.field32(header::PARENT)
            .store(parent, Ordering::Relaxed);
        self.field(header::START_NS)
            .store(record::now_ns(), Ordering::Relaxed);
        self.field(header::THRESHOLD_BYTES)
            .store(config::threshold_bytes(), Ordering::Relaxed);
        self.field(header::MAGIC).store(MAGIC, Ordering::Release);
        Some(())
    }

    /// A word of the header. Only while the log is open, or by who opens it.
    fn field(&self, offset: usize) -> &AtomicU64 {
        let base = self.base.load(Ordering::Relaxed);
        // SAFETY: the mapping begins with a header of a page, which the file has; it is never
        // unmapped; offsets are multiples of 8 below it; every access is atomic.
        unsafe { &*((base + offset) as *const AtomicU64) }
    }

    fn field32(&self, offset: usize) -> &AtomicU32 {
        let base = self.base.load(Ordering::Relaxed);
        // SAFETY: as in `field`.
        unsafe { &*((base + offset) as *const AtomicU32) }
    }

    /// Is there room for one more allocation, and for the end of each that lives? So that what is
    /// recorded is recorded whole.
    pub fn has_room(&self, live: u64) -> bool {
        let next = self.field(header::NEXT_SLOT).load(Ordering::Relaxed);
        // A new call stack takes a few slots more.
        next + live + 8 < config::slots()
    }

    /// Counts an allocation that is not in the log.
    pub fn dropped_allocation(&self) {
        if self.phase.load(Ordering::Acquire) == OPEN {
            self.field(header::DROPPED_ALLOCATIONS)
                .fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts another record that is not in the log.
    pub fn dropped_other(&self) {
        if self.phase.load(Ordering::Acquire) == OPEN {
            self.field(header::DROPPED_OTHERS)
                .fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes a slot that is no allocation, or counts it.
    pub fn append_other(&self, first: u64, time_ns: u64, body: &[u64; 6]) {
        if !self.append(first, time_ns, body) {
            self.dropped_other();
        }
    }

    /// Writes a slot; its first word last. The log must be open. Says whether there was room.
    pub fn append(&self, first: u64, time_ns: u64, body: &[u64; 6]) -> bool {
        let slot = self
            .field(header::NEXT_SLOT)
            .fetch_add(1, Ordering::Relaxed);
        if slot >= self.granted.load(Ordering::Acquire) && !self.grow(slot) {
            return false;
        }
        let start = self.base.load(Ordering::Relaxed) + HEADER_BYTES + slot as usize * SLOT_BYTES;
        // SAFETY: below `granted`, so inside file and mapping; the slot's number was handed out
        // once, so that nobody else writes it.
        unsafe {
            let words = start as *mut u64;
            words.add(1).write(time_ns);
            for (index, word) in body.iter().enumerate() {
                words.add(2 + index).write(*word);
            }
            (*(start as *const AtomicU64)).store(first, Ordering::Release);
        }
        true
    }

    /// Grows the file until it holds `slot`; others that need it wait.
    #[cold]
    fn grow(&self, slot: u64) -> bool {
        let most = config::slots();
        if slot >= most {
            return false;
        }
        for _ in 0..10_000 {
            if slot < self.granted.load(Ordering::Acquire) {
                return true;
            }
            let taken =
                self.growing
                    .compare_exchange(IDLE, GROWING, Ordering::Acquire, Ordering::Relaxed);
            match taken {
                Ok(_) => {}
                Err(GIVEN_UP) => return false,
                Err(_) => {
                    // SAFETY: gives up the rest of this thread's turn.
                    unsafe { libc::syscall(libc::SYS_sched_yield) };
                    continue;
                }
            }
            let granted = self.granted.load(Ordering::Relaxed);
            let wanted = (granted * 2).max(slot + 1).min(most);
            // Somebody else may have grown it since it was looked at.
            let done = slot < granted || self.reopen_and_grow(wanted);
            if done && slot >= granted {
                self.granted.store(wanted, Ordering::Release);
            }
            // A disk that is full is not asked again for every record.
            let after = if done { IDLE } else { GIVEN_UP };
            self.growing.store(after, Ordering::Release);
            return done;
        }
        false
    }

    fn reopen_and_grow(&self, slots: u64) -> bool {
        let pid = self.field32(header::PID).load(Ordering::Relaxed);
        let Some(name) = Name::new(pid, self.image.load(Ordering::Relaxed)) else {
            return false;
        };
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let Ok(file) = open_file(&name, flags) else {
            return false;
        };
        let grown = grow_file(file, HEADER_BYTES as u64 + slots * SLOT_BYTES as u64);
        close(file);
        grown
    }
}

impl Name {
    /// `FOLDER/PID.sites`, for later images of the same number `FOLDER/PID.1.sites`.
    fn new(pid: u32, image: u32) -> Option<Self> {
        let mut name = Self([0; 4096]);
        let mut at = name.put(0, config::folder())?;
        at = name.put(at, b"/")?;
        at = name.put_number(at, pid)?;
        if image > 0 {
            at = name.put(at, b".")?;
            at = name.put_number(at, image)?;
        }
        name.put(at, b".sites\0")?;
        Some(name)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) -> Option<usize> {
        let end = at + bytes.len();
        self.0.get_mut(at..end)?.copy_from_slice(bytes);
        Some(end)
    }

    fn put_number(&mut self, at: usize, mut number: u32) -> Option<usize> {
        let mut digits = [0; 10];
        let mut first = digits.len();
        loop {
            first -= 1;
            *digits.get_mut(first)? = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return self.put(at, digits.get(first..)?);
            }
        }
    }
}

fn open_file(name: &Name, flags: i32) -> Result<i32, i32> {
    // SAFETY: the name ends in a zero; the caller closes the descriptor.
    let file = unsafe {
        libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            name.0.as_ptr(),
            flags,
            0o600,
        )
    };
    if file < 0 {
        return Err(record::errno());
    }
    Ok(file as i32)
}

fn close(file: i32) {
    // SAFETY: a descriptor that `open_file` made, closed once.
    unsafe { libc::syscall(libc::SYS_close, file) };
}

/// Gives a file blocks up to `bytes`, which read as zeros.
fn grow_file(file: i32, bytes: u64) -> bool {
    // SAFETY: a descriptor of this library's own.
    if unsafe { libc::syscall(libc::SYS_fallocate, file, 0, 0i64, bytes as i64) } == 0 {
        return true;
    }
    if record::errno() != libc::EOPNOTSUPP {
        return false;
    }
    // A file system without it (NFS): written zeros are blocks too. Only behind what is there.
    let zeros = [0u8; 512];
    // SAFETY: as above.
    let mut at = unsafe { libc::syscall(libc::SYS_lseek, file, 0i64, libc::SEEK_END) };
    while at >= 0 && (at as u64) < bytes {
        let count = (bytes - at as u64).min(512);
        // SAFETY: at most the 512 bytes of `zeros` are read.
        let written = unsafe { libc::syscall(libc::SYS_pwrite64, file, zeros.as_ptr(), count, at) };
        if written <= 0 {
            return false;
        }
        at += written;
    }
    at >= 0
}

/// Maps `bytes` of a file, most of which it does not have yet. A forked child does not get them.
fn map(file: i32, bytes: u64) -> Option<usize> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let base = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            0usize,
            bytes,
            rights,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file,
            0usize,
        )
    };
    // The kernel's errors come as -1 through syscall(2).
    if base == -1 {
        return None;
    }
    // SAFETY: the mapping just made.
    unsafe { libc::syscall(libc::SYS_madvise, base, bytes, libc::MADV_DONTFORK) };
    Some(base as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn names_tell_process_and_image() {
        let text = |pid, image| {
            let name = Name::new(pid, image).unwrap();
            CStr::from_bytes_until_nul(&name.0).unwrap().to_owned()
        };
        assert_eq!(text(17, 0), c"/17.sites".to_owned());
        assert_eq!(text(u32::MAX, 12), c"/4294967295.12.sites".to_owned());
        assert_eq!(text(0, 1), c"/0.1.sites".to_owned());
    }
}
