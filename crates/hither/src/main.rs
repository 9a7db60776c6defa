//! hither: puts memory where it is used. The command line: parsing, wiring, printing.
//!
//! Exit statuses: those of the program that was run; 0; 1 where the work could not be finished;
//! 2 for bad input and missing pieces. A reader of the output that has seen enough is no failure.

mod ask;
mod attach;
mod bench;
mod daemon;
mod draw;
mod forecast;
mod generate;
mod import;
mod lab;
mod launch;
mod learned;
mod moving;
mod output;
mod partition;
mod print;
mod probe;
mod record;
mod report;
mod reproduce;
mod roofline;
mod run;
mod services;
mod sites;
mod terminal;
mod top;
mod topo;
mod units;
mod watchable;
mod zoom;

use clap::{Args, FromArgMatches, Parser, Subcommand};
use hither_core::foreign::Foreign;
use std::ffi::OsString;
use std::process::ExitCode;
use terminal::Terminal;

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
    Launch(launch::Command),
    Learned(learned::Command),
    Attach(attach::Command),
    Move(moving::Command),
    Bench(bench::Command),
    Probe(probe::Command),
    Record(record::Command),
    Report(report::Command),
    Roofline(roofline::Command),
    Top(top::Command),
    Import(import::Command),
    Zoom(zoom::Command),
    Partition(partition::Command),
    Services(services::Command),
    Daemon(daemon::Command),
    Config(daemon::ConfigCommand),
    /// Ask the daemon how everything stands
    Status(ask::Command),
    /// Ask the daemon what it decided, and why
    Explain(ask::Command),
    Forecast(forecast::Command),
    /// Have the daemon move nothing new
    Pause(ask::Command),
    /// Have the daemon move pages again
    Resume(ask::Command),
    /// Have the daemon put pages back where it found them, and pause
    Undo(ask::Command),
    OptOut(ask::OptOut),
    /// Run programs on an emulated NUMA machine
    Lab(lab::Command),
    Reproduce(reproduce::Command),
    Generate(generate::Command),
}

fn main() -> ExitCode {
    let done = match parse() {
        Command::Topo(command) => command.run(),
        Command::Run(command) => command.run(),
        Command::Launch(command) => command.run(),
        Command::Learned(command) => command.run(),
        Command::Move(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Probe(command) => command.run(),
        Command::Attach(command) => command.run(),
        Command::Record(command) => command.run(),
        Command::Report(command) => command.run(),
        Command::Roofline(command) => command.run(),
        Command::Top(command) => command.run(),
        Command::Import(command) => command.run(),
        Command::Zoom(command) => command.run(),
        Command::Partition(command) => command.run(),
        Command::Services(command) => command.run(),
        Command::Daemon(command) => command.run(),
        Command::Config(command) => command.run(),
        Command::Status(command) => command.run(ask::Verb::Status),
        Command::Explain(command) => command.run(ask::Verb::Explain),
        Command::Forecast(command) => command.run(),
        Command::Pause(command) => command.run(ask::Verb::Pause),
        Command::Resume(command) => command.run(ask::Verb::Resume),
        Command::Undo(command) => command.run(ask::Verb::Undo),
        Command::OptOut(command) => command.run(),
        Command::Lab(command) => command.run(),
        Command::Reproduce(command) => command.run(),
        Command::Generate(command) => command.run(),
    };
    match done {
        Ok(status) => status,
        Err(error) if print::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if print::is_unprinted(&error) => {
            print::error(&error);
            ExitCode::from(STATUS_FAILED)
        }
        Err(error) => {
            print::error(&error);
            ExitCode::from(STATUS_BAD_INPUT)
        }
    }
}

/// What the arguments ask for. To build the parsers of all commands takes a tenth of the instructions
/// of an empty recording, which should cost what is recorded next to nothing: it has its own alone.
fn parse() -> Command {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|name| name == "record")
    {
        let parse = |words| {
            let matches = recorder().try_get_matches_from(words)?;
            let own = matches.subcommand().map(|(_, own)| own);
            own.map(record::Command::from_arg_matches).transpose()
        };
        if let Some(command) = parsed(parse) {
            return Command::Record(command);
        }
    }
    parsed(Arguments::try_parse_from).command
}

/// What a parser makes of the arguments. Where it refuses them it is asked anew with arguments that can
/// be shown, as it repeats them.
fn parsed<T>(parse: impl Fn(Vec<OsString>) -> Result<T, clap::Error>) -> T {
    let words: Vec<OsString> = std::env::args_os().collect();
    let error = match parse(words.clone()) {
        Ok(parsed) => return parsed,
        Err(error) => error,
    };
    let shown = words.iter().map(|word| word.shown().to_string().into());
    match parse(shown.collect()) {
        Err(again) if again.kind() == error.kind() => told(&again),
        _ => told(&error),
    }
}

/// Help or a refusal by clap, as wide as what it is printed on. Ends the program.
fn told(error: &clap::Error) -> ! {
    let terminal = match error.use_stderr() {
        true => Terminal::of_errors(),
        false => Terminal::of_output(),
    };
    let text = match terminal.colour {
        true => error.render().ansi().to_string(),
        false => error.render().to_string(),
    };
    let text = print::fold(&text, terminal.width, 0);
    match error.use_stderr() {
        true => print::err_coloured(&text),
        // Whoever reads no further has seen enough.
        false => drop(print::out_coloured(&text)),
    }
    std::process::exit(error.exit_code())
}

/// The parser of `hither record` alone.
fn recorder() -> clap::Command {
    let record = record::Command::augment_args(clap::Command::new("record"));
    clap::Command::new("hither").subcommand(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_recorder_by_itself_parses_as_among_all() {
        let help = |mut all: clap::Command| {
            all.build();
            let record = all.find_subcommand_mut("record").unwrap();
            record.render_long_help().to_string()
        };
        assert_eq!(help(recorder()), help(Arguments::command()));
    }
}
