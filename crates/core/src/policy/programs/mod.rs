//! Whole programs in the fast memory tier: where the memory of each is, and how all of it is moved.
//!
//! A program is a process: the HyDM paper's applications are known by their process numbers (section III-A).

pub mod hydm;
mod model;
pub mod value;

use super::heat::Heat;
use super::tiers::nearest_with_room;
use super::units::for_each_unit;
use super::{Context, ProposedMove};
use crate::ids::{Pid, SpaceId};
use crate::plan::Mechanism;
use crate::snapshot::{ProcessState, Snapshot, Work, base_pages};
use crate::tiers::Tiers;
use std::collections::BTreeMap;

/// Pages of a process: all addresses of user mode.
const ALL_PAGES: std::ops::Range<u64> = 0..1 << 45;
/// Blocks of 2 MiB whose pages' places are remembered: 512 GiB, 400 MiB of metadata at the most.
const MOST_BLOCKS: usize = 1 << 18;

/// Share of a program's pages that is not worth a move.
const FEW: f64 = 0.02;

/// Base pages of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    fast: u64,
    slow: u64,
}

impl Held {
    /// Of pages by node position.
    fn of(by_node: &[u64], tiers: &Tiers) -> Self {
        let mut held = Self::default();
        for (node, pages) in by_node.iter().enumerate() {
            match tiers.rank(node) {
                0 => held.fast += pages,
                _ => held.slow += pages,
            }
        }
        held
    }

    /// So many go where the mechanism takes them.
    fn pass(&mut self, mechanism: Mechanism, pages: u64) {
        let (from, to) = match mechanism {
            Mechanism::Promote => (&mut self.slow, &mut self.fast),
            _ => (&mut self.fast, &mut self.slow),
        };
        let pages = pages.min(*from);
        *from -= pages;
        *to += pages;
    }

    fn known(self) -> u64 {
        self.fast + self.slow
    }

    /// Are more than a few of so many pages unknown?
    fn lacks(self, pages: u64) -> bool {
        (self.known() as f64) < (1.0 - FEW) * pages as f64
    }

    /// Share of them in the fast tier.
    fn share(self) -> f64 {
        self.fast as f64 / self.known().max(1) as f64
    }
}

/// Where the pages of all programs are.
#[derive(Debug, Default)]
struct Places {
    heat: Heat,
    held: BTreeMap<Pid, Held>,
}

impl Places {
    /// Takes in an interval.
    fn take(&mut self, snapshot: &Snapshot, context: &Context<'_>, tiers: &Tiers) {
        self.heat.begin(snapshot, context.now_us);
        for_each_unit(snapshot, context, |unit| {
            (self.heat).take(unit.pid, unit.page, unit.huge, unit.home, 0.0, MOST_BLOCKS);
        });
        self.held.clear();
        for (pid, by_node) in self.heat.held() {
            let held = self.held.entry(pid).or_default();
            for (node, pages) in by_node {
                match tiers.rank(node) {
                    0 => held.fast += pages,
                    _ => held.slow += pages,
                }
            }
        }
    }

    /// Pages that are asked to move are where they are asked to be, until they are listed again.
    fn expect(&mut self, moves: &[ProposedMove], snapshot: &Snapshot) {
        for order in moves {
            if let Some(to) = snapshot.nodes.iter().position(|node| node.id == order.to) {
                (self.heat).take(order.pid, order.page, order.huge, to, 0.0, MOST_BLOCKS);
            }
        }
    }

    /// Pages of a program, as far as they were listed.
    fn held(&self, pid: Pid) -> Held {
        self.held.get(&pid).copied().unwrap_or_default()
    }
}

/// Visits each program of the interval of which it is told what it executed. Those that have ended are forgotten,
/// and one with another life of its memory begins anew.
fn follow<T>(
    programs: &mut BTreeMap<Pid, T>,
    snapshot: &Snapshot,
    space_of: impl Fn(&T) -> SpaceId,
    fresh: impl Fn(SpaceId) -> T,
    mut visit: impl FnMut(&mut T, &ProcessState, Work),
) {
    programs.retain(|&pid, _| snapshot.process(pid).is_some());
    for process in &snapshot.processes {
        let Some(work) = process.work.get() else {
            continue;
        };
        let begun = || fresh(process.space);
        let program = programs.entry(process.pid).or_insert_with(begun);
        if space_of(program) != process.space {
            *program = begun();
        }
        visit(program, process, work);
    }
}

/// Moves of one step.
struct Moves<'a> {
    snapshot: &'a Snapshot,
    tiers: &'a Tiers,
    room: Vec<u64>,
    budget: u64,
    moves: Vec<ProposedMove>,
}

impl<'a> Moves<'a> {
    fn new(snapshot: &'a Snapshot, tiers: &'a Tiers, context: &Context<'_>) -> Self {
        Self {
            snapshot,
            tiers,
            room: context.room_pages.to_vec(),
            budget: context.page_budget,
            moves: Vec::new(),
        }
    }

    /// Moves what a program has on the other side into the fastest tier (promotion), or out of it.
    fn whole(&mut self, places: &Places, pid: Pid, mechanism: Mechanism, context: &Context<'_>) {
        self.part(places, pid, mechanism, u64::MAX, context);
    }

    /// The same of so many base pages at most; how many they are.
    fn part(
        &mut self,
        places: &Places,
        pid: Pid,
        mechanism: Mechanism,
        most: u64,
        context: &Context<'_>,
    ) -> u64 {
        let mut left = most;
        let is_up = mechanism == Mechanism::Promote;
        if !context.allows(mechanism) {
            return 0;
        }
        let nodes = &self.snapshot.nodes;
        places.heat.visit_range(pid, &ALL_PAGES, |page| {
            let pages = base_pages(page.huge);
            let is_fast = self.tiers.rank(page.home) == 0;
            if is_fast == is_up
                || self.budget.min(left) < pages
                || !context.may_move(pid, page.page)
            {
                return;
            }
            let targets = (0..nodes.len()).filter(|&node| {
                (self.tiers.rank(node) == 0) == is_up && nodes[node].total_bytes > 0
            });
            let to = nearest_with_room(self.snapshot, page.home, targets, &self.room, pages);
            let (Some(to), Some(from)) = (to, nodes.get(page.home)) else {
                return;
            };
            self.room[to] -= pages;
            self.budget -= pages;
            left -= pages;
            self.moves.push(ProposedMove {
                pid,
                page: page.page,
                huge: page.huge,
                from: from.id,
                to: nodes[to].id,
                mechanism,
            });
        });
        most - left
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ids::NodeId;
    use crate::policy::{Policy, Proposal, asked};
    use crate::snapshot::{Evidence, NodeCounts, NodeState, PageStats, Rated};
    use std::collections::BTreeSet;

    /// A program of the tests: its pages, all on one node, and what it does in an interval.
    #[derive(Clone, Debug)]
    pub struct Program {
        pub pages: u64,
        /// Those of them in fast memory.
        pub fast: BTreeSet<u64>,
        pub flops: u64,
        pub bytes: u64,
        pub faults: u64,
        pub stall_share: f64,
    }

    impl Program {
        /// In slow memory.
        pub fn new(pages: u64, flops: u64, bytes: u64) -> Self {
            Self {
                pages,
                fast: BTreeSet::new(),
                flops,
                bytes,
                faults: 0,
                stall_share: 0.5,
            }
        }
    }

    /// A machine of a fast node 1 and a slow node 0 with the CPUs.
    pub struct World {
        pub programs: BTreeMap<i32, Program>,
        pub fast_pages: u64,
        pub now_us: u64,
        /// Utilisation of the slow node, and of the fast one.
        pub uses: [f64; 2],
        /// One of so many pages is listed.
        pub listed: u64,
        /// CPUs of the slow node.
        pub cpus: u32,
        /// Where pages are is counted.
        pub counts: bool,
    }

    impl World {
        pub fn new(fast_pages: u64, programs: impl IntoIterator<Item = (i32, Program)>) -> Self {
            Self {
                programs: programs.into_iter().collect(),
                fast_pages,
                now_us: 0,
                uses: [0.9, 0.1],
                listed: 1,
                cpus: 16,
                counts: false,
            }
        }

        /// Pages of the fast node in use.
        pub fn used(&self) -> u64 {
            let programs = self.programs.values();
            programs.map(|program| program.fast.len() as u64).sum()
        }

        pub fn snapshot(&self) -> Snapshot {
            let node = |at: usize| NodeState {
                id: NodeId(at as u32),
                cpu_count: [self.cpus, 0][at],
                free_bytes: [1 << 40, (self.fast_pages - self.used()) << 12][at],
                cache_bytes: 0,
                total_bytes: [1 << 40, self.fast_pages << 12][at],
                idle_ns: Some([147.0, 176.0][at]),
                rated: Rated {
                    tier: Some([1, 0][at]),
                    read_gbs: Some([78.0, 350.0][at]),
                    ..Rated::default()
                },
                latency_ns: None,
                read_bytes: Evidence::unknown("test"),
                write_bytes: Evidence::unknown("test"),
                utilisation: Evidence::measured(self.uses[at], "test"),
            };
            let mut snapshot = Snapshot::of_nodes(vec![node(0), node(1)], "test");
            snapshot.now_us = self.now_us;
            snapshot.interval_us = 100_000;
            snapshot.distances = vec![vec![10, 31], vec![31, 10]];
            for (&pid, program) in &self.programs {
                let listed = (0..program.pages).step_by(self.listed as usize);
                let pages = listed.map(|page| PageStats {
                    pid: Pid(pid),
                    page,
                    home: NodeId(u32::from(program.fast.contains(&page))),
                    was: None,
                    reads: NodeCounts::new(),
                    writes: NodeCounts::new(),
                    huge: false,
                });
                snapshot.pages.extend(pages);
                let fast = program.fast.len() as u64;
                snapshot.processes.push(ProcessState {
                    placed: match self.counts {
                        true => Evidence::measured(vec![program.pages - fast, fast], "test"),
                        false => Evidence::unknown("test"),
                    },
                    cpu_us: Evidence::measured(100_000, "test"),
                    resident_pages: Evidence::measured(program.pages, "test"),
                    faults: Evidence::measured(program.faults, "test"),
                    work: Evidence::measured(
                        Work {
                            instructions: 100_000_000,
                            flops: program.flops,
                            read_bytes: program.bytes,
                            written_bytes: None,
                            stall_ns: Some((program.stall_share * 1e8) as u64),
                        },
                        "test",
                    ),
                    ..ProcessState::of_test(Pid(pid), SpaceId(pid as u32))
                });
            }
            snapshot
        }

        /// One interval; what is proposed is done.
        pub fn step(&mut self, policy: &mut dyn Policy) -> Proposal {
            let proposal = self.propose(policy);
            for order in &proposal.moves {
                let program = self.programs.get_mut(&order.pid.0).unwrap();
                match order.to == NodeId(1) {
                    true => assert!(program.fast.insert(order.page)),
                    false => assert!(program.fast.remove(&order.page)),
                }
            }
            assert!(self.used() <= self.fast_pages);
            proposal
        }

        /// One interval; nothing is done.
        pub fn propose(&mut self, policy: &mut dyn Policy) -> Proposal {
            self.now_us += 100_000;
            let snapshot = self.snapshot();
            let room = [1 << 28, self.fast_pages - self.used()];
            asked(policy, &snapshot, &room, |_| ())
        }

        /// Programs with memory in the fast tier.
        pub fn fast(&self) -> Vec<i32> {
            let programs = self.programs.iter();
            let fast = programs.filter(|(_, program)| !program.fast.is_empty());
            fast.map(|(&pid, _)| pid).collect()
        }
    }
}
