//! Machine, agent and checkers, turn after turn.

use crate::check::{CheckedTurn, Checks, Invariant, Rules, Violation};
use crate::hands::SimHands;
use crate::world::World;
use hither_agent::{Agent, Execute, Witness};
use hither_core::engine::{Engine, Summary};
use hither_core::observation::Observer;
use hither_core::plan::{Listing, MoveOutcome, MoveRequest, Sampling};
use hither_core::snapshot::Snapshot;
use std::cell::{Ref, RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;

/// Changes a snapshot before the agent sees it: how a broken tracker is planted.
pub type Tamper = fn(&mut Snapshot);

/// It is quiet when in so much time, in us,
const QUIET_US: u64 = 2_000_000;
/// no more pages than these were asked for: single ones are corrected for ever, as samples come in.
const QUIET_PAGES: u64 = 32;
/// Time in which it must become quiet, or an undo end, in us.
const PATIENCE_US: u64 = 60_000_000;

/// Units that are listed in an interval.
const LISTED: usize = 4096;

/// What the agent observes.
struct Eyes {
    world: Rc<RefCell<World>>,
    tamper: Option<Tamper>,
    /// As it was.
    truth: Option<Snapshot>,
    /// As it was shown, where that is not the same.
    tampered: Option<Snapshot>,
}

impl Observer for Eyes {
    fn observe(&mut self, _: u64) -> Result<&Snapshot, String> {
        let seen = self.world.borrow_mut().observe();
        let truth = self.truth.insert(seen.ok_or("nothing was to be seen")?);
        let Some(tamper) = self.tamper else {
            return Ok(truth);
        };
        let tampered = self.tampered.insert(truth.clone());
        tamper(tampered);
        Ok(tampered)
    }

    fn set_sampling(&mut self, sampling: Sampling) {
        self.world.borrow_mut().sampling = sampling;
    }

    fn list_residents(&mut self, listing: Listing) {
        self.world.borrow_mut().lists = match listing {
            Listing::Off | Listing::Counted => 0,
            Listing::Slow => LISTED,
            Listing::Fast => 8 * LISTED,
        };
    }

    fn take_notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// What carries out what the agent asks for.
struct Movers(Rc<RefCell<World>>);

impl Execute for Movers {
    fn submit(&mut self, _: u64, requests: Vec<MoveRequest>) -> Vec<MoveOutcome> {
        self.0.borrow_mut().submit(requests);
        Vec::new()
    }

    fn collect(&mut self, _: u64) -> Vec<MoveOutcome> {
        self.0.borrow_mut().hands.collect()
    }

    /// A simulation never closes: it ends with nothing under way.
    fn close(&mut self, now_us: u64) -> Vec<MoveOutcome> {
        self.collect(now_us)
    }
}

/// A machine under an agent, with who checks both.
pub struct Simulation {
    world: Rc<RefCell<World>>,
    agent: Agent<Eyes, Movers>,
    checks: Checks,
    next_us: u64,
    /// Pages that were asked for, with the time.
    asked: VecDeque<(u64, u64)>,
    is_checked: bool,
}

impl Simulation {
    /// Nothing has happened yet.
    #[must_use]
    pub fn new(world: World, engine: Engine, rules: Rules) -> Self {
        let interval_us = rules.config.interval_us;
        let world = Rc::new(RefCell::new(world));
        let eyes = Eyes {
            world: Rc::clone(&world),
            tamper: None,
            truth: None,
            tampered: None,
        };
        let movers = Movers(Rc::clone(&world));
        Self {
            world,
            agent: Agent::new(eyes, engine, movers, interval_us),
            checks: Checks::new(rules),
            next_us: interval_us,
            asked: VecDeque::new(),
            is_checked: true,
        }
    }

    /// The machine.
    #[must_use]
    pub fn world(&self) -> Ref<'_, World> {
        self.world.borrow()
    }

    /// The machine, for whoever changes it between two turns.
    #[must_use]
    pub fn world_mut(&self) -> RefMut<'_, World> {
        self.world.borrow_mut()
    }

    /// From now on the agent is shown snapshots that were changed in this way.
    pub fn tamper(&mut self, tamper: Tamper) {
        self.agent.observer_mut().tamper = Some(tamper);
    }

    /// The agent is killed, with its movers and what they were given, and another begins. From now on
    /// nothing is checked: what checks know is of the agent before.
    pub fn restart(&mut self, engine: Engine) {
        let world = &self.world;
        world.borrow_mut().hands = SimHands::default();
        let eyes = Eyes {
            world: Rc::clone(world),
            tamper: None,
            truth: None,
            tampered: None,
        };
        let interval_us = self.next_us;
        self.agent = Agent::new(eyes, engine, Movers(Rc::clone(world)), interval_us);
        self.is_checked = false;
    }

    /// Has what is asked for seen before it moves.
    pub fn set_witness(&mut self, witness: Witness) {
        self.agent.set_witness(witness);
    }

    /// Who decides.
    pub fn engine_mut(&mut self) -> &mut Engine {
        self.agent.engine_mut()
    }

    /// Who decides, for another simulation of the same world.
    #[must_use]
    pub fn into_engine(self) -> Engine {
        self.agent.into_engine()
    }

    /// The account of each scope.
    #[must_use]
    pub fn summaries(&self) -> Vec<Summary> {
        let all = self.agent.engine().summary();
        all.into_iter().map(|(_, summary)| summary).collect()
    }

    /// Time passes until the next turn is due, which is then taken.
    pub fn turn(&mut self) {
        self.turn_with(|_, _| {});
    }

    /// The same, as [`Agent::turn_with`].
    pub fn turn_with(&mut self, meet: impl FnOnce(&mut Engine, &Snapshot)) {
        let now_us = self.world.borrow_mut().advance(self.next_us);
        let turn = self.agent.turn_with(now_us, meet);
        self.next_us = turn.next_us;
        if !turn.is_observed {
            return;
        }
        self.asked.push_back((now_us, turn.asked_pages));
        let log: Vec<_> = self.agent.drain_log().collect();
        let journal = self.world.borrow_mut().hands.take_journal();
        let world = self.world.borrow();
        let Some(snapshot) = self
            .agent
            .observer()
            .truth
            .as_ref()
            .filter(|_| self.is_checked)
        else {
            return;
        };
        self.checks.turn(&CheckedTurn {
            world: &world,
            engine: self.agent.engine(),
            snapshot,
            sampling: world.sampling,
            submitted: &journal.submitted,
            collected: &journal.collected,
            moved: &journal.moved,
            log: &log,
        });
    }

    fn now_us(&self) -> u64 {
        self.world.borrow().now_us()
    }

    /// Turns until so much time has passed.
    pub fn run(&mut self, length_us: u64) {
        let end_us = self.now_us() + length_us;
        while self.now_us() < end_us {
            self.turn();
        }
    }

    /// Turns until `is_so`; else one thing more is found.
    fn await_that(&mut self, rule: Invariant, what: &str, is_so: impl Fn(&mut Self) -> bool) {
        let end_us = self.now_us() + PATIENCE_US;
        while !is_so(self) {
            let now_us = self.now_us();
            if now_us >= end_us {
                let text = format!("{what} did not come within {} s", PATIENCE_US / 1_000_000);
                self.checks.add(rule, now_us, text);
                return;
            }
            self.turn();
        }
    }

    /// Nothing goes wrong any more; it shall become quiet, if its policies ever do.
    pub fn calm(&mut self, becomes_quiet: bool) {
        self.world.borrow_mut().calm();
        self.asked.clear();
        let begin_us = self.now_us();
        if becomes_quiet {
            self.await_that(Invariant::Quiet, "quiet", |simulation| {
                let now_us = simulation.now_us();
                let asked = &mut simulation.asked;
                while asked.front().is_some_and(|(at, _)| at + QUIET_US <= now_us) {
                    asked.pop_front();
                }
                let pages: u64 = asked.iter().map(|(_, pages)| pages).sum();
                now_us >= begin_us + QUIET_US && pages <= QUIET_PAGES
            });
        }
    }

    /// Everything goes back.
    pub fn undo(&mut self) {
        self.agent.engine_mut().begin_undo_all();
        self.checks.begin_undo();
        self.await_that(Invariant::Undo, "the end of the undo", |simulation| {
            let engine = simulation.agent.engine();
            engine.is_undone() && engine.pending_count() == 0
        });
    }

    /// What was found, all in all.
    #[must_use]
    pub fn end(mut self, is_undone: bool) -> Vec<Violation> {
        let engine = self.agent.engine();
        self.checks.end(&self.world.borrow(), engine, is_undone);
        self.checks.violations().to_vec()
    }
}
