//! `pca`: means and covariances of variables, as map-reduce computes them for a principal component
//! analysis.
//!
//! After the PCA of Metis, which Carrefour measured: the main thread loads a matrix, so that
//! first touch puts all of it on one node; then the threads share out pairs of variables. Each pair is the
//! sum of products over two whole rows, so that over time every thread reads every page, and all of that
//! traffic hits the node of the main thread.
//!
//! A variable is a row of observations. A pair is cut into pieces, and each thread has a stretch of the
//! pieces of all pairs, in order: threads have the same number of them to within one, and begin at
//! different rows. Observations are small integers and sums wrap, so that the order of additions does not
//! matter and the checksum does not depend on the number of threads.

use crate::cli::{self, Args, Failure, Opt, Workload, WorkloadReport, usage};
use crate::memory::{LINE_WORDS, Placement, RegionMemory};
use crate::random::{STEP, mix};
use crate::team::{Member, ThreadTeam};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Parts that the work on a pair is cut into: threads then share out pairs evenly, few as they may be.
const PIECES: usize = 16;
/// Bits of an observation: a sum of 2^32 products fits a word.
const OBSERVATION_BITS: u32 = 16;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "pca",
    about: "Means and covariances of the variables of a matrix that the main thread wrote first.",
    operand: None,
    options: &[
        cli::THREADS,
        Opt {
            name: "mb",
            value: Some("MB"),
            default: "64",
            help: "size of the matrix",
        },
        Opt {
            name: "variables",
            value: Some("N"),
            default: "16",
            help: "rows of the matrix, 1 to 4096",
        },
        Opt {
            name: "rounds",
            value: Some("N"),
            default: "1",
            help: "times all means and covariances are computed",
        },
        cli::SEED,
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

/// The matrix, and what is computed of it. The main thread writes `observations` before there are others.
/// `means` and `covariances` are added to by all threads and read after a barrier.
struct Matrix {
    observations: RegionMemory,
    variables: usize,
    /// Observations of each variable.
    length: usize,
    /// Sums of observations.
    means: Vec<AtomicU64>,
    /// Sums of products of pairs, in the order of [`pair`].
    covariances: Vec<AtomicU64>,
}

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let mb = args.number("mb", 1..=1 << 20)? as usize;
    let variables = args.number("variables", 1..=4096)? as usize;
    let rounds = args.number("rounds", 1..=1 << 24)?;
    let seed = args.number(cli::SEED.name, 0..=u64::MAX)?;
    let length = ((mb << 20) / 8 / variables) / LINE_WORDS * LINE_WORDS;
    if length < LINE_WORDS * PIECES {
        return Err(usage(format!(
            "--variables {variables}: {mb} MB has {length} observations of each, and {} are needed: give \
             fewer --variables, or more --mb",
            LINE_WORDS * PIECES
        )));
    }
    let started = Instant::now();
    let matrix = Matrix::new(variables, length)?;
    matrix.write(seed);
    let setup = started.elapsed().as_secs_f64();
    let results = team.run(|member| {
        let mut sum = 0u64;
        let work = || {
            for _ in 0..rounds {
                sum = matrix.analyse(member, sum);
            }
        };
        let seconds = member.measure(work).1;
        (sum, seconds)
    })?;
    let (checksum, seconds) = results[0];
    let products = (pair_count(variables) * length) as f64 * rounds as f64;
    let title = format!(
        "pca: {} threads, {mb} MB, {variables} variables, {rounds} rounds",
        team.threads()
    );
    Ok(WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .line("mproducts", format!("{:.3}", products / seconds / 1e6))
        .finish(seconds, checksum))
}

impl Matrix {
    fn new(variables: usize, length: usize) -> Result<Self, Failure> {
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Ok(Self {
            observations: RegionMemory::new(variables * length * 8, Placement::default())?,
            variables,
            length,
            means: zeros(variables),
            covariances: zeros(pair_count(variables)),
        })
    }

    /// Observations depend on the seed and their place alone.
    fn write(&self, seed: u64) {
        for (word, index) in self.observations.words().iter().zip(1u64..) {
            let bits = mix(seed.wrapping_add(index.wrapping_mul(STEP)));
            word.store(bits >> (64 - OBSERVATION_BITS), Relaxed);
        }
    }

    fn row(&self, variable: usize) -> &[AtomicU64] {
        &self.observations.words()[variable * self.length..][..self.length]
    }

    /// All means and covariances anew; mixes them into `sum`, on thread 0.
    fn analyse(&self, member: &Member<'_>, sum: u64) -> u64 {
        for unit in member.part(self.variables * PIECES) {
            let (variable, piece) = (unit / PIECES, part_of(self.length, unit % PIECES));
            let words = &self.row(variable)[piece];
            let observed = words
                .iter()
                .fold(0u64, |sum, word| sum.wrapping_add(word.load(Relaxed)));
            self.means[variable].fetch_add(observed, Relaxed);
        }
        member.sync();
        let length = self.length as u64;
        let mean = |variable: usize| self.means[variable].load(Relaxed) / length;
        for unit in member.part(self.covariances.len() * PIECES) {
            let (at, piece) = (unit / PIECES, part_of(self.length, unit % PIECES));
            let (a, b) = pair(at);
            let rows = (&self.row(a)[piece.clone()], &self.row(b)[piece]);
            let products = products(rows.0, mean(a), rows.1, mean(b));
            self.covariances[at].fetch_add(products, Relaxed);
        }
        member.sync();
        let mut sum = sum;
        if member.id == 0 {
            for word in self.means.iter().chain(&self.covariances) {
                sum = mix(sum) ^ word.swap(0, Relaxed);
            }
        }
        member.sync();
        sum
    }
}

fn part_of(length: usize, piece: usize) -> std::ops::Range<usize> {
    crate::team::part(length, PIECES, piece)
}

/// Pairs of variables, each with itself as well.
fn pair_count(variables: usize) -> usize {
    variables * (variables + 1) / 2
}

/// The pair with a number: (0, 0), (0, 1), (1, 1), (0, 2) and so on.
fn pair(number: usize) -> (usize, usize) {
    // The largest b with b (b + 1) / 2 <= number; the square root may be off by one.
    let mut b = ((8.0 * number as f64 + 1.0).sqrt() as usize).saturating_sub(1) / 2;
    while pair_count(b + 1) <= number {
        b += 1;
    }
    while pair_count(b) > number {
        b -= 1;
    }
    (number - pair_count(b), b)
}

/// Sum of products of what two rows differ from their means: the measured loop.
#[inline(never)]
fn products(a: &[AtomicU64], mean_a: u64, b: &[AtomicU64], mean_b: u64) -> u64 {
    a.iter().zip(b).fold(0u64, |sum, (a, b)| {
        let a = a.load(Relaxed).wrapping_sub(mean_a);
        let b = b.load(Relaxed).wrapping_sub(mean_b);
        sum.wrapping_add(a.wrapping_mul(b))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_have_numbers_in_order() {
        let mut expected = 0..;
        for b in 0..100 {
            for a in 0..=b {
                assert_eq!(pair(expected.next().unwrap()), (a, b));
            }
        }
        // About the last of 4096 variables.
        assert_eq!(pair(pair_count(4096) - 1), (4095, 4095));
    }

    #[test]
    fn covariances_are_sums_of_products() {
        let words = |values: [u64; 3]| values.map(AtomicU64::new);
        // Means 2 and 20: (-1)(-10) + 0 + (1)(10) = 20; and -20 against the reverse.
        let (a, b) = (words([1, 2, 3]), words([10, 20, 30]));
        assert_eq!(products(&a, 2, &b, 20), 20);
        assert_eq!(products(&a, 2, &words([30, 20, 10]), 20) as i64, -20);
        let matrix = Matrix::new(3, 128).unwrap();
        matrix.write(7);
        let first = matrix.row(1)[5].load(Relaxed);
        assert!(first < 1 << OBSERVATION_BITS);
        matrix.write(8);
        assert_ne!(matrix.row(1)[5].load(Relaxed), first);
    }
}
