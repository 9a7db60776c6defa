//! Which part of a process: its mappings, chosen by address or by name, cut to what was asked for.

use anyhow::bail;
use hither_core::foreign::Foreign;
use hither_linux::sys::OwnMapping;
use std::fmt;
use std::ops::Range;

/// User addresses end here, in pages: at 2^47 on x86-64, where five-level tables are used only when
/// asked for. `[vsyscall]` lies beyond.
pub const USER_END_PAGE: u64 = (1 << 47) >> 12;
/// Mappings that hold the kernel's own pages, which nobody can move.
pub const KERNELS_OWN: [&str; 5] = [
    "[vvar]",
    "[vvar_vclock]",
    "[vdso]",
    "[vsyscall]",
    "[uprobes]",
];
/// Names that are listed where none matches.
const MOST_NAMES: usize = 8;

/// A range of addresses as a person gives it: whole pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked(pub Range<u64>);

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", addresses(&self.0))
    }
}

/// Page numbers as the addresses that `/proc/PID/maps` prints.
#[must_use]
pub fn addresses(pages: &Range<u64>) -> String {
    format!("{:08x}-{:08x}", pages.start << 12, pages.end << 12)
}

/// Reads `A-B`, hexadecimal, as `/proc/PID/maps` prints it; `0x` may be there.
pub fn parse_range(text: &str) -> Result<Asked, String> {
    let number = |text: &str| {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        u64::from_str_radix(digits, 16).ok()
    };
    let both = text.split_once('-');
    let Some((start, end)) = both.and_then(|(start, end)| Some((number(start)?, number(end)?)))
    else {
        return Err("write START-END in hexadecimal, as /proc/PID/maps prints it".to_owned());
    };
    for address in [start, end] {
        if !address.is_multiple_of(4096) {
            let (below, above) = (address & !4095, (address | 4095).wrapping_add(1));
            return Err(format!(
                "{address:x} is not page aligned (4096 bytes): use {below:x} or {above:x}"
            ));
        }
    }
    if start >= end {
        return Err(format!(
            "{end:x} is not above {start:x}: the end is exclusive"
        ));
    }
    Ok(Asked(start >> 12..end >> 12))
}

/// What to take of a process.
#[derive(Clone, Debug)]
pub enum Selection<'a> {
    /// Every mapping.
    Everything,
    /// These addresses.
    Ranges(&'a [Asked]),
    /// Mappings with these names.
    Names(&'a [String]),
}

/// The selected mappings, cut to the addresses asked for, ascending.
///
/// # Errors
/// Nothing matches a range or a name: with a few that would.
pub fn select(
    mappings: &[OwnMapping],
    selection: &Selection<'_>,
) -> anyhow::Result<Vec<OwnMapping>> {
    let user = || mappings.iter().filter(|m| m.pages().end <= USER_END_PAGE);
    let chosen: Vec<OwnMapping> = match selection {
        Selection::Everything => user()
            .filter(|mapping| !KERNELS_OWN.contains(&mapping.name.as_str()))
            .cloned()
            .collect(),
        Selection::Names(names) => {
            for name in *names {
                if !user().any(|mapping| is_named(mapping, name)) {
                    bail!(
                        "--mapping {name}: no mapping of the process has that name; there are {}",
                        few_names(user())
                    );
                }
            }
            let any = |mapping: &&OwnMapping| names.iter().any(|name| is_named(mapping, name));
            user().filter(any).cloned().collect()
        }
        Selection::Ranges(ranges) => {
            let mut chosen = Vec::new();
            for asked in merged(ranges) {
                let before = chosen.len();
                chosen.extend(user().filter_map(|mapping| cut(mapping, &asked)));
                if chosen.len() == before {
                    bail!(
                        "--range {}: nothing is mapped there; {}",
                        addresses(&asked),
                        neighbours(user(), &asked)
                    );
                }
            }
            chosen
        }
    };
    Ok(chosen)
}

/// Is this what a person calls the mapping? `[anon]` is memory without a file, named or not;
/// another word in brackets is the whole name or a name given by `prctl(PR_SET_VMA)`; anything
/// else is a part of a path or of such a name.
fn is_named(mapping: &OwnMapping, name: &str) -> bool {
    let given = mapping
        .name
        .strip_prefix("[anon:")
        .and_then(|rest| rest.strip_suffix(']'));
    match name {
        "" => false,
        "[anon]" => mapping.name.is_empty() || given.is_some(),
        _ if name.starts_with('[') => mapping.name == name,
        _ => match given {
            Some(given) => given.contains(name),
            None => mapping.name.starts_with('/') && mapping.name.contains(name),
        },
    }
}

/// Overlapping ranges as one, so that no page is counted twice.
fn merged(ranges: &[Asked]) -> Vec<Range<u64>> {
    let mut sorted: Vec<Range<u64>> = ranges.iter().map(|asked| asked.0.clone()).collect();
    sorted.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

fn cut(mapping: &OwnMapping, asked: &Range<u64>) -> Option<OwnMapping> {
    let pages = mapping.pages();
    let pages = pages.start.max(asked.start)..pages.end.min(asked.end);
    (pages.start < pages.end).then(|| OwnMapping {
        range: pages.start << 12..pages.end << 12,
        ..mapping.clone()
    })
}

/// A few different names, the plain ones of paths last parts only.
fn few_names<'a>(mappings: impl Iterator<Item = &'a OwnMapping>) -> String {
    let mut names: Vec<&str> = Vec::new();
    for mapping in mappings {
        let name = match mapping.name.as_str() {
            "" => "[anon]",
            name => name,
        };
        if !names.contains(&name) && !KERNELS_OWN.contains(&name) {
            names.push(name);
        }
    }
    // Words in brackets first: they are what is usually meant.
    names.sort_by_key(|name| !name.starts_with('['));
    let more = names.len().saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    let mut text = names.join(", ").shown().to_string();
    if more > 0 {
        text.push_str(&format!(" and {more} more (/proc/PID/maps)"));
    }
    text
}

/// The mappings below and above a range that meets none.
#[must_use]
pub fn neighbours<'a>(
    mappings: impl Iterator<Item = &'a OwnMapping> + Clone,
    asked: &Range<u64>,
) -> String {
    let below = mappings
        .clone()
        .filter(|m| m.pages().end <= asked.start)
        .last();
    let above = mappings.clone().find(|m| m.pages().start >= asked.end);
    let near: Vec<String> = [below, above]
        .into_iter()
        .flatten()
        .map(|mapping| addresses(&mapping.pages()))
        .collect();
    match near.is_empty() {
        true => "the process has no memory".to_owned(),
        false => format!("the nearest mappings are {}", near.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_linux::proc::maps;

    const TEXT: &str = "\
00400000-00402000 r-xp 00000000 08:01 7                        /usr/bin/app
00500000-00510000 rw-p 00000000 00:00 0                        [heap]
7f0000000000-7f0000010000 rw-p 00000000 00:00 0
7f0000020000-7f0000030000 rw-p 00000000 00:00 0                [anon:cache]
7f0000040000-7f0000050000 r--p 00000000 08:01 9                /usr/lib/libc.so.6
7ffff0000000-7ffff0002000 r-xp 00000000 00:00 0                [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0        [vsyscall]
";

    fn names(selection: &Selection<'_>) -> Result<Vec<String>, String> {
        select(&maps::parse(TEXT).unwrap(), selection)
            .map(|found| found.iter().map(|m| addresses(&m.pages())).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn ranges_are_whole_pages() {
        let asked = parse_range("7f0000000000-0x7f0000002000").unwrap();
        assert_eq!(asked.0, 0x7_f000_0000..0x7_f000_0002);
        assert_eq!(asked.to_string(), "7f0000000000-7f0000002000");
        for (bad, part) in [
            ("", "hexadecimal"),
            ("1000", "hexadecimal"),
            ("1000-", "hexadecimal"),
            ("g000-h000", "hexadecimal"),
            ("-1000-2000", "hexadecimal"),
            (
                "1000-2001",
                "2001 is not page aligned (4096 bytes): use 2000 or 3000",
            ),
            ("1800-3000", "use 1000 or 2000"),
            ("2000-2000", "is not above"),
            ("3000-2000", "is not above"),
            ("0-ffffffffffffffffff", "hexadecimal"),
        ] {
            let error = parse_range(bad).unwrap_err();
            assert!(error.contains(part), "{bad}: {error}");
        }
    }

    #[test]
    fn names_are_words_in_brackets_or_parts() {
        let named = |name: &str| names(&Selection::Names(&[name.to_owned()]));
        assert_eq!(named("[heap]").unwrap(), ["00500000-00510000"]);
        assert_eq!(named("libc").unwrap(), ["7f0000040000-7f0000050000"]);
        assert_eq!(named("/usr/").unwrap().len(), 2);
        assert_eq!(named("cache").unwrap(), ["7f0000020000-7f0000030000"]);
        assert_eq!(named("[anon:cache]").unwrap().len(), 1);
        assert_eq!(named("[anon]").unwrap().len(), 2);
        for missing in ["", "heap", "nothing", "[hea", "[vsyscall]"] {
            let error = named(missing).unwrap_err();
            assert!(
                error.contains("there are [heap], [anon], [anon:cache], /usr/bin/app"),
                "{error}"
            );
        }
    }

    #[test]
    fn everything_is_without_the_kernels_own() {
        assert_eq!(names(&Selection::Everything).unwrap().len(), 5);
    }

    #[test]
    fn mappings_are_cut_to_the_range() {
        let ranged = |texts: &[&str]| {
            let asked: Vec<Asked> = texts
                .iter()
                .map(|text| parse_range(text).unwrap())
                .collect();
            names(&Selection::Ranges(&asked))
        };
        assert_eq!(
            ranged(&["7f0000008000-7f0000028000"]).unwrap(),
            ["7f0000008000-7f0000010000", "7f0000020000-7f0000028000"]
        );
        // Twice the same pages are taken once.
        assert_eq!(
            ranged(&["502000-504000", "500000-503000"]).unwrap(),
            ["00500000-00504000"]
        );
        let error = ranged(&["600000-700000"]).unwrap_err();
        assert!(
            error.contains("00500000-00510000 and 7f0000000000-7f0000010000"),
            "{error}"
        );
    }
}
