//! `grow`: memory that is written once, at a given rate, and then held: what a filling buffer pool or a leak is
//! for the node that it is on. It is read again at the end, so that a lost page shows.

use crate::cli::{Args, Failure, Opt, Workload, WorkloadReport};
use crate::memory::{FIRST_NODE, FirstNode, HUGE, NODE, RegionMemory};
use std::time::{Duration, Instant};

/// Words that are written between two looks at the clock: 64 KiB.
const STEP_WORDS: usize = 8192;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "grow",
    about: "Writes memory at a given rate, holds it, and reads it again at the end.",
    operand: None,
    options: &[
        Opt {
            name: "mb",
            value: Some("MB"),
            default: "64",
            help: "size of the memory",
        },
        Opt {
            name: "rate",
            value: Some("MB"),
            default: "0",
            help: "megabytes written a second; 0 for as many as can be",
        },
        Opt {
            name: "hold",
            value: Some("S"),
            default: "0",
            help: "seconds for which it sleeps with all written",
        },
        NODE,
        FIRST_NODE,
        HUGE,
    ],
    run,
};

/// The word at a place: no two are alike, and none is zero.
fn word(at: usize) -> u64 {
    (at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let mb = args.number("mb", 1..=1 << 20)? as usize;
    let rate = args.number("rate", 0..=1 << 20)?;
    let hold = args.number("hold", 0..=1 << 16)?;
    let start = FirstNode::from_args(args)?;
    let mut region = RegionMemory::new(mb << 20, start.placement)?;
    let began = Instant::now();
    let mut written = 0;
    for (step, words) in region.words_mut().chunks_mut(STEP_WORDS).enumerate() {
        for (at, slot) in words.iter_mut().enumerate() {
            *slot = word(step * STEP_WORDS + at);
        }
        written += words.len() as u64 * 8;
        if rate > 0 {
            let due = Duration::from_secs_f64(written as f64 / (rate << 20) as f64);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
    }
    start.written(&region)?;
    let seconds = began.elapsed().as_secs_f64();
    std::thread::sleep(Duration::from_secs(hold));
    let words = region.words_mut().iter().enumerate();
    let lost = words.clone().filter(|&(at, value)| *value != word(at));
    let lost = lost.count();
    if lost > 0 {
        return Err(Failure::Machine(format!(
            "{lost} words are not as they were written"
        )));
    }
    let checksum = words.fold(0, |sum: u64, (_, value)| sum.rotate_left(1) ^ value);
    let title = format!("grow, {mb} MiB");
    Ok(WorkloadReport::new(title).finish(seconds, checksum))
}
