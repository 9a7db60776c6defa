//! Time stamps for "how long was it queued", cheap enough for every submission.
//!
//! Reading the kernel's clock costs as much as all the rest of a submission. A processor whose time
//! stamp counter runs at one rate in every state says so (Intel SDM volume 3, section 19.17.1,
//! "Invariant TSC"); there a stamp is that counter, and nanoseconds come from comparing it with
//! the kernel's clock over the whole life of the service. Elsewhere, and in the laboratory, whose
//! emulated processor makes no such promise, a stamp is the kernel's clock.

use std::time::Instant;

/// Turns stamps into nanoseconds.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    start_ticks: u64,
    counter: bool,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let counter = counter_is_steady();
        let start = Instant::now();
        let start_ticks = if counter { read_counter() } else { 0 };
        Self {
            start,
            start_ticks,
            counter,
        }
    }

    /// The present.
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        if self.counter {
            read_counter()
        } else {
            self.now_ns()
        }
    }

    /// Nanoseconds since the clock was made.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A yardstick for stamps of the past, best taken once for many.
    pub(crate) fn present(&self) -> Present {
        let elapsed_ns = self.now_ns();
        let stamp = if self.counter {
            read_counter()
        } else {
            elapsed_ns
        };
        let ticks = stamp.saturating_sub(self.start_ticks);
        let ns_per_tick = if self.counter && ticks > 0 {
            elapsed_ns as f64 / ticks as f64
        } else {
            1.0
        };
        Present { stamp, ns_per_tick }
    }
}

/// An instant to measure from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Present {
    stamp: u64,
    ns_per_tick: f64,
}

impl Present {
    /// Nanoseconds from a stamp to this instant; 0 for a stamp of the future.
    pub(crate) fn since_ns(&self, stamp: u64) -> u64 {
        (self.stamp.saturating_sub(stamp) as f64 * self.ns_per_tick) as u64
    }
}

#[cfg(target_arch = "x86_64")]
fn counter_is_steady() -> bool {
    use std::arch::x86_64::__cpuid;
    const POWER: u32 = 0x8000_0007;
    const INVARIANT_TSC: u32 = 1 << 8;
    __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & INVARIANT_TSC != 0
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn read_counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; a process that forbade it to itself
    // (PR_SET_TSC) is killed with or without us, by its own vDSO.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter_is_steady() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn read_counter() -> u64 {
    0
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn stamps_become_nanoseconds_of_the_kernels_clock() {
        let clock = Clock::new();
        let stamp = clock.stamp();
        let before = Instant::now();
        while before.elapsed().as_micros() < 2000 {
            std::hint::spin_loop();
        }
        let passed_ns = before.elapsed().as_nanos() as u64;
        let since_ns = clock.present().since_ns(stamp);
        let most_ns = before.elapsed().as_nanos() as u64 + passed_ns;
        assert!(
            (passed_ns * 9 / 10..most_ns).contains(&since_ns),
            "{since_ns} ns measured, at least {passed_ns} ns passed"
        );
        assert_eq!(clock.present().since_ns(u64::MAX), 0);
    }
}
