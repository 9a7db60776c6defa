//! `cachemix`: programs that compete for caches, each with a working set of its own.
//!
//! After the memory-region thesis's balancing of cache loads (section 2.5.2): two programs with 4 MB and two with
//! 16 KB on two caches of 4 MB run well where each cache has one of either, and badly where the two large ones
//! share a cache. Each program is a child that walks a random cycle over its working set ([`crate::ring`]). It writes
//! that on the CPU that it starts on, stays there until all are ready, and may then run on all CPUs, so that whoever
//! balances caches can move it. What it did shows in each half second.
//!
//! One more child may be a server (section 2.5.5): at even distances a request comes, which makes so many loads in
//! the server's working set. Its latency counts from when it was due, so that a request that waited for the one
//! before, or for a CPU, shows that.

mod child;
mod figures;
mod plan;

use crate::cli::{Args, Failure, Opt, SEED, Workload, WorkloadReport};
use crate::marker;
use crate::random::mix;
use crate::team::allowed_cpus;
use child::{Child, Outcome};
use std::io::Write as _;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "cachemix",
    about: "Programs that compete for caches: each walks a working set of its own, and may be moved from CPU to CPU.",
    operand: None,
    options: &[
        Opt {
            name: "ws",
            value: Some("LIST"),
            default: plan::SETS,
            help: "working sets, as 4M,4M,16K,16K, one program each; none: a server alone",
        },
        Opt {
            name: "programs",
            value: Some("N"),
            default: "",
            help: "instead of --ws: so many programs, whose working sets the seed draws",
        },
        SEED,
        Opt {
            name: "least",
            value: Some("SIZE"),
            default: plan::LEAST,
            help: "smallest working set that is drawn",
        },
        Opt {
            name: "most",
            value: Some("SIZE"),
            default: plan::MOST,
            help: "largest one; their logarithms are alike likely",
        },
        Opt {
            name: "start-cpus",
            value: Some("LIST"),
            default: "all in order; with --programs shuffled",
            help: "CPUs that the programs start on, the server last; in turns where there are fewer",
        },
        Opt {
            name: "seconds",
            value: Some("S"),
            default: "10",
            help: "how long it runs once all are ready",
        },
        Opt {
            name: "compute",
            value: Some("N"),
            default: "0",
            help: "instructions of plain work after each load, about",
        },
        Opt {
            name: "divisions",
            value: Some("N"),
            default: "0",
            help: "64-bit divisions after each load: work that an emulator gets over soon",
        },
        Opt {
            name: "server-kb",
            value: Some("KB"),
            default: "0",
            help: "working set of the server; 0 for none",
        },
        Opt {
            name: "request-loads",
            value: Some("N"),
            default: "2000",
            help: "loads of each of its requests",
        },
        Opt {
            name: "every-us",
            value: Some("US"),
            default: "1000",
            help: "time from one request to the next",
        },
    ],
    run,
};

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let plan = plan::from_args(args, &allowed_cpus()?)?;
    let machine = |what: &str, error: std::io::Error| Failure::Machine(format!("{what}: {error}"));
    let (go, mut signal) = std::io::pipe().map_err(|error| machine("no pipe", error))?;
    let mut children = Vec::new();
    for task in &plan.tasks {
        children.push(Child::start(task, &go)?);
    }
    for child in &mut children {
        child.wait_until_ready()?;
    }
    let start = child::now_ns();
    marker::open();
    let words = start.to_le_bytes().repeat(children.len());
    signal
        .write_all(&words)
        .map_err(|error| machine("the programs cannot be told to go", error))?;
    let outcomes = children
        .into_iter()
        .map(Child::outcome)
        .collect::<Result<Vec<Outcome>, _>>()?;
    marker::close();
    let seconds = (child::now_ns() - start) as f64 / 1e9;
    let walkers = plan.tasks.iter().filter(|task| !task.is_server()).count();
    let title = format!("cachemix: {walkers} programs for {} s", plan.seconds);
    let mut report = WorkloadReport::new(title);
    if let Some(seed) = plan.seed {
        report = report.line("seed", seed);
    }
    let report = figures::lines(report, &plan.tasks, &outcomes);
    let checksums = outcomes.iter().map(Outcome::checksum);
    Ok(report.finish(seconds, checksums.fold(0, |sum, own| mix(sum) ^ own)))
}
