//! Cache lines that several CPUs use while one of them writes: the caches hand them to and fro.
//!
//! Where the CPUs use different words of the line, they share it for nothing (*false sharing*):
//! padding takes it away. Where they use the same words, the program means it.
//!
//! That a user was not seen at a word is an absence, which few samples make by chance: eight samples of
//! a line that two threads use alike fall on eight words one in ten times. So false sharing is said
//! only where chance is ruled out. Had the users drawn words alike, each with its share `p` of the
//! samples, a word with `n` samples would have one user with probability `sum p^n`; the product over
//! the words is the chance.

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
/// Chance that words of all look like words of one, below which that is believed.
const CHANCE: f64 = 0.01;

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
pub struct SharedLine {
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
    /// Probability of so many words of one user, had all users used them alike.
    pub chance: f64,
    /// All accesses.
    pub accesses: f64,
    /// Those of them that another CPU's cache served.
    pub transfers: f64,
    /// Does any sample tell whether it was one?
    pub tells_transfers: bool,
    /// Mean latency in ns, where known.
    pub latency_ns: Option<f64>,
}

impl SharedLine {
    /// Do the users use different words of it? `None` where too few samples tell.
    #[must_use]
    pub fn is_false(&self) -> Option<bool> {
        match self.apart >= FALSE_FROM {
            true if self.chance < CHANCE => Some(true),
            true => None,
            false => Some(false),
        }
    }

    /// What kind of sharing it is, in a word or two.
    #[must_use]
    pub fn kind(&self) -> Option<&'static str> {
        self.is_false().map(|is_false| match is_false {
            true => "false sharing",
            false => "true sharing",
        })
    }
}

/// Lines that several users share and one writes, by accesses, most first; at most `most`.
#[must_use]
pub fn lines(data: &Data, of_access: &[u32], most: usize) -> Vec<SharedLine> {
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
        // Of each word and user, its accesses and its samples.
        let mut words: BTreeMap<u32, BTreeMap<i32, (f64, i32)>> = BTreeMap::new();
        let mut samples: BTreeMap<i32, i32> = BTreeMap::new();
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
            let of_word = words.entry(offset).or_default().entry(id).or_default();
            *of_word = (of_word.0 + weight, of_word.1 + 1);
            *samples.entry(id).or_default() += 1;
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
        // A line that a cache had modified was written, whoever was sampled at it.
        let is_written = transfers > 0.0 || users.iter().any(|user| user.writes > 0.0);
        if !is_written || others < LEAST_SHARE * all {
            continue;
        }
        let alone = words.values().filter(|of| of.len() == 1);
        let (mut apart, mut chance) = (0.0, 1.0);
        for &(accesses, count) in alone.flat_map(BTreeMap::values) {
            apart += accesses;
            let shares = samples
                .values()
                .map(|&own| f64::from(own) / group.len() as f64);
            chance *= shares.map(|share| share.powi(count)).sum::<f64>();
        }
        let first = group[0].2 as usize;
        found.push(SharedLine {
            pid: data.accesses[first].pid,
            address: data.accesses[first].address / line_bytes * line_bytes,
            area: of_access.get(first).copied().unwrap_or(0),
            users,
            by_thread,
            apart: apart / all,
            chance,
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
    use super::super::data::tests::{access, empty, transfer, write};
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
        let told: Vec<(u64, Option<bool>)> =
            found.iter().map(|l| (l.address, l.is_false())).collect();
        assert_eq!(told.len(), 2);
        assert!(told.contains(&(0x1000, Some(true))) && told.contains(&(0x2000, Some(false))));
        let line = found.iter().find(|line| line.is_false() == Some(true));
        let line = line.unwrap();
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
    fn few_samples_of_many_words_do_not_make_false_sharing() {
        let seen = |samples: &[(u64, u16)]| {
            let mut data = empty();
            let all = samples.iter();
            data.accesses = all
                .map(|&(word, cpu)| write(0, 0x1000 + 8 * word, cpu, 0))
                .collect();
            let found = lines(&data, &vec![0; samples.len()], 10);
            (found[0].apart, found[0].chance, found[0].is_false())
        };
        // Eight samples, eight words: each word has one user of necessity.
        let spread: Vec<(u64, u16)> = (0..8).map(|n| (n, (n % 2) as u16)).collect();
        assert_eq!(seen(&spread), (1.0, 1.0, None));
        // Two words of four samples each: (2 / 2^4)^2 = 1/64 is not rare enough among many lines.
        let two = |samples: u64| -> Vec<(u64, u16)> {
            (0..samples).map(|n| (n % 2, (n % 2) as u16)).collect()
        };
        assert_eq!(seen(&two(8)), (1.0, 1.0 / 64.0, None));
        // Of five: (2 / 2^5)^2 = 1/256.
        assert_eq!(seen(&two(10)), (1.0, 1.0 / 256.0, Some(true)));
        // One word of both is seen, and needs no more.
        let same: Vec<(u64, u16)> = (0..8).map(|n| (0, (n % 2) as u16)).collect();
        assert_eq!(seen(&same).2, Some(false));
    }

    #[test]
    fn a_line_that_was_modified_elsewhere_is_written_without_a_sampled_store() {
        let mut data = empty();
        for turn in 0..20 {
            let mut handed = transfer(turn, 0x1000, (turn % 2) as u16, 0);
            handed.set_read();
            data.accesses.push(handed);
        }
        let found = lines(&data, &[0; 20], 10);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].is_false(), Some(false));
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
