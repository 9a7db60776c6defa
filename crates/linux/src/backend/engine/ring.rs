//! A ring of descriptors: the user-space side of a copy engine (`hither_core::copy_engine`).
//!
//! Who writes: descriptors and the tail this process, records and the head of the ring the engine.
//! The doorbell orders the former before the engine reads them; a record's status, which is
//! written last, orders the copied bytes and the rest of the record before it.

use crate::sys::{self, MemoryArea};
use hither_core::copy_engine::{self as layout, descriptor, record, ring};
use hither_mover::Unavailable;
use std::sync::atomic::{AtomicU64, Ordering};

/// Descriptors: each is for up to a few hundred pages, and a worker waits for its copies.
const ENTRIES: usize = 64;

/// What the engine says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Channels.
    pub channels: u64,
    /// What one of them copies, in MB/s.
    pub bandwidth_mbs: u64,
    /// A channel's time before the first byte, in ns.
    pub setup_ns: u64,
    /// Elements that it holds.
    pub elements: u64,
    /// CPU time to write one, in ns.
    pub element_ns: u64,
    /// CPU time to use one again, in ns.
    pub reuse_ns: u64,
    /// Is each page an element?
    pub per_page: bool,
}

/// How a descriptor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// `hither_core::copy_engine::record`'s statuses.
    pub status: u64,
    /// Bytes copied, from the first on.
    pub done: u64,
    /// The page that was not there, of a fault.
    pub fault: u64,
    /// When, in ns of the machine's clock.
    pub time_ns: u64,
    /// Elements that it took.
    pub elements: u64,
}

/// An open ring.
#[derive(Debug)]
pub struct Ring {
    area: MemoryArea,
    facts: Facts,
    tail: u64,
    owner: u32,
}

impl Ring {
    /// Opens a ring of this process.
    ///
    /// # Errors
    /// There is no engine, or it takes no more rings.
    pub fn open() -> Result<Self, Unavailable> {
        let system = |error: std::io::Error| {
            let why = format!("there is no memory for a ring of descriptors ({error})");
            Unavailable::new(why, "allow more memory to this process")
        };
        let area = MemoryArea::new(2 << 20, false).map_err(system)?;
        let start = area.range().start;
        sys::fill(&(start..start + layout::ring_bytes(ENTRIES).next_multiple_of(4096) as u64))
            .map_err(system)?;
        let mut opened = Self {
            area,
            facts: Facts::default(),
            tail: 0,
            owner: std::process::id(),
        };
        opened
            .word(ring::MAGIC)
            .store(layout::MAGIC, Ordering::Release);
        let entries = ENTRIES as u64;
        opened.word(ring::ENTRIES).store(entries, Ordering::Release);
        // SAFETY: no descriptor is new.
        unsafe { sys::ring_doorbell(start) };
        let fact = |field| opened.word(field).load(Ordering::Acquire);
        match fact(ring::PRESENT) {
            layout::VERSION => {}
            0 => {
                return Err(Unavailable::new(
                    "this machine has no copy engine that hither knows",
                    "run in the laboratory on a machine file with an [engine] (machines/keystone2.toml); engines of \
                     processors, as Intel's DSA, are not driven yet",
                ));
            }
            other => {
                return Err(Unavailable::new(
                    format!("the copy engine has rings of version {other}"),
                    "use plugin and guest tools of one hither release",
                ));
            }
        }
        opened.facts = Facts {
            channels: fact(ring::CHANNELS),
            bandwidth_mbs: fact(ring::BANDWIDTH_MBS),
            setup_ns: fact(ring::SETUP_NS),
            elements: fact(ring::DESCRIPTORS),
            element_ns: fact(ring::ELEMENT_NS),
            reuse_ns: fact(ring::REUSE_NS),
            per_page: fact(ring::PER_PAGE) == 1,
        };
        Ok(opened)
    }

    /// What the engine says of itself.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.facts
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        let range = self.area.range();
        assert!(offset + 8 <= layout::ring_bytes(ENTRIES) && offset.is_multiple_of(8));
        let place = std::ptr::with_exposed_provenance::<AtomicU64>(range.start as usize + offset);
        // SAFETY: within the area, which is mapped as long as it lives, and aligned (just checked).
        unsafe { &*place }
    }

    /// Descriptors that were submitted and not taken by the engine.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.tail - self.word(ring::TAKEN).load(Ordering::Acquire)
    }

    /// Most descriptors under way at a time.
    #[must_use]
    pub fn capacity(&self) -> usize {
        ENTRIES
    }

    /// Writes a descriptor and rings; its place. The caller keeps no more of them open than the
    /// ring has places.
    ///
    /// # Safety
    /// Nobody relies on the target until the record says that it is done. The ranges do not
    /// overlap.
    pub unsafe fn submit(&mut self, from: u64, to: u64, bytes: u64) -> usize {
        let place = self.tail as usize % ENTRIES;
        let at = descriptor::at(place);
        // Descriptors are used again: what a place holds already is not written.
        let words = [
            (descriptor::OPERATION, descriptor::COPY),
            (descriptor::SIZE, bytes),
            (descriptor::SOURCE, from),
            (descriptor::TARGET, to),
        ];
        for (field, value) in words {
            let word = self.word(at + field);
            if word.load(Ordering::Relaxed) != value {
                word.store(value, Ordering::Relaxed);
            }
        }
        let status = record::at(ENTRIES, place) + record::STATUS;
        self.word(status).store(0, Ordering::Release);
        self.tail += 1;
        self.word(ring::TAIL).store(self.tail, Ordering::Release);
        // SAFETY: as the caller promises.
        unsafe { self.ring() };
        place
    }

    /// Rings again, for what the engine had no room for.
    ///
    /// # Safety
    /// As [`Self::submit`], for what waits.
    pub unsafe fn ring(&self) {
        // SAFETY: as the caller promises.
        unsafe { sys::ring_doorbell(self.area.range().start) };
    }

    /// The record of a place, once it is there.
    #[must_use]
    pub fn record(&self, place: usize) -> Option<Record> {
        sys::look_at_records(self.area.range().start);
        let at = record::at(ENTRIES, place);
        let field = |field| self.word(at + field).load(Ordering::Relaxed);
        // Pairs with the engine's store of the status, after the rest.
        match self.word(at + record::STATUS).load(Ordering::Acquire) {
            0 => None,
            status => Some(Record {
                status,
                done: field(record::DONE),
                fault: field(record::FAULT),
                time_ns: field(record::TIME_NS),
                elements: field(record::ELEMENTS),
            }),
        }
    }

    /// Was it opened by this process, rather than by one that forked it? A child has no ring.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A child does not have the addresses, which may be something else's there.
        if !self.is_ours() {
            let nothing = MemoryArea::new(0, false);
            if let Ok(nothing) = nothing {
                std::mem::forget(std::mem::replace(&mut self.area, nothing));
            }
            return;
        }
        self.word(ring::MAGIC).store(0, Ordering::Release);
    }
}
