//! What workers tell: a file that all map, 16 words per worker.

use memmap2::MmapMut;
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pages looked at.
pub const CHECKS: usize = 0;
/// Pages that were wrong.
pub const ERRORS: usize = 1;
const SLOT_WORDS: usize = 16;
/// Workers at most.
pub const SLOTS: usize = 4096;

pub struct Board(MmapMut);

impl Board {
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        file.set_len((SLOTS * SLOT_WORDS * 8) as u64)?;
        // SAFETY: the file is this program's own, and is never cut; all accesses are atomic.
        Ok(Self(unsafe { MmapMut::map_mut(&file)? }))
    }

    fn word(&self, slot: usize, word: usize) -> &AtomicU64 {
        assert!(slot < SLOTS && word < SLOT_WORDS);
        let at = (slot * SLOT_WORDS + word) * 8;
        // SAFETY: inside the map and aligned, as a page is; nobody accesses it but atomically.
        unsafe { &*self.0[at..].as_ptr().cast() }
    }

    pub fn add(&mut self, slot: usize, word: usize, count: u64) {
        self.word(slot, word).fetch_add(count, Relaxed);
    }

    pub fn get(&self, slot: usize, word: usize) -> u64 {
        self.word(slot, word).load(Relaxed)
    }
}
