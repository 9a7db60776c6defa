//! The filter: lines that are surely in a vCPU's private cache, by virtual address.
//!
//! Most accesses end here, so what is compared is laid out for the fewest instructions: no
//! physical address, no division, no check that can fail. An entry is the line's address with all
//! offset bits set, the lowest cleared where the line may be read only; 0 is empty. The table is
//! indexed by the offset within the page, which virtual and physical address share, so that
//! another vCPU can clear every entry of a physical line without knowing its virtual address.

use hither_core::opium::MAX_VCPUS;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Entries of a vCPU: one for each eight bytes of a 4 KB page, so that an index is an offset within
/// the page without its lowest bits. Those that lie within one line are the line's ways.
const ENTRIES: usize = 512;

type Table = [AtomicU64; ENTRIES];

/// The tables of all vCPUs. Entries are written by the owner, cleared by all.
pub struct Filter {
    tables: Box<[Table; MAX_VCPUS]>,
    /// Bits of the offset within a line.
    offset: u64,
    /// Bits of an index that choose among the entries of one place in the page.
    ways: usize,
}

impl Filter {
    /// Empty tables for lines of this size, a power of two of 32 to 4096.
    pub fn new(line_bytes: u64) -> Self {
        let empty = || std::array::from_fn(|_| AtomicU64::new(0));
        Self {
            tables: Box::new(std::array::from_fn(|_| empty())),
            offset: line_bytes - 1,
            ways: (line_bytes / 8 - 1) as usize,
        }
    }

    #[inline(always)]
    fn entry(&self, vcpu: usize, vaddr: u64) -> &AtomicU64 {
        let page = vaddr >> 12;
        let way = (page ^ page >> 3 ^ page >> 6) as usize & self.ways;
        let place = (vaddr >> 3) as usize & !self.ways;
        &self.tables[vcpu % MAX_VCPUS][(place | way) % ENTRIES]
    }

    /// May the vCPU load here (or store)? The hottest lines of the plugin.
    #[inline(always)]
    pub fn answers<const STORE: bool>(&self, vcpu: usize, vaddr: u64) -> bool {
        let entry = self.entry(vcpu, vaddr).load(Relaxed);
        (if STORE { entry } else { entry | 1 }) == vaddr | self.offset
    }

    /// Enters the line of this address.
    pub fn admit(&self, vcpu: usize, vaddr: u64, writable: bool) {
        let entry = (vaddr | self.offset) & !u64::from(!writable);
        self.entry(vcpu, vaddr).store(entry, Relaxed);
    }

    /// Takes out every line that may be the one of this physical address.
    pub fn remove(&self, vcpu: usize, paddr: u64) {
        let place = (paddr >> 3) as usize & !self.ways & (ENTRIES - 1);
        for entry in &self.tables[vcpu % MAX_VCPUS][place..=place | self.ways] {
            entry.store(0, Relaxed);
        }
    }

    /// Empties a vCPU's table: its translations changed.
    pub fn clear(&self, vcpu: usize) {
        for entry in &self.tables[vcpu % MAX_VCPUS] {
            entry.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_every_size_are_found_until_they_are_removed() {
        for line in [32, 64, 128, 256] {
            let filter = Filter::new(line);
            let vaddr = 0x7fff_dead_b000 + 5 * line;
            let answers = |vaddr| {
                (
                    filter.answers::<false>(3, vaddr),
                    filter.answers::<true>(3, vaddr),
                )
            };
            filter.admit(3, vaddr + 8, false);
            for inside in [0, 1, line - 1] {
                assert_eq!(answers(vaddr + inside), (true, false));
            }
            for outside in [vaddr - 1, vaddr + line, vaddr + 4096, vaddr ^ 1 << 46] {
                assert_eq!(answers(outside), (false, false));
            }
            assert!(!filter.answers::<false>(2, vaddr), "another vCPU's");
            filter.admit(3, vaddr, true);
            assert_eq!(answers(vaddr + 1), (true, true));
            filter.remove(3, 0x1234_5000 + 4 * line);
            filter.remove(3, 0x1234_5000 + 6 * line);
            assert_eq!(answers(vaddr), (true, true));
            filter.remove(3, 0x1234_5000 + 5 * line);
            assert_eq!(answers(vaddr), (false, false));
            filter.admit(3, vaddr, true);
            filter.clear(3);
            assert_eq!(answers(vaddr), (false, false));
        }
    }

    #[test]
    fn an_empty_table_answers_nothing() {
        let filter = Filter::new(64);
        for vaddr in [0, 1, 63, 64, u64::MAX] {
            assert!(!filter.answers::<false>(0, vaddr) && !filter.answers::<true>(0, vaddr));
        }
    }
}
