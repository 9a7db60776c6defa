//! Addresses of placed blocks: one reservation, cut into regions, so that an address alone tells
//! what it is and `free` knows with one comparison whether a pointer is its own.
//!
//! Small blocks (up to 1 MiB) have a region for each arena and size; large ones a region for each
//! power of two, with a slot of that many bytes each. All of it is without memory until it is used.
//! Where addresses are limited (`ulimit -v`), a part of what is left is taken: regions are smaller, and
//! there are none for blocks that would not fit into one.
//!
//! They are reserved with the first block. Threads that come at once reserve each their own, and the
//! first one's counts: nobody waits for long, and a fork or a signal in between does no harm. All that is known
//! of the reservation follows from one word; what lies beside it for who is in a hurry is the same
//! whoever writes it.

use super::kernel::{self, PAGE};
use crate::bootstrap::{self, NOWHERE};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Arenas of small blocks.
pub const ARENAS: usize = 32;
/// Sizes of small blocks.
pub const SIZES: usize = 64;
/// Largest small block.
pub const MOST_SMALL: usize = 1 << 20;
/// Bits of the smallest slot of a large block.
pub const LEAST_BITS: u32 = 21;
/// Powers of two of large blocks: 2 MiB to 1 TiB.
pub const POWERS: usize = 20;
/// Bits of a region of small and of large blocks.
const SMALL_BITS: u32 = 33;
const LARGE_BITS: u32 = 40;
/// In a smaller reservation a region of small blocks is so much smaller than one of large blocks: all of
/// them together take a quarter.
const SMALL_PART_BITS: u32 = 10;
/// How often the reservation is halved before it is given up: it has 50 MiB then.
const MOST_HALVINGS: u32 = 17;
/// Of the addresses that a limited process has left one part in so many is taken: the program's own
/// memory, stacks and libraries come from the same.
const SHARE: u64 = 2;
/// Milliseconds that a thread waits for another one's reservation where its own was refused: after a
/// fork in between nobody may come.
const MOST_WAITS: usize = 50;

/// Its first address, and in the bits that this does not use how often it was halved, plus one; 0 for
/// none.
static RESERVED: AtomicUsize = AtomicUsize::new(0);
const MOST_IN_WORD: usize = 0xff;

static BASE: AtomicUsize = AtomicUsize::new(NOWHERE);
/// 0 until there is a reservation, so that nothing is held. Written last.
static BYTES: AtomicUsize = AtomicUsize::new(0);
static HALVED: AtomicUsize = AtomicUsize::new(0);
/// Records of large slots, behind the blocks.
static RECORDS: AtomicUsize = AtomicUsize::new(0);

/// What an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A small block of an arena.
    Small { arena: usize, size: usize },
    /// A slot of a power of two.
    Large { power: usize, slot: usize },
}

/// Is this the address of a placed block?
#[inline(always)]
pub fn holds(address: usize) -> bool {
    address.wrapping_sub(BASE.load(Ordering::Relaxed)) < BYTES.load(Ordering::Relaxed)
}

/// Is there a reservation?
pub fn is_there() -> bool {
    BYTES.load(Ordering::Acquire) != 0
}

/// Bits of regions, and powers of two that have one, after so many halvings.
#[derive(Clone, Copy)]
struct Sizes {
    small_bits: u32,
    large_bits: u32,
    powers: usize,
}

impl Sizes {
    fn after(halvings: u32) -> Self {
        let large_bits = LARGE_BITS - halvings;
        Self {
            small_bits: match halvings {
                0 => SMALL_BITS,
                _ => large_bits - SMALL_PART_BITS,
            },
            large_bits,
            powers: POWERS.min((large_bits - LEAST_BITS + 1) as usize),
        }
    }

    fn now() -> Self {
        Self::after(HALVED.load(Ordering::Relaxed) as u32)
    }

    /// Bytes of all blocks.
    fn block_bytes(self) -> usize {
        (self.powers << self.large_bits) + ((ARENAS * SIZES) << self.small_bits)
    }
}

fn small_bits() -> u32 {
    Sizes::now().small_bits
}

fn large_bits() -> u32 {
    Sizes::now().large_bits
}

fn powers() -> usize {
    Sizes::now().powers
}

/// Slots of a power of two.
pub fn slots(power: usize) -> usize {
    match power < powers() {
        true => (1usize << large_bits()) >> (LEAST_BITS as usize + power),
        false => 0,
    }
}

/// Number of a slot's record among those of all powers: each has half as many as the one before.
pub fn record(power: usize, slot: usize, bytes: usize) -> usize {
    let before: usize = (0..power).map(slots).sum();
    RECORDS.load(Ordering::Relaxed) + (before + slot) * bytes
}

/// First address and size of the region of an arena and a size.
pub fn small_region(arena: usize, size: usize) -> (usize, usize) {
    let base = BASE.load(Ordering::Relaxed) + (powers() << large_bits());
    (
        base + ((arena * SIZES + size) << small_bits()),
        1 << small_bits(),
    )
}

/// Bytes of the largest block that a region of small ones has room for.
pub fn most_small() -> usize {
    1 << small_bits()
}

/// Is the address space limited, so that there is less room than elsewhere?
pub fn is_narrow() -> bool {
    HALVED.load(Ordering::Relaxed) != 0
}

/// Address of a slot.
pub fn slot(power: usize, slot: usize) -> usize {
    let base = BASE.load(Ordering::Relaxed) + (power << large_bits());
    base + (slot << (LEAST_BITS as usize + power))
}

/// What an address that [`holds`] is.
pub fn place(address: usize) -> Place {
    let offset = address.wrapping_sub(BASE.load(Ordering::Relaxed));
    let power = offset >> large_bits();
    if power < powers() {
        let inside = offset & ((1 << large_bits()) - 1);
        let slot = inside >> (LEAST_BITS as usize + power);
        return Place::Large { power, slot };
    }
    let region = (offset - (powers() << large_bits())) >> small_bits();
    Place::Small {
        arena: region / SIZES % ARENAS,
        size: region % SIZES,
    }
}

/// Reserves the addresses, and memory for records of so many bytes, which takes none before it is
/// used. Says whether they are to be had.
pub fn start(record_bytes: usize) -> bool {
    let known = RESERVED.load(Ordering::Acquire);
    if known != 0 {
        publish(known);
        return true;
    }
    let most = kernel::addresses_left().map_or(u64::MAX, |left| left / SHARE);
    for halved in 0..=MOST_HALVINGS {
        let align = 1usize << (LARGE_BITS - halved);
        let blocks = Sizes::after(halved).block_bytes();
        let count = 2 * (align >> LEAST_BITS);
        let records = (count * record_bytes).next_multiple_of(PAGE);
        if (blocks + records + align) as u64 > most {
            continue;
        }
        let Some(start) = kernel::reserve(blocks + records + align) else {
            if halved == 0
                && let Some(first) = first_of_others()
            {
                publish(first);
                return true;
            }
            continue;
        };
        // Slots are aligned to their own size.
        let base = start.next_multiple_of(align);
        kernel::give_back(start, base - start);
        kernel::give_back(base + blocks + records, align - (base - start));
        if !kernel::open(base + blocks, records) {
            kernel::give_back(base, blocks + records);
            continue;
        }
        let own = base | (halved as usize + 1);
        let first = match RESERVED.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => own,
            Err(first) => {
                kernel::give_back(base, blocks + records);
                first
            }
        };
        publish(first);
        return true;
    }
    false
}

/// The reservation of another thread, where it comes within the time that one takes. Addresses of a
/// process hold three reservations of full size: of more threads at once the others are refused, and a
/// smaller reservation of theirs must not count instead.
fn first_of_others() -> Option<usize> {
    for _ in 0..MOST_WAITS {
        match RESERVED.load(Ordering::Acquire) {
            0 => kernel::sleep_a_millisecond(),
            first => return Some(first),
        }
    }
    None
}

/// Writes what follows from the word. `free` must look at blocks before anybody has one.
fn publish(reserved: usize) {
    let (base, halved) = (reserved & !MOST_IN_WORD, (reserved & MOST_IN_WORD) - 1);
    let bytes = Sizes::after(halved as u32).block_bytes();
    HALVED.store(halved, Ordering::Relaxed);
    RECORDS.store(base + bytes, Ordering::Relaxed);
    BASE.store(base, Ordering::Relaxed);
    bootstrap::look_at(base, bytes);
    BYTES.store(bytes, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_reservations_have_room_for_what_fits_into_a_region() {
        let all = |halvings| Sizes::after(halvings).block_bytes() >> 20;
        assert_eq!(all(0), 36 << 20);
        // Half of 6 GB, and of 100 MB.
        assert_eq!((all(12), all(MOST_HALVINGS)), (2560, 40));
        for halvings in 0..=MOST_HALVINGS {
            let sizes = Sizes::after(halvings);
            let most = sizes.powers as u32 - 1 + LEAST_BITS;
            assert!(most <= sizes.large_bits && 1 << sizes.small_bits >= PAGE);
        }
    }

    #[test]
    fn an_address_tells_what_it_is() {
        assert!(!holds(0) && !holds(usize::MAX) && !is_there());
        // Threads that come at once have one reservation.
        let gate = std::sync::Barrier::new(8);
        let bases: Vec<usize> = std::thread::scope(|scope| {
            let come = || {
                gate.wait();
                assert!(start(24) && is_there());
                slot(0, 0)
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(come)).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert!(bases.iter().all(|base| *base == bases[0]), "{bases:x?}");
        for power in 0..POWERS {
            let last = slots(power) - 1;
            for number in [0, last / 2, last] {
                let address = slot(power, number);
                assert!(holds(address) && address.is_multiple_of(2 << 20 << power));
                let inside = address + (1 << (LEAST_BITS as usize + power)) - 1;
                assert_eq!(
                    place(inside),
                    Place::Large {
                        power,
                        slot: number
                    }
                );
                // SAFETY: a record's memory, which `start` has opened.
                unsafe { (record(power, number, 24) as *mut [u64; 3]).write([1, 2, 3]) };
            }
        }
        for arena in [0, 7, ARENAS - 1] {
            for size in [0, SIZES - 1] {
                let (base, bytes) = small_region(arena, size);
                for address in [base, base + bytes - 1] {
                    assert!(holds(address));
                    assert_eq!(place(address), Place::Small { arena, size });
                }
            }
        }
    }
}
