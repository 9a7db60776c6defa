//! `hither lab`: an emulated NUMA machine for unmodified programs.

use crate::print::{self, Table};
use crate::terminal::Terminal;
use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};
use hither_core::foreign::Foreign;
use hither_core::policy::Rung;
use hither_core::set::NodeSet;
use hither_lab::back::Back;
use hither_lab::compare::programs::Programs;
use hither_lab::compare::{self, Comparison};
use hither_lab::devices::Devices;
use hither_lab::policies::Choice;
use hither_lab::qemu::{HugePages, PluginMode};
use hither_lab::session::{Lab, Options};
use hither_lab::{Error, fetch, guest, report};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Most runs of one comparison: the frames count them in 16 bits, a person in hours.
const MAX_RUNS: usize = 1000;

/// Run programs on an emulated NUMA machine.
#[derive(Debug, Parser)]
pub struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check QEMU and fetch the guest's kernels; quick when run again
    Setup {
        /// Install missing packages with apt-get (as root)
        #[arg(long)]
        install: bool,
        /// Fetch the kernels anew
        #[arg(long)]
        refresh: bool,
    },
    /// Run a program; its exit status becomes hither's
    Run(RunArguments),
    /// Run a program under several policies in one boot and compare them
    Compare(CompareArguments),
    /// A shell in the emulated machine
    Shell {
        #[command(flatten)]
        machine: MachineArguments,
    },
    /// The first process of the guest
    #[command(hide = true)]
    Guest,
}

#[derive(Debug, Args)]
struct MachineArguments {
    /// Machine to emulate: a machine file, or the name of one that comes with hither
    #[arg(long, value_name = "NAME")]
    machine: PathBuf,
    /// CPUs to scale it to [default: 8, or the file's where it has fewer]
    #[arg(long, value_name = "N")]
    cpus: Option<usize>,
    /// MiB of memory per node, or of each node as in 512,1024 [default: 1024, or the file's where it has less]
    #[arg(long, value_name = "MB[,MB...]", value_delimiter = ',')]
    memory: Vec<u64>,
    /// Nodes without CPUs that stay offline, as `4,6`: the other numbers then have holes
    #[arg(
        long,
        value_name = "NODES",
        default_value = "",
        hide_default_value = true
    )]
    offline: NodeSet,
    /// Guest kernel: newest, 6.12 or the path of a kernel image
    #[arg(long, value_name = "KERNEL", default_value = "newest")]
    kernel: String,
    /// Give the guest a disk of so many MiB, an ext4 file system at /disk
    #[arg(long, value_name = "MB")]
    disk: Option<u64>,
    /// Give the guest a network card, and a peer on the same wire in the network namespace `peer`: 10.77.0.1 and
    /// 10.77.0.2; no network of this machine is touched
    #[arg(long)]
    network: bool,
    /// Transparent huge pages in the guest
    #[arg(long, value_name = "WHEN", default_value = "madvise")]
    thp: Thp,
    /// Host time after which everything is stopped: 90, 90s, 20m or 2h; 0 never
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = parse_time)]
    timeout: TimeLimit,
    /// Pack this file, folder or program, too
    #[arg(long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Bring this file or folder back after the last run; it never overwrites
    #[arg(long = "back", value_name = "GUEST[:HOST]")]
    back: Vec<String>,
    /// Set a variable of the program's environment
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// What hither may decide by in the guest: `device`, all that the lab's device tells; `pmu`, what a
    /// server's PMU tells, at its rates; `software`, what every Linux has: hither does not see the device
    #[arg(long, value_name = "WHICH", default_value = "device", value_parser = parse_evidence)]
    evidence: Rung,
    /// Boot without the plugin: time is the host's, for trying out the lab itself
    #[arg(long, hide = true)]
    no_plugin: bool,
}

#[derive(Debug, Args)]
struct RunArguments {
    #[command(flatten)]
    machine: MachineArguments,
    /// first-touch, interleave, weighted, kernel, kernel-tiering, damon or a policy of hither;
    /// `carrefour@software` has its own evidence
    #[arg(long, value_name = "NAME", default_value = "first-touch")]
    policy: String,
    /// Write the measurements to a file, as hither.lab.run/1
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// With a policy of hither: explain every decision
    #[arg(long)]
    explain: bool,
    /// Program and arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct CompareArguments {
    #[command(flatten)]
    machine: MachineArguments,
    /// Policies: first-touch, interleave, weighted, kernel, kernel-tiering, damon, those of hither, and the bound oracle;
    /// `carrefour@software` beside `carrefour@device` compares evidence, and `auto+learned` begins with what a run
    /// before it has taught
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required = true)]
    policies: Vec<String>,
    /// Runs of each policy
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeat: usize,
    /// Write hither.lab.compare/1 (of several programs hither.lab.compare-programs/1) to a file, or to
    /// standard output instead of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// With policies of hither: explain every decision
    #[arg(long)]
    explain: bool,
    /// Program and arguments; several programs with `---` in between
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// A limit of host time, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimit(pub Option<Duration>);

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Thp {
    Always,
    Madvise,
    Never,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// Bad input and missing pieces, which end in exit status 2. Other failures are printed here
    /// because they have exit statuses of their own.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let done = match self.action {
            Action::Setup { install, refresh } => setup(install, refresh),
            Action::Run(arguments) => run(arguments),
            Action::Compare(arguments) => compare(arguments),
            Action::Shell { machine } => {
                prepare(machine, false).and_then(|lab| Ok(ExitCode::from(lab.shell()?)))
            }
            Action::Guest => return Ok(guest::main()),
        };
        done.or_else(|error| match error.downcast_ref::<Error>() {
            Some(Error::OutputClosed) => Ok(ExitCode::SUCCESS),
            Some(failure) if failure.exit_status() != hither_lab::error::STATUS_BAD_INPUT => {
                print::error(&error);
                Ok(ExitCode::from(failure.exit_status()))
            }
            _ => Err(error),
        })
    }
}

fn setup(install: bool, refresh: bool) -> anyhow::Result<ExitCode> {
    fetch::setup(install, refresh, &mut |line| {
        print::err(&format!("lab: {line}\n"))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn run(arguments: RunArguments) -> anyhow::Result<ExitCode> {
    let command = texts(arguments.command)?;
    Choice::parse(&arguments.policy, arguments.machine.evidence)?;
    warn_of_files(&command, &arguments.machine.files);
    let lab = prepare(arguments.machine, arguments.explain)?;
    let (run, setting) = lab.run(&command, &arguments.policy)?;
    let status = run.ended.status;
    let document = report::RunReport::new(setting, &arguments.policy, run);
    let width = Terminal::of_errors().width;
    print::err(&print::fold(
        &report::summary(&document),
        width,
        "lab: ".len(),
    ));
    if let Some(path) = arguments.json {
        write_json(&path, serde_json::to_value(&document)?)?;
    }
    Ok(ExitCode::from(status))
}

fn compare(arguments: CompareArguments) -> anyhow::Result<ExitCode> {
    let commands = split(texts(arguments.command)?)?;
    check_policies(&arguments.policies, commands.len(), arguments.repeat)?;
    for command in &commands {
        warn_of_files(command, &arguments.machine.files);
    }
    let lab = prepare(arguments.machine, arguments.explain)?;
    let comparisons = lab.compare(&commands, &arguments.policies, arguments.repeat)?;
    let failed = comparisons
        .iter()
        .any(|one| one.failures().next().is_some());
    let terminal = Terminal::of_output();
    let (text, document) = match <[Comparison; 1]>::try_from(comparisons) {
        Ok([one]) => (fitted(&one, terminal), serde_json::to_value(&one)?),
        Err(several) => {
            let programs = Programs::new(several);
            let mut text: String = (programs.comparisons.iter())
                .map(|one| fitted(one, terminal) + "\n")
                .collect();
            let (head, rows) = programs.table();
            let head: Vec<&str> = head.iter().map(String::as_str).collect();
            text += &format!("times as fast as {}, end to end\n\n", programs.base());
            text += &Table::new(&head, &rows).text(terminal);
            (text, serde_json::to_value(&programs)?)
        }
    };
    match arguments.json.as_deref() {
        Some(path) if path.as_os_str() == "-" => show(&crate::print::json(document))?,
        Some(path) => {
            show(&text)?;
            write_json(path, document)?;
        }
        None => show(&text)?,
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Commands with `---` between them.
fn split(words: Vec<String>) -> Result<Vec<Vec<String>>, Error> {
    let commands = words.split(|word| word == "---").map(<[String]>::to_vec);
    let commands: Vec<Vec<String>> = commands.collect();
    match commands.iter().any(Vec::is_empty) {
        true => Err(Error::bad(
            "a program is missing before or after `---`",
            "write CMD --- CMD",
        )),
        false => Ok(commands),
    }
}

/// The table with bars where these have room, else without.
fn fitted(comparison: &Comparison, terminal: Terminal) -> String {
    let whole = compare::table(comparison);
    let Some(width) = terminal.width else {
        return whole;
    };
    let has_bars = |line: &&str| line.contains("speed (") || line.contains('█');
    if whole
        .lines()
        .filter(has_bars)
        .all(|line| print::width_of(line) <= width)
    {
        return print::fold(&whole, Some(width), print::HANG);
    }
    let parts = compare::parts(comparison);
    let rows: Vec<Vec<String>> = parts.rows.into_iter().map(Vec::from).collect();
    let head = parts.head.each_ref().map(String::as_str);
    let table = Table::new(&head, &rows).text(terminal);
    let text = format!("{}\n{table}{}", parts.above, parts.below);
    print::fold(&text, Some(width), print::HANG)
}

fn prepare(arguments: MachineArguments, explain: bool) -> anyhow::Result<Lab> {
    let back = arguments
        .back
        .iter()
        .map(|text| Back::parse(text))
        .collect::<Result<_, _>>()?;
    let options = Options {
        machine_file: arguments.machine,
        cpus: arguments.cpus,
        memory_mb: arguments.memory,
        offline: arguments.offline,
        kernel: arguments.kernel,
        devices: Devices {
            disk_mb: arguments.disk,
            network: arguments.network,
        },
        huge_pages: match arguments.thp {
            Thp::Always => HugePages::Always,
            Thp::Madvise => HugePages::Madvise,
            Thp::Never => HugePages::Never,
        },
        timeout: arguments.timeout.0,
        files: arguments.files,
        env: arguments.env,
        back,
        plugin: if arguments.no_plugin {
            None
        } else {
            Some(PluginMode::Model)
        },
        evidence: arguments.evidence,
        agent: std::env::current_exe().context("asking for the path of hither itself")?,
        hither_arguments: if explain {
            vec!["--explain".into()]
        } else {
            Vec::new()
        },
    };
    let lab = Lab::prepare(options)?;
    for line in lab.summary().lines() {
        print::err(&format!("lab: {line}\n"));
    }
    Ok(lab)
}

fn check_policies(names: &[String], programs: usize, repeat: usize) -> Result<(), Error> {
    for (index, name) in names.iter().enumerate() {
        Choice::parse(name, Rung::Device)?;
        if names[..index].contains(name) {
            return Err(Error::bad(
                format!("--policies names {name} twice"),
                "use --repeat for more runs",
            ));
        }
    }
    let runs = names.len().saturating_mul(programs).saturating_mul(repeat);
    if repeat == 0 || runs > MAX_RUNS {
        return Err(Error::bad(
            format!(
                "--repeat {repeat} of {} policies and {programs} programs",
                names.len()
            ),
            format!("ask for 1 to {MAX_RUNS} runs in all"),
        ));
    }
    Ok(())
}

/// An argument that names a file here will find nothing there.
fn warn_of_files(command: &[String], packed: &[PathBuf]) {
    let is_packed = |file: &Path| packed.iter().any(|path| file.starts_with(path));
    for argument in command.iter().skip(1) {
        let file = Path::new(argument);
        if !argument.starts_with('-') && file.is_file() && !is_packed(file) {
            let argument = argument.shown();
            print::err(&format!(
                "lab: {argument} is a file here; the guest has it only with --file {argument}\n"
            ));
        }
    }
}

fn texts(words: Vec<OsString>) -> Result<Vec<String>, Error> {
    let text = |word: OsString| {
        word.into_string().map_err(|word| {
            Error::bad(
                format!("the argument {} is not UTF-8", word.shown()),
                "use plain text arguments",
            )
        })
    };
    words.into_iter().map(text).collect()
}

/// Prints to standard output; a reader that has seen enough is no failure.
fn show(text: &str) -> Result<(), Error> {
    print::out(text).map_err(|cause| match cause.kind() {
        std::io::ErrorKind::BrokenPipe => Error::OutputClosed,
        _ => Error::Io {
            doing: "writing to standard output".into(),
            source: cause,
        },
    })
}

fn write_json(path: &Path, document: serde_json::Value) -> anyhow::Result<()> {
    let text = crate::print::json(document);
    std::fs::write(path, text).with_context(|| format!("writing {}", path.shown()))
}

/// `90`, `90s`, `20m`, `2h`; `0` is no limit.
pub fn parse_time(text: &str) -> Result<TimeLimit, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        _ => (text, 1),
    };
    let seconds = digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit));
    let seconds = seconds.ok_or("write a whole number with s, m or h, as in 90s or 20m")?;
    Ok(TimeLimit(
        (seconds > 0).then(|| Duration::from_secs(seconds)),
    ))
}

fn parse_evidence(text: &str) -> Result<Rung, String> {
    Rung::of(text).ok_or_else(|| {
        let known = Rung::ALL.map(Rung::name).join(", ");
        format!("there is no such evidence; use one of {known}")
    })
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !text.contains('\0') => {
            Ok((name.into(), value.into()))
        }
        _ => Err("write NAME=VALUE".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_nonsense_refused() {
        let seconds = |text: &str| parse_time(text).map(|limit| limit.0.map(|time| time.as_secs()));
        assert_eq!(seconds("90"), Ok(Some(90)));
        assert_eq!(seconds("90s"), Ok(Some(90)));
        assert_eq!(seconds("20m"), Ok(Some(1200)));
        assert_eq!(seconds("2h"), Ok(Some(7200)));
        assert_eq!(seconds("0"), Ok(None));
        for bad in [
            "",
            "m",
            "-1",
            "1.5h",
            "99999999999999999999",
            "9999999999999999999h",
            "1d",
            "é",
        ] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn programs_are_split_at_dashes() {
        let split = |text: &str| split(text.split(' ').map(str::to_owned).collect());
        assert_eq!(split("a -x --- b").unwrap(), [vec!["a", "-x"], vec!["b"]]);
        assert_eq!(split("a -- b").unwrap(), [vec!["a", "--", "b"]]);
        for bad in ["--- a", "a ---", "a --- --- b"] {
            assert_eq!(split(bad).unwrap_err().exit_status(), 2, "{bad}");
        }
    }

    /// Command lines that clap or the checks behind it refuse.
    #[test]
    fn bad_command_lines_are_refused() {
        let parse = |line: &str| Command::try_parse_from(format!("lab {line}").split_whitespace());
        for bad in [
            "",
            "boot",
            "run -- ./a",
            "run --machine m.toml",
            "run --machine m.toml ./a",
            "run --machine m.toml --cpus many -- ./a",
            "run --machine m.toml --thp sometimes -- ./a",
            "run --machine m.toml --timeout soon -- ./a",
            "run --machine m.toml --env =x -- ./a",
            "compare --machine m.toml -- ./a",
            "compare --machine m.toml --policies a --repeat -1 -- ./a",
            "shell",
            "setup now",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse("run --machine m.toml --timeout 5m -- ./a").is_ok());
        assert!(parse("compare --machine m.toml --policies kernel,none --json -- ./a -x").is_ok());
        assert!(parse("compare --machine m.toml --policies kernel --json f.json -- ./a").is_ok());
    }

    #[test]
    fn a_comparison_fits_with_bars_or_without() {
        let recorded = include_str!("../../../docs/evidence/cg.json");
        let comparison: Comparison = serde_json::from_str(recorded).unwrap();
        print::assert_fits(|terminal| fitted(&comparison, terminal));
        let at = |width| {
            let terminal = Terminal {
                width: Some(width),
                colour: false,
            };
            fitted(&comparison, terminal)
        };
        assert!(at(160).contains('█') && !at(80).contains('█'));
        assert_eq!(at(1000), compare::table(&comparison));
    }

    #[test]
    fn policies_are_checked_before_anything_is_booted() {
        let names = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        assert!(check_policies(&names("first-touch,interleave,kernel,carrefour"), 3, 3).is_ok());
        for (list, repeat, part) in [
            ("first-tuch", 1, "no policy `first-tuch`"),
            ("kernel,kernel", 1, "twice"),
            ("", 1, "no policy ``"),
            ("kernel", 0, "--repeat 0"),
            ("kernel,interleave", usize::MAX, "1 to 1000"),
        ] {
            let error = check_policies(&names(list), 1, repeat).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(error.exit_status(), 2);
        }
    }
}
