//! What an interval's samples say of the whole machine, each counted where it was taken.
//!
//! Page statistics name one home per page, its latest: of a page that moved, samples from before
//! the move would count as if they had been taken after it. So local accesses and traffic are
//! summed here, sample by sample, as they are read. Samples of anybody count, watched or not,
//! because the machine's counters, which they are compared with, count everybody's. The kernel's
//! count as traffic only: moving pages is traffic too.
//!
//! Each sample stands for as many fills as the period was when it was taken: the period may change
//! within an interval, which begins when the samples are read and not when the plan is made.

/// Sums of one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleView {
    /// Samples in user mode.
    pub sample_count: u64,
    /// Memory fills that they stand for.
    pub fills: f64,
    /// Memory fills in any mode, the kernel's included.
    pub all_fills: f64,
    /// Those of them served by the requesting CPU's own node.
    pub local_fills: f64,
    /// Lines to and from each node, by snapshot position, the kernel's included: one per fill for
    /// a load, two for a store (the fill, and the write-back that follows it sooner or later).
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

    /// Adds a sample in user mode that stands for `fills`, taken by node position `from` of node
    /// position `home`.
    pub fn add(&mut self, fills: f64, from: usize, home: usize, write: bool) {
        self.sample_count += 1;
        self.fills += fills;
        if from == home {
            self.local_fills += fills;
        }
        self.add_traffic(fills, home, write);
    }

    /// Adds a sample of whatever mode to the traffic.
    pub fn add_traffic(&mut self, fills: f64, home: usize, write: bool) {
        self.all_fills += fills;
        if let Some(lines) = self.node_lines.get_mut(home) {
            *lines += if write { 2.0 * fills } else { fills };
        }
    }

    /// Adds `times` an interval of the same machine; its samples are not counted again.
    pub fn add_interval(&mut self, interval: &Self, times: f64) {
        self.fills += times * interval.fills;
        self.all_fills += times * interval.all_fills;
        self.local_fills += times * interval.local_fills;
        for (sum, lines) in self.node_lines.iter_mut().zip(&interval.node_lines) {
            *sum += times * lines;
        }
    }

    /// Local-access ratio; `None` without samples.
    #[must_use]
    pub fn local_ratio(&self) -> Option<f64> {
        (self.fills > 0.0).then(|| self.local_fills / self.fills)
    }
}

/// The period by time: its latest changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeriodInTime {
    /// `(time_ns, period from then on)`, latest first; a period of 0: sampling is off.
    changes: [(u64, u32); CHANGES],
}

/// An interval has two at most, one by its traffic and one by the plan, and the samples of the
/// one before may still lie in the rings.
const CHANGES: usize = 4;

impl PeriodInTime {
    /// A change at a time of the device's clock.
    pub fn change(&mut self, period: u32, time_ns: u64) {
        self.changes.rotate_right(1);
        self.changes[0] = (time_ns, period);
    }

    /// The period at which a sample of that time was taken, the oldest known where it is older
    /// still; never 0: what is sampled after sampling was switched off was taken at the period
    /// before, as vCPUs notice a little later.
    pub fn at(&self, time_ns: u64) -> u32 {
        // Nearly all samples are younger than the last change.
        let (since_ns, period) = self.changes[0];
        if since_ns <= time_ns && period > 0 {
            return period;
        }
        let on = || self.changes.iter().filter(|change| change.1 > 0);
        let latest = on().find(|change| change.0 <= time_ns);
        latest
            .or_else(|| on().next_back())
            .map_or(1, |change| change.1)
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
        view.add_traffic(50.0, 1, true);
        assert_eq!(view.local_ratio(), Some(0.2));
        assert_eq!(view.node_lines, [700.0, 100.0, 100.0]);
        assert_eq!((view.sample_count, view.fills), (3, 500.0));
        assert_eq!(view.all_fills, 550.0);
        view.begin(2);
        assert_eq!((view.local_ratio(), view.node_lines.len()), (None, 2));
    }

    #[test]
    fn the_period_changes_in_time() {
        let mut period = PeriodInTime::default();
        period.change(500, 0);
        period.change(9000, 1_000);
        assert_eq!([period.at(999), period.at(1_000)], [500, 9000]);
        // Another change in the same interval does not hide the first.
        period.change(700, 2_000);
        assert_eq!(
            [period.at(999), period.at(1_999), period.at(2_000)],
            [500, 9000, 700]
        );
        // Off: late samples were taken at what was before.
        period.change(0, 3_000);
        assert_eq!([period.at(2_999), period.at(3_001)], [700, 700]);
        period.change(800, 4_000);
        assert_eq!([period.at(3_999), period.at(4_000)], [700, 800]);
    }
}
