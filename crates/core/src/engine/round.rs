//! Figures of samples that go over memory part after part: those of a whole round.
//!
//! Problem: NUMA hint faults tell of each page once while the kernel goes over a program's memory, stretch
//! after stretch. In one interval they tell of the memory of a thread or two, so that shares of nodes and
//! of users say which stretch it was, and not how the program uses its memory. Mechanism: each page counts
//! once, by its size, until seven in eight of all that is resident were told of, or one in eight has come
//! again: then all memory that is in use was gone over, and the shares of the round are told. A page that comes
//! again and again counts once there, too: a vector that all threads read does not end a round. Where memory
//! is so large that this takes long, a part of it must do.
//!
//! Properties: the order in which memory is gone over changes nothing of what a round tells; figures come
//! at the ends of rounds alone.

use crate::ids::Pid;
use crate::metrics;
use crate::snapshot::{Evidence, HUGE_PAGES, PageStats, Snapshot, base_pages};
use std::collections::HashMap;

/// Samples from which a round tells anything: the standard error of a share is 7 points at most.
const LEAST_SAMPLES: u64 = 50;
/// Pages of a round at most: their marks take 0.3 MiB where they are neighbours, 144 MiB where none are.
const MOST_PAGES: u64 = 1 << 20;
/// Longest round, in us.
const MOST_US: u64 = 10_000_000;
/// One page in so many comes again, or all but one in so many were told of: the round is over.
const AGAIN: u64 = 8;
const WORDS: usize = HUGE_PAGES as usize / 64;

/// What a round told.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figures {
    /// Share of the memory that its users found on their own node, 0..=1.
    pub local_ratio: f64,
    /// Deviation over the mean of the memory by node.
    pub imbalance: Option<f64>,
    /// Base pages by position of the node that used them.
    pub users: Vec<f64>,
    pages: u64,
}

/// Pages of a block of 2 MiB, as bits.
#[derive(Debug, Default)]
struct Marks {
    seen: [u64; WORDS],
    again: [u64; WORDS],
}

impl Marks {
    /// Sets a page's bit, and says whether that is new.
    fn set(bits: &mut [u64; WORDS], index: usize) -> bool {
        let (word, bit) = (&mut bits[index / 64], 1 << (index % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

/// The round under way.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Pages that it told of.
    marks: HashMap<(Pid, u64), Marks>,
    pages: u64,
    again: u64,
    local: f64,
    homes: Vec<f64>,
    users: Vec<f64>,
    began_us: Option<u64>,
}

impl Round {
    /// Do the samples of this snapshot tell of memory part after part, and nothing else of its ratios?
    pub fn applies(snapshot: &Snapshot) -> bool {
        snapshot.sample_period == 0
            && !snapshot.by_use
            && snapshot.sample_count.is_known()
            && !snapshot.metrics.local_access_ratio.is_known()
    }

    /// Takes in an interval; returns what the round told where that ended it.
    pub fn take(&mut self, snapshot: &Snapshot) -> Option<Figures> {
        let began_us = *self.began_us.get_or_insert(snapshot.now_us);
        self.homes.resize(snapshot.nodes.len(), 0.0);
        self.users.resize(snapshot.nodes.len(), 0.0);
        let block = |page: &PageStats| (page.pid, page.page / HUGE_PAGES);
        // Neighbours are told together: one look-up finds the marks of all of them.
        for pages in snapshot.pages.chunk_by(|a, b| block(a) == block(b)) {
            // Pages may be listed that nobody touched.
            if pages.iter().all(|page| page.total() == 0) {
                continue;
            }
            let marks = self.marks.entry(block(&pages[0])).or_default();
            for page in pages {
                let total = page.total();
                let Some(home) = snapshot.node_position(page.served_by()) else {
                    continue;
                };
                if total == 0 {
                    continue;
                }
                let index = if page.huge {
                    0
                } else {
                    (page.page % HUGE_PAGES) as usize
                };
                if !Marks::set(&mut marks.seen, index) {
                    self.again += u64::from(Marks::set(&mut marks.again, index));
                    continue;
                }
                self.pages += 1;
                let size = base_pages(page.huge) as f64;
                self.homes[home] += size;
                self.local += size * page.accesses(home) as f64 / total as f64;
                page.add_users(&mut self.users, size / total as f64);
            }
        }
        let residents = snapshot.processes.iter();
        let resident: u64 = residents
            .filter_map(|process| process.resident_pages.get())
            .sum();
        let told: f64 = self.homes.iter().sum();
        let is_over = self.again * AGAIN >= self.pages
            || resident > 0 && told >= (resident - resident / AGAIN) as f64
            || self.pages >= MOST_PAGES
            || snapshot.now_us.saturating_sub(began_us) >= MOST_US;
        if self.pages + self.again < LEAST_SAMPLES || !is_over {
            return None;
        }
        let round = std::mem::take(self);
        let all: f64 = round.homes.iter().sum();
        Some(Figures {
            local_ratio: round.local / all,
            imbalance: metrics::imbalance(&round.homes),
            users: round.users,
            pages: round.pages,
        })
    }

    /// What was seen so far counts no more: something was moved since.
    pub fn restart(&mut self) {
        *self = Self::default();
    }
}

impl Figures {
    /// Into the snapshot of the interval with which the round ended.
    pub fn tell(&self, snapshot: &mut Snapshot) {
        let basis = format!("a round of {} pages, each counted once", self.pages);
        let metrics = &mut snapshot.metrics;
        metrics.local_access_ratio = Evidence::estimated(self.local_ratio, basis.clone());
        if let Some(imbalance) = self.imbalance {
            metrics.controller_imbalance = Evidence::estimated(imbalance, basis);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;
    use crate::snapshot::{GlobalMetrics, NodeCounts, NodeState, PageStats};
    use std::ops::Range;

    /// Faults of node1 on these pages, which are on node0 below page 100 and on node1 from there on.
    fn faults(now_us: u64, pages: Range<u64>) -> Snapshot {
        let node = |id| NodeState {
            id: NodeId(id),
            cpu_count: 1,
            free_bytes: 0,
            total_bytes: 0,
            cache_bytes: 0,
            idle_ns: None,
            rated: crate::snapshot::Rated::default(),
            latency_ns: None,
            read_bytes: Evidence::unknown("test"),
            write_bytes: Evidence::unknown("test"),
            utilisation: Evidence::unknown("test"),
        };
        let page = |page| PageStats {
            pid: Pid(1),
            page,
            home: NodeId(u32::from(page >= 100)),
            was: None,
            reads: NodeCounts::from_slice(&[0, 1]),
            writes: NodeCounts::new(),
            huge: false,
        };
        Snapshot {
            now_us,
            interval_us: 1000,
            nodes: vec![node(0), node(1)],
            caches: Vec::new(),
            distances: Vec::new(),
            metrics: GlobalMetrics::unknown("test"),
            present: Vec::new(),
            sample_count: Evidence::measured(pages.end - pages.start, "test"),
            sample_period: 0,
            samples_lost: 0,
            by_use: false,
            processes: Vec::new(),
            own_cpu_us: Evidence::unknown("test"),
            pages: pages.map(page).collect(),
        }
    }

    #[test]
    fn figures_are_those_of_all_memory_whatever_comes_first() {
        for order in [[0..100, 100..200, 200..400], [200..400, 100..200, 0..100]] {
            let mut round = Round::default();
            for (now, pages) in order.iter().enumerate() {
                assert_eq!(round.take(&faults(now as u64, pages.clone())), None);
            }
            // It begins again: 50 of 400 pages are one in eight.
            let figures = round.take(&faults(3, 0..50)).unwrap();
            assert_eq!(figures.local_ratio, 0.75);
            // 100 and 300 pages: mean 200, deviation 100.
            assert_eq!(figures.imbalance, Some(0.5));
            assert_eq!(figures.users, [0.0, 400.0]);
            // The next begins from nothing.
            assert_eq!(round.take(&faults(4, 0..100)), None);
        }
    }

    #[test]
    fn a_few_pages_that_come_all_the_time_end_no_round() {
        let mut round = Round::default();
        for now in 0..10 {
            let fresh = 100 * now..100 * (now + 1);
            assert_eq!(round.take(&faults(2 * now, fresh)), None);
            assert_eq!(round.take(&faults(2 * now + 1, 0..12)), None);
        }
        // 12 and 113 of 1000.
        let figures = round.take(&faults(20, 500..613)).unwrap();
        assert_eq!(figures.pages, 1000);
    }

    #[test]
    fn a_part_must_do_after_a_while_but_too_little_tells_nothing() {
        let mut round = Round::default();
        assert_eq!(round.take(&faults(0, 0..48)), None);
        assert_eq!(round.take(&faults(MOST_US, 48..49)), None);
        let figures = round.take(&faults(MOST_US, 49..50)).unwrap();
        assert_eq!(figures.local_ratio, 0.0);
    }

    #[test]
    fn what_tells_the_use_of_pages_goes_over_nothing_part_after_part() {
        let mut snapshot = faults(0, 0..100);
        assert!(Round::applies(&snapshot));
        snapshot.by_use = true;
        assert!(!Round::applies(&snapshot));
    }
}
