//! How moves that were asked for are carried out.

use hither_core::plan::{MoveOutcome, MoveRequest, Refusal};
use hither_mover::{Action, Backend, Job, Pages, Race};

/// Pages of a slice: one call of the backend.
const SLICE_PAGES: usize = 16_384;

/// Carries out moves. Every request gets one outcome, from this or any later call.
pub trait Execute {
    /// Takes requests, in the order of their value.
    fn submit(&mut self, now_us: u64, requests: Vec<MoveRequest>);

    /// What became of requests since the last call.
    fn collect(&mut self, now_us: u64) -> Vec<MoveOutcome>;

    /// Begins nothing new, waits for what is on its way, and tells what became of all.
    fn close(&mut self, now_us: u64) -> Vec<MoveOutcome>;
}

impl<E: Execute + ?Sized> Execute for Box<E> {
    fn submit(&mut self, now_us: u64, requests: Vec<MoveRequest>) {
        (**self).submit(now_us, requests);
    }

    fn collect(&mut self, now_us: u64) -> Vec<MoveOutcome> {
        (**self).collect(now_us)
    }

    fn close(&mut self, now_us: u64) -> Vec<MoveOutcome> {
        (**self).close(now_us)
    }
}

/// Moves nothing and says so: for who wants to know what would be decided.
#[derive(Debug, Default)]
pub struct Dry(Vec<MoveOutcome>);

impl Execute for Dry {
    fn submit(&mut self, _: u64, requests: Vec<MoveRequest>) {
        self.0.extend(requests.iter().map(dropped));
    }

    fn collect(&mut self, _: u64) -> Vec<MoveOutcome> {
        std::mem::take(&mut self.0)
    }

    fn close(&mut self, now_us: u64) -> Vec<MoveOutcome> {
        self.collect(now_us)
    }
}

/// Moves at once, in the thread that asks.
pub struct Inline<'a> {
    backend: Box<dyn Backend>,
    /// Is it too late for more?
    is_over: Box<dyn Fn() -> bool + 'a>,
    outcomes: Vec<MoveOutcome>,
}

impl<'a> Inline<'a> {
    /// By this backend, until `is_over` says that nobody needs it any more.
    pub fn new(backend: Box<dyn Backend>, is_over: impl Fn() -> bool + 'a) -> Self {
        Self {
            backend,
            is_over: Box::new(is_over),
            outcomes: Vec::new(),
        }
    }
}

impl Execute for Inline<'_> {
    /// In slices; what is left when it is over is dropped.
    fn submit(&mut self, _: u64, requests: Vec<MoveRequest>) {
        let mut rest = &requests[..];
        while !rest.is_empty() && !(self.is_over)() {
            let mut pages = 0;
            let fits = rest.iter().take_while(|request| {
                let first = pages == 0;
                pages += request.pages.len();
                first || pages <= SLICE_PAGES
            });
            let (slice, after) = rest.split_at(fits.count());
            let jobs: Vec<Job<'_>> = slice.iter().map(job).collect();
            let done = self.backend.execute(&jobs).into_iter().zip(slice);
            let outcomes = done.map(|(outcome, request)| outcome.of_request(request.id));
            self.outcomes.extend(outcomes);
            rest = after;
        }
        self.outcomes.extend(rest.iter().map(dropped));
    }

    fn collect(&mut self, _: u64) -> Vec<MoveOutcome> {
        std::mem::take(&mut self.outcomes)
    }

    fn close(&mut self, now_us: u64) -> Vec<MoveOutcome> {
        self.collect(now_us)
    }
}

/// Not tried.
fn dropped(request: &MoveRequest) -> MoveOutcome {
    MoveOutcome {
        request: request.id,
        moved: Vec::new(),
        already_there: 0,
        refused: vec![(Refusal::Dropped, request.pages.len() as u64)],
        duration_ns: 0,
    }
}

/// What the engine asks for, as a backend takes it.
fn job(request: &MoveRequest) -> Job<'_> {
    Job {
        pid: request.pid,
        action: Action::Migrate {
            pages: Pages::Listed(&request.pages),
            to: request.to,
        },
        race: Race::Block,
    }
}
