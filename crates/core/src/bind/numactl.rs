//! Lists of nodes and CPUs as numactl reads them (its manual, and what its version 2.0.16 does).
//!
//! ```text
//! list   = "" | [ "!" ] [ "+" ] { range "," } ( "all" | PLACE | range )
//! range  = number [ "-" number ]
//! number = spaces [ "+" | "-" ] digits
//! ```
//!
//! `+` before the list counts from 0 among what the process may use; before a later number it is
//! that number's sign and says nothing, so `+0,+2` and `+0,2` are one list. `!` means all that the
//! machine has but these, as numactl, and the kernel takes away what the cpuset forbids. Numbers
//! may be hexadecimal or octal, as in C. An empty list is one of nothing.

use crate::set::{IdSet, Numbered};

/// What a list may be about.
#[derive(Clone, Copy, Debug)]
pub struct Nameable<'a, T: Numbered> {
    /// What may be named, is counted by `+`, and is meant by `all`.
    pub usable: &'a IdSet<T>,
    /// What there is: of this `!` leaves what is not named.
    pub present: &'a IdSet<T>,
}

/// Reads a list. `place` finds what a name of a device stands for (`netdev:eth0`), or says why it
/// cannot.
///
/// # Errors
/// What is wrong, with what there is, without a full stop.
pub fn parse<T: Numbered>(
    text: &str,
    nameable: Nameable<'_, T>,
    place: impl FnOnce(&str) -> Result<T, String>,
) -> Result<IdSet<T>, String> {
    if text.is_empty() {
        return Ok(IdSet::new());
    }
    let (is_inverted, rest) = strip(text, '!');
    let (is_relative, rest) = strip(rest, '+');
    let named = named(rest, nameable.usable, is_relative, place);
    let named = named.map_err(|why| format!("`{text}`: {why}"))?;
    Ok(match is_inverted {
        true => nameable.present.difference(&named),
        false => named,
    })
}

/// A list without the signs before it.
fn named<T: Numbered>(
    mut rest: &str,
    usable: &IdSet<T>,
    is_relative: bool,
    place: impl FnOnce(&str) -> Result<T, String>,
) -> Result<IdSet<T>, String> {
    let mut named = IdSet::new();
    let bound = |text| bound(text, usable, is_relative);
    loop {
        if rest == "all" {
            return Ok(usable.clone());
        }
        if rest.starts_with(|letter: char| letter.is_ascii_alphabetic()) {
            named.insert(place(rest)?);
            return Ok(named);
        }
        let (first, after) = bound(rest)?;
        named.insert(first);
        rest = after;
        if let Some(after) = rest.strip_prefix('-') {
            let (last, after) = bound(after)?;
            // As numactl, which skips what may not be used between two that may.
            for id in usable.iter().filter(|id| (first..=last).contains(id)) {
                named.insert(id);
            }
            rest = after;
        }
        if rest.is_empty() {
            return Ok(named);
        }
        let next = rest.strip_prefix(',');
        rest = next.ok_or_else(|| no_number(rest))?;
    }
}

fn strip(text: &str, sign: char) -> (bool, &str) {
    text.strip_prefix(sign)
        .map_or((false, text), |rest| (true, rest))
}

fn no_number(text: &str) -> String {
    format!("`{text}` is no number; lists are as in 0,2-3, +0-1, !1 and all")
}

/// One number of what may be used, and what follows it.
fn bound<'a, T: Numbered>(
    text: &'a str,
    usable: &IdSet<T>,
    is_relative: bool,
) -> Result<(T, &'a str), String> {
    let Some(Number {
        magnitude,
        is_negative,
        rest,
    }) = Number::read(text)
    else {
        return Err(no_number(text));
    };
    if is_negative && magnitude > 0 {
        return Err(format!(
            "-{magnitude} is no number of a node or a CPU: these begin at 0"
        ));
    }
    let found = match is_relative {
        true => usize::try_from(magnitude).map_or(None, |at| usable.iter().nth(at)),
        false => usable.iter().find(|id| u64::from(id.number()) == magnitude),
    };
    let found = found.ok_or_else(|| match is_relative {
        true => format!(
            "+{magnitude} is more than there is: {} may be used, counted from 0",
            usable.len()
        ),
        false => format!("{magnitude} is not there or may not be used; {usable} may"),
    })?;
    Ok((found, rest))
}

/// A number as C's `strtoul` reads it with base 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number<'a> {
    /// Without its sign; the largest there is where it is larger.
    pub magnitude: u64,
    /// Does `-` stand before it?
    pub is_negative: bool,
    /// What follows its last digit.
    pub rest: &'a str,
}

impl<'a> Number<'a> {
    /// Reads it: decimal, `0x` hexadecimal, or octal with a leading 0, after spaces and a sign.
    /// `None` where there is no digit.
    #[must_use]
    pub fn read(text: &'a str) -> Option<Self> {
        let text = text.trim_start_matches(|letter: char| letter.is_ascii_whitespace());
        let is_negative = text.starts_with('-');
        let text = text.strip_prefix(['+', '-']).unwrap_or(text);
        let hexadecimal = text.strip_prefix("0x").or(text.strip_prefix("0X"));
        let is_digit = |letter: char| letter.is_ascii_hexdigit();
        let (text, base) = match hexadecimal.filter(|digits| digits.starts_with(is_digit)) {
            Some(digits) => (digits, 16),
            None if text.starts_with('0') => (text, 8),
            None => (text, 10),
        };
        let end = text.find(|letter: char| !letter.is_digit(base));
        let (digits, rest) = text.split_at(end.unwrap_or(text.len()));
        let magnitude = match digits {
            "" => return None,
            // More than fits is all that can be wrong with digits.
            digits => u64::from_str_radix(digits, base).unwrap_or(u64::MAX),
        };
        Some(Self {
            magnitude,
            is_negative,
            rest,
        })
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
        let present: NodeSet = "0,2-3,8-9".parse().unwrap();
        let nameable = Nameable {
            usable: &usable,
            present: &present,
        };
        parse(text, nameable, place).map(|set| set.to_string())
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
            ("+0,+2", "0,3"),
            ("+0-+1,+3", "0,2,8"),
            ("0,+2", "0,2"),
            ("++1", "2"),
            ("!0", "2-3,8-9"),
            ("!+0", "2-3,8-9"),
            ("!+0,+2", "2,8-9"),
            ("!all", "9"),
            ("+all", "0,2-3,8"),
            ("0,all", "0,2-3,8"),
            ("0,netdev:eth0", "0,8"),
            (" 2, 3", "2-3"),
            ("-0", "0"),
            ("0X3", "3"),
            ("0x3", "3"),
            ("010", "8"),
            ("netdev:eth0", "8"),
            ("!netdev:eth0", "0,2-3,9"),
            ("", ""),
            ("8-0", "8"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(expected), "{text}");
        }
        for (text, part) in [
            ("1", "1 is not there"),
            ("0-4", "4 is not there"),
            ("+4", "more than there is"),
            ("0,", "`` is no number"),
            ("-1", "-1 is no number of a node or a CPU"),
            ("+-1", "-1 is no number of a node or a CPU"),
            ("-l", "`-l` is no number"),
            ("0 2", "` 2` is no number"),
            ("2 ", "` ` is no number"),
            ("0--2", "-2 is no number of"),
            ("0-2-3", "`-3` is no number"),
            ("99999999999", "99999999999 is not there"),
            ("+99999999999999999999", "more than there is"),
            ("9", "9 is not there"),
            ("08", "`8` is no number"),
            ("0x", "`x` is no number"),
            ("!", "`` is no number"),
            ("+!0", "`!0` is no number"),
            ("2all", "`all` is no number"),
            ("all,2", "no such device"),
            ("block:sda", "no such device"),
            ("nowhere", "no such device"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_nothing_unusable_is_named(text in "[!+]?[0-9a-fxX,+! -]{0,12}") {
            let usable: NodeSet = "0,2-3,8".parse().unwrap();
            let nameable = Nameable { usable: &usable, present: &usable };
            if let Ok(named) = parse(&text, nameable, |_| Err(String::new())) {
                prop_assert!(named.is_subset(&usable));
            }
        }
    }
}
