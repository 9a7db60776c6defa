//! Search: which program goes to which cache.
//!
//! Moves of one program and exchanges of two, the best first, until none helps. The thesis's balancer is greedy too
//! (2.2.3). Exchanges matter: where every CPU is busy, no program can move without another.

use super::model::{Program, speeds};

/// A last-level cache with the CPUs that share it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cache {
    pub lines: f64,
    pub cpus: f64,
}

/// A program that may be placed.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub program: Program,
    /// How much its speed counts.
    pub weight: f64,
    /// The cache on which it runs.
    pub at: usize,
    /// May it run on each cache?
    pub may: Vec<bool>,
}

/// The best arrangement that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The cache of each candidate.
    pub at: Vec<usize>,
    /// Forecast: the mean of the speeds by weight, against what it is now, where losses count more. 1 where nothing is
    /// better.
    pub gain: f64,
}

/// A change of one step.
#[derive(Clone, Copy)]
enum Step {
    Move(usize, usize),
    Exchange(usize, usize),
}

/// A step that improves the sum, with the scores of its two caches afterwards.
struct Better {
    gain: f64,
    step: Step,
    new: [(usize, f64); 2],
}

/// How much more a program counts that would be slower than now: nobody is to pay for others' speed, but where the
/// gain is large against the loss.
const LOSS_WEIGHT: f64 = 3.0;
/// Least improvement of the sum of logarithms for which a step is taken.
const LEAST_STEP: f64 = 1e-4;

/// Looks for a better arrangement than the present one.
pub fn search(candidates: &[Candidate], caches: &[Cache]) -> Found {
    let mut at: Vec<usize> = candidates.iter().map(|candidate| candidate.at).collect();
    let logs_of = |at: &[usize], cache: usize| -> Vec<(usize, f64)> {
        let here: Vec<usize> = (0..at.len()).filter(|&one| at[one] == cache).collect();
        let programs: Vec<Program> = here.iter().map(|&one| candidates[one].program).collect();
        let speeds = speeds(&programs, caches[cache].lines, caches[cache].cpus);
        let logs = speeds.into_iter().map(|speed| speed.max(1e-12).ln());
        here.into_iter().zip(logs).collect()
    };
    let mut now = vec![0.0; at.len()];
    for (one, log) in (0..caches.len()).flat_map(|cache| logs_of(&at, cache)) {
        now[one] = log;
    }
    let score_of = |at: &[usize], cache: usize| -> f64 {
        let each = logs_of(at, cache).into_iter().map(|(one, log)| {
            let change = log - now[one];
            let loss = (LOSS_WEIGHT - 1.0) * change.min(0.0);
            candidates[one].weight * (change + loss)
        });
        each.sum()
    };
    let mut scores = vec![0.0; caches.len()];
    // Each step improves the sum, so it ends; a bound for what rounding might do.
    for _ in 0..4 * candidates.len() {
        let mut best: Option<Better> = None;
        for step in steps(candidates, &at, caches.len()) {
            let mut tried = at.clone();
            let pair = apply(step, &mut tried);
            let new = pair.map(|cache| (cache, score_of(&tried, cache)));
            let gain: f64 = new
                .iter()
                .map(|&(cache, score)| score - scores[cache])
                .sum();
            if gain > best.as_ref().map_or(LEAST_STEP, |better| better.gain) {
                best = Some(Better { gain, step, new });
            }
        }
        let Some(Better { step, new, .. }) = best else {
            break;
        };
        apply(step, &mut at);
        for (cache, score) in new {
            scores[cache] = score;
        }
    }
    let weights: f64 = candidates.iter().map(|candidate| candidate.weight).sum();
    let gain = (scores.iter().sum::<f64>() / weights.max(1e-9)).exp();
    Found { at, gain }
}

/// Each step that may be taken.
fn steps(candidates: &[Candidate], at: &[usize], caches: usize) -> Vec<Step> {
    let may = |program: usize, cache: usize| candidates[program].may[cache];
    let mut steps = Vec::new();
    for one in 0..at.len() {
        let others = (0..caches).filter(|&cache| cache != at[one] && may(one, cache));
        steps.extend(others.map(|cache| Step::Move(one, cache)));
        let exchanges = (one + 1..at.len())
            .filter(|&other| at[one] != at[other] && may(one, at[other]) && may(other, at[one]));
        steps.extend(exchanges.map(|other| Step::Exchange(one, other)));
    }
    steps
}

/// Takes a step; says which two caches it concerns.
fn apply(step: Step, at: &mut [usize]) -> [usize; 2] {
    match step {
        Step::Move(program, cache) => {
            let from = std::mem::replace(&mut at[program], cache);
            [from, cache]
        }
        Step::Exchange(one, other) => {
            at.swap(one, other);
            [at[one], at[other]]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::walker;
    use super::*;

    const CLOVERTOWN: [Cache; 2] = [Cache {
        lines: 65_536.0,
        cpus: 2.0,
    }; 2];

    fn candidates(kib: &[f64], at: &[usize]) -> Vec<Candidate> {
        let one = |(&kib, &at): (&f64, &usize)| Candidate {
            program: walker(kib),
            weight: 1.0,
            at,
            may: vec![true; 2],
        };
        kib.iter().zip(at).map(one).collect()
    }

    #[test]
    fn large_programs_that_share_a_cache_are_parted() {
        let found = search(
            &candidates(&[4096.0, 4096.0, 16.0, 16.0], &[0, 0, 1, 1]),
            &CLOVERTOWN,
        );
        assert_ne!(found.at[0], found.at[1]);
        assert_ne!(found.at[2], found.at[3], "no CPU idles");
        assert!(found.gain > 1.5, "{}", found.gain);
    }

    #[test]
    fn what_is_well_stays() {
        let found = search(
            &candidates(&[4096.0, 16.0, 4096.0, 16.0], &[0, 0, 1, 1]),
            &CLOVERTOWN,
        );
        assert_eq!((found.at, found.gain), (vec![0, 0, 1, 1], 1.0));
    }

    #[test]
    fn nobody_is_slowed_down_much_for_a_small_gain_of_others() {
        let all = candidates(
            &[200.0, 455.0, 1217.0, 1488.0, 1670.0, 1847.0, 1355.0, 1600.0],
            &[0, 0, 0, 0, 1, 1, 1, 1],
        );
        let found = search(&all, &CLOVERTOWN);
        let speeds_at = |at: &[usize]| -> Vec<f64> {
            let mut told = vec![0.0; all.len()];
            for (cache, of) in CLOVERTOWN.iter().enumerate() {
                let here: Vec<usize> = (0..at.len()).filter(|&one| at[one] == cache).collect();
                let programs: Vec<Program> = here.iter().map(|&one| all[one].program).collect();
                for (&one, speed) in here.iter().zip(speeds(&programs, of.lines, of.cpus)) {
                    told[one] = speed;
                }
            }
            told
        };
        let (before, after) = (speeds_at(&[0, 0, 0, 0, 1, 1, 1, 1]), speeds_at(&found.at));
        let logs = before
            .iter()
            .zip(&after)
            .map(|(before, after)| (after / before).ln());
        let (losses, gains): (Vec<f64>, Vec<f64>) = logs.partition(|&log| log < 0.0);
        assert!(gains.iter().sum::<f64>() >= -LOSS_WEIGHT * losses.iter().sum::<f64>());
    }

    #[test]
    fn a_program_that_may_not_move_stays() {
        let mut all = candidates(&[4096.0, 4096.0, 16.0, 16.0], &[0, 0, 1, 1]);
        all.iter_mut()
            .for_each(|one| one.may = vec![one.at == 0, one.at == 1]);
        assert_eq!(search(&all, &CLOVERTOWN).at, [0, 0, 1, 1]);
    }

    #[test]
    fn a_preferred_program_gets_a_cache_without_those_that_sweep_it() {
        let mut all = candidates(&[2048.0, 1e6, 1e6, 1e6], &[0, 0, 1, 1]);
        all[0].program.demand = 0.3;
        all[0].weight = 8.0;
        let found = search(&all, &CLOVERTOWN);
        let with_it = (1..4)
            .filter(|&other| found.at[other] == found.at[0])
            .count();
        assert_eq!(with_it, 0, "{found:?}");
    }
}
