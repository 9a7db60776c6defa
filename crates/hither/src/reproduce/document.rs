//! The rows as one page: written once, as HTML and as Markdown.

use super::Shown;
use super::show::{self, HEAD, MECHANISM_HEAD};
use crate::draw::{Alignment, Block, Page, Section};
use hither_core::foreign::Foreign;
use hither_lab::reproduce::kept;
use hither_lab::reproduce::mechanisms;
use hither_lab::reproduce::{Paper, experiments};
use std::fmt::Write as _;

/// What a reader has to know of the figures.
const ABOUT: [&str; 3] = [
    "Every figure that the texts of the five papers quote, in tables and in prose, beside ours. The laboratory is an emulated machine \
     whose memory takes the time that the paper's machine file says; nothing here was measured on hardware but what says natively. \
     The programs have the patterns of the papers' and are not the papers' own.",
    "A tolerance is the project's digest's (facts/papers.md), a bound the paper's own words. Where neither names one, the difference is told \
     and not judged. \"not reproducible from the text\" and \"refused\" are said where that is so; \"an input\" is a figure that goes into ours.",
    "Made by `hither reproduce --kept --markdown docs/reproduce.md`; `hither reproduce` runs what has no result of the present commit.",
];

/// The page of what was asked for.
pub fn document(shown: &Shown) -> Page {
    let text = |words: &str| Block::Paragraph(words.to_owned());
    let mut about: Vec<Block> = ABOUT.into_iter().map(text).collect();
    about.push(text(&format!("{}.", show::summary(&shown.rows))));
    about.push(by_paper(shown));
    let mut sections = vec![Section {
        heading: "What this is".into(),
        body: about,
    }];
    for paper in Paper::ALL {
        let mut body = Vec::new();
        for (_, table, rows) in show::grouped(&shown.rows)
            .into_iter()
            .filter(|(of, ..)| *of == paper)
        {
            let source = rows.first().map_or("", |one| one.row.source);
            body.push(text(&format!("{table}: {source}.")));
            let (cells, notes) = show::noted(&rows);
            body.push(block(&HEAD, cells));
            for (number, note) in notes.iter().enumerate() {
                body.push(text(&format!("[{}] {note}.", number + 1)));
            }
        }
        if paper == Paper::Memif && shown.has_mechanisms {
            body.push(text("Interface and mechanisms: built, with the test that shows it, or not, with the reason."));
            let rows = mechanisms::ALL
                .iter()
                .map(|one| Vec::from(show::mechanism(one)));
            body.push(block(&MECHANISM_HEAD, rows.collect()));
        }
        if !body.is_empty() {
            sections.push(Section {
                heading: paper.title().into(),
                body,
            });
        }
    }
    sections.push(runs(shown));
    Page {
        title: "The five papers' figures beside ours".into(),
        sections,
    }
}

/// Counts of each paper.
fn by_paper(shown: &Shown) -> Block {
    let row = |paper: Paper| {
        let of: Vec<_> = shown
            .rows
            .iter()
            .filter(|one| one.row.paper == paper)
            .cloned()
            .collect();
        let summary = show::summary(&of);
        (!of.is_empty()).then(|| vec![paper.name().to_owned(), summary])
    };
    let rows = Paper::ALL.into_iter().filter_map(row).collect();
    block(&["paper", "rows"], rows)
}

/// The experiments behind the rows.
fn runs(shown: &Shown) -> Section {
    let row = |one: &experiments::Experiment| {
        let kept = kept::of(&shown.results, one);
        let estimate = show::estimate(one);
        vec![
            one.name.to_owned(),
            one.what.to_owned(),
            kept.map_or(format!("not run, about {estimate}"), |kept| {
                format!("{:.0} s", kept.host_seconds)
            }),
            kept.map_or(String::new(), |kept| kept.commit.clone()),
            kept.map_or(String::new(), |kept| kept.date.clone()),
        ]
    };
    let all = experiments::serving(shown.rows.iter().map(|one| &one.row));
    let head = ["experiment", "what", "host", "commit", "day"];
    Section {
        heading: "Experiments".into(),
        body: vec![
            Block::Paragraph("One command each; `hither reproduce --json` has them all.".into()),
            block(&head, all.map(row).collect()),
        ],
    }
}

fn block(head: &[&str], rows: Vec<Vec<String>>) -> Block {
    let of = |name: &&str| match *name {
        "paper" | "ours" if head.len() == HEAD.len() => Alignment::Right,
        _ => Alignment::Left,
    };
    Block::Table {
        alignment: head.iter().map(of).collect(),
        head: head.iter().map(|name| (*name).to_owned()).collect(),
        rows,
    }
}

/// The same as Markdown, for the documentation.
pub fn markdown(page: &Page) -> String {
    let mut text = format!("# {}\n", page.title);
    for section in &page.sections {
        let _ = write!(text, "\n## {}\n", section.heading);
        let mut was_note = false;
        for block in &section.body {
            match block {
                Block::Paragraph(words) => {
                    // Notes of a table stand below each other.
                    let is_note = words.starts_with('[');
                    text += if is_note && was_note { "" } else { "\n" };
                    let mark = if is_note { "- " } else { "" };
                    let _ = writeln!(text, "{mark}{}", words.shown());
                    was_note = is_note;
                }
                Block::Table {
                    head,
                    rows,
                    alignment,
                } => {
                    was_note = false;
                    let marks = alignment.iter().map(|side| match side {
                        Alignment::Left => "---",
                        Alignment::Right => "--:",
                    });
                    let _ = write!(
                        text,
                        "\n| {} |\n|{}|\n",
                        head.join(" | "),
                        marks.collect::<Vec<_>>().join("|")
                    );
                    for row in rows {
                        let cells: Vec<String> =
                            row.iter().map(|cell| cell.replace('|', "\\|")).collect();
                        let _ = writeln!(text, "| {} |", cells.join(" | "));
                    }
                }
                Block::Code(words) => {
                    let _ = write!(text, "\n```text\n{words}\n```\n");
                }
                Block::Svg(_) => {}
            }
        }
    }
    text
}
