//! Ranks drawn by Zipf's law, cheaply: an interpolated inverse of the cumulative distribution.
//!
//! P(rank r) is proportional to 1 / (r + 1)^exponent. Drawing exactly takes logarithms; here the
//! inverse of the cumulative distribution is tabulated at equal steps of probability, and a draw
//! interpolates between two of them: a table that fits a first-level cache and a few integer
//! instructions. Ranks whose probability is above a step keep it to within a step; rarer ones
//! share that of their neighbours.

use crate::random::FastRandom;

/// Steps of probability.
const STEPS: usize = 4096;
/// Fraction bits of a tabulated rank.
const FRACTION: u32 = 24;

/// A distribution over ranks `0..count`.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// The inverse at `i / STEPS`, in fixed point; one more entry closes the last step.
    inverse: Vec<u64>,
    count: u64,
}

impl Zipf {
    /// A distribution over `count` ranks (1 to 2^32).
    ///
    /// # Panics
    /// Where `count` is 0 or above 2^32.
    #[must_use]
    pub fn new(count: u64, exponent: f64) -> Self {
        assert!((1..=1 << 32).contains(&count), "{count} ranks");
        let weight = |rank: u64| ((rank + 1) as f64).powf(-exponent);
        let total: f64 = (0..count).map(weight).sum();
        let mut inverse = Vec::with_capacity(STEPS + 1);
        let mut below = 0.0;
        for rank in 0..count {
            let share = weight(rank) / total;
            while inverse.len() < STEPS {
                let probability = inverse.len() as f64 / STEPS as f64;
                if probability >= below + share {
                    break;
                }
                let position = rank as f64 + (probability - below) / share;
                inverse.push((position * f64::from(1u32 << FRACTION)) as u64);
            }
            below += share;
        }
        inverse.resize(STEPS + 1, count << FRACTION);
        Self { inverse, count }
    }

    /// Draws a rank.
    #[inline]
    pub fn draw(&self, random: &mut FastRandom) -> u64 {
        let bits = random.next_u64();
        let step = (bits >> 52) as usize;
        let (low, high) = (self.inverse[step], self.inverse[step + 1]);
        let within = (bits & 0xffff_ffff) as u128;
        let position = low + ((u128::from(high - low) * within) >> 32) as u64;
        (position >> FRACTION).min(self.count - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_follow_the_law() {
        let (count, exponent, draws) = (10_000u64, 0.99, 1_000_000u32);
        let zipf = Zipf::new(count, exponent);
        let mut random = FastRandom::new(1);
        let mut seen = vec![0u32; count as usize];
        for _ in 0..draws {
            seen[zipf.draw(&mut random) as usize] += 1;
        }
        let total: f64 = (1..=count).map(|rank| (rank as f64).powf(-exponent)).sum();
        let expected = |rank: u64| f64::from(draws) * ((rank + 1) as f64).powf(-exponent) / total;
        // A rank's share is right to one step, 1/4096 of the draws, plus noise of 4 sigma.
        for rank in 0..20 {
            let (got, want) = (f64::from(seen[rank as usize]), expected(rank));
            let slack = f64::from(draws) / STEPS as f64 + 4.0 * want.sqrt();
            assert!(
                (got - want).abs() < slack,
                "rank {rank}: {got} instead of {want}"
            );
        }
        // Groups of rare ranks are right as groups.
        for group in [100u64..200, 1000..2000, 5000..10_000] {
            let got: f64 = group
                .clone()
                .map(|rank| f64::from(seen[rank as usize]))
                .sum();
            let want: f64 = group.clone().map(expected).sum();
            assert!(
                (got / want - 1.0).abs() < 0.03,
                "{group:?}: {got} instead of {want}"
            );
        }
    }

    #[test]
    fn few_ranks_and_no_skew_work() {
        let mut random = FastRandom::new(2);
        let one = Zipf::new(1, 0.99);
        assert!((0..100).all(|_| one.draw(&mut random) == 0));
        let even = Zipf::new(4, 0.0);
        let mut seen = [0u32; 4];
        for _ in 0..40_000 {
            seen[even.draw(&mut random) as usize] += 1;
        }
        assert!(
            seen.iter().all(|count| (9_500..10_500).contains(count)),
            "{seen:?}"
        );
    }
}
