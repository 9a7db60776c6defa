//! Pages to the regions that they are touched with: what lets regions grow, shrink and become global.
//!
//! The thesis shrinks a region by the page that causes entries that are too many (2.3.3). Here each page is
//! held against every region: how likely are the touches around its own, if it were a page of that region?
//! What pages of a region are touched with is measured on the region itself, so that it does not matter
//! whether a region is large or small, and that it is always visited after the same other one. A page
//! that fits all regions as well, as what surrounds it is what there is everywhere, is global.

use super::label::{GLOBAL, Label, SEED, is_region};
use super::sequence::{Reach, Sequence};

/// Touches of a page that are looked at most, spread over all it has.
const MOST_PLACES: usize = 24;
/// Touches that regions are measured on at most.
const MOST_MEASURED: usize = 1 << 13;
/// Touches of a page from which it may be global.
const LEAST_GLOBAL: usize = 16;
/// Logarithms of likelihoods by which a page has to fit better to become global, and to move.
const SURELY_GLOBAL: f64 = 3.0;
/// A page is global only where its surroundings tell less than this part of what those of a region do.
const LIKE_ANY: f64 = 0.5;
const SURELY_MOVES: f64 = 1.0;

/// Which pages are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those without a region; they stay so where they are touched with others without one. New touches alone
    /// are looked at: of pages that are new there are no others, so that in older ones regions are touched
    /// with fewer pages that have none than now.
    Seeds,
    /// All. Those without a region get one.
    All,
}

/// Gives pages to regions; returns how many moved.
pub fn assign(
    sequence: &Sequence,
    labels: &mut [Label],
    region_count: usize,
    reach: &Reach,
    which: Which,
) -> usize {
    if region_count == 0 {
        return 0;
    }
    // What has no region is one more state.
    let seeds = region_count;
    let state = |label: Label| match is_region(label) {
        true => label as usize,
        false => seeds,
    };
    let states: Vec<u32> = sequence
        .pages
        .iter()
        .map(|&page| state(labels[page as usize]) as u32)
        .collect();
    let counts = |place: usize| which == Which::All || sequence.is_new(place);
    let fits = Fits::measure(sequence, &states, region_count + 1, &reach.lags, counts);
    let mut votes = vec![0.0; region_count + 1];
    let mut places: Vec<usize> = Vec::new();
    let mut moved = 0;
    for (page, label) in labels.iter_mut().enumerate() {
        let was = *label;
        if was != SEED && (which == Which::Seeds || !is_region(was)) {
            continue;
        }
        places.clear();
        let of_page = sequence.of_page(page).iter().map(|&place| place as usize);
        places.extend(of_page.filter(|&place| counts(place)));
        if places.is_empty() {
            continue;
        }
        votes.fill(0.0);
        let step = places.len().div_ceil(MOST_PLACES);
        for &place in places.iter().step_by(step) {
            for &lag in &reach.lags {
                let both = [sequence.before(place, lag), sequence.after(place, lag)];
                for other in both.into_iter().flatten() {
                    if sequence.pages[other] as usize != page {
                        votes[states[other] as usize] += 1.0;
                    }
                }
            }
        }
        let now = fits.judge(&votes, was, which, places.len());
        moved += usize::from(now != was);
        *label = now;
    }
    moved
}

/// What is touched around pages of each region.
struct Fits {
    count: usize,
    /// Logarithm of the likelihood that beside a page of one there is a page of another.
    logs: Vec<f64>,
    /// The same of any page.
    anywhere: Vec<f64>,
    /// How much what is touched around a page tells of its region: mean divergence from any page, in nats.
    told: f64,
}

impl Fits {
    fn measure(
        sequence: &Sequence,
        states: &[u32],
        count: usize,
        lags: &[usize],
        counts: impl Fn(usize) -> bool,
    ) -> Self {
        let mut pairs = vec![0.0; count * count];
        let counted = (0..states.len()).filter(|&place| counts(place));
        let step = counted.clone().count().div_ceil(MOST_MEASURED).max(1);
        for place in counted.step_by(step) {
            for other in lags.iter().filter_map(|&lag| sequence.after(place, lag)) {
                let (one, other) = (states[place] as usize, states[other] as usize);
                pairs[one * count + other] += 1.0;
                pairs[other * count + one] += 1.0;
            }
        }
        let sums: Vec<f64> = pairs.chunks(count).map(|row| row.iter().sum()).collect();
        let total = sums.iter().sum::<f64>();
        // Half a pair and two stand for what is not known yet.
        let share = |state: usize| (sums[state] + 0.5) / (total + 0.5 * count as f64);
        let log = |(at, &pairs): (usize, &f64)| {
            ((pairs + 2.0 * share(at % count)) / (sums[at / count] + 2.0)).ln()
        };
        let anywhere: Vec<f64> = (0..count).map(|state| share(state).ln()).collect();
        let logs: Vec<f64> = pairs.iter().enumerate().map(log).collect();
        let regions = (0..count - 1).map(|region| {
            let row = logs[region * count..][..count].iter().zip(&anywhere);
            (
                sums[region],
                row.map(|(log, any)| log.exp() * (log - any)).sum::<f64>(),
            )
        });
        let (weight, told) = regions.fold((0.0, 0.0), |all, (sum, told)| {
            (all.0 + sum, all.1 + sum * told)
        });
        Self {
            count,
            logs,
            anywhere,
            told: told / weight.max(1.0),
        }
    }

    fn fit(&self, state: usize, votes: &[f64]) -> f64 {
        let logs = &self.logs[state * self.count..][..self.count];
        logs.iter().zip(votes).map(|(log, votes)| log * votes).sum()
    }

    fn judge(&self, votes: &[f64], was: Label, which: Which, touches: usize) -> Label {
        let seeds = self.count - 1;
        let mut best = (f64::NEG_INFINITY, SEED);
        for region in (0..seeds).filter(|&region| votes[region] > 0.0) {
            let fit = self.fit(region, votes);
            if fit > best.0 {
                best = (fit, region as Label);
            }
        }
        let (fit, label) = best;
        if label == SEED {
            return was;
        }
        let anywhere: f64 = self
            .anywhere
            .iter()
            .zip(votes)
            .map(|(log, votes)| log * votes)
            .sum();
        let has_several = seeds > 1;
        let per_place = votes.iter().sum::<f64>() / touches.min(MOST_PLACES) as f64;
        if has_several
            && touches >= LEAST_GLOBAL
            && anywhere > fit + SURELY_GLOBAL * per_place
            && self.is_like_any(votes)
        {
            return GLOBAL;
        }
        let is_seeds = which == Which::Seeds && votes[seeds] > 0.0 && self.fit(seeds, votes) > fit;
        match was {
            SEED if is_seeds || (fit <= anywhere && has_several) => SEED,
            SEED => label,
            _ if fit > self.fit(was as usize, votes) + SURELY_MOVES => label,
            _ => was,
        }
    }

    /// Is what is touched around a page what is touched everywhere, as far as it is told at all?
    fn is_like_any(&self, votes: &[f64]) -> bool {
        let all: f64 = votes.iter().sum();
        let told = votes
            .iter()
            .zip(&self.anywhere)
            .filter(|(votes, _)| **votes > 0.0);
        let told: f64 = told
            .map(|(votes, any)| votes / all * ((votes / all).ln() - any))
            .sum();
        told < LIKE_ANY * self.told
    }
}
