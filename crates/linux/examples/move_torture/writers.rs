//! Threads store to pages that are on their way.

use crate::common::{Options, Random, Report};
use crate::memory::{Field, HUGE};
use crate::mover::{Mover, Traffic};
use std::sync::atomic::{AtomicU64, Ordering};

/// Stores between two looks at the common counter.
const BATCH: u64 = 256;

/// Most stores of a thread before the mover goes on to its next window or request: a mover that
/// waits for its CPU shall not make the count.
const STORES_PER_MOMENT: u32 = 16;

/// Windows of which one surely stalls a store; of a few, none may.
const SURE_WINDOWS: u64 = 100;

/// What the stores met.
#[derive(Debug, Default)]
pub struct Met {
    pub stores: AtomicU64,
    pub in_flight: AtomicU64,
    pub in_window: AtomicU64,
}

/// Stores to pages of requests in flight until the traffic stops.
pub fn write(field: &Field, lane: u64, traffic: &Traffic, met: &Met, seed: u64) {
    let mut random = Random::new(seed ^ (lane + 1) << 40);
    let mut moment = (None, 0, 0);
    while !traffic.stopped() {
        let (mut in_flight, mut in_window) = (0, 0);
        for _ in 0..BATCH {
            let Some(request) = traffic.request() else {
                std::thread::yield_now();
                continue;
            };
            let window = traffic.window();
            if (moment.0, moment.1) != (Some(request), window) {
                moment = (Some(request), window, 0);
            }
            moment.2 += 1;
            if moment.2 > STORES_PER_MOMENT {
                std::thread::yield_now();
                continue;
            }
            let page = request.first() + random.below(request.count());
            let index = field.pick(page.min(field.pages() - 1), lane, &mut random);
            field.store(index);
            let same_window = window == traffic.window() && window % 2 == 1;
            let same_request = traffic.request() == Some(request);
            in_flight += u64::from(same_request);
            in_window += u64::from(same_request && same_window);
            met.stores.fetch_add(1, Ordering::Relaxed);
        }
        met.in_flight.fetch_add(in_flight, Ordering::Relaxed);
        met.in_window.fetch_add(in_window, Ordering::Relaxed);
    }
}

pub fn run(options: &Options) -> Report {
    let mut report = Report::new("writers");
    let bytes = if options.huge { 4 * HUGE } else { HUGE };
    let field = Field::new(bytes, options.huge, options.threads);
    let mut mover = Mover::new(options, 1, None);
    let traffic = std::sync::Arc::clone(&mover.traffic);
    let met = Met::default();
    std::thread::scope(|scope| {
        for lane in 0..field.lanes {
            let (field, traffic, met) = (&field, &traffic, &met);
            scope.spawn(move || write(field, lane, traffic, met, options.seed));
        }
        while met.in_flight.load(Ordering::Relaxed) < options.stores {
            mover.once(&field.region.range());
        }
        traffic.stop();
    });
    field.verify();
    let tally = mover.finish();
    field.verify();
    report.count("stores", met.stores.into_inner());
    report.met("stores in flight", met.in_flight.into_inner());
    report.met("stores with a window open", met.in_window.into_inner());
    let windows = traffic.windows.load(Ordering::Relaxed);
    report.met("windows", windows);
    // Huge pages that are where they should be are moved once, in a window each.
    match windows >= SURE_WINDOWS {
        true => report.met("stalls", tally.stalled_requests),
        false => report.count("stalls", tally.stalled_requests),
    }
    if options.huge {
        report.met("huge pages kept whole", tally.huge_kept);
    }
    tally.report(&mut report);
    report
}
