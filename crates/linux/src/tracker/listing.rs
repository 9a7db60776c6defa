//! Unsampled pages beside sampled ones, so that a policy can place an array in one step.
//!
//! Problem: sampling sees a page of a large array once in several intervals. A policy that knows
//! sampled pages only moves an array in many small steps, and pays for each.
//!
//! Mechanism: where a sampled page has to be looked up anyway, the page map is read over its whole
//! 2 MiB block, and the block's other pages are reported with counts of zero. A page that moved
//! has a new frame, is looked up again, and brings its neighbours' new homes with it.
//!
//! Properties: the cost is bounded by [`PAGES_PER_INTERVAL`]; a page that other processes map too
//! is not listed, since a move would be refused; neither is one whose node the frame does not tell.

use super::frames::FrameNodes;
use crate::proc::pagemap;
use hither_core::ids::NodeId;
use hither_core::snapshot::HUGE_PAGES;
use std::ops::Range;

/// Pages listed per interval at most, 256 MiB: reading their entries takes a few ms. What is left
/// is listed when it is sampled next.
const PAGES_PER_INTERVAL: usize = 1 << 16;

/// A listed page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub page: u64,
    pub frame: u64,
    pub home: NodeId,
    /// Incarnation of its process.
    pub owner: u32,
}

/// What one look-up lists.
#[derive(Debug, Default)]
pub(super) struct Listing {
    frames: FrameNodes,
    on: bool,
    found: Vec<Listed>,
}

impl Listing {
    /// Off at first.
    pub fn new(frames: FrameNodes) -> Self {
        Self {
            frames,
            ..Self::default()
        }
    }

    /// Switches it.
    pub fn set(&mut self, on: bool) {
        self.on = on;
    }

    /// Is there anything to list, and room for it?
    pub fn wants_more(&self) -> bool {
        self.on && !self.frames.is_empty() && self.found.len() < PAGES_PER_INTERVAL
    }

    /// Lists the pages of a page map's `entries`, the first of which is that of page `first`.
    pub fn add(&mut self, first: u64, entries: &[u64], owner: u32) {
        let pages = (first..).zip(entries);
        let frames = &self.frames;
        self.found.extend(pages.filter_map(|(page, &entry)| {
            let frame = pagemap::frame(entry).filter(|_| pagemap::is_exclusive(entry))?;
            let home = frames.node(frame)?;
            Some(Listed {
                page,
                frame,
                home,
                owner,
            })
        }));
    }

    /// Takes pages out again that turned out to be parts of huge pages: those are one unit, which
    /// was sampled.
    pub fn remove(&mut self, owner: u32, pages: &Range<u64>) {
        self.found
            .retain(|listed| listed.owner != owner || !pages.contains(&listed.page));
    }

    /// What was found since the last call.
    pub fn take(&mut self) -> Vec<Listed> {
        std::mem::take(&mut self.found)
    }

    /// Returns the buffer for reuse.
    pub fn give_back(&mut self, mut buffer: Vec<Listed>) {
        buffer.clear();
        self.found = buffer;
    }
}

/// The 2 MiB block of a page.
pub(super) fn block(page: u64) -> u64 {
    page / HUGE_PAGES
}
