//! Cache lines that several CPUs use while one of them writes: the caches hand them to and fro.
//!
//! Where the CPUs use different words of the line, they share it for nothing (*false sharing*):
//! padding takes it away. Where they use the same words, the program means it.

use super::data::Data;
use std::collections::BTreeMap;

/// Samples of a line below which nothing is said of it.
const LEAST_SAMPLES: usize = 8;
/// Share of a line's samples that the CPUs beside its first must make.
const LEAST_SHARE: f64 = 0.1;
/// Bytes of a word.
const WORD_SHIFT: u32 = 3;
/// Share of accesses to words that one user alone uses from which on sharing is false.
const FALSE_FROM: f64 = 0.9;

/// A user of a line: a thread where threads are known, else a CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct User {
    /// Thread, or CPU.
    pub id: i32,
    /// Its accesses.
    pub accesses: f64,
    /// Those of them that wrote.
    pub writes: f64,
    /// Offsets of the words in the line, ascending.
    pub offsets: Vec<u32>,
}

/// A line that several share.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Whose.
    pub pid: i32,
    /// Its address.
    pub address: u64,
    /// Place of its area in the list of areas.
    pub area: u32,
    /// By accesses, most first.
    pub users: Vec<User>,
    /// Are the users threads? CPUs otherwise.
    pub by_thread: bool,
    /// Share of accesses to words that one user alone uses.
    pub apart: f64,
    /// All accesses.
    pub accesses: f64,
    /// Those of them that another CPU's cache served.
    pub transfers: f64,
    /// Does any sample tell whether it was one?
    pub tells_transfers: bool,
    /// Mean latency in ns, where known.
    pub latency_ns: Option<f64>,
}

impl Line {
    /// Do the users use different words of it?
    #[must_use]
    pub fn is_false(&self) -> bool {
        self.apart >= FALSE_FROM
    }
}

/// Lines that several users share and one writes, by accesses, most first; at most `most`.
#[must_use]
pub fn lines(data: &Data, of_access: &[u32], most: usize) -> Vec<Line> {
    let line_bytes = data.meta.line_bytes();
    let by_thread = data.accesses.iter().all(|access| access.tid().is_some());
    let user = |index: u32| {
        let access = &data.accesses[index as usize];
        match by_thread {
            true => access.tid(),
            false => access.cpu().map(i32::from),
        }
    };
    // Keys beside their places: sorting a million of them must not jump through memory.
    let mut order: Vec<(i32, u64, u32)> = data
        .accesses
        .iter()
        .zip(0..)
        .filter(|&(_, index)| user(index).is_some())
        .map(|(access, index)| (access.pid, access.address / line_bytes, index))
        .collect();
    order.sort_unstable();
    let mut found = Vec::new();
    for group in order.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        if group.len() < LEAST_SAMPLES {
            continue;
        }
        let mut users: BTreeMap<i32, User> = BTreeMap::new();
        let mut words: BTreeMap<u32, BTreeMap<i32, f64>> = BTreeMap::new();
        let (mut latency, mut known, mut transfers) = (0.0, 0.0, 0.0);
        let mut tells_transfers = false;
        for &(_, _, index) in group {
            let access = &data.accesses[index as usize];
            let Some(id) = user(index) else { continue };
            let weight = f64::from(access.weight);
            let offset = (access.address % line_bytes) as u32 >> WORD_SHIFT << WORD_SHIFT;
            let entry = users.entry(id).or_insert_with(|| User {
                id,
                accesses: 0.0,
                writes: 0.0,
                offsets: Vec::new(),
            });
            entry.accesses += weight;
            tells_transfers |= access.tells_transfer();
            transfers += if access.is_transfer() { weight } else { 0.0 };
            entry.writes += if access.is_write() { weight } else { 0.0 };
            *words.entry(offset).or_default().entry(id).or_default() += weight;
            if let Some(ns) = access.latency_ns() {
                latency += weight * f64::from(ns);
                known += weight;
            }
        }
        for (&offset, of) in &words {
            for id in of.keys() {
                if let Some(user) = users.get_mut(id) {
                    user.offsets.push(offset);
                }
            }
        }
        let mut users: Vec<User> = users.into_values().collect();
        users.sort_by(|a, b| b.accesses.total_cmp(&a.accesses));
        let all: f64 = users.iter().map(|user| user.accesses).sum();
        let others = all - users[0].accesses;
        let is_written = users.iter().any(|user| user.writes > 0.0);
        if !is_written || others < LEAST_SHARE * all {
            continue;
        }
        let alone = words.values().filter(|of| of.len() == 1);
        let apart: f64 = alone.flat_map(BTreeMap::values).sum();
        let first = group[0].2 as usize;
        found.push(Line {
            pid: data.accesses[first].pid,
            address: data.accesses[first].address / line_bytes * line_bytes,
            area: of_access.get(first).copied().unwrap_or(0),
            users,
            by_thread,
            apart: apart / all,
            accesses: all,
            transfers,
            tells_transfers,
            latency_ns: (known > 0.0).then(|| latency / known),
        });
    }
    found.sort_by(|a, b| b.accesses.total_cmp(&a.accesses));
    found.truncate(most);
    found
}

#[cfg(test)]
mod tests {
    use super::super::data::tests::{access, empty, write};
    use super::*;

    #[test]
    fn words_apart_are_false_sharing_and_one_word_is_not() {
        let mut data = empty();
        for turn in 0..20 {
            // Two counters in one line; one counter of both; a line of one CPU; a read one.
            data.accesses
                .push(write(turn, 0x1000 + 8 * (turn % 2), (turn % 2) as u16, 0));
            data.accesses
                .push(write(turn, 0x2000, (turn % 2) as u16, 0));
            data.accesses.push(write(turn, 0x3000, 0, 0));
            data.accesses
                .push(access(turn, 0x4000 + 8 * (turn % 2), (turn % 2) as u16, 0));
        }
        let found = lines(&data, &vec![0; 80], 10);
        let told: Vec<(u64, bool)> = found.iter().map(|l| (l.address, l.is_false())).collect();
        assert_eq!(told.len(), 2);
        assert!(told.contains(&(0x1000, true)) && told.contains(&(0x2000, false)));
        let line = found.iter().find(|line| line.is_false()).unwrap();
        assert_eq!(
            (line.users.len(), line.by_thread, line.apart),
            (2, false, 1.0)
        );
        assert_eq!(
            (line.users[0].id, &line.users[0].offsets[..]),
            (0, &[0][..])
        );
        assert_eq!(line.latency_ns, Some(100.0));
    }

    #[test]
    fn a_line_that_another_cpu_hardly_touches_is_not_shared() {
        let mut data = empty();
        data.accesses = (0..40)
            .map(|turn| write(turn, 0x1000, u16::from(turn == 0), 0))
            .collect();
        assert!(lines(&data, &[0; 40], 10).is_empty());
    }
}
