//! Pipes that refer to pages of the program (`vmsplice`): what is in the pipe must stay while the
//! pages are moved and others come in their places. The same holds for sockets with
//! `MSG_ZEROCOPY`: references that are no pins.

use crate::common::{self, Options, Random, Report, mix};
use crate::kernel::{MOST, assert_whole, check, fill, piece, pipe};
use crate::memory::{PAGE, Region};
use crate::mover::{Mover, Traffic};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Pages that are spliced, and as many others that only move.
const PAGES: u64 = 512;

/// `vmsplice`: the pipe refers to the pages themselves until they are read.
fn splice(range: &Range<u64>, traffic: &Traffic, met: &AtomicU64, seed: u64) {
    let mut random = Random::new(seed ^ 0xA2);
    let [out, into] = pipe();
    let mut reader = File::from(out);
    let mut buffer = vec![0u8; MOST as usize];
    while !traffic.stopped() {
        let part = piece(range, &mut random);
        let bytes = part.end - part.start;
        let tag = random.next();
        fill(&part, tag);
        let vector = libc::iovec {
            iov_base: part.start as *mut _,
            iov_len: bytes as usize,
        };
        // SAFETY: one range, which nobody stores to until the pipe is empty.
        let sent = unsafe { libc::vmsplice(into.as_raw_fd(), &vector, 1, 0) };
        assert_whole("vmsplice", sent, bytes);
        // Meanwhile the pages are moved, and others into what they leave behind.
        let (begin, wanted) = (traffic.request_count(), random.below(12));
        while traffic.request_count() < begin + wanted && !traffic.stopped() {
            std::thread::yield_now();
        }
        let buffer = &mut buffer[..bytes as usize];
        if let Err(error) = reader.read_exact(buffer) {
            common::fail(&format!("reading from the pipe: {error}"));
        }
        for (at, found) in part.clone().step_by(8).zip(buffer.chunks_exact(8)) {
            let found = u64::from_ne_bytes(found.try_into().unwrap_or_default());
            if found != mix(at ^ tag) {
                common::fail(&format!(
                    "a pipe that refers to {at:#x} by vmsplice has {found:#x}, not {:#x}",
                    mix(at ^ tag)
                ));
            }
        }
        check(&part, tag);
        met.fetch_add(1, Ordering::Relaxed);
    }
}

pub fn run(options: &Options) -> Report {
    let mut report = Report::new("splice");
    // With `--recycle` it fails: that is what the setting is for.
    let options = &Options {
        recycle: Some(options.recycle.unwrap_or(false)),
        ..*options
    };
    let region = Region::new(2 * PAGES * PAGE, options.huge);
    let whole = region.range();
    fill(&whole, 0);
    let mut mover = Mover::new(options, 5, None);
    let traffic = std::sync::Arc::clone(&mover.traffic);
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (traffic, count, seed) = (&traffic, &count, options.seed);
        let part = whole.start..whole.start + PAGES * PAGE;
        scope.spawn(move || splice(&part, traffic, count, seed));
        // Few huge pages are without a pipe at the moment of a request: until one was.
        let patience = Instant::now() + Duration::from_secs(60);
        while count.load(Ordering::Relaxed) < options.rounds
            || (mover.tally.moved == 0 && Instant::now() < patience)
        {
            mover.once(&whole);
        }
        traffic.stop();
    });
    check(&(whole.start + PAGES * PAGE..whole.end), 0);
    let tally = mover.finish();
    report.met("vmsplice", count.into_inner());
    tally.report(&mut report);
    report
}
