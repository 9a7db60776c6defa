//! Which chunks are copied to which place, within a budget and what nodes have free. Pure.
//!
//! Mechanism: wishes are taken by weight (how often the place read the chunk), heaviest first, so that a
//! budget goes where most is read; among equals by chunk, the places in turns, so that all get about as much.
//! A wish whose pages are there already needs no memory. What does not fit is left, with one reason for each
//! place; the array works from its master there.
//!
//! Always: new pages stay within the budget and within each place's room; every wish is taken or counted as
//! left; the same wishes give the same plan.

use crate::rule::megabytes;

/// A copy that would help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Position of the place.
    pub place: usize,
    /// The chunk.
    pub chunk: usize,
    /// How often the place read it.
    pub weight: u32,
    /// Does it need new pages?
    pub needs_pages: bool,
}

/// What there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Means {
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Bytes that new copies may take in all.
    pub budget_bytes: u64,
    /// Bytes that each place has free for copies.
    pub room_bytes: Vec<u64>,
    /// Most bytes to copy by this plan.
    pub most_bytes: u64,
}

/// What is to be copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In order.
    pub taken: Vec<Wish>,
    /// Wishes that fit, beyond the most bytes of this plan.
    pub later: usize,
    /// Sentences, one for each place and reason.
    pub refused: Vec<String>,
    /// Wishes refused.
    pub refused_count: usize,
}

/// Makes a plan; `name` says what a place is called.
#[must_use]
pub fn plan(mut wishes: Vec<Wish>, means: &Means, name: impl Fn(usize) -> String) -> Plan {
    wishes.sort_by_key(|wish| (std::cmp::Reverse(wish.weight), wish.chunk, wish.place));
    let mut plan = Plan::default();
    let (mut budget, mut room) = (means.budget_bytes, means.room_bytes.clone());
    let mut left = means.most_bytes;
    let mut no_budget = vec![0u64; room.len()];
    let mut no_room = vec![0u64; room.len()];
    for wish in wishes {
        if wish.needs_pages && room[wish.place] < means.chunk_bytes {
            no_room[wish.place] += 1;
            continue;
        }
        if wish.needs_pages && budget < means.chunk_bytes {
            no_budget[wish.place] += 1;
            continue;
        }
        if wish.needs_pages {
            budget -= means.chunk_bytes;
            room[wish.place] -= means.chunk_bytes;
        }
        if left < means.chunk_bytes {
            plan.later += 1;
            continue;
        }
        left -= means.chunk_bytes;
        plan.taken.push(wish);
    }
    for place in 0..room.len() {
        if no_room[place] > 0 {
            plan.refused.push(format!(
                "{} has no room for {} more of copies: readers there use the master",
                name(place),
                megabytes(no_room[place] * means.chunk_bytes)
            ));
        }
        if no_budget[place] > 0 {
            plan.refused.push(format!(
                "the budget has no {} more for copies on {}: readers there use the master",
                megabytes(no_budget[place] * means.chunk_bytes),
                name(place)
            ));
        }
    }
    plan.refused_count = no_room.iter().chain(&no_budget).sum::<u64>() as usize;
    plan
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wish(place: usize, chunk: usize, weight: u32) -> Wish {
        Wish {
            place,
            chunk,
            weight,
            needs_pages: true,
        }
    }

    fn means(budget: u64, room: &[u64]) -> Means {
        Means {
            chunk_bytes: 2 << 20,
            budget_bytes: budget << 20,
            room_bytes: room.iter().map(|mb| mb << 20).collect(),
            most_bytes: u64::MAX,
        }
    }

    #[test]
    fn the_budget_goes_where_most_is_read() {
        let wishes = vec![wish(0, 0, 1), wish(1, 0, 9), wish(0, 1, 5)];
        let plan = plan(wishes, &means(5, &[100, 100]), |place| {
            format!("node {place}")
        });
        assert_eq!(plan.taken, [wish(1, 0, 9), wish(0, 1, 5)]);
        assert_eq!(
            plan.refused,
            ["the budget has no 2.1 MB more for copies on node 0: readers there use the master"]
        );
    }

    #[test]
    fn a_full_node_refuses_with_a_reason_and_others_go_on() {
        let wishes = vec![wish(0, 0, 1), wish(1, 0, 1), wish(1, 1, 1)];
        let plan = plan(wishes, &means(100, &[1, 2]), |place| {
            format!("node {place}")
        });
        assert_eq!(plan.taken, [wish(1, 0, 1)]);
        assert_eq!((plan.refused.len(), plan.refused_count), (2, 2));
        assert!(plan.refused[0].starts_with("node 0 has no room for 2.1 MB"));
    }

    #[test]
    fn what_has_pages_needs_no_budget_and_a_slice_ends() {
        let old = Wish {
            needs_pages: false,
            ..wish(0, 3, 1)
        };
        let mut means = means(0, &[0]);
        means.most_bytes = 2 << 20;
        let plan = plan(vec![old, Wish { chunk: 4, ..old }], &means, |_| {
            String::new()
        });
        assert_eq!((plan.taken, plan.later), (vec![old], 1));
    }

    proptest! {
        #[test]
        fn memory_is_kept_within_and_every_wish_is_accounted_for(
            wishes in proptest::collection::vec((0usize..4, 0usize..64, 0u32..9, any::<bool>()), 0..200),
            budget in 0u64..200, room in proptest::collection::vec(0u64..60, 4), most in 0u64..300,
        ) {
            let wishes: Vec<Wish> = wishes
                .into_iter()
                .map(|(place, chunk, weight, needs_pages)| Wish { place, chunk, weight, needs_pages })
                .collect();
            let mut means = means(budget, &room);
            means.most_bytes = most << 20;
            let count = wishes.len();
            let plan = plan(wishes, &means, |place| format!("node {place}"));
            prop_assert_eq!(plan.taken.len() + plan.later + plan.refused_count, count);
            let new = |place: usize| plan.taken.iter().filter(|wish| wish.needs_pages && wish.place == place).count() as u64;
            prop_assert!((0..4).map(new).sum::<u64>() * 2 <= budget);
            prop_assert!((0..4).all(|place| new(place) * 2 <= room[place]));
            prop_assert!(plan.taken.len() as u64 * 2 <= most);
        }
    }
}
