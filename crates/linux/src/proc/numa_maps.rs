//! `/proc/PID/numa_maps`: mappings with their policy and their pages per node.

use crate::error::{Fault, Result};
use crate::parse::{Parsed, clip};
use crate::root::Root;
use hither_core::ids::NodeId;

/// Resident pages of a process up to which the file is read as often as is of use: 1 GiB. The kernel goes over every
/// page, some 10 ms for so many, and meanwhile the process cannot change its mappings.
pub const QUICK_PAGES: u64 = 1 << 18;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaMapping {
    /// First address.
    pub start: u64,
    /// Memory policy, as the kernel prints it: its own, or else that of the thread that leads the
    /// process. See `hither_core::bind::KernelPolicy`.
    pub policy: String,
    /// Pages in memory per node, in the mapping's own page size.
    pub pages: Vec<(NodeId, u64)>,
    /// Size of those pages in KiB.
    pub page_kb: u64,
    /// Name of the file behind it; memory that is shared has one too.
    pub file: Option<String>,
    /// Pages that are the process's own, of all: of a private mapping of a file those that it has
    /// written.
    pub anonymous: u64,
    /// A mapping of the huge-page file system?
    pub huge: bool,
}

impl NumaMapping {
    /// Does it map a file, other than one that is merely memory with a name?
    #[must_use]
    pub fn is_of_file(&self) -> bool {
        self.file.as_ref().is_some_and(|file| !is_memory(file)) && !self.huge
    }

    /// Pages per node that the programs which map it have made, where pages of files are what anybody
    /// has read: anonymous memory, private or shared, and what is written of a private mapping of a
    /// file. Where the kernel does not tell on which nodes the latter are, they are left out.
    #[must_use]
    pub fn own_pages(&self) -> Vec<(NodeId, u64)> {
        let Some(file) = &self.file else {
            return self.pages.clone();
        };
        let all: u64 = self.pages.iter().map(|&(_, count)| count).sum();
        match self.pages[..] {
            _ if self.huge || is_memory(file) || self.anonymous >= all => self.pages.clone(),
            [(node, _)] if self.anonymous > 0 => vec![(node, self.anonymous)],
            _ => Vec::new(),
        }
    }
}

/// Is this a name that the kernel gives memory without a file, or that of one in `/dev/shm`?
///
/// ```text
/// /dev/zero (deleted)       shared anonymous memory
/// /memfd:NAME (deleted)     memfd_create(2)
/// /SYSV00000000 (deleted)   shmget(2), by its key
/// /anon_hugepage (deleted)  the same in huge pages
/// /i915 (deleted)           of a driver
/// ```
#[must_use]
pub fn is_memory(name: &str) -> bool {
    let is_kernels = |name: &str| name.starts_with('/') && !name[1..].contains('/');
    let prefixes = ["/memfd:", "/SYSV", "/dev/shm/", "/dev/ashmem/"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
        || name == "/dev/zero (deleted)"
        || name.strip_suffix(" (deleted)").is_some_and(is_kernels)
}

/// Without the kernel's escapes of blanks, line breaks and `=` (`\040`).
fn unescaped(name: &str) -> String {
    let (mut text, mut rest) = (String::new(), name);
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        let code = after
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) if code.is_ascii() => text.push(char::from(code)),
            _ => {
                text.push('\\');
                rest = after;
                continue;
            }
        }
        rest = &after[3..];
    }
    text + rest
}

/// Parses the whole file. Words that a newer kernel adds are skipped.
///
/// ```text
/// 7f2c8c000000 default anon=33 dirty=33 N0=21 N1=12 kernelpagesize_kB=4
/// 7f2c90000000 interleave:0-3 file=/lib/libc.so.6 mapped=8 mapmax=3 N0=8 kernelpagesize_kB=4
/// 7f2c94000000 bind:0 file=/dev/hugepages/x huge dirty=2 N0=2 kernelpagesize_kB=2048
/// 7f2c98000000 default file=/dev/zero\040(deleted) dirty=16 N0=16 kernelpagesize_kB=4
/// ```
pub fn parse(text: &str) -> Parsed<Vec<NumaMapping>> {
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
        let mut mapping = NumaMapping {
            start,
            policy,
            pages: Vec::new(),
            page_kb: 4,
            file: None,
            anonymous: 0,
            huge: false,
        };
        for word in words {
            match word.split_once('=') {
                Some(("kernelpagesize_kB", size)) => {
                    mapping.page_kb = size.parse().map_err(|_| fail("has no page size"))?;
                }
                Some(("file", name)) => mapping.file = Some(unescaped(name)),
                Some(("anon", count)) => {
                    mapping.anonymous = count.parse().map_err(|_| fail("has no page count"))?;
                }
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
pub fn read(root: &Root, pid: i32) -> Result<Vec<NumaMapping>> {
    super::read(root, pid, "numa_maps", parse)
}

/// Pages per node over all mappings, in base pages, ascending by node.
#[must_use]
pub fn totals(mappings: &[NumaMapping]) -> Vec<(NodeId, u64)> {
    in_base_pages(mappings, |mapping| mapping.pages.clone())
}

/// The same of [`NumaMapping::own_pages`].
#[must_use]
pub fn own_totals(mappings: &[NumaMapping]) -> Vec<(NodeId, u64)> {
    in_base_pages(mappings, NumaMapping::own_pages)
}

/// Counts of nodes in the order of `nodes`; those of other nodes are left out.
#[must_use]
pub fn by_position(nodes: &[NodeId], totals: &[(NodeId, u64)]) -> Vec<u64> {
    let count = |id: &NodeId| totals.iter().find(|(node, _)| node == id);
    nodes
        .iter()
        .map(|id| count(id).map_or(0, |&(_, pages)| pages))
        .collect()
}

fn in_base_pages(
    mappings: &[NumaMapping],
    of: fn(&NumaMapping) -> Vec<(NodeId, u64)>,
) -> Vec<(NodeId, u64)> {
    let mut totals = std::collections::BTreeMap::<NodeId, u64>::new();
    for mapping in mappings {
        for (node, count) in of(mapping) {
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
        assert!(mappings[2].huge && mappings[2].file.is_some() && mappings[0].file.is_none());
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
    fn what_is_the_programs_own_has_many_names() {
        let of = |line: &str| {
            let mappings = parse(&format!("7f00 default {line} kernelpagesize_kB=4\n")).unwrap();
            let pages = mappings[0].own_pages();
            pages.iter().map(|&(_, count)| count).collect::<Vec<_>>()
        };
        for name in [
            "/dev/zero\\040(deleted)",
            "/memfd:a\\040b/c\\075d\\040(deleted)",
            "/memfd:sealed",
            "/SYSV0000002a\\040(deleted)",
            "/dev/shm/with\\040a\\040name",
            "/anon_hugepage\\040(deleted)",
            "/i915\\040(deleted)",
        ] {
            let line = format!("file={name} dirty=9 N0=4 N3=5");
            assert_eq!(of(&line), [4, 5], "{name}");
        }
        assert_eq!(of("file=/dev/hugepages/x huge dirty=2 N0=2"), [2]);
        assert_eq!(of("heap anon=3 dirty=3 N0=3"), [3]);
        assert_eq!(of("stack anon=2 dirty=2 N0=1 N1=1"), [1, 1]);
        // Of files what was written, where it is told on which node that is.
        assert_eq!(of("file=/lib/libc.so mapped=8 N0=8"), [0; 0]);
        assert_eq!(of("file=/lib/libc.so anon=3 dirty=3 mapped=8 N0=8"), [3]);
        assert_eq!(of("file=/lib/libc.so anon=8 dirty=8 N0=3 N1=5"), [3, 5]);
        assert_eq!(of("file=/lib/libc.so anon=3 mapped=8 N0=3 N1=5"), [0; 0]);
        for name in [
            "/tmp/x\\040(deleted)",
            "/dev/zero",
            "/vmlinuz",
            "/srv/dev/shm/x",
        ] {
            assert_eq!(of(&format!("file={name} mapped=9 N0=9")), [0; 0], "{name}");
        }
        assert_eq!(unescaped(r"a\040b\\c\0x\999\"), r"a b\\c\0x\999\");
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
