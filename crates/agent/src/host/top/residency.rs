//! Where the pages of a process are, at a bounded cost: `numa_maps`, which walks every page, for
//! processes up to 1 GiB; for larger ones, `move_pages(2)` is asked about some thousand addresses
//! spread evenly over what is mapped.

use crate::host::spread::Spread;
use hither_core::ids::NodeId;
use hither_core::snapshot::Evidence;
use hither_linux::Error;
use hither_linux::proc::{maps, numa_maps};
use hither_linux::root::Root;
use hither_linux::sys;

/// Addresses asked about in a larger process: some 2 ms.
const ASKED: usize = 4096;
/// Why it is not told of a larger process what it is bound to.
const TOO_LARGE: &str = "its mappings are read alone where it is looked at closely (--pid)";
/// Of those, so many must be in memory: a process may map far more than it uses.
const LEAST_FOUND: u64 = 256;

/// Base pages by node position, and the mappings where they were read for it. `turn` shifts the addresses
/// asked about, so that later readings see others.
pub fn read(
    root: &Root,
    nodes: &[NodeId],
    pid: i32,
    resident_pages: u64,
    turn: u64,
) -> (Evidence<Vec<u64>>, Evidence<Vec<numa_maps::NumaMapping>>) {
    if nodes.len() == 1 {
        let pages = Evidence::measured(vec![resident_pages], "the only node");
        return (pages, Evidence::unknown("there is one node"));
    }
    if resident_pages > numa_maps::QUICK_PAGES && root.is_host() {
        let found = maps::read(root, pid).ok().and_then(|mappings| {
            let spread = Spread::over(&mappings, ASKED, turn);
            ask(nodes, pid, &spread.addresses)
        });
        let count: u64 = found.iter().flatten().sum();
        if let Some(found) = found.filter(|_| count >= LEAST_FOUND) {
            let scaled = |pages: u64| (pages as f64 / count as f64 * resident_pages as f64) as u64;
            let pages = found.into_iter().map(scaled).collect();
            let pages = Evidence::estimated(pages, format!("{count} pages asked about"));
            return (pages, Evidence::unknown(TOO_LARGE));
        }
    }
    match numa_maps::read(root, pid) {
        Ok(mappings) => (
            Evidence::measured(by_position(nodes, &mappings), "numa_maps"),
            Evidence::measured(mappings, "numa_maps"),
        ),
        Err(error) => {
            let why = why(root, pid, &error);
            (Evidence::unknown(why.clone()), Evidence::unknown(why))
        }
    }
}

/// Base pages of the huge-page file system that a process maps, private and shared: the kernel does not
/// count them among its resident ones. None where it has ended or the kernel has no such pages.
///
/// ```text
/// HugetlbPages:       4096 kB
/// ```
pub fn hugetlb_pages(root: &Root, pid: i32) -> u64 {
    let status = root.text(&format!("proc/{pid}/status")).unwrap_or_default();
    let kb = status.lines().find_map(|line| {
        let value = line.strip_prefix("HugetlbPages:")?.trim();
        value.strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    kb.unwrap_or(0) / 4
}

/// Base pages of mappings by node position; nodes that went offline are left out.
pub fn by_position(nodes: &[NodeId], mappings: &[numa_maps::NumaMapping]) -> Vec<u64> {
    numa_maps::by_position(nodes, &numa_maps::totals(mappings))
}

/// Why it is not known, in a sentence.
pub fn why(root: &Root, pid: i32, error: &Error) -> String {
    match root.has(&format!("proc/{pid}")) {
        true => format!("{}; {}", error.reason, error.remedy),
        false => "it has ended".to_owned(),
    }
}

/// How many of the pages are on each node.
fn ask(nodes: &[NodeId], pid: i32, addresses: &[u64]) -> Option<Vec<u64>> {
    let mut status = vec![0; addresses.len()];
    sys::query_pages(pid, addresses, &mut status).ok()?;
    let mut found = vec![0; nodes.len()];
    for node in status
        .into_iter()
        .filter_map(|node| u32::try_from(node).ok())
    {
        if let Some(position) = nodes.iter().position(|id| id.0 == node) {
            found[position] += 1;
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_go_by_position_of_sparse_nodes() {
        let text = "1000 default N8=3 kernelpagesize_kB=4\n2000 default N0=1 N252=2 kernelpagesize_kB=2048\n";
        let mappings = numa_maps::parse(text).unwrap();
        let nodes = [NodeId(0), NodeId(8)];
        assert_eq!(by_position(&nodes, &mappings), [512, 3]);
    }

    #[test]
    fn this_process_is_found_both_ways() {
        let memory = vec![1u8; 8 << 20];
        let pid = std::process::id() as i32;
        let root = Root::host();
        // Two positions, so that the pages are looked for: the second node is none of any machine.
        let nodes = [NodeId(0), NodeId(1023)];
        let (counted, mappings) = read(&root, &nodes, pid, 1, 0);
        assert!(mappings.is_known());
        assert_eq!(counted.basis(), "numa_maps");
        assert!(counted.value().unwrap()[0] >= 2048, "{counted:?}");
        let first = (memory.as_ptr() as u64 >> 12) + 1;
        let addresses: Vec<u64> = (first..first + 100).map(|page| page << 12).collect();
        assert_eq!(ask(&nodes, pid, &addresses), Some(vec![100, 0]));
        let (alone, _) = read(&root, &nodes[..1], pid, 77, 0);
        assert_eq!(alone.value().unwrap(), &[77]);
    }

    #[test]
    fn huge_pages_that_the_kernel_counts_apart_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("proc/7");
        std::fs::create_dir_all(&below).unwrap();
        let status = "Name:\tx\nVmRSS:\t 400 kB\nHugetlbPages:\t    4096 kB\nCpus_allowed:\t3\n";
        std::fs::write(below.join("status"), status).unwrap();
        let root = Root::new(folder.path());
        assert_eq!(hugetlb_pages(&root, 7), 1024);
        assert_eq!(hugetlb_pages(&root, 8), 0);
    }

    #[test]
    fn a_process_that_has_ended_is_no_failure() {
        let (gone, _) = read(&Root::host(), &[NodeId(0), NodeId(1)], i32::MAX, 5, 0);
        assert_eq!(gone.basis(), "it has ended");
    }
}
