//! What is not exchanged, by the kernel's own migration.

use super::SwapBackend;
use super::pool::{HUGE, PAGE};
use super::span::{Ledger, Span};
use super::work::{Progress, Why};
use crate::sys;
use hither_core::ids::Pid;
use hither_core::plan::Refusal;
use hither_mover::{Action, Backend, Job, OutcomeBuilder, Pages, Race};
use std::ops::Range;

impl SwapBackend {
    /// Lets the kernel move what is not exchanged, all of one kind at once.
    pub(super) fn by_kernel(
        &mut self,
        span: &Span,
        why: Why,
        progress: &Progress,
        ledger: &mut Ledger<'_>,
    ) {
        // Jobs with their parts of it.
        let mut parts: Vec<(usize, Range<u64>)> = Vec::new();
        for (range, _) in progress.others.iter().filter(|(_, other)| *other == why) {
            for (job, part) in &span.parts {
                let both = part.start.max(range.start)..part.end.min(range.end);
                if both.start < both.end {
                    parts.push((*job, both));
                }
            }
        }
        let is_surveyed = why != Why::Unsuited && !self.config.in_place;
        if why == Why::NoHugeStock && is_surveyed {
            parts = self.huge_by_kernel(span, &parts, ledger);
        }
        if parts.is_empty() {
            return;
        }
        let jobs: Vec<Job<'_>> = parts
            .iter()
            .map(|(_, range)| Job {
                pid: Pid(0),
                action: Action::Migrate {
                    pages: Pages::Run(range.start / PAGE..range.end / PAGE),
                    to: span.to,
                },
                race: Race::Block,
            })
            .collect();
        let outcomes = match is_surveyed {
            true => self.kernel.execute_surveyed(&jobs),
            false => self.kernel.execute(&jobs),
        };
        for ((job, _), outcome) in parts.into_iter().zip(outcomes) {
            let builder = self.builder(job, ledger);
            builder.figures().bytes += outcome.bytes;
            builder.already_there_many(outcome.already_there);
            for (refusal, count) in outcome.refused {
                // Two ways of moving it were refused, and nobody else maps it.
                let pinned = why == Why::Held && refusal == Refusal::Busy;
                builder.refused_many(if pinned { Refusal::Pinned } else { refusal }, count);
            }
            for page in outcome.moved {
                builder.moved(page);
            }
        }
    }

    /// Of a job of which the kernel moves something: it is the job's backend where nothing came first.
    fn builder<'a>(&self, job: usize, ledger: &'a mut Ledger<'_>) -> &'a mut OutcomeBuilder {
        let builder = ledger.job(job);
        if builder.counted() == 0 {
            builder.figures().backend = Some(self.kernel.name());
        }
        builder
    }

    /// Huge pages that are wholly one job's, named by one address each: by all of its pages a move
    /// takes a third longer. Returns what is left.
    fn huge_by_kernel(
        &mut self,
        span: &Span,
        parts: &[(usize, Range<u64>)],
        ledger: &mut Ledger<'_>,
    ) -> Vec<(usize, Range<u64>)> {
        let mut left = Vec::new();
        let mut whole: Vec<(usize, u64)> = Vec::new();
        for (job, range) in parts {
            let huge = range.start.next_multiple_of(HUGE)..range.end / HUGE * HUGE;
            if huge.start >= huge.end {
                left.push((*job, range.clone()));
                continue;
            }
            let edges = [range.start..huge.start, huge.end..range.end];
            left.extend(
                edges
                    .into_iter()
                    .filter(|edge| !edge.is_empty())
                    .map(|edge| (*job, edge)),
            );
            whole.extend(huge.step_by(HUGE as usize).map(|start| (*job, start)));
        }
        // Even an empty call waits for every CPU's page lists.
        if whole.is_empty() {
            return left;
        }
        let addresses: Vec<u64> = whole.iter().map(|(_, start)| *start).collect();
        let targets = vec![span.to.0 as i32; whole.len()];
        let mut status = vec![i32::MIN; whole.len()];
        // What it says of the whole call it says again of what is left.
        let _ = sys::move_pages(0, &addresses, &targets, &mut status);
        for ((job, start), status) in whole.into_iter().zip(status) {
            let range = start..start + HUGE;
            // One that was split meanwhile has moved with one of its pages only.
            if status != span.to.0 as i32 || !self.pool.is_huge(&range) {
                left.push((job, range));
                continue;
            }
            let builder = self.builder(job, ledger);
            builder.figures().bytes += HUGE;
            builder.figures().huge_kept += 1;
            builder.moved_many(start / PAGE..(start + HUGE) / PAGE);
        }
        left
    }
}
