//! One turn after the other: observe, decide, have it done.

use crate::{Dry, Execute};
use hither_core::engine::Engine;
use hither_core::explain::Entry;
use hither_core::observation::Observer;
use hither_core::plan::{MoveOutcome, MoveRequest, Plan};
use hither_core::snapshot::Snapshot;

/// Least time between two turns in us, so that nothing can make hither spin.
pub const LEAST_SLEEP_US: u64 = 1000;

/// Sees what is asked for before any of it moves; where it cannot take that down, nothing moves.
pub type Witness = Box<dyn FnMut(&Engine, &Snapshot, &[MoveRequest]) -> Result<(), String>>;

/// The loop's state: who observes, who decides, who acts.
pub struct Agent<O, E> {
    observer: O,
    engine: Engine,
    executor: E,
    witness: Option<Witness>,
    outcomes: Vec<MoveOutcome>,
    /// Time to the next turn where one fails, in us.
    interval_us: u64,
    failures: u64,
    notes: Vec<String>,
}

/// What a turn came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurnResult {
    /// When the next is due, in us after the beginning of this one.
    pub next_us: u64,
    /// Was the interval observed? Nothing was decided otherwise.
    pub is_observed: bool,
    /// Pages that were asked to move.
    pub asked_pages: u64,
    /// Pages of which it is known since the last turn that they moved.
    pub moved_pages: u64,
    /// Pages of which it is known since the last turn that they did not.
    pub refused_pages: u64,
}

impl<O: Observer, E: Execute> Agent<O, E> {
    /// A loop that begins.
    #[must_use]
    pub fn new(observer: O, engine: Engine, executor: E, interval_us: u64) -> Self {
        Self {
            observer,
            engine,
            executor,
            witness: None,
            outcomes: Vec::new(),
            interval_us,
            failures: 0,
            notes: Vec::new(),
        }
    }

    /// Has what is asked for seen before it moves.
    pub fn set_witness(&mut self, witness: Witness) {
        self.witness = Some(witness);
    }

    /// One turn. A failed observation costs an interval, not the loop.
    pub fn turn(&mut self, now_us: u64) -> TurnResult {
        self.turn_with(now_us, |_, _| {})
    }

    /// The same, where `meet` sees what was observed before it is decided on: scopes that it adds have their
    /// processes in this turn.
    pub fn turn_with(
        &mut self,
        now_us: u64,
        meet: impl FnOnce(&mut Engine, &Snapshot),
    ) -> TurnResult {
        let (mut turn, plan) = self.decide(now_us, meet);
        turn.next_us = self.interval_us;
        if let Some(plan) = plan {
            turn.next_us = plan.next_interval_us.max(LEAST_SLEEP_US);
            // First, so that samples tell of the time of the moves, which may be long.
            self.observer.set_sampling(plan.sampling);
            self.observer.list_residents(plan.listing);
            let refused = self.executor.submit(now_us, plan.requests);
            self.outcomes.extend(refused);
            self.notes.extend(self.executor.run_on(plan.places));
        }
        turn
    }

    /// The last turn: what is on its way goes into the account, and nothing new is begun.
    pub fn finish(&mut self, now_us: u64) -> TurnResult {
        self.outcomes.extend(self.executor.close(now_us));
        self.decide(now_us, |_, _| {}).0
    }

    /// Observes, and asks the engine where that could be done.
    fn decide(
        &mut self,
        now_us: u64,
        meet: impl FnOnce(&mut Engine, &Snapshot),
    ) -> (TurnResult, Option<Plan>) {
        self.outcomes.extend(self.executor.collect(now_us));
        let mut turn = TurnResult::default();
        let plan = match self.observer.observe(now_us) {
            Ok(snapshot) => {
                self.executor.keep(&snapshot.processes);
                meet(&mut self.engine, snapshot);
                let mut plan = self.engine.step(now_us, snapshot, &self.outcomes);
                for outcome in self.outcomes.drain(..) {
                    turn.moved_pages += outcome.moved.len() as u64;
                    let refused = outcome.refused.iter().map(|(_, count)| count);
                    turn.refused_pages += refused.sum::<u64>();
                }
                if let Some(witness) = &mut self.witness
                    && let Err(why) = witness(&self.engine, snapshot, &plan.requests)
                {
                    self.notes.push(format!("nothing was moved: {why}"));
                    let requests = std::mem::take(&mut plan.requests);
                    self.outcomes.extend(Dry.submit(now_us, requests));
                }
                plan
            }
            Err(error) => {
                self.failures += 1;
                if self.failures == 1 {
                    self.notes
                        .push(format!("an interval could not be observed: {error}"));
                }
                return (turn, None);
            }
        };
        turn.is_observed = true;
        turn.asked_pages = plan.page_count() as u64;
        (turn, Some(plan))
    }

    /// Entries of the log since the last call, oldest first.
    pub fn drain_log(&mut self) -> impl Iterator<Item = Entry> {
        self.engine.log_mut().drain()
    }

    /// Sentences for a person since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        let mut notes = std::mem::take(&mut self.notes);
        notes.extend(self.observer.take_notes());
        notes
    }

    /// Intervals that could not be observed.
    #[must_use]
    pub fn failure_count(&self) -> u64 {
        self.failures
    }

    /// Who decides.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Who decides, without the rest.
    #[must_use]
    pub fn into_engine(self) -> Engine {
        self.engine
    }

    /// Who decides.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Who acts.
    pub fn executor_mut(&mut self) -> &mut E {
        &mut self.executor
    }

    /// Who observes.
    #[must_use]
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// Who observes.
    pub fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }
}
