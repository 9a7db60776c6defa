//! Loads of which each needs the one before: what a miss costs when nothing hides it.

use std::hint::black_box;
use std::time::Duration;

/// A line: no two loads of a round share one.
const LINE_WORDS: usize = 8;
/// Loads between two looks at the clock.
const BATCH: u64 = 4096;
/// Loads that follow each other without anything else: the loop around them hardly counts.
const UNROLLED: u64 = 16;

/// The lines of a memory, linked in random order to one cycle (Sattolo 1986): neither prefetchers
/// nor read-ahead follow it.
pub struct Chain<'a> {
    /// Each line begins with the address of the next one.
    words: &'a mut [u64],
    at: u64,
}

impl<'a> Chain<'a> {
    /// Links the lines; the memory is a line long at least.
    ///
    /// # Panics
    /// Where it is not.
    #[must_use]
    pub fn new(words: &'a mut [u64]) -> Self {
        let lines = words.len() / LINE_WORDS;
        assert!(lines > 0, "no line to link");
        let start = words.as_mut_ptr().expose_provenance() as u64;
        // Each line leads to itself at first; a swap of two joins their cycles to one.
        for line in 0..lines {
            words[line * LINE_WORDS] = start + (line * LINE_WORDS * 8) as u64;
        }
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for line in (1..lines).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let other = ((u128::from(state) * line as u128) >> 64) as usize;
            words.swap(line * LINE_WORDS, other * LINE_WORDS);
        }
        Self { words, at: start }
    }

    /// Goes round once, or for a million loads: caches then hold what they will hold.
    pub fn warm(&mut self) {
        self.steps((self.words.len() as u64 / LINE_WORDS as u64).min(1 << 20));
    }

    /// So many loads, up to whole groups.
    fn steps(&mut self, count: u64) {
        let mut at = self.at;
        for _ in 0..count.div_ceil(UNROLLED) {
            for _ in 0..UNROLLED {
                let place = std::ptr::with_exposed_provenance::<u64>(at as usize);
                // SAFETY: the address of a line of this memory, which is borrowed exclusively; every
                // line begins with another such address. Volatile: no load is left out.
                at = unsafe { place.read_volatile() };
            }
        }
        self.at = black_box(at);
    }

    /// Follows it from where it is for so long; ns per load.
    pub fn follow(&mut self, slice: Duration) -> f64 {
        super::per_call(slice, BATCH, || self.steps(BATCH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_line_leads_to_another_and_all_are_one_cycle(lines in 1usize..300) {
            let mut words = vec![0; lines * LINE_WORDS + 3];
            let chain = Chain::new(&mut words);
            let start = chain.at;
            let mut seen = vec![false; lines];
            let mut at = start;
            for _ in 0..lines {
                let word = (at - start) as usize / 8;
                prop_assert_eq!(word % LINE_WORDS, 0);
                prop_assert!(!std::mem::replace(&mut seen[word / LINE_WORDS], true));
                at = chain.words[word];
            }
            prop_assert_eq!(at, start, "closed");
        }
    }

    #[test]
    fn a_load_takes_time() {
        let mut words = vec![0; 4096];
        let mut chain = Chain::new(&mut words);
        let start = chain.at;
        chain.warm();
        assert_eq!(chain.at, start, "512 lines, once round");
        // The least of several: another thread may have had the CPU for most of a slice.
        let slices = (0..20).map(|_| chain.follow(Duration::from_millis(2)));
        let ns = slices.fold(f64::INFINITY, f64::min);
        assert!(ns > 0.1 && ns < 1000.0, "{ns}");
    }
}
