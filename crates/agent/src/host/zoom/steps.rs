//! The steps with their rows and choices: made by the analyses of `hither_recording`, kept for
//! tables and JSON alike.

use crate::host::{Error, Result};
use hither_core::foreign::Foreign;
use hither_core::snapshot::Evidence;
use hither_recording::analysis::Data;
use hither_recording::analysis::areas::{self, AreaKind, Areas};
use hither_recording::analysis::pages::{self, CountedPage, PageCount, PagesSummary};
use hither_recording::analysis::sharing::SharedLine;
use hither_recording::analysis::use_of::{self, Judged, Remedy};
use hither_recording::analysis::written;
use hither_recording::analysis::zoom::{self, Next, ZoomAdvice, ZoomChoice};
use std::collections::HashMap;

/// Pages whose lines are counted at most; the lab's device can count twice as many ranges.
const COUNTED_PAGES: usize = 8;

/// What a person asked for.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// A part of the name of the one area to follow.
    pub area: Option<String>,
    /// Names that a refusal lists at most.
    pub top: usize,
}

/// What is counted of lines: transfers for each node position, by process and address.
pub type LineCounts = HashMap<(i32, u64), Vec<f64>>;

/// The pages of an area.
pub struct PagesOf {
    /// Its name.
    pub name: String,
    /// Whose.
    pub pid: i32,
    /// What it is.
    pub kind: AreaKind,
    /// By accesses and transfers, most first.
    pub pages: Vec<CountedPage>,
    /// What they come to.
    pub summary: PagesSummary,
    /// Counted by a device? From samples otherwise.
    pub is_counted: bool,
    /// Was it written?
    pub written: Evidence<bool>,
    /// What is done next.
    pub choice: ZoomChoice,
}

/// The shared lines of an area.
pub struct LinesOf {
    /// Its name.
    pub name: String,
    /// Whose.
    pub pid: i32,
    /// Each with the transfers that were counted to each node position, where they were.
    pub lines: Vec<(SharedLine, Option<Vec<f64>>, ZoomChoice)>,
}

/// What would help, of one area.
pub struct Conclusion {
    /// Its name.
    pub area: String,
    /// Whose.
    pub pid: i32,
    /// A few words; none where it is still open.
    pub advice: Option<ZoomAdvice>,
    /// What to do.
    pub sentence: String,
    /// Why.
    pub why: String,
}

/// All steps so far.
pub struct ZoomSteps {
    /// What was asked for.
    pub wanted: Wanted,
    /// The running process that is looked at, where it is one.
    pub process: Option<i32>,
    /// The kernel's numbers of nodes.
    pub nodes: Vec<u32>,
    /// Samples behind step 1.
    pub sample_count: usize,
    /// Step 1: the areas.
    pub areas: Areas,
    /// How each of them is used.
    pub judged: Vec<Judged>,
    /// What is done next about each.
    pub choices: Vec<ZoomChoice>,
    /// Step 2.
    pub pages: Vec<PagesOf>,
    /// Step 3.
    pub lines: Vec<LinesOf>,
    /// What it comes to.
    pub conclusions: Vec<Conclusion>,
    /// Sentences for a person.
    pub notes: Vec<String>,
}

impl ZoomSteps {
    /// Would moving memory of the process help?
    #[must_use]
    pub fn is_movable(&self) -> bool {
        let mut advices = self
            .conclusions
            .iter()
            .filter_map(|conclusion| conclusion.advice);
        self.process.is_some()
            && advices.any(|advice| {
                matches!(
                    advice,
                    ZoomAdvice::Place(Remedy::MoveTo(_) | Remedy::MakeLocal | Remedy::Interleave)
                )
            })
    }

    /// None yet.
    #[must_use]
    pub fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            process: None,
            nodes: Vec::new(),
            sample_count: 0,
            areas: Areas::default(),
            judged: Vec::new(),
            choices: Vec::new(),
            pages: Vec::new(),
            lines: Vec::new(),
            conclusions: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Step 1.
    ///
    /// # Errors
    /// The area that was asked for is not there.
    pub fn look_at_areas(&mut self, data: &Data) -> Result<()> {
        self.nodes.clone_from(&data.nodes);
        self.sample_count = data.accesses.len();
        self.areas = areas::areas(data);
        self.judged = use_of::judge(data, &self.areas);
        self.choices = zoom::of_areas(data, &self.areas, &self.judged);
        let Some(part) = self.wanted.area.clone() else {
            return Ok(());
        };
        let list = &self.areas.list;
        let found = list.iter().position(|area| area.name.contains(&part));
        let names = || -> Vec<String> {
            let first = list.iter().take(self.wanted.top);
            first
                .map(|area| format!("`{}`", area.name.shown()))
                .collect()
        };
        let Some(found) = found else {
            return Err(Error::Refused(match list.is_empty() {
                true => format!("--area {part}: no access was seen; look longer"),
                false => format!(
                    "--area {part}: no area that was accessed has that in its name; there are {}",
                    names().join(", ")
                ),
            }));
        };
        for (index, choice) in self.choices.iter_mut().enumerate() {
            choice.next = match index == found {
                true => Next::Pages,
                false => Next::Settled,
            };
        }
        "it was asked for".clone_into(&mut self.choices[found].why);
        Ok(())
    }

    /// Places of the areas whose pages are wanted.
    pub fn open_areas(&self) -> Vec<usize> {
        let all = self.choices.iter().enumerate();
        all.filter(|(_, choice)| choice.next == Next::Pages)
            .map(|(index, _)| index)
            .collect()
    }

    /// Step 2, on what was recorded meanwhile, or again on the whole.
    pub fn look_at_pages(&mut self, data: &Data, counts: Option<&[PageCount]>) {
        let now = areas::areas(data);
        for index in self.open_areas() {
            let before = &self.areas.list[index];
            let place = pages::same_area(&now, before.pid, &before.kind);
            let counted = counts.map(|counts| {
                let ranges = pages::ranges(data, &self.areas, index);
                pages::of_counts(counts, before.pid, &ranges)
            });
            let counted = counted.filter(|pages| !pages.is_empty());
            let is_counted = counted.is_some();
            let pages = match (counted, place) {
                (Some(pages), _) => pages,
                (None, Some(place)) => pages::of_samples(data, &now, place),
                (None, None) => Vec::new(),
            };
            let summary = pages::summary(&pages, data.nodes.len());
            // What either look saw of writes is known.
            let now = place.map(|place| written::of_area(data, &now, place));
            let before_it = &self.judged[index].written;
            let known = now.filter(|now| now.get() == Some(true));
            let written = written::with_pages(known.as_ref().unwrap_or(before_it), &pages);
            let mut choice = zoom::of_pages(&pages, &summary);
            if self.wanted.area.is_some() && summary.transfers > 0.0 {
                choice.next = Next::Lines;
            }
            self.pages.push(PagesOf {
                name: before.name.clone(),
                pid: before.pid,
                kind: before.kind.clone(),
                pages,
                summary,
                is_counted,
                written,
                choice,
            });
        }
    }

    /// Areas whose lines are wanted.
    pub fn contested_areas(&self) -> Vec<&PagesOf> {
        let wanted = |of: &&PagesOf| of.choice.next == Next::Lines;
        self.pages.iter().filter(wanted).collect()
    }

    /// The pages with most transfers of those areas.
    pub fn contested_pages(&self) -> Vec<(i32, u64)> {
        let of = self.contested_areas();
        let mut all: Vec<&CountedPage> = of.iter().flat_map(|of| &of.pages).collect();
        all.retain(|page| page.transferred() > 0.0);
        all.sort_by(|a, b| b.transferred().total_cmp(&a.transferred()));
        all.truncate(COUNTED_PAGES);
        all.iter().map(|page| (page.pid, page.address)).collect()
    }

    /// Step 3.
    pub fn look_at_lines(&mut self, data: &Data, counts: Option<&LineCounts>) {
        let now = areas::areas(data);
        let mut found = Vec::new();
        for of in self.contested_areas() {
            let place = pages::same_area(&now, of.pid, &of.kind);
            let lines = place.map_or(Vec::new(), |place| zoom::lines_of(data, &now, place));
            let lines = lines.into_iter().map(|line| {
                let counted = counts.and_then(|counts| counts.get(&(line.pid, line.address)));
                let choice = zoom::of_line(&line);
                (line, counted.cloned(), choice)
            });
            found.push(LinesOf {
                name: of.name.clone(),
                pid: of.pid,
                lines: lines.collect(),
            });
        }
        self.lines = found;
    }

    /// What it comes to, by area.
    pub fn conclude(&mut self, data: &Data) {
        let written = self.judged.iter().map(|judged| &judged.written);
        let list = self.areas.list.iter().zip(&self.choices).zip(written);
        let mut all = Vec::new();
        for ((area, choice), written) in list {
            let pages = self
                .pages
                .iter()
                .find(|of| (of.pid, &of.kind) == (area.pid, &area.kind) && !of.pages.is_empty());
            let lines = self
                .lines
                .iter()
                .find(|of| of.pid == area.pid && of.name == area.name);
            let line = lines.and_then(|of| of.lines.first());
            let choice = match (line, pages) {
                (Some((_, _, choice)), _) => choice,
                // Where pages do not tell, what the parts told stands.
                (None, Some(of)) if of.choice.next == Next::Longer && choice.advice.is_some() => {
                    choice
                }
                (None, Some(of)) => &of.choice,
                (None, None) => choice,
            };
            if choice.advice == Some(ZoomAdvice::Place(Remedy::Nothing)) {
                continue;
            }
            let sentence = match choice.advice {
                Some(advice) => advice.sentence(data, pages.map_or(written, |of| &of.written)),
                None if choice.next == Next::Lines && lines.is_some() => {
                    "too few samples of its lines: look longer (--seconds)".to_owned()
                }
                None => "still open: look longer (--seconds), or with more --steps".to_owned(),
            };
            all.push(Conclusion {
                area: area.name.clone(),
                pid: area.pid,
                advice: choice.advice,
                sentence,
                why: choice.why.clone(),
            });
        }
        self.conclusions = all;
    }
}
