//! What suits this processor's copies.
//!
//! Problem: stores through the caches are faster than streaming ones as long as source and target stay in a
//! cache that is nearer than memory, and which one that is differs. The third level of an Intel server is
//! spread over the whole chip and hardly faster than memory; that of an AMD Zen belongs to a few cores.
//!
//! Mechanism: the processor is asked once (CPUID) who made it and how large its caches are, and a pure
//! function makes limits of that. No files, and no memory from the allocator: a copy may come while
//! pages of the program are away. Nothing is measured at start, as who starts on a busy machine would
//! copy badly ever after.
//!
//! Figures, GB/s, one thread, the best of ten rounds of copies of 4, 8, 12, 16 and 64 MiB, huge pages (small
//! ones alike), on an AMD EPYC (Zen 5, third level 32 MiB) in a shared virtual machine. What is warm was
//! source or target of the copy before, too; what is cold follows on that through 512 MiB.
//!
//! | source, target | `rep movsb` | streaming |
//! |---|--:|--:|
//! | warm, warm | 58, 60, 55, 45, 29 | 44, 44, 44, 43, 30 |
//! | cold, warm | 34, 33, 29, 29, 29 | 29, 30, 30, 30, 29 |
//! | warm, cold | 32, 35, 36, 33, 30 | 42, 40, 42, 41, 29 |
//! | cold, cold | 24, 25, 25, 24, 29 | 29, 30, 30, 29, 30 |
//!
//! glibc's memcpy takes loops of ordinary stores there: warm 57, 52, 42, 31, 21, and 20 where all is cold.
//! On an Intel Xeon with a second level of 2 MiB they have 33 against 22 at 1 MiB, 15 against 18 at 2 MiB.
//!
//! Cold targets are better streamed to whatever the size, and nobody can tell; so a limit is where
//! warm ones no longer gain enough for what the others lose. On the Xeon that is where both ranges fill
//! the second level, on the Zen where they fill half of the third: there `rep movsb` wins in the
//! first two rows what it loses in the others, and loops lose from 12 MiB on. At 16 MiB it wins in the
//! first row alone, and only where nobody else uses the cache: in the benchmark, in turn with other
//! ways, it had 31 to 41.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};
use std::sync::OnceLock;

/// The limit where nothing better is known, as measured on that Xeon: smaller caches were not.
const ORDINARY_LEAST: usize = 1 << 20;
/// AMD's families: Zen and later have a third level for each few cores,
const ZEN: u32 = 0x17;
/// and from Zen 5 on what [`Tuning::by_string`] and [`Tuning::asks_from`] need was measured.
const ZEN_5: u32 = 0x1a;

/// When to copy how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tuning {
    /// Up to so many bytes ordinary stores are better.
    pub(super) ordinary_most: usize,
    /// Ordinary stores are best made by the processor's own `rep movsb`: on a Zen 5 58 to 62 GB/s from 1 to 8
    /// MiB, where loops and glibc's memcpy have 47 to 58. A Zen 3 and a Zen 4 are slow at it for some
    /// alignments (glibc's bug 30994).
    pub(super) by_string: bool,
    /// A streaming copy asks for lines ahead from this offset of each page on. 0: for all. Half a page: for
    /// those alone that are in the next page, where the processor's own read-ahead stops; the others
    /// only cost a Zen 5 time (29.3 GB/s against 25.8, with none 27.5; an Intel Xeon and a Zen 4
    /// were measured with all and with none).
    pub(super) asks_from: usize,
}

/// What a processor says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Processor {
    /// Of AMD's, else 0.
    amd_family: u32,
    /// Bytes of the second and of the third level, 0 where not told.
    second: usize,
    third: usize,
}

impl Tuning {
    /// For the processor that asks first.
    pub(super) fn get() -> &'static Self {
        static TUNING: OnceLock<Tuning> = OnceLock::new();
        TUNING.get_or_init(|| Self::of(Processor::this()))
    }

    fn of(processor: Processor) -> Self {
        let is_known = processor.amd_family >= ZEN_5;
        let of_second = processor.second / 2;
        let of_third = match processor.amd_family {
            ZEN.. => processor.third / 4,
            _ => 0,
        };
        Self {
            ordinary_most: of_second.max(of_third).max(ORDINARY_LEAST),
            by_string: is_known,
            asks_from: if is_known { super::stream::PAGE / 2 } else { 0 },
        }
    }
}

impl Processor {
    #[cfg(not(target_arch = "x86_64"))]
    fn this() -> Self {
        Self::default()
    }

    #[cfg(target_arch = "x86_64")]
    fn this() -> Self {
        const MOST_CACHES: u32 = 16;
        let amd_family = amd_family();
        let Some(leaf) = cache_leaf(amd_family > 0) else {
            return Self {
                amd_family,
                ..Self::default()
            };
        };
        let answers = (0..MOST_CACHES).map(|index| __cpuid_count(leaf, index));
        Self::with_caches(amd_family, answers)
    }

    /// With the caches that these answers describe, of which one without a kind is the last.
    #[cfg(target_arch = "x86_64")]
    fn with_caches(amd_family: u32, answers: impl Iterator<Item = CpuidResult>) -> Self {
        const INSTRUCTIONS: u32 = 2;
        let mut processor = Self {
            amd_family,
            ..Self::default()
        };
        for answer in answers.take_while(|answer| answer.eax & 0x1f != 0) {
            let field = |low: u32, bits: u32| (answer.ebx >> low & ((1 << bits) - 1)) as usize + 1;
            let bytes = field(22, 10) * field(12, 10) * field(0, 12) * (answer.ecx as usize + 1);
            match (answer.eax & 0x1f, answer.eax >> 5 & 7) {
                (INSTRUCTIONS, _) => {}
                (_, 2) => processor.second = bytes,
                (_, 3) => processor.third = bytes,
                _ => {}
            }
        }
        processor
    }
}

/// The family where AMD made it, else 0.
#[cfg(target_arch = "x86_64")]
fn amd_family() -> u32 {
    let name = __cpuid(0);
    let name = [name.ebx, name.edx, name.ecx].map(u32::to_le_bytes);
    if name.as_flattened() != b"AuthenticAMD" {
        return 0;
    }
    let version = __cpuid(1).eax;
    match version >> 8 & 0xf {
        0xf => 0xf + (version >> 20 & 0xff),
        family => family,
    }
}

/// What to ask for one cache after the other: two leaves of one form (AMD's manual, volume 3, E.4.15;
/// Intel's SDM, volume 2, CPUID).
#[cfg(target_arch = "x86_64")]
fn cache_leaf(is_amd: bool) -> Option<u32> {
    const INTEL: u32 = 4;
    const AMD: u32 = 0x8000_001d;
    const TOPOLOGY_EXTENSIONS: u32 = 1 << 22;
    if is_amd {
        let has_leaf = __cpuid(0x8000_0000).eax >= AMD;
        let is_told = has_leaf && __cpuid(0x8000_0001).ecx & TOPOLOGY_EXTENSIONS != 0;
        return is_told.then_some(AMD);
    }
    (__cpuid(0).eax >= INTEL).then_some(INTEL)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn ordinary_most(amd_family: u32, second: usize, third: usize) -> usize {
        let processor = Processor {
            amd_family,
            second,
            third,
        };
        Tuning::of(processor).ordinary_most
    }

    #[test]
    fn limits_are_shares_of_the_near_cache() {
        // Zen 5, Zen 4 with a stacked cache, Zen 2.
        assert_eq!(ordinary_most(0x1a, MIB, 32 * MIB), 8 * MIB);
        assert_eq!(ordinary_most(0x19, MIB, 96 * MIB), 24 * MIB);
        assert_eq!(ordinary_most(0x17, MIB / 2, 16 * MIB), 4 * MIB);
        // Intel: half of the second level, whatever the third.
        assert_eq!(ordinary_most(0, 2 * MIB, 105 * MIB), MIB);
        assert_eq!(ordinary_most(0, 3 * MIB, 36 * MIB), 3 * MIB / 2);
    }

    #[test]
    fn nothing_known_is_a_mebibyte() {
        assert_eq!(ordinary_most(0, 0, 0), MIB);
        assert_eq!(ordinary_most(0, MIB / 4, 8 * MIB), MIB);
        // AMD before Zen, and a Zen whose third level is hidden.
        assert_eq!(ordinary_most(0x10, MIB / 2, 6 * MIB), MIB);
        assert_eq!(ordinary_most(0x1a, MIB, 0), MIB);
        let unknown = Tuning::of(Processor::default());
        assert_eq!((unknown.by_string, unknown.asks_from), (false, 0));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn caches_are_decoded() {
        let answer = |eax, ebx, ecx| CpuidResult {
            eax,
            ebx,
            ecx,
            edx: 0,
        };
        // As an AMD EPYC of family 0x1a answers: 48 KiB, 32 KiB, 1 MiB, 32 MiB.
        let answers = [
            answer(0x0121, 0x02c0_003f, 63),
            answer(0x0122, 0x01c0_003f, 63),
            answer(0x0143, 0x03c0_003f, 1023),
            answer(0x0163, 0x03c0_003f, 32_767),
            answer(0, 0, 0),
            answer(0x0143, 0, 0),
        ];
        let processor = Processor::with_caches(0x1a, answers.into_iter());
        assert_eq!((processor.second, processor.third), (MIB, 32 * MIB));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_kernel_says_the_same_of_this_processor() {
        use crate::root::Root;
        use crate::topology::sysfs_cache;
        let this = Processor::this();
        // Where the kernel tells nothing there is nothing to compare.
        let caches = sysfs_cache::read(&Root::host(), &"0".parse().unwrap());
        let sizes = caches.into_iter().flatten();
        for (level, size_kb) in sizes.filter_map(|cache| Some((cache.level, cache.size_kb?))) {
            let told = match level {
                2 => this.second,
                3 => this.third,
                _ => 0,
            };
            assert!(
                told == 0 || told as u64 == size_kb << 10,
                "{level}: {this:?}"
            );
        }
    }
}
