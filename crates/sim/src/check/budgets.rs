//! Bytes a second, room, disturbance.

use super::{CheckedTurn, Findings, Invariant, Rules};
use crate::process::SimPage;
use crate::world::World;
use hither_core::engine::EngineConfig;
use hither_core::ids::NodeId;
use hither_core::plan::{Mechanism, MoveRequest, Sampling};
use hither_core::snapshot::PAGE_BYTES;
use std::collections::BTreeMap;

/// Own accounts of what may be used.
#[derive(Debug)]
pub(super) struct Budgets {
    /// Pages that may be asked for.
    pages: f64,
    /// CPU time that may be used, in us.
    cpu_us: Option<f64>,
    at_us: Option<u64>,
}

/// Base pages of a request, where its process lives.
fn base_pages(world: &World, request: &MoveRequest) -> u64 {
    let process = world.alive(request.pid, request.space);
    let size = process.map_or(1, |process| process.kind.unit_pages());
    request.pages.len() as u64 * size
}

impl Budgets {
    pub fn new(config: &EngineConfig) -> Self {
        Self {
            pages: config.burst_bytes as f64 / PAGE_BYTES as f64,
            cpu_us: None,
            at_us: None,
        }
    }

    pub fn turn(&mut self, rules: &Rules, look: &CheckedTurn<'_>, findings: &mut Findings) {
        let is_held = self.pass(&rules.config, look);
        let requests = look.submitted.iter();
        let asked: u64 = requests
            .map(|request| base_pages(look.world, request))
            .sum();
        self.pages -= asked as f64;
        // A page for roundings of either account.
        if self.pages < -1.0 {
            let text = format!(
                "{asked} pages were asked for, {:.0} more than may be moved",
                -self.pages
            );
            findings.add(Invariant::Rate, text);
            self.pages = 0.0;
        }
        check_room(rules, look, findings);
        check_quotas(rules, look, findings);
        let mut requests = look.submitted.iter();
        let has_new = requests.any(|request| request.reason.mechanism != Mechanism::Revert);
        if is_held && (has_new || look.sampling == Sampling::Full) {
            let text = "something new was begun with CPU time that is used up".to_owned();
            findings.add(Invariant::Disturbance, text);
        }
    }

    /// Lets the time since the last turn flow in; says whether CPU time is used up.
    fn pass(&mut self, config: &EngineConfig, look: &CheckedTurn<'_>) -> bool {
        let now_us = look.world.now_us();
        let since_us = (now_us - self.at_us.replace(now_us).unwrap_or(now_us)) as f64;
        let full = config.burst_bytes as f64 / PAGE_BYTES as f64;
        let per_us = config.rate_bytes_per_s as f64 / PAGE_BYTES as f64 / 1e6;
        self.pages = (self.pages + since_us * per_us).min(full);
        let cpus: u32 = look.world.nodes.iter().map(|node| node.cpu_count).sum();
        let per_us = f64::from(cpus) * config.disturbance_share;
        let full = per_us * config.disturbance_span_us as f64;
        let left = self.cpu_us.unwrap_or(full) + per_us * look.snapshot.interval_us as f64;
        let used = look.snapshot.own_cpu_us.get().unwrap_or(0) as f64;
        let left = left.min(full) - used;
        self.cpu_us = Some(left);
        left < -1.0
    }
}

/// What a scope has in memory with CPUs, which is the fast one here, and what it promotes.
fn check_quotas(rules: &Rules, look: &CheckedTurn<'_>, findings: &mut Findings) {
    for (scope, quota) in rules.quotas.iter().enumerate() {
        let Some(quota) = *quota else { continue };
        let own = look
            .submitted
            .iter()
            .filter(|request| request.scope == super::scope_id(scope));
        let promoted = own.filter(|request| request.reason.mechanism == Mechanism::Promote);
        let promoted: u64 = promoted
            .map(|request| base_pages(look.world, request))
            .sum();
        if promoted == 0 {
            continue;
        }
        let processes = look.world.processes.values();
        let own = processes.filter(|process| rules.scope_of(process.kind.program) == Some(scope));
        let held: u64 = own
            .map(|process| {
                let is_fast = |page: &&SimPage| look.world.nodes[page.home].cpu_count > 0;
                process.pages.iter().filter(is_fast).count() as u64 * process.kind.unit_pages()
            })
            .sum();
        if held + promoted > quota {
            let text = format!(
                "scope {scope} has {held} pages of fast memory, may have {quota}, and promotes {promoted}"
            );
            findings.add(Invariant::Quota, text);
        }
    }
}

/// `CheckedTurn::world` is after the turn: what was asked for is on its way there already.
fn check_room(rules: &Rules, look: &CheckedTurn<'_>, findings: &mut Findings) {
    let arriving = look.world.hands.arriving(look.world);
    let mut asked: BTreeMap<NodeId, u64> = BTreeMap::new();
    for request in look.submitted {
        *asked.entry(request.to).or_default() += base_pages(look.world, request);
    }
    for (to, asked) in asked {
        let Some(position) = look.world.position(to) else {
            findings.add(Invariant::Request, format!("{to} does not exist"));
            continue;
        };
        let node = &look.world.nodes[position];
        let share = (node.total_pages as f64 * rules.config.reserve_share) as u64;
        let reserve = share.max(rules.config.reserve_bytes / PAGE_BYTES);
        let arriving = arriving.get(&to).copied().unwrap_or(0);
        // A page for roundings.
        if arriving + reserve > node.free_pages + 1 {
            let text = format!(
                "{arriving} pages are on their way to {to}, {asked} of them new, which has {} free \
                 and keeps {reserve}",
                node.free_pages
            );
            findings.add(Invariant::Room, text);
        }
    }
}
