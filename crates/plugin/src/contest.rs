//! Lines that several vCPUs use in turn.
//!
//! On the host, vCPUs run in turns of microseconds of guest time, so that a line which two of them
//! hammer would change hands once a turn instead of at every access. Each line that has changed
//! hands is therefore watched for a while: every vCPU's latest *burst* of accesses is kept (begin,
//! end, number), and an access pays the transfer when a rival's burst lies between this vCPU's
//! previous access and now, in guest time. A rival that has been hammering is taken to go on for
//! as long as it may lag behind. Watched lines stay out of the filter.
//!
//! Rejected: paying at every access to a line that a rival touched lately. It charges a lock's
//! holder for each of its accesses, and made an eventfd round trip cost twice what it should.

use hither_core::opium::MAX_VCPUS;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const SLOTS: usize = 1024;
/// A line is watched until for this long nobody but one vCPU has touched it: twice the default
/// skew, so that two vCPUs that hammer it are never further apart.
const WATCH_PS: u64 = 20_000_000;
/// Accesses further apart than this are different bursts.
const GAP_PS: u64 = 1_000_000;
/// From this many accesses on a burst counts as hammering.
const HAMMERING: u64 = 32;
/// How far a rival may lag behind (the default skew).
const LAG_PS: u64 = 10_000_000;

/// A run of accesses by one vCPU. Written by that vCPU's thread.
#[derive(Default)]
struct Burst {
    begin: AtomicU64,
    end: AtomicU64,
    count: AtomicU64,
}

impl Burst {
    fn extend(&self, now: u64) {
        let apart = now.saturating_sub(self.end.load(Relaxed)) > GAP_PS;
        if apart || self.count.load(Relaxed) == 0 {
            self.begin.store(now, Relaxed);
            self.count.store(1, Relaxed);
        } else {
            self.count.store(self.count.load(Relaxed) + 1, Relaxed);
        }
        self.end.store(now, Relaxed);
    }

    fn clear(&self) {
        self.count.store(0, Relaxed);
    }

    /// Was or is it under way in `after..=until`?
    fn meets(&self, after: Option<u64>, until: u64) -> bool {
        let count = self.count.load(Relaxed);
        let lag = if count >= HAMMERING { LAG_PS } else { 0 };
        count > 0
            && self.begin.load(Relaxed) <= until
            && after.is_none_or(|after| self.end.load(Relaxed) + lag > after)
    }

    fn near(&self, now: u64) -> bool {
        self.count.load(Relaxed) > 0 && self.end.load(Relaxed).abs_diff(now) < WATCH_PS
    }
}

struct Slot {
    /// When it was first seen to change hands.
    since: AtomicU64,
    accesses: [Burst; MAX_VCPUS],
    stores: [Burst; MAX_VCPUS],
}

/// What an access met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// The line is not watched.
    Free,
    /// It is, but nobody else used it since this vCPU's last access.
    Quiet,
    /// This vCPU did: the line has to come back from it.
    Against(usize),
}

/// The watched lines.
pub struct Contests {
    /// line + 1 of each slot, 0 when free. By themselves, as every miss looks there.
    lines: Box<[AtomicU64; SLOTS]>,
    slots: Vec<Slot>,
    vcpus: usize,
}

impl Contests {
    /// None yet, for so many vCPUs.
    pub fn new(vcpus: usize) -> Self {
        let slot = || Slot {
            since: AtomicU64::new(0),
            accesses: std::array::from_fn(|_| Burst::default()),
            stores: std::array::from_fn(|_| Burst::default()),
        };
        Self {
            lines: Box::new(std::array::from_fn(|_| AtomicU64::new(0))),
            slots: (0..SLOTS).map(|_| slot()).collect(),
            vcpus,
        }
    }

    /// The line that its slot watches, and the slot.
    fn slot(&self, line: u64) -> (&AtomicU64, &Slot) {
        let at = line as usize % SLOTS;
        (&self.lines[at], &self.slots[at])
    }

    /// A line just changed hands: watch it.
    pub fn mark(&self, vcpu: usize, line: u64, store: bool, now: u64) {
        let (watched, slot) = self.slot(line);
        if watched.load(Relaxed) == line + 1 {
            return; // its access was entered by `access`
        }
        for other in 0..self.vcpus {
            slot.accesses[other].clear();
            slot.stores[other].clear();
        }
        slot.since.store(now, Relaxed);
        watched.store(line + 1, Relaxed);
        slot.accesses[vcpu].extend(now);
        if store {
            slot.stores[vcpu].extend(now);
        }
    }

    /// An access that the filter did not answer.
    #[inline(always)]
    pub fn access(&self, vcpu: usize, line: u64, store: bool, now: u64) -> Visit {
        if self.lines[line as usize % SLOTS].load(Relaxed) != line + 1 {
            return Visit::Free;
        }
        self.watched(vcpu, line, store, now)
    }

    #[inline(never)]
    fn watched(&self, vcpu: usize, line: u64, store: bool, now: u64) -> Visit {
        let (watched, slot) = self.slot(line);
        let own = &slot.accesses[vcpu];
        let last = (own.count.load(Relaxed) > 0).then(|| own.end.load(Relaxed));
        own.extend(now);
        if store {
            slot.stores[vcpu].extend(now);
        }
        // A load cares for stores only.
        let bursts = if store { &slot.accesses } else { &slot.stores };
        let mut others = (0..self.vcpus).filter(|&other| other != vcpu);
        if let Some(rival) = others.clone().find(|&other| bursts[other].meets(last, now)) {
            return Visit::Against(rival);
        }
        let fresh = slot.since.load(Relaxed).abs_diff(now) < WATCH_PS;
        if fresh || others.any(|other| slot.accesses[other].near(now)) {
            return Visit::Quiet;
        }
        watched.store(0, Relaxed);
        Visit::Free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 77;
    const US: u64 = 1_000_000;

    #[test]
    fn hammering_pays_at_every_access_although_turns_are_long() {
        // Two vCPUs store every 50 ns; the host runs them in turns of 8 us.
        let contests = Contests::new(2);
        contests.mark(0, LINE, true, 0);
        let mut paid = [0; 2];
        for turn in 0..20u64 {
            for (vcpu, paid) in paid.iter_mut().enumerate() {
                for step in 0..160 {
                    let now = turn * 8 * US + step * 50_000;
                    let visit = contests.access(vcpu, LINE, true, now);
                    *paid += u32::from(visit == Visit::Against(1 - vcpu));
                }
            }
        }
        // 3200 accesses each; the first turn of the first vCPU met nobody yet.
        assert!(paid.iter().all(|&paid| paid > 3200 - 170), "{paid:?}");
    }

    #[test]
    fn taking_turns_pays_once_a_turn() {
        // Ten accesses within 1 us, then the other's turn 5 us later.
        let contests = Contests::new(2);
        contests.mark(0, LINE, true, 0);
        let mut paid = 0;
        for turn in 0..100u64 {
            for step in 0..10 {
                let visit = contests.access(
                    (turn % 2) as usize,
                    LINE,
                    true,
                    turn * 5 * US + step * 100_000,
                );
                paid += u32::from(matches!(visit, Visit::Against(_)));
            }
        }
        assert!((98..=100).contains(&paid), "{paid}");
    }

    #[test]
    fn readers_of_a_line_that_nobody_writes_are_free() {
        let contests = Contests::new(2);
        contests.mark(0, LINE, false, 0);
        assert_eq!(contests.access(1, LINE, false, US), Visit::Quiet);
        assert_eq!(contests.access(0, LINE, false, 2 * US), Visit::Quiet);
    }

    #[test]
    fn a_line_left_alone_is_forgotten() {
        let contests = Contests::new(2);
        contests.mark(0, LINE, true, 0);
        assert_eq!(contests.access(1, LINE, true, US), Visit::Against(0));
        assert_eq!(contests.access(1, LINE, true, 40 * US), Visit::Free);
        assert_eq!(contests.access(1, LINE, true, 41 * US), Visit::Free);
    }
}
