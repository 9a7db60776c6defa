//! Streams: computing over slow memory, with fast memory filled ahead (memif section 6.6).
//!
//! Problem: a program that runs through large arrays in slow memory waits for it, while fast
//! memory, too small for the arrays, and CPUs that could copy lie idle.
//!
//! Mechanism: fast memory is divided into buffers. A [`Mover`] fills them ahead with blocks of the
//! arrays; a team of threads computes each block once, from fast memory where it is ready and from
//! slow memory where none is, and never waits for a fill. Results go straight to where they
//! belong, or to the buffer, which is then copied back. Blocks are computed in about, but not
//! exactly, ascending order.
//!
//! Where that costs more than it brings, the stream finds out and leaves it ([`Adapt`]).
//!
//! What always holds: after a run every block was computed once, all results are in the arrays,
//! and no request is in flight. A panic of the program's function ends the run; then too nothing
//! is in flight, and arrays hold values from before and after.
//!
//! Completions of a batch are announced together ([`Config::batch_requests`]): a mover for streams
//! has batches of one request, so that each block is ready as soon as it is there.
//!
//! [`Config::batch_requests`]: crate::Config::batch_requests

mod decide;
mod director;
mod memory;
mod raw;
mod team;
#[cfg(test)]
mod tests;

pub use decide::{Adapt, Decision, Sample, Way, decide};
pub use raw::{ArrayKind, RawPart, RawStream, StreamArray};
pub use team::TeamSharing;

use crate::service::Mover;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;
use std::{array, fmt, io, slice};

/// How results get to where they belong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamResults {
    /// They are written there: straight to slow memory.
    #[default]
    InPlace,
    /// The function writes them to the buffer, which is copied back. It must write every element:
    /// what it finds there is any value that was once there or in the array.
    Fast,
    /// As `Fast`, and the buffer is filled with the present values first: for functions that
    /// read results or leave some as they are.
    FastUpdated,
}

impl StreamResults {
    /// Of so many arrays of results, those that go through buffers.
    fn through_buffers(self, arrays: usize) -> usize {
        match self {
            Self::InPlace => 0,
            Self::Fast | Self::FastUpdated => arrays,
        }
    }

    /// Requests that a block of so many arrays takes at one time: of a mover with fewer slots it gets none.
    #[must_use]
    pub fn block_requests(self, inputs: usize, outputs: usize) -> usize {
        let returned = self.through_buffers(outputs);
        match self {
            Self::FastUpdated => inputs + returned,
            Self::InPlace | Self::Fast => inputs.max(returned),
        }
    }
}

/// Settings of a stream.
#[derive(Clone)]
pub struct StreamSettings {
    /// Elements of a block, of each array. Some hundred KiB of bytes: less, and handing over
    /// weighs; more, and fewer buffers fit.
    pub block: usize,
    /// Most buffers; fewer where fast memory has no room for them. Two for each copying worker
    /// keep it busy; more even out differences in speed.
    pub buffers: usize,
    /// Bytes of the last-level cache that the team computes with; 0: none in particular. Where CPUs
    /// copy, all buffers together have to exceed it: what a worker writes while that cache holds the
    /// lines from the buffer's last use is a transfer between caches, and takes several times as long as a
    /// line of memory. There are so many buffers more that they exceed it by a quarter, where fast
    /// memory has room for them.
    pub cache_bytes: usize,
    /// Threads that compute, the calling one included.
    pub threads: usize,
    /// How they share blocks.
    pub sharing: TeamSharing,
    /// How results get to slow memory.
    pub results: StreamResults,
    /// Who decides whether fast memory pays.
    pub adapt: Adapt,
    /// Called with its number, from 1, at the start of every thread but the calling one: to bind
    /// it to a CPU.
    pub start: Option<Arc<dyn Fn(usize) + Send + Sync>>,
}

impl StreamSettings {
    /// One thread, eight buffers, results in place, and the stream decides.
    #[must_use]
    pub fn new(block: usize) -> Self {
        Self {
            block,
            buffers: 8,
            cache_bytes: 0,
            threads: 1,
            sharing: TeamSharing::default(),
            results: StreamResults::default(),
            adapt: Adapt::default(),
            start: None,
        }
    }
}

impl fmt::Debug for StreamSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("block", &self.block)
            .field("buffers", &self.buffers)
            .field("cache_bytes", &self.cache_bytes)
            .field("threads", &self.threads)
            .field("sharing", &self.sharing)
            .field("results", &self.results)
            .field("adapt", &self.adapt)
            .finish_non_exhaustive()
    }
}

/// Why a stream cannot run. Nothing was computed then.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// [`StreamSettings::block`] is 0.
    #[error("a block has at least one element")]
    Block,
    /// [`StreamSettings::threads`] is 0.
    #[error("a team has at least one thread")]
    Threads,
    /// There is no array, or elements have no bytes.
    #[error("a stream needs arrays, of elements that have bytes")]
    Arrays,
    /// Fast memory has no room for a buffer, or [`StreamSettings::buffers`] is 0.
    #[error("no buffer: one needs {needed} bytes, and fast memory has {given}")]
    NoBuffers {
        /// Bytes of a buffer, aligned to 64.
        needed: usize,
        /// Bytes of fast memory.
        given: usize,
    },
    /// The arrays differ in length.
    #[error("arrays of a stream have one length, not {0} and {1} elements")]
    Lengths(usize, usize),
    /// An array has more elements than memory has room for.
    #[error("{0} leaves the address space")]
    Extent(StreamArray),
    /// An output overlaps another array, or an array the buffers.
    #[error("{0} overlaps {1}")]
    Overlap(StreamArray, StreamArray),
    /// A thread of the team cannot be started.
    #[error("the system has no thread for the team")]
    Thread(#[source] io::Error),
}

/// A block, or one thread's part of it, to be computed.
#[derive(Debug)]
pub struct StreamPart<'a, T, U, const I: usize, const O: usize> {
    /// The block's number.
    pub block: usize,
    /// Position in the arrays of the part's first element.
    pub first: usize,
    /// The part, of every array read.
    pub inputs: [&'a [T]; I],
    /// The part, of every array written.
    pub outputs: [&'a mut [U]; O],
    /// This thread's number in the team, from 0.
    pub thread: usize,
    /// Is the input in fast memory?
    pub is_fast: bool,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamReport {
    /// Blocks computed: all of them.
    pub blocks: u64,
    /// Those computed from fast memory.
    pub fast_blocks: u64,
    /// Those computed from slow memory while they were being filled: nothing else was left.
    pub late_fills: u64,
    /// Fills that the mover refused or failed.
    pub failed_fills: u64,
    /// Results that the mover failed to bring back, so that the team did.
    pub failed_returns: u64,
    /// Bytes that the mover copied for this stream.
    pub copied_bytes: u64,
    /// Time it copied, in ns, summed over requests.
    pub copying_ns: u64,
    /// The part of that time before computing ended.
    pub overlapped_ns: u64,
    /// From the first block to the last result in place.
    pub elapsed: Duration,
    /// What the stream holds of fast memory now.
    pub decision: Decision,
    /// The worst comparison of the last try: how many times as fast fast memory is.
    pub gain: Option<f64>,
}

impl StreamReport {
    /// Share of blocks computed from fast memory.
    #[must_use]
    pub fn hit_share(&self) -> f64 {
        self.fast_blocks as f64 / self.blocks.max(1) as f64
    }

    /// Share of the copying time in which computing went on, too. 1 where nothing was copied.
    #[must_use]
    pub fn overlap(&self) -> f64 {
        if self.copying_ns == 0 {
            return 1.0;
        }
        self.overlapped_ns as f64 / self.copying_ns as f64
    }
}

/// Runs through arrays: `I` arrays of `T` to read, `O` arrays of `U` to write, all of the same
/// number of elements. What it has learned about the machine it keeps from run to run.
pub struct Stream<'m, 'f, T, U, const I: usize, const O: usize> {
    mover: &'m Mover,
    raw: RawStream,
    /// Fast memory is this stream's alone; its bytes are whatever the mover writes.
    fast: PhantomData<&'f mut [MaybeUninit<u8>]>,
    types: PhantomData<fn(T, U)>,
}

impl<'m, 'f, T, U, const I: usize, const O: usize> Stream<'m, 'f, T, U, I, O>
where
    T: Copy + Send + Sync + 'static,
    U: Copy + Send + Sync + 'static,
{
    const HAS_BYTES: () = assert!(
        (I == 0 || size_of::<T>() > 0) && (O == 0 || size_of::<U>() > 0) && I + O > 0,
        "a stream needs arrays, of elements that have bytes"
    );

    /// With buffers in `fast`.
    ///
    /// # Errors
    /// [`StreamError::Block`], [`StreamError::Threads`], [`StreamError::NoBuffers`].
    pub fn new(
        mover: &'m Mover,
        fast: &'f mut [MaybeUninit<u8>],
        settings: StreamSettings,
    ) -> Result<Self, StreamError> {
        let () = Self::HAS_BYTES;
        let (inputs, outputs) = (ArrayKind::of::<T>(I), ArrayKind::of::<U>(O));
        Ok(Self {
            mover,
            raw: RawStream::new(fast, inputs, outputs, settings)?,
            fast: PhantomData,
            types: PhantomData,
        })
    }

    /// How many buffers it has.
    #[must_use]
    pub fn buffer_count(&self) -> usize {
        self.raw.buffer_count()
    }

    /// Computes every block once and returns when all results are in place. Each thread of the
    /// team calls `compute` for each of its parts.
    ///
    /// # Errors
    /// [`StreamError::Lengths`], [`StreamError::Thread`].
    ///
    /// # Panics
    /// With the panic of `compute`, once nothing is in flight.
    pub fn run(
        &mut self,
        inputs: [&[T]; I],
        outputs: [&mut [U]; O],
        compute: impl Fn(StreamPart<'_, T, U, I, O>) + Sync,
    ) -> Result<StreamReport, StreamError> {
        let mut lengths = inputs.iter().map(|one| one.len());
        let mut lengths = lengths.by_ref().chain(outputs.iter().map(|one| one.len()));
        let length = lengths.next().unwrap_or(0);
        if let Some(other) = lengths.find(|&other| other != length) {
            return Err(StreamError::Lengths(length, other));
        }
        let inputs = inputs.map(|one| one.as_ptr().cast::<u8>());
        let outputs = outputs.map(|one| one.as_mut_ptr().cast::<u8>());
        let each = |part: RawPart<'_>| {
            compute(StreamPart {
                block: part.block,
                first: part.first,
                inputs: array::from_fn(|array| {
                    let start = part.input(array).cast::<T>();
                    // SAFETY: types and numbers are this stream's, and the part is within the
                    // array or a buffer. The director gives each block to one work, whose threads
                    // have disjoint parts or are one thread; a buffer given is filled with the
                    // block and is left alone until the work is finished. Slow inputs are borrowed
                    // for the run.
                    unsafe { slice::from_raw_parts(start, part.length) }
                }),
                outputs: array::from_fn(|array| {
                    let start = part.output(array).cast::<U>();
                    // SAFETY: as for inputs; the results' arrays are borrowed exclusively, and
                    // this thread has this part alone.
                    unsafe { slice::from_raw_parts_mut(start, part.length) }
                }),
                thread: part.thread,
                is_fast: part.is_fast,
            });
        };
        // SAFETY: the arrays are borrowed for the call, outputs exclusively, and the buffers as
        // long as this stream lives; they have so many elements, of types as large as the stream
        // was made for.
        unsafe { self.raw.run(self.mover, &inputs, &outputs, length, each) }
    }
}

impl<T, U, const I: usize, const O: usize> fmt::Debug for Stream<'_, '_, T, U, I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("raw", &self.raw)
            .finish_non_exhaustive()
    }
}
