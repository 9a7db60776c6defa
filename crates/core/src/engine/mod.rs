//! The engine: wraps any policy with budgets, cool-down, the efficacy loop and a log.
//!
//! ```text
//! outcomes ─► ledger, campaign          snapshot ─► efficacy loop ─► verdict, reverts
//!                                       snapshot ─► policy ─► proposal ─► admission ─► plan
//! ```
//!
//! [`Engine::step`] is pure: the same engine state, snapshot and outcomes give the same plan. It
//! reads no clock; `now_us` is the caller's, and need not start at zero.

mod admit;
mod attention;
mod budget;
pub mod config;
mod efficacy;
pub mod ledger;
mod predict;
mod revert;
mod summary;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

pub use config::EngineConfig;
pub use efficacy::{Grounds, Reading, Verdict, judge};
pub use predict::PredictedChange;
pub use summary::{CampaignRow, DirectionRow, Summary};

use crate::explain::{Event, Log};
use crate::ids::{NodeId, Pid};
use crate::plan::{Mechanism, MoveOutcome, Plan, Refusal, Sampling};
use crate::policy::random::Random;
use crate::policy::{Context, EvidenceKind, Outlook, Policy, Proposal};
use crate::snapshot::{HUGE_PAGES, Snapshot};
use attention::{Attention, Situation};
use budget::RateBudget;
use efficacy::{Efficacy, Judgement, MovedPage, Stage};
use ledger::Ledger;
use std::collections::BTreeMap;
use summary::Account;

/// One page of a request under way.
#[derive(Clone, Copy, Debug)]
struct PendingPage {
    page: u64,
    huge: bool,
    from: NodeId,
}

impl PendingPage {
    fn base_pages(self) -> u64 {
        if self.huge { HUGE_PAGES } else { 1 }
    }
}

/// A request whose outcome is outstanding.
#[derive(Clone, Debug)]
struct Pending {
    pid: Pid,
    to: NodeId,
    mechanism: Mechanism,
    pages: Vec<PendingPage>,
}

/// The engine with its policy and all it remembers.
pub struct Engine {
    policy: Box<dyn Policy>,
    config: EngineConfig,
    random: Random,
    rate: RateBudget,
    ledger: Ledger,
    pending: BTreeMap<u64, Pending>,
    efficacy: Efficacy,
    attention: Attention,
    account: Account,
    log: Log,
    notes: Vec<String>,
    last_refusal: Option<String>,
    last_sampling: Sampling,
    next_request: u64,
    next_campaign: u64,
}

impl Engine {
    /// An engine that starts with nothing known.
    #[must_use]
    pub fn new(policy: Box<dyn Policy>, config: EngineConfig) -> Self {
        let mut account = Account::default();
        policy.name().clone_into(&mut account.summary.policy);
        Self {
            random: Random::new(config.seed),
            rate: RateBudget::new(&config),
            ledger: Ledger::new(),
            pending: BTreeMap::new(),
            efficacy: Efficacy::new(),
            attention: Attention::default(),
            account,
            log: Log::new(config.log_entries),
            notes: Vec::new(),
            last_refusal: None,
            last_sampling: Sampling::Cheap,
            next_request: 1,
            next_campaign: 1,
            policy,
            config,
        }
    }

    /// Takes in what happened, looks at the interval, and says what to do until the next step.
    ///
    /// `now_us` is the time of the call on the clock of all times in the snapshot. `outcomes` are
    /// those that came since the last step, one per request, in any order.
    pub fn step(&mut self, now_us: u64, snapshot: &Snapshot, outcomes: &[MoveOutcome]) -> Plan {
        self.account.summary.step_count += 1;
        for outcome in outcomes {
            self.take_outcome(now_us, outcome);
        }
        self.forget_processes(snapshot);
        let reading = Reading::of(snapshot);
        let judgement = self.efficacy.advance(
            &self.config,
            &reading,
            !self.pending.is_empty(),
            !outcomes.is_empty(),
        );
        if let Some(judgement) = judgement {
            self.take_judgement(now_us, snapshot, judgement);
        }
        let mut room = budget::room_pages(&self.config, snapshot, &self.pending_pages(snapshot));
        let mut requests = self.revert(now_us, snapshot, &mut room);
        let proposal = self.ask_policy(now_us, snapshot, &room);
        let outlook = proposal.outlook;
        if self.efficacy.is_open() {
            requests.extend(self.admit(now_us, snapshot, proposal, &mut room));
        }
        self.account.summary.request_count += requests.len() as u64;
        let pids: Vec<Pid> = snapshot
            .processes
            .iter()
            .map(|process| process.pid)
            .collect();
        let situation = Situation {
            now_us,
            outlook,
            is_busy: !self.efficacy.is_idle() || !self.pending.is_empty(),
            has_moves: !requests.is_empty(),
            may_move: self.efficacy.is_open(),
            reading,
            pids: &pids,
            uses_samples: self.policy.needs().contains(&EvidenceKind::PageAccesses),
        };
        let (sampling, next_interval_us) = self.attention.next(&self.config, &situation);
        self.last_sampling = sampling;
        Plan {
            requests,
            notes: std::mem::take(&mut self.notes),
            sampling,
            next_interval_us,
        }
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

    /// Where hither moved pages, and from where.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The account so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let unjudged_pages = match &self.efficacy.stage {
            Stage::Moving(Some(campaign))
            | Stage::Settling(campaign, _)
            | Stage::Measuring(campaign, ..) => campaign.page_count,
            Stage::Moving(None) | Stage::Reverting(..) => 0,
        };
        Summary {
            displaced_pages: self.ledger.displaced_count() as u64,
            unjudged_pages,
            ..self.account.summary()
        }
    }

    /// Requests whose outcome is outstanding.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    fn note(&mut self, now_us: u64, text: String) {
        self.notes.push(text.clone());
        self.log.push(now_us, Event::Note { text });
    }

    /// Asks the policy, where its evidence is there. Samples are not missed in an interval for
    /// which the engine itself had switched them off.
    fn ask_policy(&mut self, now_us: u64, snapshot: &Snapshot, room: &[u64]) -> Proposal {
        let was_off = self.last_sampling == Sampling::Off;
        let missing = self.policy.needs().iter().find_map(|&kind| {
            let why = kind.missing(snapshot)?;
            (kind != EvidenceKind::PageAccesses || !was_off).then_some((kind, why))
        });
        if let Some((kind, why)) = missing {
            self.refuse(now_us, kind, why);
            return Proposal {
                outlook: Outlook::Learning,
                ..Proposal::default()
            };
        }
        self.last_refusal = None;
        let page_budget = match self.efficacy.is_open() {
            true => self.rate.available(&self.config, now_us),
            false => 0,
        };
        let switched_off = self.efficacy.switched_off(now_us);
        let mut context = Context {
            now_us,
            random: &mut self.random,
            page_budget,
            room_pages: room,
            ledger: &self.ledger,
            sampling: self.last_sampling,
            switched_off: &switched_off,
        };
        let mut proposal = self.policy.decide(snapshot, &mut context);
        for text in std::mem::take(&mut proposal.notes) {
            self.note(now_us, text);
        }
        proposal
    }

    /// Says once what is missing.
    fn refuse(&mut self, now_us: u64, kind: EvidenceKind, why: String) {
        let event = Event::MissingEvidence {
            policy: self.policy.name().to_owned(),
            what: kind.name().to_owned(),
            why,
            remedy: kind.remedy().to_owned(),
        };
        let text = event.to_string();
        if self.last_refusal.as_ref() != Some(&text) {
            self.notes.push(text.clone());
            self.log.push(now_us, event);
            self.last_refusal = Some(text);
        }
    }

    fn take_outcome(&mut self, now_us: u64, outcome: &MoveOutcome) {
        let Some(pending) = self.pending.remove(&outcome.request) else {
            self.note(
                now_us,
                format!(
                    "an outcome came for request #{}, which is not under way",
                    outcome.request
                ),
            );
            return;
        };
        let temporary = is_temporary(&outcome.refused);
        let mut on_target = outcome.moved.clone();
        on_target.sort_unstable();
        let rest_us = if temporary {
            self.config.refused_us
        } else {
            self.config.refused_for_good_us
        };
        let mut moved_count = 0;
        for page in &pending.pages {
            let at = on_target.partition_point(|&moved| moved < page.page);
            let last = page.page + page.base_pages();
            let has_moved = on_target.get(at).is_some_and(|&moved| moved < last);
            if has_moved {
                moved_count += page.base_pages();
                self.ledger.moved(
                    pending.pid,
                    page.page,
                    pending.to,
                    now_us,
                    self.config.cooldown_us,
                );
                self.account.moved(
                    pending.mechanism,
                    page.from,
                    pending.to,
                    page.base_pages(),
                    now_us,
                );
            } else {
                self.ledger
                    .stayed(pending.pid, page.page, now_us.saturating_add(rest_us));
            }
            self.tell_campaign(&pending, *page, has_moved, temporary);
        }
        self.account.refused(&outcome.refused);
        self.account.summary.move_duration_ns += outcome.duration_ns;
        let event = Event::Moved {
            request: outcome.request,
            page_count: moved_count,
            already_there: outcome.already_there,
            refused: outcome.refused.clone(),
            duration_ns: outcome.duration_ns,
        };
        self.log.push(now_us, event);
    }

    fn tell_campaign(
        &mut self,
        pending: &Pending,
        page: PendingPage,
        moved: bool,
        temporary: bool,
    ) {
        if pending.mechanism == Mechanism::Revert {
            self.put_back(pending, page, moved, temporary);
        } else if let (true, Some(campaign)) = (moved, self.efficacy.campaign_mut()) {
            campaign.page_count += page.base_pages();
            campaign.moved.push(MovedPage {
                pid: pending.pid,
                page: page.page,
                huge: page.huge,
                from: page.from,
            });
        }
    }

    /// Base pages on their way to each node position.
    fn pending_pages(&self, snapshot: &Snapshot) -> Vec<u64> {
        let mut pages = vec![0; snapshot.nodes.len()];
        for pending in self.pending.values() {
            if let Some(to) = snapshot.node_position(pending.to) {
                pages[to] += pending
                    .pages
                    .iter()
                    .map(|page| page.base_pages())
                    .sum::<u64>();
            }
        }
        pages
    }

    /// Processes that have ended take their pages with them.
    fn forget_processes(&mut self, snapshot: &Snapshot) {
        let is_alive = |pid: Pid| snapshot.processes.iter().any(|process| process.pid == pid);
        let has_pending = |pid: Pid| self.pending.values().any(|pending| pending.pid == pid);
        self.ledger.retain(|pid| is_alive(pid) || has_pending(pid));
        self.forget_reverts(is_alive);
    }

    fn take_judgement(&mut self, now_us: u64, snapshot: &Snapshot, judgement: Judgement) {
        let until_us = self.efficacy.discipline(&self.config, &judgement, now_us);
        let Judgement {
            campaign,
            verdict,
            grounds,
            after,
        } = judgement;
        let mechanisms: Vec<Mechanism> = campaign.mechanisms.iter().copied().collect();
        let measured_gain_ns = measured_gain_ns(&campaign.before, &after, snapshot);
        let event = Event::Judged {
            campaign: campaign.id,
            mechanisms: mechanisms.clone(),
            page_count: campaign.page_count,
            verdict,
            grounds,
            before: campaign.before,
            after,
            predicted: campaign.predicted,
            predicted_gain_ns: campaign.predicted_gain_ns,
            measured_gain_ns,
        };
        self.notes.push(event.to_string());
        self.log.push(now_us, event);
        self.account.summary.campaigns.push(CampaignRow {
            campaign: campaign.id,
            started_us: campaign.started_us,
            judged_us: now_us,
            mechanisms: mechanisms.clone(),
            page_count: campaign.page_count,
            reverted_count: 0,
            verdict,
            grounds,
            before: campaign.before,
            after,
            predicted: campaign.predicted,
            predicted_gain_ns: campaign.predicted_gain_ns,
            measured_gain_ns,
        });
        if let Some(until_us) = until_us {
            let event = Event::SwitchedOff {
                mechanisms,
                until_us,
            };
            self.notes.push(event.to_string());
            self.log.push(now_us, event);
        }
    }
}

/// CPU time saved per interval, in ns: by the fall in latency of the accesses made afterwards.
fn measured_gain_ns(before: &Reading, after: &Reading, snapshot: &Snapshot) -> Option<f64> {
    let accesses = after.accesses_per_us? * snapshot.interval_us as f64;
    let most_ns = predict::cpu_time_ns(snapshot);
    Some(predict::saved_ns(
        before.latency_ns?,
        after.latency_ns?,
        accesses,
        most_ns,
    ))
}

/// May the pages that were left be asked for again soon? An outcome counts refusals without naming
/// pages, so one temporary refusal speaks for all of them.
fn is_temporary(refused: &[(Refusal, u64)]) -> bool {
    refused.iter().any(|(refusal, _)| refusal.is_temporary())
}
