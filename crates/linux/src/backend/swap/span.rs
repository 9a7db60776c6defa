//! Which jobs are moved together, and who is told what became of which page.

use super::pool::PAGE;
use crate::sys;
use hither_core::ids::NodeId;
use hither_core::plan::Refusal;
use hither_mover::{Action, Job, Outcome, OutcomeBuilder, Pages, Race};
use std::ops::Range;

/// Windows that do not hold the rest of a span end with a job, so that it is done early, and are
/// this long at least, and this share of the span: enough jobs share the price of a window to make
/// it small, and fewer wait for less where there are few.
const WINDOW_LEAST: u64 = 128 << 10;
const WINDOW_SHARE: u64 = 2;

/// The outcomes of jobs under way, each told once it is complete.
pub(super) struct Ledger<'a> {
    /// `None`: told.
    builders: Vec<Option<OutcomeBuilder>>,
    tell: &'a mut dyn FnMut(usize, Outcome),
    /// When the present span was begun, in ns.
    begin_ns: u64,
}

impl<'a> Ledger<'a> {
    pub(super) fn new(jobs: &[Job<'_>], tell: &'a mut dyn FnMut(usize, Outcome)) -> Self {
        let builder = |job| Some(OutcomeBuilder::new(job));
        Self {
            builders: jobs.iter().map(builder).collect(),
            tell,
            begin_ns: 0,
        }
    }

    /// A job of which not all is known yet.
    pub(super) fn job(&mut self, job: usize) -> &mut OutcomeBuilder {
        self.builders[job]
            .as_mut()
            .expect("pages of a job that was told of")
    }

    /// Work on a span begins.
    pub(super) fn begin(&mut self) {
        self.begin_ns = sys::monotonic_ns();
    }

    /// Tells of the jobs of the span whose pages are all accounted for.
    pub(super) fn tell_complete(&mut self, span: &Span) {
        let mut took = None;
        for (job, _) in &span.parts {
            let is_complete = |builder: &mut OutcomeBuilder| builder.is_complete();
            let Some(mut builder) = self.builders[*job].take_if(is_complete) else {
                continue;
            };
            let took = took.get_or_insert_with(|| sys::monotonic_ns() - self.begin_ns);
            builder.took(*took);
            (self.tell)(*job, builder.finish());
        }
    }

    /// Work on a span ends: tells of complete jobs, and notes the time that the others took so far.
    pub(super) fn end(&mut self, span: &Span) {
        self.tell_complete(span);
        let took = sys::monotonic_ns() - self.begin_ns;
        for (job, _) in &span.parts {
            if let Some(builder) = &mut self.builders[*job] {
                builder.took(took);
            }
        }
    }

    /// Tells of all that is left.
    pub(super) fn finish(self) {
        for (job, builder) in self.builders.into_iter().enumerate() {
            if let Some(builder) = builder {
                (self.tell)(job, builder.finish());
            }
        }
    }
}

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
    pub(super) fn settle(&self, ledger: &mut Ledger<'_>, range: &Range<u64>, verdict: Verdict) {
        for (job, part) in &self.parts {
            let both = part.start.max(range.start)..part.end.min(range.end);
            if both.start >= both.end {
                continue;
            }
            let pages = both.start / PAGE..both.end / PAGE;
            let builder = ledger.job(*job);
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

    /// The job that an address belongs to.
    pub(super) fn job_at(&self, address: u64) -> usize {
        let index = self.parts.partition_point(|(_, part)| part.end <= address);
        self.parts[index].0
    }

    /// Where a window may end that begins at `start`, so that no job waits long for those after it.
    pub(super) fn window_end(&self, start: u64) -> u64 {
        let least = WINDOW_LEAST.max((self.range.end - self.range.start) / WINDOW_SHARE);
        let ends = self.parts.iter().map(|(_, part)| part.end);
        let mut late = ends.filter(|end| *end >= start + least);
        late.next().unwrap_or(self.range.end)
    }
}

/// Consecutive jobs whose pages follow each other become one span; `Race::Fail` keeps its own, as
/// a touch ends it all.
pub(super) fn spans(own: i32, jobs: &[Job<'_>], ledger: &mut Ledger<'_>) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        let Action::Migrate { pages, to } = &job.action else {
            ledger
                .job(index)
                .refused_many(Refusal::NotSupported, job.page_count());
            continue;
        };
        if job.pid.0 != 0 && job.pid.0 != own {
            ledger
                .job(index)
                .refused_many(Refusal::NotSupported, job.page_count());
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
