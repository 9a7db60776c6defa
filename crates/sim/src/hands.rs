//! Who moves pages: the executor's queue, with one mover that takes its time, refuses, and comes late.

use crate::chance::{between, happens};
use crate::world::World;
use hither_core::ids::{NodeId, Pid, SpaceId};
use hither_core::plan::{Mechanism, MoveOutcome, MoveRequest, Refusal};
use hither_core::policy::random::Random;
use hither_mover::executor::{ExecutorStep, Limits, Queue, Task};
use hither_mover::{Action, Backend, Job, Outcome, OutcomeBuilder, Unavailable};
use std::collections::BTreeMap;

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

/// What happened since the agent's last turn, for the checkers.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    /// What it asked for.
    pub submitted: Vec<MoveRequest>,
    /// What it was told of earlier requests.
    pub collected: Vec<MoveOutcome>,
    /// What moved.
    pub moved: Vec<Moved>,
}

/// A request that was not answered.
#[derive(Clone, Debug)]
struct Open {
    pid: Pid,
    space: SpaceId,
    to: NodeId,
    pages: u64,
}

/// The mover.
#[derive(Debug)]
pub struct SimHands {
    /// CPU time that a base page takes, in us.
    pub page_us: f64,
    /// Planted: it says that pages of reverts went back, and leaves them.
    pub loses_reverts: bool,
    random: Random,
    /// Requests that are not begun before this time, in us.
    late: Vec<(u64, MoveRequest)>,
    queue: Queue,
    open: BTreeMap<u64, Open>,
    free_at_us: f64,
    done: Vec<MoveOutcome>,
    journal: Journal,
}

impl Default for SimHands {
    fn default() -> Self {
        Self::new(0, 10.0, 1024)
    }
}

impl SimHands {
    /// A mover with its own source of chance, that takes so many pages at once.
    #[must_use]
    pub fn new(seed: u64, page_us: f64, slice_pages: u64) -> Self {
        let limits = Limits {
            slice_pages,
            ..Limits::default()
        };
        Self {
            page_us,
            loses_reverts: false,
            random: Random::new(seed),
            late: Vec::new(),
            queue: Queue::new(limits, 0),
            open: BTreeMap::new(),
            free_at_us: 0.0,
            done: Vec::new(),
            journal: Journal::default(),
        }
    }

    /// What came of requests since the last call.
    pub fn collect(&mut self) -> Vec<MoveOutcome> {
        for (request, outcome) in self.queue.take_finished() {
            self.done.push(outcome.of_request(request));
        }
        for outcome in &self.done {
            self.open.remove(&outcome.request);
        }
        self.journal.collected.extend_from_slice(&self.done);
        std::mem::take(&mut self.done)
    }

    /// What happened since the last call.
    pub fn take_journal(&mut self) -> Journal {
        std::mem::take(&mut self.journal)
    }

    /// A life is over: nothing of it is moved any more.
    pub(crate) fn forget(&mut self, space: SpaceId) {
        self.queue.cancel(|ticket| ticket.space == space);
        let (over, late) = std::mem::take(&mut self.late)
            .into_iter()
            .partition(|(_, request)| request.space == space);
        self.late = late;
        let gone = |(_, request): (u64, MoveRequest)| MoveOutcome {
            request: request.id,
            moved: Vec::new(),
            already_there: 0,
            refused: vec![(Refusal::ProcessGone, request.pages.len() as u64)],
            duration_ns: 0,
        };
        let over: Vec<_> = over;
        self.done.extend(over.into_iter().map(gone));
    }

    /// Base pages of requests that were not answered, by the node to which they go.
    #[must_use]
    pub fn arriving(&self, world: &World) -> BTreeMap<NodeId, u64> {
        let mut arriving = BTreeMap::new();
        for open in self.open.values() {
            if let Some(process) = world.alive(open.pid, open.space) {
                let pages = open.pages * process.kind.unit_pages();
                *arriving.entry(open.to).or_default() += pages;
            }
        }
        arriving
    }
}

impl World {
    /// Gives the mover requests, in the order of their value.
    pub fn submit(&mut self, requests: Vec<MoveRequest>) {
        let late_us = self.faults.late_us;
        let hands = &mut self.hands;
        hands.journal.submitted.extend_from_slice(&requests);
        for request in requests {
            let open = Open {
                pid: request.pid,
                space: request.space,
                to: request.to,
                pages: request.pages.len() as u64,
            };
            hands.open.insert(request.id, open);
            if hands.loses_reverts && request.reason.mechanism == Mechanism::Revert {
                hands.done.push(MoveOutcome {
                    request: request.id,
                    moved: request.pages,
                    already_there: 0,
                    refused: Vec::new(),
                    duration_ns: 0,
                });
                continue;
            }
            let begin_us = self.now_us + between(&mut hands.random, 0, late_us + 1);
            hands.late.push((begin_us, request));
        }
    }

    /// The mover works until now.
    pub(crate) fn work(&mut self, interval_us: u64) {
        let now_us = self.now_us;
        let mut hands = std::mem::take(&mut self.hands);
        hands.late.retain(|(begin_us, request)| {
            let is_due = *begin_us < now_us;
            if is_due && hands.queue.submit(Task::of_request(request)).is_err() {
                return true;
            }
            !is_due
        });
        let idle_since = (now_us - interval_us) as f64;
        hands.free_at_us = hands.free_at_us.max(idle_since);
        while hands.free_at_us < now_us as f64 {
            let mut mover = Mover {
                world: self,
                page_us: hands.page_us,
                took_us: 0.0,
                moved: BTreeMap::new(),
            };
            let mut owners = BTreeMap::new();
            let now_ns = (hands.free_at_us * 1000.0) as u64;
            let step = hands.queue.step(&mut mover, now_ns, &mut |slice, _| {
                for part in &slice.parts {
                    owners.extend(part.pages.iter().map(|&page| (page, part.task)));
                }
            });
            let (took_us, moved) = (mover.took_us, mover.moved);
            for (page, (pid, space, from)) in moved {
                hands.journal.moved.push(Moved {
                    request: owners[&page],
                    pid,
                    space,
                    page,
                    from,
                });
            }
            hands.free_at_us += took_us * (1.0 + self.faults.slow);
            self.interval.own_cpu_us(took_us);
            if step != ExecutorStep::Done {
                break;
            }
        }
        self.hands = hands;
    }

    /// Where it was and whose it is, where it moved; `None` where it was there.
    fn move_page(
        &mut self,
        pid: Pid,
        page: u64,
        to: NodeId,
    ) -> Result<Option<(SpaceId, usize)>, Refusal> {
        let to = self.position(to).ok_or(Refusal::TargetForbidden)?;
        let process = self.processes.get_mut(&pid).ok_or(Refusal::ProcessGone)?;
        let unit = process.unit(page).ok_or(Refusal::Unmapped)?;
        let size = process.kind.unit_pages();
        let is_busy = happens(&mut process.random, self.faults.busy);
        let found = &mut process.pages[unit];
        if found.home == to {
            return Ok(None);
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
        let from = std::mem::replace(&mut found.home, to);
        self.nodes[to].free_pages -= size;
        self.nodes[from].free_pages += size;
        Ok(Some((process.space, from)))
    }
}

/// The backend: moves pages of a simulated machine.
struct Mover<'a> {
    world: &'a mut World,
    page_us: f64,
    took_us: f64,
    /// By page: whose it is, in which life, and where it was.
    moved: BTreeMap<u64, (Pid, SpaceId, usize)>,
}

impl Mover<'_> {
    fn migrate(&mut self, job: &Job<'_>) -> Outcome {
        let mut outcome = OutcomeBuilder::new(job);
        let Action::Migrate { pages, to } = &job.action else {
            outcome.refused_many(Refusal::NotSupported, job.page_count());
            return outcome.finish();
        };
        let process = self.world.processes.get(&job.pid);
        let size = process.map_or(1, |process| process.kind.unit_pages());
        let mut copied = 0;
        for page in pages.iter() {
            match self.world.move_page(job.pid, page, *to) {
                Ok(Some((space, from))) => {
                    copied += size;
                    outcome.moved(page);
                    self.moved.insert(page, (job.pid, space, from));
                }
                Ok(None) => outcome.already_there(),
                Err(why) => outcome.refused_page(page, why),
            }
        }
        let took_us = copied as f64 * self.page_us;
        self.took_us += took_us;
        outcome.took((took_us * 1000.0) as u64);
        outcome.finish()
    }
}

impl Backend for Mover<'_> {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn probe(&self) -> Result<(), Unavailable> {
        Ok(())
    }

    fn execute(&mut self, jobs: &[Job<'_>]) -> Vec<Outcome> {
        jobs.iter().map(|job| self.migrate(job)).collect()
    }
}
