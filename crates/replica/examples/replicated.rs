//! `replicated`: two uses of memory that replication is for, with and without copies.
//!
//! `shared` is Streamcluster's: the main thread writes points of 64 bytes, all threads read all of them round by
//! round, with a barrier after each (as `cluster shared`, the same arithmetic on every point). `table` is a
//! read-mostly hash table: keys are drawn by Zipf's law, and few operations in a million add to a counter, in
//! batches. With `--copies none` data lies where first touch, or a policy from outside such as interleaving, puts
//! it; with `--copies replicated` it is a `hither_replica::Replicated`, whose copies are built while the threads
//! already read, in the measured time, unless `--build before` says otherwise.
//!
//! The checksum depends on the arguments alone: it is the same with copies and without.

use hither_replica::forecast::{CopyDemand, CopySharing, forecast};
use hither_replica::{
    ArrayReport as Told, Config, CopiedChunks, Places, Plain, Replicated, TypedGuard,
};
use hither_workloads::cli::{self, Args, Failure, Operand, Opt, Workload, WorkloadReport};
use hither_workloads::cluster::{centre, point};
use hither_workloads::kvstore::key;
use hither_workloads::memory::{HUGE, Placement, RegionMemory};
use hither_workloads::random::{FastRandom, mix};
use hither_workloads::team::{Member, ThreadTeam, part};
use hither_workloads::zipf::Zipf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

type Point = [u64; 8];
type Entry = [u64; 16];

const WEIGHT: usize = 4;
const KEY: usize = 0;
const COUNTER: usize = 1;
/// Operations under one guard.
const OPERATIONS_PER_GUARD: u64 = 512;
/// How often the keeper looks.
const PERIOD: Duration = Duration::from_millis(20);
/// Longer than any build.
const LONG: Duration = Duration::from_secs(3600);

const PROGRAM: Workload = Workload {
    name: "replicated",
    about: "Data that all threads read and few write, with a copy on each node or without.",
    operand: Some(Operand {
        name: "MODE",
        choices: &[
            ("shared", "points that all threads read, round by round"),
            (
                "table",
                "a hash table under Zipf-distributed reads, and few writes",
            ),
        ],
        default: None,
    }),
    options: &[
        Opt {
            name: "copies",
            value: Some("WHICH"),
            default: "none",
            help: "none, replicated (all), or partial (what two nodes read)",
        },
        Opt {
            name: "build",
            value: Some("WHEN"),
            default: "during",
            help: "copies are built before the measured time, or during it",
        },
        cli::THREADS,
        Opt {
            name: "mb",
            value: Some("MB"),
            default: "64",
            help: "size of the data",
        },
        Opt {
            name: "rounds",
            value: Some("N"),
            default: "16",
            help: "shared: passes of each thread",
        },
        Opt {
            name: "operations",
            value: Some("N"),
            default: "1000000",
            help: "table: of each thread",
        },
        Opt {
            name: "writes",
            value: Some("N"),
            default: "100",
            help: "table: writes in a million operations",
        },
        Opt {
            name: "batch",
            value: Some("N"),
            default: "16",
            help: "table: writes that a thread publishes at once",
        },
        Opt {
            name: "skew",
            value: Some("PERCENT"),
            default: "99",
            help: "table: 100 times the exponent of Zipf's law",
        },
        Opt {
            name: "chunk",
            value: Some("KIB"),
            default: "0",
            help: "size of what is copied at once; 0 chooses",
        },
        HUGE,
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

fn main() -> ExitCode {
    cli::main(&PROGRAM)
}

/// What `--copies` and `--build` say.
struct Copies {
    config: Option<Config>,
    is_before: bool,
}

impl Copies {
    fn from_args(args: &Args) -> Result<Self, Failure> {
        let which = match args.text("copies").unwrap_or("none") {
            "none" => None,
            "replicated" => Some(CopiedChunks::All),
            "partial" => Some(CopiedChunks::Shared),
            other => {
                let text = format!("--copies: `{other}` is none of none, replicated, partial");
                return Err(cli::usage(text));
            }
        };
        let is_before = match args.text("build").unwrap_or("during") {
            "before" => true,
            "during" => false,
            other => {
                let text = format!("--build: `{other}` is neither before nor during");
                return Err(cli::usage(text));
            }
        };
        let chunk_bytes = (args.number("chunk", 0..=1 << 20)? as usize) << 10;
        let config = which.map(|which| Config {
            which,
            chunk_bytes,
            max_readers: 1024,
            huge: args.has(HUGE.name),
            ..Config::default()
        });
        Ok(Self { config, is_before })
    }

    /// An array, whose copies are there or on their way.
    fn make<T: Plain>(&self, config: Config, values: &[T]) -> Result<Replicated<T>, Failure> {
        let array = Replicated::of(values, config).map_err(failed)?;
        if self.is_before {
            array.refresh(LONG).map_err(failed)?;
        }
        Ok(array)
    }

    /// What is to be expected of copies, by the kernel's distances alone.
    fn forecast(&self, bytes: usize) -> Result<Option<String>, Failure> {
        if self.config.is_none() {
            return Ok(None);
        }
        let demand = CopyDemand {
            bytes: bytes as u64,
            shared_bytes: bytes as u64,
            sharing: CopySharing::Shared,
            written_per_read: 0.0,
            compute_ns_per_byte: 0.0,
            home: 0,
        };
        let figures = Places::figures_here().map_err(failed)?;
        Ok(Some(forecast(&figures, &demand).sentence))
    }
}

fn failed(error: hither_replica::Error) -> Failure {
    Failure::Machine(error.to_string())
}

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let copies = Copies::from_args(args)?;
    match args.operand() {
        "shared" => shared(args, &copies),
        _ => table(args, &copies),
    }
}

/// The plain array has the pages that copies have.
fn placement(args: &Args) -> Placement {
    Placement {
        node: None,
        huge: args.has(HUGE.name),
    }
}

fn told(report: WorkloadReport, told: Option<Told>) -> WorkloadReport {
    let Some(told) = told else {
        return report;
    };
    let share = told.local_share().unwrap_or(0.0);
    report
        .line("copies", format!("{} of {}", told.copies.0, told.copies.1))
        .line("copy_bytes", told.copy_bytes)
        .line("build_seconds", format!("{:.6}", told.build_seconds))
        .line("recopied_bytes", told.recopied_bytes)
        .line("epoch", told.epoch)
        .line("local_share", format!("{share:.4}"))
}

fn shared(args: &Args, copies: &Copies) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let mb = args.number("mb", 1..=1 << 18)? as usize;
    let rounds = args.number("rounds", 1..=1 << 32)?;
    let started = Instant::now();
    let mut region = RegionMemory::new(mb << 20, placement(args))?;
    let (points, _) = region.words_mut().as_chunks_mut::<8>();
    points
        .iter_mut()
        .zip(0u64..)
        .for_each(|(words, number)| *words = point(number));
    let points: &[Point] = points;
    let array = match &copies.config {
        None => None,
        Some(config) => Some(copies.make(config.clone(), points)?),
    };
    let setup = started.elapsed().as_secs_f64();
    let results = team.run(|member| {
        let mut reader = array
            .as_ref()
            .map(|array| array.reader().map_err(failed))
            .transpose()?;
        let (gains, seconds) = member.measure(|| {
            keep(member, array.as_ref())?;
            let start = part(points.len(), member.threads, member.id).start;
            let mut gains = 0u64;
            for round in 0..rounds {
                let centre = centre(round);
                let gain = match &mut reader {
                    None => gain(&points[start..], &centre)
                        .wrapping_add(gain(&points[..start], &centre)),
                    Some(reader) => {
                        let guard = reader.read().map_err(failed)?;
                        let pieces = guard.pieces(start..points.len());
                        let pieces = pieces.chain(guard.pieces(0..start));
                        pieces.fold(0u64, |sum, piece| sum.wrapping_add(gain(piece, &centre)))
                    }
                };
                gains = gains.wrapping_add(gain);
                member.sync();
            }
            Ok(gains)
        });
        Ok::<_, Failure>((gains?, seconds))
    })?;
    let results: Vec<(u64, f64)> = results.into_iter().collect::<Result<_, _>>()?;
    let checksum = results
        .iter()
        .fold(0u64, |sum, (gain, _)| sum.wrapping_add(*gain));
    let title = format!(
        "replicated shared: {} threads, {mb} MB, {rounds} rounds",
        team.threads()
    );
    let report = WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .line(
            "points_read",
            points.len() as u64 * team.threads() as u64 * rounds,
        );
    let report = match copies.forecast(mb << 20)? {
        Some(sentence) => report.line("forecast", sentence),
        None => report,
    };
    let report = told(
        report,
        array
            .map(|array| array.report().map_err(failed))
            .transpose()?,
    );
    Ok(report.finish(results[0].1, checksum))
}

/// One thread has the copies made from now on.
fn keep<T: Plain>(member: &Member<'_>, array: Option<&Replicated<T>>) -> Result<(), Failure> {
    match array {
        Some(array) if member.id == 0 => array.keep(PERIOD).map_err(failed),
        _ => Ok(()),
    }
}

/// Sum over points of squared distance per weight.
#[inline(never)]
fn gain(points: &[Point], centre: &[u64; 4]) -> u64 {
    points.iter().fold(0u64, |sum, point| {
        let distance = centre.iter().zip(point).fold(0u64, |sum, (centre, word)| {
            let difference = word.wrapping_sub(*centre);
            sum.wrapping_add(difference.wrapping_mul(difference))
        });
        sum.wrapping_add(distance / (point[WEIGHT] | 1))
    })
}

/// Entries wherever they are.
trait Entries {
    /// An entry's key, and the sum of its value.
    fn key(&self, slot: usize) -> u64;
    fn sum(&self, slot: usize) -> u64;
}

impl Entries for &[[AtomicU64; 16]] {
    fn key(&self, slot: usize) -> u64 {
        self[slot][KEY].load(Relaxed)
    }

    fn sum(&self, slot: usize) -> u64 {
        let words = self[slot][2..].iter();
        words.fold(0u64, |sum, word| sum.wrapping_add(word.load(Relaxed)))
    }
}

impl Entries for TypedGuard<'_, Entry> {
    fn key(&self, slot: usize) -> u64 {
        self.at(slot).map_or(0, |entry| entry[KEY])
    }

    fn sum(&self, slot: usize) -> u64 {
        let words = self.at(slot).map_or(&[][..], |entry| &entry[2..]);
        words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word))
    }
}

/// The slot of a key that is there.
#[inline(always)]
fn find(entries: &impl Entries, count: usize, key: u64) -> usize {
    let mut slot = (((key >> 32) * count as u64) >> 32) as usize;
    while entries.key(slot) != key {
        slot = if slot + 1 == count { 0 } else { slot + 1 };
    }
    slot
}

struct Load {
    keys: u64,
    operations: u64,
    writes: u64,
    batch: usize,
    zipf: Zipf,
}

fn table(args: &Args, copies: &Copies) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let mb = args.number("mb", 1..=1 << 18)? as usize;
    let count = (mb << 20) / size_of::<Entry>();
    let keys = count as u64 * 2 / 3;
    let load = Load {
        keys,
        operations: args.number("operations", 1..=1 << 40)?,
        writes: args.number("writes", 0..=1_000_000)?,
        batch: args.number("batch", 1..=1 << 20)? as usize,
        zipf: Zipf::new(keys, args.number("skew", 0..=300)? as f64 / 100.0),
    };
    let started = Instant::now();
    let mut region = RegionMemory::new(mb << 20, placement(args))?;
    let (entries, _) = region.words_mut().as_chunks_mut::<16>();
    for rank in 0..load.keys {
        insert(entries, key(rank));
    }
    let array = match &copies.config {
        None => None,
        Some(config) => Some(copies.make(config.clone(), entries)?),
    };
    let (words, _) = region.words().as_chunks::<16>();
    let setup = started.elapsed().as_secs_f64();
    let results = team.run(|member| {
        let (sum, seconds) = member.measure(|| {
            keep(member, array.as_ref())?;
            match &array {
                None => Ok(serve_plain(member, words, &load)),
                Some(array) => serve(member, array, &load),
            }
        });
        Ok::<_, Failure>((sum?, seconds))
    })?;
    let results: Vec<(u64, f64)> = results.into_iter().collect::<Result<_, _>>()?;
    let sums = results
        .iter()
        .fold(0u64, |sum, (part, _)| sum.wrapping_add(*part));
    let counters: u64 = match &array {
        None => words
            .iter()
            .map(|entry| mix(entry[KEY].load(Relaxed)).wrapping_mul(entry[COUNTER].load(Relaxed)))
            .fold(0, u64::wrapping_add),
        Some(array) => {
            let mut reader = array.reader().map_err(failed)?;
            let guard = reader.read().map_err(failed)?;
            let all = guard.whole().iter();
            all.map(|entry| mix(entry[KEY]).wrapping_mul(entry[COUNTER]))
                .fold(0, u64::wrapping_add)
        }
    };
    let seconds = results[0].1;
    let rate = load.operations as f64 * team.threads() as f64 / seconds;
    let title = format!(
        "replicated table: {} threads, {mb} MB, {keys} keys, {} operations each, {} writes in a million",
        team.threads(),
        load.operations,
        load.writes
    );
    let report = WorkloadReport::new(title)
        .line("setup_seconds", format!("{setup:.6}"))
        .line("operations_per_second", format!("{rate:.0}"));
    let report = told(
        report,
        array
            .map(|array| array.report().map_err(failed))
            .transpose()?,
    );
    Ok(report.finish(seconds, sums.wrapping_add(counters)))
}

fn insert(entries: &mut [Entry], key: u64) {
    let count = entries.len();
    let mut slot = (((key >> 32) * count as u64) >> 32) as usize;
    while entries[slot][KEY] != 0 {
        slot = if slot + 1 == count { 0 } else { slot + 1 };
    }
    let entry = &mut entries[slot];
    entry[KEY] = key;
    for (word, salt) in entry[2..].iter_mut().zip(0u64..) {
        *word = key.wrapping_add(salt);
    }
}

#[inline(never)]
fn serve_plain(member: &Member<'_>, words: &[[AtomicU64; 16]], load: &Load) -> u64 {
    let mut random = FastRandom::new(member.id as u64);
    let mut sum = 0u64;
    for _ in 0..load.operations {
        let slot = find(&words, words.len(), key(load.zipf.draw(&mut random)));
        match random.below(1_000_000) < load.writes {
            true => _ = words[slot][COUNTER].fetch_add(1, Relaxed),
            false => sum = sum.wrapping_add(words.sum(slot)),
        }
    }
    sum
}

#[inline(never)]
fn serve(member: &Member<'_>, array: &Replicated<Entry>, load: &Load) -> Result<u64, Failure> {
    let mut random = FastRandom::new(member.id as u64);
    let mut reader = array.reader().map_err(failed)?;
    let mut batch: Vec<usize> = Vec::new();
    let (mut sum, mut done) = (0u64, 0);
    while done < load.operations {
        let guard = reader.read().map_err(failed)?;
        let end = load.operations.min(done + OPERATIONS_PER_GUARD);
        while done < end && batch.len() < load.batch {
            let slot = find(&guard, array.len(), key(load.zipf.draw(&mut random)));
            match random.below(1_000_000) < load.writes {
                true => batch.push(slot),
                false => sum = sum.wrapping_add(guard.sum(slot)),
            }
            done += 1;
        }
        // A guard of its own would keep a writer waiting.
        drop(guard);
        if batch.len() >= load.batch || done == load.operations && !batch.is_empty() {
            let mut writer = array.write().map_err(failed)?;
            for slot in batch.drain(..) {
                writer.values_mut(slot..slot + 1).map_err(failed)?[0][COUNTER] += 1;
            }
            writer.publish().map_err(failed)?;
        }
    }
    Ok(sum)
}
