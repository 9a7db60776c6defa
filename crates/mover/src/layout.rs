//! What one service's clients and workers share: a header, request records (slots), queue nodes.
//!
//! Every word is an atomic. A link is a number and not a reference: one word must hold the number,
//! a tag and a colour, so that one compare-and-swap changes all three. Words that different threads
//! write lie on different cache lines.

use crate::sync::{AtomicU64, Bell, Plain32, Plain64};

/// Most slots of a service. With the four nodes of empty queues every number fits 16 bits.
pub(crate) const MOST_SLOTS: u16 = 32_768;
/// Queues that link nodes, and so own one node each while empty.
pub(crate) const QUEUE_COUNT: u16 = 4;
/// Reasons for which a completion counts refused pages; those above the ones in use are zero.
pub(crate) const REASON_COUNT: usize = 12;

/// Who must flush the staging queue (memif section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
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
pub(crate) struct Link(pub(crate) u64);

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
pub(crate) struct Line<T>(pub(crate) T);

/// Both ends of a queue. Dequeuers write `head`, enqueuers `tail`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Ends {
    pub(crate) head: Line<AtomicU64>,
    pub(crate) tail: Line<AtomicU64>,
}

/// What there is once.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Header {
    /// 1 in the process that made it, 0 in a child after `fork`.
    pub(crate) is_owners: Plain32,
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
pub(crate) struct Slot {
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
}

/// What links a queue together. A request owns one; the two change partners when it is dequeued.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Node {
    /// The following node.
    pub(crate) next: AtomicU64,
    /// The slot that is queued by this node.
    pub(crate) slot: Plain32,
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
                is_owners: Plain32::default(),
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
            }
        }
    }

    impl Node {
        pub(crate) fn new() -> Self {
            Self {
                next: AtomicU64::new(0),
                slot: Plain32::default(),
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_request_takes_three_cache_lines() {
        assert_eq!((size_of::<Slot>(), size_of::<Node>()), (192, 16));
        assert_eq!(std::mem::offset_of!(Slot, status), 64);
        assert_eq!(std::mem::offset_of!(Slot, refused), 128);
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
