//! What hither did to each page: where it came from, where it is, when it may move again.
//!
//! Only pages that hither asked to move have an entry. The origin is the node on which the page
//! was before hither's first move; it is never overwritten, so that every page can be put back.

use crate::ids::{NodeId, Pid, SpaceId};
use std::collections::BTreeMap;

/// Doublings of the cool-down after which it no longer grows.
const MAX_DOUBLINGS: u32 = 6;

/// One page that hither asked to move.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerEntry {
    /// Node before hither's first move.
    pub origin: NodeId,
    /// Node where hither last put it, or where it was when first asked for.
    pub home: NodeId,
    /// When hither last moved it, in us.
    pub moved_at_us: u64,
    /// Completed moves.
    pub move_count: u32,
    /// May not be asked for before this time, in us.
    pub cooling_until_us: u64,
    /// A request for it is under way.
    pub is_pending: bool,
    /// It is a huge page, and moves whole.
    pub is_huge: bool,
    /// It could not be put back, often enough.
    pub is_given_up: bool,
}

/// The pages that hither asked to move.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pages: BTreeMap<(Pid, u64), LedgerEntry>,
    /// Processes in `pages`, with the life of their memory.
    spaces: BTreeMap<Pid, SpaceId>,
    /// When any page last moved, in us.
    last_moved_us: u64,
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The entry of a page.
    #[must_use]
    pub fn get(&self, pid: Pid, page: u64) -> Option<&LedgerEntry> {
        self.pages.get(&(pid, page))
    }

    /// Where hither last put the page; `None` where it never moved it.
    #[must_use]
    pub fn home(&self, pid: Pid, page: u64) -> Option<NodeId> {
        self.get(pid, page)
            .filter(|entry| entry.move_count > 0)
            .map(|entry| entry.home)
    }

    /// Where the page is, given where a tracker saw it in an interval that began at `since_us`.
    /// A move during the interval outweighs what was sampled before it.
    #[must_use]
    pub fn home_given(&self, pid: Pid, page: u64, seen: NodeId, since_us: u64) -> NodeId {
        if self.last_moved_us <= since_us {
            return seen;
        }
        match self.get(pid, page) {
            Some(entry) if entry.move_count > 0 && entry.moved_at_us > since_us => entry.home,
            _ => seen,
        }
    }

    /// Neither under way nor cooling down.
    #[must_use]
    pub fn may_move(&self, pid: Pid, page: u64, now_us: u64) -> bool {
        self.get(pid, page)
            .is_none_or(|entry| !entry.is_pending && entry.cooling_until_us <= now_us)
    }

    /// Entries in order of process and page.
    pub fn iter(&self) -> impl Iterator<Item = (Pid, u64, &LedgerEntry)> {
        self.pages
            .iter()
            .map(|(&(pid, page), entry)| (pid, page, entry))
    }

    /// The life of a process's memory of which there are entries.
    pub(super) fn space(&self, pid: Pid) -> SpaceId {
        self.spaces.get(&pid).copied().unwrap_or(SpaceId(0))
    }

    /// Pages that are not on their origin.
    #[must_use]
    pub fn displaced_count(&self) -> usize {
        self.pages
            .values()
            .filter(|entry| entry.home != entry.origin)
            .count()
    }

    /// A move is asked for; `from` is where the page is now.
    pub(super) fn ask(&mut self, pid: Pid, space: SpaceId, page: u64, is_huge: bool, from: NodeId) {
        let entry = self.pages.entry((pid, page)).or_insert(LedgerEntry {
            origin: from,
            home: from,
            moved_at_us: 0,
            move_count: 0,
            cooling_until_us: 0,
            is_pending: false,
            is_huge,
            is_given_up: false,
        });
        entry.is_pending = true;
        self.spaces.insert(pid, space);
    }

    /// It moved. The cool-down doubles with every move beyond the first.
    pub(super) fn moved(&mut self, pid: Pid, page: u64, to: NodeId, now_us: u64, cooldown_us: u64) {
        self.last_moved_us = self.last_moved_us.max(now_us);
        if let Some(entry) = self.pages.get_mut(&(pid, page)) {
            let doublings = entry.move_count.min(MAX_DOUBLINGS);
            entry.home = to;
            entry.moved_at_us = now_us;
            entry.move_count += 1;
            entry.is_pending = false;
            entry.cooling_until_us = now_us.saturating_add(cooldown_us << doublings);
        }
    }

    /// It was on the target already: somebody else had moved it. Where hither never did, that is
    /// where it comes from.
    pub(super) fn was_there(&mut self, pid: Pid, page: u64, at: NodeId, until_us: u64) {
        self.stayed(pid, page, until_us);
        if let Some(entry) = self.pages.get_mut(&(pid, page)) {
            entry.home = at;
            if entry.move_count == 0 {
                entry.origin = at;
            }
        }
    }

    /// It did not move, and shall not be asked for before `until_us`.
    pub(super) fn stayed(&mut self, pid: Pid, page: u64, until_us: u64) {
        if let Some(entry) = self.pages.get_mut(&(pid, page)) {
            entry.is_pending = false;
            entry.cooling_until_us = entry.cooling_until_us.max(until_us);
        }
    }

    /// It is not put back any more.
    pub(super) fn give_up(&mut self, pid: Pid, page: u64) {
        if let Some(entry) = self.pages.get_mut(&(pid, page)) {
            entry.is_given_up = true;
        }
    }

    /// Forgets the lives for which `is_alive` is false.
    pub(super) fn retain(&mut self, is_alive: impl Fn(Pid, SpaceId) -> bool) {
        let before = self.spaces.len();
        self.spaces.retain(|&pid, space| is_alive(pid, *space));
        if self.spaces.len() < before {
            let spaces = &self.spaces;
            self.pages.retain(|(pid, _), _| spaces.contains_key(pid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: (Pid, u64) = (Pid(7), 0x7f000);

    #[test]
    fn the_origin_survives_many_moves_and_the_cool_down_doubles() {
        let mut ledger = Ledger::new();
        let (pid, page) = PAGE;
        assert!(ledger.may_move(pid, page, 0));
        ledger.ask(pid, SpaceId(1), page, false, NodeId(3));
        assert!(!ledger.may_move(pid, page, u64::MAX));
        assert_eq!(ledger.home(pid, page), None);
        ledger.moved(pid, page, NodeId(1), 100, 1000);
        assert!(!ledger.may_move(pid, page, 1099));
        assert!(ledger.may_move(pid, page, 1100));
        ledger.ask(pid, SpaceId(1), page, false, NodeId(1));
        ledger.moved(pid, page, NodeId(2), 2000, 1000);
        assert!(!ledger.may_move(pid, page, 3999));
        assert!(ledger.may_move(pid, page, 4000));
        assert_eq!(ledger.get(pid, page).unwrap().origin, NodeId(3));
        assert_eq!(ledger.home(pid, page), Some(NodeId(2)));
        assert_eq!(ledger.displaced_count(), 1);
    }

    #[test]
    fn a_refused_page_waits_and_stays_where_it_was() {
        let mut ledger = Ledger::new();
        let (pid, page) = PAGE;
        ledger.ask(pid, SpaceId(1), page, false, NodeId(0));
        ledger.stayed(pid, page, 500);
        assert!(!ledger.may_move(pid, page, 499));
        assert!(ledger.may_move(pid, page, 500));
        assert_eq!(ledger.home(pid, page), None);
        ledger.retain(|pid, space| pid == PAGE.0 && space != SpaceId(1));
        assert_eq!(ledger.iter().count(), 0);
    }
}
