//! hwloc's bitmaps: words of 32 bits in hexadecimal, the highest first, parted by commas.
//!
//! ```text
//! 0x00000300,,0x00000007      32 * 2 + 8, 32 * 2 + 9, 0 to 2
//! 0x0                         nothing
//! 0xf...f,0x0                 from 32 to infinity
//! ```

use hither_core::set::{IdSet, Numbered};

const WORD_BITS: u32 = 32;
/// The kernel's lists go as far as this, and its own limits are lower.
const MOST_WORDS: usize = 65_536 / WORD_BITS as usize;

/// As hwloc writes it: leading words that are empty are left out, others inside are empty texts,
/// and an empty last one is `0x0`.
pub(super) fn format<T: Numbered>(set: &IdSet<T>) -> String {
    let Some(last) = set.iter().next_back() else {
        return "0x0".to_owned();
    };
    let mut words = vec![0u32; (last.number() / WORD_BITS) as usize + 1];
    for id in set.iter() {
        words[(id.number() / WORD_BITS) as usize] |= 1 << (id.number() % WORD_BITS);
    }
    let text = |(index, word): (usize, &u32)| match (word, index) {
        (0, 0) => "0x0".to_owned(),
        (0, _) => String::new(),
        (word, _) => format!("{word:#010x}"),
    };
    let texts: Vec<String> = words.iter().enumerate().rev().map(text).collect();
    texts.join(",")
}

/// The members, or what is wrong.
pub(super) fn parse<T: Numbered>(text: &str) -> Result<IdSet<T>, &'static str> {
    if text.starts_with("0xf...f") {
        return Err("reaches to infinity, and a machine does not");
    }
    if text.is_empty() {
        return Err("is empty");
    }
    let mut members = Vec::new();
    for (index, word) in text.rsplit(',').enumerate() {
        if index >= MOST_WORDS {
            return Err("has room for numbers above 65535");
        }
        let word = word.trim();
        let digits = word.strip_prefix("0x").unwrap_or(word);
        let bits = match digits {
            // `from_str_radix` takes a sign.
            _ if digits.starts_with(['+', '-']) => None,
            "" if word.is_empty() => Some(0),
            _ => u32::from_str_radix(digits, 16).ok(),
        };
        let bits = bits.ok_or("is no bitmap like `0x00000003,0xffffffff`")?;
        let base = index as u32 * WORD_BITS;
        let here = (0..WORD_BITS).filter(|bit| bits >> bit & 1 == 1);
        members.extend(here.map(|bit| T::from_number(base + bit)));
    }
    Ok(members.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::set::{CpuSet, NumberSet};
    use proptest::prelude::*;

    #[test]
    fn bitmaps_are_read_and_written_as_hwloc_does() {
        for (list, text) in [
            ("", "0x0"),
            ("0-2,72-73", "0x00000300,,0x00000007"),
            ("32", "0x00000001,0x0"),
            ("0-47", "0x0000ffff,0xffffffff"),
            ("96", "0x00000001,,,0x0"),
        ] {
            let set: CpuSet = list.parse().unwrap();
            assert_eq!(format(&set), text);
            assert_eq!(parse(text), Ok(set));
        }
        assert_eq!(parse::<u32>("3"), Ok("0-1".parse().unwrap()));
        for bad in ["", "0x", "0xg", "-1", "0x+1", "0x1 2", "0x123456789", "1;2"] {
            assert!(parse::<u32>(bad).is_err(), "{bad}");
        }
        assert!(
            parse::<u32>("0xf...f,0x0")
                .unwrap_err()
                .contains("infinity")
        );
        let far = format!("0x1{}", ",".repeat(2048));
        assert!(parse::<u32>(&far).unwrap_err().contains("65535"));
    }

    proptest! {
        #[test]
        fn written_then_read_is_the_same(members in proptest::collection::btree_set(0u32..65_536, 0..40)) {
            let set: NumberSet = members.into_iter().collect();
            prop_assert_eq!(parse(&format(&set)), Ok(set));
        }
    }
}
