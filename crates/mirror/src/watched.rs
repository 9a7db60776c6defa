//! One file that is mapped read-only: what of it is used, its copies, and the end of them.

use crate::copy::{Built, Mirror};
use crate::guard::{Guard, Refusal};
use crate::maps::{self, Mapped};
use crate::sys::{self, PAGE};
use crate::table::{self, Range};
use crate::touched::{self, Chunk};
use hither_core::mirror::chunks::{self, ChunkHeat, Homes};
use hither_core::mirror::name::Name;
use hither_core::mirror::report::FileReport;
use hither_core::mirror::{Plan, Which};
use std::io;
use std::time::{Duration, Instant};

/// First wait before a file that was written gets copies again; it doubles each time.
const FIRST_REST: Duration = Duration::from_secs(2);
/// Doublings of it.
const MOST_DOUBLINGS: u32 = 8;
/// Wait where copies cannot be made just now.
const RETRY: Duration = Duration::from_millis(250);
/// Mappings that one file may become; a process has 65,530 in all.
const MOST_RUNS: usize = 2048;
/// Chunks copied in one turn and then mapped: some 30 ms, for which who writes another file waits at most.
const MOST_AT_ONCE: usize = 16;
/// Chunks whose pages are read at once: a bound of memory.
const BLOCK: usize = 128;
/// Mappings that a process keeps for itself.
const SPARE_MAPPINGS: usize = 4096;
/// Pages looked at to learn where a chunk lies that the process does not use yet.
const SAMPLES: usize = 16;

/// One mapping of it. Chunks are numbered from the first that lies in it as a whole.
#[derive(Debug)]
struct Span {
    range: Range,
    /// Number in the file of its first chunk.
    first: usize,
    heat: ChunkHeat,
    found: Vec<Chunk>,
    mapped: Vec<bool>,
    /// Has the process written to it, or does the kernel not do what is needed?
    is_hopeless: bool,
    is_tried: bool,
}

/// One file.
#[derive(Debug)]
pub struct Watched {
    device: u64,
    inode: u64,
    /// As `/proc/self/maps` has it.
    mapped_as: String,
    chunk_bytes: u64,
    spans: Vec<Span>,
    guard: Option<Guard>,
    mirror: Option<Mirror>,
    not_before: Option<Instant>,
    is_pending: bool,
    is_stuck: bool,
    is_refused: bool,
    /// What is told of it.
    pub report: FileReport,
}

impl Span {
    fn new(range: Range, chunk_bytes: u64) -> Self {
        // Whole pages of the file, which the mapping may exceed.
        let file_end = range.file_bytes.next_multiple_of(PAGE as u64);
        let end = (range.offset + range.bytes as u64).min(file_end);
        let first = range.offset.div_ceil(chunk_bytes);
        let behind = match end == file_end {
            true => end.div_ceil(chunk_bytes),
            false => end / chunk_bytes,
        };
        let count = behind.saturating_sub(first) as usize;
        Self {
            range,
            first: first as usize,
            heat: ChunkHeat::new(count),
            found: vec![Chunk::default(); count],
            mapped: vec![false; count],
            is_hopeless: false,
            is_tried: false,
        }
    }

    /// Addresses of a run of chunks.
    fn addresses(&self, (first, behind): (usize, usize), chunk_bytes: u64) -> (usize, usize) {
        let at = |chunk: usize| {
            let offset = (self.first + chunk) as u64 * chunk_bytes - self.range.offset;
            self.range.start + offset as usize
        };
        let file_end = self.range.file_bytes.next_multiple_of(PAGE as u64) - self.range.offset;
        let end = self.range.start + (self.range.bytes).min(file_end as usize);
        (at(first), at(behind).min(end))
    }

    fn chunk_of(&self, address: usize, chunk_bytes: u64) -> usize {
        let offset = self.range.offset + (address - self.range.start) as u64;
        // What lies before the first whole chunk is of none.
        ((offset / chunk_bytes) as usize).wrapping_sub(self.first)
    }

    /// Maps chunks of a copy, mapped at `base`, over the range. Returns runs. After an error no copies are left.
    fn double_over(
        &mut self,
        range: &mut Range,
        base: usize,
        built: &[usize],
        chunk_bytes: u64,
    ) -> io::Result<usize> {
        // Before the first is mapped: what follows may fail in the middle.
        range.is_mirrored = true;
        let runs = chunks::runs(built);
        for &run in &runs {
            let (start, end) = self.addresses(run, chunk_bytes);
            let offset = (self.first + run.0) as u64 * chunk_bytes;
            // SAFETY: the range is mapped as it was noted, under the lock of whoever changes that, and the
            // copy holds the same bytes.
            let done = unsafe { sys::double_over(base + offset as usize, start, end - start) };
            if let Err(error) = done {
                // Nothing is left of which nobody knows.
                self.mapped.fill(false);
                range.give_back();
                return Err(error);
            }
            self.mapped[run.0..run.1].fill(true);
        }
        Ok(runs.len())
    }

    fn unmapped_runs(&self) -> Vec<(usize, usize)> {
        let free = (0..self.mapped.len()).filter(|chunk| !self.mapped[*chunk]);
        chunks::runs(&free.collect::<Vec<_>>())
    }

    /// The same, in parts that are not too large.
    fn unmapped_blocks(&self) -> impl Iterator<Item = (usize, usize)> {
        let runs = self.unmapped_runs().into_iter();
        runs.flat_map(|(start, end)| {
            (start..end)
                .step_by(BLOCK)
                .map(move |at| (at, end.min(at + BLOCK)))
        })
    }
}

impl Watched {
    /// A file of which nothing is known yet but that it is mapped.
    pub fn new(range: &Range) -> Self {
        Self {
            device: range.device,
            inode: range.inode,
            mapped_as: String::new(),
            chunk_bytes: chunks::chunk_bytes(range.file_bytes),
            spans: Vec::new(),
            guard: None,
            mirror: None,
            not_before: None,
            is_pending: false,
            is_stuck: false,
            is_refused: false,
            report: FileReport {
                bytes: range.file_bytes,
                ..FileReport::default()
            },
        }
    }

    /// Is the range one of this file?
    pub fn is_of(&self, range: &Range) -> bool {
        (self.device, self.inode) == (range.device, range.inode)
    }

    /// Takes mappings that came, and forgets those that went. Returns whether any came.
    pub fn follow(&mut self, ranges: &[Range]) -> bool {
        let is_there = |span: &Span| ranges.iter().any(|range| range.number == span.range.number);
        self.spans.retain(is_there);
        let count = self.spans.len();
        let (device, inode) = (self.device, self.inode);
        let is_of = |range: &&Range| (range.device, range.inode) == (device, inode);
        for range in ranges.iter().filter(is_of) {
            if !self
                .spans
                .iter()
                .any(|span| span.range.number == range.number)
            {
                // Under a guard its size is what it was copied with.
                let guarded = self.guard.as_ref().map(|guard| guard.content.bytes);
                let file_bytes = guarded.unwrap_or(range.file_bytes);
                let range = Range {
                    file_bytes,
                    ..*range
                };
                self.spans.push(Span::new(range, self.chunk_bytes));
            }
        }
        self.count_mapped();
        self.spans.len() > count
    }

    /// Has it any mapping left?
    pub fn is_mapped(&self) -> bool {
        !self.spans.is_empty()
    }

    /// Has it copies, or a guard?
    pub fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// Must it be asked again and again whether it was written?
    pub fn is_polled(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| !guard.is_lease())
    }

    /// Is it done with for good?
    pub fn is_hopeless(&self) -> bool {
        self.is_refused || self.spans.iter().all(|span| span.is_hopeless)
    }

    /// Is there more to copy than one turn did?
    pub fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// Has no copies for a while.
    pub fn rest(&mut self) {
        let doublings = (self.report.collapse_count as u32).min(MOST_DOUBLINGS);
        self.not_before = Some(Instant::now() + FIRST_REST * (1 << doublings));
    }

    /// The program ends: its originals are back before the guard goes. The report stays.
    pub fn end(&mut self) {
        if self.give_back() {
            self.mirror = None;
            self.guard = None;
        }
    }

    /// Maps the originals back. False where the kernel has no mappings left for that: then the guard stays, whoever
    /// writes waits, and it is tried again.
    fn give_back(&self) -> bool {
        table::with(|table| {
            let mut is_done = true;
            for span in &self.spans {
                if let Some(range) = table.find(span.range.number) {
                    range.give_back();
                    is_done &= !range.is_mirrored;
                }
            }
            is_done
        })
    }

    /// Are originals to be mapped back that could not be?
    pub fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Gives copies up if the file is written, or is about to be.
    pub fn check(&mut self) {
        if self.guard.as_ref().is_some_and(|guard| !guard.is_good()) {
            self.rest();
            self.collapse("it was opened for writing, or changed");
        }
    }

    /// Gives all copies up. The original is everywhere before the guard goes.
    pub fn collapse(&mut self, why: &str) {
        let had_copies = self.spans.iter().any(|span| span.mapped.contains(&true));
        self.is_pending = false;
        self.is_stuck = !self.give_back();
        if self.is_stuck {
            self.report.reason = "the process has no mappings left to give copies up".to_owned();
            return;
        }
        for span in &mut self.spans {
            span.mapped.fill(false);
            span.heat = ChunkHeat::new(span.mapped.len());
        }
        if let (Some(mirror), Some(guard)) = (&self.mirror, &self.guard)
            && !guard.is_good()
        {
            mirror.outdate();
        }
        // The writer goes on before memory is given back, which takes longer.
        self.guard = None;
        self.mirror = None;
        if had_copies {
            self.report.collapse_count += 1;
        }
        self.report.reason = why.to_owned();
        self.count_mapped();
    }

    fn count_mapped(&mut self) {
        let bytes = |span: &Span| span.mapped.iter().filter(|mapped| **mapped).count() as u64;
        let chunks: u64 = self.spans.iter().map(bytes).sum();
        self.report.mapped_bytes = (chunks * self.chunk_bytes).min(self.report.bytes);
        self.report.most_bytes = self.report.most_bytes.max(self.report.mapped_bytes);
    }

    /// Begins a window: what has no copy leaves the page table.
    pub fn open_window(&mut self, maps: &[Mapped]) {
        for span in self.spans.iter_mut().filter(|span| !span.is_hopeless) {
            let Range { start, offset, .. } = span.range;
            let Some(map) = maps
                .iter()
                .find(|map| map.start <= start && map.end > start)
            else {
                span.is_hopeless = true;
                continue;
            };
            if self.mapped_as.is_empty() {
                self.mapped_as.clone_from(&map.file);
            }
            if !self.mapped_as.is_empty() && map.file == self.mapped_as {
                self.report.path.clone_from(&map.path);
            }
            let mirror = self.mirror.as_ref().map_or("", |mirror| &mirror.mapped_as);
            let files = [self.mapped_as.as_str(), mirror];
            if !maps::holds(maps, start, span.range.end(), offset, &files) {
                // Unmapped by a call that nobody saw: nothing there is touched any more.
                span.is_hopeless = true;
                continue;
            }
            // Pages of the process's own would be lost.
            let blocks = span.unmapped_blocks();
            let runs: Vec<_> = blocks
                .map(|run| span.addresses(run, self.chunk_bytes))
                .collect();
            let is_clean = |(start, end): &(usize, usize)| touched::present(*start, *end).is_some();
            span.is_hopeless = !runs.iter().all(is_clean);
            if span.is_hopeless {
                self.report.reason = "the process has written to it".to_owned();
                continue;
            }
            let number = span.range.number;
            span.is_hopeless = !table::with(|table| {
                let Some(range) = table.find(number) else {
                    return true;
                };
                for (start, end) in &runs {
                    let _ = sys::advise(*start, end - start, libc::MADV_DONTNEED);
                }
                span.is_tried || range.is_mirrored || range.try_out()
            });
            span.is_tried = true;
            if span.is_hopeless {
                self.report.reason = "this kernel has no mremap that keeps files (5.13)".to_owned();
            }
        }
    }

    /// Ends a window: notes what was used in it.
    pub fn close_window(&mut self, node: u32) {
        self.report.node = Some(node);
        let chunk_bytes = self.chunk_bytes;
        let mut local = 0;
        for span in self.spans.iter_mut().filter(|span| !span.is_hopeless) {
            let count = span.mapped.len();
            let mut found = vec![Chunk::default(); count];
            for (first, behind) in span.unmapped_blocks() {
                let (start, end) = span.addresses((first, behind), chunk_bytes);
                let pages = touched::present(start, end).unwrap_or_default();
                let number = |page: usize| span.chunk_of(page, chunk_bytes).wrapping_sub(first);
                let block = touched::chunks(&pages, behind - first, node, number);
                found[first..behind].copy_from_slice(&block);
            }
            span.found = found;
            let used: Vec<bool> = span.found.iter().map(|chunk| chunk.is_used).collect();
            span.heat.window(&used);
            let is_local = |&chunk: &usize| {
                span.heat.is_hot(chunk)
                    && span.found[chunk].is_used
                    && !span.found[chunk].homes.are_elsewhere()
            };
            local += (0..count).filter(is_local).count() as u64 * chunk_bytes;
        }
        if local > 0 {
            self.report.local_bytes = local.min(self.report.bytes);
        }
    }

    /// Chunks of a span that are worth a copy, with their uses.
    fn wanted(span: &Span, plan: &Plan, node: u32, chunk_bytes: u64) -> Vec<(usize, u32)> {
        let is_wanted = |&chunk: &usize| {
            if span.mapped[chunk] {
                return false;
            }
            let found = &span.found[chunk];
            match plan.which {
                Which::Hot if !span.heat.is_hot(chunk) || !found.is_used => false,
                _ if plan.always => true,
                Which::Hot => found.homes.are_elsewhere(),
                Which::All if found.is_used => found.homes.are_elsewhere(),
                Which::All => Self::homes(span, chunk, node, chunk_bytes).are_elsewhere(),
            }
        };
        let numbers = (0..span.mapped.len()).filter(is_wanted);
        numbers
            .map(|chunk| (chunk, span.heat.count(chunk)))
            .collect()
    }

    /// Where a chunk lies that this process does not use: looked at in the original.
    fn homes(span: &Span, chunk: usize, node: u32, chunk_bytes: u64) -> Homes {
        let (start, end) = span.addresses((chunk, chunk + 1), chunk_bytes);
        let (start, end) = (
            start - span.range.start + span.range.original,
            end - span.range.start + span.range.original,
        );
        let step = ((end - start) / PAGE).div_ceil(SAMPLES).max(1) * PAGE;
        let pages: Vec<usize> = (start..end).step_by(step).collect();
        let mut byte = 0u8;
        for page in &pages {
            // SAFETY: one byte of this frame.
            let _ = unsafe { sys::copy_within(*page, (&raw mut byte) as usize, 1) };
        }
        let found = touched::chunks(&pages, 1, node, |_| 0);
        let _ = sys::advise(start, end - start, libc::MADV_DONTNEED);
        found.first().map(|chunk| chunk.homes).unwrap_or_default()
    }

    /// Copies and maps what is worth it. Returns whether anything came.
    pub fn act(&mut self, plan: &Plan, node: u32) -> bool {
        self.is_pending = false;
        if self.is_stuck
            || self.is_refused
            || self.not_before.is_some_and(|time| Instant::now() < time)
        {
            return false;
        }
        let mut wanted = Vec::new();
        for (number, span) in self.spans.iter().enumerate() {
            if !span.is_hopeless {
                let chunks = Self::wanted(span, plan, node, self.chunk_bytes);
                wanted.extend(
                    chunks
                        .into_iter()
                        .map(|(chunk, count)| (number, chunk, count)),
                );
            }
        }
        if wanted.is_empty() {
            return false;
        }
        match self.build(&wanted, plan, node) {
            Ok(is_any) => is_any,
            Err(refusal) => {
                let is_bare = !self.spans.iter().any(|span| span.mapped.contains(&true));
                if is_bare {
                    self.mirror = None;
                    self.guard = None;
                }
                self.not_before = Some(Instant::now() + RETRY);
                self.report.reason = match refusal {
                    Refusal::NotNow(why) => why.to_owned(),
                    Refusal::Never(why) => {
                        self.is_refused = is_bare;
                        why
                    }
                };
                false
            }
        }
    }

    fn join(&mut self, node: u32) -> Result<(), Refusal> {
        if self.guard.is_none() {
            let is_shared = self.spans.iter().any(|span| span.range.is_shared);
            let guard = Guard::of(&self.report.path, self.device, self.inode, is_shared)?;
            let bytes = guard.content.bytes;
            let is_other = |span: &Span| span.range.file_bytes != bytes;
            if bytes != self.report.bytes || self.spans.iter().any(is_other) {
                // Chunks are counted anew.
                self.report.bytes = bytes;
                self.chunk_bytes = chunks::chunk_bytes(bytes);
                for span in &mut self.spans {
                    let range = Range {
                        file_bytes: bytes,
                        ..span.range
                    };
                    *span = Span::new(range, self.chunk_bytes);
                }
                return Err(Refusal::NotNow("its size has changed"));
            }
            self.guard = Some(guard);
        }
        if let (None, Some(guard)) = (&self.mirror, &self.guard) {
            let name = Name {
                content: guard.content,
                node,
            };
            self.mirror = Some(Mirror::join(name, self.chunk_bytes).map_err(Refusal::Never)?);
        }
        Ok(())
    }

    fn build(
        &mut self,
        wanted: &[(usize, usize, u32)],
        plan: &Plan,
        node: u32,
    ) -> Result<bool, Refusal> {
        self.join(node)?;
        let (Some(mirror), Some(guard)) = (&self.mirror, &self.guard) else {
            return Ok(false);
        };
        let room = mirror.room_bytes(plan).map_err(Refusal::Never)?;
        let offer = |(place, &(span, chunk, count)): (usize, &(usize, usize, u32))| {
            let missing = mirror.missing_bytes(self.spans[span].first + chunk);
            (place, count, missing)
        };
        let offers: Vec<_> = wanted.iter().enumerate().map(offer).collect();
        let choice = chunks::choose(&offers, room);
        let start = Instant::now();
        let mut built: Vec<Vec<usize>> = vec![Vec::new(); self.spans.len()];
        let mut refused = match (choice.refused_count, plan.budget_bytes) {
            (0, _) => None,
            (_, Some(_)) => Some(format!(
                "node {node} has no room for more copies, or the budget is used"
            )),
            (_, None) => Some(format!("node {node} is full")),
        };
        self.is_pending = choice.chunks.len() > MOST_AT_ONCE;
        for place in choice.chunks.into_iter().take(MOST_AT_ONCE) {
            let (number, chunk, _) = wanted[place];
            let span = &self.spans[number];
            let offset = (span.first + chunk) as u64 * self.chunk_bytes - span.range.offset;
            let source = span.range.original + offset as usize;
            // The program may unmap it, and the original with it; somebody may write.
            let is_there = || table::with(|table| table.find(span.range.number).is_some());
            if !guard.is_good() || !is_there() {
                break;
            }
            let is_sound = || guard.is_good() && is_there();
            match mirror.build(span.first + chunk, source, is_sound) {
                Built::Done(bytes) => {
                    self.report.copied_bytes += bytes;
                    let _ = sys::advise(
                        source,
                        mirror.bytes_of(span.first + chunk) as usize,
                        libc::MADV_DONTNEED,
                    );
                    built[number].push(chunk);
                }
                Built::Busy => {}
                Built::Refused(why) => {
                    refused = Some(why);
                    break;
                }
            }
        }
        self.report.copy_us += start.elapsed().as_micros() as u64;
        let mut is_any = false;
        for (number, chunks) in built.iter().enumerate() {
            is_any |= self.map(number, chunks)?;
        }
        self.count_mapped();
        // Who writes waits until the guard goes.
        self.check();
        match refused {
            Some(why) => {
                self.report.reason = why;
                self.not_before = Some(Instant::now() + RETRY);
            }
            None if is_any && self.is_guarded() => self.report.reason.clear(),
            None => {}
        }
        Ok(is_any)
    }

    /// Maps copies over chunks of a mapping, in runs.
    fn map(&mut self, number: usize, built: &[usize]) -> Result<bool, Refusal> {
        if built.is_empty() {
            return Ok(false);
        }
        let span = &mut self.spans[number];
        let Some(mirror) = &mut self.mirror else {
            return Ok(false);
        };
        let (protection, chunk_bytes) = (span.range.protection, self.chunk_bytes);
        let base = mirror.source(0, protection).map_err(Refusal::Never)?;
        let maps = maps::read();
        if mirror.mapped_as.is_empty() {
            let at = mirror.any_source().unwrap_or(0);
            let found = maps.iter().find(|map| map.start <= at && map.end > at);
            mirror.mapped_as = found.map(|map| map.file.clone()).unwrap_or_default();
        }
        if maps.len() + 3 * built.len() + SPARE_MAPPINGS > sys::most_mappings() {
            let why = "the process has nearly all mappings that it may have (vm.max_map_count)";
            return Err(Refusal::Never(why.to_owned()));
        }
        let files = [self.mapped_as.as_str(), mirror.mapped_as.as_str()];
        let end = span.range.end();
        if !maps::holds(&maps, span.range.start, end, span.range.offset, &files) {
            span.is_hopeless = true;
            return Ok(false);
        }
        let done = table::with(|table| {
            let Some(range) = table.find(span.range.number) else {
                return Ok(0);
            };
            mirror.inherit_sources(true)?;
            let done = span.double_over(range, base, built, chunk_bytes);
            // A child would only hold the memory of copies that nobody uses any more.
            let _ = mirror.inherit_sources(false);
            done
        });
        match done {
            Ok(0) => Ok(false),
            Ok(_) => {
                if span.unmapped_runs().len() > MOST_RUNS {
                    span.is_hopeless = true;
                }
                Ok(true)
            }
            Err(error) => Err(Refusal::Never(format!(
                "its copy cannot be mapped: {error}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, bytes: usize, file_bytes: u64) -> Range {
        Range {
            start: 0x10_0000,
            bytes,
            offset,
            protection: libc::PROT_READ,
            is_shared: false,
            device: 1,
            inode: 2,
            file_bytes,
            original: 0,
            is_mirrored: false,
            number: 1,
        }
    }

    #[test]
    fn chunks_of_a_mapping_lie_in_it_as_a_whole() {
        let chunk = 64 << 10;
        // The whole file: its last chunk has a page and a bit.
        let span = Span::new(range(0, 3 * (64 << 10), 2 * (64 << 10) + 5000), chunk);
        assert_eq!((span.first, span.mapped.len()), (0, 3));
        assert_eq!(span.addresses((1, 3), chunk), (0x11_0000, 0x12_2000));
        assert_eq!(span.unmapped_runs(), [(0, 3)]);
        // From the middle of chunk 0 to the middle of chunk 3.
        let span = Span::new(range(32 << 10, 3 * (64 << 10), 1 << 20), chunk);
        assert_eq!((span.first, span.mapped.len()), (1, 2));
        assert_eq!(span.addresses((0, 1), chunk), (0x10_8000, 0x11_8000));
        assert_eq!(span.chunk_of(0x10_8000, chunk), 0);
        assert!(span.chunk_of(0x10_0000, chunk) > 2);
        assert_eq!(span.chunk_of(0x12_8000, chunk), 2);
        // No whole chunk at all.
        assert!(
            Span::new(range(4096, 8192, 1 << 20), chunk)
                .mapped
                .is_empty()
        );
    }
}
