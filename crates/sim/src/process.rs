//! Simulated processes: threads on nodes, pages with homes, and who uses which pages when.

use hither_core::ids::{Pid, SpaceId};
use hither_core::policy::random::Random;
use hither_core::snapshot::HUGE_PAGES;

/// Number of every process's first page: lives of one process share addresses, as programs that are
/// linked at fixed ones do.
const FIRST_PAGE: u64 = 0x7_f000_0000;

/// Who uses which pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Every node uses every page.
    Shared,
    /// Every node uses its own stretch.
    Partitioned,
    /// Page `i` belongs to the node of rank `i % nodes`.
    Striped,
    /// Every node uses all pages in turn, a part in each interval.
    Sweeping,
    /// Every node uses the eighth that came last, which first touch leaves in slow memory.
    Late,
    /// Nobody uses any.
    Idle,
    /// The thread of the first node sets the data up, page after page; the others wait.
    Filling,
}

/// A stretch of a process's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessPhase {
    /// What it does.
    pub pattern: Pattern,
    /// How long; the last phase lasts for ever.
    pub length_us: u64,
}

/// A moving unit: a base page, or a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimPage {
    /// Position of the node that it is on.
    pub home: usize,
    /// Position of the node on which it was before hither moved it.
    pub origin: usize,
    /// It can never move.
    pub is_pinned: bool,
}

/// What a process is like.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessKind {
    /// Which program it belongs to; the checkers know scopes by it.
    pub program: usize,
    /// Effective user.
    pub user: u32,
    /// Control group.
    pub group: String,
    /// Command name.
    pub name: String,
    /// Threads on each node, by position.
    pub threads: Vec<u32>,
    /// Position of the node on which its memory lies at first; `None`: that of its first thread.
    pub lies_on: Option<usize>,
    /// What it does, in order.
    pub phases: Vec<ProcessPhase>,
    /// Moving units that it will have.
    pub units: usize,
    /// Are they huge pages?
    pub huge: bool,
    /// Share of its pages that can never move.
    pub pinned: f64,
}

impl ProcessKind {
    /// Base pages of a moving unit.
    #[must_use]
    pub fn unit_pages(&self) -> u64 {
        if self.huge { HUGE_PAGES } else { 1 }
    }

    /// Nodes with threads, by position.
    pub(crate) fn users(&self) -> Vec<usize> {
        let threads = self.threads.iter().enumerate();
        threads
            .filter(|(_, count)| **count > 0)
            .map(|(node, _)| node)
            .collect()
    }
}

/// A process in one of its lives.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its number.
    pub pid: Pid,
    /// Which life of its memory.
    pub space: SpaceId,
    /// Its parent.
    pub parent: Pid,
    /// What it is like.
    pub kind: ProcessKind,
    /// Its moving units.
    pub pages: Vec<SimPage>,
    /// Lines that memory has delivered to it: what it has got done.
    pub fills: f64,
    /// Was it seen in a snapshot, with this memory and this parent?
    pub is_seen: bool,
    /// Its own source of chance, so that what it does depends on no neighbour.
    pub(crate) random: Random,
    /// Since when it does what it does.
    pub(crate) born_us: u64,
    /// Intervals that it has lived.
    pub(crate) turn: usize,
}

/// Units that a node uses: every `step`th of `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub start: usize,
    pub end: usize,
    pub step: usize,
}

impl Stretch {
    const NONE: Self = Self {
        start: 0,
        end: 0,
        step: 1,
    };

    pub fn count(self) -> usize {
        (self.end - self.start).div_ceil(self.step)
    }

    pub fn get(self, index: usize) -> usize {
        self.start + index * self.step
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (self.start..self.end).step_by(self.step)
    }
}

impl Process {
    /// What it does now.
    #[must_use]
    pub fn pattern(&self, now_us: u64) -> Pattern {
        let mut age_us = now_us - self.born_us;
        for phase in &self.kind.phases {
            if age_us < phase.length_us {
                return phase.pattern;
            }
            age_us -= phase.length_us;
        }
        self.kind
            .phases
            .last()
            .map_or(Pattern::Idle, |phase| phase.pattern)
    }

    /// From now on it does for ever what it does now, or, while it sets up, what comes after that.
    pub(crate) fn freeze(&mut self, now_us: u64) {
        let mut pattern = self.pattern(now_us);
        if pattern == Pattern::Filling {
            let after = self.kind.phases.last().map(|phase| phase.pattern);
            pattern = after
                .filter(|last| *last != Pattern::Filling)
                .unwrap_or(Pattern::Idle);
        }
        self.kind.phases = vec![ProcessPhase {
            pattern,
            length_us: 0,
        }];
    }

    /// The units that the node of this rank uses, of so many nodes with threads.
    pub(crate) fn used_by(&self, now_us: u64, rank: usize, ranks: usize) -> Stretch {
        let count = self.pages.len();
        let part = |rank: usize| Stretch {
            start: rank * count / ranks,
            end: (rank + 1) * count / ranks,
            step: 1,
        };
        match self.pattern(now_us) {
            Pattern::Shared => part(0).join(part(ranks - 1)),
            Pattern::Partitioned => part(rank),
            Pattern::Striped if rank < count => Stretch {
                start: rank,
                end: count,
                step: ranks,
            },
            Pattern::Late => Stretch {
                start: count - count.div_ceil(8),
                end: count,
                step: 1,
            },
            Pattern::Sweeping => part((rank + self.turn) % ranks),
            Pattern::Filling if rank == 0 => part(0).join(part(ranks - 1)),
            Pattern::Striped | Pattern::Idle | Pattern::Filling => Stretch::NONE,
        }
    }

    /// Page number of a unit.
    #[must_use]
    pub fn page_number(&self, unit: usize) -> u64 {
        FIRST_PAGE + unit as u64 * self.kind.unit_pages()
    }

    /// The unit of which this is the first page.
    #[must_use]
    pub fn unit(&self, page: u64) -> Option<usize> {
        let unit_pages = self.kind.unit_pages();
        let offset = page.checked_sub(FIRST_PAGE)?;
        let unit = (offset / unit_pages) as usize;
        (offset % unit_pages == 0 && unit < self.pages.len()).then_some(unit)
    }
}

impl Stretch {
    fn join(self, last: Self) -> Self {
        Self {
            end: last.end,
            ..self
        }
    }
}
