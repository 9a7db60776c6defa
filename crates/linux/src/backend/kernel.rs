//! The backend `kernel`: batched `move_pages(2)` on other processes, by the kernel's own copy.
//!
//! Problem: `move_pages` has a high price per call (it drains every CPU's page lists), stops at
//! the first batch that it cannot finish, and then tells nothing of that batch nor of the rest.
//!
//! Mechanism: consecutive jobs of one process share calls of at most [`CHUNK_PAGES`] pages.
//! 1. *Query* where the pages are: unmapped pages and those already there leave the batch.
//! 2. *Move* the rest; each page's status starts at a mark that no kernel writes.
//! 3. *Verify* by a second query what has no clear status: what is on its target now has moved
//!    (a page of a huge page that moved with an earlier one answers "busy"), what was never
//!    tried is tried again while there is progress, what is left is refused.
//!
//! The kernel takes the pages of a batch away together, up to 512 of them, and whoever touches one meanwhile waits for
//! all: 11 to 20 ms on slow CPUs. It ends a batch at an address that is none. So one follows each [`TOGETHER`] pages
//! of a call: their wait is a sixteenth, and page lists are still emptied once.
//!
//! What must not move ([`crate::fixed`]) is refused as pinned and not tried.
//!
//! Huge pages: the kernel moves them whole, whichever of their pages is named.
//!
//! Terms: *status* is a node number or a negative error number, as the kernel gives it.
//!
//! Source: move_pages(2); `do_pages_move` of Linux `mm/migrate.c` (read at 6.12).

use crate::fixed::guard::Guard;
use crate::{filter, sys};
use hither_core::plan::Refusal;
use hither_mover::{Action, Backend, Job, Outcome, OutcomeBuilder, Unavailable};

/// Most pages per call: 64 MiB. A call first empties every CPU's page lists, which waits for a
/// worker on each of them: 3 to 16 ms on a busy machine of 8 CPUs, whatever the call moves. The
/// price of so large a call is that a program that ends, or a signal, may wait 0.3 s for it.
const CHUNK_PAGES: usize = 16_384;
/// Pages that the kernel takes away together. A sixteenth of its own 512: at the 22 to 40 us a page of the slowest machine
/// here some 1 ms, at 2 us 0.06 ms.
const TOGETHER: usize = 32;
/// More pages than a call has: no address that is none is among them.
const ALL: usize = CHUNK_PAGES + 1;
/// An address at which no process has anything: the kernel answers `EFAULT`, and ends its batch.
const NOWHERE: u64 = !0xfff;
/// Tries of what the kernel did not get to, after the first.
const RETRIES: usize = 8;
/// A status that no kernel writes: neither a node nor an error number.
const UNTOLD: i32 = i32::MIN;

/// Moves pages by the kernel.
#[derive(Debug, Default)]
pub struct KernelBackend {
    /// What must not move is not tried: all that moves pages of other processes passes here. `None`
    /// where a program moves memory of its own, and the kernel alone refuses what is pinned.
    guard: Option<Guard>,
    batch: Vec<Item>,
    addresses: Vec<u64>,
    targets: Vec<i32>,
    status: Vec<i32>,
    /// The caller knows that the pages are there and not on their target.
    surveyed: bool,
    /// Pages that several processes map are moved too.
    shared: bool,
}

/// A page on its way.
#[derive(Clone, Copy, Debug)]
struct Item {
    /// Index of the job.
    job: usize,
    page: u64,
    target: i32,
    /// What the kernel said last.
    status: i32,
}

/// What becomes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Moved,
    AlreadyThere,
    Refused(Refusal),
}

/// The one place that gives the kernel's error numbers their meaning for a move.
/// `whole_call`: the call as a whole failed, not one page.
fn classify(errno: i32, whole_call: bool) -> Refusal {
    match errno {
        libc::ESRCH => Refusal::ProcessGone,
        libc::EPERM => Refusal::NotOurs,
        // For one page: mapped by several processes. For the call: outside the process's cpuset.
        libc::EACCES if whole_call => Refusal::TargetForbidden,
        libc::EACCES => Refusal::Shared,
        libc::ENODEV | libc::EINVAL => Refusal::TargetForbidden,
        libc::ENOMEM => Refusal::NoMemory,
        libc::ENOENT | libc::EFAULT => Refusal::Unmapped,
        // EBUSY: under I/O, locked or off the lists just now; EIO: dirty and cannot be written
        // back; EAGAIN: referenced by somebody else all the while.
        _ => Refusal::Busy,
    }
}

impl KernelBackend {
    /// A backend with empty buffers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            guard: Some(Guard::default()),
            ..Self::default()
        }
    }

    /// One for a program's own memory: it asks the kernel alone what cannot move.
    #[must_use]
    pub fn of_own_memory() -> Self {
        Self::default()
    }

    /// One that also moves what several processes map: for root, where all of them shall leave.
    #[must_use]
    pub fn with_shared_pages() -> Self {
        Self {
            shared: true,
            ..Self::new()
        }
    }

    /// Moves the pages of consecutive jobs of one process.
    fn execute_process(&mut self, jobs: &[Job<'_>], builders: &mut [OutcomeBuilder]) {
        let pid = jobs[0].pid.0;
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        for (index, job) in jobs.iter().enumerate() {
            match &job.action {
                Action::Migrate { pages, to } => batch.extend(pages.iter().map(|page| Item {
                    job: index,
                    page,
                    target: to.0 as i32,
                    status: UNTOLD,
                })),
                Action::Replicate { .. } => {
                    builders[index].refused_many(Refusal::NotSupported, job.page_count());
                }
            }
        }
        if let Some(guard) = &mut self.guard {
            let fixed = guard.fixed(pid);
            batch.retain(|item| {
                let stays = fixed.contains(item.page);
                if stays {
                    builders[item.job].refused_page(item.page, Refusal::Pinned);
                }
                !stays
            });
        }
        for chunk in batch.chunks_mut(CHUNK_PAGES) {
            self.execute_chunk(pid, chunk, builders);
        }
        self.batch = batch;
    }

    fn execute_chunk(&mut self, pid: i32, chunk: &mut [Item], builders: &mut [OutcomeBuilder]) {
        let start = sys::monotonic_ns();
        let first = chunk[0].job;
        let mut settle = |item: &Item, verdict| {
            let builder = &mut builders[item.job];
            match verdict {
                Verdict::Moved => {
                    builder.moved(item.page);
                    builder.figures().bytes += 4096;
                }
                Verdict::AlreadyThere => builder.already_there(),
                Verdict::Refused(refusal) => builder.refused_page(item.page, refusal),
            }
        };
        let mut left = match self.query_unless_surveyed(pid, chunk) {
            Ok(false) => chunk.to_vec(),
            Ok(true) => select(
                chunk,
                |item| match item.status {
                    status if status == item.target => Some(Verdict::AlreadyThere),
                    status if status < 0 => Some(Verdict::Refused(classify(-status, false))),
                    _ => None,
                },
                &mut settle,
            ),
            Err(refusal) => select(chunk, |_| Some(Verdict::Refused(refusal)), &mut settle),
        };
        for round in 0..=RETRIES {
            if left.is_empty() {
                break;
            }
            let before = left.len();
            left = self.attempt(pid, &mut left, &mut settle);
            // Without progress the first page left is what the kernel stumbles over.
            if left.len() == before || round == RETRIES {
                let stuck = left.len().min(if round == RETRIES {
                    usize::MAX
                } else {
                    before.div_ceil(2)
                });
                left.drain(..stuck)
                    .for_each(|item| settle(&item, Verdict::Refused(Refusal::Busy)));
            }
        }
        builders[first].took(sys::monotonic_ns().saturating_sub(start));
    }

    /// One call for these pages; settles what is clear afterwards and returns what was not tried.
    fn attempt(
        &mut self,
        pid: i32,
        items: &mut [Item],
        settle: &mut impl FnMut(&Item, Verdict),
    ) -> Vec<Item> {
        self.load(items, TOGETHER);
        let call = match self.shared {
            true => sys::move_shared_pages,
            false => sys::move_pages,
        };
        let result = call(pid, &self.addresses, &self.targets, &mut self.status);
        self.tell(items, TOGETHER);
        let whole = result
            .as_ref()
            .err()
            .map(|error| error.raw_os_error().unwrap_or(libc::EBUSY));
        if matches!(whole, Some(libc::ESRCH | libc::EPERM)) {
            let refusal = classify(whole.unwrap_or(libc::ESRCH), true);
            return select(items, |_| Some(Verdict::Refused(refusal)), settle);
        }
        if whole.is_none() && items.iter().all(|item| item.status == item.target) {
            return select(items, |_| Some(Verdict::Moved), settle);
        }
        let told: Vec<i32> = items.iter().map(|item| item.status).collect();
        if let Err(refusal) = self.query(pid, items) {
            return select(items, |_| Some(Verdict::Refused(refusal)), settle);
        }
        let mut told = told.into_iter();
        select(
            items,
            |item| {
                let said = told.next().unwrap_or(UNTOLD);
                verdict(item.status == item.target, said, whole)
            },
            settle,
        )
    }

    /// As [`Backend::execute`], for pages that the caller has just looked at: they are in memory and
    /// not on their target. Saves a sixth of the time.
    pub(super) fn execute_surveyed(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        self.surveyed = true;
        let outcomes = self.execute(jobs);
        self.surveyed = false;
        outcomes
    }

    /// Was there anything to ask?
    fn query_unless_surveyed(&mut self, pid: i32, items: &mut [Item]) -> Result<bool, Refusal> {
        if self.surveyed {
            return Ok(false);
        }
        self.query(pid, items).map(|()| true)
    }

    /// Where the pages are now, into their status.
    fn query(&mut self, pid: i32, items: &mut [Item]) -> Result<(), Refusal> {
        self.load(items, ALL);
        sys::query_pages(pid, &self.addresses, &mut self.status)
            .map_err(|error| classify(error.raw_os_error().unwrap_or(libc::EBUSY), true))?;
        self.tell(items, ALL);
        Ok(())
    }

    /// The arrays of a call; [`NOWHERE`] follows each `together` pages that others follow.
    fn load(&mut self, items: &[Item], together: usize) {
        self.addresses.clear();
        self.targets.clear();
        for (index, item) in items.iter().enumerate() {
            if index > 0 && index.is_multiple_of(together) {
                self.addresses.push(NOWHERE);
                self.targets.push(item.target);
            }
            self.addresses.push(item.page << 12);
            self.targets.push(item.target);
        }
        self.status.clear();
        self.status.resize(self.addresses.len(), UNTOLD);
    }

    /// What the kernel said, to the items that were [loaded](Self::load) with the same `together`.
    fn tell(&self, items: &mut [Item], together: usize) {
        let told = self.status.chunks(together + 1);
        for (items, told) in items.chunks_mut(together).zip(told) {
            let pairs = items.iter_mut().zip(told);
            pairs.for_each(|(item, &status)| item.status = status);
        }
    }
}

/// The verdict on one page after a call that did not go smoothly: `said` is its status of the
/// call, `whole` the error of the call. `None`: it was not tried.
fn verdict(on_target: bool, said: i32, whole: Option<i32>) -> Option<Verdict> {
    if on_target {
        return Some(Verdict::Moved);
    }
    match (said, whole) {
        (UNTOLD, None) => None,
        (UNTOLD, Some(errno)) => Some(Verdict::Refused(classify(errno, true))),
        (status, _) if status < 0 => Some(Verdict::Refused(classify(-status, false))),
        // The kernel called it moved and something took it elsewhere since.
        _ => Some(Verdict::Refused(Refusal::Busy)),
    }
}

/// Settles the items that `judge` has a verdict on and returns the others.
fn select(
    items: &[Item],
    mut judge: impl FnMut(&Item) -> Option<Verdict>,
    settle: &mut impl FnMut(&Item, Verdict),
) -> Vec<Item> {
    let mut left = Vec::new();
    for item in items {
        match judge(item) {
            Some(verdict) => settle(item, verdict),
            None => left.push(*item),
        }
    }
    left
}

impl Backend for KernelBackend {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn probe(&self) -> Result<(), Unavailable> {
        let probe = Box::new(1u8);
        let address = std::ptr::from_ref(&*probe) as u64 & !4095;
        match sys::query_pages(0, &[address], &mut [UNTOLD]) {
            Ok(()) => Ok(()),
            Err(error) => Err(Unavailable::new(
                format!("move_pages(2) is refused ({error})"),
                filter::remedy("move_pages", &error)
                    .unwrap_or_else(|| "free some memory".to_owned()),
            )),
        }
    }

    /// The kernel makes whoever touches a page wait, and moves it all the same.
    fn serves_submitters(&self, action: &Action<'_>) -> bool {
        matches!(action, Action::Migrate { .. })
    }

    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        let mut builders: Vec<OutcomeBuilder> = jobs.iter().map(OutcomeBuilder::new).collect();
        let mut start = 0;
        while start < jobs.len() {
            let same = jobs[start..]
                .iter()
                .take_while(|job| job.pid == jobs[start].pid)
                .count();
            let range = start..start + same;
            self.execute_process(&jobs[range.clone()], &mut builders[range]);
            start += same;
        }
        builders.into_iter().map(OutcomeBuilder::finish).collect()
    }
}

#[cfg(test)]
mod tests;
