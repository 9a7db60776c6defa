//! `memlat`: dependent random loads, the latency of memory.
//!
//! Each line of a region holds the address of another, in one random cycle over all lines ([`PointerRing`]).
//! With least-recently-used replacement no line is still cached when it comes round again, provided the
//! region exceeds the caches.
//!
//! With two regions the program stays in one for a visit and then goes to the other, each going on
//! where it left: the pattern on which the memory-region thesis shows cache unification.

use crate::cli::{Args, Failure, Opt, Workload, WorkloadReport, usage};
use crate::marker;
use crate::memory::{FIRST_NODE, FirstNode, MAX_NODES, Placement};
use crate::ring::{PointerRing, UNROLL};
use crate::series::{self, Series};
use crate::team;
use std::time::{Duration, Instant};

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "memlat",
    about: "Dependent random loads, one per line, in one or two regions: nanoseconds per load.",
    operand: None,
    options: &[
        Opt {
            name: "mb",
            value: Some("MB"),
            default: "64",
            help: "size of each region",
        },
        Opt {
            name: "accesses",
            value: Some("N"),
            default: "10000000",
            help: "loads, rounded up to a multiple of 16",
        },
        Opt {
            name: "regions",
            value: Some("R"),
            default: "1",
            help: "regions, 1 or 2",
        },
        Opt {
            name: "visit",
            value: Some("N"),
            default: "100000",
            help: "with two regions: loads before it goes to the other",
        },
        Opt {
            name: "node",
            value: Some("N[,M]"),
            default: "",
            help: "bind the regions to this node, or to one each",
        },
        FIRST_NODE,
        Opt {
            name: "cpu",
            value: Some("C"),
            default: "",
            help: "run on this CPU only",
        },
        Opt {
            name: "stretch",
            value: Some("N"),
            default: "4096",
            help: "loads between readings of the clock, rounded up to a multiple of 16: the longest gap is of these",
        },
        Opt {
            name: "huge",
            value: None,
            default: "",
            help: "ask for huge pages",
        },
    ],
    run,
};

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let mb = args.number("mb", 1..=1 << 20)? as usize;
    let accesses = args
        .number("accesses", 1..=1 << 40)?
        .next_multiple_of(UNROLL);
    let region_count = args.number("regions", 1..=2)?;
    let visit = args.number("visit", 1..=1 << 40)?.next_multiple_of(UNROLL);
    let stretch = args
        .number("stretch", 1..=1 << 20)?
        .next_multiple_of(UNROLL);
    let nodes = args.list("node", &(0..=MAX_NODES as u64 - 1))?;
    if nodes.len() as u64 > region_count {
        return Err(usage(format!(
            "--node names {} nodes for {region_count} region(s): name one, or one for each",
            nodes.len()
        )));
    }
    if let Some(cpu) = args.optional("cpu", 0..=u64::from(u16::MAX))? {
        team::check_cpu("cpu", cpu as usize)?;
        team::pin(cpu as usize)
            .map_err(|error| Failure::Machine(format!("cannot stay on CPU {cpu}: {error}")))?;
    }
    let started = Instant::now();
    let first = FirstNode::first_from_args(args)?;
    if first.is_some() && !nodes.is_empty() {
        return Err(usage(
            "--node and --first-node exclude each other: give one".to_owned(),
        ));
    }
    let mut rings = Vec::new();
    for index in 0..region_count {
        let node = nodes.get(index as usize).or(nodes.last()).copied();
        let placement = Placement {
            node: node.or(first),
            huge: args.has("huge"),
        };
        let start = FirstNode::new(placement, first.is_some());
        rings.push(PointerRing::new(mb << 20, start, index)?);
    }
    let setup = started.elapsed().as_secs_f64();
    let (seconds, loads, spent_ns, gap) = measure(&mut rings, accesses, visit, stretch);
    let checksum = rings
        .iter()
        .fold(0u64, |sum, ring| sum.rotate_left(32) ^ ring.position());
    let title = format!("memlat: {region_count} region(s) of {mb} MB, {accesses} loads");
    let report = WorkloadReport::new(title).line("setup_seconds", format!("{setup:.6}"));
    let report = series::lines(report, seconds as u64, |second| {
        let mean = spent_ns.at(second) as f64 / loads.at(second) as f64;
        format!("ns_per_access {mean:.1}")
    });
    Ok(report
        .line("longest_gap_seconds", format!("{:.6}", gap.as_secs_f64()))
        .line(
            "ns_per_access",
            format!("{:.3}", seconds * 1e9 / accesses as f64),
        )
        .finish(seconds, checksum))
}

/// Seconds of the walk; by second the loads of the stretches that ended in it and what they took; and the
/// longest time that a stretch took: so many loads at most between two looks at the clock.
fn measure(
    rings: &mut [PointerRing],
    accesses: u64,
    visit: u64,
    stretch: u64,
) -> (f64, Series, Series, Duration) {
    let visit = if rings.len() == 1 { accesses } else { visit };
    let (mut loads, mut spent_ns) = (Series::default(), Series::default());
    let (mut left, mut left_here) = (accesses, visit);
    let mut turn = 0;
    marker::open();
    let start = Instant::now();
    let (mut before, mut gap) = (Duration::ZERO, Duration::ZERO);
    while left > 0 {
        let count = left.min(left_here).min(stretch);
        let index = turn % rings.len();
        rings[index].walk(count / UNROLL);
        left -= count;
        left_here -= count;
        if left_here == 0 {
            turn += 1;
            left_here = visit;
        }
        let now = start.elapsed();
        loads.add(now, count);
        spent_ns.add(now, (now - before).as_nanos() as u64);
        gap = gap.max(now - before);
        before = now;
    }
    let seconds = start.elapsed().as_secs_f64();
    marker::close();
    (seconds, loads, spent_ns, gap)
}
