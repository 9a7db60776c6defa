//! What is asked for, of whom, how often; and that no page is lost between ledgers.

use super::{CheckedTurn, Findings, Invariant, Place, Rules, scope_id};
use crate::process::Process;
use crate::world::World;
use hither_core::engine::Engine;
use hither_core::ids::SpaceId;
use hither_core::plan::{Mechanism, MoveRequest};
use std::collections::{BTreeMap, BTreeSet};

/// Turns between two looks into all ledgers.
const LOOK_TURNS: u32 = 8;

/// What is known of pages from requests and outcomes.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Requests that were not answered.
    open: BTreeMap<u64, (SpaceId, Vec<u64>)>,
    under_way: BTreeSet<Place>,
    /// When it was told that a page moved.
    moved_us: BTreeMap<Place, u64>,
    seen: BTreeSet<u64>,
    turns: u32,
}

impl Pages {
    pub fn turn(&mut self, rules: &Rules, look: &CheckedTurn<'_>, findings: &mut Findings) {
        let now_us = look.world.now_us();
        for outcome in look.collected {
            let Some((space, pages)) = self.open.remove(&outcome.request) else {
                continue;
            };
            for page in pages {
                self.under_way.remove(&(space, page));
            }
            let moved = outcome.moved.iter().map(|&page| ((space, page), now_us));
            self.moved_us.extend(moved);
        }
        for request in look.submitted {
            self.check(rules, look, request, findings);
        }
        self.turns += 1;
        if self.turns.is_multiple_of(LOOK_TURNS) {
            self.look(rules, look.world, look.engine, findings);
        }
    }

    fn check(
        &mut self,
        rules: &Rules,
        look: &CheckedTurn<'_>,
        request: &MoveRequest,
        findings: &mut Findings,
    ) {
        let id = request.id;
        if !self.seen.insert(id) {
            findings.add(Invariant::Request, format!("request #{id} repeats"));
        }
        let is_sorted = request.pages.windows(2).all(|pair| pair[0] < pair[1]);
        if request.pages.is_empty() || !is_sorted {
            let text = format!("the pages of request #{id} are not ascending, or none");
            findings.add(Invariant::Request, text);
        }
        let Some(process) = look.world.alive(request.pid, request.space) else {
            let text = format!("request #{id} is of nobody who lives");
            findings.add(Invariant::Request, text);
            return;
        };
        let size = process.kind.unit_pages();
        let limit = (rules.config.request_pages as u64).max(size);
        if request.pages.len() as u64 * size > limit {
            findings.add(Invariant::Request, format!("request #{id} is too large"));
        }
        let owner = rules.scope_of(process.kind.program).map(scope_id);
        if owner != Some(request.scope) {
            let text = format!(
                "{} asks for pages of {} ({}), which is not its own",
                request.scope, request.pid, process.kind.name
            );
            findings.add(Invariant::Request, text);
        }
        let is_back = request.reason.mechanism == Mechanism::Revert;
        for &page in &request.pages {
            let place = (request.space, page);
            if !self.under_way.insert(place) {
                let text = format!("page {page:#x} of {} is under way twice", request.pid);
                findings.add(Invariant::Request, text);
            }
            let moved_us = self.moved_us.get(&place);
            let rests = moved_us
                .is_some_and(|moved_us| look.world.now_us() < moved_us + rules.config.cooldown_us);
            if rests && !is_back {
                let text = format!("page {page:#x} of {} moves while it rests", request.pid);
                findings.add(Invariant::CoolDown, text);
            }
        }
        self.open.insert(id, (request.space, request.pages.clone()));
    }

    /// Each displaced page of a living process is in exactly one ledger, with its true origin.
    pub fn look(&self, rules: &Rules, world: &World, engine: &Engine, findings: &mut Findings) {
        for process in world.processes.values() {
            let owner = rules.scope_of(process.kind.program);
            for (unit, page) in process.pages.iter().enumerate() {
                if page.home != page.origin {
                    look_at(world, engine, process, unit, owner, findings);
                }
            }
        }
    }
}

fn look_at(
    world: &World,
    engine: &Engine,
    process: &Process,
    unit: usize,
    owner: Option<usize>,
    findings: &mut Findings,
) {
    let number = process.page_number(unit);
    let origin = world.nodes[process.pages[unit].origin].id;
    let known = engine.scopes().filter_map(|scope| {
        let entry = engine.ledger(scope)?.get(process.pid, number)?;
        Some((scope, entry.origin))
    });
    let known: Vec<_> = known.collect();
    let expected = owner.map(|scope| (scope_id(scope), origin));
    if known.len() != 1 || known.first().copied() != expected {
        let text = format!(
            "page {number:#x} of {} ({}) came from {origin}; the ledgers know: {known:?}",
            process.pid, process.kind.name
        );
        findings.add(Invariant::Ledger, text);
    }
}
