//! `hither move`: pages of a running process to nodes or a tier, by the kernel, and back.

mod aim;
mod astray;
mod backends;
mod files;
mod here;
mod perform;
mod policy;
mod report;
pub mod select;
mod stays;
mod target;
mod undo;

use crate::terminal::Terminal;
use crate::units::parse_rate;
use crate::{STATUS_FAILED, print, signal_status};
use aim::Aim;
use anyhow::{Context, bail, ensure};
use astray::Astray;
use backends::Backends;
use here::LocalMachine;
use hither_core::foreign::Foreign;
use hither_core::ids::Pid;
use hither_core::plan::Refusal;
use hither_core::set::NodeSet;
use hither_linux::fixed::{self, Fixed};
use hither_linux::proc::pagemap::Pagemap;
use hither_linux::proc::{allowed, maps, numa_maps};
use hither_linux::root::Root;
use hither_linux::sys::{self, OwnMapping, Signals};
use hither_linux::topology::Topology;
use hither_mover::Backend;
use perform::{Account, Piece, Runs, Stop};
use policy::Memory;
use report::Report;
use select::{Asked, Selection};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use target::Wanted;
use undo::{Life, Undo};

/// Move pages of a running process to nodes or a tier, and back
///
/// Only pages in memory are moved, by move_pages(2): they keep their content, and the program
/// waits where it touches one on its way. What is mapped by several processes stays where it is,
/// unless root asks: then shared memory moves for all of them, and programs and libraries do where
/// they are named. The table says for each mapping where its pages were (in pages of 4 KiB), what
/// was moved, what was there already, what was refused and why, and where the pages are afterwards.
///
/// What must not move stays: buffers registered with io_uring, mappings of devices, and memory that
/// a device may have been given (vfio; GPUs and RDMA where the process has pinned memory).
///
/// Without --range and --mapping all mappings are taken. Pages that the program allocates later
/// follow its own memory policy; a warning says where that leads elsewhere.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit status: 0 also where single pages were refused; 1 where the process ended meanwhile, or
where not one page that should move could be moved; 2 for bad input; 130 after Ctrl-C (128 plus
the signal's number): the batch in hand is finished and what was done is printed.

Examples:
  hither move --pid 4711 --to node1 --dry-run
  hither move --pid 4711 --to 1 --mapping '[heap]' --mapping libblas
  hither move --pid 4711 --to all --json > report.json
  hither move --undo report.json
  hither move --astray -p 4711
  hither move --files -p 4711 --dry-run
  hither move --pid 4711 --to tier:0 --range 7f2c8c000000-7f2c90000000 --rate 500M")]
pub struct Command {
    /// Process to move pages of
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..),
          required_unless_present = "undo")]
    pid: Option<i32>,
    /// Where to: a node (2 or node2); several, which get pages in turns (0,2-3 or all, as numactl
    /// has lists); or a tier by rank (tier:0 is the fastest), whose nodes are filled in their order
    /// as far as they have free memory
    #[arg(long, value_name = "NODES|TIER", value_parser = target::parse,
          required_unless_present_any = ["undo", "astray", "files"], allow_hyphen_values = true)]
    to: Option<Wanted>,
    /// Move pages that are astray: on nodes that what the process is bound to does not name. That is
    /// the memory policy of a mapping, else the nodes of the CPUs that its threads may run on
    #[arg(long, conflicts_with_all = ["to", "ranges", "mappings", "policy", "undo"])]
    astray: bool,
    /// Move cached pages of the files that the process maps or has open for reading, whoever brought them
    /// into memory: to --to, or else to the nodes on which its threads run. Programs and libraries stay.
    /// What the program maps moves where root asks for it. Nothing is read from a disk
    #[arg(long, conflicts_with_all = ["astray", "ranges", "mappings", "policy", "undo"])]
    files: bool,
    /// Addresses to move, in hexadecimal as /proc/PID/maps prints them, end exclusive; repeatable
    #[arg(long = "range", value_name = "A-B", value_parser = select::parse_range)]
    ranges: Vec<Asked>,
    /// Mappings to move: a path or a part of it, [heap], [stack], [anon] (all memory without a
    /// file), or a name given with prctl(PR_SET_VMA); repeatable
    #[arg(long = "mapping", value_name = "NAME", conflicts_with = "ranges")]
    mappings: Vec<String>,
    /// Let new pages come from the same nodes: by the memory of the process's control group, where
    /// it is alone in one
    #[arg(long, conflicts_with_all = ["ranges", "mappings"])]
    policy: bool,
    /// Take a move back: pages go to where its report (--json) says that they were, and a control
    /// group gets the memory that it had
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["pid", "to", "ranges", "mappings", "policy"])]
    undo: Option<PathBuf>,
    /// Print what would be moved and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON (hither.move/1, or hither.move-files/1) instead of the table; --undo reads the former
    #[arg(long)]
    json: bool,
    /// Move at most so many bytes per second: 500M, 2G
    #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
    rate: Option<u64>,
    /// The table goes to standard error: another command's output is on the other.
    #[arg(skip)]
    is_aside: bool,
}

/// What is to be done, of which process.
struct Task {
    pid: i32,
    /// For the report.
    to: String,
    aim: Aim,
    /// `--policy`: the group whose memory is narrowed, or was and gets back what it had; and what it
    /// has after the move that is, or was, asked for.
    memory: Option<(Memory, NodeSet)>,
    undo: Option<Undo>,
    /// `--astray`: what the process is bound to.
    astray: Option<Astray>,
    /// What must not move.
    fixed: Fixed,
}

impl Command {
    /// What puts pages of a process that are astray where they belong, or those of its files; the table
    /// goes to standard error.
    pub fn mending(pid: i32, files: bool, dry_run: bool) -> Self {
        Self {
            pid: Some(pid),
            to: None,
            astray: !files,
            files,
            ranges: Vec::new(),
            mappings: Vec::new(),
            policy: false,
            undo: None,
            dry_run,
            json: false,
            rate: None,
            is_aside: true,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// Bad input: no such process, node, tier, mapping; a process of somebody else. What happens
    /// once pages move is an outcome and is printed.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.carry_out().map(ExitCode::from)
    }

    /// The same, with the exit status as a number.
    ///
    /// # Errors
    /// As [`Command::run`].
    pub fn carry_out(self) -> anyhow::Result<u8> {
        let root = Root::host();
        let topology = Topology::read(&root).context("reading the machine")?;
        let undo = self.undo.as_deref().map(Undo::read).transpose()?;
        let pid = undo.as_ref().map(|undo| undo.pid).or(self.pid);
        let pid = pid.context("--pid is missing")?;
        if self.files {
            let order = files::Order {
                pid,
                to: self.to.as_ref(),
                dry_run: self.dry_run,
                json: self.json,
                rate: self.rate,
                is_aside: self.is_aside,
            };
            return files::run(&order, &root, &topology);
        }
        let mut around = LocalMachine::new(pid, undo.as_ref())?;
        let life = Life::of(&root, pid);
        let program = program(&root, pid);
        let about = || about(pid, undo.is_some());
        let mappings = maps::read(&root, pid).with_context(about)?;
        if mappings.is_empty() {
            bail!("{}: a kernel thread or ended: it has no memory", about());
        }
        let task = self.task(pid, undo, &root, &topology, &mappings)?;
        let selection = self.selection();
        let takes_all = matches!(selection, Selection::Everything) && task.undo.is_none();
        let mut chosen = select::select(&mappings, &selection)?;
        if let Some(astray) = &task.astray {
            chosen = astray.chosen(chosen);
        }
        let selected_count = chosen.len();
        // Whoever may move nothing at all needs no look at pages, and nothing is changed for it.
        let mut backend = Backends::new(takes_all.then_some(&chosen[..]));
        backend.probe().context("backend kernel")?;
        // What a narrowed group has not got, it cannot get pages on.
        if let (Some((memory, _)), Some(_), false) = (&task.memory, &task.undo, self.dry_run) {
            memory.put_back(&root)?;
        }
        let pieces = task.pieces(&root, chosen, &mut around)?;
        let done = match self.dry_run {
            true => None,
            false => {
                // Not before: while pages are only looked for, Ctrl-C may end it as it ends any
                // program.
                around.signals = Some(
                    Signals::new(&[sys::SIGINT, sys::SIGTERM])
                        .context("reading signals as data")?,
                );
                Some(task.perform(&pieces, self.rate, &mut backend, &mut around))
            }
        };
        let (accounts, stop) = match done {
            Some((accounts, stop)) => (Some(accounts), stop),
            None => (None, None),
        };
        let narrows = !self.dry_run && (task.undo.is_some() || stop.is_none());
        if let (Some((memory, nodes)), None, true) = (&task.memory, &task.undo, narrows) {
            memory.narrow(&root, nodes)?;
        }
        let narrowed = task.memory.as_ref().filter(|_| narrows);
        let report = Report {
            pid,
            program: &program,
            to: task.to.clone(),
            aim: &task.aim,
            pieces: &pieces,
            empty_count: match task.undo {
                Some(_) => 0,
                None => selected_count - pieces.len(),
            },
            accounts: accounts.as_deref(),
            stop,
            life,
            held: &policy::held(&root, pid, &pieces),
            narrowed: narrowed.map(|(memory, nodes)| (memory, nodes.clone())),
            moves_shared: backend.moves_shared(),
            recorded_pages: task.recorded_pages(),
            fixed: &task.fixed,
            astray: task.astray.as_ref(),
        };
        match self.json {
            true => print::out(&report.json())?,
            false if self.is_aside => print::err_report(&report.text(Terminal::of_errors())),
            false => print::report(&report.text(Terminal::of_output()))?,
        }
        Ok(match stop {
            Some(Stop::Signal(signal)) => signal_status(signal),
            Some(Stop::Gone) => STATUS_FAILED,
            None if self.dry_run => 0,
            None => status(&report.total()),
        })
    }

    fn selection(&self) -> Selection<'_> {
        match (&self.ranges[..], &self.mappings[..]) {
            ([], []) => Selection::Everything,
            ([], names) => Selection::Names(names),
            (ranges, _) => Selection::Ranges(ranges),
        }
    }

    /// What the options come to.
    fn task(
        &self,
        pid: i32,
        undo: Option<Undo>,
        root: &Root,
        topology: &Topology,
        mappings: &[OwnMapping],
    ) -> anyhow::Result<Task> {
        let astray = match self.astray {
            true => Some(Astray::of(root, topology, pid, mappings)?),
            false => None,
        };
        let (to, aim) = match (&undo, &self.to) {
            _ if astray.is_some() => {
                let aim = astray.as_ref().map(Astray::aim);
                ("astray".to_owned(), aim.context("--astray")?)
            }
            (Some(undo), _) => ("undo".to_owned(), undo.aim(topology).context("--undo")?),
            (None, Some(wanted)) => {
                let allowed = allowed_nodes(root, pid, topology);
                (
                    wanted.to_string(),
                    target::resolve(wanted, topology, &allowed)?,
                )
            }
            (None, None) => bail!("--to is missing"),
        };
        let memory = match (&undo, self.policy) {
            (None, false) => None,
            (None, true) => Some((Memory::of(root, pid)?, aim.nodes())),
            (Some(undo), _) => undo
                .policy
                .as_ref()
                .map(|kept| narrowed(kept, root, pid))
                .transpose()?,
        };
        Ok(Task {
            pid,
            to,
            aim,
            memory,
            undo,
            astray,
            fixed: fixed::read(root, pid).with_context(|| about(pid, false))?,
        })
    }
}

/// Nodes that a process may have memory from.
fn allowed_nodes(root: &Root, pid: i32, topology: &Topology) -> NodeSet {
    let allowed = root.parse_if_any(&format!("proc/{pid}/status"), allowed::parse);
    let allowed = allowed.ok().flatten().and_then(|allowed| allowed.nodes);
    allowed.unwrap_or_else(|| topology.nodes.iter().map(|node| node.id).collect())
}

/// The group that a report says it has narrowed, to get back what it had.
fn narrowed(
    (before, after): &(String, String),
    root: &Root,
    pid: i32,
) -> anyhow::Result<(Memory, NodeSet)> {
    let nodes: NodeSet = after.parse().context("--undo: `policy` of the report")?;
    before
        .parse::<NodeSet>()
        .context("--undo: `policy` of the report")?;
    // The process's own group, not what the report names.
    let now = Memory::of(root, pid).context("--undo")?;
    ensure!(
        now.before == *after,
        "--undo: /{} is `{}`, not `{after}` as the report left it: somebody has changed it since; \
         set it as it should be, and take `policy` out of the report",
        now.file.shown(),
        now.before
    );
    let before = before.clone();
    Ok((Memory { before, ..now }, nodes))
}

impl Task {
    /// How an error about the process begins.
    fn about(&self) -> String {
        about(self.pid, self.undo.is_some())
    }

    /// Pages that a report which is taken back speaks of.
    fn recorded_pages(&self) -> u64 {
        let places = self.undo.iter().flat_map(|undo| &undo.places);
        places.map(|(pages, _)| pages.end - pages.start).sum()
    }

    /// The mappings that have pages in memory, with these pages.
    fn pieces(
        &self,
        root: &Root,
        chosen: Vec<OwnMapping>,
        around: &mut LocalMachine,
    ) -> anyhow::Result<Vec<Piece>> {
        let pagemap = Pagemap::open(root, self.pid).map_err(|error| self.explain(error))?;
        let mut pieces = Vec::new();
        for mapping in chosen {
            let found = self.resident(&pagemap, &mapping);
            let (resident, huge) = found.map_err(|error| self.explain(error))?;
            if resident.is_empty() {
                continue;
            }
            let piece = perform::piece(mapping, (resident, huge), &self.aim, around);
            let mut piece = piece.map_err(|error| self.explain(error))?;
            (piece.to_move, piece.fixed) = self.fixed.split(&piece.to_move);
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// Pages of a mapping that are in memory and meant, and those of them that are of huge pages,
    /// where that makes a difference.
    fn resident(&self, pagemap: &Pagemap, mapping: &OwnMapping) -> io::Result<(Runs, Runs)> {
        let pages = mapping.pages();
        match (&self.undo, &self.aim) {
            (Some(undo), _) => {
                let met = undo::within(std::slice::from_ref(&pages), &undo.places);
                if met.is_empty() {
                    return Ok((Vec::new(), Vec::new()));
                }
                let present = pagemap.present(pages)?;
                Ok((undo::within(&present, &undo.places), Vec::new()))
            }
            // Of a file that is mapped privately, what the program has written.
            (None, Aim::Bound(_)) if is_of_file(mapping) => {
                Ok((pagemap.anonymous(pages)?, Vec::new()))
            }
            (None, Aim::Spread(_) | Aim::Bound(_)) => {
                Ok((pagemap.present(pages.clone())?, pagemap.huge(pages)?))
            }
            _ => Ok((pagemap.present(pages)?, Vec::new())),
        }
    }

    /// What the kernel means when it does not tell where pages are.
    fn explain(&self, error: io::Error) -> anyhow::Error {
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "its pages may not be moved; run hither as its owner, or as root with CAP_SYS_PTRACE \
                 (a container's root has it by --cap-add SYS_PTRACE)"
            }
            _ => "its pages cannot be found; it may have ended",
        };
        anyhow::Error::new(error).context(format!("{}: {remedy}", self.about()))
    }

    fn perform(
        &self,
        pieces: &[Piece],
        rate: Option<u64>,
        backend: &mut dyn Backend,
        around: &mut LocalMachine,
    ) -> (Vec<Account>, Option<Stop>) {
        around.start_ns = sys::monotonic_ns();
        let pid = Pid(self.pid);
        let (mut accounts, stop) = perform::perform(pid, pieces, &self.aim, rate, backend, around);
        around.progress.clear();
        for (account, piece) in accounts.iter_mut().zip(pieces) {
            // Who interrupts a second time does not want to know.
            if !matches!(around.stop(), Some(Stop::Signal(_))) {
                account.after = perform::places(piece, &self.aim, around).ok();
            }
        }
        (accounts, stop)
    }
}

/// Does a mapping show a file, and not memory that merely has a name?
fn is_of_file(mapping: &OwnMapping) -> bool {
    mapping.inode != 0 && !mapping.shared && !numa_maps::is_memory(&mapping.name)
}

fn about(pid: i32, takes_back: bool) -> String {
    match takes_back {
        true => format!("--undo: process {pid}"),
        false => format!("--pid {pid}"),
    }
}

/// Nothing moved though something should have: the work could not be done.
fn status(total: &Account) -> u8 {
    let stayed: u64 = total
        .refused
        .iter()
        // A page that is gone, or that others use too, is not what a person waits for.
        .filter(|(refusal, _)| !matches!(refusal, Refusal::Unmapped | Refusal::Shared))
        .map(|(_, count)| count)
        .sum();
    if stayed > 0 && total.moved == 0 {
        STATUS_FAILED
    } else {
        0
    }
}

/// The command name of a process, for a person.
fn program(root: &Root, pid: i32) -> String {
    let name = std::fs::read(root.path(&format!("proc/{pid}/comm"))).unwrap_or_default();
    String::from_utf8_lossy(&name).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn only_what_could_not_be_done_at_all_is_a_failure() {
        let account = |moved, refused: &[(Refusal, u64)]| Account {
            moved,
            refused: BTreeMap::from_iter(refused.iter().copied()),
            ..Account::default()
        };
        assert_eq!(status(&account(0, &[])), 0);
        assert_eq!(status(&account(0, &[(Refusal::Shared, 9)])), 0);
        assert_eq!(status(&account(1, &[(Refusal::NoMemory, 9)])), 0);
        assert_eq!(status(&account(0, &[(Refusal::NoMemory, 9)])), 1);
    }

    #[test]
    fn rates_are_positive() {
        assert_eq!(parse_rate("500M"), Ok(500 << 20));
        assert!(parse_rate("0").is_err() && parse_rate("fast").is_err());
    }
}
