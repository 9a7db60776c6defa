//! `/proc/PID/numa_maps`: mappings with their policy and their pages per node.

use crate::error::{Fault, Result};
use crate::parse::{Parsed, clip};
use crate::root::Root;
use hither_core::ids::NodeId;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Memory policy, as the kernel prints it: its own, or else that of the thread that leads the
    /// process. See `hither_core::bind::KernelPolicy`.
    pub policy: String,
    /// Pages in memory per node, in the mapping's own page size.
    pub pages: Vec<(NodeId, u64)>,
    /// Size of those pages in KiB.
    pub page_kb: u64,
    /// Backed by a file?
    pub file: bool,
    /// A mapping of the huge-page file system?
    pub huge: bool,
}

/// Parses the whole file. Words that a newer kernel adds are skipped.
///
/// ```text
/// 7f2c8c000000 default anon=33 dirty=33 N0=21 N1=12 kernelpagesize_kB=4
/// 7f2c90000000 interleave:0-3 file=/lib/libc.so.6 mapped=8 mapmax=3 N0=8 kernelpagesize_kB=4
/// 7f2c94000000 bind:0 file=/dev/hugepages/x huge dirty=2 N0=2 kernelpagesize_kB=2048
/// ```
pub fn parse(text: &str) -> Parsed<Vec<Mapping>> {
    let mut mappings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let fail = |what: &str| Fault::new(index + 1, format!("`{}` {what}", clip(line)));
        let mut words = line.split_whitespace().peekable();
        let Some(address) = words.next() else {
            continue;
        };
        let start = u64::from_str_radix(address, 16).map_err(|_| fail("begins with no address"))?;
        let first = words.next().ok_or_else(|| fail("has no policy"))?;
        let mut policy = first.to_owned();
        // `prefer (many):0-1` and `weighted interleave:0-1` are two words.
        let is_second = |word: &&str| match first {
            "prefer" => word.starts_with("(many)"),
            "weighted" => word.starts_with("interleave"),
            _ => false,
        };
        if let Some(second) = words.next_if(is_second) {
            policy = format!("{first} {second}");
        }
        let mut mapping = Mapping {
            start,
            policy,
            pages: Vec::new(),
            page_kb: 4,
            file: false,
            huge: false,
        };
        for word in words {
            match word.split_once('=') {
                Some(("kernelpagesize_kB", size)) => {
                    mapping.page_kb = size.parse().map_err(|_| fail("has no page size"))?;
                }
                Some(("file", _)) => mapping.file = true,
                Some((key, count)) => {
                    let node = key.strip_prefix('N').and_then(|node| node.parse().ok());
                    if let Some(node) = node {
                        let count = count.parse().map_err(|_| fail("has no page count"))?;
                        mapping.pages.push((NodeId(node), count));
                    }
                }
                None => mapping.huge |= word == "huge",
            }
        }
        mappings.push(mapping);
    }
    Ok(mappings)
}

/// The mappings of a process; none for a kernel thread or a process that has just ended.
///
/// # Errors
/// As [`super::maps::read`]; besides, kernels without CONFIG_NUMA or CONFIG_PROC_PAGE_MONITOR do not
/// have the file.
pub fn read(root: &Root, pid: i32) -> Result<Vec<Mapping>> {
    super::read(root, pid, "numa_maps", parse)
}

/// Pages per node over all mappings, in base pages, ascending by node.
#[must_use]
pub fn totals(mappings: &[Mapping]) -> Vec<(NodeId, u64)> {
    let mut totals = std::collections::BTreeMap::<NodeId, u64>::new();
    for mapping in mappings {
        for &(node, count) in &mapping.pages {
            let base_pages = count.saturating_mul((mapping.page_kb / 4).max(1));
            let total = totals.entry(node).or_default();
            *total = total.saturating_add(base_pages);
        }
    }
    totals.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
7f2c8c000000 default anon=33 dirty=33 N0=21 N1=12 kernelpagesize_kB=4
7f2c90000000 interleave:0-3 file=/lib/libc.so.6 mapped=8 mapmax=3 N0=8 kernelpagesize_kB=4
7f2c94000000 bind:0 file=/dev/hugepages/x huge dirty=2 N0=2 kernelpagesize_kB=2048
7fff00000000 default stack
7fff10000000 prefer (many):0-1 anon=1 kernelpagesize_kB=4
7fff20000000 weighted interleave:0 anon=1 kernelpagesize_kB=4
";

    #[test]
    fn counts_are_in_base_pages() {
        let mappings = parse(TEXT).unwrap();
        assert_eq!(mappings.len(), 6);
        assert!(mappings[2].huge && mappings[2].file && !mappings[0].file);
        let policies: Vec<&str> = mappings.iter().map(|m| m.policy.as_str()).collect();
        assert_eq!(policies[1], "interleave:0-3");
        assert_eq!(
            policies[4..6],
            ["prefer (many):0-1", "weighted interleave:0"]
        );
        // 21 + 8 + 2 * 512 on node0.
        assert_eq!(totals(&mappings), [(NodeId(0), 1053), (NodeId(1), 12)]);
    }

    #[test]
    fn faults_name_their_line() {
        assert_eq!(parse("7f00 default\nxyz default\n").unwrap_err().line, 2);
        assert!(parse("7f00").unwrap_err().reason.contains("policy"));
        assert!(
            parse("7f00 default N0=many")
                .unwrap_err()
                .reason
                .contains("page count")
        );
    }

    #[test]
    fn the_kernels_own_file_is_read() {
        let mappings = read(&Root::host(), std::process::id() as i32).unwrap();
        let here: u64 = totals(&mappings).iter().map(|&(_, count)| count).sum();
        assert!(here > 50, "{here} pages");
    }
}
