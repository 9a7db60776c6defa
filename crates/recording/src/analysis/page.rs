//! One page, or a few, that a person points at: who reads and writes which of its lines, from which
//! code, and what would help. The last steps of the refinement (`zoom`) without the first ones.
//!
//! Reads and writes are all accesses, those that other CPUs' caches served included: of a contested
//! line there are hardly others.

use super::areas::{self, Areas};
use super::data::{Access, Data};
use super::pages::{self, CountedPage, PAGE_BYTES, PageCount, PagesSummary};
use super::sharing::{self, SharedLine};
use super::use_of::Remedy;
use super::written;
use super::zoom::{self, Next, ZoomAdvice, ZoomChoice};
use hither_core::snapshot::Evidence;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Reads and writes, and how many of both other CPUs' caches served.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WordUse {
    /// Loads, and what is not known to be a store.
    pub reads: f64,
    /// Stores.
    pub writes: f64,
    /// Those of both that another CPU's cache served.
    pub transfers: f64,
}

impl WordUse {
    fn add(&mut self, access: &Access) {
        let weight = f64::from(access.weight);
        match access.is_write() {
            true => self.writes += weight,
            false => self.reads += weight,
        }
        self.transfers += if access.is_transfer() { weight } else { 0.0 };
    }

    /// Both.
    #[must_use]
    pub fn all(&self) -> f64 {
        self.reads + self.writes
    }
}

/// A thread, or a CPU, that uses it.
#[derive(Clone, Debug, PartialEq)]
pub struct User {
    /// Thread, or CPU.
    pub id: i32,
    /// Position of the node from which it used it last.
    pub node: Option<usize>,
    /// How much.
    pub by: WordUse,
}

/// A line of it that was touched.
#[derive(Clone, Debug, PartialEq)]
pub struct TouchedLine {
    /// Its address.
    pub address: u64,
    /// How much.
    pub by: WordUse,
    /// Mean latency in ns, where known.
    pub latency_ns: Option<f64>,
    /// Threads or CPUs that used it.
    pub user_count: usize,
    /// Who shares it by which words, where several do and one writes, and enough was seen.
    pub shared: Option<SharedLine>,
}

/// An instruction that touched it.
#[derive(Clone, Debug, PartialEq)]
pub struct Code {
    /// Its address.
    pub address: u64,
    /// How much.
    pub by: WordUse,
    /// Threads or CPUs that ran it.
    pub users: BTreeSet<i32>,
}

/// All that is known of the pages.
#[derive(Clone, Debug)]
pub struct PageDetail {
    /// Whose.
    pub pid: i32,
    /// Their addresses, whole pages.
    pub range: Range<u64>,
    /// Samples behind it.
    pub sample_count: usize,
    /// Do samples tell reads from writes, what other CPUs' caches served, and who accessed from where?
    pub tells_kinds: bool,
    /// See above.
    pub tells_transfers: bool,
    /// See above.
    pub tells_nodes: bool,
    /// Pages that were touched.
    pub pages: Vec<CountedPage>,
    /// What they come to.
    pub summary: PagesSummary,
    /// Were fills and transfers of pages counted by a device? From samples otherwise.
    pub is_counted: bool,
    /// By node position.
    pub by_node: Vec<WordUse>,
    /// By accesses, most first.
    pub users: Vec<User>,
    /// Are the users threads? CPUs otherwise.
    pub by_thread: bool,
    /// By address.
    pub lines: Vec<TouchedLine>,
    /// By accesses, most first; empty where the tracker does not tell.
    pub code: Vec<Code>,
    /// Were they written while they were looked at?
    pub written: Evidence<bool>,
    /// The data areas that have a part in them, with that part's accesses.
    pub areas: Areas,
    /// What is known, and what would help.
    pub choice: ZoomChoice,
}

/// Looks at the pages of a range; `counts` are what a device counted of each meanwhile.
#[must_use]
pub fn look(data: &Data, pid: i32, range: Range<u64>, counts: Option<&[PageCount]>) -> PageDetail {
    let within = |access: &&Access| access.pid == pid && range.contains(&access.address);
    let whole = data;
    let data = &Data {
        accesses: data.accesses.iter().filter(within).copied().collect(),
        ..data.without_observations()
    };
    let areas = areas::areas(data);
    let by_thread = data.accesses.iter().all(|access| access.tid().is_some());
    let nodes = data.nodes.len();
    let (mut by_node, mut all) = (vec![WordUse::default(); nodes], WordUse::default());
    for access in &data.accesses {
        all.add(access);
        if let Some(node) = access.from() {
            by_node[node].add(access);
        }
    }
    let counted = counts.map(|counts| pages::of_counts(counts, pid, std::slice::from_ref(&range)));
    // A device that counted nothing at all did not watch the right frames: samples know better.
    let counted = counted.filter(|pages| !pages.is_empty());
    let is_counted = counted.is_some();
    let pages = counted.unwrap_or_else(|| pages::of_accesses(nodes, pid, data.accesses.iter()));
    let tells_kinds = data.accesses.iter().any(Access::kind_is_known);
    let summary = pages::summary(&pages, nodes);
    let sampled = written::Sampled {
        stores: all.writes,
        transfers: all.transfers,
    };
    let known = written::of_ranges(whole, pid, sampled, || vec![range.clone()]);
    let written = written::with_pages(&known, &pages);
    let lines = touched_lines(data, &areas, by_thread);
    let is_one = range.end - range.start <= PAGE_BYTES;
    PageDetail {
        pid,
        sample_count: data.accesses.len(),
        tells_kinds,
        tells_transfers: data.accesses.iter().any(Access::tells_transfer),
        tells_nodes: data.accesses.iter().any(|access| access.from().is_some()),
        written,
        choice: choose(&pages, &summary, &lines, is_one),
        range,
        pages,
        summary,
        is_counted,
        by_node,
        users: users(data, by_thread),
        by_thread,
        lines,
        code: code(data, by_thread),
        areas,
    }
}

fn user_of(access: &Access, by_thread: bool) -> Option<i32> {
    match by_thread {
        true => access.tid(),
        false => access.cpu().map(i32::from),
    }
}

fn users(data: &Data, by_thread: bool) -> Vec<User> {
    let mut found: BTreeMap<i32, User> = BTreeMap::new();
    for access in &data.accesses {
        let Some(id) = user_of(access, by_thread) else {
            continue;
        };
        let user = found.entry(id).or_insert_with(|| User {
            id,
            node: None,
            by: WordUse::default(),
        });
        user.node = access.from().or(user.node);
        user.by.add(access);
    }
    let mut found: Vec<User> = found.into_values().collect();
    found.sort_by(|a, b| b.by.all().total_cmp(&a.by.all()));
    found
}

fn touched_lines(data: &Data, areas: &Areas, by_thread: bool) -> Vec<TouchedLine> {
    let line_bytes = data.meta.line_bytes();
    let mut shared: BTreeMap<u64, SharedLine> = sharing::lines(data, &areas.of_access, usize::MAX)
        .into_iter()
        .map(|line| (line.address, line))
        .collect();
    let mut by_line: BTreeMap<u64, Vec<&Access>> = BTreeMap::new();
    for access in &data.accesses {
        let line = access.address / line_bytes * line_bytes;
        by_line.entry(line).or_default().push(access);
    }
    let line = |(address, accesses): (u64, Vec<&Access>)| {
        let (mut by, mut latency, mut known) = (WordUse::default(), 0.0, 0.0);
        let mut users = BTreeSet::new();
        for access in accesses {
            by.add(access);
            users.extend(user_of(access, by_thread));
            if let Some(ns) = access.latency_ns() {
                latency += f64::from(access.weight) * f64::from(ns);
                known += f64::from(access.weight);
            }
        }
        TouchedLine {
            address,
            by,
            latency_ns: (known > 0.0).then(|| latency / known),
            user_count: users.len(),
            shared: shared.remove(&address),
        }
    };
    by_line.into_iter().map(line).collect()
}

fn code(data: &Data, by_thread: bool) -> Vec<Code> {
    let mut found: BTreeMap<u64, Code> = BTreeMap::new();
    for access in data.accesses.iter().filter(|access| access.code != 0) {
        let code = found.entry(access.code).or_insert_with(|| Code {
            address: access.code,
            by: WordUse::default(),
            users: BTreeSet::new(),
        });
        code.by.add(access);
        code.users.extend(user_of(access, by_thread));
    }
    let mut found: Vec<Code> = found.into_values().collect();
    found.sort_by(|a, b| b.by.all().total_cmp(&a.by.all()));
    found
}

/// What is known of the pages: of contested ones, by their worst line; else by their users.
fn choose(
    pages: &[CountedPage],
    summary: &PagesSummary,
    lines: &[TouchedLine],
    is_one: bool,
) -> ZoomChoice {
    let open = |why: &str| ZoomChoice {
        advice: None,
        next: Next::Longer,
        why: why.to_owned(),
    };
    if pages.is_empty() {
        return open("no access to it was seen");
    }
    let choice = zoom::of_pages(pages, summary);
    if choice.next == Next::Lines {
        let shared = lines.iter().filter_map(|line| line.shared.as_ref());
        let worst = shared.max_by(|a, b| a.transfers.total_cmp(&b.transfers));
        return match worst {
            Some(line) => zoom::of_line(line),
            None => open("its lines bounce between caches (HITM), and too few samples tell which"),
        };
    }
    match choice.advice {
        // Only its area can be spread.
        Some(ZoomAdvice::Place(Remedy::Interleave)) if is_one => ZoomChoice {
            advice: Some(ZoomAdvice::Place(Remedy::Nothing)),
            why: "several nodes use it, and one page cannot be spread: look at its area".to_owned(),
            ..choice
        },
        _ => choice,
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::tests::{access, empty, transfer, write};
    use super::*;

    const PAGE: u64 = 0x10_0000;

    fn seen(data: &Data) -> PageDetail {
        look(data, 7, PAGE..PAGE + PAGE_BYTES, None)
    }

    #[test]
    fn false_sharing_of_one_line_is_told_by_node_user_line_and_code() {
        let mut data = empty();
        for turn in 0..40_u64 {
            let cpu = (turn % 2) as u16;
            let address = PAGE + 0x80 + 8 * u64::from(cpu);
            let mut access = transfer(turn, address, cpu, 0);
            access.code = 0x40_1000;
            data.accesses.push(access);
            // Outside of it, on both sides, and another process.
            data.accesses.push(write(turn, PAGE - 8, cpu, 0));
            data.accesses.push(write(turn, PAGE + PAGE_BYTES, cpu, 0));
            let mut other = write(turn, PAGE, cpu, 0);
            other.pid = 8;
            data.accesses.push(other);
        }
        let look = seen(&data);
        assert_eq!(look.sample_count, 40);
        assert_eq!(
            look.choice.advice,
            Some(ZoomAdvice::Pad),
            "{:?}",
            look.choice
        );
        let both = WordUse {
            reads: 0.0,
            writes: 200.0,
            transfers: 200.0,
        };
        assert_eq!(look.by_node, [both; 2]);
        assert!(!look.by_thread);
        let users: Vec<_> = look.users.iter().map(|u| (u.id, u.node, u.by)).collect();
        assert_eq!(users, [(0, Some(0), both), (1, Some(1), both)]);
        assert_eq!(look.lines.len(), 1);
        assert_eq!(look.lines[0].address, PAGE + 0x80);
        assert_eq!(look.lines[0].user_count, 2);
        assert!(look.lines[0].shared.as_ref().and_then(SharedLine::is_false) == Some(true));
        assert_eq!(look.code.len(), 1);
        assert_eq!(
            (look.code[0].address, look.code[0].by.writes),
            (0x40_1000, 400.0)
        );
        assert_eq!(look.code[0].users, BTreeSet::from([0, 1]));
    }

    #[test]
    fn a_page_of_one_user_elsewhere_is_to_be_moved_and_one_at_home_left() {
        for (home, remedy) in [(0, Remedy::MoveTo(1)), (1, Remedy::Nothing)] {
            let mut data = empty();
            data.accesses = (0..40).map(|t| access(t, PAGE + 8 * t, 1, home)).collect();
            let look = seen(&data);
            assert_eq!(look.choice.advice, Some(ZoomAdvice::Place(remedy)));
            assert_eq!(look.lines.len(), 5);
            assert!(look.lines.iter().all(|line| line.shared.is_none()));
            assert!(look.code.is_empty(), "the tracker does not tell");
        }
    }

    #[test]
    fn one_page_is_not_spread_and_a_range_is() {
        let mut data = empty();
        for turn in 0..64 {
            let address = PAGE + (turn % 2) * PAGE_BYTES + 64 * (turn / 4);
            data.accesses
                .push(write(turn, address, (turn / 2 % 2) as u16, 0));
        }
        let one = seen(&data);
        assert_eq!(one.choice.advice, Some(ZoomAdvice::Place(Remedy::Nothing)));
        assert!(one.choice.why.contains("cannot be spread"));
        let both = look(&data, 7, PAGE..PAGE + 2 * PAGE_BYTES, None);
        assert_eq!(
            both.choice.advice,
            Some(ZoomAdvice::Place(Remedy::Interleave))
        );
    }

    #[test]
    fn what_was_not_seen_is_said() {
        let look = seen(&empty());
        assert_eq!((look.choice.advice, look.choice.next), (None, Next::Longer));
        // Counted as contested, and no sample says by whom.
        let count = PageCount {
            pid: 7,
            address: PAGE,
            users: vec![1.0, 0.0],
            transfers: vec![500.0, 500.0],
            home: Some(0),
        };
        let counted = super::look(&empty(), 7, PAGE..PAGE + PAGE_BYTES, Some(&[count]));
        assert!(counted.is_counted);
        assert_eq!(counted.choice.next, Next::Longer);
        assert!(counted.choice.why.contains("too few samples"));
    }
}
