//! How fast programs would be with other parts of their memory in the fast tier: the roofline's two memories
//! under their loads.
//!
//! Each program waits for memory for some share of its time. That part grows and shrinks with the latency of
//! the memory that it uses, which depends on what all programs together ask of it; the rest stays. The speeds
//! that follow change what is asked, so that they are solved for together. A memory that is asked for more
//! than it carries answers so much later that it is not.

use crate::machine::Curve;

/// Rounds in which the speeds settle, each by half.
const ROUNDS: usize = 30;
/// Utilisation up to which the curve of latencies counts; beyond it capacity does.
const MOST_USE: f64 = crate::timing::MAX_UTILISATION;

/// A tier's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Memory {
    /// Latency at rest in ns.
    pub idle_ns: f64,
    /// Bytes a us that it carries; infinite where nobody knows.
    pub capacity: f64,
    /// Bytes a us that others than the programs ask of it.
    pub others: f64,
}

impl Memory {
    /// That of measured memories (Mess data, see [`crate::timing`]), in parts of the latency at rest.
    fn curve(&self) -> Curve {
        Curve {
            a_ns: 0.4 * self.idle_ns,
            b_ns: 0.0085 * self.idle_ns,
            n: 4.0,
        }
    }

    /// Latency in ns at so many bytes a us.
    fn latency_ns(&self, asked: f64) -> f64 {
        let asked = (asked + self.others) / self.capacity;
        (self.idle_ns + self.curve().queueing_ns(asked)) * (asked / MOST_USE).max(1.0)
    }
}

/// A program as it is now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Demand {
    /// Bytes a us between it and memory.
    pub bytes: f64,
    /// Share of its time that waits for memory, 0 to 1.
    pub stalled: f64,
    /// Its base pages.
    pub pages: u64,
    /// Share of them in the fast tier.
    pub fast: f64,
}

/// What is to be maximised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// The sum of the programs' speeds, each beside what it is now.
    #[default]
    Throughput,
    /// The product of them: a program that is slow counts for more.
    Fairness,
}

impl Objective {
    fn of(self, speeds: &[f64]) -> f64 {
        match self {
            Self::Throughput => speeds.iter().sum(),
            Self::Fairness => speeds.iter().map(|speed| speed.max(1e-9).ln()).sum(),
        }
    }
}

/// Two tiers, the fast one first, and the programs that share them.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub memories: [Memory; 2],
    pub programs: Vec<Demand>,
}

impl Model {
    fn latencies(&self, fast: &[f64], speeds: &[f64]) -> [f64; 2] {
        let mut asked = [0.0; 2];
        for ((program, &fast), &speed) in self.programs.iter().zip(fast).zip(speeds) {
            asked[0] += program.bytes * speed * fast;
            asked[1] += program.bytes * speed * (1.0 - fast);
        }
        [0, 1].map(|tier| self.memories[tier].latency_ns(asked[tier]))
    }

    /// Speeds of the programs, each beside the present one, with these shares of their memory in the fast
    /// tier.
    pub fn speeds(&self, fast: &[f64]) -> Vec<f64> {
        let now: Vec<f64> = self.programs.iter().map(|program| program.fast).collect();
        let mut speeds = vec![1.0; self.programs.len()];
        let before = self.latencies(&now, &speeds);
        for _ in 0..ROUNDS {
            let after = self.latencies(fast, &speeds);
            for (index, program) in self.programs.iter().enumerate() {
                let mean = |share: f64, of: [f64; 2]| share * of[0] + (1.0 - share) * of[1];
                let ratio = mean(fast[index], after) / mean(program.fast, before);
                let stalled = program.stalled.clamp(0.0, 1.0);
                let next = 1.0 / (1.0 - stalled + stalled * ratio);
                speeds[index] = f64::midpoint(speeds[index], next);
            }
        }
        speeds
    }

    /// What is reached with these shares.
    pub fn value(&self, fast: &[f64], objective: Objective) -> f64 {
        objective.of(&self.speeds(fast))
    }

    /// The shares of a greedy choice within so many pages of fast memory: each time the program, or as much of
    /// it as still fits, that brings most for each page, while any brings something.
    pub fn best(&self, capacity: u64, objective: Objective) -> Vec<f64> {
        let mut fast = vec![0.0; self.programs.len()];
        let mut left = capacity;
        let mut value = self.value(&fast, objective);
        loop {
            let mut best: Option<(f64, usize, f64, u64, f64)> = None;
            for (index, program) in self.programs.iter().enumerate() {
                // The whole, or a half: it may be best to use what both memories carry.
                for part in [1.0, 0.5] {
                    let wanted = (program.pages as f64 * (part - fast[index])) as u64;
                    let pages = wanted.min(left);
                    if pages == 0 {
                        continue;
                    }
                    let share = fast[index] + pages as f64 / program.pages as f64;
                    let before = std::mem::replace(&mut fast[index], share);
                    let then = self.value(&fast, objective);
                    fast[index] = before;
                    let gain = (then - value) / pages as f64;
                    if then > value && best.is_none_or(|(most, ..)| gain > most) {
                        best = Some((gain, index, share, pages, then));
                    }
                }
            }
            let Some((_, index, share, pages, then)) = best else {
                return fast;
            };
            (fast[index], left, value) = (share, left - pages, then);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Knights Landing in flat mode: MCDRAM carries more and answers later.
    fn knl(programs: Vec<Demand>) -> Model {
        let memory = |idle_ns, capacity| Memory {
            idle_ns,
            capacity,
            others: 0.0,
        };
        Model {
            memories: [memory(176.0, 350_000.0), memory(147.0, 78_000.0)],
            programs,
        }
    }

    fn program(bytes: f64, stalled: f64, pages: u64) -> Demand {
        Demand {
            bytes,
            stalled,
            pages,
            fast: 0.0,
        }
    }

    #[test]
    fn nothing_changes_where_nothing_is_moved() {
        let model = knl(vec![program(30_000.0, 0.8, 100), program(1000.0, 0.1, 50)]);
        let speeds = model.speeds(&[0.0, 0.0]);
        assert!(
            speeds.iter().all(|speed| (speed - 1.0).abs() < 1e-6),
            "{speeds:?}"
        );
    }

    #[test]
    fn a_machine_at_rest_gains_nothing_by_memory_that_answers_later() {
        let model = knl(vec![program(500.0, 0.5, 100)]);
        let speeds = model.speeds(&[1.0]);
        assert!(speeds[0] < 0.95, "{speeds:?}");
        assert_eq!(model.best(1000, Objective::Throughput), [0.0]);
    }

    #[test]
    fn who_asks_for_most_goes_first_and_helps_who_stays() {
        // Together they ask for all that slow memory carries.
        let programs = vec![
            program(50_000.0, 0.9, 100),
            program(20_000.0, 0.9, 100),
            program(200.0, 0.3, 100),
        ];
        let model = knl(programs);
        let best = model.best(100, Objective::Throughput);
        assert!(best[0] >= 0.5 && best[2] == 0.0, "{best:?}");
        let speeds = model.speeds(&best);
        assert!(speeds[0] > 1.05 && speeds[1] > 1.05, "{speeds:?}");
    }

    #[test]
    fn capacity_is_not_exceeded_and_parts_are_taken() {
        let model = knl(vec![
            program(60_000.0, 0.9, 1000),
            program(15_000.0, 0.9, 100),
        ]);
        for capacity in [0, 60, 100, 450, 2000] {
            for objective in [Objective::Throughput, Objective::Fairness] {
                let best = model.best(capacity, objective);
                let used: f64 = best
                    .iter()
                    .zip(&model.programs)
                    .map(|(f, p)| f * p.pages as f64)
                    .sum();
                assert!(used <= capacity as f64 + 1e-6, "{best:?}");
                assert!(capacity == 0 || used > 0.0, "{best:?}");
            }
        }
    }
}
