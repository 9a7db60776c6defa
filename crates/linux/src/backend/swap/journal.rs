//! What an exchange has done so far, kept where another thread can finish or undo it.
//!
//! Terms: a *window* is the time in which pages of the program are away from their addresses. The
//! *journal* says which, and where they are meanwhile; it changes under one lock, together with
//! the call that it describes. So whoever holds the lock finds every byte of the program:
//!
//! | state | at the program's address | in the parking slot |
//! |---|---|---|
//! | `Home` | the page | nothing |
//! | `Leaving` | the page, or nothing | nothing, or the page |
//! | `Away` | nothing; an access waits | the page |
//! | `Arriving` | nothing, or the copy | the page |
//! | `Arrived` | the copy | the old page, of no use to the program |
//! | `Restored` | the page again | nothing |
//! | `Replaced` | a copy, as the mapping had changed | the old page, of no use |
//! | `Gone` | nothing that is ours: the program threw it away | the old page |

use crate::sys::{self, FaultEvent, Progress, RobustGuard, RobustMutex, Userfault};
use hither_mover::{Race, Raced};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::guard::overlap;
use super::pool::PAGE;

/// After the program said that it throws pages away, it does so at a time that nobody tells. For
/// so long those pages are left to the kernel's own migration, which cannot bring them back. The same
/// holds for addresses that were unmapped, which takes effect before it is told.
const DISCARD_NS: u64 = 10_000_000_000;

/// Between two tries where memory is short.
const NAP: Duration = Duration::from_millis(1);

/// Pages of the largest window.
pub(super) const MOST_PAGES: usize = 512;
/// Descriptors in reserve: for a child and for a child that it has at once.
const SPARES: usize = 2;
/// Accesses of one window that are noted. More threads than this that touch pages on their way wait
/// until those arrive.
const MOST_TOUCHES: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Home,
    Leaving,
    Away,
    Arriving,
    Arrived,
    Restored,
    Replaced,
    Gone,
}

/// Which pages of the window children find empty.
type Wiped = [bool; MOST_PAGES];

/// A page of the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    /// Where the program has it now (`mremap` changes it).
    pub(super) address: u64,
    pub(super) state: State,
}

/// An access that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    pub(super) page: usize,
    pub(super) raced: Raced,
    pub(super) at_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct Journal {
    /// Is anything below valid?
    pub(super) open: bool,
    pub(super) race: Race,
    pub(super) pages: Vec<Page>,
    /// Address of the parking slot of the first page; the others follow.
    pub(super) parking: u64,
    /// Accesses in this window.
    pub(super) touches: Vec<Touch>,
    /// Addresses that are registered for the present job.
    pub(super) trapped: Vec<Range<u64>>,
    /// The thread whose job that is.
    pub(super) owner: i32,
    /// What the program said it throws away, and until when that matters (ns).
    discarded: Vec<(Range<u64>, u64)>,
    /// Where the program may open no more descriptors, the kernel can tell of a fork once one of
    /// these is closed.
    spares: [Option<OwnedFd>; SPARES],
}

impl Journal {
    pub(super) fn parking(&self, page: usize) -> u64 {
        self.parking + page as u64 * PAGE
    }

    fn find(&self, address: u64) -> Option<usize> {
        let page = address & !(PAGE - 1);
        self.pages.iter().position(|known| known.address == page)
    }

    /// Room for the largest window, so that nothing is allocated while one is open.
    fn with_room() -> Self {
        Self {
            pages: Vec::with_capacity(MOST_PAGES),
            touches: Vec::with_capacity(MOST_TOUCHES),
            trapped: Vec::with_capacity(MOST_TOUCHES),
            discarded: Vec::with_capacity(MOST_TOUCHES),
            ..Self::default()
        }
    }

    /// The program throws these pages away, or has unmapped them: what it maps there next is not
    /// registered, so that pages taken from it could not come back. Nothing is allocated, as a window
    /// may be open.
    fn discard(&mut self, range: Range<u64>) {
        for page in &mut self.pages {
            if range.contains(&page.address) && page.state == State::Away {
                page.state = State::Gone;
            }
        }
        self.leave_alone(range);
    }

    /// Nothing is taken from there for a while.
    fn leave_alone(&mut self, range: Range<u64>) {
        let until = sys::monotonic_ns() + DISCARD_NS;
        let room = self.discarded.len() < self.discarded.capacity();
        match self.discarded.last_mut() {
            // What lies between is left alone as well.
            Some((last, of_last)) if !room || last.end == range.start => {
                *last = last.start.min(range.start)..last.end.max(range.end);
                *of_last = until;
            }
            _ => self.discarded.push((range, until)),
        }
    }

    /// The program's pages are at other addresses now, and what was at those is no more.
    fn remap(&mut self, from: u64, to: u64, length: u64) {
        self.leave_alone(from..from + length);
        for page in &mut self.pages {
            if (from..from + length).contains(&page.address) {
                page.address = page.address - from + to;
            } else if (to..to + length).contains(&page.address) && page.state == State::Away {
                page.state = State::Gone;
            }
        }
        let room = self.trapped.len() < self.trapped.capacity();
        match self.trapped.last_mut() {
            Some(last) if last.end == to => last.end = to + length,
            _ if room => self.trapped.push(to..to + length),
            // Stays registered, and is served as long as the mover lives.
            _ => {}
        }
    }

    /// Is a thread in the middle of a job?
    pub(super) fn is_owned_by(&self, thread: i32) -> bool {
        self.owner == thread && (self.open || !self.trapped.is_empty())
    }

    /// Is part of this about to be thrown away by the program?
    pub(super) fn is_discarded(&mut self, range: &Range<u64>) -> bool {
        if self.discarded.is_empty() {
            return false;
        }
        let now_ns = sys::monotonic_ns();
        self.discarded.retain(|&(_, until)| now_ns < until);
        let mut known = self.discarded.iter();
        known.any(|(known, _)| overlap(known, range))
    }

    /// The longest run of pages from `first` on in one state and at addresses that follow.
    pub(super) fn run(&self, first: usize, state: State) -> Range<usize> {
        let mut end = first;
        while end < self.pages.len()
            && self.pages[end].state == state
            && (end == first || self.pages[end].address == self.pages[end - 1].address + PAGE)
        {
            end += 1;
        }
        first..end
    }
}

/// What worker and monitor share.
pub(super) struct Shared {
    /// Traps accesses to pages that are away, and hears of forks and of changes of mappings.
    pub(super) traps: Userfault,
    /// Receives pages in the parking slots; hears of nothing.
    pub(super) receiver: Userfault,
    journal: RobustMutex<Journal>,
    pagemap: File,
    smaps: File,
    /// There are touches that the worker shall look at.
    pub(super) touched: AtomicBool,
    /// The kernel tells of forks, and its own accesses wait.
    pub(super) privileged: bool,
    /// This backend keeps forks waiting.
    pub(super) in_gate: AtomicBool,
    /// Forks seen while pages were away, whose children were given pages.
    pub(super) forks: AtomicU64,
}

impl Shared {
    pub(super) fn new(traps: Userfault, receiver: Userfault, privileged: bool) -> io::Result<Self> {
        let pagemap = File::open("/proc/self/pagemap")?;
        let mut journal = Journal::with_room();
        if privileged {
            for spare in &mut journal.spares {
                *spare = Some(pagemap.try_clone()?.into());
            }
        }
        Ok(Self {
            pagemap,
            smaps: File::open("/proc/self/smaps")?,
            traps,
            receiver,
            journal: RobustMutex::new(journal),
            touched: AtomicBool::new(false),
            privileged,
            in_gate: AtomicBool::new(false),
            forks: AtomicU64::new(0),
        })
    }

    /// Memory that is used while a window is open: if a page of it were away, nobody could bring it
    /// back.
    ///
    /// Nothing is allocated under the lock: a thread that forks holds the locks of the C library's
    /// allocator, and may wait for its event to be read, for which the monitor needs this lock.
    pub(super) fn own_memory(&self) -> Vec<Range<u64>> {
        let journal = self.journal();
        let own = [
            memory_of(std::slice::from_ref(self)),
            memory_of(std::slice::from_ref(self.journal.raw())),
            room_of(&journal.pages),
            room_of(&journal.touches),
            room_of(&journal.trapped),
            room_of(&journal.discarded),
        ];
        drop(journal);
        own.to_vec()
    }

    /// How many of the `count` pages at `slots` have left (`gone`) or come, from the first on, after
    /// a call that says how far it came. Where it failed on the way, the page tables are asked: a
    /// kernel that moves several pages under one lock may count too few of them.
    pub(super) fn settled(
        &self,
        progress: Progress,
        slots: u64,
        count: usize,
        gone: bool,
    ) -> usize {
        let done = pages_done(progress);
        if progress.errno.is_none() || done >= count {
            return done.min(count);
        }
        let rest = slots + done as u64 * PAGE;
        let more = (0..(count - done) as u64)
            .take_while(|index| sys::is_resident(&self.pagemap, rest + index * PAGE) != gone);
        done + more.count()
    }

    pub(super) fn journal(&self) -> RobustGuard<'_, Journal> {
        self.journal.lock()
    }

    /// Handles every event that has come; `false`: there is one that the kernel cannot tell, for
    /// want of a descriptor. Only with the journal's lock: a change of mappings lets no page arrive
    /// before it is read (`EAGAIN`), so what is read here is told before.
    pub(super) fn serve(&self, journal: &mut Journal) -> bool {
        let mut wiped = None;
        loop {
            // From when a fork is read until its child has its pages, the end of this process would
            // leave holes there: what takes long is done before.
            if journal.open && wiped.is_none() && self.traps.is_changing() {
                wiped = Some(self.find_wiped(journal));
            }
            match self.next_event(journal, &self.traps) {
                Ok(Some(FaultEvent::Missing { address, thread })) => {
                    self.touch(journal, Raced { address, thread });
                    continue;
                }
                Ok(Some(FaultEvent::Fork(child))) => {
                    let wiped = wiped.unwrap_or_else(|| self.find_wiped(journal));
                    self.provide(journal, child, &wiped);
                }
                Ok(Some(FaultEvent::Remap { from, to, length })) => {
                    journal.remap(from, to, length);
                }
                Ok(Some(FaultEvent::Remove(range))) => journal.discard(range),
                Ok(None) => return true,
                Err(error) => return !sys::no_descriptor(&error),
            }
            wiped = None;
        }
    }

    /// The next event of a context, if need be with a descriptor from the reserve. Another thread
    /// may be faster to open that one; then the fork waits until the program closes one.
    fn next_event(&self, journal: &mut Journal, of: &Userfault) -> io::Result<Option<FaultEvent>> {
        loop {
            match of.next_event() {
                Err(error) if sys::no_descriptor(&error) => {
                    let spare = journal.spares.iter_mut().find_map(Option::take);
                    if spare.is_none() {
                        return Err(error);
                    }
                }
                answer => return answer,
            }
        }
    }

    /// A thread waits for a page.
    fn touch(&self, journal: &mut Journal, raced: Raced) {
        let start = raced.address & !(PAGE - 1);
        let page = start..start + PAGE;
        let known = if journal.open {
            journal.find(raced.address)
        } else {
            None
        };
        let state = known.map(|index| journal.pages[index].state);
        match (known, state) {
            (Some(page), Some(State::Leaving | State::Away | State::Arriving)) => {
                if journal.touches.len() < MOST_TOUCHES {
                    journal.touches.push(Touch {
                        page,
                        raced,
                        at_ns: sys::monotonic_ns(),
                    });
                }
                if journal.race != Race::Block {
                    self.touched.store(true, Ordering::Release);
                }
            }
            // It has come meanwhile; or the program's first touch of a page that was never there
            // or that it threw away: it reads zeros, as without us.
            _ => {
                if self.traps.zero(&page).is_err() {
                    let _ = self.traps.wake(&page);
                }
            }
        }
    }

    /// A child was born: where pages are away it gets its copies before it can touch them. The
    /// parked pages are what the parent had at that moment: nobody can write to them.
    fn provide(&self, journal: &mut Journal, child: Userfault, wiped: &Wiped) {
        if journal.open {
            self.forks.fetch_add(1, Ordering::Relaxed);
            for (index, &is_wiped) in (0..journal.pages.len()).zip(wiped) {
                let parked = match journal.pages[index].state {
                    State::Away | State::Arriving => true,
                    // The worker died between the call and the note of it.
                    State::Leaving => sys::is_resident(&self.pagemap, journal.parking(index)),
                    _ => false,
                };
                if parked && !is_wiped {
                    self.provide_page(journal, &child, index, wiped);
                }
            }
        }
        // What came from the reserve goes back there.
        if let Some(spare) = journal.spares.iter_mut().find(|spare| spare.is_none()) {
            *spare = child.give_way(self.pagemap.as_fd()).ok();
        }
    }

    /// Which pages children find empty, as the program asked by `MADV_WIPEONFORK`. Where that cannot
    /// be known they get the data.
    fn find_wiped(&self, journal: &Journal) -> Wiped {
        let mut wiped = [false; MOST_PAGES];
        if !journal.open {
            return wiped;
        }
        let last = journal.pages.iter().map(|page| page.address).max();
        let end = last.map_or(0, |last| last + PAGE);
        let _ = sys::wiped_mappings(&self.smaps, end, |range| {
            for (page, wiped) in journal.pages.iter().zip(&mut wiped) {
                *wiped |= range.contains(&page.address);
            }
        });
        wiped
    }

    fn provide_page(&self, journal: &mut Journal, child: &Userfault, index: usize, wiped: &Wiped) {
        let (to, from) = (journal.pages[index].address, journal.parking(index));
        loop {
            // SAFETY: the child's page is missing, or the call does nothing.
            let given = unsafe { child.copy(to, from, PAGE) };
            match Answer::of(given.errno) {
                Answer::Changing => {
                    // The child itself forks or changes its mappings, and waits for its events to
                    // be read.
                    while let Ok(Some(event)) = self.next_event(journal, child) {
                        if let FaultEvent::Fork(grandchild) = event {
                            self.provide(journal, grandchild, wiped);
                        }
                    }
                }
                // It would find zeros there.
                Answer::NoMemory => std::thread::sleep(NAP),
                // A child that was killed meanwhile, or has no such mapping, needs no page.
                Answer::Done | Answer::Refused => return,
            }
        }
    }

    /// Puts pages back where they were.
    pub(super) fn restore_all(&self, journal: &mut Journal, pages: Range<usize>) {
        let mut next = pages.start;
        while next < pages.end {
            if journal.pages[next].state != State::Away {
                next += 1;
                continue;
            }
            let run = journal.run(next, State::Away);
            let run = run.start..run.end.min(pages.end);
            let length = run.len() as u64 * PAGE;
            let (to, from) = (journal.pages[next].address, journal.parking(next));
            // SAFETY: the pages came from there, and the addresses are empty or nothing is done.
            let progress = unsafe { self.traps.exchange(to, from, length) };
            let done = self.settled(progress, from, run.len(), true);
            for page in &mut journal.pages[next..next + done] {
                page.state = State::Restored;
            }
            next += done;
            if next < run.end {
                self.restore(journal, next);
                next += 1;
            }
        }
    }

    /// Puts a page back where it was: the page itself, or a copy where the program changed its
    /// mapping so that the page may not return.
    pub(super) fn restore(&self, journal: &mut Journal, index: usize) {
        while journal.pages[index].state != State::Gone {
            let (to, from) = (journal.pages[index].address, journal.parking(index));
            // SAFETY: the page came from that address, which is empty or the call does nothing.
            let moved = unsafe { self.traps.exchange(to, from, PAGE) }.errno;
            let copied = match moved {
                None | Some(libc::EAGAIN) => moved,
                // SAFETY: as above, with a copy.
                Some(_) => unsafe { self.traps.copy(to, from, PAGE) }.errno,
            };
            journal.pages[index].state = match (moved, Answer::of(copied)) {
                (None, _) => State::Restored,
                (_, Answer::Done) => State::Replaced,
                (_, Answer::Changing) => {
                    self.serve(journal);
                    continue;
                }
                // The data has no other place than the parking slot: wait for memory.
                (_, Answer::NoMemory) => {
                    std::thread::sleep(NAP);
                    continue;
                }
                // Unmapped, or mapped anew by somebody else.
                (_, Answer::Refused) => State::Gone,
            };
            return;
        }
    }

    /// Undoes what a worker left that died: every page is at its address afterwards.
    pub(super) fn recover(&self, journal: &mut Journal) {
        if journal.open {
            for index in 0..journal.pages.len() {
                let page = journal.pages[index];
                if !matches!(page.state, State::Leaving | State::Away | State::Arriving) {
                    continue;
                }
                // Nothing is parked (never left), or something is at the address (arrived):
                // then this call fails and changes nothing.
                // SAFETY: as in `restore`.
                let undone = unsafe {
                    self.traps
                        .exchange(page.address, journal.parking(index), PAGE)
                };
                match undone.errno {
                    None | Some(libc::ENOENT | libc::EEXIST) => {
                        journal.pages[index].state = State::Restored;
                    }
                    Some(_) => self.restore(journal, index),
                }
            }
            journal.open = false;
        }
        super::fork_gate::leave(&self.in_gate);
        self.release(journal);
    }

    /// Lets go of the present job's addresses; whoever waits there goes on.
    pub(super) fn release(&self, journal: &mut Journal) {
        // Forgotten behind the call, so that a worker that dies in between leaves nothing; and
        // one by one, so that the list keeps its room.
        while let Some(range) = journal.trapped.last().cloned() {
            self.release_range(&range);
            journal.trapped.pop();
        }
    }

    fn release_range(&self, range: &Range<u64>) {
        if self.traps.unregister(range).is_ok() {
            return;
        }
        // Something else is mapped in between by now: page by page, what is still ours. What
        // cannot be let go of stays registered, and is served as long as the mover lives.
        for start in (range.start..range.end).step_by(PAGE as usize) {
            let page = start..start + PAGE;
            if self.traps.unregister(&page).is_err() {
                let _ = self.traps.wake(&page);
            }
        }
    }
}

/// What a transfer of a page answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    /// A mapping changes, and an event waits to be read.
    Changing,
    /// There is no memory for it just now.
    NoMemory,
    /// There is no place for it, or something is there.
    Refused,
}

impl Answer {
    fn of(errno: Option<i32>) -> Self {
        match errno {
            None => Self::Done,
            Some(libc::EAGAIN) => Self::Changing,
            Some(libc::ENOMEM) => Self::NoMemory,
            Some(_) => Self::Refused,
        }
    }
}

/// The bytes of a slice.
pub(super) fn memory_of<T>(slice: &[T]) -> Range<u64> {
    let start = slice.as_ptr() as u64;
    start..start + size_of_val(slice) as u64
}

/// The bytes that a vector has room in.
pub(super) fn room_of<T>(vector: &Vec<T>) -> Range<u64> {
    let start = vector.as_ptr() as u64;
    start..start + (vector.capacity() * size_of::<T>()) as u64
}

/// Bytes done, as pages.
fn pages_done(progress: Progress) -> usize {
    (progress.done / PAGE) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_pages(addresses: &[u64]) -> Journal {
        let mut journal = Journal::with_room();
        journal.pages = addresses
            .iter()
            .map(|&address| Page {
                address,
                state: State::Away,
            })
            .collect();
        journal
    }

    #[test]
    fn changes_need_no_memory_however_many_they_are() {
        let mut journal = with_pages(&[]);
        let room = (journal.discarded.capacity(), journal.trapped.capacity());
        // Every second page, so that no two of them are neighbours.
        for index in 0..4 * MOST_TOUCHES as u64 {
            let start = index * 2 * PAGE;
            journal.discard(start..start + PAGE);
            journal.remap(1 << 40, start, PAGE);
            assert!(journal.is_discarded(&(start..start + 1)));
        }
        assert_eq!(
            room,
            (journal.discarded.capacity(), journal.trapped.capacity())
        );
        assert!(journal.is_discarded(&(0..1)), "the first is known still");
    }

    #[test]
    fn pages_follow_their_mapping_and_what_they_fall_upon_is_gone() {
        let mut journal = with_pages(&[PAGE, 2 * PAGE, 9 * PAGE]);
        journal.remap(PAGE, 8 * PAGE, 2 * PAGE);
        let found: Vec<_> = journal.pages.iter().map(|p| (p.address, p.state)).collect();
        let expected = [
            (8 * PAGE, State::Away),
            (9 * PAGE, State::Away),
            (9 * PAGE, State::Gone),
        ];
        assert_eq!(found, expected);
        journal.remap(3 * PAGE, 10 * PAGE, PAGE);
        assert_eq!(journal.trapped.len(), 1, "joined");
        assert_eq!(journal.trapped[0], 8 * PAGE..11 * PAGE);
        journal.discard(8 * PAGE..9 * PAGE);
        assert_eq!(journal.pages[0].state, State::Gone);
        assert_eq!(journal.pages[1].state, State::Away);
    }

    /// A child must not go without a page for want of memory, nor wait for one without a place.
    #[test]
    fn only_want_of_memory_and_changes_are_waited_for() {
        let answers = [
            (None, Answer::Done),
            (Some(libc::EAGAIN), Answer::Changing),
            (Some(libc::ENOMEM), Answer::NoMemory),
            (Some(libc::EEXIST), Answer::Refused),
            (Some(libc::ENOENT), Answer::Refused),
            (Some(libc::ESRCH), Answer::Refused),
        ];
        for (errno, expected) in answers {
            assert_eq!(Answer::of(errno), expected);
        }
    }
}
