//! What there is to move: which pages of a range are where, which are huge, and which are not to
//! be exchanged at all.

use super::pool::{HUGE, PAGE, Size};
use crate::proc::frames::FrameNodes;
use crate::proc::pagemap;
use crate::root::Root;
use crate::sys::{self, PageRegion, ScanQuery};
use hither_core::ids::NodeId;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs of pages that one call of the scan tells.
const SCAN_RUNS: usize = 256;

/// Entries of the page map that are read at once.
const FRAMES_READ: usize = 512;

/// Stands for the node of a page of a file or of shared memory.
pub(super) const FILE: i32 = i32::MIN;

/// Pages at addresses that follow each other, of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) range: Range<u64>,
    pub(super) size: Size,
    /// The node of each page, or of each huge page; [`FILE`] for those that are not anonymous.
    pub(super) nodes: Vec<i32>,
}

impl Part {
    /// The node of the page at an address.
    pub(super) fn node(&self, address: u64) -> i32 {
        self.nodes[((address - self.range.start) / self.size.bytes()) as usize]
    }

    /// Where pages of one node end that begin at `start`.
    pub(super) fn same_node(&self, start: u64) -> u64 {
        let step = self.size.bytes();
        let from = ((start - self.range.start) / step) as usize;
        let same = self.nodes[from..]
            .iter()
            .take_while(|&&node| node == self.nodes[from])
            .count();
        start + same as u64 * step
    }
}

/// What a range holds.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Resident anonymous pages, ascending.
    pub(super) parts: Vec<Part>,
    /// Pages that others must move: of files, and part of a huge page that the range does not
    /// cover.
    pub(super) others: Vec<Range<u64>>,
    /// Pages of the range that are accounted for above.
    pub(super) found: u64,
}

/// Tells the nodes of pages: by their frames where this user may know them, as the system call that
/// tells nodes takes 200 ns a page, a fifth of the whole move.
pub(super) struct Locator {
    pagemap: File,
    frames: FrameNodes,
    /// Whether this user may know frames; believed until shown otherwise.
    knows_frames: AtomicBool,
}

impl Locator {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            pagemap: File::open("/proc/self/pagemap")?,
            frames: FrameNodes::read(&Root::host()),
            knows_frames: AtomicBool::new(true),
        })
    }

    /// Is this one huge page, mapped as such?
    pub(super) fn is_huge(&self, slot: &Range<u64>) -> bool {
        let query = ScanQuery {
            start: slot.start,
            end: slot.end,
            required: sys::PAGE_IS_HUGE,
            reported: sys::PAGE_IS_HUGE,
            most_pages: 0,
        };
        let mut found = [PageRegion::default()];
        let filled = sys::pagemap_scan(&self.pagemap, query, &mut found);
        filled.is_ok_and(|(count, _)| count == 1) && (found[0].start..found[0].end) == *slot
    }

    /// Entries of the page map, of as many pages as there is room for at most.
    fn entries<'b>(
        &self,
        range: &Range<u64>,
        bytes: &'b mut [u8; FRAMES_READ * 8],
    ) -> Option<impl Iterator<Item = u64> + use<'b>> {
        let count = ((range.end - range.start) / PAGE) as usize;
        let part = &mut bytes[..count * 8];
        let offset = range.start / PAGE * 8;
        self.pagemap.read_exact_at(part, offset).ok()?;
        let (entries, _) = part.as_chunks();
        Some(entries.iter().map(|entry| u64::from_ne_bytes(*entry)))
    }

    /// The node of an anonymous page that nobody else maps, where this user may know it. `known`:
    /// frames of the page before, most of which are on one node.
    fn node_of_own(&self, entry: u64, known: &mut (Range<u64>, NodeId)) -> Option<i32> {
        let frame = pagemap::frame(entry)?;
        if pagemap::is_file(entry) || !pagemap::is_exclusive(entry) {
            return None;
        }
        if !known.0.contains(&frame) {
            *known = self.frames.around(frame)?;
        }
        Some(known.1.0 as i32)
    }

    /// The node of each page, or of each huge page, by `step`; another negative number than
    /// [`FILE`] where there is none. Pages of files are only told from others where frames are
    /// known: returns whether they were.
    pub(super) fn nodes(
        &self,
        range: &Range<u64>,
        step: u64,
        nodes: &mut Vec<i32>,
    ) -> io::Result<bool> {
        nodes.clear();
        if self.by_frames(range, step, nodes).is_some() {
            return Ok(true);
        }
        self.knows_frames.store(false, Ordering::Relaxed);
        let addresses: Vec<u64> = (range.start..range.end).step_by(step as usize).collect();
        nodes.clear();
        nodes.resize(addresses.len(), i32::MIN);
        sys::query_pages(0, &addresses, nodes)?;
        Ok(false)
    }

    fn by_frames(&self, range: &Range<u64>, step: u64, nodes: &mut Vec<i32>) -> Option<()> {
        let mut bytes = [0u8; FRAMES_READ * 8];
        // Of a huge page one entry is enough.
        let pages = if step == PAGE { FRAMES_READ as u64 } else { 1 };
        let mut start = range.start;
        while start < range.end {
            let count = pages.min((range.end - start).div_ceil(step));
            for entry in self.entries(&(start..start + count * PAGE), &mut bytes)? {
                let node = match pagemap::frame(entry) {
                    Some(_) if pagemap::is_file(entry) => FILE,
                    Some(frame) => self.frames.node(frame)?.0 as i32,
                    None if pagemap::is_present(entry) => return None,
                    None => -libc::ENOENT,
                };
                nodes.push(node);
            }
            start += count * step;
        }
        Some(())
    }
}

/// Looks at `range`, which is page-aligned.
pub(super) fn survey(locator: &Locator, range: &Range<u64>) -> io::Result<Survey> {
    if locator.knows_frames.load(Ordering::Relaxed) {
        if let Some(survey) = by_entries(locator, range) {
            return Ok(survey);
        }
        // Asked for pages of files, the scan looks at every page's descriptor. So does locating
        // them, which tells as much where frames are known: once is enough.
        if let Some(survey) = look(locator, range, 0)? {
            return Ok(survey);
        }
    }
    Ok(look(locator, range, sys::PAGE_IS_FILE)?.unwrap_or_default())
}

/// By the entries of the page map alone, which takes a third less time than with the scan. They
/// tell all of pages that nobody else maps, but not which are huge: where the frames are such that
/// they may be, the scan is asked. `None`: there are other pages (of files, shared, of zeros), or
/// there may be part of a huge page, or frames are not told.
fn by_entries(locator: &Locator, range: &Range<u64>) -> Option<Survey> {
    let mut survey = Survey::default();
    let mut bytes = [0u8; FRAMES_READ * 8];
    let mut known = (0..0, NodeId(0));
    let mut start = range.start;
    while start < range.end {
        let block = start..(start / HUGE * HUGE + HUGE).min(range.end);
        start = block.end;
        let is_whole = block.end - block.start == HUGE;
        if is_whole {
            let first = block.start..block.start + PAGE;
            let entry = locator.entries(&first, &mut bytes)?.next()?;
            if may_be_huge(entry, block.start) && locator.is_huge(&block) {
                let node = locator.node_of_own(entry, &mut known)?;
                survey.add_page(block, Size::Huge, node);
                continue;
            }
        }
        let entries = locator.entries(&block, &mut bytes)?;
        for (address, entry) in block.step_by(PAGE as usize).zip(entries) {
            if !pagemap::is_present(entry) {
                continue;
            }
            if !is_whole && may_be_huge(entry, address) {
                return None;
            }
            let node = locator.node_of_own(entry, &mut known)?;
            survey.add_page(address..address + PAGE, Size::Small, node);
        }
    }
    Some(survey)
}

/// Has the page at this address the frame that it has in a huge page?
fn may_be_huge(entry: u64, address: u64) -> bool {
    let place = HUGE / PAGE - 1;
    pagemap::frame(entry).is_some_and(|frame| frame & place == (address / PAGE) & place)
}

/// `file`: the category that tells pages of files, where the scan shall. `None`: it should have.
fn look(locator: &Locator, range: &Range<u64>, file: u64) -> io::Result<Option<Survey>> {
    let mut survey = Survey::default();
    let mut runs = [PageRegion::default(); SCAN_RUNS];
    let mut start = range.start;
    while start < range.end {
        let query = ScanQuery {
            start,
            end: range.end,
            required: sys::PAGE_IS_PRESENT,
            reported: sys::PAGE_IS_PRESENT | sys::PAGE_IS_HUGE | sys::PAGE_IS_ZERO | file,
            most_pages: 0,
        };
        let (count, end) = sys::pagemap_scan(&locator.pagemap, query, &mut runs)?;
        for run in &runs[..count] {
            survey.add(run);
        }
        if end <= start {
            break;
        }
        start = end;
    }
    for part in &mut survey.parts {
        let by_frames = locator.nodes(&part.range, part.size.bytes(), &mut part.nodes)?;
        if !by_frames && file == 0 {
            return Ok(None);
        }
    }
    Ok(Some(survey))
}

impl Survey {
    fn add(&mut self, run: &PageRegion) {
        // The page of zeros that all share: nothing of the program's is in memory.
        if run.categories & sys::PAGE_IS_ZERO != 0 {
            return;
        }
        let range = run.start..run.end;
        self.found += (run.end - run.start) / PAGE;
        if run.categories & sys::PAGE_IS_FILE != 0 {
            self.others.push(range);
        } else if run.categories & sys::PAGE_IS_HUGE != 0 {
            let whole = range.start.next_multiple_of(HUGE)..range.end / HUGE * HUGE;
            if whole.start < whole.end {
                if range.start < whole.start {
                    self.others.push(range.start..whole.start);
                }
                if whole.end < range.end {
                    self.others.push(whole.end..range.end);
                }
                self.part(whole, Size::Huge);
            } else {
                self.others.push(range);
            }
        } else {
            self.part(range, Size::Small);
        }
    }

    /// The next page, on a node.
    fn add_page(&mut self, range: Range<u64>, size: Size, node: i32) {
        self.found += (range.end - range.start) / PAGE;
        self.part(range, size);
        if let Some(part) = self.parts.last_mut() {
            part.nodes.push(node);
        }
    }

    fn part(&mut self, range: Range<u64>, size: Size) {
        match self.parts.last_mut() {
            Some(last) if last.size == size && last.range.end == range.start => {
                last.range.end = range.end;
            }
            _ => self.parts.push(Part {
                range,
                size,
                nodes: Vec::new(),
            }),
        }
    }
}

/// Addresses where threads keep what the kernel touches on its own: thread descriptors, with
/// thread-local storage and the restartable-sequence area beside them, at the upper end of stacks.
pub(super) fn thread_descriptors() -> io::Result<Vec<u64>> {
    let mut addresses = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        let thread = entry?.file_name().to_string_lossy().parse();
        addresses.extend(thread.ok().and_then(sys::thread_descriptor_address));
    }
    addresses.sort_unstable();
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, end: u64, categories: u64) -> PageRegion {
        PageRegion {
            start,
            end,
            categories,
        }
    }

    #[test]
    fn huge_pages_are_taken_whole_or_left_to_others() {
        let mut survey = Survey::default();
        let huge = sys::PAGE_IS_PRESENT | sys::PAGE_IS_HUGE;
        // A huge page of which the range has the upper half, one whole, the lower half of another.
        survey.add(&run(HUGE / 2, 2 * HUGE + HUGE / 2, huge));
        assert_eq!(
            survey.others,
            [HUGE / 2..HUGE, 2 * HUGE..2 * HUGE + HUGE / 2]
        );
        assert_eq!(survey.parts.len(), 1);
        assert_eq!(survey.parts[0].range, HUGE..2 * HUGE);
        survey.add(&run(3 * HUGE + PAGE, 4 * HUGE, huge));
        assert_eq!(survey.others.len(), 3, "no huge page whole");
        survey.add(&run(5 * HUGE, 5 * HUGE + PAGE, sys::PAGE_IS_PRESENT));
        survey.add(&run(
            5 * HUGE + PAGE,
            5 * HUGE + 3 * PAGE,
            sys::PAGE_IS_PRESENT,
        ));
        assert_eq!(
            survey.parts[1].range,
            5 * HUGE..5 * HUGE + 3 * PAGE,
            "joined"
        );
        survey.add(&run(6 * HUGE, 6 * HUGE + PAGE, sys::PAGE_IS_FILE));
        assert_eq!(survey.others.len(), 4);
        assert_eq!(survey.found, 1024 + 511 + 3 + 1);
    }

    #[test]
    fn entries_tell_what_the_scan_tells() {
        let locator = Locator::new().unwrap();
        for huge in [false, true] {
            let area = sys::Area::new(2 * HUGE, huge).unwrap();
            let range = area.range();
            sys::fill(&range).unwrap();
            if !huge {
                for hole in [3..5, 511..514, 1023..1024] {
                    sys::discard(&(range.start + hole.start * PAGE..range.start + hole.end * PAGE));
                }
            }
            let Some(told) = by_entries(&locator, &range) else {
                let frames = locator.nodes(&range, PAGE, &mut Vec::new());
                assert!(!frames.unwrap(), "frames are told, and every page is plain");
                return;
            };
            let scanned = look(&locator, &range, sys::PAGE_IS_FILE);
            let scanned = scanned.unwrap().unwrap();
            assert_eq!((told.parts, told.found), (scanned.parts, scanned.found));
            assert_eq!((told.others, scanned.others), (vec![], vec![]));
            let first = range.start..range.start + HUGE;
            if locator.is_huge(&first) {
                let part = range.start + PAGE..range.start + HUGE;
                assert!(by_entries(&locator, &part).is_none(), "part of a huge page");
            }
        }
        // Read only: every page is the one of zeros.
        let area = sys::Area::new(HUGE, false).unwrap();
        // SAFETY: a page of the area.
        unsafe { std::ptr::read_volatile(area.range().start as *const u8) };
        assert!(by_entries(&locator, &area.range()).is_none());
    }

    #[test]
    fn a_part_knows_its_nodes() {
        let part = Part {
            range: PAGE..5 * PAGE,
            size: Size::Small,
            nodes: vec![1, 1, 0, 1],
        };
        assert_eq!(part.node(3 * PAGE), 0);
        assert_eq!(part.same_node(PAGE), 3 * PAGE);
        assert_eq!(part.same_node(4 * PAGE), 5 * PAGE);
    }

    #[test]
    fn every_thread_has_a_descriptor() {
        let here = thread_descriptors().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let local = 0u8;
            let own = std::ptr::from_ref(&local) as u64;
            // The nearest descriptor above what a thread has on its stack is its own.
            let above = thread_descriptors()
                .unwrap()
                .into_iter()
                .find(|&address| address > own);
            assert_eq!(above, sys::thread_descriptor_address(sys::thread_id()));
            let _ = receiver.recv();
        });
        assert!(!here.is_empty());
        drop(sender);
        thread.join().unwrap();
    }
}
