//! Peak floating point: multiply-adds on registers, without memory.
//!
//! Problem: a unit that multiplies and adds takes new numbers every cycle and gives a result some
//! cycles later; a sum that waits for itself shows the latency, not the peak.
//!
//! Mechanism: so many sums that are independent of each other that the units are never idle, yet so
//! few that all stay in registers: each is multiplied by one number and another is added, again and
//! again. A multiply-add counts as two operations, fused or not. Factor and summand are such that
//! the sums stay normal numbers with all their bits in use.

use super::crew::{Crew, Worker};
use crate::sys;
use hither_core::ids::CpuId;
use std::hint::black_box;
use std::io;
use std::time::Duration;

/// Independent sums: latency times units of the fused instructions is 10 at most (Haswell: 5 cycles,
/// 2 units), of those that multiply and then add 12 (Zen: 6 cycles, 2 units of each); there are 16
/// registers, and factor and summand take two.
const CHAINS: usize = 12;
/// Operations of a multiply-add.
const OPERATIONS: u64 = 2;
/// Rounds between two counts: a few microseconds.
const ROUNDS: u64 = 1024;

/// The instructions that multiply and add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// Fused, 512 bits.
    Avx512,
    /// Fused, 256 bits.
    Fma,
    /// Multiplication, then addition, 128 bits: every x86-64.
    Sse2,
    /// What the compiler makes of a loop, on other architectures.
    Plain,
}

impl Instructions {
    /// For people and for JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "AVX-512",
            Self::Fma => "AVX2, FMA",
            Self::Sse2 => "SSE2",
            Self::Plain => "plain",
        }
    }

    /// Those of this processor, the widest first.
    fn available() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        let (wide, fused) = (
            is_x86_feature_detected!("avx512f"),
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        );
        #[cfg(not(target_arch = "x86_64"))]
        let (wide, fused) = (false, false);
        chosen(cfg!(target_arch = "x86_64"), wide, fused)
    }
}

/// Those that serve, the widest first, on a processor that is an x86-64 or is none, and has 512 bits
/// or fused instructions of 256.
fn chosen(is_x86: bool, wide: bool, fused: bool) -> Vec<Instructions> {
    let all = [
        (is_x86 && wide, Instructions::Avx512),
        (is_x86 && fused, Instructions::Fma),
        (is_x86, Instructions::Sse2),
        (!is_x86, Instructions::Plain),
    ];
    let usable = all.into_iter().filter(|(has, _)| *has);
    usable.map(|(_, instructions)| instructions).collect()
}

/// How long a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// 64 bits.
    Double,
    /// 32 bits.
    Single,
}

impl Precision {
    /// For people and for JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Double => "double",
            Self::Single => "single",
        }
    }
}

/// A loop of multiply-adds, which this processor can do: there is no other way to get one than
/// [`Kernel::available`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    instructions: Instructions,
    precision: Precision,
}

impl Kernel {
    /// Double precision by each kind of instructions, the widest first, and single by the widest.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::of(&Instructions::available())
    }

    fn of(available: &[Instructions]) -> Vec<Self> {
        let kernel = |precision, instructions: &Instructions| Self {
            instructions: *instructions,
            precision,
        };
        let double = available.iter().map(|one| kernel(Precision::Double, one));
        let single = available.iter().take(1);
        double
            .chain(single.map(|one| kernel(Precision::Single, one)))
            .collect()
    }

    /// By which instructions.
    #[must_use]
    pub fn instructions(self) -> Instructions {
        self.instructions
    }

    /// Of which numbers.
    #[must_use]
    pub fn precision(self) -> Precision {
        self.precision
    }

    /// Numbers that one instruction works on.
    fn lanes(self) -> u64 {
        let bits = match self.instructions {
            Instructions::Avx512 => 512,
            Instructions::Fma => 256,
            Instructions::Sse2 | Instructions::Plain => 128,
        };
        match self.precision {
            Precision::Double => bits / 64,
            Precision::Single => bits / 32,
        }
    }

    /// Floating-point operations of so many rounds.
    fn operations(self, rounds: u64) -> u64 {
        rounds * CHAINS as u64 * self.lanes() * OPERATIONS
    }

    /// Multiplies all sums, which begin with 0, 1, 2 and so on, by a number and adds another, so many
    /// times; what they then are together.
    fn run(self, factor: f64, summand: f64, rounds: u64) -> f64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: kernels are made of instructions that the processor has.
        unsafe {
            use Instructions::{Avx512, Fma, Plain, Sse2};
            match (self.instructions, self.precision) {
                (Avx512, Precision::Double) => x86::avx512_double(factor, summand, rounds),
                (Avx512, Precision::Single) => x86::avx512_single(factor, summand, rounds),
                (Fma, Precision::Double) => x86::fma_double(factor, summand, rounds),
                (Fma, Precision::Single) => x86::fma_single(factor, summand, rounds),
                (Sse2 | Plain, Precision::Double) => x86::sse2_double(factor, summand, rounds),
                (Sse2 | Plain, Precision::Single) => x86::sse2_single(factor, summand, rounds),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        match self.precision {
            Precision::Double => plain::double(factor, summand, rounds),
            Precision::Single => plain::single(factor, summand, rounds),
        }
    }
}

/// Threads that do nothing but multiply and add; they end when it is dropped.
pub struct Team(Crew);

impl Team {
    /// Starts a thread on each CPU, and waits until all of them work.
    ///
    /// # Errors
    /// What the kernel said of CPUs or threads.
    pub fn start(cpus: Vec<CpuId>, kernel: Kernel) -> io::Result<Self> {
        let body = move |_, worker: Worker| {
            // Who reads the clock has no CPU of its own where all are at work.
            sys::give_way()?;
            worker.repeat(|| {
                // Sums tend to 1, slowly and with all bits.
                black_box(kernel.run(0.999_999, 0.000_001, ROUNDS));
                kernel.operations(ROUNDS)
            });
            Ok(())
        };
        Crew::start(cpus, kernel.operations(ROUNDS), body).map(Self)
    }

    /// Operations per ns, which are GFLOP/s, of all threads for a while; `None` where they
    /// were given no time.
    #[must_use]
    pub fn gflops(&self, slice: Duration) -> Option<f64> {
        self.0.per_ns(slice)
    }
}

/// A kernel: `$start` holds the sums as numbers, `$vector` as registers; the compiler knows none.
macro_rules! kernel {
    ($name:ident, $number:ty, $lanes:literal, $vector:ty, $splat:path, $features:literal,
     |$sum:ident, $factor:ident, $summand:ident| $step:expr) => {
        #[target_feature(enable = $features)]
        pub(super) fn $name(factor: f64, summand: f64, rounds: u64) -> f64 {
            let start: [$number; CHAINS * $lanes] = std::array::from_fn(|index| index as $number);
            // SAFETY: registers are plain numbers; these are as many, in as many bytes.
            let mut sums: [$vector; CHAINS] = unsafe { std::mem::transmute(black_box(start)) };
            let $factor = $splat(black_box(factor as $number));
            let $summand = $splat(black_box(summand as $number));
            for _ in 0..rounds {
                for $sum in &mut sums {
                    *$sum = $step;
                }
            }
            // SAFETY: as above.
            let ended: [$number; CHAINS * $lanes] = unsafe { std::mem::transmute(sums) };
            ended.iter().map(|number| f64::from(*number)).sum()
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::CHAINS;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    kernel!(
        avx512_double,
        f64,
        8,
        __m512d,
        _mm512_set1_pd,
        "avx512f",
        |sum, factor, summand| _mm512_fmadd_pd(*sum, factor, summand)
    );
    kernel!(
        avx512_single,
        f32,
        16,
        __m512,
        _mm512_set1_ps,
        "avx512f",
        |sum, factor, summand| _mm512_fmadd_ps(*sum, factor, summand)
    );
    kernel!(
        fma_double,
        f64,
        4,
        __m256d,
        _mm256_set1_pd,
        "avx2,fma",
        |sum, factor, summand| _mm256_fmadd_pd(*sum, factor, summand)
    );
    kernel!(
        fma_single,
        f32,
        8,
        __m256,
        _mm256_set1_ps,
        "avx2,fma",
        |sum, factor, summand| _mm256_fmadd_ps(*sum, factor, summand)
    );
    kernel!(
        sse2_double,
        f64,
        2,
        __m128d,
        _mm_set1_pd,
        "sse2",
        |sum, factor, summand| _mm_add_pd(_mm_mul_pd(*sum, factor), summand)
    );
    kernel!(
        sse2_single,
        f32,
        4,
        __m128,
        _mm_set1_ps,
        "sse2",
        |sum, factor, summand| _mm_add_ps(_mm_mul_ps(*sum, factor), summand)
    );
}

/// On the Arm processors of servers every loop of these numbers is one of vectors, fused as there.
#[cfg(not(target_arch = "x86_64"))]
mod plain {
    use super::CHAINS;
    use std::hint::black_box;

    macro_rules! plain {
        ($name:ident, $number:ty, $lanes:literal) => {
            pub(super) fn $name(factor: f64, summand: f64, rounds: u64) -> f64 {
                let start: [$number; CHAINS * $lanes] =
                    std::array::from_fn(|index| index as $number);
                let mut sums = black_box(start);
                let (factor, summand) = black_box((factor as $number, summand as $number));
                for _ in 0..rounds {
                    for sum in &mut sums {
                        // A call of the library where the processor has no such instruction.
                        *sum = if cfg!(target_arch = "aarch64") {
                            sum.mul_add(factor, summand)
                        } else {
                            *sum * factor + summand
                        };
                    }
                }
                sums.iter().map(|number| f64::from(*number)).sum()
            }
        };
    }

    plain!(double, f64, 2);
    plain!(single, f32, 4);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::crew::above;

    #[test]
    fn the_widest_instructions_come_first_and_none_that_are_missing() {
        use Instructions::{Avx512, Fma, Plain, Sse2};
        assert_eq!(chosen(true, true, true), [Avx512, Fma, Sse2]);
        assert_eq!(chosen(true, false, true), [Fma, Sse2]);
        assert_eq!(chosen(true, false, false), [Sse2]);
        assert_eq!(chosen(false, true, true), [Plain]);
        let of = |kernel: &Kernel| (kernel.instructions, kernel.precision);
        let kernels: Vec<_> = Kernel::of(&[Fma, Sse2]).iter().map(of).collect();
        let (double, single) = (Precision::Double, Precision::Single);
        assert_eq!(kernels, [(Fma, double), (Sse2, double), (Fma, single)]);
    }

    /// Every kernel that this processor can run.
    fn all() -> Vec<Kernel> {
        let available = Instructions::available();
        let of = |&one| Kernel::of(&[one]);
        available.iter().flat_map(of).collect()
    }

    /// With a factor of 1 each multiply-add makes a sum larger by the summand: what the sums grow by
    /// is how many were done.
    #[test]
    fn operations_are_those_that_were_done() {
        assert!(!all().is_empty());
        for kernel in all() {
            let grown = kernel.run(1.0, 1.0, 100) - kernel.run(1.0, 1.0, 0);
            assert_eq!(
                grown * OPERATIONS as f64,
                kernel.operations(100) as f64,
                "{kernel:?}"
            );
        }
    }

    /// Halves of small whole numbers are exact, so that every kernel gives what a loop of one number
    /// after the other does.
    #[test]
    fn every_kernel_multiplies_and_adds() {
        for kernel in all() {
            let numbers = CHAINS as u64 * kernel.lanes();
            let one = |number: u64| (0..5).fold(number as f64, |sum, _| sum * 0.5 + 3.0);
            let expected: f64 = (0..numbers).map(one).sum();
            assert_eq!(kernel.run(0.5, 3.0, 5), expected, "{kernel:?}");
        }
    }

    #[test]
    fn threads_compute_and_errors_are_told() {
        let cpu = crate::sys::allowed_cpus().unwrap().iter().next().unwrap();
        for kernel in all() {
            let team = Team::start(vec![cpu], kernel).unwrap();
            let gflops = above(0.001, || team.gflops(Duration::from_millis(5)));
            assert!(gflops < 10_000.0, "{kernel:?}: {gflops}");
        }
        assert!(Team::start(vec![CpuId(60_000)], all()[0]).is_err());
    }
}
