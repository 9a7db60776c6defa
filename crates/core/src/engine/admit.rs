//! Admission: from a policy's proposal to requests that keep every budget.
//!
//! A proposed move is dropped where the page cools down or is under way, the target is unknown or
//! full, the rate budget is spent, its mechanism is switched off, or it leads nowhere. What is
//! left is grouped: one request holds pages of one process, one target, one mechanism.

use super::Turn;
use super::config::EngineConfig;
use super::efficacy::{Campaign, Stage};
use super::ledger::Unit;
use super::predict::{self, Prediction};
use super::scope::{Pending, PendingPage, Scope, precedence};
use crate::explain::Event;
use crate::ids::{NodeId, Pid};
use crate::plan::{Mechanism, MoveRequest, Reason};
use crate::policy::{PolicyActivity, Proposal, ProposedMove, moving_unit};
use crate::snapshot::{Evidence, PresentPage, ProcessState};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Pages of one request, with the sum of their predicted gains in ns.
struct Group {
    pages: Vec<PendingPage>,
    gain_ns: f64,
}

impl Scope {
    /// Turns a proposal into requests; room and pages of the turn are used up.
    pub(super) fn admit(&mut self, turn: &mut Turn<'_>, proposal: Proposal) -> Vec<MoveRequest> {
        let snapshot = turn.snapshot;
        let mut room = turn.room.clone();
        let moves = self.admissible(turn, &proposal.moves, &mut room);
        if moves.is_empty() {
            // Pages that wait for others to leave are of the same campaign.
            let waits = proposal.moves.is_empty() && proposal.outlook == PolicyActivity::Working;
            match &mut self.efficacy.stage {
                Stage::Moving(Some(campaign)) if waits => campaign.steps += 1,
                _ => self.end_campaign(turn.config),
            }
            self.close_when_long(turn.config);
            return Vec::new();
        }
        let since_us = turn.now_us.saturating_sub(snapshot.interval_us);
        let ledger = &self.ledger;
        let prediction = predict::predict(snapshot, &moves, |pid, page, seen| {
            ledger.home_given(pid, page, seen, since_us)
        });
        let is_worth_it = proposal.outlook != PolicyActivity::Done
            || prediction.change.is_at_least(turn.config.min_change);
        if !is_worth_it {
            self.end_campaign(turn.config);
            return Vec::new();
        }
        turn.pages_left -= moves.iter().map(ProposedMove::base_pages).sum::<u64>();
        *turn.room = room;
        let campaign = self.join_campaign(turn, &moves, &prediction);
        let groups = group(&moves, &prediction, turn.config.request_pages);
        let mut requests = Vec::with_capacity(groups.len());
        for ((pid, to, mechanism), group) in groups {
            let because = proposal
                .reasons
                .get(&mechanism)
                .cloned()
                .unwrap_or(Cow::Borrowed("the policy asked"));
            let basis = prediction.gains_ns.clone();
            let gain = basis.map(|_| group.gain_ns);
            requests.push(self.request(
                turn,
                campaign,
                pid,
                to,
                group.pages,
                Reason { mechanism, because },
                gain,
            ));
        }
        // Most valuable first; the sort is stable, so equal ones keep their order.
        requests.sort_by(|a, b| precedence(b).total_cmp(&precedence(a)));
        self.close_when_long(turn.config);
        requests
    }

    fn admissible(
        &mut self,
        turn: &mut Turn<'_>,
        proposed: &[ProposedMove],
        room: &mut [u64],
    ) -> Vec<ProposedMove> {
        if turn.is_held {
            return Vec::new();
        }
        let switched_off = self.efficacy.switched_off(turn.now_us);
        let mut pages_left = turn.pages_left;
        let (mut runs_left, mut unremembered) = (turn.runs_left, 0);
        let since_us = turn.now_us.saturating_sub(turn.snapshot.interval_us);
        let seen_at: HashMap<(Pid, u64), NodeId> = match proposed {
            [] => HashMap::new(),
            _ => {
                let unit = |page: &PresentPage| (page.pid, moving_unit(page.page, page.huge));
                let places = turn.snapshot.places();
                places.map(|page| (unit(&page), page.home)).collect()
            }
        };
        let processes = turn.snapshot.processes.iter();
        let narrow: HashMap<Pid, &ProcessState> = processes
            .filter(|process| process.allowed_nodes.is_some())
            .map(|process| (process.pid, process))
            .collect();
        let mut seen = HashSet::with_capacity(proposed.len());
        let mut moves = Vec::with_capacity(proposed.len());
        for order in proposed {
            let Some(to) = turn.snapshot.node_position(order.to) else {
                continue;
            };
            let pages = order.base_pages();
            let unit = Unit {
                pid: order.pid,
                page: order.page,
                huge: order.huge,
            };
            let from = self.where_it_is(&seen_at, since_us, order);
            let narrow = narrow.get(&order.pid);
            let is_wanted = from != order.to
                && narrow.is_none_or(|process| process.may_use(order.to))
                && !switched_off.contains(&order.mechanism)
                && self.lives.contains_key(&order.pid)
                && moving_unit(order.page, order.huge) == order.page
                && self.ledger.may_move_unit(unit, turn.now_us);
            if !is_wanted || room[to] < pages {
                continue;
            }
            if pages_left < pages {
                turn.is_short = true;
                continue;
            }
            if !seen.insert((order.pid, order.page)) {
                continue;
            }
            let Some(left) = runs_left.checked_sub(self.ledger.cost(unit)) else {
                unremembered += pages;
                continue;
            };
            runs_left = left;
            room[to] -= pages;
            pages_left -= pages;
            moves.push(ProposedMove { from, ..*order });
        }
        self.tell_full(turn, unremembered);
        moves
    }

    /// Where a page is: as was seen in this interval, or where hither put it, or, where neither is
    /// known, as the policy believes. It will be put back there.
    fn where_it_is(
        &self,
        seen_at: &HashMap<(Pid, u64), NodeId>,
        since_us: u64,
        order: &ProposedMove,
    ) -> NodeId {
        let (pid, page) = (order.pid, order.page);
        match seen_at.get(&(pid, page)) {
            Some(&seen) => self.ledger.home_given(pid, page, seen, since_us),
            None => self.ledger.home(pid, page).unwrap_or(order.from),
        }
    }

    /// Says once that the ledger is full.
    fn tell_full(&mut self, turn: &mut Turn<'_>, unremembered: u64) {
        let was_full = std::mem::replace(&mut self.is_full, unremembered > 0);
        if unremembered > 0 && !was_full {
            turn.note(format!(
                "{unremembered} pages are left where they are: what was moved before fills the \
                 ledger ({} ranges), and a page that is not remembered could not be put back",
                turn.config.ledger_runs
            ));
        }
    }

    /// Opens a campaign or adds to the open one; returns its number.
    fn join_campaign(
        &mut self,
        turn: &mut Turn<'_>,
        moves: &[ProposedMove],
        prediction: &Prediction,
    ) -> u64 {
        let Stage::Moving(campaign) = &mut self.efficacy.stage else {
            return 0;
        };
        let forecast = self.forecast;
        let campaign = campaign.get_or_insert_with(|| {
            turn.numbers.campaign += 1;
            Campaign {
                id: turn.numbers.campaign - 1,
                mechanisms: BTreeSet::new(),
                before: self.phases.before(),
                phase: self.phases.phase(),
                predicted: predict::PredictedChange::default(),
                predicted_gain_ns: None,
                forecast,
                moved: Vec::new(),
                page_count: 0,
                steps: 0,
                started_us: turn.now_us,
            }
        });
        campaign.steps += 1;
        campaign
            .mechanisms
            .extend(moves.iter().map(|order| order.mechanism));
        campaign.predicted.local_ratio += prediction.change.local_ratio;
        campaign.predicted.imbalance += prediction.change.imbalance;
        campaign.predicted.fast_share += prediction.change.fast_share;
        // A later step whose gain nobody can say takes nothing from what is known of those before.
        if let Some(gains) = prediction.gains_ns.value() {
            let gain: f64 = gains.iter().sum();
            let most_ns = predict::cpu_time_ns(turn.snapshot);
            let sum = campaign.predicted_gain_ns.unwrap_or(0.0) + gain;
            campaign.predicted_gain_ns = Some(sum.clamp(-most_ns, most_ns));
        }
        campaign.id
    }

    /// No more is asked for in this campaign: a verdict is due.
    fn end_campaign(&mut self, config: &EngineConfig) {
        if !self.policy.follows_paper() {
            self.efficacy.close(config);
        }
    }

    fn close_when_long(&mut self, config: &EngineConfig) {
        if let Stage::Moving(Some(campaign)) = &self.efficacy.stage
            && campaign.steps >= config.campaign_steps
        {
            self.end_campaign(config);
        }
    }

    /// Numbers a request, notes it in the ledger and the log, and remembers it as under way.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one request, each named at both call sites"
    )]
    pub(super) fn request(
        &mut self,
        turn: &mut Turn<'_>,
        campaign: u64,
        pid: Pid,
        to: NodeId,
        pages: Vec<PendingPage>,
        reason: Reason,
        predicted_gain_ns: Evidence<f64>,
    ) -> MoveRequest {
        let id = turn.numbers.request;
        turn.numbers.request += 1;
        let space = self.lives[&pid];
        for page in &pages {
            self.ledger.ask(page.unit(pid), space, page.from);
        }
        let request = MoveRequest {
            id,
            scope: self.id,
            pid,
            space,
            pages: pages.iter().map(|page| page.page).collect(),
            to,
            reason,
            predicted_gain_ns,
        };
        turn.record(Event::Asked {
            request: id,
            campaign,
            pid,
            page_count: pages.iter().map(|page| page.base_pages()).sum(),
            to,
            mechanism: request.reason.mechanism,
            because: request.reason.because.clone().into_owned(),
            predicted_gain_ns: request.predicted_gain_ns.clone(),
        });
        self.pending.insert(
            id,
            Pending {
                pid,
                space,
                to,
                mechanism: request.reason.mechanism,
                pages,
            },
        );
        request
    }
}

/// Groups moves by process, target and mechanism, pages ascending, at most `limit` base pages each
/// (a huge page alone may exceed it).
fn group(
    moves: &[ProposedMove],
    prediction: &Prediction,
    limit: usize,
) -> Vec<((Pid, NodeId, Mechanism), Group)> {
    let gains = prediction.gains_ns.value();
    let mut by_key: BTreeMap<(Pid, NodeId, Mechanism), Vec<(PendingPage, f64)>> = BTreeMap::new();
    for (index, order) in moves.iter().enumerate() {
        let page = PendingPage {
            page: order.page,
            huge: order.huge,
            from: order.from,
        };
        let gain = gains.map_or(0.0, |gains| gains[index]);
        by_key
            .entry((order.pid, order.to, order.mechanism))
            .or_default()
            .push((page, gain));
    }
    let mut groups = Vec::new();
    for (key, mut pages) in by_key {
        pages.sort_by_key(|(page, _)| page.page);
        let mut open: Option<(Group, u64)> = None;
        for (page, gain_ns) in pages {
            let size = page.base_pages();
            match &mut open {
                Some((group, used)) if *used + size <= limit as u64 => {
                    group.pages.push(page);
                    group.gain_ns += gain_ns;
                    *used += size;
                }
                _ => {
                    let full = open.replace((
                        Group {
                            pages: vec![page],
                            gain_ns,
                        },
                        size,
                    ));
                    groups.extend(full.map(|(group, _)| (key, group)));
                }
            }
        }
        groups.extend(open.map(|(group, _)| (key, group)));
    }
    groups
}
