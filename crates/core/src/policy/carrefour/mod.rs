//! Carrefour: collocation and interleaving, chosen by global metrics and page samples.
//!
//! Problem: threads wait for memory because their pages are on other nodes (locality), or because
//! everybody's pages are on one (congestion). On current machines congestion costs more.
//!
//! Approach (paper, section "Carrefour"): with enough traffic, where a controller is overloaded,
//! pages used by several nodes are spread (`spread`); where many accesses are remote, pages used
//! by one node only move to it. Per page the order is replicate, interleave, collocate. Replication
//! is not built yet: [`Mechanism::Replicate`] and the order of the tests in [`Carrefour::decide`]
//! keep its place.
//!
//! What differs from the paper, and why: the period may be a tenth of a second, so page statistics
//! are kept over intervals and a page is called private or shared by probability (`belief`);
//! the draw reaches balance in one step ([`config::Draw`]); once on, a mechanism goes on until its
//! work is done ([`Config::interleave_until_imbalance`], [`Config::collocate_until_local_ratio`]).
//! The efficacy rule is the engine's.
//!
//! Traffic per node is taken from the samples, so that it is in the same unit as the pages that
//! carry it and leaves out the traffic of moving them. Only nodes with CPUs take part: memory
//! without CPUs is another tier, not a wrong place.

mod belief;
pub mod config;
mod gates;
mod spread;

#[cfg(test)]
mod tests;

pub use config::{Config, Draw};

use super::units::for_each_unit;
use super::{Context, EvidenceKind, Policy, PolicyActivity, Proposal, ProposedMove};
use crate::ids::{NodeId, Pid, SpaceId};
use crate::plan::{Mechanism, Sampling};
use crate::snapshot::{HUGE_PAGES, Snapshot, base_pages};
use belief::{Circumstances, Class, ProcessBelief, Record, Sighting};
use gates::{GateKeeper, Gates};
use spread::Spread;
use std::collections::BTreeMap;

/// Share of the samples that may be on undecided pages before the policy asks for more samples.
const UNDECIDED_SHARE: f64 = 0.1;

/// The policy with what it remembers.
#[derive(Debug)]
pub struct Carrefour {
    config: Config,
    interval: u32,
    processes: BTreeMap<Pid, ProcessBelief>,
    /// The life of its memory of which something is believed of a process.
    spaces: BTreeMap<Pid, SpaceId>,
    /// Node ids by position: beliefs hold positions, which mean nothing once this changes.
    nodes: Vec<NodeId>,
    gates: GateKeeper,
    outlook: PolicyActivity,
}

/// A page that may move.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    pid: Pid,
    page: u64,
    huge: bool,
    /// Where it was last seen: what it was given since may not have come true.
    from: usize,
    home: usize,
    /// Where to, for a private page; for a shared page it is yet to be drawn.
    to: usize,
    samples: f64,
    weight: f64,
    /// Its place was decided before in this phase.
    is_settled: bool,
}

/// What the pages say in one interval.
#[derive(Debug, Default)]
struct Survey {
    private: Vec<Candidate>,
    shared: Vec<Candidate>,
    /// Samples per home position.
    traffic: Vec<f64>,
    undecided_samples: f64,
    /// Pages that are where they belong: `(process, page)`.
    settled: Vec<(Pid, u64)>,
    /// Blocks in which every page has its place: `(process, block)`.
    resting: Vec<(Pid, u64, Circumstances)>,
}

/// A page whose place was decided: process, page, and the node position it was given.
type Placed = (Pid, u64, Option<usize>);

impl Carrefour {
    /// A policy without memories.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            interval: 0,
            processes: BTreeMap::new(),
            spaces: BTreeMap::new(),
            nodes: Vec::new(),
            gates: GateKeeper::default(),
            outlook: PolicyActivity::Learning,
        }
    }

    /// Takes in one interval's pages.
    fn learn(&mut self, snapshot: &Snapshot, context: &Context<'_>) {
        self.interval += 1;
        let now = self.interval;
        let nodes: Vec<NodeId> = snapshot.nodes.iter().map(|node| node.id).collect();
        if nodes != self.nodes {
            self.processes.clear();
            self.nodes = nodes;
        }
        let processes = snapshot.processes.iter();
        let spaces = processes
            .map(|process| (process.pid, process.space))
            .collect();
        let known = std::mem::replace(&mut self.spaces, spaces);
        // Nothing is believed of another life of the same number.
        self.processes.retain(|pid, _| {
            self.spaces.contains_key(pid) && self.spaces.get(pid) == known.get(pid)
        });
        let mut users: BTreeMap<Pid, Vec<f64>> = BTreeMap::new();
        for pages in snapshot.pages.chunk_by(|a, b| a.pid == b.pid) {
            let users = users
                .entry(pages[0].pid)
                .or_insert_with(|| vec![0.0; snapshot.nodes.len()]);
            pages.iter().for_each(|page| page.add_users(users, 1.0));
        }
        let mut usable: BTreeMap<Pid, bool> = BTreeMap::new();
        for (pid, users) in users {
            let process = self.processes.entry(pid).or_default();
            let min_samples = self.config.phase_min_samples as f64;
            usable.insert(
                pid,
                process.begin_interval(now, &users, self.config.phase_change, min_samples),
            );
        }
        let known: usize = self.processes.values().map(ProcessBelief::len).sum();
        let mut room = self.config.max_tracked_pages.saturating_sub(known);
        let firsts: BTreeMap<Pid, u32> = usable
            .keys()
            .map(|&pid| (pid, self.first_interval(pid)))
            .collect();
        for_each_unit(snapshot, context, |unit| {
            let Some(process) = self.processes.get_mut(&unit.pid) else {
                return;
            };
            let (block, index) = (unit.page / HUGE_PAGES, (unit.page % HUGE_PAGES) as u16);
            let counts = usable.get(&unit.pid) == Some(&true) && !unit.samples.is_empty();
            let seen = counts.then(|| Sighting {
                now,
                first: firsts[&unit.pid],
                samples: unit.samples,
            });
            process.take(block, index, (unit.huge, unit.home as u16), seen, &mut room);
        });
    }

    /// First interval whose observations of this process count.
    fn first_interval(&self, pid: Pid) -> u32 {
        let window = self.interval.saturating_sub(self.config.window_intervals);
        self.processes
            .get(&pid)
            .map_or(u32::MAX, |process| process.phase_start.max(window).max(1))
    }

    /// Sorts the pages of all blocks that were touched in this interval.
    fn survey(&self, gates: Gates, snapshot: &Snapshot, context: &Context<'_>) -> Survey {
        let now = self.interval;
        let mut survey = Survey {
            traffic: vec![0.0; snapshot.nodes.len()],
            ..Survey::default()
        };
        let (certainty, allowed) = (self.config.certainty, (gates.interleave, gates.collocate));
        let min_samples = if gates.interleave {
            self.config.min_samples_when_interleaving
        } else {
            self.config.min_samples
        };
        for (&pid, process) in &self.processes {
            let first = self.first_interval(pid);
            for (&number, block) in process
                .blocks
                .iter()
                .filter(|(_, block)| block.touched == now)
            {
                let here = process.circumstances(now, certainty, allowed, block);
                let mut open = 0;
                let all = process.classes(now, first, certainty, here, block, |record, class| {
                    let is_settled = record.decided >= process.phase_start;
                    if let Some(candidate) = self.candidate(pid, number, record, is_settled, class)
                    {
                        survey.traffic[candidate.home] += candidate.samples;
                        open += u32::from(!is_settled && is_open(class, &candidate, allowed));
                        let rules = (min_samples, snapshot, context);
                        self.sort_in(&mut survey, candidate, class, rules);
                    }
                });
                if all && open == 0 {
                    survey.resting.push((pid, number, here));
                }
            }
        }
        survey
    }

    /// A page as the survey sees it; `None` where it says nothing new.
    fn candidate(
        &self,
        pid: Pid,
        block: u64,
        record: &Record,
        is_settled: bool,
        class: Class,
    ) -> Option<Candidate> {
        let samples = f64::from(record.samples_in(self.interval));
        if samples == 0.0 && is_settled && class != Class::Shared {
            return None;
        }
        let home = usize::from(record.home);
        Some(Candidate {
            pid,
            page: block * HUGE_PAGES + u64::from(record.index),
            huge: record.huge,
            from: usize::from(record.seen_on),
            home,
            to: home,
            samples,
            weight: record.weight(self.interval),
            is_settled,
        })
    }

    fn sort_in(
        &self,
        survey: &mut Survey,
        mut candidate: Candidate,
        class: Class,
        (min_samples, snapshot, context): (u32, &Snapshot, &Context<'_>),
    ) {
        let (pid, page) = (candidate.pid, candidate.page);
        if !snapshot.nodes[candidate.home].has_cpus() {
            return;
        }
        match class {
            Class::Undecided => survey.undecided_samples += candidate.samples,
            Class::Private { node, .. } if node == candidate.home => {
                survey.settled.push((pid, page))
            }
            Class::Private { samples, .. } if samples < min_samples => {
                survey.undecided_samples += candidate.samples;
            }
            _ if !context.may_move(pid, page) => {}
            Class::Private { node, .. } => {
                candidate.to = node;
                survey.private.push(candidate);
            }
            Class::Shared => survey.shared.push(candidate),
        }
    }

    /// Draws targets for shared pages; `traffic` is what the nodes will carry after collocation.
    /// Returns the moves and the pages whose place was decided, staying ones included.
    fn interleave(
        &self,
        survey: &Survey,
        traffic: &[f64],
        budget: u64,
        snapshot: &Snapshot,
        context: &mut Context<'_>,
    ) -> (Vec<Candidate>, Vec<Placed>) {
        let targets: Vec<bool> = (0..snapshot.nodes.len())
            .map(|node| {
                snapshot.nodes[node].has_cpus()
                    && context.room_pages.get(node).is_some_and(|&room| room > 0)
            })
            .collect();
        // Samples of shared pages per home: of those yet to be placed, and of all.
        let (mut fresh, mut all) = (vec![0.0; traffic.len()], vec![0.0; traffic.len()]);
        for page in &survey.shared {
            all[page.home] += page.samples;
            fresh[page.home] += if page.is_settled { 0.0 } else { page.samples };
        }
        let fair = traffic.iter().sum::<f64>()
            / targets.iter().filter(|&&target| target).count().max(1) as f64;
        // Pages that were drawn before take part again only where the others cannot carry it.
        let again: Vec<bool> = (0..traffic.len())
            .map(|home| traffic[home] - fair > fresh[home])
            .collect();
        let movable: Vec<f64> = (0..traffic.len())
            .map(|home| if again[home] { all[home] } else { fresh[home] })
            .collect();
        let mut spread = Spread::new(self.config.draw, traffic, &movable, &targets);
        let mut pages: Vec<&Candidate> = survey
            .shared
            .iter()
            .filter(|page| again[page.home] || !page.is_settled)
            .collect();
        take_hottest(&mut pages, budget, |page| {
            spread.leaving(page.home) * base_pages(page.huge) as f64
        });
        let (mut moves, mut decided, mut left) = (Vec::new(), Vec::new(), budget);
        for page in pages {
            let to = spread.draw(page.home, context.random);
            if to != page.home {
                let Some(rest) = left.checked_sub(base_pages(page.huge)) else {
                    break;
                };
                left = rest;
                moves.push(Candidate { to, ..*page });
            }
            decided.push((page.pid, page.page, Some(to)));
        }
        (moves, decided)
    }

    /// Remembers that these pages have their place, and which one where they are to move: an
    /// unsampled page is not shown again, and a refused one corrects itself when it is sampled.
    fn mark_decided(&mut self, pages: impl IntoIterator<Item = (Pid, u64, Option<usize>)>) {
        for (pid, page, to) in pages {
            let block = self
                .processes
                .get_mut(&pid)
                .and_then(|process| process.blocks.get_mut(&(page / HUGE_PAGES)));
            if let Some(record) = block.and_then(|block| block.get_mut((page % HUGE_PAGES) as u16))
            {
                record.decided = self.interval;
                record.home = to.map_or(record.home, |to| to as u16);
            }
        }
    }

    /// Were all mechanisms whose gates are open found to help?
    fn is_proven(&self, gates: Gates, context: &Context<'_>) -> bool {
        let is_proven = |mechanism| context.proven.contains(&mechanism);
        (!gates.interleave || is_proven(Mechanism::Interleave))
            && (!gates.collocate || is_proven(Mechanism::Collocate))
    }

    /// Base pages that a trial may still move.
    fn trial_left(&self, snapshot: &Snapshot, context: &Context<'_>) -> u64 {
        let resident = snapshot.processes.iter();
        let resident: u64 = resident
            .filter_map(|process| process.resident_pages.get())
            .sum();
        let share = (resident as f64 * self.config.trial_share) as u64;
        share
            .max(self.config.trial_pages)
            .saturating_sub(context.unjudged_pages)
    }

    /// How much is left to do after `orders` pages were ordered.
    fn judge_outlook(&self, survey: &Survey, orders: usize) -> PolicyActivity {
        if orders >= self.config.few_orders {
            return PolicyActivity::Working;
        }
        let total: f64 = survey.traffic.iter().sum();
        let age = self
            .processes
            .keys()
            .map(|&pid| self.interval.saturating_sub(self.first_interval(pid)))
            .min();
        let is_young = age.is_none_or(|age| age < 2);
        let is_waiting = survey.undecided_samples > UNDECIDED_SHARE * total
            && age.is_some_and(|age| age < self.config.window_intervals);
        if is_young || is_waiting {
            PolicyActivity::Learning
        } else {
            PolicyActivity::Done
        }
    }

    fn propose(
        &mut self,
        gates: Gates,
        snapshot: &Snapshot,
        context: &mut Context<'_>,
    ) -> Proposal {
        let survey = self.survey(gates, snapshot, context);
        // What counts is how much was seen, whatever was asked for.
        let sample_count = snapshot.sample_count.get().unwrap_or(0);
        let is_full =
            context.sampling == Sampling::Full || sample_count >= self.config.full_samples;
        let period_pages = if is_full {
            self.config.max_pages
        } else {
            self.config.max_pages_cheap
        };
        let budget = context.page_budget.min(period_pages);
        let budget = match gates.is_trial && !self.is_proven(gates, context) {
            true => budget.min(self.trial_left(snapshot, context)),
            false => budget,
        };
        let mut collocated: Vec<&Candidate> = if gates.collocate {
            survey.private.iter().collect()
        } else {
            Vec::new()
        };
        take_hottest(&mut collocated, budget, |page| base_pages(page.huge) as f64);
        let traffic = traffic_after(&survey, &collocated, snapshot);
        let (interleaved, decided) = if gates.interleave && budget > 0 {
            self.interleave(&survey, &traffic, budget, snapshot, context)
        } else {
            (Vec::new(), Vec::new())
        };
        let used: u64 = interleaved.iter().map(|page| base_pages(page.huge)).sum();
        take_hottest(&mut collocated, budget - used, |page| {
            base_pages(page.huge) as f64
        });
        let order = |page: &Candidate, mechanism| ProposedMove {
            pid: page.pid,
            page: page.page,
            huge: page.huge,
            from: snapshot.nodes[page.from].id,
            to: snapshot.nodes[page.to].id,
            mechanism,
        };
        let moves: Vec<ProposedMove> = interleaved
            .iter()
            .map(|page| order(page, Mechanism::Interleave))
            .chain(
                collocated
                    .iter()
                    .map(|page| order(page, Mechanism::Collocate)),
            )
            .collect();
        let decided = decided.into_iter().chain(
            collocated
                .iter()
                .map(|page| (page.pid, page.page, Some(page.to))),
        );
        let settled = survey.settled.iter();
        let decided: Vec<_> = decided
            .chain(settled.map(|&(pid, page)| (pid, page, None)))
            .collect();
        self.mark_decided(decided);
        for &(pid, number, circumstances) in &survey.resting {
            let process = self.processes.get_mut(&pid);
            if let Some(block) = process.and_then(|process| process.blocks.get_mut(&number)) {
                block.rest(circumstances);
            }
        }
        let outlook = self.judge_outlook(&survey, moves.len());
        Proposal {
            moves,
            reasons: gates::reasons(snapshot),
            outlook,
            ..Proposal::default()
        }
    }
}

impl Policy for Carrefour {
    fn name(&self) -> &'static str {
        "carrefour"
    }

    fn needs(&self) -> &[EvidenceKind] {
        // Rates and ratios are used where they are told, and tried for where they are not (`gates`).
        &[EvidenceKind::PageAccesses]
    }

    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        self.learn(snapshot, context);
        let gates = self.gates.read(&self.config, snapshot, context);
        let note = self.gates.note(&self.config, gates, snapshot);
        let mut proposal = if !gates.interleave && !gates.collocate {
            Proposal {
                outlook: match gates.is_known {
                    true => PolicyActivity::Shut,
                    false => PolicyActivity::Learning,
                },
                ..Proposal::default()
            }
        } else if context.page_budget == 0 {
            // Nothing may move now: what was left to do last time is still left.
            Proposal {
                outlook: self.outlook,
                ..Proposal::default()
            }
        } else {
            self.propose(gates, snapshot, context)
        };
        self.outlook = proposal.outlook;
        proposal.notes.extend(note);
        proposal
    }
}

/// Is there still a place to be found for this page?
fn is_open(class: Class, page: &Candidate, (interleave, collocate): (bool, bool)) -> bool {
    match class {
        Class::Shared => interleave,
        Class::Private { node, .. } => collocate && node != page.home,
        Class::Undecided => false,
    }
}

/// Samples per node position once these pages are collocated; nodes without CPUs count for none.
fn traffic_after(survey: &Survey, collocated: &[&Candidate], snapshot: &Snapshot) -> Vec<f64> {
    let mut traffic = survey.traffic.clone();
    for page in collocated {
        traffic[page.home] -= page.samples;
        traffic[page.to] += page.samples;
    }
    for (traffic, node) in traffic.iter_mut().zip(&snapshot.nodes) {
        if !node.has_cpus() {
            *traffic = 0.0;
        }
    }
    traffic
}

/// Keeps the pages of most weight whose `cost` sums up to at most `budget`, in order of address.
fn take_hottest(pages: &mut Vec<&Candidate>, budget: u64, cost: impl Fn(&Candidate) -> f64) {
    let total: f64 = pages.iter().map(|page| cost(page)).sum();
    if total > budget as f64 {
        pages.sort_by(|a, b| {
            b.weight
                .total_cmp(&a.weight)
                .then((a.pid, a.page).cmp(&(b.pid, b.page)))
        });
        let mut left = budget as f64;
        pages.retain(|page| {
            left -= cost(page);
            left >= 0.0
        });
    }
    pages.sort_by_key(|page| (page.pid, page.page));
}
