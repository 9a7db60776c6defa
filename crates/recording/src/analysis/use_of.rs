//! How the nodes share an area, and what would help: make local, interleave, or nothing.
//!
//! An area is cut into parts, small enough that a part has one user where there is one, and large
//! enough that samples tell. A part belongs to the node with most of its accesses. Where parts
//! belong to one node each, the area is *divided*, and its parts should be local; where every part
//! has several users, it is *shared*, and should be spread (Carrefour, section 3: collocate,
//! interleave). Its third, a replica on each node, is not advised: hither makes none of a running
//! program's memory. It is told where an area was not written ([`written`](super::written)), as the
//! program could keep copies itself.

use super::areas::{Area, Areas};
use super::data::Data;
use super::written;
use hither_core::snapshot::Evidence;

/// log2 of the smallest part, a page.
const LEAST_SHIFT: u32 = 12;
/// log2 of the largest, 64 MiB.
const MOST_SHIFT: u32 = 26;
/// Samples that a part has in the median: with fewer, chance alone makes an owner.
const SAMPLES: usize = 16;
/// Share of accesses by the parts' owners from which on an area is divided. An area that all of n
/// nodes use alike has 1/n and a little by chance.
const DIVIDED: f64 = 0.8;
/// Least share of all remote accesses that makes an area worth a word.
const WORTH: f64 = 0.05;
/// Local-access ratio from which on an area is fine (Carrefour's gate).
const FINE: f64 = 0.8;
/// Share of its traffic on one node, against the even share, from which on a shared area is
/// unevenly spread: Carrefour's imbalance of 35 % on four nodes is 1.6 times the even share.
const UNEVEN: f64 = 1.5;

/// How nodes use an area.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AreaUse {
    /// One node has nearly all accesses: its position.
    One(usize),
    /// Each part has one node that uses it.
    Divided,
    /// Parts are used by several nodes.
    Shared,
    /// Samples do not tell: too few, or without nodes.
    Unknown,
}

impl AreaUse {
    /// Its word in JSON, and the node that uses it, where it is one of these.
    #[must_use]
    pub fn told(self, nodes: &[u32]) -> (&'static str, Option<u32>) {
        match self {
            Self::One(position) => ("one", Some(nodes[position])),
            Self::Divided => ("divided", None),
            Self::Shared => ("shared", None),
            Self::Unknown => ("unknown", None),
        }
    }

    /// The same for a person; `None`: it is not known.
    #[must_use]
    pub fn words(self, nodes: &[u32]) -> Option<String> {
        match self {
            Self::One(position) => Some(format!("node{}", nodes[position])),
            Self::Divided => Some("each part by one node".to_owned()),
            Self::Shared => Some("shared by nodes".to_owned()),
            Self::Unknown => None,
        }
    }
}

/// What would help.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Remedy {
    /// Nothing: it is where it is used, or used evenly.
    Nothing,
    /// Move it to this node position, or its users to where it is.
    MoveTo(usize),
    /// Move each part to the node that uses it; or let each thread write its part first.
    MakeLocal,
    /// Spread its pages over the nodes.
    Interleave,
    /// Samples are too few, or do not tell which node's memory it is.
    Unknown,
}

impl Remedy {
    /// One or two words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "leave it",
            Self::MoveTo(_) => "move it",
            Self::MakeLocal => "make local",
            Self::Interleave => "interleave",
            Self::Unknown => "not known",
        }
    }
}

/// How an area is used.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// By whom.
    pub by: AreaUse,
    /// Share of its accesses that the owners of its parts make.
    pub owned: f64,
    /// Bytes of a part.
    pub part_bytes: u64,
    /// Was it written while it was recorded?
    pub written: Evidence<bool>,
    /// What would help.
    pub remedy: Remedy,
}

/// Is the memory of an area spread over the nodes, by the accesses that each node served?
#[must_use]
pub fn is_spread(area: &Area) -> bool {
    let most = area.homes.iter().copied().fold(0.0, f64::max);
    let even = area.homes.iter().sum::<f64>() / area.homes.len().max(1) as f64;
    most > 0.0 && most < UNEVEN * even
}

/// Judges every area.
#[must_use]
pub fn judge(data: &Data, areas: &Areas) -> Vec<Judged> {
    let remote: f64 = areas.list.iter().map(|area| area.remote()).sum();
    let mut by_area: Vec<Vec<u32>> = areas
        .list
        .iter()
        .map(|area| Vec::with_capacity(area.sample_count as usize))
        .collect();
    for (access, &area) in areas.of_access.iter().enumerate() {
        // Lines that caches hand to and fro do not depend on where memory is.
        if !data.accesses[access].is_transfer() {
            by_area[area as usize].push(access as u32);
        }
    }
    areas
        .list
        .iter()
        .zip(by_area)
        .enumerate()
        .map(|(index, (area, mut accesses))| {
            let sample_count = accesses.len();
            let (owned, part_bytes) = ownership(data, &mut accesses);
            let total: f64 = area.reads.iter().chain(&area.writes).sum();
            let from = |node: usize| area.reads[node] + area.writes[node];
            let first = (0..data.nodes.len()).max_by(|&a, &b| from(a).total_cmp(&from(b)));
            let by = match first {
                _ if total <= 0.0 || sample_count < SAMPLES => AreaUse::Unknown,
                Some(node) if from(node) >= 0.9 * total => AreaUse::One(node),
                _ if owned >= DIVIDED => AreaUse::Divided,
                _ => AreaUse::Shared,
            };
            let worth = area.remote() >= WORTH * remote.max(1.0);
            let remedy = match (by, area.local_ratio()) {
                (AreaUse::Unknown, _) if area.transfers > area.accesses => Remedy::Nothing,
                (AreaUse::Unknown, _) | (_, None) => Remedy::Unknown,
                _ if !worth => Remedy::Nothing,
                (AreaUse::Shared, _) if is_spread(area) => Remedy::Nothing,
                (AreaUse::Shared, _) => Remedy::Interleave,
                (_, Some(local)) if local >= FINE => Remedy::Nothing,
                (AreaUse::One(node), _) => Remedy::MoveTo(node),
                (AreaUse::Divided, _) => Remedy::MakeLocal,
            };
            Judged {
                by,
                owned,
                part_bytes,
                written: written::of_area(data, areas, index),
                remedy,
            }
        })
        .collect()
}

/// Share of accesses by the owners of parts, and how large the parts are. Sorts the accesses.
fn ownership(data: &Data, accesses: &mut [u32]) -> (f64, u64) {
    let of = |index: u32| &data.accesses[index as usize];
    accesses.sort_unstable_by_key(|&index| of(index).address);
    let mut weights = vec![0.0; data.nodes.len()];
    let mut counts = Vec::new();
    for shift in (LEAST_SHIFT..=MOST_SHIFT).step_by(2) {
        let part = |index: u32| of(index).address >> shift;
        let parts = || accesses.chunk_by(|&a, &b| part(a) == part(b));
        counts.clear();
        counts.extend(parts().map(<[u32]>::len));
        counts.sort_unstable();
        let median = counts.get(counts.len() / 2).copied().unwrap_or(0);
        if median < SAMPLES && shift + 2 <= MOST_SHIFT {
            continue;
        }
        let (mut all, mut most) = (0.0, 0.0);
        for part in parts() {
            weights.fill(0.0);
            for &index in part {
                if let Some(from) = of(index).from() {
                    weights[from] += f64::from(of(index).weight);
                }
            }
            all += weights.iter().sum::<f64>();
            most += weights.iter().copied().fold(0.0, f64::max);
        }
        return (if all > 0.0 { most / all } else { 0.0 }, 1 << shift);
    }
    (0.0, 0)
}

#[cfg(test)]
mod tests {
    use super::super::areas::areas;
    use super::super::data::Access;
    use super::super::data::tests::{access, empty, write};
    use super::*;
    use crate::rows::Mapping;

    /// 64 pages at 1 MiB, all on position 0, accessed 64 times each by `by(page, turn)`.
    fn judged(by: impl Fn(u64, u64) -> u16, home: u16, is_write: bool) -> Judged {
        let mut data = empty();
        data.mappings = vec![Mapping {
            time_ns: 0,
            pid: 7,
            start: 1 << 20,
            end: (1 << 20) + 64 * 4096,
            permissions: "rw-p".into(),
            name: "a".into(),
        }];
        for turn in 0..64 {
            for page in 0..64 {
                let make: fn(u64, u64, u16, u16) -> Access = if is_write { write } else { access };
                let address = (1 << 20) + page * 4096;
                data.accesses
                    .push(make(turn, address, by(page, turn), home));
            }
        }
        judge(&data, &areas(&data)).remove(0)
    }

    #[test]
    fn each_use_has_its_remedy() {
        let divided = judged(|page, _| u16::from(page >= 32), 0, true);
        assert_eq!(
            (divided.by, divided.remedy),
            (AreaUse::Divided, Remedy::MakeLocal)
        );
        assert_eq!((divided.owned, divided.part_bytes), (1.0, 4096));
        let shared = judged(|_, turn| (turn % 2) as u16, 0, true);
        assert_eq!(
            (shared.by, shared.remedy),
            (AreaUse::Shared, Remedy::Interleave)
        );
        assert!(shared.owned < 0.6);
        assert_eq!(shared.written.get(), Some(true));
        // Loads alone do not tell that it is only read.
        let read = judged(|_, turn| (turn % 2) as u16, 0, false);
        assert_eq!(
            (read.remedy, read.written.get()),
            (Remedy::Interleave, None)
        );
        let far = judged(|_, _| 1, 0, false);
        assert_eq!((far.by, far.remedy), (AreaUse::One(1), Remedy::MoveTo(1)));
        let near = judged(|_, _| 1, 1, false);
        assert_eq!((near.by, near.remedy), (AreaUse::One(1), Remedy::Nothing));
    }

    #[test]
    fn without_homes_nothing_is_said_of_placement() {
        // As of a PMU whose samples tell the CPU, and not the node that served.
        for by in [
            |_, _| 1,
            |page, _| u16::from(page >= 32),
            |_, turn| (turn % 2) as u16,
        ] {
            let judged = judged(by, u16::MAX, true);
            assert_ne!(judged.by, AreaUse::Unknown);
            assert_eq!(judged.remedy, Remedy::Unknown, "{judged:?}");
        }
    }

    #[test]
    fn few_samples_tell_nothing() {
        let mut data = empty();
        data.accesses = (0..10)
            .map(|n| access(n, n << 12, (n % 2) as u16, 0))
            .collect();
        let judged = judge(&data, &areas(&data));
        assert_eq!(
            (judged[0].by, judged[0].remedy),
            (AreaUse::Unknown, Remedy::Unknown)
        );
    }
}
