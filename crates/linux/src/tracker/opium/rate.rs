//! How often to sample: periods for rates of samples, and what rates are affordable. Pure.

use hither_core::plan::Sampling;

/// Samples per second at full sampling: each 2 MiB block of a 64 MiB array has some 150 in 100 ms,
/// which tell what its pages are used for. More would be paid for by the program whose CPU is
/// borrowed to read them.
const FULL_RATE: f64 = 50_000.0;
/// Samples per second at cheap sampling: the local-access ratio of a second with a standard error of a point
/// at most. 5,000 took 2 % of a CPU from pinned threads in the laboratory.
const CHEAP_RATE: f64 = 2_000.0;
/// Share of one CPU that samples may cost while pages are being moved: less than a second of it,
/// and every interval that is decided later costs the program more.
pub(super) const FULL_COST: f64 = 0.05;
/// Share of one CPU that samples may cost in the steady state.
const CHEAP_COST: f64 = 0.005;
/// Period until the traffic is known: cheap sampling of a busy machine (100 million fills a second
/// give 2,000 samples in the first 100 ms), since most programs have nothing to be mended.
pub(super) const FIRST_PERIOD: u32 = 5120;
/// The same where samples have a budget of instructions, which is unknown until some were executed: 120 in
/// the first 100 ms.
pub(super) const FIRST_CHEAP_PERIOD: u32 = 16 * FIRST_PERIOD;
/// Shortest period. A machine at rest could afford less, but the traffic of the next interval may
/// be ten times that of the last: 20,000 samples in 100 ms, which the rings hold.
pub(super) const LEAST_PERIOD: f64 = 512.0;
/// Intervals whose cheapest gives the price of a sample: others were interrupted, or met a cold
/// table.
pub(super) const PRICE_WINDOW: usize = 8;
/// Samples per second that are taken of whoever executes hardly anything.
const LEAST_RATE: f64 = 100.0;
/// Instructions that a kept sample costs in all, its part of the file included: measured in the lab.
const KEPT_INSTRUCTIONS: f64 = 850.0;
/// Time in which what was overdrawn is saved again, in s.
const PAY_BACK_S: f64 = 1.0;

/// Samples per second that cost their share of a CPU; without a limit where their price is unknown.
///
/// At 2000 ns a sample 5 % of a CPU pay for 25,000.
pub(super) fn affordable_in_time(sampling: Sampling, budget: Option<f64>, price_ns: f64) -> f64 {
    let share = budget.unwrap_or(match sampling {
        Sampling::Full => FULL_COST,
        Sampling::Cheap | Sampling::Off => CHEAP_COST,
    });
    let affordable = share * 1e9 / price_ns;
    if affordable.is_finite() && affordable > 0.0 {
        affordable
    } else {
        f64::INFINITY
    }
}

/// Period that brings the wanted number of samples at `fills_per_s`, or fewer where fewer are
/// affordable. `None` where the traffic is unknown.
///
/// 120 million fills a second at full sampling: 120e6 / 50e3 = 2400.
pub(super) fn period_for(
    sampling: Sampling,
    affordable_per_s: f64,
    fills_per_s: f64,
) -> Option<u32> {
    let rate = match sampling {
        Sampling::Full => FULL_RATE,
        Sampling::Cheap => CHEAP_RATE,
        Sampling::Off => return Some(0),
    };
    let period = fills_per_s / rate.min(affordable_per_s);
    let is_known = fills_per_s.is_finite() && fills_per_s > 0.0;
    is_known.then(|| period.clamp(LEAST_PERIOD, 1e9) as u32)
}

/// Is a new period so far from the old one that the plugin should notice?
pub(super) fn is_worth_a_change(period: u32, wanted: u32) -> bool {
    let apart = u64::from(wanted.abs_diff(period)) * 8 > u64::from(period);
    apart || (wanted == 0) != (period == 0)
}

/// A new period that is a quarter of the old one at the least: after an interval at rest, as while a
/// program's memory is filled, the next may have a thousand times its traffic.
pub(super) fn not_too_soon(period: u32, wanted: u32) -> u32 {
    match wanted {
        0 => 0,
        _ => wanted.max(period / 4),
    }
}

/// What samples may cost in instructions: a share of those that the machine executes. What was spent
/// above that, as by finding out whose samples are of many short programs, is saved again by fewer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    share: f64,
    per_s: f64,
    /// Instructions.
    overdrawn: f64,
}

impl Allowance {
    /// For a share of the instructions, 0..=1.
    pub fn new(share: f64) -> Self {
        Self {
            share,
            per_s: 0.0,
            overdrawn: 0.0,
        }
    }

    /// From now on.
    pub fn set_share(&mut self, share: f64) {
        self.share = share;
    }

    /// Adds an interval: how long it was, what the machine executed, how many samples were kept,
    /// and what finding their owners took in instructions.
    pub fn add(&mut self, seconds: f64, instructions: u64, kept: u64, owners: u64) {
        if seconds > 0.0 {
            self.per_s = self.share * instructions as f64 / seconds;
        }
        let spent = kept as f64 * KEPT_INSTRUCTIONS + owners as f64;
        // What is not used is not saved up: a burst of samples would be felt.
        self.overdrawn = (self.overdrawn + spent - self.per_s * seconds).max(0.0);
    }

    /// Samples per second.
    pub fn rate(&self) -> f64 {
        ((self.per_s - self.overdrawn / PAY_BACK_S) / KEPT_INSTRUCTIONS).max(LEAST_RATE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_brings_the_wanted_rate_within_the_cost() {
        let without = f64::INFINITY;
        // 120 M fills a second / 50,000 samples.
        assert_eq!(period_for(Sampling::Full, without, 120e6), Some(2400));
        // 2000 ns each: 0.05 s / 2000 ns = 25,000 a second.
        let affordable = affordable_in_time(Sampling::Full, None, 2000.0);
        assert_eq!(period_for(Sampling::Full, affordable, 120e6), Some(4800));
        // 2,000 a second cost 0.0002 s at 100 ns: affordable.
        let affordable = affordable_in_time(Sampling::Cheap, None, 100.0);
        assert_eq!(period_for(Sampling::Cheap, affordable, 120e6), Some(60_000));
        let unknown = affordable_in_time(Sampling::Full, None, f64::INFINITY);
        assert_eq!(unknown, without);
        assert_eq!(period_for(Sampling::Cheap, without, 0.0), None);
        assert_eq!(period_for(Sampling::Full, without, f64::NAN), None);
        assert_eq!(period_for(Sampling::Full, without, 10.0), Some(512));
        assert_eq!(period_for(Sampling::Off, without, 10.0), Some(0));
    }

    /// Ten seconds of a program that executes 600 million instructions a second, in intervals of
    /// 100 ms; the owner of a sample costs that much in the first `learning` of them. Returns the share
    /// of its instructions that was spent, and the samples of the last second.
    fn spent(learning: usize, owner: f64) -> (f64, f64) {
        let mut allowance = Allowance::new(0.003);
        let (mut spent, mut last) = (0.0, 0.0);
        for turn in 0..100 {
            let kept = match turn {
                0 => 500.0,
                _ => (allowance.rate() / 10.0).floor(),
            };
            let owners = if turn < learning { owner * kept } else { 0.0 };
            allowance.add(0.1, 60_000_000, kept as u64, owners as u64);
            spent += kept * KEPT_INSTRUCTIONS + owners;
            last += if turn >= 90 { kept } else { 0.0 };
        }
        (spent / 6e9, last)
    }

    #[test]
    fn owners_are_paid_by_fewer_samples() {
        // 0.3 % of 600 million pay for 2,117 samples a second.
        for (learning, owner) in [(0, 0.0), (1, 5000.0), (20, 2500.0)] {
            let (share, samples) = spent(learning, owner);
            assert!(
                (0.0028..0.0031).contains(&share),
                "{learning} {owner}: {share}"
            );
            assert!(
                (2000.0..2120.0).contains(&samples),
                "{learning} {owner}: {samples}"
            );
        }
        // However dear, some are taken.
        let (_, samples) = spent(100, 1e6);
        assert_eq!(samples, LEAST_RATE);
    }

    #[test]
    fn periods_fall_by_and_by() {
        assert_eq!(not_too_soon(20_480, 512), 5120);
        assert_eq!(not_too_soon(20_480, 100_000), 100_000);
        assert_eq!((not_too_soon(20_480, 0), not_too_soon(0, 512)), (0, 512));
    }

    #[test]
    fn who_executes_nothing_is_sampled_a_little() {
        let mut allowance = Allowance::new(0.003);
        assert_eq!(allowance.rate(), LEAST_RATE);
        allowance.add(0.0, 0, 0, 0);
        assert_eq!(allowance.rate(), LEAST_RATE);
    }
}
