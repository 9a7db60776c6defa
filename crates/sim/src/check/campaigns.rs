//! Campaigns: verdicts by the scope's own figures, and reverts that are complete.

use super::{CheckedTurn, Findings, Invariant, Place, Rules};
use crate::world::World;
use hither_core::engine::{Reading, Verdict};
use hither_core::explain::{Entry, Event};
use hither_core::ids::Pid;
use hither_core::metrics;
use hither_core::plan::Mechanism;
use hither_core::snapshot::{PageStats, Snapshot, base_pages};
use std::collections::{BTreeMap, BTreeSet};

/// A figure of a campaign: its name, what was told, and where the scope's own truth is.
type Figure<'a> = (&'a str, Option<f64>, fn(&Own) -> &[f64]);

/// Allowed difference of figures that are summed up in another order.
const SLACK: f64 = 1e-6;
/// The same of figures of rounds, in which a page counts once that several intervals tell of.
const SLACK_OF_ROUNDS: f64 = 0.1;

/// What a scope's own pages said in an interval: each figure in the ways in which it can be had,
/// from samples, or counted where the scope is all that runs.
#[derive(Clone, Debug)]
struct Own {
    at_us: u64,
    /// Samples tell of memory part after part.
    is_by_parts: bool,
    local_ratio: Vec<f64>,
    imbalance: Vec<f64>,
    accesses_per_us: Vec<f64>,
}

#[derive(Clone, Debug, Default)]
struct Campaign {
    started_us: Option<u64>,
    /// Where each page was found, with its process.
    found: BTreeMap<Place, (Pid, usize)>,
}

/// What is known of campaigns.
#[derive(Debug, Default)]
pub(super) struct Campaigns {
    /// Campaign of each request.
    of_request: BTreeMap<u64, u64>,
    campaigns: BTreeMap<u64, Campaign>,
    /// Harmful ones that are not back.
    owed: BTreeSet<u64>,
    /// By scope, in time.
    own: Vec<Vec<Own>>,
    /// Base pages that an undo told as left.
    left: u64,
}

impl Campaigns {
    pub fn turn(&mut self, rules: &Rules, look: &CheckedTurn<'_>, findings: &mut Findings) {
        for moved in look.moved {
            let Some(campaign) = self.of_request.get(&moved.request) else {
                continue;
            };
            let campaign = self.campaigns.entry(*campaign).or_default();
            let place = (moved.space, moved.page);
            let found = (moved.pid, moved.from);
            campaign.found.entry(place).or_insert(found);
        }
        self.take_readings(rules, look);
        for entry in look.log {
            self.hear(entry, look.world, findings);
        }
    }

    fn hear(&mut self, entry: &Entry, world: &World, findings: &mut Findings) {
        match &entry.event {
            Event::Asked {
                request,
                campaign,
                mechanism,
                ..
            } if *mechanism != Mechanism::Revert => {
                self.of_request.insert(*request, *campaign);
                let campaign = self.campaigns.entry(*campaign).or_default();
                campaign.started_us.get_or_insert(entry.at_us);
            }
            Event::Judged {
                campaign,
                verdict,
                before,
                after,
                ..
            } => {
                if *verdict == Verdict::Harmful {
                    self.owed.insert(*campaign);
                }
                self.check_verdict(&entry.scope, *campaign, (before, after), findings);
            }
            Event::Reverted {
                campaign,
                left_count,
                ..
            } => {
                self.owed.remove(campaign);
                let left = self.not_back(*campaign, world);
                if left > *left_count {
                    let text = format!(
                        "{left} pages of campaign {campaign} are not back, {left_count} were told as left"
                    );
                    findings.add(Invariant::Revert, text);
                }
            }
            Event::Undone { left_count, .. } => self.left += left_count,
            _ => {}
        }
    }

    /// Base pages of living processes that are not where the campaign found them.
    fn not_back(&self, campaign: u64, world: &World) -> u64 {
        let found = self.campaigns.get(&campaign).into_iter();
        let found = found.flat_map(|campaign| &campaign.found);
        let left = found.filter_map(|(&(space, page), &(pid, from))| {
            let process = world.alive(pid, space)?;
            let unit = process.unit(page)?;
            (process.pages[unit].home != from).then_some(process.kind.unit_pages())
        });
        left.sum()
    }

    fn take_readings(&mut self, rules: &Rules, look: &CheckedTurn<'_>) {
        let count = look.engine.scopes().count();
        self.own.resize_with(count, Vec::new);
        let snapshot = look.snapshot;
        let scope_of = |pid: Pid| {
            let process = look.world.processes.get(&pid)?;
            rules.scope_of(process.kind.program)
        };
        for (scope, readings) in self.own.iter_mut().enumerate() {
            let pages = snapshot.pages.iter();
            let pages: Vec<&PageStats> = pages
                .filter(|page| scope_of(page.pid) == Some(scope))
                .collect();
            let mut own = Own::of(snapshot, &pages);
            let mut processes = snapshot.processes.iter();
            if processes.all(|process| scope_of(process.pid) == Some(scope)) {
                own.add_counted(snapshot);
            }
            readings.push(own);
        }
    }

    /// A mean of some of the scope's readings lies between the least and the greatest of them. The imbalance of
    /// a round does not: parts that are each on other nodes are even together, and a page that comes again
    /// counts in its interval and not in the round.
    fn check_verdict(
        &self,
        scope: &str,
        campaign: u64,
        (before, after): (&Reading, &Reading),
        findings: &mut Findings,
    ) {
        let Some(own) = scope_number(scope).and_then(|scope| self.own.get(scope)) else {
            let text = format!("campaign {campaign} is of scope `{scope}`, which does not exist");
            findings.add(Invariant::Verdict, text);
            return;
        };
        let started_us = self.campaigns.get(&campaign).and_then(|of| of.started_us);
        let started_us = started_us.unwrap_or(0);
        let (earlier, later): (Vec<&Own>, Vec<&Own>) =
            own.iter().partition(|own| own.at_us <= started_us);
        for (when, reading, own) in [("before", before, earlier), ("after", after, later)] {
            let is_by_parts = own.iter().any(|own| own.is_by_parts);
            let figures: [Figure<'_>; 3] = [
                ("local ratio", reading.local_ratio, |own| &own.local_ratio),
                ("imbalance", reading.imbalance, |own| &own.imbalance),
                ("rate", reading.accesses_per_us, |own| &own.accesses_per_us),
            ];
            for (what, figure, of) in figures {
                let values = own.iter().flat_map(|own| of(own)).copied();
                if what == "imbalance" && is_by_parts {
                    continue;
                }
                let low = values.clone().fold(f64::INFINITY, f64::min);
                let high = values.fold(f64::NEG_INFINITY, f64::max);
                let slack = match is_by_parts {
                    true => SLACK_OF_ROUNDS,
                    false => SLACK,
                } * (1.0 + high.abs());
                let fits = |figure: f64| (low - slack..=high + slack).contains(&figure);
                if let Some(figure) = figure.filter(|&figure| !fits(figure)) {
                    let text = format!(
                        "campaign {campaign} of `{scope}` was judged by a {what} of {figure:.3} {when}, \
                         while its own was between {low:.3} and {high:.3}"
                    );
                    findings.add(Invariant::Verdict, text);
                }
            }
        }
    }

    /// Campaigns under way are not judged any more, and reverts are the undo's.
    pub fn begin_undo(&mut self) {
        self.owed.clear();
    }

    pub fn end(&self, world: &World, is_undone: bool, findings: &mut Findings) {
        for campaign in &self.owed {
            let text = format!("campaign {campaign} was harmful and is not back");
            findings.add(Invariant::Revert, text);
        }
        let processes = world.processes.values();
        let displaced = processes.map(|process| {
            let pages = process.pages.iter();
            let displaced = pages.filter(|page| page.home != page.origin);
            displaced.count() as u64 * process.kind.unit_pages()
        });
        let displaced: u64 = displaced.sum();
        if is_undone && displaced > self.left {
            let text = format!(
                "{displaced} pages are not where they were, {} were told as left",
                self.left
            );
            findings.add(Invariant::Undo, text);
        }
    }
}

/// Scopes are named `s0`, `s1` and so on; the only one of a machine has no name.
fn scope_number(name: &str) -> Option<usize> {
    match name {
        "" => Some(0),
        name => name.strip_prefix('s')?.parse().ok(),
    }
}

impl Own {
    fn of(snapshot: &Snapshot, pages: &[&PageStats]) -> Self {
        let mut homes = vec![0.0; snapshot.nodes.len()];
        let is_by_parts = snapshot.sample_period == 0;
        let (mut local, mut all) = (0.0, 0.0);
        for page in pages {
            // Part after part, a sample stands for the page, of whatever size.
            let weight = match is_by_parts {
                true => base_pages(page.huge) as f64 / page.total().max(1) as f64,
                false => 1.0,
            };
            let total = weight * page.total() as f64;
            let served_by = page.was.unwrap_or(page.home);
            let mut nodes = snapshot.nodes.iter();
            let home = nodes.position(|node| node.id == served_by);
            all += total;
            if let Some(home) = home {
                homes[home] += total;
                local += weight * page.accesses(home) as f64;
            }
        }
        let rate = all * f64::from(snapshot.sample_period);
        let ratio = (all > 0.0).then(|| local / all);
        Self {
            at_us: snapshot.now_us,
            is_by_parts,
            local_ratio: ratio.into_iter().collect(),
            imbalance: metrics::imbalance(&homes).into_iter().collect(),
            accesses_per_us: vec![rate / snapshot.interval_us.max(1) as f64],
        }
    }

    fn add_counted(&mut self, snapshot: &Snapshot) {
        let metrics = &snapshot.metrics;
        self.local_ratio.extend(metrics.local_access_ratio.get());
        self.imbalance.extend(metrics.controller_imbalance.get());
        self.accesses_per_us
            .extend(metrics.memory_accesses_per_us.get());
    }
}
