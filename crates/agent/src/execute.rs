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

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::ids::{NodeId, Pid, ScopeId, SpaceId};
    use hither_core::plan::{Mechanism, Reason};
    use hither_core::snapshot::Evidence;
    use hither_mover::{Outcome, OutcomeBuilder, Unavailable};

    /// Moves everything, in its own account only.
    struct Willing;

    impl Backend for Willing {
        fn name(&self) -> &'static str {
            "willing"
        }

        fn probe(&self) -> Result<(), Unavailable> {
            Ok(())
        }

        fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
            let one = |job: &Job<'_>| {
                let mut builder = OutcomeBuilder::new(job);
                let Action::Migrate { pages, .. } = &job.action else {
                    panic!("the engine only migrates");
                };
                pages.iter().for_each(|page| builder.moved(page));
                builder.finish()
            };
            jobs.iter().map(one).collect()
        }
    }

    fn request(id: u64, pages: u64) -> MoveRequest {
        MoveRequest {
            id,
            scope: ScopeId(0),
            pid: Pid(1),
            space: SpaceId(1),
            pages: (0..pages).collect(),
            to: NodeId(1),
            reason: Reason {
                mechanism: Mechanism::Collocate,
                because: "test".into(),
            },
            predicted_gain_ns: Evidence::unknown("test"),
        }
    }

    fn told(outcomes: &[MoveOutcome]) -> Vec<(u64, usize, u64)> {
        let one = |outcome: &MoveOutcome| {
            let refused = outcome.refused.iter().map(|(_, count)| count).sum();
            (outcome.request, outcome.moved.len(), refused)
        };
        outcomes.iter().map(one).collect()
    }

    #[test]
    fn every_request_has_one_outcome_whether_it_is_moved_dropped_or_only_looked_at() {
        let requests = || vec![request(1, 20_000), request(2, 3), request(3, 20_000)];
        let mut inline = Inline::new(Box::new(Willing), || false);
        inline.submit(0, requests());
        let all = [(1, 20_000, 0), (2, 3, 0), (3, 20_000, 0)];
        assert_eq!(told(&inline.collect(0)), all);
        assert!(inline.close(0).is_empty());
        let mut late = Inline::new(Box::new(Willing), || true);
        late.submit(0, requests());
        let none = [(1, 0, 20_000), (2, 0, 3), (3, 0, 20_000)];
        assert_eq!(told(&late.close(0)), none);
        let mut dry = Dry::default();
        dry.submit(0, requests());
        assert_eq!(told(&dry.collect(0)), none);
    }
}
