//! The account at the end: what was moved, why, what was predicted and gained, what was reverted.

use super::predict::PredictedChange;
use super::verdict::{Grounds, Reading, Verdict};
use crate::explain::stall_time;
use crate::forecast::Forecast;
use crate::ids::NodeId;
use crate::plan::{Mechanism, Refusal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Base pages moved in one direction by one mechanism.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionRow {
    /// How it was meant to help.
    pub mechanism: Mechanism,
    /// From this node.
    pub from: NodeId,
    /// To this node.
    pub to: NodeId,
    /// Base pages.
    pub page_count: u64,
}

/// One campaign and its verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CampaignRow {
    /// Its number.
    pub campaign: u64,
    /// First move asked for, in us on the caller's clock.
    pub started_us: u64,
    /// Judged, in us.
    pub judged_us: u64,
    /// What it used.
    pub mechanisms: Vec<Mechanism>,
    /// Base pages that it moved.
    pub page_count: u64,
    /// Base pages put back afterwards.
    pub reverted_count: u64,
    /// The verdict.
    pub verdict: Verdict,
    /// What it stands on.
    pub grounds: Grounds,
    /// Metrics before and after.
    pub before: Reading,
    /// See `before`.
    pub after: Reading,
    /// Change that was predicted.
    pub predicted: PredictedChange,
    /// Stall time predicted to be saved per interval, in ns, over all CPUs: at most the CPU time that the
    /// interval has. Of those steps whose gain is known.
    pub predicted_gain_ns: Option<f64>,
    /// The same as it was saved by the change in latency; negative where it was lost.
    pub measured_gain_ns: Option<f64>,
    /// What its policy expected of the best placement when it began, where it forecasts.
    #[serde(default)]
    pub forecast: Option<Forecast>,
}

impl CampaignRow {
    /// How many times as fast memory was accessed after it as before: programs that do the same work make
    /// the same accesses, wherever their pages are.
    #[must_use]
    pub fn speed_up(&self) -> Option<f64> {
        let rate = |reading: &Reading| reading.accesses_per_us.filter(|&rate| rate > 0.0);
        Some(rate(&self.after)? / rate(&self.before)?)
    }
}

/// The whole account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The policy.
    pub policy: String,
    /// Steps taken.
    pub step_count: u64,
    /// Requests asked for.
    pub request_count: u64,
    /// Base pages moved, reverts included.
    pub moved_pages: u64,
    /// Base pages put back: as they did harm, by an undo, or as the kernel had moved them where nothing was to be gained.
    pub reverted_pages: u64,
    /// Base pages that the kernel's NUMA balancing moved while hither had it on to watch.
    #[serde(default)]
    pub kernel_pages: u64,
    /// Base pages that are not where hither found them.
    pub displaced_pages: u64,
    /// Time that the moves took, in ns.
    pub move_duration_ns: u64,
    /// When the last page moved, in us on the caller's clock; `None` where none did.
    pub last_move_us: Option<u64>,
    /// Base pages moved per mechanism and direction, in this order.
    pub directions: Vec<DirectionRow>,
    /// Pages that were not moved, by reason.
    pub refused: Vec<(Refusal, u64)>,
    /// Campaigns that were judged, in time: the last [`EngineConfig::campaign_rows`].
    ///
    /// [`EngineConfig::campaign_rows`]: super::EngineConfig::campaign_rows
    pub campaigns: Vec<CampaignRow>,
    /// Campaigns that made room for later ones.
    #[serde(default)]
    pub campaigns_dropped: u64,
    /// Campaigns by verdict, those included.
    #[serde(default)]
    pub verdicts: Vec<(Verdict, u64)>,
    /// Base pages moved that were not judged yet.
    pub unjudged_pages: u64,
    /// What the policy expected last before the first page moved, where it forecasts.
    #[serde(default)]
    pub forecast: Option<Forecast>,
}

/// The running account.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    pub summary: Summary,
    directions: BTreeMap<(Mechanism, NodeId, NodeId), u64>,
    refused: BTreeMap<Refusal, u64>,
}

impl Account {
    /// Time that a move took for each base page so far, in ns.
    pub fn move_ns(&self) -> Option<f64> {
        let pages = self.summary.moved_pages;
        (pages > 0).then(|| self.summary.move_duration_ns as f64 / pages as f64)
    }

    pub fn moved(
        &mut self,
        mechanism: Mechanism,
        from: NodeId,
        to: NodeId,
        page_count: u64,
        now_us: u64,
    ) {
        *self.directions.entry((mechanism, from, to)).or_default() += page_count;
        self.summary.moved_pages += page_count;
        self.summary.last_move_us = Some(now_us);
        if mechanism == Mechanism::Revert {
            self.summary.reverted_pages += page_count;
        }
    }

    /// A campaign was judged; the oldest of more than `limit` makes room.
    pub fn judged(&mut self, row: CampaignRow, limit: usize) {
        let counts = &mut self.summary.verdicts;
        match counts
            .iter_mut()
            .find(|(verdict, _)| *verdict == row.verdict)
        {
            Some((_, count)) => *count += 1,
            None => counts.push((row.verdict, 1)),
        }
        let rows = &mut self.summary.campaigns;
        if rows.len() >= limit.max(1) {
            rows.remove(0);
            self.summary.campaigns_dropped += 1;
        }
        rows.push(row);
    }

    pub fn refused(&mut self, refused: &[(Refusal, u64)]) {
        for &(refusal, count) in refused {
            *self.refused.entry(refusal).or_default() += count;
        }
    }

    pub fn summary(&self) -> Summary {
        let row = |(&(mechanism, from, to), &page_count): (&(Mechanism, NodeId, NodeId), &u64)| {
            DirectionRow {
                mechanism,
                from,
                to,
                page_count,
            }
        };
        Summary {
            directions: self.directions.iter().map(row).collect(),
            refused: self
                .refused
                .iter()
                .map(|(&refusal, &count)| (refusal, count))
                .collect(),
            ..self.summary.clone()
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "policy {}: {} pages moved in {} requests ({:.1} ms), {} of them back to where they were",
            self.policy,
            self.moved_pages,
            self.request_count,
            self.move_duration_ns as f64 / 1e6,
            self.reverted_pages,
        )?;
        if self.kernel_pages > 0 {
            writeln!(
                f,
                "  the kernel moved {} pages to their users in the faults that hither watches by",
                self.kernel_pages
            )?;
        }
        for row in &self.directions {
            writeln!(
                f,
                "  {:<10} {} to {}: {} pages",
                row.mechanism, row.from, row.to, row.page_count
            )?;
        }
        for (refusal, count) in &self.refused {
            writeln!(f, "  not moved: {count} pages, {refusal}")?;
        }
        if self.campaigns_dropped > 0 {
            writeln!(f, "  {} campaigns before these", self.campaigns_dropped)?;
        }
        for row in &self.campaigns {
            let names: Vec<&str> = row
                .mechanisms
                .iter()
                .map(|mechanism| mechanism.name())
                .collect();
            write!(
                f,
                "  campaign {} ({}, {} pages): {}; {}",
                row.campaign,
                names.join(" and "),
                row.page_count,
                row.grounds.told(row.verdict),
                stall_time(row.predicted_gain_ns, row.measured_gain_ns),
            )?;
            if let (Some(before), Some(after)) =
                (row.before.accesses_per_us, row.after.accesses_per_us)
            {
                write!(f, ", accesses per us went from {before:.1} to {after:.1}")?;
            }
            if let Some(forecast) = &row.forecast {
                write!(f, "; forecast {}", forecast.range())?;
                if let Some(speed_up) = row.speed_up() {
                    write!(f, ", came {speed_up:.2}")?;
                }
            }
            match row.reverted_count {
                0 => writeln!(f)?,
                count => writeln!(f, "; {count} pages put back")?,
            }
        }
        if let Some(forecast) = &self.forecast
            && self.directions.is_empty()
        {
            match forecast.is_gain() {
                true => writeln!(f, "  expected {forecast}")?,
                false => writeln!(f, "  declined: expected {forecast}")?,
            }
        }
        if self.unjudged_pages > 0 {
            writeln!(
                f,
                "  {} pages moved too late to be judged",
                self.unjudged_pages
            )?;
        }
        Ok(())
    }
}
