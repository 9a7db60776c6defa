//! Reading: a reader for each thread, a guard for each epoch that is read.

use crate::account::From;
use crate::array::Shared;
use crate::error::Error;
use crate::memory;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError};

/// Reads an array at one place, one guard at a time. Cheap to keep, dearer to make (a lock): one for each thread.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    slot: usize,
    place: usize,
}

/// Holds one epoch: for its life every byte is of that epoch.
///
/// While it lives, the second next epoch cannot be prepared. Where it was held at a `fork`, the child may go
/// on reading through it: what it leads to is not written before it is let go, so that the child's memory has
/// it whole.
#[derive(Debug)]
pub struct Guard<'a> {
    reader: &'a Reader,
    tick: u64,
    /// One at a time for each reader.
    alone: PhantomData<&'a mut Reader>,
}

impl Reader {
    pub(crate) fn new(shared: &Arc<Shared>, place: usize) -> Result<Self, Error> {
        shared.check()?;
        let mut slots = shared.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.pop();
        Ok(Self {
            slot: slot.ok_or(Error::NoReader(shared.config.max_readers))?,
            shared: Arc::clone(shared),
            place,
        })
    }

    /// Its place.
    #[must_use]
    pub fn place(&self) -> usize {
        self.place
    }

    /// Reads the place nearest to the CPU that the calling thread runs on now: for threads that the scheduler
    /// moves. A system-free call of some 10 ns.
    pub fn follow(&mut self) {
        self.place = self.shared.places.near_here();
    }

    /// Holds the current epoch.
    ///
    /// # Errors
    /// This is a child after `fork`.
    #[inline]
    pub fn read(&mut self) -> Result<Guard<'_>, Error> {
        let tick = self.pin()?;
        Ok(Guard {
            reader: self,
            tick,
            alone: PhantomData,
        })
    }

    /// For callers without lifetimes: the tick that is held until [`Reader::unpin`].
    #[doc(hidden)]
    #[inline]
    pub fn pin(&mut self) -> Result<u64, Error> {
        let pinned = self.shared.protocol.pin(self.slot);
        pinned.map_err(|_| Error::Forked)
    }

    /// Lets go what [`Reader::pin`] holds.
    #[doc(hidden)]
    #[inline]
    pub fn unpin(&mut self) {
        self.shared.protocol.unpin(self.slot);
    }

    /// What a tick that is held looks like.
    #[doc(hidden)]
    #[must_use]
    pub fn view(&self, tick: u64) -> Guard<'_> {
        // Not to be dropped by who has it: `forget` is his.
        Guard {
            reader: self,
            tick,
            alone: PhantomData,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.protocol.unpin(self.slot);
        // In a child after fork another thread's lock is held for ever.
        if !self.shared.protocol.is_forked() {
            let slots = self.shared.slots.lock();
            slots
                .unwrap_or_else(PoisonError::into_inner)
                .push(self.slot);
        }
    }
}

impl<'a> Guard<'a> {
    /// The epoch that it holds.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.reader.shared.protocol.epoch(self.tick)
    }

    /// The array's length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.reader.shared.bytes
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        self.reader.shared.chunk_bytes
    }

    /// How many chunks there are; the last may be shorter.
    #[must_use]
    pub fn chunk_count(&self) -> usize {
        self.reader.shared.chunks
    }

    /// The whole array in one slice: the local copy where it is complete, else the master. Counts as a read of
    /// all of it.
    #[must_use]
    pub fn whole(&self) -> &[u8] {
        let shared = &self.reader.shared;
        let (slot, place) = (self.reader.slot, self.reader.place);
        let is_complete = shared.protocol.is_complete(self.tick, place);
        let address = match is_complete {
            true => shared.protocol.address(self.tick, place, 0),
            false => shared.protocol.master(self.tick),
        };
        let from = match is_complete {
            true => From::Copy,
            false => self.master_is(),
        };
        if from != From::Copy {
            (0..shared.chunks).for_each(|chunk| shared.accounts.warm(place, chunk));
        }
        shared.accounts.add(slot, shared.bytes as u64, from);
        // SAFETY: the chunks of a store follow each other, and none of this tick's is written before the guard
        // is gone.
        unsafe { memory::bytes_at(address, shared.bytes) }
    }

    /// Is all of it read from copies of the reader's place, or from the master on its own node?
    #[must_use]
    pub fn is_local(&self) -> bool {
        let shared = &self.reader.shared;
        shared.is_home(self.reader.place)
            || shared.protocol.is_complete(self.tick, self.reader.place)
    }

    fn master_is(&self) -> From {
        match self.reader.shared.is_home(self.reader.place) {
            true => From::Home,
            false => From::Remote,
        }
    }

    /// A chunk; `None` behind the last.
    #[must_use]
    pub fn chunk(&self, chunk: usize) -> Option<&[u8]> {
        let shared = &self.reader.shared;
        let start = chunk.checked_mul(shared.chunk_bytes)?;
        if start >= shared.bytes {
            return None;
        }
        let end = (start + shared.chunk_bytes).min(shared.bytes);
        Some(self.piece(start..end))
    }

    /// The bytes of a range, chunk by chunk; of a range that ends behind the array, those that there are.
    pub fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        let shared = &self.reader.shared;
        let end = range.end.min(shared.bytes);
        let mut next = range.start;
        std::iter::from_fn(move || {
            if next >= end {
                return None;
            }
            let cut = (next / shared.chunk_bytes + 1) * shared.chunk_bytes;
            let piece = next..cut.min(end);
            next = piece.end;
            Some(self.piece(piece))
        })
    }

    /// Bytes of one chunk, counted; the range is within it and not empty.
    #[inline]
    fn piece(&self, range: Range<usize>) -> &[u8] {
        let shared = &self.reader.shared;
        let place = self.reader.place;
        let chunk = range.start / shared.chunk_bytes;
        let address = shared.protocol.address(self.tick, place, chunk);
        let in_master = shared.protocol.master(self.tick) + chunk * shared.chunk_bytes;
        let from = match address == in_master {
            true => self.master_is(),
            false => From::Copy,
        };
        let accounts = &shared.accounts;
        accounts.note(self.reader.slot, place, chunk, range.len(), from);
        // SAFETY: the range is within the chunk, which is not written before the guard is gone.
        unsafe { memory::bytes_at(address + range.start % shared.chunk_bytes, range.len()) }
    }

    /// Addresses of all chunks, for code that indexes them itself: one load more than a plain array, and not
    /// counted. They may change from the master's to a copy's while the guard lives; both have the same bytes.
    #[must_use]
    #[inline]
    pub fn table(&self) -> &'a [AtomicUsize] {
        let reader = self.reader;
        reader.shared.protocol.table(self.tick, reader.place)
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.reader.shared.protocol.unpin(self.reader.slot);
    }
}
