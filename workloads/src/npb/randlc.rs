//! NPB's generator of random numbers, in doubles as NPB has it and in integers to skip ahead.
//!
//! x becomes 5^13 x modulo 2^46. In doubles that takes halves of 23 bits each, with exact products.

use super::real::Real;

/// 5^13.
const MULTIPLIER: u64 = 1_220_703_125;
const MASK: u64 = (1 << 46) - 1;
/// NPB's first number.
const SEED: u64 = 314_159_265;
const R23: f64 = 1.0 / (1u64 << 23) as f64;
const T23: f64 = (1u64 << 23) as f64;
const R46: f64 = R23 * R23;
const T46: f64 = T23 * T23;

/// Floating-point operations of a step.
pub const STEP_FLOPS: u64 = 15;
/// Floating-point operations to make a number between 0 and 1 of where the generator is.
pub const FRACTION_FLOPS: u64 = 1;

/// A generator.
pub struct Randlc<R>(R);

impl<R: Real> Randlc<R> {
    /// A generator that has made so many steps from NPB's first number.
    pub fn after(mut steps: u64) -> Self {
        let (mut x, mut power) = (SEED, MULTIPLIER);
        while steps > 0 {
            if steps & 1 == 1 {
                x = x.wrapping_mul(power) & MASK;
            }
            power = power.wrapping_mul(power) & MASK;
            steps >>= 1;
        }
        Self(R::of(x as f64))
    }

    /// A step.
    #[inline(always)]
    pub fn step(&mut self) {
        let high = R::of((MULTIPLIER >> 23) as f64);
        let low = R::of((MULTIPLIER & ((1 << 23) - 1)) as f64);
        let x = self.0;
        let x1 = (R::of(R23) * x).truncate();
        let x2 = x - R::of(T23) * x1;
        let t1 = high * x2 + low * x1;
        let t2 = (R::of(R23) * t1).truncate();
        let t3 = R::of(T23) * (t1 - R::of(T23) * t2) + low * x2;
        let t4 = (R::of(R46) * t3).truncate();
        self.0 = t3 - R::of(T46) * t4;
    }

    /// Where the generator is, between 0 and 1.
    #[inline(always)]
    pub fn fraction(&self) -> R {
        R::of(R46) * self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npb::real::counting::{self, Counted};

    #[test]
    fn steps_in_doubles_are_those_in_integers() {
        let mut stepped = Randlc::<f64>::after(0);
        for steps in 1..2000 {
            stepped.step();
            assert_eq!(stepped.0, Randlc::<f64>::after(steps).0, "{steps}");
        }
    }

    #[test]
    fn operations_are_as_stated() {
        counting::start(0);
        let mut random = Randlc::<Counted>::after(7);
        random.step();
        assert_eq!(counting::take().flops, STEP_FLOPS);
        assert!(random.fraction().value() < 1.0);
        assert_eq!(counting::take().flops, FRACTION_FLOPS);
    }
}
