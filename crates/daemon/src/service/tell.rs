//! How everything stands, for who asks and for systemd.

use super::Service;
use super::hold::local_time;
use crate::goal::Pursuit;
use crate::publish::{FastRow, NodeRow, OwnRow, ProcessRow, Published, ScopeRow};
use crate::roll::Seat;
use hither_core::engine::{Engine, Standing, Summary};
use hither_core::ids::ScopeId;
use hither_core::snapshot::{NodeState, PAGE_BYTES};
use hither_linux::sys;
use std::collections::HashMap;
use std::time::Instant;

/// Fast memory of a scope; nothing where its policy does not tell tiers apart.
fn fast_row(engine: &Engine, seat: &Seat) -> Option<FastRow> {
    let used = engine
        .fast_use(seat.scope)
        .filter(|used| used.all_pages > 0)?;
    Some(FastRow {
        quota: engine.quota(seat.scope).unwrap_or_default().to_string(),
        held_bytes: used.held_pages * PAGE_BYTES,
        working_bytes: used.working_pages * PAGE_BYTES,
        goal: seat.pursuit.as_ref().map(Pursuit::row),
    })
}

impl Service {
    pub(super) fn published(&self, now_us: u64) -> Published {
        let agent = self.session.agent();
        let (engine, snapshot) = (agent.engine(), agent.observer().snapshot());
        let now = local_time();
        let mut members: HashMap<ScopeId, Vec<ProcessRow>> = HashMap::new();
        for process in &snapshot.processes {
            if let Some(scope) = engine.scope_of(process.pid) {
                members.entry(scope).or_default().push(ProcessRow {
                    pid: process.pid.0,
                    name: process.name.clone(),
                    resident_bytes: process.resident_pages.get().unwrap_or(0) * PAGE_BYTES,
                    cgroup: process.group.clone(),
                });
            }
        }
        let mut row = |(seat, (_, summary)): (&Seat, (String, Summary))| ScopeRow {
            name: seat.name.clone(),
            target: seat.target.clone(),
            user: seat.user,
            user_name: seat.user_name.clone(),
            policy: summary.policy.clone(),
            standing: engine.standing(seat.scope).unwrap_or(Standing::Paused),
            dry_run: seat.is_dry(&self.config),
            outside_window: seat.is_outside(&self.config, now),
            retired: seat.is_retired,
            processes: members.remove(&seat.scope).unwrap_or_default(),
            local_access_ratio: engine.local_ratio(seat.scope),
            fast: fast_row(engine, seat),
            cpu: self.cpus.row(&seat.target),
            forecast: engine.forecast(seat.scope),
            summary,
        };
        let node = |node: &NodeState| NodeRow {
            node: node.id,
            memory_bytes: node.total_bytes,
            free_bytes: node.free_bytes,
            utilisation: node.utilisation.get(),
        };
        // Each scope was made with its seat.
        let scopes = self.roll.seats().iter().zip(engine.summary());
        let sums = self.session.sums();
        let usage = sys::own_usage();
        let cpu_us = (usage.user_us + usage.system_us) as f64;
        let machine_us = now_us.max(1) as f64 * f64::from(snapshot.cpu_count()).max(1.0);
        Published {
            pid: std::process::id(),
            seconds: now_us as f64 / 1e6,
            tracker: agent.observer().tracker_name().to_owned(),
            evidence: self.evidence,
            missing: self.missing.clone(),
            rivals: self.rivals.clone(),
            holding_back: self.holding_back.clone(),
            dry_run: self.config.dry_run,
            turns: sums.turn_count,
            failed_observations: agent.failure_count(),
            nodes: snapshot.nodes.iter().map(node).collect(),
            scopes: scopes.map(&mut row).collect(),
            own: OwnRow {
                cpu_seconds: cpu_us / 1e6,
                machine_share: cpu_us / machine_us,
                peak_memory_bytes: usage.peak_resident_kb << 10,
                moved_bytes: sums.moved_pages * PAGE_BYTES,
            },
            at: Some(Instant::now()),
            log: self.log.borrow().iter().cloned().collect(),
            ..Published::empty()
        }
    }

    /// Tells systemd, where it listens.
    pub(super) fn notify(&mut self) {
        use sd_notify::NotifyState::{Ready, Status, Watchdog};
        let scopes = self
            .roll
            .seats()
            .iter()
            .filter(|seat| !seat.is_retired)
            .count();
        let status = match self.holding_back.is_empty() {
            true => format!("{scopes} scopes"),
            false => format!(
                "{scopes} scopes, holding back: {}",
                self.holding_back.join("; ")
            ),
        };
        let mut states = vec![Watchdog, Status(&status)];
        if !std::mem::replace(&mut self.has_told_ready, true) {
            states.insert(0, Ready);
            (self.sink)(&format!("ready: {} targets", self.config.targets.len()));
        }
        let _ = sd_notify::notify(&states);
    }
}
