//! Random numbers with a known beginning: the same everywhere, cheap in instructions.
//!
//! `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014):
//! a counter and a mixing function, so that any element can be computed from its index alone.

/// The step of the counter: 2^64 over the golden ratio, made odd.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A generator.
#[derive(Clone, Debug)]
pub struct FastRandom(u64);

/// Mixes a number into one that looks random; a bijection on 64 bits.
#[inline]
#[must_use]
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl FastRandom {
    /// A generator that begins at `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `bound`, by multiplication instead of division; its bias is below
    /// `bound / 2^64`.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Any order is as likely as any other (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// A step near the golden section of `count` that has no divisor in common with it: its multiples modulo
/// `count` reach all numbers below, and neighbours among them lie far apart.
#[must_use]
pub fn scattering_step(count: u64) -> u64 {
    let common = |mut one: u64, mut other: u64| {
        while other > 0 {
            (one, other) = (other, one % other);
        }
        one
    };
    let golden = (count as f64 * 0.618_033_988_749_895) as u64;
    (golden.max(1)..)
        .find(|&step| common(step, count) == 1)
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scattering_step_reaches_all() {
        for count in [1u64, 2, 3, 10, 12, 1000] {
            let step = scattering_step(count);
            let mut seen: Vec<u64> = (0..count).map(|turn| turn * step % count).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn begins_as_published() {
        // The first three numbers of SplitMix64 with seed 1234567, as its reference code gives.
        let mut random = FastRandom::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn below_stays_below_and_reaches_all() {
        let mut random = FastRandom::new(7);
        let mut seen = [0u32; 5];
        for _ in 0..5000 {
            seen[random.below(5) as usize] += 1;
        }
        assert!(
            seen.iter().all(|&count| (850..1150).contains(&count)),
            "{seen:?}"
        );
    }
}
