//! Counts by the laboratory's device.

use super::layout::{Asked, Layout, lay_out, pieces};
use super::{Counts, Reached, Sum, WatchedArea, What, refuse};
use crate::error::{Error, Result};
use crate::filter as privileges;
use crate::opium::{Filter, OpiumDevice, Secondary, Source, Totals};
use crate::proc::pagemap::{self, Pagemap};
use crate::root::Root;
use hither_core::ids::NodeId;
use hither_core::opium::MAX_NODES;
use std::collections::VecDeque;
use std::ops::Range;

/// Words of a counter: two nodes in each.
const WORDS: usize = MAX_NODES / 2;

/// The device's filters, while this process has them.
pub(super) struct Counted {
    root: Root,
    device: OpiumDevice,
    layout: Layout,
    /// Where each area's pages were at the start.
    frames: Vec<Vec<Option<u64>>>,
    sum_count: usize,
    seen: u64,
    at_start: Totals,
    /// Of the machine from start to stop, once it is stopped.
    ended: Option<Totals>,
}

impl Counted {
    pub(super) fn open(root: &Root) -> Result<Self> {
        let device = OpiumDevice::open(root)?;
        if device.is_pmu_only() {
            return Err(refuse(
                "the Opium device tells only what a PMU tells",
                "use samples, or `hither lab run` with `--evidence device`",
            ));
        }
        if !pagemap::frames_are_told(root).unwrap_or(false) {
            return Err(Error::new(
                root.path("proc/self/pagemap"),
                "frame numbers are hidden, so that counts cannot be tied to addresses",
                privileges::as_root("SYS_ADMIN"),
            ));
        }
        let wait = "wait until it ends, or end it";
        device
            .claim_filters()
            .map_err(|reason| refuse(reason, wait))?;
        Ok(Self {
            root: root.clone(),
            device,
            layout: Layout::default(),
            frames: Vec::new(),
            sum_count: 0,
            seen: 0,
            at_start: Totals::default(),
            ended: None,
        })
    }

    pub(super) fn nodes(&self) -> &[NodeId] {
        self.device.node_ids()
    }

    pub(super) fn line_bytes(&self) -> u32 {
        self.device.line_bytes()
    }

    pub(super) fn start(&mut self, areas: &[WatchedArea], sums: &[Sum]) -> Result<()> {
        self.frames = (areas.iter())
            .map(|area| self.frames_of(&area.addresses))
            .collect::<Result<_>>()?;
        let asked: Vec<Asked> = (areas.iter().zip(&self.frames).enumerate())
            .map(|(index, (area, frames))| Asked {
                pieces: pieces(&area.addresses, frames).0,
                grain_bytes: area.grain_bytes,
                is_summed: sums.iter().any(|sum| sum.areas.contains(&index)),
            })
            .collect();
        if asked.iter().all(|area| area.pieces.is_empty()) {
            return Err(refuse(
                "no page of its areas is in memory",
                "write to the memory before counting starts",
            ));
        }
        let remedy = "watch less at a time, with a larger granularity, or memory of huge pages";
        self.layout = lay_out(&asked).map_err(|reason| refuse(reason, remedy))?;
        self.sum_count = sums.len();
        self.seen = self.device.notice_count();
        self.at_start = self.device.totals();
        self.ended = None;
        for (index, watched) in self.layout.filters.iter().enumerate() {
            let area = &areas[watched.area];
            let filter = Filter {
                start: watched.physical.start,
                end: watched.physical.end,
                shift: self.layout.areas[watched.area].shift,
                types: area.types,
                node: area.node.and_then(|node| self.position(node)),
                directions: area.directions,
                user_only: true,
                base_counter: watched.base,
                threshold: area.threshold,
            };
            let set = self.device.set_filter(index, Some(filter));
            set.map_err(|reason| refuse(reason, remedy))?;
        }
        for (index, sum) in sums.iter().enumerate() {
            let filters = sum
                .areas
                .iter()
                .flat_map(|&area| self.layout.areas[area].filters.clone());
            let counter = Secondary {
                filters: filters.fold(0, |mask, filter| mask | 1 << filter),
                types: sum.types,
                threshold: sum.threshold,
            };
            self.device.set_secondary(index, Some(counter));
        }
        Ok(())
    }

    pub(super) fn stop(&mut self) {
        for index in 0..self.layout.filters.len() {
            // Switching off checks nothing that could fail.
            let _ = self.device.set_filter(index, None);
        }
        (0..self.sum_count).for_each(|index| self.device.set_secondary(index, None));
        self.ended = Some(self.totals());
    }

    fn position(&self, node: NodeId) -> Option<usize> {
        self.device.node_ids().iter().position(|&id| id == node)
    }

    /// Frames of all pages that addresses touch.
    fn frames_of(&self, addresses: &Range<u64>) -> Result<Vec<Option<u64>>> {
        let pages = addresses.start >> 12..addresses.end.div_ceil(4096);
        let mut entries = vec![0; (pages.end - pages.start) as usize];
        let fail = |error| {
            Error::io(
                self.root.path("proc/self/pagemap"),
                "cannot be read",
                privileges::as_root("SYS_ADMIN"),
                error,
            )
        };
        let map = Pagemap::open(&self.root, std::process::id() as i32).map_err(fail)?;
        let got = map
            .read(pages.start, &mut entries, &mut Vec::new())
            .map_err(fail)?;
        entries[got..].fill(0);
        Ok(entries.into_iter().map(pagemap::frame).collect())
    }

    pub(super) fn read_area(&self, areas: &[WatchedArea], index: usize) -> Counts {
        let area = &areas[index];
        let nodes = self.device.node_ids().len();
        let grains = (area.addresses.end - area.addresses.start).div_ceil(area.grain_bytes);
        let mut counts = vec![0; grains as usize * nodes];
        for (counter, offset) in self.layout.counters(index) {
            let grain = (offset / area.grain_bytes) as usize;
            let mut words = [0; WORDS];
            self.device.read_counters(counter as usize, &mut words);
            for (node, count) in counts[grain * nodes..][..nodes].iter_mut().enumerate() {
                *count += words[node / 2] >> (node % 2 * 32) & 0xffff_ffff;
            }
        }
        let now = self.frames_of(&area.addresses).unwrap_or_default();
        let then = self.frames[index].iter();
        let stays = then
            .zip(&now)
            .filter(|(then, now)| then.is_some() && then == now);
        Counts {
            counts,
            missed_pages: (self.frames[index].len() - stays.count()) as u64,
        }
    }

    pub(super) fn read_sum(&self, index: usize) -> Vec<u64> {
        let counts = self.device.secondary(index);
        counts[..self.device.node_ids().len()].to_vec()
    }

    pub(super) fn look(&mut self, into: &mut VecDeque<Reached>) {
        if self.device.notice_count() == self.seen {
            return;
        }
        let (notices, seen) = self.device.notices(self.seen);
        self.seen = seen;
        for notice in notices {
            let what = match notice.source {
                Source::Secondary(sum) if sum < self.sum_count => Some(What::Sum(sum)),
                Source::Secondary(_) => None,
                Source::Counter { filter, counter } => {
                    let place = self.layout.grain(filter, counter as u32);
                    place.map(|(area, grain)| What::Grain { area, grain })
                }
            };
            let node = self.device.node_ids().get(notice.requester);
            if let (Some(what), Some(&node)) = (what, node) {
                into.push_back(Reached { what, node });
            }
        }
    }

    pub(super) fn totals(&self) -> Totals {
        self.ended
            .unwrap_or_else(|| self.device.totals().since(&self.at_start))
    }
}
