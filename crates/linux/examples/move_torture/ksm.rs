//! Same-page merging of pages that are on their way.

use crate::common::{self, Options, Report};
use crate::memory::{Field, HUGE, advise, assert_identical, differ, identical};
use crate::mover::Mover;
use crate::writers::{Met, write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const FOLDER: &str = "/sys/kernel/mm/ksm";
/// What is set, in the order of setting.
const SETTINGS: [(&str, &str); 3] = [
    ("sleep_millisecs", "1"),
    ("pages_to_scan", "4000"),
    ("run", "1"),
];

/// A count of the whole machine.
fn figure(name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("{FOLDER}/{name}"));
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

pub fn run(options: &Options) -> Report {
    let mut report = Report::new("ksm");
    for (name, value) in SETTINGS {
        if let Err(error) = common::set(&format!("{FOLDER}/{name}"), value) {
            common::put_back();
            report.not_run(format!("{FOLDER}/{name} cannot be set ({error})"));
            return report;
        }
    }
    // One part with stores; one of pages that are all the same, which is merged over and over.
    let field = Field::new(HUGE, options.huge, options.threads.min(4));
    let same = identical(HUGE, options.huge);
    for range in [field.region.range(), same.range()] {
        if let Err(errno) = advise(&range, libc::MADV_MERGEABLE) {
            common::put_back();
            report.not_run(format!("MADV_MERGEABLE fails with {errno}"));
            return report;
        }
    }
    let mut mover = Mover::new(options, 8, None);
    let traffic = std::sync::Arc::clone(&mover.traffic);
    let met = Met::default();
    let (mut merged, mut rewritten) = (0, 0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for lane in 0..field.lanes {
            let (field, traffic, met) = (&field, &traffic, &met);
            scope.spawn(move || write(field, lane, traffic, met, options.seed));
        }
        let enough = |merged: u64, rewritten: u64| {
            let time = start.elapsed();
            (met.in_flight.load(Ordering::Relaxed) >= options.stores.min(200_000)
                && merged > options.rounds
                && rewritten > options.rounds)
                || time > Duration::from_secs(60)
        };
        while !enough(merged, rewritten) {
            mover.once(&field.region.range());
            mover.once(&same.range());
            merged = merged.max(figure("pages_sharing"));
            // Some pages become different and the same again.
            rewritten += differ(&same, &mut mover.random);
        }
        traffic.stop();
    });
    field.verify();
    assert_identical(&same);
    common::put_back();
    let tally = mover.finish();
    report.met("pages merged at once", merged);
    report.met("pages stored to and merged again", rewritten);
    report.met("stores in flight", met.in_flight.into_inner());
    tally.report(&mut report);
    report
}
