//! `--files`: cached pages of the files that a process uses, to where it runs.

use super::target::{self, Wanted};
use crate::print::{self, Table};
use crate::terminal::Terminal;
use crate::{STATUS_FAILED, signal_status};
use anyhow::{Context, ensure};
use hither_core::bind::astray::Bound;
use hither_core::foreign::Foreign;
use hither_core::ids::NodeId;
use hither_core::plan::Refusal;
use hither_core::set::NodeSet;
use hither_linux::backend::kernel::KernelBackend;
use hither_linux::bind::astray;
use hither_linux::filecache::{self, Cached, How, Seen};
use hither_linux::filter;
use hither_linux::root::Root;
use hither_linux::sys::{self, PidFd, Signals, Timer, Waiter};
use hither_linux::topology::Topology;
use hither_mover::{Backend, Outcome};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;

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
}

/// A file, and what became of its pages.
#[derive(Clone, Debug)]
struct Row {
    path: PathBuf,
    how: How,
    before: Seen,
    done: Option<Done>,
}

/// What became of the pages of a file.
#[derive(Clone, Debug, Default)]
struct Done {
    moved: u64,
    already_there: u64,
    refused: BTreeMap<Refusal, u64>,
    duration_ns: u64,
    after: Option<Seen>,
}

impl Done {
    fn count(&mut self, outcome: &Outcome) {
        self.moved += outcome.moved.len() as u64;
        self.already_there += outcome.already_there;
        self.duration_ns += outcome.duration_ns;
        for &(why, count) in &outcome.refused {
            *self.refused.entry(why).or_default() += count;
        }
    }

    fn add(&mut self, other: &Self) {
        self.moved += other.moved;
        self.already_there += other.already_there;
        self.duration_ns += other.duration_ns;
        for (&why, count) in &other.refused {
            *self.refused.entry(why).or_default() += count;
        }
        match (&mut self.after, &other.after) {
            (Some(sum), Some(after)) => sum.add(after),
            (sum, _) => *sum = None,
        }
    }
}

/// Everything that is told.
struct Report {
    pid: i32,
    program: String,
    nodes: NodeSet,
    /// Files with cached pages, those with most elsewhere first.
    rows: Vec<Row>,
    /// Files without any.
    empty_count: usize,
    /// Files that could not be looked at, with the reasons.
    skipped: Vec<String>,
    /// Files beyond the most that are looked at.
    more_count: usize,
    is_dry: bool,
    signal: Option<i32>,
    moves_shared: bool,
}

/// Looks, moves and prints.
///
/// # Errors
/// No such process, or another user's; a target that is not there.
pub fn run(order: &Order<'_>, root: &Root, topology: &Topology) -> anyhow::Result<ExitCode> {
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
        false => print::report(&report.text(Terminal::of_output()))?,
    }
    Ok(ExitCode::from(report.status()))
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

impl Report {
    fn before(&self) -> Seen {
        let mut sum = Seen::default();
        self.rows.iter().for_each(|row| sum.add(&row.before));
        sum
    }

    fn done(&self) -> Option<Done> {
        let mut all = self
            .rows
            .iter()
            .map(|row| row.done.clone().unwrap_or_default());
        let mut sum = all.next().unwrap_or(Done {
            after: Some(Seen::default()),
            ..Done::default()
        });
        all.for_each(|done| sum.add(&done));
        (!self.is_dry).then_some(sum)
    }

    fn status(&self) -> u8 {
        let done = self.done().unwrap_or_default();
        let wanted = self.before().elsewhere > 0 && !self.is_dry;
        match self.signal {
            Some(signal) => signal_status(signal),
            None if wanted && done.moved == 0 => STATUS_FAILED,
            None => 0,
        }
    }

    fn text(&self, terminal: Terminal) -> String {
        let before = self.before();
        let mut text = format!(
            "pid {} ({}), files to nodes {}: {} in memory of {}",
            self.pid,
            self.program.shown(),
            self.nodes,
            super::report::pages(before.pages()),
            print::count(self.rows.len(), "file"),
        );
        if self.empty_count > 0 {
            text += &format!(", {} without a page", self.empty_count);
        }
        text += "\n\n";
        let head = [
            "file",
            "use",
            "before",
            "would move",
            "moved",
            "refused",
            "after",
        ];
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| self.cells(row)).collect();
        text += &Table::new(&head, &rows).text(terminal);
        text += "\n";
        let share = |seen: &Seen| {
            let percent = 100.0 * seen.elsewhere as f64 / seen.pages().max(1) as f64;
            format!(
                "{percent:.1} % ({} of {} pages)",
                seen.elsewhere,
                seen.pages()
            )
        };
        match self.done() {
            None => {
                text += &format!(
                    "elsewhere: {}\ndry run, nothing was changed: {} would be tried\n",
                    share(&before),
                    super::report::pages(before.elsewhere)
                );
            }
            Some(done) => {
                let after = done.after.as_ref().map_or("unknown".to_owned(), share);
                text += &format!("elsewhere: before {}, after {after}\n", share(&before));
                text += &format!(
                    "moved {} in {}\n",
                    super::report::pages(done.moved),
                    crate::units::time(done.duration_ns as f64)
                );
            }
        }
        for note in self.notes() {
            text += &format!("{note}\n");
        }
        text
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let done = row.done.as_ref();
        vec![
            row.path.shown().to_string(),
            row.how.word().to_owned(),
            by_node(&row.before),
            match self.is_dry {
                true => row.before.elsewhere.to_string(),
                false => String::new(),
            },
            done.map_or_else(String::new, |done| done.moved.to_string()),
            done.map_or_else(String::new, |done| refusals(done)),
            done.and_then(|done| done.after.as_ref())
                .map_or_else(String::new, by_node),
        ]
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let shared = self
            .done()
            .is_some_and(|done| done.refused.contains_key(&Refusal::Shared));
        if shared && !self.moves_shared {
            notes.push(
                "what other processes map, too (the program itself is one), moves where root asks for it \
                 (CAP_SYS_NICE): run hither as root"
                    .to_owned(),
            );
        }
        if self.signal.is_some() {
            notes.push("interrupted: the files that follow were not tried".to_owned());
        }
        notes.extend(
            self.skipped
                .iter()
                .map(|why| format!("not looked at: {why}")),
        );
        if self.more_count > 0 {
            notes.push(format!("not looked at: {} more files", self.more_count));
        }
        notes
    }

    fn json(&self) -> Value {
        let nodes = |seen: &Seen| {
            let nodes = seen.nodes.iter();
            let nodes: Vec<Value> = nodes
                .map(|(node, pages): (&NodeId, _)| json!({ "node": node, "pages": pages }))
                .collect();
            json!({ "nodes": nodes, "pages": seen.pages(), "elsewhere_pages": seen.elsewhere })
        };
        let done = |value: &mut Value, done: Option<&Done>| {
            let Some(done) = done else { return };
            value["moved_pages"] = done.moved.into();
            value["refused"] = done
                .refused
                .iter()
                .map(|(why, n)| json!([why.name(), n]))
                .collect();
            value["duration_ns"] = done.duration_ns.into();
            value["after"] = done.after.as_ref().map_or(Value::Null, nodes);
        };
        let rows = self.rows.iter().map(|row| {
            let mut value = json!({
                "path": row.path.to_string_lossy(),
                "use": row.how.word(),
                "before": nodes(&row.before),
            });
            done(&mut value, row.done.as_ref());
            value
        });
        let rows: Vec<Value> = rows.collect();
        let mut total = json!({ "before": nodes(&self.before()) });
        done(&mut total, self.done().as_ref());
        json!({
            "schema": "hither.move-files/1",
            "pid": self.pid,
            "program": self.program,
            "to_nodes": self.nodes.iter().collect::<Vec<_>>(),
            "ended": match (self.is_dry, self.signal) {
                (true, _) => "dry_run",
                (_, None) => "done",
                (_, Some(_)) => "interrupted",
            },
            "page_bytes": 4096,
            "files": rows,
            "empty_file_count": self.empty_count,
            "total": total,
            "skipped": self.skipped,
            "more_file_count": self.more_count,
            "notes": self.notes(),
        })
    }
}

/// `node0 12, node1 7`.
fn by_node(seen: &Seen) -> String {
    let parts: Vec<String> = seen
        .nodes
        .iter()
        .map(|(node, count)| format!("{node} {count}"))
        .collect();
    parts.join(", ")
}

fn refusals(done: &Done) -> String {
    let refused = done.refused.iter();
    let parts: Vec<String> = refused
        .map(|(why, count)| format!("{count} {why}"))
        .collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(nodes: &[(u32, u64)], elsewhere: u64) -> Seen {
        Seen {
            nodes: nodes
                .iter()
                .map(|&(node, count)| (NodeId(node), count))
                .collect(),
            gone: 0,
            elsewhere,
        }
    }

    fn report(done: Option<Done>) -> Report {
        let row = |path: &str, before: Seen, done: Option<Done>| Row {
            path: path.into(),
            how: How::Open,
            before,
            done,
        };
        let nothing = done.as_ref().map(|_| Done {
            after: Some(seen(&[(0, 10)], 0)),
            ..Done::default()
        });
        Report {
            pid: 7,
            program: "db".to_owned(),
            nodes: "0".parse().unwrap(),
            is_dry: done.is_none(),
            rows: vec![
                row("/srv/a", seen(&[(0, 2), (1, 88)], 88), done),
                row("/srv/b", seen(&[(0, 10)], 0), nothing),
            ],
            empty_count: 1,
            skipped: vec!["/srv/c: cannot be opened".to_owned()],
            more_count: 0,
            signal: None,
            moves_shared: false,
        }
    }

    #[test]
    fn before_and_after_are_told_with_what_stayed_and_why() {
        let text = report(None).text(Terminal::PIPE);
        assert!(
            text.contains("elsewhere: 88.0 % (88 of 100 pages)\ndry run, "),
            "{text}"
        );
        assert!(
            text.contains("not looked at: /srv/c: cannot be opened"),
            "{text}"
        );
        let done = Done {
            moved: 80,
            refused: BTreeMap::from([(Refusal::Shared, 8)]),
            after: Some(seen(&[(0, 82), (1, 8)], 8)),
            ..Done::default()
        };
        let report = report(Some(done));
        let text = report.text(Terminal::PIPE);
        assert!(
            text.contains("before 88.0 % (88 of 100 pages), after 8.0 % (8 of 100"),
            "{text}"
        );
        assert!(text.contains("run hither as root"), "{text}");
        let data = report.json();
        assert_eq!(data["total"]["after"]["elsewhere_pages"], 8);
        assert_eq!(data["files"][0]["refused"][0][1], 8);
        assert_eq!((report.status(), data["ended"].as_str()), (0, Some("done")));
    }

    #[test]
    fn nothing_moved_of_what_should_is_a_failure() {
        assert_eq!(report(None).status(), 0);
        assert_eq!(report(Some(Done::default())).status(), STATUS_FAILED);
    }
}
