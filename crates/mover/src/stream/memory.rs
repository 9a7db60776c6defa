//! Where blocks lie, in slow and in fast memory.
//!
//! Addresses are exposed numbers here: the same bytes are read and written by the team, by this
//! module and by the mover's workers, and no reference to a block exists but in the hands of who
//! it was given to. The director (`director.rs`) sees to it that a block is given to one work at a
//! time, and that nobody moves what is being computed.

use super::{ArrayKind, StreamResults};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Blocks in fast memory begin at such an address where there is room: a line of any cache.
const LINE_BYTES: usize = 64;
/// Parts of one block that go to different threads begin at a multiple of so many elements: of any
/// size these are whole lines.
const PART_ELEMENTS: usize = 64;

/// A copy for the mover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) bytes: usize,
}

impl Transfer {
    /// The other way round.
    pub(super) fn turned(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            bytes: self.bytes,
        }
    }
}

/// How fast memory is divided: a buffer holds one block of every array that goes through it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    pub(super) block: usize,
    pub(super) inputs: ArrayKind,
    /// A multiple of `align`.
    start: usize,
    pub(super) align: usize,
    input_stride: usize,
    output_stride: usize,
    pub(super) bytes: usize,
    pub(super) count: usize,
}

impl Buffers {
    /// At most `most` of them. `None`: sizes beyond what can be addressed.
    pub(super) fn new(
        fast: *mut [MaybeUninit<u8>],
        block: usize,
        inputs: ArrayKind,
        outputs: ArrayKind,
        most: usize,
    ) -> Option<Self> {
        let align = LINE_BYTES.max(inputs.align).max(outputs.align);
        let stride = |kind: ArrayKind| {
            let bytes = block.checked_mul(kind.element_bytes)?;
            bytes.checked_next_multiple_of(align)
        };
        let (input_stride, output_stride) = (stride(inputs)?, stride(outputs)?);
        let bytes = input_stride
            .checked_mul(inputs.count)?
            .checked_add(output_stride.checked_mul(outputs.count)?)?;
        let given = fast.cast::<MaybeUninit<u8>>().expose_provenance();
        let start = given.checked_next_multiple_of(align)?;
        let room = fast.len().saturating_sub(start - given);
        Some(Self {
            block,
            inputs,
            start,
            align,
            input_stride,
            output_stride,
            bytes,
            count: (room / bytes.max(1)).min(most),
        })
    }

    /// The bytes of all buffers.
    pub(super) fn extent(&self) -> Range<usize> {
        self.start..self.start + self.count * self.bytes
    }

    fn input(&self, buffer: usize, array: usize) -> usize {
        self.start + buffer * self.bytes + array * self.input_stride
    }

    fn output(&self, buffer: usize, array: usize) -> usize {
        let inputs = self.inputs.count * self.input_stride;
        self.start + buffer * self.bytes + inputs + array * self.output_stride
    }
}

/// The arrays of one run.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) buffers: Buffers,
    results: StreamResults,
    /// Elements of each array.
    length: usize,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    output_bytes: usize,
}

impl Memory {
    pub(super) fn new(
        buffers: Buffers,
        results: StreamResults,
        output_bytes: usize,
        length: usize,
        inputs: &[*const u8],
        outputs: &[*mut u8],
    ) -> Self {
        Self {
            buffers,
            results,
            length,
            inputs: inputs.iter().map(|one| one.expose_provenance()).collect(),
            outputs: outputs.iter().map(|one| one.expose_provenance()).collect(),
            output_bytes,
        }
    }

    pub(super) fn block_count(&self) -> usize {
        self.length.div_ceil(self.buffers.block)
    }

    /// First element of a block.
    pub(super) fn first(&self, block: usize) -> usize {
        block * self.buffers.block
    }

    /// Elements of a block: the last one may have fewer.
    pub(super) fn elements(&self, block: usize) -> usize {
        self.buffers.block.min(self.length - self.first(block))
    }

    /// What one of several threads computes of some blocks: of each block that it has a part of,
    /// the elements. Its parts follow each other in the arrays.
    pub(super) fn parts(
        &self,
        blocks: &Range<usize>,
        thread: usize,
        threads: usize,
    ) -> impl Iterator<Item = (usize, Range<usize>)> {
        let start = self.first(blocks.start);
        let elements = self.first(blocks.end).min(self.length) - start;
        let units = elements.div_ceil(PART_ELEMENTS);
        let cut = |thread: usize| start + (units * thread / threads * PART_ELEMENTS).min(elements);
        let (from, to) = (cut(thread), cut(thread + 1));
        let size = self.buffers.block;
        let touched = from / size..if from < to { to.div_ceil(size) } else { 0 };
        touched.map(move |block| {
            let first = block * size;
            (block, from.max(first) - first..to.min(first + size) - first)
        })
    }

    fn slow_output(&self, array: usize, block: usize) -> usize {
        self.outputs[array] + self.first(block) * self.output_bytes
    }

    /// Does a fill read what the block's computation may write?
    pub(super) fn fills_read_results(&self) -> bool {
        self.results == StreamResults::FastUpdated && !self.outputs.is_empty()
    }

    /// What fills a buffer with a block.
    pub(super) fn fills(&self, block: usize, buffer: usize) -> impl Iterator<Item = Transfer> {
        let size = self.buffers.inputs.element_bytes;
        let offset = self.first(block) * size;
        let bytes = self.elements(block) * size;
        let inputs = self.inputs.iter().enumerate();
        let inputs = inputs.map(move |(array, start)| Transfer {
            from: start + offset,
            to: self.buffers.input(buffer, array),
            bytes,
        });
        let present = self
            .fills_read_results()
            .then(|| self.returns(block, buffer).map(Transfer::turned));
        inputs.chain(present.into_iter().flatten())
    }

    /// What brings the results of a block back, where they go through the buffers.
    pub(super) fn returns(&self, block: usize, buffer: usize) -> impl Iterator<Item = Transfer> {
        let count = self.results.through_buffers(self.outputs.len());
        let bytes = self.elements(block) * self.output_bytes;
        (0..count).map(move |array| Transfer {
            from: self.buffers.output(buffer, array),
            to: self.slow_output(array, block),
            bytes,
        })
    }

    /// Where an array read has an element of a block, in this buffer or in slow memory.
    pub(super) fn input(
        &self,
        array: usize,
        block: usize,
        buffer: Option<usize>,
        element: usize,
    ) -> *const u8 {
        let size = self.buffers.inputs.element_bytes;
        let slow = self.inputs[array] + self.first(block) * size;
        let start = buffer.map_or(slow, |buffer| self.buffers.input(buffer, array));
        std::ptr::with_exposed_provenance(start + element * size)
    }

    /// Where the result of an element of a block goes: into this buffer, where results go through
    /// buffers, or to slow memory.
    pub(super) fn output(
        &self,
        array: usize,
        block: usize,
        buffer: Option<usize>,
        element: usize,
    ) -> *mut u8 {
        let slow = self.slow_output(array, block);
        let start = match buffer {
            Some(buffer) if self.results != StreamResults::InPlace => {
                self.buffers.output(buffer, array)
            }
            _ => slow,
        };
        std::ptr::with_exposed_provenance_mut(start + element * self.output_bytes)
    }

    /// Copies by this thread.
    ///
    /// # Safety
    /// The copy is one of this memory's ([`Memory::fills`], [`Memory::returns`], or such a one
    /// turned round), nobody writes to its source and nobody uses its target meanwhile.
    pub(super) unsafe fn copy(&self, copy: Transfer) {
        let from = std::ptr::with_exposed_provenance::<MaybeUninit<u8>>(copy.from);
        let to = std::ptr::with_exposed_provenance_mut::<MaybeUninit<u8>>(copy.to);
        // SAFETY: both are within arrays or buffers, which do not overlap: the caller of the
        // stream has lent both, fast memory exclusively.
        unsafe { std::ptr::copy_nonoverlapping(from, to, copy.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(block: usize, length: usize) -> Memory {
        let mut fast = vec![MaybeUninit::uninit(); 1 << 16];
        let kinds = (ArrayKind::of::<f64>(2), ArrayKind::of::<f32>(1));
        let buffers = Buffers::new(&raw mut fast[..], block, kinds.0, kinds.1, 3).unwrap();
        let (inputs, mut outputs) = (vec![0f64; length], vec![0f32; length]);
        Memory::new(
            buffers,
            StreamResults::Fast,
            size_of::<f32>(),
            length,
            &[inputs.as_ptr().cast(), inputs.as_ptr().cast()],
            &[outputs.as_mut_ptr().cast()],
        )
    }

    #[test]
    fn buffers_do_not_overlap_and_stay_inside() {
        let mut fast = vec![MaybeUninit::uninit(); 10_000];
        let start = fast.as_ptr() as usize;
        let kinds = (ArrayKind::of::<f64>(2), ArrayKind::of::<f32>(1));
        let buffers = Buffers::new(&raw mut fast[..], 100, kinds.0, kinds.1, 99).unwrap();
        // Two times 800 bytes, rounded up to 832, and 400, rounded up to 448; at most 63 bytes are
        // lost at the start.
        assert_eq!((buffers.bytes, buffers.count), (2112, 4));
        let mut ranges = Vec::new();
        for buffer in 0..buffers.count {
            for array in 0..2 {
                let at = buffers.input(buffer, array);
                ranges.push(at..at + 800);
            }
            let at = buffers.output(buffer, 0);
            ranges.push(at..at + 400);
        }
        for pair in ranges.windows(2) {
            assert!(pair[0].end <= pair[1].start && pair[1].start % 64 == 0);
        }
        assert!(ranges[0].start >= start && ranges[ranges.len() - 1].end <= start + 10_000);
    }

    #[test]
    fn sizes_that_cannot_be_addressed_are_no_buffers() {
        let mut fast = [MaybeUninit::uninit(); 64];
        let huge = Buffers::new(
            &raw mut fast[..],
            usize::MAX,
            ArrayKind::of::<u64>(1),
            ArrayKind::of::<u8>(1),
            1,
        );
        assert!(huge.is_none());
        let small = Buffers::new(
            &raw mut fast[..],
            1024,
            ArrayKind::of::<u64>(1),
            ArrayKind::of::<u8>(0),
            1,
        );
        assert_eq!(small.unwrap().count, 0);
    }

    #[test]
    fn parts_cover_every_element_once() {
        for (block, length) in [
            (1, 5),
            (100, 250),
            (1000, 1000),
            (64, 65),
            (1 << 12, 3 << 12),
        ] {
            let memory = memory(block, length);
            let count = memory.block_count();
            for (threads, at_once) in [(1, 1), (2, 1), (3, 2), (7, 3), (2, 99)] {
                let mut next = 0;
                for first in (0..count).step_by(at_once) {
                    let blocks = first..(first + at_once).min(count);
                    for thread in 0..threads {
                        for (number, part) in memory.parts(&blocks, thread, threads) {
                            assert!(blocks.contains(&number) && !part.is_empty());
                            assert!(part.end <= memory.elements(number));
                            assert_eq!(memory.first(number) + part.start, next);
                            next = memory.first(number) + part.end;
                        }
                    }
                }
                assert_eq!(next, length);
            }
        }
    }

    #[test]
    fn copies_of_the_last_block_end_with_the_array() {
        let memory = memory(100, 250);
        assert_eq!(memory.block_count(), 3);
        let fills: Vec<Transfer> = memory.fills(2, 1).collect();
        assert_eq!(fills.len(), 2);
        assert!(fills.iter().all(|copy| copy.bytes == 50 * 8));
        assert_eq!(fills[0].from, memory.inputs[0] + 200 * 8);
        let back: Vec<Transfer> = memory.returns(2, 1).collect();
        assert_eq!(back.len(), 1);
        assert_eq!(
            (back[0].bytes, back[0].to),
            (50 * 4, memory.outputs[0] + 200 * 4)
        );
    }
}
