//! Pages that are in memory already, moved to where weights want them.
//!
//! The kernel takes turns as pages come, so which page has which turn is nobody's to know; here the
//! number of the page says, in the same proportion. Huge pages have turns of their own.

use crate::proc::pagemap::Pagemap;
use crate::proc::{maps, numa_maps};
use crate::root::Root;
use crate::sys::{PAGE_IS_HUGE, PAGE_IS_PRESENT};
use hither_core::bind::{KernelPolicy, Weights};
use hither_core::ids::{NodeId, Pid, SpaceId};
use hither_core::snapshot::HUGE_PAGES;
use hither_mover::Backend;
use hither_mover::executor::cut::{self, Cutter};
use hither_mover::executor::{ExecutorStep, Limits, Queue, Task};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Range;

/// Pages that one step looks at: 32 MiB.
const SLICE_PAGES: u64 = 8192;

/// A move of some processes' pages that goes on in steps.
#[derive(Debug)]
pub struct Spread {
    root: Root,
    weights: Weights,
    /// Ranges of pages that are still to be done.
    left: VecDeque<(i32, Cutter)>,
    queue: Queue,
    next_id: u64,
    moved: u64,
    refused: u64,
}

impl Spread {
    /// Of the anonymous private memory that these processes have now under `policy`. Those that
    /// cannot be read, or end meanwhile, are passed over.
    #[must_use]
    pub fn new(
        root: &Root,
        pids: impl IntoIterator<Item = i32>,
        policy: &KernelPolicy,
        weights: Weights,
    ) -> Self {
        let mut left = VecDeque::new();
        for pid in pids {
            let Ok(policies) = numa_maps::read(root, pid) else {
                continue;
            };
            let ours = policies.iter();
            let ours = ours.filter(|found| {
                found.file.is_none() && found.policy.parse().as_ref() == Ok(policy)
            });
            let starts: HashSet<u64> = ours.map(|found| found.start).collect();
            for mapping in maps::read(root, pid).unwrap_or_default() {
                if mapping.is_private_anonymous() && starts.contains(&mapping.range.start) {
                    left.push_back((pid, Cutter::new(vec![mapping.pages()])));
                }
            }
        }
        Self {
            root: root.clone(),
            weights,
            left,
            queue: Queue::new(Limits::default(), 0),
            next_id: 0,
            moved: 0,
            refused: 0,
        }
    }

    /// Moves a part; tells whether there is more to do.
    pub fn step(&mut self, backend: &mut dyn Backend) -> bool {
        let mut has_moved = false;
        while !has_moved && (self.queue.task_count() > 0 || self.look()) {
            // Without a rate nothing waits, and no clock is asked.
            has_moved = self.queue.step(backend, 0, &mut |_, _| {}) == ExecutorStep::Done;
        }
        for (_, outcome) in self.queue.take_finished() {
            self.moved += outcome.moved.len() as u64;
            self.refused += outcome.refused.iter().map(|(_, count)| count).sum::<u64>();
        }
        self.queue.task_count() > 0 || !self.left.is_empty()
    }

    /// Asks for the next pages to be moved; false: there are none.
    fn look(&mut self) -> bool {
        let Some((pid, ranges)) = self.left.front_mut() else {
            return false;
        };
        let (pid, slice) = (*pid, ranges.next(SLICE_PAGES));
        if ranges.left() == 0 {
            self.left.pop_front();
        }
        let runs = slice.into_iter();
        let sorted: Vec<_> = runs.flat_map(|pages| self.sorted(pid, pages)).collect();
        for (node, pages) in sorted {
            self.next_id += 1;
            let task = Task {
                id: self.next_id,
                pid: Pid(pid),
                space: SpaceId(0),
                pages: cut::runs(pages),
                to: vec![node],
            };
            let submitted = self.queue.submit(task);
            submitted.expect("the queue takes a task for each node");
        }
        true
    }

    /// Pages moved so far, and pages that could not be, of 4 KiB.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.moved, self.refused)
    }

    /// Pages in memory by the node they should be on.
    fn sorted(&self, pid: i32, pages: Range<u64>) -> BTreeMap<NodeId, Vec<u64>> {
        let mut sorted: BTreeMap<NodeId, Vec<u64>> = BTreeMap::new();
        let Ok(pagemap) = Pagemap::open(&self.root, pid) else {
            return sorted;
        };
        // What is not found stays where it is; the kernel has weights only where it has this call.
        let _ = pagemap.scan_told(
            pages,
            PAGE_IS_PRESENT,
            PAGE_IS_PRESENT | PAGE_IS_HUGE,
            |run, kinds| {
                for page in run {
                    let turn = match kinds & PAGE_IS_HUGE != 0 {
                        true => page / HUGE_PAGES,
                        false => page,
                    };
                    let node = self.weights.node_of(turn);
                    sorted.entry(node).or_default().push(page);
                }
            },
        );
        sorted
    }
}
