//! From what moves brought to what a run begins with.

use super::{Run, Start};
use crate::engine::{CampaignRow, Summary, Verdict};
use crate::ids::NodeId;
use crate::plan::Mechanism;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Base pages that must have been moved with success: 4 MiB. What is less is not worth a start.
const LEAST_PAGES: u64 = 1024;
/// From this share of interleaved pages on, all of the program's pages go in turns.
const MOSTLY: f64 = 2.0 / 3.0;
/// From this share on, large blocks do.
const PARTLY: f64 = 1.0 / 3.0;
/// Of the nodes that collocated pages went to, none got more than so many times what another got.
const EVEN: u64 = 2;

/// A mechanism that paid.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// Which.
    pub mechanism: Mechanism,
    /// Base pages that its successful campaigns moved.
    pub page_count: u64,
    /// Stall time that they were measured to save per interval, in ns; `None` where unknown.
    pub gain_ns: Option<f64>,
}

/// What paid in a run, by its account. A campaign by several mechanisms counts for each as many pages as that
/// one moved of what they all moved in the run, since a campaign's row does not tell them apart.
#[must_use]
pub fn kept(summary: &Summary) -> Vec<Kept> {
    let mut moved: BTreeMap<Mechanism, u64> = BTreeMap::new();
    for row in &summary.directions {
        *moved.entry(row.mechanism).or_default() += row.page_count;
    }
    let mut sums: BTreeMap<Mechanism, (f64, Option<f64>)> = BTreeMap::new();
    for campaign in &summary.campaigns {
        if campaign.verdict != Verdict::Success {
            continue;
        }
        for (mechanism, share) in shares(campaign, &moved) {
            let (pages, gain) = sums.entry(mechanism).or_default();
            *pages += campaign.page_count.saturating_sub(campaign.reverted_count) as f64 * share;
            if let Some(more) = campaign.measured_gain_ns.filter(|gain| gain.is_finite()) {
                *gain = Some(gain.unwrap_or(0.0) + more * share);
            }
        }
    }
    let kept = sums.into_iter().map(|(mechanism, (pages, gain_ns))| Kept {
        mechanism,
        page_count: pages.round() as u64,
        gain_ns,
    });
    kept.collect()
}

fn shares(campaign: &CampaignRow, moved: &BTreeMap<Mechanism, u64>) -> Vec<(Mechanism, f64)> {
    let of = |mechanism: &Mechanism| moved.get(mechanism).copied().unwrap_or(0);
    let all: u64 = campaign.mechanisms.iter().map(of).sum();
    let count = campaign.mechanisms.len().max(1) as f64;
    let share = |mechanism: &Mechanism| match all {
        0 => 1.0 / count,
        all => of(mechanism) as f64 / all as f64,
    };
    let each = campaign.mechanisms.iter();
    each.map(|mechanism| (*mechanism, share(mechanism)))
        .collect()
}

/// Did collocated pages leave one node for all of the others, to each about as many? `node_count`: nodes that
/// the program may have memory on.
#[must_use]
pub fn is_divided(summary: &Summary, node_count: usize) -> bool {
    let rows = summary.directions.iter();
    let rows = rows.filter(|row| row.mechanism == Mechanism::Collocate && row.page_count > 0);
    let mut from: BTreeMap<NodeId, u64> = BTreeMap::new();
    let mut to: BTreeMap<NodeId, u64> = BTreeMap::new();
    for row in rows {
        *from.entry(row.from).or_default() += row.page_count;
        *to.entry(row.to).or_default() += row.page_count;
    }
    let (least, most) = (to.values().min(), to.values().max());
    from.len() == 1
        && to.len() + 1 == node_count
        && least
            .zip(most)
            .is_some_and(|(least, most)| *most <= EVEN * least)
}

/// What the next run begins with, after a run that began with nothing, and why.
///
/// ```text
/// interleaved pages, of those that paid     start
/// two thirds or more                        all pages in turns
/// a third or more                           large blocks in turns
/// less, and collocation divided them        large blocks divided (a guess)
/// less                                      nothing: which thread uses what is not known before
/// ```
#[must_use]
pub fn choose(run: &Run) -> (Start, String) {
    let pages = |mechanism| {
        let rows = run.kept.iter().filter(|kept| kept.mechanism == mechanism);
        rows.map(|kept| kept.page_count).sum::<u64>()
    };
    let (turns, near) = (pages(Mechanism::Interleave), pages(Mechanism::Collocate));
    // Of a damaged record: sums stay sums.
    let all = turns.saturating_add(near);
    if run.evidence.is_none() {
        return (Start::Nothing, "nothing was watched".to_owned());
    }
    if all < LEAST_PAGES {
        let why = match (run.judged_count, run.harmful_count) {
            (0, _) => "no move was judged".to_owned(),
            (judged, 0) => format!("none of {judged} campaigns moved much with success"),
            (judged, harmful) => format!(
                "none of {judged} campaigns moved much with success, and {harmful} did harm"
            ),
        };
        return (Start::Nothing, why);
    }
    let share = turns as f64 / all as f64;
    let told = format!("interleaving paid on {turns} pages, collocation on {near}");
    match share {
        share if share >= MOSTLY => (Start::Turns, told),
        share if share >= PARTLY => (Start::LargeInTurns, told),
        _ if run.is_divided => (
            Start::LargeDivided,
            format!("{told}, which left one node for all others evenly"),
        ),
        _ => (
            Start::Nothing,
            format!("{told}: which thread uses which page is not known before"),
        ),
    }
}
