//! From counters to the words of the measurements. Pure.
//!
//! The agent reads the Opium device at the start of a run, at points between and at the end; all
//! counters only grow, so any two points give the figures of the time between them.
//!
//! **Steady state.** The steady part of a run is what follows its last page move. Runs of
//! different policies settle at different places, and a program's phases differ (loading is not
//! computing), so speeds are compared over the *same part of the program*: progress is the share
//! of the run's user-mode instructions that are done, `p` is the latest progress at which any
//! policy of hither made its last move, and the steady seconds of every run are
//! `(time from p to the end) / (1 - p)`: what the whole work would take at the steady part's
//! speed. `p` is held at [`LATEST_START`] or below, so that one late move does not leave a
//! sliver to measure. The kernel's balancing never stops moving and so does not set `p`.
//! Rejected: dividing all instructions by each run's own rate after its own last move; it
//! credits a policy that settles late with the speed of the program's fastest phase.

use hither_core::metrics;
use serde::{Deserialize, Serialize};

/// The steady part is at least the last quarter of the work.
pub const LATEST_START: f64 = 0.75;

/// Counters since boot, summed over vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Instructions in user mode.
    pub instructions_user: u64,
    /// Instructions in kernel mode.
    pub instructions_kernel: u64,
    /// User-mode fills from memory, demand and prefetch.
    pub user_fills: u64,
    /// Those served by the requesting CPU's node.
    pub user_local_fills: u64,
    /// Kernel-mode fills.
    pub kernel_fills: u64,
    /// Lines written back.
    pub write_backs: u64,
    /// Sum of the latencies of demand misses, in ns.
    pub latency_sum_ns: u64,
    /// Demand misses.
    pub demand_misses: u64,
    /// Bytes read from and written to each node, write-backs included.
    pub node_bytes: Vec<u64>,
    /// Bytes on the wire of each directed link.
    pub link_bytes: Vec<u64>,
    /// Utilisation of each link, summed over time, in ppm * us.
    pub link_ppm_us: Vec<u64>,
    /// Utilisation of each node's controller, summed over time, in ppm * us.
    pub node_ppm_us: Vec<u64>,
    /// Pages that the kernel migrated for whatever reason (`pgmigrate_success`).
    pub moved_pages: u64,
}

/// Counters at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// `CLOCK_MONOTONIC` of the guest, in ns.
    pub time_ns: u64,
    /// Counters since boot.
    pub counters: Counters,
}

/// Figures of a part of a run. `None`: nothing happened that could be measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Share of user-mode fills served by the requesting CPU's node, 0 to 1.
    pub local_access_ratio: Option<f64>,
    /// Mean latency of demand misses, in ns.
    pub latency_ns: Option<f64>,
    /// Standard deviation (of the population) over mean of the nodes' traffic: 0 even, 1.73 all on one
    /// of four.
    pub controller_imbalance: Option<f64>,
    /// Mean utilisation of the memory controllers, 0 to 1.
    pub controller_use: Option<f64>,
    /// Mean utilisation of the links, 0 to 1.
    pub link_use: Option<f64>,
    /// The same of the links' traffic.
    pub link_imbalance: Option<f64>,
    /// Instructions, user and kernel; `None` without the device, which counts them.
    pub instructions: Option<u64>,
    /// Lines that came from memory, user and kernel, in 1000 of them; likewise.
    #[serde(default)]
    pub misses_per_1000: Option<f64>,
    /// Kernel-mode share of memory fills, 0 to 1.
    pub kernel_fill_share: Option<f64>,
    /// Lines written back; likewise.
    pub write_backs: Option<u64>,
    /// Pages moved.
    pub moved_pages: Option<u64>,
}

/// Figures of the time between two points.
#[must_use]
pub fn between(from: &Point, to: &Point) -> Figures {
    let (a, b) = (&from.counters, &to.counters);
    let part = |get: fn(&Counters) -> u64| get(b).saturating_sub(get(a));
    let each = |get: fn(&Counters) -> &Vec<u64>| -> Vec<f64> {
        get(b)
            .iter()
            .zip(get(a))
            .map(|(&new, &old)| new.saturating_sub(old) as f64)
            .collect()
    };
    let elapsed_us = to.time_ns.saturating_sub(from.time_ns) as f64 / 1e3;
    let mean_use = |ppm_us: Vec<f64>| {
        let count = ppm_us.len() as f64;
        (count > 0.0 && elapsed_us > 0.0)
            .then(|| ppm_us.iter().sum::<f64>() / count / elapsed_us / 1e6)
    };
    let instructions = part(|c| c.instructions_user) + part(|c| c.instructions_kernel);
    // What runs executes: nothing at all means that nothing was counted.
    let counted = instructions > 0;
    let user_fills = part(|c| c.user_fills);
    let kernel_fills = part(|c| c.kernel_fills);
    Figures {
        local_access_ratio: metrics::local_access_ratio(part(|c| c.user_local_fills), user_fills),
        latency_ns: metrics::mean_latency_ns(part(|c| c.latency_sum_ns), part(|c| c.demand_misses)),
        controller_imbalance: metrics::imbalance(&each(|c| &c.node_bytes)),
        controller_use: mean_use(each(|c| &c.node_ppm_us)),
        link_use: mean_use(each(|c| &c.link_ppm_us)),
        link_imbalance: metrics::imbalance(&each(|c| &c.link_bytes)),
        instructions: counted.then_some(instructions),
        misses_per_1000: counted
            .then(|| (user_fills + kernel_fills) as f64 / instructions as f64 * 1000.0),
        kernel_fill_share: metrics::local_access_ratio(kernel_fills, kernel_fills + user_fills),
        write_backs: counted.then(|| part(|c| c.write_backs)),
        moved_pages: Some(part(|c| c.moved_pages)),
    }
}

/// Progress of each point: the share of the run's user instructions that are done.
fn progress(timeline: &[Point]) -> Option<Vec<f64>> {
    let first = timeline.first()?.counters.instructions_user;
    let all = timeline
        .last()?
        .counters
        .instructions_user
        .checked_sub(first)?;
    if all == 0 {
        return None;
    }
    let done = |point: &Point| point.counters.instructions_user.saturating_sub(first);
    Some(
        timeline
            .iter()
            .map(|point| done(point) as f64 / all as f64)
            .collect(),
    )
}

/// Progress at the last page move: 0 where nothing moved, `None` without counters.
#[must_use]
pub fn last_move_progress(timeline: &[Point]) -> Option<f64> {
    let progress = progress(timeline)?;
    let all = timeline.last()?.counters.moved_pages;
    let settled = timeline
        .iter()
        .position(|point| point.counters.moved_pages == all)?;
    Some(progress[settled])
}

/// The first recorded point at or after a progress.
#[must_use]
pub fn point_at(timeline: &[Point], wanted: f64) -> Option<&Point> {
    let progress = progress(timeline)?;
    progress
        .iter()
        .position(|&done| done >= wanted)
        .map(|index| &timeline[index])
}

/// What the whole work would take at the speed that the run had from progress `start` to its
/// end, in s. `None` without counters.
#[must_use]
pub fn steady_seconds(timeline: &[Point], start: f64) -> Option<f64> {
    let progress = progress(timeline)?;
    let end_ns = timeline.last()?.time_ns as f64;
    let after = progress.iter().position(|&done| done >= start)?;
    // Between two points the program is taken to run at one speed.
    let start_ns = if after == 0 {
        timeline[0].time_ns as f64
    } else {
        let (low, high) = (progress[after - 1], progress[after]);
        let share = (start - low) / (high - low);
        let (early, late) = (
            timeline[after - 1].time_ns as f64,
            timeline[after].time_ns as f64,
        );
        early + share * (late - early)
    };
    (start < 1.0).then(|| (end_ns - start_ns) / 1e9 / (1.0 - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A point at `ms` with user instructions and moved pages.
    fn point(ms: u64, instructions_user: u64, moved_pages: u64) -> Point {
        let counters = Counters {
            instructions_user,
            moved_pages,
            ..Counters::default()
        };
        Point {
            time_ns: ms * 1_000_000,
            counters,
        }
    }

    #[test]
    fn a_run_that_moves_at_the_start_is_projected_by_its_later_speed() {
        // 1 s for the first 100 of 1000 instructions, moves ending there, then 100 per 0.1 s.
        let timeline = [
            point(5_000, 50, 7),
            point(6_000, 150, 90),
            point(6_900, 1_050, 90),
        ];
        assert_eq!(last_move_progress(&timeline), Some(0.1));
        // 0.9 s for 90 % of the work: 1 s for all of it.
        assert!((steady_seconds(&timeline, 0.1).unwrap() - 1.0).abs() < 1e-9);
        // From half way between the first two points: 0.5 s + 0.9 s for 95 %.
        assert!((steady_seconds(&timeline, 0.05).unwrap() - 1.4 / 0.95).abs() < 1e-9);
        // From the beginning it is the run itself.
        assert!((steady_seconds(&timeline, 0.0).unwrap() - 1.9).abs() < 1e-9);
    }

    #[test]
    fn nothing_moved_is_settled_from_the_beginning() {
        let timeline = [point(0, 0, 3), point(10, 10, 3)];
        assert_eq!(last_move_progress(&timeline), Some(0.0));
    }

    #[test]
    fn without_instructions_there_is_no_progress() {
        assert_eq!(steady_seconds(&[], 0.0), None);
        assert_eq!(
            steady_seconds(&[point(0, 5, 0), point(10, 5, 0)], 0.0),
            None
        );
        assert_eq!(last_move_progress(&[point(0, 5, 0)]), None);
        assert_eq!(
            steady_seconds(&[point(0, 0, 0), point(10, 10, 0)], 1.0),
            None
        );
    }

    #[test]
    fn figures_are_differences() {
        let from = Point {
            time_ns: 1_000_000,
            counters: Counters {
                instructions_user: 10,
                user_fills: 100,
                user_local_fills: 100,
                latency_sum_ns: 1_000,
                demand_misses: 10,
                node_bytes: vec![64, 64, 64, 64],
                link_bytes: vec![0, 0],
                link_ppm_us: vec![0, 0],
                node_ppm_us: vec![0, 0, 0, 0],
                ..Counters::default()
            },
        };
        let mut to = from.clone();
        to.time_ns = 2_000_000;
        to.counters.instructions_user = 20;
        to.counters.instructions_kernel = 5;
        to.counters.user_fills = 200;
        to.counters.user_local_fills = 125;
        to.counters.kernel_fills = 100;
        to.counters.latency_sum_ns = 3_000;
        to.counters.demand_misses = 20;
        to.counters.node_bytes[0] = 6_464;
        to.counters.link_ppm_us = vec![500_000_000, 100_000_000];
        to.counters.link_bytes = vec![30, 10];
        to.counters.moved_pages = 4;
        let got = between(&from, &to);
        // 25 of 100 fills local; 2000 ns over 10 misses; all traffic on one of four nodes: 173 %.
        assert_eq!(got.local_access_ratio, Some(0.25));
        assert_eq!(got.latency_ns, Some(200.0));
        assert_eq!(got.controller_imbalance, Some(3_f64.sqrt()));
        // 1000 us: links were used 50 % and 10 % of it.
        assert!((got.link_use.unwrap() - 0.3).abs() < 1e-12);
        // 30 and 10: mean 20, deviations 10 and -10, squares 200, /2, root 10, over 20: 50 %.
        assert_eq!(got.link_imbalance, Some(0.5));
        assert_eq!(got.instructions, Some(15));
        assert_eq!(got.kernel_fill_share, Some(0.5));
        assert_eq!(got.moved_pages, Some(4));
        // The same point twice: nothing happened, nothing is claimed.
        assert_eq!(between(&from, &from).local_access_ratio, None);
        assert_eq!(between(&from, &from).link_use, None);
        let counts = between(&from, &from);
        assert_eq!((counts.instructions, counts.write_backs), (None, None));
    }
}
