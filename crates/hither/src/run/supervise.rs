//! The program with what works beside it.

use super::learn::Learned;
use super::mirrors::{Mirrored, Mirrors};
use super::place::{Placed, Placement};
use crate::print;
use hither_agent::LEAST_SLEEP_US;
use hither_agent::host::Placing;
use hither_agent::host::attendant::PlacementUpkeep;
use hither_agent::host::drive::{self, Decided, DriveReport, Session};
use hither_agent::host::{Beat, Client, End, Hands, Supervisor};
use hither_core::engine::Engine;
use hither_linux::root::Root;
use hither_linux::sys::{self, Ended, Usage};
use hither_linux::topology::Topology;
use hither_linux::tracker::Tracker;
use hither_linux::watch::Watch;
use std::ffi::OsString;

/// What a run with a policy needs.
pub struct Setup {
    /// Where `/proc` and `/sys` are.
    pub root: Root,
    /// The machine.
    pub topology: Topology,
    /// Tells how memory is used.
    pub tracker: Box<dyn Tracker>,
    /// Moves pages.
    pub hands: Hands,
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
    /// What was decided and done, and by which backend; `None` where nothing was to be.
    pub decided: Option<(Decided, &'static str)>,
    /// Where it was placed, and what came of that; `None` where nobody asked.
    pub placed: Option<Placed>,
    /// What became of its files; `None` where nobody asked.
    pub mirrored: Option<Mirrored>,
    /// What was known and is learned of it; `None` where nobody asked.
    pub learned: Option<Learned>,
}

/// Runs the program to its end.
pub fn run(
    mut setup: Option<Setup>,
    placement: Option<Placement>,
    mirrors: Option<&Mirrors>,
    words: &[OsString],
    explain: bool,
) -> anyhow::Result<Finished> {
    // Before the program: how soon it is gone over for hint faults is decided when it begins.
    if let Some(setup) = &mut setup {
        sys::keep_freed_memory();
        let sampling = setup.tracker.first_sampling();
        setup.tracker.set_sampling(sampling);
    }
    let supervisor = Supervisor::start(words, placement.is_some(), |command| {
        let placement = placement.as_ref();
        placement.map_or(Ok(()), |placement| placement.attach(command))?;
        if let Some(mirrors) = mirrors {
            mirrors.attach(command);
        }
        anyhow::Ok(())
    })?;
    let root = Root::host();
    let mut placement = placement;
    let (mut attendant, weighing) = match placement.as_mut() {
        Some(placement) => {
            let (attendant, weighing) = placement.beside(&root);
            (Some(attendant), weighing)
        }
        None => (None, None),
    };
    let mut others: Vec<Client<'_>> = Vec::new();
    others.extend(attendant.as_mut().map(|attendant| {
        let turn = |_: &Beat| Ok(Some(attendant.turn()));
        Client::new(LEAST_SLEEP_US, turn)
    }));
    others.extend(weighing.map(|weighing| {
        let turn = |_: &Beat| Ok(weighing.turn(&root));
        Client::new(LEAST_SLEEP_US, turn)
    }));
    let (end, decided) = match setup {
        None => {
            let end = supervisor.run(&mut others)?;
            drop(others);
            (end, None)
        }
        Some(setup) => {
            let backend = setup.hands.name;
            let mut session = session(setup, explain)?;
            let end = drive::run(&supervisor, &mut session, None, others)?;
            (end, Some((session.finish(supervisor.now_us()), backend)))
        }
    };
    let run_us = supervisor.now_us();
    let ended = match end {
        End::Ended(ended) => ended,
        End::Gone | End::Signal(_) | End::Done => Ended::Exited(0),
    };
    let attended = attendant.map(PlacementUpkeep::finish).unwrap_or_default();
    let placed = placement.map(|placement| placement.finish(attended));
    Ok(Finished {
        ended,
        run_us,
        usage: (decided.as_ref()).map_or_else(sys::own_usage, |(decided, _)| decided.usage()),
        decided,
        placed,
        mirrored: None,
        learned: None,
    })
}

/// The agent beside the program; with `explain` its log is printed as it goes.
fn session(setup: Setup, explain: bool) -> anyhow::Result<Session<'static, Placing>> {
    let base = std::process::id() as i32;
    let watch = Watch::new(&setup.root, &setup.topology, base, setup.tracker);
    let executor = setup.hands.movers()?;
    let sink = |told: DriveReport<'_>| {
        if let DriveReport::Entry(entry) = told {
            print::err_lines(&format!("{entry}\n"));
        }
    };
    let interval_us = setup.interval_us;
    let mut session = Session::new(watch, setup.engine, executor, interval_us, Box::new(sink));
    if explain {
        session.follow_log();
    }
    Ok(session)
}
