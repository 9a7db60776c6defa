//! Regions of a program's memory, formed by access and idle time from touches of pages. Pure.
//!
//! Problem: work can be brought to the cache that holds its memory ([`crate::policy::caches`],
//! `hither_regions`), but most programs do not say which of their pages are used together. The
//! memory-region thesis (Lee 2013, chapter II) finds out: for 1 % of the time all regions are closed but
//! the one in use, so that each entry to another faults; regions that follow each other within a short idle
//! time are merged, from single pages up, and the largest is torn down from time to time.
//!
//! Here the input is a stream of [`Touch`]es with their times and threads, from whatever sees them:
//! samples of accesses (PEBS, IBS, the laboratory's device), of which most are missing; looks at access
//! bits, as touches of one time; faults of closed pages. With samples no entry is seen, only touches near
//! each other in time, so each step of the thesis became one on counts:
//!
//! | file | thesis | here |
//! |---|---|---|
//! | `sequence` | threshold q of idle time (2.3.2) | touches of a thread that are farther apart than `near_ns` say nothing of each other; how many touches belong together is measured on what comes back |
//! | `pieces` | merging bottom up from regions of one page (2.3.2) | the same, in three steps, each with touches that decided nothing before: what follows itself by chance is no region |
//! | `follows` | merge where the idle time between two is short (2.3.2, figure 21) | merge where two follow each other nearly as often as each follows itself |
//! | `assign` | shrinking by the page that causes too many entries (2.3.3); global pages (2.3.4) | a page goes where what it is touched with fits; one that fits everywhere is global |
//! | `space` | the process of table 2: merge, allocate, tear down the largest; never the same twice in a row (2.3.3) | the same, and those longest not torn down beside the largest; regions that stop holding are given up at once, with what was seen before |
//! | `visits` | access and idle time (2.3.1, figure 17) | means over entries that were seen |
//! | `history` | access bits every 100 ms, 32 of them; working set by formula 1 (2.4) | the same bits, set by touches; pages touched at all beside it |
//! | `budget` | 1 % of run time in regioning mode (2.3.2) | touches are thinned where the caller's measured cost is more |
//!
//! Kinds ([`Kind`]) are the thesis's (2.3.3): pages begin as *seeds*; a region that was formed is
//! *regular* until touches that came later confirm it; then it is *local* where one thread uses it, else
//! *shared*. The thesis's local region is one that was mapped to a cache, which nobody does here, and
//! its shared ones are of several address spaces, which touches by virtual address do not tell. Code and
//! stack are *global* at once where the caller knows ([`Hint`]), other pages where they are touched
//! from everywhere all the time.
//!
//! Limits: a visit needs three samples or so. Where a program comes and goes faster than it is sampled, its
//! regions look like one, and are told as one. Pages that were never sampled belong nowhere, but for short
//! gaps. A region needs some ten visits within the history. Memory that is walked through in order is cut into
//! parts that are used for a while each, as it is. `docs/forming.md` has figures.
//!
//! Properties: a page is in one region at most; the same touches give the same regions; memory is bounded by
//! [`Config`]; the cost of a touch does not grow with the number of regions.

mod assign;
mod budget;
mod follows;
mod history;
mod label;
mod pieces;
mod region;
mod sequence;
mod space;
mod visits;

#[cfg(test)]
mod tests;

pub use history::{WorkingSet, weight};
pub use region::{FormedRegion, Kind, Program};

use crate::ids::SpaceId;
use budget::Budget;
use space::Space;
use std::collections::BTreeMap;

/// Time from one turn to the next, in ns.
pub const TURN_NS: u64 = 250_000_000;

/// Why a page is global whatever it is touched with (thesis, 2.3.3 and 2.3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hint {
    /// It is neither, or nobody knows.
    #[default]
    None,
    /// It holds code.
    Code,
    /// It is a stack.
    Stack,
}

/// A page was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// When; touches of one thread come in order of time.
    pub time_ns: u64,
    /// In which address space.
    pub space: SpaceId,
    /// By which thread, where known.
    pub thread: Option<i32>,
    /// Number of the base page, below 2^52.
    pub page: u64,
    /// Of code or a stack?
    pub hint: Hint,
}

/// Thresholds and bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Touches of a thread that are farther apart say nothing of each other, in ns. The thesis's q, which is
    /// that of memlat's access times there; here it parts what a thread did before it slept from what
    /// it did after, as it has to be longer than the time between samples.
    pub near_ns: u64,
    /// Part of what each follows itself by which two regions have to follow each other to be one. Halves of
    /// one region have 1, regions in turns with three samples a visit 0.5, with more less.
    pub threshold: f64,
    /// Touches of the past that are looked at, in ns. More tells more of what goes on; a new phase ends it in
    /// any case, but only where it shows at once.
    pub history_ns: u64,
    /// A space that was not touched for so long is forgotten, in ns. A page leaves its region when its access
    /// bits are empty: 3.2 s of its space's own time.
    pub forget_ns: u64,
    /// Share of the time that forming may take.
    pub most_cost: f64,
    /// Touches of a space's history at most, 16 bytes each.
    pub most_touches: usize,
    /// Pages of a space at most, some 60 bytes each; touches of others are left out.
    pub most_pages: usize,
    /// Threads of a space at most; touches of others are left out.
    pub most_threads: usize,
    /// Spaces at most; touches of others are left out.
    pub most_spaces: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            near_ns: 5_000_000,
            threshold: 0.6,
            history_ns: 2_500_000_000,
            forget_ns: 60_000_000_000,
            most_cost: 0.01,
            most_touches: 1 << 16,
            most_pages: 1 << 17,
            most_threads: 1024,
            most_spaces: 64,
        }
    }
}

/// Regions of the programs that touches are told of.
#[derive(Debug)]
pub struct Forming {
    config: Config,
    spaces: BTreeMap<SpaceId, Space>,
    budget: Budget,
    left_out_count: u64,
}

impl Forming {
    /// Nothing seen.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            budget: Budget::new(config.most_cost),
            config,
            spaces: BTreeMap::new(),
            left_out_count: 0,
        }
    }

    /// Takes a touch in.
    pub fn touch(&mut self, touch: &Touch) {
        if !self.budget.takes() {
            return;
        }
        if !self.spaces.contains_key(&touch.space) && self.spaces.len() >= self.config.most_spaces {
            self.left_out_count += 1;
            return;
        }
        let space = self.spaces.entry(touch.space).or_default();
        space.touch(touch, &self.config);
    }

    /// Goes on in time, every [`TURN_NS`]: judges regions and forms them anew. `spent_ns` is what this and
    /// the touches took since the turn before, as the caller measured it; 0 where nobody did.
    pub fn turn(&mut self, now_ns: u64, spent_ns: u64) {
        self.budget.turn(now_ns, spent_ns);
        for space in self.spaces.values_mut() {
            space.turn(now_ns, &self.config);
        }
        let oldest_ns = now_ns.saturating_sub(self.config.forget_ns);
        let left_out_count = &mut self.left_out_count;
        self.spaces.retain(|_, space| {
            let stays = space.last_touch_ns() >= oldest_ns;
            if !stays {
                *left_out_count += space.left_out_count();
            }
            stays
        });
    }

    /// The programs and their regions, as they are now.
    #[must_use]
    pub fn programs(&self) -> Vec<Program> {
        let programs = self.spaces.iter();
        programs
            .map(|(&id, space)| Program::of(id, space))
            .collect()
    }

    /// Share of the touches that are taken in, as more would cost too much, 0..=1.
    #[must_use]
    pub fn kept_share(&self) -> f64 {
        self.budget.kept_share()
    }

    /// Touches that were left out because a bound of [`Config`] was met.
    #[must_use]
    pub fn left_out_count(&self) -> u64 {
        let spaces = self.spaces.values().map(Space::left_out_count);
        self.left_out_count + spaces.sum::<u64>()
    }
}
