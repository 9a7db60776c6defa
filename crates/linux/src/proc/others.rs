//! Who else uses the machine: CPU time of processes that are not watched.
//!
//! Counters of the whole machine tell of the watched processes only while nobody else does much.
//! `/proc/stat` is long on large machines, so it is read once a second at most.

use super::cpu_times;
use super::stat::TICKS_PER_SECOND;
use crate::root::Root;
use hither_core::snapshot::Evidence;

/// Time between two readings, in us: a hundred ticks of each CPU, so that what is counted by ticks
/// is told well enough.
const READ_US: u64 = 1_000_000;

/// The account since the last reading.
#[derive(Debug, Default)]
pub struct Others {
    /// When `/proc/stat` was read, and the busy time that it told, in us.
    last: Option<(u64, u64)>,
    /// CPU time of the watched processes and of hither since then, in us.
    known_us: u64,
    share: Option<f64>,
}

impl Others {
    /// Takes in an interval in which the watched and hither used so much CPU time together; returns
    /// the share of all CPU time that was neither's.
    pub fn take(&mut self, root: &Root, now_us: u64, known_us: u64) -> Evidence<f64> {
        self.known_us += known_us;
        let is_due = self
            .last
            .is_none_or(|(at_us, _)| now_us.saturating_sub(at_us) >= READ_US);
        if is_due {
            let Ok(cpus) = root.parse("proc/stat", cpu_times::parse) else {
                return Evidence::unknown("/proc/stat cannot be read");
            };
            let ticks: u64 = cpus.values().map(|times| times.busy).sum();
            let busy_us = ticks.saturating_mul(1_000_000 / TICKS_PER_SECOND);
            if let Some((_, before_us)) = self.last.replace((now_us, busy_us)) {
                self.share = share(busy_us.saturating_sub(before_us), self.known_us);
            }
            self.known_us = 0;
        }
        match self.share {
            Some(share) => Evidence::measured(share, "/proc/stat and /proc/PID/stat"),
            None => Evidence::unknown("nothing was counted yet"),
        }
    }
}

/// The share of `busy_us` that is not known; `None` where nothing was used.
fn share(busy_us: u64, known_us: u64) -> Option<f64> {
    let others_us = busy_us.saturating_sub(known_us);
    (busy_us > 0).then(|| others_us as f64 / busy_us as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_accounts_for_was_used_by_others() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("proc")).unwrap();
        let tell = |busy: [u64; 2]| {
            let text = format!(
                "cpu 9 9 9 9\ncpu0 {} 0 0 50 0\ncpu1 {} 0 0 9\n",
                busy[0], busy[1]
            );
            std::fs::write(folder.path().join("proc/stat"), text).unwrap();
        };
        let root = Root::new(folder.path());
        let mut others = Others::default();
        tell([100, 100]);
        assert_eq!(others.take(&root, 5_000_000, 77).get(), None);
        assert_eq!(others.take(&root, 5_500_000, 600_000).get(), None);
        // A second later 2 s of CPU time were used, 1.5 s of it by the watched.
        tell([200, 200]);
        assert_eq!(others.take(&root, 6_000_000, 900_000).get(), Some(0.25));
        assert_eq!(others.take(&root, 6_900_000, 0).get(), Some(0.25));
        // Ticks may tell less than was used.
        tell([250, 200]);
        assert_eq!(others.take(&root, 7_000_000, 600_000).get(), Some(0.0));
    }
}
