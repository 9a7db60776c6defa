//! The canary that must fail: every page goes to the node farthest from its users.
//!
//! It exists so that a green result means something: the engine's efficacy loop has to measure
//! the harm, report it and put every page back. Nobody should run it on purpose.

use super::{Context, EvidenceKind, Policy, PolicyActivity, Proposal, ProposedMove, moving_unit};
use crate::ids::Pid;
use crate::plan::Mechanism;
use crate::snapshot::Snapshot;
use std::collections::BTreeMap;

/// Orders below which little is left to do (Carrefour's own figure).
const FEW_ORDERS: usize = 10;

/// Moves pages away from their users.
#[derive(Clone, Copy, Debug, Default)]
pub struct WrongNode;

/// A moving unit with its accesses per node position.
struct Unit {
    home: usize,
    huge: bool,
    accesses: Vec<u64>,
}

impl Policy for WrongNode {
    fn name(&self) -> &'static str {
        "wrong-node"
    }

    fn needs(&self) -> &[EvidenceKind] {
        &[EvidenceKind::PageAccesses, EvidenceKind::Distances]
    }

    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        if !context.allows(Mechanism::Misplace) {
            let notes = vec!["wrong-node: switched off by the efficacy loop".to_owned()];
            return Proposal {
                notes,
                outlook: PolicyActivity::Shut,
                ..Proposal::default()
            };
        }
        let mut moves = Vec::new();
        let mut left = context.page_budget;
        for ((pid, page), unit) in units(snapshot) {
            let Some(to) = farthest(snapshot, &unit.accesses, context.room_pages) else {
                continue;
            };
            let proposed = ProposedMove {
                pid,
                page,
                huge: unit.huge,
                from: snapshot.nodes[unit.home].id,
                to: snapshot.nodes[to].id,
                mechanism: Mechanism::Misplace,
            };
            if to == unit.home || !context.may_move(pid, page) || proposed.base_pages() > left {
                continue;
            }
            left -= proposed.base_pages();
            moves.push(proposed);
        }
        let outlook = if moves.len() < FEW_ORDERS {
            PolicyActivity::Done
        } else {
            PolicyActivity::Working
        };
        let reasons = [(
            Mechanism::Misplace,
            "the canary moves pages to the node farthest from their users".into(),
        )];
        Proposal {
            moves,
            reasons: reasons.into(),
            outlook,
            ..Proposal::default()
        }
    }
}

/// Pages gathered to moving units; pages without samples are left out.
fn units(snapshot: &Snapshot) -> BTreeMap<(Pid, u64), Unit> {
    let mut units = BTreeMap::new();
    for page in snapshot.pages.iter().filter(|page| page.total() > 0) {
        let Some(home) = snapshot.node_position(page.home) else {
            continue;
        };
        let key = (page.pid, moving_unit(page.page, page.huge));
        let unit = units.entry(key).or_insert_with(|| Unit {
            home,
            huge: page.huge,
            accesses: vec![0; snapshot.nodes.len()],
        });
        for (position, count) in page.reads.iter().chain(page.writes.iter()) {
            if let Some(sum) = unit.accesses.get_mut(position) {
                *sum += u64::from(count);
            }
        }
    }
    units
}

/// The position with room whose mean distance from the users is largest; the lowest of equals.
fn farthest(snapshot: &Snapshot, accesses: &[u64], room_pages: &[u64]) -> Option<usize> {
    let cost = |target: usize| -> u64 {
        let users = accesses.iter().enumerate();
        users
            .map(|(user, count)| count * u64::from(snapshot.distances[user][target]))
            .sum()
    };
    let with_room = (0..snapshot.nodes.len())
        .filter(|&node| room_pages.get(node).is_some_and(|&room| room > 0));
    with_room.min_by_key(|&node| (std::cmp::Reverse(cost(node)), node))
}
