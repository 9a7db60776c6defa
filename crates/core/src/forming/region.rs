//! Regions as they are told to others.

use super::history::WorkingSet;
use super::label::{GLOBAL, Label, SEED};
use super::space::{Held, Space};
use crate::ids::SpaceId;
use std::ops::Range;

/// Pages between two of a region, none of them seen, that belong to it all the same: less than 64 KiB.
const MOST_GAP: u64 = 16;

/// What a region is (thesis, 2.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Pages that are in no region yet.
    Seed,
    /// A region that no later touches have confirmed so far, or of which nobody knows the threads.
    Regular,
    /// A region of one thread.
    Local,
    /// A region of several threads.
    Shared,
    /// Code, stack, and pages that are touched from everywhere all the time.
    Global,
}

impl Kind {
    /// In one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Seed => "seed",
            Self::Regular => "regular",
            Self::Local => "local",
            Self::Shared => "shared",
            Self::Global => "global",
        }
    }
}

/// Pages that are used together.
#[derive(Clone, Debug, PartialEq)]
pub struct FormedRegion {
    /// Its number, for life; none of seeds and of what is global.
    pub name: Option<u64>,
    /// What it is.
    pub kind: Kind,
    /// Its pages by number, ascending, with gaps of less than 16 pages of which nothing was seen.
    pub pages: Vec<Range<u64>>,
    /// Pages of it that were seen.
    pub seen_pages: u64,
    /// What of it is in use.
    pub working_set: WorkingSet,
    /// When it was formed; 0 of seeds and of what is global.
    pub formed_ns: u64,
    /// Entries that were seen since.
    pub entry_count: u64,
    /// Mean time from an entry until the thread is elsewhere.
    pub access_ns: Option<f64>,
    /// Mean time from the last touch of anybody to the next entry.
    pub idle_ns: Option<f64>,
    /// Threads that make a twentieth of its touches and more, the busiest first.
    pub threads: Vec<i32>,
}

impl FormedRegion {
    /// Its pages, those of gaps included.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        self.pages.iter().map(|range| range.end - range.start).sum()
    }
}

/// A program's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Its address space.
    pub space: SpaceId,
    /// Its regions: those that were formed, the largest first, then seeds, then what is global.
    pub regions: Vec<FormedRegion>,
    /// What of all its pages is in use.
    pub working_set: WorkingSet,
    /// Touches that were taken in.
    pub touch_count: u64,
}

impl Program {
    /// What a space has now.
    pub(super) fn of(id: SpaceId, space: &Space) -> Self {
        let mut by_number: Vec<(u64, Label, u32)> = Vec::with_capacity(space.pages().len());
        for page in space.pages() {
            let ones = page.history.ones(space.tick());
            // Pages whose access bits are empty have left their regions.
            if ones > 0 {
                by_number.push((page.number, page.label, ones));
            }
        }
        by_number.sort_unstable();
        let mut regions: Vec<FormedRegion> = space.held().iter().map(region).collect();
        let count = regions.len();
        regions.extend([unnamed(Kind::Seed), unnamed(Kind::Global)]);
        let mut working_set = WorkingSet::default();
        let mut before = GLOBAL;
        for (number, label, ones) in by_number {
            let region = match label {
                SEED => &mut regions[count],
                GLOBAL => &mut regions[count + 1],
                label => &mut regions[label as usize],
            };
            region.seen_pages += 1;
            region.working_set.add(ones);
            working_set.add(ones);
            match region.pages.last_mut() {
                Some(last) if last.end == number => last.end += 1,
                Some(last) if before == label && number - last.end < MOST_GAP => {
                    last.end = number + 1
                }
                _ => region.pages.push(number..number + 1),
            }
            before = label;
        }
        regions.retain(|region| region.seen_pages > 0);
        let rank = |kind: Kind| match kind {
            Kind::Seed => 1,
            Kind::Global => 2,
            _ => 0,
        };
        regions.sort_by_key(|region| (rank(region.kind), std::cmp::Reverse(region.seen_pages)));
        Self {
            space: id,
            regions,
            working_set,
            touch_count: space.touch_count(),
        }
    }
}

fn region(held: &Held) -> FormedRegion {
    let visits = &held.visits;
    let kind = match visits.is_one_threads() {
        Some(true) if held.is_confirmed() => Kind::Local,
        Some(false) if held.is_confirmed() => Kind::Shared,
        _ => Kind::Regular,
    };
    FormedRegion {
        name: Some(held.name),
        kind,
        formed_ns: held.formed_ns,
        entry_count: visits.entry_count,
        access_ns: visits.access_ns(),
        idle_ns: visits.idle_ns(),
        threads: visits.threads(),
        ..unnamed(kind)
    }
}

fn unnamed(kind: Kind) -> FormedRegion {
    FormedRegion {
        name: None,
        kind,
        pages: Vec::new(),
        seen_pages: 0,
        working_set: WorkingSet::default(),
        formed_ns: 0,
        entry_count: 0,
        access_ns: None,
        idle_ns: None,
        threads: Vec::new(),
    }
}
