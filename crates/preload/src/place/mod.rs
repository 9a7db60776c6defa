//! Placement: blocks of memory that rules give a policy, and threads that get CPUs.
//!
//! Memory that a rule is about does not come from the program's allocator, whose memory goes from one
//! use to the next and would carry policies along: it has addresses of its own ([`space`]), by which
//! `free` and its relatives know it. All else goes to the allocator behind, unchanged. Mappings that
//! the program makes itself are its own, and get the policy where they are.
//!
//! As everywhere in this library nothing waits for a lock, so that a child of a fork at any moment
//! goes on with what its parent had: the same rules, blocks of its own (copies), the same board.

pub mod board;
mod code;
mod kernel;
mod large;
pub mod plan;
mod small;
mod space;
pub mod threads;

pub use space::holds;

use crate::record::{self, Errno};
use crate::{bootstrap, state, walk};
use hither_core::bind::Mode;
use hither_core::shim::{MOST_RULES, Stride, board as layout};
use plan::{Rule, plan};
use space::Place;
use std::sync::atomic::{AtomicUsize, Ordering};

/// From so many bytes on a block whose parts belong on several nodes has pages of its own.
const LEAST_PARTED: usize = 64 << 10;

/// Least bytes that a rule for the heap, or for mappings, is about.
static LEAST_HEAP: AtomicUsize = AtomicUsize::new(usize::MAX);
static LEAST_MAP: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Where the allocator behind lies, unless it is the C library: mappings that it makes are memory of
/// many blocks, and nobody's in particular.
static ALLOCATOR: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// A block that a rule has placed.
#[derive(Clone, Copy)]
pub struct Block {
    /// Where it is.
    pub address: usize,
    /// Is it all zeros?
    pub is_zeroed: bool,
}

/// Is this too small for every rule about the heap?
#[inline(always)]
pub fn is_below_heap(bytes: usize) -> bool {
    bytes < LEAST_HEAP.load(Ordering::Relaxed)
}

/// Least bytes of the heap that a rule is about.
pub fn least_heap() -> usize {
    LEAST_HEAP.load(Ordering::Relaxed)
}

/// Reads the plan, and prepares for it. Before the program's first instruction.
pub fn start(text: &[u8], board: Option<&std::ffi::CStr>) {
    if !plan::start(text) {
        return;
    }
    board::open(board, plan().board);
    let rules = plan().rules();
    let least = |is_meant: fn(&Rule) -> bool| {
        let sizes = rules
            .iter()
            .filter(|rule| is_meant(rule))
            .map(|rule| rule.least.max(1));
        sizes.min().map_or(usize::MAX, |bytes| {
            usize::try_from(bytes).unwrap_or(usize::MAX)
        })
    };
    LEAST_HEAP.store(least(|rule| rule.heap), Ordering::Relaxed);
    LEAST_MAP.store(least(|rule| rule.maps), Ordering::Relaxed);
    if rules.iter().any(|rule| rule.module().is_some()) {
        walk::start();
        code::start();
        // Else a child may find an entry of the walks taken for good, and only walks more often.
        let _ = state::wipe_on_fork();
    }
    if rules.iter().any(|rule| rule.maps)
        && let Some((start, end)) = code::allocator(bootstrap::MALLOC.address())
    {
        walk::start();
        ALLOCATOR[0].store(start, Ordering::Relaxed);
        ALLOCATOR[1].store(end, Ordering::Relaxed);
    }
    board::add(layout::PROCESSES, 1);
    threads::start();
}

/// The first rule that an allocation fits, by its number. `caller` is where the program's return
/// address lies, or 0.
fn rule_of(
    bytes: usize,
    is_meant: fn(&Rule) -> bool,
    caller: usize,
) -> Option<(usize, &'static Rule)> {
    let mut by_code = None;
    for (number, rule) in plan().rules().iter().enumerate() {
        if !is_meant(rule) || !(rule.least..=rule.most).contains(&(bytes as u64)) {
            continue;
        }
        if rule.module().is_some() {
            let fitting = *by_code.get_or_insert_with(|| crate::walk::rules(caller));
            if fitting >> number & 1 == 0 {
                continue;
            }
        }
        return Some((number, rule));
    }
    None
}

/// Which site rules the code of a call stack is meant by, a bit each.
pub fn rules_of_frames(frames: &[usize]) -> u16 {
    const { assert!(MOST_RULES <= 16) };
    code::rules(frames)
}

/// A block for the program, where a rule is about it. `align` is a power of two.
#[cold]
pub fn heap(bytes: usize, align: usize, caller: usize) -> Option<Block> {
    if is_below_heap(bytes) {
        return None;
    }
    let _errno = Errno::keep();
    let (number, rule) = rule_of(bytes, |rule| rule.heap, caller)?;
    // The kernel's own way is the allocator's, too.
    if rule.mode == Mode::Default {
        return None;
    }
    // With the first block, as most programs that are started end without one.
    if !space::is_there() && !space::start(size_of::<large::Record>()) {
        if LEAST_HEAP.swap(usize::MAX, Ordering::Relaxed) != usize::MAX {
            board::count_unplaced_heap(plan().rules());
        }
        return None;
    }
    let Some(block) = take(number, rule, bytes, align) else {
        board::count_rule(number, layout::UNPLACED, 1);
        return None;
    };
    board::count_rule(number, layout::BLOCKS, 1);
    board::count_rule(number, layout::BYTES, bytes as u64);
    Some(block)
}

fn take(number: usize, rule: &Rule, bytes: usize, align: usize) -> Option<Block> {
    let is_parted = rule.stride != Stride::Kernel && bytes >= LEAST_PARTED;
    if let Some(size) = small::size_at(bytes, align).filter(|_| !is_parted) {
        let (arena, node) = match rule.mode {
            Mode::Local => {
                let node = kernel::node();
                let position = plan().nodes.nodes().position(|known| known == node)?;
                (MOST_RULES + position, Some(node))
            }
            _ => (number, None),
        };
        let (address, is_zeroed) = small::take(arena, size, rule, node)?;
        return Some(Block { address, is_zeroed });
    }
    let taken = large::take(rule, number, bytes, align)?;
    if taken.is_coarse {
        board::count_rule(number, layout::COARSE, 1);
    }
    Some(Block {
        address: taken.address,
        is_zeroed: taken.is_zeroed,
    })
}

/// A placed block is given back.
#[cold]
pub fn release(address: usize) {
    let _errno = Errno::keep();
    match space::place(address) {
        Place::Small { arena, size } => small::give_back(arena, size, address),
        Place::Large { power, slot } => {
            large::give_back(plan().rules(), power, slot, address);
        }
    }
    board::add(layout::FREED, 1);
}

/// Bytes that a placed block has room for.
pub fn capacity(address: usize) -> usize {
    match space::place(address) {
        Place::Small { size, .. } => small::bytes_of(size),
        Place::Large { power, slot } => large::about(power, slot).0,
    }
}

/// Makes a placed block larger or smaller where it is; says whether that was to be.
#[cold]
pub fn resize(address: usize, bytes: usize) -> bool {
    let _errno = Errno::keep();
    let had = capacity(address);
    // What is less than half full is worth another place.
    if bytes <= had && bytes >= had / 2 {
        return true;
    }
    match space::place(address) {
        Place::Small { .. } => false,
        Place::Large { power, slot } => {
            let rule = plan().rules().get(large::about(power, slot).1);
            bytes > had && rule.is_some_and(|rule| large::grow(rule, power, slot, bytes))
        }
    }
}

/// Is a mapping of so many bytes to be looked at?
#[inline(always)]
pub fn is_below_map(bytes: usize) -> bool {
    bytes < LEAST_MAP.load(Ordering::Relaxed)
}

/// The program has made an anonymous private mapping.
#[cold]
pub fn map(address: usize, bytes: usize) {
    let _errno = Errno::keep();
    let Some((number, rule)) = rule_of(bytes, |rule| rule.maps, 0) else {
        return;
    };
    let [start, end] = &ALLOCATOR;
    let allocator = start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed);
    if rule.mode == Mode::Default
        || (!allocator.is_empty() && allocator.contains(&crate::walk::first()))
    {
        return;
    }
    let bound = kernel::place(rule, address, bytes, large::parts_left());
    if !bound.is_done {
        return board::count_rule(number, layout::UNPLACED, 1);
    }
    // What the program unmaps is not counted down: it may do so in pieces.
    large::use_parts(bound.parts.saturating_sub(1));
    if bound.is_coarse {
        board::count_rule(number, layout::COARSE, 1);
    }
    board::count_rule(number, layout::BLOCKS, 1);
    board::count_rule(number, layout::MAPS, 1);
    board::count_rule(number, layout::BYTES, bytes as u64);
}

/// The calling thread's number, for who is placed.
fn own_thread() -> u32 {
    record::thread()
}
