//! What the daemon tells of itself: `hither.status/1`. Made anew every second, read by whoever asks.

use crate::pods::Container;
use hither_core::engine::{Standing, Summary};
use hither_core::explain::Entry;
use hither_core::forecast::Forecast;
use hither_core::ids::NodeId;
use hither_core::policy::Rung;
use hither_linux::rivals::Rival;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Who asks is told nothing older.
const MOST_AGE: Duration = Duration::from_millis(1500);

/// A process of a scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessRow {
    /// Its number.
    pub pid: i32,
    /// Its command name.
    pub name: String,
    /// Resident memory, in bytes.
    pub resident_bytes: u64,
    /// Its control group, where known.
    pub cgroup: Option<String>,
}

/// A target's processes of one user.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScopeRow {
    /// `TARGET@USER`.
    pub name: String,
    /// The target.
    pub target: String,
    /// The user's number.
    pub user: u32,
    /// The user's name, or the number again.
    pub user_name: String,
    /// What decides.
    pub policy: String,
    /// How it stands.
    pub standing: Standing,
    /// Nothing moves: it is a dry run.
    pub dry_run: bool,
    /// Nothing moves now: no window is open.
    pub outside_window: bool,
    /// Its target is no longer in the configuration.
    pub retired: bool,
    /// Its processes.
    pub processes: Vec<ProcessRow>,
    /// Share of its memory accesses that its own nodes served, where known.
    pub local_access_ratio: Option<f64>,
    /// Fast memory: what it may have, has and uses, where its policy decides on that.
    pub fast: Option<FastRow>,
    /// CPU time of its target's control group, where that has a goal.
    pub cpu: Option<GoalRow>,
    /// What the best placement is expected to bring now, where its policy forecasts.
    pub forecast: Option<Forecast>,
    /// Its account since the daemon began.
    pub summary: Summary,
}

/// Fast memory of a scope.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FastRow {
    /// What it may have, as it is written.
    pub quota: String,
    /// What it has in the fastest tier, in bytes.
    pub held_bytes: u64,
    /// What it uses, as far as its accesses are seen.
    pub working_bytes: u64,
    /// Where it has a goal.
    pub goal: Option<GoalRow>,
}

/// A goal, and how it stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GoalRow {
    /// In words.
    pub wanted: String,
    /// The last reading of the figure.
    pub reading: Option<f64>,
    /// Number of the E-state; 0 is all that it may have.
    pub state: u32,
    /// Steps that it has, and the most.
    pub steps: [u32; 2],
    /// As much as that is, in words.
    pub amount: String,
}

/// Processes of a scope in one control group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupRow {
    /// How many.
    pub processes: u64,
    /// Their resident memory, in bytes.
    pub resident_bytes: u64,
}

impl ScopeRow {
    /// Its processes by control group, with what the group's path tells.
    #[must_use]
    pub fn groups(&self) -> Vec<(String, Container, GroupRow)> {
        let mut rows: Vec<(String, Container, GroupRow)> = Vec::new();
        for process in &self.processes {
            let path = process.cgroup.as_deref().unwrap_or_default();
            let at = rows.iter().position(|(known, ..)| known == path);
            let at = at.unwrap_or_else(|| {
                rows.push((
                    path.to_owned(),
                    Container::of_group(path),
                    GroupRow::default(),
                ));
                rows.len() - 1
            });
            rows[at].2.processes += 1;
            rows[at].2.resident_bytes += process.resident_bytes;
        }
        rows
    }
}

/// A memory node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeRow {
    /// Its number.
    pub node: NodeId,
    /// All of its memory, in bytes.
    pub memory_bytes: u64,
    /// What is free of it.
    pub free_bytes: u64,
    /// Use of its controller, 0..=1, where known.
    pub utilisation: Option<f64>,
}

/// What the daemon itself used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OwnRow {
    /// CPU time, in seconds.
    pub cpu_seconds: f64,
    /// Of the machine's CPU time since it began.
    pub machine_share: f64,
    /// Resident memory at most, in bytes.
    pub peak_memory_bytes: u64,
    /// Bytes moved.
    pub moved_bytes: u64,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Published {
    /// `hither.status/1`.
    pub schema: &'static str,
    /// The daemon's version.
    pub version: &'static str,
    /// Its process.
    pub pid: u32,
    /// Seconds since it began.
    pub seconds: f64,
    /// The tracker by which it decides.
    pub tracker: String,
    /// Where its evidence comes from.
    pub evidence: Option<Rung>,
    /// What is missing for deciding.
    pub missing: Vec<String>,
    /// Others that move memory here.
    pub rivals: Vec<Rival>,
    /// Why no scope moves anything new now.
    pub holding_back: Vec<String>,
    /// Nothing of anybody is moved.
    pub dry_run: bool,
    /// Turns of the loop.
    pub turns: u64,
    /// Intervals that could not be observed.
    pub failed_observations: u64,
    /// The machine's memory.
    pub nodes: Vec<NodeRow>,
    /// Who is looked after.
    pub scopes: Vec<ScopeRow>,
    /// What the daemon itself used.
    pub own: OwnRow,
    /// When that was so; `None`: nothing is known yet.
    #[serde(skip)]
    pub at: Option<Instant>,
    /// Entries of the log, the last of them.
    #[serde(skip)]
    pub log: Vec<Arc<Entry>>,
}

impl Published {
    /// Before anything is known.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            schema: "hither.status/1",
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            seconds: 0.0,
            tracker: String::new(),
            evidence: None,
            missing: Vec::new(),
            rivals: Vec::new(),
            holding_back: Vec::new(),
            dry_run: false,
            turns: 0,
            failed_observations: 0,
            nodes: Vec::new(),
            scopes: Vec::new(),
            own: OwnRow::default(),
            at: None,
            log: Vec::new(),
        }
    }

    /// Is it so old that the loop had better look again?
    #[must_use]
    pub fn is_old(&self) -> bool {
        self.at.is_some_and(|at| at.elapsed() > MOST_AGE)
    }

    /// What a user may see: everything for root, the user's own scopes for others.
    #[must_use]
    pub fn seen_by(&self, user: u32) -> Self {
        let mut seen = self.clone();
        if user != 0 {
            seen.retain(|scope| scope.user == user);
        }
        seen
    }

    /// Only these scopes, and what the log has of them.
    pub fn retain(&mut self, is_meant: impl Fn(&ScopeRow) -> bool) {
        self.scopes.retain(is_meant);
        let names: Vec<&str> = self
            .scopes
            .iter()
            .map(|scope| scope.name.as_str())
            .collect();
        self.log
            .retain(|entry| names.contains(&entry.scope.as_str()));
    }
}

/// Does a word of a person name this scope: by its whole name, or by its target?
#[must_use]
pub fn is_named(word: &str, scope: &ScopeRow) -> bool {
    word == scope.name || word == scope.target
}
