//! Model and view as lines on a screen. Pure: drawing the same twice gives the same.

use super::figures::{self, percent, percent_sign, whole};
use super::machine::{LinkFigures, MachineFigures};
use super::model::{Focus, Mapping, Model};
use super::process::{Process, Thread};
use super::view::{Level, View};
use super::{help, text};
use crate::print::{DASH, or_dash};
use hither_core::foreign::Foreign;
use hither_core::snapshot::Evidence;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

/// The smallest screen that has room for the heads and some lines.
const LEAST: (u16, u16) = (60, 12);

const NODES: [figures::Column; 10] = [
    ("NODE", 7, false),
    ("CPUS", 9, false),
    ("FREE", 5, true),
    ("READ", 6, true),
    ("WRITE", 6, true),
    ("USE%", 5, true),
    ("LOC%", 5, true),
    ("LATns", 5, true),
    ("PROM", 6, true),
    ("DEMO", 6, true),
];

const THREADS: [figures::Column; 5] = [
    ("TID", 7, true),
    ("NAME", 15, false),
    ("CPU%", 5, true),
    ("LAST CPU", 8, true),
    ("TIME% BY NODE", 40, false),
];

const MAPPINGS: [figures::Column; 6] = [
    ("START", 14, true),
    ("MEM", 5, true),
    ("LOC%", 5, true),
    ("POLICY", 14, false),
    ("PAGES% BY NODE", 16, false),
    ("NAME", 40, false),
];

/// How many lines of the list fit on a screen of this size; 0 where it is too small for any.
#[must_use]
pub fn rows(model: &Model, view: &View, area: Rect) -> usize {
    if is_too_small(area) {
        return 0;
    }
    // The head of the list and the status line.
    (area.height as usize).saturating_sub(above(model, view, area).len() + 2)
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, model: &Model, view: &View) {
    let area = frame.area();
    let lines = lines(model, view, area);
    frame.render_widget(Paragraph::new(lines), area);
}

fn is_too_small(area: Rect) -> bool {
    area.width < LEAST.0 || area.height < LEAST.1
}

fn lines(model: &Model, view: &View, area: Rect) -> Vec<Line<'static>> {
    let width = area.width as usize;
    if is_too_small(area) {
        let (least_width, least_height) = LEAST;
        let message = [
            format!("hither top needs {least_width}x{least_height} letters;"),
            format!("this is {}x{}. q quits", area.width, area.height),
        ];
        return message.map(|line| plain(line, width)).to_vec();
    }
    let mut lines;
    if view.help {
        lines = help::lines(model, width);
        lines.truncate(area.height as usize - 1);
    } else {
        lines = above(model, view, area);
        lines.extend(list(model, view, width));
    }
    lines.resize(area.height as usize - 1, Line::default());
    let status = figures::fit(&status(model, view), width);
    lines.push(Line::styled(
        format!("{status:width$}"),
        Style::new().add_modifier(Modifier::REVERSED),
    ));
    lines
}

fn plain(text: String, width: usize) -> Line<'static> {
    Line::raw(figures::fit(&text, width))
}

fn head(columns: &[figures::Column], width: usize) -> Line<'static> {
    let style = Style::new().add_modifier(Modifier::BOLD);
    Line::styled(figures::head(columns, width), style)
}

/// What is above the list.
fn above(model: &Model, view: &View, area: Rect) -> Vec<Line<'static>> {
    let width = area.width as usize;
    let mut lines = vec![title(model, width)];
    let focus = model.focus.as_ref();
    if let (Some(focus), true) = (focus, view.level(model) != Level::Processes) {
        if let Some(process) = model.process(focus.pid) {
            let about = text::process(model, process, focus);
            lines.extend(about.into_iter().map(|line| plain(line, width)));
        }
        return lines;
    }
    let Some(machine) = &model.machine else {
        return lines;
    };
    lines.push(plain(text::machine(machine), width));
    lines.push(head(&NODES, width));
    let most = (area.height as usize / 3).max(2);
    let all = model.about.nodes.len();
    let shown = if all > most { most - 1 } else { all };
    for position in 0..shown {
        let cells = node(model, machine, position);
        lines.push(match view.colour {
            true => figures::coloured(&cells, &NODES, width),
            false => plain(figures::line(&cells, &NODES, width), width),
        });
    }
    if shown < all {
        let rest = format!("and {} more nodes: see --once", all - shown);
        lines.push(plain(rest, width));
    }
    if let Some(links) = links(&machine.links) {
        lines.push(plain(links, width));
    }
    if let Some(caches) = text::caches(machine) {
        lines.push(plain(caches, width));
    }
    if let Some(ages) = text::ages(machine) {
        lines.push(plain(ages, width));
    }
    lines.push(plain(text::moves(&machine.moves), width));
    lines
}

fn title(model: &Model, width: usize) -> Line<'static> {
    let about = &model.about;
    let left = format!(
        "hither top: {}, {}, every {}",
        crate::print::count(about.nodes.len(), "node"),
        text::processes(model.count()),
        text::interval(about.interval_us),
    );
    let right = format!("own CPU {}", percent_sign(&model.own_cpu));
    let pad = width.saturating_sub(left.chars().count() + right.chars().count());
    let style = Style::new().add_modifier(Modifier::BOLD);
    let title = format!("{left}{}{right}", " ".repeat(pad.max(1)));
    Line::styled(figures::fit(&title, width), style)
}

fn node(model: &Model, machine: &MachineFigures, position: usize) -> Vec<String> {
    let name = &model.about.nodes[position];
    let Some(node) = machine.nodes.get(position) else {
        return vec![name.id.to_string()];
    };
    let cpus = match name.cpus.as_str() {
        "" => "none",
        cpus => cpus,
    };
    vec![
        name.id.to_string(),
        cpus.to_owned(),
        or_dash(node.free_kb.get(), figures::memory),
        figures::gbs(&node.read_gbs),
        figures::gbs(&node.write_gbs),
        percent(&node.utilisation),
        percent(&node.local),
        whole(&node.latency_ns),
        whole(&node.promoted_in),
        whole(&node.demoted_out),
    ]
}

/// The links in one line, the busiest first.
fn links(links: &Evidence<Vec<LinkFigures>>) -> Option<String> {
    let mut links: Vec<&LinkFigures> = links.value()?.iter().collect();
    if links.is_empty() {
        return None;
    }
    links.sort_by(|one, two| two.utilisation.total_cmp(&one.utilisation));
    let link = |link: &&LinkFigures| {
        let share = link.utilisation * 100.0;
        format!("{} {:.2} ({share:.0}%)", short(&link.name), link.gbs)
    };
    let shown: Vec<String> = links.iter().map(link).collect();
    Some(format!("links GB/s: {}", shown.join(", ")))
}

/// `node0>node1` as `0>1`: there are up to 64.
fn short(name: &str) -> String {
    name.replace("node", "")
}

fn list(model: &Model, view: &View, width: usize) -> Vec<Line<'static>> {
    let names = model.about.node_numbers();
    let cells: Vec<Vec<String>>;
    let columns: &[figures::Column];
    let empty: String;
    match (view.level(model), &model.focus) {
        (Level::Threads, Some(focus)) => {
            let process = model.process(focus.pid);
            let threads = process.iter().flat_map(|process| &process.threads);
            columns = &THREADS;
            cells = text::by_cpu(threads)
                .into_iter()
                .map(|(tid, each)| thread(tid, each, &names))
                .collect();
            empty = "no thread was read yet".to_owned();
        }
        (Level::Mappings, Some(focus)) => {
            columns = &MAPPINGS;
            cells = mappings(focus, &names);
            empty = match focus.mappings.is_known() {
                true => "no mapping has pages in memory".to_owned(),
                false => focus.mappings.basis().to_owned(),
            };
        }
        _ => {
            columns = &figures::PROCESSES;
            let all = model.sorted();
            let row = |process: &&Process| figures::process(process, &names);
            cells = all.iter().map(row).collect();
            empty = "there is no process to show".to_owned();
        }
    }
    let mut lines = vec![head(columns, width)];
    if cells.is_empty() {
        lines.push(plain(empty, width));
    }
    for (number, cells) in cells.iter().enumerate().skip(view.first).take(view.rows()) {
        let text = figures::line(cells, columns, width);
        lines.push(match number == view.marked {
            true => Line::styled(
                format!("{text:width$}"),
                Style::new().add_modifier(Modifier::REVERSED),
            ),
            false if view.colour => figures::coloured(cells, columns, width),
            false => Line::raw(text),
        });
    }
    lines
}

/// The cells of a thread.
pub fn thread(tid: i32, thread: &Thread, names: &[u32]) -> Vec<String> {
    vec![
        tid.to_string(),
        thread.name.shown().to_string(),
        percent(&thread.cpu),
        thread.last_cpu.to_string(),
        figures::running(thread.running.shares(), names),
    ]
}

fn mappings(focus: &Focus, names: &[u32]) -> Vec<Vec<String>> {
    let cells = |mapping: &Mapping| mapping_cells(mapping, names);
    let all = focus.mappings.value();
    all.map_or_else(Vec::new, |all| all.iter().map(cells).collect())
}

/// The cells of a mapping.
pub fn mapping_cells(mapping: &Mapping, names: &[u32]) -> Vec<String> {
    let read = &mapping.read;
    let pages: u64 = read.pages.iter().sum();
    let name = match read.name.as_str() {
        "" => "[anon]".to_owned(),
        name => name.shown().to_string(),
    };
    vec![
        format!("{:x}", read.start),
        figures::memory(pages * 4),
        or_dash(mapping.local(), |local| format!("{:.1}", local * 100.0)),
        read.policy.clone(),
        figures::by_node(&read.pages, names),
        name,
    ]
}

fn status(model: &Model, view: &View) -> String {
    if let Some(notice) = &model.notice {
        return notice.clone();
    }
    if view.help {
        return "any key goes back, q quits".to_owned();
    }
    let keys = match view.level(model) {
        Level::Processes => format!("s by {}  Enter threads", model.sort.word()),
        Level::Threads => "Enter mappings  Esc back".to_owned(),
        Level::Mappings => "Esc back".to_owned(),
    };
    let own_only = match model.about.own_only {
        true => "  own only: root adds all",
        false => "",
    };
    format!("{keys}  ? help, why {DASH}  q quit{own_only}")
}

#[cfg(test)]
mod tests;
