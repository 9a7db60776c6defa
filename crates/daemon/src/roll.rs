//! Which scope is whose: a target has a scope for each user of whom it has processes, so that what is told
//! of a scope, and done to it, concerns one user alone.

use crate::config::{Config, Target};
use crate::goal::{Pursuit, Resource};
use crate::window::Instant;
use hither_core::engine::Engine;
use hither_core::ids::{ScopeId, SpaceId};
use hither_core::policy;
use hither_core::quota::Quota;
use hither_core::scope::{ScopeSpec, Selector};
use hither_core::snapshot::Snapshot;
use hither_linux::proc::users;
use hither_linux::root::Root;
use std::collections::{BTreeMap, BTreeSet};

/// Scopes at most: they are kept as long as the daemon runs.
const MOST_SCOPES: usize = 1024;

/// A scope that was made.
#[derive(Clone, Debug)]
pub struct Seat {
    /// The engine's number.
    pub scope: ScopeId,
    /// `TARGET@USER`.
    pub name: String,
    /// Name of the target.
    pub target: String,
    /// Number of the user.
    pub user: u32,
    /// Name of the user.
    pub user_name: String,
    /// A person has paused it.
    pub is_paused: bool,
    /// Its target is gone.
    pub is_retired: bool,
    /// What its fast memory is to bring about.
    pub pursuit: Option<Pursuit>,
}

impl Seat {
    /// Does nothing of it move, whatever is decided?
    #[must_use]
    pub fn is_dry(&self, config: &Config) -> bool {
        let target = config.target(&self.target);
        config.dry_run || target.is_some_and(|target| target.dry_run)
    }

    /// Is nothing new to be asked for: paused, of a target that is gone, or outside of its windows?
    #[must_use]
    pub fn rests(&self, config: &Config, now: Instant) -> bool {
        self.is_paused || self.is_retired || self.is_outside(config, now)
    }

    /// Is no window of its target open?
    #[must_use]
    pub fn is_outside(&self, config: &Config, now: Instant) -> bool {
        config.target(&self.target).is_some_and(|target| {
            let mut windows = target.windows.iter();
            !target.windows.is_empty() && !windows.any(|window| window.holds(now))
        })
    }
}

/// The scopes.
#[derive(Debug, Default)]
pub struct Roll {
    seats: Vec<Seat>,
    names: BTreeMap<u32, String>,
    is_full: bool,
    /// The life of memory that began last of those that were looked at.
    newest: Option<SpaceId>,
}

impl Roll {
    /// All that were made.
    #[must_use]
    pub fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// One of them, by its whole name.
    pub fn by_name(&mut self, name: &str) -> Option<&mut Seat> {
        self.seats.iter_mut().find(|seat| seat.name == name)
    }

    /// Makes scopes for users who have none yet; returns sentences. Processes come in the order in which
    /// they were met: nothing is done while the last of them is the same.
    pub fn meet(
        &mut self,
        config: &Config,
        engine: &mut Engine,
        snapshot: &Snapshot,
        root: &Root,
    ) -> Vec<String> {
        let mut notes = Vec::new();
        let newest = snapshot.processes.last().map(|process| process.space);
        if std::mem::replace(&mut self.newest, newest) == newest {
            return notes;
        }
        let mut wanted: BTreeSet<(usize, u32)> = BTreeSet::new();
        for process in snapshot
            .processes
            .iter()
            .filter(|process| engine.scope_of(process.pid).is_none())
        {
            let mut targets = config.targets.iter();
            // The first that takes it.
            if let Some(at) = targets.position(|target| target.choice.selector().names(process)) {
                wanted.insert((at, process.user));
            }
        }
        for (at, user) in wanted {
            let target = &config.targets[at];
            let mut seats = self.seats.iter();
            if seats.any(|seat| seat.user == user && seat.target == target.name && !seat.is_retired)
            {
                continue;
            }
            if self.seats.len() >= MOST_SCOPES {
                if !std::mem::replace(&mut self.is_full, true) {
                    notes.push(format!(
                        "there are {MOST_SCOPES} scopes: processes of other users are left alone"
                    ));
                }
                break;
            }
            match self.add(target, user, engine, root) {
                Ok(name) => notes.push(format!(
                    "{name}: looked after from now on, policy {}",
                    target.policy
                )),
                Err(why) => notes.push(why),
            }
        }
        notes
    }

    fn add(
        &mut self,
        target: &Target,
        user: u32,
        engine: &mut Engine,
        root: &Root,
    ) -> Result<String, String> {
        let names = &mut self.names;
        let user_name = names.entry(user).or_insert_with(|| {
            let name = users::name(root, user).ok().flatten();
            name.unwrap_or_else(|| user.to_string())
        });
        let name = format!("{}@{user_name}", target.name);
        let scope = engine.add_scope(ScopeSpec {
            name: name.clone(),
            selector: selector(target, user),
            policy: policy::by_name(&target.policy).map_err(|error| error.to_string())?,
        });
        engine.set_quota(scope, target.fast);
        self.seats.push(Seat {
            scope,
            name: name.clone(),
            target: target.name.clone(),
            user,
            user_name: user_name.clone(),
            is_paused: false,
            is_retired: false,
            pursuit: pursuit(target),
        });
        Ok(name)
    }

    /// Looks how goals stand; a quota that changes is set. Returns sentences, and whether there was a change.
    pub fn pursue(&mut self, now_us: u64, engine: &mut Engine) -> (Vec<String>, bool) {
        let (mut notes, mut has_changed) = (Vec::new(), false);
        for seat in self.seats.iter_mut().filter(|seat| !seat.is_retired) {
            let Some(pursuit) = &mut seat.pursuit else {
                continue;
            };
            let found = pursuit.look(now_us);
            if let Some(pages) = found.amount {
                engine.set_quota(seat.scope, Quota::Pages(pages));
                has_changed = true;
            }
            notes.extend(found.note.map(|note| format!("{}: {note}", seat.name)));
        }
        (notes, has_changed)
    }

    /// Brings scopes in line with another configuration; returns sentences. Pages of targets that are gone
    /// stay where they are.
    pub fn change(&mut self, old: &Config, new: &Config, engine: &mut Engine) -> Vec<String> {
        let mut notes = Vec::new();
        self.newest = None;
        for seat in self.seats.iter_mut().filter(|seat| !seat.is_retired) {
            let targets = (old.target(&seat.target), new.target(&seat.target));
            let (Some(before), Some(after)) = targets else {
                seat.is_retired = true;
                engine.pause(seat.scope);
                engine.set_selector(seat.scope, Selector::Any(Vec::new()));
                notes.push(format!(
                    "{}: no longer in the configuration; its pages stay where they are",
                    seat.name
                ));
                continue;
            };
            if before.choice != after.choice {
                engine.set_selector(seat.scope, selector(after, seat.user));
            }
            if (before.fast, &before.goal) != (after.fast, &after.goal) {
                engine.set_quota(seat.scope, after.fast);
                seat.pursuit = pursuit(after);
            }
            if before.policy != after.policy
                && let Ok(policy) = policy::by_name(&after.policy)
            {
                engine.set_policy(seat.scope, policy);
                notes.push(format!(
                    "{}: policy {} from now on",
                    seat.name, after.policy
                ));
            }
        }
        notes
    }
}

/// Who holds the goal of a scope; it begins with all of the quota.
fn pursuit(target: &Target) -> Option<Pursuit> {
    match (&target.goal, target.fast) {
        (Some(goal), Quota::Pages(most)) => {
            Some(Pursuit::new(goal.clone(), Resource::FastMemory, most))
        }
        _ => None,
    }
}

fn selector(target: &Target, user: u32) -> Selector {
    Selector::Within {
        user,
        of: Box::new(target.choice.selector()),
    }
}
