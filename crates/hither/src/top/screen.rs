//! The terminal while the live view has it: raw, on its alternate screen. It is given back as it
//! was when the view ends, panics, or is stopped.

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::{cursor, execute, terminal};
use std::io::{self, Stdout};
use std::panic;
use std::sync::Mutex;

/// Has the view the terminal? Asked by the panic hook, which knows nothing else.
static IS_TAKEN: Mutex<bool> = Mutex::new(false);

/// The terminal.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// What the terminal says; it is as before then.
    pub fn open() -> io::Result<Self> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // First, or the message would be on the screen that is left.
            give_back();
            before(info);
        }));
        take()?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()));
        let terminal = terminal.inspect_err(|_| give_back())?;
        Ok(Self { terminal })
    }

    /// The terminal itself, to draw on.
    pub fn terminal(&mut self) -> &mut Terminal<CrosstermBackend<Stdout>> {
        &mut self.terminal
    }

    /// Gives the terminal back while `stopped` runs, and draws everything anew after it.
    ///
    /// # Errors
    /// What the terminal says.
    pub fn without(&mut self, stopped: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        give_back();
        stopped()?;
        take()?;
        self.terminal.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn take() -> io::Result<()> {
    let mut is_taken = IS_TAKEN
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    terminal::enable_raw_mode()?;
    *is_taken = true;
    drop(is_taken);
    execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)
        .inspect_err(|_| give_back())
}

/// A terminal that has gone cannot be given back: errors mean nothing here.
fn give_back() {
    let mut is_taken = IS_TAKEN
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if std::mem::take(&mut *is_taken) {
        let _ = execute!(io::stdout(), terminal::LeaveAlternateScreen, cursor::Show);
        let _ = terminal::disable_raw_mode();
    }
}
