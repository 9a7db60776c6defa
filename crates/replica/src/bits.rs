//! A bit for each page: which differ.

use std::ops::Range;

const BITS: usize = u64::BITS as usize;

/// So many bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u64>);

/// The bits of word `word` that are in a range.
fn mask(word: usize, range: &Range<usize>) -> u64 {
    let first = range.start.saturating_sub(word * BITS).min(BITS);
    let end = range.end.saturating_sub(word * BITS).min(BITS);
    match end.saturating_sub(first) {
        0 => 0,
        count => (u64::MAX >> (BITS - count)) << first,
    }
}

fn words(range: &Range<usize>) -> Range<usize> {
    range.start / BITS..range.end.div_ceil(BITS)
}

impl Bits {
    /// None is set.
    pub(crate) fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(BITS)])
    }

    pub(crate) fn set(&mut self, range: Range<usize>) {
        for word in words(&range) {
            self.0[word] |= mask(word, &range);
        }
    }

    pub(crate) fn clear(&mut self, range: Range<usize>) {
        for word in words(&range) {
            self.0[word] &= !mask(word, &range);
        }
    }

    /// Sets those that are set in another of the same length.
    pub(crate) fn join(&mut self, other: &Self) {
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The first from `from` on and below `end` that is set, or is not.
    fn next(&self, from: usize, end: usize, is_set: bool) -> usize {
        let range = from..end;
        for word in words(&range) {
            let bits = if is_set { self.0[word] } else { !self.0[word] };
            let found = bits & mask(word, &range);
            if found != 0 {
                return word * BITS + found.trailing_zeros() as usize;
            }
        }
        end
    }

    /// Longest runs of set bits within a range.
    pub(crate) fn runs(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut from = range.start;
        std::iter::from_fn(move || {
            let start = self.next(from, range.end, true);
            from = self.next(start, range.end, false);
            (start < range.end).then_some(start..from)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_a_list_of_booleans(
            changes in proptest::collection::vec((0usize..300, 0usize..300, any::<bool>()), 0..12),
            looked in (0usize..300, 0usize..300),
        ) {
            let mut bits = Bits::new(300);
            let mut list = vec![false; 300];
            for (one, other, sets) in changes {
                let range = one.min(other)..one.max(other);
                list[range.clone()].fill(sets);
                if sets { bits.set(range) } else { bits.clear(range) }
            }
            prop_assert_eq!(bits.count(), list.iter().filter(|set| **set).count() as u64);
            let looked = looked.0.min(looked.1)..looked.0.max(looked.1);
            let mut found = vec![false; 300];
            let mut last = None;
            for run in bits.runs(looked.clone()) {
                prop_assert!(!run.is_empty() && last.is_none_or(|last| last < run.start));
                last = Some(run.end);
                found[run].fill(true);
            }
            list[..looked.start].fill(false);
            list[looked.end..].fill(false);
            prop_assert_eq!(&found, &list);
            let mut joined = Bits::new(300);
            joined.set(7..9);
            joined.join(&bits);
            let more = bits.runs(7..9).map(|run| run.len() as u64).sum::<u64>();
            prop_assert_eq!(joined.count(), bits.count() + 2 - more);
        }
    }
}
