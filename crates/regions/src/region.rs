//! Regions, and visits to them.

use crate::domain::Domain;
use crate::error::Error;
use crate::life::{self, Life};
use crate::patience::{Patience, pauses};
use crate::protocol::{Inbox, Visit};
use crate::worker::{self, Told};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most workers of a region: as many CPUs share no cache that was ever built.
const MOST_WORKERS: usize = 1024;

/// How a region is worked on.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads that answer visits. With one, the usual, visits are answered one after another.
    pub workers: usize,
    /// How long a caller and a worker spin at most before they sleep: about what sleeping and waking cost.
    pub spin: Duration,
    /// Stack of each worker: closures of visits run on it.
    pub stack_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            workers: 1,
            spin: Duration::from_micros(20),
            stack_bytes: 8 << 20,
        }
    }
}

/// What happened since a region was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Visits that workers answered; those that ran in place are not counted.
    pub visits: u64,
    /// How often a caller waited so long that it slept.
    pub caller_sleeps: u64,
    /// How often a worker waited so long for a visit that it slept.
    pub worker_sleeps: u64,
}

/// A worker's inbox, in cache lines of its own; processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Lane {
    pub(crate) inbox: Inbox,
    own: Own,
}

/// What callers do not look at.
#[derive(Debug)]
#[repr(align(128))]
struct Own {
    patience: Patience,
    /// Written by the worker alone.
    visits: AtomicU64,
}

/// What a region, its workers and its callers use.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) domain: Domain,
    pub(crate) life: Life,
    pub(crate) lanes: Box<[Lane]>,
    callers: Callers,
}

/// Hints, written by callers.
#[derive(Debug)]
#[repr(align(128))]
struct Callers {
    patience: Patience,
    /// Visits of each lane that are not answered; kept where there are several lanes.
    loads: Box<[AtomicU32]>,
}

/// Memory that is worked on by threads on the CPUs of one [`Domain`]: see [`Region::run`].
///
/// Any thread may visit it, through a reference. It ends when it is dropped, which nobody can do during a visit.
#[derive(Debug)]
pub struct Region {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Region {
    /// A region with one worker on the CPUs of the domain.
    ///
    /// # Errors
    /// As [`Region::with`].
    pub fn new(domain: Domain) -> Result<Self, Error> {
        Self::with(domain, &Config::default())
    }

    /// A region whose workers are started, and pinned to all CPUs of the domain.
    ///
    /// # Errors
    /// A setting has no meaning, there is no memory or thread, or the domain's CPUs may not be used any more.
    pub fn with(domain: Domain, config: &Config) -> Result<Self, Error> {
        if !(1..=MOST_WORKERS).contains(&config.workers) {
            return Err(Error::Invalid(format!(
                "workers is {}: it is 1 to {MOST_WORKERS}",
                config.workers
            )));
        }
        let longest = pauses(config.spin.min(Duration::from_millis(10)));
        let lane = |_| Lane {
            inbox: Inbox::new(),
            own: Own {
                patience: Patience::new(longest),
                visits: AtomicU64::new(0),
            },
        };
        let life = Life::here().map_err(Error::system("no page to note forks in (Linux 4.14)"))?;
        let shared = Arc::new(Shared {
            domain,
            life,
            lanes: (0..config.workers).map(lane).collect(),
            callers: Callers {
                patience: Patience::new(longest),
                loads: (0..config.workers).map(|_| AtomicU32::new(0)).collect(),
            },
        });
        // Dropped where a worker cannot be started: those before it end.
        let mut region = Self {
            shared,
            threads: Vec::new(),
        };
        for lane in 0..config.workers {
            region.start(lane, config.stack_bytes)?;
        }
        Ok(region)
    }

    fn start(&mut self, lane: usize, stack_bytes: usize) -> Result<(), Error> {
        let told = Arc::new(Told::default());
        let heard = Arc::clone(&told);
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name("hither-region".to_owned())
            .stack_size(stack_bytes)
            .spawn(move || worker::work(&shared, lane, &told))
            .map_err(Error::system("no thread for a region: end some"))?;
        self.threads.push(thread);
        let cpus = self.shared.domain.cpus();
        let granted = heard.wait();
        let what = || {
            format!(
                "region on {cpus}: a thread cannot be kept there: name CPUs that run, in the cpuset"
            )
        };
        let missing = cpus.difference(&granted.map_err(Error::system(what()))?);
        if !missing.is_empty() {
            return Err(Error::Invalid(format!(
                "region on {cpus}: CPUs {missing} are offline or outside the cpuset: leave them out"
            )));
        }
        Ok(())
    }

    /// Its domain.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.shared.domain
    }

    /// Has a worker of the region run `work`, and returns what it returns. The closure may borrow: nobody goes on
    /// before it has ended. A panic in it goes on in the caller.
    ///
    /// Visits of one worker are begun in the order in which they came. In a visit, further ones may be made: one to
    /// the same region runs in place; during one to another region the worker answers its own visitors, so that
    /// regions may visit each other. A lock that is held across such a visit must not be taken by other visits to the
    /// same region: they would run above it, on the same thread.
    ///
    /// In a child after `fork`, which has no workers, `work` runs in place. A child that is forked in a visit must
    /// call exec or _exit in it; one that returns from it instead is ended with a message. A signal handler must not
    /// visit. `work` must return or panic: a C function that leaves it by `longjmp`, `pthread_exit` or
    /// cancellation leaves the caller waiting for ever.
    #[inline]
    pub fn run<F, R>(&self, work: F) -> R
    where
        F: FnOnce() -> R + Send,
        R: Send,
    {
        if !self.shared.life.goes_on() || self.is_here() {
            return work();
        }
        let lane = self.shared.choose();
        let mut frame = Frame {
            work: Some(work),
            answer: None,
            visits: &self.shared.lanes[lane].own.visits,
        };
        let visit = Visit::new(enter::<F, R>, (&raw mut frame).cast());
        self.shared.hand_over(lane, &visit);
        match frame.answer {
            Some(Ok(answer)) => answer,
            Some(Err(panic)) => resume_unwind(panic),
            None => unreachable!("a visit is answered when it has run"),
        }
    }

    /// Is the calling thread one of its workers? A visit runs in place there.
    #[must_use]
    #[inline]
    pub fn is_here(&self) -> bool {
        let own = Arc::as_ptr(&self.shared);
        worker::with_own(|here| here.is_some_and(|worker| worker.region == own))
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let lanes = self.shared.lanes.iter();
        let sum = |figure: fn(&Own) -> u64| lanes.clone().map(|lane| figure(&lane.own)).sum();
        Counts {
            visits: sum(|own| own.visits.load(Ordering::Relaxed)),
            caller_sleeps: self.shared.callers.patience.sleeps(),
            worker_sleeps: sum(|own| own.patience.sleeps()),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.shared.life.goes_on() {
            // A child: these threads are its parent's.
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        let stops: Vec<Visit> = self.threads.iter().map(|_| Visit::stop()).collect();
        for (lane, stop) in self.shared.lanes.iter().zip(&stops) {
            // SAFETY: the stop lives until the worker has ended, and is in no other list.
            unsafe { Inbox::push(&raw const lane.inbox, stop) };
        }
        for thread in self.threads.drain(..) {
            // It answers no visit, as these borrow the region; so it ends, and panics go to callers.
            let _ = thread.join();
        }
    }
}

thread_local! {
    /// Where a thread begins to look for a lane.
    static TURN: Cell<usize> = const { Cell::new(0) };
}

impl Lane {
    pub(crate) fn patience(&self) -> &Patience {
        &self.own.patience
    }
}

impl Shared {
    /// Takes a place on the lane with the fewest visits; of equal ones, each in its turn. By an exchange, as two
    /// callers that looked at the same time would both go to one lane while another's worker is idle.
    #[inline]
    fn choose(&self) -> usize {
        let loads = &self.callers.loads;
        if loads.len() == 1 {
            return 0;
        }
        let first = TURN.get();
        TURN.set(first.wrapping_add(1));
        loop {
            let lanes = (0..loads.len()).map(|step| first.wrapping_add(step) % loads.len());
            let Some((least, lane)) = lanes
                .map(|lane| (loads[lane].load(Ordering::Relaxed), lane))
                .min_by_key(|found| found.0)
            else {
                return 0;
            };
            let taken = loads[lane].compare_exchange(
                least,
                least + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if taken.is_ok() {
                return lane;
            }
        }
    }

    #[inline]
    fn hand_over(&self, lane: usize, visit: &Visit) {
        let (inbox, patience) = (&self.lanes[lane].inbox, &self.callers.patience);
        let before = life::note(Some(self.life));
        worker::with_own(|here| {
            let here = here.filter(|worker| worker.life.goes_on());
            // SAFETY: the visit is new; its frame is not used before it is answered; the lane's worker answers until
            // the region is dropped, which is borrowed.
            unsafe { visit.make(inbox, here.map(|worker| &worker.desk), patience) };
        });
        life::note(before);
        if self.lanes.len() > 1 {
            self.callers.loads[lane].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A closure and its result, on the caller's stack.
struct Frame<'a, F, R> {
    work: Option<F>,
    answer: Option<std::thread::Result<R>>,
    visits: &'a AtomicU64,
}

/// # Safety
/// `data` is a frame of these types that nobody else uses now.
unsafe fn enter<F: FnOnce() -> R, R>(data: *mut ()) {
    // SAFETY: as the caller vouches.
    let frame = unsafe { &mut *data.cast::<Frame<'_, F, R>>() };
    // The worker's alone: no other thread writes it.
    let visits = frame.visits.load(Ordering::Relaxed);
    frame.visits.store(visits + 1, Ordering::Relaxed);
    if let Some(work) = frame.work.take() {
        // What a panic leaves behind is the caller's to judge, to whom it goes on.
        frame.answer = Some(catch_unwind(AssertUnwindSafe(work)));
    }
    life::end_lost_child();
}
