//! The live view: waits for the next interval, a key or a signal, and draws. One thread.

use super::render;
use super::sampler::now_us;
use super::screen::Screen;
use super::session::Session;
use super::view::{Action, View};
use crate::terminal::Terminal;
use anyhow::Context;
use hither_linux::sys::{self, Signals};
use ratatui::crossterm::event::{self, Event};
use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

/// Signals that end the view.
const ENDING: [i32; 4] = [sys::SIGINT, sys::SIGTERM, sys::SIGHUP, sys::SIGQUIT];
/// The first rates are shown after this time, in us, however long the interval.
const FIRST_US: u64 = 300_000;

/// Runs until a person or a signal ends it.
///
/// # Errors
/// What the terminal or the kernel says.
pub fn run(mut session: Session) -> anyhow::Result<ExitCode> {
    let mut handled = ENDING.to_vec();
    handled.extend([sys::SIGTSTP, sys::SIGCONT, sys::SIGWINCH]);
    let signals = Signals::new(&handled).context("reading signals as data")?;
    let mut screen = Screen::open().context("taking the terminal")?;
    let interval_us = session.model.about.interval_us;
    session.step(&[]);
    let mut view = View::new(&session.model);
    view.colour = Terminal::of_output().colour;
    let mut due_us = now_us() + interval_us.min(FIRST_US);
    loop {
        draw(&mut screen, &mut view, &session).context("drawing")?;
        let wait_us = due_us.saturating_sub(now_us());
        let wake = signals
            .wait_with(io::stdin().as_fd(), wait_us)
            .context("waiting for keys and signals")?;
        while let Some(arrived) = signals.take() {
            match arrived.signal {
                sys::SIGTSTP => screen.without(|| sys::stop_here(false))?,
                // The shell may have used the terminal meanwhile.
                sys::SIGCONT => screen.without(|| Ok(()))?,
                sys::SIGWINCH => {}
                signal => return Ok(ExitCode::from(crate::signal_status(signal))),
            }
        }
        let mut wants_reading = now_us() >= due_us;
        while wake.input && event::poll(Duration::ZERO).context("reading keys")? {
            let Event::Key(key) = event::read().context("reading keys")? else {
                continue;
            };
            match view.key(key, &mut session.model) {
                Action::Quit => return Ok(ExitCode::SUCCESS),
                Action::Stop => screen.without(|| sys::stop_here(true))?,
                Action::Read => wants_reading = true,
                Action::Draw | Action::Nothing => {}
            }
        }
        if wants_reading {
            session.step(&view.shown(&session.model));
            due_us = now_us() + interval_us;
        }
        if wake.input && wake.hung_up {
            anyhow::bail!("the terminal is gone");
        }
    }
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
