//! Unsampled pages beside sampled ones, so that a policy can place an array in one step.
//!
//! Problem: sampling sees a page of a large array once in several intervals. A policy that knows
//! sampled pages only moves an array in many small steps, and pays for each.
//!
//! Mechanism: where a sampled page has to be looked up anyway, the page map is read over its whole
//! 2 MiB block, and the block's other pages are reported as present. A page that is
//! looked up because it moved lists nothing: whoever moved its neighbours knows where they are,
//! and to list an array anew after each of its moves would cost as much as to decide them.
//!
//! Properties: the cost is bounded by [`PAGES_PER_INTERVAL`], and nothing is listed where sampling is not
//! full: in the laboratory a listed page takes 3 us of CPU time, its part of a decision included, which a
//! program without work to be done would pay for all of its memory. A page that other processes map too is
//! not listed, since a move would be refused; neither is one whose node the frame does not tell.

use crate::proc::frames::FrameNodes;
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
    /// Pages that may be listed in an interval.
    most: usize,
    found: Vec<Listed>,
}

impl Listing {
    /// For full sampling.
    pub fn new(frames: FrameNodes) -> Self {
        Self {
            frames,
            most: PAGES_PER_INTERVAL,
            ..Self::default()
        }
    }

    /// Tells where frames are from now on.
    pub fn set_frames(&mut self, frames: FrameNodes) {
        self.frames = frames;
    }

    /// Whether sampling is full from now on.
    pub fn set_full(&mut self, full: bool) {
        self.most = if full { PAGES_PER_INTERVAL } else { 0 };
    }

    /// May more be listed, and can it be told where it is?
    pub fn wants_more(&self) -> bool {
        self.found.len() < self.most && !self.frames.is_empty()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists a block of exclusive pages; returns how many were listed.
    fn list(listing: &mut Listing) -> usize {
        let entries = vec![1 << 63 | 1 << 56 | 5; HUGE_PAGES as usize];
        if listing.wants_more() {
            listing.add(0, &entries, 16);
        }
        let found = listing.take();
        let count = found.len();
        listing.give_back(found);
        count
    }

    #[test]
    fn nothing_is_listed_at_rest() {
        let frames = FrameNodes::new(vec![(1..10, NodeId(0))]);
        let mut listing = Listing::new(frames);
        for _ in 0..2 {
            listing.set_full(true);
            assert_eq!(list(&mut listing), 512);
            listing.set_full(false);
            assert_eq!(list(&mut listing), 0);
        }
    }
}
