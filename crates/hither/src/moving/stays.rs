//! What must not move, for a report.

use super::select::addresses;
use crate::print;
use hither_linux::fixed::{Fixed, Stays};
use serde_json::{Value, json};

/// Ranges that are told one by one; the document has all.
const MOST_RANGES: usize = 8;

/// Sentences: each range with its reason, and what is known as an amount alone.
pub fn notes(fixed: &Fixed) -> Vec<String> {
    let line = |stays: &Stays| {
        let count = (stays.pages.end - stays.pages.start) as usize;
        format!(
            "stays: {} ({}), {}",
            addresses(&stays.pages),
            print::count(count, "page"),
            stays.why
        )
    };
    let mut notes: Vec<String> = fixed.ranges.iter().take(MOST_RANGES).map(line).collect();
    let left = fixed.ranges.len().saturating_sub(MOST_RANGES);
    if left > 0 {
        notes.push(format!("stays: {left} more ranges; --json has them all"));
    }
    if fixed.unplaced_kb > 0 {
        notes.push(format!(
            "pinned: {} besides (VmPin), at addresses that the kernel does not tell; it refuses those \
             pages itself",
            print::size(fixed.unplaced_kb)
        ));
    }
    if fixed.unseen_rings > 0 {
        notes.push(format!(
            "pinned: buffers of {} at work just now are not told; the kernel refuses them itself",
            print::count(fixed.unseen_rings, "io_uring")
        ));
    }
    notes
}

/// As data.
pub fn json(fixed: &Fixed) -> Value {
    let range = |stays: &Stays| {
        json!({
            "range": addresses(&stays.pages),
            "pages": stays.pages.end - stays.pages.start,
            "why": stays.why.to_string(),
        })
    };
    json!({
        "ranges": fixed.ranges.iter().map(range).collect::<Vec<_>>(),
        "pinned_kb": fixed.pinned_kb,
        "unplaced_pinned_kb": fixed.unplaced_kb,
        "unseen_ring_count": fixed.unseen_rings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_linux::fixed::FixedReason;

    #[test]
    fn every_range_has_its_reason_and_amounts_are_told() {
        let stays = |first: u64, why| Stays {
            pages: first..first + 2,
            why,
        };
        let ranges = (0..10).map(|at| stays(16 * at, FixedReason::Registered(5)));
        let ranges = ranges.chain([stays(999, FixedReason::Mapped("a GPU"))]);
        let mut fixed = Fixed::of(ranges.collect());
        (fixed.unplaced_kb, fixed.unseen_rings) = (2048, 1);
        let notes = notes(&fixed);
        assert_eq!(notes.len(), MOST_RANGES + 3);
        assert_eq!(
            notes[1],
            "stays: 00010000-00012000 (2 pages), registered with io_uring (descriptor 5)"
        );
        assert_eq!(notes[8], "stays: 3 more ranges; --json has them all");
        assert!(
            notes[9].starts_with("pinned: 2 MiB besides (VmPin)"),
            "{notes:?}"
        );
        let data = json(&fixed);
        assert_eq!(data["ranges"][10]["why"], "a mapping of a GPU");
        assert_eq!(data["unplaced_pinned_kb"], 2048);
    }
}
