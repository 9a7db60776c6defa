//! `facerec`: a program whose use of memory changes: phases that share and phases that do not, in turns.
//!
//! Named after FaceRec and FaceRecLong, a short and a long run of the CSU Face Identification Evaluation
//! System that Carrefour measured. The paper does not describe their use of memory: the two kinds of phase
//! are a model of a program that searches a gallery and then works on its results. The main thread loads a
//! gallery of images and a set of probes, so that first touch puts both on one node.
//!
//! - A *shared* phase compares a face with the whole gallery: every thread reads all images, from an offset
//!   of its own. Nobody writes. It gains by interleaving, or by replicas.
//! - A *partitioned* phase projects the probes: each thread reads and writes its own part of them. It gains
//!   by pages that move to their threads, and interleaving leaves most of its accesses remote.
//!
//! No start placement is right for both: a policy must notice the change. Images are integers, sums wrap,
//! and a probe has one owner, so that the checksum does not depend on the number of threads: of a shared
//! phase the sum of thread 0 alone is taken, as all threads compute the same.

use crate::cli::{self, Args, Failure, Opt, Workload, WorkloadReport};
use crate::memory::{LINE_WORDS, Placement, RegionMemory};
use crate::random::{STEP, mix};
use crate::team::{Member, ThreadTeam, part};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// A line of an image: eight words, of which each is compared with the face's.
type Line = [AtomicU64; LINE_WORDS];

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "facerec",
    about: "Phases in turns: all threads read a gallery, then each uses its own part of the probes.",
    operand: None,
    options: &[
        cli::THREADS,
        Opt {
            name: "mb",
            value: Some("MB"),
            default: "64",
            help: "size of gallery and probes together, half each",
        },
        Opt {
            name: "rounds",
            value: Some("N"),
            default: "16",
            help: "passes over the gallery in each shared phase; a partitioned one has as many accesses",
        },
        Opt {
            name: "phases",
            value: Some("N"),
            default: "2",
            help: "phases, a shared one first, then in turns",
        },
        cli::SEED,
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

/// Time of a kind of phase, in seconds.
#[derive(Clone, Copy, Default)]
struct Times {
    shared: f64,
    partitioned: f64,
}

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let mb = args.number("mb", 1..=1 << 20)? as usize;
    let rounds = args.number("rounds", 1..=1 << 24)?;
    let phases = args.number("phases", 1..=1 << 16)?;
    let seed = args.number(cli::SEED.name, 0..=u64::MAX)?;
    let started = Instant::now();
    let region = || RegionMemory::new(mb << 19, Placement::default());
    let (gallery, probes) = (region()?, region()?);
    write(&gallery, seed);
    write(&probes, !seed);
    let setup = started.elapsed().as_secs_f64();
    let (images, _) = gallery.words().as_chunks::<LINE_WORDS>();
    let (faces, _) = probes.words().as_chunks::<LINE_WORDS>();
    let results = team.run(|member| {
        let mut times = Times::default();
        let mut sum = 0u64;
        let work = || {
            for phase in 0..phases {
                let begun = Instant::now();
                match phase % 2 {
                    0 => sum = sum.wrapping_add(compare(member, images, rounds, phase)),
                    _ => project(member, faces, rounds, phase),
                }
                let passed = begun.elapsed().as_secs_f64();
                match phase % 2 {
                    0 => times.shared += passed,
                    _ => times.partitioned += passed,
                }
            }
        };
        let seconds = member.measure(work).1;
        (sum, seconds, times)
    })?;
    let (sum, seconds, times) = results[0];
    let checksum = probes
        .words()
        .iter()
        .fold(sum, |sum, word| mix(sum) ^ word.load(Relaxed));
    let title = format!(
        "facerec: {} threads, {mb} MB, {phases} phases of {rounds} rounds",
        team.threads()
    );
    Ok(WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .line("shared_seconds", format!("{:.6}", times.shared))
        .line("partitioned_seconds", format!("{:.6}", times.partitioned))
        .finish(seconds, checksum))
}

/// The main thread writes everything; a word depends on the seed and its place alone.
fn write(region: &RegionMemory, seed: u64) {
    for (word, index) in region.words().iter().zip(1u64..) {
        word.store(mix(seed.wrapping_add(index.wrapping_mul(STEP))), Relaxed);
    }
}

/// A shared phase: all images, from the thread's own offset.
fn compare(member: &Member<'_>, images: &[Line], rounds: u64, phase: u64) -> u64 {
    let start = part(images.len(), member.threads, member.id).start;
    let mut sum = 0u64;
    for round in 0..rounds {
        let face = face(phase, round);
        sum = sum
            .wrapping_add(distance(&images[start..], &face))
            .wrapping_add(distance(&images[..start], &face));
        member.sync();
    }
    sum
}

/// A partitioned phase. Where all threads read all in a shared one, each makes as many passes over its own
/// part as makes the same number of accesses.
fn project(member: &Member<'_>, faces: &[Line], rounds: u64, phase: u64) {
    let own = &faces[member.part(faces.len())];
    for round in 0..rounds {
        let basis = face(phase, round);
        // The sums of a pass do not depend on how many there are, nor on who makes them: the passes of a
        // round all read, and the first one writes.
        for pass in 0..member.threads {
            match pass {
                0 => weigh(own, &basis),
                _ => drop(std::hint::black_box(distance(own, &basis))),
            }
        }
        member.sync();
    }
}

/// What is compared with in a round.
fn face(phase: u64, round: u64) -> [u64; LINE_WORDS] {
    std::array::from_fn(|word| mix((phase << 40) ^ (round << 8) ^ word as u64))
}

/// Sum of squared differences between lines and a face.
#[inline(never)]
fn distance(lines: &[Line], face: &[u64; LINE_WORDS]) -> u64 {
    lines.iter().fold(0u64, |sum, line| {
        line.iter().zip(face).fold(sum, |sum, (word, face)| {
            let difference = word.load(Relaxed).wrapping_sub(*face);
            sum.wrapping_add(difference.wrapping_mul(difference))
        })
    })
}

/// Adds to each line's first word its product with a basis.
#[inline(never)]
fn weigh(lines: &[Line], basis: &[u64; LINE_WORDS]) {
    for line in lines {
        let product = line.iter().zip(basis).fold(0u64, |sum, (word, basis)| {
            sum.wrapping_add(word.load(Relaxed).wrapping_mul(*basis))
        });
        line[0].store(product | 1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_and_weights_by_hand() {
        let line = |first: u64| {
            let mut words = [0; LINE_WORDS];
            words[0] = first;
            words.map(AtomicU64::new)
        };
        let mut face = [0; LINE_WORDS];
        face[0] = 5;
        // (3-5)^2 + (9-5)^2 = 20.
        assert_eq!(distance(&[line(3), line(9)], &face), 20);
        let lines = [line(4)];
        weigh(&lines, &face);
        assert_eq!(lines[0][0].load(Relaxed), 21);
    }

    #[test]
    fn faces_differ_by_phase_and_round() {
        assert_ne!(face(0, 1), face(0, 2));
        assert_ne!(face(0, 1), face(2, 1));
    }
}
