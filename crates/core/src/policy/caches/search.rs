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
    /// Forecast: the mean of the speeds by weight, against what it is now. 1 where nothing is better.
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

/// Least improvement of the sum of logarithms for which a step is taken.
const LEAST_STEP: f64 = 1e-4;

/// Looks for a better arrangement than the present one.
pub fn search(candidates: &[Candidate], caches: &[Cache]) -> Found {
    let mut at: Vec<usize> = candidates.iter().map(|candidate| candidate.at).collect();
    let score_of = |at: &[usize], cache: usize| -> f64 {
        let here: Vec<&Candidate> = (candidates.iter().zip(at))
            .filter(|&(_, &place)| place == cache)
            .map(|(candidate, _)| candidate)
            .collect();
        let programs: Vec<Program> = here.iter().map(|candidate| candidate.program).collect();
        let speeds = speeds(&programs, caches[cache].lines, caches[cache].cpus);
        let each = here.iter().zip(speeds);
        each.map(|(candidate, speed)| candidate.weight * speed.max(1e-12).ln())
            .sum()
    };
    let mut scores: Vec<f64> = (0..caches.len())
        .map(|cache| score_of(&at, cache))
        .collect();
    let before: f64 = scores.iter().sum();
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
    let gain = ((scores.iter().sum::<f64>() - before) / weights.max(1e-9)).exp();
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
