//! The service in this process: a [`Mover`] owns the queues and the worker threads.

use crate::backend::Backend;
use crate::clock::Clock;
use crate::future::MoveFuture;
use crate::instance::{Depths, Held, Instance};
use crate::layout::MOST_SLOTS;
use crate::notify;
use crate::rate::TokenBucket;
use crate::record::{Completion, RequestId};
use crate::region::Forked;
use crate::request::{Rejected, Request, SubmitError};
use crate::sync::{
    AtomicU32, Bell, JoinHandle, Mutex, Ordering, Plain64, boxed, lock, room, spawn,
};
use crate::worker::{
    ABANDON, DRAIN, Factory, Figures, Limits, OPEN, Shared, Worker, complete, refused,
};
use hither_core::ids::{CpuId, Pid};
use hither_core::plan::Refusal;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// How `poll()` learns of completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notify {
    /// Not at all: `retrieve` makes no system call ever.
    #[default]
    Off,
    /// By an eventfd: [`Mover::notify_fd`].
    Eventfd,
}

/// Settings of a service.
#[derive(Clone, Debug)]
pub struct Config {
    /// Requests that may exist at a time, from allocation to retrieval: 1 to 32768.
    pub capacity: u16,
    /// Worker threads, each with a backend of its own: 1 to 256.
    pub workers: usize,
    /// The CPUs that workers may run on. Empty: those of the thread that opens the service.
    pub cpus: Vec<CpuId>,
    /// Most bytes moved per second, over all workers, as a mean with bursts of a tenth of a second
    /// and one batch.
    pub rate_limit_bytes_per_s: Option<u64>,
    /// How long a worker looks on for the next request after small ones before it sleeps.
    /// 50 us is about what a sleep and a wake-up cost together.
    pub spin_us: u32,
    /// What a small request is smaller than. 512 KiB is the paper's choice (memif section 5.4).
    /// After a larger one a worker sleeps at once: the next is far away.
    pub small_bytes: u64,
    /// Most requests that a backend is handed at once. More lets it exchange neighbours together.
    /// Backends that do, tell of each request as it is done; others of all together.
    pub batch_requests: usize,
    /// A batch takes no more requests once it has this many bytes. 1 MiB: neighbours share most of
    /// the price of a move, and an urgent request waits for half a millisecond of moving at most.
    pub batch_bytes: u64,
    /// A request of at most so many bytes is carried out by the thread that submits it, where a worker sleeps and
    /// none was carried out so within [`Config::spin_us`]: waking a worker up takes longer than such a move
    /// (memif's `MOV_ONE`, sections 4.2 and 4.4). 0: never; submitting then never blocks. Needs a backend that
    /// allows it ([`Backend::serves_submitters`]) and no rate limit.
    pub first_bytes: u64,
    /// Whether there is something to `poll()`.
    pub notify: Notify,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            capacity: 256,
            workers: 1,
            cpus: Vec::new(),
            rate_limit_bytes_per_s: None,
            spin_us: 50,
            small_bytes: 512 << 10,
            batch_requests: 64,
            batch_bytes: 1 << 20,
            first_bytes: 0,
            notify: Notify::Off,
        }
    }
}

/// Most worker threads of one service: no machine moves memory faster with more.
const MOST_WORKERS: usize = 256;

/// Memory that there must be before a worker is started: its stack of 2 MiB, its backend, and what the C
/// library sets up for a thread, which ends the program where it finds none.
const WORKER_BYTES: usize = 4 << 20;
/// Memory that must be left once all run: they start at their own time.
const LEFT_BYTES: usize = 2 << 20;

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// [`Config::capacity`] is out of range.
    #[error("a mover has 1 to {MOST_SLOTS} requests, not {0}")]
    Capacity(u16),
    /// [`Config::workers`] is out of range.
    #[error("a mover has 1 to {MOST_WORKERS} workers, not {0}")]
    Workers(usize),
    /// [`Config::batch_requests`] or [`Config::batch_bytes`] is 0.
    #[error("a batch has at least one request and one byte")]
    Batch,
    /// [`Config::cpus`] names CPUs that workers cannot be bound to.
    #[error("workers cannot run on the CPUs asked for")]
    Cpus(#[source] io::Error),
    /// No memory, descriptor or thread to be had.
    #[error("the system has no memory, descriptor or thread for a mover")]
    System(#[from] io::Error),
}

/// What [`Mover::close`] does with requests that have not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Runs them.
    Drain,
    /// Completes them as cancelled.
    Abandon,
}

/// What a service did so far. Figures are read one after the other while it goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests completed as done.
    pub done: u64,
    /// Requests completed as failed.
    pub failed: u64,
    /// Requests completed as cancelled.
    pub cancelled: u64,
    /// Bytes copied, as backends say.
    pub bytes: u64,
    /// Calls of a backend.
    pub batches: u64,
    /// Those by submitting threads ([`Config::first_bytes`]).
    pub by_submitters: u64,
    /// Submissions that had to wake a worker: their only system calls.
    pub kicks: u64,
    /// Times that a worker went to sleep.
    pub sleeps: u64,
    /// Times that a worker woke another one.
    pub helpers: u64,
    /// Times that a backend panicked, or returned the wrong number of outcomes, and was replaced.
    pub backend_panics: u64,
    /// Workers that died otherwise and were replaced.
    pub replaced_workers: u64,
    /// Requests by where they are now.
    pub depths: Depths,
}

/// Moves memory of this process without blocking the caller (memif section 3).
///
/// Any number of threads may use it at a time. After `fork` the child's copy is empty: it has no
/// free request and no completion, and closing it does nothing.
pub struct Mover {
    pub(crate) shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    cpus: Vec<CpuId>,
    closed: bool,
}

impl Mover {
    /// Starts the workers. `backend` is called with each worker's number, here and again when a
    /// backend panicked and must be replaced.
    ///
    /// # Errors
    /// A setting out of range, or a system out of resources; then nothing is left behind.
    pub fn open(
        config: Config,
        backend: impl FnMut(usize) -> Box<dyn Backend + Send> + Send + 'static,
    ) -> Result<Self, OpenError> {
        let workers = config.workers;
        let mover = Self::build(config, Box::new(backend))?;
        mover.check_cpus()?;
        for number in 0..workers {
            room(WORKER_BYTES)?;
            let mut worker = Worker::new(Arc::clone(&mover.shared), number);
            mover.start(number, move || worker.run())?;
        }
        room(LEFT_BYTES)?;
        Ok(mover)
    }

    /// A service without threads, whose requests are moved by whoever calls [`Server::serve`]:
    /// for programs that have a thread to spare at times, and for measuring and testing without
    /// the chances of scheduling. [`Config::workers`] must be 1; closing runs nothing.
    ///
    /// # Errors
    /// As [`Mover::open`].
    pub fn open_unserved(
        config: Config,
        backend: impl FnMut(usize) -> Box<dyn Backend + Send> + Send + 'static,
    ) -> Result<(Self, Server), OpenError> {
        if config.workers != 1 {
            return Err(OpenError::Workers(config.workers));
        }
        let mover = Self::build(config, Box::new(backend))?;
        let worker = Worker::new(Arc::clone(&mover.shared), 0);
        Ok((mover, Server { worker }))
    }

    fn build(config: Config, factory: Factory) -> Result<Self, OpenError> {
        if !(1..=MOST_SLOTS).contains(&config.capacity) {
            return Err(OpenError::Capacity(config.capacity));
        }
        if !(1..=MOST_WORKERS).contains(&config.workers) {
            return Err(OpenError::Workers(config.workers));
        }
        if config.batch_requests == 0 || config.batch_bytes == 0 {
            return Err(OpenError::Batch);
        }
        let clock = Clock::new();
        let now_ns = clock.now_ns();
        let rate = config.rate_limit_bytes_per_s;
        let eventfd = config.notify == Notify::Eventfd;
        let shared = Arc::new(Shared {
            instance: Instance::new(config.capacity, config.workers, eventfd)?,
            clock,
            limits: Limits {
                workers: config.workers,
                batch_requests: config.batch_requests,
                batch_bytes: config.batch_bytes,
                spin_us: config.spin_us,
                small_bytes: config.small_bytes,
                first_bytes: config.first_bytes,
            },
            pid: Pid(own_pid()),
            rate: rate.map(|rate| Mutex::new(TokenBucket::new(rate, now_ns))),
            factory: Mutex::new(factory),
            desks: boxed((0..config.workers).map(|_| Mutex::new(None)))?,
            first_ns: Plain64::default(),
            names: Mutex::new(Vec::new()),
            closing: AtomicU32::new(OPEN),
            pause: Bell::new(),
            dead_count: AtomicU32::new(0),
            dead: Mutex::new(Vec::new()),
            figures: Figures::default(),
        });
        Ok(Self {
            shared,
            threads: Mutex::new(Vec::new()),
            cpus: config.cpus,
            closed: false,
        })
    }

    /// Starts the thread of a worker and notes it.
    fn start(&self, number: usize, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let cpus = self.cpus.clone();
        let thread = spawn(format!("hither-mover-{number}"), move || {
            let mut life = Life {
                shared,
                number,
                ended: false,
            };
            // `open` has tried it; CPUs that went away since do not keep a worker from working.
            let _ = bind(&cpus);
            run();
            life.ended = true;
        })?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// Replaces workers that died. Cheap where none did.
    #[inline]
    fn heal(&self) {
        if self.shared.dead_count.load(Ordering::Relaxed) != 0 {
            self.replace_dead();
        }
    }

    #[cold]
    fn replace_dead(&self) {
        let dead = std::mem::take(&mut *lock(&self.shared.dead));
        for number in dead {
            let shared = Arc::clone(&self.shared);
            // The backend is made by the new thread: if that panics, it is not the caller's.
            let started = self.start(number, move || Worker::new(shared, number).run());
            if started.is_ok() {
                self.shared.dead_count.fetch_sub(1, Ordering::Relaxed);
                self.shared.figures.replaced_workers.add(1);
            } else {
                lock(&self.shared.dead).push(number);
            }
        }
    }

    /// A request to fill, or `None` where all are in use (retrieve some), or after `fork`.
    #[inline]
    #[must_use]
    pub fn request(&self) -> Option<Request<'_>> {
        let held = self.shared.instance.allocate()?;
        Some(Request::new(self, held))
    }

    pub(crate) fn release(&self, held: Held) {
        self.shared.instance.release(held);
    }

    /// Hands a request to the workers. Never blocks, but for requests up to [`Config::first_bytes`], and makes no
    /// system call while a worker is awake.
    ///
    /// # Errors
    /// The request and what is wrong with it.
    #[inline]
    pub fn submit<'m>(&self, request: Request<'m>) -> Result<RequestId, Rejected<'m>> {
        self.submit_as(request, false)
    }

    /// Hands a request to the workers, and its completion to the future.
    ///
    /// # Errors
    /// The request and what is wrong with it.
    pub fn submit_async<'m>(
        &'m self,
        request: Request<'m>,
    ) -> Result<MoveFuture<'m>, Rejected<'m>> {
        let id = self.submit_as(request, true)?;
        Ok(MoveFuture::new(self, id))
    }

    #[inline]
    fn submit_as<'m>(
        &self,
        request: Request<'m>,
        for_future: bool,
    ) -> Result<RequestId, Rejected<'m>> {
        let checked = if std::ptr::eq(request.mover, self) {
            request.check().map_err(SubmitError::from)
        } else {
            Err(SubmitError::Foreign)
        };
        if let Err(reason) = checked {
            return Err(Rejected {
                request: Some(request),
                reason,
            });
        }
        let (held, asked) = request.into_parts();
        let ticks = self.shared.clock.stamp();
        let shared = &*self.shared;
        let first = match shared.limits.first_bytes {
            0 => Err(held),
            _ => shared.serve_first(held, &asked, ticks, for_future),
        };
        let submitted =
            first.unwrap_or_else(|held| shared.instance.submit(held, &asked, ticks, for_future));
        self.heal();
        submitted.map_err(|forked| Rejected {
            request: None,
            reason: forked.into(),
        })
    }

    /// A completion, if there is one: the result is copied and its request free again. Never
    /// blocks. No system call, but with [`Notify::Eventfd`] one to drain the eventfd, at most for
    /// every second call in a row that finds nothing.
    #[inline]
    #[must_use]
    pub fn retrieve(&self) -> Option<Completion> {
        let instance = &self.shared.instance;
        let (index, state) = match instance.take_completed() {
            Some(completed) => {
                instance.notifier.found();
                completed
            }
            None => self.retrieve_late()?,
        };
        Some(instance.result(index, state))
    }

    /// The rest of a retrieval that found nothing.
    fn retrieve_late(&self) -> Option<(u16, u64)> {
        self.heal();
        let instance = &self.shared.instance;
        let look = || instance.take_completed();
        instance
            .notifier
            .found_nothing(instance.region.header(), look)
    }

    /// A completion, waiting for one up to `timeout`, or for ever. `None` after the time, and at
    /// once after `fork`. With nothing submitted nothing will complete, and without a `timeout` this
    /// then waits for another thread's submission.
    #[must_use]
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Completion> {
        // Not armed where something is there already: an arm costs the worker a system call.
        self.retrieve()
            .or_else(|| self.sleep_until(1, timeout, || self.retrieve()))
    }

    /// Waits until `count` completions can be retrieved, up to `timeout`, or for ever. Fewer
    /// wake-ups than as many times [`Mover::wait`]. False after the time, and where `wait` returns
    /// `None` at once. Completions that other threads retrieve meanwhile do not count, nor those
    /// of futures: with less than `count` requests under way that is a wait for other threads'
    /// submissions.
    #[must_use]
    pub fn wait_for(&self, count: u16, timeout: Option<Duration>) -> bool {
        self.heal();
        let header = self.shared.instance.region.header();
        let look = || (notify::completed(header) >= u64::from(count)).then_some(());
        look()
            .or_else(|| self.sleep_until(u64::from(count), timeout, look))
            .is_some()
    }

    /// Sleeps until `look` finds something, which needs `least` completions.
    fn sleep_until<T>(
        &self,
        least: u64,
        timeout: Option<Duration>,
        look: impl Fn() -> Option<T>,
    ) -> Option<T> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let instance = &self.shared.instance;
        let header = instance.region.header();
        loop {
            let rings = instance.notifier.rings(header);
            instance.notifier.arm_waiting(header, least);
            if let Some(found) = look() {
                return Some(found);
            }
            if instance.region.is_wiped() {
                return None;
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return None;
            }
            header.completion_bell.0.wait(rings, left);
        }
    }

    /// Cancels a request that has not begun. True: it will complete as cancelled without having
    /// run. False: it is running, finished, or no request.
    #[must_use = "a request that could not be cancelled still completes as usual"]
    pub fn cancel(&self, id: RequestId) -> bool {
        self.shared.instance.cancel(id)
    }

    pub(crate) fn poll_request(
        &self,
        id: RequestId,
        waker: &Waker,
    ) -> Result<Option<Completion>, Forked> {
        self.heal();
        self.shared.instance.poll(id, waker)
    }

    pub(crate) fn abandon(&self, id: RequestId) {
        self.shared.instance.abandon(id);
    }

    /// What to `poll()` for reading, with [`Notify::Eventfd`]: readable once there may be a
    /// completion, provided that [`Mover::retrieve`] has returned `None` since the last one. Only
    /// for polling: whoever reads or writes it may sleep past a completion.
    #[cfg(not(any(loom, shuttle, miri)))]
    #[must_use]
    pub fn notify_fd(&self) -> Option<rustix::fd::BorrowedFd<'_>> {
        let flag = self.shared.instance.notifier.flag();
        flag.map(crate::sync::Flag::descriptor)
    }

    /// Name of the backend of this number ([`Completion::backend`]).
    #[must_use]
    pub fn backend_name(&self, number: u8) -> Option<&'static str> {
        lock(&self.shared.names).get(usize::from(number)).copied()
    }

    /// What it did so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let figures = &self.shared.figures;
        let tally = &self.shared.instance.tally;
        Statistics {
            done: figures.done.get(),
            failed: figures.failed.get(),
            cancelled: figures.cancelled.get(),
            bytes: figures.bytes.get(),
            batches: figures.batches.get(),
            by_submitters: figures.by_submitters.get(),
            kicks: tally.kicks.get(),
            sleeps: tally.sleeps.get(),
            helpers: tally.helpers.get(),
            backend_panics: figures.backend_panics.get(),
            replaced_workers: figures.replaced_workers.get(),
            depths: self.shared.instance.depths(),
        }
    }

    /// Ends the service and returns every completion that was not retrieved. A batch that a
    /// backend is at always finishes first. Dropping a mover abandons.
    #[must_use = "these are the last completions"]
    pub fn close(mut self, how: Close) -> Vec<Completion> {
        self.shut_down(how);
        let mut rest = Vec::new();
        while let Some(completion) = self.shared.instance.retrieve() {
            rest.push(completion);
        }
        rest
    }

    fn shut_down(&mut self, how: Close) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let threads = std::mem::take(&mut *lock(&self.threads));
        let instance = &self.shared.instance;
        if instance.region.is_wiped() {
            // A child after fork has no such threads, and nothing that backends hold is the child's to end.
            threads.into_iter().for_each(std::mem::forget);
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        let mode = match how {
            Close::Drain => DRAIN,
            Close::Abandon => ABANDON,
        };
        self.shared.closing.store(mode, Ordering::Release);
        instance.region.header().bell.0.ring(i32::MAX as u32);
        self.shared.pause.ring(i32::MAX as u32);
        for thread in threads {
            // A worker that died has completed its batch, and said so on standard error.
            let _ = thread.join();
        }
        // What is left where every worker had died.
        self.sweep();
    }

    fn sweep(&self) {
        let shared = &*self.shared;
        shared.instance.flush();
        while let Some(mut taken) = shared.instance.take() {
            taken.cancelled = true;
            let outcome = refused(shared, &taken, Refusal::Dropped);
            let queued_ns = shared.clock.present().since_ns(taken.submitted_ticks);
            complete(shared, &taken, &outcome, queued_ns, 0);
        }
    }

    /// Tries the binding on a thread that then ends.
    fn check_cpus(&self) -> Result<(), OpenError> {
        if self.cpus.is_empty() {
            return Ok(());
        }
        let cpus = self.cpus.clone();
        let result = Arc::new(std::sync::Mutex::new(Ok(())));
        let told = Arc::clone(&result);
        let thread = spawn("hither-mover-?".to_owned(), move || {
            let bound = bind(&cpus);
            *told.lock().unwrap_or_else(|held| held.into_inner()) = bound;
        })?;
        let _ = thread.join();
        let mut result = result.lock().unwrap_or_else(|held| held.into_inner());
        std::mem::replace(&mut *result, Ok(())).map_err(OpenError::Cpus)
    }

    #[cfg(all(test, shuttle))]
    pub(crate) fn instance(&self) -> &Instance {
        &self.shared.instance
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.shut_down(Close::Abandon);
    }
}

impl fmt::Debug for Mover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mover")
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

/// The worker of a service without threads ([`Mover::open_unserved`]).
pub struct Server {
    worker: Worker,
}

impl Server {
    /// Moves what was submitted until nothing is queued, on this thread.
    pub fn serve(&mut self) {
        self.worker.serve_queued();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

/// Notices that a worker's thread ends though nobody asked it to.
struct Life {
    shared: Arc<Shared>,
    number: usize,
    ended: bool,
}

impl Drop for Life {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        lock(&self.shared.dead).push(self.number);
        self.shared.dead_count.fetch_add(1, Ordering::Relaxed);
        let instance = &self.shared.instance;
        instance.notifier.wake_all(instance.region.header());
    }
}

#[cfg(not(any(loom, shuttle, miri)))]
fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

#[cfg(any(loom, shuttle, miri))]
fn own_pid() -> i32 {
    1
}

/// Binds the calling thread to the CPUs.
#[cfg(not(any(loom, shuttle, miri)))]
pub(crate) fn bind(cpus: &[CpuId]) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for cpu in cpus {
        let index = cpu.0 as usize;
        if index >= CpuSet::MAX_CPU {
            let text = format!(
                "{cpu} is beyond the largest number, {}",
                CpuSet::MAX_CPU - 1
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        set.set(index);
    }
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(any(loom, shuttle, miri))]
pub(crate) fn bind(_: &[CpuId]) -> io::Result<()> {
    Ok(())
}
