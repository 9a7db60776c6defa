//! Hot memory in the fast tier by the rules of the memory-region thesis, to the letter (4.2.1): what `tiers` is
//! compared with.
//!
//! - A page has a history of 32 bits, one for each 100 ms that its address space has run: was it accessed
//!   meanwhile?
//! - With 22 bits or more it is hot, and enters the list of hot pages at the head.
//! - Every 100 ms at most 512 entries are looked at, from the tail on. One that was not accessed for 3 s is
//!   inactive. Table 6: slow and active is promoted, slow and inactive is dropped from the list, fast and
//!   active is kept, fast and inactive is demoted.
//!
//! Choices where the text is silent: an entry that is kept goes to the head, so that all are looked at in turn;
//! the bound on demotions (`MAX_MFNS`) is that on entries; an entry that was demoted is dropped; a page for
//! which the fast tier has no room waits for its next turn. The text drops a clean page of which the slow
//! memory still holds a copy; Linux keeps no second copy of a page, so that here each is moved.
//!
//! The thesis judges no result and knows no cost of its own: neither does this ([`Policy::follows_paper`]).

use super::places::Ladder;
use super::{Draft, EvidenceKind, Judged, Policy, PolicyActivity, Proposal};
use crate::ids::{Pid, SpaceId};
use crate::plan::Mechanism;
use crate::policy::{Context, moving_unit};
use crate::snapshot::Snapshot;
use crate::tiers::Tiers;
use std::collections::{BTreeMap, VecDeque};

/// Its name.
pub const NAME: &str = "tiers-paper";

/// Time that an address space runs between two looks, and between two scans of the list, in us.
pub const LOOK_US: u64 = 100_000;
/// Bits from which a page is hot.
pub const HOT_BITS: u32 = 22;
/// Entries of a scan (`MAX_SCAN`).
pub const MAX_SCAN: usize = 512;
/// Windows that are made up for at once, where steps come late.
const MOST_WINDOWS: u64 = 10;
/// Time without an access from which a page is inactive, in us (`TIME_WINDOW`).
pub const WINDOW_US: u64 = 3_000_000;

/// What is remembered of a page.
#[derive(Clone, Copy, Debug)]
struct Page {
    bits: u32,
    /// Accesses since the last look.
    accesses: u32,
    /// When it was accessed last.
    touched_us: u64,
    /// Position of its node.
    home: u8,
    huge: bool,
    is_listed: bool,
}

/// What is remembered of an address space.
#[derive(Debug)]
struct Life {
    space: SpaceId,
    /// Time that it has run since the last look, in us.
    run_us: u64,
    pages: BTreeMap<u64, Page>,
}

/// The policy with what it remembers.
#[derive(Debug, Default)]
pub struct Paper {
    lives: BTreeMap<Pid, Life>,
    /// Hot pages, the newest first.
    hot: VecDeque<(Pid, u64)>,
    scanned_us: u64,
}

impl Paper {
    /// Takes in an interval.
    fn learn(&mut self, snapshot: &Snapshot, context: &Context<'_>) {
        for process in &snapshot.processes {
            let life = self.lives.entry(process.pid).or_insert_with(|| Life {
                space: process.space,
                run_us: 0,
                pages: BTreeMap::new(),
            });
            if life.space != process.space {
                life.space = process.space;
                life.pages.clear();
            }
            let longest = snapshot.interval_us;
            life.run_us += process.cpu_us.get().unwrap_or(longest).min(longest);
        }
        self.lives.retain(|&pid, _| snapshot.process(pid).is_some());
        let since_us = context.now_us.saturating_sub(snapshot.interval_us);
        for seen in snapshot.present.iter().filter(|page| page.accesses > 0) {
            let number = moving_unit(seen.page, seen.huge);
            let home = (context.ledger).home_given(seen.pid, number, seen.home, since_us);
            let home = snapshot.node_position(home);
            let Some((life, home)) = self.lives.get_mut(&seen.pid).zip(home) else {
                continue;
            };
            let page = life.pages.entry(number).or_insert(Page {
                bits: 0,
                accesses: 0,
                touched_us: 0,
                home: 0,
                huge: false,
                is_listed: false,
            });
            page.accesses = page.accesses.saturating_add(seen.accesses);
            page.touched_us = context.now_us;
            (page.home, page.huge) = (home as u8, seen.huge);
        }
        for (&pid, life) in &mut self.lives {
            let looks = life.run_us / LOOK_US;
            if looks == 0 {
                continue;
            }
            life.run_us %= LOOK_US;
            for (&number, page) in &mut life.pages {
                // Of several looks that have passed, as many saw it as it was accessed.
                let seen = u64::from(std::mem::take(&mut page.accesses)).min(looks);
                let ones = 1u32.checked_shl(seen as u32).unwrap_or(0).wrapping_sub(1);
                page.bits = page.bits.checked_shl(looks as u32).unwrap_or(0) | ones;
                if page.bits.count_ones() >= HOT_BITS && !page.is_listed {
                    page.is_listed = true;
                    self.hot.push_front((pid, number));
                }
            }
            life.pages
                .retain(|_, page| page.bits != 0 || page.is_listed);
        }
    }

    /// Looks at the entries whose turn it is.
    fn scan(&mut self, windows: u64, context: &Context<'_>, draft: &mut Draft<'_>) {
        for _ in 0..self.hot.len().min(MAX_SCAN * windows as usize) {
            let Some((pid, number)) = self.hot.pop_back() else {
                break;
            };
            let life = self.lives.get_mut(&pid);
            let Some(page) = life.and_then(|life| life.pages.get_mut(&number)) else {
                continue;
            };
            let is_active = context.now_us.saturating_sub(page.touched_us) < WINDOW_US;
            let home = usize::from(page.home);
            let is_fast = draft.ladder.rank(home) == 0;
            let (rank, mechanism) = match (is_fast, is_active) {
                (false, true) => (0, Mechanism::Promote),
                (true, false) => (1, Mechanism::Demote),
                _ => {
                    page.is_listed = is_active;
                    if is_active {
                        self.hot.push_front((pid, number));
                    }
                    continue;
                }
            };
            let judged = Judged {
                pid,
                page: number,
                huge: page.huge,
                home,
                heat: 0.0,
                seen: page.bits.count_ones(),
            };
            let is_asked = context.allows(mechanism)
                && context.may_move(pid, number)
                && draft.order(&judged, rank, mechanism);
            page.is_listed = !(is_asked && mechanism == Mechanism::Demote);
            if page.is_listed {
                self.hot.push_front((pid, number));
            }
        }
        draft.because(
            Mechanism::Promote,
            "accessed in 22 of the last 32 looks, and within 3 s",
        );
        draft.because(Mechanism::Demote, "not accessed for 3 s");
    }
}

impl Policy for Paper {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &[EvidenceKind] {
        &[EvidenceKind::EveryPage]
    }

    fn follows_paper(&self) -> bool {
        true
    }

    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        let tiers = Tiers::of(&snapshot.nodes);
        self.learn(snapshot, context);
        let mut draft = Draft::new(Ladder::new(snapshot, context, &tiers), context.page_budget);
        // A step may come late, and what was asked for may take longer than a window.
        let windows = (context.now_us - self.scanned_us.min(context.now_us)) / LOOK_US;
        if tiers.are_several() && windows > 0 && context.page_budget > 0 {
            self.scanned_us = context.now_us / LOOK_US * LOOK_US;
            self.scan(windows.min(MOST_WINDOWS), context, &mut draft);
        }
        Proposal {
            moves: draft.moves,
            reasons: draft.reasons,
            outlook: PolicyActivity::Working,
            ..Proposal::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;
    use crate::plan::Sampling;
    use crate::policy::asked;
    use crate::snapshot::{Evidence, GlobalMetrics, NodeState, PresentPage, ProcessState, Rated};

    /// A process whose memory is on two nodes, 0 the faster.
    struct World {
        policy: Paper,
        homes: Vec<u32>,
        room: [u64; 2],
        /// CPU time of an interval, in us.
        cpu_us: u64,
        now_us: u64,
    }

    impl World {
        fn new(homes: Vec<u32>, fast_room: u64) -> Self {
            Self {
                policy: Paper::default(),
                homes,
                room: [fast_room, 1 << 20],
                cpu_us: 100_000,
                now_us: 0,
            }
        }

        fn node(&self, at: usize) -> NodeState {
            NodeState {
                id: NodeId(at as u32),
                cpu_count: 1,
                free_bytes: 0,
                cache_bytes: 0,
                total_bytes: 1 << 34,
                idle_ns: None,
                rated: Rated {
                    tier: Some(at as u32),
                    ..Rated::default()
                },
                latency_ns: None,
                read_bytes: Evidence::unknown("test"),
                write_bytes: Evidence::unknown("test"),
                utilisation: Evidence::unknown("test"),
            }
        }

        /// An interval in which these pages were accessed; what is proposed is done. Pages moved up and down.
        fn step(&mut self, touched: impl Fn(u64) -> bool) -> (usize, usize) {
            self.now_us += 100_000;
            let pages = (0..).zip(&self.homes).filter(|&(page, _)| touched(page));
            let pages = pages.map(|(page, &home)| PresentPage {
                pid: Pid(9),
                page,
                home: NodeId(home),
                huge: false,
                accesses: 1,
            });
            let snapshot = Snapshot {
                now_us: self.now_us,
                interval_us: 100_000,
                nodes: vec![self.node(0), self.node(1)],
                caches: Vec::new(),
                distances: vec![vec![10, 30], vec![30, 10]],
                metrics: GlobalMetrics::unknown("test"),
                pages: Vec::new(),
                present: pages.collect(),
                sample_count: Evidence::measured(1, "test"),
                sample_period: 1,
                samples_lost: 0,
                by_use: false,
                processes: vec![ProcessState {
                    cpu_us: Evidence::measured(self.cpu_us, "test"),
                    ..ProcessState::of_test(Pid(9), SpaceId(1))
                }],
                own_cpu_us: Evidence::unknown("test"),
            };
            let proposal = asked(&mut self.policy, &snapshot, &self.room, |context| {
                context.sampling = Sampling::Full;
            });
            let (mut up, mut down) = (0, 0);
            for order in &proposal.moves {
                self.homes[order.page as usize] = order.to.0;
                let to = order.to.0 as usize;
                (self.room[to], self.room[1 - to]) = (self.room[to] - 1, self.room[1 - to] + 1);
                match order.mechanism {
                    Mechanism::Promote => up += 1,
                    _ => down += 1,
                }
            }
            (up, down)
        }
    }

    #[test]
    fn pages_are_hot_after_22_looks_and_512_go_up_in_each_scan() {
        let mut world = World::new(vec![1; 1300], 1 << 20);
        let moves: Vec<_> = (0..27).map(|_| world.step(|_| true)).collect();
        assert!(moves[..21].iter().all(|&moved| moved == (0, 0)));
        assert_eq!(&moves[21..25], [(512, 0), (512, 0), (276, 0), (0, 0)]);
    }

    #[test]
    fn a_page_that_is_accessed_in_fewer_looks_is_not_hot() {
        let mut world = World::new(vec![1; 10], 1 << 20);
        // Page 0 in every second look, 16 of 32; page 1 in three of four, 24.
        for step in 0..100 {
            world.step(|page| step % 2 == 0 && page == 0 || step % 4 != 0 && page == 1);
        }
        assert_eq!(world.homes[..3], [1, 0, 1]);
    }

    #[test]
    fn looks_come_as_the_program_runs() {
        let mut world = World::new(vec![1; 10], 1 << 20);
        world.cpu_us = 50_000;
        for _ in 0..43 {
            assert_eq!(world.step(|_| true), (0, 0));
        }
        assert_eq!(world.step(|_| true), (10, 0));
    }

    #[test]
    fn table_6() {
        // 100 pages, of which the fast tier has room for 60.
        let mut world = World::new(vec![1; 100], 60);
        for _ in 0..40 {
            world.step(|_| true);
        }
        let fast = |world: &World| world.homes.iter().filter(|&&home| home == 0).count();
        assert_eq!(fast(&world), 60);
        // From now on those of the slow tier alone: the others are inactive after 3 s and give their places.
        let slow: Vec<bool> = world.homes.iter().map(|&home| home == 1).collect();
        let is_used = |page: u64| slow[page as usize];
        let before: Vec<_> = (0..29).map(|_| world.step(is_used)).collect();
        assert!(before.iter().all(|&moved| moved == (0, 0)));
        for _ in 0..4 {
            world.step(is_used);
        }
        assert!(
            (0..)
                .zip(&world.homes)
                .all(|(page, &home)| home == u32::from(!is_used(page)))
        );
        // What nobody uses any more leaves the list and stays where it is, or goes down.
        for _ in 0..40 {
            world.step(|_| false);
        }
        assert_eq!((fast(&world), world.policy.hot.len()), (0, 0));
    }
}
