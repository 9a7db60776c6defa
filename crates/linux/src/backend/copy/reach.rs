//! May these addresses be read and written? Asked before a copy, so that a bad address is an
//! outcome and not a signal.
//!
//! Mechanism: the kernel is asked to do what the first access to each page would do
//! (`MADV_POPULATE_*`): it checks mappings, permissions, guards, ends of files, protection keys of
//! the calling thread, and brings in what is missing, faster than faults would. For pages that are
//! there already it costs some 30 ns each, a tenth of their copy. So of a long range only its
//! mappings are asked for (0.2 us each), then which pages are missing (0.5 ns per page), and only
//! those are populated. A page that is in the page table of a readable mapping can be read.
//!
//! What is populated whole all the same: the target where it belongs to a file, since the first
//! store to a page that is there for reading may still fail (no space for a hole in the file).
//!
//! What remains: somebody who unmaps, protects or truncates the range *during* the copy. That ends
//! the program by a signal, as it would in a memcpy.
//!
//! Rejected: the mappings alone. Guards (`MADV_GUARD_INSTALL`, Linux 6.13) and ends of files do not
//! show in them.

use crate::proc::maps::Maps;
use crate::proc::pagemap::Pagemap;
use crate::root::Root;
use crate::sys::{self, Access, PAGE_IS_PRESENT};
use hither_core::plan::Refusal;
use std::io;
use std::ops::Range;

/// Up to here a range is populated whole: that is cheaper than the two questions (measured:
/// 16 pages 0.6 us, the questions 0.5 us).
const WHOLE_MOST: u64 = 64 << 10;
/// Tries of what was interrupted.
const RETRIES: usize = 8;

/// Checks ranges of this process.
#[derive(Debug)]
pub(super) struct Reach {
    maps: Maps,
    /// None where the kernel does not tell which pages are there (before 6.7).
    pages: Option<Pagemap>,
    page_bytes: u64,
}

impl Reach {
    /// For this process; a forked child needs its own. Says what is missing where it cannot work.
    pub(super) fn open() -> io::Result<Self> {
        let pid = std::process::id() as i32;
        let page_bytes = sys::page_bytes();
        let probe = Box::new(1u8);
        let page = std::ptr::from_ref(&*probe) as u64 / page_bytes * page_bytes;
        sys::populate(page, page_bytes, Access::Read)?;
        let pages = Pagemap::open(&Root::host(), pid).ok().filter(|map| {
            let numbers = page >> 12..(page + page_bytes) >> 12;
            map.scan(numbers, PAGE_IS_PRESENT, |_| {}).is_ok()
        });
        Ok(Self {
            maps: Maps::open(&Root::host(), pid)?,
            pages,
            page_bytes,
        })
    }

    /// From now on as on a kernel that does not tell which pages are there.
    #[cfg(test)]
    pub(super) fn forget_pages(&mut self) {
        self.pages = None;
    }

    /// After this, every byte of the range can be accessed as long as nobody changes its mappings.
    pub(super) fn ensure(&mut self, bytes: Range<u64>, access: Access) -> Result<(), Refusal> {
        let range = self.whole_pages(&bytes).ok_or(Refusal::Unmapped)?;
        if range.end - range.start <= WHOLE_MOST || self.pages.is_none() {
            return self.populate(range, access);
        }
        let mappings = self
            .maps
            .in_range(range.clone())
            .map_err(|_| Refusal::Busy)?;
        let mut next = range.start;
        for mapping in mappings {
            let permitted = match access {
                Access::Read => mapping.readable,
                Access::Write => mapping.writable,
            };
            if mapping.range.start > next || !permitted {
                return Err(Refusal::Unmapped);
            }
            let part = next..mapping.range.end.min(range.end);
            next = part.end;
            if access == Access::Write && mapping.inode != 0 {
                self.populate(part, access)?;
            } else {
                // One page tells of protection keys.
                self.populate(part.start..part.start + self.page_bytes, access)?;
                self.populate_missing(part, access)?;
            }
        }
        if next < range.end {
            return Err(Refusal::Unmapped);
        }
        Ok(())
    }

    /// The pages that hold these bytes; none where the range passes the end of all addresses.
    fn whole_pages(&self, bytes: &Range<u64>) -> Option<Range<u64>> {
        let start = bytes.start / self.page_bytes * self.page_bytes;
        let end = bytes.end.checked_next_multiple_of(self.page_bytes)?;
        Some(start..end)
    }

    fn populate_missing(&mut self, part: Range<u64>, access: Access) -> Result<(), Refusal> {
        let mut missing = Vec::new();
        let mut next = part.start;
        let scanned = self.pages.as_ref().map(|pages| {
            pages.scan(part.start >> 12..part.end >> 12, PAGE_IS_PRESENT, |there| {
                let there = there.start << 12..there.end << 12;
                if there.start > next {
                    missing.push(next..there.start);
                }
                next = there.end;
            })
        });
        match scanned {
            Some(Ok(())) => missing.push(next..part.end),
            _ => missing = vec![part],
        }
        missing
            .into_iter()
            .filter(|range| !range.is_empty())
            .try_for_each(|range| self.populate(range, access))
    }

    fn populate(&mut self, range: Range<u64>, access: Access) -> Result<(), Refusal> {
        for _ in 0..RETRIES {
            let error = match sys::populate(range.start, range.end - range.start, access) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => {}
                // Either nothing is mapped there or there is no memory for it.
                Some(libc::ENOMEM) if self.is_covered(&range) => return Err(Refusal::NoMemory),
                // Not mapped, not permitted, a device's memory, poisoned: an access would raise
                // a signal.
                _ => return Err(Refusal::Unmapped),
            }
        }
        Err(Refusal::Busy)
    }

    fn is_covered(&mut self, range: &Range<u64>) -> bool {
        let Ok(mappings) = self.maps.in_range(range.clone()) else {
            return false;
        };
        let reached = mappings.iter().fold(range.start, |next, mapping| {
            match mapping.range.start <= next {
                true => mapping.range.end,
                false => next,
            }
        });
        reached >= range.end
    }
}
