//! The store: an index and values.

use crate::cli::Failure;
use crate::memory::{FirstNode, RegionMemory};
use crate::random::{mix, scattering_step};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Keys and values in two regions.
#[derive(Debug)]
pub struct Store {
    /// Words: 0, or a key's upper half and, in the lower half, its value's position plus one.
    index: RegionMemory,
    values: RegionMemory,
    value_words: usize,
    keys: u64,
}

impl Store {
    /// Stores as many values as `bytes` hold; there are so many keys.
    ///
    /// # Errors
    /// As [`RegionMemory::new`]; [`Failure::Usage`] where there is no value or more than 2^31.
    pub fn new(bytes: u64, value_bytes: usize, start: FirstNode) -> Result<Self, Failure> {
        let keys = bytes / value_bytes as u64;
        if !(1..=1 << 31).contains(&keys) {
            return Err(crate::cli::usage(format!(
                "--mb and --value make {keys} values: there may be 1 to {}",
                1u64 << 31
            )));
        }
        // Half full: 1.5 words looked at for a key that is there (Knuth 6.4).
        let index = RegionMemory::new(keys as usize * 16, start.placement)?;
        let values = RegionMemory::new(keys as usize * value_bytes, start.placement)?;
        let store = Self {
            index,
            values,
            value_words: value_bytes / 8,
            keys,
        };
        let step = scattering_step(keys);
        for position in 0..keys {
            // Ranks that are neighbours lie far from each other.
            store.insert(position * step % keys, position);
        }
        start.written(&store.index)?;
        start.written(&store.values)?;
        Ok(store)
    }

    /// How many keys there are; their ranks are numbers below that.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.keys
    }

    fn value(&self, position: u64) -> &[AtomicU64] {
        let start = position as usize * self.value_words;
        &self.values.words()[start..start + self.value_words]
    }

    fn insert(&self, rank: u64, position: u64) {
        let key = key(rank);
        for (word, salt) in self.value(position).iter().zip(0u64..) {
            word.store(key.wrapping_add(salt), Relaxed);
        }
        let words = self.index.words();
        let mut slot = self.slot(key);
        while words[slot].load(Relaxed) != 0 {
            slot = self.after(slot);
        }
        words[slot].store(key & !0xffff_ffff | (position + 1), Relaxed);
    }

    fn slot(&self, key: u64) -> usize {
        // The lower half of the key times the size, over 2^32: below the size. The upper half tells keys
        // of a slot apart.
        (((key & 0xffff_ffff) * self.index.words().len() as u64) >> 32) as usize
    }

    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.index.words().len() {
            0
        } else {
            slot + 1
        }
    }

    /// Finds the value of a rank's key and adds it up. Is it what was stored?
    #[inline]
    pub fn look_up(&self, rank: u64) -> bool {
        let key = key(rank);
        let words = self.index.words();
        let mut slot = self.slot(key);
        loop {
            let word = words[slot].load(Relaxed);
            if word == 0 {
                return false;
            }
            if (word ^ key) >> 32 == 0 {
                let value = self.value((word & 0xffff_ffff) - 1);
                // Another key with the same upper half, which is rare, is told by its value.
                if value[0].load(Relaxed) == key {
                    return sum(value) == expected(key, self.value_words as u64);
                }
            }
            slot = self.after(slot);
        }
    }

    /// The checksum, where so many values were wrong: without one it depends on the sizes alone.
    #[must_use]
    pub fn checksum(&self, wrong: u64) -> u64 {
        let words = self.values.words().iter();
        words.fold(mix(wrong), |sum, word| mix(sum) ^ word.load(Relaxed))
    }
}

fn sum(value: &[AtomicU64]) -> u64 {
    (value.iter()).fold(0u64, |sum, word| sum.wrapping_add(word.load(Relaxed)))
}

/// What the words of a key's value add up to: the key, the key plus one, and so on.
fn expected(key: u64, words: u64) -> u64 {
    key.wrapping_mul(words)
        .wrapping_add(words * (words - 1) / 2)
}

/// The key of a rank.
fn key(rank: u64) -> u64 {
    mix(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_found_and_a_changed_one_is_told() {
        for keys in [1u64, 2, 3, 1000, 1024] {
            let store = Store::new(keys * 128, 128, FirstNode::default()).unwrap();
            assert_eq!(store.keys(), keys);
            assert!((0..keys).all(|rank| store.look_up(rank)), "{keys}");
        }
        let store = Store::new(1000 * 128, 128, FirstNode::default()).unwrap();
        let whole = store.checksum(0);
        store.value(500)[9].fetch_add(1, Relaxed);
        let wrong = (0..1000).filter(|&rank| !store.look_up(rank)).count();
        assert_eq!(wrong, 1);
        assert_ne!(store.checksum(0), whole);
    }

    #[test]
    fn a_key_that_is_not_there_is_not_found() {
        let store = Store::new(100 * 64, 64, FirstNode::default()).unwrap();
        assert!(!store.look_up(100));
    }
}
