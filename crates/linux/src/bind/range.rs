//! Ranges of this process's own memory: giving them a policy, and looking where their pages are.

use crate::error::{Error, Result};
use crate::proc::pagemap::Pagemap;
use crate::root::Root;
use crate::sys::{self, PAGE_IS_HUGE, PAGE_IS_PRESENT, Present, PrivateMemory};
use hither_core::bind::{KernelPolicy, Laid, Mode};
use hither_core::ids::NodeId;
use hither_core::set::NodeSet;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;

const PAGE: u64 = 4096;
/// Pages that the kernel is asked about, or told to move, at once.
const BATCH: u64 = 4096;
/// Mappings that a process may have where the kernel does not tell (its default).
const MOST_MAPPINGS: u64 = 65_530;

/// Where the pages of a range are, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// Pages of 4 KiB on each node that has some, ascending.
    pub nodes: Vec<(NodeId, u64)>,
    /// Pages that are not in memory: never written to, or swapped out.
    pub absent: u64,
    /// Pages on a node that the policy of their address does not name. Where it names none, or
    /// only the thread has one, any node is right.
    pub astray: u64,
    /// Pages that are parts of huge pages, mapped as such; `None` where the kernel does not tell
    /// (before Linux 6.7).
    pub huge: Option<u64>,
}

impl Residency {
    /// Pages of the range, in memory or not.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        self.absent + self.nodes.iter().map(|(_, count)| count).sum::<u64>()
    }
}

/// The whole pages that have a byte of `bytes` bytes from `address` on.
///
/// # Errors
/// There is none, or the range leaves the address space.
pub fn pages_around(address: u64, bytes: u64) -> Result<Range<u64>> {
    let end = address.checked_add(bytes).filter(|end| *end < 1 << 63);
    match end {
        _ if bytes == 0 => Err(fault(address, "the range is empty", "give it a length")),
        Some(end) => Ok(address / PAGE * PAGE..end.next_multiple_of(PAGE)),
        None => {
            let reason = format!("{bytes} bytes from there on leave the address space");
            Err(fault(address, reason, "give a range of this process"))
        }
    }
}

/// Gives a range of whole pages a layout. Pages that are there already go where it wants them with
/// [`Present::Move`], as far as this process alone maps them and the nodes have room; under
/// `weighted` those that are on nodes of the set stay.
///
/// # Errors
/// The range is not of whole pages, not mapped, or would take more mappings than the kernel allows;
/// what the kernel refuses.
pub fn bind(range: Range<u64>, laid: &Laid, present: Present) -> Result<()> {
    check(&range)?;
    let pages = (range.end - range.start) / PAGE;
    let most = most_mappings();
    if laid.part_count(pages) > most / 2 {
        let reason = format!(
            "{} stripes are more than half of the {most} mappings that a process may have",
            laid.part_count(pages)
        );
        let remedy = "take a longer stride, or raise vm.max_map_count";
        return Err(fault(range.start, reason, remedy));
    }
    for (part, policy) in laid.parts(pages) {
        let address = range.start + part.start * PAGE;
        let bytes = (part.end - part.start) * PAGE;
        sys::bind_range(address, bytes, &policy, present)
            .map_err(|error| refused(address, &policy, present, error))?;
    }
    if let Some(home) = laid.home() {
        sys::set_home_node(range.start, range.end - range.start, home).map_err(|error| {
            let remedy = "leave the home node away; it needs Linux 5.17, and to be allowed in a \
                          container's filter of system calls (seccomp)";
            Error::io(
                "set_mempolicy_home_node",
                format!("home node {} is refused", home.0),
                remedy,
                error,
            )
        })?;
    }
    let policy = laid.policy();
    let takes_turns = laid.part_count(pages) == 1 && policy.mode == Mode::Interleave;
    if present == Present::Move && takes_turns && policy.nodes.len() > 1 {
        spread(&range, policy)?;
    }
    Ok(())
}

/// Gives a page of nobody's a policy and asks for it: what the kernel refuses of memory is known
/// before something is made or started.
///
/// # Errors
/// The policy, or every policy, is refused.
pub fn try_out(policy: &KernelPolicy) -> Result<()> {
    let failed = |error| {
        Error::io(
            "memory",
            "a page cannot be mapped",
            "free some memory",
            error,
        )
    };
    let page = PrivateMemory::new(PAGE as usize, false).map_err(failed)?;
    let address = page.address();
    sys::bind_range(address, PAGE, policy, Present::Stay)
        .map_err(|error| super::refused_policy("mbind", policy, error))?;
    sys::policy_at(address)
        .map(drop)
        .map_err(|error| unanswered("get_mempolicy", error))
}

/// Moves pages to where an interleaving puts them: mbind leaves those that are on any of its nodes.
/// The kernel's own turn is the page's number, as that of a private mapping's address is.
fn spread(range: &Range<u64>, policy: &KernelPolicy) -> Result<()> {
    let nodes: Vec<i32> = policy.nodes.iter().map(|node| node.0 as i32).collect();
    for batch in batches(range) {
        let addresses: Vec<u64> = batch.step_by(PAGE as usize).collect();
        let turn = |address: &u64| nodes[(address / PAGE % nodes.len() as u64) as usize];
        let targets: Vec<i32> = addresses.iter().map(turn).collect();
        let mut status = vec![0; addresses.len()];
        // Pages that are not there, shared or without room stay: residency tells.
        sys::move_pages(0, &addresses, &targets, &mut status).map_err(|error| {
            let remedy = "name nodes that have memory and that the cpuset allows";
            Error::call("move_pages", "pages cannot be moved", remedy, error)
        })?;
    }
    Ok(())
}

/// Where the pages of a range are. They stay as they are: none is brought into memory.
///
/// # Errors
/// A part of it is not mapped, or the kernel does not tell.
///
/// ```
/// use hither_linux::bind::range;
///
/// let bytes = vec![1u8; 1 << 20];
/// let pages = range::pages_around(bytes.as_ptr() as u64, bytes.len() as u64)?;
/// let found = range::residency(pages)?;
/// assert!(found.page_count() >= 256);
/// # Ok::<(), hither_linux::Error>(())
/// ```
pub fn residency(range: Range<u64>) -> Result<Residency> {
    let mut found = Residency::default();
    let mut nodes: BTreeMap<NodeId, u64> = BTreeMap::new();
    let (mut untold, mut policies) = (None, Policies::new());
    each_page(&range, |address, node| {
        let Some(node) = node else {
            found.absent += 1;
            return;
        };
        *nodes.entry(node).or_default() += 1;
        match policies.at(address) {
            Ok(policy) => found.astray += policy.astray(&[(node, 1)]).unwrap_or(0),
            Err(error) => untold = Some(error),
        }
    })?;
    if let Some(error) = untold {
        return Err(unanswered("get_mempolicy", error));
    }
    found.nodes = nodes.into_iter().collect();
    found.huge = huge_pages(&range);
    Ok(found)
}

/// Policies of addresses in ascending order: those of a private mapping are all alike, so that it is
/// asked once where its ends are known (Linux 6.11), else page by page.
struct Policies {
    maps: Option<File>,
    /// Where `policy` holds.
    known: Range<u64>,
    policy: KernelPolicy,
}

impl Policies {
    fn new() -> Self {
        Self {
            maps: File::open("/proc/self/maps").ok(),
            known: 0..0,
            policy: KernelPolicy::new(Mode::Default, NodeSet::new()),
        }
    }

    fn at(&mut self, address: u64) -> io::Result<&KernelPolicy> {
        if !self.known.contains(&address) {
            self.policy = sys::policy_at(address)?;
            let mapping = self.maps.as_ref();
            let mapping = mapping.and_then(|maps| sys::query_mapping(maps, address).ok().flatten());
            self.known = match mapping {
                Some(mapping) if !mapping.shared => mapping.range,
                _ => address..address + PAGE,
            };
        }
        Ok(&self.policy)
    }
}

/// The node of each page of a range in order; `None` for one that is not in memory.
///
/// # Errors
/// As [`residency`].
pub fn nodes_by_page(range: Range<u64>) -> Result<Vec<Option<NodeId>>> {
    let mut nodes = Vec::new();
    each_page(&range, |_, node| nodes.push(node))?;
    Ok(nodes)
}

fn each_page(range: &Range<u64>, mut tell: impl FnMut(u64, Option<NodeId>)) -> Result<()> {
    check(range)?;
    for batch in batches(range) {
        let addresses: Vec<u64> = batch.step_by(PAGE as usize).collect();
        let mut status = vec![0; addresses.len()];
        sys::query_pages(0, &addresses, &mut status)
            .map_err(|error| unanswered("move_pages", error))?;
        for (&address, &status) in addresses.iter().zip(&status) {
            tell(address, u32::try_from(status).ok().map(NodeId));
        }
    }
    Ok(())
}

fn batches(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = range.end;
    let starts = range.clone().step_by((BATCH * PAGE) as usize);
    starts.map(move |start| start..(start + BATCH * PAGE).min(end))
}

fn huge_pages(range: &Range<u64>) -> Option<u64> {
    let pagemap = Pagemap::open(&Root::host(), std::process::id() as i32).ok()?;
    let mut count = 0;
    let pages = range.start / PAGE..range.end / PAGE;
    let scanned = pagemap.scan(pages, PAGE_IS_PRESENT | PAGE_IS_HUGE, |run| {
        count += run.end - run.start;
    });
    scanned.ok().map(|()| count)
}

fn most_mappings() -> u64 {
    let text = Root::host().text_if_any("proc/sys/vm/max_map_count");
    let number = text
        .ok()
        .flatten()
        .and_then(|text| text.trim().parse().ok());
    number.unwrap_or(MOST_MAPPINGS)
}

fn check(range: &Range<u64>) -> Result<()> {
    let Range { start, end } = *range;
    if !start.is_multiple_of(PAGE) || !end.is_multiple_of(PAGE) {
        let reason = format!("{start:#x}-{end:#x} is not of whole pages");
        let remedy = "begin and end at multiples of 4096";
        return Err(fault(start, reason, remedy));
    }
    if start >= end {
        return Err(fault(start, "the range is empty", "give it a length"));
    }
    if !sys::is_mapped(start, end - start) {
        let reason = format!("a part of {start:#x}-{end:#x} is not mapped");
        return Err(fault(start, reason, "give memory of this process"));
    }
    Ok(())
}

fn fault(address: u64, reason: impl Into<String>, remedy: &str) -> Error {
    Error::new(format!("memory at {address:#x}"), reason, remedy)
}

fn unanswered(call: &str, error: io::Error) -> Error {
    let remedy = "give memory of this process that stays mapped";
    Error::call(call, "does not tell where pages are", remedy, error)
}

fn refused(address: u64, policy: &KernelPolicy, present: Present, error: io::Error) -> Error {
    let (reason, remedy) = match error.raw_os_error() {
        Some(sys::ENOMEM) => (
            "the kernel has no memory, or no mappings left, to bind it",
            "free some, or raise vm.max_map_count",
        ),
        Some(sys::EIO) if present == Present::Checked => (
            "has pages where the policy does not want them",
            "have them moved",
        ),
        _ => return super::refused_policy("mbind", policy, error),
    };
    Error::io(format!("memory at {address:#x}"), reason, remedy, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind;
    use hither_core::bind::MemoryLayout;

    fn laid(text: &str) -> Laid {
        let here = bind::here().unwrap();
        let set = bind::resolve("set", "mem:0", &here).unwrap();
        let layout: MemoryLayout = text.parse().unwrap();
        layout.on(&set.set, &here).unwrap()
    }

    #[test]
    fn policies_of_ranges_are_read_back() {
        let mut memory = PrivateMemory::new(64 << 12, false).unwrap();
        let start = memory.address();
        let range = start..start + (64 << 12);
        for (text, kernel) in [
            ("bind", "bind:0"),
            ("preferred", "prefer:0"),
            ("striped", "interleave:0"),
            ("striped:4", "prefer:0"),
            ("bind@0", "bind:0"),
            ("local", "local"),
        ] {
            bind(range.clone(), &laid(text), Present::Stay).unwrap();
            for page in 0..64 {
                let policy = sys::policy_at(start + (page << 12)).unwrap();
                assert_eq!(policy.to_string(), kernel, "{text}");
            }
            assert_eq!(sys::policy_at(range.end).unwrap().to_string(), "default");
        }
        memory.bytes_mut()[..3 << 12].fill(1);
        bind(range.clone(), &laid("striped:2"), Present::Move).unwrap();
        let found = residency(range.clone()).unwrap();
        assert_eq!(found.nodes, [(NodeId(0), 3)]);
        assert_eq!(
            (found.absent, found.astray, found.page_count()),
            (61, 0, 64)
        );
        assert!(found.huge.is_none_or(|huge| huge == 0));
        let nodes = nodes_by_page(range).unwrap();
        assert_eq!(nodes.len(), 64);
        assert!(nodes[..3].iter().all(|node| *node == Some(NodeId(0))));
        assert!(nodes[3..].iter().all(Option::is_none));
    }

    #[test]
    fn bad_ranges_are_refused_with_a_message() {
        let memory = PrivateMemory::new(1, false).unwrap();
        let start = memory.address();
        let says = |range: Range<u64>, words: &str| {
            for error in [
                bind(range.clone(), &laid("bind"), Present::Stay).unwrap_err(),
                residency(range.clone()).unwrap_err(),
            ] {
                assert!(error.to_string().contains(words), "{error}");
            }
        };
        says(start + 1..start + 4096, "not of whole pages");
        says(start..start + 4097, "not of whole pages");
        says(start..start, "is empty");
        says(4096..8192, "not mapped");
        says(1 << 62..(1 << 62) + 4096, "not mapped");
        assert!(pages_around(start, 0).is_err() && pages_around(u64::MAX, 1).is_err());
        assert_eq!(pages_around(4097, 4096).unwrap(), 4096..12288);
    }
}
