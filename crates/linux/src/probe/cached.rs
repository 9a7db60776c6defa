//! What caches deliver: a thread reads memory that stays in one level, over and over.
//!
//! Mechanism: a thread's *share* of a cache is the cache's size over the threads at work that use it.
//! It goes through half of that, so that other things have room too, but through at least twice its
//! share of the level below, of which then hardly a line is found there: caches that replace what was
//! not used for longest never hold what a larger loop needs next. Where that would be more than three
//! quarters of its share, the level cannot be told from the one below, and has no figure: a cache of
//! many threads may have little more for each than they have of their own.
//!
//! Lines are loaded by the widest instructions that the processor has, several in flight: from near
//! caches the width is the limit, and narrower ones would measure the instructions.

use super::crew::{Crew, Worker};
use super::memory_under;
use super::team::read;
use crate::topology::sysfs_cache::{Cache, CacheKind};
use hither_core::bind::KernelPolicy;
use hither_core::ids::CpuId;
use hither_core::set::CpuSet;
use std::io;
use std::time::Duration;

/// A thread counts when it has read this much: a few microseconds of the fastest cache.
const COUNTED_BYTES: usize = 256 << 10;
/// What is read is a multiple of this: the loops below have no rest.
const STEP_BYTES: u64 = 1024;

/// A level of caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// 1 is next to the core.
    pub level: u32,
    /// Size of one, of the first CPU's.
    pub bytes: u64,
    /// CPUs that share one, for each.
    sharers: Vec<CpuSet>,
}

/// The levels that hold data, the nearest first; those without a size are left out.
#[must_use]
pub fn levels(caches: &[Cache]) -> Vec<Level> {
    let mut found: Vec<Level> = Vec::new();
    let mut holds_data: Vec<&Cache> = caches.iter().collect();
    holds_data.retain(|cache| cache.kind != CacheKind::Instruction);
    holds_data.sort_by_key(|cache| cache.level);
    for cache in holds_data {
        let Some(kb) = cache.size_kb.filter(|&kb| kb > 0) else {
            continue;
        };
        match found.last_mut().filter(|last| last.level == cache.level) {
            Some(last) => last.sharers.push(cache.cpus.clone()),
            None => found.push(Level {
                level: cache.level,
                bytes: kb << 10,
                sharers: vec![cache.cpus.clone()],
            }),
        }
    }
    found
}

impl Level {
    /// The least that any of these CPUs has of it, all at work.
    fn share(&self, cpus: &[CpuId]) -> u64 {
        let users = |sharers: &CpuSet| cpus.iter().filter(|cpu| sharers.contains(**cpu)).count();
        let most = self.sharers.iter().map(users).max().unwrap_or(0);
        self.bytes / most.max(1) as u64
    }
}

/// Bytes that each of some CPUs reads to measure the level at a place; `None` where the level cannot
/// be told from the one below.
#[must_use]
pub fn set_bytes(levels: &[Level], place: usize, cpus: &[CpuId]) -> Option<u64> {
    let own = levels.get(place)?.share(cpus);
    let below = place
        .checked_sub(1)
        .map_or(0, |below| levels[below].share(cpus));
    let wanted = (own / 2).max(2 * below) / STEP_BYTES * STEP_BYTES;
    (wanted > 0 && wanted <= own / 4 * 3).then_some(wanted)
}

/// Threads that read what stays in a cache; they end when it is dropped.
pub struct Team(Crew);

impl Team {
    /// Starts a thread on each CPU, and waits until all of them read so many bytes each.
    ///
    /// # Errors
    /// What the kernel said of CPUs, memory or threads.
    pub fn start(
        cpus: Vec<CpuId>,
        policy: &KernelPolicy,
        bytes: u64,
        huge: bool,
    ) -> io::Result<Self> {
        let policy = policy.clone();
        let bytes = bytes as usize;
        let times = COUNTED_BYTES.div_ceil(bytes);
        let body = move |_, worker: Worker| {
            let mut memory = memory_under(bytes, &policy, huge)?;
            let words = &memory.values_mut(1u64)[..bytes / 8];
            worker.repeat(|| {
                for _ in 0..times {
                    read_wide(words);
                }
                (times * bytes) as u64
            });
            Ok(())
        };
        Crew::start(cpus, (times * bytes) as u64, body).map(Self)
    }

    /// GB/s of all threads for a while; `None` where they were given no time.
    #[must_use]
    pub fn gbs(&self, slice: Duration) -> Option<f64> {
        self.0.per_ns(slice)
    }
}

/// Loads every word by the widest instructions there are.
fn read_wide(words: &[u64]) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has these instructions.
            return unsafe { x86::avx512(words) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { x86::avx2(words) };
        }
    }
    read(words);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, __m512i, _mm256_loadu_si256, _mm256_or_si256, _mm256_setzero_si256,
        _mm512_loadu_si512, _mm512_or_si512, _mm512_setzero_si512,
    };
    use std::hint::black_box;

    /// Results that do not wait for each other.
    const CHAINS: usize = 8;

    /// # Safety
    /// The processor has AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn avx512(words: &[u64]) {
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for lines in words.chunks_exact(CHAINS * 8) {
            let start = lines.as_ptr().cast::<__m512i>();
            for (place, sum) in sums.iter_mut().enumerate() {
                // SAFETY: within the chunk, which is as long as all of them.
                *sum = _mm512_or_si512(*sum, unsafe { _mm512_loadu_si512(start.add(place)) });
            }
        }
        black_box(sums);
    }

    /// # Safety
    /// The processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn avx2(words: &[u64]) {
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        for lines in words.chunks_exact(CHAINS * 4) {
            let start = lines.as_ptr().cast::<__m256i>();
            for (place, sum) in sums.iter_mut().enumerate() {
                // SAFETY: as above.
                *sum = _mm256_or_si256(*sum, unsafe { _mm256_loadu_si256(start.add(place)) });
            }
        }
        black_box(sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::crew::above;
    use crate::sys;
    use proptest::prelude::*;

    fn cache(level: u32, kind: CacheKind, cpus: &str, size_kb: Option<u64>) -> Cache {
        Cache {
            level,
            kind,
            cpus: cpus.parse().unwrap(),
            size_kb,
            line_bytes: Some(64),
        }
    }

    /// Two CPUs with caches of their own below one that both share.
    fn two(shared_kb: u64) -> Vec<Level> {
        use CacheKind::{Data, Instruction, Unified};
        levels(&[
            cache(3, Unified, "0-1", Some(shared_kb)),
            cache(1, Data, "0", Some(32)),
            cache(1, Instruction, "0", Some(64)),
            cache(2, Unified, "0", Some(1024)),
            cache(1, Data, "1", Some(32)),
            cache(2, Unified, "1", Some(1024)),
            cache(4, Unified, "0-1", None),
        ])
    }

    fn cpus(count: u32) -> Vec<CpuId> {
        (0..count).map(CpuId).collect()
    }

    #[test]
    fn levels_are_those_of_data_with_a_size() {
        let found: Vec<_> = two(8192).iter().map(|l| (l.level, l.bytes >> 10)).collect();
        assert_eq!(found, [(1, 32), (2, 1024), (3, 8192)]);
    }

    #[test]
    fn half_of_a_share_is_read_and_what_the_level_below_cannot_hold() {
        let kb = |shared_kb, place, count| {
            set_bytes(&two(shared_kb), place, &cpus(count)).map(|bytes| bytes >> 10)
        };
        assert_eq!(
            [0, 1, 2].map(|place| kb(8192, place, 1)),
            [Some(16), Some(512), Some(4096)]
        );
        assert_eq!(
            [0, 1, 2].map(|place| kb(8192, place, 2)),
            [Some(16), Some(512), Some(2048)]
        );
        // Of 3 MiB each of two has 1.5, and needs 2 beside 1 of its own.
        assert_eq!([1, 2].map(|count| kb(3072, 2, count)), [Some(2048), None]);
        assert_eq!(kb(8192, 3, 1), None);
    }

    proptest! {
        #[test]
        fn what_is_read_fits_in_its_level_and_not_in_the_one_below(
            sizes_kb in prop::collection::vec(1_u64..1 << 20, 1..5),
            count in 1_u32..64,
            group in 1_u32..64,
        ) {
            let mut all = Vec::new();
            for (level, &size_kb) in (1..).zip(&sizes_kb) {
                for first in (0..64).step_by(group as usize) {
                    let last = (first + group - 1).min(63);
                    let cpus = format!("{first}-{last}");
                    all.push(cache(level, CacheKind::Unified, &cpus, Some(size_kb)));
                }
            }
            let (levels, cpus) = (levels(&all), cpus(count));
            prop_assert_eq!(levels.len(), sizes_kb.len());
            let share = |size_kb: u64| (size_kb << 10) / u64::from(group.min(count));
            for place in 0..levels.len() {
                if let Some(bytes) = set_bytes(&levels, place, &cpus) {
                    prop_assert!(bytes > 0 && bytes % STEP_BYTES == 0);
                    prop_assert!(bytes <= share(sizes_kb[place]));
                    if place > 0 {
                        // In whole steps.
                        prop_assert!(bytes + STEP_BYTES > 2 * share(sizes_kb[place - 1]));
                    }
                }
            }
        }
    }

    #[test]
    fn reading_takes_time_however_small_the_set_is() {
        let cpu = sys::allowed_cpus().unwrap().iter().next().unwrap();
        let policy: KernelPolicy = "bind:0".parse().unwrap();
        for bytes in [STEP_BYTES, 16 << 10, 1 << 20] {
            let team = Team::start(vec![cpu], &policy, bytes, false).unwrap();
            let gbs = above(0.01, || team.gbs(Duration::from_millis(5)));
            // 64 bytes thrice a cycle at 6 GHz is 1152.
            assert!(gbs < 2000.0, "{bytes}: {gbs}");
        }
        assert!(Team::start(vec![CpuId(60_000)], &policy, 4096, false).is_err());
    }
}
