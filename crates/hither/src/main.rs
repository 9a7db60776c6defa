//! hither: puts memory where it is used. The command line: parsing, wiring, printing.
//!
//! Exit statuses: those of the program that was run; 0; 1 where the work could not be finished;
//! 2 for bad input and missing pieces. A reader of the output that has seen enough is no failure.

mod bench;
mod beside;
mod draw;
mod import;
mod lab;
mod moving;
mod output;
mod partition;
mod print;
mod probe;
mod record;
mod report;
mod run;
mod sites;
mod top;
mod topo;
mod trackers;
mod units;
mod zoom;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Exit status where the work could not be finished.
const STATUS_FAILED: u8 = 1;
/// Exit status for bad input and missing pieces.
const STATUS_BAD_INPUT: u8 = 2;

/// Exit status after a signal asked to end, as a shell has it.
fn signal_status(signal: i32) -> u8 {
    (128 + signal).clamp(0, 255) as u8
}

/// Put memory where it is used
#[derive(Debug, Parser)]
#[command(name = "hither", version, about, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show nodes, CPUs, caches, tiers and distances of this machine
    Topo(topo::Command),
    /// Run a program and move its memory where it is used
    Run(Box<run::Command>),
    Move(moving::Command),
    Bench(bench::Command),
    Probe(probe::Command),
    Record(record::Command),
    Report(report::Command),
    Top(top::Command),
    Import(import::Command),
    Zoom(zoom::Command),
    Partition(partition::Command),
    /// Run programs on an emulated NUMA machine
    Lab(lab::Command),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Topo(command) => command.run(),
        Command::Run(command) => command.run(),
        Command::Move(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Probe(command) => command.run(),
        Command::Record(command) => command.run(),
        Command::Report(command) => command.run(),
        Command::Top(command) => command.run(),
        Command::Import(command) => command.run(),
        Command::Zoom(command) => command.run(),
        Command::Partition(command) => command.run(),
        Command::Lab(command) => command.run(),
    };
    match done {
        Ok(status) => status,
        Err(error) if print::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            print::error(&error);
            ExitCode::from(STATUS_BAD_INPUT)
        }
    }
}
