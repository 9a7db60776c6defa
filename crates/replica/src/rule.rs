//! Do copies pay? They do while reads that they make local save more than copying costs.
//!
//! Problem: after every write the copies of what was written are stale, and copying them again reads the master
//! once and writes each copy once. An array that is written more than it is read by other nodes is better read
//! where it is.
//!
//! Mechanism: over a stretch of time, `saved = local bytes * (remote - local)` against
//! `spent = copied bytes * copy`, in ns per byte. Copies that were made for the first time are not counted:
//! they are paid once, and say nothing of the future. Below [`LEAST_BYTES`] there is no verdict. Copies are
//! given up where `spent > saved`, and made again where reads of the master from other nodes would have
//! saved [`RETURN_FACTOR`] times what copying all that was written meanwhile would have cost: the gap keeps an array
//! near the border from going back and forth.
//!
//! Always: without a write copies are kept; without a read by another node they are not made again.

use hither_core::size::decimals;

/// Bytes read by other nodes or copied before a verdict is given: 64 MiB, some 10 ms of a controller's time.
pub const LEAST_BYTES: u64 = 64 << 20;
/// Copies that were given up come back where they would save so many times what they cost.
pub const RETURN_FACTOR: f64 = 2.0;

/// What happened in a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes that were read from a copy and would have come from another node without it.
    pub local_bytes: u64,
    /// Bytes that were read from the master by other nodes.
    pub remote_bytes: u64,
    /// Bytes copied because a write had made them stale; while there are no copies, what would have been.
    pub copied_bytes: u64,
}

/// What a byte costs, in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ByteCosts {
    /// Read from the reader's own node.
    pub local_ns: f64,
    /// Read from another node.
    pub remote_ns: f64,
    /// Copied to another node: read there, written here.
    pub copy_ns: f64,
}

impl ByteCosts {
    /// From the distance of other nodes (SLIT; 10 is local), where nothing was measured: a byte of the own node
    /// costs 0.1 ns (10 GB/s for one CPU), of another as much more as it is further; a copy reads that and
    /// writes locally.
    #[must_use]
    pub fn of_distance(distance: f64) -> Self {
        let local_ns = 0.1;
        let remote_ns = local_ns * distance.max(10.0) / 10.0;
        Self {
            local_ns,
            remote_ns,
            copy_ns: remote_ns + local_ns,
        }
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Too little happened to tell.
    Unknown,
    /// It stays as it is.
    Keep,
    /// Copies are given up.
    Collapse,
    /// Copies are made again.
    Return,
}

/// A verdict, with one sentence that says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// What is to be done.
    pub verdict: Verdict,
    /// Why.
    pub sentence: String,
}

/// Bytes for a person.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{} MB", decimals(bytes as f64 / 1e6, 1))
}

/// Judges a stretch of time; `has_copies`: are there any, or were they given up?
#[must_use]
pub fn judge(account: &Account, costs: &ByteCosts, has_copies: bool) -> Judgement {
    let read = match has_copies {
        true => account.local_bytes,
        false => account.remote_bytes,
    };
    if read.saturating_add(account.copied_bytes) < LEAST_BYTES {
        let sentence = format!(
            "no verdict: {} were read by other nodes and {} copied, less than {}",
            megabytes(read),
            megabytes(account.copied_bytes),
            megabytes(LEAST_BYTES)
        );
        return Judgement {
            verdict: Verdict::Unknown,
            sentence,
        };
    }
    let saved_ms = read as f64 * (costs.remote_ns - costs.local_ns).max(0.0) / 1e6;
    let spent_ms = account.copied_bytes as f64 * costs.copy_ns / 1e6;
    let (verdict, what) = match has_copies {
        true if spent_ms > saved_ms => (Verdict::Collapse, "copies are given up"),
        true => (Verdict::Keep, "copies are kept"),
        false if saved_ms > RETURN_FACTOR * spent_ms => (Verdict::Return, "copies are made again"),
        false => (Verdict::Keep, "copies stay given up"),
    };
    let (saves, costs) = match has_copies {
        true => ("saved", "cost"),
        false => ("would have saved", "would have cost"),
    };
    let sentence = format!(
        "{what}: local reads of {} {saves} {saved_ms:.1} ms, copying {} {costs} {spent_ms:.1} ms",
        megabytes(read),
        megabytes(account.copied_bytes)
    );
    Judgement { verdict, sentence }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn verdict(local: u64, remote: u64, copied: u64, has_copies: bool) -> Verdict {
        let account = Account {
            local_bytes: local * MB,
            remote_bytes: remote * MB,
            copied_bytes: copied * MB,
        };
        // At distance 20: 0.1 ns a local byte, 0.2 a remote one, 0.3 a copied one.
        judge(&account, &ByteCosts::of_distance(20.0), has_copies).verdict
    }

    #[test]
    fn copies_stay_while_reads_save_more_than_copying_costs() {
        // 0.1 ns saved for each byte read, 0.3 ns spent for each copied: the border is three to one.
        assert_eq!(verdict(300, 0, 101, true), Verdict::Collapse);
        assert_eq!(verdict(300, 0, 99, true), Verdict::Keep);
        assert_eq!(verdict(300, 0, 0, true), Verdict::Keep);
        assert_eq!(verdict(0, 900, 64, true), Verdict::Collapse);
    }

    #[test]
    fn copies_come_back_with_a_gap() {
        // Twice three to one.
        assert_eq!(verdict(0, 599, 100, false), Verdict::Keep);
        assert_eq!(verdict(0, 630, 100, false), Verdict::Return);
        assert_eq!(verdict(0, 64, 0, false), Verdict::Return);
        assert_eq!(verdict(900, 0, 64, false), Verdict::Keep);
    }

    #[test]
    fn little_says_nothing() {
        assert_eq!(verdict(40, 0, 23, true), Verdict::Unknown);
        assert_eq!(verdict(0, 40, 23, false), Verdict::Unknown);
        let account = Account {
            local_bytes: u64::MAX,
            copied_bytes: u64::MAX,
            ..Account::default()
        };
        let judged = judge(&account, &ByteCosts::of_distance(21.0), true);
        assert_eq!(judged.verdict, Verdict::Collapse);
    }

    #[test]
    fn where_nothing_is_further_nothing_is_gained() {
        let costs = ByteCosts::of_distance(10.0);
        assert_eq!(costs.local_ns, costs.remote_ns);
        let account = Account {
            local_bytes: 1000 * MB,
            copied_bytes: 1,
            ..Account::default()
        };
        let judged = judge(&account, &costs, true);
        assert_eq!(judged.verdict, Verdict::Collapse);
        assert_eq!(
            judged.sentence,
            "copies are given up: local reads of 1048.6 MB saved 0.0 ms, copying 0.0 MB cost 0.0 ms"
        );
    }
}
