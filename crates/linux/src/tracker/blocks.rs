//! Frames of the pages that were listed, by block: of a sample that comes later it is known whose it is, and a block
//! that is listed again tells what is new.
//!
//! Shape: 4 KiB for each 2 MiB block, an eighth of what its pages would take in the table of samples, most of which
//! are never sampled. A page's entry is that of the last listing or look-up, and may be out of date.

use super::listing::block;
use hither_core::snapshot::HUGE_PAGES;
use std::collections::HashMap;

/// Most blocks (32 MiB; of 16 GiB of memory): full means forget.
const MOST_BLOCKS: usize = 1 << 13;

/// Of one process; frame 0 is nobody's.
#[derive(Debug)]
struct Block {
    owner: u32,
    frames: Box<[u64; HUGE_PAGES as usize]>,
}

/// Those that are remembered.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// By number; processes may have the same.
    all: HashMap<u64, Vec<Block>>,
    count: usize,
}

fn at(page: u64) -> usize {
    (page % HUGE_PAGES) as usize
}

impl Blocks {
    /// Whose page is in this frame, as far as is known?
    pub fn owner(&self, page: u64, frame: u64) -> Option<u32> {
        let blocks = self.all.get(&block(page))?.iter();
        let mut owning = blocks.filter(|block| block.frames[at(page)] == frame);
        owning.next().map(|block| block.owner)
    }

    /// Of `pages` of the block of that number, each with its frame, calls `is_new` with those of which another frame
    /// was known, and with that frame, 0 where none was.
    pub fn learn(
        &mut self,
        owner: u32,
        number: u64,
        pages: impl Iterator<Item = (u64, u64)>,
        mut is_new: impl FnMut(u64, u64),
    ) {
        let mut pages = pages.peekable();
        if pages.peek().is_none() {
            return;
        }
        let frames = self.frames(owner, number);
        for (page, frame) in pages {
            let before = std::mem::replace(&mut frames[at(page)], frame);
            if before != frame {
                is_new(page, before);
            }
        }
    }

    fn frames(&mut self, owner: u32, number: u64) -> &mut [u64; HUGE_PAGES as usize] {
        if self.count >= MOST_BLOCKS {
            self.clear();
        }
        let blocks = self.all.entry(number).or_default();
        let position = blocks.iter().position(|block| block.owner == owner);
        let position = position.unwrap_or_else(|| {
            self.count += 1;
            blocks.push(Block {
                owner,
                frames: Box::new([0; HUGE_PAGES as usize]),
            });
            blocks.len() - 1
        });
        &mut blocks[position].frames
    }

    /// Keeps those of owners that live.
    pub fn retain(&mut self, lives: impl Fn(u32) -> bool) {
        self.all.retain(|_, blocks| {
            blocks.retain(|block| lives(block.owner));
            !blocks.is_empty()
        });
        self.count = self.all.values().map(Vec::len).sum();
    }

    pub fn clear(&mut self) {
        self.all.clear();
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(blocks: &mut Blocks, owner: u32, pairs: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut new = Vec::new();
        blocks.learn(
            owner,
            block(pairs[0].0),
            pairs.iter().copied(),
            |page, before| {
                new.push((page, before));
            },
        );
        new
    }

    #[test]
    fn pairs_have_owners_and_what_moved_is_new() {
        let mut blocks = Blocks::default();
        assert_eq!(
            learn(&mut blocks, 16, &[(512, 7), (514, 8)]),
            [(512, 0), (514, 0)]
        );
        // Another process has the same pages in other frames.
        assert_eq!(learn(&mut blocks, 17, &[(512, 9)]), [(512, 0)]);
        assert_eq!(blocks.owner(512, 7), Some(16));
        assert_eq!(blocks.owner(512, 9), Some(17));
        assert_eq!(blocks.owner(513, 7), None);
        assert_eq!(learn(&mut blocks, 16, &[(512, 7), (514, 11)]), [(514, 8)]);
        assert_eq!(blocks.owner(514, 8), None);
        blocks.retain(|owner| owner == 17);
        assert_eq!(
            [blocks.owner(512, 7), blocks.owner(512, 9)],
            [None, Some(17)]
        );
    }

    #[test]
    fn they_are_bounded() {
        let mut blocks = Blocks::default();
        for number in 0..2 * MOST_BLOCKS as u64 + 1 {
            learn(&mut blocks, 16, &[(number * HUGE_PAGES, 5)]);
            assert!(blocks.count <= MOST_BLOCKS);
        }
        assert_eq!(blocks.count, 1);
        assert_eq!(
            blocks.owner(2 * MOST_BLOCKS as u64 * HUGE_PAGES, 5),
            Some(16)
        );
    }
}
