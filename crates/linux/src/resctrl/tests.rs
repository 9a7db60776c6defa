//! Trees written from the kernel's documentation (`fixtures/resctrl`), and copies of them without a kernel
//! behind: what is written stays in the files.

use super::*;
use std::fs;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../fixtures/resctrl/{name}"))
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A copy that may be written to.
struct Machine {
    folder: tempfile::TempDir,
    root: Root,
}

impl Machine {
    fn of(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy(&fixture(name), folder.path());
        let root = Root::new(folder.path());
        Self { folder, root }
    }

    fn tree(&self) -> Tree {
        Tree::open(&self.root, FOLDER).unwrap()
    }

    fn take(&self) -> (OwnGroups, Vec<String>) {
        OwnGroups::take(&self.tree(), &self.journals()).unwrap()
    }

    fn journals(&self) -> PathBuf {
        self.folder.path().join("journals")
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(FOLDER).join(below)
    }

    fn text(&self, below: &str) -> String {
        fs::read_to_string(self.path(below)).unwrap()
    }

    fn put(&self, below: &str, text: &str) {
        fs::create_dir_all(self.path(below).parent().unwrap()).unwrap();
        fs::write(self.path(below), text).unwrap();
    }

    fn start_threads(&self, pid: i32, tids: &[i32]) {
        for tid in tids {
            let path = format!("proc/{pid}/task/{tid}");
            fs::create_dir_all(self.folder.path().join(path)).unwrap();
        }
    }
}

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn said<T: std::fmt::Debug>(result: Result<T>) -> String {
    let error = result.unwrap_err();
    assert!(!error.remedy.is_empty(), "{error}");
    error.to_string()
}

#[test]
fn an_intel_tree_is_read() {
    let root = Root::new(fixture("intel-two-socket"));
    let tree = Tree::find(&root).unwrap();
    let info = tree.info();
    assert_eq!((info.ways.all(), info.ways.shared()), (0x7ff, 0x600));
    assert_eq!(info.group_count, 8, "the fewest of both resources");
    let limits = info.bandwidth.unwrap();
    assert_eq!((limits.least, limits.step), (10, 10));
    assert_eq!(tree.whole().ways, BTreeMap::from([(0, 0x7ff), (1, 0x7ff)]));
    assert!(tree.follows_tasks());
    let groups = tree.groups().unwrap();
    assert_eq!(groups.len(), 1, "info and monitoring are no groups");
    let batch = &groups[0];
    assert_eq!((batch.name.as_str(), &batch.cpus), ("batch", &set("6-7")));
    assert_eq!(batch.schemata.ways[&0], 0xf);
    assert_eq!(batch.schemata.bandwidth[&1], 50);
    assert!(!batch.is_own() && !batch.is_exclusive);
    let caches = BTreeMap::from([(0, set("0-3")), (1, set("4-7"))]);
    assert_eq!(tree.caches().unwrap(), caches);
}

#[test]
fn an_amd_tree_is_read() {
    let root = Root::new(fixture("amd-epyc"));
    let tree = Tree::find(&root).unwrap();
    let info = tree.info();
    assert_eq!((info.ways.all(), info.ways.shared()), (0xffff, 0));
    assert_eq!((info.group_count, info.bandwidth.unwrap().step), (16, 1));
    assert_eq!(tree.whole().ways.len(), 16);
    assert_eq!(tree.whole().bandwidth[&15], 2048);
    assert!(tree.groups().unwrap().is_empty());
    let caches = tree.caches().unwrap();
    assert_eq!((caches.len(), &caches[&15]), (16, &set("30-31")));
}

#[test]
fn why_there_is_no_tree_is_said() {
    let machine = Machine::of("intel-two-socket");
    let remove = |below: &str| fs::remove_dir_all(machine.path(below)).unwrap();
    fs::rename(machine.path("info/L3"), machine.path("info/L3CODE")).unwrap();
    assert!(said(Tree::find(&machine.root)).contains("without `-o cdp`"));
    remove("info/L3CODE");
    assert!(said(Tree::find(&machine.root)).contains("cannot be divided"));
    remove("info");
    assert!(said(Tree::find(&machine.root)).contains("mount -t resctrl"));
    remove("");
    assert!(said(Tree::find(&machine.root)).contains("CONFIG_X86_CPU_RESCTRL"));
}

#[test]
fn what_is_malformed_is_refused_with_its_place() {
    for (file, text, words) in [
        ("info/L3/cbm_mask", "7fg", "no mask"),
        ("info/L3/cbm_mask", "705", "no run of ways"),
        ("info/L3/cbm_mask", "0", "no run of ways"),
        ("info/L3/min_cbm_bits", "12", "fewer than 12"),
        ("info/MB/min_bandwidth", "", "no number"),
        ("schemata", "L3DATA:0=7ff\n", "without `-o cdp`"),
        ("batch/schemata", "L3:0\n", "not understood"),
        ("batch/cpus_list", "7-6", "not a list"),
    ] {
        let machine = Machine::of("intel-two-socket");
        machine.put(file, text);
        let result = Tree::open(&machine.root, FOLDER).and_then(|tree| tree.groups());
        let error = said(result);
        let place = file.rsplit_once('/').map_or(file, |(folder, _)| folder);
        assert!(error.contains(words) && error.contains(place), "{error}");
    }
}

#[test]
fn the_laboratorys_folder_has_no_tasks_and_tells_the_cpus() {
    let machine = Machine::of("intel-two-socket");
    let lab = machine.folder.path().join(LAB_FOLDER);
    fs::create_dir_all(lab.parent().unwrap()).unwrap();
    fs::rename(machine.path(""), &lab).unwrap();
    fs::remove_file(lab.join("tasks")).unwrap();
    fs::write(lab.join(LAB_CPUS), "0=0-1\n1=2-7\n").unwrap();
    let tree = Tree::find(&machine.root).unwrap();
    let caches = BTreeMap::from([(0, set("0-1")), (1, set("2-7"))]);
    assert_eq!(tree.caches().unwrap(), caches);
    let (mut own, _) = OwnGroups::take(&tree, &machine.journals()).unwrap();
    own.create("fast", &Schemata::of_ways([0], 0xff)).unwrap();
    assert!(said(own.assign_process("fast", 1)).contains("groups go by CPUs"));
    own.assign_cpus("fast", &set("0-1")).unwrap();
    let cpus = fs::read_to_string(lab.join("hither-fast/cpus_list")).unwrap();
    assert_eq!(cpus, "0-1\n");
    fs::write(lab.join(LAB_CPUS), "0:0-1\n").unwrap();
    assert!(said(tree.caches()).contains("not like `0=0-3`"));
}

#[test]
fn a_group_is_made_changed_and_removed() {
    let machine = Machine::of("intel-two-socket");
    let (mut own, removed) = machine.take();
    assert!(removed.is_empty());
    let split = own.tree().info().ways.split(4).unwrap();
    own.create("fast", &Schemata::of_ways([0, 1], split.priority))
        .unwrap();
    let whole = "L3:0=f;1=f\nMB:0=100;1=100\n";
    assert_eq!(machine.text("hither-fast/schemata"), whole);
    let change = Schemata {
        ways: BTreeMap::from([(1, 0x7)]),
        bandwidth: BTreeMap::from([(0, 50)]),
    };
    own.write("fast", &change).unwrap();
    let changed = "L3:0=f;1=7\nMB:0=50;1=100\n";
    assert_eq!(machine.text("hither-fast/schemata"), changed);
    let rest = Schemata::of_ways([0, 1], split.rest);
    own.create("rest", &rest).unwrap();
    let names: Vec<String> = own
        .tree()
        .groups()
        .unwrap()
        .into_iter()
        .map(|g| g.name)
        .collect();
    assert_eq!(names, ["batch", "hither-fast", "hither-rest"]);
    own.remove("fast").unwrap();
    assert!(!machine.path("hither-fast").exists());
    assert!(said(own.write("fast", &rest)).contains("no such group"));
    let root = machine.text("schemata");
    own.stop().unwrap();
    assert!(!machine.path("hither-rest").exists());
    assert!(machine.path("batch/tasks").exists());
    assert_eq!(machine.text("schemata"), root);
}

#[test]
fn what_cannot_be_given_is_refused_before_anything_is_made() {
    let machine = Machine::of("intel-two-socket");
    let (mut own, _) = machine.take();
    let bandwidth = |cache, part| Schemata {
        bandwidth: BTreeMap::from([(cache, part)]),
        ..Schemata::default()
    };
    for (label, schemata, words) in [
        ("a", Schemata::of_ways([0], 0x505), "no run of ways"),
        ("a", Schemata::of_ways([0], 0xfff), "ways that the cache"),
        ("a", Schemata::of_ways([2], 0xf), "no last-level cache 2"),
        ("a", bandwidth(0, 5), "less than 10"),
        ("a", bandwidth(3, 50), "no last-level cache 3"),
        ("../a", Schemata::default(), "no name for a group"),
        ("", Schemata::default(), "no name for a group"),
    ] {
        let error = said(own.create(label, &schemata));
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(own.tree().groups().unwrap().len(), 1);
    fs::remove_dir_all(machine.path("info/MB")).unwrap();
    let (mut own, _) = {
        own.stop().unwrap();
        machine.take()
    };
    let error = said(own.create("a", &bandwidth(0, 50)));
    assert!(error.contains("does not limit memory bandwidth"), "{error}");
}

#[test]
fn threads_go_back_to_the_groups_they_were_in() {
    let machine = Machine::of("intel-two-socket");
    machine.start_threads(4000, &[4000, 4001, 4002]);
    machine.start_threads(70, &[70, 71]);
    let (mut own, _) = machine.take();
    own.create("fast", &Schemata::default()).unwrap();
    own.create("other", &Schemata::default()).unwrap();
    assert_eq!(own.assign_process("fast", 4000).unwrap(), 3);
    assert_eq!(own.assign_process("fast", 70).unwrap(), 2);
    assert_eq!(own.assign_process("fast", 99).unwrap(), 0, "it has ended");
    let moved = "4000\n4001\n4002\n70\n71\n";
    assert_eq!(machine.text("hither-fast/tasks"), moved);
    // Moved on, it is still known where it came from.
    assert_eq!(own.assign_process("other", 4000).unwrap(), 3);
    // A thread that was started meanwhile goes where the first one goes; one that was in no group does not.
    machine.start_threads(4000, &[4003]);
    let before = machine.text("batch/tasks");
    own.release_process(70).unwrap();
    assert!(machine.text("tasks").ends_with("70\n71\n"));
    drop(own);
    let back = machine.text("batch/tasks");
    let back = back.strip_prefix(&before).unwrap();
    assert_eq!(back, "4000\n4001\n4003\n");
    assert!(machine.text("tasks").ends_with("4002\n"));
    assert!(!machine.path("hither-fast").exists() && !machine.path("hither-other").exists());
}

#[test]
fn a_group_that_is_gone_is_not_made_again_for_its_tasks() {
    let machine = Machine::of("intel-two-socket");
    machine.start_threads(4000, &[4000]);
    let (mut own, _) = machine.take();
    own.create("fast", &Schemata::default()).unwrap();
    own.assign_process("fast", 4000).unwrap();
    fs::remove_dir_all(machine.path("batch")).unwrap();
    own.stop().unwrap();
    assert!(machine.text("tasks").ends_with("4000\n"));
    assert!(!machine.path("batch").exists());
}

#[test]
fn cpus_of_other_programs_groups_are_not_taken() {
    let machine = Machine::of("intel-two-socket");
    let (mut own, _) = machine.take();
    own.create("fast", &Schemata::default()).unwrap();
    own.create("rest", &Schemata::default()).unwrap();
    let error = said(own.assign_cpus("rest", &set("4-7")));
    assert!(
        error.contains("CPUs 6-7") && error.contains("`batch`"),
        "{error}"
    );
    own.assign_cpus("rest", &set("0-5")).unwrap();
    own.assign_cpus("fast", &set("0-1")).unwrap();
    assert_eq!(machine.text("hither-fast/cpus_list"), "0-1\n");
    assert_eq!(machine.text("hither-rest/cpus_list"), "2-5\n");
    assert_eq!(machine.text("batch/cpus_list"), "6-7\n");
    own.assign_cpus("fast", &CpuSet::new()).unwrap();
    assert_eq!(machine.text("hither-fast/cpus_list"), "\n");
}

#[test]
fn what_the_kernel_says_of_a_refusal_is_told() {
    let machine = Machine::of("intel-two-socket");
    machine.start_threads(70, &[70]);
    machine.put("info/last_cmd_status", "overlaps with exclusive group\n");
    let (mut own, _) = machine.take();
    own.create("fast", &Schemata::default()).unwrap();
    fs::remove_file(machine.path("hither-fast/tasks")).unwrap();
    let error = said(own.assign_process("fast", 70));
    let words = [
        "hither-fast/tasks",
        "`70`",
        "overlaps with exclusive group",
        "make it again",
    ];
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
    // A folder that is full is not emptied by force.
    machine.put("hither-fast/somebodys", "");
    assert!(said(own.stop()).contains("cannot be removed"));
}

#[test]
fn what_a_killed_hither_left_is_removed_and_a_living_ones_is_not() {
    let machine = Machine::of("intel-two-socket");
    let (mut own, _) = machine.take();
    own.create("fast", &Schemata::default()).unwrap();
    let error = said(OwnGroups::take(&machine.tree(), &machine.journals()));
    assert!(
        error.contains("has changed this machine's `resctrl`"),
        "{error}"
    );
    assert!(machine.path("hither-fast").exists());
    drop(own);
    for file in ["schemata", "cpus_list", "tasks"] {
        machine.put(&format!("hither-old/{file}"), "");
    }
    let removed = remove_leftovers(&machine.tree(), &machine.journals()).unwrap();
    assert_eq!(removed, ["hither-old"]);
    assert!(!machine.path("hither-old").exists() && machine.path("batch").exists());
    assert!(machine.take().1.is_empty());
}
