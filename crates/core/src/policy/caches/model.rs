//! Forecast: the speed of programs that share a last-level cache.
//!
//! Each program is taken to use the lines of its working set alike and at random. A cache that replaces the line used
//! longest ago then keeps a line for about one time `T`, the same for all (Che, Tung and Wang, "Hierarchical Web
//! caching systems", IEEE JSAC 2002): a line that is used `r` times a ns is found with probability `1 - exp(-r T)`,
//! and `T` is such that what is found fills the cache. How often a program asks depends on how often it finds, so both
//! are settled in turns. A program that finds much less than that uses its lines in turns, of which a cache that is too
//! small keeps none until they are used again. The memory-region thesis (2.2.3, 2.5.2) takes the sum of the working sets as a cache's load; the
//! sum does not tell who suffers from whom, which is needed to weigh one arrangement against another.

/// Turns in which speeds and hits settle.
const TURNS: usize = 12;
/// Halvings that find `T`.
const HALVINGS: usize = 24;

/// How sharp the limit is between a set in turns that fits and one that does not.
const STEEPNESS: i32 = 8;

/// What is known of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Program {
    /// Working set in lines.
    pub lines: f64,
    /// References to the last-level cache for each instruction.
    pub references: f64,
    /// Time of an instruction in ns where the last-level cache serves all references.
    pub base_ns: f64,
    /// Time that a reference takes longer where memory serves it, in ns.
    pub miss_ns: f64,
    /// CPUs that it would keep busy.
    pub demand: f64,
    /// It uses its lines in turns, so that each is replaced just before it is used again where they do not fit; else
    /// at random.
    pub goes_round: bool,
}

impl Program {
    /// Instructions per ns where so much of what it asks for is found, with such a share of its demand of CPUs.
    fn speed(&self, hits: f64, share: f64) -> f64 {
        let ns = self.base_ns + self.references * (1.0 - hits) * self.miss_ns;
        self.demand * share / ns.max(1e-3)
    }

    /// Part of what it asks for that is found where a line is kept for `time` ns and used every `reuse_ns`.
    fn hits(&self, time: f64, reuse_ns: f64) -> f64 {
        match self.goes_round {
            false => 1.0 - (-time / reuse_ns).exp(),
            true => 1.0 / (1.0 + (reuse_ns / time.max(1e-9)).powi(STEEPNESS)),
        }
    }

    /// Part of its lines that the cache holds.
    fn held(&self, time: f64, reuse_ns: f64) -> f64 {
        match self.goes_round {
            false => 1.0 - (-time / reuse_ns).exp(),
            true => (time / reuse_ns).min(1.0),
        }
    }
}

/// Part of what each program asks for that a cache of so many lines with so many CPUs has.
pub fn hits(programs: &[Program], lines: f64, cpus: f64) -> Vec<f64> {
    let needed: f64 = programs.iter().map(|program| program.lines).sum();
    let mut hits = vec![1.0; programs.len()];
    if needed <= lines {
        return hits;
    }
    let share = share(programs, cpus);
    for _ in 0..TURNS {
        let reuses: Vec<f64> = programs
            .iter()
            .zip(&hits)
            .map(|(program, &hits)| {
                let rate = program.speed(hits, share) * program.references;
                program.lines.max(1.0) / rate.max(1e-12)
            })
            .collect();
        let time = holding_time(programs, &reuses, lines);
        for ((program, hits), reuse_ns) in programs.iter().zip(&mut hits).zip(&reuses) {
            *hits = 0.5 * (*hits + program.hits(time, *reuse_ns));
        }
    }
    hits
}

/// Instructions per ns of each program on a cache of so many lines with so many CPUs.
pub fn speeds(programs: &[Program], lines: f64, cpus: f64) -> Vec<f64> {
    let share = share(programs, cpus);
    let hits = hits(programs, lines, cpus);
    let each = programs.iter().zip(hits);
    each.map(|(program, hits)| program.speed(hits, share))
        .collect()
}

/// Share of the CPUs that programs want which they get.
fn share(programs: &[Program], cpus: f64) -> f64 {
    let wanted: f64 = programs.iter().map(|program| program.demand).sum();
    (cpus / wanted.max(1e-9)).min(1.0)
}

/// Time for which the cache keeps a line that is not used again, in ns.
fn holding_time(programs: &[Program], reuses: &[f64], lines: f64) -> f64 {
    let held = |time: f64| -> f64 {
        let each = programs.iter().zip(reuses);
        each.map(|(program, &reuse_ns)| program.lines * program.held(time, reuse_ns))
            .sum()
    };
    // Programs that ask for nothing fill nothing, however long it takes.
    let mut most = 1.0;
    while held(most) < lines && most < 1e15 {
        most *= 8.0;
    }
    let (mut low, mut high) = (0.0, most);
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        match held(middle) < lines {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Dependent loads over so many KiB, each in its turn from the last-level cache or from memory.
    pub fn walker(kib: f64) -> Program {
        Program {
            lines: kib * 16.0,
            references: 0.5,
            base_ns: 3.0,
            miss_ns: 100.0,
            demand: 1.0,
            goes_round: false,
        }
    }

    const MIB4: f64 = 65_536.0;

    #[test]
    fn what_fits_runs_at_full_speed() {
        let alone = speeds(&[walker(4096.0)], MIB4, 2.0)[0];
        assert!((alone - 1.0 / 3.0).abs() < 1e-9);
        let both = speeds(&[walker(4000.0), walker(16.0)], MIB4, 2.0);
        assert!(both.iter().all(|speed| (speed - 1.0 / 3.0).abs() < 1e-9));
    }

    #[test]
    fn two_that_do_not_fit_together_miss_half_each() {
        let both = speeds(&[walker(4096.0), walker(4096.0)], MIB4, 2.0);
        // Half of the references miss: 3 + 0.5 * 0.5 * 100 ns.
        for speed in both {
            assert!((1.0 / speed - 28.0).abs() < 0.5, "{}", 1.0 / speed);
        }
    }

    #[test]
    fn of_a_set_in_turns_nothing_is_found_until_all_fits() {
        let round = Program {
            goes_round: true,
            ..walker(4096.0)
        };
        let found = |programs: &[Program]| hits(programs, MIB4, 2.0)[0];
        assert!(found(&[round, round]) < 0.05, "{}", found(&[round, round]));
        assert_eq!(found(&[round]), 1.0);
        let half = Program {
            lines: MIB4 / 2.0,
            ..round
        };
        assert_eq!(found(&[half, half]), 1.0);
    }

    #[test]
    fn a_small_set_that_is_used_often_stays_and_a_stream_gains_nothing() {
        let stream = Program {
            lines: 1e7,
            ..walker(0.0)
        };
        let speeds_of = speeds(&[walker(1024.0), stream], MIB4, 2.0);
        let alone = speeds(&[stream], MIB4, 2.0)[0];
        assert!((speeds_of[1] / alone - 1.0).abs() < 0.02);
        assert!(
            speeds_of[0] > 0.25 && speeds_of[0] < 1.0 / 3.0,
            "{speeds_of:?}"
        );
    }

    #[test]
    fn cpus_that_are_wanted_by_more_are_shared() {
        let three = [walker(16.0); 3];
        let sum: f64 = speeds(&three, MIB4, 2.0).iter().sum();
        assert!((sum - 2.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        assert!(speeds(&[], MIB4, 2.0).is_empty());
        let idle = Program {
            references: 0.0,
            demand: 0.0,
            base_ns: 0.0,
            ..walker(99_999.0)
        };
        for speed in speeds(&[idle, walker(9999.0)], MIB4, 2.0) {
            assert!(speed.is_finite());
        }
    }
}
