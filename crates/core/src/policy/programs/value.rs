//! The set of programs, and parts of programs, whose memory is worth most in the fast tier.
//!
//! Where HyDM takes one program after the other by its arithmetic intensity, this solves for what the machine
//! would do: from the bytes that each program moves and the share of its time that waits, with both memories
//! under their loads ([`super::model`]). A choice is greedy by gain for each page. The present one stands unless
//! another is better by more than moving costs and than the figures scatter (hysteresis); what was moved is
//! judged by the efficacy loop as everywhere.

use super::model::{Demand, Memory, Model, Objective};
use super::{FEW, Held, Moves, Places, follow};
use crate::ids::{Pid, SpaceId};
use crate::learned::Start;
use crate::plan::{Listing, Mechanism};
use crate::policy::{Context, EvidenceKind, Policy, PolicyActivity, Proposal};
use crate::rset::Resources;
use crate::snapshot::{PAGE_BYTES, Snapshot};
use crate::tiers::Tiers;
use std::collections::{BTreeMap, BTreeSet};

/// Its name, where the sum of all speeds is wanted.
pub const NAME: &str = "value";
/// Its name, where the product is wanted.
pub const FAIR_NAME: &str = "value-fair";

/// Time constant of the figures of programs, in us. 1 s: ten looks.
const SMOOTHED_US: f64 = 1_000_000.0;
/// Looks before a program's figures count.
const LEAST_LOOKS: u32 = 3;
/// Looks at which all pages of a program are listed that are neither counted nor known: not while it fills its
/// memory, and some are never found.
const LISTING_LOOKS: std::ops::Range<u32> = LEAST_LOOKS..30;
/// Looks at which pages are listed after a choice.
const RELIST_LOOKS: u32 = 3;
/// Time between two choices, in us.
const CHOICE_US: u64 = 500_000;
/// Gain that a change must bring beyond what it costs: equal runs differ by 2 to 4 %.
const HYSTERESIS: f64 = 0.02;
/// Time in which moves are to be paid back, in us: programs are expected to run as long again as they have been
/// watched, this at least (the time to the next choice) and at most.
const HORIZON_US: [f64; 2] = [CHOICE_US as f64, 10_000_000.0];
/// Share of the fast tier that is left free.
const RESERVE: f64 = 0.04;
/// A program below so many pages is not looked at: 1 MiB.
const LEAST_PAGES: u64 = 256;

/// What programs begin with whose memory this policy is to choose about, on these resources: where one node has the
/// CPUs and others have memory of another tier, pages go to all of them in turns. So both memories work from the first
/// page on, and what has ended before a choice was made has not run from the slow one alone. With CPUs on several nodes
/// turns would make accesses remote, and the kernel begins with the nearest node as it is.
#[must_use]
pub fn start(resources: &Resources) -> Start {
    let usable = resources.usable().nodes;
    let nodes = || {
        resources
            .nodes
            .iter()
            .filter(|node| usable.contains(node.id))
    };
    let tiers: BTreeSet<u32> = nodes()
        .filter(|node| node.has_memory())
        .filter_map(|node| node.tier)
        .collect();
    let with_cpus = nodes().filter(|node| !node.cpus.is_empty()).count();
    match with_cpus == 1 && tiers.len() > 1 {
        true => Start::Turns,
        false => Start::Nothing,
    }
}

#[derive(Debug)]
struct Program {
    space: SpaceId,
    since_us: u64,
    looks: u32,
    /// Bytes a us.
    bytes: f64,
    stalled: f64,
    pages: u64,
    /// Where its pages were when they were counted last; `None` where they are not.
    counted: Option<Held>,
    /// The same, with the moves that were asked for since.
    placed: Option<Held>,
    /// Share of its memory that is to be in the fast tier; `None` where it was not chosen about, and stays as it is.
    target: Option<f64>,
}

/// The policy with what it remembers.
#[derive(Debug)]
pub struct Value {
    objective: Objective,
    programs: BTreeMap<Pid, Program>,
    places: Places,
    chosen_us: Option<u64>,
    listing: Listing,
    /// Looks for which all pages are listed again.
    relist_looks: u32,
}

impl Default for Value {
    fn default() -> Self {
        Self {
            objective: Objective::default(),
            programs: BTreeMap::new(),
            places: Places::default(),
            chosen_us: None,
            listing: Listing::Counted,
            relist_looks: 0,
        }
    }
}

impl Value {
    /// For the product of speeds.
    #[must_use]
    pub fn fair() -> Self {
        Self {
            objective: Objective::Fairness,
            ..Self::default()
        }
    }

    fn learn(&mut self, snapshot: &Snapshot, tiers: &Tiers) {
        let interval_us = snapshot.interval_us.max(1) as f64;
        let weight = (interval_us / SMOOTHED_US).min(1.0);
        let fresh = |space| Program {
            space,
            since_us: snapshot.now_us,
            looks: 0,
            bytes: 0.0,
            stalled: 0.0,
            pages: 0,
            counted: None,
            placed: None,
            target: None,
        };
        let programs = &mut self.programs;
        follow(
            programs,
            snapshot,
            |program| program.space,
            fresh,
            |program, process, work| {
                program.looks += 1;
                let weight = weight.max(1.0 / f64::from(program.looks));
                let cpu_us = process.cpu_us.get().unwrap_or(0) as f64;
                let bytes = work.bytes() as f64 / interval_us;
                // Of CPU time that is told in steps, as much as the waiting is at least.
                let waited_us = work.stall_ns.unwrap_or(0) as f64 / 1e3;
                let stalled = match cpu_us.max(waited_us) {
                    busy if busy > 0.0 => waited_us / busy,
                    _ => 0.0,
                };
                program.bytes += weight * (bytes - program.bytes);
                program.stalled += weight * (stalled - program.stalled);
                let counted = process.placed.value();
                let counted = counted.map(|by_node| Held::of(by_node, tiers));
                // Another count than before is of after the moves.
                if counted != program.counted {
                    (program.counted, program.placed) = (counted, counted);
                }
                program.pages = match program.placed {
                    Some(placed) => placed.known(),
                    None => process.resident_pages.get().unwrap_or(0),
                };
            },
        );
    }

    /// Where a program's pages are: by a count, else as far as they were listed.
    fn held(&self, pid: Pid, program: &Program) -> Held {
        program.placed.unwrap_or_else(|| self.places.held(pid))
    }

    /// How programs whose pages are not counted are told of: for a part of a CPU, and soon once each has filled its
    /// memory.
    fn listing_of_uncounted(&self) -> Listing {
        let uncounted = self.programs.iter().filter(|(_, program)| {
            program.placed.is_none()
                && program.pages >= LEAST_PAGES
                && program.looks >= LISTING_LOOKS.start
        });
        let lacks = |(pid, program): (&Pid, &Program)| {
            LISTING_LOOKS.contains(&program.looks) && self.places.held(*pid).lacks(program.pages)
        };
        let soon = uncounted.map(lacks).max();
        match soon {
            None => Listing::Counted,
            Some(false) => Listing::Slow,
            Some(true) => Listing::Fast,
        }
    }

    /// The two tiers under their loads, and the programs that count, in order.
    fn model(&self, snapshot: &Snapshot, tiers: &Tiers) -> Option<(Model, Vec<Pid>)> {
        let counts = |(pid, program): &(Pid, &Program)| {
            program.looks >= LEAST_LOOKS
                && program.pages >= LEAST_PAGES
                && program.bytes > 0.0
                && self.held(*pid, program).known() > 0
        };
        let chosen: Vec<(Pid, &Program)> = (self.programs.iter())
            .map(|(&pid, program)| (pid, program))
            .filter(counts)
            .collect();
        let demand = |&(pid, program): &(Pid, &Program)| Demand {
            bytes: program.bytes,
            stalled: program.stalled,
            pages: program.pages,
            fast: self.held(pid, program).share(),
        };
        let programs: Vec<Demand> = chosen.iter().map(demand).collect();
        let interval_us = snapshot.interval_us.max(1) as f64;
        let memory = |rank: u32| {
            let nodes = || tiers.nodes(rank).map(|node| &snapshot.nodes[node]);
            let traffic = |node: &crate::snapshot::NodeState| {
                let sum = node.read_bytes.get()? + node.write_bytes.get()?;
                Some(sum as f64 / interval_us)
            };
            let rated = nodes().map(|node| node.rated.read_gbs.map(|gbs| gbs * 1e3));
            let rated: Option<f64> = rated.sum();
            let by_use = nodes().map(|node| {
                let used = node.utilisation.get().filter(|&used| used > 0.05)?;
                Some(traffic(node)? / used)
            });
            let capacity = rated.or_else(|| by_use.sum::<Option<f64>>());
            let own: f64 = programs
                .iter()
                .map(|program| match rank {
                    0 => program.bytes * program.fast,
                    _ => program.bytes * (1.0 - program.fast),
                })
                .sum();
            let all: Option<f64> = nodes().map(traffic).sum();
            Some(Memory {
                idle_ns: tiers.idle_ns(snapshot, rank)?,
                capacity: capacity.filter(|&capacity| capacity > 0.0)?,
                others: all.map_or(0.0, |all| (all - own).max(0.0)),
            })
        };
        let memories = [memory(0)?, memory(1)?];
        let pids = chosen.into_iter().map(|(pid, _)| pid).collect();
        Some((Model { memories, programs }, pids))
    }

    /// Chooses anew; what changed, in a sentence.
    fn choose(
        &mut self,
        snapshot: &Snapshot,
        context: &Context<'_>,
        tiers: &Tiers,
    ) -> Result<Option<String>, &'static str> {
        let Some((model, pids)) = self.model(snapshot, tiers) else {
            return Err("value: latency and bandwidth of the tiers are not known (no HMAT)");
        };
        let fast = tiers.bytes(snapshot, 0);
        let held = |pid: &Pid| self.held(*pid, &self.programs[pid]).fast;
        let held: u64 = pids.iter().map(held).sum();
        let usable = (fast.available / PAGE_BYTES + held)
            .saturating_sub((RESERVE * fast.total as f64) as u64 / PAGE_BYTES)
            .min(context.fast_pages.unwrap_or(u64::MAX));
        let present =
            |(pid, program): (&Pid, &Demand)| self.programs[pid].target.unwrap_or(program.fast);
        let now: Vec<f64> = pids.iter().zip(&model.programs).map(present).collect();
        let best = model.best(usable, self.objective);
        let (before, after) = (
            model.value(&now, self.objective),
            model.value(&best, self.objective),
        );
        // Of a product of speeds, the mean gain of a factor.
        let count = pids.len().max(1) as f64;
        let gain = match self.objective {
            Objective::Throughput => after / before.max(1e-9) - 1.0,
            Objective::Fairness => ((after - before) / count).exp() - 1.0,
        };
        let moved = |(index, program): (usize, &Demand)| {
            (best[index] - program.fast).abs() * program.pages as f64
        };
        let moved: Vec<f64> = model.programs.iter().enumerate().map(moved).collect();
        let moved_pages: f64 = moved.iter().sum();
        let move_us = moved_pages * context.page_move_ns() / 1e3;
        let watched_us = |pid| context.now_us.saturating_sub(self.programs[pid].since_us) as f64;
        let ages = pids.iter().zip(&moved);
        let ages = ages
            .map(|(pid, moved)| moved * watched_us(pid))
            .sum::<f64>();
        let [least_us, most_us] = HORIZON_US;
        let horizon_us = (ages / moved_pages.max(1.0)).clamp(least_us, most_us);
        let is_over = now
            .iter()
            .zip(&model.programs)
            .map(|(share, program)| share * program.pages as f64);
        let must_change = is_over.sum::<f64>() > usable as f64;
        // Moves take their time from so many programs as run at once.
        let cpus: u32 = snapshot.nodes.iter().map(|node| node.cpu_count).sum();
        let at_once = count.min(f64::from(cpus.max(1)));
        if !must_change && gain <= HYSTERESIS + move_us / horizon_us / at_once {
            return Ok(None);
        }
        for (&pid, &share) in pids.iter().zip(&best) {
            if let Some(program) = self.programs.get_mut(&pid) {
                program.target = Some(share);
            }
        }
        let chosen = best.iter().filter(|&&share| share > 0.0).count();
        Ok(Some(format!(
            "{chosen} of {} programs in fast memory: {:+.1} % speed expected",
            pids.len(),
            gain * 100.0
        )))
    }
}

impl Policy for Value {
    fn name(&self) -> &'static str {
        match self.objective {
            Objective::Throughput => NAME,
            Objective::Fairness => FAIR_NAME,
        }
    }

    fn needs(&self) -> &[EvidenceKind] {
        &[EvidenceKind::ProgramWork]
    }

    fn listing(&self) -> Listing {
        self.listing
    }

    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        let tiers = Tiers::of(&snapshot.nodes);
        let mut proposal = Proposal {
            outlook: PolicyActivity::Working,
            ..Proposal::default()
        };
        if !tiers.are_several() {
            proposal.outlook = PolicyActivity::Done;
            let note = format!("{}: this machine has one memory tier", self.name());
            proposal.notes.push(note);
            return proposal;
        }
        self.places.take(snapshot, context, &tiers);
        self.learn(snapshot, &tiers);
        let is_due = |last: u64| context.now_us.saturating_sub(last) >= CHOICE_US;
        let mut because = None;
        if self.chosen_us.is_none_or(is_due) {
            self.chosen_us = Some(context.now_us);
            match self.choose(snapshot, context, &tiers) {
                Ok(text) => because = text,
                Err(note) => {
                    proposal.notes.push(note.to_owned());
                    proposal.outlook = PolicyActivity::Done;
                }
            }
        }
        let mut moves = Moves::new(snapshot, &tiers, context);
        // Pages that are not where they were listed are found again.
        self.relist_looks = match because {
            Some(_) => RELIST_LOOKS,
            None => self.relist_looks.saturating_sub(1),
        };
        self.listing = match self.relist_looks {
            0 => self.listing_of_uncounted(),
            _ => Listing::Fast,
        };
        let (programs, places) = (&mut self.programs, &self.places);
        for mechanism in [Mechanism::Demote, Mechanism::Promote] {
            for (&pid, program) in programs.iter_mut() {
                let Some(target) = program.target else {
                    continue;
                };
                let listed = places.held(pid);
                let excess = program.placed.unwrap_or(listed).share() - target;
                let most = match mechanism {
                    Mechanism::Demote => excess,
                    _ => -excess,
                };
                if most <= FEW {
                    continue;
                }
                if listed.lacks(program.pages) {
                    self.listing = Listing::Fast;
                }
                let most = (most * program.pages as f64) as u64;
                let asked = moves.part(places, pid, mechanism, most, context);
                if let Some(placed) = &mut program.placed {
                    placed.pass(mechanism, asked);
                }
            }
        }
        for mechanism in [Mechanism::Demote, Mechanism::Promote] {
            if moves.moves.iter().any(|order| order.mechanism == mechanism) {
                let text = because
                    .clone()
                    .map_or("by the last choice".into(), Into::into);
                proposal.reasons.insert(mechanism, text);
            }
        }
        proposal.moves = moves.moves;
        self.places.expect(&proposal.moves, snapshot);
        // Programs that come wake it.
        let is_young = |program: &Program| program.looks < LEAST_LOOKS;
        let is_settled = proposal.moves.is_empty()
            && because.is_none()
            && self.listing != Listing::Fast
            && !self.programs.values().any(is_young);
        if is_settled {
            proposal.outlook = PolicyActivity::Done;
        }
        proposal
    }
}

#[cfg(test)]
mod tests;
