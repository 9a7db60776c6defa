//! What of a process is astray, and which pages of files lie elsewhere than it runs: from
//! `numa_maps`, without a look at single pages. Rules are [`hither_core::bind::astray`]'s.

use crate::counters::task;
use crate::error::Result;
use crate::proc::numa_maps::{self, NumaMapping};
use crate::proc::{self, allowed};
use crate::root::Root;
use crate::topology::Topology;
use hither_core::bind::KernelPolicy;
use hither_core::bind::astray::{AstrayHome, AstrayPlace, Bound};
use hither_core::ids::NodeId;
use hither_core::set::{CpuSet, NodeSet};

/// Threads whose CPUs are looked at.
const MOST_THREADS: usize = 4096;
/// Pages of files elsewhere from which on they are worth a word: 64 MiB. Libraries that other
/// programs brought in are fewer, and cost nobody anything.
const MANY_PAGES: u64 = 16_384;

/// What a process is bound to, and where it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    /// Where memory without a policy belongs.
    pub home: AstrayHome,
    /// Nodes of the CPUs on which its threads run: where it is bound, those that it may use; else those
    /// on which they ran last. Without nodes that have no memory.
    pub runs_on: NodeSet,
}

/// Pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AstrayFigures {
    /// Of memory that the process has made, private or shared, and that is bound to nodes.
    pub bound_pages: u64,
    /// Those of them that are astray.
    pub astray_pages: u64,
    /// Of files that it maps.
    pub file_pages: u64,
    /// Those of them on nodes with CPUs on which it does not run.
    pub files_elsewhere_pages: u64,
}

impl AstrayFigures {
    /// Share of pages astray; `None` where nothing is bound.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        (self.bound_pages > 0).then(|| self.astray_pages as f64 / self.bound_pages as f64)
    }

    /// Are so many pages of files elsewhere that it is worth a word?
    #[must_use]
    pub fn has_files_elsewhere(&self) -> bool {
        self.files_elsewhere_pages >= MANY_PAGES
    }

    /// Are so many pages astray that it is worth a word: 2 %, and 4 MiB?
    #[must_use]
    pub fn has_astray(&self) -> bool {
        self.astray_pages >= 1024 && self.share().is_some_and(|share| share >= 0.02)
    }

    /// Another process's as well.
    pub fn add(&mut self, other: &Self) {
        self.bound_pages += other.bound_pages;
        self.astray_pages += other.astray_pages;
        self.file_pages += other.file_pages;
        self.files_elsewhere_pages += other.files_elsewhere_pages;
    }
}

/// The nodes of a machine, as far as binding goes.
#[must_use]
pub fn places(topology: &Topology) -> Vec<AstrayPlace> {
    let place = |node: &crate::topology::NodeInfo| AstrayPlace {
        node: node.id,
        cpus: node.cpus.clone(),
        has_memory: node.memory.total_kb > 0,
    };
    topology.nodes.iter().map(place).collect()
}

/// What a process is bound to: what any of its threads may use.
///
/// # Errors
/// No such process.
pub fn binding(root: &Root, places: &[AstrayPlace], pid: i32) -> Result<Binding> {
    let whole = root.parse(&format!("proc/{pid}/status"), allowed::parse)?;
    let mut cpus = whole.cpus;
    for tid in proc::threads(root, pid)?.into_iter().take(MOST_THREADS) {
        let below = format!("proc/{pid}/task/{tid}/status");
        // A thread that ends meanwhile runs nowhere.
        let told = root.parse_if_any(&below, allowed::parse).ok().flatten();
        if let (Some(all), Some(more)) = (&mut cpus, told.and_then(|told| told.cpus)) {
            *all = all.union(&more);
        }
    }
    let home = AstrayHome::of(places, cpus.as_ref(), whole.nodes.as_ref());
    let runs_on = match home.is_bound() {
        true => home.nodes.clone(),
        false => {
            let last = task::threads(root, pid).into_iter();
            let last: CpuSet = last
                .map(|(_, task)| hither_core::ids::CpuId(task.last_cpu))
                .collect();
            let here = places
                .iter()
                .filter(|place| place.has_memory && !place.cpus.intersection(&last).is_empty());
            here.map(|place| place.node).collect()
        }
    };
    Ok(Binding { home, runs_on })
}

/// Where the pages of a mapping belong; `None` where nothing says so.
#[must_use]
pub fn bound(mapping: &NumaMapping, home: &AstrayHome) -> Option<Bound> {
    // A policy in words of a newer kernel says nothing here.
    let policy: KernelPolicy = mapping.policy.parse().ok()?;
    home.bound(&policy)
}

/// Adds up what `numa_maps` tells of a process.
#[must_use]
pub fn figures(
    mappings: &[NumaMapping],
    binding: &Binding,
    places: &[AstrayPlace],
) -> AstrayFigures {
    let runs_elsewhere = |node: NodeId| {
        let place = places.iter().find(|place| place.node == node);
        place.is_some_and(|place| !place.cpus.is_empty()) && !binding.runs_on.contains(node)
    };
    let mut found = AstrayFigures::default();
    for mapping in mappings {
        let one = std::slice::from_ref(mapping);
        let own = numa_maps::own_totals(one);
        if let Some(bound) = bound(mapping, &binding.home) {
            found.bound_pages += own.iter().map(|(_, count)| count).sum::<u64>();
            found.astray_pages += bound.astray(&own);
        }
        if mapping.is_of_file() && own.is_empty() {
            for (node, count) in numa_maps::totals(one) {
                found.file_pages += count;
                if !binding.runs_on.is_empty() && runs_elsewhere(node) {
                    found.files_elsewhere_pages += count;
                }
            }
        }
    }
    found
}

/// The same of a process that lives.
///
/// # Errors
/// No such process, or it is somebody else's.
pub fn look(root: &Root, places: &[AstrayPlace], pid: i32) -> Result<AstrayFigures> {
    let binding = binding(root, places, pid)?;
    let mappings = numa_maps::read(root, pid)?;
    Ok(figures(&mappings, &binding, places))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// Two nodes of eight CPUs each, as a captured machine has them.
    fn captured(pid_files: &[(&str, &str)]) -> (tempfile::TempDir, Root, Topology) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        for (name, text) in pid_files {
            let path = root.path(&format!("proc/7/{name}"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines");
        let topology = Topology::read(&Root::new(fixtures.join("two-socket"))).unwrap();
        (folder, root, topology)
    }

    const NUMA_MAPS: &str = "\
        1000 default anon=100 N0=22 N1=78 kernelpagesize_kB=4\n\
        2000 default file=/srv/data mapped=30 N0=20 N1=10 kernelpagesize_kB=4\n\
        3000 bind:0 anon=10 N0=9 N1=1 kernelpagesize_kB=4\n\
        4000 default file=/dev/zero\\040(deleted) dirty=4 N0=4 kernelpagesize_kB=4\n\
        5000 default huge anon=1 N1=1 kernelpagesize_kB=2048\n\
        6000 default file=/lib/libc.so anon=3 dirty=3 mapped=3 N0=3 kernelpagesize_kB=4\n";

    #[test]
    fn a_program_bound_late_has_pages_astray() {
        let of_node = |topology: &Topology, node: usize| topology.nodes[node].cpus.to_string();
        let (_folder, _, topology) = captured(&[]);
        let second = of_node(&topology, 1);
        let status = format!("Cpus_allowed_list:\t{second}\nMems_allowed_list:\t0-1\n");
        let (_folder, root, topology) = captured(&[
            ("status", &status),
            ("task/7/status", &status),
            ("numa_maps", NUMA_MAPS),
        ]);
        let figures = look(&root, &places(&topology), 7).unwrap();
        // 22 of the first, 1 of the third, 4 of shared memory, 3 that were written of a library.
        assert_eq!(figures.astray_pages, 30);
        assert_eq!(figures.bound_pages, 100 + 10 + 4 + 512 + 3);
        assert_eq!(
            (figures.file_pages, figures.files_elsewhere_pages),
            (30, 20)
        );
        assert!((figures.share().unwrap() - 30.0 / 629.0).abs() < 1e-12);
        // One thread may run on the other node: only what a policy names is bound.
        let first = of_node(&topology, 0);
        let other = format!("Cpus_allowed_list:\t{first}\n");
        fs::create_dir_all(root.path("proc/7/task/8")).unwrap();
        fs::write(root.path("proc/7/task/8/status"), other).unwrap();
        let figures = look(&root, &places(&topology), 7).unwrap();
        assert_eq!((figures.bound_pages, figures.astray_pages), (10, 1));
        assert!(look(&root, &places(&topology), 9).is_err());
    }

    #[test]
    fn on_this_machine_nothing_of_this_process_is_astray() {
        let (root, pid) = (Root::host(), std::process::id() as i32);
        let topology = Topology::read(&root).unwrap();
        if topology.nodes.len() == 1 {
            assert_eq!(
                look(&root, &places(&topology), pid).unwrap().astray_pages,
                0
            );
        }
    }
}
