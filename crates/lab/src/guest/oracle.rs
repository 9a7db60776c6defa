//! The policy `oracle`: a bound for others, no rival. A first run, which is not compared, has the device count the
//! fills of every page; in the others the pages that had most of them are brought into the fastest tier as soon as
//! they are there, as many as it has room for.
//!
//! It knows the whole run beforehand, and places by its sum: what is hot for a time only may be better served by who
//! looks again. Programs run without randomized addresses, so that a page has the same number each time; which
//! process is which is told by name and order of appearance.

use super::{Result, doing};
use crate::os::monotonic_ns;
use hither_core::ids::Pid;
use hither_core::plan::Sampling;
use hither_core::snapshot::{PAGE_BYTES, Snapshot};
use hither_core::tiers::Tiers;
use hither_linux::proc::tree::Scope;
use hither_linux::root::Root;
use hither_linux::sys;
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_linux::tracker::opium::OpiumTracker;
use hither_linux::tracker::residency::ResidencyTracker;
use hither_linux::watch::Watch;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Share of the fastest tier's memory that is filled, of what is free at first: some of it the kernel keeps.
const FILLED: f64 = 0.97;
/// Time between two looks at the counters.
const COUNT_PACE: Duration = Duration::from_millis(200);
/// Time between two looks at where pages are, at first and at most.
const PLACE_PACE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];
/// Pages of a call.
const BATCH: usize = 512;

/// A page of the program, the same in each run: name of the process, how many of that name came before, page.
type Key = (String, usize, u64);
/// Fills of pages.
type Fills = HashMap<Key, u64>;

/// What first runs have told, by program and arguments.
#[derive(Debug, Default)]
pub struct Oracle {
    known: HashMap<Vec<String>, Arc<Fills>>,
}

/// A thread beside the program.
#[derive(Debug)]
pub struct Companion {
    thread: JoinHandle<Result<Fills>>,
    is_over: Arc<AtomicBool>,
    argv: Vec<String>,
}

impl Oracle {
    /// Begins beside a program that has just started.
    pub fn begin(&self, argv: &[String], pid: u32) -> Result<Companion> {
        let is_over = Arc::new(AtomicBool::new(false));
        let known = self.known.get(argv).cloned();
        let until = is_over.clone();
        let thread = std::thread::Builder::new().spawn(move || match known {
            Some(fills) => place(pid as i32, &fills, &until).map(|()| Fills::new()),
            None => count(pid as i32, &until),
        });
        Ok(Companion {
            thread: thread.map_err(doing("starting the oracle"))?,
            is_over,
            argv: argv.to_vec(),
        })
    }

    /// The program has ended.
    pub fn end(&mut self, companion: Companion) -> Result<()> {
        companion.is_over.store(true, Ordering::Relaxed);
        companion.thread.thread().unpark();
        let told = companion.thread.join();
        let fills = told.map_err(|_| "the oracle panicked; its message is on the console")??;
        self.known
            .entry(companion.argv)
            .or_insert_with(|| Arc::new(fills));
        Ok(())
    }
}

/// Which of its name each process is.
#[derive(Debug, Default)]
struct Roles {
    of: HashMap<(Pid, String), usize>,
    count: HashMap<String, usize>,
}

impl Roles {
    /// Takes in who is there, in order of process number.
    fn meet(&mut self, snapshot: &Snapshot) -> BTreeMap<Pid, (String, usize)> {
        let mut all: Vec<_> = snapshot.processes.iter().collect();
        all.sort_unstable_by_key(|process| process.pid);
        let role = |process: &&hither_core::snapshot::ProcessState| {
            let key = (process.pid, process.name.clone());
            let nth = *self.of.entry(key).or_insert_with(|| {
                let count = self.count.entry(process.name.clone()).or_default();
                *count += 1;
                *count - 1
            });
            (process.pid, (process.name.clone(), nth))
        };
        all.iter().map(role).collect()
    }
}

/// The program and all that it starts.
fn watch(pid: i32, topology: &Topology, tracker: Box<dyn Tracker>) -> Watch {
    let scope = Scope::Processes(vec![pid]);
    let mut watch = Watch::new(&Root::host(), topology, scope, tracker);
    watch.begin(monotonic_ns() / 1000);
    watch
}

/// Counts until the program ends.
fn count(pid: i32, is_over: &AtomicBool) -> Result<Fills> {
    let root = Root::host();
    let topology = Topology::read(&root).map_err(|error| error.to_string())?;
    let tracker = OpiumTracker::open_counting(&root, &topology, None);
    let mut watch = watch(
        pid,
        &topology,
        Box::new(tracker.map_err(|error| error.to_string())?),
    );
    let (mut fills, mut roles) = (Fills::new(), Roles::default());
    while !is_over.load(Ordering::Relaxed) {
        std::thread::park_timeout(COUNT_PACE);
        let snapshot = watch.observe(monotonic_ns() / 1000);
        let snapshot = snapshot.map_err(|error| error.to_string())?;
        let roles = roles.meet(snapshot);
        for page in &snapshot.present {
            if let Some((name, nth)) = roles.get(&page.pid) {
                *fills.entry((name.clone(), *nth, page.page)).or_default() +=
                    u64::from(page.accesses);
            }
        }
    }
    watch.tracker().stop();
    match fills.is_empty() {
        true => Err("the oracle's first run ended before a page was counted".to_owned()),
        false => Ok(fills),
    }
}

/// The pages with most fills, as many as `most`.
fn hottest(fills: &Fills, most: usize) -> HashSet<&Key> {
    let mut all: Vec<(&Key, u64)> = fills.iter().map(|(key, &fills)| (key, fills)).collect();
    all.sort_unstable_by_key(|&(key, fills)| (std::cmp::Reverse(fills), key));
    all.into_iter().take(most).map(|(key, _)| key).collect()
}

/// Places pages until the program ends.
fn place(pid: i32, fills: &Fills, is_over: &AtomicBool) -> Result<()> {
    let root = Root::host();
    let topology = Topology::read(&root).map_err(|error| error.to_string())?;
    let mut watch = watch(
        pid,
        &topology,
        Box::new(ResidencyTracker::new(root.clone())),
    );
    watch.tracker().set_sampling(Sampling::Full);
    let (mut roles, mut hot) = (Roles::default(), None);
    // Pages that may make room.
    let mut cold: HashSet<(Pid, u64)> = HashSet::new();
    let mut pace = PLACE_PACE[0];
    while !is_over.load(Ordering::Relaxed) {
        std::thread::park_timeout(pace);
        let snapshot = watch.observe(monotonic_ns() / 1000);
        let snapshot = snapshot.map_err(|error| error.to_string())?;
        let tiers = Tiers::of(&snapshot.nodes);
        let node_of = |rank| tiers.nodes(rank).next().map(|at| snapshot.nodes[at].id);
        let (Some(fast), Some(slow)) = (node_of(0), node_of(1)) else {
            return Err("the oracle needs a machine of two memory tiers".to_owned());
        };
        let hot = hot.get_or_insert_with(|| {
            let nodes = tiers.nodes(0).map(|at| snapshot.nodes[at].free_bytes);
            // What it has put there meanwhile is its own.
            let own = snapshot.present.iter().filter(|page| page.home == fast);
            let pages = nodes.sum::<u64>() / PAGE_BYTES + own.count() as u64;
            hottest(fills, (pages as f64 * FILLED) as usize)
        });
        let roles = roles.meet(snapshot);
        let mut up: Vec<(Pid, u64)> = Vec::new();
        for page in &snapshot.present {
            let Some((name, nth)) = roles.get(&page.pid) else {
                continue;
            };
            let is_hot = hot.contains(&(name.clone(), *nth, page.page));
            if is_hot && page.home == slow {
                up.push((page.pid, page.page));
            } else if !is_hot && page.home == fast {
                cold.insert((page.pid, page.page));
            }
        }
        let lacking = move_all(&up, fast.0 as i32);
        let mut leaving: Vec<(Pid, u64)> = cold.iter().take(lacking.len()).copied().collect();
        leaving.sort_unstable();
        for page in &leaving {
            cold.remove(page);
        }
        move_all(&leaving, slow.0 as i32);
        move_all(&lacking, fast.0 as i32);
        pace = match up.is_empty() {
            true => (pace * 2).min(PLACE_PACE[1]),
            false => PLACE_PACE[0],
        };
    }
    Ok(())
}

/// Moves pages; those for which there was no room.
fn move_all(pages: &[(Pid, u64)], node: i32) -> Vec<(Pid, u64)> {
    let mut lacking = Vec::new();
    for own in pages.chunk_by(|a, b| a.0 == b.0) {
        for part in own.chunks(BATCH) {
            let addresses: Vec<u64> = part.iter().map(|(_, page)| page * PAGE_BYTES).collect();
            let mut status = vec![-libc::ENOMEM; part.len()];
            let nodes = vec![node; part.len()];
            // A process that has ended lacks nothing.
            if sys::move_pages(part[0].0.0, &addresses, &nodes, &mut status).is_ok() {
                let states = part.iter().zip(&status);
                let none = states.filter(|&(_, &status)| status == -libc::ENOMEM);
                lacking.extend(none.map(|(&page, _)| page));
            }
        }
    }
    lacking
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::ids::SpaceId;
    use hither_core::snapshot::ProcessState;

    #[test]
    fn the_hottest_are_as_many_as_fit_and_ties_are_broken_by_page() {
        let key = |page| ("kvstore".to_owned(), 0, page);
        let fills: Fills = [(1, 5), (2, 9), (3, 5), (4, 1)]
            .map(|(page, fills)| (key(page), fills))
            .into();
        let pages = |most| {
            let mut pages: Vec<u64> = hottest(&fills, most).iter().map(|key| key.2).collect();
            pages.sort_unstable();
            pages
        };
        assert!(pages(0).is_empty());
        assert_eq!(pages(2), [1, 2]);
        assert_eq!(pages(9), [1, 2, 3, 4]);
    }

    #[test]
    fn processes_of_one_name_are_told_by_their_order() {
        let process = |pid, name: &str| ProcessState {
            name: name.to_owned(),
            ..ProcessState::unknown(Pid(pid), SpaceId(0), "test")
        };
        let mut snapshot = Snapshot::of_nodes(Vec::new(), "test");
        let mut roles = Roles::default();
        snapshot.processes = vec![process(7, "b"), process(9, "a"), process(8, "a")];
        roles.meet(&snapshot);
        // One has ended, another has come.
        snapshot.processes = vec![process(9, "a"), process(12, "a")];
        let met = roles.meet(&snapshot);
        assert_eq!(met[&Pid(9)], ("a".to_owned(), 1));
        assert_eq!(met[&Pid(12)], ("a".to_owned(), 2));
    }
}
