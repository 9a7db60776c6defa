//! Streams (`hither_mover::stream`) against the plain loop, in alternating rounds:
//! `streaming --kernel triad --slow 0 --fast 1 --threads 2 --copier-cpus 2-3`.
//!
//! Arrays lie on one node, buffers on another. The team's threads are bound to CPUs; the plain
//! loop gives each a contiguous part, as STREAM does. Results of every round are compared with
//! those of the first plain one, bit by bit. Where both nodes are the same there is nothing to
//! gain, and the difference is what the runtime costs.
//!
//! Bytes count as in STREAM: what the program reads and writes.

use hither_core::ids::CpuId;
use hither_core::set::CpuSet;
use hither_linux::backend::copy::CopyBackend;
use hither_linux::sys::{self, NodeMemory};
use hither_mover::stream::{
    Adapt, Decision, Stream, StreamPart, StreamReport, StreamResults, StreamSettings, TeamSharing,
};
use hither_mover::{Config, Mover};
use std::error::Error;
use std::ops::Range;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

const HELP: &str = "\
streaming [options]: a stream through fast memory against the plain loop
  --kernel triad|add|pgain   a = b + 3 c; a = b + c; StreamCluster's gain of a centre  [triad]
  --slow NODE                where the arrays are                                      [0]
  --fast NODE                where the buffers are                                     [0]
  --none                     never use the buffers: the cost of the runtime alone
  --always                   always use them; without either the stream decides
  --results in-place|fast|fast-updated                                                 [in-place]
  --sharing together|whole                                                             [together]
  --threads N                threads that compute                                      [1]
  --cpus LIST                CPUs for them, in turn                                    [from 0 on]
  --workers N                the mover's workers                                       [1]
  --copiers N                threads that share a copy of 1 MiB or more, per worker    [1]
  --copier-cpus LIST         CPUs for workers and copiers                              [any]
  --mb M                     MiB of each array                                         [64]
  --block KB                 KiB of a block of each array                              [256]
  --buffers N                most buffers                                              [8]
  --rounds R                 rounds of each way                                        [11]
  --huge                     huge pages
  --json                     one JSON object instead of text";

type Failure = Box<dyn Error>;

struct Options {
    kernel: String,
    slow: u32,
    fast: u32,
    adapt: Adapt,
    results: StreamResults,
    sharing: TeamSharing,
    threads: usize,
    cpus: Vec<CpuId>,
    workers: usize,
    copiers: usize,
    copier_cpus: Vec<CpuId>,
    array_bytes: usize,
    block_bytes: usize,
    buffers: usize,
    rounds: usize,
    huge: bool,
    json: bool,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut options = Self {
            kernel: "triad".to_owned(),
            slow: 0,
            fast: 0,
            adapt: Adapt::Measure,
            results: StreamResults::InPlace,
            sharing: TeamSharing::Together,
            threads: 1,
            cpus: Vec::new(),
            workers: 1,
            copiers: 1,
            copier_cpus: Vec::new(),
            array_bytes: 64 << 20,
            block_bytes: 256 << 10,
            buffers: 8,
            rounds: 11,
            huge: false,
            json: false,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--kernel" => options.kernel = value()?,
                "--slow" => options.slow = value()?.parse()?,
                "--fast" => options.fast = value()?.parse()?,
                "--none" => options.adapt = Adapt::Never,
                "--always" => options.adapt = Adapt::Always,
                "--results" => options.results = results(&value()?)?,
                "--sharing" => options.sharing = sharing(&value()?)?,
                "--threads" => options.threads = value()?.parse()?,
                "--cpus" => options.cpus = cpus(&value()?)?,
                "--workers" => options.workers = value()?.parse()?,
                "--copiers" => options.copiers = value()?.parse()?,
                "--copier-cpus" => options.copier_cpus = cpus(&value()?)?,
                "--mb" => options.array_bytes = size(&value()?, 20)?,
                "--block" => options.block_bytes = size(&value()?, 10)?,
                "--buffers" => options.buffers = value()?.parse()?,
                "--rounds" => options.rounds = value()?.parse()?,
                "--huge" => options.huge = true,
                "--json" => options.json = true,
                _ => return Err(format!("{word} is no option\n\n{HELP}").into()),
            }
        }
        if options.threads == 0 || options.rounds == 0 {
            return Err("there is at least one thread and one round".into());
        }
        if options.cpus.is_empty() {
            options.cpus = (0..options.threads as u32).map(CpuId).collect();
        }
        Ok(options)
    }

    fn pin(&self, thread: usize) {
        let cpu = self.cpus[thread % self.cpus.len()];
        if let Err(error) = sys::stay_on(&CpuSet::from_iter([cpu])) {
            panic!("thread {thread} cannot run on {cpu}: {error}");
        }
    }
}

fn results(word: &str) -> Result<StreamResults, Failure> {
    Ok(match word {
        "in-place" => StreamResults::InPlace,
        "fast" => StreamResults::Fast,
        "fast-updated" => StreamResults::FastUpdated,
        _ => return Err(format!("--results is in-place, fast or fast-updated, not {word}").into()),
    })
}

fn sharing(word: &str) -> Result<TeamSharing, Failure> {
    Ok(match word {
        "together" => TeamSharing::Together,
        "whole" => TeamSharing::Whole,
        _ => return Err(format!("--sharing is together or whole, not {word}").into()),
    })
}

fn cpus(word: &str) -> Result<Vec<CpuId>, Failure> {
    Ok(CpuSet::from_str(word)?.iter().collect())
}

fn size(word: &str, shift: u32) -> Result<usize, Failure> {
    let count: usize = word.parse()?;
    count
        .checked_mul(1 << shift)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| format!("{word} is no size").into())
}

/// A point of StreamCluster: 14 coordinates, its weight, and the cost of its present centre.
type Point = [f32; 16];
const CENTRE: [f32; 14] = [0.5; 14];

#[inline(never)]
fn triad([b, c]: [&[f64]; 2], [a]: [&mut [f64]; 1]) {
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        *a = b + 3.0 * c;
    }
}

#[inline(never)]
fn add([b, c]: [&[f64]; 2], [a]: [&mut [f64]; 1]) {
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        *a = b + c;
    }
}

/// What each point saves by a new centre (StreamCluster's `pgain`, the part that streams).
#[inline(never)]
fn pgain([points]: [&[Point]; 1], [saved]: [&mut [f32]; 1]) {
    for (saved, point) in saved.iter_mut().zip(points) {
        let mut square = 0.0;
        for (at, centre) in point.iter().zip(&CENTRE) {
            square += (at - centre) * (at - centre);
        }
        *saved = (point[15] - square * point[14]).max(0.0);
    }
}

/// Seconds of each round and what the stream said.
struct Measured {
    elements: usize,
    plain: Vec<f64>,
    stream: Vec<f64>,
    reports: Vec<StreamReport>,
    buffers: usize,
}

/// A type whose values can be compared bit by bit.
trait Bits: Copy + Send + Sync + 'static {
    const POISON: Self;
    fn bits(self) -> u64;
}

impl Bits for f64 {
    const POISON: Self = f64::NAN;
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

impl Bits for f32 {
    const POISON: Self = f32::NAN;
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

/// Both ways in turn, the first of a pair alternating. Each array has `length` elements.
fn measure<T: Copy + Send + Sync + 'static, U: Bits, const I: usize>(
    options: &Options,
    mover: &Mover,
    fast: &mut NodeMemory,
    inputs: [&[T]; I],
    output: &mut [U],
    kernel: fn([&[T]; I], [&mut [U]; 1]),
) -> Result<Measured, Failure> {
    let length = output.len();
    let shared = Arc::new(options.cpus.clone());
    let settings = StreamSettings {
        buffers: options.buffers,
        threads: options.threads,
        sharing: options.sharing,
        results: options.results,
        adapt: options.adapt,
        start: Some(Arc::new(move |thread| {
            let cpu = shared[thread % shared.len()];
            let bound = sys::stay_on(&CpuSet::from_iter([cpu]));
            assert!(bound.is_ok(), "thread {thread} cannot run on {cpu}");
        })),
        ..StreamSettings::new((options.block_bytes / size_of::<T>()).max(1))
    };
    let mut stream: Stream<'_, '_, T, U, I, 1> = Stream::new(mover, fast.uninit_mut(), settings)?;
    let mut measured = Measured {
        elements: length,
        plain: Vec::new(),
        stream: Vec::new(),
        reports: Vec::new(),
        buffers: stream.buffer_count(),
    };
    plain(options, inputs, output, kernel);
    let expected: Vec<u64> = output.iter().map(|value| value.bits()).collect();
    for round in 0..options.rounds {
        for turn in 0..2 {
            output.fill(U::POISON);
            let start = Instant::now();
            if (round + turn) % 2 == 0 {
                plain(options, inputs, output, kernel);
                measured.plain.push(start.elapsed().as_secs_f64());
            } else {
                let compute = |part: StreamPart<'_, T, U, I, 1>| kernel(part.inputs, part.outputs);
                let report = stream.run(inputs, [&mut *output], compute)?;
                measured.stream.push(start.elapsed().as_secs_f64());
                measured.reports.push(report);
            }
            let mut pairs = output.iter().zip(&expected);
            if let Some(wrong) = pairs.position(|(value, expected)| value.bits() != *expected) {
                return Err(format!("round {round}: element {wrong} is wrong").into());
            }
        }
    }
    Ok(measured)
}

/// Each thread its contiguous part.
fn plain<T: Copy + Send + Sync, U: Send, const I: usize>(
    options: &Options,
    inputs: [&[T]; I],
    output: &mut [U],
    kernel: fn([&[T]; I], [&mut [U]; 1]),
) {
    let length = output.len();
    let threads = options.threads;
    let range = |thread: usize| length * thread / threads..length * (thread + 1) / threads;
    let part = |range: Range<usize>| inputs.map(|one| &one[range.clone()]);
    std::thread::scope(|scope| {
        let (own, mut rest) = output.split_at_mut(range(0).len());
        for thread in 1..threads {
            let theirs = rest.split_off_mut(..range(thread).len());
            let theirs = theirs.expect("the parts fill the array");
            let inputs = part(range(thread));
            scope.spawn(move || {
                options.pin(thread);
                kernel(inputs, [theirs]);
            });
        }
        kernel(part(range(0)), [own]);
    });
}

fn run(options: &Options) -> Result<(Measured, usize), Failure> {
    let config = Config {
        workers: options.workers,
        cpus: options.copier_cpus.clone(),
        batch_requests: 1,
        ..Config::default()
    };
    let mut backends = Vec::new();
    for _ in 0..options.workers {
        backends.push(CopyBackend::new(
            options.copiers,
            options.copier_cpus.clone(),
        )?);
    }
    let mover = Mover::open(config, move |_| {
        let backend = backends.pop().map(Ok);
        let backend = backend.unwrap_or_else(|| CopyBackend::new(1, Vec::new()));
        Box::new(backend.expect("one worker needs no thread"))
    })?;
    options.pin(0);
    let bytes = options.array_bytes;
    let slow = |bytes| NodeMemory::new(bytes, options.slow, options.huge);
    let (mut b, mut c, mut a) = (slow(bytes)?, slow(bytes)?, slow(bytes)?);
    let room = 4 * options.buffers * (options.block_bytes + 4096);
    let mut fast = NodeMemory::new(room, options.fast, options.huge)?;
    let measured = match options.kernel.as_str() {
        "pgain" => {
            let count = bytes / size_of::<Point>();
            let points = &mut b.values_mut([0f32; 16])[..count];
            for (index, point) in points.iter_mut().enumerate() {
                for (place, value) in point.iter_mut().enumerate() {
                    *value = ((index * 7 + place * 13) % 101) as f32 / 100.0;
                }
            }
            let saved = &mut a.values_mut(0f32)[..count];
            (
                measure(options, &mover, &mut fast, [points], saved, pgain)?,
                68,
            )
        }
        word @ ("triad" | "add") => {
            let count = bytes / size_of::<f64>();
            let (b, c) = (b.values_mut(0f64), c.values_mut(0f64));
            for (index, (b, c)) in b.iter_mut().zip(&mut *c).enumerate() {
                (*b, *c) = (index as f64 * 0.1, index as f64 * 0.7);
            }
            let a = &mut a.values_mut(0f64)[..count];
            let kernel = if word == "triad" { triad } else { add };
            let inputs = [&b[..count], &c[..count]];
            (measure(options, &mover, &mut fast, inputs, a, kernel)?, 24)
        }
        word => return Err(format!("--kernel is triad, add or pgain, not {word}").into()),
    };
    Ok(measured)
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print(options: &Options, measured: &Measured, element_bytes: usize) {
    let megabytes = (measured.elements * element_bytes) as f64 / 1e6;
    let (plain, stream) = (&measured.plain, &measured.stream);
    let rate = |times: &[f64]| megabytes / median(times.iter().copied());
    let pairs = plain.iter().zip(stream);
    let speed = median(pairs.map(|(plain, stream)| plain / stream));
    // Over all rounds: the first tries, which a later round does not see, are part of the cost.
    let total = plain.iter().sum::<f64>() / stream.iter().sum::<f64>();
    let sum = |of: fn(&StreamReport) -> u64| measured.reports.iter().map(of).sum::<u64>() as f64;
    let hits = sum(|one| one.fast_blocks) / sum(|one| one.blocks).max(1.0);
    let copying = sum(|one| one.copying_ns);
    let overlap = match copying > 0.0 {
        true => sum(|one| one.overlapped_ns) / copying,
        false => 1.0,
    };
    let last = measured.reports[measured.reports.len() - 1];
    let decision = match last.decision {
        Decision::Undecided => "undecided",
        Decision::Plain => "plain",
        Decision::Through => "through",
    };
    let gain = last
        .gain
        .map_or("null".to_owned(), |gain| format!("{gain:.3}"));
    let copied = sum(|one| one.copied_bytes) / 1e6;
    let late = sum(|one| one.late_fills);
    let failed = sum(|one| one.failed_fills + one.failed_returns);
    let (plain, stream) = (rate(plain), rate(stream));
    if options.json {
        println!(
            "{{\"kernel\": \"{}\", \"slow\": {}, \"fast\": {}, \"threads\": {}, \
             \"block_bytes\": {}, \"buffers\": {}, \"rounds\": {}, \"plain_mbs\": {plain:.1}, \
             \"stream_mbs\": {stream:.1}, \"speedup\": {speed:.4}, \"speedup_total\": {total:.4}, \
             \"hit_share\": {hits:.4}, \"overlap\": {overlap:.4}, \"copied_mb\": {copied:.1}, \
             \"late_fills\": {late}, \"failed\": {failed}, \"decision\": \"{decision}\", \
             \"gain\": {gain}, \"correct\": true}}",
            options.kernel,
            options.slow,
            options.fast,
            options.threads,
            options.block_bytes,
            measured.buffers,
            options.rounds,
        );
        return;
    }
    println!(
        "{}: arrays on node {}, {} buffers of {} KiB an array on node {}, {} threads, {} rounds",
        options.kernel,
        options.slow,
        measured.buffers,
        options.block_bytes >> 10,
        options.fast,
        options.threads,
        options.rounds
    );
    println!("  plain          {plain:10.1} MB/s, median");
    println!("  stream         {stream:10.1} MB/s, median");
    println!("  speed-up       {speed:10.4}, median of pairs");
    println!("  speed-up       {total:10.4}, whole time");
    println!("  hit share      {:10.1} %", hits * 100.0);
    println!("  overlap        {:10.1} %", overlap * 100.0);
    println!("  copied         {copied:10.1} MB; {late} fills late, {failed} failed");
    println!("  decision       {decision:>10}, last comparison {gain}");
    println!("  results               equal, bit by bit");
}

fn main() -> ExitCode {
    let words = std::env::args().skip(1);
    if words.len() == 1 && std::env::args().nth(1).as_deref() == Some("--help") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let done = Options::parse(words).and_then(|options| {
        let (measured, element_bytes) = run(&options)?;
        print(&options, &measured, element_bytes);
        Ok(())
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("streaming: {error}");
            ExitCode::FAILURE
        }
    }
}
