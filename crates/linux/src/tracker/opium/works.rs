//! What each watched process executed, from the device's counters of address spaces.
//!
//! Problem: the device counts by page table, and the kernel tells nobody which process has which. Mechanism:
//! with each page table it tells a page and the frame that the page was in when it was accessed last; the
//! process whose page map says the same has it. Who had it before is asked first: page tables change hands
//! only where a process ends.
//!
//! Properties: a page table that is told of for the first time begins at zero, unless it was there before
//! watching began. One whose page moved since, or is shared with others, is nobody's until its next access.

use super::cached::Cached;
use super::spaces::Match;
use crate::opium::{OpiumDevice, SpaceCounts};
use crate::proc::tree::Tree;
use hither_core::opium::MAX_NODES;
use hither_core::plan::Sampling;
use hither_core::snapshot::{CacheUse, Evidence, Snapshot, Work};
use std::collections::HashMap;

const COUNTERS: &str = "opium counters of address spaces";
/// A page table's owner is asked for again after so many intervals: a process may have given it back, and
/// another one got it.
const ASKED_INTERVALS: u32 = 16;

#[derive(Debug)]
struct Space {
    counts: SpaceCounts,
    /// Incarnation of the process that had it last, and intervals since that was asked.
    owner: Option<(u32, u32)>,
}

/// The counters as they were read last.
#[derive(Debug)]
pub(super) struct Works {
    /// References to last-level caches, where they are asked for.
    pub cached: Option<Cached>,
    spaces: HashMap<u64, Space>,
    bytes: Vec<u8>,
}

impl Works {
    /// What was counted before is left out.
    pub fn new(device: &OpiumDevice) -> Self {
        // Where they cannot be mapped, that is told with each interval.
        let before = device.spaces().into_iter().flatten();
        let spaces = before.map(|counts| {
            let space = Space {
                counts,
                owner: None,
            };
            (counts.page_table, space)
        });
        Self {
            cached: None,
            spaces: spaces.collect(),
            bytes: Vec::new(),
        }
    }

    /// Fills in what each process did since the last call. `is_pmu`: only what a PMU counts.
    pub fn fill_in(
        &mut self,
        device: &OpiumDevice,
        is_pmu: bool,
        sampling: Sampling,
        tree: &Tree,
        snapshot: &mut Snapshot,
    ) {
        let line_bytes = u64::from(device.line_bytes());
        let mut works: HashMap<u32, (Work, CacheUse)> = HashMap::new();
        let spaces = match device.spaces() {
            Ok(spaces) => spaces,
            Err(error) => {
                for state in &mut snapshot.processes {
                    let why = format!(
                        "the device's counters of address spaces cannot be mapped: {error}"
                    );
                    state.work = Evidence::unknown(why);
                }
                return;
            }
        };
        for now in spaces {
            let space = self.spaces.entry(now.page_table).or_insert(Space {
                counts: SpaceCounts::default(),
                owner: None,
            });
            let before = std::mem::replace(&mut space.counts, now);
            if now == before {
                continue;
            }
            let is_known = space.owner.is_some_and(|(incarnation, age)| {
                age < ASKED_INTERVALS && tree.by_incarnation(incarnation).is_some()
            });
            match (&mut space.owner, is_known) {
                (Some((_, age)), true) => *age += 1,
                _ => space.owner = find(tree, &now, space.owner, &mut self.bytes),
            }
            let Some((incarnation, _)) = space.owner else {
                continue;
            };
            let since = |of: fn(&SpaceCounts) -> u64| of(&now).wrapping_sub(of(&before));
            let lines = |of: fn(&SpaceCounts) -> &[u64; MAX_NODES]| {
                let sum = |counts: &SpaceCounts| of(counts).iter().sum::<u64>();
                (sum(&now).wrapping_sub(sum(&before))) * line_bytes
            };
            let (work, used) = works.entry(incarnation).or_default();
            work.instructions += since(|counts| counts.instructions);
            work.flops += since(|counts| counts.flops);
            work.read_bytes += lines(|counts| &counts.read_fills) + lines(|c| &c.write_fills);
            if !is_pmu {
                *work.written_bytes.get_or_insert(0) += lines(|counts| &counts.write_backs);
            }
            *work.stall_ns.get_or_insert(0) += since(|counts| counts.stall_ns);
            used.instructions += since(|counts| counts.instructions);
            *used.cpu_us.get_or_insert(0) += since(|counts| counts.time_ns) / 1000;
            used.references += since(|counts| counts.cache_references);
            used.misses +=
                (lines(|counts| &counts.read_fills) + lines(|c| &c.write_fills)) / line_bytes;
            let cached = self.cached.as_ref();
            let bytes = cached.and_then(|cached| cached.bytes(now.page_table));
            used.working_set_bytes = used.working_set_bytes.max(bytes);
        }
        for state in &mut snapshot.processes {
            // Who has not executed anything has no entry.
            let (work, used) = works.get(&state.space.0).copied().unwrap_or_default();
            state.work = Evidence::measured(work, COUNTERS);
            if self.cached.is_some() {
                state.cache = Evidence::measured(used, COUNTERS);
            }
        }
        if let Some(cached) = &mut self.cached {
            cached.turn(device, sampling, snapshot.now_us);
        }
    }
}

/// The process that has this page table.
fn find(
    tree: &Tree,
    counts: &SpaceCounts,
    last: Option<(u32, u32)>,
    bytes: &mut Vec<u8>,
) -> Option<(u32, u32)> {
    let before = last.and_then(|(incarnation, _)| tree.by_incarnation(incarnation));
    let mut shared = None;
    for process in before.into_iter().chain(tree.processes()) {
        let Some(map) = &process.pagemap else {
            continue;
        };
        let found = Some((process.incarnation, 0));
        match Match::of(map, counts.vaddr >> 12, counts.paddr >> 12, bytes) {
            Some(Match::Alone) => return found,
            Some(Match::Shared) => shared = shared.or(found),
            Some(Match::No) | None => {}
        }
    }
    // Of a page that several have, it may be anybody's but for who had it before.
    shared.filter(|(incarnation, _)| last.is_some_and(|(before, _)| before == *incarnation))
}
