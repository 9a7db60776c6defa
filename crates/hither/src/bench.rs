//! `hither bench`: what moving memory costs on this machine.

mod measure;
mod methods;
mod migspeed;
mod report;
mod service;

use crate::output::{self, Files, Progress, can_write, show};
use crate::terminal::Terminal;
use crate::units::{parse_bytes, parse_node, short_bytes};
use crate::{STATUS_FAILED, print};
use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use hither_core::ids::NodeId;
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::topology::{NodeInfo, Topology};
use measure::{Cell, Limits};
use methods::{HUGE_BYTES, METHODS, PAGE_BYTES, PageKind, Place};
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;

/// Least memory on each node that requests go through, so that one repetition does not find in
/// the first caches what the one before it left there.
const LEAST_ARENA_BYTES: usize = 64 << 20;
/// Largest request.
const MOST_BYTES: u64 = 1 << 40;

/// Measure what moving memory costs on this machine
#[derive(Debug, Args)]
pub struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Move(MoveArguments),
    Service(ServiceArguments),
}

/// Compare ways of moving memory of this process between two nodes
///
/// Requests of each size are moved by one call of move_pages(2), by one of mbind(2), and by the
/// program migspeed where it is installed (Debian package numactl). Copies of the same bytes, with
/// ordinary and with non-temporal stores, are the limit that the last column compares with. The
/// methods take turns; the first rounds are dropped; every page that should have moved is looked
/// for afterwards, and a repetition in which one has not arrived does not count.
///
/// On a machine with one node nothing can move: move_pages, mbind and migspeed are marked as not
/// measured, and the copies go from the node to itself.
#[derive(Debug, Args)]
#[command(after_help = "\
What is timed is the request alone: pages are brought back and looked for outside of it, and the
cost of reading the clocks is taken off. With huge pages, requests of less than 2M are left out,
as no part of a huge page moves alone, and move_pages is given one address per huge page.

Examples:
  hither bench move
  hither bench move --from 0 --to 2 --sizes 64K,1M --pages small --repeat 1000
  hither bench move --json move.json --svg move.svg")]
struct MoveArguments {
    /// Node that pages come from: 0 or node0 [default: the first with memory]
    #[arg(long, value_name = "NODE", value_parser = parse_node)]
    from: Option<u32>,
    /// Node that pages go to [default: the next with memory after --from]
    #[arg(long, value_name = "NODE", value_parser = parse_node)]
    to: Option<u32>,
    /// Sizes of requests: whole pages
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size,
          default_value = "4K,64K,1M,2M,16M,64M")]
    sizes: Vec<usize>,
    /// Size of the pages: 4 KiB, 2 MiB (transparent huge pages), or one after the other
    #[arg(long, value_name = "KIND", default_value = "both")]
    pages: Kinds,
    /// Repetitions of each method at each size, at least; small requests get more
    #[arg(long, value_name = "N", default_value_t = 30,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    repeat: usize,
    /// Time for the whole comparison; where it is too short for --repeat, the table says how many
    /// repetitions there were
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Write hither.bench-move/1 to a file; `-` prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw throughput over size into a file that any browser shows
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Stream requests through the asynchronous service, beside calls of move_pages(2)
///
/// Groups of requests go to another node: both ways, so that pages are used again, and one way.
/// Times run from the first submission to the last completion; CPU time is that of all threads of
/// this process. Eight requests of sixteen pages show latency and what submitting costs.
///
/// On a machine with one node pages are exchanged in place, with nothing to compare but a copy.
#[derive(Debug, Args)]
struct ServiceArguments {
    /// Node that pages come from: 0 or node0 [default: the first with memory]
    #[arg(long, value_name = "NODE", value_parser = parse_node)]
    from: Option<u32>,
    /// Node that pages go to [default: the next with memory after --from]
    #[arg(long, value_name = "NODE", value_parser = parse_node)]
    to: Option<u32>,
    /// Sizes of requests: whole pages, and powers of two
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_power,
          default_value = "64K,1M,2M,16M")]
    sizes: Vec<usize>,
    /// Size of the pages
    #[arg(long, value_name = "KIND", default_value = "both")]
    pages: Kinds,
    /// Requests per stream, at least
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    repeat: usize,
    /// Workers of the service, and threads that make the calls that it is compared with
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    workers: usize,
    /// Threads that share a copy of 512K or more, for each worker
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    copiers: usize,
    /// Write hither.bench-service/1 to a file; `-` prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl ServiceArguments {
    fn run(self) -> anyhow::Result<ExitCode> {
        let topology = Topology::read(&Root::host()).context("reading the machine")?;
        let (from, to) = nodes(&topology, self.from, self.to)?;
        let sizes = plan(&self.sizes, self.pages);
        if sizes.is_empty() {
            bail!("--sizes: none is of whole huge pages; give multiples of 2M, or --pages small");
        }
        if let Some(path) = &self.json {
            can_write("--json", path)?;
        }
        let largest = self.sizes.iter().copied().max().unwrap_or(0);
        for node in [from, to] {
            check_memory(node, (6 * largest).max(LEAST_ARENA_BYTES))?;
        }
        let mut notes = Vec::new();
        keep_near(from, to, &mut notes);
        let report = service::measure(service::Plan {
            from: from.id,
            to: to.id,
            sizes,
            repeat: self.repeat,
            workers: self.workers,
            copiers: self.copiers,
        })?;
        show(
            &self.json,
            &report.json(),
            &report.text(Terminal::of_output()),
        )?;
        for note in notes {
            print::err_lines(&note);
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kinds {
    Small,
    Huge,
    Both,
}

impl Command {
    /// Runs it.
    ///
    /// # Errors
    /// Bad input: nodes that are not there or have too little memory, files that cannot be
    /// written.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Move(arguments) => arguments.run(),
            Action::Service(arguments) => arguments.run(),
        }
    }
}

impl MoveArguments {
    fn run(self) -> anyhow::Result<ExitCode> {
        let topology = Topology::read(&Root::host()).context("reading the machine")?;
        let (from, to) = nodes(&topology, self.from, self.to)?;
        if plan(&self.sizes, self.pages).is_empty() {
            bail!("--sizes: none is of whole huge pages; give multiples of 2M, or --pages small");
        }
        let arena_bytes = self.arena_bytes();
        for node in [from, to] {
            let arenas = if from.id == to.id { 2 } else { 1 };
            check_memory(node, arenas * arena_bytes)?;
        }
        output::can_write_all(&[("--json", &self.json), ("--svg", &self.svg)])?;
        let mut report = self.measure(from, to, arena_bytes);
        if from.id == to.id {
            let why = match topology.memory_nodes().len() {
                1 => "this machine has one node with memory",
                _ => "--from and --to are the same node",
            };
            report
                .notes
                .insert(0, format!("{why}: only copies are measured, in place"));
        }
        let mut files = Files::default();
        files.write("--svg", self.svg.as_deref(), || Ok(report.svg()));
        let shown = show(
            &self.json,
            &report.json(),
            &report.text(Terminal::of_output()),
        );
        files.finish()?;
        shown?;
        Ok(match report.lost.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(STATUS_FAILED),
        })
    }

    /// Whole huge pages, and each request fits.
    fn arena_bytes(&self) -> usize {
        let largest = self.sizes.iter().copied().max().unwrap_or(0);
        largest.max(LEAST_ARENA_BYTES).next_multiple_of(HUGE_BYTES)
    }

    fn measure(&self, from: &NodeInfo, to: &NodeInfo, arena_bytes: usize) -> Report {
        let start_ns = sys::monotonic_ns();
        let end_ns = start_ns + (self.seconds * 1e9) as u64;
        let (mut notes, mut lost) = (Vec::new(), Vec::new());
        let cpus = keep_near(from, to, &mut notes);
        let overhead_ns = measure::overhead();
        let plan = plan(&self.sizes, self.pages);
        let mut left: usize = plan.iter().map(|(_, sizes)| sizes.len()).sum();
        let mut cells: Vec<Cell> = Vec::new();
        let mut progress = Progress::new();
        for (kind, sizes) in plan {
            let mut place = match Place::new(kind, arena_bytes, from.id, to.id) {
                Ok(place) => place,
                Err(why) => {
                    left -= sizes.len();
                    cells.extend(
                        sizes
                            .iter()
                            .map(|&bytes| measure::without(kind, bytes, &why)),
                    );
                    continue;
                }
            };
            if place.huge_share().is_none() {
                notes.push(format!(
                    "{} pages are as asked for, not as checked: this kernel does not tell (Linux \
                     6.7 does)",
                    kind.name()
                ));
            }
            for bytes in sizes {
                let limits = Limits {
                    repeat: self.repeat,
                    cell_ns: end_ns.saturating_sub(sys::monotonic_ns()) / left as u64,
                };
                let size = short_bytes(bytes as u64);
                let what = format!("{} pages, {size}, {} methods", kind.name(), METHODS.len());
                let mut tell =
                    |count: usize| progress.tell(format_args!("{what}, repetition {count}"));
                let clock = &sys::monotonic_ns;
                cells.push(measure::cell(
                    &mut place,
                    bytes,
                    limits,
                    overhead_ns,
                    clock,
                    &mut tell,
                ));
                left -= 1;
            }
            if place
                .huge_share()
                .is_some_and(|share| kind == PageKind::Huge && share < 1.0)
            {
                notes.push("the kernel split huge pages while it moved them".to_owned());
            }
            if !place.is_whole() {
                lost.push(kind.name());
            }
        }
        progress.clear();
        Report {
            from: from.id,
            to: to.id,
            cpus,
            kernel: sys::kernel_release(),
            repeat: self.repeat,
            seconds: self.seconds,
            arena_bytes,
            overhead_ns,
            cells,
            lost,
            notes,
        }
    }
}

/// The two nodes; the same one twice where there is no other.
fn nodes(
    topology: &Topology,
    from: Option<u32>,
    to: Option<u32>,
) -> anyhow::Result<(&NodeInfo, &NodeInfo)> {
    let usable: Vec<&NodeInfo> = topology
        .nodes
        .iter()
        .filter(|node| node.memory.total_kb > 0)
        .collect();
    let find = |option: &str, number: u32| {
        let found = usable
            .iter()
            .find(|node| node.id == NodeId(number))
            .copied();
        let names = || {
            let names: Vec<String> = usable.iter().map(|node| node.id.to_string()).collect();
            names.join(", ")
        };
        found.with_context(|| {
            format!(
                "{option} node{number}: there is no such node with memory here; choose one of {}",
                names()
            )
        })
    };
    let source = match from {
        Some(number) => find("--from", number)?,
        None => usable
            .iter()
            .find(|node| Some(node.id.0) != to)
            .or(usable.first())
            .copied()
            .context("no node has memory")?,
    };
    let target = match to {
        Some(number) => find("--to", number)?,
        None => {
            let after = usable.iter().find(|node| node.id > source.id);
            let other = usable.iter().find(|node| node.id != source.id);
            after.or(other).copied().unwrap_or(source)
        }
    };
    Ok((source, target))
}

/// Page kinds with the sizes that they are measured at.
fn plan(sizes: &[usize], pages: Kinds) -> Vec<(PageKind, Vec<usize>)> {
    let kinds = match pages {
        Kinds::Small => vec![PageKind::Small],
        Kinds::Huge => vec![PageKind::Huge],
        Kinds::Both => vec![PageKind::Small, PageKind::Huge],
    };
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    let fitting = |kind: PageKind| {
        let sizes = sizes.iter().copied();
        sizes
            .filter(|size| size.is_multiple_of(kind.bytes()))
            .collect()
    };
    kinds
        .into_iter()
        .map(|kind| (kind, fitting(kind)))
        .filter(|(_, sizes): &(_, Vec<usize>)| !sizes.is_empty())
        .collect()
}

/// Keeps this thread, and programs that it starts, on CPUs of the one or the other node, so that
/// copies do not change sides in between.
fn keep_near(from: &NodeInfo, to: &NodeInfo, notes: &mut Vec<String>) -> Option<String> {
    let cpus = [from, to].map(|node| &node.cpus);
    let Some(cpus) = cpus.into_iter().find(|cpus| !cpus.is_empty()) else {
        notes.push("neither node has CPUs: the measuring thread runs anywhere".to_owned());
        return None;
    };
    match sys::stay_on(cpus) {
        Ok(()) => Some(cpus.to_string()),
        Err(error) => {
            notes.push(format!("the measuring thread runs anywhere: {error}"));
            None
        }
    }
}

/// A node that is bound to and has too little memory would cost the process its life.
fn check_memory(node: &NodeInfo, bytes: usize) -> anyhow::Result<()> {
    let available_kb = node.memory.free_kb + node.memory.file_kb;
    let needed_kb = (bytes / 1024) as u64;
    if available_kb < needed_kb + needed_kb / 4 {
        bail!(
            "{}: {} are needed there and {} can be had; give smaller --sizes or another node",
            node.id,
            print::size(needed_kb + needed_kb / 4),
            print::size(available_kb)
        );
    }
    Ok(())
}

/// Whole pages, one at least.
fn parse_size(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(text)?;
    if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES as u64) || bytes > MOST_BYTES {
        return Err(format!(
            "a request has whole pages of 4K and at most {}",
            short_bytes(MOST_BYTES)
        ));
    }
    Ok(bytes as usize)
}

/// The same, a power of two.
fn parse_power(text: &str) -> Result<usize, String> {
    let bytes = parse_size(text)?;
    if !bytes.is_power_of_two() || bytes > 1 << 30 {
        return Err("a request here has a power of two of bytes, at most 1G".to_owned());
    }
    Ok(bytes)
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("write a number of seconds from 0.1 to 86400".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::path::Path;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: MoveArguments,
    }

    fn line(text: &str) -> Result<MoveArguments, String> {
        let words = std::iter::once("bench").chain(text.split_whitespace());
        Line::try_parse_from(words)
            .map(|line| line.arguments)
            .map_err(|error| error.to_string())
    }

    fn captured(name: &str) -> Topology {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines");
        Topology::read(&Root::new(folder.join(name))).unwrap()
    }

    #[test]
    fn huge_pages_have_the_sizes_that_fit() {
        let fitting = |text| {
            let line = line(text).unwrap();
            plan(&line.sizes, line.pages)
        };
        let all = fitting("");
        assert_eq!(
            all[0],
            (
                PageKind::Small,
                vec![4096, 65_536, 1 << 20, 2 << 20, 16 << 20, 64 << 20]
            )
        );
        assert_eq!(all[1], (PageKind::Huge, vec![2 << 20, 16 << 20, 64 << 20]));
        assert_eq!(
            fitting("--pages huge --sizes 4M,3M,4M"),
            [(PageKind::Huge, vec![4 << 20])]
        );
        assert_eq!(fitting("--pages both --sizes 4K").len(), 1);
        assert_eq!(line("--sizes 65M").unwrap().arena_bytes(), 66 << 20);
        assert_eq!(line("--sizes 4K").unwrap().arena_bytes(), 64 << 20);
    }

    #[test]
    fn nonsense_is_refused() {
        for (text, part) in [
            ("--sizes 4000", "whole pages"),
            ("--sizes 0", "whole pages"),
            ("--sizes 4K,", "whole number"),
            ("--sizes 2T", "at most 1T"),
            ("--pages tiny", "small"),
            ("--repeat 0", "--repeat"),
            ("--seconds 0", "0.1"),
            ("--seconds nan", "0.1"),
            ("--from x", "node"),
        ] {
            let error = line(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn nodes_are_two_where_there_are_two() {
        let chosen = |text: &str, machine: &str| {
            let topology = captured(machine);
            let line = line(text).unwrap();
            nodes(&topology, line.from, line.to)
                .map(|(from, to)| (from.id.0, to.id.0))
                .map_err(|error| error.to_string())
        };
        assert_eq!(chosen("", "two-socket"), Ok((0, 1)));
        assert_eq!(chosen("--from 1", "two-socket"), Ok((1, 0)));
        assert_eq!(chosen("--to 0", "two-socket"), Ok((1, 0)));
        assert_eq!(chosen("--from 1 --to 1", "two-socket"), Ok((1, 1)));
        let error = chosen("--to 7", "two-socket").unwrap_err();
        assert!(
            error.contains("--to node7") && error.contains("node0, node1"),
            "{error}"
        );
    }

    #[test]
    fn a_node_must_have_the_memory() {
        let machine = captured("two-socket");
        check_memory(&machine.nodes[0], 4096).unwrap();
        let error = check_memory(&machine.nodes[0], 1 << 60).unwrap_err();
        assert!(error.to_string().contains("smaller --sizes"), "{error}");
    }
}
