//! Machine, engine and checkers, turn after turn.

use crate::check::{Checks, Look, Rule, Rules, Violation};
use crate::world::World;
use hither_core::engine::Engine;
use hither_core::plan::MoveOutcome;
use hither_core::snapshot::Snapshot;

/// Changes a snapshot before the engine sees it: how a broken tracker is planted.
pub type Tamper = fn(&mut Snapshot);

/// Time without a move after which it counts as quiet, in us.
const QUIET_US: u64 = 2_000_000;
/// Time in which it must become quiet, or an undo end, in us.
const PATIENCE_US: u64 = 60_000_000;

/// A machine under an engine, with who checks both.
pub struct Simulation {
    /// The machine.
    pub world: World,
    /// Who decides.
    pub engine: Engine,
    /// What was found.
    pub checks: Checks,
    /// Planted.
    pub tamper: Option<Tamper>,
    outcomes: Vec<MoveOutcome>,
    next_us: u64,
    interval_us: u64,
    /// When pages were last asked for.
    asked_us: u64,
}

impl Simulation {
    /// Nothing has happened yet.
    #[must_use]
    pub fn new(world: World, engine: Engine, rules: Rules) -> Self {
        let interval_us = rules.config.interval_us;
        Self {
            asked_us: world.now_us(),
            world,
            engine,
            checks: Checks::new(rules),
            tamper: None,
            outcomes: Vec::new(),
            next_us: interval_us,
            interval_us,
        }
    }

    /// Time passes until the next turn is due, which is then taken.
    pub fn turn(&mut self) {
        self.world.advance(self.next_us);
        self.outcomes.extend(self.world.hands.collect());
        self.next_us = self.interval_us;
        let Some(snapshot) = self.world.observe() else {
            return;
        };
        let plan = match self.tamper {
            None => self.step(&snapshot),
            Some(tamper) => {
                let mut tampered = snapshot.clone();
                tamper(&mut tampered);
                self.step(&tampered)
            }
        };
        self.next_us = plan.next_interval_us;
        self.world.set_sampling(plan.sampling);
        if !plan.requests.is_empty() {
            self.asked_us = self.world.now_us();
        }
        let moved = self.world.hands.take_moved();
        self.world.submit(plan.requests.clone());
        let log: Vec<_> = self.engine.log_mut().drain().collect();
        self.checks.turn(&Look {
            world: &self.world,
            engine: &self.engine,
            snapshot: &snapshot,
            sampling: plan.sampling,
            submitted: &plan.requests,
            collected: &self.outcomes,
            moved: &moved,
            log: &log,
        });
        self.outcomes.clear();
    }

    fn step(&mut self, snapshot: &Snapshot) -> hither_core::plan::Plan {
        let now_us = self.world.now_us();
        self.engine.step(now_us, snapshot, &self.outcomes)
    }

    /// Turns until so much time has passed.
    pub fn run(&mut self, length_us: u64) {
        let end_us = self.world.now_us() + length_us;
        while self.world.now_us() < end_us {
            self.turn();
        }
    }

    /// Turns until `is_so`; else one thing more is found.
    fn await_that(&mut self, rule: Rule, what: &str, is_so: impl Fn(&Self) -> bool) {
        let end_us = self.world.now_us() + PATIENCE_US;
        while !is_so(self) {
            if self.world.now_us() >= end_us {
                let text = format!("{what} did not come within {} s", PATIENCE_US / 1_000_000);
                self.checks.add(rule, self.world.now_us(), text);
                return;
            }
            self.turn();
        }
    }

    /// Nothing goes wrong any more; it shall become quiet, if its policies ever do.
    pub fn calm(&mut self, becomes_quiet: bool) {
        self.world.calm();
        let is_answered = |simulation: &Self| simulation.engine.pending_count() == 0;
        if becomes_quiet {
            self.await_that(Rule::Quiet, "quiet", |simulation| {
                let since_us = simulation.world.now_us() - simulation.asked_us;
                is_answered(simulation) && since_us >= QUIET_US
            });
        }
    }

    /// Everything goes back.
    pub fn undo(&mut self) {
        self.engine.begin_undo_all();
        self.checks.begin_undo();
        self.await_that(Rule::Undo, "the end of the undo", |simulation| {
            simulation.engine.is_undone() && simulation.engine.pending_count() == 0
        });
    }

    /// What was found, all in all.
    pub fn end(mut self, is_undone: bool) -> Vec<Violation> {
        self.checks.end(&self.world, &self.engine, is_undone);
        self.checks.violations().to_vec()
    }
}
