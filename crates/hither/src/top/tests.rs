//! The command's own parsing.

use super::{parse_ages, parse_interval};

#[test]
fn intervals_have_a_unit_and_limits() {
    assert_eq!(parse_interval("1s"), Ok(1_000_000));
    assert_eq!(parse_interval("250ms"), Ok(250_000));
    for bad in ["", "1", "99ms", "61s", "-1s", "0s", "1h", "s"] {
        assert!(parse_interval(bad).is_err(), "{bad}");
    }
}

#[test]
fn generations_have_a_pace_within_limits() {
    assert_eq!(parse_ages("1s"), Ok(1_000_000));
    assert_eq!(parse_ages("3600s"), Ok(3_600_000_000));
    for bad in ["", "1", "999ms", "3601s", "1h", "-1s"] {
        assert!(parse_ages(bad).is_err(), "{bad}");
    }
}
