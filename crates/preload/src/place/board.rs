//! The board: counters and seats that all processes of a run share, and hither reads. A process that
//! cannot open it has one of its own, which nobody reads.

use super::plan::Rule;
use hither_core::shim::board::{
    COUNTS, RULE_BYTES, RULES, SEAT_COUNT, SEATS, TOTAL_BYTES, UNPLACED, WORD,
};
use hither_core::shim::{BoardId, Seats};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Address of the board; 0 for none.
static BASE: AtomicUsize = AtomicUsize::new(0);

/// Maps the board of a path, if it is the one that is meant, or one of this process and its children.
pub fn open(path: Option<&CStr>, id: Option<BoardId>) {
    let base = match (path, id) {
        (Some(path), Some(id)) => open_file(path, id),
        _ => None,
    };
    let base = base.or_else(|| map(-1, libc::MAP_ANONYMOUS));
    BASE.store(base.unwrap_or(0), Ordering::Release);
}

/// The path may lead to whatever another program has opened under the number that hither had. So it is
/// looked at before it is opened, as that alone can mean something to a device, and once it is open.
fn open_file(path: &CStr, id: BoardId) -> Option<usize> {
    let looked = open_at(path, libc::O_PATH)?;
    let is_meant = is_file(looked, id);
    close(looked);
    if !is_meant {
        return None;
    }
    let file = open_at(path, libc::O_RDWR | libc::O_NONBLOCK | libc::O_NOCTTY)?;
    let base = (is_file(file, id) && holds_word(file, id.word))
        .then(|| map(file, 0))
        .flatten();
    // A mapping needs no descriptor.
    close(file);
    base
}

fn open_at(path: &CStr, flags: i32) -> Option<i32> {
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: the path ends in a zero; the caller closes the descriptor.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) };
    (file >= 0).then_some(file as i32)
}

fn close(file: i32) {
    // SAFETY: a descriptor of `open_at`, closed once.
    unsafe { libc::syscall(libc::SYS_close, file) };
}

/// Is it the file that is meant, and long enough? A word behind its end would kill the program.
fn is_file(file: i32, id: BoardId) -> bool {
    let mut about = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: an open descriptor, and room for what the kernel tells of it.
    if unsafe { libc::syscall(libc::SYS_fstat, file, about.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: zeros are a valid value of it, and the kernel has filled it in.
    let about = unsafe { about.assume_init() };
    about.st_mode & libc::S_IFMT == libc::S_IFREG
        && about.st_size >= TOTAL_BYTES as i64
        && (about.st_dev, about.st_ino) == (id.device, id.inode)
}

/// Inodes are used again; the word is not.
fn holds_word(file: i32, word: u64) -> bool {
    let mut found = 0u64;
    // SAFETY: an open descriptor, and room for the eight bytes that are asked for.
    let read = unsafe { libc::syscall(libc::SYS_pread64, file, &raw mut found, 8usize, WORD) };
    read == 8 && found == word
}

fn map(file: i32, flags: i32) -> Option<usize> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | flags;
    // SAFETY: a new mapping at an address that the kernel chooses, never unmapped.
    let base = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            0usize,
            TOTAL_BYTES,
            rights,
            flags,
            file,
            0usize,
        )
    };
    (base != -1).then_some(base as usize)
}

/// Adds to a counter.
pub fn add(offset: usize, count: u64) {
    let base = BASE.load(Ordering::Relaxed);
    if base != 0 && offset < COUNTS {
        // SAFETY: inside the mapping, which stays; offsets are multiples of 8; all access is atomic.
        unsafe { &*((base + offset) as *const AtomicU64) }.fetch_add(count, Ordering::Relaxed);
    }
}

/// Adds to a counter of a rule.
pub fn count_rule(number: usize, offset: usize, count: u64) {
    add(RULES + number * RULE_BYTES + offset, count);
}

/// Notes that no rule about the heap can be followed.
pub fn count_unplaced_heap(rules: &[Rule]) {
    for (number, _) in rules.iter().enumerate().filter(|(_, rule)| rule.heap) {
        count_rule(number, UNPLACED, 1);
    }
}

/// The seats, for an order of so many CPUs; nothing without a board.
pub fn seats(cpu_count: usize) -> Option<Seats<'static>> {
    let base = BASE.load(Ordering::Acquire);
    if base == 0 || cpu_count * 4 > SEATS - COUNTS {
        return None;
    }
    // SAFETY: both are inside the mapping and aligned, as the layout has it; the mapping is never
    // undone, and every access is atomic.
    let (counts, seats) = unsafe {
        (
            std::slice::from_raw_parts((base + COUNTS) as *const AtomicU32, cpu_count),
            std::slice::from_raw_parts((base + SEATS) as *const AtomicU64, SEAT_COUNT),
        )
    };
    Some(Seats::new(counts, seats))
}
