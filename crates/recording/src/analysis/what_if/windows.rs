//! Stretches of a recording with the figures that a forecast needs of each.
//!
//! Intervals are joined until a window has enough samples to tell which part of its accesses goes where,
//! so that times of much and of little traffic are not averaged away.

use super::super::data::Data;
use hither_core::metrics::total;

/// Samples of a window at least.
const LEAST_SAMPLES: usize = 256;
/// Windows at most.
const MOST_WINDOWS: u64 = 64;
/// Lines of traffic for each fill at most: beyond it others than the fills cause it.
const MOST_LINES: f64 = 4.0;

/// No memory answers sooner; what is below was not measured.
pub const LEAST_LATENCY_NS: f64 = 1.0;

/// A stretch of time in which the programs ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// When it began, in ns.
    pub from_ns: u64,
    /// When it ended.
    pub until_ns: u64,
    /// Observed time in it, in ns.
    pub length_ns: f64,
    /// Memory fills per ns.
    pub rate: f64,
    /// Mean latency of a miss in ns, where it is known.
    pub latency_ns: Option<f64>,
    /// Share of the CPU time that waits for memory, where it is known.
    pub stall_share: Option<f64>,
    /// Bytes between memory and caches for each fill, where they were counted.
    pub bytes_per_fill: Option<f64>,
    /// Share of those that were read.
    pub read_share: Option<f64>,
}

/// Sums over intervals.
#[derive(Default)]
struct Sums {
    length_ns: f64,
    fills: f64,
    /// Fills, and sum of their latencies, where these are known.
    timed: [f64; 2],
    /// Time, and the part of it that was waited, where that is known.
    stalled: [f64; 2],
    read_bytes: f64,
    write_bytes: f64,
    /// Fills of the intervals whose bytes are known.
    carried: f64,
}

/// The windows of a recording whose intervals tell of memory fills; none where no interval does.
#[must_use]
pub fn windows(data: &Data) -> Vec<Window> {
    let least_ns = data.length_ns() / MOST_WINDOWS;
    let mut windows = Vec::new();
    let mut sums = Sums::default();
    let mut from_ns = None;
    let samples_before = |time_ns| data.accesses.partition_point(|a| a.time_ns < time_ns);
    for interval in &data.intervals {
        let Some(per_us) = usable(interval.accesses_per_us) else {
            continue;
        };
        let began = interval.time_ns.saturating_sub(interval.length_ns);
        let from = *from_ns.get_or_insert(began);
        sums.take(data, interval, per_us);
        let count = samples_before(interval.time_ns).saturating_sub(samples_before(from));
        if count >= LEAST_SAMPLES && interval.time_ns.saturating_sub(from) >= least_ns {
            windows.extend(std::mem::take(&mut sums).window(data, from, interval.time_ns));
            from_ns = None;
        }
    }
    let last_ns = data.intervals.last().map(|interval| interval.time_ns);
    if let Some((from, until)) = from_ns.zip(last_ns) {
        windows.extend(sums.window(data, from, until));
    }
    windows
}

fn usable(figure: Option<f64>) -> Option<f64> {
    figure.filter(|figure| figure.is_finite() && *figure >= 0.0 && *figure < 1e12)
}

impl Sums {
    fn take(&mut self, data: &Data, interval: &crate::rows::Interval, per_us: f64) {
        let length_ns = interval.length_ns as f64;
        let fills = per_us / 1e3 * length_ns;
        self.length_ns += length_ns;
        self.fills += fills;
        if let Some(latency_ns) = usable(interval.latency_ns) {
            self.timed[0] += fills;
            self.timed[1] += fills * latency_ns;
        }
        if let Some(share) = usable(interval.stall_share) {
            self.stalled[0] += length_ns;
            self.stalled[1] += length_ns * share.min(1.0);
        }
        let same_time = data
            .traffic
            .partition_point(|row| row.time_ns < interval.time_ns);
        let rows = data.traffic[same_time..].iter();
        let rows = rows.take_while(|row| row.time_ns == interval.time_ns);
        let bytes: Option<Vec<(u64, u64)>> = rows
            .map(|row| row.read_bytes.zip(row.write_bytes))
            .collect();
        if let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) {
            self.read_bytes += total(bytes.iter().map(|&(read, _)| read as f64));
            self.write_bytes += total(bytes.iter().map(|&(_, written)| written as f64));
            self.carried += fills;
        }
    }

    fn window(self, data: &Data, from_ns: u64, until_ns: u64) -> Option<Window> {
        let ratio = |part: f64, of: f64| (of > 0.0).then(|| part / of);
        let line = data.meta.line_bytes() as f64;
        let bytes = self.read_bytes + self.write_bytes;
        (self.length_ns > 0.0).then(|| Window {
            from_ns,
            until_ns,
            length_ns: self.length_ns,
            rate: self.fills / self.length_ns,
            latency_ns: ratio(self.timed[1], self.timed[0]).filter(|&ns| ns >= LEAST_LATENCY_NS),
            stall_share: ratio(self.stalled[1], self.stalled[0]),
            bytes_per_fill: ratio(bytes, self.carried)
                .map(|bytes| bytes.clamp(line, MOST_LINES * line)),
            read_share: ratio(self.read_bytes, bytes),
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::super::data::tests::{access, empty};
    use super::*;
    use crate::rows::{Interval, Node};

    /// An interval of 100 ms that ends then.
    pub fn interval(time_ms: u64, fills_per_us: f64) -> Interval {
        Interval {
            time_ns: time_ms * 1_000_000,
            length_ns: 100_000_000,
            local_access_ratio: None,
            latency_ns: Some(100.0),
            controller_imbalance: None,
            link_use: None,
            accesses_per_us: Some(fills_per_us),
            instructions_per_us: None,
            flops_per_us: None,
            stall_share: Some(0.5),
            l3_mpki: None,
            sample_count: 0,
            lost_count: 0,
            own_cpu_us: None,
        }
    }

    #[test]
    fn intervals_are_joined_until_there_are_samples() {
        let mut data = empty();
        data.intervals = (1..=4).map(|tenth| interval(tenth * 100, 10.0)).collect();
        data.intervals[3].latency_ns = None;
        // 150 samples for each interval.
        let times = (0..600).map(|number| number * 400_000_000 / 600);
        data.accesses = times.map(|time_ns| access(time_ns, 0, 0, 0)).collect();
        data.traffic = vec![Node {
            time_ns: 100_000_000,
            length_ns: 100_000_000,
            node: 0,
            // A million fills, each with half a line written back.
            read_bytes: Some(64_000_000),
            write_bytes: Some(32_000_000),
            utilisation: None,
        }];
        let found = windows(&data);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].from_ns, found[0].until_ns), (0, 200_000_000));
        assert_eq!(found[0].rate, 0.01);
        assert_eq!(found[0].bytes_per_fill, Some(96.0));
        assert_eq!(found[0].read_share, Some(64.0 / 96.0));
        assert_eq!(found[1].latency_ns, Some(100.0));
        assert_eq!(found[1].bytes_per_fill, None);
    }

    #[test]
    fn without_counts_there_is_no_window() {
        let mut data = empty();
        data.intervals = vec![interval(100, f64::NAN)];
        assert_eq!(windows(&data), []);
    }
}
