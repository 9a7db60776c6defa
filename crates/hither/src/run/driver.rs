//! The control loop beside the program: observe, decide, act, once an interval.

use super::estimate::Estimate;
use super::place::{Attendant, Placed, Placement};
use crate::beside::{Beside, End};
use crate::print;
use hither_core::engine::{Engine, Summary};
use hither_core::explain::Entry;
use hither_core::plan::{MoveOutcome, MoveRequest, Plan, Refusal};
use hither_linux::root::Root;
use hither_linux::sys::{self, Ended, PidFd, Usage};
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_linux::watch::Watch;
use hither_mover::{Action, Backend, Job, Pages, Race};
use std::ffi::OsString;
use std::process;

/// Pages after which the executor looks whether the program still runs: one call of the backend.
const SLICE_PAGES: usize = 16_384;
/// Least sleep between decisions in us, so that slow moves cannot make hither spin.
const LEAST_SLEEP_US: u64 = 1000;

/// What a run with a policy needs.
pub struct Setup {
    /// Where `/proc` and `/sys` are.
    pub root: Root,
    /// The machine.
    pub topology: Topology,
    /// Tells how memory is used.
    pub tracker: Box<dyn Tracker>,
    /// Moves pages.
    pub backend: Box<dyn Backend>,
    /// Decides.
    pub engine: Engine,
    /// Time between decisions in us.
    pub interval_us: u64,
}

/// What a run came to.
#[derive(Debug)]
pub struct Finished {
    /// How the program ended.
    pub ended: Ended,
    /// How long it ran, in us.
    pub run_us: u64,
    /// What hither itself used, from its start.
    pub usage: Usage,
    /// What was decided and done; `None` where nothing was to be.
    pub decided: Option<Decided>,
    /// Where it was placed, and what came of that; `None` where nobody asked.
    pub placed: Option<Placed>,
}

/// What the loop has to tell.
#[derive(Debug)]
pub struct Decided {
    /// Name of the tracker.
    pub tracker: &'static str,
    /// Name of the backend.
    pub backend: &'static str,
    /// The engine's account.
    pub summary: Summary,
    /// What the samples and counters said over the run.
    pub estimate: Estimate,
    /// Sentences of trackers, in time.
    pub notes: Vec<String>,
    /// Entries of the log, where they were asked for, and how many were too many.
    pub log: Vec<Entry>,
    /// Entries that were dropped before anybody saw them.
    pub log_dropped: u64,
}

/// Runs the program to its end.
pub fn run(
    setup: Option<Setup>,
    placement: Option<Placement>,
    words: &[OsString],
    explain: bool,
    keep_log: bool,
) -> anyhow::Result<Finished> {
    let beside = Beside::start(words, placement.is_some(), |command| {
        let placement = placement.as_ref();
        placement.map_or(Ok(()), |placement| placement.attach(command))
    })?;
    let start_ns = beside.start_ns();
    let mut session = setup.map(|setup| Session::new(setup, start_ns, explain, keep_log));
    let mut attendant = placement.map(|placement| Attendant::new(&Root::host(), placement));
    let first_us = match (&session, &attendant) {
        (Some(session), _) => Some(session.interval_us),
        (None, Some(_)) => Some(LEAST_SLEEP_US),
        (None, None) => None,
    };
    let end = beside.run(first_us, |handle| {
        let wanted_us = attendant.as_mut().map(Attendant::turn);
        // The loop keeps its own time; whoever looks after the placement comes along.
        session
            .as_mut()
            .map(|session| session.step(handle))
            .or(wanted_us)
    })?;
    let run_us = (sys::monotonic_ns() - start_ns) / 1000;
    let decided = session.map(Session::finish);
    let ended = match end {
        End::Ended(ended) => ended,
        End::Gone | End::Stopped => Ended::Exited(0),
    };
    Ok(Finished {
        ended,
        run_us,
        usage: sys::own_usage(),
        decided,
        placed: attendant.map(Attendant::finish),
    })
}

/// The loop's state.
struct Session {
    watch: Watch,
    backend: Box<dyn Backend>,
    engine: Engine,
    outcomes: Vec<MoveOutcome>,
    estimate: Estimate,
    notes: Vec<String>,
    log: Vec<Entry>,
    interval_us: u64,
    start_ns: u64,
    explain: bool,
    keep_log: bool,
    failures: u32,
}

impl Session {
    fn new(setup: Setup, start_ns: u64, explain: bool, keep_log: bool) -> Self {
        Self {
            watch: Watch::new(
                &setup.root,
                &setup.topology,
                process::id() as i32,
                setup.tracker,
            ),
            backend: setup.backend,
            engine: setup.engine,
            outcomes: Vec::new(),
            estimate: Estimate::new(setup.topology.nodes.len()),
            notes: Vec::new(),
            log: Vec::new(),
            interval_us: setup.interval_us,
            start_ns,
            explain,
            keep_log,
            failures: 0,
        }
    }

    fn now_us(&self) -> u64 {
        (sys::monotonic_ns() - self.start_ns) / 1000
    }

    /// One turn: observe, decide, act. Returns the time to sleep in us.
    fn step(&mut self, handle: &PidFd) -> u64 {
        let now_us = self.now_us();
        let Some(plan) = self.decide(now_us) else {
            return self.interval_us;
        };
        // First, so that samples tell of the time of the moves, which may be long.
        self.watch.tracker().set_sampling(plan.sampling);
        self.outcomes = self.execute(&plan.requests, handle);
        let wanted_us = now_us + plan.next_interval_us;
        wanted_us.saturating_sub(self.now_us()).max(LEAST_SLEEP_US)
    }

    /// Observes and asks the engine. A failed observation costs an interval, not the program.
    fn decide(&mut self, now_us: u64) -> Option<Plan> {
        match self.watch.observe(now_us).map(drop) {
            Ok(()) => {
                let snapshot = self.watch.snapshot();
                let plan = self.engine.step(now_us, snapshot, &self.outcomes);
                let moved = self
                    .outcomes
                    .iter()
                    .any(|outcome| !outcome.moved.is_empty());
                self.estimate.add(snapshot, self.watch.view(), moved);
                self.outcomes.clear();
                self.tell();
                Some(plan)
            }
            Err(error) => {
                self.failures += 1;
                if self.failures == 1 {
                    self.notes
                        .push(format!("an interval could not be observed: {error}"));
                }
                None
            }
        }
    }

    /// Hands the requests to the backend in slices; what is left when the program ends is dropped.
    fn execute(&mut self, requests: &[MoveRequest], handle: &PidFd) -> Vec<MoveOutcome> {
        let mut outcomes = Vec::with_capacity(requests.len());
        let mut rest = requests;
        while !rest.is_empty() && !handle.has_ended() {
            let mut pages = 0;
            let fits = rest.iter().take_while(|request| {
                let first = pages == 0;
                pages += request.pages.len();
                first || pages <= SLICE_PAGES
            });
            let (slice, after) = rest.split_at(fits.count());
            let jobs: Vec<Job<'_>> = slice.iter().map(job).collect();
            let done = self.backend.execute(&jobs).into_iter().zip(slice);
            outcomes.extend(done.map(|(outcome, request)| outcome.of_request(request.id)));
            rest = after;
        }
        outcomes.extend(rest.iter().map(|request| MoveOutcome {
            request: request.id,
            moved: Vec::new(),
            already_there: 0,
            refused: vec![(Refusal::Dropped, request.pages.len() as u64)],
            duration_ns: 0,
        }));
        outcomes
    }

    /// Prints and keeps the log as far as that was asked for.
    fn tell(&mut self) {
        self.notes.extend(self.watch.take_notes());
        if !self.explain {
            return;
        }
        let mut text = String::new();
        for entry in self.engine.log_mut().drain() {
            text.push_str(&format!("{entry}\n"));
            if self.keep_log {
                self.log.push(entry);
            }
        }
        if !text.is_empty() {
            print::err_lines(&text);
        }
    }

    /// The last outcomes go into the account; sampling is switched off.
    fn finish(mut self) -> Decided {
        let now_us = self.now_us();
        // Nothing lives any more, so that this step asks for nothing.
        let _ = self.decide(now_us);
        self.watch.tracker().stop();
        Decided {
            tracker: self.watch.tracker().name(),
            backend: self.backend.name(),
            summary: self.engine.summary().swap_remove(0).1,
            estimate: self.estimate,
            notes: self.notes,
            log_dropped: self.engine.log().dropped_count(),
            log: if self.explain {
                self.log
            } else {
                self.engine.log_mut().drain().collect()
            },
        }
    }
}

/// What the engine asks for, as a backend takes it.
fn job(request: &MoveRequest) -> Job<'_> {
    Job {
        pid: request.pid,
        action: Action::Migrate {
            pages: Pages::Listed(&request.pages),
            to: request.to,
        },
        race: Race::Block,
    }
}

#[cfg(test)]
mod tests;
