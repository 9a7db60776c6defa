//! What hither believed over a whole run: from samples, and from counters.
//!
//! Samples give the local-access ratio and the controllers' imbalance of the intervals in which
//! they were taken. Each interval counts by its memory accesses; one without samples (the engine
//! switches them off when nothing is left to do) counts with the figures of the last one that
//! had some, because the engine wakes up when the counters change.
//!
//! A controller's traffic is estimated as one line per sampled read and two per sampled write
//! (the fill, and the write-back that follows it sooner or later).

use hither_core::metrics;
use hither_core::snapshot::Snapshot;
use serde::Serialize;

/// A mean that each interval enters with a weight.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, figure: Option<f64>, weight: f64) {
        if let Some(figure) = figure.filter(|figure| figure.is_finite()) {
            self.sum += figure * weight;
            self.weight += weight;
        }
    }

    fn get(self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

/// Counters over a part of the run.
#[derive(Clone, Debug, Default)]
struct Part {
    local_ratio: Mean,
    latency_ns: Mean,
    link_use: Mean,
    /// Bytes per node position.
    traffic: Vec<f64>,
    interval_us: u64,
    accesses: f64,
}

impl Part {
    fn add(&mut self, snapshot: &Snapshot, accesses: f64) {
        let metrics = &snapshot.metrics;
        self.local_ratio
            .add(metrics.local_access_ratio.get(), accesses);
        self.latency_ns.add(metrics.latency_ns.get(), accesses);
        self.link_use
            .add(metrics.link_use.get(), snapshot.interval_us as f64);
        self.traffic.resize(snapshot.nodes.len(), 0.0);
        for (sum, node) in self.traffic.iter_mut().zip(&snapshot.nodes) {
            *sum += node.traffic_bytes().unwrap_or(0) as f64;
        }
        self.interval_us += snapshot.interval_us;
        self.accesses += accesses;
    }

    fn figures(&self) -> Figures {
        Figures {
            seconds: self.interval_us as f64 / 1e6,
            local_access_ratio: self.local_ratio.get(),
            controller_imbalance: metrics::imbalance(&self.traffic),
            latency_ns: self.latency_ns.get(),
            link_use: self.link_use.get(),
            memory_accesses_per_us: (self.interval_us > 0)
                .then(|| self.accesses / self.interval_us as f64),
        }
    }
}

/// Figures of a part of the run, for the report. Ratios are fractions of 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Length of the part.
    pub seconds: f64,
    /// Share of user-mode fills served by the requester's own node.
    pub local_access_ratio: Option<f64>,
    /// Sample standard deviation over mean of the nodes' traffic.
    pub controller_imbalance: Option<f64>,
    /// Mean latency of demand misses.
    pub latency_ns: Option<f64>,
    /// Mean utilisation of the links.
    pub link_use: Option<f64>,
    /// Memory fills per us.
    pub memory_accesses_per_us: Option<f64>,
}

/// What samples alone say of the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sampled {
    /// Samples of the program's pages.
    pub sample_count: u64,
    /// Samples lost to full rings.
    pub lost_count: u64,
    /// Intervals with samples.
    pub interval_count: u64,
    /// As in [`Figures`], estimated.
    pub local_access_ratio: Option<f64>,
    /// As in [`Figures`], estimated.
    pub controller_imbalance: Option<f64>,
}

/// One interval as its samples show it.
#[derive(Clone, Debug, Default)]
struct View {
    local_ratio: Option<f64>,
    /// Share of the traffic per node position.
    shares: Vec<f64>,
}

/// The running estimate.
#[derive(Clone, Debug, Default)]
pub struct Estimate {
    whole: Part,
    before: Part,
    after: Part,
    has_moved: bool,
    sampled: Sampled,
    view: View,
    local_ratio: Mean,
    traffic: Vec<f64>,
}

/// Fewer samples than this tell nothing of an interval: the ratio of 64 is off by 6 points.
const LEAST_SAMPLES: u64 = 64;

impl Estimate {
    /// For a machine with so many nodes.
    #[must_use]
    pub fn new(node_count: usize) -> Self {
        Self {
            traffic: vec![0.0; node_count],
            ..Self::default()
        }
    }

    /// Takes in an interval; `moved`: pages moved in it.
    pub fn add(&mut self, snapshot: &Snapshot, moved: bool) {
        let rate = snapshot.metrics.memory_accesses_per_us.get();
        let samples = snapshot.sample_count.get().unwrap_or(0);
        let sampled = samples as f64 * f64::from(snapshot.sample_period);
        let accesses = rate.map_or(sampled, |rate| rate * snapshot.interval_us as f64);
        self.whole.add(snapshot, accesses);
        if moved {
            self.has_moved = true;
            self.after = Part::default();
        } else if self.has_moved {
            self.after.add(snapshot, accesses);
        } else {
            self.before.add(snapshot, accesses);
        }
        self.sampled.sample_count += samples;
        self.sampled.lost_count += snapshot.samples_lost;
        if samples >= LEAST_SAMPLES {
            self.sampled.interval_count += 1;
            self.view = view(snapshot);
        }
        self.local_ratio.add(self.view.local_ratio, accesses);
        for (sum, share) in self.traffic.iter_mut().zip(&self.view.shares) {
            *sum += share * accesses;
        }
    }

    /// What samples alone say of the whole run.
    #[must_use]
    pub fn sampled(&self) -> Sampled {
        Sampled {
            local_access_ratio: self.local_ratio.get(),
            controller_imbalance: metrics::imbalance(&self.traffic),
            ..self.sampled
        }
    }

    /// Counters over the whole run.
    #[must_use]
    pub fn whole(&self) -> Figures {
        self.whole.figures()
    }

    /// Counters before the first move.
    #[must_use]
    pub fn before(&self) -> Figures {
        self.before.figures()
    }

    /// Counters after the last move; `None` where nothing moved.
    #[must_use]
    pub fn after(&self) -> Option<Figures> {
        self.has_moved.then(|| self.after.figures())
    }
}

fn view(snapshot: &Snapshot) -> View {
    let mut lines = vec![0.0; snapshot.nodes.len()];
    for page in &snapshot.pages {
        if let Some(home) = snapshot.node_position(page.home) {
            lines[home] += (page.reads.total() + 2 * page.writes.total()) as f64;
        }
    }
    View {
        local_ratio: snapshot.sampled_local_access_ratio(),
        shares: metrics::shares(&lines),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::ids::{NodeId, Pid};
    use hither_core::snapshot::{Evidence, GlobalMetrics, NodeCounts, NodeState, PageStats};

    fn snapshot(rate: f64, samples: &[(u32, usize, u32)]) -> Snapshot {
        let node = |id| NodeState {
            id: NodeId(id),
            cpu_count: 1,
            free_bytes: 0,
            total_bytes: 0,
            read_bytes: Evidence::measured(640, "test"),
            write_bytes: Evidence::measured(0, "test"),
            utilisation: Evidence::unknown("test"),
        };
        let mut metrics = GlobalMetrics::unknown("test");
        metrics.memory_accesses_per_us = Evidence::measured(rate, "test");
        metrics.local_access_ratio = Evidence::measured(0.5, "test");
        let page = |(index, &(home, from, reads)): (usize, &(u32, usize, u32))| {
            let mut counts = NodeCounts::new();
            counts.add(from, reads);
            let (page, home) = (index as u64, NodeId(home));
            PageStats {
                pid: Pid(1),
                page,
                home,
                reads: counts,
                writes: NodeCounts::new(),
                huge: false,
            }
        };
        let count = samples.iter().map(|&(.., reads)| u64::from(reads)).sum();
        Snapshot {
            now_us: 0,
            interval_us: 1000,
            nodes: vec![node(0), node(4)],
            distances: Vec::new(),
            metrics,
            pages: samples.iter().enumerate().map(page).collect(),
            sample_count: Evidence::measured(count, "test"),
            sample_period: 10,
            samples_lost: 0,
            processes: Vec::new(),
        }
    }

    #[test]
    fn intervals_count_by_their_accesses() {
        let mut estimate = Estimate::new(2);
        // 100 samples on node0, 75 of them local: ratio 0.75, weight 1 * 1000.
        estimate.add(&snapshot(1.0, &[(0, 0, 75), (0, 1, 25)]), false);
        // 100 samples on node4 (position 1), all local: ratio 1, weight 3 * 1000.
        estimate.add(&snapshot(3.0, &[(4, 1, 100)]), false);
        // No samples: the last view counts, weight 4 * 1000.
        estimate.add(&snapshot(4.0, &[]), false);
        let sampled = estimate.sampled();
        assert_eq!((sampled.sample_count, sampled.interval_count), (200, 2));
        // (0.75 * 1 + 1 * 3 + 1 * 4) / 8 = 0.96875.
        assert_eq!(sampled.local_access_ratio, Some(0.96875));
        // Traffic 1 : 7, mean 4, deviation sqrt(18), over the mean 1.0607.
        assert!((sampled.controller_imbalance.unwrap() - 18f64.sqrt() / 4.0).abs() < 1e-12);
        assert_eq!(estimate.whole().local_access_ratio, Some(0.5));
        assert_eq!(estimate.whole().controller_imbalance, Some(0.0));
        assert_eq!(estimate.after(), None);
    }

    #[test]
    fn after_begins_anew_with_every_move() {
        let mut estimate = Estimate::new(2);
        estimate.add(&snapshot(1.0, &[]), false);
        estimate.add(&snapshot(1.0, &[]), true);
        estimate.add(&snapshot(1.0, &[]), false);
        estimate.add(&snapshot(1.0, &[]), true);
        estimate.add(&snapshot(2.0, &[]), false);
        assert_eq!(estimate.before().seconds, 0.001);
        let after = estimate.after().unwrap();
        assert_eq!(
            (after.seconds, after.memory_accesses_per_us),
            (0.001, Some(2.0))
        );
    }
}
