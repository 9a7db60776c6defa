//! Pages that are in memory already, moved to where weights want them.
//!
//! The kernel takes turns as pages come, so which page has which turn is nobody's to know; here the
//! number of the page says, in the same proportion. Huge pages have turns of their own.

use crate::proc::pagemap::Pagemap;
use crate::proc::{maps, numa_maps};
use crate::root::Root;
use crate::sys::{PAGE_IS_HUGE, PAGE_IS_PRESENT};
use hither_core::bind::{KernelPolicy, Weights};
use hither_core::ids::{NodeId, Pid};
use hither_core::snapshot::HUGE_PAGES;
use hither_mover::{Action, Backend, Job, Pages, Race};
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
    left: VecDeque<(i32, Range<u64>)>,
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
                    left.push_back((pid, mapping.pages()));
                }
            }
        }
        Self {
            root: root.clone(),
            weights,
            left,
            moved: 0,
            refused: 0,
        }
    }

    /// Moves a part; tells whether there is more to do.
    pub fn step(&mut self, backend: &mut dyn Backend) -> bool {
        let Some((pid, mut range)) = self.left.pop_front() else {
            return false;
        };
        let end = range.end.min(range.start + SLICE_PAGES);
        let slice = range.start..end;
        range.start = end;
        if !range.is_empty() {
            self.left.push_front((pid, range));
        }
        let pages = self.sorted(pid, slice);
        let jobs: Vec<Job<'_>> = pages
            .iter()
            .map(|(node, pages)| Job {
                pid: Pid(pid),
                action: Action::Migrate {
                    pages: Pages::Listed(pages),
                    to: *node,
                },
                race: Race::Block,
            })
            .collect();
        for outcome in backend.execute(&jobs) {
            self.moved += outcome.moved.len() as u64;
            self.refused += outcome.refused.iter().map(|(_, count)| count).sum::<u64>();
        }
        !self.left.is_empty()
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
