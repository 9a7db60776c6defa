//! Draws from the seeded source that the simulation needs beside its own.

use hither_core::policy::random::Random;

/// Did what happens with this probability happen?
pub(crate) fn happens(random: &mut Random, probability: f64) -> bool {
    random.unit() < probability
}

/// One of `0..count`; 0 where there is none.
pub(crate) fn below(random: &mut Random, count: usize) -> usize {
    ((random.unit() * count as f64) as usize).min(count.saturating_sub(1))
}

/// One of `from..to`.
pub(crate) fn between(random: &mut Random, from: u64, to: u64) -> u64 {
    from + (random.unit() * to.saturating_sub(from) as f64) as u64
}

/// One of these.
///
/// # Panics
/// Where there is none.
pub(crate) fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[below(random, of.len())]
}
