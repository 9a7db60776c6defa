//! The board: counters and seats that all processes of a run share, and hither reads. A process that
//! cannot open it has one of its own, which nobody reads.

use super::plan::Rule;
use hither_core::shim::Seats;
use hither_core::shim::board::{
    COUNTS, RULE_BYTES, RULES, SEAT_COUNT, SEATS, TOTAL_BYTES, UNPLACED,
};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Address of the board; 0 for none.
static BASE: AtomicUsize = AtomicUsize::new(0);

/// Maps the board of a path, or one of this process and its children.
pub fn open(path: Option<&CStr>) {
    let base = path
        .and_then(open_file)
        .or_else(|| map(-1, libc::MAP_ANONYMOUS));
    BASE.store(base.unwrap_or(0), Ordering::Release);
}

fn open_file(path: &CStr) -> Option<usize> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: the path ends in a zero; the descriptor is closed below.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) };
    if file < 0 {
        return None;
    }
    // SAFETY: the descriptor just opened. A word behind the file's end would kill the program.
    let bytes = unsafe { libc::syscall(libc::SYS_lseek, file, 0i64, libc::SEEK_END) };
    let base = (bytes >= TOTAL_BYTES as i64)
        .then(|| map(file as i32, 0))
        .flatten();
    // SAFETY: as above; a mapping needs no descriptor.
    unsafe { libc::syscall(libc::SYS_close, file) };
    base
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
