//! Who moves pages: one mover that takes its time, refuses, and comes late.

use crate::chance::{between, happens};
use crate::world::World;
use hither_core::ids::{NodeId, Pid, SpaceId};
use hither_core::plan::{Mechanism, MoveOutcome, MoveRequest, Refusal};
use hither_core::policy::random::Random;
use std::collections::{BTreeMap, VecDeque};

/// A page that was moved, for the checkers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// By this request.
    pub request: u64,
    /// Whose.
    pub pid: Pid,
    /// In which life.
    pub space: SpaceId,
    /// Its number.
    pub page: u64,
    /// Position of the node that it left.
    pub from: usize,
}

/// The mover.
#[derive(Clone, Debug)]
pub struct Hands {
    /// CPU time that a base page takes, in us.
    pub page_us: f64,
    /// Planted: it says that pages of reverts went back, and leaves them.
    pub loses_reverts: bool,
    random: Random,
    /// Requests with the time from which they may begin.
    waiting: VecDeque<(u64, MoveRequest)>,
    free_at_us: f64,
    done: Vec<MoveOutcome>,
    moved: Vec<Moved>,
}

impl Default for Hands {
    fn default() -> Self {
        Self {
            page_us: 10.0,
            loses_reverts: false,
            random: Random::new(0),
            waiting: VecDeque::new(),
            free_at_us: 0.0,
            done: Vec::new(),
            moved: Vec::new(),
        }
    }
}

impl Hands {
    /// A mover with its own source of chance.
    #[must_use]
    pub fn new(seed: u64, page_us: f64) -> Self {
        Self {
            page_us,
            random: Random::new(seed),
            ..Self::default()
        }
    }

    /// What came of requests since the last call.
    pub fn collect(&mut self) -> Vec<MoveOutcome> {
        std::mem::take(&mut self.done)
    }

    /// Pages that were moved since the last call.
    pub fn take_moved(&mut self) -> Vec<Moved> {
        std::mem::take(&mut self.moved)
    }

    /// Pages on their way to each node.
    #[must_use]
    pub fn arriving(&self, world: &World) -> BTreeMap<NodeId, u64> {
        let mut arriving = BTreeMap::new();
        for (_, request) in &self.waiting {
            let Some(process) = world.alive(request.pid, request.space) else {
                continue;
            };
            let pages = request.pages.len() as u64 * process.kind.unit_pages();
            *arriving.entry(request.to).or_default() += pages;
        }
        arriving
    }
}

impl World {
    /// Gives the mover requests, in the order of their value.
    pub fn submit(&mut self, requests: Vec<MoveRequest>) {
        let late_us = self.faults.late_us;
        for request in requests {
            let begin_us = self.now_us + between(&mut self.hands.random, 0, late_us + 1);
            self.hands.waiting.push_back((begin_us, request));
        }
    }

    /// The mover works until now.
    pub(crate) fn work(&mut self, interval_us: u64) {
        let now_us = self.now_us as f64;
        let idle_since = now_us - interval_us as f64;
        self.hands.free_at_us = self.hands.free_at_us.max(idle_since);
        while self.hands.free_at_us < now_us {
            let free_at_us = self.hands.free_at_us;
            let waiting = self.hands.waiting.iter();
            let begins = waiting.map(|(begin_us, _)| (*begin_us as f64).max(free_at_us));
            let next = begins.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
            let Some((at, begin_us)) = next.filter(|(_, begin_us)| *begin_us < now_us) else {
                return;
            };
            let Some((_, request)) = self.hands.waiting.remove(at) else {
                return;
            };
            let outcome = self.carry_out(&request);
            let took_us = outcome.duration_ns as f64 / 1000.0;
            self.hands.free_at_us = begin_us + took_us;
            self.interval.own_cpu_us(took_us);
            self.hands.done.push(outcome);
        }
    }

    fn carry_out(&mut self, request: &MoveRequest) -> MoveOutcome {
        let mut refused: BTreeMap<Refusal, u64> = BTreeMap::new();
        let mut outcome = MoveOutcome {
            request: request.id,
            moved: Vec::new(),
            already_there: 0,
            refused: Vec::new(),
            duration_ns: 0,
        };
        let is_lost = self.hands.loses_reverts && request.reason.mechanism == Mechanism::Revert;
        for &page in &request.pages {
            match self.move_page(request, page, is_lost) {
                Ok(true) => outcome.moved.push(page),
                Ok(false) => outcome.already_there += 1,
                Err(why) => *refused.entry(why).or_default() += 1,
            }
        }
        let size = self.alive(request.pid, request.space);
        let size = size.map_or(1, |process| process.kind.unit_pages());
        let pages = outcome.moved.len() as u64 * size + outcome.refused.len() as u64;
        outcome.duration_ns = (pages as f64 * self.hands.page_us * 1000.0) as u64;
        outcome.refused = refused.into_iter().collect();
        outcome
    }

    /// Whether it moved, or was there; else why not.
    fn move_page(
        &mut self,
        request: &MoveRequest,
        page: u64,
        is_lost: bool,
    ) -> Result<bool, Refusal> {
        let to = self.position(request.to).ok_or(Refusal::TargetForbidden)?;
        let process = self.processes.get_mut(&request.pid);
        // Another life's pages are others, whatever their addresses.
        let process = process
            .filter(|process| process.space == request.space)
            .ok_or(Refusal::ProcessGone)?;
        let unit = process.unit(page).ok_or(Refusal::Unmapped)?;
        let size = process.kind.unit_pages();
        let is_busy = happens(&mut process.random, self.faults.busy);
        let found = &mut process.pages[unit];
        if found.home == to {
            return Ok(false);
        }
        if found.is_pinned {
            return Err(Refusal::Pinned);
        }
        if is_busy {
            return Err(Refusal::Busy);
        }
        if self.nodes[to].free_pages < size {
            return Err(Refusal::NoMemory);
        }
        if is_lost {
            return Ok(true);
        }
        let from = std::mem::replace(&mut found.home, to);
        self.nodes[to].free_pages -= size;
        self.nodes[from].free_pages += size;
        self.hands.moved.push(Moved {
            request: request.id,
            pid: request.pid,
            space: request.space,
            page,
            from,
        });
        Ok(true)
    }
}
