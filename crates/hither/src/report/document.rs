//! The report as a document: written once, shown as text or as a page.

use super::figures::Figures;
use super::roofline::Roofline;
use super::{areas, pictures, tables};
use crate::draw::{Alignment, Block, Heatmap, LineChart, Page, Section};
use crate::print::{self, Table};
use crate::terminal::Terminal;
use hither_core::foreign::Foreign;

/// Lines of a heatmap as text, and its width in a pipe and at most: it has 128 columns.
const HEAT_HEIGHT: usize = 34;
const HEAT_WIDTH: usize = 80;
const MOST_HEAT_WIDTH: usize = 144;

/// A part of a section.
pub enum Part {
    /// Running text.
    Text(String),
    /// A command to try.
    Command(String),
    /// Names of columns, and rows of cells.
    Table(Vec<String>, Vec<Vec<String>>),
    /// Shown on both.
    Heat(Heatmap),
    /// Shown on pages alone.
    Chart(LineChart),
}

/// Headings with what is below them.
pub struct Document(Vec<(&'static str, Vec<Part>)>);

/// The document of a recording; sections of which nothing is known are left out.
pub fn document(figures: &Figures) -> Document {
    let mut sections = vec![
        ("Summary", tables::summary(figures)),
        ("Data areas", areas::tables(figures)),
        ("Shared cache lines", tables::lines(figures)),
        ("Heat by address and time", Vec::new()),
        ("Working set", tables::working_set(figures)),
        ("Phases", tables::phases(figures)),
        ("Memory traffic by NUMA node", tables::traffic(figures)),
        (
            "Roofline",
            figures.roofline.iter().flat_map(Roofline::parts).collect(),
        ),
        (
            "Regions that are used together",
            figures
                .formed
                .iter()
                .flat_map(|formed| formed.parts(figures))
                .collect(),
        ),
        ("Resident memory by NUMA node", tables::residents(figures)),
        ("Notes", tables::notes(figures)),
    ];
    if let Some(heat) = pictures::heat(figures) {
        sections[3].1.push(Part::Heat(heat));
    }
    sections[4]
        .1
        .extend(pictures::working_set(figures).map(Part::Chart));
    sections[6]
        .1
        .extend(pictures::traffic(figures).map(Part::Chart));
    sections.retain(|(_, parts)| !parts.is_empty());
    Document(sections)
}

impl Document {
    /// For a terminal, or a pipe.
    pub fn text(&self, terminal: Terminal) -> String {
        let mut text = String::new();
        for (heading, parts) in &self.0 {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&heading.to_lowercase());
            text.push('\n');
            for part in parts {
                match part {
                    Part::Text(words) => text.push_str(&wrapped(words, terminal.width)),
                    Part::Command(command) => {
                        let command = command.shown().to_string();
                        text.push_str(&print::command("  try next: ", &command, terminal.width));
                    }
                    Part::Table(head, rows) => {
                        let head: Vec<&str> = head.iter().map(String::as_str).collect();
                        text.push_str(&Table::new(&head, rows).indent(2).text(terminal));
                    }
                    Part::Heat(heat) => {
                        let width = terminal.width.unwrap_or(HEAT_WIDTH).min(MOST_HEAT_WIDTH);
                        text.push_str(&heat.terminal(width, HEAT_HEIGHT, terminal.colour));
                    }
                    Part::Chart(_) => {}
                }
            }
        }
        text
    }

    /// One HTML file.
    pub fn html(&self, title: &str) -> String {
        let section = |(heading, parts): &(&'static str, Vec<Part>)| Section {
            heading: (*heading).to_owned(),
            body: parts.iter().map(block).collect(),
        };
        let page = Page {
            title: title.to_owned(),
            sections: self.0.iter().map(section).collect(),
        };
        page.html()
    }
}

fn block(part: &Part) -> Block {
    match part {
        Part::Text(words) => Block::Paragraph(words.clone()),
        Part::Command(command) => Block::Code(command.clone()),
        Part::Table(head, rows) => {
            let is_number = |cell: &String| {
                let first = cell.chars().next();
                cell.is_empty() || first.is_some_and(|c| c.is_ascii_digit() || c == '–')
            };
            let alignment = (0..head.len()).map(|column| {
                match rows.iter().filter_map(|row| row.get(column)).all(is_number) {
                    true => Alignment::Right,
                    false => Alignment::Left,
                }
            });
            Block::Table {
                alignment: alignment.collect(),
                head: head.clone(),
                rows: rows.clone(),
            }
        }
        Part::Heat(heat) => Block::Svg(heat.svg()),
        Part::Chart(chart) => Block::Svg(chart.svg()),
    }
}

/// A paragraph, indented.
fn wrapped(words: &str, width: Option<usize>) -> String {
    let room = width.map_or(usize::MAX, |width| width - 2);
    let words = words.shown().to_string();
    let lines = print::lines(&words, 0, room).into_iter();
    lines.map(|line| format!("  {line}\n")).collect()
}
