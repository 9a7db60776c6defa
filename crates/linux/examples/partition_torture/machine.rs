//! What of the machine partitions change, and what must hold of them at any moment between calls.

use hither_core::ids::NodeId;
use hither_core::partition::State;
use hither_linux::counting::{Counting, PAGE_SHIFT};
use hither_linux::partition::evacuate;
use hither_linux::proc::pagemap::{self, Pagemap};
use hither_linux::proc::{cgroup, maps};
use hither_linux::root::Root;
use hither_linux::topology::Topology;
use std::collections::{BTreeMap, BTreeSet};

/// Everything that `stop` must put back, as text.
pub fn settings(root: &Root) -> BTreeMap<String, String> {
    let mut paths = vec![
        "sys/fs/cgroup/cgroup.subtree_control".to_owned(),
        "sys/fs/cgroup/cpuset.cpus.effective".to_owned(),
        "sys/fs/cgroup/cpuset.cpus.isolated".to_owned(),
        "sys/devices/virtual/workqueue/cpumask".to_owned(),
        "proc/irq/default_smp_affinity".to_owned(),
        "sys/devices/system/cpu/online".to_owned(),
        "sys/devices/system/node/has_memory".to_owned(),
    ];
    for number in root.numbered("proc/irq", "").unwrap() {
        paths.push(format!("proc/irq/{number}/smp_affinity_list"));
    }
    let mut settings: BTreeMap<String, String> = paths
        .into_iter()
        .map(|path| {
            let text = root.text_if_any(&path).unwrap().unwrap_or_default();
            (path, text)
        })
        .collect();
    let groups = root.names(cgroup::TREE).unwrap();
    for name in groups.iter().filter(|name| !name.starts_with("hither.")) {
        let path = format!("{}/{name}/cpuset.mems.effective", cgroup::TREE);
        if let Some(text) = root.text_if_any(&path).unwrap() {
            settings.insert(path, text);
        }
    }
    let ours = groups.iter().filter(|name| name.starts_with("hither."));
    settings.insert(
        "groups".to_owned(),
        ours.cloned().collect::<Vec<_>>().join(" "),
    );
    settings
}

/// Are the kernel's groups what the state says? A sentence for each that is not.
pub fn differences(root: &Root, state: &State) -> Vec<String> {
    let mut wrong = Vec::new();
    for part in &state.layout.partitions {
        let mut expect = |file: &str, wanted: &str| {
            let path = format!("{}/{file}", cgroup::folder(&part.name));
            let text = root.text_if_any(&path).unwrap().unwrap_or_default();
            if text.trim() != wanted {
                wrong.push(format!("{path} is `{}`, not `{wanted}`", text.trim()));
            }
        };
        expect("cpuset.cpus.effective", &part.set.cpus.to_string());
        expect("cpuset.mems.effective", &part.set.nodes.to_string());
        expect("cpuset.cpus.partition", part.kind.word());
    }
    let left = root.has(&cgroup::folder("moving"));
    if left {
        wrong.push("CPUs are left on their way".to_owned());
    }
    wrong
}

/// Anonymous pages of a partition's processes on nodes that are not the partition's.
pub fn left_behind(root: &Root, state: &State) -> u64 {
    let topology = Topology::read(root).unwrap();
    let mut left = 0;
    for part in &state.layout.partitions {
        let folders = [cgroup::folder(&part.name)];
        for node in topology.nodes.iter().map(|node| node.id) {
            if !part.set.nodes.contains(node) {
                let found = evacuate::find(root, &folders, node).expect("processes are told of");
                left += found
                    .iter()
                    .map(|one| one.anonymous.len() as u64)
                    .sum::<u64>();
            }
        }
    }
    left
}

/// Frames of the anonymous pages of a partition's processes.
fn frames(root: &Root, name: &str) -> BTreeSet<u64> {
    let mut frames = BTreeSet::new();
    for pid in cgroup::processes(root, &cgroup::folder(name)) {
        let (Ok(pagemap), Ok(mappings)) = (Pagemap::open(root, pid), maps::read(root, pid)) else {
            continue;
        };
        for mapping in mappings {
            let Ok(runs) = pagemap.present(mapping.pages()) else {
                continue;
            };
            for run in runs {
                let mut entries = vec![0; (run.end - run.start) as usize];
                let got = pagemap.read(run.start, &mut entries, &mut Vec::new());
                let entries = entries[..got.unwrap_or(0)].iter();
                let own = entries.filter(|e| pagemap::is_present(**e) && !pagemap::is_file(**e));
                frames.extend(
                    own.filter_map(|entry| pagemap::frame(*entry))
                        .filter(|f| *f != 0),
                );
            }
        }
    }
    frames
}

/// Counts of one window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accesses {
    /// User-mode fills and transfers of anonymous memory by the partition's own CPUs.
    pub own: u64,
    /// By CPUs of others.
    pub foreign: u64,
    /// Frames watched from the window's begin to its end.
    pub frames: u64,
}

/// Counts every user-mode access to the partitions' anonymous memory while `meanwhile` goes on.
pub fn accesses(root: &Root, state: &State, meanwhile: impl FnOnce()) -> Accesses {
    let parts = &state.layout.partitions;
    let before: Vec<BTreeSet<u64>> = parts.iter().map(|part| frames(root, &part.name)).collect();
    let all: BTreeSet<u64> = before.iter().flatten().copied().collect();
    let all: Vec<u64> = all.into_iter().collect();
    let counting = Counting::begin_user(root, &all, PAGE_SHIFT).expect("the lab's device");
    meanwhile();
    let mut counted = Accesses::default();
    for (part, before) in parts.iter().zip(&before) {
        // What was given back meanwhile may be a file's page by now.
        for frame in frames(root, &part.name).intersection(before) {
            let counts = counting.at(frame << PAGE_SHIFT).expect("it is watched");
            counted.frames += 1;
            for (position, node) in counting.node_ids().iter().enumerate() {
                let count =
                    u64::from(counts.fills[position]) + u64::from(counts.transfers[position]);
                // One CPU or more per node: the node's CPUs are its partition's.
                match part.set.nodes.contains(*node) {
                    true => counted.own += count,
                    false => counted.foreign += count,
                }
            }
        }
    }
    counted
}

/// Free memory of a node, in pages.
pub fn free(root: &Root, node: NodeId) -> u64 {
    evacuate::memory(root, node).free_kb / 4
}
