//! Address by time: which memory is hot, and when.
//!
//! A process uses a few stretches of an address space of 128 TiB. Rows are therefore given to the
//! stretches that were accessed, in proportion to their sizes, at least one each.

use super::data::Data;
use crate::meta::Meta;
use std::ops::Range;

/// Stretches that are further apart than this are shown apart.
const GAP_BYTES: u64 = 16 << 20;
/// Stretches begin and end at such addresses.
const BLOCK_BYTES: u64 = 64 << 10;
/// Stretches at most: the hottest.
const MOST_BANDS: usize = 24;

/// A stretch of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// Half-open, in bytes.
    pub addresses: Range<u64>,
    /// Its rows.
    pub rows: Range<usize>,
}

/// Accesses by address and time.
#[derive(Clone, Debug, PartialEq)]
pub struct Heat {
    /// Whose; `None` for physical addresses.
    pub pid: Option<i32>,
    /// Ascending.
    pub bands: Vec<Band>,
    /// Ends of the columns in ns, one more than there are columns.
    pub times_ns: Vec<u64>,
    /// Row by row, lowest address first: accesses per second and MiB of samples; share of checks
    /// that found it accessed of regions.
    pub cells: Vec<f64>,
    /// Of samples? Regions otherwise.
    pub of_samples: bool,
}

impl Heat {
    /// Columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.times_ns.len().saturating_sub(1)
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.bands.last().map_or(0, |band| band.rows.end)
    }

    /// The node that a row of physical memory is of.
    #[must_use]
    pub fn node(&self, meta: &Meta, row: usize) -> Option<u32> {
        match self.pid {
            Some(_) => None,
            None => meta.node_of(self.addresses(row).start),
        }
    }

    /// Addresses of a row.
    #[must_use]
    pub fn addresses(&self, row: usize) -> Range<u64> {
        let band = self.bands.iter().find(|band| band.rows.contains(&row));
        band.map_or(0..0, |band| {
            let size = band.addresses.end - band.addresses.start;
            let at = |row: usize| {
                let share = (row - band.rows.start) as u128;
                let offset = u128::from(size) * share / band.rows.len() as u128;
                band.addresses.start + offset as u64
            };
            at(row)..at(row + 1)
        })
    }
}

/// Processes by what was seen of them, most first; with samples, those that have any.
#[must_use]
pub fn processes(data: &Data) -> Vec<Option<i32>> {
    let mut sums = std::collections::BTreeMap::<Option<i32>, f64>::new();
    for access in &data.accesses {
        *sums.entry(Some(access.pid)).or_default() += f64::from(access.weight);
    }
    if sums.is_empty() {
        for region in &data.regions {
            *sums.entry(region.pid).or_default() += f64::from(region.access_count) + 0.01;
        }
    }
    let mut order: Vec<(Option<i32>, f64)> = sums.into_iter().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.into_iter().map(|(pid, _)| pid).collect()
}

/// The picture of one process, of at most so many rows and columns; `None` where nothing was seen.
#[must_use]
pub fn heat(data: &Data, pid: Option<i32>, rows: usize, columns: usize) -> Option<Heat> {
    let of_samples = pid.is_some_and(|pid| data.accesses.iter().any(|a| a.pid == pid));
    let seen: Vec<(Range<u64>, f64)> = match of_samples {
        true => data
            .accesses
            .iter()
            .filter(|access| Some(access.pid) == pid)
            .map(|a| (a.address..a.address.saturating_add(1), f64::from(a.weight)))
            .collect(),
        false => data
            .regions
            .iter()
            .filter(|r| r.pid == pid && r.access_count > 0 && r.start < r.end)
            .map(|r| (r.start..r.end, f64::from(r.access_count)))
            .collect(),
    };
    let mut stretches = stretches(seen);
    if pid.is_none() {
        let spans = data.meta.nodes.iter().flat_map(|node| &node.spans);
        for edge in spans.flat_map(|&(start, end)| [start, end]) {
            cut(&mut stretches, edge);
        }
    }
    if stretches.is_empty() || rows == 0 || columns == 0 {
        return None;
    }
    let bands = bands(&stretches, rows.max(stretches.len()));
    let length_ns = data.length_ns().max(1);
    let columns = columns.min(length_ns as usize);
    let times_ns = (0..=columns)
        .map(|column| (u128::from(length_ns) * column as u128 / columns as u128) as u64)
        .collect();
    let mut heat = Heat {
        pid,
        cells: vec![0.0; bands.last().map_or(0, |band| band.rows.end) * columns],
        bands,
        times_ns,
        of_samples,
    };
    match of_samples {
        true => fill_with_samples(data, &mut heat),
        false => fill_with_regions(data, &mut heat),
    }
    Some(heat)
}

/// Joins what is close, and keeps the hottest.
fn stretches(mut seen: Vec<(Range<u64>, f64)>) -> Vec<Range<u64>> {
    seen.sort_unstable_by_key(|(range, _)| range.start);
    let mut joined: Vec<(Range<u64>, f64)> = Vec::new();
    for (range, heat) in seen {
        let start = range.start / BLOCK_BYTES * BLOCK_BYTES;
        let end = range.end.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES);
        match joined.last_mut() {
            Some((last, sum)) if start <= last.end.saturating_add(GAP_BYTES) => {
                last.end = last.end.max(end);
                *sum += heat;
            }
            _ => joined.push((start..end, heat)),
        }
    }
    joined.sort_by(|a, b| b.1.total_cmp(&a.1));
    joined.truncate(MOST_BANDS);
    let mut kept: Vec<Range<u64>> = joined.into_iter().map(|(range, _)| range).collect();
    kept.sort_unstable_by_key(|range| range.start);
    kept
}

/// Cuts the stretch that an address lies within in two, so that no row is of two nodes.
fn cut(stretches: &mut Vec<Range<u64>>, at: u64) {
    if let Some(index) = stretches.iter().position(|s| s.start < at && at < s.end) {
        let upper = at..stretches[index].end;
        stretches[index].end = at;
        stretches.insert(index + 1, upper);
    }
}

/// Gives the rows out in proportion, at least one each; no row below a block.
fn bands(stretches: &[Range<u64>], rows: usize) -> Vec<Band> {
    let size = |range: &Range<u64>| range.end - range.start;
    let total: u64 = stretches.iter().map(size).sum();
    let spare = (rows - stretches.len()) as u128;
    let mut next = 0;
    let band = |range: &Range<u64>| {
        let share = spare * u128::from(size(range)) / u128::from(total.max(1));
        let most = (size(range) / BLOCK_BYTES).max(1) as usize;
        let count = (1 + share as usize).min(most);
        next += count;
        Band {
            addresses: range.clone(),
            rows: next - count..next,
        }
    };
    stretches.iter().map(band).collect()
}

fn fill_with_samples(data: &Data, heat: &mut Heat) {
    let columns = heat.columns();
    let length_ns = u128::from(data.length_ns().max(1));
    for access in data
        .accesses
        .iter()
        .filter(|access| Some(access.pid) == heat.pid)
    {
        let after = heat
            .bands
            .partition_point(|band| band.addresses.end <= access.address);
        let Some(band) = heat
            .bands
            .get(after)
            .filter(|b| b.addresses.contains(&access.address))
        else {
            continue;
        };
        let offset = u128::from(access.address - band.addresses.start);
        let size = u128::from(band.addresses.end - band.addresses.start);
        let row = band.rows.start + (offset * band.rows.len() as u128 / size) as usize;
        let column = (u128::from(access.time_ns) * columns as u128 / length_ns) as usize;
        heat.cells[row * columns + column.min(columns - 1)] += f64::from(access.weight);
    }
    let seconds = data.length_ns().max(1) as f64 / 1e9 / columns as f64;
    for row in 0..heat.rows() {
        let addresses = heat.addresses(row);
        let mib = (addresses.end - addresses.start).max(1) as f64 / f64::from(1 << 20);
        for cell in &mut heat.cells[row * columns..(row + 1) * columns] {
            *cell /= seconds * mib;
        }
    }
}

fn fill_with_regions(data: &Data, heat: &mut Heat) {
    let columns = heat.columns();
    let rows: Vec<Range<u64>> = (0..heat.rows()).map(|row| heat.addresses(row)).collect();
    // Of each cell, time times bytes that were looked at.
    let mut looked = vec![0.0; heat.cells.len()];
    for region in data.regions.iter().filter(|region| region.pid == heat.pid) {
        let share = f64::from(region.access_count) / f64::from(region.check_count.max(1));
        let from_ns = region.time_ns.saturating_sub(region.length_ns);
        let first = rows.partition_point(|row| row.end <= region.start);
        for (row, addresses) in rows.iter().enumerate().skip(first) {
            if addresses.start >= region.end {
                break;
            }
            let bytes = addresses.end.min(region.end) - addresses.start.max(region.start);
            let begin = heat
                .times_ns
                .partition_point(|&t| t <= from_ns)
                .saturating_sub(1);
            for column in begin..columns {
                let (start, end) = (heat.times_ns[column], heat.times_ns[column + 1]);
                if start >= region.time_ns {
                    break;
                }
                let time = end.min(region.time_ns).saturating_sub(start.max(from_ns));
                let weight = bytes as f64 * time as f64;
                heat.cells[row * columns + column] += share * weight;
                looked[row * columns + column] += weight;
            }
        }
    }
    for (cell, looked) in heat.cells.iter_mut().zip(looked) {
        *cell = if looked > 0.0 { *cell / looked } else { 0.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::tests::{access, empty};
    use super::*;
    use crate::rows::Region;

    #[test]
    fn heat_is_where_and_when_the_accesses_were() {
        let mut data = empty();
        let mib = 1 << 20;
        // 8 MiB at 16 MiB all the time, 1 MiB far away in the second half.
        for turn in 0..1000_u64 {
            data.accesses
                .push(access(turn * 1_000_000, 16 * mib + turn % 8 * mib, 0, 0));
            if turn >= 500 {
                data.accesses.push(access(turn * 1_000_000, 1 << 40, 0, 0));
            }
        }
        let heat = heat(&data, Some(7), 10, 10).unwrap();
        assert_eq!((heat.bands.len(), heat.columns()), (2, 10));
        let far = heat.rows() - 1;
        assert!(heat.addresses(far).contains(&(1 << 40)));
        assert_eq!(heat.cells[far * 10], 0.0);
        assert!(heat.cells[far * 10 + 9] > heat.cells[9]);
        // Nothing is lost: cells times their size are all accesses.
        let total: f64 = (0..heat.rows())
            .map(|row| {
                let range = heat.addresses(row);
                let mib = (range.end - range.start) as f64 / mib as f64;
                heat.cells[row * 10..(row + 1) * 10].iter().sum::<f64>() * mib
            })
            .sum();
        let seconds = data.length_ns() as f64 / 1e9 / 10.0;
        assert!((total * seconds - 15_000.0).abs() < 1.0, "{total}");
    }

    #[test]
    fn regions_are_shares_of_checks() {
        let mut data = empty();
        let region = |time_ns, start, end, access_count| Region {
            time_ns,
            length_ns: 100,
            pid: Some(7),
            start,
            end,
            access_count,
            check_count: 20,
            age_count: None,
        };
        data.regions = vec![
            region(100, 0x10_0000, 0x20_0000, 20),
            region(200, 0x10_0000, 0x20_0000, 10),
            region(200, 0x20_0000, 0x30_0000, 0),
        ];
        let heat = heat(&data, Some(7), 4, 2).unwrap();
        assert!(!heat.of_samples);
        assert_eq!(heat.addresses(0).start, 0x10_0000);
        let first: Vec<f64> = (0..heat.rows()).map(|row| heat.cells[row * 2]).collect();
        let second: Vec<f64> = (0..heat.rows())
            .map(|row| heat.cells[row * 2 + 1])
            .collect();
        assert!(first.iter().all(|&cell| cell == 1.0), "{first:?}");
        assert!(second.iter().all(|&cell| cell == 0.5), "{second:?}");
    }

    #[test]
    fn no_row_of_physical_memory_is_of_two_nodes() {
        let mut data = empty();
        data.regions = vec![Region {
            time_ns: 100,
            length_ns: 100,
            pid: None,
            start: 1 << 20,
            end: 9 << 20,
            access_count: 5,
            check_count: 20,
            age_count: None,
        }];
        data.meta.nodes[0].spans = vec![(0, 3 << 20)];
        data.meta.nodes[1].spans = vec![(3 << 20, 8 << 20)];
        let heat = heat(&data, None, 3, 2).unwrap();
        let nodes: Vec<Option<u32>> = (0..heat.rows())
            .map(|row| heat.node(&data.meta, row))
            .collect();
        assert_eq!(nodes, [Some(0), Some(2), None]);
        let ends: Vec<u64> = (0..heat.rows())
            .map(|row| heat.addresses(row).end)
            .collect();
        assert_eq!(ends, [3 << 20, 8 << 20, 9 << 20]);
        // What two nodes claim is nobody's.
        data.meta.nodes[1].spans[0].0 = 0;
        assert_eq!(data.meta.node_of(1 << 20), None);
    }

    #[test]
    fn nothing_seen_is_no_picture() {
        assert_eq!(heat(&empty(), Some(7), 10, 10), None);
        assert!(processes(&empty()).is_empty());
    }
}
