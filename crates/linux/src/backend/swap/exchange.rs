//! One exchange: take the program's pages away, copy them, put the copies in their place.
//!
//! Problem: nobody may write to a page between its copy and its replacement. Write protection
//! leaves many ways around it: same-page merging, a page dropped and faulted in anew, kernels that
//! lose the bit.
//!
//! Mechanism: the pages *leave* first. `UFFDIO_MOVE` takes them, uncopied, from the program's
//! addresses to parking slots that only this exchange knows, and refuses every page that is pinned
//! or shared. An access by the program waits from then on (the addresses are registered for
//! missing pages). The parked pages are copied into slots that are filled already, on the target
//! node, and these are put at the program's addresses; that wakes whoever waits.
//!
//! An access in between, by the race policy: under `Block` it waits for the copy; otherwise the
//! worker, which looks after each piece that it copies, brings the page back at once.
//!
//! What always holds: see the journal. The parked pages stay as they are until the window closes,
//! so that there is one true copy of every byte at every moment.

use super::fork_gate;
use super::journal::{Journal, Page, Shared, State};
use super::pool::{HUGE, PAGE, Size};
use super::{Hook, Step};
use crate::backend::copy::{Copier, Stores};
use crate::sys;
use hither_mover::{Race, Raced};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Bytes copied between two looks at whether somebody waits: about 2 us of copying.
const PIECE: u64 = 16 << 10;
/// The same where several threads copy: the least that they share; and where an engine does.
const SHARED_PIECE: u64 = 512 << 10;
/// Windows up to here are copied by ordinary stores, as the kernel's own migration copies: pages that come
/// back before others took their place are still in the caches. Larger ones are one of several
/// mostly, and where all of them pass the cache as it were, streaming stores are faster.
const ORDINARY_MOST: u64 = 1 << 20;
/// Tries while the kernel says that it could not lock a page just now.
const TRIES: u32 = 1000;

/// What became of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Moved,
    /// It was touched on its way and is back.
    Raced,
    /// The kernel did not let it go: pinned, or shared after a fork.
    Held,
    /// Nothing was there.
    Missing,
    /// It is of a kind that cannot be exchanged.
    Unsuited,
    /// The program unmapped it or threw it away meanwhile.
    Gone,
    /// No page was to be had for it.
    NoMemory,
}

/// What is exchanged: pages at addresses that follow each other.
pub(super) struct Chunk {
    pub(super) start: u64,
    pub(super) size: Size,
    pub(super) race: Race,
    /// As long as the chunk.
    pub(super) parking: Range<u64>,
    /// As long as the chunk.
    pub(super) fresh: Range<u64>,
    /// Whether there are pages in `fresh`. If not, they are got on the way, by this thread's memory
    /// policy: the kernel then need not clear what is overwritten at once.
    pub(super) is_filled: bool,
}

/// How it went beside the pages.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) stall_ns: u64,
    /// Under `Race::Fail`.
    pub(super) raced: Option<Raced>,
    /// Somebody waited for a page.
    pub(super) is_touched: bool,
    /// Accesses that are accounted for.
    seen: usize,
}

/// Which slots hold what afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    pub(super) parking_filled: bool,
    pub(super) fresh_filled: bool,
}

pub(super) struct Exchange<'a> {
    pub(super) shared: &'a Shared,
    pub(super) copier: &'a mut Copier,
    pub(super) hook: &'a Hook,
}

impl Exchange<'_> {
    /// Exchanges one chunk. `fates` and `slots` get one entry per page.
    pub(super) fn run(
        &mut self,
        chunk: &Chunk,
        fates: &mut Vec<Fate>,
        slots: &mut Vec<Slots>,
    ) -> Account {
        fork_gate::enter(&self.shared.in_gate);
        let mut account = Account::default();
        self.take(chunk, fates);
        self.step(Step::Away);
        self.copy(chunk, fates, &mut account);
        self.step(Step::Copied);
        self.look(chunk, fates, &mut account);
        self.put(chunk, fates, slots, &mut account);
        fork_gate::leave(&self.shared.in_gate);
        self.step(Step::Closed);
        account
    }

    fn step(&self, step: Step) {
        if let Some(hook) = self.hook {
            hook(step);
        }
    }

    /// The pages leave.
    fn take(&self, chunk: &Chunk, fates: &mut Vec<Fate>) {
        let count = ((chunk.parking.end - chunk.parking.start) / PAGE) as usize;
        fates.clear();
        fates.resize(count, Fate::Moved);
        let mut journal = self.shared.journal();
        journal.pages.clear();
        journal.pages.extend((0..count as u64).map(|index| Page {
            address: chunk.start + index * PAGE,
            state: State::Leaving,
        }));
        journal.parking = chunk.parking.start;
        journal.race = chunk.race;
        journal.touches.clear();
        self.shared.touched.store(false, Ordering::Relaxed);
        // Looked at under the lock: what the program says later, it says of pages that are away.
        let whole = chunk.start..chunk.start + count as u64 * PAGE;
        if journal.is_discarded(&whole) {
            journal
                .pages
                .iter_mut()
                .for_each(|page| page.state = State::Home);
            fates.fill(Fate::Unsuited);
            return;
        }
        journal.open = true;
        self.step(Step::Leaving);
        let mut next = 0;
        let mut tries = 0;
        while next < count {
            let offset = next as u64 * PAGE;
            let length = (count - next) as u64 * PAGE;
            let (to, from) = (chunk.parking.start + offset, chunk.start + offset);
            // SAFETY: the slots are this exchange's own and empty; the journal remembers whose
            // the pages are, and they come back.
            let progress = unsafe { self.shared.receiver.exchange(to, from, length) };
            let done = self.shared.settled(progress, to, count - next, false);
            for page in &mut journal.pages[next..next + done] {
                page.state = State::Away;
            }
            next += done;
            let fate = match progress.errno {
                None => break,
                Some(libc::EAGAIN) if tries < TRIES => {
                    tries += 1;
                    continue;
                }
                Some(libc::ENOENT) => Fate::Missing,
                Some(libc::EINVAL) => Fate::Unsuited,
                Some(_) => Fate::Held,
            };
            // A huge page comes whole or not at all; a mapping that is unsuited stays so.
            let all = fate == Fate::Unsuited || (done == 0 && chunk.size == Size::Huge);
            let stay = if all {
                next..count
            } else {
                next..(next + 1).min(count)
            };
            for index in stay.clone() {
                journal.pages[index].state = State::Home;
                fates[index] = fate;
            }
            next = stay.end;
        }
        self.step(Step::Taken);
    }

    /// The parked pages are copied into the filled slots.
    fn copy(&mut self, chunk: &Chunk, fates: &mut [Fate], account: &mut Account) {
        // Where nobody is to be given back anything, all at once; several threads share no less.
        // An engine's copy is a wait, which is no shorter for less.
        let shares = self.copier.worker_count() > 1 || self.copier.engine().is_some();
        let piece = match (chunk.race, shares) {
            (Race::Block, _) => chunk.parking.end - chunk.parking.start,
            (_, false) => PIECE,
            _ => SHARED_PIECE,
        };
        let most = (piece / PAGE) as usize;
        let stores = match chunk.parking.end - chunk.parking.start <= ORDINARY_MOST {
            true => Stores::Ordinary,
            false => Stores::Streaming,
        };
        let mut next = 0;
        while next < fates.len() {
            // Slots without a page stay untouched: reading them would fill them.
            let away = |fate: &&Fate| **fate == Fate::Moved;
            let length = fates[next..].iter().take(most).take_while(away).count();
            if length == 0 {
                next += 1;
                continue;
            }
            let offset = next as u64 * PAGE;
            let bytes = length as u64 * PAGE;
            let (from, to) = (chunk.parking.start + offset, chunk.fresh.start + offset);
            if !chunk.is_filled {
                self.copy_into_new(from, to, next..next + length, fates);
            } else {
                let (from, to) = (from as *const u8, to as *mut u8);
                // SAFETY: both are slots of this exchange, so long at least, and filled.
                unsafe { self.copier.copy_by(from, to, bytes as usize, stores) };
            }
            next += length;
            self.step(Step::Copying);
            self.look(chunk, fates, account);
            if account.raced.is_some() {
                return;
            }
        }
    }

    /// Copies into pages that the kernel gets meanwhile. Those for which it finds none go back, as
    /// do those that it refuses otherwise.
    fn copy_into_new(&self, from: u64, to: u64, pages: Range<usize>, fates: &mut [Fate]) {
        let length = pages.len() as u64 * PAGE;
        let mut done = 0;
        while done < length {
            // SAFETY: the slots from `to` on are this exchange's own and empty, or nothing is done.
            let progress = unsafe {
                let (to, from) = (to + done, from + done);
                self.shared.receiver.copy(to, from, length - done)
            };
            done += progress.done;
            let fate = match progress.errno {
                None | Some(libc::EAGAIN) => continue,
                Some(libc::ENOMEM) => Fate::NoMemory,
                Some(_) => Fate::Held,
            };
            let rest = pages.start + (done / PAGE) as usize..pages.end;
            let mut journal = self.shared.journal();
            self.shared.restore_all(&mut journal, rest.clone());
            fates[rest].fill(fate);
            return;
        }
    }

    /// Does somebody wait who shall not?
    fn look(&self, chunk: &Chunk, fates: &mut [Fate], account: &mut Account) {
        if self.shared.touched.swap(false, Ordering::Acquire) && chunk.race != Race::Block {
            self.give_back(chunk, fates, account);
        }
    }

    /// Somebody waits: the pages that were touched go back.
    fn give_back(&self, chunk: &Chunk, fates: &mut [Fate], account: &mut Account) {
        let mut journal = self.shared.journal();
        let now = sys::monotonic_ns();
        while account.seen < journal.touches.len() {
            let touch = journal.touches[account.seen];
            account.seen += 1;
            let pages = match chunk.size {
                _ if chunk.race == Race::Fail => 0..journal.pages.len(),
                Size::Small => touch.page..touch.page + 1,
                Size::Huge => {
                    let unit = (HUGE / PAGE) as usize;
                    let first = touch.page / unit * unit;
                    first..(first + unit).min(journal.pages.len())
                }
            };
            self.shared.restore_all(&mut journal, pages.clone());
            fates[pages]
                .iter_mut()
                .filter(|fate| **fate == Fate::Moved)
                .for_each(|fate| *fate = Fate::Raced);
            account.stall_ns += now.saturating_sub(touch.at_ns);
            if chunk.race == Race::Fail {
                account.raced = Some(touch.raced);
                return;
            }
        }
    }

    /// The copies arrive, and the window closes.
    fn put(
        &self,
        chunk: &Chunk,
        fates: &mut [Fate],
        slots: &mut Vec<Slots>,
        account: &mut Account,
    ) {
        let mut journal = self.shared.journal();
        self.arrive(&mut journal, chunk.fresh.start);
        self.step(Step::Arrived);
        let now = sys::monotonic_ns();
        for touch in &journal.touches[account.seen..] {
            account.stall_ns += now.saturating_sub(touch.at_ns);
        }
        account.is_touched = !journal.touches.is_empty();
        slots.clear();
        for (page, fate) in journal.pages.iter().zip(fates.iter_mut()) {
            let (parking_filled, arrived) = match page.state {
                State::Arrived => (true, true),
                State::Replaced | State::Gone => (true, false),
                _ => (false, false),
            };
            slots.push(Slots {
                parking_filled,
                fresh_filled: !arrived,
            });
            match page.state {
                State::Gone => {
                    *fate = Fate::Gone;
                    let _ = self.shared.traps.wake(&(page.address..page.address + PAGE));
                }
                State::Restored | State::Replaced if *fate == Fate::Moved => {
                    *fate = Fate::Raced;
                }
                _ => {}
            }
        }
        journal.open = false;
    }

    /// Puts the copies, in the slots from `fresh` on, in the places of what is away.
    fn arrive(&self, journal: &mut Journal, fresh: u64) {
        let mut next = 0;
        while next < journal.pages.len() {
            if journal.pages[next].state != State::Away {
                next += 1;
                continue;
            }
            let run = journal.run(next, State::Away);
            for page in &mut journal.pages[run.clone()] {
                page.state = State::Arriving;
            }
            self.step(Step::Arriving);
            let (to, length) = (journal.pages[next].address, run.len() as u64 * PAGE);
            let from = fresh + next as u64 * PAGE;
            // SAFETY: the slots hold copies of the pages that left these addresses, which are
            // empty, or the kernel refuses.
            let progress = unsafe { self.shared.traps.exchange(to, from, length) };
            let arrived = next + self.shared.settled(progress, from, run.len(), true);
            for (index, page) in (run.start..).zip(&mut journal.pages[run.clone()]) {
                page.state = if index < arrived {
                    State::Arrived
                } else {
                    State::Away
                };
            }
            next = arrived;
            match progress.errno {
                None => {}
                // Where a fork cannot be told of for want of a descriptor, tried until it can.
                Some(libc::EAGAIN) => {
                    self.shared.serve(journal);
                }
                Some(_) if next < run.end => self.shared.restore(journal, next),
                Some(_) => {}
            }
        }
    }
}
