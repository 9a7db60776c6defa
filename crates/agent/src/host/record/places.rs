//! Where things are: mappings of the watched processes, and the nodes that their pages are on.
//!
//! The kernel walks the page tables of a process to tell (`numa_maps`), which takes some 10 ms per
//! GB and holds a lock that page faults want. So the time between two looks follows what a look
//! costs, and doubles while looks find nothing new and processes stay as large as they were: pages
//! that are moved meanwhile are seen at most [`MOST_NS`] later. Where instructions are counted, a look
//! is paid for before it is made. The first is lent, so that also a short program's places are known;
//! of a process with more than [`COUNTED_PAGES`] it asks about some pages that stand for all, so that
//! little is lent. Address spaces that come later are looked at sooner for their mappings alone, which
//! is cheap.

use crate::host::spread::Spread;
use hither_core::snapshot::PAGE_BYTES;
use hither_linux::proc::tree::{self, Tree};
use hither_linux::proc::{maps, numa_maps};
use hither_linux::root::Root;
use hither_linux::sys::{self, OwnMapping as Mapped};
use hither_recording::rows::{Mapping, Process, Residency};
use std::collections::BTreeMap;

/// Least time between two looks, in ns.
const LEAST_NS: u64 = 1_000_000_000;
/// The same while no process grows or shrinks.
const CALM_NS: u64 = 2 * LEAST_NS;
/// Most time between two looks, unless a look takes so long that more is due.
const MOST_NS: u64 = 8_000_000_000;
/// Most time between two looks for what they cost in instructions: also who executes nothing may have
/// its pages moved.
const RAREST_NS: u64 = 60_000_000_000;
/// Time between two looks for each of a look: a quarter of a percent of one CPU.
const REST: u64 = 400;
/// About what a look costs in instructions for each process: its mappings, where each of its pages is,
/// and what that comes to. By the lab's counters around a look at `gups` with 16,400 pages.
const MAPPINGS_INSTRUCTIONS: u64 = 300_000;
const PAGE_INSTRUCTIONS: u64 = 150;
const RESIDENCY_INSTRUCTIONS: u64 = 150_000;
/// Pages in memory up to which a look that is lent counts them all.
const COUNTED_PAGES: u64 = 4096;
/// Pages that it asks about in a larger process, and how many of those must be in memory: a process
/// may map far more than it uses. Half of 300 is known to 6 % then, in two of three looks to 3 %.
const ASKED: usize = 512;
/// What each takes in instructions: by the lab's counters around `move_pages(2)`, of 1,024 pages.
const ASKED_INSTRUCTIONS: u64 = 630;
const LEAST_FOUND: usize = 128;
/// A process that has grown or shrunk by its N-th part since it was looked at is looked at anew.
const CHANGED: u64 = 16;

/// A process as it was seen last.
#[derive(Debug)]
struct Known {
    row: Process,
    incarnation: u32,
    /// Have this address space's mappings not been looked at yet?
    is_new: bool,
    /// Pages in memory when it was looked at.
    resident_pages: u64,
    /// Start of a mapping to its end, permissions and name.
    mappings: BTreeMap<u64, (u64, String, String)>,
}

/// Looks at places.
#[derive(Debug)]
pub struct Places {
    root: Root,
    known: BTreeMap<i32, Known>,
    ended: Vec<Process>,
    looked_ns: Option<u64>,
    /// Time to the next look while nothing changes.
    wait_ns: u64,
    /// What the last look took, and what it found of residency.
    look_ns: u64,
    residency: Vec<Residency>,
    /// Instructions that looks took, less what they might take; below 0: saved for the next.
    owed: f64,
    /// When that was brought up to date.
    reckoned_ns: u64,
    /// When mappings were looked at last.
    mappings_ns: u64,
}

/// What a look found.
#[derive(Debug, Default)]
pub struct Found {
    /// Mappings that are new, or have changed.
    pub mappings: Vec<Mapping>,
    /// Where pages are.
    pub residency: Vec<Residency>,
}

impl Places {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(root: Root) -> Self {
        Self {
            root,
            known: BTreeMap::new(),
            ended: Vec::new(),
            looked_ns: None,
            wait_ns: CALM_NS,
            look_ns: 0,
            residency: Vec::new(),
            owed: 0.0,
            reckoned_ns: 0,
            mappings_ns: 0,
        }
    }

    /// Follows the processes; looks where their pages are if that is due. Times are since the
    /// recording began; looks may cost `affordable` instructions per us, where that is known.
    pub fn look(&mut self, tree: &Tree, now_ns: u64, affordable: Option<f64>) -> Option<Found> {
        self.follow(tree, now_ns);
        let is_lent = self.looked_ns.is_none() && affordable.is_some();
        let price = price(tree, is_lent);
        self.reckon(now_ns, affordable, price);
        if !self.is_due(tree, now_ns, affordable, price) {
            return self.look_at_new(now_ns, affordable);
        }
        let start_ns = sys::monotonic_ns();
        let mut found = Found::default();
        self.owed += price;
        for process in tree.processes() {
            if let Some(known) = self.known.get_mut(&process.pid) {
                known.resident_pages = process.resident_pages;
                let mapped = find_mappings(&self.root, known, now_ns, &mut found.mappings);
                let estimate = match is_lent && is_estimated(process) {
                    true => estimate_residency(process.pid, &mapped, now_ns),
                    false => None,
                };
                match estimate {
                    Some(rows) => found.residency.extend(rows),
                    None => {
                        find_residency(&self.root, process.pid, now_ns, &mut found.residency);
                    }
                }
            }
        }
        self.look_ns = sys::monotonic_ns().saturating_sub(start_ns);
        self.looked_ns = Some(now_ns);
        self.mappings_ns = now_ns;
        let as_before = |(now, before): (&Residency, &Residency)| {
            (now.pid, now.start, now.node, now.bytes)
                == (before.pid, before.start, before.node, before.bytes)
        };
        let is_quiet = found.mappings.is_empty()
            && found.residency.len() == self.residency.len()
            && found.residency.iter().zip(&self.residency).all(as_before);
        self.wait_ns = match is_quiet {
            true => (self.wait_ns * 2).min(MOST_NS),
            false => CALM_NS,
        };
        self.residency.clone_from(&found.residency);
        Some(found)
    }

    /// Is it time to look at everything, and is that paid for where instructions are counted?
    fn is_due(&self, tree: &Tree, now_ns: u64, affordable: Option<f64>, price: f64) -> bool {
        let Some(looked_ns) = self.looked_ns else {
            return true;
        };
        let is_paid = affordable.is_none() || self.owed + price <= 0.0;
        if !is_paid && now_ns < looked_ns.saturating_add(RAREST_NS) {
            return false;
        }
        let rest_ns = self.look_ns.saturating_mul(REST);
        // A program that starts others in turn must not be looked at all the time.
        let is_new = self.known.values().any(|known| known.is_new);
        let wait_ns = match (is_new, self.has_changed(tree)) {
            (true, _) => rest_ns,
            (false, true) => rest_ns.max(LEAST_NS),
            (false, false) => rest_ns.max(self.wait_ns),
        };
        now_ns >= looked_ns.saturating_add(wait_ns)
    }

    /// Looks at the mappings of new address spaces, once they are paid for by themselves.
    fn look_at_new(&mut self, now_ns: u64, affordable: Option<f64>) -> Option<Found> {
        let new = self.known.values().filter(|known| known.is_new).count();
        let price = (new as u64 * MAPPINGS_INSTRUCTIONS) as f64;
        let since_us = now_ns.saturating_sub(self.mappings_ns) as f64 / 1000.0;
        if new == 0 || affordable? * since_us < price {
            return None;
        }
        self.owed += price;
        self.mappings_ns = now_ns;
        let mut found = Found::default();
        for known in self.known.values_mut().filter(|known| known.is_new) {
            find_mappings(&self.root, known, now_ns, &mut found.mappings);
        }
        Some(found)
    }

    /// Takes what might be spent since the last time from what is owed. No more is saved, or owed, than
    /// the next look costs: looks never come one after the other, and what came at [`RAREST_NS`] while
    /// nothing was executed does not keep the next ones away.
    fn reckon(&mut self, now_ns: u64, affordable: Option<f64>, price: f64) {
        let since_us = now_ns.saturating_sub(self.reckoned_ns) as f64 / 1000.0;
        self.reckoned_ns = now_ns;
        let paid = affordable.unwrap_or(0.0) * since_us;
        self.owed = (self.owed - paid).clamp(-price, price);
    }

    /// Has a process grown or shrunk since it was looked at?
    fn has_changed(&self, tree: &Tree) -> bool {
        tree.processes().iter().any(|process| {
            let before = self.known.get(&process.pid);
            let before = before.map_or(0, |known| known.resident_pages);
            before.abs_diff(process.resident_pages) > before / CHANGED
        })
    }

    /// Processes that have ended since the last call: there is nothing more to learn of them, and a
    /// recording may see any number.
    pub fn take_ended(&mut self) -> Vec<Process> {
        std::mem::take(&mut self.ended)
    }

    /// Every process that was not taken yet, at the end of the recording.
    pub fn take_processes(&mut self) -> Vec<Process> {
        let living = std::mem::take(&mut self.known).into_values();
        let mut all = std::mem::take(&mut self.ended);
        all.extend(living.map(|known| known.row));
        all.sort_by_key(|process| (process.start_ns, process.pid));
        all
    }

    /// Keeps the list of processes; marks new address spaces.
    fn follow(&mut self, tree: &Tree, now_ns: u64) {
        let ended = self
            .known
            .extract_if(.., |pid, _| !tree.processes().iter().any(|p| p.pid == *pid));
        for (_, mut known) in ended {
            known.row.end_ns = Some(now_ns);
            self.ended.push(known.row);
        }
        for process in tree.processes() {
            let known = self.known.entry(process.pid).or_insert_with(|| Known {
                row: Process {
                    pid: process.pid,
                    name: process.name.clone(),
                    start_ns: now_ns,
                    end_ns: None,
                    peak_bytes: None,
                },
                incarnation: 0,
                is_new: true,
                resident_pages: 0,
                mappings: BTreeMap::new(),
            });
            known.row.name.clone_from(&process.name);
            let resident = process.resident_pages * PAGE_BYTES;
            known.row.peak_bytes = known.row.peak_bytes.max(Some(resident));
            if known.incarnation != process.incarnation {
                known.incarnation = process.incarnation;
                known.mappings.clear();
                known.is_new = true;
            }
        }
    }
}

/// About how many instructions a look takes.
fn price(tree: &Tree, is_lent: bool) -> f64 {
    let each = MAPPINGS_INSTRUCTIONS + RESIDENCY_INSTRUCTIONS;
    let pages = |process: &tree::LiveProcess| match is_lent && is_estimated(process) {
        true => ASKED as u64 * ASKED_INSTRUCTIONS,
        false => process.resident_pages * PAGE_INSTRUCTIONS,
    };
    let processes = tree.processes().iter();
    let all = processes.map(|process| each + pages(process));
    all.sum::<u64>() as f64
}

/// Is a look that is lent too dear to count each page of this process?
fn is_estimated(process: &tree::LiveProcess) -> bool {
    process.resident_pages > COUNTED_PAGES
}

/// Mappings of a process, and those that are new or have changed; what has ended, or is not ours, has
/// none.
fn find_mappings(
    root: &Root,
    known: &mut Known,
    now_ns: u64,
    found: &mut Vec<Mapping>,
) -> Vec<Mapped> {
    let pid = known.row.pid;
    known.is_new = false;
    let Ok(mappings) = maps::read(root, pid) else {
        return Vec::new();
    };
    let mut now = BTreeMap::new();
    for mapping in &mappings {
        let entry = (
            mapping.range.end,
            mapping.permissions(),
            mapping.name.clone(),
        );
        if known.mappings.get(&mapping.range.start) != Some(&entry) {
            found.push(Mapping {
                time_ns: now_ns,
                pid,
                start: mapping.range.start,
                end: entry.0,
                permissions: entry.1.clone(),
                name: entry.2.clone(),
            });
        }
        now.insert(mapping.range.start, entry);
    }
    known.mappings = now;
    mappings
}

/// About where the pages of a process are: some of them are asked about. Nothing where too few of
/// those are in memory.
fn estimate_residency(pid: i32, mapped: &[Mapped], now_ns: u64) -> Option<Vec<Residency>> {
    let spread = Spread::over(mapped, ASKED, 0);
    let mut nodes = vec![-1; spread.addresses.len()];
    sys::query_pages(pid, &spread.addresses, &mut nodes).ok()?;
    let mut pages = BTreeMap::<(u64, u32), u32>::new();
    let mut mappings = mapped.iter().peekable();
    for (&address, &node) in spread.addresses.iter().zip(&nodes) {
        while mappings.next_if(|m| m.range.end <= address).is_some() {}
        // What is not in memory has an error's number in place of a node's.
        if let (Some(mapping), Ok(node)) = (mappings.peek(), u32::try_from(node)) {
            *pages.entry((mapping.range.start, node)).or_default() += 1;
        }
    }
    let found: u32 = pages.values().sum();
    (found as usize >= LEAST_FOUND).then(|| {
        let row = |((start, node), count)| Residency {
            time_ns: now_ns,
            pid,
            start,
            node,
            bytes: (u64::from(count) * spread.step).saturating_mul(PAGE_BYTES),
            asked_pages: Some(count),
        };
        pages.into_iter().map(row).collect()
    })
}

/// Where the pages of a process are; what has ended, or is not ours, has none.
fn find_residency(root: &Root, pid: i32, now_ns: u64, found: &mut Vec<Residency>) {
    for mapping in numa_maps::read(root, pid).unwrap_or_default() {
        for &(node, pages) in &mapping.pages {
            found.push(Residency {
                time_ns: now_ns,
                pid,
                start: mapping.start,
                node: node.0,
                bytes: pages.saturating_mul(mapping.page_kb).saturating_mul(1024),
                asked_pages: None,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_linux::proc::tree::Scope;
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};

    /// A program that waits for its input, and is behind its start.
    fn waiting() -> Child {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // What it hands back says that its start is behind it, mappings and all.
        child.stdin.as_mut().unwrap().write_all(b".").unwrap();
        let mut back = [0];
        let output = child.stdout.as_mut().unwrap();
        output.read_exact(&mut back).unwrap();
        child
    }

    #[test]
    fn a_look_is_paid_for_before_it_is_made() {
        let root = Root::host();
        let tree = |pids: Vec<i32>| {
            let mut tree = Tree::new(root.clone(), Scope::Processes(pids));
            tree.refresh(1_000_000).unwrap();
            tree
        };
        let mut places = Places::new(root.clone());
        let mut first = waiting();
        let one = tree(vec![first.id() as i32]);
        // So that looks at these processes are paid for in ten seconds.
        let affordable = Some(price(&one, false) / 10e6);
        let seconds = |seconds: f64| (seconds * 1e9) as u64;
        assert!(
            places.look(&one, 0, affordable).is_some(),
            "the first is lent"
        );
        assert!(places.look(&one, seconds(12.0), affordable).is_none());
        assert!(places.look(&one, seconds(19.9), affordable).is_none());
        assert!(places.look(&one, seconds(20.1), affordable).is_some());
        // Mappings of somebody new are seen when they are paid for, which is sooner.
        let mut second = waiting();
        let both = tree(vec![first.id() as i32, second.id() as i32]);
        assert!(places.look(&both, seconds(20.2), affordable).is_none());
        let found = places.look(&both, seconds(35.0), affordable).unwrap();
        let pid = second.id() as i32;
        assert!(found.mappings.iter().filter(|m| m.pid == pid).count() > 3);
        assert!(found.residency.is_empty());
        for child in [&mut first, &mut second] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn some_pages_of_many_stand_for_all() {
        let memory = vec![1_u8; 64 << 20];
        let pid = std::process::id() as i32;
        let address = memory.as_ptr() as u64;
        let mut mapped = maps::read(&Root::host(), pid).unwrap();
        mapped.retain(|mapping| mapping.range.contains(&address));
        let rows = estimate_residency(pid, &mapped, 5).expect("half of it is in memory at least");
        let asked: u32 = rows.iter().filter_map(|row| row.asked_pages).sum();
        assert!((LEAST_FOUND..=ASKED).contains(&(asked as usize)), "{asked}");
        // The mapping may have other allocations beside this one.
        let bytes: u64 = rows.iter().map(|row| row.bytes).sum();
        let all: u64 = mapped.iter().map(|m| m.range.end - m.range.start).sum();
        let most = all + (all >> 5);
        assert!((60 << 20..=most).contains(&bytes), "{bytes} of {all}");
        // Of what is hardly in memory nothing is said.
        assert_eq!(estimate_residency(pid, &[], 5), None);
    }

    #[test]
    fn only_a_look_that_is_lent_estimates_and_only_large_processes() {
        let tree = {
            // Optimised, it would not be there at all.
            let memory = std::hint::black_box(vec![1_u8; 64 << 20]);
            let scope = Scope::Processes(vec![std::process::id() as i32]);
            let mut tree = Tree::new(Root::host(), scope);
            tree.refresh(1_000_000).unwrap();
            assert_eq!(memory[memory.len() - 1], 1);
            tree
        };
        assert!(is_estimated(&tree.processes()[0]));
        assert!(price(&tree, true) < price(&tree, false) / 2.0);
    }

    #[test]
    fn a_child_is_found_with_its_pages_and_its_end() {
        let root = Root::host();
        let mut child = waiting();
        let pid = child.id() as i32;
        let mut tree = Tree::new(root.clone(), std::process::id() as i32);
        let mut places = Places::new(root);
        tree.refresh(1_000_000).unwrap();
        let found = places.look(&tree, 5, None).unwrap();
        let own = |pid: &i32| *pid == child.id() as i32;
        assert!(found.mappings.iter().filter(|m| own(&m.pid)).count() > 3);
        assert!(
            found
                .residency
                .iter()
                .filter(|r| own(&r.pid))
                .any(|r| r.bytes > 0)
        );
        // Nothing is due.
        assert!(places.look(&tree, 6, None).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        tree.refresh(3_000_000).unwrap();
        places.look(&tree, 2 * LEAST_NS + 5, None);
        let processes = places.take_ended();
        // A long recording sees any number of them: none is kept.
        assert!(places.take_processes().iter().all(|p| p.pid != pid));
        let process = processes.iter().find(|p| p.pid == pid).unwrap();
        assert_eq!(
            (process.start_ns, process.end_ns),
            (5, Some(2 * LEAST_NS + 5))
        );
    }
}
