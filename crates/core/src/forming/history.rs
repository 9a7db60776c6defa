//! Access bits of a page over the last 3.2 s, and the working set that follows from them (thesis, 2.4).
//!
//! Every 100 ms in which its address space ran, a page has a bit: was it touched? 32 of them are its
//! history. The working set counts pages by how many of their bits are set: those with 26 and more whole,
//! with 20 to 25 three quarters, 14 to 19 half, 8 to 13 a quarter (formula 1).
//!
//! Of samples a bit is set only where a touch was sampled, so that pages that are used all the time may
//! have few bits, and the weighted sum is a lower bound. Pages that were touched at all are counted beside
//! it.

/// Length of a tick of an address space's own time in ns.
pub const TICK_NS: u64 = 100_000_000;
/// Bits of a history.
pub const BITS: u32 = 32;

/// Access bits of a page: the highest is the latest tick in which it was touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    bits: u32,
    tick: u32,
}

impl History {
    /// It was touched in a tick; ticks never go back.
    pub fn touch(&mut self, tick: u32) {
        self.bits = self.at(tick) | 1 << (BITS - 1);
        self.tick = tick;
    }

    /// Ticks of the last 32 in which it was touched.
    pub fn ones(&self, tick: u32) -> u32 {
        self.at(tick).count_ones()
    }

    fn at(&self, tick: u32) -> u32 {
        self.bits.checked_shr(tick - self.tick).unwrap_or(0)
    }
}

/// How many pages are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkingSet {
    /// Pages that were touched in the last 3.2 s that the address space ran.
    pub touched_pages: u64,
    /// The thesis's weighted sum of them.
    pub weighted_pages: f64,
}

impl WorkingSet {
    /// Adds a page with so many ones in its history.
    pub fn add(&mut self, ones: u32) {
        self.touched_pages += u64::from(ones > 0);
        self.weighted_pages += weight(ones);
    }
}

/// The thesis's weight of a page in a working set (2.4), by the ones of its history of 32 bits.
#[must_use]
pub fn weight(ones: u32) -> f64 {
    match ones {
        26.. => 1.0,
        20..=25 => 0.75,
        14..=19 => 0.5,
        8..=13 => 0.25,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_has_32_ticks() {
        let mut history = History::default();
        for tick in [3, 3, 4, 10] {
            history.touch(tick);
        }
        assert_eq!(history.ones(10), 3);
        // Tick 3 is the 32nd at tick 34.
        assert_eq!((history.ones(34), history.ones(35)), (3, 2));
        assert_eq!(
            (history.ones(41), history.ones(42), history.ones(90)),
            (1, 0, 0)
        );
    }

    #[test]
    fn the_thesis_weights_pages_by_their_ones() {
        let mut set = WorkingSet::default();
        for ones in [32, 26, 25, 20, 19, 14, 13, 8, 7, 1, 0] {
            set.add(ones);
        }
        assert_eq!(set.touched_pages, 10);
        assert_eq!(
            set.weighted_pages,
            2.0 + 2.0 * 0.75 + 2.0 * 0.5 + 2.0 * 0.25
        );
    }
}
