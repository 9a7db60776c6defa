//! `is`: ranks of integer keys by buckets, in short bursts: the use of memory of NPB's IS.
//!
//! Each round ranks all keys anew, in four short steps with a barrier after each: every thread counts its
//! own keys by bucket; all work out where each thread's share of each bucket begins; every thread copies its
//! keys to their buckets, so that it writes all over the second array; and every thread counts the values of
//! the keys in its own buckets, which all threads have written. A step is over before a sampler of accesses
//! has seen much of it: Carrefour reports that interleaving helps IS, and that its own sampling does not
//! keep up.
//!
//! As in NPB, a key is the mean of four random numbers (most keys lie in the middle of their range), there
//! are 1024 buckets, two keys change before each round, and buckets are shared out so that threads have
//! about as many keys each. Keys are 64 bits wide here.
//!
//! **First touch:** each thread its part of the keys; of the second array whoever first copies a key to a
//! page, which is anyone; of the counts the thread that has the bucket in the first round.
//!
//! The ranks depend on the keys alone, so the checksum does not depend on the number of threads.

use crate::cli::{self, Args, Failure, Opt, Workload, WorkloadReport};
use crate::memory::{Placement, RegionMemory};
use crate::random::{STEP, mix};
use crate::team::{Member, ThreadTeam};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Buckets, as in NPB's IS.
const BUCKETS: usize = 1024;
/// Keys for each value that there may be: NPB's ratio.
const KEYS_PER_VALUE: usize = 16;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "is",
    about: "Ranks of integer keys, by buckets, in short bursts that touch all keys by several threads.",
    operand: None,
    options: &[
        cli::THREADS,
        Opt {
            name: "mb",
            value: Some("MB"),
            default: "64",
            help: "size of the keys and their copy by buckets, half each",
        },
        Opt {
            name: "rounds",
            value: Some("N"),
            default: "10",
            help: "times the keys are ranked",
        },
        cli::SEED,
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

/// What threads share. Between two barriers a word has one writer, and others read it after the second,
/// so that relaxed accesses are ordered by the barriers.
struct Sort {
    keys: RegionMemory,
    /// Keys in the order of their buckets.
    sorted: RegionMemory,
    count: usize,
    /// How many keys have each value, then how many have that value or a smaller one.
    ranks: RegionMemory,
    values: usize,
    /// Keys of each thread in each bucket.
    shares: Vec<AtomicU64>,
    seed: u64,
}

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let mb = args.number("mb", 1..=1 << 20)? as usize;
    let rounds = args.number("rounds", 1..=1 << 16)?;
    let seed = args.number(cli::SEED.name, 0..=u64::MAX)?;
    let started = Instant::now();
    let sort = Sort::new((mb << 19) / 8, team.threads(), seed)?;
    let results = team.run(|member| {
        sort.write(member.part(sort.count));
        let setup = started.elapsed().as_secs_f64();
        let mut sum = 0u64;
        let work = || {
            for round in 1..=rounds {
                sum = sum.wrapping_add(sort.rank(member, round));
            }
        };
        let seconds = member.measure(work).1;
        (sum, seconds, setup)
    })?;
    let checksum = results
        .iter()
        .fold(0u64, |sum, (own, ..)| sum.wrapping_add(*own));
    let (_, seconds, setup) = results[0];
    let title = format!(
        "is: {} threads, {mb} MB, {} keys, {rounds} rounds",
        team.threads(),
        sort.count
    );
    let ranked = sort.count as f64 * rounds as f64;
    Ok(WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .line("mkeys", format!("{:.3}", ranked / seconds / 1e6))
        .finish(seconds, checksum))
}

impl Sort {
    fn new(count: usize, threads: usize, seed: u64) -> Result<Self, Failure> {
        let values = (count / KEYS_PER_VALUE).next_power_of_two().max(BUCKETS);
        let region = |words: usize| RegionMemory::new(words * 8, Placement::default());
        Ok(Self {
            keys: region(count)?,
            sorted: region(count)?,
            count,
            ranks: region(values)?,
            values,
            shares: (0..threads * BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            seed,
        })
    }

    /// A thread writes its own keys; each depends on the seed and its place alone.
    fn write(&self, own: Range<usize>) {
        let mask = self.values as u64 - 1;
        for (word, index) in self.keys.words()[own.clone()]
            .iter()
            .zip(own.start as u64..)
        {
            let bits = mix(self.seed.wrapping_add((index + 1).wrapping_mul(STEP)));
            // Four numbers of 16 bits each: mixed once more, so that there are as many values as wanted.
            let more = mix(bits);
            let part = |bits: u64, shift: u32| (bits >> shift) & 0xffff_ffff & mask;
            let sum = part(bits, 0) + part(bits, 32) + part(more, 0) + part(more, 32);
            word.store(sum / 4, Relaxed);
        }
    }

    fn bucket(&self, key: u64) -> usize {
        key as usize / (self.values / BUCKETS)
    }

    /// One round; returns what the thread's own values add to the checksum.
    fn rank(&self, member: &Member<'_>, round: u64) -> u64 {
        let own = member.part(self.count);
        let keys = &self.keys.words()[..self.count];
        self.change(&own, round);
        self.count_buckets(member, &keys[own.clone()]);
        member.sync();
        let (mut places, bounds) = self.places(member);
        self.copy(&keys[own], &mut places);
        member.sync();
        let sum = self.count_values(member, &bounds, round);
        member.sync();
        sum
    }

    /// Two keys are others in each round, as in NPB.
    fn change(&self, own: &Range<usize>, round: u64) {
        let changed = [
            (round as usize, round % self.values as u64),
            (
                self.count / 2 + round as usize,
                self.values as u64 - 1 - round % self.values as u64,
            ),
        ];
        for (at, key) in changed {
            let at = at % self.count;
            if own.contains(&at) {
                self.keys.words()[at].store(key, Relaxed);
            }
        }
    }

    /// Counts the thread's keys by bucket.
    #[inline(never)]
    fn count_buckets(&self, member: &Member<'_>, own: &[AtomicU64]) {
        let mut counts = [0u64; BUCKETS];
        for key in own {
            counts[self.bucket(key.load(Relaxed))] += 1;
        }
        let shares = &self.shares[member.id * BUCKETS..][..BUCKETS];
        for (share, count) in shares.iter().zip(counts) {
            share.store(count, Relaxed);
        }
    }

    /// Where the thread's share of each bucket begins, and where each bucket does, with the end of the last.
    fn places(&self, member: &Member<'_>) -> (Vec<usize>, Vec<usize>) {
        let mut places = Vec::with_capacity(BUCKETS);
        let mut bounds = Vec::with_capacity(BUCKETS + 1);
        let mut start = 0;
        for bucket in 0..BUCKETS {
            bounds.push(start);
            for thread in 0..member.threads {
                if thread == member.id {
                    places.push(start);
                }
                start += self.shares[thread * BUCKETS + bucket].load(Relaxed) as usize;
            }
        }
        bounds.push(start);
        (places, bounds)
    }

    /// Copies the thread's keys to their buckets.
    #[inline(never)]
    fn copy(&self, own: &[AtomicU64], places: &mut [usize]) {
        let sorted = self.sorted.words();
        for key in own {
            let key = key.load(Relaxed);
            let place = &mut places[self.bucket(key)];
            sorted[*place].store(key, Relaxed);
            *place += 1;
        }
    }

    /// Ranks of the values in the thread's buckets: how many keys are not larger.
    #[inline(never)]
    fn count_values(&self, member: &Member<'_>, bounds: &[usize], round: u64) -> u64 {
        let per_bucket = self.values / BUCKETS;
        let buckets = own_buckets(bounds, &member.part(self.count));
        let ranks = &self.ranks.words()[buckets.start * per_bucket..buckets.end * per_bucket];
        let first = buckets.start * per_bucket;
        ranks.iter().for_each(|rank| rank.store(0, Relaxed));
        for key in &self.sorted.words()[bounds[buckets.start]..bounds[buckets.end]] {
            let rank = &ranks[key.load(Relaxed) as usize - first];
            rank.store(rank.load(Relaxed) + 1, Relaxed);
        }
        let mut below = bounds[buckets.start] as u64;
        let mut sum = 0u64;
        for (rank, value) in ranks.iter().zip(first as u64..) {
            below += rank.load(Relaxed);
            rank.store(below, Relaxed);
            sum = sum.wrapping_add(mix(below ^ mix(value ^ (round << 48))));
        }
        sum
    }
}

/// Buckets that begin in a thread's part of the places; the parts of all threads have each bucket once.
fn own_buckets(bounds: &[usize], part: &Range<usize>) -> Range<usize> {
    let buckets = bounds.len() - 1;
    let total = bounds[buckets];
    // Empty buckets at the end begin at the end, which belongs to the last part.
    let edge = |at: usize| match at >= total {
        true => buckets,
        false => bounds[..buckets].partition_point(|&start| start < at),
    };
    edge(part.start)..edge(part.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::team::part;

    #[test]
    fn every_bucket_has_one_thread() {
        for bounds in [
            &[0, 3, 3, 10, 12, 12][..],
            &[0, 0, 0, 12],
            &[0, 12, 12],
            &[0, 12],
        ] {
            for threads in 1..20 {
                let ranges: Vec<_> = (0..threads)
                    .map(|id| own_buckets(bounds, &part(12, threads, id)))
                    .collect();
                assert_eq!(ranges[0].start, 0, "{bounds:?}");
                assert_eq!(ranges[threads - 1].end, bounds.len() - 1, "{bounds:?}");
                assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            }
        }
    }

    #[test]
    fn a_rank_is_how_many_keys_are_not_larger() {
        let words: Vec<String> = ["--threads", "3", "--no-pin"].map(str::to_owned).into();
        let team = ThreadTeam::from_args(&PROGRAM.parse(&words).unwrap().unwrap()).unwrap();
        let sort = Sort::new(5000, 3, 1).unwrap();
        team.run(|member| {
            sort.write(member.part(sort.count));
            member.sync();
            sort.rank(member, 1);
        })
        .unwrap();
        let mut keys: Vec<u64> = sort.keys.words()[..5000]
            .iter()
            .map(|key| key.load(Relaxed))
            .collect();
        keys.sort_unstable();
        for value in 0..sort.values {
            let expected = keys.partition_point(|&key| key <= value as u64) as u64;
            assert_eq!(sort.ranks.words()[value].load(Relaxed), expected, "{value}");
        }
        // Most keys lie in the middle.
        let middle = (sort.values / 4) as u64..(3 * sort.values / 4) as u64;
        let inside = keys.iter().filter(|key| middle.contains(key)).count();
        assert!(inside > 4000, "{inside}");
    }
}
