//! HyDM: which programs deserve the high-bandwidth memory, by the paper's algorithms 1 to 4, to the letter.
//!
//! In each window of 100 ms:
//! - *Monitoring* (algorithm 2): floating-point operations, memory references and page faults of each program,
//!   for the last 5 windows.
//! - *Selection* (algorithm 3): the arithmetic intensity of each window, a linear regression over them, and its
//!   value one window ahead; ascending. Programs of the list V are left out, and those with more faults than
//!   the mean. The first is selected.
//! - *Migration* (algorithm 4): if the fast memory in use, with all of the selected program's, stays within
//!   90 % of it, the whole program moves there. If not, a program that moved before and whose operations a
//!   window have never been more than before the move goes back, and into the list V.
//!
//! Choices where the text is silent: a program that is in the fast memory is not selected again, but pages that
//! it has got elsewhere since follow it; a program without floating-point operations has intensity 0, one
//! without memory references is not selected (it is not memory bound); a program is checked for its operations
//! once it has had a whole history in the fast memory; before a program has a whole history of its own it is
//! not selected, as the regression has nothing to go by. The paper judges no result but by V, and knows no cost
//! of its own: neither does this ([`Policy::follows_paper`]).

use super::{Moves, Places, follow};
use crate::ids::{Pid, SpaceId};
use crate::plan::{Listing, Mechanism};
use crate::policy::{Context, EvidenceKind, Policy, PolicyActivity, Proposal};
use crate::snapshot::{PAGE_BYTES, Snapshot};
use crate::tiers::Tiers;
use std::collections::{BTreeMap, VecDeque};

/// Its name.
pub const NAME: &str = "hydm";

/// Windows of a history (table II: 5, 10).
pub const WINDOWS: usize = 5;
/// Share of the fast memory that may be in use (table II).
pub const THRESHOLD: f64 = 0.9;
/// A program that does fewer operations a us, a thousand a second, computes nothing: what is counted of it is its own
/// looks at the clock, now in this window and now in that.
const LEAST_FLOPS_PER_US: f64 = 1e-3;

/// Monitoring data of a window.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    flops: f64,
    bytes: f64,
    faults: f64,
    /// Length in us.
    time_us: f64,
}

impl Window {
    fn flops_per_us(&self) -> f64 {
        self.flops / self.time_us.max(1.0)
    }
}

/// Where a program stands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stand {
    Slow,
    /// In fast memory, for so many windows; operations a us before, and the most since.
    Fast {
        windows: usize,
        before: f64,
        best: f64,
    },
    /// In the list V: it gained nothing.
    Mispredicted,
}

#[derive(Debug)]
struct Program {
    space: SpaceId,
    windows: VecDeque<Window>,
    stand: Stand,
}

/// The policy with what it remembers.
#[derive(Debug, Default)]
pub struct Hydm {
    programs: BTreeMap<Pid, Program>,
    places: Places,
    /// Pages of a program are still to be found.
    is_listing: bool,
}

/// The value one window ahead of the line that fits these best, the oldest first.
fn ahead(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean_x = (count - 1.0) / 2.0;
    let mean_y = values.iter().sum::<f64>() / count;
    let with_x = || (0..).map(f64::from).zip(values);
    let covariance: f64 = with_x().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = with_x().map(|(x, _)| (x - mean_x).powi(2)).sum();
    match variance > 0.0 {
        true => mean_y + covariance / variance * (count - mean_x),
        false => mean_y,
    }
}

impl Hydm {
    /// Algorithm 2.
    fn monitor(&mut self, snapshot: &Snapshot) {
        let fresh = |space| Program {
            space,
            windows: VecDeque::new(),
            stand: Stand::Slow,
        };
        let programs = &mut self.programs;
        follow(
            programs,
            snapshot,
            |program| program.space,
            fresh,
            |program, process, work| {
                let window = Window {
                    flops: work.flops as f64,
                    bytes: work.bytes() as f64,
                    faults: process.faults.get().unwrap_or(0) as f64,
                    time_us: snapshot.interval_us as f64,
                };
                if program.windows.len() == WINDOWS {
                    program.windows.pop_front();
                }
                program.windows.push_back(window);
                if let Stand::Fast { windows, best, .. } = &mut program.stand {
                    *windows += 1;
                    *best = best.max(window.flops_per_us());
                }
            },
        );
    }

    /// Algorithm 3: the program with the lowest intensity one window ahead, and that.
    fn select(&self) -> Option<(Pid, f64)> {
        let latest = self.programs.values().filter_map(|p| p.windows.back());
        let (count, faults) = latest.fold((0.0, 0.0), |(count, sum), window| {
            (count + 1.0, sum + window.faults)
        });
        let candidates = self.programs.iter().filter(|(_, program)| {
            program.stand == Stand::Slow
                && program.windows.len() == WINDOWS
                && (program.windows.back()).is_some_and(|now| now.faults <= faults / count)
        });
        let predicted = candidates.filter_map(|(&pid, program)| {
            let of = |window: &Window| (window.bytes > 0.0).then(|| window.flops / window.bytes);
            let values: Option<Vec<f64>> = program.windows.iter().map(of).collect();
            Some((pid, ahead(&values?)))
        });
        predicted.min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)))
    }

    /// A program in fast memory that has computed no faster there in any window.
    fn check_flops(&self) -> Option<Pid> {
        let found = self.programs.iter().find(|(_, program)| {
            matches!(program.stand, Stand::Fast { windows, before, best }
                if windows > WINDOWS && best <= before.max(LEAST_FLOPS_PER_US))
        });
        found.map(|(&pid, _)| pid)
    }

    /// Algorithm 4.
    fn migrate(&mut self, snapshot: &Snapshot, tiers: &Tiers, proposal: &mut Proposal) {
        let Some((chosen, intensity)) = self.select() else {
            return;
        };
        let fast = tiers.bytes(snapshot, 0);
        // What is on its way there counts as being there.
        let coming = self
            .programs
            .iter()
            .filter(|(_, p)| matches!(p.stand, Stand::Fast { .. }));
        let coming: u64 = coming.map(|(&pid, _)| self.places.held(pid).slow).sum();
        let own = snapshot
            .process(chosen)
            .and_then(|process| process.resident_pages.get())
            .unwrap_or(0);
        let new = own.saturating_sub(self.places.held(chosen).fast);
        let then = fast.used() + (coming + new) * PAGE_BYTES;
        if then as f64 <= THRESHOLD * fast.total as f64 {
            if let Some(program) = self.programs.get_mut(&chosen) {
                let before = program.windows.iter().map(Window::flops_per_us);
                program.stand = Stand::Fast {
                    windows: 0,
                    before: before.fold(0.0, f64::max),
                    best: 0.0,
                };
            }
            let text = format!(
                "process {chosen} has the lowest intensity one window ahead, {intensity:.3} operations a byte"
            );
            proposal.reasons.insert(Mechanism::Promote, text.into());
        } else if let Some(gone) = self.check_flops() {
            if let Some(program) = self.programs.get_mut(&gone) {
                program.stand = Stand::Mispredicted;
            }
            let text = format!("process {gone} computes no faster in fast memory");
            proposal.reasons.insert(Mechanism::Demote, text.into());
        }
    }
}

impl Policy for Hydm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn needs(&self) -> &[EvidenceKind] {
        &[EvidenceKind::ProgramWork]
    }

    fn listing(&self) -> Listing {
        match self.is_listing {
            true => Listing::Fast,
            false => Listing::Slow,
        }
    }

    fn follows_paper(&self) -> bool {
        true
    }

    fn decide(&mut self, snapshot: &Snapshot, context: &mut Context<'_>) -> Proposal {
        let tiers = Tiers::of(&snapshot.nodes);
        let mut proposal = Proposal {
            outlook: PolicyActivity::Working,
            ..Proposal::default()
        };
        if !tiers.are_several() {
            proposal.outlook = PolicyActivity::Done;
            let note = "hydm: this machine has one memory tier".to_owned();
            proposal.notes.push(note);
            return proposal;
        }
        self.places.take(snapshot, context, &tiers);
        self.monitor(snapshot);
        self.migrate(snapshot, &tiers, &mut proposal);
        let mut moves = Moves::new(snapshot, &tiers, context);
        self.is_listing = false;
        for (&pid, program) in &self.programs {
            let held = self.places.held(pid);
            let resident = snapshot
                .process(pid)
                .and_then(|process| process.resident_pages.get());
            let known = held.known();
            match program.stand {
                Stand::Slow => {}
                Stand::Fast { .. } => {
                    moves.whole(&self.places, pid, Mechanism::Promote, context);
                    self.is_listing |= held.slow > 0 || resident.is_some_and(|all| known < all);
                }
                Stand::Mispredicted => {
                    moves.whole(&self.places, pid, Mechanism::Demote, context);
                }
            }
        }
        for (mechanism, text) in [
            (Mechanism::Promote, "its program was moved to fast memory"),
            (
                Mechanism::Demote,
                "its program computes no faster in fast memory",
            ),
        ] {
            if moves.moves.iter().any(|order| order.mechanism == mechanism) {
                (proposal.reasons.entry(mechanism)).or_insert_with(|| text.into());
            }
        }
        proposal.moves = moves.moves;
        proposal
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Program, World};
    use super::*;

    #[test]
    fn a_line_goes_on() {
        assert_eq!(ahead(&[1.0, 2.0, 3.0, 4.0, 5.0]), 6.0);
        assert_eq!(ahead(&[2.0; 5]), 2.0);
        // Least squares by hand: slope -0.2, mean 2.2 at x = 2, so 1.6 at x = 5.
        assert!((ahead(&[3.0, 2.0, 2.0, 2.0, 2.0]) - 1.6).abs() < 1e-9);
    }

    #[test]
    fn the_least_intense_goes_first_and_the_threshold_is_kept() {
        let programs = [
            (1, Program::new(400, 4000, 1000)),
            (2, Program::new(400, 100, 1000)),
            (3, Program::new(400, 900, 1000)),
        ];
        let mut world = World::new(1000, programs);
        let mut policy = Hydm::default();
        let mut order = Vec::new();
        for _ in 0..20 {
            world.step(&mut policy);
            for pid in world.fast() {
                if !order.contains(&pid) {
                    order.push(pid);
                    // It computes faster there.
                    world.programs.get_mut(&pid).unwrap().flops += 50;
                }
            }
            assert!(world.used() <= 900);
        }
        assert_eq!(order, [2, 3]);
    }

    #[test]
    fn who_faults_more_than_the_mean_waits() {
        let mut world = World::new(
            1000,
            [
                (1, Program::new(100, 10, 1000)),
                (2, Program::new(100, 900, 1000)),
            ],
        );
        world.programs.get_mut(&1).unwrap().faults = 50;
        let mut policy = Hydm::default();
        for _ in 0..6 {
            world.step(&mut policy);
        }
        assert_eq!(world.fast(), [2]);
        world.programs.get_mut(&1).unwrap().faults = 0;
        world.step(&mut policy);
        assert_eq!(world.fast(), [1, 2]);
    }

    #[test]
    fn a_decoy_goes_back_and_into_the_list_and_the_next_takes_its_place() {
        // The decoy has the lowest intensity and computes no faster in fast memory; the other does.
        let mut world = World::new(
            1000,
            [
                (1, Program::new(600, 10, 1000)),
                (2, Program::new(600, 500, 1000)),
            ],
        );
        let mut policy = Hydm::default();
        let mut seen = Vec::new();
        for _ in 0..30 {
            world.step(&mut policy);
            let fast = world.fast();
            if seen.last() != Some(&fast) {
                seen.push(fast.clone());
            }
            if fast.contains(&2) {
                world.programs.get_mut(&2).unwrap().flops = 700;
            }
        }
        assert_eq!(seen, [vec![], vec![1], vec![], vec![2]]);
        assert_eq!(policy.programs[&Pid(1)].stand, Stand::Mispredicted);
    }
}
