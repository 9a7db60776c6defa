//! When a copy is the engine's, and how to wait for it: pure.
//!
//! Problem: an engine costs its writer a descriptor, and its user a wait. For a few KiB the CPU is
//! done sooner.
//!
//! The CPU's time depends on what caches hold and on the memories, which nobody knows beforehand: the
//! first copy of each size is the CPU's and is timed, and so is one in [`TRIAL`] from then on
//! ([`Costs::learn_copy`]), more rarely the more often that confirmed the engine. So a program that
//! copies what it has just used gets the CPU. Whatever the CPU copies from [`TIMED_BYTES`] on is timed: one
//! copy of what happened to be in a cache would otherwise take the engine from the next thirty. What is
//! measured when the engine opens, on memory that no cache has, serves for a size only until then.
//!
//! Rule: with the costs that were measured here ([`Costs`]), the engine gets a copy where it takes
//! less of the CPU's time than copying does, *and* ends no later than the CPU would. Of waits
//! longer than [`Costs::sleep_from_ns`] all but the last part is slept; shorter ones are spun for,
//! and cost the CPU as long as they last.
//!
//! Worked with keystone2's figures: a 4 KiB page by the CPU at 0.6 ns a byte is 2.5 us; by the
//! engine 0.3 us of a doorbell, 1.1 us of an element, and then 1 us of set-up and 0.16 ns a byte:
//! 3.0 us, all of it spun: the CPU's. A huge page is 1.26 ms for the CPU; for the engine 0.3 +
//! 4.5 us of elements and 340 us of sleep: the engine's.

/// One copy in so many of a size is the CPU's, to learn its time.
pub const TRIAL: u32 = 32;
/// While the engine stays the better one, that grows to one in so many: a trial costs what the
/// engine saves.
pub const RAREST_TRIAL: u32 = TRIAL << MOST_CONFIRMED;
/// Copies by the CPU of so many bytes are all timed: two looks at a clock are less than 1 % of them, even
/// where a clock is a device (150 ns on keystone2, 40 us for a copy).
pub const TIMED_BYTES: usize = 64 << 10;
/// Confirmations that still make trials rarer, twice each.
const MOST_CONFIRMED: u32 = 3;
/// Sizes are told apart by their powers of two, up to here.
const CLASSES: usize = 32;
/// What a trial weighs in what is believed.
const WEIGHT: f64 = 0.5;

/// A sleep costs the CPU no less than this: two switches of threads.
pub const LEAST_SLEEP_NS: f64 = 1000.0;
/// How far a belief goes toward a sleep that ended sooner than was thought, and how much it grows by
/// one that ended later, however late: what is believed is how late quick ones are. Who sleeps too
/// long has lost time, who does not sleep a CPU.
const SOONER: f64 = 0.5;
const LATER: f64 = 1.1;
/// A transfer that was over when its sleep ended was quicker than was thought by so much, perhaps.
const QUICKER: f64 = 0.95;

/// Who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The engine.
    Engine,
    /// The CPU.
    Cpu,
    /// The CPU, and its time is learned.
    CpuTimed,
}

/// What copies cost here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// What a copy by the engine costs the CPU whatever its size, in ns: the doorbell, the driver's
    /// own work and its looks at the record.
    pub fixed_ns: f64,
    /// An element, in ns of the CPU.
    pub element_ns: f64,
    /// The engine's own start of a descriptor.
    pub setup_ns: f64,
    /// The engine's time for a byte.
    pub engine_ns_per_byte: f64,
    /// The CPU's time for a byte, by powers of two of the size.
    pub copy_ns_per_byte: [f64; CLASSES],
    /// Bits of the sizes whose time was measured.
    pub known: u32,
    /// How much longer a sleep takes than it should, which the CPU spends for it at most.
    pub sleep_ns: f64,
    /// Bytes of an element, as copies took them lately.
    pub element_bytes: f64,
}

impl Costs {
    /// Waits from here on are slept: what is gained is as much as the sleep costs.
    #[must_use]
    pub fn sleep_from_ns(&self) -> f64 {
        2.0 * self.sleep_ns
    }

    /// Elements of so many bytes.
    #[must_use]
    pub fn elements(&self, bytes: usize) -> f64 {
        (bytes as f64 / self.element_bytes).ceil()
    }

    /// CPU time before the engine works.
    #[must_use]
    pub fn submit_ns(&self, bytes: usize) -> f64 {
        self.fixed_ns + self.element_ns * self.elements(bytes)
    }

    /// The engine's time.
    #[must_use]
    pub fn transfer_ns(&self, bytes: usize) -> f64 {
        self.setup_ns + self.engine_ns_per_byte * bytes as f64
    }

    /// CPU time of a copy by the engine.
    #[must_use]
    pub fn engine_cpu_ns(&self, bytes: usize) -> f64 {
        let wait = self.transfer_ns(bytes);
        let waiting = match wait > self.sleep_from_ns() {
            true => self.sleep_ns,
            false => wait,
        };
        self.submit_ns(bytes) + waiting
    }

    /// Does the engine get a copy of so many bytes?
    #[must_use]
    pub fn prefers_engine(&self, bytes: usize) -> bool {
        let copy = self.copy_ns_per_byte[class(bytes)] * bytes as f64;
        self.engine_cpu_ns(bytes) < copy && self.submit_ns(bytes) + self.transfer_ns(bytes) <= copy
    }

    /// The CPU's time for a byte, whatever the size, as long as nothing else is known.
    #[must_use]
    pub fn all_copies(ns_per_byte: f64) -> [f64; CLASSES] {
        [ns_per_byte; CLASSES]
    }

    /// A copy by the CPU took so long.
    pub fn learn_copy(&mut self, bytes: usize, took_ns: u64) {
        let class = class(bytes);
        let weight = if self.known >> class & 1 == 1 {
            WEIGHT
        } else {
            1.0
        };
        self.known |= 1 << class;
        let known = &mut self.copy_ns_per_byte[class];
        *known += weight * (took_ns as f64 / bytes.max(1) as f64 - *known);
    }

    /// A sleep ended so late.
    pub fn learn_sleep(&mut self, late_ns: f64) {
        let late_ns = late_ns.max(LEAST_SLEEP_NS);
        if late_ns < self.sleep_ns {
            self.sleep_ns += SOONER * (late_ns - self.sleep_ns);
        } else {
            self.sleep_ns = (LATER * self.sleep_ns).min(late_ns);
        }
    }

    /// A transfer for which somebody slept was over before he looked (`None`), or so long after its
    /// doorbell.
    pub fn learn_transfer(&mut self, bytes: usize, took_ns: Option<u64>, least_ns_per_byte: f64) {
        let known = self.engine_ns_per_byte;
        let seen = match took_ns {
            None => known * QUICKER,
            Some(ns) => (ns as f64 - self.setup_ns) / bytes.max(1) as f64,
        };
        self.engine_ns_per_byte = (known + WEIGHT * (seen - known)).max(least_ns_per_byte);
    }

    /// The least power of two of bytes from 4 KiB to 64 MiB that the engine gets, for a person.
    #[must_use]
    pub fn least_bytes(&self) -> Option<usize> {
        let sizes = (12..=26).map(|shift| 1usize << shift);
        sizes.into_iter().find(|&bytes| self.prefers_engine(bytes))
    }
}

/// The power of two of a size.
fn class(bytes: usize) -> usize {
    (bytes.max(1).ilog2() as usize).min(CLASSES - 1)
}

/// Which of the copies are trials.
#[derive(Clone, Debug, Default)]
pub struct Trials([SizeTrials; CLASSES]);

/// Those of one size.
#[derive(Clone, Copy, Debug, Default)]
struct SizeTrials {
    /// Copies since the last trial.
    since: u32,
    /// Trials in a row after which the engine was still preferred, up to [`MOST_CONFIRMED`].
    confirmed: u32,
}

impl Trials {
    /// The way of the next copy of so many bytes.
    pub fn next(&mut self, costs: &Costs, bytes: usize) -> Way {
        let trials = &mut self.0[class(bytes)];
        let prefers_engine = costs.prefers_engine(bytes);
        if !prefers_engine {
            trials.confirmed = 0;
        }
        trials.since += 1;
        if trials.since >= TRIAL << trials.confirmed || costs.known >> class(bytes) & 1 == 0 {
            trials.since = 0;
            let confirmed = trials.confirmed + u32::from(prefers_engine);
            trials.confirmed = confirmed.min(MOST_CONFIRMED);
            // The engine's time hangs on nothing: only the CPU's has to be asked for.
            return Way::CpuTimed;
        }
        match prefers_engine {
            true => Way::Engine,
            false if bytes >= TIMED_BYTES => Way::CpuTimed,
            false => Way::Cpu,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYSTONE: Costs = Costs {
        fixed_ns: 300.0,
        element_ns: 1125.0,
        setup_ns: 1000.0,
        engine_ns_per_byte: 0.16,
        copy_ns_per_byte: [0.6; CLASSES],
        known: u32::MAX,
        sleep_ns: 10_000.0,
        element_bytes: 4096.0,
    };

    #[test]
    fn a_page_is_the_cpus_and_many_are_the_engines() {
        // 2458 ns against 300 + 1125 + 1000 + 655 = 3080.
        assert!(!KEYSTONE.prefers_engine(4096));
        // 16 pages: 39 us against 300 + 18,000 + 1000 + 10,486 = 29,786.
        assert!(KEYSTONE.prefers_engine(64 << 10));
        // Two: 4915 ns against 300 + 2250 + 1000 + 1311 = 4861.
        assert_eq!(KEYSTONE.least_bytes(), Some(8 << 10));
    }

    #[test]
    fn huge_pages_cost_the_cpu_a_hundredth() {
        let huge = Costs {
            element_bytes: (512 << 10) as f64,
            ..KEYSTONE
        };
        let bytes = 2 << 20;
        // 300 + 4 * 1125 + 10,000 = 14.8 us of 1258.
        assert!((huge.engine_cpu_ns(bytes) - 14_800.0).abs() < 1.0);
        assert!(huge.prefers_engine(bytes));
    }

    #[test]
    fn what_caches_hold_is_found_out() {
        let mut costs = KEYSTONE;
        let mut trials = Trials::default();
        let bytes = 64 << 10;
        let mut by_engine = 0;
        // Copied again and again, it is in the caches: 0.15 ns a byte.
        for _ in 0..10 * TRIAL {
            match trials.next(&costs, bytes) {
                Way::Engine => by_engine += 1,
                Way::CpuTimed => costs.learn_copy(bytes, (bytes as f64 * 0.15) as u64),
                Way::Cpu => {}
            }
        }
        assert!((TRIAL - 1..2 * TRIAL).contains(&by_engine), "{by_engine}");
        assert!(
            costs.prefers_engine(128 << 10),
            "of another size nothing was learned"
        );
        // And no longer.
        for _ in 0..4 * TRIAL {
            if trials.next(&costs, bytes) == Way::CpuTimed {
                costs.learn_copy(bytes, (bytes as f64 * 0.6) as u64);
            }
        }
        assert!(costs.prefers_engine(bytes));
    }

    #[test]
    fn trials_become_rare_while_they_confirm_the_engine() {
        let mut trials = Trials::default();
        let mut of = |costs: &Costs, copies: u32| {
            let ways = (0..copies).map(|_| trials.next(costs, 1 << 20));
            ways.filter(|way| *way == Way::CpuTimed).count() as u32
        };
        assert_eq!(of(&KEYSTONE, TRIAL), 1);
        // After 64, 128 and 256 more, and each 256 from then on.
        assert_eq!(of(&KEYSTONE, 2 * TRIAL + 4 * TRIAL), 2);
        assert_eq!(of(&KEYSTONE, 10 * RAREST_TRIAL), 10);
        // What the CPU would have got anyway is timed each time: that costs next to nothing.
        let fast = Costs {
            copy_ns_per_byte: [0.1; CLASSES],
            ..KEYSTONE
        };
        assert_eq!(of(&fast, 8 * TRIAL), 8 * TRIAL);
    }

    /// Of small copies that are the CPU's anyway one in some is timed, of large ones each.
    #[test]
    fn one_copy_from_a_cache_does_not_keep_the_engine_away() {
        let mut costs = KEYSTONE;
        let mut trials = Trials::default();
        let small = (0..8 * TRIAL).map(|_| trials.next(&costs, 4096));
        assert_eq!(small.filter(|way| *way == Way::CpuTimed).count(), 8);
        // Its source was in a cache, which the next ones' are not.
        let bytes = TIMED_BYTES;
        costs.learn_copy(bytes, (bytes as f64 * 0.1) as u64);
        costs.learn_copy(bytes, (bytes as f64 * 0.1) as u64);
        assert!(!costs.prefers_engine(bytes));
        let mut by_cpu = 0;
        while trials.next(&costs, bytes) != Way::Engine {
            costs.learn_copy(bytes, (bytes as f64 * 1.2) as u64);
            by_cpu += 1;
        }
        assert!(by_cpu <= 2, "{by_cpu}");
    }

    #[test]
    fn nothing_is_chosen_by_a_guess() {
        let mut costs = Costs {
            known: 0,
            ..KEYSTONE
        };
        let mut trials = Trials::default();
        let bytes = 1 << 20;
        assert_eq!(trials.next(&costs, bytes), Way::CpuTimed);
        // The first measurement counts as it is: the target is twice as fast as was thought.
        costs.learn_copy(bytes, (bytes as f64 * 0.3) as u64);
        assert!(!costs.prefers_engine(bytes));
        assert_eq!(trials.next(&costs, bytes), Way::CpuTimed);
        assert_eq!(trials.next(&costs, bytes / 2), Way::CpuTimed);
        costs.learn_copy(4096, 1000);
        assert_eq!(trials.next(&costs, 4096), Way::Cpu);
    }

    #[test]
    fn late_sleeps_do_not_stop_sleeping() {
        let mut costs = KEYSTONE;
        // Three of four end after 20 us, one after a millisecond.
        for round in 0..400 {
            costs.learn_sleep(if round % 4 == 3 { 1e6 } else { 20_000.0 });
        }
        assert!(
            (15_000.0..110_000.0).contains(&costs.sleep_ns),
            "{}",
            costs.sleep_ns
        );
        for _ in 0..20 {
            costs.learn_sleep(0.0);
        }
        assert!(costs.sleep_ns < 2.0 * LEAST_SLEEP_NS);
    }

    #[test]
    fn sleeps_are_as_long_as_transfers() {
        let mut costs = KEYSTONE;
        costs.engine_ns_per_byte = 0.32;
        let bytes = 2 << 20;
        let truly = |costs: &Costs| costs.setup_ns + 0.16 * bytes as f64;
        for _ in 0..100 {
            let is_over = costs.transfer_ns(bytes) - costs.sleep_ns > truly(&costs);
            let took = (!is_over).then_some(truly(&costs) as u64);
            costs.learn_transfer(bytes, took, 0.15);
        }
        assert!(
            (0.15..0.18).contains(&costs.engine_ns_per_byte),
            "{costs:?}"
        );
    }

    #[test]
    fn an_engine_that_is_slower_than_the_cpu_gets_nothing() {
        let slow = Costs {
            engine_ns_per_byte: 0.7,
            ..KEYSTONE
        };
        assert_eq!(slow.least_bytes(), None);
        // Nor one whose elements take the CPU as long as the bytes.
        let dear = Costs {
            element_ns: 4500.0,
            ..KEYSTONE
        };
        assert_eq!(dear.least_bytes(), None);
    }
}
