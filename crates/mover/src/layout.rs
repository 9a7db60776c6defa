//! The bytes of the shared region, version 1.
//!
//! One header, then an array of request records (slots), then an array of queue nodes. Every word
//! is an atomic, so that whatever another party writes into the region at any moment is a value
//! and never undefined behaviour. Nothing in the region is a pointer: a link is the number of a
//! slot or node, and its reader compares it with its own copy of the counts before use.
//!
//! `docs/mover.md` shows the offsets; a test below freezes them. A change of any offset, size or
//! meaning is a new [`VERSION`].

use crate::sync::{AtomicU64, Bell, Plain32, Plain64};

/// First word of a region: "hithermv", little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"hithermv");
/// Version of this layout.
pub const VERSION: u32 = 1;
/// Most slots of a region. With the four nodes of empty queues every number fits 16 bits.
pub const MOST_SLOTS: u16 = 32_768;
/// Queues that link nodes, and so own one node each while empty.
pub const QUEUE_COUNT: u16 = 4;
/// Reasons for which a completion counts refused pages; those above the ones in use are zero.
pub const REASON_COUNT: usize = 12;

/// Request flag: kind, migrate to a node; without it, replicate.
pub const FLAG_MIGRATE: u32 = 1;
/// Request flag: a race makes the move fail.
pub const FLAG_RACE_FAIL: u32 = 2;
/// Request flag: an access meanwhile waits. Not together with [`FLAG_RACE_FAIL`].
pub const FLAG_RACE_BLOCK: u32 = 4;
/// Request flag: served before requests without it.
pub const FLAG_HIGH: u32 = 8;
/// The flags that there are; a request with any other is refused.
pub const FLAGS: u32 = FLAG_MIGRATE | FLAG_RACE_FAIL | FLAG_RACE_BLOCK | FLAG_HIGH;

/// Who must flush the staging queue (memif section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// The submitter: no worker is looking.
    Blue,
    /// A worker, which will look before it sleeps.
    Red,
}

/// A link: number of what it leads to, the colour where it is the head of staging, and a tag that
/// grows with every change of the word, so that a compare-and-swap never takes an old value for
/// the present one (ABA). 47 bits of tag last 26 days at a change every 16 ns, within one stalled
/// operation.
///
/// Bits 0-15: number + 1, or 0 for none. Bit 16: colour, 1 is red. Bits 17-63: tag.
/// A word of zeros is an empty, blue list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(pub(crate) u64);

impl Link {
    const RED: u64 = 1 << 16;
    const TAG_SHIFT: u32 = 17;

    /// What it leads to.
    #[inline]
    pub(crate) fn index(self) -> Option<u16> {
        (self.0 as u16).checked_sub(1)
    }

    #[inline]
    pub(crate) fn colour(self) -> Colour {
        if self.0 & Self::RED == 0 {
            Colour::Blue
        } else {
            Colour::Red
        }
    }

    #[inline]
    pub(crate) fn tag(self) -> u64 {
        self.0 >> Self::TAG_SHIFT
    }

    /// The word that follows this one: the next tag, the same colour.
    #[inline]
    pub(crate) fn to(self, index: Option<u16>) -> Self {
        let tag = (self.0 >> Self::TAG_SHIFT).wrapping_add(1) << Self::TAG_SHIFT;
        Self(tag | self.0 & Self::RED | index.map_or(0, |index| u64::from(index) + 1))
    }

    /// The same with this colour.
    #[inline]
    pub(crate) fn coloured(self, colour: Colour) -> Self {
        match colour {
            Colour::Blue => Self(self.0 & !Self::RED),
            Colour::Red => Self(self.0 | Self::RED),
        }
    }
}

/// A word on a cache line of its own: those who write it do not slow down readers of others.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Line<T>(pub(crate) T);

/// Both ends of a queue. Dequeuers write `head`, enqueuers `tail`.
#[derive(Debug)]
#[repr(C)]
pub struct Ends {
    pub(crate) head: Line<AtomicU64>,
    pub(crate) tail: Line<AtomicU64>,
}

/// Start of the region.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Header {
    /// [`MAGIC`], written last when the region is made.
    pub(crate) magic: Plain64,
    pub(crate) version: Plain32,
    pub(crate) slot_count: Plain32,
    pub(crate) slot_bytes: Plain32,
    pub(crate) slots_offset: Plain32,
    pub(crate) node_count: Plain32,
    pub(crate) node_bytes: Plain32,
    pub(crate) nodes_offset: Plain32,
    /// Free slots, a stack. Clients take and return.
    pub(crate) free: Line<AtomicU64>,
    /// Submitted and not yet flushed, a stack, with the colour. Clients push; whoever flushes
    /// takes all.
    pub(crate) staging: Line<AtomicU64>,
    /// Flushed and waiting; flushers enqueue, workers dequeue.
    pub(crate) high: Ends,
    pub(crate) normal: Ends,
    /// Completed; workers enqueue, clients dequeue.
    pub(crate) done: Ends,
    pub(crate) failed: Ends,
    /// Workers sleep here; rung by kicks.
    pub(crate) bell: Line<Bell>,
    /// What the next completion must do for sleeping clients ([`crate::notify`]). Clients set
    /// bits, workers take all.
    pub(crate) armed: Line<AtomicU64>,
    /// Clients in `wait` sleep here; rung by completions.
    pub(crate) completion_bell: Line<Bell>,
}

/// A request and its result: three cache lines. The client owns it from allocation to submission
/// and again from retrieval on, a worker in between; only `state` is touched by both at a time.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Slot {
    /// Life of the slot ([`crate::instance`]): bits 0-7 state and marks, bits 8-55 generation.
    pub(crate) state: AtomicU64,
    /// Next in the free list or in staging.
    pub(crate) link: AtomicU64,
    /// The queue node that it owns.
    pub(crate) node: Plain32,
    /// `FLAG_*`.
    pub(crate) flags: Plain32,
    /// First byte to move or read.
    pub(crate) from: Plain64,
    /// Replicate: first byte to write. Migrate: the node.
    pub(crate) to: Plain64,
    /// Length in bytes.
    pub(crate) bytes: Plain64,
    /// The caller's own.
    pub(crate) tag: Plain64,
    /// When it was submitted, in ticks of the client's clock.
    pub(crate) submitted_ticks: Plain64,

    /// How it ended: 1 done, 2 failed, 3 cancelled; bits 8-15: number of the backend.
    pub(crate) status: Plain64,
    /// Pages now on the target that were elsewhere.
    pub(crate) moved_count: Plain64,
    /// Pages that were on the target already.
    pub(crate) already_count: Plain64,
    /// Bytes copied.
    pub(crate) copied_bytes: Plain64,
    /// From submission to the start of the batch that it was moved in.
    pub(crate) queued_ns: Plain64,
    /// As the backend says.
    pub(crate) moving_ns: Plain64,
    /// Time that the program's threads waited for pages on their way.
    pub(crate) stall_ns: Plain64,
    /// Huge pages that arrived as such.
    pub(crate) huge_kept_count: Plain32,
    /// Huge pages that were split on the way.
    pub(crate) huge_split_count: Plain32,

    /// Pages that stayed, by reason. This line is written and read only where the status is not
    /// done.
    pub(crate) refused: [Plain32; REASON_COUNT],
    /// The access that ended it, where `raced_thread` is not 0.
    pub(crate) raced_address: Plain64,
    pub(crate) raced_thread: Plain32,
    pub(crate) unused: Plain32,
}

/// What links a queue together. A request owns one; the two change partners when it is dequeued.
#[derive(Debug)]
#[repr(C)]
pub struct Node {
    /// The following node.
    pub(crate) next: AtomicU64,
    /// The slot that is queued by this node.
    pub(crate) slot: Plain32,
    pub(crate) unused: Plain32,
}

/// Model checkers cannot make their atomics out of zeroed memory.
#[cfg(any(loom, shuttle, miri))]
mod fresh {
    use super::*;

    fn line<T>(value: T) -> Line<T> {
        Line(value)
    }

    #[cfg(loom)]
    fn watched() -> Line<AtomicU64> {
        line(AtomicU64::watched(0))
    }

    #[cfg(any(shuttle, miri))]
    fn watched() -> Line<AtomicU64> {
        line(AtomicU64::new(0))
    }

    fn ends() -> Ends {
        Ends {
            head: line(AtomicU64::new(0)),
            tail: line(AtomicU64::new(0)),
        }
    }

    impl Header {
        pub(crate) fn new() -> Self {
            Self {
                magic: Plain64::default(),
                version: Plain32::default(),
                slot_count: Plain32::default(),
                slot_bytes: Plain32::default(),
                slots_offset: Plain32::default(),
                node_count: Plain32::default(),
                node_bytes: Plain32::default(),
                nodes_offset: Plain32::default(),
                free: watched(),
                staging: watched(),
                high: ends(),
                normal: ends(),
                done: ends(),
                failed: ends(),
                bell: line(Bell::new()),
                armed: watched(),
                completion_bell: line(Bell::new()),
            }
        }
    }

    impl Slot {
        pub(crate) fn new() -> Self {
            Self {
                state: AtomicU64::new(0),
                link: AtomicU64::new(0),
                node: Plain32::default(),
                flags: Plain32::default(),
                from: Plain64::default(),
                to: Plain64::default(),
                bytes: Plain64::default(),
                tag: Plain64::default(),
                submitted_ticks: Plain64::default(),
                status: Plain64::default(),
                moved_count: Plain64::default(),
                already_count: Plain64::default(),
                copied_bytes: Plain64::default(),
                queued_ns: Plain64::default(),
                moving_ns: Plain64::default(),
                stall_ns: Plain64::default(),
                huge_kept_count: Plain32::default(),
                huge_split_count: Plain32::default(),
                refused: Default::default(),
                raced_address: Plain64::default(),
                raced_thread: Plain32::default(),
                unused: Plain32::default(),
            }
        }
    }

    impl Node {
        pub(crate) fn new() -> Self {
            Self {
                next: AtomicU64::new(0),
                slot: Plain32::default(),
                unused: Plain32::default(),
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::mem::{align_of, offset_of, size_of};

    /// Frozen: a change here is a change of [`VERSION`] and of `docs/mover.md`.
    #[test]
    fn bytes_of_version_1() {
        assert_eq!(VERSION, 1);
        assert_eq!(MAGIC.to_le_bytes(), *b"hithermv");
        assert_eq!((size_of::<Header>(), align_of::<Header>()), (896, 64));
        assert_eq!(offset_of!(Header, magic), 0);
        assert_eq!(offset_of!(Header, version), 8);
        assert_eq!(offset_of!(Header, slot_count), 12);
        assert_eq!(offset_of!(Header, slot_bytes), 16);
        assert_eq!(offset_of!(Header, slots_offset), 20);
        assert_eq!(offset_of!(Header, node_count), 24);
        assert_eq!(offset_of!(Header, node_bytes), 28);
        assert_eq!(offset_of!(Header, nodes_offset), 32);
        assert_eq!(offset_of!(Header, free), 64);
        assert_eq!(offset_of!(Header, staging), 128);
        assert_eq!(offset_of!(Header, high), 192);
        assert_eq!(offset_of!(Header, normal), 320);
        assert_eq!(offset_of!(Header, done), 448);
        assert_eq!(offset_of!(Header, failed), 576);
        assert_eq!(offset_of!(Header, bell), 704);
        assert_eq!(offset_of!(Header, armed), 768);
        assert_eq!(offset_of!(Header, completion_bell), 832);
        assert_eq!((offset_of!(Ends, head), offset_of!(Ends, tail)), (0, 64));
    }

    #[test]
    fn bytes_of_a_slot_and_a_node() {
        assert_eq!((size_of::<Slot>(), align_of::<Slot>()), (192, 64));
        assert_eq!(offset_of!(Slot, state), 0);
        assert_eq!(offset_of!(Slot, link), 8);
        assert_eq!(offset_of!(Slot, node), 16);
        assert_eq!(offset_of!(Slot, flags), 20);
        assert_eq!(offset_of!(Slot, from), 24);
        assert_eq!(offset_of!(Slot, to), 32);
        assert_eq!(offset_of!(Slot, bytes), 40);
        assert_eq!(offset_of!(Slot, tag), 48);
        assert_eq!(offset_of!(Slot, submitted_ticks), 56);
        assert_eq!(offset_of!(Slot, status), 64);
        assert_eq!(offset_of!(Slot, moved_count), 72);
        assert_eq!(offset_of!(Slot, already_count), 80);
        assert_eq!(offset_of!(Slot, copied_bytes), 88);
        assert_eq!(offset_of!(Slot, queued_ns), 96);
        assert_eq!(offset_of!(Slot, moving_ns), 104);
        assert_eq!(offset_of!(Slot, stall_ns), 112);
        assert_eq!(offset_of!(Slot, huge_kept_count), 120);
        assert_eq!(offset_of!(Slot, huge_split_count), 124);
        assert_eq!(offset_of!(Slot, refused), 128);
        assert_eq!(offset_of!(Slot, raced_address), 176);
        assert_eq!(offset_of!(Slot, raced_thread), 184);
        assert_eq!((size_of::<Node>(), align_of::<Node>()), (16, 8));
        assert_eq!((offset_of!(Node, next), offset_of!(Node, slot)), (0, 8));
    }

    #[test]
    fn a_link_keeps_its_parts_apart() {
        let empty = Link(0);
        assert_eq!(
            (empty.index(), empty.colour(), empty.tag()),
            (None, Colour::Blue, 0)
        );
        let red = empty.to(Some(u16::MAX - 1)).coloured(Colour::Red);
        assert_eq!(red.index(), Some(u16::MAX - 1));
        assert_eq!((red.colour(), red.tag()), (Colour::Red, 1));
        let last = Link(u64::MAX).to(None);
        assert_eq!(
            (last.index(), last.colour(), last.tag()),
            (None, Colour::Red, 0)
        );
    }
}
