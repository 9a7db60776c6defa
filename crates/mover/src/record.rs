//! What a slot says: what is asked, and what became of it.

use crate::backend::{Action, Outcome, Pages, Race, Raced};
use crate::layout::{REASON_COUNT, Slot};
use hither_core::ids::NodeId;
use hither_core::plan::Refusal;

/// Bytes of a page that every range of a migration is made of.
pub const PAGE_BYTES: u64 = 4096;
/// First address that no program has, with 57-bit addresses (Linux, x86-64, five levels).
const ADDRESS_END: u64 = 1 << 56;
/// Most nodes that Linux can be built for (`CONFIG_NODES_SHIFT` is at most 10).
const MOST_NODES: u64 = 1 << 10;

/// Request flag: kind, migrate to a node; without it, replicate.
pub(crate) const FLAG_MIGRATE: u32 = 1;
/// Request flag: a race makes the move fail.
pub(crate) const FLAG_RACE_FAIL: u32 = 2;
/// Request flag: an access meanwhile waits. Not together with [`FLAG_RACE_FAIL`].
pub(crate) const FLAG_RACE_BLOCK: u32 = 4;
/// Request flag: served before requests without it.
pub(crate) const FLAG_HIGH: u32 = 8;

/// The number of a request within its [`Mover`](crate::Mover): never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

impl RequestId {
    pub(crate) fn new(index: u16, generation: u64) -> Self {
        Self(generation << 16 | u64::from(index))
    }

    pub(crate) fn index(self) -> u16 {
        self.0 as u16
    }

    pub(crate) fn generation(self) -> u64 {
        self.0 >> 16
    }

    /// As a number, for other languages and reports.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// From what [`RequestId::get`] returned. Any number is harmless: one that is no request's is
    /// found nowhere.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Neither `migrate` nor `replicate` was called.
    #[error("the request asks for nothing: call migrate or replicate")]
    NothingAsked,
    /// The range ends where it begins, or before.
    #[error("the range is empty")]
    Empty,
    /// A migration's ends are not multiples of 4096.
    #[error("the range does not begin and end at a page")]
    Unaligned,
    /// A range goes beyond what a program can address.
    #[error("the range leaves the address space")]
    Overflow,
    /// A replication's ranges have bytes in common.
    #[error("the two ranges overlap")]
    Overlap,
    /// No Linux has a node of this number.
    #[error("there is no node of this number")]
    Node,
}

/// What a request asks for, as the words of a slot: what stands in one has passed [`Asked::check`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) flags: u32,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) bytes: u64,
    pub(crate) tag: u64,
}

impl Asked {
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        if self.bytes == 0 {
            return Err(Invalid::Empty);
        }
        let within = |start: u64| {
            start
                .checked_add(self.bytes)
                .is_some_and(|end| end <= ADDRESS_END)
        };
        if !within(self.from) {
            return Err(Invalid::Overflow);
        }
        if self.flags & FLAG_MIGRATE != 0 {
            if !(self.from | self.bytes).is_multiple_of(PAGE_BYTES) {
                return Err(Invalid::Unaligned);
            }
            if self.to >= MOST_NODES {
                return Err(Invalid::Node);
            }
        } else {
            if !within(self.to) {
                return Err(Invalid::Overflow);
            }
            if self.from.abs_diff(self.to) < self.bytes {
                return Err(Invalid::Overlap);
            }
        }
        Ok(())
    }

    /// As a backend takes it. Only of what passed [`Asked::check`].
    pub(crate) fn action(&self) -> Action<'static> {
        if self.flags & FLAG_MIGRATE != 0 {
            let first = self.from / PAGE_BYTES;
            Action::Migrate {
                pages: Pages::Run(first..first + self.bytes / PAGE_BYTES),
                to: NodeId(self.to as u32),
            }
        } else {
            Action::Replicate {
                from: self.from,
                to: self.to,
                bytes: self.bytes,
            }
        }
    }

    pub(crate) fn race(&self) -> Race {
        if self.flags & FLAG_RACE_FAIL != 0 {
            Race::Fail
        } else if self.flags & FLAG_RACE_BLOCK != 0 {
            Race::Block
        } else {
            Race::Recover
        }
    }

    #[inline]
    pub(crate) fn is_high(&self) -> bool {
        self.flags & FLAG_HIGH != 0
    }

    #[inline]
    pub(crate) fn write(&self, slot: &Slot) {
        slot.flags.set(self.flags);
        slot.from.set(self.from);
        slot.to.set(self.to);
        slot.bytes.set(self.bytes);
        slot.tag.set(self.tag);
    }

    pub(crate) fn read(slot: &Slot) -> Self {
        Self {
            flags: slot.flags.get(),
            from: slot.from.get(),
            to: slot.to.get(),
            bytes: slot.bytes.get(),
            tag: slot.tag.get(),
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Every page is where it was asked to be, and nothing raced.
    Done,
    /// At least one page was refused, or an access ended the move ([`Race::Fail`]).
    Failed,
    /// It was cancelled, or dropped when the service was closed, and has not run.
    Cancelled,
}

/// What became of a request. Counts of pages end at `u32::MAX`, which is 16 TiB.
///
/// It is 128 bytes, the most that compilers copy without calling `memcpy`: a tenth of the cost of
/// a retrieval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What `submit` returned.
    pub id: RequestId,
    /// The caller's own, as set before submission.
    pub tag: u64,
    /// How it ended.
    pub status: Status,
    /// Which backend carried it out: a number for [`Mover::backend_name`](crate::Mover::backend_name).
    pub backend: u8,
    /// Pages now on the target that were elsewhere; of a replication, pages written.
    pub moved_pages: u32,
    /// Pages that were on the target already.
    pub already_there: u32,
    /// Pages that stayed, by reason: see [`Completion::refused`].
    pub refused_counts: [u32; REASON_COUNT],
    /// Bytes copied.
    pub bytes: u64,
    /// From submission to the start of its batch, in ns.
    pub queued_ns: u64,
    /// Time the move took, in ns, as the backend says.
    pub moving_ns: u64,
    /// Time that the program's threads waited for pages on their way, in ns, summed over threads.
    pub stall_ns: u64,
    /// Huge pages that arrived as such.
    pub huge_kept: u32,
    /// Huge pages that were split on the way.
    pub huge_split: u32,
    /// See [`Completion::raced`]; meaningless where `raced_thread` is 0.
    raced_address: u64,
    raced_thread: i32,
}

impl Completion {
    /// The access that ended it, under [`Race::Fail`].
    #[must_use]
    pub fn raced(&self) -> Option<Raced> {
        (self.raced_thread != 0).then_some(Raced {
            address: self.raced_address,
            thread: self.raced_thread,
        })
    }

    /// Pages that stayed for this reason.
    #[must_use]
    pub fn refused(&self, reason: Refusal) -> u32 {
        self.refused_counts[reason_index(reason)]
    }

    /// Pages that stayed.
    #[must_use]
    pub fn refused_pages(&self) -> u64 {
        self.refused_counts.iter().copied().map(u64::from).sum()
    }

    #[inline]
    pub(crate) fn read(id: RequestId, slot: &Slot) -> Self {
        let word = slot.status.get();
        let status = match word as u8 {
            DONE => Status::Done,
            FAILED => Status::Failed,
            _ => Status::Cancelled,
        };
        let mut completion = Self {
            id,
            tag: slot.tag.get(),
            status,
            backend: (word >> 8) as u8,
            moved_pages: saturated(slot.moved_count.get()),
            already_there: saturated(slot.already_count.get()),
            refused_counts: [0; REASON_COUNT],
            bytes: slot.copied_bytes.get(),
            queued_ns: slot.queued_ns.get(),
            moving_ns: slot.moving_ns.get(),
            stall_ns: slot.stall_ns.get(),
            huge_kept: slot.huge_kept_count.get(),
            huge_split: slot.huge_split_count.get(),
            raced_address: 0,
            raced_thread: 0,
        };
        if status != Status::Done {
            for (count, word) in completion.refused_counts.iter_mut().zip(&slot.refused) {
                *count = word.get();
            }
            completion.raced_address = slot.raced_address.get();
            completion.raced_thread = slot.raced_thread.get() as i32;
        }
        completion
    }
}

const DONE: u8 = 1;
const FAILED: u8 = 2;
const CANCELLED: u8 = 3;

/// Writes a result into its slot and returns its status.
pub(crate) fn write_outcome(
    slot: &Slot,
    outcome: &Outcome,
    queued_ns: u64,
    backend: u8,
    cancelled: bool,
) -> Status {
    let refused = outcome.refused.iter().any(|&(_, count)| count > 0);
    let (status, byte) = if cancelled {
        (Status::Cancelled, CANCELLED)
    } else if refused || outcome.raced.is_some() {
        (Status::Failed, FAILED)
    } else {
        (Status::Done, DONE)
    };
    slot.status.set(u64::from(backend) << 8 | u64::from(byte));
    slot.moved_count.set(outcome.moved.len() as u64);
    slot.already_count.set(outcome.already_there);
    slot.copied_bytes.set(outcome.bytes);
    slot.queued_ns.set(queued_ns);
    slot.moving_ns.set(outcome.duration_ns);
    slot.stall_ns.set(outcome.stall_ns);
    slot.huge_kept_count.set(saturated(outcome.huge_kept));
    slot.huge_split_count.set(saturated(outcome.huge_split));
    if status != Status::Done {
        let mut counts = [0u64; REASON_COUNT];
        for &(reason, count) in &outcome.refused {
            let sum = &mut counts[reason_index(reason)];
            *sum = sum.saturating_add(count);
        }
        for (word, count) in slot.refused.iter().zip(counts) {
            word.set(saturated(count));
        }
        let raced = outcome.raced;
        slot.raced_address
            .set(raced.map_or(0, |raced| raced.address));
        slot.raced_thread
            .set(raced.map_or(0, |raced| raced.thread as u32));
    }
    status
}

#[inline]
fn saturated(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Position of a reason in [`Completion::refused_counts`] and in a slot.
#[must_use]
pub fn reason_index(reason: Refusal) -> usize {
    match reason {
        Refusal::Busy => 0,
        Refusal::Pinned => 1,
        Refusal::NoMemory => 2,
        Refusal::Unmapped => 3,
        Refusal::NotOurs => 4,
        Refusal::Shared => 5,
        Refusal::ProcessGone => 6,
        Refusal::TargetForbidden => 7,
        Refusal::Dropped => 8,
        Refusal::NotSupported => 9,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn migrate(from: u64, bytes: u64) -> Asked {
        Asked {
            flags: FLAG_MIGRATE,
            from,
            to: 1,
            bytes,
            tag: 0,
        }
    }

    fn replicate(from: u64, to: u64, bytes: u64) -> Asked {
        Asked {
            flags: 0,
            from,
            to,
            bytes,
            tag: 0,
        }
    }

    #[test]
    fn what_can_be_moved_passes() {
        for asked in [
            migrate(0, 4096),
            migrate(ADDRESS_END - 4096, 4096),
            replicate(1, 8, 7),
            replicate(8, 1, 7),
        ] {
            assert_eq!(asked.check(), Ok(()), "{asked:?}");
        }
    }

    #[test]
    fn what_cannot_be_moved_is_refused_with_its_reason() {
        let node = |to| Asked {
            to,
            ..migrate(0, 4096)
        };
        for (asked, reason) in [
            (migrate(0, 0), Invalid::Empty),
            (migrate(1, 4096), Invalid::Unaligned),
            (migrate(4096, 4095), Invalid::Unaligned),
            (migrate(ADDRESS_END, 4096), Invalid::Overflow),
            (migrate(u64::MAX - 4095, 8192), Invalid::Overflow),
            (node(1024), Invalid::Node),
            (node(u64::MAX), Invalid::Node),
            (replicate(0, 10, 0), Invalid::Empty),
            (replicate(0, 6, 7), Invalid::Overlap),
            (replicate(6, 0, 7), Invalid::Overlap),
            (replicate(5, 5, 1), Invalid::Overlap),
            (replicate(0, u64::MAX, 2), Invalid::Overflow),
            (replicate(u64::MAX, 0, 2), Invalid::Overflow),
        ] {
            assert_eq!(asked.check(), Err(reason), "{asked:?}");
        }
    }

    #[test]
    fn words_of_a_request_become_a_job() {
        let asked = Asked {
            flags: FLAG_MIGRATE | FLAG_RACE_BLOCK | FLAG_HIGH,
            ..migrate(8192, 4096)
        };
        let expected = Action::Migrate {
            pages: Pages::Run(2..3),
            to: NodeId(1),
        };
        assert_eq!(asked.action(), expected);
        assert_eq!((asked.race(), asked.is_high()), (Race::Block, true));
        assert_eq!(migrate(0, 4096).race(), Race::Recover);
    }

    #[test]
    fn a_completion_is_small() {
        assert_eq!(size_of::<Completion>(), 128);
    }

    #[test]
    fn every_reason_has_a_place_of_its_own() {
        use Refusal::*;
        let all = [
            Busy,
            Pinned,
            NoMemory,
            Unmapped,
            NotOurs,
            Shared,
            ProcessGone,
            TargetForbidden,
            Dropped,
            NotSupported,
        ];
        for (index, reason) in all.into_iter().enumerate() {
            assert_eq!(reason_index(reason), index, "{reason}");
            assert!(index < REASON_COUNT);
        }
    }
}
