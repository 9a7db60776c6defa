//! `stream`: sequential kernels over three arrays, the bandwidth of memory.
//!
//! After McCalpin's STREAM and its convention: bytes counted are those that the program reads and
//! writes, not the lines that a store fetches first. Every thread works on its own contiguous part
//! of each array. `copy`, `read` and `write` move 64-bit words, `scale`, `add` and `triad` compute in
//! double precision (or in 64-bit integers, which an emulator executes faster); all values are
//! whole numbers well below 2^53, so both give exact results and the checksum is the same anywhere.

use crate::cli::{self, Args, Failure, Operand, Opt, Workload, WorkloadReport, usage};
use crate::memory::{LINE_WORDS, MAX_NODES, Placement, RegionMemory};
use crate::random::mix;
use crate::team::{Member, ThreadTeam};
use std::hint::black_box;
use std::sync::Mutex;
use std::time::Instant;

/// The factor of `scale` and `triad`.
const FACTOR: u64 = 3;
/// `--pause` waits after so many words: one page of 4 KiB.
const PAUSE_WORDS: usize = 512;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "stream",
    about: "Sequential kernels over arrays a, b, c, each thread on its own part: GB/s.",
    operand: Some(Operand {
        name: "KERNEL",
        choices: &[
            ("all", "copy, scale, add and triad"),
            ("copy", "c = a, 64-bit words"),
            ("scale", "b = 3 c, double precision"),
            ("add", "c = a + b, double precision"),
            ("triad", "a = b + 3 c, double precision"),
            ("read", "sum of a, 64-bit words"),
            ("write", "a = a number, 64-bit words"),
            ("memcpy", "c = a by the C library's memcpy"),
        ],
        default: Some("all"),
    }),
    options: &[
        cli::THREADS,
        Opt {
            name: "mb",
            value: Some("MB"),
            default: "32",
            help: "size of each array",
        },
        Opt {
            name: "iterations",
            value: Some("N"),
            default: "5",
            help: "times each kernel runs, 2 or more; the first is not counted",
        },
        Opt {
            name: "nt",
            value: None,
            default: "",
            help: "stores that go past the caches",
        },
        Opt {
            name: "integer",
            value: None,
            default: "",
            help: "64-bit integers throughout",
        },
        Opt {
            name: "local",
            value: None,
            default: "",
            help: "each thread writes its part first, instead of the main thread",
        },
        Opt {
            name: "node",
            value: Some("N"),
            default: "",
            help: "bind the arrays to this node",
        },
        Opt {
            name: "cpus",
            value: Some("LIST"),
            default: "",
            help: "run on these CPUs, one thread on each",
        },
        Opt {
            name: "pause",
            value: Some("N"),
            default: "0",
            help: "turns of an idle loop per 4 KiB of `read`, to set a load",
        },
        Opt {
            name: "huge",
            value: None,
            default: "",
            help: "ask for huge pages",
        },
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    Copy,
    Scale,
    Add,
    Triad,
    Read,
    Write,
    Memcpy,
}

/// How the kernels compute and store.
#[derive(Clone, Copy)]
struct Style {
    integer: bool,
    past_caches: bool,
    pause: u64,
}

/// One thread's parts of the arrays.
struct Arrays<'a> {
    a: &'a mut [u64],
    b: &'a mut [u64],
    c: &'a mut [u64],
}

impl Kernel {
    fn chosen(word: &str) -> Vec<Self> {
        match word {
            "copy" => vec![Self::Copy],
            "scale" => vec![Self::Scale],
            "add" => vec![Self::Add],
            "triad" => vec![Self::Triad],
            "read" => vec![Self::Read],
            "write" => vec![Self::Write],
            "memcpy" => vec![Self::Memcpy],
            _ => vec![Self::Copy, Self::Scale, Self::Add, Self::Triad],
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Copy => "copy_gbs",
            Self::Scale => "scale_gbs",
            Self::Add => "add_gbs",
            Self::Triad => "triad_gbs",
            Self::Read => "read_gbs",
            Self::Write => "write_gbs",
            Self::Memcpy => "memcpy_gbs",
        }
    }

    /// Words read and written per element.
    fn words(self) -> usize {
        match self {
            Self::Read | Self::Write => 1,
            Self::Copy | Self::Scale | Self::Memcpy => 2,
            Self::Add | Self::Triad => 3,
        }
    }
}

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let kernels = Kernel::chosen(args.operand());
    let team = ThreadTeam::from_args_with_cpus(args)?;
    let mb = args.number("mb", 1..=1 << 20)? as usize;
    let iterations = args.number("iterations", 2..=1 << 30)? as usize;
    let node = args.optional("node", 0..=MAX_NODES as u64 - 1)?;
    let style = Style {
        integer: args.has("integer"),
        past_caches: args.has("nt"),
        pause: args.number("pause", 0..=1 << 30)?,
    };
    let plain = [Kernel::Read, Kernel::Write, Kernel::Memcpy];
    if style.past_caches && plain.contains(&kernels[0]) {
        return Err(usage(format!(
            "--nt has no meaning for {}: leave it out",
            args.operand()
        )));
    }
    if style.pause > 0 && kernels[0] != Kernel::Read {
        return Err(usage(
            "--pause is for `read` only: leave it out, or say `read`".to_owned(),
        ));
    }
    let started = Instant::now();
    let placement = Placement {
        node,
        huge: args.has("huge"),
    };
    let mut regions = Vec::new();
    for _ in 0..3 {
        regions.push(RegionMemory::new(mb << 20, placement)?);
    }
    let local = args.has("local");
    let parts = split(&mut regions, team.threads());
    if !local {
        for arrays in &parts {
            fill(&mut arrays.lock().expect("no thread panics while it fills"));
        }
    }
    let results = team.run(|member| {
        let mut arrays = parts[member.id]
            .lock()
            .expect("each thread has its own part");
        if local {
            fill(&mut arrays);
        }
        let setup = started.elapsed().as_secs_f64();
        let (times, sum) = measure(member, &kernels, iterations, style, &mut arrays);
        (setup, times, sum)
    })?;
    let sums = results
        .iter()
        .fold(0u64, |sum, (_, _, part)| sum.wrapping_add(*part));
    drop(parts);
    let checksum = regions.iter_mut().fold(sums, |sum, region| {
        region
            .words_mut()
            .iter()
            .step_by(LINE_WORDS)
            .fold(sum, |sum, word| mix(sum) ^ word)
    });
    let title = format!(
        "stream {}: {} threads, 3 arrays of {mb} MB, {iterations} iterations",
        args.operand(),
        team.threads()
    );
    let report = WorkloadReport::new(title).line("setup_seconds", format!("{:.6}", results[0].0));
    Ok(summarise(report, &kernels, &results[0].1, mb << 20).finish(total(&results[0].1), checksum))
}

/// Per-thread parts of the three arrays.
fn split(regions: &mut [RegionMemory], threads: usize) -> Vec<Mutex<Arrays<'_>>> {
    let [a, b, c] = regions else {
        unreachable!("there are three arrays")
    };
    let (a, b, c) = (
        a.split(threads, LINE_WORDS),
        b.split(threads, LINE_WORDS),
        c.split(threads, LINE_WORDS),
    );
    let parts = a.into_iter().zip(b).zip(c);
    parts
        .map(|((a, b), c)| Mutex::new(Arrays { a, b, c }))
        .collect()
}

fn fill(arrays: &mut Arrays<'_>) {
    arrays.a.fill(1.0f64.to_bits());
    arrays.b.fill(2.0f64.to_bits());
    arrays.c.fill(0.0f64.to_bits());
}

/// Seconds of every iteration of every kernel, and the sum that `read` found.
fn measure(
    member: &Member<'_>,
    kernels: &[Kernel],
    iterations: usize,
    style: Style,
    arrays: &mut Arrays<'_>,
) -> (Vec<Vec<f64>>, u64) {
    let mut times = vec![Vec::with_capacity(iterations); kernels.len()];
    let mut sum = 0u64;
    for _ in 0..iterations {
        for (times, &kernel) in times.iter_mut().zip(kernels) {
            let (part, seconds) = member.measure(|| execute(kernel, style, arrays));
            sum = sum.wrapping_add(part);
            times.push(seconds);
        }
    }
    (times, sum)
}

fn total(times: &[Vec<f64>]) -> f64 {
    times.iter().flatten().sum()
}

/// Best and mean rate of each kernel; the first iteration warms up.
fn summarise(
    mut report: WorkloadReport,
    kernels: &[Kernel],
    times: &[Vec<f64>],
    bytes: usize,
) -> WorkloadReport {
    for (kernel, times) in kernels.iter().zip(times) {
        let counted = &times[1..];
        let best = counted.iter().copied().fold(f64::INFINITY, f64::min);
        let mean = counted.iter().sum::<f64>() / counted.len() as f64;
        let gb = (bytes * kernel.words()) as f64 / 1e9;
        report = report.line(
            kernel.key(),
            format!("{:.3} (mean {:.3})", gb / best, gb / mean),
        );
    }
    report
}

/// One run of a kernel over one thread's part. Each is a function of its own, so that the
/// compiler sees plain slices.
#[inline(never)]
fn execute(kernel: Kernel, style: Style, arrays: &mut Arrays<'_>) -> u64 {
    let Arrays { a, b, c } = arrays;
    let nt = style.past_caches;
    match (kernel, style.integer) {
        (Kernel::Copy, _) => map(c, a, nt, |a| a),
        (Kernel::Memcpy, _) => c.copy_from_slice(a),
        (Kernel::Read, _) => return read(a, style.pause),
        // The black box keeps the compiler from storing what it knows to be there.
        (Kernel::Write, _) => a.fill(black_box(FACTOR)),
        (Kernel::Scale, true) => map(b, c, nt, |c| c.wrapping_mul(FACTOR)),
        (Kernel::Scale, false) => map(b, c, nt, |c| (float(c) * FACTOR as f64).to_bits()),
        (Kernel::Add, true) => zip(c, a, b, nt, u64::wrapping_add),
        (Kernel::Add, false) => zip(c, a, b, nt, |a, b| (float(a) + float(b)).to_bits()),
        (Kernel::Triad, true) => {
            zip(a, b, c, nt, |b, c| b.wrapping_add(c.wrapping_mul(FACTOR)));
        }
        (Kernel::Triad, false) => {
            zip(a, b, c, nt, |b, c| {
                (float(b) + FACTOR as f64 * float(c)).to_bits()
            });
        }
    }
    0
}

fn float(bits: u64) -> f64 {
    f64::from_bits(bits)
}

#[inline(always)]
fn map(to: &mut [u64], from: &[u64], past_caches: bool, f: impl Fn(u64) -> u64) {
    if past_caches {
        store_past_caches(to, |index| f(from[index]));
        return;
    }
    let (to, _) = to.as_chunks_mut::<LINE_WORDS>();
    let (from, _) = from.as_chunks::<LINE_WORDS>();
    for (to, from) in to.iter_mut().zip(from) {
        // The black box keeps `copy` a loop of loads and stores: without it the compiler calls
        // memcpy, which is a kernel of its own here.
        *to = black_box(from).map(&f);
    }
}

#[inline(always)]
fn zip(to: &mut [u64], one: &[u64], other: &[u64], nt: bool, f: impl Fn(u64, u64) -> u64) {
    if nt {
        store_past_caches(to, |index| f(one[index], other[index]));
        return;
    }
    for (to, (one, other)) in to.iter_mut().zip(one.iter().zip(other)) {
        *to = f(*one, *other);
    }
}

/// Stores with `movntdq`, two words at a time, and the fence that orders them before the barrier.
#[inline(always)]
fn store_past_caches(to: &mut [u64], value: impl Fn(usize) -> u64) {
    use std::arch::x86_64::{__m128i, _mm_set_epi64x, _mm_sfence, _mm_stream_si128};
    let length = to.len();
    let start = to.as_mut_ptr();
    assert!(
        length.is_multiple_of(2) && start.addr().is_multiple_of(16),
        "parts are whole lines"
    );
    for index in (0..length).step_by(2) {
        // SAFETY: `index` and `index + 1` are within `to`, whose start is 16-byte aligned; the
        // instructions are part of x86-64.
        unsafe {
            let pair = _mm_set_epi64x(value(index + 1) as i64, value(index) as i64);
            _mm_stream_si128(start.add(index).cast::<__m128i>(), pair);
        }
    }
    // SAFETY: part of x86-64.
    unsafe { _mm_sfence() };
}

/// Sum of the words; after each page an idle loop of `pause` turns (its counter goes to the stack,
/// a hit in the first cache, so that the compiler keeps the loop).
#[inline(always)]
fn read(from: &[u64], pause: u64) -> u64 {
    let mut sum = 0u64;
    for page in from.chunks(PAUSE_WORDS) {
        sum = page.iter().fold(sum, |sum, word| sum.wrapping_add(*word));
        for turn in 0..pause {
            black_box(turn);
        }
    }
    sum
}
