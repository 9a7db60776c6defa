//! Access and idle time of a region (thesis, 2.3.1 and figure 17), and who uses it.
//!
//! The thesis closes the region that is left and sees every entry. Of samples an *entry* is a touch whose
//! thread was in another region at its touch before: visits in which nothing was sampled are missed, so
//! that entries are too few and times too long where there are less than a few samples for each visit. The
//! time between two touches of a thread belongs to the region of both, or half to each.

/// Threads of a region that are counted; others replace the least.
const MOST_THREADS: usize = 8;
/// Share of a region's touches that one thread makes at least where it is that thread's.
const ONE_THREAD: f64 = 0.95;

/// What is known of visits to a region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Visits {
    /// Entries since it was formed.
    pub entry_count: u64,
    /// When it was last touched; 0 before that.
    last_ns: u64,
    /// Entries, time in it and time out of it, newer ones count more.
    entries: f64,
    access_ns: f64,
    idles: f64,
    idle_ns: f64,
    threads: Vec<(i32, f64)>,
    has_unknown: bool,
}

impl Visits {
    /// A thread touched it.
    pub fn touch(&mut self, time_ns: u64, thread: Option<i32>) {
        self.last_ns = self.last_ns.max(time_ns);
        let Some(thread) = thread else {
            self.has_unknown = true;
            return;
        };
        if let Some(known) = self.threads.iter_mut().find(|known| known.0 == thread) {
            known.1 += 1.0;
        } else if self.threads.len() < MOST_THREADS {
            self.threads.push((thread, 1.0));
        } else if let Some(least) = self.threads.iter_mut().min_by(|a, b| a.1.total_cmp(&b.1)) {
            // What it had is kept, so that no thread is counted too low (space saving).
            *least = (thread, least.1 + 1.0);
        }
    }

    /// A thread that was elsewhere comes in.
    pub fn enter(&mut self, time_ns: u64) {
        self.entry_count += 1;
        self.entries += 1.0;
        if self.last_ns > 0 {
            self.idles += 1.0;
            self.idle_ns += time_ns.saturating_sub(self.last_ns) as f64;
        }
    }

    /// A thread was in it for so long.
    pub fn stay(&mut self, ns: u64) {
        self.access_ns += ns as f64;
    }

    /// What was counts less from now on.
    pub fn fade(&mut self, factor: f64) {
        let sums = [
            &mut self.entries,
            &mut self.access_ns,
            &mut self.idles,
            &mut self.idle_ns,
        ];
        for sum in sums {
            *sum *= factor;
        }
        for thread in &mut self.threads {
            thread.1 *= factor;
        }
        self.threads.retain(|thread| thread.1 > 0.1);
    }

    /// Mean time from an entry until a thread leaves.
    pub fn access_ns(&self) -> Option<f64> {
        (self.entries > 0.0).then(|| self.access_ns / self.entries)
    }

    /// Mean time from the last touch of anybody to the next entry.
    pub fn idle_ns(&self) -> Option<f64> {
        (self.idles > 0.0).then(|| self.idle_ns / self.idles)
    }

    /// Is it one thread's? Unknown where threads are.
    pub fn is_one_threads(&self) -> Option<bool> {
        let all: f64 = self.threads.iter().map(|thread| thread.1).sum();
        let most = self
            .threads
            .iter()
            .map(|thread| thread.1)
            .fold(0.0, f64::max);
        (!self.has_unknown && all > 0.0).then_some(most >= ONE_THREAD * all)
    }

    /// Threads that make a twentieth of its touches and more, the busiest first.
    pub fn threads(&self) -> Vec<i32> {
        let all: f64 = self.threads.iter().map(|thread| thread.1).sum();
        let mut threads = self.threads.clone();
        threads.retain(|thread| thread.1 >= (1.0 - ONE_THREAD) * all);
        threads.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
        threads.into_iter().map(|thread| thread.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_means_over_entries() {
        let mut visits = Visits::default();
        assert_eq!((visits.access_ns(), visits.idle_ns()), (None, None));
        // In at 10, out at 40, in again at 100, out at 110.
        visits.enter(10);
        visits.touch(10, Some(1));
        visits.stay(30);
        visits.touch(40, Some(1));
        visits.enter(100);
        visits.touch(100, Some(1));
        visits.stay(10);
        assert_eq!(
            (visits.access_ns(), visits.idle_ns()),
            (Some(20.0), Some(60.0))
        );
        assert_eq!(visits.entry_count, 2);
        // Means do not depend on how often it faded.
        visits.fade(0.5);
        assert_eq!(visits.idle_ns(), Some(60.0));
    }

    #[test]
    fn a_region_is_a_threads_or_several_or_it_is_not_known() {
        let mut visits = Visits::default();
        for touch in 0..100 {
            visits.touch(touch, Some(if touch % 25 == 0 { 8 } else { 7 }));
        }
        assert_eq!(
            (visits.is_one_threads(), visits.threads()),
            (Some(true), vec![7])
        );
        for touch in 0..20 {
            visits.touch(touch, Some(9));
        }
        assert_eq!(
            (visits.is_one_threads(), visits.threads()),
            (Some(false), vec![7, 9])
        );
        visits.touch(1, None);
        assert_eq!(visits.is_one_threads(), None);
    }

    #[test]
    fn few_threads_are_remembered_of_many() {
        let mut visits = Visits::default();
        for touch in 0..1000 {
            visits.touch(touch, Some(touch as i32 % 100));
            visits.touch(touch, Some(1000));
        }
        assert!(visits.threads.len() <= MOST_THREADS);
        assert_eq!(visits.threads()[0], 1000);
    }
}
