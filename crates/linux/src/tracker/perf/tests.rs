//! The choice of the event on captured machines, and what samples come to.

use super::*;
use crate::watch::empty_snapshot;

const SOURCES: &str = "sys/bus/event_source/devices";

fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(SOURCES).join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let root = Root::new(folder.path());
    (folder, root)
}

/// As on Skylake; the formats are those of all Intel cores.
const INTEL: [(&str, &str); 5] = [
    ("cpu/type", "4\n"),
    ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
    ("cpu/format/event", "config:0-7\n"),
    ("cpu/format/umask", "config:8-15\n"),
    ("cpu/format/ldlat", "config1:0-15\n"),
];

#[test]
fn intel_samples_loads_that_take_long() {
    let (_folder, root) = machine(&INTEL);
    let [event] = &PerfTracker::probe(&root).unwrap()[..] else {
        panic!("one event");
    };
    let attribute = event.spec.attribute;
    assert_eq!((attribute.kind, attribute.config), (4, 0x1cd));
    assert_eq!(attribute.config1, LEAST_CYCLES);
    assert!(attribute.flags & event_flag::PRECISE != 0);
    assert!(event.spec.leader.is_none() && event.cpus.is_none());
    assert_eq!(attribute.sample_type & !field::KNOWN, 0);
}

#[test]
fn newer_intel_cores_want_another_event_first() {
    let mut files = INTEL.to_vec();
    files.push(("cpu/events/mem-loads-aux", "event=0x03,umask=0x82\n"));
    let (_folder, root) = machine(&files);
    let leader = memory_events(&root).unwrap()[0].spec.leader.unwrap();
    assert_eq!((leader.kind, leader.config), (4, 0x8203));
    assert_eq!(leader.sample_period, 0);
}

#[test]
fn hybrid_machines_have_an_event_for_each_kind_of_core() {
    let mut files = Vec::new();
    for core in ["cpu_core", "cpu_atom"] {
        for (name, text) in INTEL {
            files.push((name.replace("cpu/", &format!("{core}/")), text));
        }
    }
    files.push(("cpu_core/cpus".to_owned(), "0-7\n"));
    files.push(("cpu_atom/cpus".to_owned(), "8-15\n"));
    let files: Vec<_> = files
        .iter()
        .map(|(name, text)| (name.as_str(), *text))
        .collect();
    let (_folder, root) = machine(&files);
    let events = memory_events(&root).unwrap();
    let cpus: Vec<String> = events
        .iter()
        .map(|event| event.cpus.as_ref().unwrap().to_string())
        .collect();
    assert_eq!(cpus, ["0-7", "8-15"]);
}

#[test]
fn amd_samples_operations() {
    let mut files = vec![
        ("cpu/type", "4\n"),
        ("ibs_op/type", "11\n"),
        ("ibs_op/format/cnt_ctl", "config:19\n"),
    ];
    let (_folder, root) = machine(&files);
    let attribute = memory_events(&root).unwrap()[0].spec.attribute;
    assert_eq!((attribute.kind, attribute.config), (11, 1 << 19));
    assert!(attribute.flags & event_flag::PRECISE == 0);
    files.push(("ibs_op/format/l3missonly", "config:16\n"));
    let (_folder, root) = machine(&files);
    let attribute = memory_events(&root).unwrap()[0].spec.attribute;
    assert_eq!(attribute.config, 1 << 19 | 1 << 16);
}

#[test]
fn why_there_is_no_event_is_told() {
    let why = |files: &[(&str, &str)]| {
        let (_folder, root) = machine(files);
        let error = memory_events(&root).unwrap_err();
        assert!(!error.remedy.is_empty());
        error.reason
    };
    assert!(why(&[]).starts_with("this machine has no PMU"));
    assert!(why(&[("arm_spe_0/type", "8\n")]).contains("Arm SPE"));
    assert!(why(&[("cpu/type", "4\n")]).contains("does not sample memory"));
    // A file that is damaged is named.
    let mut files = INTEL.to_vec();
    files[3].1 = "config:88\n";
    let (_folder, root) = machine(&files);
    let error = memory_events(&root).unwrap_err().to_string();
    assert!(error.contains("format/umask:1: `config:88`"), "{error}");
}

fn sample(data_source: u64) -> PerfSample {
    PerfSample {
        is_user: true,
        pid: Some(5),
        tid: Some(6),
        cpu: Some(1),
        address: Some(0x7000),
        data_source: Some(data_source),
        ..PerfSample::default()
    }
}

#[test]
fn accesses_are_told_from_other_operations() {
    let kind = |sample: &PerfSample| Seen::of(sample).map(|seen| seen.kind);
    let load = sample(0x6810_0142);
    assert_eq!(kind(&load), Some(AccessKind::Read));
    assert_eq!(kind(&sample(0x04)), Some(AccessKind::Write));
    // AMD samples all operations; most access no memory.
    for nothing in [0, 0x01, 0x08, 0x10] {
        assert_eq!(kind(&sample(nothing)), None);
    }
    let kernel = PerfSample {
        is_user: false,
        ..load
    };
    let nowhere = PerfSample {
        address: Some(0),
        ..load
    };
    assert_eq!((kind(&kernel), kind(&nowhere)), (None, None));
}

#[test]
fn figures_are_estimates_with_their_basis() {
    let sums = Sums {
        near: 300.0,
        far: 100.0,
        cycles: 16_000.0,
        samples: 40,
    };
    let told = metrics(&sums, Some(2.0));
    assert_eq!(told.local_access_ratio.get(), Some(0.75));
    assert_eq!(told.latency_ns.get(), Some(200.0));
    assert_eq!(told.latency_ns.basis(), BASIS);
    assert!(!told.memory_accesses_per_us.is_known());
    assert!(!metrics(&sums, None).latency_ns.is_known());
    let few = Sums {
        samples: 29,
        ..sums
    };
    assert!(!metrics(&few, Some(2.0)).latency_ns.is_known());
    assert!(
        !metrics(&Sums::default(), Some(2.0))
            .local_access_ratio
            .is_known()
    );
    assert_eq!(latency_ns(Some(300), Some(3.0)), Some(100));
    assert_eq!(latency_ns(Some(0), Some(3.0)), None);
    assert_eq!(latency_ns(Some(300), None), None);
}

#[test]
fn rates_are_shared_by_the_cpus_within_the_kernels_limit() {
    assert_eq!(per_cpu(50_000, 100, 100_000), 500);
    assert_eq!(per_cpu(50_000, 2, 100_000), MOST_PER_CPU);
    assert_eq!(per_cpu(5_000, 2000, 100_000), LEAST_PER_CPU);
    assert_eq!(per_cpu(50_000, 2, 1500), 1500);
    assert_eq!(per_cpu(50_000, 0, 0), 1);
}

/// All but the PMU itself: page faults in its place, whose source is not told.
#[test]
fn an_event_without_sources_gives_no_accesses() {
    let root = Root::host();
    let topology = Topology::read(&root).unwrap();
    let mut spec = EventSpec::page_faults();
    spec.attribute.sample_type = SAMPLE_TYPE | field::WEIGHT_STRUCT;
    let event = MemoryEvent {
        pmu: "software".to_owned(),
        spec,
        cpus: None,
    };
    let mut tracker = match PerfTracker::with_events(&root, &topology, None, vec![event]) {
        Ok(tracker) => tracker,
        Err(error) => {
            assert!(!error.remedy.is_empty());
            println!("not measured: {error}");
            return;
        }
    };
    let mut tree = Tree::new(root, std::process::id() as i32);
    let mut snapshot = empty_snapshot(&topology);
    tracker.keep_observations(true);
    for _ in 0..2 {
        tracker.observe(&mut tree, &mut snapshot).unwrap();
        assert_eq!(snapshot.sample_count.get(), Some(0));
        assert!(!snapshot.metrics.local_access_ratio.is_known());
    }
    tracker.stop();
    tracker.observe(&mut tree, &mut snapshot).unwrap();
    assert!(!snapshot.sample_count.is_known() && snapshot.pages.is_empty());
    // Nothing but why something is not counted.
    let notes = tracker.take_notes();
    assert!(
        notes.iter().all(|note| note.contains("not counted")),
        "{notes:?}"
    );
    assert_eq!(tracker.totals().from_memory, 0);
}
