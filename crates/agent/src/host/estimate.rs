//! What hither believed over a whole run: from samples, and from counters.
//!
//! Samples tell where an interval's fills went, the counters of the cores (not of the nodes) how
//! many there were: the number of samples tells that only to within its noise, which is largest
//! where sampling is cheap, before the first move. An interval in which the engine had sampling
//! switched off counts with the figures of the last one that had enough samples, by the counters'
//! number of accesses.

use hither_core::metrics;
use hither_core::snapshot::Snapshot;
use hither_linux::tracker::view::SampleView;
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
    /// Accesses, and the time of the intervals of which they are known.
    accesses: f64,
    told_us: u64,
}

impl Part {
    /// Adds an interval of so many accesses, so many of them in user mode.
    fn add(&mut self, snapshot: &Snapshot, accesses: f64, user: f64) {
        let metrics = &snapshot.metrics;
        self.local_ratio.add(metrics.local_access_ratio.get(), user);
        self.latency_ns.add(metrics.latency_ns.get(), accesses);
        self.link_use
            .add(metrics.link_use.get(), snapshot.interval_us as f64);
        self.traffic.resize(snapshot.nodes.len(), 0.0);
        // Where one node's is not known, all say nothing of how even they are.
        let bytes = snapshot.nodes.iter().map(|node| node.traffic_bytes());
        if let Some(bytes) = bytes.collect::<Option<Vec<u64>>>() {
            for (sum, bytes) in self.traffic.iter_mut().zip(bytes) {
                *sum += bytes as f64;
            }
        }
        self.interval_us += snapshot.interval_us;
        if metrics.memory_accesses_per_us.is_known() || snapshot.sample_count.is_known() {
            self.accesses += accesses;
            self.told_us += snapshot.interval_us;
        }
    }

    fn figures(&self) -> EstimatedFigures {
        EstimatedFigures {
            seconds: self.interval_us as f64 / 1e6,
            local_access_ratio: self.local_ratio.get(),
            controller_imbalance: metrics::imbalance(&self.traffic),
            latency_ns: self.latency_ns.get(),
            link_use: self.link_use.get(),
            memory_accesses_per_us: (self.told_us > 0).then(|| self.accesses / self.told_us as f64),
        }
    }
}

/// Figures of a part of the run, for the report. Ratios are fractions of 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EstimatedFigures {
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
    /// Samples of the program's pages; `None` where nothing sampled.
    pub sample_count: Option<u64>,
    /// Samples lost to full rings.
    pub lost_count: u64,
    /// Intervals with enough samples.
    pub interval_count: u64,
    /// As in [`EstimatedFigures`], estimated.
    pub local_access_ratio: Option<f64>,
    /// As in [`EstimatedFigures`], estimated.
    pub controller_imbalance: Option<f64>,
}

/// The running estimate.
#[derive(Clone, Debug, Default)]
pub struct Estimate {
    whole: Part,
    before: Part,
    after: Part,
    has_moved: bool,
    sampled: Sampled,
    /// All intervals.
    seen: SampleView,
    /// The latest interval with enough samples.
    latest: SampleView,
}

/// Fewer samples than this tell nothing of an interval that had none: the ratio of 64 is off by 6
/// points.
const LEAST_SAMPLES: u64 = 64;

impl Estimate {
    /// For a machine with so many nodes.
    #[must_use]
    pub fn new(node_count: usize) -> Self {
        let mut estimate = Self::default();
        estimate.seen.begin(node_count);
        estimate
    }

    /// Takes in an interval; `view`: what its samples say of the machine; `moved`: pages moved in
    /// it.
    pub fn add(&mut self, snapshot: &Snapshot, view: Option<&SampleView>, moved: bool) {
        let samples = snapshot.sample_count.get();
        let sampled = samples.unwrap_or(0) as f64 * f64::from(snapshot.sample_period);
        let rate = snapshot.metrics.memory_accesses_per_us.get();
        let accesses = rate.map_or(sampled, |rate| rate * snapshot.interval_us as f64);
        let view = samples.and(view);
        let user = view.map_or(accesses, |view| view.fills);
        self.whole.add(snapshot, accesses, user);
        if moved {
            self.has_moved = true;
            self.after = Part::default();
        } else if self.has_moved {
            self.after.add(snapshot, accesses, user);
        } else {
            self.before.add(snapshot, accesses, user);
        }
        if let Some(count) = samples {
            *self.sampled.sample_count.get_or_insert(0) += count;
        }
        self.sampled.lost_count += snapshot.samples_lost;
        match view {
            Some(view) => {
                let counted = rate.map_or(view.all_fills, |_| accesses);
                if view.all_fills > 0.0 {
                    self.seen.add_interval(view, counted / view.all_fills);
                }
                if view.sample_count >= LEAST_SAMPLES {
                    self.sampled.interval_count += 1;
                    self.latest.clone_from(view);
                }
            }
            None if self.latest.all_fills > 0.0 => {
                let times = accesses / self.latest.all_fills;
                self.seen.add_interval(&self.latest, times);
            }
            None => {} // nothing was seen before either
        }
    }

    /// What samples alone say of the whole run.
    #[must_use]
    pub fn sampled(&self) -> Sampled {
        Sampled {
            local_access_ratio: self.seen.local_ratio(),
            controller_imbalance: metrics::imbalance(&self.seen.node_lines),
            ..self.sampled
        }
    }

    /// Counters over the whole run.
    #[must_use]
    pub fn whole(&self) -> EstimatedFigures {
        self.whole.figures()
    }

    /// Counters before the first move.
    #[must_use]
    pub fn before(&self) -> EstimatedFigures {
        self.before.figures()
    }

    /// Counters after the last move; `None` where nothing moved.
    #[must_use]
    pub fn after(&self) -> Option<EstimatedFigures> {
        self.has_moved.then(|| self.after.figures())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::ids::NodeId;
    use hither_core::snapshot::{Evidence, GlobalMetrics, NodeState};

    fn snapshot(rate: f64) -> Snapshot {
        let node = |id| NodeState {
            id: NodeId(id),
            cpu_count: 1,
            free_bytes: 0,
            total_bytes: 0,
            cache_bytes: 0,
            idle_ns: None,
            rated: hither_core::snapshot::Rated::default(),
            latency_ns: None,
            read_bytes: Evidence::measured(640, "test"),
            write_bytes: Evidence::measured(0, "test"),
            utilisation: Evidence::unknown("test"),
        };
        let mut metrics = GlobalMetrics::unknown("test");
        metrics.memory_accesses_per_us = Evidence::measured(rate, "test");
        metrics.local_access_ratio = Evidence::measured(0.5, "test");
        Snapshot {
            now_us: 0,
            interval_us: 1000,
            nodes: vec![node(0), node(4)],
            caches: Vec::new(),
            distances: Vec::new(),
            metrics,
            pages: Vec::new(),
            present: Vec::new(),
            sample_count: Evidence::measured(100, "test"),
            sample_period: 10,
            samples_lost: 0,
            by_use: false,
            processes: Vec::new(),
            own_cpu_us: Evidence::unknown("test"),
        }
    }

    /// Samples of `(from, home, count)`, each standing for `fills`.
    fn view(fills: f64, samples: &[(usize, usize, u32)]) -> SampleView {
        let mut view = SampleView::default();
        view.begin(2);
        for &(from, home, count) in samples {
            (0..count).for_each(|_| view.add(fills, from, home, false));
        }
        view
    }

    #[test]
    fn intervals_count_by_their_accesses() {
        let mut estimate = Estimate::new(2);
        // 100 samples on the first node, 75 of them local: ratio 0.75. They stand for 1000 fills,
        // but the counters say 1500.
        let first = view(10.0, &[(0, 0, 75), (1, 0, 25)]);
        estimate.add(&snapshot(1.5), Some(&first), false);
        // 100 samples on the second, all local: ratio 1, 30 fills each.
        let second = view(30.0, &[(1, 1, 100)]);
        estimate.add(&snapshot(3.5), Some(&second), false);
        // Off: the last view counts, and the counters' 4 * 1000 accesses.
        let mut off = snapshot(4.0);
        off.sample_count = Evidence::unknown("test");
        estimate.add(&off, Some(&SampleView::default()), false);
        let sampled = estimate.sampled();
        assert_eq!(
            (sampled.sample_count, sampled.interval_count),
            (Some(200), 2)
        );
        // (0.75 * 1.5 + 1 * 3.5 + 1 * 4) / 9 = 0.9583.
        assert!((sampled.local_access_ratio.unwrap() - 8.625 / 9.0).abs() < 1e-12);
        // Traffic 1.5 : 7.5, mean 4.5, deviation 3, over the mean 0.6667.
        assert!((sampled.controller_imbalance.unwrap() - 3.0 / 4.5).abs() < 1e-12);
        assert_eq!(estimate.whole().local_access_ratio, Some(0.5));
        assert_eq!(estimate.whole().controller_imbalance, Some(0.0));
        assert_eq!(estimate.after(), None);
    }

    #[test]
    fn what_nobody_tells_stays_unknown() {
        let mut estimate = Estimate::new(2);
        let mut silent = snapshot(1.0);
        silent.metrics.memory_accesses_per_us = Evidence::unknown("test");
        silent.sample_count = Evidence::unknown("test");
        // One node's traffic alone says nothing of how even it is.
        silent.nodes[1].read_bytes = Evidence::unknown("test");
        estimate.add(&silent, None, false);
        let whole = estimate.whole();
        assert_eq!(
            (whole.memory_accesses_per_us, whole.controller_imbalance),
            (None, None)
        );
        assert_eq!(estimate.sampled().sample_count, None);
        // It does not count as an interval without accesses either.
        estimate.add(&snapshot(3.0), None, false);
        assert_eq!(estimate.whole().memory_accesses_per_us, Some(3.0));
    }

    #[test]
    fn after_begins_anew_with_every_move() {
        let mut estimate = Estimate::new(2);
        estimate.add(&snapshot(1.0), None, false);
        estimate.add(&snapshot(1.0), None, true);
        estimate.add(&snapshot(1.0), None, false);
        estimate.add(&snapshot(1.0), None, true);
        estimate.add(&snapshot(2.0), None, false);
        assert_eq!(estimate.before().seconds, 0.001);
        let after = estimate.after().unwrap();
        assert_eq!(
            (after.seconds, after.memory_accesses_per_us),
            (0.001, Some(2.0))
        );
    }
}
