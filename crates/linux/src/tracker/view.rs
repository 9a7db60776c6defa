//! What an interval's samples say of the whole machine, each counted where it was taken.
//!
//! Page statistics name one home per page, its latest: of a page that moved, samples from before
//! the move would count as if they had been taken after it. So local accesses and traffic are
//! summed here, sample by sample, as they are read. Samples of anybody count, watched or not,
//! because the machine's counters, which they are compared with, count everybody's.
//!
//! Each sample stands for as many fills as the period was when it was taken: the period may change
//! within an interval, which begins when the samples are read and not when the plan is made.

/// Sums of one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleView {
    /// Samples.
    pub sample_count: u64,
    /// Memory fills that they stand for.
    pub fills: f64,
    /// Those of them served by the requesting CPU's own node.
    pub local_fills: f64,
    /// Lines to and from each node, by snapshot position: one per fill for a load, two for a store
    /// (the fill, and the write-back that follows it sooner or later).
    pub node_lines: Vec<f64>,
}

impl SampleView {
    /// Empties it, for a machine with so many nodes.
    pub fn begin(&mut self, nodes: usize) {
        let mut node_lines = std::mem::take(&mut self.node_lines);
        node_lines.clear();
        node_lines.resize(nodes, 0.0);
        *self = Self {
            node_lines,
            ..Self::default()
        };
    }

    /// Adds a sample that stands for `fills`, taken by node position `from` of node position
    /// `home`.
    pub fn add(&mut self, fills: f64, from: usize, home: usize, write: bool) {
        self.sample_count += 1;
        self.fills += fills;
        if from == home {
            self.local_fills += fills;
        }
        if let Some(lines) = self.node_lines.get_mut(home) {
            *lines += if write { 2.0 * fills } else { fills };
        }
    }

    /// Local-access ratio; `None` without samples.
    #[must_use]
    pub fn local_ratio(&self) -> Option<f64> {
        (self.fills > 0.0).then(|| self.local_fills / self.fills)
    }
}

/// The period by time: the latest change, and what was in force before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeriodInTime {
    before: u32,
    now: u32,
    changed_ns: u64,
}

impl PeriodInTime {
    /// A change at a time of the device's clock. Of several within one interval, the first and
    /// the last count.
    pub fn change(&mut self, period: u32, time_ns: u64) {
        (self.now, self.changed_ns) = (period, time_ns);
    }

    /// An interval begins: what was changed before it has long been noticed.
    pub fn begin(&mut self) {
        self.before = self.now;
    }

    /// The period at which a sample of that time was taken; never 0.
    pub fn at(&self, time_ns: u64) -> u32 {
        let (first, second) = match time_ns < self.changed_ns {
            true => (self.before, self.now),
            false => (self.now, self.before),
        };
        if first > 0 { first } else { second.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_count_where_they_were_taken_and_for_what_they_stand_for() {
        let mut view = SampleView::default();
        view.begin(3);
        view.add(100.0, 0, 0, false);
        view.add(300.0, 1, 0, true);
        view.add(100.0, 1, 2, false);
        assert_eq!(view.local_ratio(), Some(0.2));
        assert_eq!(view.node_lines, [700.0, 0.0, 100.0]);
        assert_eq!((view.sample_count, view.fills), (3, 500.0));
        view.begin(2);
        assert_eq!((view.local_ratio(), view.node_lines.len()), (None, 2));
    }

    #[test]
    fn the_period_changes_in_time() {
        let mut period = PeriodInTime::default();
        period.change(500, 0);
        period.begin();
        period.change(9000, 1_000);
        assert_eq!([period.at(999), period.at(1_000)], [500, 9000]);
        period.begin();
        assert_eq!(period.at(999), 9000);
        // Off: late samples were taken at what was before.
        period.change(0, 2_000);
        assert_eq!([period.at(1_999), period.at(2_001)], [9000, 9000]);
        period.begin();
        assert_eq!(period.at(3_000), 1);
    }
}
