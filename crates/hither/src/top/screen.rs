//! The terminal while the live view has it: raw, on its alternate screen. It is given back as it
//! was when the view ends, panics, or is stopped.

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::{cursor, execute, terminal};
use ratatui::layout::Rect;
use std::io::{self, Stdout};
use std::panic;
use std::sync::Mutex;

/// Has the view the terminal? Asked by the panic hook, which knows nothing else.
static IS_TAKEN: Mutex<bool> = Mutex::new(false);

/// What is drawn on.
type Drawing = Terminal<CrosstermBackend<Stdout>>;

/// The terminal.
pub struct Screen {
    drawing: Drawing,
    size: (u16, u16),
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
        let size = terminal::size().inspect_err(|_| give_back())?;
        let drawing = blank().inspect_err(|_| give_back())?;
        Ok(Self { drawing, size })
    }

    /// The terminal itself, to draw on, and its size now.
    ///
    /// # Errors
    /// What the terminal says.
    pub fn drawing(&mut self) -> io::Result<(&mut Drawing, Rect)> {
        let size = terminal::size()?;
        if size != self.size {
            self.size = size;
            self.drawing = blank()?;
        }
        Ok((&mut self.drawing, Rect::new(0, 0, size.0, size.1)))
    }

    /// Gives the terminal back while `stopped` runs, and draws everything anew after it.
    ///
    /// # Errors
    /// What the terminal says.
    pub fn without(&mut self, stopped: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        give_back();
        stopped()?;
        take()?;
        self.drawing = blank()?;
        Ok(())
    }
}

/// An empty screen of the size that the terminal has. Not by `Terminal::clear`, which asks the
/// terminal where its cursor is: some never answer, and the answer would be read as keys.
fn blank() -> io::Result<Drawing> {
    execute!(io::stdout(), terminal::Clear(terminal::ClearType::All))?;
    Terminal::new(CrosstermBackend::new(io::stdout()))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Set where the test has started itself, in a terminal of its own.
    const INNER: &str = "HITHER_TEST_PANICS";

    #[test]
    fn a_panic_gives_the_terminal_back() {
        if std::env::var_os(INNER).is_some() {
            let _screen = Screen::open().expect("it has a terminal");
            panic!("on purpose");
        }
        let folder = tempfile::tempdir().unwrap();
        let test = std::env::current_exe().unwrap();
        let line = format!(
            "stty -g > before; {INNER}=1 {} --exact {}a_panic_gives_the_terminal_back --nocapture \
             > seen; echo $? > status; stty -g > after",
            test.display(),
            "top::screen::tests::",
        );
        let done = Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .current_dir(folder.path())
            .output()
            .expect("script(1) of util-linux gives the test its terminal");
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        // As of a test that failed.
        assert_eq!(read("status"), "101\n", "{done:?}");
        assert!(read("before").contains(':'), "{done:?}");
        assert_eq!(read("before"), read("after"));
        let seen = read("seen");
        let entered = seen.find("\x1b[?1049h").expect("the alternate screen");
        assert!(seen[entered..].contains("\x1b[?1049l"), "{seen:?}");
    }
}
