//! The live view: waits for the next interval, a key or a signal, and draws. One thread.

use super::render;
use super::screen::Screen;
use super::view::{Action, View};
use crate::terminal::Terminal;
use anyhow::Context;
use hither_agent::host::top::Session;
use hither_agent::host::{Client, End, Supervisor};
use hither_linux::sys;
use ratatui::crossterm::event::{self, Event};
use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

/// The first rates are shown after this time, in us, however long the interval.
const FIRST_US: u64 = 300_000;

/// Runs until a person or a signal ends it.
///
/// # Errors
/// What the terminal or the kernel says.
pub fn run(mut session: Session) -> anyhow::Result<ExitCode> {
    let supervisor = Supervisor::alone(&[sys::SIGTSTP, sys::SIGCONT, sys::SIGWINCH])?;
    let mut screen = Screen::open().context("taking the terminal")?;
    let interval_us = session.model.about.interval_us;
    session.step(&[]);
    let mut view = View::new(&session.model);
    view.colour = Terminal::of_output().colour;
    draw(&mut screen, &mut view, &session).context("drawing")?;
    let stdin = io::stdin();
    let first_us = interval_us.min(FIRST_US);
    let mut due_us = supervisor.now_us() + first_us;
    let end = supervisor.run_with(
        Some(stdin.as_fd()),
        &mut [Client::new(first_us, |beat| -> anyhow::Result<_> {
            match beat.signal {
                Some(sys::SIGTSTP) => screen.without(|| sys::stop_here(false))?,
                // The shell may have used the terminal meanwhile.
                Some(sys::SIGCONT) => screen.without(|| Ok(()))?,
                _ => {}
            }
            let mut wants_reading = beat.is_due;
            while beat.input.is_some() && event::poll(Duration::ZERO).context("reading keys")? {
                let Event::Key(key) = event::read().context("reading keys")? else {
                    continue;
                };
                match view.key(key, &mut session.model) {
                    Action::Quit => return Ok(None),
                    Action::Stop => screen.without(|| sys::stop_here(true))?,
                    Action::Read => wants_reading = true,
                    Action::Draw | Action::Nothing => {}
                }
            }
            if wants_reading {
                session.step(&view.shown(&session.model));
                due_us = supervisor.now_us() + interval_us;
            }
            if beat.input.is_some_and(|input| input.hung_up) {
                anyhow::bail!("the terminal is gone");
            }
            draw(&mut screen, &mut view, &session).context("drawing")?;
            Ok(Some(due_us.saturating_sub(supervisor.now_us())))
        })],
    )?;
    Ok(match end {
        End::Signal(signal) => ExitCode::from(crate::signal_status(signal)),
        End::Done | End::Gone | End::Ended(_) => ExitCode::SUCCESS,
    })
}

fn draw(screen: &mut Screen, view: &mut View, session: &Session) -> io::Result<()> {
    let model = &session.model;
    let (drawing, area) = screen.drawing()?;
    // What is above the list depends on which list it is.
    view.settle(model, view.rows());
    view.settle(model, render::rows(model, view, area));
    drawing.draw(|frame| render::draw(frame, model, view))?;
    Ok(())
}
