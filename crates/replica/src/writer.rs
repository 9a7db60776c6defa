//! Writing: the next epoch is prepared where no reader can see it, and published at once.

use crate::array::{Turn, home};
use crate::bits::Bits;
use crate::error::Error;
use crate::memory::{self, PAGE_BYTES};
use std::ops::Range;

/// Prepares an epoch; dropped without [`ArrayWriter::publish`], nothing has happened.
pub struct ArrayWriter {
    turn: Turn,
    /// Pages that were written.
    touched: Bits,
    /// First addresses of the front and of the master that is written.
    bases: (usize, usize),
}

impl std::fmt::Debug for ArrayWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Writer {{ {} pages written }}", self.touched.count())
    }
}

impl ArrayWriter {
    /// With the turn, when no reader holds an earlier tick.
    pub(crate) fn new(turn: Turn) -> Result<Self, Error> {
        let shared = &turn.0;
        let mut state = shared.state();
        let spare = 1 - state.front;
        if state.masters[spare].is_none() {
            let nodes = home(&shared.places, &shared.config);
            state.masters[spare] = Some(shared.store(&nodes)?);
            state.lags.set(0..shared.pages());
        }
        let bases = state.front_and_spare().unwrap_or_default();
        drop(state);
        Ok(Self {
            touched: Bits::new(shared.pages()),
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

    /// Brings pages of a range up to date, and notes that they are written. What is overwritten whole needs no
    /// bytes of before.
    fn touch(&mut self, range: &Range<usize>, overwrites: bool) {
        let mut state = self.turn.0.state();
        let pages = range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES);
        let whole = match overwrites {
            true => {
                let start = range.start.div_ceil(PAGE_BYTES);
                start..(range.end / PAGE_BYTES).max(start)
            }
            false => pages.start..pages.start,
        };
        for run in state.lags.runs(pages.clone()) {
            self.catch_up(run.start..run.end.min(whole.start.max(run.start)));
            self.catch_up(run.start.max(whole.end).min(run.end)..run.end);
        }
        state.lags.clear(pages.clone());
        drop(state);
        self.touched.set(pages);
    }

    /// Copies pages from the front.
    fn catch_up(&self, pages: Range<usize>) {
        let (front, spare) = self.bases;
        let offset = pages.start * PAGE_BYTES;
        // SAFETY: pages of two masters; the front is only read, and the other one is this writer's.
        unsafe { memory::copy_bytes(front + offset, spare + offset, pages.len() * PAGE_BYTES) };
    }

    /// Makes it the current epoch, and returns its number. Never waits for readers.
    ///
    /// # Errors
    /// This is a child after `fork`.
    pub fn publish(self) -> Result<u64, Error> {
        let shared = &self.turn.0;
        shared.check()?;
        // What was not written is as before; written pages do not lag.
        let lags = std::mem::replace(&mut shared.state().lags, Bits::new(shared.pages()));
        lags.runs(0..shared.pages())
            .for_each(|run| self.catch_up(run));
        let mut state = shared.state();
        let is_given_up = state.given_up;
        let written = self.touched.count() * PAGE_BYTES as u64;
        let in_chunk = shared.chunk_bytes / PAGE_BYTES;
        let mut stale = 0;
        state.lags.join(&self.touched);
        state.figures.written_bytes += written;
        for (place, copies) in state.copies.iter_mut().enumerate() {
            copies.stale.join(&self.touched);
            for run in self.touched.runs(0..shared.pages()) {
                copies.valid[run.start / in_chunk..run.end.div_ceil(in_chunk)].fill(false);
            }
            stale += u64::from(!shared.is_home(place)) * written;
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
        if let Some(keeper) = &*shared.keeper() {
            keeper.wake();
        }
        Ok(epoch)
    }
}

impl Drop for ArrayWriter {
    /// What was written and not published is not as the front; after `publish` it is the same.
    fn drop(&mut self) {
        let shared = &self.turn.0;
        if shared.protocol.is_forked() {
            return;
        }
        let mut state = shared.state();
        state.lags.join(&self.touched);
    }
}
