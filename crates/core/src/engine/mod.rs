//! The engine: many scopes, each judged by its own figures, under the budgets of one machine.
//!
//! ```text
//! outcomes ─► the scope that asked        snapshot ─► roster: which process is whose
//!                                         snapshot, restricted to each scope's own
//!    arbiter: bytes, room, disturbance ─► Scope: verdict, reverts, policy, admission ─► plan
//! ```
//!
//! [`Engine::step`] is pure: the same engine state, snapshot and outcomes give the same plan. It
//! reads no clock; `now_us` is the caller's, and need not start at zero.
//!
//! Properties: a process belongs to one scope at most; a scope sees its own processes and pages
//! alone, and what is decided about it depends on its neighbours only through the budgets that they
//! share; one scope's harm switches nothing off in another.

mod admit;
mod arbiter;
mod attention;
mod budget;
pub mod config;
mod efficacy;
pub mod ledger;
pub mod phase;
mod place;
mod predict;
mod revert;
mod round;
mod scope;
mod steer;
mod summary;
mod tidy;
mod verdict;
mod view;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod scopes;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

pub use config::EngineConfig;
pub use predict::PredictedChange;
pub use steer::Standing;
pub use summary::{CampaignRow, DirectionRow, Summary};
pub use verdict::{Grounds, Reading, Verdict, judge};

use crate::declared::Declared;
use crate::explain::{Event, Log};
use crate::ids::ScopeId;
use crate::plan::{MoveOutcome, Plan, Sampling};
use crate::quota::{self, Quota, Use};
use crate::scope::{Roster, ScopeSpec, Selector};
use crate::snapshot::{PAGE_BYTES, Snapshot};
use crate::tiers::Tiers;
use arbiter::Arbiter;
use ledger::Ledger;
use scope::Scope;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use view::Company;

/// Below this part of what programs have in memory, one in ten, what was not listed is not waited for.
const LISTED_PART: u64 = 10;
/// Readings of what all scopes may have of the fastest tier, of which the middle one counts: what is told as held is
/// older than what is free, so that for a step or two pages on their way are in neither or in both.
const CAPACITY_READINGS: usize = 5;

/// Numbers given out over all scopes.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    request: u64,
    campaign: u64,
}

/// What a scope may use in one step, and where it says what it does.
struct Turn<'a> {
    now_us: u64,
    /// The scope's own processes and pages.
    snapshot: &'a Snapshot,
    /// Others run besides them.
    is_part: bool,
    config: &'a EngineConfig,
    /// How the interval was sampled.
    sampling: Sampling,
    /// Base pages that may still be asked for in this step.
    pages_left: u64,
    /// Some page would have been asked for, had there been more `pages_left`.
    is_short: bool,
    /// Runs that the ledgers may still add.
    runs_left: usize,
    /// hither has used up its CPU time: new moves wait, reverts do not.
    is_held: bool,
    /// So long looking has to rest.
    rest_us: u64,
    /// CPU time that looking took in the interval, in us.
    look_us: Option<u64>,
    /// Base pages for which each node, by position, has room.
    room: &'a mut Vec<u64>,
    /// Base pages of the fastest tier that the scope may have, where it has a quota.
    fast_pages: Option<u64>,
    /// What processes say of their memory.
    declared: &'a Declared,
    numbers: &'a mut Numbers,
    scope: Arc<str>,
    log: &'a mut Log,
    notes: &'a mut Vec<String>,
}

impl Turn<'_> {
    /// Into the log, and to the person who looks on.
    fn tell(&mut self, event: Event) {
        self.notes.push(match &*self.scope {
            "" => event.to_string(),
            name => format!("{name}: {event}"),
        });
        self.record(event);
    }

    fn note(&mut self, text: String) {
        self.tell(Event::Note { text });
    }

    /// Into the log alone.
    fn record(&mut self, event: Event) {
        self.log.push(self.now_us, &self.scope, event);
    }
}

/// A scope with who belongs to it.
struct Entry {
    selector: Selector,
    scope: Scope,
    /// Processes that belonged to it in the last step.
    member_count: usize,
}

/// All scopes, and what they share.
pub struct Engine {
    config: EngineConfig,
    scopes: Vec<Entry>,
    roster: Roster,
    company: Company,
    fast_capacity: Middle,
    arbiter: Arbiter,
    numbers: Numbers,
    log: Log,
    last_sampling: Sampling,
    declared: Declared,
    /// Whoever drives it wants no new moves.
    is_held: bool,
}

impl Engine {
    /// An engine without scopes.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        Self {
            scopes: Vec::new(),
            roster: Roster::default(),
            company: Company::default(),
            fast_capacity: Middle::default(),
            arbiter: Arbiter::new(&config),
            numbers: Numbers {
                request: 1,
                campaign: 1,
            },
            log: Log::new(config.log_entries),
            last_sampling: Sampling::Cheap,
            declared: Declared::default(),
            is_held: false,
            config,
        }
    }

    /// An engine that judges all watched processes together, by this policy.
    #[must_use]
    pub fn of_all(policy: Box<dyn crate::policy::Policy>, config: EngineConfig) -> Self {
        let mut engine = Self::new(config);
        engine.add_scope(ScopeSpec {
            name: String::new(),
            selector: Selector::All,
            policy,
        });
        engine
    }

    /// Looks after one more scope. Of several whose selectors take a process, it belongs to the one
    /// that was added first.
    pub fn add_scope(&mut self, spec: ScopeSpec) -> ScopeId {
        let id = ScopeId(self.scopes.len() as u32);
        self.scopes.push(Entry {
            selector: spec.selector,
            scope: Scope::new(id, &spec.name, spec.policy, &self.config),
            member_count: 0,
        });
        self.arbiter.add_scope();
        id
    }

    /// Takes in what happened, looks at the interval, and says what to do until the next step.
    ///
    /// `now_us` is the time of the call on the clock of all times in the snapshot. `outcomes` are
    /// those that came since the last step, one per request, in any order.
    pub fn step(&mut self, now_us: u64, snapshot: &Snapshot, outcomes: &[MoveOutcome]) -> Plan {
        let mut notes = Vec::new();
        let outcomes = self.sort_outcomes(now_us, outcomes, &mut notes);
        let selectors: Vec<&Selector> = self.scopes.iter().map(|entry| &entry.selector).collect();
        let members = self.roster.assign(&selectors, &snapshot.processes);
        for (entry, members) in self.scopes.iter_mut().zip(&members) {
            entry.member_count = members.len();
        }
        self.company.take(snapshot);
        self.declared.keep(&snapshot.processes, now_us);
        let mut views = view::restrict(snapshot, &members, self.company);
        for (entry, view) in self.scopes.iter_mut().zip(&mut views) {
            entry.scope.go_round(view);
        }
        let mut pending = vec![0; snapshot.nodes.len()];
        for entry in &self.scopes {
            entry.scope.add_pending(snapshot, &mut pending);
        }
        let mut room = budget::room_pages(&self.config, snapshot, &pending);
        let fast_pages = self.share_out_fast(snapshot, &views, &room, &pending);
        let moves_ns: u64 = outcomes
            .iter()
            .flatten()
            .map(|outcome| outcome.duration_ns)
            .sum();
        self.arbiter
            .begin(&self.config, now_us, snapshot, moves_ns / 1000);
        let is_held = self.is_held || self.arbiter.is_exhausted();
        let rest_us = self.arbiter.rest_us(&self.config);
        let runs = self.scopes.iter().map(|entry| entry.scope.run_count());
        let mut runs_left = self.config.ledger_runs.saturating_sub(runs.sum());
        let mut steps = vec![scope::Step::default(); self.scopes.len()];
        for at in self.arbiter.order() {
            let scope = &mut self.scopes[at].scope;
            let granted = self.arbiter.grant(at);
            let runs_before = scope.run_count();
            let mut turn = Turn {
                now_us,
                snapshot: &views[at],
                is_part: matches!(views[at], Cow::Owned(_)),
                config: &self.config,
                sampling: self.last_sampling,
                pages_left: granted,
                is_short: false,
                runs_left,
                is_held,
                rest_us,
                look_us: self.arbiter.look_us(),
                room: &mut room,
                fast_pages: fast_pages[at],
                declared: &self.declared,
                numbers: &mut self.numbers,
                scope: scope.name(),
                log: &mut self.log,
                notes: &mut notes,
            };
            steps[at] = scope.step(&mut turn, &outcomes[at]);
            let (left, is_short) = (turn.pages_left, turn.is_short);
            runs_left = (runs_left + runs_before).saturating_sub(scope.run_count());
            self.arbiter.settle(at, granted - left, is_short);
        }
        self.join(steps, notes, is_held)
    }

    /// What each scope may have of the fastest memory tier.
    fn share_out_fast(
        &mut self,
        snapshot: &Snapshot,
        views: &[Cow<'_, Snapshot>],
        room: &[u64],
        pending: &[u64],
    ) -> Vec<Option<u64>> {
        let scopes = self.scopes.iter().zip(views);
        let uses: Vec<(Quota, Use)> = scopes
            .map(|(entry, view)| (entry.scope.quota, entry.scope.fast_use.with_resident(view)))
            .collect();
        if uses.iter().all(|(quota, _)| *quota == Quota::Unlimited) {
            return vec![None; uses.len()];
        }
        let tiers = Tiers::of(&snapshot.nodes);
        let held: u64 = uses.iter().map(|(_, used)| used.held_pages).sum();
        // What is on its way there has its room, and is held by nobody yet.
        let free: u64 = tiers.nodes(0).map(|node| room[node] + pending[node]).sum();
        let unseen = unseen_pages(snapshot, &tiers, self.listed(), held);
        let capacity = self.fast_capacity.take(held + unseen + free);
        quota::share_out(capacity, &uses)
    }

    /// Pages of all scopes whose place was told.
    fn listed(&self) -> u64 {
        let scopes = self.scopes.iter();
        scopes.map(|entry| entry.scope.fast_use.all_pages).sum()
    }

    /// Outcomes by the scope that asked; one that nobody waits for is told.
    fn sort_outcomes(
        &mut self,
        now_us: u64,
        outcomes: &[MoveOutcome],
        notes: &mut Vec<String>,
    ) -> Vec<Vec<MoveOutcome>> {
        let mut sorted = vec![Vec::new(); self.scopes.len()];
        for outcome in outcomes {
            let mut scopes = self.scopes.iter();
            match scopes.position(|entry| entry.scope.waits_for(outcome.request)) {
                Some(at) => sorted[at].push(outcome.clone()),
                None => {
                    let text = format!(
                        "an outcome came for request #{}, which is not under way",
                        outcome.request
                    );
                    notes.push(text.clone());
                    self.log.push(now_us, "", Event::Note { text });
                }
            }
        }
        sorted
    }

    /// One plan of what the scopes want: moves of most value first, the densest sampling, the
    /// soonest next step.
    fn join(&mut self, steps: Vec<scope::Step>, notes: Vec<String>, is_held: bool) -> Plan {
        let sampling = steps.iter().map(|step| step.sampling).min();
        let mut sampling = sampling.unwrap_or(Sampling::Off);
        if is_held && sampling == Sampling::Full {
            sampling = Sampling::Cheap;
        }
        let next_interval_us = steps.iter().map(|step| step.next_interval_us).min();
        let listing = steps.iter().map(|step| step.listing).max();
        let several = steps
            .iter()
            .filter(|step| !step.requests.is_empty())
            .count()
            > 1;
        let mut places = Vec::new();
        let mut requests = Vec::new();
        for step in steps {
            requests.extend(step.requests);
            places.extend(step.places);
        }
        if several {
            // Reverts first; then what is predicted to gain most. The sort is stable.
            requests.sort_by(|a, b| scope::precedence(b).total_cmp(&scope::precedence(a)));
        }
        self.last_sampling = sampling;
        Plan {
            requests,
            places,
            notes,
            sampling,
            listing: listing.unwrap_or_default(),
            next_interval_us: next_interval_us.unwrap_or(self.config.max_interval_us),
        }
    }

    /// Puts back every page of a living process that this scope moved, and moves nothing else from
    /// now on: by [`Engine::step`], within the budgets, until [`Engine::is_undone`].
    pub fn begin_undo(&mut self, scope: ScopeId) {
        if let Some(entry) = self.scopes.get_mut(scope.0 as usize) {
            entry.scope.begin_undo();
        }
    }

    /// The same of all scopes.
    pub fn begin_undo_all(&mut self) {
        for entry in &mut self.scopes {
            entry.scope.begin_undo();
        }
    }

    /// Has every scope that was told to undo put back what it could?
    #[must_use]
    pub fn is_undone(&self) -> bool {
        self.scopes.iter().all(|entry| entry.scope.is_undone())
    }

    /// As it was made.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The explanation log, oldest entry first; bounded by [`EngineConfig::log_entries`].
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The same for taking entries out, so that a long run can print as it goes.
    pub fn log_mut(&mut self) -> &mut Log {
        &mut self.log
    }

    /// The scopes, in the order in which they were added.
    pub fn scopes(&self) -> impl Iterator<Item = ScopeId> + '_ {
        self.scopes.iter().map(|entry| entry.scope.id)
    }

    /// Where a scope moved pages, and from where; `None` where there is no such scope.
    #[must_use]
    pub fn ledger(&self, scope: ScopeId) -> Option<&Ledger> {
        let entry = self.scopes.get(scope.0 as usize)?;
        Some(&entry.scope.ledger)
    }

    /// The account of each scope so far, with its name.
    #[must_use]
    pub fn summary(&self) -> Vec<(String, Summary)> {
        let one = |entry: &Entry| (entry.scope.name().to_string(), entry.scope.summary());
        self.scopes.iter().map(one).collect()
    }

    /// Processes that belonged to each scope in the last step, in the order in which they were added.
    pub fn member_counts(&self) -> impl Iterator<Item = usize> + '_ {
        self.scopes.iter().map(|entry| entry.member_count)
    }

    /// Requests whose outcome is outstanding.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        let scopes = self.scopes.iter();
        scopes.map(|entry| entry.scope.pending_count()).sum()
    }
}

/// The middle one of the last readings of a figure.
#[derive(Debug, Default)]
struct Middle {
    last: VecDeque<u64>,
}

impl Middle {
    /// Takes in a reading.
    fn take(&mut self, reading: u64) -> u64 {
        self.last.push_back(reading);
        if self.last.len() > CAPACITY_READINGS {
            self.last.pop_front();
        }
        let mut all: Vec<u64> = self.last.iter().copied().collect();
        all.sort_unstable();
        all[all.len() / 2]
    }
}

/// Pages of the programs that may be in the fastest tier and were not listed yet: until they are, what all
/// scopes may have is not known, and a part of too little would send pages away that may stay.
fn unseen_pages(snapshot: &Snapshot, tiers: &Tiers, listed: u64, held: u64) -> u64 {
    let resident = snapshot.resident_pages();
    let unlisted = resident.saturating_sub(listed);
    // Pages that several processes map are resident in each, and are listed in none.
    if unlisted < resident / LISTED_PART {
        return 0;
    }
    let fast = tiers.bytes(snapshot, 0);
    unlisted.min((fast.used() / PAGE_BYTES).saturating_sub(held))
}
