//! `hither run`: a program placed on CPUs and memory, and beside the control loop that moves its
//! memory.

mod learn;
mod mirrors;
mod numactl;
mod place;
mod places;
mod redirect;
pub mod report;
mod show;
mod start;
mod supervise;
mod ways;
mod weigh;

pub use place::memory_policies;

use crate::output::{can_write, is_standard_output, write};
use crate::{print, units};
use anyhow::{Context, bail, ensure};
use clap::builder::{PossibleValue, PossibleValuesParser};
use hither_agent::host::{Hands, cannot_start};
use hither_core::engine::{Engine, EngineConfig};
use hither_core::foreign::Foreign;
use hither_core::ids::ScopeId;
use hither_core::machine::{Machine, parse};
use hither_core::policy::{self, tiers};
use hither_core::quota::Quota;
use hither_core::rset::Resources;
use hither_linux::parts;
use hither_linux::resources;
use hither_linux::rivals;
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use hither_linux::tracker::table::{self, TrackerInputs};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Shortest interval in us: below it hither's own cost shows.
const LEAST_INTERVAL_US: u64 = 10_000;
/// Longest interval in us.
const MOST_INTERVAL_US: u64 = 10_000_000;

/// Run a program where it belongs, and move its memory where it is used
///
/// The program's exit status becomes hither's; 128 plus the number of a signal that ended it.
/// With numactl's options alone hither becomes the program, as numactl does.
#[derive(Debug, clap::Args)]
#[command(infer_long_args = true)]
pub struct Command {
    /// What decides what moves while it runs; auto, or none where the program is placed or its files are. With
    /// `none` there is not even a tracker
    #[arg(long, value_name = "NAME", value_parser = policies())]
    policy: Option<String>,
    /// How much of the fastest memory tier the program may use, with the policy tiers: a size as 512M, or
    /// unlimited [default: unlimited]
    #[arg(long, value_name = "QUOTA")]
    fast: Option<Quota>,
    /// Time between decisions: 10ms to 10s; more while hither only looks and that takes over 1 % of one CPU
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_interval)]
    interval: u64,
    /// Print every decision as it is made, on standard error
    #[arg(long)]
    explain: bool,
    /// Begin with what earlier runs of this program and these arguments have taught, and learn from this one
    /// (docs/learned.md)
    #[arg(long)]
    learn: bool,
    /// Write the report to a file (hither.run/1)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only the program fills so many ways of the last-level caches of its CPUs (resctrl)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=31))]
    ways: Option<u32>,
    /// Name of a program whose speed counts more than others', for policy caches
    #[arg(long, value_name = "NAME")]
    prefer: Vec<String>,
    /// Machine file that tells the clock of the CPUs and the sizes of their last-level caches, or the name of one that comes with hither
    #[arg(long, value_name = "NAME")]
    machine: Option<PathBuf>,
    #[command(flatten)]
    place: place::Options,
    #[command(flatten)]
    mirrors: mirrors::Options,
    #[command(flatten)]
    numactl: numactl::Options,
    /// Program and arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// Whatever keeps the program from being started with what was asked for: bad files, missing
    /// evidence, a program that cannot be found. Once it runs, hither ends with its status.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let start = Instant::now();
        if self.numactl.show || self.numactl.hardware || self.numactl.shared.is_meant() {
            return self.without_program();
        }
        ensure!(
            !self.command.is_empty(),
            "there is no program to run; give one, with its arguments, after the options"
        );
        if let Some(option) = self.numactl.shared.misplaced() {
            bail!("{option} is about shared memory; name that with --file or --shm");
        }
        self.check_learning()?;
        // Who is not to be placed needs no look at the machine's devices.
        let (placement, learning) = match (self.is_placed(), self.learn) {
            (true, _) => {
                let may_move = self.policy() == "none";
                let host = read_host()?;
                let placement =
                    self.place
                        .placement(&self.numactl, &self.command[0], &host, may_move)?;
                (placement, None)
            }
            (false, true) => {
                let (learning, placement) = learn::begin(&self.command, &self.numactl)?;
                (placement, Some(learning))
            }
            (false, false) => (self.begin_by_policy()?, None),
        };
        for warning in placement.iter().flat_map(|placement| &placement.warnings) {
            print::err_lines(warning);
        }
        if self.becomes_program() {
            return self.become_program(placement);
        }
        let machine = self.machine.as_deref().map(read_machine).transpose()?;
        let is_alone = learning.as_ref().is_some_and(learn::Learning::is_alone);
        let setup = match is_alone {
            true => None,
            false => self.prepare(machine.as_ref())?,
        };
        if let (Some(learning), true) = (&learning, self.explain) {
            print::err_lines(&learning.explained());
        }
        if let Some(path) = &self.json {
            ensure!(
                !is_standard_output(path),
                "--json -: standard output is the program's; give --json a file"
            );
            can_write("--json", path)?;
        }
        let mirrors = self.mirrors.prepare()?;
        let divide = |count| ways::divide(count, placement.as_ref());
        let divided = self.ways.map(divide).transpose()?;
        if let Some(divided) = &divided {
            print::err_lines(&format!("{}\n", divided.note));
        }
        let mut finished = supervise::run(
            setup,
            placement,
            mirrors.as_ref(),
            &self.command,
            self.explain,
        )?;
        if let Some(error) = divided.and_then(|divided| divided.finish().err()) {
            print::error(&error);
        }
        finished.mirrored = mirrors.map(mirrors::Mirrors::finish);
        finished.learned = learning.map(|learning| learning.finish(&finished));
        let report = report::Report::new(&self, machine.as_ref(), &finished, start.elapsed());
        print::err_report(&report.text());
        let status = finished.ended.status();
        if let Some(path) = &self.json {
            // The program has run: its status must not be lost for a full disk.
            if let Err(error) = write("--json", path, &report.json()) {
                print::error(&error);
            }
        }
        Ok(ExitCode::from(status))
    }

    /// What the policy has a program begin with.
    fn begin_by_policy(&self) -> anyhow::Result<Option<place::Placement>> {
        let Some(start) = policy::entry(self.policy())?.start else {
            return Ok(None);
        };
        let host = read_host()?;
        let start = start(&host.2);
        let placement = place::Options::begin(start, &self.numactl, &self.command[0], &host);
        let told = match &placement {
            Ok(None) => return Ok(None),
            Ok(Some(_)) => format!(
                "memory goes to both tiers in turns until {} has chosen (--memory float: as the kernel has it)",
                self.policy()
            ),
            // What the program would do without it is no error.
            Err(error) => format!("memory begins as the kernel has it: {error:#}"),
        };
        print::err_lines(&format!("{told}\n"));
        Ok(placement.unwrap_or_default())
    }

    /// Does anybody say where the program belongs?
    fn is_placed(&self) -> bool {
        self.numactl.is_used() || self.place.stays_beside()
    }

    /// `--learn` is about programs that nobody places otherwise, and that a policy judges.
    fn check_learning(&self) -> anyhow::Result<()> {
        ensure!(
            !(self.learn && self.is_placed()),
            "--learn chooses where a program begins; leave the options of placement out, or leave out --learn"
        );
        ensure!(
            !(self.learn && self.policy() == "none"),
            "--learn: policy none judges no moves, so that there is nothing to learn from; leave out --policy none"
        );
        Ok(())
    }

    /// What decides while the program runs.
    fn policy(&self) -> &str {
        match &self.policy {
            Some(policy) => policy,
            None if self.learn => policy::DEFAULT,
            None if self.is_placed() || self.mirrors.is_meant() || self.ways.is_some() => "none",
            None => policy::DEFAULT,
        }
    }

    /// Is there nothing to do beside the program?
    fn becomes_program(&self) -> bool {
        let is_watched = self.policy.is_some()
            || self.json.is_some()
            || self.explain
            || self.mirrors.is_meant()
            || self.ways.is_some();
        self.numactl.is_used() && !self.place.stays_beside() && !is_watched
    }

    /// Never returns where the program can be started.
    fn become_program(&self, placement: Option<place::Placement>) -> anyhow::Result<ExitCode> {
        if let Some(placement) = placement {
            placement.binding.apply()?;
        }
        let mut command = std::process::Command::new(&self.command[0]);
        let error = command.args(&self.command[1..]).exec();
        Err(cannot_start(&self.command[0], error).into())
    }

    /// `--show`, `--hardware`, `--shm`, `--file`.
    fn without_program(&self) -> anyhow::Result<ExitCode> {
        if let Some(word) = self.command.first() {
            bail!(
                "`{}` would not be run: --show, --hardware, --shm and --file go without a program",
                word.shown()
            );
        }
        let shared = &self.numactl.shared;
        if shared.is_meant()
            && let Some((option, about)) = self.numactl.misplaced_beside_shared()
        {
            bail!("{option} is about {about}");
        }
        let (root, topology, resources) = read_host()?;
        let policy = self.numactl.policy(&resources, &root)?;
        let (text, untold) = match (self.numactl.show, self.numactl.hardware) {
            (true, _) => show::show(&resources)?,
            (false, true) => (show::hardware(&topology), None),
            (false, false) => (
                show::shared(shared, policy.as_ref(), self.place.verify)?,
                None,
            ),
        };
        print::out(&text)?;
        if let Some(why) = untold {
            print::err_lines(&why);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Everything that can be wrong is found before the program starts.
    fn prepare(&self, machine: Option<&Machine>) -> anyhow::Result<Option<supervise::Setup>> {
        let policy = policy::by_name(self.policy())?;
        let quota = self.fast.unwrap_or_default();
        ensure!(
            tiers::keeps(self.policy(), quota),
            "--fast: policy {} does not decide on fast memory; give --policy {} as well",
            self.policy(),
            tiers::NAME
        );
        if self.policy() == "none" {
            return Ok(None);
        }
        let root = Root::host();
        let mut topology = Topology::read(&root).context("reading the machine")?;
        if let Some(machine) = machine {
            topology.take_cache_sizes(machine);
        }
        let ghz = machine.map(|machine| machine.cpu.ghz);
        let here = TrackerInputs {
            root: &root,
            topology: &topology,
            ghz,
        };
        for note in rivals::notes(&root) {
            print::err_lines(&format!("{note}\n"));
        }
        let tracker = table::to_decide(&*policy, &here)?;
        let hands = Hands::find()?;
        let config = EngineConfig {
            preferred: self.prefer.clone(),
            ..EngineConfig::at_interval(self.interval)
        };
        let mut engine = Engine::of_all(policy, config);
        engine.set_quota(ScopeId(0), quota);
        Ok(Some(supervise::Setup {
            root,
            topology,
            tracker,
            hands,
            engine,
            interval_us: self.interval,
        }))
    }
}

/// This machine, as sets and lists of nodes are worked out against it.
pub fn read_host() -> anyhow::Result<(Root, Topology, Resources)> {
    let root = Root::host();
    let topology = Topology::read(&root).context("reading the machine")?;
    let resources = resources::read(&root, &topology).context("reading the machine")?;
    Ok((root, topology, resources))
}

pub fn read_machine(name: &Path) -> anyhow::Result<Machine> {
    let own = std::env::current_exe().context("asking for the path of hither itself")?;
    let path = &parts::find_machine(&own, name).context("--machine")?;
    let text = hither_files::read_named_text(path, parse::limits::TEXT_BYTES as u64).with_context(
        || {
            format!(
                "{} cannot be read; give --machine a machine file",
                path.shown()
            )
        },
    )?;
    parse::parse(&text).with_context(|| format!("machine file {}", path.shown()))
}

/// The policies there are, with their summaries, for the help and for refusals.
fn policies() -> PossibleValuesParser {
    let value = |entry: &policy::PolicyEntry| PossibleValue::new(entry.name).help(entry.summary);
    PossibleValuesParser::new(policy::TABLE.iter().map(value))
}

/// `100ms`, `2s`, `20000us`.
pub fn parse_interval(text: &str) -> Result<u64, String> {
    match units::parse_time_us(text)? {
        us if (LEAST_INTERVAL_US..=MOST_INTERVAL_US).contains(&us) => Ok(us),
        _ => Err("the interval must be 10ms to 10s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_a_unit_and_limits() {
        assert_eq!(parse_interval("100ms"), Ok(100_000));
        assert_eq!(parse_interval("2s"), Ok(2_000_000));
        assert_eq!(parse_interval("10000us"), Ok(10_000));
        for bad in [
            "",
            "100",
            "ms",
            "-1s",
            "1.5s",
            "9ms",
            "11s",
            "99999999999999999999s",
            "1h",
        ] {
            assert!(parse_interval(bad).is_err(), "{bad}");
        }
    }
}
