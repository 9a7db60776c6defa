//! `/proc/PID/pagemap`: which frame each virtual page is in, read in bulk, and `PAGEMAP_SCAN`.

use crate::root::Root;
use crate::sys::{self, PageRegion, ScanQuery};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Present in memory (bit 63).
const PRESENT: u64 = 1 << 63;
/// Mapped by one process alone (bit 56, Linux 4.2).
const EXCLUSIVE: u64 = 1 << 56;
/// Not anonymous (bit 61, Linux 3.5).
const FILE: u64 = 1 << 61;
/// Entries per read: 128 KiB.
const READ_PAGES: u64 = 1 << 14;
/// Written since soft-dirty bits were cleared, or of a mapping made since (bit 55, Linux 3.11).
const SOFT_DIRTY: u64 = 1 << 55;
/// Frame number (bits 0 to 54); zero for users without CAP_SYS_ADMIN.
const FRAME: u64 = (1 << 55) - 1;

/// The frame number of an entry, where the page is present and the kernel tells.
#[must_use]
pub fn frame(entry: u64) -> Option<u64> {
    (entry & PRESENT != 0 && entry & FRAME != 0).then_some(entry & FRAME)
}

/// Is the page of this entry in memory?
#[must_use]
pub fn is_present(entry: u64) -> bool {
    entry & PRESENT != 0
}

/// Does only one process map the page of this entry (bit 56)?
#[must_use]
pub fn is_exclusive(entry: u64) -> bool {
    entry & EXCLUSIVE != 0
}

/// Is the page of this entry of a file, or of shared memory (bit 61)?
#[must_use]
pub fn is_file(entry: u64) -> bool {
    entry & FILE != 0
}

/// Is the soft-dirty bit of this entry set (bit 55)? Never where the kernel keeps none.
#[must_use]
pub fn is_soft_dirty(entry: u64) -> bool {
    entry & SOFT_DIRTY != 0
}

/// An open pagemap. It belongs to the address space that the process had when it was opened:
/// after exec it reads nothing, and is opened again.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
}

impl Pagemap {
    /// Opens it. `ESRCH`/`ENOENT`: the process is gone; `EACCES`/`EPERM`: it is not ours.
    pub fn open(root: &Root, pid: i32) -> io::Result<Self> {
        Ok(Self {
            file: File::open(root.path(&format!("proc/{pid}/pagemap")))?,
        })
    }

    /// Reads the entries of consecutive pages from `first_page` on; returns how many there are
    /// (0: the address space is gone).
    pub fn read(
        &self,
        first_page: u64,
        entries: &mut [u64],
        bytes: &mut Vec<u8>,
    ) -> io::Result<usize> {
        bytes.resize(entries.len() * 8, 0);
        let offset = first_page
            .checked_mul(8)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let got = self.file.read_at(bytes, offset)? / 8;
        for (entry, chunk) in entries.iter_mut().zip(bytes.chunks_exact(8)).take(got) {
            *entry = u64::from_ne_bytes(chunk.try_into().unwrap_or_default());
        }
        Ok(got)
    }

    /// The pages of a range that are in memory, as ascending runs: by `PAGEMAP_SCAN`, or page by
    /// page where the kernel has it not.
    pub fn present(&self, pages: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut runs = Vec::new();
        let scanned = self.scan(pages.clone(), sys::PAGE_IS_PRESENT, |run| {
            append(&mut runs, run);
        });
        match scanned {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                self.read_those(pages, is_present)
            }
            done => done.map(|()| runs),
        }
    }

    /// Those of them that are anonymous: of private mappings of files what the program has written.
    ///
    /// # Errors
    /// As [`Self::present`].
    pub fn anonymous(&self, pages: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut runs = Vec::new();
        let reported = sys::PAGE_IS_PRESENT | sys::PAGE_IS_FILE;
        let scanned = self.scan_told(pages.clone(), sys::PAGE_IS_PRESENT, reported, |run, is| {
            if is & sys::PAGE_IS_FILE == 0 {
                append(&mut runs, run);
            }
        });
        match scanned {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                self.read_those(pages, |entry| is_present(entry) && !is_file(entry))
            }
            done => done.map(|()| runs),
        }
    }

    /// Those of them that belong to huge pages; none where the kernel has no `PAGEMAP_SCAN`.
    ///
    /// # Errors
    /// As [`Self::present`].
    pub fn huge(&self, pages: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut runs = Vec::new();
        let wanted = sys::PAGE_IS_PRESENT | sys::PAGE_IS_HUGE;
        match self.scan(pages, wanted, |run| append(&mut runs, run)) {
            Err(error) if error.raw_os_error() != Some(libc::ENOTTY) => Err(error),
            _ => Ok(runs),
        }
    }

    /// Pages whose entries are such.
    fn read_those(
        &self,
        pages: Range<u64>,
        are: impl Fn(u64) -> bool,
    ) -> io::Result<Vec<Range<u64>>> {
        let mut runs = Vec::new();
        let mut entries = vec![0; READ_PAGES.min(pages.end.saturating_sub(pages.start)) as usize];
        let mut bytes = Vec::new();
        let mut first = pages.start;
        while first < pages.end {
            let most = entries.len().min((pages.end - first) as usize);
            let got = self.read(first, &mut entries[..most], &mut bytes)?;
            if got == 0 {
                break;
            }
            for (page, &entry) in (first..).zip(&entries[..got]) {
                if are(entry) {
                    append(&mut runs, page..page + 1);
                }
            }
            first += got as u64;
        }
        Ok(runs)
    }

    /// Ranges of pages between two pages (exclusive end) that have all of the `required`
    /// categories (`sys::PAGE_IS_*`), as `PAGEMAP_SCAN` finds them. `ENOTTY`: kernel before 6.7.
    pub fn scan(
        &self,
        pages: Range<u64>,
        required: u64,
        mut each: impl FnMut(Range<u64>),
    ) -> io::Result<()> {
        self.scan_told(pages, required, required, |run, _| each(run))
    }

    /// The first `most` pages of them: the walk ends there.
    pub fn scan_first(
        &self,
        pages: Range<u64>,
        required: u64,
        most: u64,
        mut each: impl FnMut(Range<u64>),
    ) -> io::Result<()> {
        self.walk(pages, (required, required), Some(most), |run, _| each(run))
    }

    /// The same with which of the `reported` categories each run has: one ends where they change.
    pub fn scan_told(
        &self,
        pages: Range<u64>,
        required: u64,
        reported: u64,
        each: impl FnMut(Range<u64>, u64),
    ) -> io::Result<()> {
        self.walk(pages, (required, reported), None, each)
    }

    fn walk(
        &self,
        pages: Range<u64>,
        (required, reported): (u64, u64),
        most: Option<u64>,
        mut each: impl FnMut(Range<u64>, u64),
    ) -> io::Result<()> {
        let mut regions = [PageRegion::default(); 64];
        let mut left = most;
        let mut start = pages.start << 12;
        let end = pages.end << 12;
        while start < end && left != Some(0) {
            let query = ScanQuery {
                start,
                end,
                required,
                reported,
                most_pages: left.unwrap_or(0),
            };
            let (filled, walked) = sys::pagemap_scan(&self.file, query, &mut regions)?;
            for region in &regions[..filled] {
                let run = region.start >> 12..region.end >> 12;
                left = left.map(|left| left.saturating_sub(run.end - run.start));
                each(run, region.categories);
            }
            // A walk that does not advance would never end.
            if walked <= start {
                break;
            }
            start = walked;
        }
        Ok(())
    }
}

/// Adds a run behind others, as one with the last where they touch.
fn append(runs: &mut Vec<Range<u64>>, run: Range<u64>) {
    match runs.last_mut() {
        Some(last) if last.end == run.start => last.end = run.end,
        _ => runs.push(run),
    }
}

/// Are frame numbers told to this user? They need CAP_SYS_ADMIN in the initial user name space.
pub fn frames_are_told(root: &Root) -> io::Result<bool> {
    let probe = Box::new(1u8);
    let page = std::ptr::from_ref(&*probe) as u64 >> 12;
    let mut entries = [0u64];
    let map = Pagemap::open(root, std::process::id() as i32)?;
    let got = map.read(page, &mut entries, &mut Vec::new())?;
    Ok(got == 1 && frame(entries[0]).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{PAGE_IS_PRESENT, effective_uid};

    fn touched(pages: usize) -> (Vec<u8>, u64) {
        let mut memory = vec![0u8; (pages + 1) * 4096];
        let first = (memory.as_ptr() as u64).div_ceil(4096);
        let skip = (first * 4096 - memory.as_ptr() as u64) as usize;
        for page in 0..pages {
            memory[skip + page * 4096] = 1;
        }
        (memory, first)
    }

    #[test]
    fn touched_pages_are_present() {
        let (_memory, first) = touched(64);
        let map = Pagemap::open(&Root::host(), std::process::id() as i32).unwrap();
        let mut entries = vec![0; 64];
        assert_eq!(map.read(first, &mut entries, &mut Vec::new()).unwrap(), 64);
        assert!(entries.iter().all(|&entry| is_present(entry)));
        let told = frames_are_told(&Root::host()).unwrap();
        assert_eq!(entries.iter().all(|&entry| frame(entry).is_some()), told);
        if effective_uid() != 0 {
            assert!(!told);
        }
    }

    #[test]
    fn a_scan_finds_the_same_pages() {
        let (_memory, first) = touched(64);
        let map = Pagemap::open(&Root::host(), std::process::id() as i32).unwrap();
        let mut found = 0;
        match map.scan(first..first + 64, PAGE_IS_PRESENT, |range| {
            found += range.end - range.start
        }) {
            Ok(()) => assert_eq!(found, 64),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY), "{error}"),
        }
    }

    #[test]
    fn a_process_that_is_gone_is_an_io_error() {
        let error = Pagemap::open(&Root::host(), i32::MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn present_pages_are_runs() {
        let (_memory, first) = touched(64);
        let map = Pagemap::open(&Root::host(), std::process::id() as i32).unwrap();
        for pages in [first..first + 64, first + 3..first + 60, 1..2, 1..1] {
            let runs = map.present(pages.clone()).unwrap();
            assert_eq!(
                runs,
                map.read_those(pages.clone(), is_present).unwrap(),
                "both ways"
            );
            let found: Vec<u64> = runs.iter().cloned().flatten().collect();
            // Page 1 is never mapped.
            let expected: Vec<u64> = pages.filter(|&page| page >= first).collect();
            assert_eq!(found, expected);
            assert!(runs.len() <= 1, "{runs:?}");
        }
    }

    #[test]
    fn runs_that_touch_are_one() {
        let mut runs = Vec::new();
        for run in [1..3, 3..4, 6..7, 8..9, 9..12] {
            append(&mut runs, run);
        }
        assert_eq!(runs, [1..4, 6..7, 8..12]);
    }
}
