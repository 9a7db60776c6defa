//! `churn`: many short processes that fork, execute and exit all the time, for who watches processes.
//!
//! The main process keeps so many *leaves* alive. A leaf writes a table of its own, reads it a few times,
//! and then does one of three things, drawn by its seed: it ends; it starts a leaf of its own, waits for it
//! and ends; it executes itself anew, so that its number stays and its memory does not. Each leaf checks
//! its table before it gives it up: a word that somebody lost is an exit status.

use crate::cli::{Args, Failure, Opt, Workload, WorkloadReport};
use crate::random::{FastRandom, mix};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Pause between two readings of a leaf's table.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause of the main process between two looks at its leaves.
const LOOK: Duration = Duration::from_millis(20);
/// Exit status of a leaf whose table has changed.
const LOST: i32 = 3;

/// The program.
pub const PROGRAM: Workload = Workload {
    name: "churn",
    about: "Processes that write and read a table of their own, fork, execute and exit all the time.",
    operand: None,
    options: &[
        Opt {
            name: "processes",
            value: Some("N"),
            default: "200",
            help: "processes alive at a time",
        },
        Opt {
            name: "seconds",
            value: Some("S"),
            default: "10",
            help: "how long new ones are started",
        },
        Opt {
            name: "kb",
            value: Some("KB"),
            default: "256",
            help: "size of each process's table",
        },
        Opt {
            name: "readings",
            value: Some("N"),
            default: "20",
            help: "readings of the table, 100 ms apart, at most",
        },
        Opt {
            name: "leaf",
            value: Some("SEED"),
            default: "",
            help: "be one of the processes",
        },
    ],
    run,
};

fn run(args: &Args) -> Result<WorkloadReport, Failure> {
    let kb = args.number("kb", 4..=1 << 20)?;
    let readings = args.number("readings", 1..=1 << 20)?;
    if let Some(seed) = args.optional("leaf", 0..=i64::MAX as u64)? {
        return leaf(seed, kb, readings);
    }
    let count = args.number("processes", 1..=10_000)? as usize;
    let seconds = args.number("seconds", 1..=1 << 20)?;
    let start = Instant::now();
    let limit = Duration::from_secs(seconds);
    let mut random = FastRandom::new(1);
    let (mut leaves, mut started, mut lost) = (Vec::new(), 0u64, 0u64);
    while start.elapsed() < limit || !leaves.is_empty() {
        while leaves.len() < count && start.elapsed() < limit {
            leaves.push(spawn(random.below(1 << 40), kb, readings)?);
            started += 1;
        }
        std::thread::sleep(LOOK);
        let mut alive = Vec::with_capacity(leaves.len());
        for mut leaf in leaves {
            match leaf.try_wait().map_err(failed)? {
                None => alive.push(leaf),
                Some(status) => lost += u64::from(!status.success()),
            }
        }
        leaves = alive;
    }
    let title = format!("churn: {count} processes of {kb} KB for {seconds} s");
    if lost > 0 {
        return Err(Failure::Machine(format!(
            "{lost} processes of {started} lost a word"
        )));
    }
    Ok(WorkloadReport::new(title)
        .line("started", started)
        .finish(start.elapsed().as_secs_f64(), mix(kb)))
}

fn failed(error: std::io::Error) -> Failure {
    Failure::Machine(format!("a process could not be had: {error}"))
}

fn command(seed: u64, kb: u64, readings: u64) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["--leaf", &seed.to_string(), "--kb", &kb.to_string()]);
    command.args(["--readings", &readings.to_string()]);
    command.stdout(std::process::Stdio::null());
    Ok(command)
}

fn spawn(seed: u64, kb: u64, readings: u64) -> Result<Child, Failure> {
    command(seed, kb, readings)?.spawn().map_err(failed)
}

/// One process: the last readings come before it ends, starts another, or becomes another.
fn leaf(seed: u64, kb: u64, readings: u64) -> Result<WorkloadReport, Failure> {
    let mut random = FastRandom::new(seed);
    let words = (kb << 10) / 8;
    let table: Vec<u64> = (0..words).map(|word| mix(seed ^ word)).collect();
    for _ in 0..=random.below(readings) {
        let is_whole = (0..)
            .zip(&table)
            .all(|(word, &value)| value == mix(seed ^ word));
        if !is_whole {
            std::process::exit(LOST);
        }
        std::thread::sleep(PAUSE);
    }
    let next = random.below(1 << 40);
    match random.below(4) {
        0 => {
            let status = spawn(next, kb, readings)?.wait().map_err(failed)?;
            if !status.success() {
                std::process::exit(LOST);
            }
        }
        1 => return Err(failed(command(next, kb, readings)?.exec())),
        _ => {}
    }
    Ok(WorkloadReport::new("churn: one of the processes".to_owned()).finish(0.0, mix(seed)))
}
