//! Regions of one program over several caches, where that pays.
//!
//! Problem: whether it is worth handing visits over depends on sizes, on how long visits are and on what the
//! machine does with them; who is wrong loses more than half of the speed. A program that knows its regions should not
//! have to know that.
//!
//! Mechanism: the program declares how large the working set of each region is. [`rule`] refuses what cannot
//! gain; [`judge`] tries the rest by windows of visits in place and handed over, keeps what gains, and asks again
//! now and then. A visit that nobody watches reads two words more than one without all this.

mod judge;
mod rule;

pub(crate) use judge::{Judge, Order, Watch};
pub use judge::{RegionUse, UnifyState};
pub use rule::Reason;
pub(crate) use rule::{Tally, long_enough};

use crate::domain::Domain;
use crate::error::Error;
use crate::region::{Config, Region};
use hither_linux::sys;
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bits of the order: visits are handed over,
const IS_ON: u64 = 1;
/// each visit is timed,
const TIMES_ALL: u64 = 2;
/// one of [`SAMPLE`] is timed. The rest is a number: no two orders are alike.
const TIMES_SOME: u64 = 4;
const NEXT: u64 = 8;

/// While a decision rests, a thread times one of so many visits: a prime number, so that it is not always the same
/// region's.
const SAMPLE: u32 = 61;
/// Hand-overs that are made for the cost of one: at most, and at least. A worker's patience needs some to get long.
const MOST_HAND_OVERS: usize = 64;
const LEAST_HAND_OVERS: usize = 8;
/// As long as there is time for them.
const COST_TIME: Duration = Duration::from_millis(3);
/// Longest pause before each of them. A worker that waits for longer sleeps.
const MOST_PAUSE: Duration = Duration::from_micros(100);

/// Regions of a program that are visited in turns, and caches to keep them in: see [`Unified::run`].
///
/// Callers whose CPU has the region's cache visit in place, so that a region with several callers may have several visits
/// at the same time.
#[derive(Debug)]
pub struct Unified {
    /// What callers do: [`IS_ON`], what is timed, and a number.
    order: AtomicU64,
    /// Of each region its cache.
    places: Box<[AtomicUsize]>,
    /// Of each CPU its cache; CPUs of none have a number that no cache has.
    cache_of: Box<[usize]>,
    /// One for each cache.
    workers: Vec<Region>,
    watched: Watched,
    judge: Mutex<Judge>,
}

/// What callers add up. All are hints, without order; a lost update makes a window a little longer.
#[derive(Debug)]
#[repr(align(128))]
struct Watched {
    skip_ns: AtomicI64,
    left_ns: AtomicI64,
    left_visits: AtomicI64,
    tallies: Box<[(AtomicU64, AtomicU64)]>,
}

thread_local! {
    /// Visits since this thread timed one.
    static SINCE: Cell<u32> = const { Cell::new(0) };
}

impl Unified {
    /// Regions with these working sets, in bytes, over these caches. Each cache gets a worker.
    ///
    /// # Errors
    /// There is no region, a cache's size is not known ([`Domain::with_cache_bytes`] says it), or as [`Region::new`].
    pub fn new(caches: Vec<Domain>, sets: &[u64]) -> Result<Self, Error> {
        Self::with(caches, sets, &Config::default())
    }

    /// The same with workers of this kind.
    ///
    /// # Errors
    /// As [`Unified::new`].
    pub fn with(mut caches: Vec<Domain>, sets: &[u64], config: &Config) -> Result<Self, Error> {
        if sets.is_empty() {
            let text = "regions: there is none: declare one working set at least";
            return Err(Error::Invalid(text.to_owned()));
        }
        // The caller's own cache first: the first of equal regions is then at home where the program runs.
        let own = sys::current_cpu()
            .and_then(|cpu| caches.iter().position(|cache| cache.cpus().contains(cpu)));
        caches.rotate_left(own.unwrap_or(0));
        let mut bytes = Vec::new();
        for cache in &caches {
            let known = cache.cache_bytes().ok_or_else(|| {
                Error::Invalid(format!(
                    "{cache}: the size of its cache is not known: say it by with_cache_bytes"
                ))
            })?;
            bytes.push(known);
        }
        let last = caches
            .iter()
            .filter_map(|cache| cache.cpus().iter().next_back());
        let count = last.max().map_or(0, |last| last.0 as usize + 1);
        let mut cache_of = vec![usize::MAX; count];
        for (index, cache) in caches.iter().enumerate() {
            for cpu in cache.cpus().iter() {
                cache_of[cpu.0 as usize] = index;
            }
        }
        let workers = caches.into_iter().map(|cache| Region::with(cache, config));
        let unified = Self {
            order: AtomicU64::new(0),
            places: sets.iter().map(|_| AtomicUsize::new(0)).collect(),
            cache_of: cache_of.into(),
            workers: workers.collect::<Result<_, _>>()?,
            watched: Watched {
                skip_ns: AtomicI64::new(0),
                left_ns: AtomicI64::new(0),
                left_visits: AtomicI64::new(0),
                tallies: sets.iter().map(|_| Default::default()).collect(),
            },
            judge: Mutex::new(Judge::new(sets.to_vec(), bytes)),
        };
        unified.begin(&unified.locked());
        Ok(unified)
    }

    /// Runs `work` for a region and returns its result: in place, or on a CPU of the region's cache, as it pays.
    ///
    /// What [`Region::run`] says of visits holds for these. Now and then some are timed, and the calling thread makes a few
    /// hand-overs of nothing, 3 ms altogether, to learn what one costs.
    ///
    /// # Panics
    /// There is no such region; and as `work` does.
    #[inline]
    pub fn run<F, R>(&self, region: usize, work: F) -> R
    where
        F: FnOnce() -> R + Send,
        R: Send,
    {
        let order = self.order.load(Ordering::Relaxed);
        if order & (TIMES_ALL | TIMES_SOME) == 0 || order & TIMES_SOME != 0 && !is_turn() {
            return self.visit(order, region, work);
        }
        let start = Instant::now();
        let answer = self.visit(order, region, work);
        self.add(order, region, start.elapsed());
        answer
    }

    #[inline]
    fn visit<F, R>(&self, order: u64, region: usize, work: F) -> R
    where
        F: FnOnce() -> R + Send,
        R: Send,
    {
        let place = self.places[region].load(Ordering::Relaxed);
        if order & IS_ON == 0 || self.own_cache() == Some(place) {
            work()
        } else {
            self.workers[place].run(work)
        }
    }

    /// The cache of the CPU that this thread runs on now.
    #[inline]
    fn own_cache(&self) -> Option<usize> {
        let cpu = sys::current_cpu()?;
        self.cache_of.get(cpu.0 as usize).copied()
    }

    /// A region's working set has this size from now on. Where that is new, the decision is made anew.
    ///
    /// # Panics
    /// There is no such region.
    pub fn declare(&self, region: usize, bytes: u64) {
        let mut judge = self.locked();
        if judge.declare(region, bytes) {
            self.begin(&judge);
        }
    }

    /// How the regions are to be used from now on.
    pub fn set_use(&self, wish: RegionUse) {
        let mut judge = self.locked();
        judge.wish(wish);
        self.begin(&judge);
    }

    /// What was decided, and why.
    #[must_use]
    pub fn state(&self) -> UnifyState {
        self.locked().state()
    }

    fn locked(&self) -> MutexGuard<'_, Judge> {
        self.judge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has callers do what the judge orders.
    fn begin(&self, judge: &Judge) {
        let Order { is_on, watch } = judge.order();
        for (place, new) in self.places.iter().zip(judge.places()) {
            place.store(*new, Ordering::Relaxed);
        }
        for (visits, ns) in &self.watched.tallies {
            visits.store(0, Ordering::Relaxed);
            ns.store(0, Ordering::Relaxed);
        }
        let (times, skip_ns, ns, visits) = match watch {
            Watch::Nothing => (0, 0, 0, 0),
            Watch::Rest { ns } => (TIMES_SOME, 0, ns, 0),
            Watch::Window {
                skip_ns,
                ns,
                visits,
            } => (TIMES_ALL, skip_ns, ns, visits),
        };
        self.watched
            .skip_ns
            .store(skip_ns as i64, Ordering::Relaxed);
        self.watched.left_ns.store(ns as i64, Ordering::Relaxed);
        self.watched
            .left_visits
            .store(visits as i64, Ordering::Relaxed);
        let number = (self.order.load(Ordering::Relaxed) & !(NEXT - 1)).wrapping_add(NEXT);
        let on = if is_on { IS_ON } else { 0 };
        self.order.store(number | times | on, Ordering::Relaxed);
    }

    /// Notes a visit that began under an order.
    #[cold]
    fn add(&self, order: u64, region: usize, took: Duration) {
        if self.order.load(Ordering::Relaxed) != order {
            return;
        }
        let watched = &self.watched;
        let ns = took.as_nanos() as i64;
        let stands_for = match order & TIMES_SOME {
            0 => ns,
            _ => ns.saturating_mul(i64::from(SAMPLE)),
        };
        if watched.skip_ns.load(Ordering::Relaxed) > 0 {
            watched.skip_ns.fetch_sub(ns, Ordering::Relaxed);
            return;
        }
        let (visits, sum_ns) = &watched.tallies[region];
        visits.fetch_add(1, Ordering::Relaxed);
        sum_ns.fetch_add(ns as u64, Ordering::Relaxed);
        let left_ns = watched.left_ns.fetch_sub(stands_for, Ordering::Relaxed) - stands_for;
        let left_visits = watched.left_visits.fetch_sub(1, Ordering::Relaxed) - 1;
        if left_ns <= 0 && left_visits <= 0 {
            self.advance(order);
        }
    }

    /// A rest or a window is over. Where another thread sees to that, or a child has a lock that nobody holds any more,
    /// all goes on as it was.
    fn advance(&self, order: u64) {
        let Ok(mut judge) = self.judge.try_lock() else {
            return;
        };
        if self.order.load(Ordering::Relaxed) != order {
            return;
        }
        if order & TIMES_SOME != 0 {
            judge.rested();
        } else {
            let tally = |(visits, ns): &(AtomicU64, AtomicU64)| Tally {
                visits: visits.load(Ordering::Relaxed),
                ns: ns.load(Ordering::Relaxed),
            };
            let window: Vec<Tally> = self.watched.tallies.iter().map(tally).collect();
            judge.measured(&window, |visit_ns| self.cost_ns(visit_ns));
        }
        self.begin(&judge);
    }

    /// What a hand-over costs the calling thread, where a worker waits for its next visit as long as it would among visits
    /// of this length: half of the later ones took no longer.
    fn cost_ns(&self, visit_ns: f64) -> f64 {
        let own = self.own_cache();
        let others = (0..self.workers.len()).filter(|&cache| Some(cache) != own);
        let Some(other) = others.min() else {
            return 0.0;
        };
        let between = visit_ns * (self.places.len() - 1) as f64;
        let pause = MOST_PAUSE.min(Duration::from_nanos(between as u64));
        let mut took: Vec<u64> = Vec::with_capacity(MOST_HAND_OVERS);
        let begun = Instant::now();
        while took.len() < LEAST_HAND_OVERS
            || took.len() < MOST_HAND_OVERS && begun.elapsed() < COST_TIME
        {
            let from = Instant::now();
            while from.elapsed() < pause {
                std::hint::spin_loop();
            }
            let start = Instant::now();
            self.workers[other].run(|| ());
            took.push(start.elapsed().as_nanos() as u64);
        }
        let mut later = took.split_off(took.len() / 2);
        later.sort_unstable();
        later[later.len() / 2] as f64
    }
}

/// Is this visit of the calling thread one that is timed?
#[inline]
fn is_turn() -> bool {
    let since = SINCE.get() + 1;
    let is_turn = since >= SAMPLE;
    SINCE.set(if is_turn { 0 } else { since });
    is_turn
}
