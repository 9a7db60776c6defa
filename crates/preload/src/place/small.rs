//! Small blocks: an arena for each rule, or for each node where memory is to be local. Memory of an
//! arena never goes elsewhere, so that no policy is left on memory of somebody else.
//!
//! A size of an arena has a region, which is opened piece by piece and handed out from its start;
//! blocks that are given back are a stack. Its top has a count beside it, so that a block that was
//! taken and given back in between is not mistaken for the one that was there. There are no locks: a
//! fork or a signal finds all of it whole at any moment, and loses one block at most.

use super::kernel::{self, Mask, PAGE};
use super::plan::Rule;
use super::space::{self, ARENAS, MOST_SMALL, SIZES};
use hither_core::bind::Mode;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// What is opened at a time: some blocks, in these limits.
const LEAST_OPENED: usize = 64 << 10;
const MOST_OPENED: usize = 4 << 20;

/// One size of one arena.
struct Shelf {
    /// Blocks that were ever handed out.
    used: AtomicUsize,
    /// Bytes that are memory.
    opened: AtomicUsize,
    /// Blocks that were given back: a count in the upper half, the top one's number plus one.
    free: AtomicU64,
}

#[unsafe(link_section = ".bss.large")]
static SHELVES: [[Shelf; SIZES]; ARENAS] = [const {
    [const {
        Shelf {
            used: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
            free: AtomicU64::new(0),
        }
    }; SIZES]
}; ARENAS];

/// Number of the size that a block of so many bytes gets: steps of 16 up to 128, then four to each
/// doubling.
pub fn size_of(bytes: usize) -> usize {
    if bytes <= 128 {
        return bytes.max(1).div_ceil(16) - 1;
    }
    let doubling = (bytes - 1).ilog2();
    let step = (bytes - 1) >> (doubling - 2) & 3;
    8 + (doubling as usize - 7) * 4 + step
}

/// Bytes of a size.
pub fn bytes_of(size: usize) -> usize {
    match size {
        0..8 => (size + 1) * 16,
        _ => {
            let (doubling, step) = (7 + (size - 8) / 4, (size - 8) % 4);
            (1 << doubling) + ((step + 1) << (doubling - 2))
        }
    }
}

/// What has a block of so many bytes at such an alignment, which is a power of two; nothing where it
/// is no small block.
pub fn size_at(bytes: usize, align: usize) -> Option<usize> {
    let bytes = match align {
        0..=16 => bytes,
        // Blocks of a power of two are aligned to it, as their region is.
        _ => bytes.max(align).checked_next_power_of_two()?,
    };
    (bytes <= MOST_SMALL).then(|| size_of(bytes))
}

/// A block, and whether it is all zeros; nothing where the region is used up or there is no memory.
pub fn take(arena: usize, size: usize, rule: &Rule, node: Option<u32>) -> Option<(usize, bool)> {
    let shelf = SHELVES.get(arena)?.get(size)?;
    let (base, region) = space::small_region(arena, size);
    let bytes = bytes_of(size);
    let mut top = shelf.free.load(Ordering::Acquire);
    while top as u32 != 0 {
        let block = base + (top as u32 as usize - 1) * bytes;
        // SAFETY: memory of this arena, which stays memory. Another thread may have taken the block
        // meanwhile and written to it: then the exchange fails, as the count is another.
        let below = unsafe { (*(block as *const AtomicU32)).load(Ordering::Relaxed) };
        let next = (top >> 32).wrapping_add(1) << 32 | u64::from(below);
        match shelf
            .free
            .compare_exchange_weak(top, next, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => return Some((block, false)),
            Err(now) => top = now,
        }
    }
    let mut used = shelf.used.load(Ordering::Relaxed);
    loop {
        let end = (used + 1).checked_mul(bytes)?;
        if end > region || used >= u32::MAX as usize - 1 {
            return None;
        }
        open(shelf, base, end, region, rule, node)?;
        match shelf
            .used
            .compare_exchange_weak(used, used + 1, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => return Some((base + used * bytes, true)),
            Err(now) => used = now,
        }
    }
}

/// Makes a region memory up to `end`. Two threads may do it at once: neither harms the other.
fn open(
    shelf: &Shelf,
    base: usize,
    end: usize,
    region: usize,
    rule: &Rule,
    node: Option<u32>,
) -> Option<()> {
    loop {
        let opened = shelf.opened.load(Ordering::Acquire);
        if end <= opened {
            return Some(());
        }
        let more = ((end - opened) * 8)
            .clamp(LEAST_OPENED, MOST_OPENED)
            .max(end - opened);
        let more = more.next_multiple_of(PAGE).min(region - opened);
        let (mode, mask) = match node {
            Some(node) => (Mode::Preferred, Mask::of(node)),
            None => (rule.mode, rule.mask),
        };
        let start = base + opened;
        if !kernel::open(start, more) || !kernel::bind(start, more, mode, &mask) {
            return None;
        }
        let _ = shelf.opened.compare_exchange(
            opened,
            opened + more,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
    }
}

/// A block is given back.
pub fn give_back(arena: usize, size: usize, address: usize) {
    let (base, _) = space::small_region(arena, size);
    let bytes = bytes_of(size);
    let Some(shelf) = SHELVES.get(arena).and_then(|shelves| shelves.get(size)) else {
        return;
    };
    let number = (address - base) / bytes;
    // No block begins there: whoever frees it has a mistake, which must not spread.
    if number * bytes != address - base || number >= shelf.used.load(Ordering::Relaxed) {
        return;
    }
    let mut top = shelf.free.load(Ordering::Relaxed);
    loop {
        // SAFETY: the block is nobody's between being given back and being found.
        unsafe { (*(address as *const AtomicU32)).store(top as u32, Ordering::Relaxed) };
        let next = (top >> 32).wrapping_add(1) << 32 | (number as u64 + 1);
        match shelf
            .free
            .compare_exchange_weak(top, next, Ordering::Release, Ordering::Relaxed)
        {
            Ok(_) => return,
            Err(now) => top = now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_up_and_hold_what_they_are_for() {
        for bytes in (1..5000).chain([65536, 65537, MOST_SMALL - 1, MOST_SMALL]) {
            let size = size_of(bytes);
            assert!(bytes_of(size) >= bytes, "{bytes}");
            assert!(size == 0 || bytes_of(size - 1) < bytes, "{bytes}");
            assert!(bytes_of(size).is_multiple_of(16) && size < SIZES);
        }
        assert_eq!(bytes_of(size_of(MOST_SMALL)), MOST_SMALL);
        assert_eq!(size_at(100, 64).map(bytes_of), Some(128));
        assert_eq!(size_at(10, 4096).map(bytes_of), Some(4096));
        assert_eq!(size_at(5, MOST_SMALL * 2), None);
        assert_eq!(size_at(usize::MAX, 64), None);
    }
}
