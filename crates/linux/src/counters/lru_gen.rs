//! Ages of pages by control group and node, as the multi-generational LRU keeps them
//! (`/sys/kernel/debug/lru_gen`, Linux 6.1, `CONFIG_LRU_GEN`): how much memory was used how lately,
//! without a word about addresses.
//!
//! The kernel sorts the pages of a group on a node into up to four *generations*. A page's
//! generation began before the page was last seen used, so that its age is a bound: used within that
//! time. What is older may have been used since the last look, which the kernel takes only when it
//! is short of memory: sums over young generations are a lower bound, and close to the truth
//! just after a look. A look waits for nobody: it goes through a process by some 16 MiB of pages in
//! use at a time, and skips the rest of it where the process maps, unmaps or protects memory just
//! between two (Linux, `walk_mm` in mm/vmscan.c).
//!
//! [`age`] has the kernel look and begin a new generation (`+`); pages that it finds used go to the
//! one that was the youngest until then, and the two oldest become one. That is what the kernel
//! does when short of memory, evicts nothing, and cannot be undone: later reclaim finds pages sorted
//! by it. Evicting (`-`) is never asked for.

use crate::error::{Error, Fault, Result};
use crate::filter;
use crate::parse::{Parsed, clip, text};
use crate::root::Root;
use crate::sys;
use hither_core::ids::NodeId;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};

/// Where the kernel tells, below the root.
const FILE: &str = "sys/kernel/debug/lru_gen";
/// What it is switched on by: a set of bits, of which the lowest is the generations'.
const ENABLED: &str = "sys/kernel/mm/lru_gen/enabled";
/// Most bytes that are read: ten thousand groups on several nodes.
const MAX_BYTES: u64 = 64 << 20;
const FORMAT_REMEDY: &str = "report it with the file: hither does not know this kernel's format";

/// Pages of one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Its number: grows by one with each that is begun.
    pub number: u64,
    /// Time since it was begun.
    pub age_ms: u64,
    /// Base pages of programs' own memory.
    pub anonymous_pages: u64,
    /// Base pages of files.
    pub file_pages: u64,
}

/// A control group on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// The kernel's number of the group.
    pub group_id: u64,
    /// Its path below the root of control groups (`/` is the root); empty without memory groups.
    pub group: String,
    /// The node.
    pub node: NodeId,
    /// The oldest first.
    pub generations: Vec<Generation>,
}

impl List {
    fn page_count(&self) -> u64 {
        let pages = |g: &Generation| g.anonymous_pages.saturating_add(g.file_pages);
        self.generations
            .iter()
            .map(pages)
            .fold(0, u64::saturating_add)
    }
}

/// Limits of the classes of [`Ages`]. Not at round times: generations are made at such, and are a
/// little older when they are looked at.
pub const WITHIN_MS: [u64; 5] = [2_000, 15_000, 120_000, 900_000, 7_200_000];

/// Base pages by how lately they are known to have been used: a class for each of [`WITHIN_MS`] that
/// holds what is in none before it, and one for the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ages {
    /// Of programs' own memory.
    pub anonymous_pages: [u64; WITHIN_MS.len() + 1],
    /// Of files.
    pub file_pages: [u64; WITHIN_MS.len() + 1],
}

impl Ages {
    /// Of some lists together.
    #[must_use]
    pub fn of<'a>(lists: impl Iterator<Item = &'a List>) -> Self {
        let mut ages = Self::default();
        for generation in lists.flat_map(|list| &list.generations) {
            let class = WITHIN_MS.partition_point(|&limit| limit < generation.age_ms);
            let add = |sum: &mut u64, pages| *sum = sum.saturating_add(pages);
            add(&mut ages.anonymous_pages[class], generation.anonymous_pages);
            add(&mut ages.file_pages[class], generation.file_pages);
        }
        ages
    }

    /// Pages of either kind of a class.
    #[must_use]
    pub fn pages(&self, class: usize) -> u64 {
        self.anonymous_pages[class].saturating_add(self.file_pages[class])
    }
}

/// Parses the file.
///
/// ```text
/// memcg     1 /
///  node     0
///           0     325480       1240          0
///           1     300120          3      10233
/// ```
pub fn parse(text: &str) -> Parsed<Vec<List>> {
    let mut lists = Vec::<List>::new();
    let mut group = None;
    for (index, line) in text.lines().enumerate() {
        let fail = |what: &str| Fault::new(index + 1, format!("`{}` {what}", clip(line)));
        let trimmed = line.trim_start();
        if let Some(rest) = trimmed.strip_prefix("memcg ") {
            let rest = rest.trim_start();
            // The path may hold spaces itself, or be missing.
            let (id, path) = rest.split_once(' ').unwrap_or((rest, ""));
            let id: u64 = id.parse().map_err(|_| fail("has no number of a group"))?;
            group = Some((id, path.to_owned()));
            continue;
        }
        if let Some(number) = trimmed.strip_prefix("node ") {
            let number = number.trim().parse();
            let node = number.map_err(|_| fail("has no number of a node"))?;
            let (group_id, path) = group.clone().ok_or_else(|| fail("is of no group"))?;
            lists.push(List {
                group_id,
                group: path,
                node: NodeId(node),
                generations: Vec::new(),
            });
            continue;
        }
        // The kernel marks what a generation has lost with an x.
        let numbers: Option<Vec<u64>> = trimmed
            .split_whitespace()
            .map(|word| word.trim_end_matches('x').parse().ok())
            .collect();
        let Some([number, age_ms, anonymous_pages, file_pages]) = numbers.as_deref() else {
            return Err(fail("is not a generation, its age and its pages"));
        };
        let list = lists.last_mut().ok_or_else(|| fail("is of no node"))?;
        let last = list.generations.last();
        if last.is_some_and(|last| last.number >= *number) {
            return Err(fail("is not above the generation before it"));
        }
        list.generations.push(Generation {
            number: *number,
            age_ms: *age_ms,
            anonymous_pages: *anonymous_pages,
            file_pages: *file_pages,
        });
    }
    Ok(lists)
}

/// Does the kernel tell generations here?
///
/// # Errors
/// It has none, they are switched off, or the file is not to be seen.
pub fn check(root: &Root) -> Result<()> {
    let fail = |reason: &str, remedy: &str| Err(Error::new(root.path(FILE), reason, remedy));
    let Some(enabled) = root.text_if_any(ENABLED)? else {
        return fail(
            "this kernel has no multi-generational LRU",
            "use a kernel with CONFIG_LRU_GEN",
        );
    };
    let bits = enabled.trim().trim_start_matches("0x");
    if u64::from_str_radix(bits, 16).is_ok_and(|bits| bits & 1 == 0) {
        return fail(
            "the multi-generational LRU is switched off",
            "write y to /sys/kernel/mm/lru_gen/enabled",
        );
    }
    if root.is_host() && sys::effective_uid() != 0 {
        return fail("generations are told to root alone", "run hither as root");
    }
    if !root.has(FILE) {
        return fail(
            "is not to be seen",
            "mount debugfs (mount -t debugfs debugfs /sys/kernel/debug); the kernel must have it",
        );
    }
    Ok(())
}

/// All lists.
///
/// # Errors
/// As [`check`], or the file is not what the kernel prints.
pub fn read(root: &Root) -> Result<Vec<List>> {
    check(root)?;
    let path = root.path(FILE);
    let mut bytes = Vec::new();
    File::open(&path)
        .and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes))
        .map_err(|error| {
            let reason = format!("cannot be read ({error})");
            Error::io(&path, reason, filter::as_root("SYS_ADMIN"), error)
        })?;
    // Names of groups may be in any encoding.
    parse(&text(&bytes)).map_err(|fault| fault.at(&path, FORMAT_REMEDY))
}

/// The lists of a process's control group, or of the closest above it that has lists of its own.
#[must_use]
pub fn of_group<'a>(lists: &'a [List], group: &str) -> Vec<&'a List> {
    let mut group = group.trim_end_matches('/');
    loop {
        let name = if group.is_empty() { "/" } else { group };
        let found: Vec<&List> = lists.iter().filter(|list| list.group == name).collect();
        match group.rsplit_once('/') {
            Some((above, _)) if found.is_empty() => group = above,
            _ => return found,
        }
    }
}

/// Has the kernel begin a new generation of each list that has pages. It walks the page tables of
/// all their processes meanwhile, on this thread's CPU time.
///
/// # Errors
/// The file cannot be written to.
pub fn age(root: &Root, lists: &[List]) -> Result<()> {
    let path = root.path(FILE);
    let fail = |error: io::Error| {
        let reason = format!("no generation can be asked for ({error})");
        let remedy = "run hither as root; a kernel that is locked down does not let anybody";
        Error::io(&path, reason, remedy, error)
    };
    let mut file = OpenOptions::new().write(true).open(&path).map_err(fail)?;
    for list in lists.iter().filter(|list| list.page_count() > 0) {
        let Some(command) = command(list) else {
            continue;
        };
        match file.write_all(command.as_bytes()) {
            Ok(()) => {}
            // The group has gone since, or somebody else has begun a generation.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINVAL | libc::ENOENT | libc::ESRCH | libc::ERANGE)
                ) => {}
            Err(error) => return Err(fail(error)),
        }
    }
    Ok(())
}

/// Ages anonymous pages, too, whether there is swap or not (first 1), and looks at all page tables,
/// also where four generations exist, of which the two oldest become one (second 1).
fn command(list: &List) -> Option<String> {
    let youngest = list.generations.last()?;
    let (group, node, number) = (list.group_id, list.node.0, youngest.number);
    Some(format!("+ {group} {node} {number} 1 1\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "\
memcg     1 /
 node     0
          0     325480       1240          0 
          1     300120          3      10233 
 node     1
          7        900        100         20 
memcg    71 /user.slice/a b
 node     0
          2      14000       2048          4 
          3       1500        512          0 
 node     1
";

    fn put(folder: &tempfile::TempDir, below: &str, text: &str) {
        let path = folder.path().join(below);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn generations_are_read_by_group_and_node() {
        let lists = parse(TEXT).unwrap();
        let seen: Vec<_> = lists
            .iter()
            .map(|list| {
                (
                    list.group_id,
                    &list.group[..],
                    list.node.0,
                    list.page_count(),
                )
            })
            .collect();
        let name = "/user.slice/a b";
        assert_eq!(
            seen,
            [
                (1, "/", 0, 11_476),
                (1, "/", 1, 120),
                (71, name, 0, 2564),
                (71, name, 1, 0)
            ]
        );
        assert_eq!(
            lists[2].generations[1],
            Generation {
                number: 3,
                age_ms: 1500,
                anonymous_pages: 512,
                file_pages: 0,
            }
        );
        // Without memory groups; with marks of what was lost, as in lru_gen_full.
        let lists = parse("memcg     0 \n node     0\n 4 10 5x 6x\n").unwrap();
        assert_eq!((&lists[0].group[..], lists[0].page_count()), ("", 11));
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn pages_are_classed_by_the_age_of_their_generation() {
        let lists = parse(TEXT).unwrap();
        let ages = Ages::of(lists.iter());
        assert_eq!(ages.anonymous_pages, [612, 2048, 0, 1243, 0, 0]);
        assert_eq!(ages.file_pages, [20, 4, 0, 10_233, 0, 0]);
        assert_eq!(ages.pages(1), 2052);
        // A limit belongs to its class; the last has none.
        let at = |age_ms: u64| format!("memcg 1 /\n node 0\n 1 {age_ms} 1 0\n");
        for (age_ms, class) in [(0, 0), (2000, 0), (2001, 1), (7_200_001, 5), (u64::MAX, 5)] {
            let lists = parse(&at(age_ms)).unwrap();
            assert_eq!(Ages::of(lists.iter()).pages(class), 1, "{age_ms}");
        }
    }

    #[test]
    fn the_group_of_a_process_may_be_the_one_above() {
        let lists = parse(TEXT).unwrap();
        let id = |group: &str| of_group(&lists, group).first().map(|list| list.group_id);
        assert_eq!(id("/user.slice/a b"), Some(71));
        assert_eq!(id("/user.slice/a b/without/memory"), Some(71));
        assert_eq!(id("/user.slice"), Some(1));
        assert_eq!((id("/"), id("")), (Some(1), Some(1)));
        assert!(of_group(&[], "/x").is_empty());
    }

    #[test]
    fn malformed_texts_are_named() {
        for (bad, line, what) in [
            (" node 0\n", 1, "of no group"),
            ("memcg x /\n", 1, "no number of a group"),
            ("memcg 1 /\n node -1\n", 2, "no number of a node"),
            ("memcg 1 /\n 1 2 3 4\n", 2, "of no node"),
            ("memcg 1 /\n node 0\n 1 2 3\n", 3, "not a generation"),
            ("memcg 1 /\n node 0\n 1 2 3 4 5\n", 3, "not a generation"),
            ("memcg 1 /\n node 0\n\n", 3, "not a generation"),
            ("memcg 1 /\n node 0\n 1 2 3 -4\n", 3, "not a generation"),
            ("memcg 1 /\n node 0\n 2 1 0 0\n 2 0 0 0\n", 4, "not above"),
        ] {
            let fault = parse(bad).unwrap_err();
            assert_eq!(fault.line, line, "{bad}");
            assert!(fault.reason.contains(what), "{bad}: {}", fault.reason);
        }
    }

    #[test]
    fn each_reason_has_its_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        let remedy = || read(&root).unwrap_err().remedy;
        assert!(remedy().contains("CONFIG_LRU_GEN"));
        put(&folder, ENABLED, "0x0000\n");
        assert!(remedy().contains("write y"));
        // Without its lowest bit the others mean nothing.
        put(&folder, ENABLED, "0x0006\n");
        assert!(remedy().contains("write y"));
        put(&folder, ENABLED, "0x0007\n");
        assert!(remedy().contains("mount debugfs"));
        put(&folder, FILE, "memcg 1 /\n what\n");
        let error = read(&root).unwrap_err();
        assert!(
            error.line == Some(2) && error.remedy.contains("report"),
            "{error}"
        );
        put(&folder, FILE, TEXT);
        assert_eq!(read(&root).unwrap().len(), 4);
    }

    #[test]
    fn aging_asks_for_new_generations_and_never_to_evict() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        let lists = parse(TEXT).unwrap();
        let error = age(&root, &lists).unwrap_err();
        assert!(
            error.reason.contains("no generation can be asked for"),
            "{error}"
        );
        put(&folder, FILE, "");
        age(&root, &lists).unwrap();
        let asked = std::fs::read_to_string(root.path(FILE)).unwrap();
        // The last list has no pages.
        assert_eq!(asked, "+ 1 0 1 1 1\n+ 1 1 7 1 1\n+ 71 0 3 1 1\n");
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read(
            lists in prop::collection::vec((any::<u64>(), "[ -~]{0,20}", 0u32..1024,
                prop::collection::vec((any::<u32>(), any::<u64>(), any::<u64>()), 0..5)), 0..6),
        ) {
            let mut text = String::new();
            for (id, group, node, generations) in &lists {
                text += &format!("memcg {id:5} /{group}\n node {node:5}\n");
                for (number, (age, anonymous, file)) in generations.iter().enumerate() {
                    text += &format!(" {number:10} {age:10} {anonymous:10}  {file:10} \n");
                }
            }
            let read = parse(&text).unwrap();
            prop_assert_eq!(read.len(), lists.len());
            for (list, (id, group, node, generations)) in read.iter().zip(&lists) {
                prop_assert_eq!((list.group_id, list.node.0), (*id, *node));
                prop_assert_eq!(&list.group, &format!("/{group}"));
                let seen = list.generations.iter();
                let seen = seen.map(|g| (g.age_ms as u32, g.anonymous_pages, g.file_pages));
                prop_assert_eq!(seen.collect::<Vec<_>>(), generations.clone());
            }
            // Sums of whatever the kernel prints stay in their range.
            let _ = Ages::of(read.iter());
        }

        #[test]
        fn damaged_texts_are_an_error_or_hold_together(
            cuts in prop::collection::vec((0..TEXT.len(), 0usize..9, "[ -~\n]{0,6}"), 1..6),
        ) {
            let mut text = TEXT.to_owned();
            for (at, length, put) in &cuts {
                let at = (*at).min(text.len());
                let end = (at + length).min(text.len());
                text.replace_range(at..end, put);
            }
            match parse(&text) {
                Err(fault) => prop_assert!(fault.line >= 1 && fault.reason.len() < 1000),
                Ok(lists) => for list in lists {
                    let numbers = list.generations.windows(2);
                    prop_assert!(numbers.into_iter().all(|two| two[0].number < two[1].number));
                },
            }
        }
    }
}
