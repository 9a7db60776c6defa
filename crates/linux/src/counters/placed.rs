//! On which nodes the memory of processes is: `/proc/PID/numa_maps`, at a bounded cost.
//!
//! A page costs some 40 ns that way, where one that is listed costs a hundred times as much with all that is done
//! about it. Of files those pages count alone that a process has written: the others are anybody's.

use crate::proc::numa_maps::{self, QUICK_PAGES};
use crate::root::Root;
use crate::sys;
use hither_core::ids::{NodeId, SpaceId};
use hither_core::snapshot::{Evidence, ProcessState, Snapshot};
use std::collections::BTreeMap;

/// Share of a CPU that reading may take.
const SHARE: f64 = 0.005;
/// A new process waits for the next count of all where that is further ahead, in us.
const MOST_AHEAD_US: u64 = 10_000_000;
const BASIS: &str = "/proc/PID/numa_maps";
const NOT_KNOWN: &str = "not counted: it is too large to be counted often, or not to be read";

const NOT_YET: &str = "not counted yet: many processes are new";

/// Counts them, and keeps what was counted of those that live.
#[derive(Debug, Default)]
pub struct PlacedPages {
    /// Of each process; `None` where it is not to be counted.
    known: BTreeMap<SpaceId, Option<Vec<u64>>>,
    /// When all are read again.
    due_us: u64,
}

impl PlacedPages {
    /// Fills in what was counted last. All are counted anew once that is paid for, and a new process at once.
    pub fn fill_in(&mut self, root: &Root, snapshot: &mut Snapshot) {
        let mut before = std::mem::take(&mut self.known);
        let is_due = snapshot.now_us >= self.due_us;
        if is_due {
            before.clear();
            self.due_us = snapshot.now_us;
        }
        let nodes: Vec<NodeId> = snapshot.nodes.iter().map(|node| node.id).collect();
        for process in &mut snapshot.processes {
            let is_late = self.due_us > snapshot.now_us + MOST_AHEAD_US;
            let known = match before.remove(&process.space) {
                Some(known) => known,
                None if is_late && !is_due => {
                    process.placed = Evidence::unknown(NOT_YET);
                    continue;
                }
                None => {
                    let began_ns = sys::thread_cpu_ns();
                    let pages = count(root, &nodes, process);
                    let used_us = sys::thread_cpu_ns().saturating_sub(began_ns) as f64 / 1e3;
                    self.due_us += (used_us / SHARE) as u64;
                    pages
                }
            };
            process.placed = match &known {
                Some(pages) => Evidence::measured(pages.clone(), BASIS),
                None => Evidence::unknown(NOT_KNOWN),
            };
            self.known.insert(process.space, known);
        }
    }
}

fn count(root: &Root, nodes: &[NodeId], process: &ProcessState) -> Option<Vec<u64>> {
    if process.resident_pages.get()? > QUICK_PAGES {
        return None;
    }
    let mappings = numa_maps::read(root, process.pid.0).ok()?;
    Some(numa_maps::by_position(
        nodes,
        &numa_maps::own_totals(&mappings),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;
    use crate::watch::empty_snapshot;
    use hither_core::ids::Pid;
    use std::fs;

    #[test]
    fn own_pages_are_counted_by_node_and_not_too_often() {
        let machine = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/machines/two-socket"
        );
        let topology = Topology::read(&Root::new(machine)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        let write = |pid: i32, pages: u64| {
            let below = folder.path().join(format!("proc/{pid}"));
            fs::create_dir_all(&below).unwrap();
            let text = format!(
                "1000 default anon=9 N0=4 N1={pages} kernelpagesize_kB=4\n\
                 2000 default file=/lib/libc.so mapped=9 N0=9 kernelpagesize_kB=4\n"
            );
            fs::write(below.join("numa_maps"), text).unwrap();
        };
        let mut snapshot = empty_snapshot(&topology);
        for (pid, resident) in [(7, 18), (8, QUICK_PAGES + 1), (9, 18)] {
            snapshot.processes.push(ProcessState {
                resident_pages: Evidence::measured(resident, "test"),
                ..ProcessState::unknown(Pid(pid), SpaceId(pid as u32), "test")
            });
        }
        write(7, 5);
        write(8, 5);
        let mut placed = PlacedPages::default();
        let told = |snapshot: &Snapshot| -> Vec<Option<Vec<u64>>> {
            let processes = snapshot.processes.iter();
            processes
                .map(|process| process.placed.value().cloned())
                .collect()
        };
        placed.fill_in(&root, &mut snapshot);
        // One is large, and one is not to be read.
        assert_eq!(told(&snapshot), [Some(vec![4, 5]), None, None]);
        write(7, 6);
        placed.fill_in(&root, &mut snapshot);
        assert_eq!(told(&snapshot)[0], Some(vec![4, 5]));
        // Another process has its number now.
        snapshot.processes[0].space = SpaceId(10);
        placed.fill_in(&root, &mut snapshot);
        assert_eq!(told(&snapshot)[0], Some(vec![4, 6]));
        assert_eq!(placed.known.len(), 3);
        // Where new ones have used up the time, the next waits, and what is known stays.
        placed.due_us = snapshot.now_us + MOST_AHEAD_US + 1;
        snapshot.processes[2].space = SpaceId(11);
        write(9, 1);
        placed.fill_in(&root, &mut snapshot);
        assert_eq!(told(&snapshot), [Some(vec![4, 6]), None, None]);
        assert_eq!(placed.known.len(), 2);
        write(7, 7);
        snapshot.now_us += 3_600_000_000;
        placed.fill_in(&root, &mut snapshot);
        assert_eq!(told(&snapshot)[0], Some(vec![4, 7]));
    }
}
