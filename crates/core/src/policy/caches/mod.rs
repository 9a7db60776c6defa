//! Policy `caches`: programs over last-level caches.
//!
//! Chapter II of the memory-region thesis, on a stock kernel and for whole programs (2.5.2, 2.5.5, 2.5.6): working sets are
//! weighed, programs are placed so that those that need a cache have one, and the kernel keeps to it (3.4), as their
//! CPUs are restricted to those of one cache. Within these the kernel's scheduler decides.
//!
//! The loop is the one of every policy here: figures of half a second, a forecast ([`model`]) of the best
//! arrangement ([`search`]), the change where the forecast exceeds [`LEAST_GAIN`], and a look at what all programs
//! got done before and after. What did not pay is taken back, and not tried again for a while.

mod model;
mod search;

#[cfg(test)]
mod tests;

use super::{Context, EvidenceKind, Policy, PolicyActivity, Proposal, ProposedPlace};
use crate::ids::{Pid, SpaceId};
use crate::snapshot::{LINE_BYTES, ProcessState, Snapshot};
use model::{Program, hits};
use search::{Cache, Candidate, search};
use std::collections::BTreeMap;

/// Its name.
pub const NAME: &str = "caches";

/// Forecast gain of all programs together from which a change is made.
const LEAST_GAIN: f64 = 1.05;
/// Measured gain below which a change is taken back.
const LEAST_KEPT: f64 = 0.99;
/// Time over which figures are summed up before they are decided on, in us.
const WINDOW_US: u64 = 500_000;
/// Time after a change that is not judged, as caches fill, in us.
const SETTLE_US: u64 = 200_000;
/// Time for which nothing is tried after a change, in us; after those that did not pay twice as long each time.
const PAUSE_US: u64 = 5_000_000;
/// The longest such time.
const LONGEST_PAUSE_US: u64 = 300_000_000;
/// How much more the speed of a preferred program counts.
const PREFERRED_WEIGHT: f64 = 8.0;
/// Latency of a last-level cache in ns: 15 to 25 on the processors of `machines/`.
const HIT_NS: f64 = 20.0;
/// What memory takes longer where firmware rates no node: 100 ns in all.
const UNRATED_MISS_NS: f64 = 80.0;
/// CPUs that a program must keep busy to be placed or judged.
const LEAST_DEMAND: f64 = 0.02;
/// References for each us of a CPU below which a program needs no cache: 1 % of its time at 20 ns each.
const LEAST_REFERENCES: f64 = 0.5;
/// A program that finds so much less than one that uses its lines at random uses them in turns.
const ROUND_LESS: f64 = 0.25;
/// Windows for which working sets that are not known are waited for: 2 s.
const MOST_WAITED: u32 = 4;
/// Caches that one of them would fill, as it is taken for afterwards.
const BEYOND_CACHES: u64 = 8;
/// A program whose working set is a smaller part of a cache than one in so many is left to the kernel.
const SMALL: f64 = 8.0;
/// Programs that are placed, those that ask their caches most; the search takes their square.
const MOST_PROGRAMS: usize = 24;
/// Part of the time of an instruction that misses may be taken for.
const MOST_MISS_SHARE: f64 = 0.95;

/// What was seen of a program since the window began.
#[derive(Clone, Debug, Default)]
struct Seen {
    space: Option<SpaceId>,
    interval_us: u64,
    instructions: u64,
    cpu_us: u64,
    references: u64,
    misses: u64,
    waiting_us: f64,
    working_set_bytes: Option<u64>,
    cache: Option<usize>,
    /// Caches that it may use, but for this policy.
    may: Vec<bool>,
    is_preferred: bool,
}

impl Seen {
    fn take(&mut self, process: &ProcessState, interval_us: u64) {
        self.interval_us += interval_us;
        let used = process.cache.get();
        let better_us = used.and_then(|used| used.cpu_us);
        self.cpu_us += better_us.or(process.cpu_us.get()).unwrap_or(0);
        if let Some(used) = used {
            self.instructions += used.instructions;
            self.references += used.references;
            self.misses += used.misses;
            self.working_set_bytes = used.working_set_bytes.or(self.working_set_bytes);
        }
        if let Some(threads) = process.threads.value() {
            self.waiting_us += threads.waiting * interval_us as f64;
            self.cache = threads.cache.or(self.cache);
        }
    }

    /// How much its speed counts.
    fn weight(&self) -> f64 {
        match self.is_preferred {
            true => PREFERRED_WEIGHT,
            false => 1.0,
        }
    }

    /// Does it ask its cache for much?
    fn asks(&self) -> bool {
        self.references as f64 / self.cpu_us.max(1) as f64 >= LEAST_REFERENCES
    }

    /// CPUs that it would keep busy.
    fn demand(&self) -> f64 {
        (self.cpu_us as f64 + self.waiting_us) / self.interval_us.max(1) as f64
    }

    /// Instructions in a us for which it wanted a CPU: a program that waits for its next request is no slower for it.
    fn rate(&self) -> f64 {
        self.instructions as f64 / (self.cpu_us as f64 + self.waiting_us).max(1.0)
    }

    /// What the model needs to know, where it is known. `miss_ns`: what memory takes longer than the cache.
    fn program(&self, miss_ns: f64, largest: u64) -> Option<Program> {
        if self.instructions == 0 {
            return None;
        }
        let instructions = self.instructions as f64;
        let ns = self.cpu_us as f64 * 1000.0 / instructions;
        let missed = self.misses as f64 / instructions;
        // Misses that overlap cost less than memory's latency; how much less shows in the time at the latest.
        let miss_ns = match missed > 0.0 {
            true => miss_ns.min(MOST_MISS_SHARE * ns / missed),
            false => miss_ns,
        };
        // A program that hardly asks its cache is in nobody's way.
        let bytes = match (self.working_set_bytes, self.asks()) {
            (Some(bytes), _) => bytes,
            (None, true) => BEYOND_CACHES * largest,
            (None, false) => 0,
        };
        Some(Program {
            lines: bytes as f64 / LINE_BYTES as f64,
            references: self.references as f64 / instructions,
            base_ns: (ns - missed * miss_ns).max(0.01),
            miss_ns,
            demand: self.demand(),
            goes_round: false,
        })
    }
}

/// What memory takes longer than a last-level cache, in ns, of the nearest node whose latency is rated.
fn miss_ns(snapshot: &Snapshot) -> f64 {
    let rated = snapshot.nodes.iter().filter_map(|node| node.idle_ns);
    let nearest = rated.min_by(f64::total_cmp);
    nearest.map_or(UNRATED_MISS_NS, |idle_ns| (idle_ns - HIT_NS).max(HIT_NS))
}

/// May a program that stays on this cache run on each of so many?
fn only(at: usize, count: usize) -> Vec<bool> {
    (0..count).map(|cache| cache == at).collect()
}

/// Where the loop is.
#[derive(Clone, Debug)]
enum Phase {
    /// Figures are summed up.
    Learning,
    /// A change was made at this time, with the speeds before it and what was forecast.
    Judging {
        since_us: u64,
        rates: BTreeMap<Pid, f64>,
        forecast: f64,
        before: BTreeMap<Pid, Option<usize>>,
    },
    /// Nothing is tried until this time.
    Pausing { until_us: u64 },
}

/// The policy.
#[derive(Debug)]
pub struct Caches {
    seen: BTreeMap<Pid, Seen>,
    window_us: u64,
    /// Where programs were placed.
    placed: BTreeMap<Pid, usize>,
    phase: Phase,
    pause_us: u64,
    /// Nothing better was found, and that was told.
    is_well: bool,
    /// Windows for which working sets were waited for.
    waited: u32,
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            seen: BTreeMap::new(),
            window_us: 0,
            placed: BTreeMap::new(),
            phase: Phase::Learning,
            pause_us: PAUSE_US,
            is_well: false,
            waited: 0,
        }
    }
}

impl Policy for Caches {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &[EvidenceKind] {
        &[EvidenceKind::CacheUse]
    }

    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        let mut proposal = Proposal::default();
        if snapshot.caches.len() < 2 {
            let note = "this machine has one last-level cache: there is nothing to balance";
            proposal.notes.push(note.into());
            proposal.outlook = PolicyActivity::Shut;
            return proposal;
        }
        if self.follow(snapshot, context) {
            // Who starts or ends changes what everybody has: begun anew.
            self.restart();
            self.is_well = false;
            self.waited = 0;
        }
        proposal.outlook = match self.is_well {
            true => PolicyActivity::Done,
            false => PolicyActivity::Learning,
        };
        self.window_us += snapshot.interval_us;
        match self.phase {
            Phase::Pausing { until_us } if context.now_us < until_us => {
                self.restart();
                proposal.outlook = PolicyActivity::Done;
                return proposal;
            }
            Phase::Judging { since_us, .. } if context.now_us < since_us + SETTLE_US => {
                self.restart();
            }
            _ if self.window_us < WINDOW_US => {}
            Phase::Judging { .. } => self.judge(context.now_us, &mut proposal),
            Phase::Learning | Phase::Pausing { .. } => {
                self.phase = Phase::Learning;
                self.propose(snapshot, context.now_us, &mut proposal);
            }
        }
        proposal
    }
}

impl Caches {
    /// Takes in an interval; says whether programs came or went.
    fn follow(&mut self, snapshot: &Snapshot, context: &Context<'_>) -> bool {
        let count = self.seen.len();
        self.seen.retain(|&pid, seen| {
            let process = snapshot.process(pid);
            process.is_some_and(|process| Some(process.space) == seen.space)
        });
        let mut has_changed = self.seen.len() != count;
        for process in &snapshot.processes {
            let seen = self.seen.entry(process.pid).or_insert_with(|| {
                has_changed = true;
                Seen {
                    space: Some(process.space),
                    ..Seen::default()
                }
            });
            // Programs are known by their names, and set their CPUs, only after they have begun. Once one is
            // placed, what it may use is what this policy has made of it.
            seen.is_preferred = context.preferred.contains(&process.name);
            if !self.placed.contains_key(&process.pid) {
                let may = process.threads.value().map(|threads| &threads.may);
                may.map_or(&[][..], Vec::as_slice).clone_into(&mut seen.may);
            }
            seen.take(process, snapshot.interval_us);
        }
        let living = &self.seen;
        self.placed.retain(|pid, _| living.contains_key(pid));
        has_changed
    }

    /// Sums up anew.
    fn restart(&mut self) {
        self.window_us = 0;
        for seen in self.seen.values_mut() {
            *seen = Seen {
                space: seen.space,
                working_set_bytes: seen.working_set_bytes,
                cache: seen.cache,
                may: std::mem::take(&mut seen.may),
                is_preferred: seen.is_preferred,
                ..Seen::default()
            };
        }
    }

    /// Looks for a better arrangement, and proposes it where it is worth a change.
    fn propose(&mut self, snapshot: &Snapshot, now_us: u64, proposal: &mut Proposal) {
        let caches: Vec<Cache> = (snapshot.caches.iter())
            .map(|cache| Cache {
                lines: cache.bytes as f64 / LINE_BYTES as f64,
                cpus: cache.cpus.len() as f64,
            })
            .collect();
        // What is not weighed by then uses more than any cache holds.
        if let Some(name) = self.unweighed(snapshot)
            && self.waited < MOST_WAITED
        {
            self.waited += 1;
            let note = format!("the working set of {name} is not known yet");
            proposal.notes.push(note);
            self.restart();
            return;
        }
        let (pids, candidates) = self.candidates(snapshot, &caches);
        let found = search(&candidates, &caches);
        let moves: Vec<usize> = (0..pids.len())
            .filter(|&one| self.is_to_go(pids[one], &candidates[one], found.at[one], &caches))
            .collect();
        if found.gain < LEAST_GAIN || moves.is_empty() {
            if !std::mem::replace(&mut self.is_well, true) {
                let weighed = self.weighed(snapshot, &pids, &candidates);
                let note = format!("the programs are well on their caches: {weighed}");
                proposal.notes.push(note);
            }
            proposal.outlook = PolicyActivity::Done;
            self.restart();
            return;
        }
        self.is_well = false;
        let weighed = self.weighed(snapshot, &pids, &candidates);
        proposal.notes.push(weighed);
        let rates = (self.seen.iter())
            .filter(|(_, seen)| seen.demand() >= LEAST_DEMAND)
            .map(|(&pid, seen)| (pid, seen.rate()))
            .collect();
        let mut before = BTreeMap::new();
        for one in moves {
            let kib = candidates[one].program.lines * LINE_BYTES as f64 / 1024.0;
            proposal.places.push(ProposedPlace {
                pid: pids[one],
                cache: Some(found.at[one]),
                because: format!(
                    "a working set of {kib:.0} KiB, for {:.0} % more speed of all",
                    (found.gain - 1.0) * 100.0
                )
                .into(),
            });
            let place = self.placed.insert(pids[one], found.at[one]);
            before.insert(pids[one], place);
        }
        self.phase = Phase::Judging {
            since_us: now_us,
            rates,
            forecast: found.gain,
            before,
        };
        self.restart();
    }

    /// Is a program to be placed there? Small ones are where the kernel has a CPU for them.
    fn is_to_go(&self, pid: Pid, candidate: &Candidate, at: usize, caches: &[Cache]) -> bool {
        let is_large = candidate.program.lines >= caches[at].lines / SMALL;
        let is_preferred = self.seen[&pid].is_preferred;
        (is_large || is_preferred) && self.placed.get(&pid) != Some(&at)
    }

    /// What is known of the programs, for a person.
    fn weighed(&self, snapshot: &Snapshot, pids: &[Pid], candidates: &[Candidate]) -> String {
        let told = pids.iter().zip(candidates).map(|(pid, candidate)| {
            let process = snapshot.process(*pid);
            let seen = &self.seen[pid];
            let missed = seen.misses as f64 / seen.references.max(1) as f64;
            format!(
                "{} on CPUs {}: {:.0} KiB, {:.1} references/us, {:.0} % missed, {:.2} CPUs{}",
                process.map_or("", |process| &process.name),
                snapshot.caches[candidate.at].cpus,
                candidate.program.lines * LINE_BYTES as f64 / 1024.0,
                seen.references as f64 / seen.interval_us.max(1) as f64,
                missed * 100.0,
                candidate.program.demand,
                if seen.is_preferred { ", preferred" } else { "" }
            )
        });
        told.collect::<Vec<_>>().join("; ")
    }

    /// A program that asks its cache for much, of unknown size.
    fn unweighed<'a>(&self, snapshot: &'a Snapshot) -> Option<&'a str> {
        let is_unknown = |seen: &Seen| seen.working_set_bytes.is_none() && seen.asks();
        let (&pid, _) = self.seen.iter().find(|(_, seen)| is_unknown(seen))?;
        Some(&snapshot.process(pid)?.name)
    }

    /// The programs that ask their caches most, and what is known of them; each that runs on more CPUs than a
    /// cache has is on every cache, and stays.
    fn candidates(&self, snapshot: &Snapshot, caches: &[Cache]) -> (Vec<Pid>, Vec<Candidate>) {
        let miss_ns = miss_ns(snapshot);
        let sizes = snapshot.caches.iter().map(|cache| cache.bytes);
        let largest = sizes.max().unwrap_or(0);
        let mut programs: Vec<(Pid, &Seen, Program)> = (self.seen.iter())
            .filter_map(|(&pid, seen)| Some((pid, seen, seen.program(miss_ns, largest)?)))
            .filter(|(_, seen, program)| seen.is_preferred || program.demand >= LEAST_DEMAND)
            .collect();
        let asks = |seen: &Seen| (!seen.is_preferred, std::cmp::Reverse(seen.references));
        programs.sort_by_key(|&(pid, seen, _)| (asks(seen), pid));
        programs.truncate(MOST_PROGRAMS);
        let narrow = |program: &Program| caches.iter().all(|cache| program.demand <= cache.cpus);
        let (one, wide): (Vec<_>, Vec<_>) = programs
            .into_iter()
            .partition(|(_, _, program)| narrow(program));
        let mut pids = Vec::new();
        let mut candidates = Vec::new();
        for (pid, seen, program) in one {
            let Some(at) = self.placed.get(&pid).copied().or(seen.cache) else {
                continue;
            };
            let may = match seen.may.len() == caches.len() {
                true => seen.may.clone(),
                false => only(at, caches.len()),
            };
            pids.push(pid);
            candidates.push(Candidate {
                program,
                weight: seen.weight(),
                at,
                may,
            });
        }
        for (_, _, program) in wide {
            for at in 0..caches.len() {
                let part = Program {
                    demand: program.demand / caches.len() as f64,
                    ..program
                };
                candidates.push(Candidate {
                    program: part,
                    weight: 1.0 / caches.len() as f64,
                    at,
                    may: only(at, caches.len()),
                });
            }
        }
        self.tell_rounds(&pids, &mut candidates, caches);
        (pids, candidates)
    }

    /// Tells programs that use their lines in turns from others: they find much less where they are.
    fn tell_rounds(&self, pids: &[Pid], candidates: &mut [Candidate], caches: &[Cache]) {
        for (at, cache) in caches.iter().enumerate() {
            let here: Vec<usize> = (0..candidates.len())
                .filter(|&one| candidates[one].at == at)
                .collect();
            let programs: Vec<Program> = here.iter().map(|&one| candidates[one].program).collect();
            let expected = hits(&programs, cache.lines, cache.cpus);
            for (&one, expected) in here.iter().zip(expected) {
                // The parts of wide programs have no numbers.
                let Some(seen) = pids.get(one).map(|pid| &self.seen[pid]) else {
                    continue;
                };
                let found = 1.0 - seen.misses as f64 / seen.references.max(1) as f64;
                candidates[one].program.goes_round = found + ROUND_LESS < expected;
            }
        }
    }

    /// Weighs what all programs got done before and after a change.
    fn judge(&mut self, now_us: u64, proposal: &mut Proposal) {
        let Phase::Judging {
            rates,
            forecast,
            before,
            ..
        } = std::mem::replace(&mut self.phase, Phase::Learning)
        else {
            return;
        };
        let (mut sum, mut weights) = (0.0, 0.0);
        for (pid, &rate) in &rates {
            let Some(seen) = self.seen.get(pid) else {
                continue;
            };
            let weight = seen.weight();
            if rate > 0.0 && seen.rate() > 0.0 {
                sum += weight * (seen.rate() / rate).ln();
                weights += weight;
            }
        }
        let gain = (sum / f64::max(weights, 1e-9)).exp();
        let percent = |gain: f64| (gain - 1.0) * 100.0;
        let told = format!(
            "programs on caches: {:+.0} % forecast, {:+.0} % measured",
            percent(forecast),
            percent(gain)
        );
        self.restart();
        if gain >= LEAST_KEPT {
            proposal.notes.push(format!("{told}: kept"));
            self.pause_us = PAUSE_US;
            self.phase = Phase::Pausing {
                until_us: now_us + PAUSE_US,
            };
            return;
        }
        proposal.notes.push(format!("{told}: taken back"));
        for (pid, place) in before {
            if !self.seen.contains_key(&pid) {
                continue;
            }
            match place {
                Some(cache) => self.placed.insert(pid, cache),
                None => self.placed.remove(&pid),
            };
            proposal.places.push(ProposedPlace {
                pid,
                cache: place,
                because: "the arrangement did not pay".into(),
            });
        }
        self.phase = Phase::Pausing {
            until_us: now_us + self.pause_us,
        };
        self.pause_us = (2 * self.pause_us).min(LONGEST_PAUSE_US);
    }
}
