//! A table of lines that counts its updates, so that a lost one shows whatever threads did when.
//!
//! Programs that run for a time instead of a number of updates make other updates in each run. Each line
//! has a word that depends on its number alone and a counter. An update reads the word and adds one to the
//! counter; at the end the counters must have grown by as many updates as the threads made.

use crate::memory::{LINE_WORDS, RegionMemory};
use crate::random::mix;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Word that depends on the line's number.
const CONSTANT: usize = 0;
/// Word that counts the updates.
const COUNTER: usize = 1;

/// The table over a region.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a>(&'a [[AtomicU64; LINE_WORDS]]);

impl<'a> Counted<'a> {
    /// Writes every line of the region.
    #[must_use]
    pub fn new(region: &'a RegionMemory) -> Self {
        let (lines, _) = region.words().as_chunks::<LINE_WORDS>();
        for (line, number) in lines.iter().zip(1u64..) {
            line[CONSTANT].store(mix(number), Relaxed);
            line[COUNTER].store(0, Relaxed);
        }
        Self(lines)
    }

    /// How many lines it has.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.0.len()
    }

    /// Updates a line, which no other thread may update at the same time. Did its constant word hold?
    #[inline]
    pub fn update(&self, number: usize) -> bool {
        let line = &self.0[number];
        line[COUNTER].store(line[COUNTER].load(Relaxed) + 1, Relaxed);
        line[CONSTANT].load(Relaxed) == mix(number as u64 + 1)
    }

    /// The sum of the constant words of some lines.
    #[must_use]
    pub fn sum(&self, lines: Range<usize>) -> u64 {
        (self.0[lines].iter()).fold(0u64, |sum, line| {
            sum.wrapping_add(line[CONSTANT].load(Relaxed))
        })
    }

    /// The checksum after `updates` updates of all threads together and `wrong` words read that were not
    /// what had been written: without a lost update or a wrong word it depends on the size alone.
    #[must_use]
    pub fn checksum(&self, updates: u64, wrong: u64) -> u64 {
        let counted = (self.0.iter()).fold(0u64, |sum, line| {
            sum.wrapping_add(line[COUNTER].load(Relaxed))
        });
        let amiss = mix(updates.wrapping_sub(counted)) ^ mix(wrong);
        (self.0.iter()).fold(amiss, |sum, line| mix(sum) ^ line[CONSTANT].load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Placement;

    #[test]
    fn the_checksum_shows_a_lost_update_and_nothing_else() {
        let region = RegionMemory::new(64 * 100, Placement::default()).unwrap();
        let table = Counted::new(&region);
        let fresh = table.checksum(0, 0);
        assert!(table.update(7) && table.update(99));
        assert_eq!(table.checksum(2, 0), fresh);
        assert_ne!(table.checksum(3, 0), fresh);
        assert_ne!(table.checksum(2, 1), fresh);
        assert_eq!(table.sum(7..9), mix(8).wrapping_add(mix(9)));
        region.words()[7 * LINE_WORDS].store(0, Relaxed);
        assert!(!table.update(7));
        assert_ne!(table.checksum(3, 0), fresh);
    }
}
