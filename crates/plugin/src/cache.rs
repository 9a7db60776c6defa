//! Tag arrays: private caches, last-level caches and the presence directory.
//!
//! No data is held, only which lines are where. A tag array is written by its owner and, to
//! invalidate or downgrade, by other vCPUs' threads, so every word is an atomic. Of a private cache a
//! race loses at most one update of one way, which costs or saves one modelled miss. What tells others
//! who has a line, a last-level cache's ways and the directory, must lose nothing: a copy that nobody
//! knows of would be written for nothing until it is replaced, so these change by compare-exchange.
//! Locks were rejected: they would cost more than all the rest.
//!
//! *Line* below is the number of a cache line counted from the start of guest memory, without
//! the PCI hole.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// `line % sets` without a division (Lemire, Kaser, Kurz: Faster remainder by direct computation,
/// 2019): exact for lines below 2^32, which are more than 100 GB.
#[derive(Clone, Copy)]
struct Sets {
    count: u64,
    /// 2^64 over `count`, rounded up; 0 stands for 2^64.
    reciprocal: u64,
}

impl Sets {
    fn new(size_bytes: u64, line_bytes: u64, ways: usize) -> Self {
        let count = (size_bytes / line_bytes / ways as u64).max(1);
        Self {
            count,
            reciprocal: (u64::MAX / count).wrapping_add(1),
        }
    }

    #[inline(always)]
    fn of(self, line: u64) -> usize {
        let fraction = line.wrapping_mul(self.reciprocal);
        ((u128::from(fraction) * u128::from(self.count)) >> 64) as usize
    }
}

/// Most ways of a cache.
const WAYS: usize = 32;
const EACH_BYTE: u64 = 0x0101_0101_0101_0101;

/// One set of a cache. Every set has room for the most ways, so that its place needs no
/// multiplication by what the machine file says and no access within it a check.
#[repr(C, align(64))]
struct Set {
    /// One byte of each line's hash per way, so that a set is searched with a few operations
    /// instead of a comparison per way. A byte may be stale: whoever finds one looks at the way
    /// itself. 0 where there was never a line.
    hints: [AtomicU64; WAYS / 8],
    /// What the replacement of lines remembers.
    history: AtomicU32,
    ways: [AtomicU64; WAYS],
}

/// Never 0.
fn hint(line: u64) -> u64 {
    (line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56).max(1)
}

/// A word of hints with the one at `shift` changed.
#[inline(always)]
fn with_hint(word: u64, shift: usize, line: u64) -> u64 {
    word & !(0xff << shift) | hint(line) << shift
}

impl Set {
    fn new() -> Self {
        Self {
            hints: std::array::from_fn(|_| AtomicU64::new(0)),
            history: AtomicU32::new(0),
            ways: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// The way that holds the line among the first `8 * words`, and what one load of it saw;
    /// `holds` says which does. In one order with all changes of last-level caches and directory.
    #[inline(always)]
    fn find(
        &self,
        words: usize,
        line: u64,
        holds: impl Fn(u64) -> bool,
    ) -> Option<(&AtomicU64, usize, u64)> {
        let wanted = hint(line) * EACH_BYTE;
        for (index, word) in self.hints.iter().enumerate().take(words) {
            // Bytes that are equal become zero; the lowest zero byte is found exactly, bytes above
            // one may be found falsely (Warren, Hacker's Delight, 6-1).
            let apart = word.load(SeqCst) ^ wanted;
            let mut found = apart.wrapping_sub(EACH_BYTE) & !apart & EACH_BYTE << 7;
            while found != 0 {
                let way = (index * 8 + found.trailing_zeros() as usize / 8) % WAYS;
                let seen = self.ways[way].load(SeqCst);
                if holds(seen) {
                    return Some((&self.ways[way], way, seen));
                }
                found &= found - 1;
            }
        }
        None
    }

    /// The word that has a way's hint, and its bits there.
    #[inline(always)]
    fn hint_of(&self, way: usize) -> (&AtomicU64, usize) {
        (&self.hints[way / 8], way % 8 * 8)
    }

    /// Puts a line into a way, by the one thread that does so.
    #[inline(always)]
    fn put(&self, way: usize, line: u64, value: u64) {
        let way = way % WAYS;
        self.ways[way].store(value, Relaxed);
        let (word, shift) = self.hint_of(way);
        word.store(with_hint(word.load(Relaxed), shift, line), Relaxed);
    }
}

/// The sets of one cache.
struct Table {
    place: Sets,
    ways: usize,
    /// Hint words that these ways take.
    words: usize,
    sets: Vec<Set>,
}

impl Table {
    /// Of a cache of this size; `ways` at most 32.
    fn new(size_bytes: u64, line_bytes: u64, ways: usize) -> Self {
        let ways = ways.clamp(1, WAYS);
        let place = Sets::new(size_bytes, line_bytes, ways);
        let sets = (0..place.count).map(|_| Set::new()).collect();
        Self {
            place,
            ways,
            words: ways.div_ceil(8),
            sets,
        }
    }

    #[inline(always)]
    fn set(&self, line: u64) -> &Set {
        &self.sets[self.place.of(line)]
    }
}

/// The private cache of one vCPU. A way holds `(line + 1) << 1 | writable`, 0 when empty; a set
/// remembers its next way to replace (first in, first out). Written by its vCPU; others clear ways
/// or the writable bit.
pub struct Private(Table);

impl Private {
    /// A cache of this size; `ways` at most 32.
    pub fn new(size_bytes: u64, line_bytes: u64, ways: usize) -> Self {
        Self(Table::new(size_bytes, line_bytes, ways))
    }

    #[inline(always)]
    fn way(&self, line: u64) -> Option<(&AtomicU64, u64)> {
        let wanted = (line + 1) << 1;
        let set = self.0.set(line);
        let (way, _, seen) = set.find(self.0.words, line, |seen| seen & !1 == wanted)?;
        Some((way, seen))
    }

    /// Is the line here, and may it be written without asking?
    #[inline(always)]
    pub fn find(&self, line: u64) -> Option<bool> {
        self.way(line).map(|(_, seen)| seen & 1 != 0)
    }

    /// Puts the line in, or changes its writable bit where it is there.
    pub fn insert(&self, line: u64, writable: bool) {
        match self.way(line) {
            Some((way, _)) => way.store((line + 1) << 1 | u64::from(writable), Relaxed),
            None => self.fill(line, writable),
        }
    }

    /// Puts in a line that is not there.
    #[inline(always)]
    pub fn fill(&self, line: u64, writable: bool) {
        let set = self.0.set(line);
        let hand = set.history.load(Relaxed) as usize;
        set.put(hand, line, (line + 1) << 1 | u64::from(writable));
        let next = if hand + 1 == self.0.ways { 0 } else { hand + 1 };
        set.history.store(next as u32, Relaxed);
    }

    /// Takes the line out.
    pub fn invalidate(&self, line: u64) {
        if let Some((way, _)) = self.way(line) {
            way.store(0, Relaxed);
        }
    }

    /// Leaves the line readable only.
    pub fn downgrade(&self, line: u64) {
        if let Some((way, _)) = self.way(line) {
            way.fetch_and(!1, Relaxed);
        }
    }
}

/// State of one line in a last-level cache.
///
/// Encoding: bit 0 dirty, bit 1 exclusive to the domain, bit 2 owned (one private cache may
/// write it), bits 4..20 private caches that may hold it, bits 20.. line + 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub u64);

const DIRTY: u64 = 1;
const EXCLUSIVE: u64 = 2;
const OWNED: u64 = 4;
const SHARERS_SHIFT: u32 = 4;
const LINE_SHIFT: u32 = 20;

impl Entry {
    /// A line just filled for the private cache `slot`.
    pub fn new(line: u64, slot: u32, exclusive: bool, store: bool) -> Self {
        let state = if store {
            DIRTY | OWNED | EXCLUSIVE
        } else {
            u64::from(exclusive) * EXCLUSIVE
        };
        Self((line + 1) << LINE_SHIFT | 1 << (slot + SHARERS_SHIFT) | state)
    }
    /// The line.
    pub fn line(self) -> u64 {
        (self.0 >> LINE_SHIFT) - 1
    }
    /// Must it be written back?
    pub fn dirty(self) -> bool {
        self.0 & DIRTY != 0
    }
    /// Has no other domain a copy?
    pub fn exclusive(self) -> bool {
        self.0 & EXCLUSIVE != 0
    }
    /// May one private cache write it?
    pub fn owned(self) -> bool {
        self.0 & OWNED != 0
    }
    /// Bit mask of private caches that may hold it.
    pub fn sharers(self) -> u64 {
        self.0 >> SHARERS_SHIFT & 0xffff
    }
    /// With one more sharer and no owner.
    #[must_use]
    pub fn shared_with(self, slot: u32) -> Self {
        Self((self.0 | 1 << (slot + SHARERS_SHIFT)) & !OWNED)
    }
    /// Known to others: neither exclusive nor owned.
    #[must_use]
    pub fn known_elsewhere(self) -> Self {
        Self(self.0 & !(EXCLUSIVE | OWNED))
    }
    /// Written by the private cache `slot` alone.
    #[must_use]
    pub fn written_by(self, slot: u32) -> Self {
        Self::new(self.line(), slot, true, true)
    }
}

/// A mask of all ways of a cache with so many.
pub fn all_ways(count: u32) -> u32 {
    u32::MAX >> (WAYS as u32 - count.clamp(1, WAYS as u32))
}

/// A last-level cache: inclusive of its private caches, not-recently-used replacement. A way holds
/// an [`Entry`]; a set remembers one recently-used bit per way.
///
/// Who fills may be kept to some ways (`allowed`, at least one, none beyond the cache's): a fill then
/// replaces what was not used recently of these, and once all of these were used, they alone are taken for
/// not used. With masks that have no way in common, nobody's use tells on another's.
pub struct Llc(Table);

impl Llc {
    /// A cache of this size; `ways` at most 32.
    pub fn new(size_bytes: u64, line_bytes: u64, ways: usize) -> Self {
        Self(Table::new(size_bytes, line_bytes, ways))
    }

    fn touch(set: &Set, way: usize, allowed: u32) {
        let bits = set.history.load(Relaxed);
        let with = bits | 1 << way;
        if with != bits {
            let is_full = with & allowed == allowed;
            let kept = if is_full {
                with & !allowed | 1 << way
            } else {
                with
            };
            set.history.store(kept, Relaxed);
        }
    }

    /// The line's set and way, the way's number, and its state as one load saw it: another vCPU may
    /// empty the way next.
    #[inline(always)]
    fn locate(&self, line: u64) -> Option<(&Set, &AtomicU64, usize, Entry)> {
        let set = self.0.set(line);
        let holds = |seen| seen >> LINE_SHIFT == line + 1;
        let (place, way, seen) = set.find(self.0.words, line, holds)?;
        Some((set, place, way, Entry(seen)))
    }

    /// The line's state, in whatever way, marked as used by one who may fill the `allowed` ways;
    /// [`Llc::replace`] changes it.
    #[inline(always)]
    pub fn find(&self, line: u64, allowed: u32) -> Option<Entry> {
        let (set, _, way, entry) = self.locate(line)?;
        Self::touch(set, way, allowed);
        Some(entry)
    }

    /// The line's state without marking it as used (a probe from elsewhere).
    pub fn probe(&self, line: u64) -> Option<Entry> {
        self.locate(line).map(|(_, _, _, entry)| entry)
    }

    /// Replaces the state of a line; returns false where it is not `before` any more.
    pub fn replace(&self, before: Entry, after: Entry) -> bool {
        self.locate(before.line()).is_some_and(|(_, place, _, _)| {
            let done = place.compare_exchange(before.0, after.0, SeqCst, Relaxed);
            done.is_ok()
        })
    }

    /// Takes a line out; returns its last state.
    pub fn take(&self, line: u64) -> Option<Entry> {
        loop {
            let (set, place, way, entry) = self.locate(line)?;
            if place.compare_exchange(entry.0, 0, SeqCst, Relaxed).is_ok() {
                // Empty ways are filled first.
                set.history.fetch_and(!(1 << way), Relaxed);
                return Some(entry);
            }
        }
    }

    /// Puts a line into one of the `allowed` ways and returns the one it replaces.
    #[inline(always)]
    pub fn insert(&self, entry: Entry, allowed: u32) -> Option<Entry> {
        let set = self.0.set(entry.line());
        loop {
            let mut unused = !set.history.load(Relaxed) & allowed;
            if unused == 0 {
                // Others used the last of them.
                set.history.fetch_and(!allowed, Relaxed);
                unused = allowed;
            }
            let way = unused.trailing_zeros() as usize % WAYS;
            let victim = set.ways[way].load(Relaxed);
            let (word, shift) = set.hint_of(way);
            let hints = |word| Some(with_hint(word, shift, entry.line()));
            if set.ways[way]
                .compare_exchange(victim, entry.0, SeqCst, Relaxed)
                .is_ok()
            {
                // Never fails: `hints` never says no.
                let _ = word.fetch_update(SeqCst, Relaxed, hints);
                Self::touch(set, way, allowed);
                return (victim != 0).then_some(Entry(victim));
            }
        }
    }
}

/// Which domains hold each line: one bit per domain, at most 16 domains. A bit may be stale
/// (set without the line being there) but never missing for longer than who removed it takes to see
/// that the line is there again (`Model::forget`).
pub struct Directory(Vec<AtomicU16>);

impl Directory {
    /// For this many lines. The pages are not touched before they are used.
    pub fn new(lines: usize) -> Self {
        let zeros: Vec<u16> = vec![0; lines];
        // Same layout; `vec![0; n]` maps zero pages lazily, which building atomics would not.
        let mut zeros = std::mem::ManuallyDrop::new(zeros);
        // SAFETY: AtomicU16 has the size and alignment of u16 and every bit pattern is valid;
        // the original vector is not used or dropped again.
        Self(unsafe {
            Vec::from_raw_parts(zeros.as_mut_ptr().cast(), zeros.len(), zeros.capacity())
        })
    }
    /// Domains that may hold the line.
    pub fn holders(&self, line: u64) -> u16 {
        self.0[line as usize].load(Relaxed)
    }
    /// Domains other than `domain` that may hold the line.
    pub fn others(&self, line: u64, domain: u32) -> u16 {
        self.holders(line) & !(1 << domain)
    }
    /// The domain has it now.
    pub fn add(&self, line: u64, domain: u32) {
        self.0[line as usize].fetch_or(1 << domain, SeqCst);
    }
    /// The domain has it no more.
    pub fn remove(&self, line: u64, domain: u32) {
        self.0[line as usize].fetch_and(!(1 << domain), SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_cache_keeps_the_last_ways_lines_of_a_set() {
        // 4 KiB, 64 B, 4 ways: 16 sets; lines 0, 16, 32, 48, 64 share set 0.
        let cache = Private::new(4096, 64, 4);
        for line in [0, 16, 32, 48] {
            cache.insert(line, false);
        }
        cache.insert(64, true);
        assert_eq!(cache.find(0), None, "first in, first out");
        assert_eq!(cache.find(64), Some(true));
        cache.downgrade(64);
        assert_eq!(cache.find(64), Some(false));
        cache.invalidate(16);
        assert_eq!(cache.find(16), None);
    }

    #[test]
    fn llc_replaces_what_was_not_used() {
        // 1 KiB, 64 B, 4 ways: 4 sets; lines 0, 4, 8, 12 fill set 0. Using 0, 8, 12 leaves 4.
        let llc = Llc::new(1024, 64, 4);
        let all = all_ways(4);
        for line in [0, 4, 8, 12] {
            assert_eq!(llc.insert(Entry::new(line, 0, true, false), all), None);
        }
        for line in [0, 8] {
            assert!(llc.find(line, all).is_some());
        }
        let victim = llc.insert(Entry::new(16, 0, true, false), all).unwrap();
        assert_eq!(victim.line(), 4);
    }

    /// An LLC of one set with 8 ways, and what a fill of a line under a mask replaces.
    fn one_set() -> (Llc, impl Fn(&Llc, u64, u32) -> Option<u64>) {
        let fill = |llc: &Llc, line, allowed| {
            let victim = llc.insert(Entry::new(line, 0, true, false), allowed);
            victim.map(Entry::line)
        };
        (Llc::new(8 * 64, 64, 8), fill)
    }

    #[test]
    fn masks_without_a_common_way_keep_others_lines() {
        let (llc, fill) = one_set();
        let (one, other) = (0b0000_0111, 0b1111_1000);
        for line in 0..3 {
            assert_eq!(fill(&llc, line, one), None);
        }
        for line in 100..10_000 {
            let victim = fill(&llc, line, other);
            assert!(victim.is_none_or(|victim| victim >= 100), "{victim:?}");
        }
        assert!((0..3).all(|line| llc.find(line, one).is_some()));
        let kept = (100..10_000).filter(|&line| llc.probe(line).is_some());
        assert_eq!(kept.count(), 5);
        // What was used last of the three stays, whatever the other one did meanwhile.
        for line in 3..50 {
            assert!(llc.find(line - 1, one).is_some());
            for by in 0..9 {
                fill(&llc, 20_000 + 9 * line + by, other);
            }
            let victim = fill(&llc, line, one);
            assert!(victim.is_some_and(|victim| victim < line - 1), "{victim:?}");
        }
    }

    #[test]
    fn a_line_is_found_in_a_way_that_its_finder_may_not_fill() {
        let (llc, fill) = one_set();
        let (one, other) = (0b0000_0011, 0b0000_1100);
        assert_eq!((fill(&llc, 1, one), fill(&llc, 2, one)), (None, None));
        for _ in 0..3 {
            assert_eq!(llc.find(1, other).map(Entry::line), Some(1));
            assert_eq!(llc.find(2, other).map(Entry::line), Some(2));
        }
        // Used by the other one, all of the ways count as used: the next fill is one of these still.
        assert!(fill(&llc, 3, one).is_some_and(|victim| victim < 3));
        assert_eq!((fill(&llc, 4, other), fill(&llc, 5, other)), (None, None));
        // One way alone is replaced each time.
        assert_eq!(fill(&llc, 6, 0b0001_0000), None);
        assert_eq!(fill(&llc, 7, 0b0001_0000), Some(6));
        assert_eq!(fill(&llc, 8, 0b0001_0000), Some(7));
    }

    #[test]
    fn all_ways_are_replaced_as_if_there_were_no_masks() {
        // The rule as it was before there were masks, on one set of 5 ways.
        let (mut ways, mut used) = ([None; 5], 0u32);
        let touch = |used: &mut u32, way: usize| {
            let with = *used | 1 << way;
            *used = if with == 0b1_1111 { 1 << way } else { with };
        };
        let llc = Llc::new(5 * 64, 64, 5);
        let mut random = 1u64;
        for _ in 0..100_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let line = random >> 33 & 7;
            let found = llc.find(line, all_ways(5)).is_some();
            match ways.iter().position(|&held| held == Some(line)) {
                Some(way) => {
                    assert!(found);
                    touch(&mut used, way);
                }
                None => {
                    assert!(!found);
                    let way = ((!used).trailing_zeros() as usize).min(4);
                    let victim = llc.insert(Entry::new(line, 0, true, false), all_ways(5));
                    assert_eq!(victim.map(Entry::line), ways[way].replace(line));
                    touch(&mut used, way);
                }
            }
        }
    }

    #[test]
    fn ways_need_not_be_a_multiple_of_eight() {
        // 12 ways: the hints' last four bytes of each set stand for no way.
        let llc = Llc::new(12 * 64 * 5, 64, 12);
        let private = Private::new(12 * 64 * 5, 64, 12);
        let all = all_ways(12);
        for line in 0..10_000 {
            assert!(llc.find(line, all).is_none() && private.find(line).is_none());
            llc.insert(Entry::new(line, 0, true, false), all);
            private.fill(line, false);
        }
        let lines = || 0..10_000;
        let held = lines().filter(|&line| llc.find(line, all).is_some());
        assert_eq!(held.count(), 60);
        let held = lines().filter(|&line| private.find(line).is_some());
        assert_eq!(held.count(), 60);
    }

    #[test]
    fn remainders_are_exact() {
        for count in [1, 2, 3, 64, 511, 1536, 8191, 65_536, 99_999] {
            let sets = Sets::new(count * 64 * 4, 64, 4);
            let lines = (0..2 * count).chain((1 << 32) - 2 * count..1 << 32);
            for line in lines {
                assert_eq!(sets.of(line) as u64, line % count, "{line} % {count}");
            }
        }
    }

    #[test]
    fn sets_need_not_be_a_power_of_two() {
        // 3 KiB, 64 B, 16 ways: 3 sets; 48 consecutive lines fit exactly.
        let llc = Llc::new(3072, 64, 16);
        for line in 0..48 {
            let victim = llc.insert(Entry::new(line, 0, true, false), all_ways(16));
            assert_eq!(victim, None);
        }
        assert!((0..48).all(|line| llc.find(line, all_ways(16)).is_some()));
    }

    #[test]
    fn entry_states() {
        let read = Entry::new(7, 3, true, false);
        assert!(read.exclusive() && !read.dirty() && !read.owned());
        assert_eq!((read.line(), read.sharers()), (7, 0b1000));
        let written = read.written_by(1);
        assert!(written.dirty() && written.owned());
        assert_eq!(written.sharers(), 0b10);
        let shared = written.shared_with(2);
        assert!(shared.dirty() && !shared.owned());
        assert_eq!(shared.sharers(), 0b110);
        assert!(!shared.known_elsewhere().exclusive());
    }

    #[test]
    fn directory_names_other_domains() {
        let directory = Directory::new(10);
        directory.add(3, 0);
        directory.add(3, 5);
        assert_eq!(directory.others(3, 0), 1 << 5);
        directory.remove(3, 5);
        assert_eq!(directory.others(3, 0), 0);
    }
}
