//! Everything that the process has is asked to move: the allocator's memory, the mover's own, all
//! stacks, thread-local storage. What the mover itself needs must be refused or moved otherwise;
//! nothing may hang.

use crate::common::{self, Options, Random, Report, mix};
use crate::memory::PAGE;
use crate::mover::{Mover, Traffic};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// All private writable memory of this process that belongs to no file.
fn mappings() -> Vec<Range<u64>> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    // 7f3a1c000000-7f3a1c021000 rw-p 00000000 00:00 0 [heap]
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (access, inode) = (words.next()?, words.nth(2)?);
        let number = |text| u64::from_str_radix(text, 16).ok();
        (access == "rw-p" && inode == "0").then_some(number(start)?..number(end)?)
    };
    text.lines().filter_map(parse).collect()
}

/// Allocates, writes, reads and frees all the time.
fn allocate(traffic: &Traffic, seed: u64, count: &AtomicU64) {
    let mut random = Random::new(seed);
    let mut held: Vec<Vec<u64>> = Vec::new();
    while !traffic.stopped() {
        let tag = random.next();
        let mut words = vec![tag];
        words.extend((0..random.below(4000)).map(|word| mix(word ^ tag)));
        held.push(words);
        if held.len() > 64 {
            let words = held.swap_remove(random.below(64) as usize);
            for (word, found) in (0..).zip(&words[1..]) {
                if *found != mix(word ^ words[0]) {
                    common::wrong(
                        std::ptr::from_ref(found) as u64,
                        mix(word ^ words[0]),
                        *found,
                    );
                }
            }
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

pub fn run(options: &Options) -> Report {
    let mut report = Report::new("own");
    let mut mover = Mover::new(options, 6, None).without_hook();
    let traffic = std::sync::Arc::clone(&mover.traffic);
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..options.threads.min(3) as u64 {
            let (traffic, count) = (&traffic, &count);
            scope.spawn(move || allocate(traffic, options.seed ^ thread << 33, count));
        }
        for _ in 0..options.rounds {
            for range in mappings() {
                // Up to the length that a request may have; longer ones are mostly empty.
                let pages = ((range.end - range.start) / PAGE).min(60_000);
                mover.once(&(range.start..range.start + pages * PAGE));
            }
        }
        traffic.stop();
    });
    let tally = mover.finish();
    report.met("allocations that kept their content", count.into_inner());
    tally.report(&mut report);
    report
}
