//! Addresses of recorded heap memory that lives: what makes `free` of anything else cheap.
//!
//! A filter by page answers nearly every `free` with one load. Behind it, a table of buckets: an
//! address has two buckets, each of two cache lines, and is in one of them. There are no chains, so
//! that nothing has to be moved or left as a mark when an address goes, and no locks.

use crate::hash::{mix, top};
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};

const FILTER_BITS: u32 = 14;
const BUCKET_BITS: u32 = 12;
const BUCKET: usize = 16;
/// Most addresses at a time: a filter's count cannot overflow, whatever the addresses are.
const MOST: u64 = 1 << 15;

/// Filter and buckets.
#[repr(C, align(64))]
pub struct Table {
    filter: [AtomicU16; 1 << FILTER_BITS],
    buckets: [Bucket; 1 << BUCKET_BITS],
    live: AtomicU64,
}

#[repr(C, align(64))]
struct Bucket([AtomicUsize; BUCKET]);

#[inline(always)]
fn filter_index(address: usize) -> usize {
    top(mix(0, (address >> 12) as u64), FILTER_BITS)
}

fn bucket_indexes(address: usize) -> [usize; 2] {
    let one = mix(1, (address >> 4) as u64);
    [top(one, BUCKET_BITS), top(mix(one, 2), BUCKET_BITS)]
}

impl Table {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            filter: [const { AtomicU16::new(0) }; 1 << FILTER_BITS],
            buckets: [const { Bucket([const { AtomicUsize::new(0) }; BUCKET]) }; 1 << BUCKET_BITS],
            live: AtomicU64::new(0),
        }
    }

    /// May this address be in the table? Wrong only in saying yes.
    #[inline(always)]
    pub fn may_contain(&self, address: usize) -> bool {
        // Relaxed is enough: the pointer reached this thread from the one that inserted it, before
        // it returned the pointer, so that insertion is ordered before by whatever passed it on.
        self.filter[filter_index(address)].load(Ordering::Relaxed) != 0
    }

    /// Addresses in the table.
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Adds an address; says whether there was room.
    pub fn insert(&self, address: usize) -> bool {
        if self.live.fetch_add(1, Ordering::Relaxed) < MOST {
            for index in bucket_indexes(address) {
                for place in &self.buckets[index].0 {
                    let free = place.load(Ordering::Relaxed) == 0;
                    if free
                        && place
                            .compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed)
                            .is_ok()
                    {
                        self.filter[filter_index(address)].fetch_add(1, Ordering::Relaxed);
                        return true;
                    }
                }
            }
        }
        self.live.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// Takes an address out; says whether it was there.
    pub fn remove(&self, address: usize) -> bool {
        // Null is freed often, and a free place holds it.
        if address == 0 {
            return false;
        }
        for index in bucket_indexes(address) {
            for place in &self.buckets[index].0 {
                if place.load(Ordering::Relaxed) == address
                    && place
                        .compare_exchange(address, 0, Ordering::Relaxed, Ordering::Relaxed)
                        .is_ok()
                {
                    self.filter[filter_index(address)].fetch_sub(1, Ordering::Relaxed);
                    self.live.fetch_sub(1, Ordering::Relaxed);
                    return true;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn table() -> &'static Table {
        // Too large for a test's stack.
        // SAFETY: zeros are a table without addresses.
        Box::leak(unsafe { Box::<Table>::new_zeroed().assume_init() })
    }

    #[test]
    fn it_is_a_set() {
        let table = table();
        assert!(!table.remove(0));
        let mut set = BTreeSet::new();
        let mut seed = 7;
        for step in 0..200_000u64 {
            seed = mix(seed, step);
            let address = 0x7f00_0000_0010 + (top(seed, 13) << 16);
            if set.remove(&address) {
                assert!(table.may_contain(address) && table.remove(address));
            } else {
                assert!(!table.remove(address));
                assert!(table.insert(address));
                set.insert(address);
            }
            assert_eq!(table.live(), set.len() as u64);
        }
        assert!(set.len() > 2000, "{}", set.len());
        for address in set {
            assert!(table.remove(address));
        }
        assert!(
            table
                .filter
                .iter()
                .all(|count| count.load(Ordering::Relaxed) == 0)
        );
    }

    #[test]
    fn a_full_table_refuses_and_stays_whole() {
        let table = table();
        let inserted: Vec<usize> = (1..80_000usize)
            .map(|index| index << 17)
            .filter(|address| table.insert(*address))
            .collect();
        assert!(inserted.len() as u64 <= MOST && inserted.len() as u64 > MOST / 2);
        assert!(inserted.iter().all(|address| table.remove(*address)));
        assert_eq!(table.live(), 0);
    }

    #[test]
    fn threads_do_not_lose_addresses() {
        let table = table();
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                scope.spawn(move || {
                    for round in 0..50_000usize {
                        let address = (thread + 1) << 40 | (round % 64) << 16;
                        assert!(table.insert(address) && table.may_contain(address));
                        assert!(table.remove(address));
                    }
                });
            }
        });
        assert_eq!(table.live(), 0);
    }
}
