//! Verdicts: a scope's own figures before and after a campaign, compared.
//!
//! Problem: figures change for other reasons than the moves, and one may become better while another
//! becomes worse. Rule: a verdict is given only where the figures agree: local accesses and the balance
//! of the controllers, unless the time that accesses take speaks against them. Where they do not agree,
//! what the program gets done decides (instructions per CPU time), where it is known. The rest is *not
//! measurable*: nothing is switched off, nothing put back.
//!
//! Thresholds: success and harm follow Carrefour's published code; harm by latency and rate together,
//! and where figures do not agree, is this project's (see [`EngineConfig`]).

use super::config::EngineConfig;
use super::predict::PredictedChange;
use crate::plan::{Mechanism, Objective};
use crate::snapshot::Snapshot;
use crate::tiers::Tiers;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The figures that a verdict compares; `None` where unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Local-access ratio, 0..=1.
    pub local_ratio: Option<f64>,
    /// Controller imbalance as a fraction.
    pub imbalance: Option<f64>,
    /// Share of the sampled accesses that the fastest memory tier served, where there are several.
    #[serde(default)]
    pub fast_share: Option<f64>,
    /// Standard error of that share, as its number of samples has it.
    #[serde(default)]
    pub fast_error: Option<f64>,
    /// Mean latency of demand misses in ns.
    pub latency_ns: Option<f64>,
    /// Memory fills per us.
    pub accesses_per_us: Option<f64>,
    /// Instructions per us of CPU time, in user mode. Threads that spin while they wait execute some too.
    #[serde(default)]
    pub instructions_per_cpu_us: Option<f64>,
}

impl Reading {
    /// The figures of a scope's view; those that are not finite count as unknown.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Self {
        let metrics = &snapshot.metrics;
        let fast = Tiers::of(&snapshot.nodes).fast_share(snapshot);
        let finite = |figure: Option<f64>| figure.filter(|value| value.is_finite());
        let cpu_us: Option<u64> = snapshot
            .processes
            .iter()
            .map(|process| process.cpu_us.get())
            .sum();
        let instructions = metrics.instructions_per_us.get().zip(cpu_us);
        let instructions_per_cpu_us = instructions
            .filter(|&(_, cpu_us)| cpu_us > 0)
            .map(|(per_us, cpu_us)| per_us * snapshot.interval_us as f64 / cpu_us as f64);
        Self {
            local_ratio: finite(metrics.local_access_ratio.get()),
            imbalance: finite(metrics.controller_imbalance.get()),
            fast_share: fast.map(|(share, _)| share),
            fast_error: fast.map(|(_, error)| error),
            latency_ns: finite(metrics.latency_ns.get()),
            accesses_per_us: finite(metrics.memory_accesses_per_us.get()),
            instructions_per_cpu_us: finite(instructions_per_cpu_us),
        }
    }

    /// Is there anything to compare?
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.local_ratio.is_some() || self.imbalance.is_some() || self.fast_share.is_some()
    }

    /// Mean per figure over the readings that have it; errors of independent readings fall with their number.
    #[must_use]
    pub fn mean<'a>(readings: impl IntoIterator<Item = &'a Self> + Clone) -> Self {
        let mean = |figure: fn(&Self) -> Option<f64>| {
            let known: Vec<f64> = readings.clone().into_iter().filter_map(figure).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        Self {
            local_ratio: mean(|reading| reading.local_ratio),
            imbalance: mean(|reading| reading.imbalance),
            fast_share: mean(|reading| reading.fast_share),
            fast_error: mean_error(readings.clone()),
            latency_ns: mean(|reading| reading.latency_ns),
            accesses_per_us: mean(|reading| reading.accesses_per_us),
            instructions_per_cpu_us: mean(|reading| reading.instructions_per_cpu_us),
        }
    }
}

/// Standard error of the mean of the readings that have one.
fn mean_error<'a>(readings: impl IntoIterator<Item = &'a Reading>) -> Option<f64> {
    let errors = readings
        .into_iter()
        .filter_map(|reading| reading.fast_error);
    let errors: Vec<f64> = errors.collect();
    let sum: f64 = errors.iter().map(|error| error * error).sum();
    (!errors.is_empty()).then(|| sum.sqrt() / errors.len() as f64)
}

/// What a campaign turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It improved what it was to improve.
    Success,
    /// It did not do what was predicted; its pages stay, its mechanisms are switched off.
    NoEffect,
    /// Too little was moved to be seen; nothing changes.
    TooSmall,
    /// It did harm; its pages go back, its mechanisms are switched off.
    Harmful,
    /// It could not be measured: the program stopped or does something else, figures are missing or do
    /// not agree.
    Inconclusive,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Success,
        Self::NoEffect,
        Self::TooSmall,
        Self::Harmful,
        Self::Inconclusive,
    ];

    /// The words for a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::NoEffect => "no effect",
            Self::TooSmall => "too small to see",
            Self::Harmful => "harmful",
            Self::Inconclusive => "not measurable",
        }
    }
}

/// What a verdict stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grounds {
    /// Instructions that the program executes per CPU time, where the other figures do not agree.
    Instructions,
    /// The local-access ratio.
    LocalAccesses,
    /// The controller imbalance.
    Imbalance,
    /// Both of them.
    LocalAccessesAndImbalance,
    /// The share of accesses that the fastest memory tier serves.
    FastAccesses,
    /// Latency and accesses per us together.
    LatencyAndRate,
    /// The program hardly made accesses afterwards.
    Idle,
    /// Other nodes used the memory afterwards.
    Phase,
    /// Others began to run beside the program, or ended: the figures are not of the same processes.
    Company,
    /// A quota, or a node that ran out of memory, required the moves: what was gained besides cannot be told
    /// from what that cost.
    Required,
    /// The accesses per us changed threefold.
    Rate,
    /// One figure became better and another worse.
    Mixed,
    /// The figures that the moves were to change are not known.
    Missing,
}

impl Grounds {
    /// A verdict with what it stands on, for a report.
    #[must_use]
    pub fn told(self, verdict: Verdict) -> String {
        let figures = match self {
            Self::Instructions => "instructions per CPU time",
            Self::LocalAccesses => "local accesses",
            Self::Imbalance => "controller imbalance",
            Self::LocalAccessesAndImbalance => "local accesses and controller imbalance",
            Self::FastAccesses => "accesses served by the fast tier",
            Self::LatencyAndRate => "latency and accesses per us",
            Self::Idle => "hardly any access was made afterwards",
            Self::Phase => {
                "the program did something else afterwards, its memory was used otherwise"
            }
            Self::Company => "others came to run beside the program, or left",
            Self::Required => "a quota or a node without free memory required the moves",
            Self::Rate => {
                "the program did something else afterwards, accesses per us changed threefold"
            }
            Self::Mixed => "one figure became better and another worse",
            Self::Missing => "the figures that the moves were to change are not known",
        };
        let link = match verdict {
            Verdict::Success | Verdict::Harmful => " by ",
            Verdict::NoEffect => " on ",
            Verdict::TooSmall => " in ",
            Verdict::Inconclusive => ": ",
        };
        format!("{}{link}{figures}", verdict.name())
    }
}

/// Factor by which accesses per us change where the program does something else.
pub(super) const OTHER_RATE: f64 = 3.0;

/// How a figure changed, measured by thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Better,
    Same,
    Worse,
}

/// After less before, where a gain is positive; `None` where one is unknown.
fn change(gain: Option<f64>, better: f64, worse: f64) -> Change {
    match gain {
        Some(gain) if gain >= better => Change::Better,
        Some(gain) if gain <= -worse => Change::Worse,
        _ => Change::Same,
    }
}

fn difference(before: Option<f64>, after: Option<f64>) -> Option<f64> {
    Some(after? - before?)
}

fn ratio(before: Option<f64>, after: Option<f64>) -> Option<f64> {
    match (before?, after?) {
        (before, after) if before > 0.0 => Some(after / before),
        _ => None,
    }
}

/// The figures that moves were to change, and by how much that counts.
struct Aim {
    objective: Objective,
    grounds: Grounds,
    /// What was gained of its share of accesses.
    gain: Option<f64>,
    predicted: f64,
    success: f64,
    harm: f64,
    /// What was gained of evenness, where that counts.
    even_gain: Option<f64>,
    even_predicted: f64,
}

impl Aim {
    /// Moves between tiers are judged by what the fast tier serves: it may be nobody's own, and it is to
    /// have most of the traffic. Others are judged by local accesses and the balance of the controllers.
    fn of(
        config: &EngineConfig,
        before: &Reading,
        after: &Reading,
        predicted: &PredictedChange,
        mechanisms: &BTreeSet<Mechanism>,
        objectives: &BTreeSet<Objective>,
    ) -> Self {
        if objectives.contains(&Objective::FastAccesses) {
            // A change that chance may bring, once in some forty times, is none.
            let error = |reading: &Reading| reading.fast_error.unwrap_or(0.0).powi(2);
            let noise = 2.0 * (error(before) + error(after)).sqrt();
            let least = config.success_fast_share.max(noise);
            // Pages that go up take no access from the fast tier: what it lost without any that left it, the
            // program changed.
            let has_left = mechanisms.iter().any(|&one| one != Mechanism::Promote);
            return Self {
                objective: Objective::FastAccesses,
                grounds: Grounds::FastAccesses,
                gain: difference(before.fast_share, after.fast_share),
                predicted: predicted.fast_share,
                success: least,
                harm: if has_left { least } else { f64::INFINITY },
                even_gain: None,
                even_predicted: 0.0,
            };
        }
        Self {
            objective: Objective::LocalAccesses,
            grounds: Grounds::LocalAccesses,
            gain: difference(before.local_ratio, after.local_ratio),
            predicted: predicted.local_ratio,
            success: config.success_local_ratio,
            harm: config.harm_local_ratio,
            even_gain: difference(before.imbalance, after.imbalance).map(|change| -change),
            even_predicted: predicted.imbalance,
        }
    }
}

/// Compares before and after, and says by which figures. `mechanisms` are those that were used, `predicted` tells
/// how much was to be expected, `same_phase` whether the memory had the same users.
#[must_use]
pub fn judge(
    config: &EngineConfig,
    before: &Reading,
    after: &Reading,
    predicted: &PredictedChange,
    mechanisms: &BTreeSet<Mechanism>,
    same_phase: bool,
) -> (Verdict, Grounds) {
    let objectives = mechanisms.iter().flat_map(|one| one.objectives());
    let objectives: BTreeSet<Objective> = objectives.copied().collect();
    let share = config.harm_share;
    let relative = |figure: fn(&Reading) -> Option<f64>| ratio(figure(before), figure(after));
    let by_share = |ratio: Option<f64>| change(ratio.map(|ratio| ratio - 1.0), share, share);
    let by_instructions = |executed: Change| match executed {
        Change::Better => Some((Verdict::Success, Grounds::Instructions)),
        Change::Worse => Some((Verdict::Harmful, Grounds::Instructions)),
        Change::Same => None,
    };
    // The gain that is told follows from the latency: no verdict may contradict its sign.
    let latency_ratio = relative(|reading| reading.latency_ns);
    let is_slower = latency_ratio.is_some_and(|ratio| ratio > 1.0);
    let is_faster = latency_ratio.is_some_and(|ratio| ratio < 1.0);
    let rate_ratio = relative(|reading| reading.accesses_per_us);
    if rate_ratio.is_some_and(|ratio| ratio < config.idle_share) {
        return (Verdict::Inconclusive, Grounds::Idle);
    }
    if !same_phase {
        return (Verdict::Inconclusive, Grounds::Phase);
    }
    let aim = Aim::of(config, before, after, predicted, mechanisms, &objectives);
    let looked_at = match (aim.gain, aim.even_gain) {
        (None, None) => return (Verdict::Inconclusive, Grounds::Missing),
        (Some(_), Some(_)) => Grounds::LocalAccessesAndImbalance,
        (Some(_), None) => aim.grounds,
        (None, Some(_)) => Grounds::Imbalance,
    };
    let local = change(aim.gain, aim.success, aim.harm);
    let even = change(
        aim.even_gain,
        config.success_imbalance,
        config.success_imbalance,
    );
    let latency = by_share(latency_ratio.map(|ratio| 2.0 - ratio));
    let rate = by_share(rate_ratio);
    // Threads that wait by spinning execute much and get nothing done: instructions decide only where
    // the other figures do not, and against the time that accesses take only with their number: a reading
    // of the latency may be of accesses that a program made while it was getting going.
    let executed = match by_share(relative(|reading| reading.instructions_per_cpu_us)) {
        Change::Better if latency == Change::Worse && rate != Change::Better => Change::Same,
        Change::Worse if latency == Change::Better && rate != Change::Worse => Change::Same,
        executed => executed,
    };
    // What a mechanism is not meant for is no gain of it, that could make up for a loss.
    let meant = |figure, objective| match figure {
        Change::Better if !objectives.contains(&objective) => Change::Same,
        figure => figure,
    };
    let figures = [
        meant(local, aim.objective),
        meant(even, Objective::Balance),
        latency,
    ];
    if rate_ratio.is_some_and(|ratio| !(1.0 / OTHER_RATE..=OTHER_RATE).contains(&ratio)) {
        // Pages that may have slowed their program so far down go back.
        let is_harm = rate == Change::Worse
            && local == Change::Worse
            && !figures.contains(&Change::Better)
            && !is_faster;
        let otherwise = match is_harm {
            true => (Verdict::Harmful, aim.grounds),
            false => (Verdict::Inconclusive, Grounds::Rate),
        };
        return by_instructions(executed).unwrap_or(otherwise);
    }
    if (latency, rate) == (Change::Worse, Change::Worse) {
        return (Verdict::Harmful, Grounds::LatencyAndRate);
    }
    if figures.contains(&Change::Better) && figures.contains(&Change::Worse) {
        return match (latency, rate) {
            (Change::Better, Change::Better) => (Verdict::Success, Grounds::LatencyAndRate),
            _ => by_instructions(executed).unwrap_or((Verdict::Inconclusive, Grounds::Mixed)),
        };
    }
    let [local_meant, even_meant, _] = figures.map(|figure| figure == Change::Better);
    let won = match (local_meant, even_meant) {
        (true, true) => Some(Grounds::LocalAccessesAndImbalance),
        (true, false) => Some(aim.grounds),
        (false, true) => Some(Grounds::Imbalance),
        (false, false) => None,
    };
    let mixed = by_instructions(executed).unwrap_or((Verdict::Inconclusive, Grounds::Mixed));
    match won {
        Some(_) if is_slower => return mixed,
        Some(grounds) => return (Verdict::Success, grounds),
        None if local != Change::Worse => {}
        None if is_faster => return mixed,
        None => return (Verdict::Harmful, aim.grounds),
    }
    let should_show =
        aim.predicted.abs() >= aim.success || aim.even_predicted.abs() >= config.success_imbalance;
    let verdict = match should_show {
        true => Verdict::NoEffect,
        false => Verdict::TooSmall,
    };
    (verdict, looked_at)
}

#[cfg(test)]
mod tests;
