//! `cluster`: distances of many points to a centre, Streamcluster's use of memory.
//!
//! PARSEC's Streamcluster spends its time computing, for every point, the distance to a candidate
//! centre, in parallel, with barriers between candidates; the points were written by the main
//! thread, so that first touch puts all of them on one node. This program keeps that use of memory
//! and drops the rest.
//!
//! **Arithmetic.** A point is one line of 64 bytes. Carrefour's table 1 gives Streamcluster 16.85
//! L3 misses per 1000 instructions, hence 59.3 instructions per line; fitting its two rows (IPC
//! 0.29 at 476 cycles, 0.15 at 1197 cycles) to `CPI = c0 + MPKI/1000 * latency / mlp` gives
//! c0 = 1.32, so that the machine of the paper computes for 59.3 * 1.32 = 78 cycles (34 ns at
//! 2.3 GHz) per line. Executing 59 instructions a line is dear in an emulator, so the same time is
//! spent in fewer: a squared distance over four coordinates and one 64-bit division (the gain per
//! unit of weight), which takes 20 to 45 cycles on that machine's generation. The count of
//! instructions per point is stated in `docs/workloads.md`. Integers, because an emulator
//! executes floating point slowly.
//!
//! Every access is a relaxed atomic: an ordinary `mov` on x86-64, and it keeps the compiler from
//! replacing the loop by something that reads memory otherwise.

use crate::cli::{self, Args, Failure, Operand, Opt, Workload, WorkloadReport};
use crate::memory::{LINE_WORDS, Placement, RegionMemory};
use crate::random::{STEP, mix};
use crate::team::{Member, ThreadTeam, part};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// A point: four coordinates, a weight (odd, hence not 0), two words of payload and, last, the
/// word that `mixed` writes.
type Point = [AtomicU64; LINE_WORDS];
/// Coordinates of the candidate centre.
type Centre = [u64; 4];

const WEIGHT: usize = 4;
const ASSIGNED: usize = 7;
/// `mixed`: one write per so many points read.
const POINTS_PER_WRITE: usize = 64;
/// `--gaps`: points between two readings of the clock.
const POINTS_PER_READING: usize = 1024;
/// Coordinates have so many bits: their squared distance fits 64 bits with room to spare.
const COORDINATE_BITS: u32 = 20;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "cluster",
    about: "Distances of points (64 bytes each) to a centre, round by round, with a barrier after \
            each: Streamcluster's use of memory.",
    operand: Some(Operand {
        name: "MODE",
        choices: &[
            (
                "shared",
                "main thread writes all points, every thread reads all of them",
            ),
            (
                "partitioned",
                "main thread writes all points, each thread reads its own part",
            ),
            (
                "mixed",
                "as shared, and each thread writes a point of its own per 64 read",
            ),
            (
                "local",
                "each thread writes its own part first and reads only that",
            ),
        ],
        default: None,
    }),
    options: &[
        cli::THREADS,
        Opt {
            name: "mb",
            value: Some("MB"),
            default: "64",
            help: "size of the points",
        },
        Opt {
            name: "rounds",
            value: Some("N"),
            default: "16 (shared, mixed) or 128",
            help: "passes of each thread over what it reads",
        },
        Opt {
            name: "gaps",
            value: None,
            default: "",
            help: "print the longest time that 1024 points took (partitioned, local)",
        },
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Shared,
    Partitioned,
    Mixed,
    Local,
}

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let mode = match args.operand() {
        "shared" => Mode::Shared,
        "partitioned" => Mode::Partitioned,
        "mixed" => Mode::Mixed,
        _ => Mode::Local,
    };
    let team = ThreadTeam::from_args(args)?;
    let mb = args.number("mb", 1..=1 << 20)? as usize;
    let usual = if matches!(mode, Mode::Shared | Mode::Mixed) {
        16
    } else {
        128
    };
    let rounds = args
        .optional("rounds", 1..=u64::from(u32::MAX))?
        .unwrap_or(usual);
    let notes_gaps = args.has("gaps");
    if notes_gaps && matches!(mode, Mode::Shared | Mode::Mixed) {
        return Err(cli::usage(
            "--gaps is for `partitioned` and `local` only: leave it out, or say one of these"
                .to_owned(),
        ));
    }
    let started = Instant::now();
    let region = RegionMemory::new(mb << 20, Placement::default())?;
    let (points, _) = region.words().as_chunks::<LINE_WORDS>();
    if mode != Mode::Local {
        write_points(points, 0);
    }
    let results = team.run(|member| {
        if mode == Mode::Local {
            let own = member.part(points.len());
            write_points(&points[own.clone()], own.start);
        }
        let setup = started.elapsed().as_secs_f64();
        let mut gap = notes_gaps.then_some(0.0);
        let (gain, seconds) =
            member.measure(|| read_rounds(mode, member, points, rounds, &mut gap));
        (gain, seconds, setup, gap)
    })?;
    let gains = results
        .iter()
        .fold(0u64, |sum, (gain, ..)| sum.wrapping_add(*gain));
    let checksum = points.iter().fold(gains, |sum, point| {
        sum.wrapping_add(point[ASSIGNED].load(Relaxed))
    });
    let (_, seconds, setup, _) = results[0];
    let gap = results.iter().filter_map(|(.., gap)| *gap).reduce(f64::max);
    let title = format!(
        "cluster {}: {} threads, {mb} MB, {rounds} rounds",
        args.operand(),
        team.threads()
    );
    let mut report = WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .line(
            "points_read",
            points_read(mode, points.len(), &team, rounds),
        );
    if let Some(gap) = gap {
        report = report.line("longest_gap_seconds", format!("{gap:.6}"));
    }
    Ok(report.finish(seconds, checksum))
}

fn points_read(mode: Mode, points: usize, team: &ThreadTeam, rounds: u64) -> u64 {
    let readers = if matches!(mode, Mode::Shared | Mode::Mixed) {
        team.threads()
    } else {
        1
    };
    points as u64 * readers as u64 * rounds
}

/// The words of a point, which depend on its number alone: four coordinates, its weight, the number, and what it is
/// made of.
#[must_use]
pub fn point(number: u64) -> [u64; LINE_WORDS] {
    let mask = (1 << COORDINATE_BITS) - 1;
    let bits = mix(number.wrapping_mul(STEP));
    [
        bits & mask,
        (bits >> 14) & mask,
        (bits >> 28) & mask,
        (bits >> 42) & mask,
        (bits >> 56) | 1,
        number,
        bits,
        0,
    ]
}

/// Writes points.
fn write_points(points: &[Point], first: usize) {
    for (words, number) in points.iter().zip(first as u64..) {
        for (word, value) in words.iter().zip(point(number)) {
            word.store(value, Relaxed);
        }
    }
}

/// The centre of a round.
#[must_use]
pub fn centre(round: u64) -> Centre {
    let bits = mix(!round);
    let mask = (1 << COORDINATE_BITS) - 1;
    [
        bits & mask,
        (bits >> 14) & mask,
        (bits >> 28) & mask,
        (bits >> 42) & mask,
    ]
}

/// `gap`: the longest time that some points took is noted there, in seconds.
fn read_rounds(
    mode: Mode,
    member: &Member<'_>,
    points: &[Point],
    rounds: u64,
    gap: &mut Option<f64>,
) -> u64 {
    let own = &points[member.part(points.len())];
    let start = part(points.len(), member.threads, member.id).start;
    let mut writes = 0;
    let mut gains = 0u64;
    for round in 0..rounds {
        let centre = centre(round);
        let gain = match mode {
            Mode::Partitioned | Mode::Local => match gap {
                None => gain(own, &centre),
                Some(longest) => gain_in_time(own, &centre, longest),
            },
            Mode::Shared => {
                gain(&points[start..], &centre).wrapping_add(gain(&points[..start], &centre))
            }
            Mode::Mixed => {
                let blocks = points[start..]
                    .chunks(POINTS_PER_WRITE)
                    .chain(points[..start].chunks(POINTS_PER_WRITE));
                blocks.fold(0u64, |sum, block| {
                    let gain = gain(block, &centre);
                    assign(own, &mut writes, gain);
                    sum.wrapping_add(gain)
                })
            }
        };
        gains = gains.wrapping_add(gain);
        member.sync();
    }
    gains
}

/// Adds to the next of the thread's own points. Only its owner writes a point, so the sum does
/// not depend on timing.
fn assign(own: &[Point], writes: &mut usize, gain: u64) {
    if own.is_empty() {
        return;
    }
    let word = &own[*writes % own.len()][ASSIGNED];
    word.store(word.load(Relaxed).wrapping_add(gain), Relaxed);
    *writes += 1;
}

/// Sum over the points of squared distance per weight: the measured loop.
#[inline(never)]
fn gain(points: &[Point], centre: &Centre) -> u64 {
    let [c0, c1, c2, c3] = *centre;
    let square = |word: &AtomicU64, centre: u64| {
        let difference = word.load(Relaxed).wrapping_sub(centre);
        difference.wrapping_mul(difference)
    };
    let mut sum = 0u64;
    for point in points {
        let distance = square(&point[0], c0)
            .wrapping_add(square(&point[1], c1))
            .wrapping_add(square(&point[2], c2))
            .wrapping_add(square(&point[3], c3));
        sum = sum.wrapping_add(distance / (point[WEIGHT].load(Relaxed) | 1));
    }
    sum
}

/// The same, with the longest time between two readings of the clock, in seconds: what stopped the thread
/// is in it.
fn gain_in_time(points: &[Point], centre: &Centre, longest: &mut f64) -> u64 {
    let mut sum = 0u64;
    let mut then = Instant::now();
    for some in points.chunks(POINTS_PER_READING) {
        sum = sum.wrapping_add(gain(some, centre));
        let now = Instant::now();
        *longest = longest.max((now - then).as_secs_f64());
        then = now;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_notes_gaps_computes_the_same() {
        let points: Vec<Point> = (0..3000).map(|_| [0; 8].map(AtomicU64::new)).collect();
        write_points(&points, 0);
        let centre = centre(7);
        let mut longest = 0.0;
        assert_eq!(
            gain_in_time(&points, &centre, &mut longest),
            gain(&points, &centre)
        );
        assert!(longest > 0.0);
    }

    #[test]
    fn gain_is_squared_distance_per_weight() {
        // (3-1)^2 + (1-1)^2 + (0-1)^2 + (5-1)^2 = 4 + 0 + 1 + 16 = 21; over weight 5: 4.
        let point = [3, 1, 0, 5, 5, 9, 9, 9].map(AtomicU64::new);
        assert_eq!(gain(&[point], &[1, 1, 1, 1]), 4);
    }

    #[test]
    fn points_depend_on_their_number_alone() {
        let make = || -> Vec<Point> { (0..100).map(|_| [0; 8].map(AtomicU64::new)).collect() };
        let (whole, parts) = (make(), make());
        write_points(&whole, 0);
        write_points(&parts[40..], 40);
        write_points(&parts[..40], 0);
        for (one, other) in whole.iter().zip(&parts) {
            assert!(
                one.iter()
                    .zip(other)
                    .all(|(a, b)| a.load(Relaxed) == b.load(Relaxed))
            );
            assert_eq!(one[WEIGHT].load(Relaxed) % 2, 1);
        }
    }
}
