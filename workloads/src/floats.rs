//! An array of doubles that threads share between barriers.
//!
//! Each element has one writer between two barriers, and others read it only after the second, so
//! that relaxed accesses are ordered by the barriers. They compile to plain loads and stores.
//!
//! Programs compute with `+ - * /` and `sqrt` alone, which IEEE 754 rounds exactly: a checksum of
//! bits is then the same on every CPU and with every C library, which sines and powers are not.

use crate::cli::Failure;
use crate::memory::{Placement, RegionMemory};
use crate::random::mix;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The double in a word.
#[inline(always)]
#[must_use]
pub fn load(word: &AtomicU64) -> f64 {
    f64::from_bits(word.load(Relaxed))
}

/// Writes a double into a word.
#[inline(always)]
pub fn store(word: &AtomicU64, value: f64) {
    word.store(value.to_bits(), Relaxed);
}

/// Doubles in a mapping of their own: zero, page aligned, on no node until written.
#[derive(Debug)]
pub struct Floats {
    region: RegionMemory,
    len: usize,
}

impl Floats {
    /// `len` zeros.
    ///
    /// # Errors
    /// [`Failure::Machine`] where the kernel has no memory.
    pub fn new(len: usize) -> Result<Self, Failure> {
        let region = RegionMemory::new(len * 8, Placement::default())?;
        Ok(Self { region, len })
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Are there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements of a range, for loops that the compiler can free of bounds checks.
    #[inline(always)]
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> &[AtomicU64] {
        &self.region.words()[range]
    }

    /// The element at `index`.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, index: usize) -> f64 {
        load(&self.region.words()[index])
    }

    /// Writes the element at `index`.
    #[inline(always)]
    pub fn set(&self, index: usize, value: f64) {
        store(&self.region.words()[index], value);
    }

    /// Adds to the element at `index`; its one writer calls this.
    #[inline(always)]
    pub fn add(&self, index: usize, value: f64) {
        self.set(index, self.get(index) + value);
    }

    /// Three elements from `index` on.
    #[inline(always)]
    #[must_use]
    pub fn vector(&self, index: usize) -> [f64; 3] {
        [self.get(index), self.get(index + 1), self.get(index + 2)]
    }

    /// Writes three elements from `index` on.
    #[inline(always)]
    pub fn set_vector(&self, index: usize, value: [f64; 3]) {
        for (axis, value) in value.into_iter().enumerate() {
            self.set(index + axis, value);
        }
    }

    /// The bits of all elements, in order, mixed into `sum`.
    #[must_use]
    pub fn checksum(&self, sum: u64) -> u64 {
        let bits = (0..self.len).map(|index| self.get(index).to_bits());
        bits.fold(sum, |sum, bits| mix(sum) ^ bits)
    }
}
