//! Streams over addresses: how many arrays there are, and how large their elements are, is known
//! when the program runs. What the typed [`Stream`](super::Stream) and the interfaces for other
//! languages are made of.
//!
//! What always holds: arrays that leave the address space, and outputs that overlap anything else,
//! are refused before anything is read or written. All else about the addresses is the caller's
//! word ([`RawStream::run`]).

use super::decide::Pilot;
use super::director::Director;
use super::memory::{Buffers, Memory};
use super::team::Team;
use super::{StreamError, StreamReport, StreamSettings, TeamSharing};
use crate::service::Mover;
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

/// Blocks of a measured group, at least: see [`Adapt::Measure`](super::Adapt::Measure).
const GROUP_LEAST: usize = 16;
/// Its time, at least, in ns: a tick of the kernel or a wake-up is a hundredth of it.
const GROUP_NS: u64 = 2_000_000;
/// A group has so many times the blocks of all buffers: a quarter of it passes until they fill.
const GROUP_BUFFERS: usize = 4;

/// Size and number of the arrays that a stream reads, or of those that it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayKind {
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Every address of a block in fast memory is a multiple of this; a power of two. Such an
    /// address is a multiple of 64 in any case.
    pub align: usize,
    /// How many arrays.
    pub count: usize,
}

impl ArrayKind {
    /// So many arrays of `T`.
    #[must_use]
    pub const fn of<T>(count: usize) -> Self {
        Self {
            element_bytes: size_of::<T>(),
            align: align_of::<T>(),
            count,
        }
    }

    /// Has it no arrays, or such as have bytes?
    fn is_sound(self) -> bool {
        self.count == 0 || self.element_bytes > 0 && self.align.is_power_of_two()
    }

    /// The bytes of an array of so many elements. `None`: it leaves the address space.
    fn extent(self, start: usize, length: usize) -> Option<Range<usize>> {
        let bytes = length.checked_mul(self.element_bytes)?;
        let end = start.checked_add(bytes)?;
        isize::try_from(bytes).is_ok().then_some(start..end)
    }
}

/// Which memory an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamArray {
    /// The array read of this number, from 0.
    Input(usize),
    /// The array written of this number, from 0.
    Output(usize),
    /// Fast memory.
    Buffers,
}

impl fmt::Display for StreamArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(number) => write!(f, "input {number}"),
            Self::Output(number) => write!(f, "output {number}"),
            Self::Buffers => f.write_str("fast memory"),
        }
    }
}

/// A block, or one thread's part of it, to be computed.
#[derive(Debug)]
pub struct RawPart<'a> {
    /// The block's number.
    pub block: usize,
    /// Position in the arrays of the part's first element.
    pub first: usize,
    /// How many elements, at least 1.
    pub length: usize,
    /// This thread's number in the team, from 0.
    pub thread: usize,
    /// Is the input in fast memory?
    pub is_fast: bool,
    memory: &'a Memory,
    buffer: Option<usize>,
    /// The part's first element, within the block.
    start: usize,
}

impl RawPart<'_> {
    /// Where the part of an array read begins.
    ///
    /// # Panics
    /// Where the stream has no such array.
    #[must_use]
    pub fn input(&self, array: usize) -> *const u8 {
        self.memory
            .input(array, self.block, self.buffer, self.start)
    }

    /// Where the part of an array written begins.
    ///
    /// # Panics
    /// Where the stream has no such array.
    #[must_use]
    pub fn output(&self, array: usize) -> *mut u8 {
        self.memory
            .output(array, self.block, self.buffer, self.start)
    }
}

/// A stream that knows its arrays by their addresses. What it has learned about the machine it
/// keeps from run to run.
#[derive(Debug)]
pub struct RawStream {
    settings: StreamSettings,
    inputs: ArrayKind,
    outputs: ArrayKind,
    buffers: Buffers,
    /// Of each buffer, elements of its results that hold values of their type.
    initialised: Vec<usize>,
    pilot: Pilot,
}

impl RawStream {
    /// With buffers in `fast`, which is not accessed before [`RawStream::run`].
    ///
    /// # Errors
    /// [`StreamError::Block`], [`StreamError::Threads`], [`StreamError::Arrays`],
    /// [`StreamError::NoBuffers`].
    pub fn new(
        fast: *mut [MaybeUninit<u8>],
        inputs: ArrayKind,
        outputs: ArrayKind,
        settings: StreamSettings,
    ) -> Result<Self, StreamError> {
        let none = |needed| StreamError::NoBuffers {
            needed,
            given: fast.len(),
        };
        let buffers = divide(fast, inputs, outputs, &settings)?;
        let mut buffers = buffers.ok_or_else(|| none(usize::MAX))?;
        buffers.count = buffers.count.min(wanted(&buffers, &settings));
        if buffers.count == 0 || buffers.bytes == 0 {
            return Err(none(buffers.bytes));
        }
        let group = GROUP_LEAST.max(GROUP_BUFFERS * buffers.count) as u64;
        Ok(Self {
            initialised: vec![0; buffers.count],
            pilot: Pilot::new(settings.adapt, group, GROUP_NS),
            settings,
            inputs,
            outputs,
            buffers,
        })
    }

    /// Bytes of fast memory with which a stream has all the buffers that its settings ask for.
    ///
    /// # Errors
    /// As [`RawStream::new`].
    pub fn fast_bytes(
        inputs: ArrayKind,
        outputs: ArrayKind,
        settings: &StreamSettings,
    ) -> Result<usize, StreamError> {
        let nothing = ptr::slice_from_raw_parts_mut(ptr::null_mut(), 0);
        let buffers = divide(nothing, inputs, outputs, settings)?;
        let bytes = buffers.and_then(|buffers| {
            let bytes = buffers
                .bytes
                .checked_mul(wanted(&buffers, settings).max(1))?;
            // The first buffer begins at a multiple of this.
            bytes.checked_add(buffers.align)
        });
        bytes.ok_or(StreamError::NoBuffers {
            needed: usize::MAX,
            given: 0,
        })
    }

    /// How many buffers it has.
    #[must_use]
    pub fn buffer_count(&self) -> usize {
        self.buffers.count
    }

    /// Computes every block of arrays of `length` elements once, and returns when all results are
    /// in place. Each thread of the team calls `compute` for each of its parts. The requests are
    /// futures of the mover: whoever else uses it never retrieves one of them.
    ///
    /// # Errors
    /// [`StreamError::Extent`], [`StreamError::Overlap`], [`StreamError::Thread`].
    ///
    /// # Panics
    /// With the panic of `compute`, once nothing is in flight. Where there are more or fewer arrays
    /// than the stream was made for.
    ///
    /// # Safety
    /// As long as the call lasts: the fast memory that the stream was made with can be read and
    /// written, and nobody else does either; each input has `length` elements that hold values and
    /// are not written; each output has as many that hold values, and nobody else reads or writes
    /// them. `compute` accesses no more than the part that it is given.
    pub unsafe fn run(
        &mut self,
        mover: &Mover,
        inputs: &[*const u8],
        outputs: &[*mut u8],
        length: usize,
        compute: impl Fn(RawPart<'_>) + Sync,
    ) -> Result<StreamReport, StreamError> {
        let given = (inputs.len(), outputs.len());
        assert_eq!(given, (self.inputs.count, self.outputs.count), "arrays");
        self.check(inputs, outputs, length)?;
        let memory = Memory::new(
            self.buffers,
            self.settings.results,
            self.outputs.element_bytes,
            length,
            inputs,
            outputs,
        );
        let settings = &self.settings;
        let mut director = Director::new(mover, &memory, &mut self.pilot, &mut self.initialised);
        let start = |thread| {
            if let Some(start) = &settings.start {
                start(thread);
            }
        };
        let team = Team::new(&mut director, settings.sharing, settings.threads);
        team.run(start, |work, thread| {
            let (part, of) = match settings.sharing {
                TeamSharing::Together => (thread, settings.threads),
                TeamSharing::Whole => (0, 1),
            };
            for (block, range) in memory.parts(&work.blocks, part, of) {
                compute(RawPart {
                    block,
                    first: memory.first(block) + range.start,
                    length: range.len(),
                    thread,
                    is_fast: work.buffer.is_some(),
                    memory: &memory,
                    buffer: work.buffer,
                    start: range.start,
                });
            }
        })
        .map_err(StreamError::Thread)?;
        drop(team);
        director.settle();
        let figures = director.figures;
        let elapsed = director.elapsed();
        drop(director);
        Ok(StreamReport {
            blocks: memory.block_count() as u64,
            fast_blocks: figures.fast_blocks,
            late_fills: figures.late_fills,
            failed_fills: figures.failed_fills,
            failed_returns: figures.failed_returns,
            copied_bytes: figures.copied_bytes,
            copying_ns: figures.copying_ns,
            overlapped_ns: figures.overlapped_ns,
            elapsed,
            decision: self.pilot.decision(),
            gain: self.pilot.gain(),
        })
    }

    /// Are these arrays that can be computed block by block?
    fn check(
        &self,
        inputs: &[*const u8],
        outputs: &[*mut u8],
        length: usize,
    ) -> Result<(), StreamError> {
        if length == 0 {
            return Ok(());
        }
        let inputs = inputs.iter().enumerate().map(|(number, start)| {
            let extent = self.inputs.extent(start.addr(), length);
            (StreamArray::Input(number), extent)
        });
        let outputs = outputs.iter().enumerate().map(|(number, start)| {
            let extent = self.outputs.extent(start.addr(), length);
            (StreamArray::Output(number), extent)
        });
        let mut seen = vec![(StreamArray::Buffers, self.buffers.extent())];
        for (array, extent) in inputs.chain(outputs) {
            let extent = extent.ok_or(StreamError::Extent(array))?;
            let is_written = matches!(array, StreamArray::Output(_));
            let overlapping = seen.iter().find(|(other, its)| {
                let counts = is_written || *other == StreamArray::Buffers;
                counts && extent.start < its.end && its.start < extent.end
            });
            if let Some(&(other, _)) = overlapping {
                return Err(StreamError::Overlap(array, other));
            }
            seen.push((array, extent));
        }
        Ok(())
    }
}

/// How fast memory is divided. `None`: sizes beyond what can be addressed.
fn divide(
    fast: *mut [MaybeUninit<u8>],
    inputs: ArrayKind,
    outputs: ArrayKind,
    settings: &StreamSettings,
) -> Result<Option<Buffers>, StreamError> {
    if settings.block == 0 {
        return Err(StreamError::Block);
    }
    if settings.threads == 0 {
        return Err(StreamError::Threads);
    }
    if !inputs.is_sound() || !outputs.is_sound() || inputs.count.max(outputs.count) == 0 {
        return Err(StreamError::Arrays);
    }
    let through = ArrayKind {
        count: settings.results.through_buffers(outputs.count),
        ..outputs
    };
    Ok(Buffers::new(
        fast,
        settings.block,
        inputs,
        through,
        usize::MAX,
    ))
}

/// How many buffers the settings ask for.
fn wanted(buffers: &Buffers, settings: &StreamSettings) -> usize {
    let past_cache = match settings.buffers {
        0 => 0,
        _ => settings
            .cache_bytes
            .saturating_add(settings.cache_bytes / 4),
    };
    settings
        .buffers
        .max(past_cache.div_ceil(buffers.bytes.max(1)))
}
