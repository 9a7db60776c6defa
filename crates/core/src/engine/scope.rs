//! One scope: a policy with its cool-down, efficacy loop, ledger and account.
//!
//! ```text
//! outcomes ─► ledger, campaign          snapshot ─► efficacy loop ─► verdict, reverts
//!                                       snapshot ─► policy ─► proposal ─► admission ─► plan
//! ```

use super::attention::{Attention, Situation};
use super::config::EngineConfig;
use super::efficacy::{Efficacy, Judgement, MovedPage, Stage};
use super::ledger::{Ledger, RUNS_PER_UNIT, Unit};
use super::phase::Phases;
use super::revert::Undo;
use super::round::Round;
use super::summary::{Account, CampaignRow, Summary};
use super::tidy::Tidy;
use super::verdict::{Grounds, Reading};
use super::view::MIN_SAMPLES;
use super::{Turn, predict};
use crate::explain::Event;
use crate::forecast::Forecast;
use crate::ids::{NodeId, Pid, ScopeId, SpaceId};
use crate::plan::{Listing, Mechanism, MoveOutcome, MoveRequest, PlaceRequest, Refusal, Sampling};
use crate::policy::random::Random;
use crate::policy::{
    Arrived, Context, EvidenceKind, Policy, PolicyActivity, Proposal, moving_unit,
};
use crate::quota::{Quota, Use};
use crate::snapshot::{Snapshot, base_pages};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One page of a request under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingPage {
    pub page: u64,
    pub huge: bool,
    pub from: NodeId,
}

impl PendingPage {
    pub fn base_pages(self) -> u64 {
        base_pages(self.huge)
    }

    pub fn unit(self, pid: Pid) -> Unit {
        Unit {
            pid,
            page: self.page,
            huge: self.huge,
        }
    }
}

/// A request whose outcome is outstanding.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub pid: Pid,
    pub space: SpaceId,
    pub to: NodeId,
    pub mechanism: Mechanism,
    pub pages: Vec<PendingPage>,
}

/// A policy with all that is remembered of its scope.
pub(super) struct Scope {
    pub id: ScopeId,
    name: Arc<str>,
    pub(super) policy: Box<dyn Policy>,
    random: Random,
    pub ledger: Ledger,
    pub pending: BTreeMap<u64, Pending>,
    /// Of which its policy was not told yet.
    arrived: Vec<Arrived>,
    pub efficacy: Efficacy,
    pub phases: Phases,
    pub undo: Option<Undo>,
    pub(super) tidy: Tidy,
    /// It asks for no new moves: verdicts, reverts and an undo go on.
    pub is_paused: bool,
    pub(super) attention: Attention,
    round: Round,
    seen: Seen,
    pub account: Account,
    /// Members that live, and which life of their memory it is.
    pub lives: BTreeMap<Pid, SpaceId>,
    /// Base pages whose campaign ended without a verdict.
    unjudged_pages: u64,
    last_refusal: Option<String>,
    /// What the policy expected last, while nothing was on its way.
    pub forecast: Option<Forecast>,
    /// How much of the fastest memory tier it may have, and what of it it has and uses.
    pub quota: Quota,
    pub fast_use: Use,
    /// Share of its memory accesses that its own nodes served, where that was seen last.
    pub local_ratio: Option<f64>,
    /// The ledger held no more at the last step.
    pub is_full: bool,
    /// Its policy cannot wait: a node runs out of memory.
    is_pressed: bool,
    /// Members whose threads were placed.
    pub placed: BTreeSet<Pid>,
}

/// What the samples of an interval are.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    /// A sample of all accesses.
    Interval,
    /// Of memory that is gone over part after part, and not all of it yet.
    Part,
    /// The end of a round, with the node positions of those who used the memory.
    Round(Vec<f64>),
}

/// What a scope wants after a step.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub requests: Vec<MoveRequest>,
    pub places: Vec<PlaceRequest>,
    pub sampling: Sampling,
    pub next_interval_us: u64,
    pub listing: Listing,
}

/// Requests of higher precedence come first: reverts, then gain per page.
pub(super) fn precedence(request: &MoveRequest) -> f64 {
    match request.reason.mechanism {
        Mechanism::Revert => f64::INFINITY,
        _ => request.predicted_gain_ns.get().unwrap_or(0.0) / request.pages.len() as f64,
    }
}

impl Scope {
    /// A scope of which nothing is known yet.
    pub fn new(id: ScopeId, name: &str, policy: Box<dyn Policy>, config: &EngineConfig) -> Self {
        let mut account = Account::default();
        policy.name().clone_into(&mut account.summary.policy);
        Self {
            id,
            name: name.into(),
            random: Random::new(config.seed.wrapping_add(u64::from(id.0))),
            ledger: Ledger::new(),
            pending: BTreeMap::new(),
            arrived: Vec::new(),
            efficacy: Efficacy::new(),
            phases: Phases::default(),
            undo: None,
            tidy: Tidy::default(),
            is_paused: false,
            attention: Attention::default(),
            round: Round::default(),
            seen: Seen::Interval,
            account,
            lives: BTreeMap::new(),
            unjudged_pages: 0,
            last_refusal: None,
            forecast: None,
            quota: Quota::default(),
            fast_use: Use::default(),
            local_ratio: None,
            is_full: false,
            is_pressed: false,
            placed: BTreeSet::new(),
            policy,
        }
    }

    /// Another policy decides from now on; what is known of pages stays.
    pub fn set_policy(&mut self, policy: Box<dyn Policy>) {
        policy.name().clone_into(&mut self.account.summary.policy);
        self.forecast = None;
        self.policy = policy;
    }

    /// What is asked of it has changed: it looks again, if it slept.
    pub fn rouse(&mut self) {
        self.attention.wake();
    }

    /// Its name in the log.
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Is this request one of its own that is under way?
    pub fn waits_for(&self, request: u64) -> bool {
        self.pending.contains_key(&request)
    }

    /// Takes in the samples of an interval where these tell of memory part after part: its figures are
    /// known at the end of a round.
    pub fn go_round(&mut self, view: &mut Cow<'_, Snapshot>) {
        self.seen = match Round::applies(view) {
            false => Seen::Interval,
            true => match self.round.take(view) {
                None => Seen::Part,
                Some(figures) => {
                    figures.tell(view.to_mut());
                    Seen::Round(figures.users)
                }
            },
        };
    }

    /// Takes in what happened, looks at its members, and says what to do until the next step.
    pub fn step(&mut self, turn: &mut Turn<'_>, outcomes: &[MoveOutcome]) -> Step {
        self.account.summary.step_count += 1;
        turn.is_held &= !self.policy.follows_paper();
        self.meet(turn.snapshot);
        self.follow(turn);
        for outcome in outcomes {
            self.take_outcome(turn, outcome);
        }
        self.ledger
            .compact(turn.now_us, turn.config.ledger_runs / 4);
        let reading = Reading::of(turn.snapshot);
        self.local_ratio = reading.local_ratio.or(self.local_ratio);
        let by_rounds = self.seen != Seen::Interval;
        match std::mem::replace(&mut self.seen, Seen::Part) {
            Seen::Interval => self.phases.take(turn.snapshot, reading, turn.is_part),
            Seen::Part => {}
            Seen::Round(users) => self.phases.take_round(users, reading, turn.is_part),
        }
        if outcomes.iter().any(|outcome| !outcome.moved.is_empty()) {
            self.phases.disturb();
        }
        let was_measuring = self.efficacy.is_measuring();
        let judgement = self.efficacy.advance(
            turn.config,
            by_rounds,
            &reading,
            self.phases.phase(),
            !self.pending.is_empty(),
            !outcomes.is_empty(),
        );
        if self.efficacy.is_measuring() && !was_measuring {
            self.round.restart();
        }
        if let Some(judgement) = judgement {
            self.take_judgement(turn, judgement);
        }
        let mut requests = self.revert(turn);
        requests.extend(self.put_all_back(turn));
        let mut proposal = self.ask_policy(turn);
        let places = self.place(turn, std::mem::take(&mut proposal.places));
        let outlook = proposal.outlook;
        self.is_pressed = outlook == PolicyActivity::Pressed;
        if self.may_ask() {
            turn.is_short |= outlook == PolicyActivity::Working;
            requests.extend(self.admit(turn, proposal));
        }
        // What goes back beside that neither wakes it nor keeps it awake.
        let has_moves = !requests.is_empty() || !places.is_empty();
        let is_waited_for = !self.pending.is_empty() && !self.tidy.is_under_way();
        requests.extend(self.tidy(turn, outlook));
        self.account.summary.request_count += requests.len() as u64;
        let mut spaces: Vec<SpaceId> = self.lives.values().copied().collect();
        spaces.sort_unstable();
        let situation = Situation {
            now_us: turn.now_us,
            outlook,
            is_busy: !self.efficacy.is_idle() || is_waited_for || !self.is_undone(),
            is_measured: self.efficacy.is_measuring(),
            has_moves,
            may_move: self.may_move(),
            reading,
            spaces: &spaces,
            by_rounds,
            rest_us: match self.policy.follows_paper() {
                true => 0,
                false => turn.rest_us,
            },
            is_held: turn.is_held,
            uses_samples: self.uses_samples(),
        };
        let (sampling, next_interval_us) = self.attention.next(turn.config, &situation);
        Step {
            requests,
            places,
            sampling,
            next_interval_us,
            listing: match self.lives.is_empty() {
                true => Listing::Off,
                false => self.policy.listing(),
            },
        }
    }

    fn uses_samples(&self) -> bool {
        self.policy.needs().iter().any(|kind| kind.is_sampled())
    }

    /// May new moves be asked for?
    fn may_move(&self) -> bool {
        let may_begin = !self.efficacy.is_idle()
            || self.phases.is_comparable()
            || self.is_pressed
            || self.policy.follows_paper();
        self.efficacy.is_open() && may_begin && self.undo.is_none() && !self.is_paused
    }

    /// May they be in this step? What is on its way is not seen in the figures yet: whoever decided by
    /// them again would move what was to stay.
    fn may_ask(&self) -> bool {
        self.may_move() && self.pending.is_empty()
    }

    /// The account so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let open_pages = self.efficacy.campaign_pages();
        Summary {
            displaced_pages: self.ledger.displaced_count(),
            unjudged_pages: self.unjudged_pages + open_pages,
            ..self.account.summary()
        }
    }

    /// Requests whose outcome is outstanding.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Asks the policy, where its evidence is there. Samples are not missed in an interval for
    /// which the engine itself had switched them off.
    fn ask_policy(&mut self, turn: &mut Turn<'_>) -> Proposal {
        if self.undo.is_some() {
            return Proposal::default();
        }
        let snapshot = turn.snapshot;
        // A part that did next to nothing lacks no evidence: there is nothing to do.
        let sample_count = snapshot.sample_count.get();
        if self.uses_samples()
            && turn.is_part
            && sample_count.is_some_and(|count| count < MIN_SAMPLES)
        {
            return Proposal::default();
        }
        let was_off = turn.sampling == Sampling::Off;
        let missing = self.policy.needs().iter().find_map(|&kind| {
            let why = kind.missing(snapshot)?;
            (!kind.is_sampled() || !was_off).then_some((kind, why))
        });
        if let Some((kind, why)) = missing {
            self.refuse(turn, kind, why);
            // It need not be looked for every time.
            return Proposal {
                outlook: PolicyActivity::Done,
                ..Proposal::default()
            };
        }
        self.last_refusal = None;
        let page_budget = match self.may_ask() && !turn.is_held {
            true => turn.pages_left,
            false => 0,
        };
        let switched_off = self.efficacy.switched_off(turn.now_us);
        // Where no member may have memory there is no room.
        let nodes = snapshot.nodes.iter().zip(turn.room.iter());
        let is_allowed = |node| {
            let mut processes = snapshot.processes.iter();
            processes.any(|process| process.may_use(node))
        };
        let room: Vec<u64> = nodes
            .map(|(node, &room)| if is_allowed(node.id) { room } else { 0 })
            .collect();
        let mut context = Context {
            now_us: turn.now_us,
            random: &mut self.random,
            page_budget,
            room_pages: &room,
            ledger: &self.ledger,
            arrived: &self.arrived,
            sampling: turn.sampling,
            switched_off: &switched_off,
            proven: &self.efficacy.proven,
            unjudged_pages: self.efficacy.campaign_pages(),
            fast_pages: turn.fast_pages,
            declared: turn.declared,
            move_ns: self.account.move_ns(),
            look_us: turn.look_us,
            preferred: &turn.config.preferred,
        };
        let mut proposal = self.policy.decide(snapshot, &mut context);
        self.arrived.clear();
        for text in std::mem::take(&mut proposal.notes) {
            turn.note(text);
        }
        // Of a campaign that begins without one, an older forecast says nothing.
        self.forecast = proposal.forecast;
        self.fast_use = proposal.fast_use.unwrap_or(self.fast_use);
        if self.account.summary.moved_pages == 0 && proposal.forecast.is_some() {
            self.account.summary.forecast = proposal.forecast;
        }
        proposal
    }

    /// Says once what is missing.
    fn refuse(&mut self, turn: &mut Turn<'_>, kind: EvidenceKind, why: String) {
        let event = Event::MissingEvidence {
            policy: self.policy.name().to_owned(),
            what: kind.name().to_owned(),
            why,
            remedy: kind.remedy().to_owned(),
        };
        let text = event.to_string();
        if self.last_refusal.as_ref() != Some(&text) {
            turn.tell(event);
            self.last_refusal = Some(text);
        }
    }

    fn take_outcome(&mut self, turn: &mut Turn<'_>, outcome: &MoveOutcome) {
        let Some(pending) = self.pending.remove(&outcome.request) else {
            return;
        };
        let temporary = is_temporary(&outcome.refused);
        let mut on_target = outcome.moved.clone();
        on_target.sort_unstable();
        let rest_us = if temporary {
            turn.config.refused_us
        } else {
            turn.config.refused_for_good_us
        };
        // What happened to a life that is over concerns nobody who lives.
        let is_alive = self.lives.get(&pending.pid) == Some(&pending.space);
        let mut moved_count = 0;
        for page in &pending.pages {
            let at = on_target.partition_point(|&moved| moved < page.page);
            let last = page.page + page.base_pages();
            let has_moved = on_target.get(at).is_some_and(|&moved| moved < last);
            if is_alive && (has_moved || outcome.refused.is_empty()) {
                self.arrived.push(Arrived {
                    pid: pending.pid,
                    page: page.page,
                    at: pending.to,
                });
            }
            if has_moved {
                moved_count += page.base_pages();
                if is_alive {
                    self.ledger.moved(
                        page.unit(pending.pid),
                        pending.to,
                        turn.now_us,
                        turn.config.cooldown_us,
                    );
                }
                self.account.moved(
                    pending.mechanism,
                    page.from,
                    pending.to,
                    page.base_pages(),
                    turn.now_us,
                );
            } else if is_alive && outcome.refused.is_empty() {
                // Nothing was refused: what did not move was there.
                let until_us = turn.now_us.saturating_add(turn.config.refused_us);
                self.ledger
                    .was_there(page.unit(pending.pid), pending.to, until_us);
            } else if is_alive {
                self.ledger
                    .stayed(page.unit(pending.pid), turn.now_us.saturating_add(rest_us));
            }
            if is_alive {
                self.tell_campaign(turn.config, &pending, *page, has_moved, &outcome.refused);
            } else if has_moved && pending.mechanism != Mechanism::Revert {
                self.unjudged_pages += page.base_pages();
            }
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
        turn.record(event);
    }

    fn tell_campaign(
        &mut self,
        config: &EngineConfig,
        pending: &Pending,
        page: PendingPage,
        moved: bool,
        refused: &[(Refusal, u64)],
    ) {
        if pending.mechanism == Mechanism::Revert {
            if !moved && !refused.is_empty() {
                self.put_back(config, pending, page, refused);
            }
        } else if let (true, Some(campaign)) = (moved, self.efficacy.campaign_mut()) {
            campaign.page_count += page.base_pages();
            campaign.moved.push(MovedPage {
                pid: pending.pid,
                space: pending.space,
                page: page.page,
                huge: page.huge,
                from: page.from,
            });
        }
    }

    /// A campaign under way ends without a verdict.
    pub fn drop_campaign(&mut self) {
        let stage = std::mem::replace(&mut self.efficacy.stage, Stage::Moving(None));
        if let Stage::Moving(Some(campaign))
        | Stage::Settling(campaign, _)
        | Stage::Measuring(campaign, ..) = stage
        {
            self.unjudged_pages += campaign.page_count;
        }
    }

    /// Runs of its ledger, with those that the moves under way may add.
    pub fn run_count(&self) -> usize {
        let pending = self.pending.values();
        let units: usize = pending.map(|pending| pending.pages.len()).sum();
        self.ledger.run_count() + RUNS_PER_UNIT * units
    }

    /// Adds the base pages on their way to each node position.
    pub fn add_pending(&self, snapshot: &Snapshot, pages: &mut [u64]) {
        for pending in self.pending.values() {
            if let Some(to) = snapshot.node_position(pending.to) {
                let sizes = pending.pages.iter().map(|page| page.base_pages());
                pages[to] += sizes.sum::<u64>();
            }
        }
    }

    /// Pages that the kernel moved because hither watches are put down, so that they can go back.
    fn follow(&mut self, turn: &mut Turn<'_>) {
        for page in &turn.snapshot.pages {
            let (Some(was), Some(&space)) = (page.was, self.lives.get(&page.pid)) else {
                continue;
            };
            let unit = Unit {
                pid: page.pid,
                page: moving_unit(page.page, page.huge),
                huge: page.huge,
            };
            let cost = self.ledger.cost(unit);
            if cost > turn.runs_left {
                break;
            }
            turn.runs_left -= cost;
            self.ledger.found(unit, space, was, page.home);
            self.account.summary.kernel_pages += base_pages(page.huge);
        }
    }

    /// Members that have ended, or executed another program, take their pages with them.
    fn meet(&mut self, snapshot: &Snapshot) {
        let processes = snapshot.processes.iter();
        let lives: BTreeMap<Pid, SpaceId> = processes
            .map(|process| (process.pid, process.space))
            .collect();
        let mut old = self.lives.iter();
        let is_lost = old.any(|(pid, space)| lives.get(pid) != Some(space));
        let mut old = self.lives.iter();
        let is_another = !old.any(|(pid, space)| lives.get(pid) == Some(space));
        self.lives = lives;
        if !is_lost {
            return;
        }
        if is_another {
            self.efficacy.allow_all();
        }
        let lives = &self.lives;
        self.ledger
            .retain(|pid, space| lives.get(&pid) == Some(&space));
        let is_alive = |page: &MovedPage| lives.get(&page.pid) == Some(&page.space);
        self.unjudged_pages += self.efficacy.forget(is_alive);
    }

    fn take_judgement(&mut self, turn: &mut Turn<'_>, judgement: Judgement) {
        let now_us = turn.now_us;
        let until_us = self.efficacy.discipline(turn.config, &judgement, now_us);
        let Judgement {
            campaign,
            verdict,
            grounds,
            after,
        } = judgement;
        let mechanisms: Vec<Mechanism> = campaign.mechanisms.iter().copied().collect();
        let measured_gain_ns = measured_gain_ns(grounds, &campaign.before, &after, turn.snapshot);
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
        turn.tell(event);
        let row = CampaignRow {
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
            forecast: campaign.forecast,
        };
        self.account.judged(row, turn.config.campaign_rows);
        if let Some(until_us) = until_us {
            let event = Event::SwitchedOff {
                mechanisms,
                until_us,
            };
            turn.tell(event);
        }
    }
}

/// CPU time saved per interval, in ns: by what the verdict stands on, instructions or the fall in latency
/// of the accesses made afterwards.
fn measured_gain_ns(
    grounds: Grounds,
    before: &Reading,
    after: &Reading,
    snapshot: &Snapshot,
) -> Option<f64> {
    if grounds == Grounds::Instructions {
        let (before, after) = (
            before.instructions_per_cpu_us?,
            after.instructions_per_cpu_us?,
        );
        let own = snapshot.processes.iter();
        let used_us: u64 = own.filter_map(|process| process.cpu_us.get()).sum();
        return (used_us > 0).then(|| used_us as f64 * 1000.0 * (after / before - 1.0));
    }
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
pub(super) fn is_temporary(refused: &[(Refusal, u64)]) -> bool {
    refused.iter().any(|(refusal, _)| refusal.is_temporary())
}
