use super::admin::{KDAMONDS, SLOTS, file};
use super::*;
use crate::root::captured::Captured;
use std::collections::BTreeMap;
use std::path::PathBuf;

const STAT: &str = "sys/module/damon_stat/parameters/enabled";
const FORMAT: &str = "name: damon_aggregated\nID: 744\nformat:\n\
    \tfield:unsigned int nr_regions;\toffset:16;\tsize:4;\tsigned:0;\n\
    \tfield:unsigned long start;\toffset:24;\tsize:8;\tsigned:0;\n\
    \tfield:unsigned long end;\toffset:32;\tsize:8;\tsigned:0;\n\
    \tfield:unsigned int nr_accesses;\toffset:40;\tsize:4;\tsigned:0;\n\
    \tfield:unsigned int age;\toffset:44;\tsize:4;\tsigned:0;\n";

/// A machine of files: folders that the kernel would make are there from the start.
struct Machine(Captured);

impl std::ops::Deref for Machine {
    type Target = Captured;

    fn deref(&self) -> &Captured {
        &self.0
    }
}

impl Machine {
    fn new() -> Self {
        let machine = Self(Captured::new());
        machine.set(&format!("{KDAMONDS}/nr_kdamonds"), "0");
        machine.set(STAT, "Y");
        machine.set("sys/module/damon_reclaim/parameters/enabled", "N");
        machine.set(
            "sys/kernel/debug/tracing/events/damon/damon_aggregated/format",
            FORMAT,
        );
        machine.set(
            "proc/iomem",
            "00000000-00000fff : Reserved\n00100000-7ffdefff : System RAM\n",
        );
        for slot in 0..SLOTS {
            let numbers = [
                "intervals/sample_us",
                "intervals/aggr_us",
                "intervals/update_us",
            ];
            for name in numbers.iter().chain(&["nr_regions/min", "nr_regions/max"]) {
                machine.set(
                    &file(slot, &format!("contexts/0/monitoring_attrs/{name}")),
                    "1",
                );
            }
            for (name, text) in [
                ("state", "off"),
                ("pid", "-1"),
                ("contexts/nr_contexts", "0"),
                ("contexts/0/operations", "vaddr"),
                ("contexts/0/targets/nr_targets", "0"),
                ("contexts/0/targets/0/pid_target", "0"),
                ("contexts/0/targets/0/regions/nr_regions", "0"),
            ] {
                machine.set(&file(slot, name), text);
            }
            for region in 0..2 {
                let region = format!("contexts/0/targets/0/regions/{region}");
                machine.set(&file(slot, &format!("{region}/start")), "0");
                machine.set(&file(slot, &format!("{region}/end")), "0");
            }
        }
        machine
    }

    fn set(&self, below: &str, text: &str) {
        self.put(below, &format!("{text}\n"));
    }

    fn runtime(&self) -> PathBuf {
        self.beside("run")
    }

    fn open(&self) -> Result<DamonTracker> {
        let setting = Setting::ADAPTIVE;
        DamonTracker::open_in(
            &self.root,
            &self.runtime(),
            Addresses::Virtual,
            setting,
            0.01,
        )
    }

    /// Every file with its text.
    fn dump(&self) -> BTreeMap<PathBuf, String> {
        let mut waiting = vec![self.root.path("")];
        let mut found = BTreeMap::new();
        while let Some(folder) = waiting.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match std::fs::read_to_string(&path) {
                    Ok(text) => drop(found.insert(path, text.trim().to_owned())),
                    Err(_) => waiting.push(path),
                }
            }
        }
        found
    }
}

const PACE: Pace = Pace {
    sample_us: 20_000,
    aggregation_us: 400_000,
    min_regions: 40,
};

fn process() -> Target {
    Target::Process(4711, vec![0x1000..0x4000, 0xa000..0xc000])
}

#[test]
fn everything_is_as_before_after_a_stop() {
    let machine = Machine::new();
    let before = machine.dump();
    let mut tracker = machine.open().unwrap();
    assert_eq!(machine.get(STAT), "N");
    assert_eq!(
        machine.get(&format!("{KDAMONDS}/nr_kdamonds")),
        SLOTS.to_string()
    );
    assert!(tracker.take_notes()[0].contains("damon_stat"));
    tracker.stop();
    assert!(machine.dump() == before);
    tracker.stop();
    assert!(tracker.take_notes().is_empty());
    // Dropping stops as well.
    drop(machine.open().unwrap());
    assert!(machine.dump() == before);
}

#[test]
fn what_somebody_had_set_up_without_starting_it_comes_back() {
    let machine = Machine::new();
    machine.set(&format!("{KDAMONDS}/nr_kdamonds"), "1");
    machine.set(&file(0, "contexts/nr_contexts"), "1");
    machine.set(&file(0, "contexts/0/operations"), "paddr");
    machine.set(
        &file(0, "contexts/0/monitoring_attrs/nr_regions/max"),
        "777",
    );
    machine.set(STAT, "N");
    let before = machine.dump();
    let mut tracker = machine.open().unwrap();
    assert!(tracker.take_notes().is_empty());
    machine.set(&file(0, "contexts/0/monitoring_attrs/nr_regions/max"), "9");
    machine.set(&file(0, "contexts/0/operations"), "vaddr");
    tracker.stop();
    assert!(machine.dump() == before);
}

#[test]
fn a_kdamond_is_set_up_for_its_target() {
    let machine = Machine::new();
    machine.set(&file(3, "pid"), "77");
    let started = admin::start(&machine.root, 3, &process(), &PACE, 1_000_007);
    assert_eq!(started.unwrap(), 77);
    let attributes = |name: &str| machine.get(&file(3, &format!("contexts/0/{name}")));
    assert_eq!(attributes("operations"), "fvaddr");
    let ranges = ["nr_regions", "0/start", "0/end", "1/start", "1/end"]
        .map(|name| attributes(&format!("targets/0/regions/{name}")));
    assert_eq!(ranges, ["2", "4096", "16384", "40960", "49152"]);
    assert_eq!(attributes("targets/0/pid_target"), "4711");
    assert_eq!(attributes("monitoring_attrs/intervals/sample_us"), "20000");
    assert_eq!(attributes("monitoring_attrs/intervals/aggr_us"), "400000");
    assert_eq!(
        attributes("monitoring_attrs/intervals/update_us"),
        "1000007"
    );
    assert_eq!(attributes("monitoring_attrs/nr_regions/min"), "40");
    assert_eq!(attributes("monitoring_attrs/nr_regions/max"), "160");
    assert_eq!(machine.get(&file(3, "state")), "on");
    // Another pace while it runs.
    let pace = Pace {
        sample_us: 40_000,
        ..PACE
    };
    admin::commit(&machine.root, 3, &pace, &[]).unwrap();
    assert_eq!(attributes("targets/0/regions/nr_regions"), "0");
    assert_eq!(attributes("monitoring_attrs/intervals/sample_us"), "40000");
    assert_eq!(machine.get(&file(3, "state")), "commit");
    machine.set(&file(3, "state"), "on");
    admin::stop(&machine.root, 3).unwrap();
    assert_eq!(machine.get(&file(3, "state")), "off");

    machine.set(&file(0, "pid"), "78");
    let ranges = memory(&machine.root).unwrap();
    admin::start(
        &machine.root,
        0,
        &Target::Physical(ranges),
        &PACE,
        1_000_007,
    )
    .unwrap();
    assert_eq!(machine.get(&file(0, "contexts/0/operations")), "paddr");
    let region =
        |name: &str| machine.get(&file(0, &format!("contexts/0/targets/0/regions/{name}")));
    assert_eq!(
        (region("nr_regions"), region("0/start")),
        ("1".into(), 0x10_0000.to_string())
    );
    assert_eq!(region("0/end"), 0x7ffd_f000u64.to_string());
    // One that ends at once, with its process.
    machine.set(&file(1, "pid"), "-1");
    let error = admin::start(&machine.root, 1, &process(), &PACE, 1).unwrap_err();
    assert!(error.reason.contains("ended at once"), "{error}");
}

/// As a hither that was killed leaves it: slot 0 runs.
fn killed(machine: &Machine) {
    let (mut journal, _) = Journal::open(&machine.root, &machine.runtime(), "damon").unwrap();
    journal
        .begin(admin::settings(&machine.root, 1_000_007).unwrap())
        .unwrap();
    admin::claim(&machine.root).unwrap();
    machine.set(&file(0, "pid"), "77");
    admin::start(&machine.root, 0, &process(), &PACE, 1_000_007).unwrap();
}

#[test]
fn the_next_start_restores_what_a_killed_one_left() {
    let machine = Machine::new();
    let before = machine.dump();
    killed(&machine);
    assert!(machine.dump() != before);
    let mut tracker = machine.open().unwrap();
    let notes = tracker.take_notes();
    assert!(
        notes
            .iter()
            .any(|note| note.contains("without putting back")),
        "{notes:?}"
    );
    assert_eq!(machine.get(&file(0, "state")), "off");
    tracker.stop();
    assert!(machine.dump() == before);
}

#[test]
fn what_somebody_else_runs_since_then_is_left_alone() {
    let machine = Machine::new();
    killed(&machine);
    // damo has taken over: its own count, its own interval.
    machine.set(&format!("{KDAMONDS}/nr_kdamonds"), "1");
    machine.set(
        &file(0, "contexts/0/monitoring_attrs/intervals/update_us"),
        "1000000",
    );
    let error = machine.open().unwrap_err();
    assert!(
        error
            .reason
            .contains("somebody else's kdamond runs (process 77)"),
        "{error}"
    );
    assert!(error.remedy.contains("damo stop"), "{error}");
    assert_eq!(machine.get(&file(0, "state")), "on");
    assert_eq!(machine.get(&format!("{KDAMONDS}/nr_kdamonds")), "1");
    // What was hither's alone is put back.
    assert_eq!(machine.get(STAT), "Y");
}

#[test]
fn who_uses_damon_is_not_disturbed() {
    type Change = fn(&Machine);
    let cases: [(Change, &str, &str); 5] = [
        (
            |m| m.set(&file(2, "state"), "on"),
            "somebody else's kdamond",
            "damo stop",
        ),
        (
            |m| m.set("sys/module/damon_reclaim/parameters/enabled", "Y"),
            "damon_reclaim is on",
            "write N",
        ),
        (
            |m| m.set("sys/module/damon_lru_sort/parameters/enabled", "Y"),
            "damon_lru_sort is on",
            "write N",
        ),
        (
            |m| std::fs::remove_dir_all(m.root.path("sys/kernel/mm/damon")).unwrap(),
            "no DAMON",
            "CONFIG_DAMON_SYSFS",
        ),
        (
            |m| std::fs::remove_dir_all(m.root.path("sys/kernel/debug")).unwrap(),
            "tracepoint",
            "mount tracefs",
        ),
    ];
    for (change, reason, remedy) in cases {
        let machine = Machine::new();
        change(&machine);
        let before = machine.dump();
        let error = machine.open().unwrap_err();
        assert!(
            error.reason.contains(reason) && error.remedy.contains(remedy),
            "{error}"
        );
        assert!(machine.dump() == before, "{reason}");
    }
    let machine = Machine::new();
    let _tracker = machine.open().unwrap();
    let error = machine.open().unwrap_err();
    assert!(error.remedy.contains("end it"), "{error}");
}

#[test]
fn any_text_in_the_tree_is_an_answer() {
    let mut random = 7u64;
    for round in 0..8 {
        let machine = Machine::new();
        let files: Vec<PathBuf> = machine.dump().into_keys().collect();
        let mut next = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) as usize
        };
        for _ in 0..4 {
            let texts = [
                "",
                "x",
                "-1",
                "99999999999999999999",
                "Y\nY",
                "on",
                "\u{fffd}\t",
            ];
            let path = &files[next() % files.len()];
            std::fs::write(path, texts[next() % texts.len()]).unwrap();
        }
        let before = machine.dump();
        if let Ok(mut tracker) = machine.open() {
            tracker.stop();
            let notes = tracker.take_notes();
            assert!(
                machine.dump() == before || notes.iter().any(|note| note.contains("as it was")),
                "round {round}: {notes:?}"
            );
        } else {
            assert!(machine.dump() == before, "round {round}");
        }
    }
}
