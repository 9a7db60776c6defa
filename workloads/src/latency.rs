//! Latencies by second, or by another period: counts in steps that grow with the value, so that a quantile is right to an eighth.

use std::time::Duration;

/// log2 of the steps between two powers of two.
const STEP_BITS: u32 = 3;
/// Steps up to 2^40 ns, 18 minutes.
const STEPS: usize = (40 - STEP_BITS as usize + 1) << STEP_BITS;

/// Of one thread or of all.
#[derive(Clone, Debug)]
pub struct Latencies {
    period: Duration,
    seconds: Vec<Second>,
}

impl Default for Latencies {
    fn default() -> Self {
        Self::by(Duration::from_secs(1))
    }
}

#[derive(Clone, Debug)]
struct Second {
    sum_ns: u64,
    steps: Vec<u32>,
}

impl Default for Second {
    fn default() -> Self {
        Self {
            sum_ns: 0,
            steps: vec![0; STEPS],
        }
    }
}

impl Second {
    fn merge(&mut self, other: &Self) {
        self.sum_ns += other.sum_ns;
        for (own, more) in self.steps.iter_mut().zip(&other.steps) {
            *own += more;
        }
    }
}

impl Latencies {
    /// By periods of another length: what is told of seconds below holds for them.
    #[must_use]
    pub fn by(period: Duration) -> Self {
        Self {
            period,
            seconds: Vec::new(),
        }
    }

    /// The period in which a time lies, counted from 0.
    #[must_use]
    pub fn period_of(&self, at: Duration) -> usize {
        (at.as_nanos() / self.period.as_nanos().max(1)) as usize
    }

    /// Adds a request that ended at `at` and took `took`.
    pub fn add(&mut self, at: Duration, took: Duration) {
        let second = self.period_of(at);
        if second >= self.seconds.len() {
            self.seconds.resize_with(second + 1, Second::default);
        }
        let second = &mut self.seconds[second];
        let ns = took.as_nanos() as u64;
        second.sum_ns += ns;
        second.steps[step(ns)] += 1;
    }

    /// Adds another thread's.
    pub fn merge(&mut self, other: &Self) {
        let longest = self.seconds.len().max(other.seconds.len());
        self.seconds.resize_with(longest, Second::default);
        for (own, more) in self.seconds.iter_mut().zip(&other.seconds) {
            own.merge(more);
        }
    }

    /// Adds another thread's of one second.
    pub fn merge_second(&mut self, other: &Self, second: usize) {
        let Some(more) = other.seconds.get(second) else {
            return;
        };
        if second >= self.seconds.len() {
            self.seconds.resize_with(second + 1, Second::default);
        }
        self.seconds[second].merge(more);
    }

    /// Requests that ended in a second, counted from 0.
    #[must_use]
    pub fn requests(&self, second: usize) -> u64 {
        let steps = self.seconds.get(second).map(|second| second.steps.iter());
        steps.map_or(0, |steps| steps.map(|&count| u64::from(count)).sum())
    }

    /// Requests of all seconds.
    #[must_use]
    pub fn total(&self) -> u64 {
        (0..self.seconds.len())
            .map(|second| self.requests(second))
            .sum()
    }

    /// What a server tells of a second.
    #[must_use]
    pub fn line(&self, second: usize) -> String {
        format!(
            "requests {} mean_us {} p50_us {} p99_us {}",
            self.requests(second),
            in_us(self.mean_ns(second)),
            in_us(self.quantile_ns(second, 0.5)),
            in_us(self.quantile_ns(second, 0.99)),
        )
    }

    /// All seconds as one.
    #[must_use]
    pub fn as_one(&self) -> Self {
        let mut all = Second::default();
        self.seconds.iter().for_each(|second| all.merge(second));
        Self {
            period: self.period,
            seconds: vec![all],
        }
    }

    /// Mean latency in ns; `None` without requests.
    #[must_use]
    pub fn mean_ns(&self, second: usize) -> Option<f64> {
        let count = self.requests(second);
        let sum = self.seconds.get(second)?.sum_ns;
        (count > 0).then(|| sum as f64 / count as f64)
    }

    /// The latency in ns that so large a share of requests did not exceed, an eighth more at most; `None`
    /// without requests.
    #[must_use]
    pub fn quantile_ns(&self, second: usize, share: f64) -> Option<f64> {
        let count = self.requests(second);
        let wanted = (count as f64 * share).ceil() as u64;
        let mut seen = 0;
        let steps = self.seconds.get(second)?.steps.iter();
        let found = steps.enumerate().find(|&(_, &count)| {
            seen += u64::from(count);
            seen >= wanted && seen > 0
        });
        found.map(|(step, _)| end_ns(step))
    }
}

/// As it is printed; `-` where there is none.
#[must_use]
pub fn in_us(ns: Option<f64>) -> String {
    ns.map_or("-".to_owned(), |ns| format!("{:.1}", ns / 1e3))
}

/// The step of a value: the position of its highest bit and the bits after that.
fn step(ns: u64) -> usize {
    let ns = ns.max(1 << STEP_BITS);
    let power = ns.ilog2();
    let within = (ns >> (power - STEP_BITS)) as usize - (1 << STEP_BITS);
    let step = ((power - STEP_BITS) as usize) << STEP_BITS | within;
    step.min(STEPS - 1)
}

/// The end of a step in ns.
fn end_ns(step: usize) -> f64 {
    let (power, within) = (step >> STEP_BITS, step & ((1 << STEP_BITS) - 1));
    ((1 << STEP_BITS) + within + 1) as f64 * (power as f64).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_ends_at_most_an_eighth_above_what_it_holds() {
        for ns in [8u64, 9, 15, 16, 100, 1000, 12_345, 999_999_999] {
            let end = end_ns(step(ns));
            assert!(
                end > ns as f64 && end <= ns as f64 * 1.125 + 1e-9,
                "{ns}: {end}"
            );
        }
        assert_eq!(step(0), step(8));
        assert_eq!(step(u64::MAX), STEPS - 1);
    }

    #[test]
    fn mean_and_quantile_of_a_second() {
        let mut one = Latencies::default();
        for ns in 1..=99 {
            one.add(Duration::from_millis(1500), Duration::from_nanos(ns * 1000));
        }
        let mut other = Latencies::default();
        other.add(Duration::from_millis(1999), Duration::from_micros(100));
        other.add(Duration::from_millis(2000), Duration::from_micros(7));
        one.merge(&other);
        assert_eq!(
            (one.requests(0), one.requests(1), one.total()),
            (0, 100, 101)
        );
        assert_eq!(one.mean_ns(1), Some(50_500.0));
        let p99 = one.quantile_ns(1, 0.99).unwrap();
        assert!((99_000.0..=99_000.0 * 1.125).contains(&p99), "{p99}");
        assert_eq!((one.mean_ns(0), one.quantile_ns(0, 0.99)), (None, None));
        assert_eq!(one.quantile_ns(9, 0.99), None);
    }

    #[test]
    fn other_periods_than_seconds() {
        let mut tenths = Latencies::by(Duration::from_millis(100));
        tenths.add(Duration::from_millis(250), Duration::from_micros(7));
        assert_eq!((tenths.requests(1), tenths.requests(2)), (0, 1));
        assert_eq!(tenths.period_of(Duration::from_millis(299)), 2);
    }
}
