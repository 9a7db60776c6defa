//! How much memory is in use: over time, and its distribution.
//!
//! Of regions (access bits): *touched*, the bytes of regions in which a check found an access, and
//! *weighted*, the memory-region thesis's formula, in which memory that is used rarely counts less.
//! Of samples: the pages that were sampled, which is too few where there are few samples, and an
//! estimate of how many there are: the bias-corrected lower bound of Chao, from the pages that were
//! sampled once and twice (Scand. J. Statist. 11, 1984). It holds where pages of the set are used
//! about alike, and is too low where many of them are hardly used.

use super::data::Data;
use hither_core::forming;
use hither_core::metrics::total;
use std::collections::HashMap;

/// Standard error that an estimate from samples may have, of the whole: a window goes on until its
/// samples tell so much. A tenth is then more than three of them.
const ERROR: f64 = 0.03;
/// Bytes of a page.
const PAGE_BYTES: f64 = 4096.0;

/// The working set in one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// End of the window.
    pub time_ns: u64,
    /// Of samples: bytes of sampled pages. Of regions: bytes of regions that were touched.
    pub touched_bytes: f64,
    /// Of samples: estimated from how often pages were sampled. Of regions: the thesis's formula.
    pub weighted_bytes: f64,
    /// Standard error of the estimate. Of regions: none is known.
    pub error_bytes: Option<f64>,
}

/// The working set over a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkingSet {
    /// By time.
    pub windows: Vec<Window>,
    /// Of samples? Regions otherwise.
    pub of_samples: bool,
}

impl WorkingSet {
    /// Value below which so many percent of the windows are.
    #[must_use]
    pub fn percentile(&self, percent: usize, of: fn(&Window) -> f64) -> Option<f64> {
        let mut values: Vec<f64> = self.windows.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        values.get((last * percent.min(100) + 50) / 100).copied()
    }

    /// The largest standard error of a window's estimate, of that. Of regions: none is known.
    #[must_use]
    pub fn most_error(&self) -> Option<f64> {
        let shares = self.windows.iter().filter_map(|window| {
            window
                .error_bytes
                .map(|error| error / window.weighted_bytes)
        });
        shares.reduce(f64::max)
    }
}

/// Of all watched processes together: where there are samples, in windows of `window_ns`, or as many
/// times that as it takes to have enough of them; else by aggregation.
#[must_use]
pub fn working_set(data: &Data, window_ns: u64) -> WorkingSet {
    if data.accesses.is_empty() {
        return of_regions(data);
    }
    let window_ns = window_ns.max(1);
    let (mut windows, mut unfinished) = (Vec::new(), None);
    let mut counts: HashMap<(i32, u64), u32> = HashMap::new();
    let window = |access: &super::data::Access| access.time_ns / window_ns;
    for group in data.accesses.chunk_by(|a, b| window(a) == window(b)) {
        for access in group {
            *counts
                .entry((access.pid, access.address >> 12))
                .or_default() += 1;
        }
        let times = |n| counts.values().filter(|&&count| count == n).count() as f64;
        let (seen, once, twice) = (counts.len() as f64, times(1), times(2));
        let estimated = seen + unseen(once, twice);
        let error = variance(once, twice).sqrt();
        let this = Window {
            time_ns: (window(&group[0]) + 1) * window_ns,
            touched_bytes: seen * PAGE_BYTES,
            weighted_bytes: estimated * PAGE_BYTES,
            error_bytes: Some(error * PAGE_BYTES),
        };
        if error <= ERROR * estimated {
            windows.push(this);
            counts.clear();
            unfinished = None;
        } else {
            unfinished = Some(this);
        }
    }
    if windows.is_empty() {
        // Too few samples, and all there are.
        windows.extend(unfinished);
    }
    // A window of which the recording has less than half says less than the others.
    let has_half = |end_ns: u64| data.length_ns() + window_ns / 2 >= end_ns;
    if windows.len() > 1 && !windows.last().is_some_and(|last| has_half(last.time_ns)) {
        windows.pop();
    }
    WorkingSet {
        windows,
        of_samples: true,
    }
}

/// Kinds that were not seen, where `once` and `twice` were seen so often.
fn unseen(once: f64, twice: f64) -> f64 {
    once * (once - 1.0).max(0.0) / (2.0 * (twice + 1.0))
}

/// Variance of the estimate: that of the bias-corrected bound, as EstimateS has it (Chao, Biometrics
/// 43, 1987).
fn variance(once: f64, twice: f64) -> f64 {
    let fewer = (once - 1.0).max(0.0);
    let twice = twice + 1.0;
    once * fewer / (2.0 * twice)
        + once * (2.0 * once - 1.0).powi(2) / (4.0 * twice.powi(2))
        + once.powi(2) * (twice - 1.0) * fewer.powi(2) / (4.0 * twice.powi(4))
}

fn of_regions(data: &Data) -> WorkingSet {
    let mut windows = Vec::new();
    for group in data.regions.chunk_by(|a, b| a.time_ns == b.time_ns) {
        let bytes = |region: &crate::rows::Region| region.end.saturating_sub(region.start) as f64;
        let touched = group.iter().filter(|region| region.access_count > 0);
        windows.push(Window {
            time_ns: group[0].time_ns,
            touched_bytes: total(touched.map(bytes)),
            weighted_bytes: total(group.iter().map(|r| bytes(r) * weight(r))),
            error_bytes: None,
        });
    }
    WorkingSet {
        windows,
        of_samples: false,
    }
}

/// The thesis's weight of a region; other numbers of checks than 32 are scaled to that.
fn weight(region: &crate::rows::Region) -> f64 {
    let checks = u64::from(region.check_count.max(1));
    let ones = (u64::from(region.access_count) * 32 + checks / 2) / checks;
    forming::weight(u32::try_from(ones).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::data::tests::{access, empty};
    use super::*;
    use crate::rows::Region;

    /// The window of `count` samples drawn from as many pages as a generator's next numbers say.
    fn drawn(state: &mut u64, count: u64, pages: u64) -> Window {
        let mut data = empty();
        for turn in 0..count {
            *state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            data.accesses
                .push(access(turn, ((*state >> 33) % pages) << 12, 0, 0));
        }
        let set = working_set(&data, 1_000_000);
        assert_eq!(set.windows.len(), 1);
        assert_eq!(
            set.most_error(),
            set.windows[0]
                .error_bytes
                .map(|error| error / set.windows[0].weighted_bytes)
        );
        set.windows[0]
    }

    #[test]
    fn samples_of_a_set_of_pages_tell_its_size() {
        // 4000 pages, 2 samples a page.
        let window = drawn(&mut 1, 8000, 4000);
        let pages = |bytes: f64| bytes / PAGE_BYTES;
        assert!(pages(window.touched_bytes) < 3600.0);
        let estimated = pages(window.weighted_bytes);
        assert!((3800.0..4200.0).contains(&estimated), "{estimated}");
    }

    #[test]
    fn estimates_scatter_as_their_standard_error_says() {
        for count in [500, 1500] {
            let mut state = 1;
            let windows: Vec<Window> = (0..200).map(|_| drawn(&mut state, count, 1000)).collect();
            let mean = |of: fn(&Window) -> f64| windows.iter().map(of).sum::<f64>() / 200.0;
            let scatter = mean(|w| (w.weighted_bytes / PAGE_BYTES - 1000.0).powi(2)).sqrt();
            let told = mean(|w| w.error_bytes.unwrap() / PAGE_BYTES);
            // 200 windows tell their scatter to a twentieth.
            assert!(
                (0.8..1.25).contains(&(told / scatter)),
                "{count} samples: {told} told, {scatter} seen"
            );
        }
    }

    #[test]
    fn a_window_that_had_hardly_begun_is_left_out() {
        let mut data = empty();
        data.accesses = (0..120)
            .map(|turn| access(turn, (turn % 10) << 12, 0, 0))
            .collect();
        assert_eq!(working_set(&data, 100).windows.len(), 1);
        data.accesses.push(access(150, 0, 0, 0));
        assert_eq!(working_set(&data, 100).windows.len(), 2);
    }

    #[test]
    fn a_window_goes_on_until_its_samples_tell_enough() {
        // 1000 pages by turns: after 2000 samples each was seen twice.
        let mut data = empty();
        data.accesses = (0..6000)
            .map(|turn| access(turn, (turn % 1000) << 12, 0, 0))
            .collect();
        let set = working_set(&data, 500);
        let found = set
            .windows
            .iter()
            .map(|w| (w.time_ns, w.weighted_bytes / PAGE_BYTES));
        let found: Vec<_> = found.collect();
        // After 1500 samples 500 pages were seen once and 500 twice: 249 more are expected, with a
        // standard error of 30.
        assert_eq!(found[0].0, 1500, "{found:?}");
        assert!((1200.0..1300.0).contains(&found[0].1), "{found:?}");
        assert_eq!(found.len(), 4);
        // Of a recording with too few there is one window, of all of it.
        data.accesses.truncate(900);
        let set = working_set(&data, 500);
        assert_eq!(set.windows.len(), 1);
        assert_eq!(set.windows[0].touched_bytes, 900.0 * PAGE_BYTES);
    }

    #[test]
    fn regions_are_weighted_by_their_ones() {
        let mut data = empty();
        let region = |access_count, check_count| Region {
            time_ns: 5,
            length_ns: 5,
            pid: Some(7),
            start: 0,
            end: 1000,
            access_count,
            check_count,
            age_count: None,
        };
        let counts = [
            (32, 32),
            (25, 32),
            (14, 32),
            (8, 32),
            (7, 32),
            (0, 32),
            (20, 20),
        ];
        data.regions = counts
            .map(|(accesses, checks)| region(accesses, checks))
            .to_vec();
        let set = working_set(&data, 1);
        let window = set.windows[0];
        assert_eq!(window.touched_bytes, 6000.0);
        assert_eq!(
            window.weighted_bytes,
            1000.0 * (1.0 + 0.75 + 0.5 + 0.25 + 1.0)
        );
        assert_eq!(set.percentile(50, |w| w.touched_bytes), Some(6000.0));
        assert_eq!(
            WorkingSet::default().percentile(50, |w| w.touched_bytes),
            None
        );
    }
}
