//! Which jobs are moved together, and who is told what became of which page.

use super::pool::PAGE;
use hither_core::ids::NodeId;
use hither_core::plan::Refusal;
use hither_mover::{Action, Job, OutcomeBuilder, Pages, Race};
use std::ops::Range;

/// Jobs whose pages follow each other, to one node under one race policy.
pub(super) struct Span {
    pub(super) range: Range<u64>,
    pub(super) to: NodeId,
    pub(super) race: Race,
    /// Job and its part of the range.
    pub(super) parts: Vec<(usize, Range<u64>)>,
}

/// What a page of a span came to.
#[derive(Clone, Copy)]
pub(super) enum Verdict {
    Moved,
    AlreadyThere,
    Refused(Refusal),
}

impl Span {
    /// Tells the jobs what their pages among these came to.
    pub(super) fn settle(
        &self,
        builders: &mut [OutcomeBuilder],
        range: &Range<u64>,
        verdict: Verdict,
    ) {
        for (job, part) in &self.parts {
            let both = part.start.max(range.start)..part.end.min(range.end);
            if both.start >= both.end {
                continue;
            }
            let pages = both.start / PAGE..both.end / PAGE;
            let builder = &mut builders[*job];
            match verdict {
                Verdict::Moved => {
                    builder.figures().bytes += both.end - both.start;
                    builder.moved_many(pages);
                }
                Verdict::AlreadyThere => builder.already_there_many(pages.end - pages.start),
                Verdict::Refused(refusal) => {
                    builder.refused_many(refusal, pages.end - pages.start);
                }
            }
        }
    }
}

/// Consecutive jobs whose pages follow each other become one span; `Race::Fail` keeps its own, as
/// a touch ends it all.
pub(super) fn spans(own: i32, jobs: &[Job<'_>], builders: &mut [OutcomeBuilder]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        let Action::Migrate { pages, to } = &job.action else {
            builders[index].refused_many(Refusal::NotSupported, job.page_count());
            continue;
        };
        if job.pid.0 != 0 && job.pid.0 != own {
            builders[index].refused_many(Refusal::NotSupported, job.page_count());
            continue;
        }
        let mut add = |range: Range<u64>| match spans.last_mut() {
            Some(last)
                if last.range.end == range.start
                    && last.to == *to
                    && last.race == job.race
                    && (job.race != Race::Fail
                        || last.parts.last().is_some_and(|p| p.0 == index)) =>
            {
                last.range.end = range.end;
                match last.parts.last_mut() {
                    Some((of, part)) if *of == index => part.end = range.end,
                    _ => last.parts.push((index, range)),
                }
            }
            _ => spans.push(Span {
                range: range.clone(),
                to: *to,
                race: job.race,
                parts: vec![(index, range)],
            }),
        };
        match pages {
            Pages::Run(run) if run.start < run.end => add(run.start * PAGE..run.end * PAGE),
            Pages::Run(_) => {}
            Pages::Listed(pages) => {
                pages
                    .iter()
                    .for_each(|&page| add(page * PAGE..(page + 1) * PAGE));
            }
        }
    }
    spans
}
