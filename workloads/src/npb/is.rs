//! Integer sort: keys made by random numbers, ranked several times by buckets, sorted at the end.
//!
//! A round makes all keys anew (the sum of four random numbers each, NPB's IS), ranks them
//! [`RANKINGS`] times, and sorts them. A ranking counts the keys of each bucket, distributes them
//! into a second array by buckets, and then counts keys within each bucket. NPB makes its keys once and
//! ranks them ten times; its operations are those of the random numbers.
//!
//! **Work** for n keys and counters of C bytes. Operations: 68 n, four random numbers of 16
//! and four more per key. Bytes read: 8 n (keys fetched to be written), for each ranking 32 n (keys
//! twice, the second array fetched and read) and C, for the sort 16 n (second array, keys
//! fetched) and C. Bytes written: 8 n, for each ranking 8 n and C, for the sort 8 n and C.

use super::randlc::{FRACTION_FLOPS, Randlc, STEP_FLOPS};
use super::real::Real;
use super::table::Work;
use super::{Kernel, Words, carve};
use crate::cli::Failure;
use crate::memory::FirstNode;
use crate::team::Member;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Rankings per round: NPB's ten, less what the paper's ratio asks for.
const RANKINGS: u64 = 4;
/// Random numbers summed for a key.
const NUMBERS: u64 = 4;
const BUCKETS: usize = 256;

/// The kernel.
pub struct Is {
    words: Words,
    keys: usize,
    /// Keys are below this power of two.
    bound: usize,
    /// Keys of each bucket that each thread found.
    found: Vec<Vec<AtomicU64>>,
}

impl Kernel for Is {
    const NAME: &'static str = "is";

    fn new(bytes: usize, threads: usize, start: FirstNode) -> Result<Self, Failure> {
        let words_in_all = bytes / 8;
        let bound = (1 << (words_in_all / 33).max(1).ilog2()).max(BUCKETS);
        let keys = words_in_all.saturating_sub(bound) / 2;
        let counters = || (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Ok(Self {
            words: Words::new(2 * keys + bound, start)?,
            keys,
            bound,
            found: (0..threads).map(|_| counters()).collect(),
        })
    }

    fn words(&self) -> &Words {
        &self.words
    }

    fn write(&self) {
        self.words.fill(|_| 0);
    }

    fn round_work(&self) -> Work {
        let (keys, counters) = (self.keys as u64, self.bound as u64 * 8);
        Work {
            flops: keys * (NUMBERS * (STEP_FLOPS + FRACTION_FLOPS) + NUMBERS - 1 + 1),
            read_bytes: 8 * keys + RANKINGS * (32 * keys + counters) + 16 * keys + counters,
            write_bytes: 8 * keys + RANKINGS * (8 * keys + counters) + 8 * keys + counters,
        }
    }

    fn round<R: Real>(&self, member: &Member<'_>, round: u64) {
        let [keys, sorted, counts] = carve(self.words.all(), [self.keys, self.keys, self.bound]);
        let own = member.part(self.keys);
        self.make::<R>(keys, own.clone(), round);
        for ranking in 0..RANKINGS {
            member.sync_awake();
            if member.id == 0 && self.keys > 2 * RANKINGS as usize {
                // NPB changes two keys before each ranking.
                R::store_word(ranking, &keys[ranking as usize]);
                let last = &keys[(ranking + RANKINGS) as usize];
                R::store_word(self.bound as u64 - 1 - ranking, last);
            }
            member.sync_awake();
            self.count::<R>(&keys[own.clone()], &self.found[member.id]);
            member.sync_awake();
            let starts = self.distribute::<R>(&keys[own.clone()], sorted, member);
            member.sync_awake();
            for bucket in member.part(BUCKETS) {
                self.rank::<R>(
                    &sorted[starts[bucket]..starts[bucket + 1]],
                    counts,
                    bucket,
                    starts[bucket],
                );
            }
            if ranking + 1 == RANKINGS {
                for bucket in member.part(BUCKETS) {
                    let range = starts[bucket]..starts[bucket + 1];
                    sort::<R>(&sorted[range], counts, keys);
                }
            }
        }
        member.sync_awake();
    }
}

impl Is {
    fn shift(&self) -> u32 {
        (self.bound / BUCKETS).ilog2()
    }

    /// Makes the thread's keys: whoever makes a key, it is the same.
    #[inline(never)]
    fn make<R: Real>(&self, keys: &[AtomicU64], own: Range<usize>, round: u64) {
        let made = round * self.keys as u64 + own.start as u64;
        let mut random = Randlc::<R>::after(NUMBERS * made);
        let scale = R::of(self.bound as f64 / NUMBERS as f64);
        let mut next = || {
            random.step();
            random.fraction()
        };
        for word in &keys[own] {
            let sum = next() + next() + next() + next();
            // By way of a signed number: for the others the compiler subtracts doubles.
            R::store_word((scale * sum).value() as i64 as u64, word);
        }
    }

    #[inline(never)]
    fn count<R: Real>(&self, keys: &[AtomicU64], found: &[AtomicU64]) {
        found.iter().for_each(|count| count.store(0, Relaxed));
        let shift = self.shift();
        for key in keys {
            let count = &found[(R::load_word(key) >> shift) as usize];
            count.store(count.load(Relaxed) + 1, Relaxed);
        }
    }

    /// Copies the thread's keys into their buckets, in order: after those of the threads before.
    /// Returns where buckets begin.
    #[inline(never)]
    fn distribute<R: Real>(
        &self,
        keys: &[AtomicU64],
        sorted: &[AtomicU64],
        member: &Member<'_>,
    ) -> Vec<usize> {
        let mut starts = vec![0; BUCKETS + 1];
        let mut next = vec![0; BUCKETS];
        for bucket in 0..BUCKETS {
            let found = |found: &Vec<AtomicU64>| found[bucket].load(Relaxed) as usize;
            let before: usize = self.found[..member.id].iter().map(found).sum();
            next[bucket] = starts[bucket] + before;
            starts[bucket + 1] = starts[bucket] + self.found.iter().map(found).sum::<usize>();
        }
        let shift = self.shift();
        for key in keys {
            let key = R::load_word(key);
            let next = &mut next[(key >> shift) as usize];
            R::store_word(key, &sorted[*next]);
            *next += 1;
        }
        starts
    }

    /// Counts the keys of a bucket: each key's counter becomes the number of keys up to it.
    #[inline(never)]
    fn rank<R: Real>(
        &self,
        sorted: &[AtomicU64],
        counts: &[AtomicU64],
        bucket: usize,
        start: usize,
    ) {
        let own = bucket << self.shift()..(bucket + 1) << self.shift();
        counts[own.clone()]
            .iter()
            .for_each(|count| R::store_word(0, count));
        for key in sorted {
            let count = &counts[R::load_word(key) as usize];
            R::store_word(R::load_word(count) + 1, count);
        }
        let mut rank = start as u64;
        for count in &counts[own] {
            rank += R::load_word(count);
            R::store_word(rank, count);
        }
    }
}

/// Writes the keys of a bucket in order, by their ranks.
#[inline(never)]
fn sort<R: Real>(bucket: &[AtomicU64], counts: &[AtomicU64], keys: &[AtomicU64]) {
    for key in bucket {
        let key = R::load_word(key);
        let count = &counts[key as usize];
        let place = R::load_word(count) - 1;
        R::store_word(place, count);
        R::store_word(key, &keys[place as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npb::tests::{kernel, run};

    #[test]
    fn a_round_leaves_its_keys_in_order() {
        let is = kernel::<Is>(200_000, 3);
        run::<_, f64>(&is, 3, 0..2);
        let keys: Vec<u64> = is.words.all()[..is.keys]
            .iter()
            .map(|key| key.load(Relaxed))
            .collect();
        assert!(keys.is_sorted());
        assert!(keys[is.keys - 1] < is.bound as u64);
        // The sum of four numbers is mostly near its middle.
        let middle = keys[is.keys / 2] as f64 / is.bound as f64;
        assert!((0.48..0.52).contains(&middle), "{middle}");
    }
}
