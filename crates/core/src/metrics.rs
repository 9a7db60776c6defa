//! The words of the measurements as pure functions.
//!
//! Definitions after Carrefour (section "NUMA performance"), made exact: imbalance is the deviation
//! of all nodes (the *population's*) over their mean, so that all traffic on one of four nodes reads
//! 173 % and on one of two nodes 100 %. The paper's table 1 has 170 % for the former, which can be
//! no other; the authors' later code divides by one less.

/// The sum; of nothing 0, where [`Iterator::sum`] gives -0.
#[must_use]
pub fn total(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(0.0, |sum, value| sum + value)
}

/// Share of fills that the requester's own node served, 0..=1; `None` without any fill.
#[must_use]
pub fn local_access_ratio(local_count: u64, all_count: u64) -> Option<f64> {
    (all_count > 0).then(|| local_count as f64 / all_count as f64)
}

/// Standard deviation (of the population) over mean: 0 is even, the square root of one less than the
/// count is all on one.
/// `None` for fewer than two values, or where their sum is not above zero.
#[must_use]
pub fn imbalance(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 || !mean.is_finite() || mean <= 0.0 {
        return None;
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / count).sqrt() / mean)
}

/// Memory fills per us (MAPTU); `None` for an empty interval.
#[must_use]
pub fn accesses_per_us(fill_count: u64, interval_us: u64) -> Option<f64> {
    (interval_us > 0).then(|| fill_count as f64 / interval_us as f64)
}

/// Mean latency of demand misses in ns; `None` without a miss.
#[must_use]
pub fn mean_latency_ns(latency_sum_ns: u64, miss_count: u64) -> Option<f64> {
    (miss_count > 0).then(|| latency_sum_ns as f64 / miss_count as f64)
}

/// Sampled loads from which a mean latency is told: of a stream's program a few are sampled whose line was not
/// on its way, and they say nothing of its waits.
pub const LEAST_LOADS: u64 = 30;

/// Mean latency of sampled loads; `None` where they are fewer than [`LEAST_LOADS`].
#[must_use]
pub fn sampled_latency_ns(latency_sum_ns: f64, load_count: u64) -> Option<f64> {
    (load_count >= LEAST_LOADS).then(|| latency_sum_ns / load_count as f64)
}

/// Last-level misses per 1000 instructions; `None` without an instruction.
#[must_use]
pub fn misses_per_kilo_instruction(miss_count: u64, instruction_count: u64) -> Option<f64> {
    (instruction_count > 0).then(|| miss_count as f64 * 1000.0 / instruction_count as f64)
}

/// Instructions per cycle; `None` without a cycle.
#[must_use]
pub fn instructions_per_cycle(instruction_count: u64, busy_ns: u64, ghz: f64) -> Option<f64> {
    let cycles = busy_ns as f64 * ghz;
    (cycles > 0.0).then(|| instruction_count as f64 / cycles)
}

/// Share of reads among accesses; `None` without any.
#[must_use]
pub fn read_share(read_count: u64, write_count: u64) -> Option<f64> {
    let all = read_count + write_count;
    (all > 0).then(|| read_count as f64 / all as f64)
}

/// Each value's share of the sum; all zero where the sum is not above zero.
#[must_use]
pub fn shares(values: &[f64]) -> Vec<f64> {
    let sum: f64 = values.iter().sum();
    let scale = if sum.is_finite() && sum > 0.0 {
        1.0 / sum
    } else {
        0.0
    };
    values.iter().map(|value| value * scale).collect()
}

/// How different two distributions of counts are: half the sum of the differences of their shares, 0 for
/// the same and 1 where they have nothing in common. Positions that one lacks count as zero.
#[must_use]
pub fn total_variation(a: &[f64], b: &[f64]) -> f64 {
    let (a, b) = (shares(a), shares(b));
    let at = |values: &[f64], position: usize| values.get(position).copied().unwrap_or(0.0);
    let differences = (0..a.len().max(b.len())).map(|i| (at(&a, i) - at(&b, i)).abs());
    differences.sum::<f64>() / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn imbalance_by_hand() {
        // One of four: mean 1, deviations 3,-1,-1,-1, squares 12, /4 = 3, root 1.732: 173 %.
        assert_eq!(imbalance(&[4.0, 0.0, 0.0, 0.0]), Some(3f64.sqrt()));
        // One of two: mean 1, deviations 1,-1, squares 2, /2 = 1: 100 %.
        assert_eq!(imbalance(&[2.0, 0.0]), Some(1.0));
        // 3,5: mean 4, squares 2, /2 = 1, over 4: 25 %.
        assert_eq!(imbalance(&[3.0, 5.0]), Some(0.25));
        assert_eq!(imbalance(&[7.0, 7.0, 7.0]), Some(0.0));
        assert_eq!(imbalance(&[7.0]), None);
        assert_eq!(imbalance(&[0.0, 0.0]), None);
        assert_eq!(imbalance(&[]), None);
        assert_eq!(imbalance(&[f64::NAN, 1.0]), None);
    }

    #[test]
    fn ratios_by_hand() {
        assert_eq!(local_access_ratio(25, 100), Some(0.25));
        assert_eq!(local_access_ratio(0, 0), None);
        // 5 million fills in 100 ms are 50 per us.
        assert_eq!(accesses_per_us(5_000_000, 100_000), Some(50.0));
        assert_eq!(accesses_per_us(1, 0), None);
        assert_eq!(mean_latency_ns(1197, 3), Some(399.0));
        assert_eq!(
            [29, 30].map(|loads| sampled_latency_ns(3000.0, loads)),
            [None, Some(100.0)]
        );
        assert_eq!(misses_per_kilo_instruction(1685, 100_000), Some(16.85));
        // 100 instructions in 150 ns at 2 GHz = 300 cycles.
        assert_eq!(instructions_per_cycle(100, 150, 2.0), Some(1.0 / 3.0));
        assert_eq!(read_share(95, 5), Some(0.95));
        assert_eq!(shares(&[1.0, 3.0]), [0.25, 0.75]);
        assert_eq!(shares(&[0.0, 0.0]), [0.0, 0.0]);
        // 25 and 75 % against 50 and 50 %: a quarter has gone over.
        assert_eq!(total_variation(&[1.0, 3.0], &[5.0, 5.0]), 0.25);
        assert_eq!(total_variation(&[7.0], &[0.0, 2.0]), 1.0);
    }

    proptest! {
        #[test]
        fn imbalance_is_between_even_and_all_on_one(values in proptest::collection::vec(0.0f64..1e9, 2..9)) {
            if let Some(got) = imbalance(&values) {
                prop_assert!(got >= 0.0);
                prop_assert!(got <= (values.len() as f64 - 1.0).sqrt() + 1e-9);
            }
        }
    }
}
