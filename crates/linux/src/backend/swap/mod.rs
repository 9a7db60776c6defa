//! The backend `swap`: exchanges pages of this process from user space, by `UFFDIO_MOVE`.
//!
//! Problem: `move_pages(2)` gets a page, copies and maps it, one after the other, behind locks of
//! the whole process, and frees the old one, on the caller's time.
//!
//! Mechanism ([`exchange`]): old pages out, copied into pages that are in stock already
//! ([`pool`]), those in. A monitor thread ([`monitor`]) answers for what is away meanwhile; the
//! journal ([`journal`]) lets it finish what a dead worker began. What cannot be exchanged
//! (pages of files, shared memory, locked mappings, thread stacks, a huge page asked for in part)
//! goes to the backend `kernel`.
//!
//! Safety: between out and in the program's addresses are empty. Its own accesses wait. So do the
//! kernel's (`read` into the range, `process_vm_readv`) where the context sees them, and a child
//! that is forked gets its pages where the kernel tells of forks: both need `CAP_SYS_PTRACE`.
//! Without it the kernel's accesses fail with `EFAULT` in that moment and a raw `clone` gives a
//! child with holes: then the backend only works where [`Config::without_privilege`] asks for it.
//!
//! Known limit: pages to which a pipe refers by vmsplice(2) without having pinned them are taken like
//! others, as the kernel tells nobody; the old page is used again, and the pipe then has other bytes.
//! A program that does that must not ask for such pages to be moved, or ask for no exchanges.
//!
//! Source: userfaultfd(2), ioctl_userfaultfd(2), Linux `mm/userfaultfd.c` (6.18); memif
//! section 5.2 for the race policies.

mod exchange;
mod fork_gate;
mod journal;
mod monitor;
mod pool;
mod runs;
mod span;
mod survey;

use super::copy::Copier;
use super::kernel::KernelBackend;
use crate::sys::{self, Userfault, feature};
use exchange::{Account, Chunk, Exchange, Fate, Slots};
use hither_core::ids::{NodeId, Pid};
use hither_core::plan::Refusal;
use hither_mover::{Action, Backend, Job, Outcome, OutcomeBuilder, Pages, Race, Unavailable};
use journal::Shared;
use monitor::Monitor;
use pool::{HUGE, PAGE, Pool, Size};
use span::{Span, Verdict, spans};
use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{JoinHandle, ThreadId};
use survey::Locator;

pub use pool::Limits;

/// Most bytes that are away at once, as many as the kernel's own migration unmaps at once: an
/// access waits for 200 us of copying at most.
const WINDOW_BYTES: u64 = HUGE;
/// Runs in stock shorter than this serve no longer request.
const CRUMB_BYTES: u64 = 16 * PAGE;
/// Times that a page is tried again that was touched on its way.
const RETRIES: u32 = 2;
/// Beyond a thread's descriptor: restartable-sequence area and the like.
const DESCRIPTOR_BYTES: u64 = 2 * PAGE;

/// No first stack reaches farther down than this (RLIMIT_STACK is 8 MiB, seldom more).
const MOST_STACK_BYTES: u64 = 64 << 30;
/// For so long the list of threads is believed. A thread that began since has its stack in a
/// mapping that is newer than what a program asks to move, and where the kernel's accesses wait,
/// moving a stack harms nobody but the worker itself, which is older.
const DESCRIPTORS_NS: u64 = 1_000_000;
/// The monitor is looked after so often.
const THREADS_NS: u64 = 1_000_000;

/// A moment within an exchange, for tests that stop, fork or kill right there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The addresses are registered.
    Trapped,
    /// The journal says that pages leave (lock held).
    Leaving,
    /// They have left (lock held).
    Taken,
    /// They are away.
    Away,
    /// A piece was copied.
    Copying,
    /// All are copied.
    Copied,
    /// The journal says that copies arrive (lock held).
    Arriving,
    /// They have arrived (lock held).
    Arrived,
    /// The window is closed.
    Closed,
}

/// Called at every step.
pub type Hook = Option<Arc<dyn Fn(Step) + Send + Sync>>;

/// How to exchange.
#[derive(Clone)]
pub struct Config {
    /// Stock of pages.
    pub limits: Limits,
    /// Work without `CAP_SYS_PTRACE` too, with the dangers that the module names.
    pub without_privilege: bool,
    /// Exchange pages that are on the target already: for tests and benchmarks on one node.
    pub in_place: bool,
    /// Threads that share copies of 512 KiB and more, the worker included. One alone does not use
    /// up the way between two nodes; two do, at more CPU time.
    pub copiers: usize,
    /// For tests.
    pub hook: Hook,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            without_privilege: false,
            in_place: false,
            copiers: 1,
            hook: None,
        }
    }
}

/// Moves this process's private anonymous memory.
pub struct SwapBackend {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    stocker: Option<JoinHandle<()>>,
    monitor: Monitor,
    kernel: KernelBackend,
    locator: Locator,
    copier: Copier,
    maps: File,
    config: Config,
    /// This process.
    own: i32,
    /// The thread that works, and its number for the kernel.
    worker: Option<(ThreadId, i32)>,
    /// Until when the threads need no other look, in ns.
    threads_seen_ns: u64,
    /// Where threads keep their own data, and until when that is believed (ns).
    descriptors: (Vec<u64>, u64),
    fates: Vec<Fate>,
    slots: Vec<Slots>,
}

/// Why the kernel shall move pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// They cannot be exchanged, or nothing is known of them.
    Unsuited,
    /// They are there, elsewhere, and nothing is in stock.
    NoStock,
    /// They are there and were not let go of.
    Held,
}

/// The work on one span.
#[derive(Default)]
struct Progress {
    account: Account,
    /// For the kernel's own migration.
    others: Vec<(Range<u64>, Why)>,
    /// Touched on their way.
    raced: Vec<Range<u64>>,
    huge_kept: u64,
    huge_split: u64,
}

impl SwapBackend {
    /// Opens contexts, reserves the pool's addresses and starts the two threads.
    ///
    /// # Errors
    /// Why it cannot work here.
    pub fn new(config: Config) -> Result<Self, Unavailable> {
        let (traps, privileged) = open_traps(config.without_privilege)?;
        let system = |error: std::io::Error| {
            Unavailable::new(
                format!("the pool of pages cannot be set up ({error})"),
                "allow more memory or threads to this process",
            )
        };
        let receiver = Userfault::new(feature::MOVE | feature::WRITE_PROTECT, true)
            .map_err(|error| missing_call(&error))?;
        let pool = Pool::new(&receiver, config.limits).map_err(system)?;
        let pagemap = File::open("/proc/self/pagemap").map_err(system)?;
        let shared = Arc::new(Shared::new(traps, receiver, pagemap, privileged));
        let monitor = Monitor::start(Arc::clone(&shared)).map_err(system)?;
        let stock = Arc::clone(&pool);
        let stocker = std::thread::Builder::new()
            .name("hither-pages".into())
            .spawn(move || stock.keep_in_stock())
            .map_err(system)?;
        Ok(Self {
            shared,
            pool,
            stocker: Some(stocker),
            monitor,
            kernel: KernelBackend::new(),
            locator: Locator::new().map_err(system)?,
            copier: Copier::new(config.copiers.max(1), &[]).map_err(system)?,
            maps: File::open("/proc/self/maps").map_err(system)?,
            config,
            own: std::process::id() as i32,
            worker: None,
            threads_seen_ns: 0,
            descriptors: (Vec::new(), 0),
            fates: Vec::with_capacity(journal::MOST_PAGES),
            slots: Vec::with_capacity(journal::MOST_PAGES),
        })
    }

    /// Could [`Self::new`] work here? Changes nothing.
    pub fn available(without_privilege: bool) -> Result<(), Unavailable> {
        open_traps(without_privilege).map(drop)
    }

    /// Gets pages for moves of so many bytes to a node, as the pool's thread would after the first
    /// such move. Returns the bytes in stock afterwards for small and for huge pages.
    pub fn warm(&self, node: NodeId, small_bytes: u64, huge_bytes: u64) -> [u64; 2] {
        [(Size::Small, small_bytes), (Size::Huge, huge_bytes)]
            .map(|(size, bytes)| self.pool.warm(node, size, bytes))
    }

    /// Forks that happened while pages were away, and whose children were provided for.
    #[must_use]
    pub fn fork_count(&self) -> u64 {
        self.shared.forks.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn span(&mut self, span: &Span, builders: &mut [OutcomeBuilder]) {
        let begin = sys::monotonic_ns();
        let mut progress = Progress::default();
        let ours = |own: &Range<u64>| own.start < span.range.end && span.range.start < own.end;
        if self.pool.ranges().iter().any(ours) {
            span.settle(builders, &span.range, Verdict::Refused(Refusal::NotOurs));
            return;
        }
        if self.may_exchange(&span.range) {
            self.exchange_span(span, builders, &mut progress);
        } else {
            progress.others.push((span.range.clone(), Why::Unsuited));
        }
        if progress.account.raced.is_some() {
            for (range, _) in std::mem::take(&mut progress.others) {
                span.settle(builders, &range, Verdict::Refused(Refusal::Dropped));
            }
        }
        for why in [Why::Unsuited, Why::NoStock, Why::Held] {
            self.by_kernel(span, why, &progress, builders);
        }
        let took = sys::monotonic_ns().saturating_sub(begin);
        for (job, _) in &span.parts {
            let figures = builders[*job].figures();
            figures.duration_ns += took;
            figures.raced = figures.raced.or(progress.account.raced);
        }
        let figures = builders[span.parts[0].0].figures();
        figures.stall_ns += progress.account.stall_ns;
        figures.huge_kept += progress.huge_kept;
        figures.huge_split += progress.huge_split;
    }

    /// Is nothing in the range that the kernel touches on its own, or that the program is about to
    /// throw away?
    fn may_exchange(&mut self, range: &Range<u64>) -> bool {
        if self.shared.journal().is_discarded(range) {
            return false;
        }
        let overlaps = |own: &Range<u64>| own.start < range.end && range.start < own.end;
        if self.own_memory().iter().any(overlaps) {
            return false;
        }
        let now = sys::monotonic_ns();
        if now >= self.descriptors.1 {
            let Ok(found) = survey::thread_descriptors() else {
                return false;
            };
            let believed = if self.shared.privileged {
                DESCRIPTORS_NS
            } else {
                0
            };
            self.descriptors = (found, now + believed);
        }
        let descriptors = &self.descriptors.0;
        let mapping = |address| match sys::query_mapping(&self.maps, address) {
            Ok(Some(mapping)) if mapping.range.contains(&address) => mapping.range,
            _ => address..address,
        };
        // The first thread's stack has no descriptor at its end.
        let first = sys::first_stack_address();
        if range.end > first.saturating_sub(MOST_STACK_BYTES) && overlaps(&mapping(first)) {
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

    /// Memory that this backend uses while pages are away.
    fn own_memory(&self) -> Vec<Range<u64>> {
        let mut own = self.shared.own_memory();
        own.push(journal::memory_of(std::slice::from_ref(self)));
        own.push(journal::room_of(&self.fates));
        own.push(journal::room_of(&self.slots));
        own.push(self.copier.memory());
        // Whole pages leave.
        own.iter_mut().for_each(|range| {
            *range = range.start & !(PAGE - 1)..range.end.next_multiple_of(PAGE);
        });
        own
    }

    fn exchange_span(
        &mut self,
        span: &Span,
        builders: &mut [OutcomeBuilder],
        progress: &mut Progress,
    ) {
        let survey = match survey::survey(&self.locator, &span.range) {
            Ok(survey) => survey,
            Err(_) => return progress.others.push((span.range.clone(), Why::Unsuited)),
        };
        self.settle_absent(span, &survey, builders);
        progress.others.extend(
            survey
                .others
                .iter()
                .map(|range| (range.clone(), Why::Unsuited)),
        );
        let mut work = self.work(span, &survey, builders, progress);
        let (Some((first, _)), Some((last, _))) = (work.front(), work.back()) else {
            return;
        };
        let envelope = first.start..last.end;
        {
            // Noted first: a worker that dies in between leaves nothing registered.
            let mut journal = self.shared.journal();
            journal.owner = self.worker.map_or(0, |(_, thread)| thread);
            journal.trapped.push(envelope.clone());
            if self.shared.traps.trap_missing(&envelope).is_err() {
                self.shared.release(&mut journal);
                progress
                    .others
                    .extend(work.into_iter().map(|(range, _)| (range, Why::Unsuited)));
                return;
            }
        }
        self.step(Step::Trapped);
        for round in 0..=RETRIES {
            while let Some((range, index)) = work.pop_front() {
                if progress.account.raced.is_some() {
                    span.settle(builders, &range, Verdict::Refused(Refusal::Dropped));
                    continue;
                }
                let rest = self.chunk(span, &range, &survey.parts[index], builders, progress);
                if rest < range.end {
                    work.push_front((rest..range.end, index));
                }
            }
            for range in std::mem::take(&mut progress.raced) {
                let part = survey
                    .parts
                    .iter()
                    .position(|part| part.range.contains(&range.start));
                match part {
                    Some(index) if round < RETRIES && progress.account.raced.is_none() => {
                        work.push_back((range, index));
                    }
                    _ => span.settle(builders, &range, Verdict::Refused(Refusal::Busy)),
                }
            }
        }
        self.shared.release(&mut self.shared.journal());
    }

    /// The pages that are to be exchanged, with the part of the survey that they are in.
    fn work(
        &self,
        span: &Span,
        survey: &survey::Survey,
        builders: &mut [OutcomeBuilder],
        progress: &mut Progress,
    ) -> VecDeque<(Range<u64>, usize)> {
        let mut work: VecDeque<(Range<u64>, usize)> = VecDeque::new();
        for (index, part) in survey.parts.iter().enumerate() {
            let bytes = part.range.end - part.range.start;
            let in_stock = self.pool.has(span.to, part.size, bytes);
            let mut start = part.range.start;
            while start < part.range.end {
                let range = start..part.same_node(start);
                start = range.end;
                let node = part.node(range.start);
                if node < 0 {
                    span.settle(builders, &range, Verdict::Refused(Refusal::Unmapped));
                } else if node == span.to.0 as i32 && !self.config.in_place {
                    span.settle(builders, &range, Verdict::AlreadyThere);
                } else if !in_stock {
                    progress.others.push((range, Why::NoStock));
                } else {
                    match work.back_mut() {
                        Some((last, of)) if last.end == range.start && *of == index => {
                            last.end = range.end;
                        }
                        _ => work.push_back((range, index)),
                    }
                }
            }
        }
        work
    }

    /// Pages of the span that the survey did not find are not in memory.
    fn settle_absent(&self, span: &Span, survey: &survey::Survey, builders: &mut [OutcomeBuilder]) {
        if survey.found == (span.range.end - span.range.start) / PAGE {
            return;
        }
        let parts = survey.parts.iter().map(|part| part.range.clone());
        let mut known: Vec<Range<u64>> = parts.chain(survey.others.iter().cloned()).collect();
        known.sort_unstable_by_key(|range| range.start);
        let mut start = span.range.start;
        let end = span.range.end..span.range.end;
        for range in known.into_iter().chain(std::iter::once(end)) {
            if start < range.start {
                let absent = start..range.start;
                span.settle(builders, &absent, Verdict::Refused(Refusal::Unmapped));
            }
            start = range.end;
        }
    }

    /// Exchanges the first pages of a range; returns where the rest begins.
    fn chunk(
        &mut self,
        span: &Span,
        range: &Range<u64>,
        part: &survey::Part,
        builders: &mut [OutcomeBuilder],
        progress: &mut Progress,
    ) -> u64 {
        let size = part.size;
        let want = WINDOW_BYTES.min(range.end - range.start);
        let Some(fresh) = self.pool.fresh(span.to, size, want) else {
            progress.others.push((range.clone(), Why::NoStock));
            return range.end;
        };
        // Crumbs of stock are not worth a window each.
        if fresh.end - fresh.start < want.min(CRUMB_BYTES) {
            self.pool.put_filled(span.to, size, fresh);
            progress.others.push((range.clone(), Why::NoStock));
            return range.end;
        }
        let Some(parking) = self.pool.empty(size, fresh.end - fresh.start) else {
            self.pool.put_filled(span.to, size, fresh);
            progress.others.push((range.clone(), Why::NoStock));
            return range.end;
        };
        let length = parking.end - parking.start;
        let cut = fresh.start + length;
        self.pool.put_filled(span.to, size, cut..fresh.end);
        let chunk = Chunk {
            start: range.start,
            size,
            race: span.race,
            parking,
            fresh: fresh.start..cut,
        };
        let mut exchange = Exchange {
            shared: &self.shared,
            copier: &mut self.copier,
            hook: &self.config.hook,
        };
        let account = exchange.run(&chunk, &mut self.fates, &mut self.slots);
        progress.account.stall_ns += account.stall_ns;
        progress.account.copied += account.copied;
        progress.account.raced = account.raced;
        self.stock_up(span.to, &chunk, part, progress);
        self.settle_fates(span, &chunk, builders, progress);
        range.start + length
    }

    /// The slots go back to the pool, as what they are now.
    fn stock_up(&self, to: NodeId, chunk: &Chunk, part: &survey::Part, progress: &mut Progress) {
        let size = chunk.size;
        let fresh = &chunk.fresh;
        if size == Size::Huge {
            let moved = |slots: &Slots| slots.parking_filled && !slots.fresh_filled;
            let untouched = |slots: &Slots| !slots.parking_filled && slots.fresh_filled;
            if self.slots.iter().all(moved) && self.pool.is_huge(&chunk.parking) {
                let home = NodeId(part.node(chunk.start) as u32);
                self.pool.put_filled(home, size, chunk.parking.clone());
                self.pool.put_empty(size, fresh.clone());
            } else if self.slots.iter().all(untouched) {
                self.pool.put_empty(size, chunk.parking.clone());
                self.pool.put_filled(to, size, fresh.clone());
            } else {
                self.pool.put_unknown(size, chunk.parking.clone());
                self.pool.put_unknown(size, fresh.clone());
            }
            let end = chunk.start + (chunk.parking.end - chunk.parking.start);
            if self.pool.is_huge(&(chunk.start..end)) {
                progress.huge_kept += u64::from(self.slots.iter().all(moved));
            } else {
                progress.huge_split += 1;
            }
            return;
        }
        let mut next = 0;
        while next < self.slots.len() {
            let slots = self.slots[next];
            let node = part.node(chunk.start + next as u64 * PAGE);
            let same = (next..self.slots.len()).take_while(|&index| {
                self.slots[index] == slots && part.node(chunk.start + index as u64 * PAGE) == node
            });
            let count = same.count() as u64;
            let offset = next as u64 * PAGE;
            let at = |start: u64| start + offset..start + offset + count * PAGE;
            let (parking, fresh) = (at(chunk.parking.start), at(chunk.fresh.start));
            if slots.parking_filled {
                self.pool.put_filled(NodeId(node as u32), size, parking);
            } else {
                self.pool.put_empty(size, parking);
            }
            if slots.fresh_filled {
                self.pool.put_filled(to, size, fresh);
            } else {
                self.pool.put_empty(size, fresh);
            }
            next += count as usize;
        }
    }

    fn settle_fates(
        &self,
        span: &Span,
        chunk: &Chunk,
        builders: &mut [OutcomeBuilder],
        progress: &mut Progress,
    ) {
        let mut next = 0;
        while next < self.fates.len() {
            let fate = self.fates[next];
            let count = self.fates[next..]
                .iter()
                .take_while(|&&other| other == fate)
                .count();
            let start = chunk.start + next as u64 * PAGE;
            let range = start..start + count as u64 * PAGE;
            match fate {
                Fate::Moved => span.settle(builders, &range, Verdict::Moved),
                Fate::Raced => progress.raced.push(range),
                Fate::Held => progress.others.push((range, Why::Held)),
                Fate::Unsuited => progress.others.push((range, Why::Unsuited)),
                Fate::Missing | Fate::Gone => {
                    span.settle(builders, &range, Verdict::Refused(Refusal::Unmapped));
                }
            }
            next += count;
        }
    }

    /// Lets the kernel move what is not exchanged, all of one kind at once.
    fn by_kernel(
        &mut self,
        span: &Span,
        why: Why,
        progress: &Progress,
        builders: &mut [OutcomeBuilder],
    ) {
        let mut of = Vec::new();
        let mut jobs = Vec::new();
        for (range, _) in progress.others.iter().filter(|(_, other)| *other == why) {
            for (job, part) in &span.parts {
                let both = part.start.max(range.start)..part.end.min(range.end);
                if both.start < both.end {
                    of.push(*job);
                    jobs.push(Job {
                        pid: Pid(0),
                        action: Action::Migrate {
                            pages: Pages::Run(both.start / PAGE..both.end / PAGE),
                            to: span.to,
                        },
                        race: Race::Block,
                    });
                }
            }
        }
        if jobs.is_empty() {
            return;
        }
        let outcomes = match why {
            Why::NoStock | Why::Held if !self.config.in_place => {
                self.kernel.execute_surveyed(&jobs)
            }
            _ => self.kernel.execute(&jobs),
        };
        for (job, outcome) in of.into_iter().zip(outcomes) {
            let builder = &mut builders[job];
            if builder.counted() == 0 {
                builder.figures().backend = Some(self.kernel.name());
            }
            builder.figures().bytes += outcome.bytes;
            builder.already_there_many(outcome.already_there);
            for (refusal, count) in outcome.refused {
                // Two ways of moving it were refused, and nobody else maps it.
                let pinned = why == Why::Held && refusal == Refusal::Busy;
                builder.refused_many(if pinned { Refusal::Pinned } else { refusal }, count);
            }
            for page in outcome.moved {
                builder.moved(page);
            }
        }
    }

    fn step(&self, step: Step) {
        if let Some(hook) = &self.config.hook {
            hook(step);
        }
    }

    /// The thread that works may change, and the monitor may have been ended from outside.
    fn check_threads(&mut self) {
        let here = std::thread::current().id();
        let now = sys::monotonic_ns();
        if self.worker.is_some_and(|(worker, _)| worker == here) && now < self.threads_seen_ns {
            return;
        }
        self.threads_seen_ns = now + THREADS_NS;
        if !self.monitor.lives()
            && let Ok(monitor) = Monitor::start(Arc::clone(&self.shared))
        {
            self.monitor = monitor;
            self.worker = None;
        }
        if self.worker.is_none_or(|(worker, _)| worker != here) {
            let thread = sys::thread_id();
            self.worker = Some((here, thread));
            self.monitor.watch_worker(thread);
        }
    }
}

/// The context that traps, and whether it sees forks and the kernel's own accesses.
fn open_traps(without_privilege: bool) -> Result<(Userfault, bool), Unavailable> {
    let features = feature::MOVE
        | feature::EVENT_REMAP
        | feature::EVENT_REMOVE
        | feature::THREAD_ID
        | feature::EXACT_ADDRESS;
    let told = Userfault::new(features | feature::EVENT_FORK, false);
    let error = match told {
        Ok(traps) => return Ok((traps, true)),
        Err(error) => error,
    };
    if !without_privilege {
        if error.raw_os_error() == Some(libc::EPERM) {
            return Err(Unavailable::new(
                "without CAP_SYS_PTRACE the kernel tells nothing of forks and of its own accesses",
                "give the program CAP_SYS_PTRACE, or ask for `swap` explicitly where it makes no \
                 system call on memory under way and no raw clone",
            ));
        }
        return Err(missing_call(&error));
    }
    let traps = Userfault::new(features, false).or_else(|_| Userfault::new(features, true));
    traps
        .map(|traps| (traps, false))
        .map_err(|error| missing_call(&error))
}

fn missing_call(error: &std::io::Error) -> Unavailable {
    Unavailable::new(
        format!("userfaultfd(2) with UFFDIO_MOVE is not to be had ({error})"),
        "use Linux 6.11 or newer with CONFIG_USERFAULTFD, and allow the call in the container's \
         seccomp profile",
    )
}

impl Backend for SwapBackend {
    fn name(&self) -> &'static str {
        "swap"
    }

    fn probe(&self) -> Result<(), Unavailable> {
        Self::available(self.config.without_privilege)
    }

    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        self.check_threads();
        let mut builders: Vec<OutcomeBuilder> = jobs.iter().map(OutcomeBuilder::new).collect();
        for span in spans(self.own, jobs, &mut builders) {
            self.span(&span, &mut builders);
        }
        builders.into_iter().map(OutcomeBuilder::finish).collect()
    }
}

impl Drop for SwapBackend {
    fn drop(&mut self) {
        self.pool.stop();
        if let Some(stocker) = self.stocker.take() {
            let _ = stocker.join();
        }
    }
}

#[cfg(test)]
mod tests;
