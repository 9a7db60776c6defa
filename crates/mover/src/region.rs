//! The memory of one service, and its parts by number.
//!
//! It is private anonymous memory, which the kernel wipes in a child after `fork`: there it reads as
//! zeros, which is a service with nothing free and nothing completed, so that a child can do no harm
//! to its parent's moves.

use crate::layout::{Header, Link, MOST_SLOTS, Node, QUEUE_COUNT, Slot};
use crate::sync::{AtomicU64, Ordering};
use std::io;

/// This is a child after `fork`: service and workers are the parent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the mover belongs to the parent of this process: open one after fork")]
pub struct Forked;

/// Header, slots and nodes.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Memory,
}

impl Region {
    /// A fresh region with `slot_count` free slots (1 to [`MOST_SLOTS`]).
    pub(crate) fn new(slot_count: u16) -> io::Result<Self> {
        assert!((1..=MOST_SLOTS).contains(&slot_count), "the caller checked");
        let memory = Memory::new(slot_count, slot_count + QUEUE_COUNT)?;
        let header = memory.header();
        for (index, slot) in (0..).zip(memory.slots()) {
            let next = (index + 1 < slot_count).then_some(index + 1);
            slot.link.store(Link(0).to(next).0, Ordering::Relaxed);
            slot.node.set(index.into());
        }
        let first = Link(0).to(Some(0)).0;
        header.free.0.store(first, Ordering::Relaxed);
        let queues = [&header.high, &header.normal, &header.done, &header.failed];
        for (node, queue) in (slot_count..).zip(queues) {
            let dummy = Link(0).to(Some(node)).0;
            queue.head.0.store(dummy, Ordering::Relaxed);
            queue.tail.0.store(dummy, Ordering::Relaxed);
        }
        header.is_owners.set(1);
        Ok(Self { memory })
    }

    #[inline]
    pub(crate) fn header(&self) -> &Header {
        self.memory.header()
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        self.memory.slots()
    }

    /// Is this a child after `fork`, in which all reads as zeros?
    #[inline]
    pub(crate) fn is_wiped(&self) -> bool {
        self.header().is_owners.get() == 0
    }

    /// The slot of this number.
    #[inline]
    pub(crate) fn slot(&self, index: u16) -> &Slot {
        &self.memory.slots()[usize::from(index)]
    }

    /// The node of this number.
    #[inline]
    pub(crate) fn node(&self, index: u16) -> &Node {
        &self.memory.nodes()[usize::from(index)]
    }

    /// Puts a slot on top of a stack, by the slot's link, and returns what the head was just before.
    /// `publish` is [`Ordering::Release`], but for tests that show that nothing weaker will do.
    #[inline]
    pub(crate) fn push(&self, head: &AtomicU64, index: u16, publish: Ordering) -> Link {
        let link = &self.slot(index).link;
        let mut seen = Link(head.load(Ordering::Relaxed));
        loop {
            link.store(Link(0).to(seen.index()).0, Ordering::Relaxed);
            let next = seen.to(Some(index)).0;
            match head.compare_exchange(seen.0, next, publish, Ordering::Relaxed) {
                Ok(_) => return seen,
                Err(now) => seen = Link(now),
            }
        }
    }
}

#[cfg(not(any(loom, shuttle, miri)))]
#[derive(Debug)]
struct Memory {
    start: std::ptr::NonNull<u8>,
    bytes: usize,
    slot_count: u16,
    node_count: u16,
}

// SAFETY: the mapping belongs to this value alone, and all access to it is by atomics.
#[cfg(not(any(loom, shuttle, miri)))]
unsafe impl Send for Memory {}
// SAFETY: as above.
#[cfg(not(any(loom, shuttle, miri)))]
unsafe impl Sync for Memory {}

#[cfg(not(any(loom, shuttle, miri)))]
impl Memory {
    fn new(slot_count: u16, node_count: u16) -> io::Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
        let bytes = size_of::<Header>()
            + usize::from(slot_count) * size_of::<Slot>()
            + usize::from(node_count) * size_of::<Node>();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }?;
        // SAFETY: the range is the mapping just made; the advice takes effect only in a child.
        let advised = unsafe { madvise(start, bytes, Advice::LinuxWipeOnFork) };
        if let Err(error) = advised {
            // SAFETY: as above; nobody else knows of the mapping yet.
            let _ = unsafe { munmap(start, bytes) };
            return Err(error.into());
        }
        let start = std::ptr::NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            start,
            bytes,
            slot_count,
            node_count,
        })
    }

    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned, at least this long, lives as long as `self`, and
        // any bytes are a valid `Header`, which is all atomics.
        unsafe { self.start.cast().as_ref() }
    }

    #[inline]
    fn slots(&self) -> &[Slot] {
        // SAFETY: `new` made room for this many behind the header, whose size is a multiple of a
        // slot's alignment; any bytes are a valid `Slot`.
        unsafe {
            let first = self.start.add(size_of::<Header>()).cast();
            std::slice::from_raw_parts(first.as_ptr(), self.slot_count.into())
        }
    }

    #[inline]
    fn nodes(&self) -> &[Node] {
        let offset = size_of::<Header>() + usize::from(self.slot_count) * size_of::<Slot>();
        // SAFETY: `new` made room for this many behind the slots; any bytes are a valid `Node`.
        unsafe {
            let first = self.start.add(offset).cast();
            std::slice::from_raw_parts(first.as_ptr(), self.node_count.into())
        }
    }
}

#[cfg(not(any(loom, shuttle, miri)))]
impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and every reference into it borrowed `self`.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(any(loom, shuttle, miri))]
#[derive(Debug)]
struct Memory {
    header: Box<Header>,
    slots: Box<[Slot]>,
    nodes: Box<[Node]>,
}

#[cfg(any(loom, shuttle, miri))]
impl Memory {
    fn new(slot_count: u16, node_count: u16) -> io::Result<Self> {
        Ok(Self {
            header: Box::new(Header::new()),
            slots: (0..slot_count).map(|_| Slot::new()).collect(),
            nodes: (0..node_count).map(|_| Node::new()).collect(),
        })
    }

    fn header(&self) -> &Header {
        &self.header
    }

    fn slots(&self) -> &[Slot] {
        &self.slots
    }

    fn nodes(&self) -> &[Node] {
        &self.nodes
    }
}
