//! The translation buffer of one vCPU: modelled, and trusted for physical addresses.
//!
//! Misses are priced; hits also save asking QEMU for the physical address of every access. That
//! is sound for the same reason as on hardware: the guest must flush what it changes, and every
//! flushing instruction is seen. Entries of 4 KB and 2 MB pages are kept apart. A flush of all
//! user entries bumps a generation that is part of each key.

/// Result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// Physical address of the 4 KB page.
    pub page: u64,
    /// Is it part of a 2 MB (or larger) mapping?
    pub huge: bool,
}

const WAYS: usize = 4;

/// One array of entries.
struct Array {
    sets: usize,
    /// `(page number << 16 | generation, physical base)`, key 0 when empty.
    entries: Vec<(u64, u64)>,
    hand: usize,
}

impl Array {
    fn new(entries: usize) -> Self {
        let sets = (entries / WAYS).max(1).next_power_of_two();
        Self {
            sets,
            entries: vec![(0, 0); sets * WAYS],
            hand: 0,
        }
    }

    fn find(&self, number: u64, key: u64) -> Option<u64> {
        let set = (number as usize & (self.sets - 1)) * WAYS;
        self.entries[set..set + WAYS]
            .iter()
            .find(|entry| entry.0 == key)
            .map(|entry| entry.1)
    }

    fn insert(&mut self, number: u64, key: u64, base: u64) {
        let set = (number as usize & (self.sets - 1)) * WAYS;
        self.hand = (self.hand + 1) % WAYS;
        let way = (self.entries[set..set + WAYS]
            .iter()
            .position(|entry| entry.0 == 0))
        .unwrap_or(self.hand);
        self.entries[set + way] = (key, base);
    }

    fn remove(&mut self, number: u64) {
        let set = (number as usize & (self.sets - 1)) * WAYS;
        for entry in &mut self.entries[set..set + WAYS] {
            if entry.0 >> 16 == number & (u64::MAX >> 16) {
                *entry = (0, 0);
            }
        }
    }

    fn clear(&mut self) {
        self.entries.fill((0, 0));
    }
}

/// Both arrays and the generations.
pub struct Tlb {
    small: Array,
    huge: Array,
    user_generation: u64,
    kernel_generation: u64,
}

const SMALL_SHIFT: u32 = 12;
const HUGE_SHIFT: u32 = 21;

impl Tlb {
    /// With this many entries of each size.
    pub fn new(small_entries: usize, huge_entries: usize) -> Self {
        Self {
            small: Array::new(small_entries),
            huge: Array::new(huge_entries),
            user_generation: 1,
            kernel_generation: 1,
        }
    }

    fn key(&self, vaddr: u64, shift: u32) -> (u64, u64) {
        let number = vaddr >> shift;
        let kernel = vaddr >> 63 != 0;
        let generation = if kernel {
            self.kernel_generation
        } else {
            self.user_generation
        };
        (number, number << 16 | generation & 0xffff)
    }

    /// The physical address, on a hit.
    pub fn find(&self, vaddr: u64) -> Option<u64> {
        let (number, key) = self.key(vaddr, SMALL_SHIFT);
        if let Some(base) = self.small.find(number, key) {
            return Some(base | vaddr & 0xfff);
        }
        let (number, key) = self.key(vaddr, HUGE_SHIFT);
        self.huge
            .find(number, key)
            .map(|base| base | vaddr & 0x1f_ffff)
    }

    /// Enters a translation after a miss.
    pub fn insert(&mut self, vaddr: u64, translation: Translation) {
        if translation.huge {
            let (number, key) = self.key(vaddr, HUGE_SHIFT);
            self.huge.insert(number, key, translation.page & !0x1f_ffff);
        } else {
            let (number, key) = self.key(vaddr, SMALL_SHIFT);
            self.small.insert(number, key, translation.page & !0xfff);
        }
    }

    /// `mov cr3`: kernel entries are global and stay.
    pub fn flush_user(&mut self) {
        self.user_generation += 1;
        if self.user_generation & 0xffff == 0 {
            self.user_generation += 1;
            self.flush_all();
        }
    }

    /// `mov cr4`, or anything that may drop global entries.
    pub fn flush_all(&mut self) {
        self.small.clear();
        self.huge.clear();
    }

    /// `invlpg`.
    pub fn flush_page(&mut self, vaddr: u64) {
        self.small.remove(vaddr >> SMALL_SHIFT);
        self.huge.remove(vaddr >> HUGE_SHIFT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_huge_pages_translate() {
        let mut tlb = Tlb::new(64, 16);
        tlb.insert(
            0x7000_1234,
            Translation {
                page: 0x5000,
                huge: false,
            },
        );
        assert_eq!(tlb.find(0x7000_1678), Some(0x5678));
        tlb.insert(
            0x4020_0000,
            Translation {
                page: 0x60_0000,
                huge: true,
            },
        );
        assert_eq!(tlb.find(0x402f_ff08), Some(0x6f_ff08));
        assert_eq!(tlb.find(0x7000_2000), None);
    }

    #[test]
    fn switches_drop_user_entries_only() {
        let mut tlb = Tlb::new(64, 16);
        let kernel = 0xffff_8880_0000_1000;
        tlb.insert(
            0x1000,
            Translation {
                page: 0x5000,
                huge: false,
            },
        );
        tlb.insert(
            kernel,
            Translation {
                page: 0x9000,
                huge: false,
            },
        );
        tlb.flush_user();
        assert_eq!(tlb.find(0x1000), None);
        assert_eq!(tlb.find(kernel), Some(0x9000));
        tlb.flush_page(kernel);
        assert_eq!(tlb.find(kernel), None);
    }

    #[test]
    fn generations_wrap_without_bringing_back_old_entries() {
        let mut tlb = Tlb::new(64, 16);
        tlb.insert(
            0x1000,
            Translation {
                page: 0x5000,
                huge: false,
            },
        );
        for _ in 0..0x20000 {
            tlb.flush_user();
            assert_eq!(tlb.find(0x1000), None);
        }
    }

    #[test]
    fn more_pages_than_entries_miss() {
        let mut tlb = Tlb::new(64, 16);
        for page in 0..65u64 {
            tlb.insert(
                page << 12,
                Translation {
                    page: page << 12,
                    huge: false,
                },
            );
        }
        let hits = (0..65u64)
            .filter(|page| tlb.find(page << 12).is_some())
            .count();
        assert_eq!(hits, 64);
    }
}
