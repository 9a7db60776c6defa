//! What is on the screen: which list, which line is marked, and what keys do. Pure.

use super::model::Model;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// Lists to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// All processes.
    Processes,
    /// Threads of one process.
    Threads,
    /// Mappings of one process.
    Mappings,
}

/// What the loop is to do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing but to draw again.
    Draw,
    /// To look closely at another process, and to draw.
    Read,
    /// To end.
    Quit,
    /// To stop, as Ctrl-Z asks.
    Stop,
    /// Nothing at all.
    Nothing,
}

/// State of the view.
#[derive(Clone, Debug)]
pub struct View {
    /// Is the help shown instead of a list?
    pub help: bool,
    /// The first line of the list on the screen.
    pub first: usize,
    /// The marked line of the list.
    pub marked: usize,
    /// Does misplacement stand out in colours?
    pub colour: bool,
    level: Level,
    /// The marked process: the mark stays with it when the order changes.
    marked_pid: Option<i32>,
    /// Where the mark was in the list of processes.
    processes_marked: usize,
    /// Lines of the list that fit on the screen.
    rows: usize,
}

impl View {
    /// The list of all processes, or the threads of the one that the model looks at.
    pub fn new(model: &Model) -> Self {
        let level = match model.focus {
            Some(_) => Level::Threads,
            None => Level::Processes,
        };
        Self {
            help: false,
            first: 0,
            marked: 0,
            colour: false,
            level,
            marked_pid: None,
            processes_marked: 0,
            rows: 1,
        }
    }

    /// The list that is shown: that of all processes where the one looked at has ended.
    #[must_use]
    pub fn level(&self, model: &Model) -> Level {
        match model.focus {
            Some(_) => self.level,
            None => Level::Processes,
        }
    }

    /// Lines of the list that fit on the screen.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Brings mark and first line in accord with the model and with the lines that fit.
    pub fn settle(&mut self, model: &Model, rows: usize) {
        self.rows = rows.max(1);
        if self.level != self.level(model) {
            self.level = Level::Processes;
            self.marked = self.processes_marked;
        }
        if self.level == Level::Processes {
            let order = model.sorted();
            let found = self
                .marked_pid
                .and_then(|pid| order.iter().position(|process| process.pid == pid));
            self.marked = found.unwrap_or(self.marked.min(order.len().saturating_sub(1)));
            self.marked_pid = order.get(self.marked).map(|process| process.pid);
            self.processes_marked = self.marked;
        }
        let last = self.length(model).saturating_sub(1);
        self.marked = self.marked.min(last);
        if self.marked < self.first {
            self.first = self.marked;
        }
        if self.marked >= self.first + self.rows {
            self.first = self.marked + 1 - self.rows;
        }
        self.first = self.first.min((last + 1).saturating_sub(self.rows));
    }

    /// The processes on the screen.
    #[must_use]
    pub fn shown(&self, model: &Model) -> Vec<i32> {
        match self.level(model) {
            Level::Processes => {
                let order = model.sorted();
                let shown = order.iter().skip(self.first).take(self.rows);
                shown.map(|process| process.pid).collect()
            }
            _ => model.focus.iter().map(|focus| focus.pid).collect(),
        }
    }

    /// A key was pressed.
    pub fn key(&mut self, key: KeyEvent, model: &mut Model) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Quit,
                KeyCode::Char('z') => Action::Stop,
                KeyCode::Char('l') => Action::Draw,
                _ => Action::Nothing,
            };
        }
        if self.help {
            self.help = false;
            return match key.code {
                KeyCode::Char('q') => Action::Quit,
                _ => Action::Draw,
            };
        }
        model.notice = None;
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('s') => model.sort = model.sort.next(),
            KeyCode::Up | KeyCode::Char('k') => self.mark(self.marked.saturating_sub(1), model),
            KeyCode::Down | KeyCode::Char('j') => self.mark(self.marked + 1, model),
            KeyCode::PageUp => self.mark(self.marked.saturating_sub(self.rows), model),
            KeyCode::PageDown => self.mark(self.marked + self.rows, model),
            KeyCode::Home | KeyCode::Char('g') => self.mark(0, model),
            KeyCode::End | KeyCode::Char('G') => self.mark(usize::MAX, model),
            KeyCode::Enter | KeyCode::Right => return self.deeper(model),
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => return self.back(model),
            _ => return Action::Nothing,
        }
        Action::Draw
    }

    fn deeper(&mut self, model: &mut Model) -> Action {
        match self.level(model) {
            Level::Processes => {
                model.set_focus(self.marked_pid);
                if model.focus.is_none() {
                    return Action::Draw;
                }
                self.enter(Level::Threads);
                Action::Read
            }
            Level::Threads => {
                self.enter(Level::Mappings);
                Action::Draw
            }
            Level::Mappings => Action::Nothing,
        }
    }

    fn back(&mut self, model: &mut Model) -> Action {
        match self.level(model) {
            Level::Processes => return Action::Nothing,
            Level::Threads => {
                model.set_focus(None);
                self.enter(Level::Processes);
                self.marked = self.processes_marked;
            }
            Level::Mappings => self.enter(Level::Threads),
        }
        Action::Draw
    }

    fn enter(&mut self, level: Level) {
        self.level = level;
        (self.first, self.marked) = (0, 0);
    }

    fn mark(&mut self, line: usize, model: &Model) {
        self.marked = line.min(self.length(model).saturating_sub(1));
        if self.level(model) == Level::Processes {
            self.marked_pid = model.sorted().get(self.marked).map(|process| process.pid);
        }
    }

    fn length(&self, model: &Model) -> usize {
        let Some(focus) = &model.focus else {
            return model.count();
        };
        match self.level {
            Level::Processes => model.count(),
            Level::Threads => model.process(focus.pid).map_or(0, |p| p.threads.len()),
            Level::Mappings => focus.mappings.value().map_or(0, Vec::len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::examples::{model_of, task};

    fn press(view: &mut View, model: &mut Model, code: KeyCode) -> Action {
        let action = view.key(code.into(), model);
        view.settle(model, 3);
        action
    }

    fn settled(model: &Model) -> View {
        let mut view = View::new(model);
        view.settle(model, 3);
        view
    }

    #[test]
    fn the_mark_moves_and_the_list_scrolls_with_it() {
        let mut model = model_of(5);
        let mut view = settled(&model);
        for (key, marked, first) in [
            (KeyCode::Down, 1, 0),
            (KeyCode::Char('j'), 2, 0),
            (KeyCode::Down, 3, 1),
            (KeyCode::PageDown, 4, 2),
            (KeyCode::Down, 4, 2),
            (KeyCode::Char('k'), 3, 2),
            (KeyCode::PageUp, 0, 0),
            (KeyCode::End, 4, 2),
            (KeyCode::Home, 0, 0),
        ] {
            assert_eq!(press(&mut view, &mut model, key), Action::Draw);
            assert_eq!((view.marked, view.first), (marked, first), "{key:?}");
        }
        assert_eq!(view.shown(&model).len(), 3);
    }

    #[test]
    fn the_mark_stays_with_its_process_when_the_order_changes() {
        let mut model = model_of(5);
        let mut view = settled(&model);
        press(&mut view, &mut model, KeyCode::Down);
        let pid = view.shown(&model)[1];
        model.sort = crate::top::model::SortKey::Pid;
        view.settle(&model, 3);
        assert_eq!(model.sorted()[view.marked].pid, pid);
        // When it ends, the mark stays about where it is.
        let before = view.marked;
        model.task(pid, None);
        view.settle(&model, 3);
        assert_eq!(view.marked, before.min(model.count() - 1));
    }

    #[test]
    fn enter_goes_deeper_and_escape_back() {
        let mut model = model_of(3);
        let mut view = settled(&model);
        let level = |view: &View, model: &Model| view.level(model);
        press(&mut view, &mut model, KeyCode::Down);
        assert_eq!(press(&mut view, &mut model, KeyCode::Enter), Action::Read);
        assert_eq!(level(&view, &model), Level::Threads);
        press(&mut view, &mut model, KeyCode::Enter);
        assert_eq!(level(&view, &model), Level::Mappings);
        assert_eq!(
            press(&mut view, &mut model, KeyCode::Enter),
            Action::Nothing
        );
        press(&mut view, &mut model, KeyCode::Esc);
        assert_eq!(level(&view, &model), Level::Threads);
        press(&mut view, &mut model, KeyCode::Esc);
        assert_eq!(level(&view, &model), Level::Processes);
        assert_eq!((view.marked, model.focus.is_none()), (1, true));
        assert_eq!(press(&mut view, &mut model, KeyCode::Esc), Action::Nothing);
    }

    #[test]
    fn a_process_that_ends_while_looked_at_leads_back_to_the_list() {
        for depth in 1..=2 {
            let mut model = model_of(3);
            let mut view = settled(&model);
            for _ in 0..depth {
                press(&mut view, &mut model, KeyCode::Enter);
            }
            let pid = model.focus.as_ref().unwrap().pid;
            model.task(pid, None);
            view.settle(&model, 3);
            assert_eq!(view.level(&model), Level::Processes);
            assert!(model.notice.as_deref().unwrap().ends_with("has ended"));
            // A number that is used again is another process.
            model.task(pid, Some(task("other", 0, 1, 0)));
            assert_eq!(view.level(&model), Level::Processes);
            // The next key takes the notice away.
            press(&mut view, &mut model, KeyCode::Down);
            assert_eq!(model.notice, None);
        }
    }

    #[test]
    fn keys_end_stop_and_help() {
        let mut model = model_of(1);
        let mut view = settled(&model);
        let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
        assert_eq!(view.key(control('c'), &mut model), Action::Quit);
        assert_eq!(view.key(control('z'), &mut model), Action::Stop);
        assert_eq!(view.key(control('x'), &mut model), Action::Nothing);
        assert_eq!(
            press(&mut view, &mut model, KeyCode::Char('x')),
            Action::Nothing
        );
        press(&mut view, &mut model, KeyCode::Char('?'));
        assert!(view.help);
        assert_eq!(press(&mut view, &mut model, KeyCode::Esc), Action::Draw);
        assert!(!view.help);
        let before = model.sort;
        press(&mut view, &mut model, KeyCode::Char('s'));
        assert_ne!(model.sort, before);
        assert_eq!(
            press(&mut view, &mut model, KeyCode::Char('q')),
            Action::Quit
        );
    }

    #[test]
    fn an_empty_list_has_no_mark_to_lose() {
        let mut model = model_of(0);
        let mut view = settled(&model);
        for key in [KeyCode::Down, KeyCode::End, KeyCode::Enter, KeyCode::Esc] {
            press(&mut view, &mut model, key);
        }
        assert_eq!((view.marked, view.first), (0, 0));
        assert!(view.shown(&model).is_empty());
    }
}
