//! What a driver that runs for long tells the engine: to hold back, to let scopes rest, to go on from what
//! an earlier process of hither did.

use super::Engine;
use super::ledger::Unit;
use super::scope::Scope;
use crate::declared::{Hint, TooMany};
use crate::ids::{NodeId, Pid, ScopeId, SpaceId};
use crate::policy::Policy;
use crate::quota::{Quota, Use};
use crate::scope::Selector;
use crate::snapshot::{HUGE_PAGES, base_pages};
use std::ops::Range;

/// How a scope stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Moves are asked for where the policy wants them.
    Working,
    /// No new moves.
    Paused,
    /// Everything goes back.
    Undoing,
    /// Everything is back that could be put back, and no new moves.
    Undone,
}

impl Engine {
    /// How much of the fastest memory tier a scope may have from now on; its pages follow as the budgets
    /// let them.
    pub fn set_quota(&mut self, scope: ScopeId, quota: Quota) {
        if let Some(entry) = self.scopes.get_mut(scope.0 as usize) {
            let before = std::mem::replace(&mut entry.scope.quota, quota);
            if before != quota {
                entry.scope.rouse();
            }
        }
    }

    /// How much of the fastest memory tier a scope may have.
    #[must_use]
    pub fn quota(&self, scope: ScopeId) -> Option<Quota> {
        Some(self.scopes.get(scope.0 as usize)?.scope.quota)
    }

    /// What a scope has and uses of the fastest memory tier, as its policy saw it last.
    #[must_use]
    pub fn fast_use(&self, scope: ScopeId) -> Option<Use> {
        Some(self.scopes.get(scope.0 as usize)?.scope.fast_use)
    }

    /// Takes in what a process says of its own pages; without a hint, takes back what it said of them.
    ///
    /// # Errors
    /// More was declared than is kept.
    pub fn declare(
        &mut self,
        pid: Pid,
        pages: Range<u64>,
        hint: Option<Hint>,
        now_us: u64,
    ) -> Result<(), TooMany> {
        self.declared.declare(pid, pages, hint, now_us)?;
        let scopes = self.scopes.iter_mut().map(|entry| &mut entry.scope);
        scopes
            .filter(|scope| scope.lives.contains_key(&pid))
            .for_each(Scope::rouse);
        Ok(())
    }

    /// While it is held, no scope asks for new moves; verdicts, reverts and an undo go on.
    pub fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// How eagerly it acts, to be changed while it runs.
    pub fn config_mut(&mut self) -> &mut super::EngineConfig {
        &mut self.config
    }

    /// Share of the scope's memory accesses that its own nodes served, where that was seen last.
    #[must_use]
    pub fn local_ratio(&self, scope: ScopeId) -> Option<f64> {
        self.scopes.get(scope.0 as usize)?.scope.local_ratio
    }

    /// What its policy expects of the best placement now, where it forecasts.
    #[must_use]
    pub fn forecast(&self, scope: ScopeId) -> Option<crate::forecast::Forecast> {
        self.scopes.get(scope.0 as usize)?.scope.forecast
    }

    /// The scope asks for no new moves until [`Engine::resume`].
    pub fn pause(&mut self, scope: ScopeId) {
        if let Some(entry) = self.scopes.get_mut(scope.0 as usize) {
            entry.scope.is_paused = true;
        }
    }

    /// The scope may ask for moves again, also after an undo. Says whether it may: not while pages are on
    /// their way back.
    pub fn resume(&mut self, scope: ScopeId) -> bool {
        let Some(entry) = self.scopes.get_mut(scope.0 as usize) else {
            return false;
        };
        let may = entry.scope.end_undo();
        entry.scope.is_paused &= !may;
        may
    }

    /// How it stands; `None` where there is no such scope.
    #[must_use]
    pub fn standing(&self, scope: ScopeId) -> Option<Standing> {
        let scope = &self.scopes.get(scope.0 as usize)?.scope;
        Some(match (&scope.undo, scope.is_undone()) {
            (Some(_), false) => Standing::Undoing,
            (Some(_), true) => Standing::Undone,
            (None, _) if scope.is_paused => Standing::Paused,
            (None, _) => Standing::Working,
        })
    }

    /// Another policy decides for it from now on; what is known of its pages stays.
    pub fn set_policy(&mut self, scope: ScopeId, policy: Box<dyn Policy>) {
        if let Some(entry) = self.scopes.get_mut(scope.0 as usize) {
            entry.scope.set_policy(policy);
        }
    }

    /// Other processes belong to it from now on; those that belonged to it are chosen anew.
    pub fn set_selector(&mut self, scope: ScopeId, selector: Selector) {
        if let Some(entry) = self.scopes.get_mut(scope.0 as usize) {
            entry.selector = selector;
            self.roster.release(scope.0 as usize);
        }
    }

    /// The scope to which a process belonged in the last step.
    #[must_use]
    pub fn scope_of(&self, pid: Pid) -> Option<ScopeId> {
        let mut entries = self.scopes.iter();
        let entry = entries.find(|entry| entry.scope.lives.contains_key(&pid))?;
        Some(entry.scope.id)
    }

    /// Did this life of a process's memory belong to a scope in the last step?
    #[must_use]
    pub fn is_member(&self, pid: Pid, space: SpaceId) -> bool {
        let mut entries = self.scopes.iter();
        entries.any(|entry| entry.scope.lives.get(&pid) == Some(&space))
    }

    /// Puts down that an earlier process of hither moved these base pages of a member from `origin` to
    /// `home`, so that they can be put back. Of several that tell of a page the latest comes first, as it
    /// knows the home, and the first the last, as it knows the origin. `is_huge`: as huge pages, in whole
    /// ones. Says whether it was put down.
    pub fn adopt(
        &mut self,
        pid: Pid,
        space: SpaceId,
        pages: Range<u64>,
        origin: NodeId,
        home: NodeId,
        is_huge: bool,
    ) -> bool {
        let runs: usize = self
            .scopes
            .iter()
            .map(|entry| entry.scope.run_count())
            .sum();
        if runs >= self.config.ledger_runs {
            return false;
        }
        let mut entries = self.scopes.iter_mut();
        let Some(scope) = entries.find_map(|entry| {
            let scope = &mut entry.scope;
            (scope.lives.get(&pid) == Some(&space)).then_some(scope)
        }) else {
            return false;
        };
        let is_huge = is_huge
            && pages.start.is_multiple_of(HUGE_PAGES)
            && pages.end.is_multiple_of(HUGE_PAGES);
        for page in pages.step_by(base_pages(is_huge) as usize) {
            let unit = Unit {
                pid,
                page,
                huge: is_huge,
            };
            scope.ledger.adopt(unit, space, origin, home);
        }
        true
    }

    /// Where a page of the scope that hither asked to move came from, and whether it moves as part of a huge
    /// page.
    #[must_use]
    pub fn origin(&self, scope: ScopeId, pid: Pid, page: u64) -> Option<(NodeId, bool)> {
        let entry = self.ledger(scope)?.get(pid, page)?;
        Some((entry.origin, entry.is_huge))
    }
}
