//! Weights: how many pages each node gets in turn.
//!
//! A program that uses up a memory's bandwidth is fastest where every memory gives pages in
//! proportion to its bandwidth: then all of them are done at the same time.

use crate::ids::NodeId;
use crate::set::NodeSet;
use std::collections::BTreeMap;
use std::fmt;

/// Weights that are nearer to bandwidths than this are as good as any: of the bandwidths' sum.
const GOOD: f64 = 0.998;
/// The largest weight the kernel takes.
const MOST: u8 = u8::MAX;

/// Pages that each node gets in turn: 1 to 255, as the kernel has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights(BTreeMap<NodeId, u8>);

impl Weights {
    /// The smallest weights with which nodes of these bandwidths (in any one unit) give at least
    /// 0.998 of their sum; where there are none, those that give most.
    #[must_use]
    pub fn of_bandwidths(bandwidths: &BTreeMap<NodeId, f64>) -> Self {
        let sum: f64 = bandwidths.values().sum();
        let most = bandwidths.values().copied().fold(0.0, f64::max);
        let scaled = |largest: u8| {
            let weight = |bandwidth: f64| match most > 0.0 {
                true => (bandwidth / most * f64::from(largest)).round().max(1.0) as u8,
                false => 1,
            };
            Self(
                bandwidths
                    .iter()
                    .map(|(id, gbs)| (*id, weight(*gbs)))
                    .collect(),
            )
        };
        let mut best = (scaled(1), 0.0);
        for weights in (1..=MOST).map(scaled) {
            let together = weights.together(bandwidths);
            if together > best.1 {
                best = (weights, together);
            }
            if best.1 >= GOOD * sum {
                break;
            }
        }
        best.0
    }

    /// What people write, `3:1`, for these nodes in ascending order.
    ///
    /// # Errors
    /// Another number of weights than of nodes, or one that the kernel does not take.
    pub fn parse(text: &str, nodes: &NodeSet) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        if parts.len() != nodes.len() {
            return Err(format!(
                "`{text}` has {} weights, and there are {} nodes: {nodes}; give one for each, as in {}",
                parts.len(),
                nodes.len(),
                vec!["1"; nodes.len()].join(":")
            ));
        }
        let weight = |part: &str| match part.parse() {
            Ok(weight @ 1..=MOST) => Ok(weight),
            _ => Err(format!("weight `{part}` is no number from 1 to {MOST}")),
        };
        let weights = parts.into_iter().map(weight);
        let weights: Result<Vec<u8>, String> = weights.collect();
        Ok(Self(nodes.iter().zip(weights?).collect()))
    }

    /// Nodes with their weights, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, u8)> + '_ {
        self.0.iter().map(|(id, weight)| (*id, *weight))
    }

    /// What nodes of these bandwidths give together when pages are used evenly: the first that is
    /// used up holds the others back. In the unit of the bandwidths.
    #[must_use]
    pub fn together(&self, bandwidths: &BTreeMap<NodeId, f64>) -> f64 {
        let all: u64 = self.0.values().map(|weight| u64::from(*weight)).sum();
        let limits = self.0.iter().map(|(id, weight)| {
            let bandwidth = bandwidths.get(id).copied().unwrap_or(0.0);
            bandwidth * all as f64 / f64::from(*weight)
        });
        limits.fold(f64::INFINITY, f64::min)
    }

    /// The node whose turn it is; turns are counted from zero.
    ///
    /// # Panics
    /// Where there is no node.
    #[must_use]
    pub fn node_of(&self, turn: u64) -> NodeId {
        let all: u64 = self.0.values().map(|weight| u64::from(*weight)).sum();
        let mut left = turn % all;
        for (id, weight) in self.iter() {
            match left.checked_sub(u64::from(weight)) {
                None => return id,
                Some(rest) => left = rest,
            }
        }
        unreachable!("what is left is less than all weights")
    }

    /// Of these nodes alone.
    #[must_use]
    pub fn only(&self, nodes: &NodeSet) -> Self {
        let kept = self.iter().filter(|(id, _)| nodes.contains(*id));
        Self(kept.collect())
    }

    /// As nearly on these nodes alone as weights can say: the others get one page in turn, the
    /// least there is, and these as many as there may be.
    #[must_use]
    pub fn leaning_on(&self, nodes: &NodeSet) -> Self {
        let kept = self.only(nodes);
        let factor = MOST / kept.0.values().copied().max().unwrap_or(MOST);
        let weight = |id: &NodeId| kept.0.get(id).map_or(1, |weight| weight * factor);
        Self(self.0.keys().map(|id| (*id, weight(id))).collect())
    }
}

/// As `node0 3, node1 1`.
impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (id, weight)) in self.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{id} {weight}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bandwidths(list: &[f64]) -> BTreeMap<NodeId, f64> {
        (0..).map(NodeId).zip(list.iter().copied()).collect()
    }

    fn words(list: &[f64]) -> String {
        let weights = Weights::of_bandwidths(&bandwidths(list));
        let numbers: Vec<String> = weights.iter().map(|(_, w)| w.to_string()).collect();
        numbers.join(":")
    }

    #[test]
    fn weights_are_small_numbers_in_the_bandwidths_proportion() {
        assert_eq!(words(&[30.0, 10.0]), "3:1");
        assert_eq!(words(&[10.0, 10.0, 10.0]), "1:1:1");
        // 4:3 would give 0.987 of the sum, 9:7 0.997.
        assert_eq!(words(&[33.0, 25.5]), "13:10");
        // The kernel's limit: nothing nearer can be said.
        assert_eq!(words(&[10_000.0, 1.0]), "255:1");
        assert_eq!(words(&[0.0, 0.0]), "1:1");
    }

    #[test]
    fn what_people_write_is_read_or_refused_with_a_reason() {
        let nodes: NodeSet = "0,8".parse().unwrap();
        let weights = Weights::parse("3:1", &nodes).unwrap();
        assert_eq!(weights.to_string(), "node0 3, node8 1");
        for (bad, reason) in [
            ("3", "1 weights, and there are 2 nodes: 0,8"),
            ("3:1:1", "3 weights"),
            ("3:0", "weight `0` is no number from 1 to 255"),
            ("256:1", "weight `256`"),
            ("a:1", "weight `a`"),
            ("", "1 weights"),
        ] {
            let error = Weights::parse(bad, &nodes).unwrap_err();
            assert!(error.contains(reason), "{bad}: {error}");
        }
    }

    #[test]
    fn a_weight_leans_on_some_nodes_without_leaving_the_others() {
        let nodes: NodeSet = "0-2".parse().unwrap();
        let weights = Weights::parse("4:2:3", &nodes).unwrap();
        let near: NodeSet = "0-1".parse().unwrap();
        assert_eq!(
            weights.leaning_on(&near).to_string(),
            "node0 252, node1 126, node2 1"
        );
        assert_eq!(weights.only(&near).to_string(), "node0 4, node1 2");
    }

    proptest! {
        #[test]
        fn nodes_get_as_many_turns_as_their_weights_say(list in prop::collection::vec(1u8.., 1..9)) {
            let weights = Weights((0..).map(NodeId).zip(list.iter().copied()).collect());
            let all: u64 = list.iter().map(|w| u64::from(*w)).sum();
            for (id, weight) in weights.iter() {
                let turns = (5 * all..6 * all).filter(|turn| weights.node_of(*turn) == id);
                prop_assert_eq!(turns.count(), usize::from(weight));
            }
        }

        #[test]
        fn weights_lose_little_where_the_kernels_limit_lets_them(
            list in prop::collection::vec(1.0f64..200.0, 1..6)
        ) {
            let bandwidths = bandwidths(&list);
            let together = Weights::of_bandwidths(&bandwidths).together(&bandwidths);
            let sum: f64 = list.iter().sum();
            prop_assert!(together <= sum * 1.000_001);
            prop_assert!(together >= 0.98 * sum, "{} of {}", together, sum);
        }
    }
}
