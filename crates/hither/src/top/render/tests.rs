//! Screens as text, as a person sees them.

use super::*;
use crate::top::examples::{about, machine_reading, model_of, task};
use crate::top::model::SortKey;
use crate::top::reading::{Accesses, MappingReading, Samples};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

/// The screen as lines without blanks at their ends.
fn screen(model: &Model, view: &mut View, width: u16, height: u16) -> String {
    let area = Rect::new(0, 0, width, height);
    view.settle(model, rows(model, view, area));
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, view)).unwrap();
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for y in 0..height {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol());
        text.push_str(cells.collect::<String>().trim_end());
        text.push('\n');
    }
    text
}

/// Three processes on two nodes, everything known of the first two.
fn busy_model() -> Model {
    let mut model = Model::new(about(), SortKey::Cpu);
    model.own_cpu = Evidence::measured(0.0042, "test");
    for second in 0..=1 {
        model.begin(second * 1_000_000);
        model.machine(machine_reading(second));
        let ticks = 100 * second;
        model.task(1234, Some(task("cluster", 3 * ticks, 4, 1)));
        model.task(77, Some(task("postgres:writer", ticks / 2, 1, 5)));
        model.task(4_194_000, Some(task("idle", 0, 1, 6)));
        let thread = |name: &str, share, cpu| task(name, ticks * share, 4, cpu);
        model.threads(
            1234,
            vec![
                (1234, thread("cluster", 1, 0)),
                (1235, thread("worker-1", 1, 4)),
                (1236, thread("worker-2", 1, 5)),
                (1237, thread("sleeper", 0, 3)),
            ],
        );
    }
    let pages = |on: [u64; 2]| Evidence::measured(on.to_vec(), "numa_maps");
    model.residency(1234, pages([620_000, 20_000]));
    model.residency(77, pages([0, 500]));
    model.residency(4_194_000, Evidence::unknown("it may not be examined"));
    let mapping = |start: u64, pages: u64, policy: &str, on: [u64; 2], name: &str| MappingReading {
        start,
        end: start + (pages << 12),
        name: name.to_owned(),
        policy: policy.to_owned(),
        pages: on.to_vec(),
    };
    model.set_focus(Some(1234));
    model.mappings(
        1234,
        Evidence::measured(
            vec![
                mapping(0x5_5000, 16, "default", [16, 0], "/usr/bin/cluster"),
                mapping(
                    0x7000_0000_0000,
                    1 << 18,
                    "interleave:0-1",
                    [200_000, 20_000],
                    "",
                ),
                mapping(0x7ffc_0000_0000, 8, "default", [0, 0], "[stack]"),
            ],
            "numa_maps",
        ),
    );
    let accesses = Accesses {
        count: 200,
        local_count: 62,
        timed_count: 200,
        latency_ns: 200 * 143,
    };
    model.samples(&Samples {
        processes: [(1234, accesses)].into(),
        pages: vec![(1, accesses), (0x7_0000_0000, accesses)],
    });
    model
}

fn view_of(model: &Model) -> View {
    View::new(model)
}

#[test]
fn all_processes_at_80x24() {
    let mut model = busy_model();
    model.set_focus(None);
    assert_eq!(
        screen(&model, &mut view_of(&model), 80, 24),
        include_str!("processes.txt")
    );
}

#[test]
fn threads_and_mappings_of_one_process() {
    let mut model = busy_model();
    let mut view = view_of(&model);
    assert_eq!(
        screen(&model, &mut view, 80, 16),
        include_str!("threads.txt")
    );
    view.key(ratatui::crossterm::event::KeyCode::Enter.into(), &mut model);
    assert_eq!(
        screen(&model, &mut view, 80, 16),
        include_str!("mappings.txt")
    );
}

#[test]
fn where_nothing_is_told_there_are_dashes_and_the_help_says_why() {
    let mut model = busy_model();
    model.set_focus(None);
    model.about.tracker = Evidence::unknown("tracker opium: this machine has none");
    model.about.own_only = true;
    for second in 2..=3 {
        let mut reading = machine_reading(second);
        reading.opium = Evidence::unknown("this machine has no Opium device");
        reading.events = Default::default();
        model.begin(second * 1_000_000);
        model.machine(reading);
    }
    model.samples(&Samples::default());
    let mut view = view_of(&model);
    assert_eq!(
        screen(&model, &mut view, 80, 14),
        include_str!("untold.txt")
    );
    view.help = true;
    assert_eq!(screen(&model, &mut view, 80, 24), include_str!("help.txt"));
}

#[test]
fn a_small_terminal_is_told_so_and_any_size_is_drawn() {
    let model = busy_model();
    let mut view = view_of(&model);
    let text = screen(&model, &mut view, 40, 10);
    assert_eq!(
        text.trim_end(),
        "hither top needs 60x12 letters;\nthis is 40x10. q quits"
    );
    for help in [false, true] {
        view.help = help;
        for width in [1, 2, 59, 60, 79, 200] {
            for height in [1, 2, 3, 11, 12, 13, 60] {
                let text = screen(&model, &mut view, width, height);
                assert_eq!(text.lines().count(), usize::from(height));
            }
        }
    }
}

#[test]
fn a_machine_of_many_nodes_leaves_room_for_processes() {
    let mut model = model_of(40);
    let node = model.about.nodes[0].clone();
    model.about.nodes = vec![node; 16];
    model.machine = None;
    let mut reading = machine_reading(2);
    reading.node_events = vec![Default::default(); 16];
    model.machine(reading);
    let text = screen(&model, &mut view_of(&model), 80, 24);
    assert!(text.contains("and 9 more nodes: see --once"), "{text}");
    assert!(text.lines().count() == 24 && text.contains("p39"), "{text}");
    let shown = text.lines().filter(|line| line.contains(" p")).count();
    assert!(shown >= 8, "{text}");
}

#[test]
fn a_name_cannot_write_on_the_terminal() {
    let mut model = busy_model();
    model.set_focus(None);
    model.task(5, Some(task("a\x1b[31m\u{202e}b\u{2066}\nc", 0, 1, 0)));
    let text = screen(&model, &mut view_of(&model), 80, 24);
    assert!(text.contains("a?[31m?b??c"), "{text}");
}

/// Words of the screen that are not in the terminal's own colour.
fn coloured(model: &Model, view: &View) -> Vec<(String, Color)> {
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw(frame, model, view)).unwrap();
    let cells = terminal.backend().buffer().content.iter();
    let mut words: Vec<(String, Color)> = Vec::new();
    let mut last = Color::Reset;
    for cell in cells.filter(|cell| cell.symbol() != " ") {
        if cell.fg != Color::Reset {
            match words.last_mut().filter(|_| cell.fg == last) {
                Some((word, _)) => word.push_str(cell.symbol()),
                None => words.push((cell.symbol().to_owned(), cell.fg)),
            }
        }
        last = cell.fg;
    }
    words
}

#[test]
fn misplacement_stands_out_where_colours_are_shown() {
    let mut model = busy_model();
    model.set_focus(None);
    let mut view = view_of(&model);
    view.settle(&model, 10);
    assert_eq!(coloured(&model, &view), []);
    view.colour = true;
    // Not on the marked line, which stands out by itself.
    view.marked = 1;
    let told = |word: &str, colour| (word.to_owned(), colour);
    assert_eq!(
        coloured(&model, &view),
        [
            told("75.0", Color::Yellow),
            told("31.0", Color::Red),
            told("63.5", Color::Red)
        ]
    );
    let text = screen(&model, &mut view_of(&model), 80, 24);
    view.settle(&model, 10);
    assert_eq!(screen(&model, &mut view, 80, 24), text, "the same words");
    let once = |colour| {
        let terminal = crate::terminal::Terminal {
            width: None,
            colour,
        };
        crate::top::once::table(&model, 0, terminal)
    };
    let shown = once(true);
    for word in ["\x1b[33m75.0", "\x1b[1;31m31.0", "\x1b[1;31m63.5"] {
        assert!(shown.contains(word), "{shown:?}");
    }
    assert!(!once(false).contains('\x1b'));
}
