//! Writing: the next epoch is prepared where no reader can see it, and published at once.

use crate::array::{Turn, home};
use crate::error::Error;
use crate::memory::{self, Store};
use std::ops::Range;

/// Prepares an epoch; dropped without [`Writer::publish`], nothing has happened.
pub struct Writer {
    turn: Turn,
    /// Chunks that were written.
    touched: Vec<bool>,
    /// First addresses of the front and of the master that is written.
    bases: (usize, usize),
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let touched = self.touched.iter().filter(|touched| **touched).count();
        write!(f, "Writer {{ {touched} chunks written }}")
    }
}

impl Writer {
    /// With the turn, when no reader holds an earlier tick.
    pub(crate) fn new(turn: Turn) -> Result<Self, Error> {
        let shared = &turn.0;
        let mut state = shared.state();
        let spare = 1 - state.front;
        if state.masters[spare].is_none() {
            let bytes = shared.chunks * shared.chunk_bytes;
            let nodes = home(&shared.places, &shared.config);
            state.masters[spare] = Some(Store::new(bytes, shared.chunk_bytes, &nodes)?);
            state.lags.fill(true);
        }
        let bases = state.front_and_spare(0).unwrap_or_default();
        drop(state);
        Ok(Self {
            touched: vec![false; shared.chunks],
            bases,
            turn,
        })
    }

    /// The epoch that this will be.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.turn.0.state().epoch + 1
    }

    /// Writes bytes from an offset on.
    ///
    /// # Errors
    /// They end behind the array.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let range = self.checked(offset, bytes.len())?;
        if range.is_empty() {
            return Ok(());
        }
        self.touch(&range, true);
        // SAFETY: within the master that only this writer reaches.
        unsafe { memory::bytes_at_mut(self.bases.1 + range.start, range.len()) }
            .copy_from_slice(bytes);
        Ok(())
    }

    /// The bytes of a range, to change: as the last epoch has them, or as written before.
    ///
    /// # Errors
    /// It ends behind the array.
    pub fn bytes_mut(&mut self, range: Range<usize>) -> Result<&mut [u8], Error> {
        let range = self.checked(range.start, range.end.saturating_sub(range.start))?;
        self.touch(&range, false);
        // SAFETY: as in `write`.
        Ok(unsafe { memory::bytes_at_mut(self.bases.1 + range.start, range.len()) })
    }

    fn checked(&self, offset: usize, bytes: usize) -> Result<Range<usize>, Error> {
        let length = self.turn.0.bytes;
        match offset.checked_add(bytes).filter(|end| *end <= length) {
            Some(end) => Ok(offset..end),
            None => Err(Error::Invalid(format!(
                "{bytes} bytes from {offset} on end behind the array's {length}: write within it"
            ))),
        }
    }

    /// Brings chunks of a range up to date, and notes that they are written. What is overwritten whole needs no
    /// bytes of before.
    fn touch(&mut self, range: &Range<usize>, overwrites: bool) {
        let shared = &self.turn.0;
        let size = shared.chunk_bytes;
        let mut state = shared.state();
        for chunk in range.start / size..range.end.div_ceil(size) {
            let (first, end) = (chunk * size, ((chunk + 1) * size).min(shared.bytes));
            let is_whole = overwrites && range.start <= first && end <= range.end;
            if !self.touched[chunk] && state.lags[chunk] && !is_whole {
                self.catch_up(chunk);
                state.lags[chunk] = false;
            }
            self.touched[chunk] = true;
        }
    }

    /// Copies a chunk from the front.
    fn catch_up(&self, chunk: usize) {
        let shared = &self.turn.0;
        let offset = chunk * shared.chunk_bytes;
        let (front, spare) = self.bases;
        // SAFETY: whole chunks of two masters; the front is only read, and the other one is this writer's.
        unsafe { memory::copy_bytes(front + offset, spare + offset, shared.chunk_bytes) };
    }

    /// Makes it the current epoch, and returns its number. Never waits for readers.
    ///
    /// # Errors
    /// This is a child after `fork`.
    pub fn publish(self) -> Result<u64, Error> {
        let shared = &self.turn.0;
        shared.check()?;
        for chunk in 0..shared.chunks {
            let lags = shared.state().lags[chunk];
            if lags && !self.touched[chunk] {
                self.catch_up(chunk);
            }
        }
        let mut state = shared.state();
        let size = shared.chunk_bytes as u64;
        let mut stale = 0;
        let is_given_up = state.given_up;
        for (chunk, touched) in self.touched.iter().enumerate() {
            state.lags[chunk] = *touched;
            if !touched {
                continue;
            }
            state.figures.written_bytes += size;
            for (place, copies) in state.copies.iter_mut().enumerate() {
                copies.valid[chunk] = false;
                stale += u64::from(!shared.is_home(place)) * size;
            }
        }
        if is_given_up {
            // What copying would have cost, so that the rule can tell whether copies should come back.
            state.figures.recopied_bytes += stale;
            state.figures.spared_bytes += stale;
        }
        state.front = 1 - state.front;
        state.epoch += 1;
        shared.publish(&state);
        let epoch = state.epoch;
        drop(state);
        let keeper = shared.keeper.lock();
        if let Some(keeper) = &*keeper.unwrap_or_else(std::sync::PoisonError::into_inner) {
            keeper.wake();
        }
        Ok(epoch)
    }
}

impl Drop for Writer {
    /// What was written and not published is not as the front; after `publish` it is the same.
    fn drop(&mut self) {
        let shared = &self.turn.0;
        if shared.protocol.is_forked() {
            return;
        }
        let mut state = shared.state();
        for (lags, touched) in state.lags.iter_mut().zip(&self.touched) {
            *lags |= touched;
        }
    }
}
