//! `npb`: eight kernels with the operations, traffic and sizes of the NAS parallel benchmarks.
//!
//! Table I of the HyDM paper gives, for NPB of class C, floating-point operations, memory accesses
//! (lines read and written) and peak memory. Each kernel here has its namesake's pattern, its ratio of operations
//! to bytes of memory traffic, and its share of the largest kernel's memory, so that a set of them loads a small
//! machine as the originals load the paper's. How far the ratios agree is tested.
//!
//! Operations and traffic are formulas, worked out by hand from the loops; each kernel's header has its
//! own. Traffic is that of arrays which are much larger than the last-level cache, each passed in its
//! loops' order: lines read, those included that a store fetches, and lines written back. What is
//! used again while it is still cached (planes of a stencil, a line that a solver works on) counts once. A test
//! runs every kernel with a number that counts ([`real`]).

mod bt;
mod cg;
mod ep;
mod ft;
mod grid;
mod is;
mod lu;
mod mg;
mod randlc;
mod real;
mod solve;
mod sp;
pub mod table;
#[cfg(test)]
mod tests;

use crate::cli::{self, Args, Failure, Operand, Opt, Workload, WorkloadReport, usage};
use crate::memory::{self, FirstNode, RegionMemory};
use crate::random::mix;
use crate::team::{Member, ThreadTeam};
use real::Real;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use table::{Row, Work};

/// `--scale-mb`.
pub const SCALE_MB: Opt = Opt {
    name: "scale-mb",
    value: Some("MB"),
    default: "48",
    help: "memory of the largest kernel, ft: 3, 6, 12, 24 and so on",
};
/// `--rounds`.
pub const ROUNDS: Opt = Opt {
    name: "rounds",
    value: Some("N"),
    default: "as --divide says",
    help: "rounds of the kernel",
};
/// `--divide`.
pub const DIVIDE: Opt = Opt {
    name: "divide",
    value: Some("N"),
    default: "4000",
    help: "as many rounds as make the original's operations divided by this, at least one",
};
/// What `--scale-mb` may be: multiples of this by powers of two.
const SCALE_UNIT: u64 = 3;
const SCALES: RangeInclusive<u64> = SCALE_UNIT..=SCALE_UNIT << 14;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "npb",
    about: "Small kernels with the patterns of the NAS parallel benchmarks, and with class C's operations \
            per byte of memory traffic and proportions of memory.",
    operand: Some(Operand {
        name: "KERNEL",
        choices: &[
            (
                "is",
                "integer sort: keys counted and distributed by buckets",
            ),
            (
                "ep",
                "pairs of random numbers accepted into Gaussian deviates",
            ),
            ("cg", "conjugate gradients: sparse matrix-vector products"),
            ("mg", "V-cycles of stencils on grids of three dimensions"),
            ("ft", "Fourier transforms of three dimensions"),
            (
                "bt",
                "block-tridiagonal solves along lines in three directions",
            ),
            (
                "sp",
                "scalar pentadiagonal solves along lines in three directions",
            ),
            ("lu", "symmetric successive over-relaxation, as a wavefront"),
        ],
        default: None,
    }),
    options: &[
        Opt {
            default: "1",
            ..cli::THREADS
        },
        SCALE_MB,
        ROUNDS,
        DIVIDE,
        memory::NODE,
        memory::FIRST_NODE,
        memory::HUGE,
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

/// A kernel: arrays and rounds over them.
trait Kernel: Sized + Sync {
    /// Its name in the table.
    const NAME: &'static str;

    /// With arrays of about so many bytes, not yet written.
    fn new(bytes: usize, threads: usize, start: FirstNode) -> Result<Self, Failure>;
    /// Its arrays.
    fn words(&self) -> &Words;
    /// Writes the arrays.
    fn write(&self);
    /// Round number `round`, by all members together; they end it at a barrier where the next one
    /// needs that.
    fn round<R: Real>(&self, member: &Member<'_>, round: u64);
    /// The work of a round, before any was made.
    fn round_work(&self) -> Work;

    /// The work of all rounds, which have been made.
    fn work(&self, rounds: u64) -> Work {
        self.round_work().times(rounds)
    }

    /// Mixes results that are not in the arrays into the checksum.
    fn more_checksum(&self, sum: u64) -> u64 {
        sum
    }

    /// The bits of the results.
    fn checksum(&self) -> u64 {
        let words = self.words().all().iter();
        self.more_checksum(words.fold(0, |sum, word| mix(sum) ^ word.load(Relaxed)))
    }
}

/// The arrays of a kernel, one after the other in one mapping.
#[derive(Debug)]
pub struct Words {
    region: RegionMemory,
    len: usize,
}

impl Words {
    fn new(len: usize, start: FirstNode) -> Result<Self, Failure> {
        let region = RegionMemory::new(len * 8, start.placement)?;
        Ok(Self { region, len })
    }

    fn all(&self) -> &[AtomicU64] {
        &self.region.words()[..self.len]
    }

    fn bytes(&self) -> usize {
        self.len * 8
    }

    /// Writes each word by its number.
    fn fill(&self, word: impl Fn(usize) -> u64) {
        for (at, to) in self.all().iter().enumerate() {
            to.store(word(at), Relaxed);
        }
    }
}

/// Parts of words, one after the other.
fn carve<const N: usize>(words: &[AtomicU64], lens: [usize; N]) -> [&[AtomicU64]; N] {
    let mut rest = words;
    lens.map(|len| {
        let (part, others) = rest.split_at(len);
        rest = others;
        part
    })
}

/// What a command line says of any kernel.
struct Settings {
    team: ThreadTeam,
    scale_mb: u64,
    rounds: Option<u64>,
    divide: u64,
    start: FirstNode,
}

/// `--scale-mb`, as `npb` and `mix` have it.
///
/// # Errors
/// [`Failure::Usage`] for a size that the transform of `ft` does not have.
pub fn scale_mb(args: &Args) -> Result<u64, Failure> {
    let scale = args.number(SCALE_MB.name, SCALES)?;
    if scale.is_multiple_of(SCALE_UNIT) && (scale / SCALE_UNIT).is_power_of_two() {
        return Ok(scale);
    }
    let below = SCALE_UNIT << (scale / SCALE_UNIT).ilog2();
    Err(usage(format!(
        "--{} {scale} is not 3 times a power of two: the nearest are {below} and {}",
        SCALE_MB.name,
        2 * below
    )))
}

/// `--rounds` and `--divide`, as `npb` and `mix` have them.
///
/// # Errors
/// [`Failure::Usage`] for what is no such number, and for both.
pub fn rounds(args: &Args) -> Result<(Option<u64>, u64), Failure> {
    if args.has(ROUNDS.name) && args.has(DIVIDE.name) {
        return Err(usage(
            "--rounds and --divide exclude each other: give one".to_owned(),
        ));
    }
    let rounds = args.optional(ROUNDS.name, 1..=1 << 32)?;
    Ok((rounds, args.number(DIVIDE.name, 1..=1 << 32)?))
}

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let (rounds, divide) = rounds(args)?;
    let settings = Settings {
        team: ThreadTeam::from_args_or(args, Some(1))?,
        scale_mb: scale_mb(args)?,
        rounds,
        divide,
        start: FirstNode::from_args(args)?,
    };
    match args.operand() {
        "is" => measure::<is::Is>(&settings),
        "ep" => measure::<ep::Ep>(&settings),
        "cg" => measure::<cg::Cg>(&settings),
        "mg" => measure::<mg::Mg>(&settings),
        "ft" => measure::<ft::Ft>(&settings),
        "bt" => measure::<bt::Bt>(&settings),
        "sp" => measure::<sp::Sp>(&settings),
        _ => measure::<lu::Lu>(&settings),
    }
}

fn measure<K: Kernel>(settings: &Settings) -> Result<WorkloadReport, Failure> {
    let row = Row::of(K::NAME);
    let (team, start) = (&settings.team, settings.start);
    let started = Instant::now();
    let kernel = K::new(row.bytes(settings.scale_mb), team.threads(), start)?;
    let rounds = settings.rounds.unwrap_or_else(|| {
        let wanted = row.gflop * 1e9 / settings.divide as f64;
        ((wanted / kernel.round_work().flops as f64).round() as u64).max(1)
    });
    kernel.write();
    start.written(&kernel.words().region)?;
    let setup = started.elapsed().as_secs_f64();
    let times = team.run(|member| {
        let work = || (0..rounds).for_each(|round| kernel.round::<f64>(member, round));
        member.measure(work).1
    })?;
    let work = kernel.work(rounds);
    let title = format!(
        "npb {}: {} threads, {} MB for the largest, {rounds} rounds",
        K::NAME,
        team.threads(),
        settings.scale_mb
    );
    Ok(WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .line("footprint_bytes", kernel.words().bytes())
        .line("flops", work.flops)
        .line("read_bytes", work.read_bytes)
        .line("write_bytes", work.write_bytes)
        .line("flops_per_byte", format!("{:.4}", work.flops_per_byte()))
        .line(
            "mflops",
            format!("{:.3}", work.flops as f64 / times[0] / 1e6),
        )
        .finish(times[0], kernel.checksum()))
}
