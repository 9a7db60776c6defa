//! What a visit costs, and when it pays: `cargo bench -p hither-regions`; with `-- WORD` only the parts whose names
//! contain it.
//!
//! `cost`: one caller and one worker, each on a CPU of its own, and beside it what it
//! replaces: `sched_setaffinity` there and back, in the same run. The thesis's figures are printed for comparison; they
//! are of one switch each, on processors of 2006 and 2010, and a visit there and back is two.
//!
//! `pays`: one thread that works on two regions in turns, in place and by visits to two CPUs, as the regions grow.
//! Each CPU's own cache stands for a last-level cache here, so that two CPUs are enough.

use hither_core::ids::CpuId;
use hither_linux::sys::{self, EventAttribute, EventScope, event_flag};
use hither_regions::{Config, Domain, Error, Region, RegionUse, Unified};
use hither_workloads::random::FastRandom;
use std::fs::File;
use std::hint::black_box;
use std::time::{Duration, Instant};

const RUNS: usize = 25;
/// One micro-scheduling action (thesis, section 2.5.1), in ns.
const THESIS: [(&str, f64); 2] = [("Clovertown", 15_860.0), ("Westmere", 6_357.0)];

/// Figures of many calls that are timed one by one, so that what another program took does not count in the middle.
struct Timed {
    /// In ns, less what the clock takes: a tenth of the calls took less, half of them, and the mean.
    tenth: f64,
    half: f64,
    mean: f64,
    /// Of this thread in user mode, for each call.
    instructions: Option<f64>,
}

/// `before` is not timed.
fn timed(counter: Option<&File>, count: usize, before: impl Fn(), mut run: impl FnMut()) -> Timed {
    let clock = (0..1000).map(|_| {
        let start = Instant::now();
        start.elapsed()
    });
    let clock = clock.min().unwrap_or_default().as_nanos() as f64;
    let read = || counter.and_then(|counter| sys::read_count(counter).ok());
    let first = read();
    let mut all: Vec<f64> = (0..count)
        .map(|_| {
            before();
            let start = Instant::now();
            run();
            start.elapsed().as_nanos() as f64 - clock
        })
        .collect();
    let counted = first
        .zip(read())
        .map(|(first, last)| last.value - first.value);
    all.sort_by(f64::total_cmp);
    Timed {
        tenth: all[count / 10],
        half: all[count / 2],
        mean: all.iter().sum::<f64>() / count as f64,
        instructions: counted.map(|counted| counted as f64 / count as f64),
    }
}

/// ns for each of `count` calls together, in the best of some runs: other programs only add to it.
fn least(count: u64, mut run: impl FnMut()) -> f64 {
    let times = (0..RUNS).map(|_| {
        let start = Instant::now();
        (0..count).for_each(|_| run());
        start.elapsed().as_nanos() as f64 / count as f64
    });
    times.fold(f64::INFINITY, f64::min)
}

fn on(cpu: CpuId) -> Result<Domain, Error> {
    Domain::of_cpus([cpu])
}

fn cost(here: CpuId, there: CpuId, counter: Option<&File>) -> Result<(), Error> {
    let stay = |cpu: CpuId| sys::stay_on(&[cpu].into_iter().collect()).expect("an allowed CPU");
    stay(here);
    let rest = || std::thread::sleep(Duration::from_millis(5));
    // Spins for as long as the other side may need on a busy machine.
    let patient = Config {
        spin: Duration::from_millis(2),
        ..Config::default()
    };
    let region = Region::with(on(there)?, &patient)?;
    let (usual, same) = (Region::new(on(there)?)?, Region::new(on(here)?)?);
    let visit = |region: &Region| {
        black_box(region.run(|| black_box(1)));
    };
    let awake = timed(counter, 400_000, || (), || visit(&region));
    let counts = region.counts();
    let naive = timed(
        counter,
        2_000,
        || (),
        || {
            stay(there);
            black_box(1);
            stay(here);
        },
    );
    let rows = [
        ("visit to another CPU, both awake", &awake),
        (
            "the same with the usual spin of 20 us",
            &timed(counter, 100_000, || (), || visit(&usual)),
        ),
        (
            "the same, the worker asleep",
            &timed(counter, 200, rest, || visit(&usual)),
        ),
        (
            "visit to a worker on the caller's CPU",
            &timed(counter, 5_000, || (), || visit(&same)),
        ),
        ("sched_setaffinity there and back", &naive),
    ];
    println!(
        "ns                                         a tenth       half       mean  half/visit  instructions*"
    );
    for (name, row) in rows {
        let counted = row
            .instructions
            .map_or("not measured".to_owned(), |count| format!("{count:.0}"));
        let ratio = row.half / awake.half;
        println!(
            "{name:<40} {:>9.0} {:>10.0} {:>10.0} {ratio:>11.2} {counted:>14}",
            row.tenth, row.half, row.mean
        );
    }
    for (machine, ns) in THESIS {
        let ratio = ns / awake.half;
        println!(
            "{:<40} {:>9} {ns:>10.0} {:>10} {ratio:>11.2}",
            format!("thesis, one switch, {machine}"),
            "",
            ""
        );
    }
    let inside = region.run(|| least(100_000, || visit(&region)));
    println!("visit in place, from a visit to the region: {inside:.1} ns");
    let caches = [here, there].map(|cpu| Ok(on(cpu)?.with_cache_bytes(1 << 20)));
    let caches = caches.into_iter().collect::<Result<Vec<_>, Error>>()?;
    for (name, bytes, wish) in [
        ("off, as the sizes say", 1, RegionUse::Auto),
        ("off, until it is tried again", 1 << 19, RegionUse::Auto),
        ("on, at home", 1 << 19, RegionUse::Always),
    ] {
        let unified = Unified::new(caches.clone(), &[bytes; 2])?;
        unified.set_use(wish);
        let once = || {
            black_box(unified.run(0, || black_box(1)));
        };
        while !unified.state().is_settled {
            once();
        }
        println!(
            "visit in place by Unified, {name}: {:.1} ns",
            least(100_000, once)
        );
    }
    println!("* of the caller in user mode, its spins included");
    println!(
        "sleeps in {} awake visits: caller {}, worker {}",
        counts.visits, counts.caller_sleeps, counts.worker_sleeps
    );
    Ok(())
}

/// Lines of a region in a random circle: each access waits for the one before.
fn circle(bytes: usize, random: &mut FastRandom) -> Vec<[u32; 16]> {
    let lines = bytes / 64;
    let mut order: Vec<u32> = (0..lines as u32).collect();
    for index in (1..lines).rev() {
        order.swap(index, random.below(index as u64 + 1) as usize);
    }
    let mut chain = vec![[0; 16]; lines];
    for pair in 0..lines {
        chain[order[pair] as usize][0] = order[(pair + 1) % lines];
    }
    chain
}

fn walk(chain: &[[u32; 16]], from: &mut u32, accesses: u32) {
    for _ in 0..accesses {
        *from = chain[*from as usize][0];
    }
}

fn pays(here: CpuId, there: CpuId) -> Result<(), Error> {
    sys::stay_on(&[here].into_iter().collect()).expect("an allowed CPU");
    let patient = Config {
        spin: Duration::from_millis(5),
        ..Config::default()
    };
    let regions = [
        Region::with(on(here)?, &patient)?,
        Region::with(on(there)?, &patient)?,
    ];
    println!("\ntwo regions in turns: ns for each access, in place / by visits = gain");
    print!("{:>14}", "KiB each");
    let lengths = [1 << 10, 1 << 13, 1 << 16];
    println!(
        "{}",
        lengths
            .map(|length| format!("{:>26}", format!("{length} accesses")))
            .concat()
    );
    let mut random = FastRandom::new(7);
    for kib in [512, 896, 1152, 1408, 1664, 2048, 4096] {
        let chains = [
            circle(kib << 10, &mut random),
            circle(kib << 10, &mut random),
        ];
        print!("{kib:>14}");
        for length in lengths {
            let turns = (1 << 18) / u64::from(length);
            let (mut at, mut turn) = ([0, 0], 0);
            let mut one = |by_visits: bool| {
                least(turns, || {
                    let side = turn % 2;
                    turn += 1;
                    // The first region's thread is the caller: its visits run in place, as a program would have it.
                    match by_visits && side == 1 {
                        true => regions[1].run(|| walk(&chains[1], &mut at[1], length)),
                        false => walk(&chains[side], &mut at[side], length),
                    }
                }) / f64::from(length)
            };
            let (plain, visits) = (one(false), one(true));
            print!(
                "{:>26}",
                format!("{plain:.1} / {visits:.1} = {:.2}", plain / visits)
            );
        }
        println!();
    }
    Ok(())
}

/// Instructions of this thread in user mode, where the kernel and the processor count them.
fn instructions() -> Option<File> {
    /// `PERF_TYPE_HARDWARE` and `PERF_COUNT_HW_INSTRUCTIONS`.
    const INSTRUCTIONS: (u32, u64) = (0, 1);
    let flags = event_flag::EXCLUDE_KERNEL | event_flag::EXCLUDE_HYPERVISOR;
    let attribute = EventAttribute::counted(INSTRUCTIONS.0, [INSTRUCTIONS.1, 0, 0], flags);
    let counter = sys::open_event(&attribute, EventScope::Thread, None).ok()?;
    sys::switch_event(&counter, true).ok()?;
    Some(counter)
}

fn main() -> Result<(), Error> {
    let word = std::env::args()
        .skip(1)
        .find(|word| !word.starts_with('-'))
        .unwrap_or_default();
    let cpus: Vec<CpuId> = sys::allowed_cpus()
        .map(|cpus| cpus.iter().collect())
        .unwrap_or_default();
    let [here, there, ..] = cpus[..] else {
        println!("one CPU only: nothing to hand over to");
        return Ok(());
    };
    if "cost".contains(&word) {
        cost(here, there, instructions().as_ref())?;
    }
    if "pays".contains(&word) {
        pays(here, there)?;
    }
    Ok(())
}
