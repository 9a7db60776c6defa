//! Several backends move overlapping ranges of the same memory at once, in threads of their own.

use crate::common::{Options, Report};
use crate::memory::{Field, HUGE};
use crate::mover::Mover;
use crate::writers::{Met, write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MOVERS: u64 = 3;

pub fn run(options: &Options) -> Report {
    let mut report = Report::new("overlap");
    let bytes = if options.huge { 4 * HUGE } else { HUGE };
    let field = Field::new(bytes, options.huge, options.threads);
    let movers: Vec<Mover> = (0..MOVERS)
        .map(|index| Mover::new(options, 0x70 + index, None))
        .collect();
    let traffics: Vec<_> = movers
        .iter()
        .map(|mover| Arc::clone(&mover.traffic))
        .collect();
    let met = Met::default();
    let tallies = std::thread::scope(|scope| {
        for lane in 0..field.lanes {
            // Each follows one of the movers; all of them meet the pages of all.
            let traffic = &traffics[(lane % MOVERS) as usize];
            let (field, met) = (&field, &met);
            scope.spawn(move || write(field, lane, traffic, met, options.seed));
        }
        let (field, met, traffics) = (&field, &met, &traffics);
        let work = |mut mover: Mover| {
            move || {
                // Where two are faster, the third has its turn when they have ended.
                while met.in_flight.load(Ordering::Relaxed) < options.stores
                    || mover.tally.moved == 0
                {
                    mover.once(&field.region.range());
                }
                traffics.iter().for_each(|traffic| traffic.stop());
                mover.finish()
            }
        };
        let threads: Vec<_> = movers
            .into_iter()
            .map(|mover| scope.spawn(work(mover)))
            .collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect::<Vec<_>>()
    });
    field.verify();
    report.met(
        "movers that ended well",
        u64::from(tallies.len() == MOVERS as usize),
    );
    report.met("stores in flight", met.in_flight.into_inner());
    report.met("stores with a window open", met.in_window.into_inner());
    for tally in &tallies {
        tally.report(&mut report);
    }
    report
}
