//! Whether a piece of memory was written while it was recorded, and what says so.
//!
//! Problem: copies on several nodes are an option for memory that nobody writes, so that a wrong "no" is
//! wrong advice. Samples cannot say no. What is sampled are fills: of a load and a store to one line
//! the load comes first, as a rule, and is the fill; the store hits a cache and is never seen. Some PMUs
//! sample no stores at all. So a sampled store proves writing, and none proves nothing.
//!
//! What tells, the first that does:
//! - written: a store was sampled; a CPU got a line that another CPU's cache had modified; a soft-dirty
//!   bit was set (tracker `written`);
//! - not written: soft-dirty bits of all of it were looked at, and none was set; or it was only ever
//!   mapped privately and without the right to write (of shared memory others may have that right);
//! - otherwise it is not known.

use super::areas::{AreaKind, Areas};
use super::data::Data;
use super::pages::{self, CountedPage};
use crate::rows::{Mapping, Region};
use hither_core::snapshot::Evidence;
use std::ops::Range;

const STORES: &str = "stores to it were sampled";
const MODIFIED: &str = "CPUs got lines of it that another CPU had modified";
const DIRTY: &str = "soft-dirty bits were set";
const CLEAN: &str = "soft-dirty bits of all of it stayed clear";
const FORBIDDEN: &str = "its mapping does not allow writing";
const UNKNOWN: &str = "no store was sampled, which proves nothing: after a load of the same line a \
                       store is no fill; `hither record --tracker written` tells written pages";

/// What samples tell of writes to a piece of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampled {
    /// Stores.
    pub stores: f64,
    /// Lines that another CPU's cache had modified.
    pub transfers: f64,
}

/// Was an area written?
#[must_use]
pub fn of_area(data: &Data, areas: &Areas, index: usize) -> Evidence<bool> {
    let area = &areas.list[index];
    let sampled = Sampled {
        stores: area.stores,
        transfers: area.transfers,
    };
    of_ranges(data, area.pid, sampled, || match area.kind {
        // Where nothing is known to be mapped, nothing says that it is all that there is.
        AreaKind::Unknown => Vec::new(),
        _ => pages::ranges(data, areas, index),
    })
}

/// Was any of these ranges of a process written? They are asked for where samples do not tell.
#[must_use]
pub fn of_ranges(
    data: &Data,
    pid: i32,
    sampled: Sampled,
    ranges: impl FnOnce() -> Vec<Range<u64>>,
) -> Evidence<bool> {
    if sampled.stores > 0.0 {
        return Evidence::measured(true, STORES);
    }
    if sampled.transfers > 0.0 {
        return Evidence::measured(true, MODIFIED);
    }
    let ranges = ranges();
    by_dirty_bits(data, pid, &ranges)
        .or_else(|| by_permissions(data, pid, &ranges))
        .unwrap_or_else(|| Evidence::unknown(UNKNOWN))
}

/// What is known of an area, with what was seen of its pages since.
#[must_use]
pub fn with_pages(known: &Evidence<bool>, pages: &[CountedPage]) -> Evidence<bool> {
    match pages.iter().any(|page| page.transferred() > 0.0) {
        true if known.get() != Some(true) => Evidence::measured(true, MODIFIED),
        _ => known.clone(),
    }
}

fn by_dirty_bits(data: &Data, pid: i32, ranges: &[Range<u64>]) -> Option<Evidence<bool>> {
    if !data.is_of_writes() {
        return None;
    }
    let of = |range: &Range<u64>| -> Vec<&Region> {
        let all = data.regions.iter();
        all.filter(|row| row.pid == Some(pid) && row.start < range.end && range.start < row.end)
            .collect()
    };
    // Of a region that reaches beyond the range, its written pages may be those outside.
    let is_dirty = |row: &Region, range: &Range<u64>| {
        let is_within = range.start <= row.start && row.end <= range.end;
        row.access_count > 0 && (is_within || row.access_count == row.check_count)
    };
    if ranges
        .iter()
        .any(|range| of(range).iter().any(|row| is_dirty(row, range)))
    {
        return Some(Evidence::measured(true, DIRTY));
    }
    let is_clean = |range: &Range<u64>| {
        let rows = of(range);
        rows.iter().all(|row| row.access_count == 0)
            && is_covered(range, rows.iter().map(|row| row.start..row.end))
    };
    let all = !ranges.is_empty() && ranges.iter().all(is_clean);
    all.then(|| Evidence::measured(false, CLEAN))
}

fn by_permissions(data: &Data, pid: i32, ranges: &[Range<u64>]) -> Option<Evidence<bool>> {
    let forbids = |row: &Mapping| !row.permissions.contains('w') && row.permissions.ends_with('p');
    let is_forbidden = |range: &Range<u64>| {
        let all = data.mappings.iter();
        let rows: Vec<&Mapping> = all
            .filter(|row| row.pid == pid && row.start < range.end && range.start < row.end)
            .collect();
        rows.iter().all(|row| forbids(row))
            && is_covered(range, rows.iter().map(|row| row.start..row.end))
    };
    let all = !ranges.is_empty() && ranges.iter().all(is_forbidden);
    all.then(|| Evidence::measured(false, FORBIDDEN))
}

/// Do the parts, together, hold all of a range?
fn is_covered(range: &Range<u64>, parts: impl Iterator<Item = Range<u64>>) -> bool {
    let mut parts: Vec<Range<u64>> = parts.collect();
    parts.sort_by_key(|part| part.start);
    let reached = parts
        .iter()
        .fold(range.start, |reached, part| match part.start <= reached {
            true => reached.max(part.end),
            false => reached,
        });
    reached >= range.end
}

#[cfg(test)]
mod tests {
    use super::super::areas::areas;
    use super::super::data::tests::{access, empty, transfer, write};
    use super::*;

    /// `a`: 16 pages at 1 MiB, read 64 times by two nodes.
    fn read(permissions: &str) -> Data {
        let mut data = empty();
        data.mappings = vec![Mapping {
            time_ns: 0,
            pid: 7,
            start: 0x10_0000,
            end: 0x11_0000,
            permissions: permissions.into(),
            name: "a".into(),
        }];
        data.accesses = (0..64)
            .map(|turn| access(turn, 0x10_0000 + 64 * turn, (turn % 2) as u16, 0))
            .collect();
        data
    }

    fn region(start: u64, end: u64, access_count: u32) -> Region {
        Region {
            time_ns: 1,
            length_ns: 1,
            pid: Some(7),
            start,
            end,
            access_count,
            check_count: 8,
            age_count: None,
        }
    }

    /// The same with looks of the tracker `written`.
    fn looked(regions: &[(u64, u64, u32)]) -> Data {
        let mut data = read("rw-p");
        data.meta.trackers[0].name = "written".into();
        data.regions = regions.iter().map(|&(s, e, n)| region(s, e, n)).collect();
        data
    }

    fn told(data: &Data) -> (Option<bool>, String) {
        let areas = areas(data);
        let evidence = of_area(data, &areas, 0);
        (evidence.get(), evidence.basis().to_owned())
    }

    #[test]
    fn reads_alone_prove_nothing() {
        let (written, why) = told(&read("rw-p"));
        assert_eq!(written, None);
        assert!(why.contains("proves nothing"), "{why}");
        // Regions of access bits, which reads set too, prove nothing either.
        let mut data = read("rw-p");
        data.regions = vec![region(0x10_0000, 0x11_0000, 0)];
        assert_eq!(told(&data).0, None);
    }

    #[test]
    fn one_store_or_one_modified_line_proves_writing() {
        let mut data = read("rw-p");
        data.accesses.push(write(64, 0x10_8000, 0, 0));
        assert_eq!(told(&data), (Some(true), STORES.to_owned()));
        let mut data = read("rw-p");
        let mut handed = transfer(64, 0x10_8000, 0, 0);
        assert!(handed.is_write());
        assert_eq!(
            told(&{
                let mut d = data.clone();
                d.accesses.push(handed);
                d
            })
            .0,
            Some(true)
        );
        // A load that another CPU's cache served: that CPU had modified the line.
        handed.set_read();
        data.accesses.push(handed);
        assert_eq!(told(&data), (Some(true), MODIFIED.to_owned()));
    }

    #[test]
    fn dirty_bits_tell_both_where_all_was_looked_at() {
        for (regions, expected) in [
            (&[(0x10_0000, 0x11_0000, 0)][..], Some(false)),
            (
                &[(0x10_0000, 0x10_8000, 0), (0x10_8000, 0x11_0000, 0)],
                Some(false),
            ),
            (
                &[(0x10_0000, 0x10_8000, 0), (0x10_8000, 0x11_0000, 1)],
                Some(true),
            ),
            // The second half was not looked at.
            (&[(0x10_0000, 0x10_8000, 0)], None),
            // Three of its eight pages were written, perhaps those beyond the area; or all of them.
            (&[(0x10_0000, 0x12_0000, 3)], None),
            (&[(0x10_0000, 0x12_0000, 8)], Some(true)),
        ] {
            assert_eq!(told(&looked(regions)).0, expected, "{regions:x?}");
        }
    }

    #[test]
    fn what_may_not_be_written_was_not() {
        assert_eq!(told(&read("r--p")), (Some(false), FORBIDDEN.to_owned()));
        // Others may write to what is shared.
        assert_eq!(told(&read("r--s")).0, None);
        // It was writable at another time.
        let mut data = read("r--p");
        let mut before = data.mappings[0].clone();
        before.permissions = "rw-p".into();
        data.mappings.insert(0, before);
        assert_eq!(told(&data).0, None);
    }

    #[test]
    fn counts_of_pages_add_to_what_is_known() {
        let mut page = CountedPage {
            pid: 7,
            address: 0x10_0000,
            users: vec![9.0, 9.0],
            transfers: vec![0.0, 0.0],
            home: Some(0),
            seen: 18.0,
        };
        let unknown = Evidence::unknown("test");
        assert_eq!(with_pages(&unknown, &[page.clone()]), unknown);
        page.transfers[1] = 1.0;
        assert_eq!(with_pages(&unknown, &[page]).get(), Some(true));
    }
}
