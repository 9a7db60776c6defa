//! The backend `engine`: copies by a device, where that is cheaper than by the CPU.
//!
//! Problem: a CPU that copies does nothing else, and a device that copies wants descriptors, and
//! somebody who waits for it.
//!
//! Mechanism: [`EngineDriver::copy`] cuts a copy into parts, submits each ([`ring`]) and waits: asleep
//! for long ones, else spinning. What a record says was not copied (a page that is not there) is
//! left to the caller, who copies it by CPU, as does whoever asks for a copy for which the CPU is
//! the cheaper ([`rule`]). A [`Copier`](super::copy::Copier) with an engine does that for all that
//! copies here: replications, exchanges of pages, and streams.
//!
//! What is measured when it opens, on memory of this process: both ways for 256 KiB that no cache
//! has, and how late a sleep ends. Element sizes and the engine's speed are followed from then on.
//!
//! What always holds: when `copy` returns, no descriptor of it is under way.

mod ring;
pub mod rule;

pub use ring::{Facts, Record, Ring};

use super::copy;
use crate::sys::{self, MemoryArea};
use hither_core::copy_engine::record;
use hither_mover::Unavailable;
use rule::{Costs, LEAST_SLEEP_NS, Trials, Way};
use std::collections::VecDeque;

/// Bytes that are measured with: many pages, yet hardly a millisecond.
const SAMPLE: usize = 256 << 10;
/// The same of what a copy costs whatever its size.
const PAGE: usize = 4096;
/// Times that each is measured; the least counts.
const SAMPLES: usize = 4;
/// A sleep that is measured with.
const NAP_NS: u64 = 50_000;
/// Bytes of a part: the engine is at work on one while the next is written.
const PART: usize = 512 << 10;
/// The same where elements are large: most of a part's cost is its own.
const LARGE_PART: usize = 2 << 20;
/// Looks at a record between two looks at the clock, some tens of us of them.
const LOOK_ROUNDS: u32 = 256;
/// What lately measured copies weigh in what is believed of the next.
const WEIGHT: f64 = 0.25;

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Copies that the engine was given.
    pub copies: u64,
    /// Bytes that it copied.
    pub bytes: u64,
    /// Elements that it took.
    pub elements: u64,
    /// Parts that ended early, for a page that was not there.
    pub faults: u64,
    /// Waits that were slept.
    pub sleeps: u64,
}

/// A copy engine of this process.
#[derive(Debug)]
pub struct EngineDriver {
    ring: Ring,
    costs: Costs,
    trials: Trials,
    counts: Counts,
}

/// A part under way.
struct Part {
    place: usize,
    offset: usize,
    bytes: usize,
    /// When it was submitted and when it should be over, where that is worth a sleep.
    slept_for: Option<(u64, u64)>,
    /// Is it all of its copy? Else others had the engine, too, and its time teaches nothing.
    is_alone: bool,
}

impl EngineDriver {
    /// Opens a ring and measures.
    ///
    /// # Errors
    /// There is no engine here.
    pub fn open() -> Result<Self, Unavailable> {
        let ring = Ring::open()?;
        let facts = ring.facts();
        let mut engine = Self {
            costs: Costs {
                fixed_ns: 0.0,
                element_ns: facts.reuse_ns as f64,
                setup_ns: facts.setup_ns as f64,
                engine_ns_per_byte: 1000.0 / facts.bandwidth_mbs.max(1) as f64,
                copy_ns_per_byte: Costs::all_copies(0.0),
                known: 0,
                sleep_ns: 0.0,
                element_bytes: 4096.0,
            },
            ring,
            trials: Trials::default(),
            counts: Counts::default(),
        };
        engine.measure().map_err(|error| {
            Unavailable::new(
                format!("there is no memory to measure the copy engine with ({error})"),
                "allow more memory to this process",
            )
        })?;
        engine.counts = Counts::default();
        Ok(engine)
    }

    /// The same where one is wanted and to be had.
    #[must_use]
    pub fn open_if(wanted: bool) -> Option<Self> {
        wanted.then(Self::open).and_then(Result::ok)
    }

    fn measure(&mut self) -> std::io::Result<()> {
        let area = MemoryArea::new(2 << 20, false)?;
        let at = |number: u64| area.range().start + number * SAMPLE as u64;
        sys::fill(&(at(0)..at(3)))?;
        let timed = |work: &mut dyn FnMut()| {
            let start = sys::monotonic_ns();
            work();
            (sys::monotonic_ns() - start) as f64
        };
        let clock_ns = (0..SAMPLES)
            .map(|_| timed(&mut || {}))
            .fold(f64::MAX, f64::min);
        let least = |work: &mut dyn FnMut()| {
            let all = (0..SAMPLES).map(|_| timed(work) - clock_ns);
            all.fold(f64::MAX, f64::min).max(1.0)
        };
        self.costs.sleep_ns = least(&mut || {
            sys::sleep_until(sys::monotonic_ns() + NAP_NS);
        }) - NAP_NS as f64;
        self.costs.sleep_ns = self.costs.sleep_ns.max(LEAST_SLEEP_NS);
        // A page: next to nothing of it is the transfer, whose time the engine states.
        // SAFETY: parts of the area, which nobody uses, that do not overlap.
        let page_ns = least(&mut || unsafe {
            self.copy(at(0), at(2), PAGE);
        });
        let stated = self.costs.submit_ns(PAGE) + self.costs.transfer_ns(PAGE);
        self.costs.fixed_ns = (page_ns - stated).max(0.0);
        let (mut whole, mut copied) = (f64::MAX, f64::MAX);
        for _ in 0..SAMPLES {
            // The engine's writes leave both in no cache.
            // SAFETY: parts of the area, which nobody uses, that do not overlap.
            let engine_ns = timed(&mut || unsafe {
                self.copy(at(0), at(2), SAMPLE);
                self.copy(at(0), at(1), SAMPLE);
            });
            whole = whole.min(engine_ns - clock_ns);
            let copy_ns = timed(&mut || {
                let (from, to) = (at(1) as *const u8, at(2) as *mut u8);
                // SAFETY: as above.
                unsafe { copy::copy(from, to, SAMPLE) };
            }) - clock_ns;
            copied = copied.min(copy_ns.max(1.0));
        }
        self.costs.copy_ns_per_byte = Costs::all_copies(copied / SAMPLE as f64);
        let submit = self.costs.submit_ns(SAMPLE);
        let transfer = whole / 2.0 - submit - self.costs.setup_ns;
        self.costs.engine_ns_per_byte =
            (transfer / SAMPLE as f64).max(self.costs.engine_ns_per_byte);
        Ok(())
    }

    /// What the engine says of itself.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.ring.facts()
    }

    /// What copies cost here, as far as is known.
    #[must_use]
    pub fn costs(&self) -> Costs {
        self.costs
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Who does the next copy of so many bytes?
    pub fn way(&mut self, bytes: usize) -> Way {
        match self.ring.is_ours() {
            true => self.trials.next(&self.costs, bytes),
            false => Way::Cpu,
        }
    }

    /// A copy of [`Way::CpuTimed`] took so long.
    pub fn learn_copy(&mut self, bytes: usize, took_ns: u64) {
        self.costs.learn_copy(bytes, took_ns);
    }

    /// Copies by the engine alone; returns how many bytes from the first on are copied. The rest is
    /// for the CPU.
    ///
    /// # Safety
    /// The source is read, and the target is nobody else's, as in a memcpy. They do not overlap.
    pub unsafe fn copy(&mut self, from: u64, to: u64, bytes: usize) -> usize {
        let most = match self.costs.element_bytes > (64 << 10) as f64 {
            true => LARGE_PART,
            false => PART,
        };
        let mut open: VecDeque<Part> = VecDeque::new();
        let (mut given, mut good) = (0, 0);
        let mut is_whole = true;
        self.counts.copies += 1;
        while given < bytes || !open.is_empty() {
            let has_room = open.len() < self.ring.capacity() && self.ring.waiting() == 0;
            if given < bytes && is_whole && has_room {
                let length = most.min(bytes - given);
                let offset = given as u64;
                // SAFETY: as the caller promises; this returns when the record is there.
                let place = unsafe { self.ring.submit(from + offset, to + offset, length as u64) };
                let transfer = self.costs.transfer_ns(length);
                let slept_for = (transfer > self.costs.sleep_from_ns()).then(|| {
                    let now = sys::monotonic_ns();
                    let last = open.back().and_then(|part: &Part| part.slept_for);
                    (
                        now,
                        last.map_or(now, |(_, due)| due.max(now)) + transfer as u64,
                    )
                });
                open.push_back(Part {
                    place,
                    offset: given,
                    bytes: length,
                    slept_for,
                    is_alone: length == bytes,
                });
                given += length;
                continue;
            }
            let Some(part) = open.pop_front() else {
                break;
            };
            let record = self.wait(&part);
            self.learn(&record);
            if is_whole {
                good = part.offset + (record.done as usize).min(part.bytes);
                is_whole = record.status == record::COPIED;
            }
            self.counts.faults += u64::from(record.status != record::COPIED);
            if self.ring.waiting() > 0 {
                // SAFETY: what waits is of this call.
                unsafe { self.ring.ring() };
            }
        }
        self.counts.bytes += good as u64;
        good
    }

    /// Waits for a part's record.
    fn wait(&mut self, part: &Part) -> Record {
        if let Some(record) = self.ring.record(part.place) {
            return record;
        }
        if let Some((since, due)) = part.slept_for {
            let until = due.saturating_sub(self.costs.sleep_ns as u64);
            if until > sys::monotonic_ns() {
                let is_late = self.sleep(until);
                let least = 1000.0 / self.ring.facts().bandwidth_mbs.max(1) as f64;
                let Some(record) = self.ring.record(part.place) else {
                    let record = self.spin(part);
                    let took_ns = sys::monotonic_ns().saturating_sub(since);
                    if part.is_alone {
                        (self.costs).learn_transfer(part.bytes, Some(took_ns), least);
                    }
                    return record;
                };
                if part.is_alone && !is_late {
                    self.costs.learn_transfer(part.bytes, None, least);
                }
                return record;
            }
        }
        self.spin(part)
    }

    /// Looks until the record is there; after a long time with pauses.
    fn spin(&mut self, part: &Part) -> Record {
        let mut rounds = 0u32;
        let mut patience_ns = None;
        loop {
            if let Some(record) = self.ring.record(part.place) {
                return record;
            }
            std::hint::spin_loop();
            rounds += 1;
            if !rounds.is_multiple_of(LOOK_ROUNDS) {
                continue;
            }
            if self.ring.waiting() > 0 {
                // SAFETY: what waits is of the call that waits here.
                unsafe { self.ring.ring() };
            }
            // The engine is busier than was thought: no CPU is to be spent on that without end.
            let now = sys::monotonic_ns();
            let patience = 4.0 * self.costs.transfer_ns(part.bytes);
            let until = *patience_ns.get_or_insert(now + patience as u64);
            if now > until {
                self.sleep(now + self.costs.sleep_from_ns() as u64);
            }
        }
    }

    /// Sleeps, and learns how late sleeps end. Was this one much later than most?
    fn sleep(&mut self, until: u64) -> bool {
        self.counts.sleeps += 1;
        sys::sleep_until(until);
        let late = sys::monotonic_ns().saturating_sub(until) as f64;
        let is_late = late > 2.0 * self.costs.sleep_ns;
        self.costs.learn_sleep(late);
        is_late
    }

    /// What a copy teaches of the next ones.
    fn learn(&mut self, record: &Record) {
        self.counts.elements += record.elements;
        if record.elements > 0 && record.done > 0 {
            let bytes = record.done as f64 / record.elements as f64;
            self.costs.element_bytes += WEIGHT * (bytes - self.costs.element_bytes);
        }
    }
}

#[cfg(test)]
mod tests;
