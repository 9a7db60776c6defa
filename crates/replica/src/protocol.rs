//! Which content readers find, and when memory that they may read can be used again.
//!
//! Problem: readers follow addresses that a writer and builders of copies change, and must not pay for it. A
//! lock or a counter that all readers write would move a cache line between nodes at every read, which is what
//! replication is to avoid.
//!
//! Mechanism: epoch-based reclamation (Fraser 2004, section 5.2.3), with one slot for each reader. A reader
//! stores the tick that it is going to read in its own slot, which no other reader writes, and looks whether
//! that is still the current one. Two tables of addresses belong to even and odd ticks. Who has the *turn* (one
//! writer, builder or collapse at a time; the array sees to that) may change the other table, and memory that
//! only earlier ticks can reach, once [`Protocol::is_quiet`]; then [`Protocol::publish`] makes the next tick
//! current.
//!
//! | shared word | written by | read by |
//! |---|---|---|
//! | `current`: the tick, 0 in a forked child | who has the turn | readers |
//! | `slots[r]`: the tick that a reader holds, 0 for none | that reader | who has the turn |
//! | `tables[t % 2]`: an address for each place and chunk | who has the turn: before tick t is current, then only from master to a copy of the same bytes | readers |
//! | `epochs`, `masters`, `ready`, by t % 2 | the same | readers |
//!
//! **Orderings.**
//! - `publish` stores `current` with Release and readers load it with Acquire: who finds a tick finds its table
//!   and the bytes that it leads to.
//! - A reader stores its slot, then loads `current` again; who has the turn stores `current`, then loads slots.
//!   Each store must be seen by the other's load, or one of the two sees the other's: that needs a `SeqCst` fence
//!   between store and load on both sides (in [`Protocol::pin`] and in [`Protocol::is_quiet`]). So either the
//!   slot is seen, or the reader sees that its tick is over and takes the next.
//! - A slot is stored with Release and loaded with Acquire: reads under an earlier tick happen before what
//!   overwrites those bytes. That holds for the store of a later tick as well as for that of 0, since a
//!   later store of one thread does not continue the release sequence of an earlier one.
//! - A copy is put into the current table with Release ([`Protocol::set_copy`]) and addresses are loaded with
//!   Acquire: who finds the copy's address finds its bytes. On x86-64 these are plain moves.
//!
//! Rejected: a sequence lock by chunk, with which a reader may read torn data and has to read again, so that no
//! slice can be handed out; counters of readers by node, which threads of a node would write in turns.
//!
//! Always: a reader finds ticks in ascending order; a pinned tick's addresses lead to that epoch's bytes until
//! it is let go; a reader pins in two tries more than there are ticks meanwhile, of which there are two at most
//! while its slot holds one of them.

use crate::sync::{AtomicU64, AtomicUsize, Line, Ordering, Wiped, fence};
use std::io;

/// This is a child after `fork`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forked;

/// The shared words. Methods that say "turn" may be called by its holder alone.
#[derive(Debug)]
pub(crate) struct Protocol {
    current: Wiped,
    slots: Box<[Line<AtomicU64>]>,
    tables: [Box<[AtomicUsize]>; 2],
    epochs: [AtomicU64; 2],
    masters: [AtomicUsize; 2],
    /// Chunks that have a copy, by place.
    ready: [Box<[AtomicUsize]>; 2],
    chunks: usize,
}

impl Protocol {
    /// Tick 1 and epoch 1, all of it at `master`; `address` tells where a chunk is there.
    pub(crate) fn new(
        readers: usize,
        places: usize,
        chunks: usize,
        master: usize,
        address: impl Fn(usize) -> usize,
    ) -> io::Result<Self> {
        let table = || -> Box<[AtomicUsize]> {
            (0..places)
                .flat_map(|_| (0..chunks).map(&address))
                .map(AtomicUsize::new)
                .collect()
        };
        let none = || (0..places).map(|_| AtomicUsize::new(0)).collect();
        Ok(Self {
            current: Wiped::new(1)?,
            slots: (0..readers).map(|_| Line(AtomicU64::new(0))).collect(),
            tables: [table(), table()],
            epochs: [AtomicU64::new(1), AtomicU64::new(1)],
            masters: [AtomicUsize::new(master), AtomicUsize::new(master)],
            ready: [none(), none()],
            chunks,
        })
    }

    /// Is this a forked child?
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.current.word().load(Ordering::Relaxed) == 0
    }

    /// The current tick.
    pub(crate) fn tick(&self) -> u64 {
        self.current.word().load(Ordering::Acquire)
    }

    /// A reader holds the current tick from now on: its number.
    #[inline]
    pub(crate) fn pin(&self, slot: usize) -> Result<u64, Forked> {
        let held = &self.slots[slot].0;
        let mut seen = self.current.word().load(Ordering::Acquire);
        loop {
            if seen == 0 {
                held.store(0, Ordering::Release);
                return Err(Forked);
            }
            held.store(seen, Ordering::Release);
            // Pairs with the fence of `is_quiet`.
            fence(Ordering::SeqCst);
            let now = self.current.word().load(Ordering::Acquire);
            if now == seen {
                return Ok(seen);
            }
            seen = now;
        }
    }

    /// It holds nothing any more.
    #[inline]
    pub(crate) fn unpin(&self, slot: usize) {
        self.slots[slot].0.store(0, Ordering::Release);
    }

    /// Turn: does every reader that holds something hold the current tick? What only earlier ticks reach is
    /// nobody's then.
    pub(crate) fn is_quiet(&self) -> bool {
        let tick = self.tick();
        // Pairs with the fence of `pin`.
        fence(Ordering::SeqCst);
        self.slots.iter().all(|slot| {
            let held = slot.0.load(Ordering::Acquire);
            held == 0 || held >= tick
        })
    }

    /// How many readers hold something, and how many of them an earlier tick: for a report.
    pub(crate) fn holders(&self) -> (usize, usize) {
        let tick = self.tick();
        let held = || self.slots.iter().map(|slot| slot.0.load(Ordering::Acquire));
        let all = held().filter(|&held| held != 0);
        let late = held().filter(|&held| held != 0 && held < tick);
        (all.count(), late.count())
    }

    fn side(tick: u64) -> usize {
        (tick % 2) as usize
    }

    /// Where a chunk is for a reader at a place that holds this tick.
    #[inline]
    pub(crate) fn address(&self, tick: u64, place: usize, chunk: usize) -> usize {
        self.tables[Self::side(tick)][place * self.chunks + chunk].load(Ordering::Acquire)
    }

    /// The addresses of all chunks, for code that indexes them itself.
    #[inline]
    pub(crate) fn table(&self, tick: u64, place: usize) -> &[AtomicUsize] {
        &self.tables[Self::side(tick)][place * self.chunks..][..self.chunks]
    }

    /// The epoch of a tick that is held.
    #[inline]
    pub(crate) fn epoch(&self, tick: u64) -> u64 {
        self.epochs[Self::side(tick)].load(Ordering::Relaxed)
    }

    /// The master of a tick that is held.
    #[inline]
    pub(crate) fn master(&self, tick: u64) -> usize {
        self.masters[Self::side(tick)].load(Ordering::Relaxed)
    }

    /// Has the place copies of all chunks? Who finds so finds their bytes.
    #[inline]
    pub(crate) fn is_complete(&self, tick: u64, place: usize) -> bool {
        self.ready[Self::side(tick)][place].load(Ordering::Acquire) == self.chunks
    }

    /// Turn, quiet: the next tick is `epoch`, with its master; `copy` tells where a place has a copy of a
    /// chunk, `address` where the master has it.
    pub(crate) fn publish(
        &self,
        epoch: u64,
        master: usize,
        address: impl Fn(usize) -> usize,
        copy: impl Fn(usize, usize) -> Option<usize>,
    ) -> u64 {
        let next = self.tick() + 1;
        let side = Self::side(next);
        for (place, ready) in self.ready[side].iter().enumerate() {
            let mut count = 0;
            for chunk in 0..self.chunks {
                let copied = copy(place, chunk);
                count += usize::from(copied.is_some());
                let address = copied.unwrap_or_else(|| address(chunk));
                self.tables[side][place * self.chunks + chunk].store(address, Ordering::Relaxed);
            }
            ready.store(count, Ordering::Relaxed);
        }
        self.epochs[side].store(epoch, Ordering::Relaxed);
        self.masters[side].store(master, Ordering::Relaxed);
        // Release: who finds the tick finds all of the above.
        self.current.word().store(next, Ordering::Release);
        next
    }

    /// Turn: a place has a copy of a chunk of the current tick now, with the master's bytes.
    pub(crate) fn set_copy(&self, place: usize, chunk: usize, address: usize) {
        let side = Self::side(self.tick());
        let entry = &self.tables[side][place * self.chunks + chunk];
        entry.store(address, Ordering::Release);
        // A read-modify-write, as several workers may copy for one place; each release is kept in the sequence.
        self.ready[side][place].fetch_add(1, Ordering::Release);
    }
}
