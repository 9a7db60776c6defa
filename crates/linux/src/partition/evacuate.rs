//! Moves the pages of a control group's processes off a node, batch by batch.
//!
//! A *pass* looks where all pages are and moves what it finds on the node; programs go on meanwhile
//! and may allocate there again until they are forbidden to, so one pass is seldom the last.
//! Pages go to the nearest node that is left and has room.

use crate::backend::kernel::KernelBackend;
use crate::error::{Error, Result};
use crate::parse::NodeMemory;
use crate::proc::cgroup;
use crate::proc::pagemap::{self, Pagemap};
use crate::proc::{maps, numa_maps, stat};
use crate::root::Root;
use crate::sys;
use hither_core::ids::{NodeId, Pid, SpaceId};
use hither_core::plan::Refusal;
use hither_mover::executor::cut;
use hither_mover::executor::{ExecutorStep, Limits, Queue, Task};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::time::Duration;

/// Most pages per call of the backend: 8 MiB, so that who asks to stop need not wait long.
const BATCH_PAGES: u64 = 2048;
/// Pages whose nodes are asked for in one call.
const ASKED_PAGES: usize = 4096;
/// Looks at most at a process that changes its address space under them, and the time in between.
const MOST_LOOKS: u32 = 20;
const LOOK_PAUSE: Duration = Duration::from_millis(1);
/// Free pages that a node keeps when another has room as well.
const MARGIN_PAGES: u64 = 1024;

/// Pages of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whose.
    pub pid: i32,
    /// When it began: numbers are used again.
    pub start_ticks: u64,
    /// Anonymous pages, ascending by page number.
    pub anonymous: Vec<u64>,
    /// Pages of files and shared memory.
    pub others: Vec<u64>,
}

impl Found {
    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        (self.anonymous.len() + self.others.len()) as u64
    }
}

/// Pages on a node of the processes of some groups. Processes that end meanwhile have none; one that
/// executes another program meanwhile is looked at again.
///
/// # Errors
/// A process that lives cannot be looked into.
pub fn find(root: &Root, folders: &[String], node: NodeId) -> Result<Vec<Found>> {
    let pids = folders
        .iter()
        .flat_map(|folder| cgroup::processes(root, folder));
    let mut all = Vec::new();
    for pid in pids {
        let mut looks = 0;
        while let Some(start) = start_ticks(root, pid) {
            match find_of(root, pid, start, node) {
                Ok(found) if found.count() > 0 => all.push(found),
                Ok(_) => {}
                Err(_) if start_ticks(root, pid) != Some(start) => {}
                Err(_) if looks < MOST_LOOKS => {
                    looks += 1;
                    std::thread::sleep(LOOK_PAUSE);
                    continue;
                }
                Err(error) => return Err(error),
            }
            break;
        }
    }
    Ok(all)
}

fn find_of(root: &Root, pid: i32, start_ticks: u64, node: NodeId) -> Result<Found> {
    let fail = |error: io::Error| {
        let remedy = "run hither as root, outside containers";
        let path = root.path(&format!("proc/{pid}/pagemap"));
        Error::io(path, format!("cannot be read ({error})"), remedy, error)
    };
    let mappings = numa_maps::read(root, pid)?;
    let on_node = mappings.into_iter().filter(|mapping| {
        let mut pages = mapping.pages.iter();
        pages.any(|&(found, count)| found == node && count > 0)
    });
    let starts: BTreeSet<u64> = on_node.map(|mapping| mapping.start).collect();
    let mut found = Found {
        pid,
        start_ticks,
        anonymous: Vec::new(),
        others: Vec::new(),
    };
    if starts.is_empty() {
        return Ok(found);
    }
    let pagemap = Pagemap::open(root, pid).map_err(fail)?;
    for mapping in maps::read(root, pid)? {
        if starts.contains(&mapping.range.start) {
            find_in(&pagemap, mapping.pages(), node, &mut found).map_err(fail)?;
        }
    }
    Ok(found)
}

/// Adds the pages of a range that are on the node.
fn find_in(
    pagemap: &Pagemap,
    range: Range<u64>,
    node: NodeId,
    found: &mut Found,
) -> io::Result<()> {
    let mut looked = Looked::default();
    let categories = sys::PAGE_IS_PRESENT | sys::PAGE_IS_FILE;
    let mut failed = Ok(());
    let told = pagemap.scan_told(
        range.clone(),
        sys::PAGE_IS_PRESENT,
        categories,
        |run, is| {
            for page in run {
                let added = looked.add(page, is & sys::PAGE_IS_FILE != 0, node, found);
                failed = std::mem::replace(&mut failed, Ok(())).and(added);
            }
        },
    );
    match told {
        Ok(()) => failed?,
        // A kernel before 6.7: the entries tell the same.
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
            let mut entries = [0; 512];
            let (mut bytes, mut first) = (Vec::new(), range.start);
            while first < range.end {
                let most = entries.len().min((range.end - first) as usize);
                let got = pagemap.read(first, &mut entries[..most], &mut bytes)?;
                for (page, &entry) in (first..).zip(&entries[..got]) {
                    if pagemap::is_present(entry) {
                        looked.add(page, pagemap::is_file(entry), node, found)?;
                    }
                }
                if got == 0 {
                    break;
                }
                first += got as u64;
            }
        }
        Err(error) => return Err(error),
    }
    looked.ask(node, found)
}

/// Pages whose node is asked for together.
#[derive(Default)]
struct Looked {
    addresses: Vec<u64>,
    are_files: Vec<bool>,
}

impl Looked {
    fn add(&mut self, page: u64, is_file: bool, node: NodeId, found: &mut Found) -> io::Result<()> {
        self.addresses.push(page << 12);
        self.are_files.push(is_file);
        match self.addresses.len() < ASKED_PAGES {
            true => Ok(()),
            false => self.ask(node, found),
        }
    }

    fn ask(&mut self, node: NodeId, found: &mut Found) -> io::Result<()> {
        let mut status = vec![0; self.addresses.len()];
        if !status.is_empty() {
            sys::query_pages(found.pid, &self.addresses, &mut status)?;
        }
        let pages = self.addresses.drain(..).zip(self.are_files.drain(..));
        for ((address, is_file), place) in pages.zip(status) {
            match is_file {
                _ if place != node.0 as i32 => {}
                true => found.others.push(address >> 12),
                false => found.anonymous.push(address >> 12),
            }
        }
        Ok(())
    }
}

/// When a process began; `None`: it has ended.
pub fn start_ticks(root: &Root, pid: i32) -> Option<u64> {
    let stat = stat::read(root, pid)?;
    (!stat.has_ended()).then_some(stat.start_ticks)
}

/// What passes have done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Looks at all pages.
    pub passes: u64,
    /// Pages that left the node.
    pub moved: u64,
    /// Pages that stayed, by reason, of the last pass.
    pub refused: BTreeMap<Refusal, u64>,
    /// Time in the backend, in ns.
    pub duration_ns: u64,
}

/// Moves pages under a rate limit, and knows which it has moved.
#[derive(Debug)]
pub struct Evacuation {
    root: Root,
    backend: KernelBackend,
    queue: Queue,
    /// What was moved, for the way back.
    pub gone: Vec<(i32, u64, Vec<u64>)>,
    /// What was done.
    pub tally: Tally,
}

/// Why pages of a process are not tried any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Somebody wants to stop.
    Stopped,
    /// Its number may be somebody else's by now.
    Gone,
}

impl Evacuation {
    /// At most so many bytes a second; `None`: as fast as the kernel can.
    #[must_use]
    pub fn new(root: &Root, rate: Option<u64>) -> Self {
        Self {
            root: root.clone(),
            backend: KernelBackend::with_shared_pages(),
            queue: queue(rate),
            gone: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Moves what was found to the first of these nodes that has room; `go_on` is asked between
    /// batches with the pages moved since this began, and sleeps as long as it is told. Returns
    /// whether all was tried.
    pub fn pass(
        &mut self,
        found: &[Found],
        targets: &[NodeId],
        go_on: &mut dyn FnMut(&Tally, u64) -> bool,
    ) -> bool {
        self.tally.passes += 1;
        self.tally.refused.clear();
        for process in found {
            let mut pages: Vec<u64> = [&process.anonymous[..], &process.others[..]].concat();
            pages.sort_unstable();
            let (pid, start_ticks) = (process.pid, process.start_ticks);
            let (moved, cut) = self.process(pid, start_ticks, pages, targets, go_on);
            if !moved.is_empty() {
                self.gone.push((pid, start_ticks, moved));
            }
            if cut == Some(Cut::Stopped) {
                return false;
            }
        }
        true
    }

    /// Moves pages of one process, batch by batch. Returns those that moved.
    fn process(
        &mut self,
        pid: i32,
        start: u64,
        pages: Vec<u64>,
        targets: &[NodeId],
        go_on: &mut dyn FnMut(&Tally, u64) -> bool,
    ) -> (Vec<u64>, Option<Cut>) {
        let Some(roomiest) = self.refresh(targets) else {
            return (Vec::new(), None);
        };
        // Where none has room, the one that has most is asked all the same.
        let to = [targets, &[roomiest]].concat();
        let task = Task {
            id: 0,
            pid: Pid(pid),
            space: SpaceId(0),
            pages: cut::runs(pages),
            to,
        };
        self.queue.submit(task).expect("it is the only one");
        let (mut cut, mut wait_ns) = (None, 0);
        while self.queue.task_count() > 0 {
            if start_ticks(&self.root, pid) != Some(start) {
                cut = Some(Cut::Gone);
            } else if !go_on(&self.tally, wait_ns) {
                cut = Some(Cut::Stopped);
            }
            if cut.is_some() {
                self.queue.cancel(|_| true);
                break;
            }
            self.refresh(targets);
            let (tally, now_ns) = (&mut self.tally, sys::monotonic_ns());
            let step = self
                .queue
                .step(&mut self.backend, now_ns, &mut |_, outcomes| {
                    for outcome in outcomes {
                        tally.moved += outcome.moved.len() as u64;
                        tally.duration_ns += outcome.duration_ns;
                    }
                });
            wait_ns = match step {
                ExecutorStep::Wait(wait_ns) => wait_ns,
                ExecutorStep::Done | ExecutorStep::Idle => 0,
            };
        }
        let mut moved = Vec::new();
        for (_, outcome) in self.queue.take_finished() {
            moved.extend(outcome.moved);
            let tried = outcome.refused.into_iter();
            for (refusal, count) in tried.filter(|&(why, _)| why != Refusal::Dropped) {
                *self.tally.refused.entry(refusal).or_default() += count;
            }
        }
        (moved, cut)
    }

    /// Looks how much room there is; returns the node that has most.
    fn refresh(&mut self, targets: &[NodeId]) -> Option<NodeId> {
        let mut most: Option<(u64, NodeId)> = None;
        for &node in targets {
            let available = memory(&self.root, node).available_kb() / 4;
            self.queue
                .set_room(node, available.saturating_sub(MARGIN_PAGES));
            if most.is_none_or(|(known, _)| available > known) {
                most = Some((available, node));
            }
        }
        most.map(|(_, node)| node)
    }

    /// Moves what left the node back to it, as far as it is there still, at full speed.
    pub fn back(&mut self, node: NodeId) {
        self.queue = queue(None);
        for (pid, start, pages) in std::mem::take(&mut self.gone) {
            let _ = self.process(pid, start, pages, &[node], &mut |_, _| true);
        }
    }
}

fn queue(rate: Option<u64>) -> Queue {
    let limits = Limits {
        slice_pages: BATCH_PAGES,
        ..Limits::with_rate(rate)
    };
    Queue::new(limits, sys::monotonic_ns())
}

/// What a node's memory is used for; nothing where it is gone.
#[must_use]
pub fn memory(root: &Root, node: NodeId) -> NodeMemory {
    let path = format!("sys/devices/system/node/node{}/meminfo", node.0);
    let memory = root.parse(&path, |text| crate::parse::node_meminfo(text, node.0));
    memory.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    const GROUP: &str = "sys/fs/cgroup/some";

    /// This machine's processes, and a group that has these.
    fn group(pids: &[u32]) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let members: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
        std::fs::create_dir_all(folder.path().join(GROUP)).unwrap();
        std::fs::write(folder.path().join(GROUP).join("cgroup.procs"), members).unwrap();
        std::os::unix::fs::symlink("/proc", folder.path().join("proc")).unwrap();
        let root = Root::new(folder.path());
        (folder, root)
    }

    #[test]
    fn who_executes_another_program_is_looked_at_again() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("again");
        std::fs::write(&script, "exec /bin/sh $0\n").unwrap();
        let mut command = Command::new("/bin/sh");
        let mut child = command.arg(&script).stderr(Stdio::null()).spawn().unwrap();
        let (_folder, root) = group(&[child.id()]);
        for look in 0..2000 {
            let found = find(&root, &[GROUP.to_owned()], NodeId(0));
            assert!(found.is_ok(), "look {look}: {found:?}");
        }
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn who_ends_has_no_pages() {
        let mut child = Command::new("/bin/true").spawn().unwrap();
        let (_folder, root) = group(&[child.id()]);
        while start_ticks(&root, child.id() as i32).is_some() {
            find(&root, &[GROUP.to_owned()], NodeId(0)).unwrap();
        }
        assert_eq!(find(&root, &[GROUP.to_owned()], NodeId(0)).unwrap(), []);
        child.wait().unwrap();
    }

    #[test]
    fn a_pass_ends_where_it_is_stopped_and_passes_over_who_is_somebody_else() {
        let mut child = Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let (_folder, root) = group(&[child.id()]);
        let wait_ms = std::time::Duration::from_millis(1);
        let mut found = Vec::new();
        while found.is_empty() {
            std::thread::sleep(wait_ms);
            found = find(&root, &[GROUP.to_owned()], NodeId(0)).unwrap();
        }
        // All are where they shall go: nothing moves, and nothing is refused.
        let mut evacuation = Evacuation::new(&root, Some(1 << 40));
        let mut asked = 0;
        let mut go_on = |_: &Tally, _| {
            asked += 1;
            true
        };
        assert!(evacuation.pass(&found, &[NodeId(0)], &mut go_on));
        assert!(asked > 0);
        assert!(!evacuation.pass(&found, &[NodeId(0)], &mut |_, _| false));
        found[0].start_ticks += 1;
        assert!(evacuation.pass(&found, &[NodeId(0)], &mut |_, _| panic!("nobody is left")));
        let tally = Tally {
            passes: 3,
            duration_ns: evacuation.tally.duration_ns,
            ..Tally::default()
        };
        assert_eq!(evacuation.tally, tally);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
