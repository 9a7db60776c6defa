//! What there is to move: which pages of a range are where, which are huge, and which are not to
//! be exchanged at all.

use super::pool::{HUGE, PAGE, Size};
use crate::proc::pagemap;
use crate::root::Root;
use crate::sys::{self, PageRegion, ScanQuery};
use crate::tracker::frames::FrameNodes;
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

    pub(super) fn pagemap(&self) -> &File {
        &self.pagemap
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
            let part = &mut bytes[..count as usize * 8];
            self.pagemap.read_exact_at(part, start / PAGE * 8).ok()?;
            for entry in part.chunks_exact(8) {
                let entry = u64::from_ne_bytes(entry.try_into().ok()?);
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
    // Asked for pages of files, the scan looks at every page's descriptor. So does locating them,
    // which tells as much where frames are known: once is enough.
    if locator.knows_frames.load(Ordering::Relaxed)
        && let Some(survey) = look(locator, range, 0)?
    {
        return Ok(survey);
    }
    Ok(look(locator, range, sys::PAGE_IS_FILE)?.unwrap_or_default())
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
