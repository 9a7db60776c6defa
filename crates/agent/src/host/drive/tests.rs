//! The loop with a tracker and a backend that are told what to see and do.

use super::*;
use crate::Stepped;
use hither_core::engine::EngineConfig;
use hither_core::ids::{CpuId, NodeId, Pid};
use hither_core::plan::{MoveOutcome, MoveRequest, Sampling};
use hither_core::policy;
use hither_core::snapshot::{Evidence, NodeCounts, PageStats, Snapshot};
use hither_linux::proc::tree::Tree;
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_linux::tracker::view::SampleView;
use hither_mover::executor::Limits;
use hither_mover::{Action, Backend, Job, Outcome, OutcomeBuilder, Unavailable};
use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

/// What the fakes saw, for the test to look at.
#[derive(Default)]
struct Seen {
    moved: Vec<(Pid, u64, NodeId)>,
    sampling: Vec<Sampling>,
    stopped: bool,
}

/// Sees 20 pages of one process, which lie on node0 until they are moved, used by node0.
struct FakeTracker(i32, Arc<Mutex<Seen>>, SampleView);

impl Tracker for FakeTracker {
    fn name(&self) -> &'static str {
        "fake"
    }
    fn set_sampling(&mut self, sampling: Sampling) {
        self.1.lock().unwrap().sampling.push(sampling);
    }
    fn observe(&mut self, _: &mut Tree, snapshot: &mut Snapshot) -> hither_linux::Result<()> {
        snapshot.metrics.local_access_ratio = Evidence::measured(1.0, "fake");
        snapshot.metrics.memory_accesses_per_us = Evidence::measured(100.0, "fake");
        snapshot.sample_count = Evidence::measured(200, "fake");
        snapshot.sample_period = 100;
        let seen = self.1.lock().unwrap();
        let home = |page| {
            let mut moves = seen.moved.iter().rev();
            let last = moves.find(|(_, moved, _)| *moved == page);
            last.map_or(NodeId(0), |&(_, _, to)| to)
        };
        let page = |page| PageStats {
            pid: Pid(self.0),
            page,
            home: home(page),
            was: None,
            reads: NodeCounts::from_slice(&[10]),
            writes: NodeCounts::new(),
            huge: false,
        };
        snapshot.pages = (100..120).map(page).collect();
        self.2.begin(snapshot.nodes.len());
        (0..200).for_each(|_| self.2.add(100.0, 0, 0, false));
        Ok(())
    }
    fn view(&self) -> Option<&SampleView> {
        Some(&self.2)
    }
    fn stop(&mut self) {
        self.1.lock().unwrap().stopped = true;
    }
    fn take_notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// Moves everything, in its own account only.
struct FakeBackend(Arc<Mutex<Seen>>);

impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        "fake"
    }
    fn probe(&self) -> std::result::Result<(), Unavailable> {
        Ok(())
    }
    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        let one = |job: &Job<'_>| {
            let mut builder = OutcomeBuilder::new(job);
            let Action::Migrate { pages, to } = &job.action else {
                panic!("the engine only migrates");
            };
            for page in pages.iter() {
                builder.moved(page);
                self.0.lock().unwrap().moved.push((job.pid, page, *to));
            }
            builder.finish()
        };
        jobs.iter().map(one).collect()
    }
}

/// A folder whose `/proc` is the machine's, but that this process may use all nodes, whatever machine this is.
fn with_all_nodes(pid: i32) -> PathBuf {
    let folder = tempfile::tempdir().unwrap().keep();
    let (there, here) = (
        Path::new("/proc").join(pid.to_string()),
        folder.join("proc"),
    );
    let own = here.join(pid.to_string());
    fs::create_dir_all(&own).unwrap();
    for name in ["stat", "pagemap", "task", "cgroup", "maps"] {
        symlink(there.join(name), own.join(name)).unwrap();
    }
    fs::write(own.join("status"), "Mems_allowed_list:\t0-3\n").unwrap();
    let parent = std::process::id().to_string();
    symlink(Path::new("/proc").join(&parent), here.join(&parent)).unwrap();
    symlink("/proc/loadavg", here.join("loadavg")).unwrap();
    folder
}

fn session(pid: i32, seen: &Arc<Mutex<Seen>>) -> Session<'static, Stepped<FakeBackend>> {
    let executor = Stepped::new(Limits::default(), FakeBackend(Arc::clone(seen)));
    session_over(executor, pid, seen)
}

fn session_over<E: Execute>(executor: E, pid: i32, seen: &Arc<Mutex<Seen>>) -> Session<'static, E> {
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines/four-node-hmat");
    let topology = Topology::read(&Root::new(fixture)).unwrap();
    let tracker = FakeTracker(pid, Arc::clone(seen), SampleView::default());
    let watch = Watch::new(
        &Root::new(with_all_nodes(pid)),
        &topology,
        std::process::id() as i32,
        Box::new(tracker),
    );
    let engine = Engine::of_all(
        policy::by_name("wrong-node").unwrap(),
        EngineConfig::default(),
    );
    Session::new(watch, engine, executor, 100_000, Box::new(|_| {}))
}

/// Never ends what it is asked for, and tells in which order it was told what: `r`est, `w`ork, `s`ubmit.
struct Busy(Arc<Mutex<String>>, bool);

impl Execute for Busy {
    fn submit(&mut self, _: u64, requests: Vec<MoveRequest>) -> Vec<MoveOutcome> {
        if !requests.is_empty() {
            self.0.lock().unwrap().push('s');
            self.1 = true;
        }
        Vec::new()
    }
    fn place(&mut self, movers: Vec<Vec<CpuId>>) {
        let what = if movers.is_empty() { 'r' } else { 'w' };
        self.0.lock().unwrap().push(what);
    }
    fn is_moving(&self) -> bool {
        self.1
    }
    fn collect(&mut self, _: u64) -> Vec<MoveOutcome> {
        Vec::new()
    }
    fn close(&mut self, _: u64) -> Vec<MoveOutcome> {
        Vec::new()
    }
}

#[test]
fn movers_rest_until_it_is_known_where_they_may_work() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = child.id() as i32;
    let told = Arc::new(Mutex::new(String::new()));
    let busy = Busy(Arc::clone(&told), false);
    let mut session = session_over(busy, pid, &Arc::default());
    let before = hither_linux::sys::nice_to_return_to();
    let mut now_us = 0;
    while !told.lock().unwrap().contains('s') {
        now_us += 100_000;
        assert!(now_us < 3_000_000, "nothing is asked for");
        session.turn(now_us);
    }
    session.turn(now_us + 100_000);
    // Each turn of a rest, the one that asks, and one while that goes on.
    let told = told.lock().unwrap().clone();
    let rests = told.strip_suffix("rsww").expect(&told);
    assert_eq!(rests, "rw".repeat(rests.len() / 2));
    drop(session);
    let after = hither_linux::sys::nice_to_return_to();
    assert_eq!(after, before, "it gives way no more");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Takes turns until something moves; returns the time.
fn turns_until_moved(
    session: &mut Session<'_, Stepped<FakeBackend>>,
    seen: &Arc<Mutex<Seen>>,
) -> u64 {
    let mut now_us = 0;
    // What a move brings is judged by readings before it: a few are taken first.
    while seen.lock().unwrap().moved.is_empty() {
        now_us += 100_000;
        assert!(now_us < 3_000_000, "nothing moves");
        let sleep_us = session.turn(now_us);
        assert!(
            (LEAST_SLEEP_US..=1_000_000).contains(&sleep_us),
            "{sleep_us}"
        );
    }
    now_us
}

#[test]
fn what_is_seen_is_decided_moved_and_accounted_for() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = child.id() as i32;
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut session = session(pid, &seen);
    let now_us = turns_until_moved(&mut session, &seen);
    let pages: Vec<u64> = seen
        .lock()
        .unwrap()
        .moved
        .iter()
        .map(|&(_, page, _)| page)
        .collect();
    assert_eq!(pages, (100..120).collect::<Vec<u64>>());
    // node3 is two hops from node0.
    assert!(
        seen.lock()
            .unwrap()
            .moved
            .iter()
            .all(|&(owner, _, to)| owner == Pid(pid) && to == NodeId(3))
    );
    child.kill().unwrap();
    child.wait().unwrap();
    let decided = session.finish(now_us + 100_000);
    assert_eq!(decided.sums.moved_pages, 20);
    assert_eq!(decided.scopes[0].1.moved_pages, 20);
    assert_eq!(decided.scopes[0].1.directions[0].to, NodeId(3));
    assert_eq!(decided.tracker, "fake");
    assert!(decided.estimate.sampled().local_access_ratio == Some(1.0) && !decided.log.is_empty());
    let seen = seen.lock().unwrap();
    assert!(seen.stopped && !seen.sampling.is_empty());
}

#[test]
fn on_leaving_every_page_goes_back_to_where_it_was() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut session = session(child.id() as i32, &seen);
    session.interval_us = LEAST_SLEEP_US;
    turns_until_moved(&mut session, &seen);
    let supervisor = Supervisor::alone(&[]).unwrap();
    assert!(undo(&supervisor, &mut session).unwrap());
    let mut back: Vec<(u64, NodeId)> = seen
        .lock()
        .unwrap()
        .moved
        .iter()
        .skip(20)
        .map(|&(_, page, to)| (page, to))
        .collect();
    back.sort_unstable();
    let home: Vec<(u64, NodeId)> = (100..120).map(|page| (page, NodeId(0))).collect();
    assert_eq!(back, home);
    let decided = session.finish(supervisor.now_us());
    assert_eq!(decided.scopes[0].1.displaced_pages, 0);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_loop_ends_at_its_limit_and_tells_of_each_second() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let told = RefCell::new(Vec::new());
    let mut session = session(child.id() as i32, &seen);
    session.sink = Box::new(|told_now| {
        if let DriveReport::Second(second) = told_now {
            told.borrow_mut().push((second.now_us, second.since));
        }
    });
    let supervisor = Supervisor::alone(&[]).unwrap();
    let end = run(&supervisor, &mut session, Some(1_300_000), Vec::new()).unwrap();
    assert_eq!(end, End::Done);
    assert!((1_300_000..10_000_000).contains(&supervisor.now_us()));
    let (at_us, since) = told.borrow()[0];
    assert!(at_us >= REPORT_US && since.turn_count > 0 && since.sample_count > 0);
    drop(session);
    child.kill().unwrap();
    child.wait().unwrap();
}
