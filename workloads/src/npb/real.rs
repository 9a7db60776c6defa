//! The number that the kernels compute with: a double, or in tests one that counts.
//!
//! The kernels are written once, for any [`Real`]. A test runs them with a number that counts its
//! operations and follows its loads and stores through a cache, and so holds the formulas of
//! operations and traffic against what the loops do.
//!
//! Arrays are words that threads share between barriers, as in [`crate::floats`]. Their relaxed
//! accesses keep the compiler from computing several elements at once, so that it has no reason to
//! compute elements that nobody asked for.

use crate::floats;
use std::ops::{Add, Div, Mul, Sub};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The kernels' number.
pub trait Real:
    Copy
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    /// A constant.
    fn of(value: f64) -> Self;
    /// The double that it is.
    fn value(self) -> f64;
    /// The square root: one operation.
    fn sqrt(self) -> Self;
    /// A double of an array.
    fn load(word: &AtomicU64) -> Self;
    /// Writes a double of an array.
    fn store(self, word: &AtomicU64);
    /// A whole number of an array.
    fn load_word(word: &AtomicU64) -> u64;
    /// Writes a whole number of an array.
    fn store_word(value: u64, word: &AtomicU64);

    /// Without its fraction: conversions are no floating-point operations.
    #[inline(always)]
    fn truncate(self) -> Self {
        Self::of(self.value() as i64 as f64)
    }

    /// `N` doubles of an array, from `first` on.
    #[inline(always)]
    fn load_all<const N: usize>(words: &[AtomicU64], first: usize) -> [Self; N] {
        let words = &words[first..first + N];
        std::array::from_fn(|at| Self::load(&words[at]))
    }

    /// Writes `N` doubles of an array, from `first` on.
    #[inline(always)]
    fn store_all<const N: usize>(values: &[Self; N], words: &[AtomicU64], first: usize) {
        let words = &words[first..first + N];
        for (value, word) in values.iter().zip(words) {
            value.store(word);
        }
    }
}

impl Real for f64 {
    #[inline(always)]
    fn of(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn value(self) -> f64 {
        self
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }

    #[inline(always)]
    fn load(word: &AtomicU64) -> Self {
        floats::load(word)
    }

    #[inline(always)]
    fn store(self, word: &AtomicU64) {
        floats::store(word, self);
    }

    #[inline(always)]
    fn load_word(word: &AtomicU64) -> u64 {
        word.load(Relaxed)
    }

    #[inline(always)]
    fn store_word(value: u64, word: &AtomicU64) {
        word.store(value, Relaxed);
    }
}

/// A double between 0 and 1 from random bits, to fill arrays with.
#[must_use]
pub fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// A number that counts, and the cache that its loads and stores go through.
#[cfg(test)]
pub mod counting {
    use super::Real;
    use std::cell::RefCell;
    use std::ops::{Add, Div, Mul, Sub};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// Ways of the cache.
    const WAYS: usize = 16;

    /// A double whose operations are counted, by thread.
    #[derive(Clone, Copy, Debug)]
    pub struct Counted(f64);

    /// What a thread has counted. Each set has its lines' numbers, the last used first, and
    /// whether they are written.
    #[derive(Default)]
    pub struct Counts {
        pub flops: u64,
        pub fills: u64,
        pub write_backs: u64,
        sets: Vec<Vec<(usize, bool)>>,
    }

    thread_local! {
        static COUNTS: RefCell<Counts> = RefCell::default();
    }

    /// Starts with zero counts; with a cache of so many bytes where not 0.
    pub fn start(cache_bytes: usize) {
        COUNTS.with_borrow_mut(|counts| {
            *counts = Counts {
                sets: vec![Vec::new(); cache_bytes / 64 / WAYS],
                ..Counts::default()
            };
        });
    }

    /// Sets the counts to zero, keeps the cache, and returns what was counted since.
    pub fn take() -> Counts {
        COUNTS.with_borrow_mut(|counts| Counts {
            flops: std::mem::take(&mut counts.flops),
            fills: std::mem::take(&mut counts.fills),
            write_backs: std::mem::take(&mut counts.write_backs),
            sets: Vec::new(),
        })
    }

    fn operate(value: f64) -> Counted {
        COUNTS.with_borrow_mut(|counts| counts.flops += 1);
        Counted(value)
    }

    fn access(word: &AtomicU64, writes: bool) {
        let line = std::ptr::from_ref(word).addr() / 64;
        COUNTS.with_borrow_mut(|counts| {
            if counts.sets.is_empty() {
                return;
            }
            // Lines a power of two apart are not to meet in one set.
            let index = crate::random::mix(line as u64) as usize % counts.sets.len();
            let set = &mut counts.sets[index];
            let mut written = writes;
            match set.iter().position(|(cached, _)| *cached == line) {
                Some(at) => written |= set.remove(at).1,
                None => {
                    counts.fills += 1;
                    if set.len() == WAYS {
                        counts.write_backs += u64::from(set.pop().is_some_and(|(_, old)| old));
                    }
                }
            }
            set.insert(0, (line, written));
        });
    }

    macro_rules! operation {
        ($name:ident, $method:ident, $sign:tt) => {
            impl $name for Counted {
                type Output = Self;
                fn $method(self, other: Self) -> Self {
                    operate(self.0 $sign other.0)
                }
            }
        };
    }
    operation!(Add, add, +);
    operation!(Sub, sub, -);
    operation!(Mul, mul, *);
    operation!(Div, div, /);

    impl Real for Counted {
        fn of(value: f64) -> Self {
            Self(value)
        }

        fn value(self) -> f64 {
            self.0
        }

        fn sqrt(self) -> Self {
            operate(self.0.sqrt())
        }

        fn load(word: &AtomicU64) -> Self {
            Self(f64::from_bits(Self::load_word(word)))
        }

        fn store(self, word: &AtomicU64) {
            Self::store_word(self.0.to_bits(), word);
        }

        fn load_word(word: &AtomicU64) -> u64 {
            access(word, false);
            word.load(Relaxed)
        }

        fn store_word(value: u64, word: &AtomicU64) {
            access(word, true);
            word.store(value, Relaxed);
        }
    }
}
