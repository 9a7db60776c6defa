//! What is never exchanged: memory that the kernel touches on its own, that this backend needs
//! while pages are away, or that the program is about to throw away.

use super::pool::PAGE;
use super::{SwapBackend, journal, survey};
use crate::sys;
use std::fs::File;
use std::io;
use std::ops::Range;

/// Beyond a thread's descriptor: restartable-sequence area and the like.
const DESCRIPTOR_BYTES: u64 = 2 * PAGE;

/// No first stack reaches farther down than this (RLIMIT_STACK is 8 MiB, seldom more).
const MOST_STACK_BYTES: u64 = 64 << 30;
/// For so long the list of threads is believed. A thread that began since has its stack in a
/// mapping that is newer than what a program asks to move, and where the kernel's accesses wait,
/// moving a stack harms nobody but the worker itself, which is older.
const DESCRIPTORS_NS: u64 = 100_000_000;

/// What is known of the process's threads.
pub(super) struct Threads {
    maps: File,
    /// Where they keep their own data, and until when that is believed (ns).
    descriptors: (Vec<u64>, u64),
    /// Static data of the code that runs while pages are away.
    statics: Vec<Range<u64>>,
}

impl Threads {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            maps: File::open("/proc/self/maps")?,
            descriptors: (Vec::new(), 0),
            statics: sys::own_statics(),
        })
    }

    /// Has the range none of their stacks, descriptors and what lies beside those? Looked at anew
    /// where the kernel's own accesses would not wait (`privileged`).
    fn are_elsewhere(&mut self, range: &Range<u64>, privileged: bool) -> bool {
        let now = sys::monotonic_ns();
        if now >= self.descriptors.1 {
            let Ok(found) = survey::thread_descriptors() else {
                return false;
            };
            let believed = if privileged { DESCRIPTORS_NS } else { 0 };
            self.descriptors = (found, now + believed);
        }
        let descriptors = &self.descriptors.0;
        let mapping = |address| match sys::query_mapping(&self.maps, address) {
            Ok(Some(mapping)) if mapping.range.contains(&address) => mapping.range,
            _ => address..address,
        };
        // The first thread's stack has no descriptor at its end.
        let first = sys::first_stack_address();
        if range.end > first.saturating_sub(MOST_STACK_BYTES) && overlap(&mapping(first), range) {
            return false;
        }
        let last = range.end - PAGE;
        let index = descriptors.partition_point(|&descriptor| descriptor < range.start);
        // What belongs to a descriptor below may reach into the range, in the same mapping.
        let below = index.checked_sub(1).map(|below| descriptors[below]);
        let reached = below.is_some_and(|below| {
            below + DESCRIPTOR_BYTES > range.start && below >= mapping(range.start).start
        });
        // A stack ends at its thread's descriptor and begins where its mapping begins.
        let above = descriptors.get(index);
        let stack = above.is_some_and(|&next| next < range.end || next < mapping(last).end);
        !(reached || stack)
    }
}

pub(super) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl SwapBackend {
    /// Is the range, which is not the pool's, nothing that must stay?
    pub(super) fn may_exchange(&mut self, range: &Range<u64>) -> bool {
        !self.shared.journal().is_discarded(range)
            && !self.own_memory().iter().any(|own| overlap(own, range))
            && self.threads.are_elsewhere(range, self.shared.privileged)
    }

    /// Does the range touch the pool's own addresses?
    pub(super) fn is_pool(&self, range: &Range<u64>) -> bool {
        self.pool.ranges().iter().any(|own| overlap(own, range))
    }

    /// Memory that this backend uses while pages are away.
    fn own_memory(&self) -> Vec<Range<u64>> {
        let mut own = self.shared.own_memory();
        own.push(journal::memory_of(std::slice::from_ref(self)));
        own.push(journal::room_of(&self.fates));
        own.push(journal::room_of(&self.slots));
        own.push(self.copier.memory());
        own.extend_from_slice(&self.threads.statics);
        // Whole pages leave.
        own.iter_mut().for_each(|range| {
            *range = range.start & !(PAGE - 1)..range.end.next_multiple_of(PAGE);
        });
        own
    }
}
