//! A node that runs out of memory while others have some.
//!
//! Problem: memory that is bound to a node, or that one program fills, ends in reclaim or in the OOM killer
//! although other nodes are nearly free (a database was killed with 500 GB free elsewhere: PolarDB issue 692).
//! Rule: a node is *short* where what it has free, with the page cache that the kernel takes back first, does
//! not last for [`Config::horizon_us`] at the rate at which it shrinks, beyond a reserve. The coldest pages of
//! the scope leave it, for the nearest nodes that are not short themselves. Memory policies are not looked at, as
//! nowhere else: `move_pages(2)` does not.
//!
//! It needs no samples. Where samples are to be had, unused pages go first; else any do. Where nothing is short it
//! remembers nothing.

use super::heat::{Heat, Judged};
use super::units::for_each_unit;
use super::{Context, EvidenceKind, Policy, PolicyActivity, Proposal, ProposedMove};
use crate::plan::{Listing, Mechanism};
use crate::snapshot::{PAGE_BYTES, Snapshot, base_pages};

/// Its name.
pub const NAME: &str = "guard";

/// The thresholds.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Share of a node that is to stay available. 4 %: twice what the engine leaves free on the nodes that
    /// it moves pages to, and above the kernel's own marks (Linux, `mm/page_alloc.c`, `watermark_scale_factor`,
    /// is 0.1 % between two marks).
    pub reserve_share: f64,
    /// The same in bytes at least. 32 MiB.
    pub reserve_bytes: u64,
    /// What is available must last so long, in us, at the rate at which it shrinks. 2 s: pages are found and
    /// moved within one, and a second passes until an engine that is asleep looks again.
    pub horizon_us: u64,
    /// Time in which a rate of shrinking is forgotten by half, in us. 1 s.
    pub half_life_us: u64,
    /// Blocks of 2 MiB that are remembered. 1 M: 2 TiB.
    pub max_blocks: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            reserve_share: 0.04,
            reserve_bytes: 32 << 20,
            horizon_us: 2_000_000,
            half_life_us: 1_000_000,
            max_blocks: 1 << 20,
        }
    }
}

/// How a node stands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Level {
    /// Bytes free and in the page cache.
    available: u64,
    /// Bytes a us by which that shrinks.
    falls: f64,
    /// Bytes that are to be available.
    needed: u64,
    /// Bytes that were asked to come here and were not seen to arrive yet.
    coming: u64,
}

impl Level {
    /// Bytes that must leave.
    fn lack(&self) -> u64 {
        self.needed.saturating_sub(self.available)
    }

    /// May it soon be short? Its pages are looked for then.
    fn is_near(&self) -> bool {
        self.available < self.needed.saturating_mul(2)
    }
}

/// The policy with what it remembers.
#[derive(Debug, Default)]
pub struct Guard {
    config: Config,
    levels: Vec<Level>,
    heat: Heat,
}

impl Guard {
    /// Is a node short of memory, or soon?
    pub(super) fn is_pressed(&self) -> bool {
        self.levels.iter().any(Level::is_near)
    }

    /// Takes in what nodes have.
    fn measure(&mut self, snapshot: &Snapshot) {
        let is_new = self.levels.len() != snapshot.nodes.len();
        self.levels
            .resize_with(snapshot.nodes.len(), Level::default);
        let interval_us = snapshot.interval_us.max(1) as f64;
        let kept = 0.5f64.powf(interval_us / self.config.half_life_us as f64);
        for (level, node) in self.levels.iter_mut().zip(&snapshot.nodes) {
            let available = node.free_bytes.saturating_add(node.cache_bytes);
            let fallen = match is_new {
                true => 0,
                false => level.available.saturating_sub(available),
            };
            // What hither itself brings is no trend.
            let own = level.coming.min(fallen);
            level.coming = (level.coming - own) / 2;
            let fallen = (fallen - own) as f64 / interval_us;
            // A rise is believed at once only as far as a fall fades: programs free and fill by turns.
            level.falls = fallen.max(level.falls * kept);
            level.available = available;
            let reserve = (node.total_bytes as f64 * self.config.reserve_share) as u64;
            let fills = (level.falls * self.config.horizon_us as f64) as u64;
            // A node without memory runs out of none.
            level.needed = match node.total_bytes {
                0 => 0,
                _ => reserve.max(self.config.reserve_bytes).saturating_add(fills),
            };
        }
    }

    /// Pages that each node may take, by position.
    fn room(&self, snapshot: &Snapshot, context: &Context<'_>) -> Vec<u64> {
        let levels = self.levels.iter().zip(&snapshot.nodes);
        levels
            .zip(context.room_pages)
            .map(|((level, node), &room)| {
                let beyond = node.available_bytes().saturating_sub(level.needed) / PAGE_BYTES;
                beyond.min(room)
            })
            .collect()
    }

    /// The coldest pages of a node that is short, to the nearest nodes with room.
    fn relieve(
        &mut self,
        snapshot: &Snapshot,
        context: &Context<'_>,
        at: usize,
        room: &mut [u64],
        proposal: &mut Proposal,
    ) {
        let planned: u64 = proposal.moves.iter().map(ProposedMove::base_pages).sum();
        let lacking = self.levels[at].lack().div_ceil(PAGE_BYTES);
        let mut came = Vec::new();
        let mut left = lacking.min(context.page_budget.saturating_sub(planned));
        let mut targets: Vec<usize> = (0..room.len()).filter(|&to| to != at).collect();
        let distance = |to: &usize| snapshot.distances.get(at).and_then(|row| row.get(*to));
        targets.sort_by_key(|to| distance(to).copied().unwrap_or(u32::MAX));
        // What was moved is where the ledger has it, until it is listed again.
        let is_here = |page: &Judged| {
            let home = context.ledger.home(page.pid, page.page);
            home.is_none_or(|home| home == snapshot.nodes[at].id)
        };
        let free = |page: &Judged| context.may_move(page.pid, page.page) && is_here(page);
        for page in self
            .heat
            .coldest(left, 0, |home| home == at, |_| true, free)
        {
            let pages = base_pages(page.huge);
            let process = snapshot.processes.iter().find(|one| one.pid == page.pid);
            let may_use = |to: usize| process.is_some_and(|one| one.may_use(snapshot.nodes[to].id));
            let to = targets.iter().find(|&&to| room[to] >= pages && may_use(to));
            let Some(&to) = to.filter(|_| left > 0) else {
                continue;
            };
            room[to] -= pages;
            came.push((to, pages * PAGE_BYTES));
            left = left.saturating_sub(pages);
            proposal.moves.push(ProposedMove {
                pid: page.pid,
                page: page.page,
                huge: page.huge,
                from: snapshot.nodes[at].id,
                to: snapshot.nodes[to].id,
                mechanism: Mechanism::Relieve,
            });
        }
        for (to, bytes) in came {
            self.levels[to].coming += bytes;
        }
    }

    fn because(&self, snapshot: &Snapshot, at: usize) -> String {
        let level = &self.levels[at];
        format!(
            "{} has {} MiB left, and {:.0} MiB/s less",
            snapshot.nodes[at].id,
            level.available >> 20,
            level.falls * 1e6 / f64::from(1 << 20)
        )
    }
}

impl Policy for Guard {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &[EvidenceKind] {
        &[]
    }

    fn listing(&self) -> Listing {
        match self.is_pressed() {
            true => Listing::Fast,
            false => Listing::Off,
        }
    }

    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        self.measure(snapshot);
        if !self.is_pressed() || snapshot.nodes.len() < 2 {
            self.heat = Heat::default();
            return Proposal::default();
        }
        self.heat.begin(snapshot, context.now_us);
        let most = self.config.max_blocks;
        for_each_unit(snapshot, context, |unit| {
            let samples: u64 = unit
                .samples
                .iter()
                .map(|&(_, count)| u64::from(count))
                .sum();
            let samples = samples as f64;
            self.heat
                .take(unit.pid, unit.page, unit.huge, unit.home, samples, most);
        });
        let mut proposal = Proposal {
            outlook: PolicyActivity::Pressed,
            ..Proposal::default()
        };
        if context.page_budget > 0 && context.allows(Mechanism::Relieve) {
            let mut room = self.room(snapshot, context);
            let short = (0..self.levels.len()).filter(|&at| self.levels[at].lack() > 0);
            let short: Vec<usize> = short.collect();
            for &at in &short {
                self.relieve(snapshot, context, at, &mut room, &mut proposal);
            }
            let because = short.iter().map(|&at| self.because(snapshot, at));
            let because = because.collect::<Vec<_>>().join("; ");
            proposal.reasons.insert(Mechanism::Relieve, because.into());
        }
        proposal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{NodeId, Pid, SpaceId};
    use crate::policy::asked;
    use crate::snapshot::{Evidence, NodeCounts, NodeState, PageStats, ProcessState, Rated};

    const MIB: u64 = 1 << 20;
    const PID: Pid = Pid(4);

    struct Town {
        guard: Guard,
        /// MiB free and in the page cache, by node; each has 1000.
        free: [u64; 3],
        cache: u64,
        allowed: Option<Vec<NodeId>>,
        /// Samples of each page; all are on the first node.
        samples: Vec<u32>,
        now_us: u64,
    }

    impl Town {
        fn new(free: [u64; 3], samples: Vec<u32>) -> Self {
            Self {
                guard: Guard::default(),
                free,
                cache: 0,
                allowed: None,
                samples,
                now_us: 0,
            }
        }

        fn step(&mut self) -> Proposal {
            self.now_us += 100_000;
            let node = |at: usize| NodeState {
                id: NodeId(2 * at as u32),
                cpu_count: 1,
                free_bytes: self.free[at] * MIB,
                cache_bytes: [self.cache * MIB, 0, 0][at],
                total_bytes: 1000 * MIB,
                idle_ns: None,
                rated: Rated::default(),
                latency_ns: None,
                read_bytes: Evidence::unknown("test"),
                write_bytes: Evidence::unknown("test"),
                utilisation: Evidence::unknown("test"),
            };
            let mut snapshot = Snapshot::of_nodes((0..3).map(node).collect(), "test");
            snapshot.now_us = self.now_us;
            snapshot.interval_us = 100_000;
            snapshot.distances = vec![vec![10, 30, 20], vec![30, 10, 20], vec![20, 20, 10]];
            let pages = self.samples.iter().enumerate();
            snapshot.pages = pages
                .map(|(page, &count)| PageStats {
                    pid: PID,
                    page: page as u64,
                    home: NodeId(0),
                    was: None,
                    reads: NodeCounts::from_slice(&[count]),
                    writes: NodeCounts::new(),
                    huge: false,
                })
                .collect();
            snapshot.processes = vec![ProcessState {
                allowed_nodes: self.allowed.clone(),
                ..ProcessState::of_test(PID, SpaceId(1))
            }];
            let room = self.free.map(|mib| mib * MIB / PAGE_BYTES);
            asked(&mut self.guard, &snapshot, &room, |_| ())
        }
    }

    #[test]
    fn cold_pages_leave_a_node_that_is_short_for_the_nearest_with_room() {
        // 40 MiB are to be free, 39 are: 256 pages must go.
        let samples = (0..1000).map(|page| u32::from(page < 500)).collect();
        let mut town = Town::new([39, 900, 900], samples);
        let proposal = town.step();
        assert_eq!(proposal.outlook, PolicyActivity::Pressed);
        assert_eq!(town.guard.listing(), Listing::Fast);
        assert_eq!(proposal.moves.len(), 256);
        for order in &proposal.moves {
            assert!(order.page >= 500, "{order:?} was used");
            assert_eq!(order.to, NodeId(4), "node 2 is farther away");
        }
        let because = &proposal.reasons[&Mechanism::Relieve];
        assert_eq!(because, "node0 has 39 MiB left, and 0 MiB/s less");
        // A program that may not have memory there keeps its own.
        town.allowed = Some(vec![NodeId(0), NodeId(2)]);
        assert!(town.step().moves.iter().all(|order| order.to == NodeId(2)));
        town.allowed = Some(vec![NodeId(0)]);
        assert!(town.step().moves.is_empty());
    }

    #[test]
    fn a_node_that_fills_fast_is_relieved_before_it_is_short() {
        let mut town = Town::new([300, 900, 900], vec![0; 1 << 18]);
        assert_eq!(
            town.step().outlook,
            PolicyActivity::default(),
            "300 MiB are plenty"
        );
        // 20 MiB in 100 ms are 400 in two seconds.
        town.free[0] = 280;
        let moved = town.step().moves.len() as u64 * PAGE_BYTES / MIB;
        assert_eq!(moved, 400 + 40 - 280);
    }

    #[test]
    fn what_it_brings_to_a_node_does_not_make_that_one_short() {
        let mut town = Town::new([10, 120, 500], vec![0; 1 << 16]);
        let moved = town.step().moves.len() as u64;
        assert_eq!(moved * PAGE_BYTES / MIB, 30);
        // They came in this interval; without that in mind node 4 would fall by 600 MiB in two seconds.
        town.free = [40, 120, 470];
        assert!(town.step().moves.is_empty());
        assert!(town.guard.levels[2].lack() == 0 && town.guard.levels[0].lack() == 0);
    }

    #[test]
    fn page_cache_is_no_shortage_and_where_all_are_short_nothing_moves() {
        let mut town = Town::new([10, 900, 900], vec![0; 1000]);
        town.cache = 500;
        assert!(town.step().moves.is_empty());
        let mut town = Town::new([10, 30, 39], vec![0; 1000]);
        assert!(town.step().moves.is_empty());
    }
}
