//! Phases of a recording: windows of its samples or regions, with the memory that is hot in each
//! (`hither_core::phases` says where a phase ends).
//!
//! Samples are few: two windows of one and the same use hardly meet in any page. So the unit of memory
//! grows from a page until chance matters little, as the parts of an area do (`use_of`): until a window
//! has 16 samples for each unit that it touches, in the median of the windows. A unit is hot from a
//! quarter of its window's mean on. What differs within a unit only is not told apart.

use super::data::{Access, Data};
use hither_core::phases::{self, Config};
use std::collections::{BTreeMap, BTreeSet};

/// Windows that a recording is cut into at most.
const MOST_WINDOWS: u64 = 256;
/// A window is no shorter than this, in ns.
const LEAST_NS: u64 = 100_000_000;
/// Samples of a window at least: it goes on until it has them.
const LEAST_SAMPLES: usize = 256;
/// Samples for each unit that a window touches.
const SAMPLES: usize = 16;
/// log2 of the smallest unit, a page, and of the largest, 64 MiB.
const LEAST_SHIFT: u32 = 12;
const MOST_SHIFT: u32 = 26;
/// A unit is hot from this share of the mean of its window's units on.
const HOT: f64 = 0.25;
/// log2 of the unit of regions: they are coarser than pages, and their borders move.
const REGION_SHIFT: u32 = 21;
/// Share of checks that found a region accessed from which on it is hot.
const HOT_RATE: f64 = 0.25;
/// Units of a region at most, 128 GiB of memory: a region of more tells nothing.
const MOST_UNITS: u64 = 1 << 16;

/// A phase of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// When it began, in ns since the recording did.
    pub from_ns: u64,
    /// When it ended.
    pub until_ns: u64,
    /// The same number for phases that use about the same memory, from 1.
    pub kind: usize,
    /// Hot in half of its windows at least, in whole units.
    pub hot_bytes: u64,
    /// Share of its sampled accesses that were local, where known.
    pub local_ratio: Option<f64>,
}

/// Phases, and how memory was cut for them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Phases {
    /// By time.
    pub list: Vec<Phase>,
    /// Bytes of a unit; 0 where nothing was seen.
    pub unit_bytes: u64,
}

/// Whose, and its number.
type Unit = (i32, u64);

struct Window<T> {
    until_ns: u64,
    of: T,
}

/// The phases of all watched processes together; none where nothing was seen.
#[must_use]
pub fn phases(data: &Data) -> Phases {
    let length_ns = (data.length_ns() / MOST_WINDOWS).max(LEAST_NS);
    let (windows, shift) = match data.accesses.is_empty() {
        true => (of_regions(data, length_ns), REGION_SHIFT),
        false => of_samples(data, length_ns),
    };
    if windows.is_empty() {
        return Phases::default();
    }
    let mut numbers: BTreeMap<Unit, u64> = BTreeMap::new();
    let sets: Vec<Vec<u64>> = windows
        .iter()
        .map(|window| {
            let mut set: Vec<u64> = Vec::with_capacity(window.of.len());
            for unit in &window.of {
                let next = numbers.len() as u64;
                set.push(*numbers.entry(*unit).or_insert(next));
            }
            set.sort_unstable();
            set
        })
        .collect();
    let mut from_ns = 0;
    let list = phases::phases(&sets, &Config::default()).into_iter();
    let list = list.map(|phase| {
        let until_ns = windows[phase.windows.end - 1].until_ns;
        let found = Phase {
            from_ns,
            until_ns,
            kind: phase.kind + 1,
            hot_bytes: (phase.core.len() as u64) << shift,
            local_ratio: local_ratio(data, from_ns, until_ns),
        };
        from_ns = until_ns;
        found
    });
    Phases {
        list: list.collect(),
        unit_bytes: 1 << shift,
    }
}

/// Windows with the units that are hot in them, and log2 of a unit.
fn of_samples(data: &Data, length_ns: u64) -> (Vec<Window<BTreeSet<Unit>>>, u32) {
    let mut groups: Vec<Window<&[Access]>> = Vec::new();
    let mut rest = &data.accesses[..];
    while let Some(enough) = rest.get(LEAST_SAMPLES - 1).or(rest.last()) {
        let until_ns = (enough.time_ns / length_ns + 1).saturating_mul(length_ns);
        let count = rest.partition_point(|access| access.time_ns < until_ns);
        let (of, after) = rest.split_at(count.max(1));
        groups.push(Window { until_ns, of });
        rest = after;
    }
    // The last may have few: its time belongs to the one before.
    if groups.len() > 1
        && groups
            .last()
            .is_some_and(|last| last.of.len() < LEAST_SAMPLES)
    {
        groups.pop();
    }
    if let Some(last) = groups.last_mut() {
        last.until_ns = data.length_ns();
    }
    // Sorted once: what is in one unit then stands together, however large units are.
    let sorted = |group: &Window<&[Access]>| {
        let mut addresses: Vec<Unit> = group.of.iter().map(|a| (a.pid, a.address)).collect();
        addresses.sort_unstable();
        Window {
            until_ns: group.until_ns,
            of: addresses,
        }
    };
    let groups: Vec<Window<Vec<Unit>>> = groups.iter().map(sorted).collect();
    let tells = |shift: &u32| {
        let samples = |group: &Window<Vec<Unit>>| group.of.len() / units(&group.of, *shift).count();
        let mut all: Vec<usize> = groups.iter().map(samples).collect();
        all.sort_unstable();
        all.get(all.len() / 2)
            .is_some_and(|&median| median >= SAMPLES)
    };
    let shift = (LEAST_SHIFT..MOST_SHIFT).step_by(2).find(tells);
    let shift = shift.unwrap_or(MOST_SHIFT);
    let windows = groups.iter().map(|group| {
        let mean = group.of.len() as f64 / units(&group.of, shift).count() as f64;
        let often = units(&group.of, shift).filter(|&(_, count)| count as f64 >= HOT * mean);
        Window {
            until_ns: group.until_ns,
            of: often.map(|(unit, _)| unit).collect(),
        }
    });
    (windows.collect(), shift)
}

/// Units of 2^`shift` bytes with how many of the addresses, which ascend, are in each.
fn units(addresses: &[Unit], shift: u32) -> impl Iterator<Item = (Unit, usize)> {
    let unit = move |address: &Unit| (address.0, address.1 >> shift);
    addresses
        .chunk_by(move |a, b| unit(a) == unit(b))
        .map(move |group| (unit(&group[0]), group.len()))
}

fn of_regions(data: &Data, length_ns: u64) -> Vec<Window<BTreeSet<Unit>>> {
    let mut windows: Vec<Window<BTreeSet<Unit>>> = Vec::new();
    let place = |region: &crate::rows::Region| region.time_ns.saturating_sub(1) / length_ns;
    for group in data.regions.chunk_by(|a, b| place(a) == place(b)) {
        let mut hot = BTreeSet::new();
        for region in group {
            let rate = f64::from(region.access_count) / f64::from(region.check_count.max(1));
            let units = region.start >> REGION_SHIFT..region.end.div_ceil(1 << REGION_SHIFT);
            let count = units.end.saturating_sub(units.start);
            if rate >= HOT_RATE && count <= MOST_UNITS {
                hot.extend(units.map(|unit| (region.pid.unwrap_or(0), unit)));
            }
        }
        windows.push(Window {
            until_ns: group[group.len() - 1].time_ns,
            of: hot,
        });
    }
    windows
}

fn local_ratio(data: &Data, from_ns: u64, until_ns: u64) -> Option<f64> {
    let at = |ns: u64| data.accesses.partition_point(|access| access.time_ns < ns);
    let (mut local, mut placed) = (0.0, 0.0);
    for access in &data.accesses[at(from_ns)..at(until_ns)] {
        if let (Some(from), Some(home), false) =
            (access.from(), access.home(), access.is_transfer())
        {
            placed += f64::from(access.weight);
            local += if from == home {
                f64::from(access.weight)
            } else {
                0.0
            };
        }
    }
    (placed > 0.0).then(|| local / placed)
}

#[cfg(test)]
mod tests {
    use super::super::data::tests::{access, empty};
    use super::*;
    use crate::rows::Region;

    const SECOND: u64 = 1_000_000_000;

    /// A pseudorandom number below `below`.
    fn random(state: &mut u64, below: u64) -> u64 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (*state >> 33) % below
    }

    /// Samples each ms: the first three seconds of `pages` pages at 0, the next three of as many far
    /// behind, at `home` 1, the last two of the first again.
    fn three(pages: u64, per_ms: u64) -> Data {
        let mut data = empty();
        let mut state = 7;
        for ms in 0..8000 {
            for turn in 0..per_ms {
                let is_second = (3000..6000).contains(&ms);
                let first = if is_second { 1 << 36 } else { 0 };
                let address = first + 4096 * random(&mut state, pages);
                let time = ms * 1_000_000 + turn;
                data.accesses
                    .push(access(time, address, 0, u16::from(is_second)));
            }
        }
        data
    }

    #[test]
    fn what_is_used_in_turn_are_phases_and_chance_makes_none() {
        // Few pages, each sampled often; and so many that a page is hardly ever sampled twice.
        for (pages, per_ms) in [(16, 4), (2000, 4), (1 << 20, 4)] {
            let found = phases(&three(pages, per_ms));
            let told: Vec<_> = found.list.iter().map(|p| (p.kind, p.local_ratio)).collect();
            let expected = [(1, Some(1.0)), (2, Some(0.0)), (1, Some(1.0))];
            assert_eq!(told, expected, "{pages} pages: {found:?}");
            let cuts: Vec<u64> = found.list.iter().map(|phase| phase.until_ns).collect();
            assert_eq!(cuts[..2], [3 * SECOND, 6 * SECOND], "{pages} pages");
            assert_eq!(
                cuts[2],
                8 * SECOND - 1_000_000 + per_ms - 1,
                "{pages} pages"
            );
            assert_eq!(found.list[0].from_ns, 0);
            let units = (pages * 4096).div_ceil(found.unit_bytes);
            let hot = found.list[0].hot_bytes / found.unit_bytes;
            assert!(
                hot <= units && 10 * hot >= 9 * units,
                "{pages} pages: {hot} of {units}"
            );
        }
        assert_eq!(phases(&three(16, 4)).unit_bytes, 4096);
    }

    #[test]
    fn few_samples_are_one_phase_and_none_are_none() {
        let mut data = empty();
        assert_eq!(phases(&data), Phases::default());
        data.accesses = (0..100)
            .map(|t| access(t * SECOND, t << 30, 0, 0))
            .collect();
        assert_eq!(phases(&data).list.len(), 1);
    }

    #[test]
    fn access_bits_tell_phases_too() {
        let mut data = empty();
        for turn in 0..40_u64 {
            for half in 0..2 {
                let is_hot = (turn >= 20) == (half == 1);
                data.regions.push(Region {
                    time_ns: (turn + 1) * LEAST_NS,
                    length_ns: LEAST_NS,
                    pid: Some(7),
                    start: half << 30,
                    end: (half + 1) << 30,
                    access_count: if is_hot { 20 } else { 1 },
                    check_count: 20,
                    age_count: None,
                });
            }
        }
        let found = phases(&data);
        let told: Vec<_> = found
            .list
            .iter()
            .map(|p| (p.until_ns, p.kind, p.hot_bytes))
            .collect();
        assert_eq!(
            told,
            [(20 * LEAST_NS, 1, 1 << 30), (40 * LEAST_NS, 2, 1 << 30)]
        );
    }
}
