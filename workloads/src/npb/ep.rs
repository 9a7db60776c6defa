//! Embarrassingly parallel: pairs of random numbers, accepted into Gaussian deviates, and their sums.
//!
//! A round fills an array with uniform numbers and then reads it in pairs, by the polar method of NPB's
//! EP: a pair within the unit circle gives two deviates, whose sums and whose largest magnitudes
//! are kept. Every second number of the generator is left out: with all of them a pair would take
//! fewer operations than the paper's ratio says. The logarithm is a series, to full precision, as a
//! library's differs from machine to machine.
//!
//! **Work** for n pairs of which a are accepted. Operations: 62 n for the random numbers (four steps and
//! two fractions), 7 n for the test, 35 a for the deviates. Bytes read: 32 n (16 fetched to be
//! written, 16 read again); written: 16 n. So it is where the array exceeds the cache; where it does
//! not, as at the default scale, there is hardly any traffic.

use super::randlc::{FRACTION_FLOPS, Randlc, STEP_FLOPS};
use super::real::Real;
use super::table::Work;
use super::{Kernel, Words};
use crate::cli::Failure;
use crate::memory::FirstNode;
use crate::random::mix;
use crate::team::{Member, part};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Steps of the generator per number used.
const STEPS: u64 = 2;
/// Sums are kept for so many parts of the pairs, so that they do not depend on threads.
const PARTS: usize = 64;
/// Counts of deviates by their magnitude.
const RINGS: usize = 10;
const TEST_FLOPS: u64 = 7;
const ACCEPT_FLOPS: u64 = 35;
/// Terms of the logarithm's series after the first.
const TERMS: usize = 10;

/// The kernel.
pub struct Ep {
    words: Words,
    pairs: usize,
    sums: Vec<Sums>,
}

/// What a part has found.
#[derive(Default)]
struct Sums {
    x: AtomicU64,
    y: AtomicU64,
    accepted: AtomicU64,
    rings: [AtomicU64; RINGS],
}

impl Kernel for Ep {
    const NAME: &'static str = "ep";

    fn new(bytes: usize, _: usize, start: FirstNode) -> Result<Self, Failure> {
        let pairs = bytes / 16;
        Ok(Self {
            words: Words::new(2 * pairs, start)?,
            pairs,
            sums: (0..PARTS).map(|_| Sums::default()).collect(),
        })
    }

    fn words(&self) -> &Words {
        &self.words
    }

    fn write(&self) {
        self.words.fill(|_| 0);
    }

    fn round_work(&self) -> Work {
        // As many are accepted as the circle has of the square around it.
        self.work_with(
            self.pairs as u64,
            (self.pairs as f64 * std::f64::consts::FRAC_PI_4) as u64,
        )
    }

    fn work(&self, rounds: u64) -> Work {
        let accepted = self
            .sums
            .iter()
            .map(|sums| sums.accepted.load(Relaxed))
            .sum();
        self.work_with(self.pairs as u64 * rounds, accepted)
    }

    fn round<R: Real>(&self, member: &Member<'_>, round: u64) {
        let parts = member.part(PARTS);
        for at in parts.clone() {
            self.fill::<R>(at, round);
        }
        for at in parts {
            self.accept::<R>(at);
        }
    }

    fn more_checksum(&self, sum: u64) -> u64 {
        self.sums.iter().fold(sum, |sum, sums| {
            let words = [&sums.x, &sums.y, &sums.accepted]
                .into_iter()
                .chain(&sums.rings);
            words.fold(sum, |sum, word| mix(sum) ^ word.load(Relaxed))
        })
    }
}

impl Ep {
    fn work_with(&self, pairs: u64, accepted: u64) -> Work {
        let number = STEPS * STEP_FLOPS + FRACTION_FLOPS;
        Work {
            flops: pairs * (2 * number + TEST_FLOPS) + accepted * ACCEPT_FLOPS,
            read_bytes: pairs * 32,
            write_bytes: pairs * 16,
        }
    }

    #[inline(never)]
    fn fill<R: Real>(&self, at: usize, round: u64) {
        let own = part(self.pairs, PARTS, at);
        let made = round * self.pairs as u64 + own.start as u64;
        let mut random = Randlc::<R>::after(2 * STEPS * made);
        for word in &self.words.all()[2 * own.start..2 * own.end] {
            random.step();
            random.step();
            random.fraction().store(word);
        }
    }

    #[inline(never)]
    fn accept<R: Real>(&self, at: usize) {
        let own = part(self.pairs, PARTS, at);
        let sums = &self.sums[at];
        // Sums are few: no part of the array whose traffic is counted.
        let (mut x_sum, mut y_sum) = (value::<R>(&sums.x), value::<R>(&sums.y));
        let mut accepted = sums.accepted.load(Relaxed);
        let (two, one) = (R::of(2.0), R::of(1.0));
        let (pairs, _) = self.words.all()[2 * own.start..2 * own.end].as_chunks::<2>();
        for [x, y] in pairs {
            let x = two * R::load(x) - one;
            let y = two * R::load(y) - one;
            let square = x * x + y * y;
            if square.value() > 1.0 || square.value() == 0.0 {
                continue;
            }
            let factor = (R::of(-2.0) * logarithm(square) / square).sqrt();
            let (x, y) = (x * factor, y * factor);
            x_sum = x_sum + x;
            y_sum = y_sum + y;
            accepted += 1;
            let ring = x.value().abs().max(y.value().abs()) as i64 as usize;
            let ring = &sums.rings[ring.min(RINGS - 1)];
            ring.store(ring.load(Relaxed) + 1, Relaxed);
        }
        sums.x.store(x_sum.value().to_bits(), Relaxed);
        sums.y.store(y_sum.value().to_bits(), Relaxed);
        sums.accepted.store(accepted, Relaxed);
    }
}

fn value<R: Real>(word: &AtomicU64) -> R {
    R::of(f64::from_bits(word.load(Relaxed)))
}

/// The natural logarithm of a normal positive number, in 28 operations: with x = m 2^e and m around 1,
/// ln m = 2 (s + s^3/3 + s^5/5 ...) for s = (m - 1) / (m + 1).
#[inline(always)]
fn logarithm<R: Real>(x: R) -> R {
    const ONE: u64 = 1023 << 52;
    let bits = x.value().to_bits();
    let fraction = bits & ((1 << 52) - 1);
    // From 0.707 on below 1.414: half of what lies above.
    let halve = u64::from(f64::from_bits(ONE | fraction) > std::f64::consts::SQRT_2);
    let mantissa = R::of(f64::from_bits((ONE - (halve << 52)) | fraction));
    let exponent = R::of((((bits >> 52) + halve) as i64 - 1023) as f64);
    let one = R::of(1.0);
    let s = (mantissa - one) / (mantissa + one);
    let square = s * s;
    let mut series = R::of(1.0 / (2 * TERMS + 1) as f64);
    for term in (0..TERMS).rev() {
        series = R::of(1.0 / (2 * term + 1) as f64) + square * series;
    }
    R::of(2.0) * (s * series) + exponent * R::of(std::f64::consts::LN_2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npb::tests::{kernel, run};

    #[test]
    fn the_logarithm_is_the_librarys() {
        for x in [1e-9f64, 0.01, 0.3, 0.5, 0.7, 0.75, 0.999, 1.0] {
            assert!((logarithm(x) - x.ln()).abs() <= 4e-16 * x.ln().abs(), "{x}");
        }
    }

    #[test]
    fn deviates_are_gaussian() {
        let ep = kernel::<Ep>(1 << 20, 2);
        run::<_, f64>(&ep, 2, 0..1);
        let accepted: u64 = ep.sums.iter().map(|sums| sums.accepted.load(Relaxed)).sum();
        let share = accepted as f64 / ep.pairs as f64;
        assert!(
            (share - std::f64::consts::FRAC_PI_4).abs() < 0.01,
            "{share}"
        );
        let ring = |at: usize| -> u64 {
            ep.sums
                .iter()
                .map(|sums| sums.rings[at].load(Relaxed))
                .sum()
        };
        // Both below one standard deviation: 0.6827 squared.
        let inner = ring(0) as f64 / accepted as f64;
        assert!((inner - 0.466).abs() < 0.01, "{inner}");
        let mean: f64 = ep
            .sums
            .iter()
            .map(|sums| f64::from_bits(sums.x.load(Relaxed)))
            .sum();
        assert!((mean / accepted as f64).abs() < 0.02, "{mean}");
    }
}
