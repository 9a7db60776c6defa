//! Checkers: what must hold, whatever happens. They stand apart from the system: they look at the
//! machine's truth, at what was asked for and at what was told, and share no code with what decides.

mod budgets;
mod campaigns;
mod pages;

use crate::hands::Moved;
use crate::world::World;
use hither_core::engine::{Engine, EngineConfig};
use hither_core::explain::Entry;
use hither_core::ids::{ScopeId, SpaceId};
use hither_core::plan::{MoveOutcome, MoveRequest, Sampling};
use hither_core::snapshot::Snapshot;
use std::fmt;

/// Violations that are kept: more nobody reads.
const MOST_FOUND: usize = 100;

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// Bytes a second are kept, over any time.
    Rate,
    /// Nothing is promoted beyond what its scope may have of fast memory.
    Quota,
    /// No node is given more pages than it has room for beyond its reserve.
    Room,
    /// Once hither's own CPU time is used up, nothing new is moved.
    Disturbance,
    /// A request is well formed, and of pages that are its scope's.
    Request,
    /// A page rests after a move.
    CoolDown,
    /// A page that is not where hither found it is known to one scope, with where it came from.
    Ledger,
    /// Pages of a harmful campaign are back, or told as left.
    Revert,
    /// A verdict stands on the scope's own figures.
    Verdict,
    /// Once nothing goes wrong any more, it becomes quiet.
    Quiet,
    /// An undo ends, and puts back all but what it tells.
    Undo,
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// Which rule.
    pub rule: Invariant,
    /// When, in us.
    pub at_us: u64,
    /// What.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_s = self.at_us as f64 / 1e6;
        write!(f, "{:?} at {at_s:.1} s: {}", self.rule, self.text)
    }
}

/// Violations found so far.
#[derive(Clone, Debug, Default)]
struct Findings {
    now_us: u64,
    found: Vec<Violation>,
}

impl Findings {
    fn add(&mut self, rule: Invariant, text: String) {
        if self.found.len() < MOST_FOUND {
            let at_us = self.now_us;
            self.found.push(Violation { rule, at_us, text });
        }
    }
}

/// What the checkers are told of the set-up.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The budgets of the machine.
    pub config: EngineConfig,
    /// The scope of each program, by its position.
    pub scopes: Vec<Option<usize>>,
    /// Base pages of fast memory that each scope may have, where it has a quota.
    pub quotas: Vec<Option<u64>>,
    /// Does the first scope take everybody?
    pub is_for_all: bool,
}

impl Rules {
    /// The scope that a program belongs to.
    #[must_use]
    pub fn scope_of(&self, program: usize) -> Option<usize> {
        match self.is_for_all {
            true => Some(0),
            false => self.scopes.get(program).copied().flatten(),
        }
    }
}

/// A turn, as it truly was.
pub struct CheckedTurn<'a> {
    /// The machine, after the turn.
    pub world: &'a World,
    /// Who decides.
    pub engine: &'a Engine,
    /// What was seen, before anybody tampered with it.
    pub snapshot: &'a Snapshot,
    /// How densely it is to be sampled from now on.
    pub sampling: Sampling,
    /// What was asked for.
    pub submitted: &'a [MoveRequest],
    /// What came of earlier requests.
    pub collected: &'a [MoveOutcome],
    /// Pages that moved since the last turn.
    pub moved: &'a [Moved],
    /// What was told.
    pub log: &'a [Entry],
}

/// All checkers.
pub struct Checks {
    rules: Rules,
    findings: Findings,
    budgets: budgets::Budgets,
    pages: pages::Pages,
    campaigns: campaigns::Campaigns,
}

impl Checks {
    /// Nothing was looked at yet.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            budgets: budgets::Budgets::new(&rules.config),
            pages: pages::Pages::default(),
            campaigns: campaigns::Campaigns::default(),
            findings: Findings::default(),
            rules,
        }
    }

    /// Looks at a turn.
    pub fn turn(&mut self, look: &CheckedTurn<'_>) {
        self.findings.now_us = look.world.now_us();
        self.budgets.turn(&self.rules, look, &mut self.findings);
        self.pages.turn(&self.rules, look, &mut self.findings);
        self.campaigns.turn(&self.rules, look, &mut self.findings);
    }

    /// Everything is to be put back now: campaigns under way end without a word.
    pub fn begin_undo(&mut self) {
        self.campaigns.begin_undo();
    }

    /// Nothing comes after this. `is_undone`: everything was to be put back.
    pub fn end(&mut self, world: &World, engine: &Engine, is_undone: bool) {
        self.findings.now_us = world.now_us();
        self.pages
            .look(&self.rules, world, engine, &mut self.findings);
        self.campaigns.end(world, is_undone, &mut self.findings);
    }

    /// Notes what others found.
    pub(crate) fn add(&mut self, rule: Invariant, now_us: u64, text: String) {
        self.findings.now_us = now_us;
        self.findings.add(rule, text);
    }

    /// What was found.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.findings.found
    }
}

/// A page in a life.
type Place = (SpaceId, u64);

/// The scope as an engine numbers it.
fn scope_id(scope: usize) -> ScopeId {
    ScopeId(scope as u32)
}
