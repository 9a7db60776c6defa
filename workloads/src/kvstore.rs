//! `kvstore`: a hash table under Zipf-distributed reads and writes, a cache server's use of memory.
//!
//! The main thread loads all keys, as a server does at its start; then every thread draws keys by
//! Zipf's law and reads most of them, writing some. A few entries are hot, all threads use all of
//! them, and where they lie is decided by a hash: no order for a prefetcher, no part for a thread.
//! Open addressing with linear probing; an entry is two lines: key, counter and eight words of
//! value on the first, the rest of the value on the second.
//!
//! A read adds up the value, which depends on the key alone; a write adds to the entry's counter
//! by an atomic addition. Neither sum depends on the order of threads.

use crate::cli::{self, Args, Failure, Opt, Workload, WorkloadReport};
use crate::memory::{FIRST_NODE, FirstNode, HUGE, NODE, RegionMemory};
use crate::random::{FastRandom, mix};
use crate::team::{Member, ThreadTeam};
use crate::zipf::Zipf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Words of an entry.
const ENTRY_WORDS: usize = 16;
/// Word of the key; 0 marks an empty entry.
const KEY: usize = 0;
/// Word of the counter that writes add to.
const COUNTER: usize = 1;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "kvstore",
    about: "A hash table that the main thread loads, under Zipf-distributed reads and writes of \
            all threads.",
    operand: None,
    options: &[
        cli::THREADS,
        Opt {
            name: "mb",
            value: Some("MB"),
            default: "64",
            help: "size of the table",
        },
        Opt {
            name: "operations",
            value: Some("N"),
            default: "1000000",
            help: "of each thread",
        },
        Opt {
            name: "writes",
            value: Some("PERCENT"),
            default: "5",
            help: "share of writes",
        },
        Opt {
            name: "skew",
            value: Some("PERCENT"),
            default: "99",
            help: "100 times the exponent of Zipf's law; 0 draws all keys alike",
        },
        NODE,
        FIRST_NODE,
        HUGE,
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

type Entry = [AtomicU64; ENTRY_WORDS];

/// The table over a region.
struct Table<'a>(&'a [Entry]);

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let mb = args.number("mb", 1..=1 << 18)? as usize;
    let operations = args.number("operations", 1..=1 << 40)?;
    let writes = args.number("writes", 0..=100)?;
    let skew = args.number("skew", 0..=300)?;
    let start = FirstNode::from_args(args)?;
    let started = Instant::now();
    let region = RegionMemory::new(mb << 20, start.placement)?;
    let (entries, _) = region.words().as_chunks::<ENTRY_WORDS>();
    let table = Table(entries);
    // Two thirds full: probes stay short (1.6 expected on a miss-free table, Knuth 6.4).
    let keys = entries.len() as u64 * 2 / 3;
    for rank in 0..keys {
        table.insert(key(rank));
    }
    start.written(&region)?;
    let zipf = Zipf::new(keys, skew as f64 / 100.0);
    let setup = started.elapsed().as_secs_f64();
    let results =
        team.run(|member| member.measure(|| serve(member, &table, &zipf, operations, writes)))?;
    let seconds = results[0].1;
    let sums = results
        .iter()
        .fold(0u64, |sum, (part, _)| sum.wrapping_add(*part));
    let checksum = entries.iter().fold(sums, |sum, entry| {
        mix(sum ^ entry[KEY].load(Relaxed)) ^ entry[COUNTER].load(Relaxed)
    });
    let rate = operations as f64 * team.threads() as f64 / seconds;
    let title = format!(
        "kvstore: {} threads, {mb} MB, {keys} keys, {operations} operations each, {writes} % writes",
        team.threads()
    );
    Ok(WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .line("operations_per_second", format!("{rate:.0}"))
        .finish(seconds, checksum))
}

/// The key of a rank: neighbouring ranks get unrelated keys; never 0 (`mix` maps only 0 to 0).
#[must_use]
pub fn key(rank: u64) -> u64 {
    mix(rank + 1)
}

/// One thread's operations; the sum of what it read.
#[inline(never)]
fn serve(member: &Member<'_>, table: &Table<'_>, zipf: &Zipf, operations: u64, writes: u64) -> u64 {
    let mut random = FastRandom::new(member.id as u64);
    let mut sum = 0u64;
    for _ in 0..operations {
        let entry = table.find(key(zipf.draw(&mut random)));
        if random.below(100) < writes {
            entry[COUNTER].fetch_add(sum | 1, Relaxed);
        } else {
            sum = entry[2..]
                .iter()
                .fold(sum, |sum, word| sum.wrapping_add(word.load(Relaxed)));
        }
    }
    sum
}

impl Table<'_> {
    fn slot(&self, key: u64) -> usize {
        // The upper half of the key times the size, over 2^32: below the size.
        (((key >> 32) * self.0.len() as u64) >> 32) as usize
    }

    fn insert(&self, key: u64) {
        let entry = self.probe(key, 0);
        entry[KEY].store(key, Relaxed);
        for (word, salt) in entry[2..].iter().zip(0u64..) {
            word.store(key.wrapping_add(salt), Relaxed);
        }
    }

    /// The entry of a key that was inserted.
    fn find(&self, key: u64) -> &Entry {
        self.probe(key, key)
    }

    /// The first entry from a key's slot on whose key is `wanted`. The table is never full and
    /// every key asked for is in it, so there is one.
    #[inline(always)]
    fn probe(&self, key: u64, wanted: u64) -> &Entry {
        let mut slot = self.slot(key);
        loop {
            let entry = &self.0[slot];
            if entry[KEY].load(Relaxed) == wanted {
                return entry;
            }
            slot += 1;
            if slot == self.0.len() {
                slot = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_found_with_its_value() {
        let entries: Vec<Entry> = (0..300)
            .map(|_| std::array::from_fn(|_| AtomicU64::new(0)))
            .collect();
        let table = Table(&entries);
        for rank in 0..200 {
            table.insert(key(rank));
        }
        for rank in 0..200 {
            let entry = table.find(key(rank));
            assert_eq!(entry[KEY].load(Relaxed), key(rank));
            assert_eq!(entry[5].load(Relaxed), key(rank).wrapping_add(3));
        }
        let full = entries
            .iter()
            .filter(|entry| entry[KEY].load(Relaxed) != 0)
            .count();
        assert_eq!(full, 200);
    }
}
