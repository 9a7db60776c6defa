//! `scan`: a hot part of memory, and a thread that reads everything from one end to the other all the time.
//!
//! The hot part is hotspot's, one that stays. The reader touches each line once a pass: whoever takes what
//! was touched last for hot puts the reader's pages where the hot ones should be. What the other threads
//! achieve beside what they achieve without the reader (`--no-scan`) is the resistance to scans.

use crate::cli::{self, Args, Failure, Opt, Workload, WorkloadReport};
use crate::counted::Counted;
use crate::hotspot::{self, Done, End, HOT, HOT_ACCESSES, MB, Pattern, SECONDS, UPDATES};
use crate::memory::{FIRST_NODE, FirstNode, HUGE, NODE, RegionMemory};
use crate::series::{self, Series};
use crate::team::{Member, ThreadTeam, part};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Bytes of a line.
const LINE_BYTES: u64 = 64;
/// Lines that are read between two looks at the clock: 256 KiB.
const STRIDE_LINES: usize = 4096;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "scan",
    about: "Random updates, most of them of a hot part of memory, while one more thread reads all of it \
            again and again.",
    operand: None,
    options: &[
        Opt {
            help: "threads, 2 to 1024; the last one reads",
            ..cli::THREADS
        },
        MB,
        HOT,
        HOT_ACCESSES,
        Opt {
            name: "no-scan",
            value: None,
            default: "",
            help: "the last thread does nothing",
        },
        SECONDS,
        UPDATES,
        NODE,
        FIRST_NODE,
        HUGE,
        cli::PIN,
        cli::NO_PIN,
    ],
    run,
};

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let team = ThreadTeam::from_args(args)?;
    let workers = team.threads() - 1;
    if workers == 0 {
        return Err(cli::usage(
            "scan needs 2 threads or more, one of which reads: give --threads 2".to_owned(),
        ));
    }
    let mb = args.number("mb", 1..=1 << 18)?;
    let hot = args.number(HOT.name, 1..=100)?;
    let share = args.number(HOT_ACCESSES.name, 0..=100)?;
    let end = End::from_args(args)?;
    let start = FirstNode::from_args(args)?;
    let started = Instant::now();
    let region = RegionMemory::new((mb as usize) << 20, start.placement)?;
    let table = Counted::new(&region);
    start.written(&region)?;
    let parts = Parts::new(&table);
    // A line for every thread in each group, so that the reader's are those that nobody updates.
    let pattern = Pattern::new(table.lines(), team.threads(), hot, share, 0);
    let setup = started.elapsed().as_secs_f64();
    let left = AtomicUsize::new(workers);
    let reads = !args.has("no-scan");
    let results = team.run(|member| {
        member.measure(|| match member.id < workers {
            true => {
                let done = hotspot::update(member, &table, &pattern, &end);
                left.fetch_sub(1, Ordering::Relaxed);
                done
            }
            false if reads => read(member, &table, &parts, &left),
            false => Done::default(),
        })
    })?;
    let (mut updates, mut wrong) = (Series::default(), 0);
    for ((own, amiss), _) in &results[..workers] {
        updates.merge(own);
        wrong += amiss;
    }
    let ((read_bytes, amiss), _) = &results[workers];
    wrong += amiss;
    let title = format!(
        "scan: {workers} threads and {}, {mb} MB, {hot} % hot with {share} % of accesses",
        if reads { "a reader" } else { "no reader" }
    );
    let report = WorkloadReport::new(title).line("setup_seconds", format!("{setup:.6}"));
    let report = series::lines(report, updates.whole_seconds(&end), |second| {
        let read_mb = read_bytes.at(second) >> 20;
        format!("updates {} read_mb {read_mb}", updates.at(second))
    });
    let took = results.iter().map(|(_, took)| *took).fold(0.0, f64::max);
    let rate = updates.total() as f64 / took;
    Ok(report
        .line("updates_per_second", format!("{rate:.0}"))
        .line(
            "read_gbs",
            format!("{:.3}", read_bytes.total() as f64 / took / 1e9),
        )
        .line("wrong_words", wrong)
        .finish(took, table.checksum(updates.total(), wrong)))
}

/// What each stretch that the reader reads at a time must add up to.
struct Parts(Vec<u64>);

impl Parts {
    fn new(table: &Counted<'_>) -> Self {
        let count = table.lines().div_ceil(STRIDE_LINES);
        let sum = |id| table.sum(part(table.lines(), count, id));
        Self((0..count).map(sum).collect())
    }
}

/// Reads all stretches one after the other until the time is over: bytes by second, and stretches that did
/// not add up.
#[inline(never)]
/// Reads until nobody updates any more.
fn read(member: &Member<'_>, table: &Counted<'_>, parts: &Parts, left: &AtomicUsize) -> Done {
    debug_assert_eq!(member.id, member.threads - 1);
    let (mut bytes, mut wrong) = (Series::default(), 0);
    let began = Instant::now();
    let count = parts.0.len();
    for (id, &expected) in parts.0.iter().enumerate().cycle() {
        let lines = part(table.lines(), count, id);
        let length = lines.len() as u64 * LINE_BYTES;
        wrong += u64::from(table.sum(lines) != expected);
        let now = began.elapsed();
        bytes.add(now, length);
        if left.load(Ordering::Relaxed) == 0 {
            break;
        }
    }
    (bytes, wrong)
}
