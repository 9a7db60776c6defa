//! What hither did to each page: where it came from, where it is, when it may move again.
//!
//! Only pages that hither asked to move are in it. The origin is the node on which the page was
//! before hither's first move; it is never overwritten, so that every page can be put back.
//!
//! Problem: programs have millions of pages. Mechanism: neighbouring pages of which the same is
//! known are one *run*. Runs are bounded: whoever wants to move more than can be remembered is
//! refused ([`Ledger::room`]), as what is forgotten cannot be put back.
//!
//! Properties: runs do not overlap, and neighbours differ; a run of huge pages holds whole ones.

use crate::ids::{NodeId, Pid, SpaceId};
use crate::snapshot::{HUGE_PAGES, base_pages};
use std::collections::BTreeMap;
use std::ops::Range;

/// Doublings of the cool-down after which it no longer grows.
const MAX_DOUBLINGS: u32 = 6;
/// A unit that is asked for, moved or refused alone may split the run that it is in: two more runs.
pub(super) const RUNS_PER_UNIT: usize = 2;

/// What is known of a page that hither asked to move.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// It is part of a huge page, which moves whole.
    pub is_huge: bool,
    /// It could not be put back, often enough.
    pub is_given_up: bool,
}

impl LedgerEntry {
    fn new(at: NodeId) -> Self {
        Self {
            origin: at,
            home: at,
            moved_at_us: 0,
            move_count: 0,
            cooling_until_us: 0,
            is_pending: false,
            is_huge: false,
            is_given_up: false,
        }
    }

    /// Is it not where hither found it?
    #[must_use]
    pub fn is_displaced(&self) -> bool {
        self.home != self.origin
    }
}

/// Pages that move together: a base page, or a huge page by its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub pid: Pid,
    pub page: u64,
    pub huge: bool,
}

impl Unit {
    fn pages(self) -> Range<u64> {
        let count = base_pages(self.huge);
        self.page..self.page.saturating_add(count)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    /// Its last page and one.
    end: u64,
    entry: LedgerEntry,
}

/// The pages that hither asked to move.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// By process and first page.
    runs: BTreeMap<(Pid, u64), Run>,
    /// Processes in `runs`, with the life of their memory.
    spaces: BTreeMap<Pid, SpaceId>,
    /// When any page last moved, in us.
    last_moved_us: u64,
    /// Runs after the last look for what could be forgotten.
    compacted: usize,
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
        let (&(owner, _), run) = self.runs.range(..=(pid, page)).next_back()?;
        (owner == pid && page < run.end).then_some(&run.entry)
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

    /// The same of all pages of a unit.
    pub(super) fn may_move_unit(&self, unit: Unit, now_us: u64) -> bool {
        let Range { start, end } = unit.pages();
        let mut inside = self.runs.range((unit.pid, start)..(unit.pid, end));
        self.may_move(unit.pid, start, now_us)
            && (!unit.huge
                || inside
                    .all(|(_, run)| !run.entry.is_pending && run.entry.cooling_until_us <= now_us))
    }

    /// Runs of pages of which the same is known, in order of process and page.
    pub fn iter(&self) -> impl Iterator<Item = (Pid, Range<u64>, &LedgerEntry)> {
        self.runs
            .iter()
            .map(|(&(pid, start), run)| (pid, start..run.end, &run.entry))
    }

    /// The life of a process's memory of which there are entries.
    #[must_use]
    pub fn space(&self, pid: Pid) -> Option<SpaceId> {
        self.spaces.get(&pid).copied()
    }

    /// Base pages that are not on their origin.
    #[must_use]
    pub fn displaced_count(&self) -> u64 {
        self.iter()
            .filter(|(_, _, entry)| entry.is_displaced())
            .map(|(_, pages, _)| pages.end - pages.start)
            .sum()
    }

    /// Runs that are remembered.
    #[must_use]
    pub fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// Runs that asking for a unit may add, whatever becomes of it.
    pub(super) fn cost(&self, unit: Unit) -> usize {
        let Range { start, end } = unit.pages();
        let gaps = match unit.huge {
            true => self.runs.range((unit.pid, start)..(unit.pid, end)).count(),
            false => 0,
        };
        RUNS_PER_UNIT + gaps
    }

    /// A move is asked for; `from` is where the page is now.
    pub(super) fn ask(&mut self, unit: Unit, space: SpaceId, from: NodeId) {
        self.spaces.insert(unit.pid, space);
        let pages = unit.pages();
        if !unit.huge && self.get(unit.pid, unit.page).is_none() {
            // Most pages are asked for once, and alone.
            let mut entry = LedgerEntry::new(from);
            entry.is_pending = true;
            let end = pages.end;
            self.runs
                .insert((unit.pid, pages.start), Run { end, entry });
            self.join(unit.pid, &pages);
            return;
        }
        self.cut(unit.pid, &pages);
        let inside: Vec<(u64, u64)> = self
            .runs
            .range((unit.pid, pages.start)..(unit.pid, pages.end))
            .map(|(&(_, start), run)| (start, run.end))
            .collect();
        let is_whole = matches!(inside[..], [] | [_]);
        let mut at = pages.start;
        for (start, end) in inside.iter().copied().chain([(pages.end, pages.end)]) {
            if at < start {
                let run = Run {
                    end: start,
                    entry: LedgerEntry::new(from),
                };
                self.runs.insert((unit.pid, at), run);
            }
            at = end;
        }
        // Parts of it may have come from several nodes, and then go back one by one.
        let is_huge = unit.huge
            && is_whole
            && inside
                .first()
                .is_none_or(|&(start, end)| (start..end) == pages);
        self.change(unit, |entry| {
            entry.is_pending = true;
            entry.is_huge = is_huge;
            // It was refused before, and may since have been moved by others. One that is displaced was
            // moved for hither's sake: by the kernel, or by an earlier process of hither.
            if entry.move_count == 0 && !entry.is_displaced() {
                (entry.origin, entry.home) = (from, from);
            }
        });
    }

    /// It moved. The cool-down doubles with every move beyond the first.
    pub(super) fn moved(&mut self, unit: Unit, to: NodeId, now_us: u64, cooldown_us: u64) {
        self.last_moved_us = self.last_moved_us.max(now_us);
        self.change(unit, |entry| {
            let doublings = entry.move_count.min(MAX_DOUBLINGS);
            entry.home = to;
            entry.moved_at_us = now_us;
            entry.move_count += 1;
            entry.is_pending = false;
            entry.cooling_until_us = now_us.saturating_add(cooldown_us << doublings);
        });
    }

    /// It was on the target already: somebody else had moved it. Where hither never did, that is
    /// where it comes from.
    pub(super) fn was_there(&mut self, unit: Unit, at: NodeId, until_us: u64) {
        self.change(unit, |entry| {
            entry.is_pending = false;
            entry.cooling_until_us = entry.cooling_until_us.max(until_us);
            let is_unmoved = entry.move_count == 0 && !entry.is_displaced();
            entry.home = at;
            if is_unmoved {
                entry.origin = at;
            }
        });
    }

    /// Somebody else has moved it while hither watched, from where it `was`. Where hither asked for that
    /// watching it is as good as its own move: it can be put back.
    pub(super) fn found(&mut self, unit: Unit, space: SpaceId, was: NodeId, at: NodeId) {
        let is_new = self.get(unit.pid, unit.page).is_none();
        if is_new {
            self.ask(unit, space, was);
        }
        self.change(unit, |entry| {
            entry.is_pending &= !is_new;
            entry.home = at;
        });
    }

    /// An earlier process of hither moved it from `origin` to `home`, or was about to. So nobody knows
    /// whether a page is back that was to go back; whatever is told of it, it counts as displaced. Told
    /// again, it is known to come from what is told last.
    pub(super) fn adopt(&mut self, unit: Unit, space: SpaceId, origin: NodeId, home: NodeId) {
        let is_new = self.get(unit.pid, unit.page).is_none();
        if is_new && home == origin {
            return;
        }
        if is_new {
            self.ask(unit, space, origin);
        }
        self.change(unit, |entry| {
            if is_new {
                entry.is_pending = false;
                entry.home = home;
            } else if entry.home == origin {
                entry.home = entry.origin;
            }
            entry.origin = origin;
        });
    }

    /// It did not move, and shall not be asked for before `until_us`.
    pub(super) fn stayed(&mut self, unit: Unit, until_us: u64) {
        self.change(unit, |entry| {
            entry.is_pending = false;
            entry.cooling_until_us = entry.cooling_until_us.max(until_us);
        });
    }

    /// It is not put back any more.
    pub(super) fn give_up(&mut self, unit: Unit) {
        self.change(unit, |entry| entry.is_given_up = true);
    }

    /// Forgets the lives for which `is_alive` is false.
    pub(super) fn retain(&mut self, is_alive: impl Fn(Pid, SpaceId) -> bool) {
        let before = self.spaces.len();
        self.spaces.retain(|&pid, space| is_alive(pid, *space));
        if self.spaces.len() < before {
            let spaces = &self.spaces;
            self.runs.retain(|(pid, _), _| spaces.contains_key(pid));
            self.compacted = self.compacted.min(self.runs.len());
        }
    }

    /// Forgets what is of no use any more: times that are over, and pages that are back where they
    /// came from. Looks only where the runs have doubled since it looked last.
    pub(super) fn compact(&mut self, now_us: u64, at_least: usize) {
        if self.runs.len() < at_least.max(2 * self.compacted) {
            return;
        }
        let runs = std::mem::take(&mut self.runs);
        let mut last: Option<((Pid, u64), Run)> = None;
        for ((pid, start), mut run) in runs {
            let entry = &mut run.entry;
            if !entry.is_pending && entry.cooling_until_us <= now_us {
                if !entry.is_displaced() {
                    continue;
                }
                (entry.moved_at_us, entry.cooling_until_us) = (0, 0);
            }
            match &mut last {
                Some(((owner, _), before))
                    if *owner == pid && before.end == start && before.entry == run.entry =>
                {
                    before.end = run.end;
                }
                _ => self.runs.extend(last.replace(((pid, start), run))),
            }
        }
        self.runs.extend(last);
        self.compacted = self.runs.len();
    }

    /// Changes what is known of a unit's pages.
    fn change(&mut self, unit: Unit, change: impl Fn(&mut LedgerEntry)) {
        let pages = unit.pages();
        let start = (unit.pid, pages.start);
        match self.runs.get_mut(&start) {
            Some(run) if run.end == pages.end => {
                change(&mut run.entry);
                self.join(unit.pid, &pages);
                return;
            }
            _ => self.cut(unit.pid, &pages),
        }
        let inside = self
            .runs
            .range_mut((unit.pid, pages.start)..(unit.pid, pages.end));
        inside.for_each(|(_, run)| change(&mut run.entry));
        self.join(unit.pid, &pages);
    }

    /// Splits the runs that reach across the ends of a range.
    fn cut(&mut self, pid: Pid, pages: &Range<u64>) {
        for at in [pages.start, pages.end] {
            if self.cut_at(pid, at) {
                // The rest of what was a huge page may now be like its neighbours.
                let start = at / HUGE_PAGES * HUGE_PAGES;
                self.join(pid, &(start..start + HUGE_PAGES));
                self.cut_at(pid, pages.start);
                self.cut_at(pid, pages.end);
            }
        }
    }

    /// Returns whether a huge page was cut.
    fn cut_at(&mut self, pid: Pid, at: u64) -> bool {
        let Some((&(owner, start), &run)) = self.runs.range(..(pid, at)).next_back() else {
            return false;
        };
        if owner != pid || run.end <= at {
            return false;
        }
        let mut put = |pages: Range<u64>, is_huge: bool| {
            if !pages.is_empty() {
                let entry = LedgerEntry {
                    is_huge,
                    ..run.entry
                };
                let end = pages.end;
                self.runs.insert((pid, pages.start), Run { end, entry });
            }
        };
        // A huge page that is cut is none any more: the kernel has split it.
        let (head, tail) = match run.entry.is_huge {
            true => {
                let head = start + (at - start) / HUGE_PAGES * HUGE_PAGES;
                (head, if head == at { at } else { head + HUGE_PAGES })
            }
            false => (at, at),
        };
        put(start..head, run.entry.is_huge);
        put(head..at, false);
        put(at..tail, false);
        put(tail..run.end, run.entry.is_huge);
        head < at
    }

    /// Joins neighbours of which the same is known, in a range and at its ends.
    fn join(&mut self, pid: Pid, pages: &Range<u64>) {
        let first = self.runs.range(..(pid, pages.start)).next_back();
        let mut at = match first {
            Some((&(owner, start), run)) if owner == pid && run.end == pages.start => start,
            _ => pages.start,
        };
        while at < pages.end {
            let mut rest = self.runs.range((pid, at)..(pid, pages.end));
            let Some((&(_, start), &run)) = rest.next() else {
                return;
            };
            at = start;
            match self.runs.get(&(pid, run.end)).copied() {
                Some(next) if next.entry == run.entry => {
                    self.runs.remove(&(pid, run.end));
                    self.runs.insert(
                        (pid, at),
                        Run {
                            end: next.end,
                            ..run
                        },
                    );
                }
                _ => at = run.end,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PID: Pid = Pid(7);

    fn unit(page: u64) -> Unit {
        Unit {
            pid: PID,
            page,
            huge: false,
        }
    }

    fn huge(page: u64) -> Unit {
        Unit {
            huge: true,
            ..unit(page)
        }
    }

    #[test]
    fn the_origin_survives_many_moves_and_the_cool_down_doubles() {
        let mut ledger = Ledger::new();
        let page = unit(0x7f000);
        assert!(ledger.may_move(PID, page.page, 0));
        ledger.ask(page, SpaceId(1), NodeId(3));
        assert!(!ledger.may_move(PID, page.page, u64::MAX));
        assert_eq!(ledger.home(PID, page.page), None);
        ledger.moved(page, NodeId(1), 100, 1000);
        assert!(!ledger.may_move(PID, page.page, 1099));
        assert!(ledger.may_move(PID, page.page, 1100));
        ledger.ask(page, SpaceId(1), NodeId(1));
        ledger.moved(page, NodeId(2), 2000, 1000);
        assert!(!ledger.may_move(PID, page.page, 3999));
        assert!(ledger.may_move(PID, page.page, 4000));
        assert_eq!(ledger.get(PID, page.page).unwrap().origin, NodeId(3));
        assert_eq!(ledger.home(PID, page.page), Some(NodeId(2)));
        assert_eq!(ledger.displaced_count(), 1);
    }

    #[test]
    fn a_refused_page_waits_and_stays_where_it_was() {
        let mut ledger = Ledger::new();
        let page = unit(9);
        ledger.ask(page, SpaceId(1), NodeId(0));
        ledger.stayed(page, 500);
        assert!(!ledger.may_move(PID, 9, 499));
        assert!(ledger.may_move(PID, 9, 500));
        assert_eq!(ledger.home(PID, 9), None);
        ledger.retain(|pid, space| pid == PID && space != SpaceId(1));
        assert_eq!(ledger.run_count(), 0);
    }

    #[test]
    fn a_million_pages_that_moved_alike_are_one_run() {
        let mut ledger = Ledger::new();
        for page in 0..2000 {
            ledger.ask(huge(page * 512), SpaceId(1), NodeId(0));
        }
        for page in (0..2000).rev() {
            ledger.moved(huge(page * 512), NodeId(1), 5, 5);
        }
        assert_eq!(ledger.run_count(), 1);
        assert_eq!(ledger.displaced_count(), 2000 * 512);
        // The kernel splits one, and one of its pages moves on alone.
        ledger.ask(unit(512 * 7 + 3), SpaceId(1), NodeId(1));
        let is_huge = |page| ledger.get(PID, page).unwrap().is_huge;
        assert!(is_huge(512 * 6) && is_huge(512 * 8) && !is_huge(512 * 7) && !is_huge(512 * 8 - 1));
        assert!(!ledger.may_move_unit(huge(512 * 7), 100) && ledger.may_move_unit(huge(512), 100));
    }

    #[test]
    fn what_is_over_is_forgotten_and_what_is_displaced_is_not() {
        let mut ledger = Ledger::new();
        for page in 0..100 {
            ledger.ask(unit(page), SpaceId(1), NodeId(0));
            ledger.moved(unit(page), NodeId(1), page, 1000);
        }
        for page in 0..10 {
            ledger.ask(unit(page), SpaceId(1), NodeId(1));
            ledger.moved(unit(page), NodeId(0), 3000, 1000);
        }
        assert_eq!(ledger.run_count(), 91);
        ledger.compact(4_000, 92);
        assert_eq!(ledger.run_count(), 91, "it was not worth it yet");
        ledger.compact(4_000, 91);
        // 10 to 99 are one run; the others have come back and still cool down.
        assert_eq!(ledger.run_count(), 2);
        assert_eq!(ledger.displaced_count(), 90);
        ledger.compacted = 0;
        ledger.compact(5_000, 0);
        assert_eq!(ledger.run_count(), 1);
        assert_eq!(ledger.get(PID, 50).unwrap().origin, NodeId(0));
    }

    /// What may happen to a unit.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Ask(u32),
        Moved(u32),
        WasThere(u32),
        Stayed,
        GiveUp,
    }

    fn step() -> impl Strategy<Value = (Unit, Step)> {
        let page = prop_oneof![Just(0), Just(512), 508u64..516, 0u64..1536];
        let what = prop_oneof![
            (0u32..3).prop_map(Step::Ask),
            (0u32..3).prop_map(Step::Moved),
            (0u32..3).prop_map(Step::WasThere),
            Just(Step::Stayed),
            Just(Step::GiveUp),
        ];
        (page, any::<bool>(), 1i32..3, what).prop_map(|(page, huge, pid, what)| {
            let page = if huge { page / 512 * 512 } else { page };
            let pid = Pid(pid);
            (Unit { pid, page, huge }, what)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// The ledger against a plain map of base pages.
        #[test]
        fn runs_tell_what_a_map_of_pages_tells(steps in proptest::collection::vec(step(), 1..60)) {
            let mut ledger = Ledger::new();
            let mut model: BTreeMap<(Pid, u64), LedgerEntry> = BTreeMap::new();
            for (at, &(unit, what)) in steps.iter().enumerate() {
                let (now_us, before) = (at as u64, ledger.run_count());
                let cost = ledger.cost(unit);
                match what {
                    Step::Ask(from) => ledger.ask(unit, SpaceId(1), NodeId(from)),
                    Step::Moved(to) => ledger.moved(unit, NodeId(to), now_us, 10),
                    Step::WasThere(to) => ledger.was_there(unit, NodeId(to), now_us + 3),
                    Step::Stayed => ledger.stayed(unit, now_us + 5),
                    Step::GiveUp => ledger.give_up(unit),
                }
                // A huge page that is no longer one is cut besides.
                prop_assert!(ledger.run_count() <= before + cost + RUNS_PER_UNIT);
                for page in unit.pages() {
                    if let Step::Ask(from) = what {
                        let new = LedgerEntry::new(NodeId(from));
                        let entry = model.entry((unit.pid, page)).or_insert(new);
                        entry.is_pending = true;
                        if entry.move_count == 0 {
                            (entry.origin, entry.home) = (NodeId(from), NodeId(from));
                        }
                    }
                    let Some(entry) = model.get_mut(&(unit.pid, page)) else { continue };
                    match what {
                        Step::Ask(_) => {}
                        Step::GiveUp => entry.is_given_up = true,
                        Step::Moved(to) => {
                            entry.home = NodeId(to);
                            entry.moved_at_us = now_us;
                            entry.cooling_until_us = now_us + (10 << entry.move_count.min(6));
                            entry.move_count += 1;
                            entry.is_pending = false;
                        }
                        Step::WasThere(to) => {
                            entry.home = NodeId(to);
                            if entry.move_count == 0 {
                                entry.origin = NodeId(to);
                            }
                            entry.cooling_until_us = entry.cooling_until_us.max(now_us + 3);
                            entry.is_pending = false;
                        }
                        Step::Stayed => {
                            entry.cooling_until_us = entry.cooling_until_us.max(now_us + 5);
                            entry.is_pending = false;
                        }
                    }
                }
            }
            let told: BTreeMap<(Pid, u64), LedgerEntry> = ledger
                .iter()
                .flat_map(|(pid, pages, entry)| pages.map(move |page| ((pid, page), *entry)))
                .map(|(key, entry)| (key, LedgerEntry { is_huge: false, ..entry }))
                .collect();
            prop_assert_eq!(&told, &model);
            let mut last: Option<(Pid, Range<u64>, LedgerEntry)> = None;
            for (pid, pages, entry) in ledger.iter() {
                if entry.is_huge {
                    prop_assert!(pages.start % 512 == 0 && pages.end % 512 == 0);
                }
                if let Some((before, at, known)) = last {
                    prop_assert!((before, at.end) <= (pid, pages.start));
                    prop_assert!(before != pid || at.end < pages.start || known != *entry);
                }
                last = Some((pid, pages, *entry));
            }
            for (&(pid, page), entry) in &model {
                prop_assert_eq!(ledger.get(pid, page).map(|entry| entry.home), Some(entry.home));
            }
        }
    }
}
