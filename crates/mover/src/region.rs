//! One region of shared memory: making it, and reaching its parts by validated number.
//!
//! The region of this process is private anonymous memory, and the kernel wipes it in a child
//! after `fork`: there it reads as zeros, which is a region with nothing free and nothing
//! completed, so that a child can do no harm to its parent's moves.

use crate::layout::{Header, Link, MAGIC, MOST_SLOTS, Node, QUEUE_COUNT, Slot, VERSION};
use crate::sync::{AtomicU64, Ordering};
use std::io;
use std::sync::atomic::AtomicBool;

/// A word of the region had a value that no correct party writes. The instance is given up: every
/// later call on it fails, and nothing else is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shared region is corrupt: somebody wrote into it what no request writes")]
pub struct Corrupt;

/// The region and what this process itself knows about it: counts and verdict are never read back
/// from the shared memory.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Memory,
    slot_count: u16,
    node_count: u16,
    corrupt: AtomicBool,
}

impl Region {
    /// A fresh region with `slot_count` free slots (1 to [`MOST_SLOTS`]).
    pub(crate) fn new(slot_count: u16) -> io::Result<Self> {
        assert!((1..=MOST_SLOTS).contains(&slot_count), "the caller checked");
        let node_count = slot_count + QUEUE_COUNT;
        let region = Self {
            memory: Memory::new(slot_count, node_count)?,
            slot_count,
            node_count,
            corrupt: AtomicBool::new(false),
        };
        region.initialise();
        Ok(region)
    }

    fn initialise(&self) {
        let header = self.header();
        header.version.set(VERSION);
        header.slot_count.set(self.slot_count.into());
        header.slot_bytes.set(size_of::<Slot>() as u32);
        header.slots_offset.set(size_of::<Header>() as u32);
        header.node_count.set(self.node_count.into());
        header.node_bytes.set(size_of::<Node>() as u32);
        let nodes_offset = size_of::<Header>() + usize::from(self.slot_count) * size_of::<Slot>();
        header.nodes_offset.set(nodes_offset as u32);
        for (index, slot) in (0..).zip(self.memory.slots()) {
            let next = (index + 1 < self.slot_count).then_some(index + 1);
            slot.link.store(Link(0).to(next).0, Ordering::Relaxed);
            slot.node.set(index.into());
        }
        header
            .free
            .0
            .store(Link(0).to(Some(0)).0, Ordering::Relaxed);
        let queues = [&header.high, &header.normal, &header.done, &header.failed];
        for (node, queue) in (self.slot_count..).zip(queues) {
            queue
                .head
                .0
                .store(Link(0).to(Some(node)).0, Ordering::Relaxed);
            queue
                .tail
                .0
                .store(Link(0).to(Some(node)).0, Ordering::Relaxed);
        }
        header.magic.set(MAGIC);
    }

    #[inline]
    pub(crate) fn header(&self) -> &Header {
        self.memory.header()
    }

    pub(crate) fn slot_count(&self) -> u16 {
        self.slot_count
    }

    /// Is this the process that made it, or a child after `fork`, in which it reads as zeros?
    pub(crate) fn is_wiped(&self) -> bool {
        self.header().magic.get() != MAGIC
    }

    /// The slot of this number, which may come from shared memory.
    #[inline]
    pub(crate) fn slot(&self, index: u16) -> Result<&Slot, Corrupt> {
        match self.memory.slots().get(usize::from(index)) {
            Some(slot) => Ok(slot),
            None => Err(self.give_up()),
        }
    }

    /// The node of this number, which may come from shared memory.
    #[inline]
    pub(crate) fn node(&self, index: u16) -> Result<&Node, Corrupt> {
        match self.memory.nodes().get(usize::from(index)) {
            Some(node) => Ok(node),
            None => Err(self.give_up()),
        }
    }

    /// A number that was read from a 32-bit word of shared memory.
    #[inline]
    pub(crate) fn narrow(&self, number: u32) -> Result<u16, Corrupt> {
        u16::try_from(number).map_err(|_| self.give_up())
    }

    /// Puts a slot on top of a stack, by the slot's link, and returns what the head was just before.
    /// `publish` is [`Ordering::Release`], but for tests that show that nothing weaker will do.
    #[inline]
    pub(crate) fn push(
        &self,
        head: &AtomicU64,
        index: u16,
        publish: Ordering,
    ) -> Result<Link, Corrupt> {
        let link = &self.slot(index)?.link;
        let mut turns = Turns::new();
        let mut seen = Link(head.load(Ordering::Relaxed));
        loop {
            link.store(Link(0).to(seen.index()).0, Ordering::Relaxed);
            let next = seen.to(Some(index)).0;
            match head.compare_exchange(seen.0, next, publish, Ordering::Relaxed) {
                Ok(_) => return Ok(seen),
                Err(now) => seen = Link(now),
            }
            turns.next(self)?;
        }
    }

    /// Marks the instance as corrupt.
    #[cold]
    pub(crate) fn give_up(&self) -> Corrupt {
        self.corrupt
            .store(true, std::sync::atomic::Ordering::Relaxed);
        Corrupt
    }

    /// Fails once anything was found corrupt.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Corrupt> {
        if self.corrupt.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Corrupt);
        }
        Ok(())
    }
}

/// Counts the turns of a loop that waits for nobody but may lose a race, and gives up where no
/// number of rivals explains them.
///
/// Every lost compare-and-swap is another thread's success, so that a correct program gets nowhere
/// near the limit, while links that a peer bent into a ring end here and not never.
#[derive(Debug)]
pub(crate) struct Turns(u32);

impl Turns {
    const MOST: u32 = 1 << 18;

    #[inline]
    pub(crate) fn new() -> Self {
        Self(0)
    }

    #[inline]
    pub(crate) fn next(&mut self, region: &Region) -> Result<(), Corrupt> {
        self.0 += 1;
        if self.0 > Self::MOST {
            return Err(region.give_up());
        }
        Ok(())
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
