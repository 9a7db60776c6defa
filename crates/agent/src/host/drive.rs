//! The agent as a client of the loop: for a program that was started, and for those that run.
//!
//! A driver makes a [`Watch`] of who is watched, an engine with the scopes that are judged, and an
//! executor ([`Dry`](crate::Dry): decide and move nothing); [`run`] gives the [`Session`] its turns
//! beside whatever else has any; [`undo`] puts pages back on leaving; [`Session::finish`] ends it.
//! What is to be told goes into a sink while it happens, and into [`Decided`] at the end.

use super::estimate::Estimate;
use super::seats::Seats;
use super::supervisor::{Beat, Client, End, Supervisor};
use super::{Error, Result};
use crate::{Agent, Execute, LEAST_SLEEP_US, TurnResult};
use hither_core::engine::{Engine, EngineConfig, Summary};
use hither_core::explain::{Entry, Log};
use hither_core::policy::Rung;
use hither_core::snapshot::Snapshot;
use hither_linux::sys::{self, Usage};
use hither_linux::watch::Watch;

/// Sentences that are kept for the end; those after it are counted.
const MOST_NOTES: usize = 1000;
/// Time between two reports of what happens, in us.
const REPORT_US: u64 = 1_000_000;

/// What the loop tells while it goes on.
pub enum DriveReport<'a> {
    /// An entry of the engine's log, where [`Session::follow_log`] asked for them.
    Entry(&'a Entry),
    /// A second has passed.
    Second(Second<'a>),
}

/// What happened in about a second.
pub struct Second<'a> {
    /// Since the start of the loop.
    pub now_us: u64,
    /// What was seen last.
    pub snapshot: &'a Snapshot,
    /// What was decided, and what that brought.
    pub engine: &'a Engine,
    /// Since the last report.
    pub since: Sums,
    /// Since the start.
    pub all: Sums,
}

/// Sums over turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Turns in which the interval was observed.
    pub turn_count: u64,
    /// Samples of accesses.
    pub sample_count: u64,
    /// Pages that were asked to move.
    pub asked_pages: u64,
    /// Pages that moved.
    pub moved_pages: u64,
    /// Pages that did not.
    pub refused_pages: u64,
}

impl Sums {
    fn add(&mut self, turn: &TurnResult, snapshot: &Snapshot) {
        self.turn_count += 1;
        self.sample_count += snapshot.sample_count.get().unwrap_or(0);
        self.asked_pages += turn.asked_pages;
        self.moved_pages += turn.moved_pages;
        self.refused_pages += turn.refused_pages;
    }
}

/// Receives what is told.
pub type Sink<'a> = Box<dyn FnMut(DriveReport<'_>) + 'a>;

/// What the loop has to tell at the end.
#[derive(Debug)]
pub struct Decided {
    /// Name of the tracker.
    pub tracker: &'static str,
    /// Where its evidence comes from.
    pub rung: Option<Rung>,
    /// The account of each scope, by name.
    pub scopes: Vec<(String, Summary)>,
    /// What the samples and counters said over the whole time.
    pub estimate: Estimate,
    /// Sums over it.
    pub sums: Sums,
    /// CPU time of kernel threads that worked for the tracker, in us.
    pub kernel_us: u64,
    /// Sentences of trackers, in time; the first of them.
    pub notes: Vec<String>,
    /// Sentences that found no room among them.
    pub more_notes: u64,
    /// Entries of the log that nobody followed.
    pub log: Vec<Entry>,
    /// Entries that were dropped before anybody saw them.
    pub log_dropped: u64,
}

impl Decided {
    /// What this process has used, with the kernel's threads that worked for its tracker.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut usage = sys::own_usage();
        usage.system_us += self.kernel_us;
        usage
    }
}

/// The agent over real processes.
pub struct Session<'a, E> {
    agent: Agent<Watch, E>,
    seats: Seats,
    estimate: Estimate,
    sink: Sink<'a>,
    interval_us: u64,
    is_followed: bool,
    /// Entries that were told, the last of them.
    followed: Log,
    all: Sums,
    since: Sums,
    report_us: u64,
    notes: Vec<String>,
    more_notes: u64,
}

impl<'a, E: Execute> Session<'a, E> {
    /// `interval_us`: time between decisions, until the engine says otherwise.
    pub fn new(
        watch: Watch,
        engine: Engine,
        executor: E,
        interval_us: u64,
        sink: Sink<'a>,
    ) -> Self {
        let nodes = watch.snapshot().nodes.len();
        Self {
            seats: Seats::new(watch.root()),
            agent: Agent::new(watch, engine, executor, interval_us),
            estimate: Estimate::new(nodes),
            sink,
            interval_us,
            is_followed: false,
            followed: Log::new(EngineConfig::default().log_entries),
            all: Sums::default(),
            since: Sums::default(),
            report_us: REPORT_US,
            notes: Vec::new(),
            more_notes: 0,
        }
    }

    /// Has entries of the log told as they come.
    pub fn follow_log(&mut self) {
        self.is_followed = true;
    }

    /// The loop, for a driver that steers it while it runs.
    #[must_use]
    pub fn agent(&self) -> &Agent<Watch, E> {
        &self.agent
    }

    /// The same, to be changed.
    pub fn agent_mut(&mut self) -> &mut Agent<Watch, E> {
        &mut self.agent
    }

    /// Sums since the start.
    #[must_use]
    pub fn sums(&self) -> Sums {
        self.all
    }

    /// Sentences of trackers since the last call, and how many found no room among them.
    pub fn take_notes(&mut self) -> (Vec<String>, u64) {
        let more = std::mem::take(&mut self.more_notes);
        (std::mem::take(&mut self.notes), more)
    }

    /// One turn; returns the time to sleep in us.
    pub fn turn(&mut self, now_us: u64) -> u64 {
        self.turn_with(now_us, |_, _| {})
    }

    /// The same as [`Agent::turn_with`].
    pub fn turn_with(&mut self, now_us: u64, meet: impl FnOnce(&mut Engine, &Snapshot)) -> u64 {
        // What is asked for after a rest waits until it is known where movers may work.
        let executor = self.agent.executor_mut();
        if !executor.is_moving() {
            executor.place(Vec::new());
        }
        let turn = self.agent.turn_with(now_us, meet);
        // Afterwards, so that processes that were just found are looked at.
        let is_moving = self.agent.executor_mut().is_moving();
        let (watch, engine) = (self.agent.observer(), self.agent.engine());
        let preferred = &engine.config().preferred;
        let movers = self.seats.turn(is_moving, watch, preferred);
        self.agent.executor_mut().place(movers);
        self.account(now_us, &turn);
        turn.next_us
    }

    fn account(&mut self, now_us: u64, turn: &TurnResult) {
        let watch = self.agent.observer();
        if turn.is_observed {
            let snapshot = watch.snapshot();
            self.estimate
                .add(snapshot, watch.view(), turn.moved_pages > 0);
            self.all.add(turn, snapshot);
            self.since.add(turn, snapshot);
        }
        for note in self.agent.take_notes() {
            match self.notes.len() < MOST_NOTES {
                true => self.notes.push(note),
                false => self.more_notes += 1,
            }
        }
        if self.is_followed {
            for entry in self.agent.drain_log() {
                (self.sink)(DriveReport::Entry(&entry));
                self.followed.keep(entry);
            }
        }
        if now_us >= self.report_us {
            self.report_us = now_us + REPORT_US;
            (self.sink)(DriveReport::Second(Second {
                now_us,
                snapshot: self.agent.observer().snapshot(),
                engine: self.agent.engine(),
                since: std::mem::take(&mut self.since),
                all: self.all,
            }));
        }
    }

    /// Is everything put back, and nothing on its way?
    fn is_undone(&self) -> bool {
        let engine = self.agent.engine();
        engine.is_undone() && engine.pending_count() == 0
    }

    /// Have all processes ended that were to be watched?
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.agent.observer().tree().is_over()
    }

    /// The last outcomes go into the account; sampling is switched off.
    pub fn finish(mut self, now_us: u64) -> Decided {
        let turn = self.agent.finish(now_us);
        self.account(now_us, &turn);
        let watch = self.agent.observer_mut();
        watch.tracker().stop();
        let (tracker, rung) = (watch.tracker().name(), watch.tracker().rung());
        let cost = watch.tracker().cost();
        let mut log: Vec<Entry> = self.followed.drain().collect();
        log.extend(self.agent.drain_log());
        let engine = self.agent.engine();
        Decided {
            tracker,
            rung,
            scopes: engine.summary(),
            log_dropped: engine.log().dropped_count() + self.followed.dropped_count(),
            log,
            estimate: self.estimate,
            sums: self.all,
            kernel_us: cost.map_or(0, |cost| cost.kernel_ns / 1000),
            notes: self.notes,
            more_notes: self.more_notes,
        }
    }
}

/// Gives the session its turns, and the others theirs, until the program ends, a signal comes, all
/// that was watched has ended, or `limit_us` is over.
///
/// # Errors
/// What the loop says.
pub fn run<E: Execute>(
    supervisor: &Supervisor,
    session: &mut Session<'_, E>,
    limit_us: Option<u64>,
    others: Vec<Client<'_>>,
) -> Result<End> {
    let limit_us = limit_us.unwrap_or(u64::MAX);
    let first_us = session.interval_us.min(limit_us);
    let own = Client::<Error>::new(first_us, |beat| {
        let next_us = session.turn(beat.now_us);
        if beat.now_us >= limit_us || session.is_over() {
            return Ok(None);
        }
        let due_us = beat.now_us.saturating_add(next_us).min(limit_us);
        let sleep_us = due_us.saturating_sub(supervisor.now_us());
        Ok(Some(sleep_us.max(LEAST_SLEEP_US)))
    });
    let mut clients = vec![own];
    clients.extend(others);
    supervisor.run(&mut clients)
}

/// Puts back what was moved of living processes, by normal turns, until that is done or a signal
/// comes. Says whether it is done; the account of each scope says what could not be put back.
///
/// # Errors
/// What the loop says.
pub fn undo<E: Execute>(supervisor: &Supervisor, session: &mut Session<'_, E>) -> Result<bool> {
    session.agent.engine_mut().begin_undo_all();
    let mut turn = |_: &Beat| {
        let now_us = supervisor.now_us();
        let next_us = session.turn(now_us);
        Ok(match session.is_undone() {
            true => None,
            false => Some(next_us.min(session.interval_us)),
        })
    };
    supervisor.run::<Error>(&mut [Client::new(0, &mut turn)])?;
    Ok(session.is_undone())
}

#[cfg(test)]
mod tests;
