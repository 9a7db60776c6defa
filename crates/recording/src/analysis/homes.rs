//! Where pages are: of each process and node, and from where to where pages went.

use super::data::Data;
use std::collections::{BTreeMap, HashMap};

/// Where a process's memory was.
#[derive(Clone, Debug, PartialEq)]
pub struct Resident {
    /// Whose.
    pub pid: i32,
    /// Bytes by node position when it had the most.
    pub nodes: Vec<u64>,
    /// The sum of those.
    pub most_bytes: u64,
    /// Was that estimated from some of its pages, not counted?
    pub is_estimated: bool,
}

/// Of each process that had any, the largest first.
#[must_use]
pub fn residents(data: &Data) -> Vec<Resident> {
    let mut looks: BTreeMap<(i32, u64), (Vec<u64>, bool)> = BTreeMap::new();
    for row in &data.residency {
        let Some(position) = data.position(row.node) else {
            continue;
        };
        let look = looks.entry((row.pid, row.time_ns));
        let (nodes, is_estimated) = look.or_insert_with(|| (vec![0; data.nodes.len()], false));
        *is_estimated |= row.asked_pages.is_some();
        nodes[position] = nodes[position].saturating_add(row.bytes);
    }
    let mut all: Vec<Resident> = Vec::new();
    for ((pid, _), (nodes, is_estimated)) in looks {
        let sum = nodes
            .iter()
            .fold(0_u64, |sum, &bytes| sum.saturating_add(bytes));
        let resident = Resident {
            pid,
            nodes,
            most_bytes: sum,
            is_estimated,
        };
        match all.last_mut().filter(|before| before.pid == pid) {
            Some(before) if before.most_bytes >= sum => {}
            Some(before) => *before = resident,
            None => all.push(resident),
        }
    }
    all.sort_by_key(|resident| std::cmp::Reverse(resident.most_bytes));
    all
}

/// A page that samples saw on one node and later on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// When it was seen there.
    pub time_ns: u64,
    /// Whose.
    pub pid: i32,
    /// Position of the node where it was.
    pub from: usize,
    /// Position of the node where it is.
    pub to: usize,
}

/// Tells of each change, by time. Pages that were not sampled on both sides of their move are not
/// in it.
pub fn changes(data: &Data, mut each: impl FnMut(Change)) {
    let mut homes: HashMap<(i32, u64), usize> = HashMap::new();
    for access in &data.accesses {
        let Some(to) = access.home() else { continue };
        let before = homes.insert((access.pid, access.address >> 12), to);
        if let Some(from) = before.filter(|&from| from != to) {
            each(Change {
                time_ns: access.time_ns,
                pid: access.pid,
                from,
                to,
            });
        }
    }
}

/// The pages of [`changes`]: `[from][to]` by node position.
#[must_use]
pub fn moves(data: &Data) -> Vec<Vec<u64>> {
    let count = data.nodes.len();
    let mut matrix = vec![vec![0; count]; count];
    changes(data, |change| matrix[change.from][change.to] += 1);
    matrix
}

#[cfg(test)]
mod tests {
    use super::super::data::tests::{access, empty};
    use super::*;
    use crate::rows::Residency;

    #[test]
    fn the_look_with_the_most_is_told() {
        let mut data = empty();
        let row = |time_ns, node, bytes| Residency {
            time_ns,
            pid: 7,
            start: 0,
            node,
            bytes,
            asked_pages: (time_ns == 1).then_some(3),
        };
        // node9 does not exist.
        data.residency = vec![row(1, 0, 50), row(1, 2, 60), row(2, 0, 30), row(2, 9, 5)];
        let found = residents(&data);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (&found[0].nodes[..], found[0].most_bytes),
            (&[50, 60][..], 110)
        );
        assert!(found[0].is_estimated);
    }

    #[test]
    fn moves_are_changes_of_home() {
        let mut data = empty();
        data.accesses = vec![
            access(1, 0x1000, 0, 0),
            access(2, 0x1008, 0, 1),
            access(3, 0x1010, 0, 1),
            access(4, 0x2000, 0, 1),
            access(5, 0x1000, 0, 0),
        ];
        assert_eq!(moves(&data), [[0, 1], [1, 0]]);
    }
}
