use super::*;
use crate::proc::tree::Scope;
use crate::topology::Topology;
use crate::watch::empty_snapshot;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const PID: i32 = 9;
/// Present, and present and soft-dirty: bits 63 and 55.
const CLEAN: u64 = 1 << 63;
const DIRTY: u64 = 1 << 63 | 1 << 55;

/// A machine of files with one process, whose memory is at pages 1 to 99.
struct Machine {
    folder: tempfile::TempDir,
    tree: Tree,
    snapshot: Snapshot,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        let tree = Tree::new(root, Scope::Processes(vec![PID]));
        let topology = Topology::read(&Root::host()).unwrap();
        let machine = Self {
            folder,
            tree,
            snapshot: empty_snapshot(&topology),
        };
        machine.put("task/9/children", "");
        machine.put("maps", "1000-64000 rw-p 0 0:0 0\n");
        machine.put("clear_refs", "");
        machine.put("pagemap", "");
        machine.stat(4000);
        machine.set(1..100, CLEAN);
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("proc/9").join(name)
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn stat(&self, resident: u64) {
        let zeros = "0 ".repeat(17);
        let line = format!("9 (app) S 1 {zeros}50 0 {resident} 0 0\n");
        self.put("stat", &line);
    }

    fn set(&self, pages: std::ops::Range<u64>, entry: u64) {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(self.path("pagemap"))
            .unwrap();
        for page in pages {
            file.write_all_at(&entry.to_ne_bytes(), page * 8).unwrap();
        }
    }

    /// Whether the bits were cleared since the last call.
    fn was_cleared(&self) -> bool {
        let text = std::fs::read_to_string(self.path("clear_refs")).unwrap();
        self.put("clear_refs", "");
        assert!(text.is_empty() || text == "4", "{text}");
        text == "4"
    }

    fn tracker(&self) -> WrittenTracker {
        let mut tracker = WrittenTracker::new(&Root::new(self.folder.path()), 0.01);
        tracker.keep_observations(true);
        tracker
    }

    /// A round, however long ago the last one was.
    fn round(&mut self, tracker: &mut WrittenTracker) -> Vec<RegionAccess> {
        tracker.due_ns = 0;
        self.observe(tracker)
    }

    fn observe(&mut self, tracker: &mut WrittenTracker) -> Vec<RegionAccess> {
        self.tree.refresh(sys::monotonic_ns() / 1000).unwrap();
        tracker.observe(&mut self.tree, &mut self.snapshot).unwrap();
        let mut seen = Observations::default();
        tracker.take_observations(&mut seen);
        assert!(seen.samples.is_empty());
        seen.regions
    }
}

#[test]
fn what_was_written_since_the_last_round_is_told() {
    let mut machine = Machine::new();
    let mut tracker = machine.tracker();
    // What was written before anybody cleared the bits is nobody's business.
    machine.set(1..100, DIRTY);
    assert!(machine.round(&mut tracker).is_empty());
    assert!(machine.was_cleared());
    machine.set(1..100, CLEAN);
    machine.set(10..14, DIRTY);
    machine.set(40..100, DIRTY);
    let regions = machine.round(&mut tracker);
    assert!(machine.was_cleared());
    let figures: Vec<_> = regions
        .iter()
        .map(|r| {
            (
                r.addresses.start >> 12,
                r.addresses.end >> 12,
                r.access_count,
                r.check_count,
            )
        })
        .collect();
    assert_eq!(
        figures,
        [
            (1, 10, 0, 9),
            (10, 14, 4, 4),
            (14, 40, 0, 26),
            (40, 100, 60, 60)
        ]
    );
    assert!(
        regions
            .iter()
            .all(|r| r.pid == Some(Pid(PID)) && r.length_ns > 0)
    );
    // One time for all, so that they are one window of a report.
    assert!(regions.iter().all(|r| r.time_ns == regions[0].time_ns));
    assert_eq!(tracker.fault_count(), 64);
    assert!(tracker.take_notes().is_empty());
    tracker.stop();
    let notes = tracker.take_notes();
    assert!(
        notes[0].contains("2 times") && notes[0].contains("some 64 faults"),
        "{notes:?}"
    );
    // Nothing is cleared after the stop, when nobody would want it.
    assert!(machine.round(&mut tracker).is_empty() && !machine.was_cleared());
}

#[test]
fn nothing_is_cleared_for_nobody_or_before_it_is_due() {
    let mut machine = Machine::new();
    let mut tracker = machine.tracker();
    tracker.keep_observations(false);
    machine.round(&mut tracker);
    assert!(!machine.was_cleared());
    tracker.keep_observations(true);
    tracker.set_sampling(Sampling::Off);
    machine.round(&mut tracker);
    assert!(!machine.was_cleared());
    tracker.set_sampling(Sampling::Full);
    machine.observe(&mut tracker);
    assert!(machine.was_cleared());
    // A round that has just ended rests for 0.2 s at least; an hour here, so that no slow machine
    // comes to the end of it.
    tracker.due_ns += MOST_NS;
    machine.observe(&mut tracker);
    assert!(!machine.was_cleared());
    let cost = tracker.cost().unwrap();
    assert!(cost.own_ns > 0 && cost.kernel_ns == 0 && cost.wall_ns > 0);
}

#[test]
fn dear_rounds_are_far_apart() {
    const SECOND: u64 = 1_000_000_000;
    // 10 ms of a CPU at 1 %: one second. Cheaper ones are not closer than the least.
    assert_eq!(rest_ns(10_000_000, 0.01), SECOND);
    assert_eq!(rest_ns(100_000, 0.01), LEAST_NS);
    assert_eq!(rest_ns(0, 0.01), LEAST_NS);
    // 4 GB of pages written between two rounds: 2^20 faults.
    assert_eq!(rest_ns((1 << 20) * FAULT_NS, 0.01), 104_857_600_000);
    assert_eq!(rest_ns(u64::MAX, 0.0), MOST_NS);
}

#[test]
fn a_process_that_may_not_be_watched_is_told_of_once() {
    let mut machine = Machine::new();
    std::fs::remove_file(machine.path("clear_refs")).unwrap();
    std::fs::create_dir(machine.path("clear_refs")).unwrap();
    let mut tracker = machine.tracker();
    for _ in 0..3 {
        assert!(machine.round(&mut tracker).is_empty());
    }
    let notes = tracker.take_notes();
    assert!(
        notes.len() == 1
            && notes[0].contains("process 9 (app)")
            && notes[0].ends_with(crate::filter::to_see_others()),
        "{notes:?}"
    );
}

#[test]
fn small_processes_and_void_page_maps_wait() {
    let mut machine = Machine::new();
    let mut tracker = machine.tracker();
    machine.stat(WORTH_PAGES - 1);
    machine.round(&mut tracker);
    assert!(!machine.was_cleared());
    machine.stat(WORTH_PAGES);
    machine.round(&mut tracker);
    assert!(machine.was_cleared());
    // As after exec: the page map that is open tells of an address space that is gone.
    machine.put("pagemap", "");
    assert!(machine.round(&mut tracker).is_empty() && !machine.was_cleared());
    machine.set(1..100, DIRTY);
    assert!(machine.round(&mut tracker).is_empty());
    assert!(machine.was_cleared(), "it begins anew");
    assert_eq!(machine.round(&mut tracker).len(), 1);
}

#[test]
fn kernels_without_the_bits_are_refused_and_others_work() {
    match WrittenTracker::open(&Root::host(), 0.01) {
        Ok(tracker) => assert_eq!(tracker.name(), "written"),
        Err(error) => assert!(error.remedy.contains("CONFIG_MEM_SOFT_DIRTY"), "{error}"),
    }
}
