//! Moves the pages of a control group's processes off a node, batch by batch.
//!
//! A *pass* looks where all pages are and moves what it finds on the node; programs go on meanwhile
//! and may allocate there again until they are forbidden to, so one pass is seldom the last.
//! Pages go to the nearest node that is left and has room.

use crate::backend::kernel::KernelBackend;
use crate::partition::cgroup;
use crate::proc::pagemap::Pagemap;
use crate::proc::{maps, numa_maps, stat};
use crate::root::Root;
use crate::sys;
use hither_core::ids::{NodeId, Pid};
use hither_core::plan::Refusal;
use hither_mover::rate::TokenBucket;
use hither_mover::{Action, Backend, Job, Pages, Race};
use std::collections::BTreeMap;
use std::ops::Range;

/// Most pages per call of the backend: 8 MiB, so that who asks to stop need not wait long.
const BATCH_PAGES: usize = 2048;
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

/// Pages on a node of the processes of some groups. Processes that end meanwhile have none.
#[must_use]
pub fn find(root: &Root, folders: &[String], node: NodeId) -> Vec<Found> {
    let pids = folders
        .iter()
        .flat_map(|folder| cgroup::processes(root, folder));
    let found = pids.filter_map(|pid| find_of(root, pid, node));
    found.filter(|found| found.count() > 0).collect()
}

fn find_of(root: &Root, pid: i32, node: NodeId) -> Option<Found> {
    let start_ticks = start_ticks(root, pid)?;
    // No limit on its size: programs may have a hundred thousand mappings.
    let text = std::fs::read_to_string(root.path(&format!("proc/{pid}/numa_maps"))).ok()?;
    let on_node = numa_maps::parse(&text).ok()?.into_iter().filter(|mapping| {
        let mut pages = mapping.pages.iter();
        pages.any(|&(found, count)| found == node && count > 0)
    });
    let starts: std::collections::BTreeSet<u64> = on_node.map(|mapping| mapping.start).collect();
    let mut found = Found {
        pid,
        start_ticks,
        anonymous: Vec::new(),
        others: Vec::new(),
    };
    if starts.is_empty() {
        return Some(found);
    }
    let pagemap = Pagemap::open(root, pid).ok()?;
    for mapping in maps::read(root, pid).ok()? {
        if starts.contains(&mapping.range.start) {
            find_in(&pagemap, pid, mapping.pages(), node, &mut found);
        }
    }
    Some(found)
}

/// Adds the pages of a range that are on the node.
fn find_in(pagemap: &Pagemap, pid: i32, range: Range<u64>, node: NodeId, found: &mut Found) {
    let mut pages = Vec::new();
    let categories = sys::PAGE_IS_PRESENT | sys::PAGE_IS_FILE;
    let told = pagemap.scan_told(
        range.clone(),
        sys::PAGE_IS_PRESENT,
        categories,
        |run, is| {
            pages.extend(run.map(|page| (page, is & sys::PAGE_IS_FILE != 0)));
        },
    );
    if told.is_err() {
        // A kernel before 6.7: the entries tell the same.
        pages.clear();
        let mut entries = [0; 512];
        let (mut bytes, mut first) = (Vec::new(), range.start);
        while first < range.end {
            let most = entries.len().min((range.end - first) as usize);
            match pagemap.read(first, &mut entries[..most], &mut bytes) {
                Ok(got) if got > 0 => {
                    let present = (first..).zip(&entries[..got]);
                    let present =
                        present.filter(|(_, entry)| crate::proc::pagemap::is_present(**entry));
                    pages.extend(
                        present.map(|(page, entry)| (page, crate::proc::pagemap::is_file(*entry))),
                    );
                    first += got as u64;
                }
                _ => break,
            }
        }
    }
    let mut status = [0; 1024];
    for chunk in pages.chunks(status.len()) {
        let addresses: Vec<u64> = chunk.iter().map(|(page, _)| page << 12).collect();
        let status = &mut status[..chunk.len()];
        if sys::query_pages(pid, &addresses, status).is_err() {
            return;
        }
        for (&(page, is_file), &place) in chunk.iter().zip(&*status) {
            if place == node.0 as i32 {
                match is_file {
                    true => found.others.push(page),
                    false => found.anonymous.push(page),
                }
            }
        }
    }
}

/// When a process began; `None`: it has ended.
pub fn start_ticks(root: &Root, pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(root.path(&format!("proc/{pid}/stat"))).ok()?;
    let stat = stat::parse(&text).ok()?;
    (!matches!(stat.state, 'Z' | 'X')).then_some(stat.start_ticks)
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
    bucket: Option<TokenBucket>,
    /// What was moved, for the way back.
    pub gone: Vec<(i32, u64, Vec<u64>)>,
    /// What was done.
    pub tally: Tally,
}

impl Evacuation {
    /// At most so many bytes a second; `None`: as fast as the kernel can.
    #[must_use]
    pub fn new(root: &Root, rate: Option<u64>) -> Self {
        Self {
            root: root.clone(),
            backend: KernelBackend::with_shared_pages(),
            bucket: rate.map(|rate| TokenBucket::new(rate, sys::monotonic_ns())),
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
            let mut moved = Vec::new();
            let mut is_whole = true;
            for batch in pages.chunks(BATCH_PAGES) {
                // Its number may be somebody else's by now.
                if start_ticks(&self.root, process.pid) != Some(process.start_ticks) {
                    break;
                }
                if !self.wait(batch.len() as u64 * 4096, go_on) {
                    is_whole = false;
                    break;
                }
                moved.extend(self.batch(process.pid, batch, targets));
            }
            if !moved.is_empty() {
                self.gone.push((process.pid, process.start_ticks, moved));
            }
            if !is_whole {
                return false;
            }
        }
        true
    }

    /// Waits until the rate allows it; false: somebody wants to stop.
    fn wait(&mut self, bytes: u64, go_on: &mut dyn FnMut(&Tally, u64) -> bool) -> bool {
        loop {
            let wait_ns = match &mut self.bucket {
                Some(bucket) => bucket.take(bytes, sys::monotonic_ns()),
                None => None,
            };
            if !go_on(&self.tally, wait_ns.unwrap_or(0)) {
                return false;
            }
            if wait_ns.is_none() {
                return true;
            }
        }
    }

    fn batch(&mut self, pid: i32, pages: &[u64], targets: &[NodeId]) -> Vec<u64> {
        let Some(to) = self.roomiest(targets, pages.len() as u64) else {
            return Vec::new();
        };
        let job = Job {
            pid: Pid(pid),
            action: Action::Migrate {
                pages: Pages::Listed(pages),
                to,
            },
            race: Race::Block,
        };
        let outcome = self.backend.execute(&[job]).remove(0);
        self.tally.moved += outcome.moved.len() as u64;
        self.tally.duration_ns += outcome.duration_ns;
        for (refusal, count) in outcome.refused {
            *self.tally.refused.entry(refusal).or_default() += count;
        }
        outcome.moved
    }

    /// The first with room, or the one that has most.
    fn roomiest(&self, targets: &[NodeId], pages: u64) -> Option<NodeId> {
        let free = |node: NodeId| free_pages(&self.root, node).0;
        let mut by_room = targets.iter().map(|&node| (free(node), node));
        let roomy = by_room
            .clone()
            .find(|(free, _)| *free >= pages + MARGIN_PAGES);
        let first_of_most = |best: (u64, NodeId), next: (u64, NodeId)| {
            if next.0 > best.0 { next } else { best }
        };
        let most = by_room
            .next()
            .map(|first| by_room.fold(first, first_of_most));
        roomy.or(most).map(|(_, node)| node)
    }

    /// Moves what left the node back to it, as far as it is there still.
    pub fn back(&mut self, node: NodeId) {
        for (pid, start, pages) in std::mem::take(&mut self.gone) {
            for batch in pages.chunks(BATCH_PAGES) {
                if start_ticks(&self.root, pid) == Some(start) {
                    self.batch(pid, batch, &[node]);
                }
            }
        }
        self.gone.clear();
    }
}

/// Free pages of a node, and pages of files that could be dropped for others.
pub fn free_pages(root: &Root, node: NodeId) -> (u64, u64) {
    let path = format!("sys/devices/system/node/node{}/meminfo", node.0);
    let memory = root.parse(&path, |text| crate::parse::node_meminfo(text, node.0));
    memory.map_or((0, 0), |memory| (memory.free_kb / 4, memory.file_kb / 4))
}
