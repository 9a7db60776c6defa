//! What readers count: cheaply, without a word that several nodes write.

use crate::rule::Account;
use crate::sync::Line;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Of one reader slot: written by its reader alone, so that a load and a store do for an addition.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    local_bytes: AtomicU64,
    remote_bytes: AtomicU64,
    /// Read at the place where the master is.
    home_bytes: AtomicU64,
}

/// Sums over all readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) local_bytes: u64,
    pub(crate) remote_bytes: u64,
    pub(crate) home_bytes: u64,
}

/// How a chunk was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// A copy of the reader's place.
    Copy,
    /// The master, on another node.
    Remote,
    /// The master, on the reader's own.
    Home,
}

/// Counts of all readers and of all chunks.
#[derive(Debug)]
pub(crate) struct Accounts {
    reads: Box<[Line<Reads>]>,
    /// By place and chunk: how often a guard of that place took it. Readers of one place add without a
    /// read-modify-write: a lost count does not matter, only 0 or not, and about how many.
    heat: Box<[AtomicU32]>,
    chunks: usize,
}

impl Accounts {
    pub(crate) fn new(readers: usize, places: usize, chunks: usize) -> Self {
        Self {
            reads: (0..readers).map(|_| Line::default()).collect(),
            heat: (0..places * chunks).map(|_| AtomicU32::new(0)).collect(),
            chunks,
        }
    }

    #[inline]
    pub(crate) fn note(&self, slot: usize, place: usize, chunk: usize, bytes: usize, from: From) {
        self.warm(place, chunk);
        self.add(slot, bytes as u64, from);
    }

    #[inline]
    pub(crate) fn warm(&self, place: usize, chunk: usize) {
        let heat = &self.heat[place * self.chunks + chunk];
        let seen = heat.load(Ordering::Relaxed);
        heat.store(seen.saturating_add(1), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn add(&self, slot: usize, bytes: u64, from: From) {
        let reads = &self.reads[slot].0;
        let sum = match from {
            From::Copy => &reads.local_bytes,
            From::Remote => &reads.remote_bytes,
            From::Home => &reads.home_bytes,
        };
        let seen = sum.load(Ordering::Relaxed);
        sum.store(seen.wrapping_add(bytes), Ordering::Relaxed);
    }

    pub(crate) fn heat(&self, place: usize, chunk: usize) -> u32 {
        self.heat[place * self.chunks + chunk].load(Ordering::Relaxed)
    }

    /// How many places read a chunk.
    pub(crate) fn readers_of(&self, chunk: usize, places: usize) -> usize {
        (0..places)
            .filter(|&place| self.heat(place, chunk) > 0)
            .count()
    }

    pub(crate) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for reads in &self.reads {
            sums.local_bytes += reads.0.local_bytes.load(Ordering::Relaxed);
            sums.remote_bytes += reads.0.remote_bytes.load(Ordering::Relaxed);
            sums.home_bytes += reads.0.home_bytes.load(Ordering::Relaxed);
        }
        sums
    }
}

impl Sums {
    /// What was read since `before`, with what was copied meanwhile.
    pub(crate) fn since(self, before: Self, copied_bytes: u64) -> Account {
        Account {
            local_bytes: self.local_bytes.wrapping_sub(before.local_bytes),
            remote_bytes: self.remote_bytes.wrapping_sub(before.remote_bytes),
            copied_bytes,
        }
    }
}
