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
//! Pages that the kernel refers to without having pinned them (vmsplice(2), `MSG_ZEROCOPY`) are taken
//! like others, as nobody can tell; the kernel goes on reading the old page, which is not used again
//! unless [`PoolLimits::recycle`] says so. What the program stores there meanwhile the kernel does not see:
//! both calls ask for the memory to be left alone until they are done.
//!
//! Source: userfaultfd(2), ioctl_userfaultfd(2), Linux `mm/userfaultfd.c` (6.18); memif
//! section 5.2 for the race policies.

mod by_kernel;
mod exchange;
mod fork_gate;
mod guard;
mod journal;
mod monitor;
mod pool;
mod runs;
mod span;
mod survey;
mod work;

use super::copy::Copier;
use super::engine::EngineDriver;
use super::kernel::KernelBackend;
use crate::filter;
use crate::sys::{self, Userfault, feature};
use exchange::{Fate, Slots};
use guard::Threads;
use hither_core::ids::NodeId;
use hither_mover::{Backend, Job, Outcome, Unavailable, collect};
use journal::Shared;
use monitor::Monitor;
use pool::{Pool, Size};
use span::{Ledger, spans};
use std::sync::Arc;
use std::thread::{JoinHandle, ThreadId};
use survey::Locator;

pub use pool::PoolLimits;

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

impl Step {
    /// In their order.
    pub const ALL: [Self; 9] = [
        Self::Trapped,
        Self::Leaving,
        Self::Taken,
        Self::Away,
        Self::Copying,
        Self::Copied,
        Self::Arriving,
        Self::Arrived,
        Self::Closed,
    ];
}

/// Called at every step.
pub type Hook = Option<Arc<dyn Fn(Step) + Send + Sync>>;

/// How to exchange.
#[derive(Clone)]
pub struct Config {
    /// Stock of pages.
    pub limits: PoolLimits,
    /// Work without `CAP_SYS_PTRACE` too, with the dangers that the module names.
    pub without_privilege: bool,
    /// Exchange pages that are on the target already: for tests and benchmarks on one node.
    pub in_place: bool,
    /// Threads that share copies of 512 KiB and more, the worker included. One alone does not use
    /// up the way between two nodes; two do, at more CPU time.
    pub copiers: usize,
    /// Let a copy engine copy, where the machine has one and it is cheaper.
    pub engine: bool,
    /// For tests.
    pub hook: Hook,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: PoolLimits::default(),
            without_privilege: false,
            in_place: false,
            copiers: 1,
            engine: true,
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
    threads: Threads,
    config: Config,
    /// This process.
    own: i32,
    /// The thread that works, and its number for the kernel.
    worker: Option<(ThreadId, i32)>,
    /// Until when the threads need no other look, in ns.
    threads_seen_ns: u64,
    fates: Vec<Fate>,
    slots: Vec<Slots>,
    nodes: Vec<i32>,
}

impl SwapBackend {
    /// Opens contexts, reserves the pool's addresses and starts the two threads.
    ///
    /// # Errors
    /// Why it cannot work here.
    pub fn new(config: Config) -> Result<Self, Unavailable> {
        let (traps, privileged) = open_traps(config.without_privilege)?;
        let system = |error: std::io::Error| {
            let why = format!("the pool of pages cannot be set up ({error})");
            let remedy = filter::remedy("clone3", &error);
            let more = || "allow more memory or threads to this process".to_owned();
            Unavailable::new(why, remedy.unwrap_or_else(more))
        };
        let receiver = Userfault::new(feature::MOVE | feature::WRITE_PROTECT, true)
            .map_err(|error| missing_call(&error))?;
        let pool = Pool::new(&receiver, config.limits).map_err(system)?;
        let shared = Arc::new(Shared::new(traps, receiver, privileged).map_err(system)?);
        let monitor = Monitor::start(Arc::clone(&shared)).map_err(system)?;
        let stock = Arc::clone(&pool);
        let keep = move || stock.keep_in_stock();
        let stocker = hither_mover::spawn("hither-pages".into(), keep).map_err(system)?;
        Ok(Self {
            shared,
            pool,
            stocker: Some(stocker),
            monitor,
            kernel: KernelBackend::of_own_memory(),
            locator: Locator::new().map_err(system)?,
            copier: Copier::new(config.copiers.max(1), &[])
                .map_err(system)?
                .with_engine(EngineDriver::open_if(config.engine)),
            threads: Threads::new().map_err(system)?,
            config,
            own: std::process::id() as i32,
            worker: None,
            threads_seen_ns: 0,
            fates: Vec::with_capacity(journal::MOST_PAGES),
            slots: Vec::with_capacity(journal::MOST_PAGES),
            nodes: Vec::with_capacity(journal::MOST_PAGES),
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
        | feature::EVENT_UNMAP
        | feature::THREAD_ID
        | feature::EXACT_ADDRESS;
    let told = Userfault::new(features | feature::EVENT_FORK, false);
    let error = match told {
        Ok(traps) => return Ok((traps, true)),
        Err(error) => error,
    };
    // Faults of the program alone are told to everybody, unless the call itself is forbidden.
    if let Err(refused) = Userfault::new(0, true)
        && filter::refuses(&refused)
    {
        return Err(missing_call(&refused));
    }
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
    let refused = filter::remedy("userfaultfd", error);
    let refused = refused.map(|remedy| {
        format!("{remedy}; or give the container the device (`--device /dev/userfaultfd`)")
    });
    Unavailable::new(
        format!("userfaultfd(2) with UFFDIO_MOVE is not to be had ({error})"),
        refused.unwrap_or_else(|| "use Linux 6.11 or newer with CONFIG_USERFAULTFD".to_owned()),
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
        collect(jobs, |tell| self.execute_each(jobs, tell))
    }

    fn execute_each(&mut self, jobs: &[Job<'_>], tell: &mut dyn FnMut(usize, Outcome)) {
        self.check_threads();
        let mut ledger = Ledger::new(jobs, tell);
        for span in spans(self.own, jobs, &mut ledger) {
            self.span(&span, &mut ledger);
        }
        ledger.finish();
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
