//! Parsers for the small texts that sysfs and procfs print: pure, text to type.

use crate::error::Fault;
use hither_core::set::{IdSet, Numbered};
use hither_core::snapshot::available;
use std::borrow::Cow;
use std::ops::Range;

/// Result of a parser.
pub type Parsed<T> = Result<T, Fault>;

/// Bytes as text; names of files and groups may be in any encoding, and what is not UTF-8 is replaced. Most
/// of it is UTF-8, which is checked first: that is quick, while to replace looks at each byte.
pub fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(bytes),
    }
}

/// One number alone on its line.
///
/// ```text
/// 4417740
/// ```
pub fn number(text: &str) -> Parsed<u64> {
    let trimmed = text.trim();
    trimmed
        .parse()
        .map_err(|_| Fault::new(1, format!("`{}` is no number", clip(trimmed))))
}

/// One number that may be negative: `physical_package_id` is -1 where firmware names none.
pub fn signed(text: &str) -> Parsed<i64> {
    let trimmed = text.trim();
    trimmed
        .parse()
        .map_err(|_| Fault::new(1, format!("`{}` is no number", clip(trimmed))))
}

/// One hexadecimal number, as PCI's ids are printed.
///
/// ```text
/// 0x030200
/// ```
pub fn prefixed_hex(text: &str) -> Parsed<u64> {
    let trimmed = text.trim();
    let digits = trimmed.strip_prefix("0x");
    digits
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| Fault::new(1, format!("`{}` is no number like 0x10de", clip(trimmed))))
}

/// Physical addresses of the memory that Linux uses: `System RAM` of `/proc/iomem`. None for users
/// to whom the kernel shows zeros.
///
/// ```text
/// 00100000-7ffdefff : System RAM
///   01000000-0216f05f : Kernel code
/// ```
pub fn system_memory(text: &str) -> Parsed<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(range) = line.strip_suffix(" : System RAM") else {
            continue;
        };
        let fail = || Fault::new(index + 1, format!("`{}` is not understood", clip(line)));
        let hex = |word: &str| u64::from_str_radix(word.trim(), 16).ok();
        let (first, last) = range
            .split_once('-')
            .and_then(|(first, last)| Some((hex(first)?, hex(last)?)))
            .ok_or_else(fail)?;
        let end = last.checked_add(1).ok_or_else(fail)?;
        if first < last {
            ranges.push(first..end);
        }
    }
    Ok(ranges)
}

/// A list of CPUs or nodes.
///
/// ```text
/// 0-3,8,10-11
/// ```
pub fn list<T: Numbered>(text: &str) -> Parsed<IdSet<T>> {
    text.trim()
        .parse()
        .map_err(|error: hither_core::set::ListError| {
            Fault::new(
                1,
                format!(
                    "`{}` is not a list like `0-3,8`: {}",
                    clip(text.trim()),
                    clip(&error.reason)
                ),
            )
        })
}

/// Distances from one node to every online node, in the order of their numbers.
///
/// ```text
/// 10 21 21 31
/// ```
pub fn distances(text: &str) -> Parsed<Vec<u32>> {
    text.split_whitespace()
        .map(|word| match word.parse::<u32>() {
            // ACPI 6.5, 5.2.17: one byte each, 0 to 9 reserved, 255 unreachable.
            Ok(distance) if (10..=255).contains(&distance) => Ok(distance),
            Ok(distance) => Err(Fault::new(
                1,
                format!("distance {distance} is not in 10 to 255"),
            )),
            Err(_) => Err(Fault::new(1, format!("`{}` is no distance", clip(word)))),
        })
        .collect()
}

/// A cache size in KiB.
///
/// ```text
/// 491520K
/// ```
pub fn cache_size_kb(text: &str) -> Parsed<u64> {
    let trimmed = text.trim();
    let (digits, factor) = match trimmed.as_bytes().last() {
        Some(b'K') => (&trimmed[..trimmed.len() - 1], 1),
        Some(b'M') => (&trimmed[..trimmed.len() - 1], 1024),
        _ => (trimmed, 0),
    };
    match digits
        .parse::<u64>()
        .ok()
        .and_then(|size| size.checked_mul(factor))
    {
        Some(size_kb) if factor > 0 && size_kb < 1 << 40 => Ok(size_kb),
        _ => Err(Fault::new(
            1,
            format!("`{}` is no cache size like `512K`", clip(trimmed)),
        )),
    }
}

/// Which of several words is chosen.
///
/// ```text
/// always [madvise] never
/// ```
pub fn chosen(text: &str) -> Parsed<String> {
    text.split_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
        .map(str::to_owned)
        .ok_or_else(|| {
            Fault::new(
                1,
                format!("`{}` has no choice in brackets", clip(text.trim())),
            )
        })
}

/// Memory of one node, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeMemory {
    /// All memory that the kernel manages there.
    pub total_kb: u64,
    /// Not used for anything.
    pub free_kb: u64,
    /// Anonymous pages.
    pub anonymous_kb: u64,
    /// Page cache, shared memory included.
    pub file_kb: u64,
    /// Page cache without shared memory, which is taken back without swap.
    pub cache_kb: u64,
}

impl NodeMemory {
    /// What it can give, [`available`].
    #[must_use]
    pub fn available_kb(&self) -> u64 {
        available(self.free_kb, self.cache_kb)
    }
}

/// A node's `meminfo`.
///
/// ```text
/// Node 0 MemTotal:        4417740 kB
/// Node 0 MemFree:         4139112 kB
/// Node 0 HugePages_Total:     0
/// ```
pub fn node_meminfo(text: &str, node: u32) -> Parsed<NodeMemory> {
    let prefix = format!("Node {node} ");
    let (mut total, mut free) = (None, None);
    let mut memory = NodeMemory::default();
    for (index, line) in text.lines().enumerate() {
        let fail = |reason: &str| Fault::new(index + 1, format!("`{}` {reason}", clip(line)));
        // Most lines are of no interest, and there are many: they are told by their key alone.
        let Some(rest) = line.strip_prefix(&prefix) else {
            match line.split_whitespace().next() {
                None => continue,
                Some("Node") => return Err(fail(&format!("is not about node{node}"))),
                Some(_) => return Err(fail("does not begin with `Node`")),
            }
        };
        let Some((
            key @ ("MemTotal" | "MemFree" | "AnonPages" | "FilePages" | "Active(file)"
            | "Inactive(file)"),
            size,
        )) = rest.split_once(':')
        else {
            continue;
        };
        let mut words = size.split_whitespace();
        let value = words
            .next()
            .and_then(|word| word.parse::<u64>().ok())
            .filter(|&value| words.next() == Some("kB") && value < 1 << 50)
            .ok_or_else(|| fail("has no size in kB"))?;
        match key {
            "MemTotal" => total = Some(value),
            "MemFree" => free = Some(value),
            "AnonPages" => memory.anonymous_kb = value,
            "Active(file)" | "Inactive(file)" => memory.cache_kb += value,
            _ => memory.file_kb = value,
        }
    }
    let fail = |reason: &str| Fault::new(text.lines().count().max(1), reason);
    memory.total_kb = total.ok_or_else(|| fail("has no line `MemTotal`"))?;
    memory.free_kb = free.ok_or_else(|| fail("has no line `MemFree`"))?;
    if memory.free_kb > memory.total_kb {
        return Err(fail("has more free memory than memory"));
    }
    Ok(memory)
}

/// `MemTotal` and `MemFree` of `/proc/meminfo`, for kernels without nodes.
///
/// ```text
/// MemTotal:        4417740 kB
/// ```
pub fn proc_meminfo(text: &str) -> Parsed<NodeMemory> {
    let mut memory = NodeMemory::default();
    for (index, line) in text.lines().enumerate() {
        let slot = match line.split_once(':') {
            Some(("MemTotal", rest)) => (&mut memory.total_kb, rest),
            Some(("MemFree", rest)) => (&mut memory.free_kb, rest),
            _ => continue,
        };
        let digits = slot.1.trim().trim_end_matches("kB").trim();
        *slot.0 = digits
            .parse()
            .map_err(|_| Fault::new(index + 1, format!("`{}` has no size in kB", clip(line))))?;
    }
    Ok(memory)
}

/// `prefixNkB` as N, for folders like `hugepages-2048kB`.
#[must_use]
pub fn kilobyte_folder(name: &str, prefix: &str) -> Option<u64> {
    name.strip_prefix(prefix)?.strip_suffix("kB")?.parse().ok()
}

/// At most 60 characters of a text that goes into a message, control characters escaped.
#[must_use]
pub fn clip(text: &str) -> String {
    let mut clipped: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    if text.chars().nth(60).is_some() {
        clipped.push_str("...");
    }
    clipped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_found_among_devices() {
        let text = "00000000-00000fff : Reserved\n00100000-7ffdefff : System RAM\n\
                    \x20 01000000-0216f05f : Kernel code\n100000000-17fffffff : System RAM\n";
        let ranges = [0x10_0000..0x7ffd_f000, 0x1_0000_0000..0x1_8000_0000];
        assert_eq!(system_memory(text).unwrap(), ranges);
        assert!(
            system_memory("00000000-00000000 : System RAM\n")
                .unwrap()
                .is_empty()
        );
        for bad in ["x-1", "1", "1-ffffffffffffffff", "-"] {
            assert!(
                system_memory(&format!("{bad} : System RAM")).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn meminfo_reads_the_kernels_lines() {
        let text = "Node 2 MemTotal:  100 kB\nNode 2 MemFree: 40 kB\nNode 2 AnonPages: 7 kB\nNode 2 HugePages_Total: 0\n";
        let memory = node_meminfo(text, 2).unwrap();
        assert_eq!(
            (memory.total_kb, memory.free_kb, memory.anonymous_kb),
            (100, 40, 7)
        );
        assert_eq!(node_meminfo(text, 3).unwrap_err().line, 1);
    }

    #[test]
    fn meminfo_names_the_line() {
        let fault = node_meminfo("Node 0 MemTotal: 5 kB\nNode 0 MemFree: x kB\n", 0).unwrap_err();
        assert_eq!(
            (fault.line, fault.reason.as_str()),
            (2, "`Node 0 MemFree: x kB` has no size in kB")
        );
        assert!(node_meminfo("", 0).unwrap_err().reason.contains("MemTotal"));
    }

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(cache_size_kb("491520K\n").unwrap(), 491_520);
        assert_eq!(cache_size_kb("2M").unwrap(), 2048);
        for bad in [
            "",
            "K",
            "12",
            "-1K",
            "99999999999999999999K",
            "18446744073709551615M",
        ] {
            assert!(cache_size_kb(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hexadecimal_numbers_have_their_prefix() {
        assert_eq!(prefixed_hex("0x030200\n").unwrap(), 0x03_0200);
        for bad in ["", "0x", "030200", "0xg", "-0x1", "0x11112222333344445"] {
            assert!(prefixed_hex(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn distances_are_one_byte_from_ten() {
        assert_eq!(distances("10 21\n").unwrap(), [10, 21]);
        for bad in ["9", "256", "ten", "10,20"] {
            assert!(distances(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn long_and_strange_texts_are_clipped() {
        assert_eq!(clip("a\u{7}b"), "a\\u{7}b");
        assert!(clip(&"x".repeat(100)).ends_with("..."));
    }
}
