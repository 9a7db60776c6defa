//! Moves random ranges, under random settings, and tells everybody what is in flight.

use crate::common::{self, Options, Random, Report};
use crate::memory::{HUGE, PAGE};
use hither_core::ids::{NodeId, Pid};
use hither_linux::backend::swap::{Config, Hook, PoolLimits, Step, SwapBackend};
use hither_mover::{Action, Backend, Job, Outcome, Pages, Race};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Requests that one backend carries out before another takes its place.
const REQUESTS_PER_BACKEND: u64 = 256;

/// What the mover does at this moment. It writes, all others read.
#[derive(Debug, Default)]
pub struct Traffic {
    /// The request in flight: number (24 bits), first page (24 bits), pages (16 bits); 0: none.
    request: AtomicU64,
    /// Odd while a window is open.
    window: AtomicU32,
    pub windows: AtomicU64,
    /// Requests carried out.
    requests: AtomicU64,
    pub stop: AtomicBool,
}

/// A request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request(u64);

impl Request {
    pub fn first(self) -> u64 {
        self.0 >> 16 & 0xFF_FFFF
    }

    pub fn count(self) -> u64 {
        self.0 & 0xFFFF
    }
}

impl Traffic {
    pub fn request(&self) -> Option<Request> {
        match self.request.load(Ordering::SeqCst) {
            0 => None,
            packed => Some(Request(packed)),
        }
    }

    pub fn request_count(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// A number that is odd while a window is open, and another for each window.
    pub fn window(&self) -> u32 {
        self.window.load(Ordering::SeqCst)
    }

    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn step(&self, step: Step) {
        match step {
            Step::Leaving => {
                self.window.fetch_or(1, Ordering::SeqCst);
            }
            Step::Closed => {
                self.windows.fetch_add(1, Ordering::Relaxed);
                self.window.fetch_add(1, Ordering::SeqCst);
            }
            _ => {}
        }
    }
}

/// What came of the requests.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub requests: u64,
    pub moved: u64,
    pub already_there: u64,
    pub refused: BTreeMap<&'static str, u64>,
    pub stall_us: u64,
    pub stalled_requests: u64,
    pub raced: u64,
    pub huge_kept: u64,
    pub huge_split: u64,
    pub forks: u64,
}

impl Tally {
    fn add(&mut self, outcome: &Outcome) {
        self.moved += outcome.moved.len() as u64;
        self.already_there += outcome.already_there;
        for &(refusal, count) in &outcome.refused {
            *self.refused.entry(refusal.name()).or_default() += count;
        }
        self.stall_us += outcome.stall_ns / 1000;
        self.stalled_requests += u64::from(outcome.stall_ns > 0);
        self.raced += u64::from(outcome.raced.is_some());
        self.huge_kept += outcome.huge_kept;
        self.huge_split += outcome.huge_split;
    }

    pub fn report(&self, report: &mut Report) {
        report.met("requests", self.requests);
        report.met("pages moved", self.moved);
        for (reason, count) in &self.refused {
            report.count(&format!("pages refused ({reason})"), *count);
        }
        for (name, count) in [
            ("pages already there", self.already_there),
            ("stall us", self.stall_us),
            ("requests that stalled somebody", self.stalled_requests),
            ("requests ended by a touch", self.raced),
            ("huge pages kept", self.huge_kept),
            ("huge pages split", self.huge_split),
            ("forks provided for", self.forks),
        ] {
            if count > 0 {
                report.count(name, count);
            }
        }
    }
}

/// A thread's means to move.
pub struct Mover {
    options: Options,
    pub random: Random,
    pub traffic: Arc<Traffic>,
    hook: Hook,
    backend: SwapBackend,
    left: u64,
    pub requests_per_backend: u64,
    /// Hardly any stock, where memory is limited: what is in stock counts as this process's.
    pub small_stock: bool,
    number: u64,
    target: u32,
    pub tally: Tally,
}

impl Mover {
    /// `hook` is called at every step, after the traffic has been told.
    pub fn new(options: &Options, stream: u64, hook: Hook) -> Self {
        let mut random = Random::new(options.seed ^ stream << 32);
        let traffic = Arc::new(Traffic::default());
        let told = Arc::clone(&traffic);
        let hook: Hook = Some(Arc::new(move |step| {
            told.step(step);
            if let Some(hook) = &hook {
                hook(step);
            }
        }));
        let backend = backend(options, &mut random, &hook);
        Self {
            options: *options,
            random,
            traffic,
            hook,
            backend,
            left: 0,
            small_stock: false,
            requests_per_backend: REQUESTS_PER_BACKEND,
            number: 0,
            target: 0,
            tally: Tally::default(),
        }
    }

    /// Calls nothing at the steps: not even this program's hooks may be moved while they are called.
    pub fn without_hook(mut self) -> Self {
        self.hook = None;
        self.backend = backend(&self.options, &mut self.random, &None);
        self
    }

    /// Moves random pages of a range.
    pub fn once(&mut self, range: &Range<u64>) {
        if self.left == 0 {
            self.tally.forks += self.backend.fork_count();
            self.backend = match self.small_stock {
                true => backend_with(&self.options, SMALL, &mut self.random, &self.hook),
                false => backend(&self.options, &mut self.random, &self.hook),
            };
            self.left = self.requests_per_backend;
        }
        self.left -= 1;
        let (first, count) = self.choose((range.end - range.start) / PAGE);
        let start = range.start / PAGE + first;
        self.number += 1;
        let packed = (self.number & 0xFF_FFFF) << 40 | first << 16 | count;
        self.traffic.request.store(packed, Ordering::SeqCst);
        let race = self
            .random
            .pick(&[Race::Recover, Race::Recover, Race::Block, Race::Fail]);
        let kind = self.random.below(4);
        let mut cuts: Vec<u64> = (0..kind).map(|_| self.random.below(count + 1)).collect();
        cuts.extend([0, count]);
        cuts.sort_unstable();
        let listed: Vec<u64> = (start..start + count)
            .filter(|_| kind == 0 && !self.random.one_in(8))
            .collect();
        let job = |pages| Job {
            pid: Pid(0),
            action: Action::Migrate {
                pages,
                to: NodeId(self.target),
            },
            race,
        };
        let jobs: Vec<Job<'_>> = match kind {
            0 => vec![job(Pages::Listed(&listed))],
            // Jobs whose pages follow each other.
            _ => cuts
                .windows(2)
                .map(|ends| job(Pages::Run(start + ends[0]..start + ends[1])))
                .collect(),
        };
        for (job, outcome) in jobs.iter().zip(self.backend.execute(&jobs)) {
            if outcome.page_count() != job.page_count() {
                common::fail(&format!("{outcome:?} does not account for {job:?}"));
            }
            self.tally.add(&outcome);
        }
        self.traffic.request.store(0, Ordering::SeqCst);
        self.traffic.requests.fetch_add(1, Ordering::SeqCst);
        self.tally.requests += 1;
        self.target = (self.target + 1) % self.options.nodes;
        common::tick();
    }

    /// Drops the backend: everything of it must be settled afterwards.
    pub fn finish(mut self) -> Tally {
        self.tally.forks += self.backend.fork_count();
        self.tally
    }

    /// First page and pages: 1 to 512, short as often as long, huge pages often whole.
    fn choose(&mut self, pages: u64) -> (u64, u64) {
        let unit = HUGE / PAGE;
        if self.options.huge && pages >= unit && !self.random.one_in(4) {
            return (self.random.below(pages / unit) * unit, unit);
        }
        let most = 1 << self.random.below(10);
        let count = 1 + self.random.below(most.min(pages));
        (self.random.below(pages - count + 1), count)
    }
}

/// Hardly anything may be in stock: slots are filled and dropped all the time.
const SMALL: PoolLimits = PoolLimits {
    stock_bytes: 4 << 20,
    idle_ms: 2,
    recycle: true,
};

/// Nothing is ever in stock: small pages are got on the way, huge ones left to the kernel.
const NONE: PoolLimits = PoolLimits {
    stock_bytes: 0,
    idle_ms: 2,
    recycle: true,
};

/// A backend with random settings.
pub fn backend(options: &Options, random: &mut Random, hook: &Hook) -> SwapBackend {
    let mut limits = match options {
        Options { no_stock: true, .. } => NONE,
        Options { huge: true, .. } => {
            random.pick(&[PoolLimits::default(), PoolLimits::default(), SMALL])
        }
        _ => random.pick(&[PoolLimits::default(), PoolLimits::default(), SMALL, NONE]),
    };
    limits.recycle = options.recycle.unwrap_or_else(|| random.one_in(2));
    backend_with(options, limits, random, hook)
}

fn backend_with(
    options: &Options,
    limits: PoolLimits,
    random: &mut Random,
    hook: &Hook,
) -> SwapBackend {
    let config = Config {
        limits,
        without_privilege: options.unprivileged,
        in_place: options.nodes == 1,
        copiers: random.pick(&[1, 2]),
        hook: hook.clone(),
    };
    let backend = match SwapBackend::new(config) {
        Ok(backend) => backend,
        Err(why) => common::fail(&format!("the backend `swap` cannot work here: {why}")),
    };
    // Without stock small pages are got on the way, and the kernel moves huge ones.
    if !random.one_in(8) {
        for node in 0..options.nodes {
            let huge = if options.huge { 2 * HUGE } else { 0 };
            backend.warm(NodeId(node), 2 * HUGE, huge);
        }
    }
    backend
}
