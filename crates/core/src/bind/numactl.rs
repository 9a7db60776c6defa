//! Lists of nodes and CPUs as numactl reads them (its manual, and what its version 2.0.16 does).
//!
//! ```text
//! nodes = "all" | [ "!" ] [ "+" ] range { "," range } | PLACE
//! range = number [ "-" number ]
//! ```
//!
//! `+` counts from 0 among what the process may use; `!` means all that it may use but these.
//! Numbers may be hexadecimal or octal, as in C. An empty list is one of nothing.

use crate::set::{IdSet, Numbered};

/// Reads a list. `usable` is what may be named; `place` finds what a name of a device stands for
/// (`netdev:eth0`), or says why it cannot.
///
/// # Errors
/// What is wrong, with what there is, without a full stop.
pub fn parse<T: Numbered>(
    text: &str,
    usable: &IdSet<T>,
    place: impl FnOnce(&str) -> Result<T, String>,
) -> Result<IdSet<T>, String> {
    if text.is_empty() {
        return Ok(IdSet::new());
    }
    let (is_inverted, rest) = strip(text, '!');
    let (is_relative, rest) = strip(rest, '+');
    let named: IdSet<T> = if rest == "all" {
        usable.clone()
    } else if rest.starts_with(|letter: char| letter.is_ascii_alphabetic()) {
        let found = place(rest).map_err(|why| format!("`{text}`: {why}"))?;
        [found].into_iter().collect()
    } else {
        let mut named = IdSet::new();
        for range in rest.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let bound = |number| {
                bound(number, usable, is_relative).map_err(|why| format!("`{text}`: {why}"))
            };
            let (first, last) = (bound(first)?, bound(last)?);
            // As numactl, which skips what may not be used between two that may.
            for id in usable.iter().filter(|id| (first..=last).contains(id)) {
                named.insert(id);
            }
        }
        named
    };
    Ok(match is_inverted {
        true => usable.difference(&named),
        false => named,
    })
}

fn strip(text: &str, sign: char) -> (bool, &str) {
    text.strip_prefix(sign)
        .map_or((false, text), |rest| (true, rest))
}

/// One number of what may be used.
fn bound<T: Numbered>(text: &str, usable: &IdSet<T>, is_relative: bool) -> Result<T, String> {
    let number = number(text)
        .ok_or_else(|| format!("`{text}` is no number; lists are as in 0,2-3, +0-1, !1 and all"))?;
    let found = match is_relative {
        true => usable.iter().nth(number as usize),
        false => usable.iter().find(|id| id.number() == number),
    };
    found.ok_or_else(|| match is_relative {
        true => format!(
            "+{number} is more than there is: {} may be used, counted from 0",
            usable.len()
        ),
        false => format!("{number} is not there or may not be used; {usable} may"),
    })
}

/// Decimal, `0x` hexadecimal, or octal with a leading 0.
fn number(text: &str) -> Option<u32> {
    let is_digits = |text: &str| text.chars().all(|letter| letter.is_ascii_hexdigit());
    if !is_digits(text.strip_prefix("0x").unwrap_or(text)) {
        return None;
    }
    match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(digits), _) => u32::from_str_radix(digits, 16).ok(),
        (None, Some("")) => Some(0),
        (None, Some(digits)) => u32::from_str_radix(digits, 8).ok(),
        (None, None) => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;
    use crate::set::NodeSet;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<String, String> {
        let usable: NodeSet = "0,2-3,8".parse().unwrap();
        let place = |name: &str| match name {
            "netdev:eth0" => Ok(NodeId(8)),
            _ => Err("no such device".to_owned()),
        };
        parse(text, &usable, place).map(|set| set.to_string())
    }

    #[test]
    fn lists_are_read_as_numactl_reads_them() {
        for (text, expected) in [
            ("all", "0,2-3,8"),
            ("0", "0"),
            ("2,8", "2,8"),
            ("0-8", "0,2-3,8"),
            ("0-2,8", "0,2,8"),
            ("+0-1,3", "0,2,8"),
            ("+0,1", "0,2"),
            ("!0", "2-3,8"),
            ("!+0", "2-3,8"),
            ("!all", ""),
            ("0x3", "3"),
            ("010", "8"),
            ("netdev:eth0", "8"),
            ("!netdev:eth0", "0,2-3"),
            ("", ""),
            ("8-0", ""),
        ] {
            assert_eq!(read(text).as_deref(), Ok(expected), "{text}");
        }
        for (text, part) in [
            ("1", "1 is not there"),
            ("0-4", "4 is not there"),
            ("+4", "more than there is"),
            ("0,", "`` is no number"),
            ("-1", "`` is no number"),
            ("0 2", "no number"),
            ("0--2", "no number"),
            ("99999999999", "no number"),
            ("block:sda", "no such device"),
            ("nowhere", "no such device"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_nothing_unusable_is_named(text in "[!+]?[0-9a-fx,+!-]{0,12}") {
            let usable: NodeSet = "0,2-3,8".parse().unwrap();
            if let Ok(named) = parse(&text, &usable, |_| Err(String::new())) {
                prop_assert!(named.is_subset(&usable));
            }
        }
    }
}
