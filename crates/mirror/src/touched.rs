//! Which pages of a mapping a process uses: its page table is emptied for a while, then read.
//!
//! Emptying (`MADV_DONTNEED`) is free of effect on a mapping of a file that the process has never written,
//! and costs it a fault for each 64 KiB, or each folio, that it uses again. What is found is as coarse: the page
//! cache of some file systems has folios of up to 2 MiB, which one fault maps as a whole. Pages that it did write (it may have, before the
//! mapping became read-only by a call that this library does not see) would be lost: a mapping that has any
//! is left alone.

use crate::sys::{self, PAGE};
use hither_core::mirror::chunks::Homes;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Pages sampled of a chunk, to learn where it lies.
const SAMPLES: usize = 16;
/// Pages that the kernel maps around one fault (`fault_around_bytes`, 64 KiB), aligned by address. Fewer at
/// the edge of a chunk, beside mapped ones of the next, may be that alone.
const AROUND: usize = 16;
/// Entries read at once.
const ENTRIES: usize = 8192;

/// What was found of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Was it used?
    pub is_used: bool,
    /// Where its pages lie, as far as sampled.
    pub homes: Homes,
}

/// A page's entry, as documented in the kernel's admin-guide/mm/pagemap.rst.
fn is_present(entry: u64) -> bool {
    entry >> 63 & 1 == 1
}

/// A page of the process's own, written by it: present or swapped, and not the file's.
fn is_own(entry: u64) -> bool {
    entry >> 62 != 0 && entry >> 61 & 1 == 0
}

/// Reads which of the pages from `start` on are there: addresses of those in the page table. `None` where
/// one of them is the process's own, or nobody can tell.
pub fn present(start: usize, end: usize) -> Option<Vec<usize>> {
    let file = File::open("/proc/self/pagemap").ok()?;
    let mut found = Vec::new();
    let mut buffer = vec![0u8; ENTRIES * 8];
    let mut at = start;
    while at < end {
        let count = ((end - at) / PAGE).min(ENTRIES);
        let bytes = buffer.get_mut(..count * 8)?;
        file.read_exact_at(bytes, (at / PAGE * 8) as u64).ok()?;
        for (number, entry) in bytes.chunks_exact(8).enumerate() {
            let entry = u64::from_ne_bytes(entry.try_into().ok()?);
            if is_own(entry) {
                return None;
            }
            if is_present(entry) {
                found.push(at + number * PAGE);
            }
        }
        at += count * PAGE;
    }
    Some(found)
}

/// Are these pages of a chunk at its edges alone, and fewer than what lies beside them in the neighbour: mapped
/// around a fault there?
fn is_spilt(pages: &[usize], first: usize, end: usize) -> bool {
    let follows = |at: usize| {
        at > 0
            && pages
                .get(at)
                .is_some_and(|page| page - PAGE == pages[at - 1])
    };
    let before = (0..=first).rev().take_while(|at| follows(*at));
    let before = before.take(AROUND).count();
    let behind = (end..pages.len()).take_while(|at| follows(*at));
    let behind = behind.take(AROUND).count();
    let head = (first + 1..end).take_while(|at| follows(*at)).count() + 1;
    let tail = (first + 1..end).rev().take_while(|at| follows(*at)).count() + 1;
    let spilt = |own: usize, other: usize| if own < AROUND && other > own { own } else { 0 };
    spilt(head, before) + spilt(tail, behind) >= end - first
}

/// Of pages found, what they say of chunks: `chunk_of` numbers them, of `count`. `node` is the own one.
pub fn chunks(
    pages: &[usize],
    count: usize,
    node: u32,
    chunk_of: impl Fn(usize) -> usize,
) -> Vec<Chunk> {
    let mut chunks = vec![Chunk::default(); count];
    let mut sampled = Vec::new();
    let mut first = 0;
    while first < pages.len() {
        let chunk = chunk_of(pages[first]);
        let more = pages[first..]
            .iter()
            .take_while(|page| chunk_of(**page) == chunk);
        let end = first + more.count();
        if is_spilt(pages, first, end) {
            first = end;
            continue;
        }
        if let Some(entry) = chunks.get_mut(chunk) {
            entry.is_used = true;
        }
        let step = (end - first).div_ceil(SAMPLES);
        sampled.extend(pages[first..end].iter().step_by(step));
        first = end;
    }
    let nodes = sys::nodes_of(&sampled).unwrap_or_default();
    for (page, home) in sampled.iter().zip(nodes) {
        if let Some(chunk) = chunks.get_mut(chunk_of(*page)) {
            match u32::try_from(home) {
                Ok(home) if home == node => chunk.homes.here += 1,
                Ok(_) => chunk.homes.elsewhere += 1,
                Err(_) => {}
            }
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Mapping;
    use std::io::Write;

    #[test]
    fn what_a_fault_maps_besides_is_not_used() {
        let chunks = |pages: &[usize]| {
            let pages: Vec<usize> = pages.iter().map(|page| page * PAGE).collect();
            let found = chunks(&pages, 4, 0, |page| page / PAGE / 64);
            found.iter().map(|chunk| chunk.is_used).collect::<Vec<_>>()
        };
        let run = |range: std::ops::Range<usize>| range.collect::<Vec<_>>();
        // Chunk 0 to its end, and 10 pages of chunk 1: as a fault at the end of chunk 0 leaves it.
        assert_eq!(chunks(&run(0..74)), [true, false, false, false]);
        // 16 pages are a fault of their own.
        assert_eq!(chunks(&run(0..80)), [true, true, false, false]);
        // A fault at the beginning of chunk 1.
        assert_eq!(chunks(&run(60..76)), [false, true, false, false]);
        assert_eq!(chunks(&run(60..128)), [false, true, false, false]);
        // Pages of no neighbour's.
        assert_eq!(chunks(&[3, 70]), [true, true, false, false]);
    }

    #[test]
    fn used_pages_of_a_file_are_found_and_written_ones_refused() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; 8 << 20]).unwrap();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let mapping = Mapping::of(&file, 0, 8 << 20, both, false).unwrap();
        let (start, end) = (mapping.address(), mapping.address() + (8 << 20));
        assert_eq!(present(start, end), Some(Vec::new()));
        let at = start + (4 << 20);
        // SAFETY: a mapped page of the file.
        assert_eq!(unsafe { (at as *const u8).read_volatile() }, 1);
        let pages = present(start, end).unwrap();
        assert!(pages.contains(&at), "{pages:?}");
        let found = chunks(&pages, 2, u32::MAX, |page| (page - start) >> 22);
        assert!(!found[0].is_used && found[1].is_used);
        sys::advise(start, 8 << 20, libc::MADV_DONTNEED).unwrap();
        assert_eq!(present(start, end), Some(Vec::new()));
        // SAFETY: a mapped page, private.
        unsafe { (at as *mut u8).write_volatile(2) };
        assert_eq!(present(start, end), None);
    }
}
