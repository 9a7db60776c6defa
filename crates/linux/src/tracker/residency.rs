//! The tracker `residency`: where the pages of the watched processes are, on any machine.
//!
//! It knows no accesses, and says so: its pages are listed as present. Present pages come from
//! `PAGEMAP_SCAN`; kernels before 6.7 and refusals fall back to `maps` and the page map, with a
//! note. The node of each page comes from its frame, where that is told, else from a `move_pages(2)` query. An
//! interval looks at no more than [`PAGES_PER_INTERVAL`] pages, and goes on where the last one stopped.

use super::Tracker;
use super::by_page::ByPage;
use crate::error::Result;
use crate::proc::maps;
use crate::proc::pagemap::{self, Pagemap};
use crate::proc::tree::{LiveProcess, Tree};
use crate::root::Root;
use crate::sys::{self, OwnMapping, PAGE_IS_HUGE, PAGE_IS_PRESENT};
use hither_core::ids::Pid;
use hither_core::plan::{Listing, Sampling};
use hither_core::snapshot::{Evidence, GlobalMetrics, PresentPage, Snapshot};
use std::ops::Range;

/// Pages looked at per interval: some 5 ms of queries.
pub const PAGES_PER_INTERVAL: usize = 1 << 15;
/// Page-map entries per read.
const READ_PAGES: u64 = 1 << 14;
/// User addresses end here, in pages: a page below 2^47 (five-level tables are used only when
/// asked for), and a scan that goes further is refused whole.
const USER_END_PAGE: u64 = ((1 << 47) >> 12) - 1;
const NO_ACCESSES: &str = "the tracker `residency` sees where pages are, not who uses them";

/// What listing residents beside a tracker may cost.
#[derive(Debug, PartialEq)]
struct Pace {
    /// CPU time, as a share of the interval.
    share: f64,
    /// Pages of an interval at most, and at first.
    pages: usize,
}

/// 0.5 %; some 0.6 ms of queries, and as much for whoever decides by them.
const SLOW: Pace = Pace {
    share: 0.005,
    pages: 1 << 12,
};
/// Where a node runs out of memory: 10 %, 5 ms.
const FAST: Pace = Pace {
    share: 0.1,
    pages: PAGES_PER_INTERVAL,
};

/// Where pages are, part after part of the watched memory.
#[derive(Debug)]
struct Rounds {
    root: Root,
    /// The process and the page at which the next part begins.
    resume: (i32, u64),
    scan_refused: bool,
    notes: Vec<String>,
    found: Vec<(u64, bool)>,
    by_page: ByPage,
}

impl Rounds {
    fn new(root: Root) -> Self {
        Self {
            by_page: ByPage::new(&root),
            root,
            resume: (0, 0),
            scan_refused: false,
            notes: Vec::new(),
            found: Vec::new(),
        }
    }

    /// Adds the next `most` pages.
    fn add(&mut self, processes: &[LiveProcess], most: usize, pages: &mut Vec<PresentPage>) {
        let start = processes.iter().position(|p| p.pid == self.resume.0);
        let first = if start.is_some() { self.resume.1 } else { 0 };
        self.resume = (0, 0);
        let mut left = most;
        for (index, process) in processes.iter().enumerate().skip(start.unwrap_or(0)) {
            let from = if Some(index) == start { first } else { 0 };
            self.present(process, from, left);
            self.add_homes(process, pages);
            left -= self.found.len();
            if left == 0 {
                let next = self.found.last().map_or(0, |&(page, _)| page + 1);
                self.resume = (process.pid, next);
                break;
            }
        }
    }

    /// Adds what was found with the node that each page is on; pages that went meanwhile are left out.
    fn add_homes(&mut self, process: &LiveProcess, pages: &mut Vec<PresentPage>) {
        let Some(map) = &process.pagemap else { return };
        let runs = self.found.chunk_by(|a, b| a.0 + 1 == b.0);
        let ranges: Vec<Range<u64>> = runs.map(|run| run[0].0..run[run.len() - 1].0 + 1).collect();
        let places = self.by_page.places(process.pid, map, &ranges);
        pages.extend(places.into_iter().filter_map(|(page, home)| {
            let at = self
                .found
                .binary_search_by_key(&page, |&(page, _)| page)
                .ok()?;
            Some(PresentPage {
                pid: Pid(process.pid),
                page,
                home,
                huge: self.found[at].1,
                accesses: 0,
            })
        }));
    }

    /// Present pages of a process from `first` on, ascending, at most `most`, with whether they
    /// are parts of huge pages.
    fn present(&mut self, process: &LiveProcess, first: u64, most: usize) {
        self.found.clear();
        let Some(map) = &process.pagemap else { return };
        if !self.scan_refused {
            match scan_present(map, first, most, &mut self.found) {
                Ok(()) => return,
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::ENOTTY | libc::EINVAL | libc::EPERM)
                    ) =>
                {
                    self.scan_refused = true;
                    self.notes.push(format!(
                        "PAGEMAP_SCAN is not to be had ({error}; Linux 6.7 has it): page maps are \
                         read instead, and huge pages are not told apart"
                    ));
                }
                Err(_) => return,
            }
        }
        self.found.clear();
        let mappings = maps::read(&self.root, process.pid).unwrap_or_default();
        let ranges = mappings.iter().map(OwnMapping::pages);
        read_present(map, ranges, first, most, &mut self.found);
    }
}

/// Looks where pages are.
#[derive(Debug)]
pub struct ResidencyTracker {
    rounds: Rounds,
}

impl ResidencyTracker {
    /// A tracker that begins at the first page of the first process.
    #[must_use]
    pub fn new(root: Root) -> Self {
        Self {
            rounds: Rounds::new(root),
        }
    }
}

/// Pages that were not sampled, beside a tracker of accesses: a part of them in each interval.
#[derive(Debug)]
pub struct Residents {
    rounds: Rounds,
    most: usize,
    pace: Pace,
}

impl Residents {
    /// Begins at the first page of the first process.
    #[must_use]
    pub fn new(root: Root) -> Self {
        Self {
            rounds: Rounds::new(root),
            most: SLOW.pages,
            pace: SLOW,
        }
    }

    /// How many are listed from now on.
    pub fn set_listing(&mut self, listing: Listing) {
        let pace = match listing {
            Listing::Fast => FAST,
            Listing::Off | Listing::Counted | Listing::Slow => SLOW,
        };
        if pace != self.pace {
            self.most = pace.pages;
            self.pace = pace;
        }
    }

    /// Are they listed as fast as can be?
    #[must_use]
    pub fn is_fast(&self) -> bool {
        self.pace == FAST
    }

    /// Adds the next part.
    pub fn add(&mut self, tree: &Tree, snapshot: &mut Snapshot) {
        let began_ns = sys::thread_cpu_ns();
        self.rounds
            .add(tree.processes(), self.most, &mut snapshot.present);
        let used_ns = sys::thread_cpu_ns().saturating_sub(began_ns).max(1) as f64;
        let granted_ns = snapshot.interval_us as f64 * 1000.0 * self.pace.share;
        let most = self.most as f64 * (granted_ns / used_ns).clamp(0.5, 2.0);
        self.most = (most as usize).clamp(256, self.pace.pages);
    }

    /// Sentences for a person that came up since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.rounds.notes)
    }
}

fn scan_present(
    map: &Pagemap,
    first: u64,
    most: usize,
    found: &mut Vec<(u64, bool)>,
) -> std::io::Result<()> {
    let pages = first..USER_END_PAGE;
    map.scan_first(pages, PAGE_IS_PRESENT, most as u64, |range| {
        let room = most.saturating_sub(found.len()) as u64;
        found.extend(range.take(room as usize).map(|page| (page, false)));
    })?;
    let (Some(&(low, _)), Some(&(high, _))) = (found.first(), found.last()) else {
        return Ok(());
    };
    map.scan(low..high + 1, PAGE_IS_PRESENT | PAGE_IS_HUGE, |range| {
        let from = found.partition_point(|&(page, _)| page < range.start);
        let to = found.partition_point(|&(page, _)| page < range.end);
        found[from..to].iter_mut().for_each(|entry| entry.1 = true);
    })
}

fn read_present(
    map: &Pagemap,
    ranges: impl Iterator<Item = Range<u64>>,
    first: u64,
    most: usize,
    found: &mut Vec<(u64, bool)>,
) {
    let (mut entries, mut bytes) = (Vec::new(), Vec::new());
    for range in ranges {
        let mut page = range.start.max(first);
        while page < range.end && found.len() < most {
            entries.resize((range.end - page).min(READ_PAGES) as usize, 0);
            let got = map.read(page, &mut entries, &mut bytes).unwrap_or(0);
            if got == 0 {
                break;
            }
            let present = (page..)
                .zip(&entries[..got])
                .filter(|&(_, &e)| pagemap::is_present(e));
            found.extend(
                present
                    .map(|(page, _)| (page, false))
                    .take(most - found.len()),
            );
            page += got as u64;
        }
    }
}

impl Tracker for ResidencyTracker {
    fn name(&self) -> &'static str {
        "residency"
    }

    fn set_sampling(&mut self, _: Sampling) {}

    fn observe(&mut self, tree: &mut Tree, snapshot: &mut Snapshot) -> Result<()> {
        snapshot.metrics = GlobalMetrics::unknown(NO_ACCESSES);
        snapshot.sample_count = Evidence::unknown(NO_ACCESSES);
        snapshot.sample_period = 0;
        snapshot.samples_lost = 0;
        snapshot.pages.clear();
        self.rounds
            .add(tree.processes(), PAGES_PER_INTERVAL, &mut snapshot.present);
        Ok(())
    }

    fn stop(&mut self) {}

    fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.rounds.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::empty_snapshot;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    #[test]
    fn both_ways_find_the_pages_of_a_child() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60; true"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut tree = Tree::new(Root::host(), shell.id() as i32);
        let mut now_us = 0;
        while !tree.processes().iter().any(|p| p.name == "sleep") {
            now_us += 2_000_000;
            assert!(now_us < 4_000_000_000, "the child was not found");
            tree.refresh(now_us).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        let process = tree.processes().iter().find(|p| p.name == "sleep").unwrap();
        let mut tracker = ResidencyTracker::new(Root::host());
        // The child is still being loaded: until two looks agree it may map pages in between.
        let agree = (0..500).any(|_| {
            tracker.rounds.scan_refused = false;
            tracker.rounds.present(process, 0, 10_000);
            let scanned: Vec<u64> = tracker.rounds.found.iter().map(|&(page, _)| page).collect();
            let refused = std::mem::replace(&mut tracker.rounds.scan_refused, true);
            tracker.rounds.present(process, 0, 10_000);
            std::thread::sleep(Duration::from_millis(2));
            refused
                || tracker
                    .rounds
                    .found
                    .iter()
                    .map(|&(page, _)| page)
                    .eq(scanned)
        });
        assert!(
            agree && tracker.rounds.found.len() > 20,
            "{} pages",
            tracker.rounds.found.len()
        );
        let topology = crate::topology::Topology::read(&Root::host()).unwrap();
        let mut snapshot = empty_snapshot(&topology);
        tracker.observe(&mut tree, &mut snapshot).unwrap();
        assert!(
            snapshot
                .pages
                .iter()
                .all(|page| topology.position(page.home).is_some())
        );
        assert!(snapshot.present.len() > 20 && !snapshot.sample_count.is_known());
        for process in tree.processes() {
            let _ = sys::PidFd::open(process.pid).and_then(|handle| handle.signal(libc::SIGKILL));
        }
        shell.wait().unwrap();
    }
}
