//! The copy engine's walk through a program's page tables, as an I/O memory unit with shared
//! virtual memory walks them.
//!
//! A walk happens within a callback of a vCPU that runs in the address space. Whoever unmaps a
//! page waits until all CPUs of the address space have dropped their translations, and this CPU
//! answers after the callback: what a walk finds stays the program's until the callback ends.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// What is wanted of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// To read it.
    Read,
    /// To write to it.
    Write,
}

/// Why a page cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is not present, not the program's, or cannot be written.
    Absent,
    /// It may be executed.
    Executable,
}

/// Where an address is: the physical address, and how many bytes from there on are in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Physical address.
    pub paddr: u64,
    /// Bytes up to the page's end.
    pub bytes: u64,
}

/// Looks an address up, and marks its page as accessed and, to be written to, as dirty. `word`
/// gives the word of a page table at a physical address.
pub fn walk<'a>(
    word: impl Fn(u64) -> Option<&'a AtomicU64>,
    root: u64,
    vaddr: u64,
    want: Want,
) -> Result<Found, Refusal> {
    if vaddr >> 47 != 0 {
        return Err(Refusal::Absent); // the kernel's
    }
    let mut table = root & FRAME;
    let mut forbids = 0;
    let mut allows = WRITABLE | USER;
    for shift in [39, 30, 21, 12] {
        let place = word(table + (vaddr >> shift & 0x1ff) * 8).ok_or(Refusal::Absent)?;
        let entry = place.load(Relaxed);
        if entry & PRESENT == 0 {
            return Err(Refusal::Absent);
        }
        forbids |= entry & NO_EXECUTE;
        allows &= entry;
        let is_leaf = shift == 12 || shift < 39 && entry & LARGE != 0;
        if !is_leaf {
            table = entry & FRAME;
            continue;
        }
        if allows & USER == 0 || want == Want::Write && allows & WRITABLE == 0 {
            return Err(Refusal::Absent);
        }
        if want == Want::Write && forbids == 0 {
            return Err(Refusal::Executable);
        }
        let marks = match want {
            Want::Read => ACCESSED,
            Want::Write => ACCESSED | DIRTY,
        };
        // Others mark it meanwhile, or change it: between a CPU's walk and its access they may, too.
        let marked = place.fetch_update(SeqCst, Relaxed, |now| {
            let same = now & !(ACCESSED | DIRTY) == entry & !(ACCESSED | DIRTY);
            same.then_some(now | marks)
        });
        if marked.is_err() {
            return Err(Refusal::Absent);
        }
        let page = 1u64 << shift;
        let within = vaddr & (page - 1);
        return Ok(Found {
            paddr: (entry & FRAME & !(page - 1)) + within,
            bytes: page - within,
        });
    }
    Err(Refusal::Absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables at 0x1000 (root) to 0x4000; their words by address.
    fn tables(entries: &[(u64, u64)]) -> Vec<AtomicU64> {
        let words: Vec<AtomicU64> = (0..0x5000 / 8).map(|_| AtomicU64::new(0)).collect();
        for &(at, entry) in entries {
            words[at as usize / 8].store(entry, Relaxed);
        }
        words
    }

    fn find(words: &[AtomicU64], vaddr: u64, want: Want) -> Result<Found, Refusal> {
        walk(|at| words.get(at as usize / 8), 0x1000, vaddr, want)
    }

    const UPPER: u64 = PRESENT | WRITABLE | USER;

    #[test]
    fn small_and_huge_pages_are_found_and_marked() {
        let words = tables(&[
            (0x1000, 0x2000 | UPPER),
            (0x2000, 0x3000 | UPPER),
            (0x3000, 0x4000 | UPPER),
            (0x3008, 0x60_0000 | UPPER | LARGE | NO_EXECUTE),
            (0x4000 + 8 * 5, 0x9000 | UPPER | NO_EXECUTE),
        ]);
        let small = find(&words, 0x5678, Want::Read).unwrap();
        assert_eq!((small.paddr, small.bytes), (0x9678, 0x988));
        let entry = || words[(0x4000 + 8 * 5) / 8].load(Relaxed);
        assert_eq!(entry() & (ACCESSED | DIRTY), ACCESSED);
        find(&words, 0x5678, Want::Write).unwrap();
        assert_eq!(entry() & (ACCESSED | DIRTY), ACCESSED | DIRTY);
        let huge = find(&words, 0x20_1000, Want::Write).unwrap();
        assert_eq!((huge.paddr, huge.bytes), (0x60_1000, 0x1f_f000));
    }

    #[test]
    fn what_the_program_may_not_touch_is_refused() {
        let words = tables(&[
            (0x1000, 0x2000 | UPPER),
            (0x2000, 0x3000 | UPPER),
            (0x3000, 0x4000 | UPPER),
            (0x4000, 0x9000 | PRESENT | USER | NO_EXECUTE),
            (0x4008, 0x9000 | PRESENT | WRITABLE | NO_EXECUTE),
            (0x4010, 0x9000 | UPPER),
        ]);
        assert!(find(&words, 0, Want::Read).is_ok());
        assert_eq!(find(&words, 0, Want::Write), Err(Refusal::Absent));
        assert_eq!(find(&words, 0x1000, Want::Read), Err(Refusal::Absent));
        assert_eq!(find(&words, 0x2000, Want::Write), Err(Refusal::Executable));
        assert!(find(&words, 0x2000, Want::Read).is_ok());
        for absent in [0x3000, 0x40_0000, 1 << 39, 1 << 47, u64::MAX] {
            assert_eq!(find(&words, absent, Want::Read), Err(Refusal::Absent));
        }
    }
}
