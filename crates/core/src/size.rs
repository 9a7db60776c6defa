//! Sizes as people write them: `64K`, `16M`, in powers of 1024.

/// Bytes of a size: a whole number, with `K`, `M`, `G` or `T` for powers of 1024.
///
/// # Errors
/// What to write instead, for a refusal of the text.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let unit = |letter: char| {
        let found = units
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(&letter));
        found.map(|&(_, shift)| shift)
    };
    let (digits, shift) = match text.chars().next_back().and_then(unit) {
        Some(shift) => (&text[..text.len() - 1], shift),
        None => (text, 0),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| "write a whole number with K, M, G or T, as in 64K or 16M".to_owned())
}

/// The shortest way to write a number of bytes that [`parse_bytes`] reads.
#[must_use]
pub fn short_bytes(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        bytes if bytes.trailing_zeros() >= 40 => format!("{}T", bytes >> 40),
        bytes if bytes.trailing_zeros() >= 30 => format!("{}G", bytes >> 30),
        bytes if bytes.trailing_zeros() >= 20 => format!("{}M", bytes >> 20),
        bytes if bytes.trailing_zeros() >= 10 => format!("{}K", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

/// A number with so many decimals; what is rounded to zero has no sign.
#[must_use]
pub fn decimals(number: f64, count: usize) -> String {
    let text = format!("{number:.count$}");
    let is_zero = |digits: &&str| !digits.contains(|c: char| ('1'..='9').contains(&c));
    match text.strip_prefix('-').filter(is_zero) {
        Some(zero) => zero.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4K", 4096),
            ("64k", 65536),
            ("16M", 16 << 20),
            ("1G", 1 << 30),
            ("2T", 2 << 40),
            ("0", 0),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
            assert_eq!(parse_bytes(&short_bytes(bytes)), Ok(bytes), "{text}");
        }
        assert_eq!(short_bytes(3 << 20), "3M");
        for bad in [
            "",
            "K",
            "-1",
            "1.5M",
            "4KB",
            "99999999999999999999",
            "99999999999T",
            "é",
        ] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }
}
