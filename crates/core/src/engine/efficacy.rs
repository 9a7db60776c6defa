//! The efficacy loop: predict, move, measure, keep or revert, back off.
//!
//! Problem: a rule may be wrong about a program. Mechanism: moves of up to a few steps make one
//! *campaign*. When it starts the metrics are noted; when its last move has come back, and one
//! more interval has passed (a phase of pure migration must not be measured), they are measured
//! again and a verdict is given. Harm is reverted, page by page, to where the campaign found it.
//! A mechanism that did not do what was predicted is switched off, for twice as long each time.
//!
//! What a verdict compares is in [`verdict`](super::verdict), which readings may be compared in
//! [`phase`](super::phase). The first off-time follows Carrefour's published code.
//!
//! Properties: one campaign at a time; no move is asked for while one is measured; what was moved
//! after the notes were taken is in the campaign's list until its verdict.

use super::config::EngineConfig;
use super::ledger::Unit;
use super::phase::Phase;
use super::predict::PredictedChange;
use super::revert::{Attempts, Queue};
use super::verdict::{Grounds, Reading, Verdict, judge};
use crate::forecast::Forecast;
use crate::ids::{NodeId, Pid, SpaceId};
use crate::plan::Mechanism;
use crate::snapshot::base_pages;
use std::collections::{BTreeMap, BTreeSet};

/// Times that a round may take as long as what is measured in intervals: 12 s at the short interval, more
/// than the longest round.
const ROUND_PATIENCE: u32 = 6;

/// A page that a campaign moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MovedPage {
    pub pid: Pid,
    pub space: SpaceId,
    pub page: u64,
    pub huge: bool,
    /// Where the campaign found it.
    pub from: NodeId,
}

impl MovedPage {
    pub fn unit(&self) -> Unit {
        Unit {
            pid: self.pid,
            page: self.page,
            huge: self.huge,
        }
    }

    /// Base pages that it is.
    pub fn base_pages(&self) -> u64 {
        base_pages(self.huge)
    }
}

/// Moves that are judged together.
#[derive(Clone, Debug)]
pub(super) struct Campaign {
    pub id: u64,
    pub mechanisms: BTreeSet<Mechanism>,
    /// What it began with, and the phase that this was read in.
    pub before: Reading,
    pub phase: Phase,
    pub predicted: PredictedChange,
    /// Stall time that was predicted to be saved per interval, in ns, by those steps of which it is
    /// known; `None` where it is of none.
    pub predicted_gain_ns: Option<f64>,
    /// What its policy expected of the best placement when it began.
    pub forecast: Option<Forecast>,
    /// Pages that moved, in order of time: a page that moved twice is there twice, and goes back
    /// to where it was first.
    pub moved: Vec<MovedPage>,
    /// Base pages that moved.
    pub page_count: u64,
    pub steps: u32,
    pub started_us: u64,
}

impl Campaign {
    /// Must its moves be, whatever they cost?
    fn is_required(&self) -> bool {
        self.mechanisms.iter().any(|one| one.is_required())
    }
}

/// Where the loop is.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// Moves may be asked for; `Some` while a campaign is open.
    Moving(Option<Campaign>),
    /// Waiting for outcomes and for quiet: intervals yet to skip.
    Settling(Campaign, u32),
    /// Measuring: readings so far, intervals waited.
    Measuring(Campaign, Vec<Reading>, u32),
    /// Putting pages back: each page with the attempts made.
    Reverting(Campaign, Queue),
}

/// A verdict with what it rests on.
#[derive(Clone, Debug)]
pub(super) struct Judgement {
    pub campaign: Campaign,
    pub verdict: Verdict,
    pub grounds: Grounds,
    pub after: Reading,
}

/// Off-times of one mechanism.
#[derive(Clone, Copy, Debug, Default)]
struct Discipline {
    off_until_us: u64,
    failures: u32,
}

/// The loop's state.
#[derive(Clone, Debug)]
pub(super) struct Efficacy {
    pub stage: Stage,
    disciplines: BTreeMap<Mechanism, Discipline>,
    /// Mechanisms whose last verdict was a success.
    pub proven: BTreeSet<Mechanism>,
}

impl Efficacy {
    pub fn new() -> Self {
        Self {
            stage: Stage::Moving(None),
            disciplines: BTreeMap::new(),
            proven: BTreeSet::new(),
        }
    }

    /// May new moves be asked for?
    pub fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Moving(_))
    }

    /// Is nothing under way?
    pub fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Moving(None))
    }

    /// Do readings count for a verdict from now on?
    pub fn is_measuring(&self) -> bool {
        matches!(self.stage, Stage::Measuring(..))
    }

    /// Mechanisms that are switched off now.
    pub fn switched_off(&self, now_us: u64) -> Vec<Mechanism> {
        let disciplines = self.disciplines.iter();
        disciplines
            .filter(|(_, discipline)| discipline.off_until_us > now_us)
            .map(|(&mechanism, _)| mechanism)
            .collect()
    }

    /// Nothing is switched off any more: all programs on which it had no effect, or did harm, have ended.
    pub fn allow_all(&mut self) {
        self.disciplines.clear();
    }

    /// Base pages that the campaign under way has moved so far.
    pub fn campaign_pages(&self) -> u64 {
        match &self.stage {
            Stage::Moving(Some(campaign))
            | Stage::Settling(campaign, _)
            | Stage::Measuring(campaign, ..) => campaign.page_count,
            Stage::Moving(None) | Stage::Reverting(..) => 0,
        }
    }

    /// The campaign under way, in whatever stage.
    pub fn campaign_mut(&mut self) -> Option<&mut Campaign> {
        match &mut self.stage {
            Stage::Moving(campaign) => campaign.as_mut(),
            Stage::Settling(campaign, _)
            | Stage::Measuring(campaign, ..)
            | Stage::Reverting(campaign, _) => Some(campaign),
        }
    }

    /// Forgets pages of lives that are over; returns how many base pages of these were not judged. A
    /// campaign of which nothing is left ends without a verdict.
    pub fn forget(&mut self, is_alive: impl Fn(&MovedPage) -> bool) -> u64 {
        if let Stage::Reverting(_, queue) = &mut self.stage {
            queue.retain(|_, (page, _)| is_alive(page));
            return 0;
        }
        let Some(campaign) = self.campaign_mut() else {
            return 0;
        };
        let lost = campaign.moved.iter().filter(|page| !is_alive(page));
        let lost: u64 = lost.map(MovedPage::base_pages).sum();
        campaign.moved.retain(|page| is_alive(page));
        campaign.page_count -= lost;
        if matches!(&self.stage, Stage::Measuring(campaign, ..) if campaign.moved.is_empty()) {
            self.stage = Stage::Moving(None);
        }
        lost
    }

    /// Closes an open campaign to new moves and begins to wait for quiet.
    pub fn close(&mut self, config: &EngineConfig) {
        if let Stage::Moving(campaign) = &mut self.stage
            && let Some(campaign) = campaign.take()
        {
            self.stage = Stage::Settling(campaign, config.settle_intervals);
        }
    }

    /// One interval of a phase has passed; where figures come `by_rounds`, one is enough, and may be long
    /// in coming. `has_pending` outcomes are outstanding, `some_came` with it.
    /// Returns a judgement when one is due; harm leaves the loop reverting.
    pub fn advance(
        &mut self,
        config: &EngineConfig,
        by_rounds: bool,
        reading: &Reading,
        phase: Phase,
        has_pending: bool,
        some_came: bool,
    ) -> Option<Judgement> {
        let stage = std::mem::replace(&mut self.stage, Stage::Moving(None));
        let (next, judgement) = match stage {
            Stage::Settling(campaign, _) if has_pending => {
                (Stage::Settling(campaign, config.settle_intervals), None)
            }
            // What must be is not judged by figures: a node that fills does not wait for them.
            Stage::Settling(campaign, _)
                if campaign.is_required() && !campaign.moved.is_empty() =>
            {
                let judgement = conclude(config, campaign, &[], phase);
                (after_judgement(&judgement), Some(judgement))
            }
            Stage::Settling(campaign, left) => {
                let left = if some_came {
                    config.settle_intervals
                } else {
                    left.saturating_sub(1)
                };
                match left {
                    0 if campaign.moved.is_empty() => (Stage::Moving(None), None),
                    0 => (Stage::Measuring(campaign, Vec::new(), 0), None),
                    left => (Stage::Settling(campaign, left), None),
                }
            }
            Stage::Measuring(campaign, mut readings, waited) => {
                if reading.is_usable() {
                    readings.push(*reading);
                }
                let waited = waited + 1;
                let (wanted, patience) = match by_rounds {
                    true => (1, config.patience_intervals * ROUND_PATIENCE),
                    false => (config.measure_intervals, config.patience_intervals),
                };
                if readings.len() as u32 >= wanted || waited >= patience {
                    let judgement = conclude(config, campaign, &readings, phase);
                    (after_judgement(&judgement), Some(judgement))
                } else {
                    (Stage::Measuring(campaign, readings, waited), None)
                }
            }
            stage => (stage, None),
        };
        self.stage = next;
        judgement
    }

    /// Applies a verdict to the mechanisms; returns those switched off and until when, in us.
    pub fn discipline(
        &mut self,
        config: &EngineConfig,
        judgement: &Judgement,
        now_us: u64,
    ) -> Option<u64> {
        let base_us = match judgement.verdict {
            Verdict::NoEffect => config.off_us,
            Verdict::Harmful => config.off_after_harm_us,
            Verdict::Success => {
                for mechanism in &judgement.campaign.mechanisms {
                    self.disciplines.remove(mechanism);
                    self.proven.insert(*mechanism);
                }
                return None;
            }
            Verdict::TooSmall | Verdict::Inconclusive => return None,
        };
        let mut latest_us = 0;
        for &mechanism in &judgement.campaign.mechanisms {
            self.proven.remove(&mechanism);
            let discipline = self.disciplines.entry(mechanism).or_default();
            let off_us = base_us.saturating_mul(1 << discipline.failures.min(10));
            discipline.failures += 1;
            discipline.off_until_us = now_us.saturating_add(off_us);
            latest_us = latest_us.max(discipline.off_until_us);
        }
        Some(latest_us)
    }
}

fn conclude(
    config: &EngineConfig,
    campaign: Campaign,
    readings: &[Reading],
    phase: Phase,
) -> Judgement {
    let after = Reading::mean(readings);
    if campaign.phase.is_part != phase.is_part {
        return Judgement {
            campaign,
            verdict: Verdict::Inconclusive,
            grounds: Grounds::Company,
            after,
        };
    }
    if campaign.is_required() {
        // What a quota or a full node takes is missed, and not given back for that.
        return Judgement {
            campaign,
            verdict: Verdict::Inconclusive,
            grounds: Grounds::Required,
            after,
        };
    }
    let same_phase = campaign.phase.number == phase.number;
    let (verdict, grounds) = judge(
        config,
        &campaign.before,
        &after,
        &campaign.predicted,
        &campaign.mechanisms,
        same_phase,
    );
    Judgement {
        campaign,
        verdict,
        grounds,
        after,
    }
}

fn after_judgement(judgement: &Judgement) -> Stage {
    if judgement.verdict != Verdict::Harmful {
        return Stage::Moving(None);
    }
    let mut queue = Queue::new();
    for page in &judgement.campaign.moved {
        let waiting = (*page, Attempts::default());
        queue.entry((page.pid, page.page)).or_insert(waiting);
    }
    Stage::Reverting(judgement.campaign.clone(), queue)
}
