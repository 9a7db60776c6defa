//! Sizes as people write and read them.

/// Bytes of a size: a whole number, with `K`, `M`, `G` or `T` for powers of 1024.
///
/// # Errors
/// What to write instead, for a refusal by clap.
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

/// Microseconds of a time: a whole number with its unit, `us`, `ms` or `s`.
///
/// # Errors
/// What to write instead, for a refusal by clap.
pub fn parse_time_us(text: &str) -> Result<u64, String> {
    let units = [("ms", 1000), ("us", 1), ("s", 1_000_000)];
    let parsed = units.iter().find_map(|&(unit, us)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(us)
    });
    parsed.ok_or_else(|| "write a whole number with its unit, as in 100ms or 2s".to_owned())
}

/// The number of a node: `2` or `node2`.
///
/// # Errors
/// What to write instead, for a refusal by clap.
pub fn parse_node(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("node").unwrap_or(text);
    digits
        .parse()
        .map_err(|_| "write a node as 2 or node2".to_owned())
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

/// A time with the unit that fits.
#[must_use]
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.2} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
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

    #[test]
    fn times_have_the_unit_that_fits() {
        assert_eq!(time(12.4), "12 ns");
        assert_eq!(time(1234.0), "1.23 us");
        assert_eq!(time(12.346e6), "12.35 ms");
        assert_eq!(time(2.5e9), "2.50 s");
    }
}
