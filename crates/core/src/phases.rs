//! Phases of a program, by the memory that it uses. Pure.
//!
//! Problem: a program that does one thing after another needs another placement for each, and a
//! figure over all of it is true of none.
//!
//! Mechanism: time is cut into windows, each with the set of its *hot units*, stretches of memory of
//! one size. Two sets are as similar as the share of units in both among those in either (Jaccard); a
//! phase ends where a window is less similar than [`Config::least_similarity`] to the window that the
//! phase began with. That is the working set distance of Dhodapkar and Smith (ISCA 2002) and their
//! threshold. Against the window just before, as they compare, a window in which the program changes
//! from one thing to the next is half similar to both, and the change would not be seen; nor would a
//! slow drift.
//!
//! A phase of one window is the change itself: it belongs to the next phase, at the end to the one
//! before. So phases shorter than two windows are not told.
//!
//! Properties: phases cover all windows, in order, without gaps; names of units mean nothing; each
//! phase has two windows at least, where there are two.

use std::collections::BTreeMap;
use std::ops::Range;

/// Thresholds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Share of units in both sets among those in either, from which on they are one phase's, 0..=1.
    pub least_similarity: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            least_similarity: 0.5,
        }
    }
}

/// A stretch of windows that use about the same memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Its windows, by their places.
    pub windows: Range<usize>,
    /// Number of the thing it does, from 0 in the order of first times: phases that use about the same
    /// memory have the same.
    pub kind: usize,
    /// Units that are hot in half of its windows at least, ascending.
    pub core: Vec<u64>,
}

/// Share of units in both sets among those in either; both ascending, without doubles. Two empty
/// sets are alike.
#[must_use]
pub fn similarity(one: &[u64], other: &[u64]) -> f64 {
    let (mut left, mut right, mut both) = (0, 0, 0_usize);
    while left < one.len() && right < other.len() {
        let (a, b) = (one[left], other[right]);
        both += usize::from(a == b);
        left += usize::from(a <= b);
        right += usize::from(b <= a);
    }
    match one.len() + other.len() - both {
        0 => 1.0,
        either => both as f64 / either as f64,
    }
}

/// The phases of windows, each with its hot units, ascending and without doubles.
#[must_use]
pub fn phases(windows: &[Vec<u64>], config: &Config) -> Vec<Phase> {
    let is_like = |one: &[u64], other: &[u64]| similarity(one, other) >= config.least_similarity;
    let mut cuts = vec![0];
    for (index, window) in windows.iter().enumerate().skip(1) {
        let first = cuts.last().map_or(0, |&cut| cut);
        if !is_like(&windows[first], window) {
            cuts.push(index);
        }
    }
    let mut found: Vec<Phase> = Vec::new();
    for range in without_single(&cuts, windows.len()) {
        let core = core(&windows[range.clone()]);
        let known = found.iter().find(|other| is_like(&other.core, &core));
        let next = found.iter().map(|other| other.kind + 1).max().unwrap_or(0);
        found.push(Phase {
            kind: known.map_or(next, |known| known.kind),
            windows: range,
            core,
        });
    }
    found
}

/// The stretches between cuts, those of one window joined to the next, or at the end to the one
/// before.
fn without_single(cuts: &[usize], count: usize) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    for end in cuts.iter().skip(1).copied().chain([count]) {
        if end - start >= 2 {
            found.push(start..end);
            start = end;
        }
    }
    match found.last_mut() {
        Some(last) => last.end = count,
        None if count > 0 => found.push(0..count),
        None => {}
    }
    found
}

fn core(windows: &[Vec<u64>]) -> Vec<u64> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for &unit in windows.iter().flatten() {
        *counts.entry(unit).or_default() += 1;
    }
    let often = counts.into_iter();
    often
        .filter(|&(_, count)| 2 * count >= windows.len())
        .map(|(unit, _)| unit)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(units: Range<u64>) -> Vec<u64> {
        units.collect()
    }

    /// Windows and kind of each phase.
    fn told(windows: &[Vec<u64>]) -> Vec<(Range<usize>, usize)> {
        let found = phases(windows, &Config::default());
        found.into_iter().map(|p| (p.windows, p.kind)).collect()
    }

    #[test]
    fn similarity_is_the_share_of_what_is_in_both() {
        // 5 in both, 15 in either.
        assert_eq!(similarity(&set(0..10), &set(5..15)), 5.0 / 15.0);
        assert_eq!(similarity(&set(0..4), &set(4..8)), 0.0);
        assert_eq!(similarity(&set(0..4), &set(0..4)), 1.0);
        assert_eq!(similarity(&[], &[]), 1.0);
        assert_eq!(similarity(&[], &[1]), 0.0);
    }

    #[test]
    fn a_phase_ends_where_other_memory_is_used_and_one_that_comes_back_is_known() {
        let (a, b) = (set(0..10), set(10..20));
        let windows = [&a, &a, &a, &b, &b, &a, &a].map(Clone::clone);
        assert_eq!(told(&windows), [(0..3, 0), (3..5, 1), (5..7, 0)]);
        let found = phases(&windows, &Config::default());
        assert_eq!(found[1].core, b);
    }

    #[test]
    fn a_window_of_the_change_does_not_hide_it() {
        // Half similar to both sides: 10 of 20.
        let windows = [0..10, 0..10, 0..20, 10..20, 10..20, 10..20].map(set);
        assert_eq!(told(&windows), [(0..3, 0), (3..6, 1)]);
        // Less similar to what was before: it goes to what follows.
        let windows = [0..10, 0..10, 4..20, 12..20, 12..20].map(set);
        assert_eq!(told(&windows), [(0..2, 0), (2..5, 1)]);
    }

    #[test]
    fn a_slow_drift_is_cut_where_half_is_new() {
        // 20 units, one more to the right each time: 14 of 26 after six, 13 of 27 after seven.
        let windows: Vec<Vec<u64>> = (0..14).map(|at| set(at..at + 20)).collect();
        assert_eq!(told(&windows), [(0..7, 0), (7..14, 1)]);
    }

    #[test]
    fn what_lasts_one_window_is_not_a_phase() {
        let (a, b, c) = (set(0..10), set(10..20), set(20..30));
        assert_eq!(told(&[a.clone(), b.clone(), b.clone()]), vec![(0..3, 0); 1]);
        let windows = [&a, &a, &b, &b, &c].map(Clone::clone);
        assert_eq!(told(&windows), [(0..2, 0), (2..5, 1)]);
        assert_eq!(told(&[a]), vec![(0..1, 0); 1]);
        assert_eq!(told(&[]), []);
    }

    #[test]
    fn the_threshold_is_what_it_says() {
        let windows = [0..10, 0..10, 0..8, 0..8].map(set);
        let with = |least_similarity| phases(&windows, &Config { least_similarity }).len();
        assert_eq!((with(0.8), with(0.81)), (1, 2));
    }

    proptest! {
        #[test]
        fn phases_cover_all_windows_and_names_mean_nothing(
            windows in prop::collection::vec(
                prop::collection::btree_set(0_u64..24, 0..12), 0..40),
            shift in 1_u64..1000,
        ) {
            let windows: Vec<Vec<u64>> =
                windows.into_iter().map(|set| set.into_iter().collect()).collect();
            let found = phases(&windows, &Config::default());
            let mut next = 0;
            for (index, phase) in found.iter().enumerate() {
                prop_assert_eq!(phase.windows.start, next);
                prop_assert!(phase.windows.len() >= 2 || windows.len() == 1);
                prop_assert!(phase.kind <= index);
                next = phase.windows.end;
            }
            prop_assert_eq!(next, windows.len());
            let renamed: Vec<Vec<u64>> = windows
                .iter()
                .map(|set| set.iter().map(|unit| unit * 7 + shift).collect())
                .collect();
            let renamed = phases(&renamed, &Config::default());
            prop_assert_eq!(
                found.iter().map(|p| (p.windows.clone(), p.kind)).collect::<Vec<_>>(),
                renamed.iter().map(|p| (p.windows.clone(), p.kind)).collect::<Vec<_>>()
            );
        }

        #[test]
        fn planted_phases_are_found_where_they_are(lengths in prop::collection::vec(2_usize..9, 1..8)) {
            // Each of its own 16 units, of which every window lacks another one.
            let mut windows = Vec::new();
            let mut expected = Vec::new();
            for (phase, &length) in lengths.iter().enumerate() {
                expected.push((windows.len()..windows.len() + length, phase));
                let first = 16 * phase as u64;
                windows.extend((0..length as u64).map(|at| {
                    (first..first + 16).filter(|unit| unit % 16 != at).collect::<Vec<u64>>()
                }));
            }
            prop_assert_eq!(told(&windows), expected);
        }
    }
}
