//! The memory that is moved, and the stores to it.
//!
//! Every word of a page belongs to a *lane*: its index modulo [`LANES`]. A thread that stores has
//! a lane of its own; lanes without a thread keep their first value for ever.

use crate::common::{self, Random, count_of, value};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub const PAGE: u64 = 4096;
pub const HUGE: u64 = 2 << 20;
/// Lanes of a page; the last never has a thread.
pub const LANES: u64 = 16;
const WORDS_PER_PAGE: u64 = PAGE / 8;
/// Makes a huge page of small ones (Linux 6.1).
pub const MADV_COLLAPSE: libc::c_int = 25;

/// Private anonymous memory, aligned to 2 MiB, that children inherit.
pub struct Region {
    mapped: Range<u64>,
    range: Range<u64>,
}

impl Region {
    /// Untouched memory for small or huge pages.
    pub fn new(bytes: u64, huge: bool) -> Self {
        let whole = bytes.next_multiple_of(HUGE);
        let start = map(None, whole + HUGE);
        let first = start.next_multiple_of(HUGE);
        let region = Self {
            mapped: start..start + whole + HUGE,
            range: first..first + bytes,
        };
        let size = if huge {
            libc::MADV_HUGEPAGE
        } else {
            libc::MADV_NOHUGEPAGE
        };
        // A kernel without huge pages refuses; all pages are small then anyway.
        let _ = advise(&region.mapped, size);
        region
    }

    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    pub fn word_count(&self) -> u64 {
        (self.range.end - self.range.start) / 8
    }

    pub fn word(&self, index: u64) -> &'static AtomicU64 {
        assert!(index < self.word_count());
        word_at(self.range.start + index * 8)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        unmap(&self.mapped);
    }
}

/// A word of mapped memory.
pub fn word_at(address: u64) -> &'static AtomicU64 {
    // SAFETY: callers name aligned words of mappings that they keep as long as they use the word;
    // any bits are valid.
    unsafe { &*(address as *const AtomicU64) }
}

/// A fresh private mapping, in place of whatever was `at` an address, or anywhere.
pub fn map(at: Option<u64>, bytes: u64) -> u64 {
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: a fresh mapping; an address is named only where the caller owns what is there.
    let start = unsafe {
        libc::mmap(
            at.unwrap_or(0) as *mut libc::c_void,
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        common::fail(&format!("mmap: {}", std::io::Error::last_os_error()));
    }
    start as u64
}

/// Maps fresh memory at addresses of which somebody else may have taken some; `false`: somebody has.
pub fn map_if_free(range: &Range<u64>) -> bool {
    let bytes = (range.end - range.start) as usize;
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping, in place of nothing.
    let start = unsafe { libc::mmap(range.start as *mut _, bytes, access, flags, -1, 0) };
    start as u64 == range.start
}

pub fn unmap(range: &Range<u64>) {
    // SAFETY: a mapping of the caller that nobody refers to any more.
    unsafe { libc::munmap(range.start as *mut _, (range.end - range.start) as usize) };
}

pub fn advise(range: &Range<u64>, advice: libc::c_int) -> Result<(), i32> {
    // SAFETY: a mapping of the caller, who knows what the advice does to its content.
    let result = unsafe {
        libc::madvise(
            range.start as *mut _,
            (range.end - range.start) as usize,
            advice,
        )
    };
    if result == 0 { Ok(()) } else { Err(errno()) }
}

/// The error number of the last system call.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Memory with stores whose fate is known.
pub struct Field {
    pub region: Region,
    /// How often each word was stored to: written by the thread of its lane after the store, read
    /// by threads that fork.
    shadow: Vec<AtomicU32>,
    pub lanes: u64,
}

impl Field {
    /// Memory whose first `lanes` lanes have threads.
    pub fn new(bytes: u64, huge: bool, lanes: usize) -> Self {
        let lanes = (lanes as u64).min(LANES - 1);
        let region = Region::new(bytes, huge);
        let count = region.word_count();
        for index in 0..count {
            let word = region.word(index);
            word.store(value(address(word), 0), Ordering::Relaxed);
        }
        Self {
            region,
            shadow: (0..count).map(|_| AtomicU32::new(0)).collect(),
            lanes,
        }
    }

    pub fn pages(&self) -> u64 {
        self.region.word_count() / WORDS_PER_PAGE
    }

    /// A random word of a lane in a page.
    pub fn pick(&self, page: u64, lane: u64, random: &mut Random) -> u64 {
        page * WORDS_PER_PAGE + random.below(WORDS_PER_PAGE / LANES) * LANES + lane
    }

    /// Looks whether a word holds what its lane's thread stored last, and stores the next value.
    /// Only for that thread.
    pub fn store(&self, index: u64) {
        let word = self.region.word(index);
        let shadow = &self.shadow[index as usize];
        let count = shadow.load(Ordering::Relaxed);
        let (expected, found) = (value(address(word), count), word.load(Ordering::Relaxed));
        if found != expected {
            common::wrong(address(word), expected, found);
        }
        word.store(value(address(word), count + 1), Ordering::Release);
        shadow.store(count + 1, Ordering::Release);
    }

    /// Writes to every page without changing a word: to one that has no thread, as adding nothing
    /// to another would be compiled to no store.
    pub fn touch(&self) {
        for page in 0..self.pages() {
            let word = self.region.word(page * WORDS_PER_PAGE + LANES - 1);
            word.swap(value(address(word), 0), Ordering::Relaxed);
        }
    }

    /// Looks at every word. Only while nobody stores.
    pub fn verify(&self) {
        for index in 0..self.region.word_count() {
            let word = self.region.word(index);
            let count = self.shadow[index as usize].load(Ordering::Acquire);
            let (expected, found) = (value(address(word), count), word.load(Ordering::Relaxed));
            if found != expected {
                common::wrong(address(word), expected, found);
            }
        }
    }

    /// The counts of all words at this moment, at most.
    pub fn counts(&self, into: &mut Vec<u32>) {
        into.clear();
        into.extend(
            self.shadow
                .iter()
                .map(|count| count.load(Ordering::Acquire)),
        );
    }

    /// Looks at every word of a copy of this memory that was made after `least` was taken and that
    /// nobody stores to: the first wrong word as its address, what it should be at least, and what
    /// it is. Neither allocates nor locks, as children must not.
    pub fn check_copy(&self, least: &[u32]) -> Result<(), [u64; 3]> {
        for index in 0..self.region.word_count() {
            let word = self.region.word(index);
            let (at, found) = (address(word), word.load(Ordering::Relaxed));
            let due = least[index as usize];
            let good = match count_of(at, found) {
                Some(count) if index % LANES < self.lanes => count >= due,
                Some(count) => count == 0,
                None => false,
            };
            if !good {
                return Err([at, value(at, due), found]);
            }
        }
        Ok(())
    }
}

/// What every word of a page among identical ones holds, by its place in the page.
fn same(index: u64) -> u64 {
    common::mix(index % WORDS_PER_PAGE)
}

/// Pages that are all the same.
pub fn identical(bytes: u64, huge: bool) -> Region {
    let region = Region::new(bytes, huge);
    for index in 0..region.word_count() {
        region.word(index).store(same(index), Ordering::Relaxed);
    }
    region
}

/// Stores to a page among identical ones, looks at it, and makes it the same again. Returns the
/// pages that were stored to.
pub fn differ(region: &Region, random: &mut Random) -> u64 {
    let index = random.below(region.word_count());
    let word = region.word(index);
    for value in [!same(index), same(index)] {
        word.store(value, Ordering::Relaxed);
        let found = word.load(Ordering::Relaxed);
        if found != value {
            common::wrong(address(word), value, found);
        }
    }
    1
}

pub fn assert_identical(region: &Region) {
    for index in 0..region.word_count() {
        let word = region.word(index);
        let found = word.load(Ordering::Relaxed);
        if found != same(index) {
            common::wrong(address(word), same(index), found);
        }
    }
}

/// Where a word is.
pub fn address(word: &AtomicU64) -> u64 {
    std::ptr::from_ref(word) as u64
}
