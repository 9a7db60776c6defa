//! The pages of an area: who uses each, where it is, and whether caches hand its lines to and fro.
//!
//! Samples of pages are few; a device that counts per page (Opium's filters) tells exactly. Both
//! give the same rows, so that what is made of them is one.

use super::areas::{AreaKind, Areas};
use super::data::{Access, Data};
use super::use_of::{AreaUse, Remedy};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// Accesses seen of a page from which on its users are known: chance makes an owner of fewer.
pub const LEAST_SEEN: f64 = 16.0;
/// Share of an area's accesses that must be to pages of known users before the area is judged.
const KNOWN: f64 = 0.5;
/// Share of accesses by the pages' owners from which on an area is divided; as for its parts.
const DIVIDED: f64 = 0.8;
/// Share of one node from which on an area, or a page, is its own.
const OWN: f64 = 0.9;
/// Share of a page's accesses and transfers that are transfers from which on it is contested.
const CONTESTED: f64 = 0.1;
/// Against the even share, as for areas.
const UNEVEN: f64 = 1.5;
/// Local-access ratio from which on an area is fine (Carrefour's gate).
const FINE: f64 = 0.8;

/// A page and its use.
#[derive(Clone, Debug, PartialEq)]
pub struct CountedPage {
    /// Whose.
    pub pid: i32,
    /// First address.
    pub address: u64,
    /// Memory fills for each node position.
    pub users: Vec<f64>,
    /// Lines that each node position's CPUs got from other CPUs' caches.
    pub transfers: Vec<f64>,
    /// Node position of its memory.
    pub home: Option<usize>,
    /// Samples of fills, or counts: what the users rest on.
    pub seen: f64,
}

impl CountedPage {
    /// All fills.
    #[must_use]
    pub fn accesses(&self) -> f64 {
        self.users.iter().sum()
    }

    /// All transfers.
    #[must_use]
    pub fn transferred(&self) -> f64 {
        self.transfers.iter().sum()
    }

    /// The node position with most of its fills, and its share; `None` where too little was seen.
    #[must_use]
    pub fn owner(&self) -> Option<(usize, f64)> {
        let all = self.accesses();
        let most = |&a: &usize, &b: &usize| self.users[a].total_cmp(&self.users[b]);
        let first = (0..self.users.len()).max_by(most)?;
        (self.seen >= LEAST_SEEN && all > 0.0).then(|| (first, self.users[first] / all))
    }

    /// Do caches hand its lines to and fro?
    #[must_use]
    pub fn is_contested(&self) -> bool {
        let moved = self.transferred();
        moved > 0.0 && moved >= CONTESTED * (moved + self.accesses())
    }
}

/// What a device counted of one page.
#[derive(Clone, Debug, PartialEq)]
pub struct PageCount {
    /// Whose.
    pub pid: i32,
    /// First address.
    pub address: u64,
    /// Memory fills for each node position.
    pub users: Vec<f64>,
    /// Transfers to each node position.
    pub transfers: Vec<f64>,
    /// Node position of its memory.
    pub home: Option<usize>,
}

/// What the pages of an area come to.
#[derive(Clone, Debug, PartialEq)]
pub struct PagesSummary {
    /// Pages with any access.
    pub page_count: usize,
    /// Share of fills that are to pages of known users.
    pub known: f64,
    /// Share of fills to those that their owners make.
    pub owned: f64,
    /// Share of fills that the page's own node serves, of pages whose home is known.
    pub local: Option<f64>,
    /// Contested pages.
    pub contested_count: usize,
    /// Fills.
    pub accesses: f64,
    /// Transfers.
    pub transfers: f64,
    /// How nodes use them.
    pub by: AreaUse,
    /// What would help their placement.
    pub remedy: Remedy,
}

/// Places of the areas of a kind and process in another list of areas.
#[must_use]
pub fn same_area(areas: &Areas, pid: i32, kind: &AreaKind) -> Option<usize> {
    areas
        .list
        .iter()
        .position(|area| area.pid == pid && area.kind == *kind)
}

/// The addresses of an area: of its mapping, of what its site allocated and has not freed, or of
/// the pages that were accessed.
#[must_use]
pub fn ranges(data: &Data, areas: &Areas, index: usize) -> Vec<Range<u64>> {
    let area = &areas.list[index];
    let found: Vec<Range<u64>> = match area.kind {
        AreaKind::Mapping(start) => {
            std::iter::once(start..start.saturating_add(area.bytes)).collect()
        }
        AreaKind::Site(site) => data
            .allocations
            .iter()
            .filter(|a| (a.pid, a.site) == (area.pid, site) && a.end_ns.is_none())
            .map(|a| a.address..a.address.saturating_add(a.bytes))
            .collect(),
        AreaKind::Unknown => of_samples(data, areas, index)
            .iter()
            .map(|page| page.address..page.address + PAGE_BYTES)
            .collect(),
    };
    found
}

/// The pages of an area that samples tell of, by accesses and transfers, most first.
#[must_use]
pub fn of_samples(data: &Data, areas: &Areas, index: usize) -> Vec<CountedPage> {
    let all = data.accesses.iter().zip(&areas.of_access);
    let own = all.filter(|(_, of)| **of as usize == index);
    of_accesses(
        data.nodes.len(),
        areas.list[index].pid,
        own.map(|(access, _)| access),
    )
}

/// The same of accesses of one process, on a machine of so many nodes.
#[must_use]
pub fn of_accesses<'a>(
    nodes: usize,
    pid: i32,
    accesses: impl Iterator<Item = &'a Access>,
) -> Vec<CountedPage> {
    let mut pages: BTreeMap<u64, CountedPage> = BTreeMap::new();
    for access in accesses {
        let address = access.address / PAGE_BYTES * PAGE_BYTES;
        let page = pages
            .entry(address)
            .or_insert_with(|| new_page(pid, address, nodes));
        page.home = access.home().or(page.home);
        let Some(from) = access.from() else { continue };
        match access.is_transfer() {
            true => page.transfers[from] += f64::from(access.weight),
            false => {
                page.users[from] += f64::from(access.weight);
                page.seen += 1.0;
            }
        }
    }
    sorted(pages.into_values().collect())
}

/// The pages that a device counted within ranges, by accesses and transfers, most first; those that
/// nobody accessed are left out.
#[must_use]
pub fn of_counts(counts: &[PageCount], pid: i32, ranges: &[Range<u64>]) -> Vec<CountedPage> {
    let is_within = |count: &&PageCount| {
        let end = count.address + PAGE_BYTES;
        let meets = |range: &Range<u64>| range.start < end && count.address < range.end;
        count.pid == pid && ranges.iter().any(meets)
    };
    let page = |count: &PageCount| CountedPage {
        pid,
        address: count.address,
        seen: count.users.iter().sum(),
        users: count.users.clone(),
        transfers: count.transfers.clone(),
        home: count.home,
    };
    let all = counts.iter().filter(is_within).map(page);
    sorted(
        all.filter(|page| page.accesses() + page.transferred() > 0.0)
            .collect(),
    )
}

fn new_page(pid: i32, address: u64, nodes: usize) -> CountedPage {
    CountedPage {
        pid,
        address,
        users: vec![0.0; nodes],
        transfers: vec![0.0; nodes],
        home: None,
        seen: 0.0,
    }
}

fn sorted(mut pages: Vec<CountedPage>) -> Vec<CountedPage> {
    let all = |page: &CountedPage| page.accesses() + page.transferred();
    pages.sort_by(|a, b| all(b).total_cmp(&all(a)));
    pages
}

/// Sums pages up, on a machine of so many nodes, and judges them.
#[must_use]
pub fn summary(pages: &[CountedPage], nodes: usize) -> PagesSummary {
    let (mut by_node, mut homes) = (vec![0.0; nodes], vec![0.0; nodes]);
    let (mut known, mut owned, mut local, mut placed) = (0.0, 0.0, 0.0, 0.0);
    for page in pages {
        let all = page.accesses();
        for (sum, user) in by_node.iter_mut().zip(&page.users) {
            *sum += user;
        }
        if let Some((_, share)) = page.owner() {
            known += all;
            owned += share * all;
        }
        if let Some(home) = page.home {
            homes[home] += all;
            placed += all;
            local += page.users[home];
        }
    }
    let accesses: f64 = by_node.iter().sum();
    let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
    let local = (placed > 0.0).then(|| local / placed);
    let first = (0..nodes).max_by(|&a, &b| by_node[a].total_cmp(&by_node[b]));
    let by = match first {
        Some(node) if accesses > 0.0 && by_node[node] >= OWN * accesses => AreaUse::One(node),
        _ if share(known, accesses) < KNOWN => AreaUse::Unknown,
        _ if share(owned, known) >= DIVIDED => AreaUse::Divided,
        _ => AreaUse::Shared,
    };
    let most = homes.iter().copied().fold(0.0, f64::max);
    let is_spread = most < UNEVEN * placed / nodes.max(1) as f64;
    let remedy = match (by, local) {
        (AreaUse::Unknown, _) | (_, None) => Remedy::Unknown,
        (AreaUse::Shared, _) if is_spread => Remedy::Nothing,
        (AreaUse::Shared, _) => Remedy::Interleave,
        (_, Some(local)) if local >= FINE => Remedy::Nothing,
        (AreaUse::One(node), _) => Remedy::MoveTo(node),
        (AreaUse::Divided, _) => Remedy::MakeLocal,
    };
    PagesSummary {
        page_count: pages.len(),
        known: share(known, accesses),
        owned: share(owned, known),
        local,
        contested_count: pages.iter().filter(|page| page.is_contested()).count(),
        accesses,
        transfers: pages.iter().map(CountedPage::transferred).sum(),
        by,
        remedy,
    }
}

#[cfg(test)]
mod tests {
    use super::super::areas::areas;
    use super::super::data::tests::{access, empty, transfer, write};
    use super::*;
    use crate::rows::{Allocation, Mapping};

    fn mapped() -> Data {
        let mut data = empty();
        data.mappings = vec![Mapping {
            time_ns: 0,
            pid: 7,
            start: 0x10_0000,
            end: 0x12_0000,
            permissions: "rw-p".into(),
            name: "a".into(),
        }];
        data
    }

    #[test]
    fn pages_have_users_homes_and_transfers() {
        let mut data = mapped();
        for turn in 0..40_u16 {
            let time = u64::from(turn);
            data.accesses.push(write(time, 0x10_0000, 1, 0));
            data.accesses.push(access(time, 0x10_1008, turn % 2, 1));
            data.accesses.push(transfer(time, 0x10_2000, turn % 2, 0));
        }
        let areas = areas(&data);
        let pages = of_samples(&data, &areas, 0);
        let page = |address| pages.iter().find(|p| p.address == address).unwrap();
        assert_eq!(page(0x10_0000).owner(), Some((1, 1.0)));
        assert_eq!(page(0x10_1000).owner().map(|owner| owner.1), Some(0.5));
        assert_eq!(page(0x10_1000).home, Some(1));
        let contested = page(0x10_2000);
        assert!(contested.is_contested() && !page(0x10_0000).is_contested());
        assert_eq!(
            (contested.owner(), contested.transfers.clone()),
            (None, vec![200.0, 200.0])
        );
        let summary = summary(&pages, 2);
        assert_eq!((summary.page_count, summary.contested_count), (3, 1));
        assert_eq!((summary.owned, summary.local), (0.75, Some(0.25)));
        assert_eq!(summary.transfers, 400.0);
    }

    #[test]
    fn counts_settle_what_few_samples_leave_open() {
        let mut data = mapped();
        // 32 pages, node position by half, four samples each: too few for any page.
        for turn in 0..128_u64 {
            let page = turn % 32;
            let address = 0x10_0000 + page * PAGE_BYTES;
            data.accesses
                .push(write(turn, address, u16::from(page >= 16), 0));
        }
        let areas = areas(&data);
        let open = summary(&of_samples(&data, &areas, 0), 2);
        assert_eq!((open.by, open.remedy), (AreaUse::Unknown, Remedy::Unknown));
        let count = |page: u64| PageCount {
            pid: 7,
            address: 0x10_0000 + page * PAGE_BYTES,
            users: match page >= 16 {
                true => vec![0.0, 500.0],
                false => vec![500.0, 0.0],
            },
            transfers: vec![0.0; 2],
            home: Some(0),
        };
        // One more page is nobody's, and one of another area.
        let mut counts: Vec<PageCount> = (0..32).map(count).collect();
        counts.push(count(32));
        let ranges = ranges(&data, &areas, 0);
        let settled = summary(&of_counts(&counts, 7, &ranges), 2);
        assert_eq!(settled.page_count, 32);
        assert_eq!(
            (settled.by, settled.remedy),
            (AreaUse::Divided, Remedy::MakeLocal)
        );
        // Of pages whose node is not told, nothing is said.
        counts.iter_mut().for_each(|count| count.home = None);
        let open = summary(&of_counts(&counts, 7, &ranges), 2);
        assert_eq!((open.by, open.remedy), (AreaUse::Divided, Remedy::Unknown));
    }

    #[test]
    fn an_area_by_site_is_where_its_allocations_live() {
        let mut data = empty();
        let allocation = |address, end_ns| Allocation {
            pid: 7,
            tid: 9,
            address,
            bytes: 0x1000,
            start_ns: 0,
            end_ns,
            site: 3,
            is_mapping: false,
        };
        data.allocations = vec![allocation(0x5000, None), allocation(0x8000, Some(3))];
        data.accesses = (1..9).map(|turn| write(turn, 0x5008, 1, 0)).collect();
        let areas = areas(&data);
        assert_eq!(areas.list[0].kind, AreaKind::Site(3));
        assert_eq!(ranges(&data, &areas, 0), vec![0x5000..0x6000; 1]);
        assert_eq!(same_area(&areas, 7, &AreaKind::Site(3)), Some(0));
    }
}
