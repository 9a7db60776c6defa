//! The way of a span through an exchange: survey, window by window, and what the kernel's own
//! migration does instead.

use super::exchange::{Chunk, Exchange, Fate};
use super::pool::{PAGE, Size};
use super::span::{Ledger, Span, Verdict};
use super::survey::{self, Part, Survey};
use super::{Step, SwapBackend};
use crate::sys;
use hither_core::ids::NodeId;
use hither_core::plan::Refusal;
use std::collections::VecDeque;
use std::ops::Range;

/// Most bytes that are away at once, as many as the kernel's own migration unmaps at once: an
/// access waits for 200 us of copying at most.
const WINDOW_BYTES: u64 = super::pool::HUGE;
/// Runs in stock shorter than this serve no longer request.
const CRUMB_BYTES: u64 = 16 * PAGE;
/// Times that a page is tried again that was touched on its way.
const RETRIES: u32 = 2;

/// Why the kernel shall move pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// They cannot be exchanged, or nothing is known of them.
    Unsuited,
    /// They are there, elsewhere, and no pages are to be had for them.
    NoStock,
    /// The same of whole huge pages.
    NoHugeStock,
    /// They are there and were not let go of.
    Held,
}

impl Why {
    fn no_stock(size: Size) -> Self {
        match size {
            Size::Small => Self::NoStock,
            Size::Huge => Self::NoHugeStock,
        }
    }
}

/// The work on one span.
#[derive(Default)]
pub(super) struct Progress {
    /// For the kernel's own migration.
    pub(super) others: Vec<(Range<u64>, Why)>,
    /// Touched on their way.
    raced: Vec<Range<u64>>,
    /// Under `Race::Fail`: an access ended it all.
    is_over: bool,
}

impl SwapBackend {
    pub(super) fn span(&mut self, span: &Span, ledger: &mut Ledger<'_>) {
        ledger.begin();
        let mut progress = Progress::default();
        if self.is_pool(&span.range) {
            span.settle(ledger, &span.range, Verdict::Refused(Refusal::NotOurs));
        } else if self.may_exchange(&span.range) {
            self.exchange_span(span, ledger, &mut progress);
        } else {
            progress.others.push((span.range.clone(), Why::Unsuited));
        }
        if progress.is_over {
            for (range, _) in progress.others.drain(..) {
                span.settle(ledger, &range, Verdict::Refused(Refusal::Dropped));
            }
        }
        for why in [Why::Unsuited, Why::NoStock, Why::NoHugeStock, Why::Held] {
            self.by_kernel(span, why, &progress, ledger);
        }
        ledger.end(span);
    }

    fn exchange_span(&mut self, span: &Span, ledger: &mut Ledger<'_>, progress: &mut Progress) {
        let survey = match survey::survey(&self.locator, &span.range) {
            Ok(survey) => survey,
            Err(_) => return progress.others.push((span.range.clone(), Why::Unsuited)),
        };
        settle_absent(span, &survey, ledger);
        let unsuited = |range: &Range<u64>| (range.clone(), Why::Unsuited);
        progress.others.extend(survey.others.iter().map(unsuited));
        let mut work = self.work(span, &survey, ledger, progress);
        let (Some((first, _)), Some((last, _))) = (work.front(), work.back()) else {
            return;
        };
        if !self.trap(first.start..last.end) {
            let unsuited = work.iter().map(|(range, _)| unsuited(range));
            return progress.others.extend(unsuited);
        }
        self.step(Step::Trapped);
        for round in 0..=RETRIES {
            while let Some((range, index)) = work.pop_front() {
                if progress.is_over {
                    span.settle(ledger, &range, Verdict::Refused(Refusal::Dropped));
                    continue;
                }
                let rest = self.chunk(span, &range, &survey.parts[index], ledger, progress);
                ledger.tell_complete(span);
                if rest < range.end {
                    work.push_front((rest..range.end, index));
                }
            }
            for range in std::mem::take(&mut progress.raced) {
                let mut parts = survey.parts.iter();
                let part = parts.position(|part| part.range.contains(&range.start));
                match part {
                    Some(index) if round < RETRIES && !progress.is_over => {
                        work.push_back((range, index));
                    }
                    _ => span.settle(ledger, &range, Verdict::Refused(Refusal::Busy)),
                }
            }
        }
        self.shared.release(&mut self.shared.journal());
    }

    /// Lets accesses to missing pages of these addresses wait.
    fn trap(&self, envelope: Range<u64>) -> bool {
        // Noted first: a worker that dies in between leaves nothing registered.
        let mut journal = self.shared.journal();
        journal.owner = self.worker.map_or(0, |(_, thread)| thread);
        journal.trapped.push(envelope.clone());
        let Err(error) = self.shared.traps.trap_missing(&envelope) else {
            return true;
        };
        if error.raw_os_error() == Some(sys::ENOMEM) {
            // Mappings in front of the one that could not be split are registered.
            self.shared.release(&mut journal);
        } else {
            // Refused before anything was done. Another mover may hold part of it (`EBUSY`), which
            // kernels before 6.17 would let go of here.
            journal.trapped.pop();
        }
        false
    }

    /// The pages that are to be exchanged, with the part of the survey that they are in.
    fn work(
        &self,
        span: &Span,
        survey: &Survey,
        ledger: &mut Ledger<'_>,
        progress: &mut Progress,
    ) -> VecDeque<(Range<u64>, usize)> {
        let mut work: VecDeque<(Range<u64>, usize)> = VecDeque::new();
        for (index, part) in survey.parts.iter().enumerate() {
            let bytes = part.range.end - part.range.start;
            let to_be_had = self.pool.expects(span.to, part.size, bytes);
            let mut start = part.range.start;
            while start < part.range.end {
                let range = start..part.same_node(start);
                start = range.end;
                let node = part.node(range.start);
                if node == survey::FILE {
                    progress.others.push((range, Why::Unsuited));
                } else if node < 0 {
                    span.settle(ledger, &range, Verdict::Refused(Refusal::Unmapped));
                } else if node == span.to.0 as i32 && !self.config.in_place {
                    span.settle(ledger, &range, Verdict::AlreadyThere);
                } else if !to_be_had {
                    progress.others.push((range, Why::no_stock(part.size)));
                } else {
                    match work.back_mut() {
                        Some((last, of)) if last.end == range.start && *of == index => {
                            last.end = range.end;
                        }
                        _ => work.push_back((range, index)),
                    }
                }
            }
        }
        work
    }

    /// Slots for pages on the target: filled ones from stock or, for small pages, empty ones.
    /// Returns whether they are filled.
    fn slots_for(&self, to: NodeId, size: Size, want: u64) -> Option<(Range<u64>, bool)> {
        if let Some(fresh) = self.pool.fresh(to, size, want) {
            // Crumbs of stock are not worth a window each.
            if fresh.end - fresh.start >= want.min(CRUMB_BYTES) {
                return Some((fresh, true));
            }
            self.pool.put_filled(to, size, fresh);
        }
        match size {
            Size::Small if !self.pool.is_exhausted(to, size) => {
                Some((self.pool.empty(size, want)?, false))
            }
            _ => None,
        }
    }

    /// Exchanges the first pages of a range; returns where the rest begins.
    fn chunk(
        &mut self,
        span: &Span,
        range: &Range<u64>,
        part: &Part,
        ledger: &mut Ledger<'_>,
        progress: &mut Progress,
    ) -> u64 {
        let size = part.size;
        let end = match size {
            Size::Small => span.window_end(range.start).min(range.end),
            Size::Huge => range.end,
        };
        let want = WINDOW_BYTES.min(end - range.start);
        let Some((fresh, is_filled)) = self.slots_for(span.to, size, want) else {
            progress.others.push((range.clone(), Why::no_stock(size)));
            return range.end;
        };
        let put_back = |slots| match is_filled {
            true => self.pool.put_filled(span.to, size, slots),
            false => self.pool.put_empty(size, slots),
        };
        let Some(parking) = self.pool.empty(size, fresh.end - fresh.start) else {
            put_back(fresh);
            progress.others.push((range.clone(), Why::no_stock(size)));
            return range.end;
        };
        let length = parking.end - parking.start;
        let cut = fresh.start + length;
        put_back(cut..fresh.end);
        let chunk = Chunk {
            start: range.start,
            size,
            race: span.race,
            parking,
            fresh: fresh.start..cut,
            is_filled,
        };
        let mut exchange = Exchange {
            shared: &self.shared,
            copier: &mut self.copier,
            hook: &self.config.hook,
        };
        let mut run = || Ok(exchange.run(&chunk, &mut self.fates, &mut self.slots));
        let account = match is_filled {
            true => run(),
            false => sys::with_preferred_node(span.to.0, run),
        };
        // Refused by the kernel is only a node that has vanished.
        let Ok(account) = account else {
            self.pool.put_empty(size, chunk.parking);
            self.pool.put_empty(size, chunk.fresh);
            progress.others.push((range.clone(), Why::no_stock(size)));
            return range.end;
        };
        if !is_filled {
            self.find_strays(span.to, &chunk);
        }
        let figures = ledger.job(span.job_at(range.start)).figures();
        figures.stall_ns += account.stall_ns;
        figures.raced = account.raced;
        progress.is_over = account.raced.is_some();
        if size == Size::Huge {
            let (moved, left_whole) = self.stock_up_huge(span.to, &chunk, part);
            // What left as a huge page leaves room for one, unless an access put a page table there.
            let is_huge = left_whole && !account.is_touched
                || self.pool.is_huge(&(chunk.start..chunk.start + length));
            figures.huge_kept += u64::from(moved && is_huge);
            figures.huge_split += u64::from(!is_huge);
        } else {
            self.stock_up(span.to, &chunk, part);
        }
        self.settle_fates(span, &chunk, ledger, progress);
        range.start + length
    }

    /// Pages that were got on the way and came from elsewhere than the target: it is full.
    fn find_strays(&mut self, to: NodeId, chunk: &Chunk) {
        let arrived = chunk.start..chunk.start + (chunk.parking.end - chunk.parking.start);
        let located = self.locator.nodes(&arrived, PAGE, &mut self.nodes);
        let stray = |node: i32| located.is_ok() && node >= 0 && node != to.0 as i32;
        let mut found = false;
        for (fate, &node) in self.fates.iter_mut().zip(&self.nodes) {
            if *fate == Fate::Moved && stray(node) {
                *fate = Fate::NoMemory;
            }
            found |= *fate == Fate::NoMemory;
        }
        if found {
            self.pool.exhaust(to, chunk.size);
        }
    }

    /// The slots of huge pages go back to the pool, as what they are now. Returns whether all pages
    /// were exchanged, and whether they left as a huge page.
    fn stock_up_huge(&self, to: NodeId, chunk: &Chunk, part: &Part) -> (bool, bool) {
        let size = Size::Huge;
        let (parking, fresh) = (chunk.parking.clone(), chunk.fresh.clone());
        let mut slots = self.slots.iter();
        let all_moved = slots.all(|slots| slots.parking_filled && !slots.fresh_filled);
        let left_whole = all_moved && self.pool.is_huge(&parking);
        let mut slots = self.slots.iter();
        if left_whole {
            let home = NodeId(part.node(chunk.start) as u32);
            self.pool.put_left(home, size, parking);
            self.pool.put_empty(size, fresh);
        } else if slots.all(|slots| !slots.parking_filled && slots.fresh_filled) {
            self.pool.put_empty(size, parking);
            self.pool.put_filled(to, size, fresh);
        } else {
            self.pool.put_unknown(size, parking);
            self.pool.put_unknown(size, fresh);
        }
        (all_moved, left_whole)
    }

    /// The same for small pages.
    fn stock_up(&self, to: NodeId, chunk: &Chunk, part: &Part) {
        let size = chunk.size;
        let mut next = 0;
        while next < self.slots.len() {
            let slots = self.slots[next];
            let node = part.node(chunk.start + next as u64 * PAGE);
            let same = (next..self.slots.len()).take_while(|&index| {
                self.slots[index] == slots && part.node(chunk.start + index as u64 * PAGE) == node
            });
            let count = same.count() as u64;
            let offset = next as u64 * PAGE;
            let at = |start: u64| start + offset..start + offset + count * PAGE;
            let (parking, fresh) = (at(chunk.parking.start), at(chunk.fresh.start));
            if slots.parking_filled {
                self.pool.put_left(NodeId(node as u32), size, parking);
            } else {
                self.pool.put_empty(size, parking);
            }
            match (slots.fresh_filled, chunk.is_filled) {
                (true, true) => self.pool.put_filled(to, size, fresh),
                // Filled on the way, perhaps, and from whichever node.
                (true, false) => self.pool.put_unknown(size, fresh),
                (false, _) => self.pool.put_empty(size, fresh),
            }
            next += count as usize;
        }
    }

    fn settle_fates(
        &self,
        span: &Span,
        chunk: &Chunk,
        ledger: &mut Ledger<'_>,
        progress: &mut Progress,
    ) {
        let mut next = 0;
        while next < self.fates.len() {
            let fate = self.fates[next];
            let same = self.fates[next..]
                .iter()
                .take_while(|other| **other == fate);
            let count = same.count();
            let start = chunk.start + next as u64 * PAGE;
            let range = start..start + count as u64 * PAGE;
            let refused = match fate {
                Fate::Moved => None,
                Fate::Raced => {
                    progress.raced.push(range);
                    next += count;
                    continue;
                }
                Fate::Held | Fate::Unsuited => {
                    let why = [Why::Unsuited, Why::Held][usize::from(fate == Fate::Held)];
                    progress.others.push((range, why));
                    next += count;
                    continue;
                }
                Fate::Missing | Fate::Gone => Some(Refusal::Unmapped),
                Fate::NoMemory => Some(Refusal::NoMemory),
            };
            let verdict = refused.map_or(Verdict::Moved, Verdict::Refused);
            span.settle(ledger, &range, verdict);
            next += count;
        }
    }
}

/// Pages of the span that the survey did not find are not in memory.
fn settle_absent(span: &Span, survey: &Survey, ledger: &mut Ledger<'_>) {
    if survey.found == (span.range.end - span.range.start) / PAGE {
        return;
    }
    let parts = survey.parts.iter().map(|part| part.range.clone());
    let mut known: Vec<Range<u64>> = parts.chain(survey.others.iter().cloned()).collect();
    known.sort_unstable_by_key(|range| range.start);
    let mut start = span.range.start;
    let end = span.range.end..span.range.end;
    for range in known.into_iter().chain(std::iter::once(end)) {
        if start < range.start {
            let absent = start..range.start;
            span.settle(ledger, &absent, Verdict::Refused(Refusal::Unmapped));
        }
        start = range.end;
    }
}
