//! `--files`: cached pages of the files that a process uses, to where it runs.

mod report;

use super::target::{self, Wanted};
use crate::print;
use crate::terminal::Terminal;
use anyhow::{Context, ensure};
use hither_core::bind::astray::Bound;
use hither_core::set::NodeSet;
use hither_linux::backend::kernel::KernelBackend;
use hither_linux::bind::astray;
use hither_linux::filecache::{self, Cached};
use hither_linux::filter;
use hither_linux::root::Root;
use hither_linux::sys::{self, PidFd, Signals, Timer, Waiter};
use hither_linux::topology::Topology;
use hither_mover::Backend;
use report::{Done, Report, Row};
use std::os::unix::fs::MetadataExt;

/// What is asked for.
pub struct Order<'a> {
    /// Whose files.
    pub pid: i32,
    /// Where to; `None`: where its threads run.
    pub to: Option<&'a Wanted>,
    /// Change nothing.
    pub dry_run: bool,
    /// Print a document.
    pub json: bool,
    /// Bytes per second at most.
    pub rate: Option<u64>,
    /// The table goes to standard error.
    pub is_aside: bool,
}

/// Looks, moves and prints.
///
/// # Errors
/// No such process, or another user's; a target that is not there.
pub fn run(order: &Order<'_>, root: &Root, topology: &Topology) -> anyhow::Result<u8> {
    let pid = order.pid;
    let about = || format!("--files: process {pid}");
    check_owner(root, pid)?;
    let process = PidFd::open(pid).with_context(about)?;
    let binding = astray::binding(root, &astray::places(topology), pid).with_context(about)?;
    let bound = bound(order, root, topology, &binding.runs_on)?;
    let (files, more_count) = filecache::used(root, pid).with_context(about)?;
    let mut report = Report {
        pid,
        program: super::program(root, pid),
        nodes: bound.targets.iter().copied().collect(),
        rows: Vec::new(),
        empty_count: 0,
        skipped: Vec::new(),
        more_count,
        is_dry: order.dry_run,
        signal: None,
        moves_shared: sys::may_move_shared_pages(),
    };
    let mut open = Vec::new();
    for used in &files {
        let looked = Cached::open(root, pid, used).and_then(|file| Ok((file.look(&bound)?, file)));
        match looked {
            Ok((seen, _)) if seen.pages() == 0 => report.empty_count += 1,
            Ok((before, file)) => {
                let row = Row {
                    path: file.path().to_owned(),
                    how: used.how,
                    before,
                    done: None,
                };
                open.push((file, row));
            }
            Err(error) => report.skipped.push(error.to_string()),
        }
    }
    open.sort_by_key(|(_, row)| std::cmp::Reverse((row.before.elsewhere, row.before.pages())));
    if !order.dry_run {
        let mut mover = Mover::new(order.rate, process)?;
        for (file, row) in &mut open {
            if mover.signal.is_none() {
                row.done = Some(mover.file(file, &bound)?);
            }
        }
        report.signal = mover.signal;
    }
    report.rows = open.into_iter().map(|(_, row)| row).collect();
    match order.json {
        true => print::out(&print::json(report.json()))?,
        false if order.is_aside => print::err_report(&report.text(Terminal::of_errors())),
        false => print::report(&report.text(Terminal::of_output()))?,
    }
    Ok(report.status())
}

/// Files of another user's process are root's to move.
fn check_owner(root: &Root, pid: i32) -> anyhow::Result<()> {
    let about = std::fs::metadata(root.path(&format!("proc/{pid}")));
    let about = about.with_context(|| {
        format!("--pid {pid}: there is no such process; give the number of a running one")
    })?;
    let user = sys::effective_uid();
    ensure!(
        user == 0 || about.uid() == user,
        "--pid {pid}: the process is not yours; {}",
        filter::to_see_others()
    );
    Ok(())
}

/// Where pages belong: where it was asked for, or where the process runs. Pages on nodes without CPUs stay
/// then: tiers decide on them.
fn bound(
    order: &Order<'_>,
    root: &Root,
    topology: &Topology,
    runs_on: &NodeSet,
) -> anyhow::Result<Bound> {
    if let Some(wanted) = order.to {
        let allowed = super::allowed_nodes(root, order.pid, topology);
        let nodes = target::resolve(wanted, topology, &allowed)?.nodes();
        return Ok(Bound {
            targets: nodes.iter().collect(),
            right: nodes,
        });
    }
    ensure!(
        !runs_on.is_empty(),
        "--files: it is not known on which nodes process {} runs; say where to with --to",
        order.pid
    );
    let places = astray::places(topology);
    let without_cpus = places.iter().filter(|place| place.cpus.is_empty());
    let without_cpus: NodeSet = without_cpus.map(|place| place.node).collect();
    Ok(Bound {
        targets: runs_on.iter().collect(),
        right: runs_on.union(&without_cpus),
    })
}

/// Moves under a rate, and stops where a person wants it or the process ends.
struct Mover {
    backend: KernelBackend,
    rate: Option<u64>,
    start_ns: u64,
    bytes: u64,
    process: PidFd,
    signals: Signals,
    timer: Timer,
    signal: Option<i32>,
}

impl Mover {
    fn new(rate: Option<u64>, process: PidFd) -> anyhow::Result<Self> {
        let backend = match sys::may_move_shared_pages() {
            true => KernelBackend::with_shared_pages(),
            false => KernelBackend::of_own_memory(),
        };
        backend.probe().context("backend kernel")?;
        Ok(Self {
            backend,
            rate,
            start_ns: sys::monotonic_ns(),
            bytes: 0,
            process,
            signals: Signals::new(&[sys::SIGINT, sys::SIGTERM])
                .context("reading signals as data")?,
            timer: Timer::new().context("making a timer")?,
            signal: None,
        })
    }

    fn file(&mut self, file: &Cached, bound: &Bound) -> anyhow::Result<Done> {
        let mut done = Done::default();
        let Self {
            backend,
            rate,
            start_ns,
            bytes,
            process,
            signals,
            timer,
            signal,
        } = self;
        file.move_pages(bound, backend, &mut |outcome| {
            done.count(outcome);
            *bytes += outcome.bytes;
            let due_us = rate.map_or(0, |rate| (*bytes as f64 * 1e6 / rate as f64) as u64);
            let past_us = sys::monotonic_ns().saturating_sub(*start_ns) / 1000;
            if due_us > past_us && timer.arm(due_us - past_us).is_ok() {
                let _ = Waiter::new(timer, signals, Some(process), None).wait();
            }
            *signal = signals.take().map(|arrived| arrived.signal);
            signal.is_none()
        })?;
        done.after = file.look(bound).ok();
        Ok(done)
    }
}
