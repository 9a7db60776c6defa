//! Large blocks: a slot of a power of two each, of which as many pages are memory as were asked for.
//!
//! A block that is given back keeps its memory while such blocks have 64 MiB together at most (what
//! glibc keeps for sizes that come again): a program that allocates and frees one size in a loop
//! must not fault every page in each time. Such a slot is used again as it is for the same rule and
//! size alone; otherwise memory and policy go first.

use super::kernel::{self, PAGE};
use super::plan::Rule;
use super::space::{self, LEAST_BITS, POWERS};
use hither_core::bind::Mode;
use hither_core::shim::MOST_PARTS_TOGETHER;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Memory of blocks that were given back, in all.
const MOST_KEPT: usize = 64 << 20;

/// What is known of a slot. Only who has taken the slot uses it, but for `below`.
#[repr(C)]
pub struct Record {
    /// The slot below in the stack, plus one.
    below: AtomicU32,
    /// The rule, plus one.
    rule: AtomicU32,
    /// Pages that are memory.
    pages: AtomicU64,
    /// Mappings that it may take.
    parts: AtomicU64,
}

struct Shelf {
    used: AtomicUsize,
    /// As in `small`.
    free: AtomicU64,
}

static SHELVES: [Shelf; POWERS] = [const {
    Shelf {
        used: AtomicUsize::new(0),
        free: AtomicU64::new(0),
    }
}; POWERS];
static KEPT: AtomicUsize = AtomicUsize::new(0);
/// Parts of all blocks, mappings of the program's own included.
static PARTS: AtomicU64 = AtomicU64::new(0);

/// A block that was placed.
pub struct Taken {
    pub address: usize,
    pub is_zeroed: bool,
    pub is_coarse: bool,
}

fn record(power: usize, slot: usize) -> &'static Record {
    let address = space::record(power, slot, size_of::<Record>());
    // SAFETY: records of all slots were opened at start; zeros are a record of an unused slot.
    unsafe { &*(address as *const Record) }
}

/// Parts that blocks may still be cut into.
pub fn parts_left() -> u64 {
    MOST_PARTS_TOGETHER.saturating_sub(PARTS.load(Ordering::Relaxed))
}

/// Notes that so many parts are used.
pub fn use_parts(parts: u64) {
    PARTS.fetch_add(parts, Ordering::Relaxed);
}

/// Gives a block; nothing where there are no addresses or no memory, or the kernel refuses.
pub fn take(rule: &Rule, number: usize, bytes: usize, align: usize) -> Option<Taken> {
    let pages = bytes.div_ceil(PAGE);
    let power = power_of(bytes, align)?;
    let slot = pop(power).or_else(|| fresh(power))?;
    let (address, record) = (space::slot(power, slot), record(power, slot));
    let had = record.pages.load(Ordering::Relaxed) as usize;
    let mut taken = Taken {
        address,
        is_zeroed: true,
        is_coarse: false,
    };
    if had > 0 {
        KEPT.fetch_sub(had * PAGE, Ordering::Relaxed);
        if had == pages && record.rule.load(Ordering::Relaxed) as usize == number + 1 {
            taken.is_zeroed = false;
            return Some(taken);
        }
        empty(record, address);
    }
    if !kernel::open(address, pages * PAGE) {
        push(power, slot);
        return None;
    }
    let bound = kernel::place(rule, address, pages * PAGE, parts_left());
    record.pages.store(pages as u64, Ordering::Relaxed);
    record.parts.store(bound.parts, Ordering::Relaxed);
    record.rule.store(number as u32 + 1, Ordering::Relaxed);
    use_parts(bound.parts);
    if !bound.is_done {
        empty(record, address);
        push(power, slot);
        return None;
    }
    taken.is_coarse = bound.is_coarse;
    Some(taken)
}

/// A block is given back. Returns the number of its rule.
pub fn give_back(rules: &[Rule], power: usize, slot: usize, address: usize) -> Option<usize> {
    // No block begins there, or none was given: a mistake that must not spread.
    if address != space::slot(power, slot)
        || slot >= SHELVES.get(power)?.used.load(Ordering::Relaxed)
    {
        return None;
    }
    let record = record(power, slot);
    let bytes = record.pages.load(Ordering::Relaxed) as usize * PAGE;
    let number = (record.rule.load(Ordering::Relaxed) as usize).checked_sub(1)?;
    // Pages of a local block are near who touched them first, who may be another next time.
    let is_local = rules
        .get(number)
        .is_none_or(|rule| rule.mode == Mode::Local);
    if is_local || !keep(bytes) {
        empty(record, address);
    }
    push(power, slot);
    Some(number)
}

/// Bytes that a block has, and its rule's number.
pub fn about(power: usize, slot: usize) -> (usize, usize) {
    let record = record(power, slot);
    let bytes = record.pages.load(Ordering::Relaxed) as usize * PAGE;
    (
        bytes,
        (record.rule.load(Ordering::Relaxed) as usize).wrapping_sub(1),
    )
}

/// Gives a block more pages where it is, if its slot has room: the policy goes over all of it, for
/// pages that are not there yet.
pub fn grow(rule: &Rule, power: usize, slot: usize, bytes: usize) -> bool {
    let pages = bytes.div_ceil(PAGE);
    let (address, record) = (space::slot(power, slot), record(power, slot));
    if pages * PAGE > 1 << (LEAST_BITS as usize + power) || !kernel::open(address, pages * PAGE) {
        return false;
    }
    let before = record.parts.load(Ordering::Relaxed);
    let bound = kernel::place(rule, address, pages * PAGE, parts_left() + before);
    PARTS.fetch_sub(before, Ordering::Relaxed);
    use_parts(bound.parts);
    record.parts.store(bound.parts, Ordering::Relaxed);
    record.pages.store(pages as u64, Ordering::Relaxed);
    true
}

fn power_of(bytes: usize, align: usize) -> Option<usize> {
    let bits = bytes
        .max(align)
        .checked_next_power_of_two()?
        .ilog2()
        .max(LEAST_BITS);
    Some((bits - LEAST_BITS) as usize).filter(|power| *power < POWERS)
}

/// May so much memory of a block that was given back be kept?
fn keep(bytes: usize) -> bool {
    let more = |kept: usize| Some(kept + bytes).filter(|all| *all <= MOST_KEPT);
    KEPT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
        .is_ok()
}

fn empty(record: &Record, address: usize) {
    let bytes = record.pages.swap(0, Ordering::Relaxed) as usize * PAGE;
    PARTS.fetch_sub(record.parts.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    record.rule.store(0, Ordering::Relaxed);
    kernel::close(address, bytes);
}

fn pop(power: usize) -> Option<usize> {
    let shelf = SHELVES.get(power)?;
    let mut top = shelf.free.load(Ordering::Acquire);
    while top as u32 != 0 {
        let slot = top as u32 as usize - 1;
        let below = record(power, slot).below.load(Ordering::Relaxed);
        let next = (top >> 32).wrapping_add(1) << 32 | u64::from(below);
        match shelf
            .free
            .compare_exchange_weak(top, next, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => return Some(slot),
            Err(now) => top = now,
        }
    }
    None
}

fn push(power: usize, slot: usize) {
    let Some(shelf) = SHELVES.get(power) else {
        return;
    };
    let mut top = shelf.free.load(Ordering::Relaxed);
    loop {
        record(power, slot)
            .below
            .store(top as u32, Ordering::Relaxed);
        let next = (top >> 32).wrapping_add(1) << 32 | (slot as u64 + 1);
        match shelf
            .free
            .compare_exchange_weak(top, next, Ordering::Release, Ordering::Relaxed)
        {
            Ok(_) => return,
            Err(now) => top = now,
        }
    }
}

fn fresh(power: usize) -> Option<usize> {
    let shelf = SHELVES.get(power)?;
    let below = |used: usize| (used < space::slots(power)).then_some(used + 1);
    shelf
        .used
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, below)
        .ok()
}
