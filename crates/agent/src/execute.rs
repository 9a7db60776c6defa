//! How moves that were asked for are carried out.

use hither_core::ids::{CpuId, ScopeId};
use hither_core::plan::{Mechanism, MoveOutcome, MoveRequest, PlaceRequest, Refusal};
use hither_core::snapshot::ProcessState;
use hither_mover::executor::{Executor, ExecutorStep, Factory, Limits, Queue, Task, Ticket};
use hither_mover::{Backend, Outcome};
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

/// Carries out moves. Every request gets one outcome, from this or any later call.
pub trait Execute {
    /// Takes requests, in the order of their value; returns what became of those that it does not
    /// take.
    fn submit(&mut self, now_us: u64, requests: Vec<MoveRequest>) -> Vec<MoveOutcome>;

    /// Drops what waits of processes, or of lives of their memory, that are not among these.
    fn keep(&mut self, living: &[ProcessState]) {
        let _ = living;
    }

    /// Says how many movers work from now on, and on which CPUs each.
    fn place(&mut self, movers: Vec<Vec<CpuId>>) {
        let _ = movers;
    }

    /// Says where programs run from now on; returns sentences about those that cannot be placed.
    fn run_on(&mut self, places: Vec<PlaceRequest>) -> Vec<String> {
        let _ = places;
        Vec::new()
    }

    /// Whether pages wait or are on their way.
    fn is_moving(&self) -> bool {
        false
    }

    /// What became of requests since the last call.
    fn collect(&mut self, now_us: u64) -> Vec<MoveOutcome>;

    /// Begins nothing new, waits for what is on its way, and tells what became of all.
    fn close(&mut self, now_us: u64) -> Vec<MoveOutcome>;
}

impl<E: Execute + ?Sized> Execute for Box<E> {
    fn submit(&mut self, now_us: u64, requests: Vec<MoveRequest>) -> Vec<MoveOutcome> {
        (**self).submit(now_us, requests)
    }

    fn keep(&mut self, living: &[ProcessState]) {
        (**self).keep(living);
    }

    fn place(&mut self, movers: Vec<Vec<CpuId>>) {
        (**self).place(movers);
    }

    fn run_on(&mut self, places: Vec<PlaceRequest>) -> Vec<String> {
        (**self).run_on(places)
    }

    fn is_moving(&self) -> bool {
        (**self).is_moving()
    }

    fn collect(&mut self, now_us: u64) -> Vec<MoveOutcome> {
        (**self).collect(now_us)
    }

    fn close(&mut self, now_us: u64) -> Vec<MoveOutcome> {
        (**self).close(now_us)
    }
}

/// Moves nothing and says so: for who wants to know what would be decided.
#[derive(Debug)]
pub struct Dry;

impl Execute for Dry {
    fn submit(&mut self, _: u64, requests: Vec<MoveRequest>) -> Vec<MoveOutcome> {
        let pages = |request: &MoveRequest| request.pages.len() as u64;
        let all = requests.iter();
        all.map(|request| not_tried(request.id, pages(request)))
            .collect()
    }

    fn collect(&mut self, _: u64) -> Vec<MoveOutcome> {
        Vec::new()
    }

    fn close(&mut self, _: u64) -> Vec<MoveOutcome> {
        Vec::new()
    }
}

/// Moves nothing of some scopes, and says so; what puts pages back of theirs is carried out.
#[derive(Debug)]
pub struct Gate<E> {
    inner: E,
    dry: BTreeSet<ScopeId>,
}

impl<E: Execute> Gate<E> {
    /// Before this executor; all scopes move.
    pub fn new(inner: E) -> Self {
        Self {
            inner,
            dry: BTreeSet::new(),
        }
    }

    /// Whether this scope moves nothing from now on.
    pub fn set_dry(&mut self, scope: ScopeId, is_dry: bool) {
        match is_dry {
            true => self.dry.insert(scope),
            false => self.dry.remove(&scope),
        };
    }
}

impl<E: Execute> Execute for Gate<E> {
    fn submit(&mut self, now_us: u64, requests: Vec<MoveRequest>) -> Vec<MoveOutcome> {
        let is_dry = |request: &MoveRequest| {
            self.dry.contains(&request.scope) && request.reason.mechanism != Mechanism::Revert
        };
        let (dry, wet) = requests.into_iter().partition(is_dry);
        let mut outcomes = Dry.submit(now_us, dry);
        outcomes.extend(self.inner.submit(now_us, wet));
        outcomes
    }

    fn keep(&mut self, living: &[ProcessState]) {
        self.inner.keep(living);
    }

    fn place(&mut self, movers: Vec<Vec<CpuId>>) {
        self.inner.place(movers);
    }

    fn run_on(&mut self, mut places: Vec<PlaceRequest>) -> Vec<String> {
        // Back to what they had go those of dry scopes, too.
        places.retain(|place| place.cpus.is_empty() || !self.dry.contains(&place.scope));
        self.inner.run_on(places)
    }

    fn is_moving(&self) -> bool {
        self.inner.is_moving()
    }

    fn collect(&mut self, now_us: u64) -> Vec<MoveOutcome> {
        self.inner.collect(now_us)
    }

    fn close(&mut self, now_us: u64) -> Vec<MoveOutcome> {
        self.inner.close(now_us)
    }
}

/// Movers with threads of their own: deciding goes on while pages move.
#[derive(Debug)]
pub struct Movers(Executor);

/// What is on its way when a program or the watching ends takes no longer: one call of a backend.
const LAST_SLICE: Duration = Duration::from_secs(60);

impl Movers {
    /// So many, each with a backend of its own.
    ///
    /// # Errors
    /// No thread is to be had.
    pub fn start(limits: Limits, movers: usize, factory: Factory) -> io::Result<Self> {
        Executor::start(limits, movers, factory).map(Self)
    }
}

impl Execute for Movers {
    fn submit(&mut self, _: u64, requests: Vec<MoveRequest>) -> Vec<MoveOutcome> {
        let tasks = requests.iter().map(Task::of_request);
        self.0.submit(tasks).iter().map(full).collect()
    }

    fn keep(&mut self, living: &[ProcessState]) {
        self.0.cancel(gone(living));
    }

    fn place(&mut self, movers: Vec<Vec<CpuId>>) {
        self.0.place(movers);
    }

    fn is_moving(&self) -> bool {
        self.0.left().0 > 0
    }

    fn collect(&mut self, _: u64) -> Vec<MoveOutcome> {
        self.0.collect().into_iter().map(told).collect()
    }

    fn close(&mut self, now_us: u64) -> Vec<MoveOutcome> {
        self.0.cancel(|_| true);
        self.0.wait(LAST_SLICE);
        self.collect(now_us)
    }
}

/// The same queue in the thread of the loop, which moves when outcomes are asked for: for machines
/// that are simulated, where time and order must be the seed's alone.
pub struct Stepped<B> {
    queue: Queue,
    backend: B,
}

impl<B: Backend> Stepped<B> {
    /// By this backend.
    pub fn new(limits: Limits, backend: B) -> Self {
        Self {
            queue: Queue::new(limits, 0),
            backend,
        }
    }
}

impl<B: Backend> Execute for Stepped<B> {
    fn submit(&mut self, _: u64, requests: Vec<MoveRequest>) -> Vec<MoveOutcome> {
        let tasks = requests.iter().map(Task::of_request);
        let left: Vec<Task> = tasks
            .filter_map(|task| self.queue.submit(task).err())
            .collect();
        left.iter().map(full).collect()
    }

    fn keep(&mut self, living: &[ProcessState]) {
        self.queue.cancel(gone(living));
    }

    fn collect(&mut self, now_us: u64) -> Vec<MoveOutcome> {
        let backend = &mut self.backend;
        while self.queue.step(backend, now_us * 1000, &mut |_, _| {}) == ExecutorStep::Done {}
        self.queue.take_finished().into_iter().map(told).collect()
    }

    fn close(&mut self, now_us: u64) -> Vec<MoveOutcome> {
        self.queue.cancel(|_| true);
        self.collect(now_us)
    }
}

/// Is a task of none of these?
fn gone(living: &[ProcessState]) -> impl Fn(Ticket) -> bool {
    let lives = living.iter().map(|process| (process.pid, process.space));
    let lives: BTreeSet<_> = lives.collect();
    move |ticket| !lives.contains(&(ticket.pid, ticket.space))
}

/// What became of a task, as the engine takes it.
fn told((id, outcome): (u64, Outcome)) -> MoveOutcome {
    outcome.of_request(id)
}

/// The queue had no room for it.
fn full(task: &Task) -> MoveOutcome {
    let pages = task.pages.iter().map(|run| run.end - run.start).sum();
    not_tried(task.id, pages)
}

fn not_tried(request: u64, pages: u64) -> MoveOutcome {
    MoveOutcome {
        request,
        moved: Vec::new(),
        already_there: 0,
        refused: vec![(Refusal::Dropped, pages)],
        duration_ns: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::ids::{NodeId, Pid, SpaceId};
    use hither_core::plan::Reason;
    use hither_core::snapshot::Evidence;
    use hither_mover::{Action, Job, OutcomeBuilder, Unavailable};

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

    fn sums(mut outcomes: Vec<MoveOutcome>) -> Vec<(u64, usize, u64)> {
        outcomes.sort_by_key(|outcome| outcome.request);
        let one = |outcome: &MoveOutcome| {
            let refused = outcome.refused.iter().map(|(_, count)| count).sum();
            (outcome.request, outcome.moved.len(), refused)
        };
        outcomes.iter().map(one).collect()
    }

    const ALL: [(u64, usize, u64); 3] = [(1, 20_000, 0), (2, 3, 0), (3, 20_000, 0)];
    const NONE: [(u64, usize, u64); 3] = [(1, 0, 20_000), (2, 0, 3), (3, 0, 20_000)];

    fn requests() -> Vec<MoveRequest> {
        vec![request(1, 20_000), request(2, 3), request(3, 20_000)]
    }

    #[test]
    fn every_request_has_one_outcome_whoever_moves() {
        let mut stepped = Stepped::new(Limits::default(), Willing);
        assert!(stepped.submit(0, requests()).is_empty());
        assert_eq!(sums(stepped.collect(0)), ALL);
        assert!(stepped.close(0).is_empty());
        let mut movers =
            Movers::start(Limits::default(), 2, Box::new(|_| Box::new(Willing))).unwrap();
        assert!(movers.submit(0, requests()).is_empty());
        assert!(movers.0.wait(LAST_SLICE));
        assert_eq!(sums(movers.collect(0)), ALL);
        assert!(movers.close(0).is_empty());
        assert_eq!(sums(Dry.submit(0, requests())), NONE);
    }

    #[test]
    fn of_a_dry_scope_only_what_goes_back_moves() {
        let mut gate = Gate::new(Stepped::new(Limits::default(), Willing));
        gate.set_dry(ScopeId(0), true);
        let mut back = request(4, 5);
        back.reason.mechanism = Mechanism::Revert;
        let mut others = request(5, 6);
        others.scope = ScopeId(1);
        let refused = gate.submit(0, vec![request(3, 7), back.clone(), others]);
        assert_eq!(sums(refused), [(3, 0, 7)]);
        assert_eq!(sums(gate.collect(0)), [(4, 5, 0), (5, 6, 0)]);
        gate.set_dry(ScopeId(0), false);
        assert!(gate.submit(0, vec![request(6, 7)]).is_empty());
        assert_eq!(sums(gate.close(0)), [(6, 0, 7)]);
    }

    #[test]
    fn what_waits_when_it_is_over_is_not_tried_and_what_finds_no_room_neither() {
        let mut stepped = Stepped::new(Limits::default(), Willing);
        stepped.submit(0, requests());
        assert_eq!(sums(stepped.close(0)), NONE);
        let limits = Limits {
            tasks: 2,
            ..Limits::default()
        };
        let mut narrow = Stepped::new(limits, Willing);
        assert_eq!(sums(narrow.submit(0, requests())), NONE[2..]);
        assert_eq!(sums(narrow.collect(0)), ALL[..2]);
    }

    #[test]
    fn what_waits_of_another_life_is_dropped() {
        let mut movers =
            Movers::start(Limits::default(), 0, Box::new(|_| Box::new(Willing))).unwrap();
        let old = MoveRequest {
            space: SpaceId(2),
            ..request(2, 7)
        };
        assert!(movers.submit(0, vec![request(1, 5), old]).is_empty());
        let process = ProcessState {
            name: "test".to_owned(),
            ..ProcessState::unknown(Pid(1), SpaceId(1), "test")
        };
        movers.keep(&[process]);
        assert_eq!(sums(movers.collect(0)), [(2, 0, 7)]);
        movers.keep(&[]);
        assert_eq!(sums(movers.collect(0)), [(1, 0, 5)]);
    }
}
