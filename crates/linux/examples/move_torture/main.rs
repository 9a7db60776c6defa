//! Torture of the backend `swap`: shows that it never loses a byte, whatever the program, its
//! children and the kernel do to pages on their way.
//!
//! `move_torture SCENARIO|all [--rounds N] [--stores N] [--nodes N] [--seed S] [--huge|--no-stock]
//! [--threads N] [--recycle] [--unprivileged] [--patience SECONDS] [--json FILE]` prints one line
//! per scenario with what it met. It ends with 1 at the first wrong byte, and where a scenario did not meet what it is about; with 2
//! where it was called wrongly; with 3 where the backend cannot work on this machine.

mod changes;
mod common;
mod discards;
mod forks;
mod kernel;
mod ksm;
mod memory;
mod mover;
mod overlap;
mod own;
mod pinned;
mod pressure;
mod process;
mod splice;
mod worker;
mod writers;

use common::{Options, Report};
use hither_linux::backend::swap::SwapBackend;
use std::process::ExitCode;
use std::time::{Duration, Instant};

type Scenario = fn(&Options) -> Report;

const SCENARIOS: [(&str, Scenario); 13] = [
    ("writers", writers::run),
    ("forks", forks::run),
    ("changes", changes::run),
    ("discards", discards::run),
    ("kernel", kernel::run),
    ("splice", splice::run),
    ("pinned", pinned::run),
    ("ksm", ksm::run),
    ("worker", worker::run),
    ("process", process::run),
    ("pressure", pressure::run),
    ("overlap", overlap::run),
    ("own", own::run),
];

fn main() -> ExitCode {
    let mut options = Options {
        rounds: 100,
        stores: 1_000_000,
        nodes: 1,
        seed: seed_by_time(),
        huge: false,
        recycle: None,
        no_stock: false,
        threads: 8,
        unprivileged: false,
    };
    let mut wanted = None;
    let mut json = None;
    let (mut nodes, mut threads, mut board, mut patience) = (1, 8, 0, 20);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|text| text.parse::<u64>().ok());
        let mut set = |value: &mut u64| number().map(|given| *value = given).is_some();
        let known = match word.as_str() {
            "--rounds" => set(&mut options.rounds),
            "--stores" => set(&mut options.stores),
            "--seed" => set(&mut options.seed),
            "--nodes" => set(&mut nodes),
            "--threads" => set(&mut threads),
            // Seconds without progress that are a hang. A machine that emulates needs minutes for one.
            "--patience" => set(&mut patience),
            // How a victim of the scenario `process` is called.
            "--board" => set(&mut board),
            "--huge" => {
                options.huge = true;
                true
            }
            "--recycle" => {
                options.recycle = Some(true);
                true
            }
            "--no-stock" => {
                options.no_stock = true;
                true
            }
            "--unprivileged" => {
                options.unprivileged = true;
                true
            }
            "--json" => {
                json = words.next();
                json.is_some()
            }
            name if wanted.is_none() && !name.starts_with('-') => {
                wanted = Some(word);
                true
            }
            _ => false,
        };
        if !known {
            return usage();
        }
    }
    // Huge pages are only exchanged with such as are in stock.
    let Some(wanted) = wanted.filter(|_| !(options.huge && options.no_stock)) else {
        return usage();
    };
    options.nodes = nodes.max(1) as u32;
    options.threads = threads.clamp(1, 15) as usize;
    if board > 0 && wanted == "victim" {
        common::seed(options.seed);
        common::phase("victim");
        process::be_victim(&options, board as i32);
    }
    let chosen: Vec<_> = SCENARIOS
        .iter()
        .filter(|(name, _)| wanted == "all" || wanted == *name)
        .collect();
    if chosen.is_empty() {
        return usage();
    }
    if let Err(why) = SwapBackend::available(options.unprivileged) {
        eprintln!("move_torture: swap cannot work here: {why}");
        return ExitCode::from(3);
    }
    common::start_watchdog(Duration::from_secs(patience));
    let mut reports = Vec::new();
    for (name, scenario) in chosen {
        common::seed(options.seed);
        common::phase(name);
        let start = Instant::now();
        let mut report = scenario(&options);
        report.duration = start.elapsed();
        println!("{report}");
        reports.push(report);
    }
    if let Some(path) = json {
        let rows: Vec<_> = reports.iter().map(|report| report.json(&options)).collect();
        let text = serde_json::json!({"schema": "hither.torture/1", "rows": rows});
        if let Err(error) = std::fs::write(&path, format!("{text:#}\n")) {
            eprintln!("move_torture: {path}: {error}");
            return ExitCode::FAILURE;
        }
    }
    if reports.iter().all(|report| report.unmet.is_empty()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn seed_by_time() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_micros() as u64 & 0xFFFF_FFFF)
}

fn usage() -> ExitCode {
    let names: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
    eprintln!(
        "usage: move_torture SCENARIO|all [--rounds N] [--stores N] [--nodes N] [--seed S]\n\
         \x20      [--huge|--no-stock] [--threads N] [--recycle] [--unprivileged] [--patience SECONDS] [--json FILE]\nscenarios: {}",
        names.join(" ")
    );
    ExitCode::from(2)
}
