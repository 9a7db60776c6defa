//! Which addresses of a process a kdamond watches. Pure.
//!
//! DAMON's own operations for virtual addresses watch all from the first mapping to the last but for
//! the two largest gaps, and give each byte of that as many regions as any other. Between a program and
//! its heap the kernel leaves up to a gigabyte free at random, and the C library reserves 64 MiB for
//! each thread's allocations: of 60 regions of a program with 256 MB, 47 lay where nothing was. So a
//! kdamond gets fixed ranges: what is mapped and may be accessed, small gaps included. They are
//! looked at now and then, and what has been mapped since is added.
//!
//! DAMON does not divide fixed ranges at the start, so that they are given in pieces; what it knows
//! already is given whole, so that its regions stay.

use crate::sys::OwnMapping;
use std::ops::Range;

/// Most ranges: the smallest gaps are closed beyond.
const MOST_RANGES: usize = 64;
/// User addresses end here.
const USER_END: u64 = 1 << 56;
const PAGE: u64 = 4096;

fn bytes(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Bytes of a region where so many are as large as each other.
pub fn unit(ranges: &[Range<u64>], regions: u32) -> u64 {
    (bytes(ranges) / u64::from(regions.max(1)))
        .next_multiple_of(PAGE)
        .max(PAGE)
}

/// What is worth watching with so many regions, ascending: gaps smaller than one are closed.
pub fn worth(mappings: &[OwnMapping], regions: u32) -> Vec<Range<u64>> {
    let used = mappings
        .iter()
        .filter(|m| (m.readable || m.writable) && m.range.end <= USER_END)
        .map(|m| m.range.clone());
    let mut ranges = close(used, 0);
    let mut gap = unit(&ranges, regions);
    ranges = close(ranges.into_iter(), gap);
    while ranges.len() > MOST_RANGES {
        gap *= 2;
        ranges = close(ranges.into_iter(), gap);
    }
    ranges
}

/// Joins ranges, ascending, that are no further apart.
fn close(ranges: impl Iterator<Item = Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start - last.end <= gap => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

/// The ranges as a kdamond is told that watches `known` already (nothing at first): what it knows of
/// them as it is, the rest in pieces of `unit`.
pub fn pieces(ranges: &[Range<u64>], known: &[Range<u64>], unit: u64) -> Vec<Range<u64>> {
    let mut told = Vec::new();
    for range in ranges {
        let mut at = range.start;
        let inside = known
            .iter()
            .filter(|k| k.start < range.end && k.end > range.start);
        for old in inside {
            let old = old.start.max(range.start)..old.end.min(range.end);
            divide(at..old.start, unit, &mut told);
            at = old.end;
            told.push(old);
        }
        divide(at..range.end, unit, &mut told);
    }
    told
}

/// Appends even pieces of whole pages, none much above `unit`.
fn divide(range: Range<u64>, unit: u64, into: &mut Vec<Range<u64>>) {
    let pages = (range.end - range.start) / PAGE;
    let count = (range.end - range.start).div_ceil(unit);
    let at = |number: u64| range.start + pages * number / count * PAGE;
    into.extend((0..count).map(|number| at(number)..at(number + 1)));
}

/// Have the ranges changed so far that the kdamond is to be told? A quarter of a region that is not
/// watched, or as much of what is watched in vain as half of the rest.
pub fn differ(ranges: &[Range<u64>], known: &[Range<u64>], unit: u64) -> bool {
    let common: u64 = ranges
        .iter()
        .flat_map(|a| {
            known
                .iter()
                .map(move |b| (a.start.max(b.start), a.end.min(b.end)))
        })
        .map(|(start, end)| end.saturating_sub(start))
        .sum();
    bytes(ranges) - common > unit / 4 || bytes(known) - common > bytes(ranges) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::maps;

    const MB: u64 = 1 << 20;

    fn ranges(mb: &[Range<u64>]) -> Vec<Range<u64>> {
        mb.iter()
            .map(|range| range.start * MB..range.end * MB)
            .collect()
    }

    #[test]
    fn what_cannot_be_accessed_is_left_out() {
        let text = "\
55f898e00000-55f898e40000 r-xp 00000000 08:01 9 /bin/load
55f8d2100000-55f8d2200000 rw-p 00000000 00:00 0 [heap]
7f1d60000000-7f1d60021000 rw-p 00000000 00:00 0
7f1d60021000-7f1d64000000 ---p 00000000 00:00 0
7f1d64600000-7f1d74600000 rw-p 00000000 00:00 0
7f1d74604000-7f1d74700000 r--p 00000000 08:01 7 /lib/libc.so.6
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
";
        let found = worth(&maps::parse(text).unwrap(), 40);
        assert_eq!(
            found,
            [
                0x55f8_98e0_0000..0x55f8_98e4_0000,
                0x55f8_d210_0000..0x55f8_d220_0000,
                0x7f1d_6000_0000..0x7f1d_6002_1000,
                0x7f1d_6460_0000..0x7f1d_7470_0000,
            ]
        );
        assert_eq!(worth(&[], 40), []);
    }

    #[test]
    fn there_are_no_more_ranges_than_a_kdamond_is_told() {
        let text: String = (1..1000u64)
            .map(|n| {
                format!(
                    "{:x}-{:x} rw-p 00000000 00:00 0\n",
                    n << 24,
                    (n << 24) + 4096 * n
                )
            })
            .collect();
        let mappings = maps::parse(&text).unwrap();
        let found = worth(&mappings, 40);
        assert!(
            !found.is_empty() && found.len() <= MOST_RANGES,
            "{}",
            found.len()
        );
        for mapping in mappings {
            let holds =
                |r: &Range<u64>| r.start <= mapping.range.start && mapping.range.end <= r.end;
            assert!(found.iter().any(holds));
        }
    }

    #[test]
    fn what_is_new_comes_in_pieces() {
        let told =
            |new: &[Range<u64>], known: &[Range<u64>]| pieces(&ranges(new), &ranges(known), 4 * MB);
        assert_eq!(told(&[0..8, 20..21], &[]), ranges(&[0..4, 4..8, 20..21]));
        let even = told(std::slice::from_ref(&(0..9)), &[]);
        assert_eq!(
            even.iter().map(|r| r.end - r.start).collect::<Vec<_>>(),
            [3 * MB; 3]
        );
        // A mapping that has grown at both ends, one that has shrunk, one that is gone.
        let known = [10..14, 30..40, 50..60];
        let expected = ranges(&[6..10, 10..14, 14..17, 30..33]);
        assert_eq!(told(&[6..17, 30..33], &known), expected);
        // Two that have become one.
        let expected = ranges(&[10..14, 14..18, 18..22, 22..26, 26..30, 30..40]);
        assert_eq!(told(std::slice::from_ref(&(10..40)), &known[..2]), expected);
        assert_eq!(told(&[], &known), []);
    }

    #[test]
    fn small_changes_are_not_told() {
        let known = ranges(&[0..40, 60..70]);
        let differs = |new: &[Range<u64>]| differ(&ranges(new), &known, 8 * MB);
        let one = |range: Range<u64>| differs(std::slice::from_ref(&range));
        assert!(!differs(&[0..40, 60..70]));
        assert!(!differs(&[0..41, 60..71]));
        assert!(differs(&[0..41, 60..72]));
        assert!(!one(0..40));
        assert!(one(0..30));
        assert!(differs(&[0..40, 50..53, 60..70]));
    }
}
