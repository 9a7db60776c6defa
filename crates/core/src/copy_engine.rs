//! Layout of a copy engine's ring: what a program and the lab's copy engine share.
//!
//! After Intel's DSA with shared virtual memory: a ring lies in the program's own memory, its
//! descriptors name the program's virtual addresses, and the device walks the page tables of the
//! address space that rang its doorbell, so that no program reaches another's memory. A page that
//! is not present ends a descriptor with a fault in its completion record, and the program copies
//! by itself. After TI's EDMA3 a descriptor that differs from what its place held before in
//! source and target alone costs its writer less (memif, section 5.3). An engine that takes
//! physical addresses needs one for each page ([`ring::PER_PAGE`]): a descriptor of this ring
//! stands for a chain of such *elements* then, which its writer pays for.
//!
//! The doorbell is an instruction ([`crate::opium::MARKER_DOORBELL`]) with the ring's address in
//! `rax`, as ENQCMD has it; on any machine without the engine it does nothing. A program finds out
//! by ringing: the engine sets [`ring::PRESENT`].
//!
//! ```text
//! 0x0000                   header       page-aligned; 4 KiB
//! 0x1000                   descriptors  64 B each
//! 0x1000 + 64 * entries    records      64 B each, one for each descriptor
//! ```
//!
//! *D* marks fields that the device writes, *P* those of the program. All are little-endian.

/// First eight bytes of a ring: `HITHERCE`. *P*
pub const MAGIC: u64 = u64::from_le_bytes(*b"HITHERCE");
/// Version of this layout, in [`ring::PRESENT`].
pub const VERSION: u64 = 1;
/// Most descriptors of a ring.
pub const MOST_DESCRIPTORS: u32 = 512;
/// Most bytes of a descriptor.
pub const MOST_BYTES: u64 = 64 << 20;

/// Header fields.
pub mod ring {
    /// u64 [`super::MAGIC`]. *P*
    pub const MAGIC: usize = 0;
    /// u64 descriptors of the ring: a power of two. *P*
    pub const ENTRIES: usize = 8;
    /// u64 descriptors submitted since the ring was opened; the next one's place is this modulo
    /// the entries. *P*
    pub const TAIL: usize = 16;
    /// u64 0 before the engine has seen the ring, which opens it, then [`super::VERSION`]. *D*
    pub const PRESENT: usize = 64;
    /// u64 descriptors taken. *D*
    pub const TAKEN: usize = 72;
    /// u64 channels. *D*, as what follows, when the ring is opened.
    pub const CHANNELS: usize = 80;
    /// u64 what a channel copies, in MB/s.
    pub const BANDWIDTH_MBS: usize = 88;
    /// u64 a channel's time before a descriptor's first byte.
    pub const SETUP_NS: usize = 96;
    /// u64 most descriptors of a ring, and elements of the engine.
    pub const DESCRIPTORS: usize = 104;
    /// u64 a CPU's time to write a whole element.
    pub const ELEMENT_NS: usize = 112;
    /// u64 a CPU's time to write an element's source and target.
    pub const REUSE_NS: usize = 120;
    /// u64 1 where each page is an element of its own, else 0: a descriptor is one.
    pub const PER_PAGE: usize = 128;
    /// Bytes of the header.
    pub const BYTES: usize = 4096;
}

/// A descriptor, at [`descriptor::at`]. *P*
pub mod descriptor {
    /// u64 [`COPY`].
    pub const OPERATION: usize = 0;
    /// u64 bytes, up to [`super::MOST_BYTES`].
    pub const SIZE: usize = 8;
    /// u64 first byte read.
    pub const SOURCE: usize = 16;
    /// u64 first byte written.
    pub const TARGET: usize = 24;
    /// Bytes per descriptor.
    pub const BYTES: usize = 64;
    /// An operation: copies `SIZE` bytes. The ranges must not overlap.
    pub const COPY: u64 = 1;

    /// Offset of a descriptor in its ring.
    #[must_use]
    pub const fn at(place: usize) -> usize {
        super::ring::BYTES + place * BYTES
    }
}

/// A completion record, at [`record::at`]. *D*; the program clears [`record::STATUS`] before it
/// submits.
pub mod record {
    /// u64 a status; written last. 0 while the descriptor is under way.
    pub const STATUS: usize = 0;
    /// u64 bytes copied, from the first on.
    pub const DONE: usize = 8;
    /// u64 address of the page that was not there, of a fault.
    pub const FAULT: usize = 16;
    /// u64 modelled time of completion in ns.
    pub const TIME_NS: usize = 24;
    /// u64 elements that it took.
    pub const ELEMENTS: usize = 32;
    /// Bytes per record.
    pub const BYTES: usize = 64;

    /// Status: all bytes are copied.
    pub const COPIED: u64 = 1;
    /// Status: a page of the source is not present or not the program's.
    pub const FAULT_SOURCE: u64 = 2;
    /// Status: a page of the target is not present, not the program's or cannot be written.
    pub const FAULT_TARGET: u64 = 3;
    /// Status: a page of the target may be executed. The emulator has translated code of it,
    /// perhaps, and would not hear of what the engine writes.
    pub const EXECUTABLE: u64 = 4;
    /// Status: no operation of this engine, too many bytes or elements, or ranges that overlap.
    pub const REFUSED: u64 = 5;

    /// Offset of a record in a ring of so many entries.
    #[must_use]
    pub const fn at(entries: usize, place: usize) -> usize {
        super::descriptor::at(entries) + place * BYTES
    }
}

/// Bytes of a ring of so many entries.
#[must_use]
pub const fn ring_bytes(entries: usize) -> usize {
    record::at(entries, entries)
}
