//! What a program did in each second of its run.

use crate::cli::WorkloadReport;
use crate::hotspot::End;
use std::time::Duration;

/// Counts by second, of one thread or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series(Vec<u64>);

impl Series {
    /// Adds a count that fell into the second in which `at` lies.
    pub fn add(&mut self, at: Duration, count: u64) {
        let second = at.as_secs() as usize;
        if second >= self.0.len() {
            self.0.resize(second + 1, 0);
        }
        self.0[second] += count;
    }

    /// Adds another thread's.
    pub fn merge(&mut self, other: &Self) {
        let longest = self.0.len().max(other.0.len());
        self.0.resize(longest, 0);
        for (own, more) in self.0.iter_mut().zip(&other.0) {
            *own += more;
        }
    }

    /// Count of a second; 0 after the last.
    #[must_use]
    pub fn at(&self, second: usize) -> u64 {
        self.0.get(second).copied().unwrap_or(0)
    }

    /// Seconds to tell of: all of a run that ends by time, those that passed of another.
    #[must_use]
    pub fn whole_seconds(&self, end: &End) -> u64 {
        match end.updates {
            Some(_) => self.0.len() as u64,
            None => end.limit.as_secs(),
        }
    }

    /// All counts together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// Adds a line `second: N TEXT` for each whole second of a run; N counts from 1.
#[must_use]
pub fn lines(
    report: WorkloadReport,
    seconds: u64,
    text: impl Fn(usize) -> String,
) -> WorkloadReport {
    (0..seconds).fold(report, |report, second| {
        let line = format!("{} {}", second + 1, text(second as usize));
        report.line("second", line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_fall_into_their_seconds() {
        let mut one = Series::default();
        one.add(Duration::from_millis(900), 3);
        one.add(Duration::from_millis(1000), 4);
        let mut other = Series::default();
        other.add(Duration::from_millis(2500), 5);
        one.merge(&other);
        assert_eq!([one.at(0), one.at(1), one.at(2), one.at(3)], [3, 4, 5, 0]);
        assert_eq!(one.total(), 12);
        let text = lines(WorkloadReport::new("title".into()), 2, |second| {
            format!("updates {}", one.at(second))
        });
        assert_eq!(
            text.text(),
            "title\nsecond: 1 updates 3\nsecond: 2 updates 4\n"
        );
    }
}
