//! How often one region follows another, and which of them are one.
//!
//! The thesis merges two regions where the time between leaving one and entering the other is below a
//! threshold again and again (2.3.2, figure 21). Of samples most entries are missing, and what is left is
//! how often a touch of one comes next to a touch of the other. Two parts of one region follow each other
//! as often as each follows itself, for their size; two regions that are visited in turns do not, however
//! few they are and in whatever order. So the rule compares with the regions themselves, not with chance:
//! where A is always followed by B, chance would be exceeded many times over.

/// Below so many touches nothing is said.
const LEAST_TOUCHES: f64 = 8.0;

/// Pairs of touches next to each other, by their regions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Follows {
    count: usize,
    pairs: Vec<f64>,
}

impl Follows {
    /// Of so many regions, nothing seen.
    pub fn new(count: usize) -> Self {
        Self {
            count,
            pairs: vec![0.0; count * count],
        }
    }

    /// Regions.
    pub fn len(&self) -> usize {
        self.count
    }

    /// A touch of `next` came after one of `region`.
    #[inline]
    pub fn add(&mut self, region: usize, next: usize) {
        self.pairs[region * self.count + next] += 1.0;
    }

    /// Adds another's pairs.
    pub fn add_all(&mut self, other: &Self) {
        assert_eq!(self.count, other.count, "the same regions");
        for (sum, pairs) in self.pairs.iter_mut().zip(&other.pairs) {
            *sum += pairs;
        }
    }

    /// What was seen counts less by that.
    pub fn fade(&mut self, factor: f64) {
        for pairs in &mut self.pairs {
            *pairs *= factor;
        }
    }

    /// Pairs of this, then that.
    pub fn get(&self, region: usize, next: usize) -> f64 {
        self.pairs[region * self.count + next]
    }

    /// Pairs that begin with this.
    pub fn from(&self, region: usize) -> f64 {
        self.pairs[region * self.count..][..self.count].iter().sum()
    }

    /// All pairs.
    pub fn total(&self) -> f64 {
        self.pairs.iter().sum()
    }

    /// The same of other regions, of which each was one of these, or is new.
    pub fn of(&self, were: &[Option<usize>]) -> Self {
        let mut new = Self::new(were.len());
        for (region, was) in were.iter().enumerate() {
            for (next, next_was) in were.iter().enumerate() {
                if let (Some(was), Some(next_was)) = (was, next_was) {
                    new.pairs[region * new.count + next] = self.get(*was, *next_was);
                }
            }
        }
        new
    }

    /// One becomes part of another; nothing is left of its own.
    pub fn join(&mut self, part: usize, of: usize) {
        for region in 0..self.count {
            self.pairs[of * self.count + region] +=
                std::mem::take(&mut self.pairs[part * self.count + region]);
        }
        for region in 0..self.count {
            self.pairs[region * self.count + of] +=
                std::mem::take(&mut self.pairs[region * self.count + part]);
        }
    }

    /// For each region the one that it is part of: itself, or one before it. `may` says which two may be one,
    /// the lower first.
    pub fn joined(&self, threshold: f64, may: impl Fn(usize, usize) -> bool) -> Vec<usize> {
        let count = self.count;
        let mut now = self.clone();
        let half = |one: &Self, a: usize, b: usize| (one.get(a, b) + one.get(b, a)) / 2.0;
        let mut sizes: Vec<f64> = (0..count)
            .map(|region| (0..count).map(|next| half(self, region, next)).sum())
            .collect();
        let total = self.total().max(1.0);
        let mut part_of: Vec<usize> = (0..count).collect();
        loop {
            let tells =
                |region: &usize| part_of[*region] == *region && sizes[*region] >= LEAST_TOUCHES;
            let mut best: Option<(f64, usize, usize)> = None;
            for one in (0..count).filter(tells) {
                for other in (one + 1..count)
                    .filter(tells)
                    .filter(|&other| may(one, other))
                {
                    let own = at_least(now.get(one, one)) * at_least(now.get(other, other));
                    let by_chance = sizes[one] * sizes[other] / total;
                    let needed = (threshold * own.sqrt()).max(threshold * by_chance);
                    let between = half(&now, one, other);
                    let rank = between / needed.max(f64::MIN_POSITIVE);
                    if between > needed && best.is_none_or(|(most, ..)| rank > most) {
                        best = Some((rank, one, other));
                    }
                }
            }
            let Some((_, one, other)) = best else { break };
            part_of[other] = one;
            sizes[one] += sizes[other];
            now.join(other, one);
        }
        for region in 0..count {
            // Parts come after what they are part of, which is known by then.
            part_of[region] = part_of[part_of[region]];
        }
        part_of
    }
}

/// A count of chance events, less two standard deviations: so much is surely behind it.
fn at_least(count: f64) -> f64 {
    (count - 2.0 * count.sqrt()).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pairs: &[&[u32]]) -> Follows {
        let mut follows = Follows::new(pairs.len());
        for (region, row) in pairs.iter().enumerate() {
            for (next, &count) in row.iter().enumerate() {
                (0..count).for_each(|_| follows.add(region, next));
            }
        }
        follows
    }

    #[test]
    fn parts_of_one_region_are_joined_and_regions_in_turns_are_not() {
        // A visit to the first region touches its two parts by chance; the second region is always next.
        let follows = seen(&[&[100, 100, 40], &[100, 100, 40], &[40, 40, 300]]);
        assert_eq!(follows.joined(0.6, |_, _| true), [0, 0, 2]);
        // With four samples a visit each of five is followed by itself three times, then by the next: by chance
        // it would be a fifth of 100.
        let mut turns = [[0; 5]; 5];
        for region in 0..5 {
            turns[region][region] = 75;
            turns[region][(region + 1) % 5] = 25;
        }
        let follows = seen(&turns.each_ref().map(|row| row.as_slice()));
        assert_eq!(follows.joined(0.6, |_, _| true), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn few_touches_say_nothing_and_what_may_not_be_one_is_not() {
        let few = seen(&[&[2, 2], &[2, 1]]);
        assert_eq!(few.joined(0.6, |_, _| true), [0, 1]);
        let thirds = seen(&[&[50; 3], &[50; 3], &[50; 3]]);
        assert_eq!(thirds.joined(0.6, |_, _| true), [0, 0, 0]);
        assert_eq!(thirds.joined(0.6, |_, other| other != 1), [0, 1, 0]);
    }

    #[test]
    fn what_is_joined_has_the_pairs_of_both() {
        let mut follows = seen(&[&[1, 2, 3], &[4, 5, 6], &[7, 8, 9]]);
        follows.join(2, 0);
        assert_eq!(follows.get(0, 0), 1.0 + 3.0 + 7.0 + 9.0);
        assert_eq!((follows.get(0, 1), follows.get(1, 0)), (10.0, 10.0));
        assert_eq!((follows.from(2), follows.total()), (0.0, 45.0));
        // Of the second there is another now, and a new one.
        let of = follows.of(&[Some(1), None]);
        assert_eq!((of.get(0, 0), of.total(), of.len()), (5.0, 5.0, 2));
    }
}
