//! Sizes as people write and read them.

pub use hither_core::size::{parse_bytes, short_bytes};

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

/// Bytes per second, to move at most.
///
/// # Errors
/// What to write instead, for a refusal by clap.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0 => Err("at 0 bytes per second nothing would ever move".to_owned()),
        rate => Ok(rate),
    }
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
    fn times_have_the_unit_that_fits() {
        assert_eq!(time(12.4), "12 ns");
        assert_eq!(time(1234.0), "1.23 us");
        assert_eq!(time(12.346e6), "12.35 ms");
        assert_eq!(time(2.5e9), "2.50 s");
    }
}
