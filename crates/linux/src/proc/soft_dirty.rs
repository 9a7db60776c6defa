//! Soft-dirty bits: which pages of a process were written since its bits were last cleared.
//!
//! Writing 4 to `/proc/PID/clear_refs` write-protects every page of the process; the first write to
//! a page after that is a fault, in which the kernel sets the page's bit and lets the write happen.
//! `PAGEMAP_SCAN` tells the bits by runs since Linux 6.7, the page map page by page before it.
//!
//! The other way to see writes, `PAGE_IS_WRITTEN`, needs the range to be registered with
//! userfaultfd, which a process can do for itself alone.
//!
//! What the bits do not tell: a mapping that was made since the bits were cleared, or that grew (the
//! heap), counts as written wherever it has pages, since the kernel marks it as a whole. Reading and
//! clearing are two calls: a page that is written between them for the first time is missed.
//! Huge pages of hugetlbfs are never protected.

use super::maps;
use super::pagemap::{self, Pagemap};
use crate::error::{Error, Result};
use crate::root::Root;
use crate::sys::{self, PAGE_IS_HUGE, PAGE_IS_PRESENT, PAGE_IS_SOFT_DIRTY, PAGE_IS_ZERO};
use std::fs::OpenOptions;
use std::hint::black_box;
use std::io::{self, Write};
use std::ops::Range;

/// What clears soft-dirty bits, of all that `clear_refs` does (proc(5)).
const SOFT_DIRTY_BITS: &[u8] = b"4";
/// User addresses end here, in pages: a page below 2^47, and a scan that goes further is refused
/// whole.
const USER_END_PAGE: u64 = ((1 << 47) >> 12) - 1;
/// Page-map entries per read.
const READ_PAGES: u64 = 1 << 14;

/// Pages that are in memory and alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The pages.
    pub pages: Range<u64>,
    /// Written since the bits were cleared?
    pub is_written: bool,
    /// Mapped as huge pages?
    pub is_huge: bool,
}

/// How the bits of a process are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `PAGEMAP_SCAN`, whole runs at a time.
    Scan,
    /// Page-map entries of writable mappings.
    Entries,
}

/// Does this kernel keep soft-dirty bits? Asked of a page of this process, by writing to it: kernels
/// without `CONFIG_MEM_SOFT_DIRTY` take the 4 without a word, and never set a bit.
///
/// # Errors
/// It does not, or tells no page maps.
pub fn check(root: &Root) -> Result<()> {
    let own = std::process::id() as i32;
    let mut page = vec![0u8; 2 * sys::page_bytes() as usize];
    black_box(&mut page).fill(1);
    let number = (page.as_ptr() as u64).div_ceil(4096);
    let mut entries = [0];
    let read = Pagemap::open(root, own)
        .and_then(|map| map.read(number, &mut entries, &mut Vec::new()))
        .map_err(|error| {
            Error::io(
                root.path(&format!("proc/{own}/pagemap")),
                format!("cannot be read ({error})"),
                "use a kernel with CONFIG_PROC_PAGE_MONITOR, and mount /proc",
                error,
            )
        })?;
    black_box(&page);
    if read == 1 && pagemap::is_soft_dirty(entries[0]) {
        return Ok(());
    }
    Err(Error::new(
        root.path("proc/PID/clear_refs"),
        "this kernel keeps no soft-dirty bits, so that writes of other processes cannot be seen",
        "use a kernel with CONFIG_MEM_SOFT_DIRTY, as Debian's; the tracker damon sees accesses \
         without it",
    ))
}

/// Clears the bits of a process: each page that it writes from now on costs it a fault, once.
///
/// # Errors
/// `ENOENT`, `ESRCH`: it is gone; `EACCES`: it is not ours.
pub fn clear(root: &Root, pid: i32) -> io::Result<()> {
    let path = root.path(&format!("proc/{pid}/clear_refs"));
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(SOFT_DIRTY_BITS)
}

/// The pages of a process that are in memory, ascending. `way` changes where the kernel has not the
/// better one.
///
/// # Errors
/// The process is gone, or the kernel refuses.
pub fn read(
    root: &Root,
    pid: i32,
    map: &Pagemap,
    way: &mut Way,
    mut each: impl FnMut(Run),
) -> io::Result<()> {
    if *way == Way::Scan {
        match scan(map, &mut each) {
            // Refused before anything was told: there is no such call, or no such category.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
                *way = Way::Entries;
            }
            done => return done,
        }
    }
    let mappings = maps::read(root, pid).map_err(|error| match error.source {
        Some(source) => source,
        None => io::Error::other(error.reason),
    })?;
    let writable = mappings.iter().filter(|mapping| mapping.writable);
    read_entries(map, writable.map(|mapping| mapping.pages()), &mut each)
}

fn scan(map: &Pagemap, each: &mut impl FnMut(Run)) -> io::Result<()> {
    let reported = PAGE_IS_SOFT_DIRTY | PAGE_IS_ZERO | PAGE_IS_HUGE;
    map.scan_told(
        0..USER_END_PAGE,
        PAGE_IS_PRESENT,
        reported,
        |pages, told| {
            each(Run {
                pages,
                // The page of zeros was read, never written: its bit is that of a new mapping.
                is_written: told & PAGE_IS_SOFT_DIRTY != 0 && told & PAGE_IS_ZERO == 0,
                is_huge: told & PAGE_IS_HUGE != 0,
            });
        },
    )
}

fn read_entries(
    map: &Pagemap,
    ranges: impl Iterator<Item = Range<u64>>,
    each: &mut impl FnMut(Run),
) -> io::Result<()> {
    let (mut entries, mut bytes) = (Vec::new(), Vec::new());
    for range in ranges {
        let mut first = range.start;
        while first < range.end {
            entries.resize((range.end - first).min(READ_PAGES) as usize, 0);
            let got = map.read(first, &mut entries, &mut bytes)?;
            if got == 0 {
                break;
            }
            let kind = |entry: &u64| (pagemap::is_present(*entry), pagemap::is_soft_dirty(*entry));
            let mut page = first;
            for run in entries[..got].chunk_by(|a, b| kind(a) == kind(b)) {
                let end = page + run.len() as u64;
                let (is_present, is_written) = kind(&run[0]);
                if is_present {
                    each(Run {
                        pages: page..end,
                        is_written,
                        is_huge: false,
                    });
                }
                page = end;
            }
            first += got as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn this_kernel_keeps_them_or_says_what_would() {
        if let Err(error) = check(&Root::host()) {
            assert!(error.reason.contains("soft-dirty"), "{error}");
            assert!(error.remedy.contains("CONFIG_MEM_SOFT_DIRTY"), "{error}");
        }
        let nowhere = tempfile::tempdir().unwrap();
        let error = check(&Root::new(nowhere.path())).unwrap_err();
        assert!(error.remedy.contains("CONFIG_PROC_PAGE_MONITOR"), "{error}");
    }

    #[test]
    fn entries_are_read_where_there_is_no_scan() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        let process = folder.path().join("proc/9");
        std::fs::create_dir_all(&process).unwrap();
        let text = "1000-6000 rw-p 0 0:0 0\n6000-8000 r--p 0 0:0 0\n20000-24000 rw-s 0 0:0 0\n";
        std::fs::write(process.join("maps"), text).unwrap();
        let entry = |flags: u64| (flags << 55).to_ne_bytes();
        let file = std::fs::File::create(process.join("pagemap")).unwrap();
        // Present is bit 63, soft-dirty bit 55: 257 is both, 1 a page that was swapped out.
        let pages = [(1, 257), (2, 257), (3, 256), (4, 1), (5, 257), (6, 257)];
        for (page, flags) in pages.into_iter().chain([(0x21, 257)]) {
            file.write_all_at(&entry(flags), page * 8).unwrap();
        }
        let map = Pagemap::open(&root, 9).unwrap();
        let (mut way, mut found) = (Way::Scan, Vec::new());
        read(&root, 9, &map, &mut way, |run| {
            found.push((run.pages, run.is_written));
        })
        .unwrap();
        assert_eq!(way, Way::Entries);
        let expected = [
            (1..3, true),
            (3..4, false),
            (5..6, true),
            (0x21..0x22, true),
        ];
        assert_eq!(found, expected);
        // What is not there is not written.
        let gone = read(&root, 10, &map, &mut way, |_| {}).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        assert_eq!(
            clear(&root, 9).unwrap_err().kind(),
            io::ErrorKind::NotFound,
            "nothing is made where the kernel has no such file"
        );
    }

    #[test]
    fn both_ways_find_the_same_pages_of_this_process() {
        let own = std::process::id() as i32;
        let memory = vec![1u8; 64 << 12];
        let first = (memory.as_ptr() as u64).div_ceil(4096);
        let within = |mut way: Way| {
            let map = Pagemap::open(&Root::host(), own).unwrap();
            let mut found = Vec::new();
            read(&Root::host(), own, &map, &mut way, |run| {
                let pages = run.pages.start.max(first)..run.pages.end.min(first + 63);
                found.extend(pages.map(|page| (page, run.is_written)));
            })
            .unwrap();
            found
        };
        let kept = check(&Root::host()).is_ok();
        let expected: Vec<(u64, bool)> = (first..first + 63).map(|page| (page, kept)).collect();
        assert_eq!(within(Way::Entries), expected);
        assert_eq!(within(Way::Scan), expected);
        drop(black_box(memory));
    }
}
