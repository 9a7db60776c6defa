//! Which nodes a program starts on, when it is to be chosen for it. Pure.

use crate::ids::NodeId;
use std::cmp::Ordering;

/// A node that may be chosen: it has CPUs and memory that the process may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The kernel's number.
    pub node: NodeId,
    /// CPUs that may be used.
    pub cpu_count: usize,
    /// Of those as many as did nothing while somebody looked, in CPUs.
    pub idle_cpus: f64,
    /// Memory that it can give in bytes.
    pub available_bytes: u64,
    /// Read bandwidth in MB/s from its own CPUs, where it is known.
    pub bandwidth_mbs: Option<u64>,
    /// Distance of the device that it should be near, 10 on the node itself; `None` without one.
    pub device_distance: Option<u32>,
}

/// What nodes are compared by, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// It has the memory that is needed.
    Memory,
    /// It is nearer to the device, or node.
    Device,
    /// More of its CPUs are idle, in tenths of a node's CPUs.
    Idle,
    /// It is known to have more bandwidth.
    Bandwidth,
    /// It has clearly more available memory.
    Free,
    /// Nothing else tells them apart.
    Number,
}

impl Criterion {
    const ALL: [Self; 6] = [
        Self::Memory,
        Self::Device,
        Self::Idle,
        Self::Bandwidth,
        Self::Free,
        Self::Number,
    ];

    /// Why the better of two was taken, as the end of a sentence.
    #[must_use]
    pub fn why(self) -> &'static str {
        match self {
            Self::Memory => "it has the memory that is needed",
            Self::Device => "it is nearer",
            Self::Idle => "more of its CPUs are idle",
            Self::Bandwidth => "its memory has more bandwidth",
            Self::Free => "it has more available memory",
            Self::Number => "nothing tells it from the next but the number",
        }
    }

    /// `Less` where `a` is better.
    fn compare(self, a: &Candidate, b: &Candidate, needed_bytes: u64) -> Ordering {
        match self {
            Self::Memory => {
                (b.available_bytes >= needed_bytes).cmp(&(a.available_bytes >= needed_bytes))
            }
            Self::Device => a.device_distance.cmp(&b.device_distance),
            Self::Idle => tenths(b).cmp(&tenths(a)),
            Self::Bandwidth => match (a.bandwidth_mbs, b.bandwidth_mbs) {
                (Some(a), Some(b)) => b.cmp(&a),
                _ => Ordering::Equal,
            },
            Self::Free => quarters(b).cmp(&quarters(a)),
            Self::Number => a.node.cmp(&b.node),
        }
    }
}

/// Idle share of a node in tenths: smaller differences are noise.
fn tenths(candidate: &Candidate) -> u32 {
    (10.0 * candidate.idle_cpus / candidate.cpu_count.max(1) as f64).round() as u32
}

/// Quarters of a doubling: nodes with about as much free memory count as alike.
fn quarters(candidate: &Candidate) -> u32 {
    (4.0 * (candidate.available_bytes.max(1) as f64).log2()).round() as u32
}

/// Candidates from the best on, each with what sets it apart from the next (of the last nothing
/// does).
#[must_use]
pub fn rank(mut candidates: Vec<Candidate>, needed_bytes: u64) -> Vec<(Candidate, Criterion)> {
    let first_difference = |a: &Candidate, b: &Candidate| {
        let all = Criterion::ALL.iter();
        let mut compared = all.map(|criterion| (*criterion, criterion.compare(a, b, needed_bytes)));
        compared.find(|(_, order)| order.is_ne())
    };
    candidates.sort_by(|a, b| first_difference(a, b).map_or(Ordering::Equal, |found| found.1));
    let next = candidates.iter().skip(1).map(Some).chain([None]);
    let why = candidates.iter().zip(next).map(|(candidate, next)| {
        let found = next.and_then(|next| first_difference(candidate, next));
        let criterion = found.map_or(Criterion::Number, |(criterion, _)| criterion);
        (candidate.clone(), criterion)
    });
    why.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn candidate(node: u32, idle_cpus: f64, free_gib: u64) -> Candidate {
        Candidate {
            node: NodeId(node),
            cpu_count: 8,
            idle_cpus,
            available_bytes: free_gib * GIB,
            bandwidth_mbs: None,
            device_distance: None,
        }
    }

    fn best(candidates: &[Candidate], needed_gib: u64) -> (u32, Criterion) {
        let ranked = rank(candidates.to_vec(), needed_gib * GIB);
        assert_eq!(ranked.len(), candidates.len());
        (ranked[0].0.node.0, ranked[0].1)
    }

    #[test]
    fn each_criterion_decides_where_those_before_it_do_not() {
        let (a, b) = (candidate(0, 8.0, 10), candidate(1, 2.0, 40));
        assert_eq!(best(&[a.clone(), b.clone()], 1), (0, Criterion::Idle));
        assert_eq!(best(&[a.clone(), b.clone()], 20), (1, Criterion::Memory));
        let near = |of: &Candidate, distance| Candidate {
            device_distance: Some(distance),
            ..of.clone()
        };
        assert_eq!(
            best(&[near(&a, 20), near(&b, 10)], 1),
            (1, Criterion::Device)
        );
        let alike = candidate(2, 7.8, 10);
        assert_eq!(best(&[alike.clone(), a.clone()], 1), (0, Criterion::Number));
        let roomy = candidate(2, 7.8, 20);
        assert_eq!(best(&[roomy.clone(), a.clone()], 1), (2, Criterion::Free));
        let fast = |of: &Candidate, mbs| Candidate {
            bandwidth_mbs: Some(mbs),
            ..of.clone()
        };
        assert_eq!(
            best(&[fast(&roomy, 100), fast(&a, 200)], 1),
            (0, Criterion::Bandwidth)
        );
        assert_eq!(
            best(&[roomy, fast(&a, 200)], 1),
            (2, Criterion::Free),
            "one is not known"
        );
        assert_eq!(best(&[a], 99), (0, Criterion::Number));
        assert!(rank(Vec::new(), 0).is_empty());
    }

    proptest! {
        #[test]
        fn the_order_does_not_depend_on_how_they_are_listed(
            drawn in proptest::collection::vec((0.0f64..8.0, 1u64..64), 1..6), turn in 0usize..6
        ) {
            let all: Vec<Candidate> = drawn.iter().enumerate()
                .map(|(node, (idle, gib))| candidate(node as u32, *idle, *gib))
                .collect();
            let mut turned = all.clone();
            turned.rotate_left(turn % all.len());
            prop_assert_eq!(rank(all, 8 * GIB), rank(turned, 8 * GIB));
        }
    }
}
