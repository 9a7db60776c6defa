//! Who may have how much of the fast memory.
//!
//! Problem: several programs want the fast tier, and whoever comes first has it. Rule: what is fixed is
//! granted first; the rest is shared out by weight among those who can use it, and what one does not
//! need goes to the others (weighted max-min fairness). Where more is fixed than there is, each gets the
//! same part of what was promised to it.
//! Quotas that follow a goal are in [`crate::goal`].

use crate::size::{parse_bytes, short_bytes};
use crate::snapshot::{PAGE_BYTES, Snapshot};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How much of the fastest memory tier a scope may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quota {
    /// As much as there is: nothing is shared out, who moves first has it.
    #[default]
    Unlimited,
    /// So many base pages.
    Pages(u64),
    /// A part of what is not fixed, by this weight.
    Shares(f64),
    /// The same, by the size of what it uses (its working set).
    WorkingSet,
}

/// A text that is no quota.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write {FORMS}: {why}")]
pub struct BadQuota {
    why: String,
}

/// How a quota is written.
pub const FORMS: &str = "a size as `512M`, a part as `shares:2`, `working-set`, or `unlimited`";

impl FromStr for Quota {
    type Err = BadQuota;

    fn from_str(text: &str) -> Result<Self, BadQuota> {
        let bad = |why: String| BadQuota { why };
        match text.split_once(':') {
            Some(("shares", weight)) => match weight.parse::<f64>() {
                Ok(weight) if weight > 0.0 && weight <= 1e6 => Ok(Self::Shares(weight)),
                _ => Err(bad(
                    "a weight is a number above 0 and at most 1000000".to_owned()
                )),
            },
            Some(_) => Err(bad("only `shares` takes a number".to_owned())),
            None if text == "working-set" => Ok(Self::WorkingSet),
            None if text == "unlimited" => Ok(Self::Unlimited),
            None => Ok(Self::Pages(parse_bytes(text).map_err(bad)? / PAGE_BYTES)),
        }
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Pages(pages) => f.write_str(&short_bytes(pages * PAGE_BYTES)),
            Self::Shares(weight) => write!(f, "shares:{weight}"),
            Self::WorkingSet => f.write_str("working-set"),
        }
    }
}

/// What a scope has and uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    /// Base pages that it has in the fastest tier.
    pub held_pages: u64,
    /// Base pages that it has in all.
    pub all_pages: u64,
    /// Base pages that it uses, as far as their accesses are seen.
    pub working_pages: u64,
}

impl Use {
    /// With all that the processes of a snapshot have in memory, where that is more than was told page by
    /// page: a listing takes its time, and who is believed to be small gets little.
    #[must_use]
    pub fn with_resident(self, snapshot: &Snapshot) -> Self {
        Self {
            all_pages: self.all_pages.max(snapshot.resident_pages()),
            ..self
        }
    }
}

/// Shares out `capacity` base pages of fast memory: what each of the scopes may have, in their order; `None`
/// where it has no quota.
#[must_use]
pub fn share_out(capacity: u64, scopes: &[(Quota, Use)]) -> Vec<Option<u64>> {
    let held_freely = scopes
        .iter()
        .filter(|(quota, _)| *quota == Quota::Unlimited);
    let free: u64 = held_freely.map(|(_, used)| used.held_pages).sum();
    let mut left = capacity.saturating_sub(free) as f64;
    let fixed = |quota: &Quota| match *quota {
        Quota::Pages(pages) => Some(pages as f64),
        _ => None,
    };
    let promised: f64 = scopes.iter().filter_map(|(quota, _)| fixed(quota)).sum();
    let kept = if promised > left {
        left / promised
    } else {
        1.0
    };
    left -= promised * kept;
    let weight = |(quota, used): &(Quota, Use)| match *quota {
        Quota::Shares(weight) if weight.is_finite() => weight.max(0.0),
        Quota::WorkingSet => used.working_pages as f64,
        _ => 0.0,
    };
    // Who needs less than its part has what it needs; the others share what that leaves.
    let mut granted: Vec<Option<f64>> = vec![None; scopes.len()];
    loop {
        let open = || (0..scopes.len()).filter(|&at| granted[at].is_none());
        let weights: f64 = open().map(|at| weight(&scopes[at])).sum();
        let need = |at: usize| scopes[at].1.all_pages as f64;
        let part = |at: usize| match weights > 0.0 {
            true => left * weight(&scopes[at]) / weights,
            false => 0.0,
        };
        let small: Vec<usize> = open()
            .filter(|&at| weight(&scopes[at]) > 0.0 && need(at) < part(at))
            .collect();
        if small.is_empty() {
            let parts: Vec<(usize, f64)> = open().map(|at| (at, part(at))).collect();
            parts
                .into_iter()
                .for_each(|(at, part)| granted[at] = Some(part));
            break;
        }
        for at in small {
            granted[at] = Some(need(at));
            left -= need(at);
        }
    }
    let scopes = scopes.iter().zip(granted);
    scopes
        .map(|((quota, _), granted)| match quota {
            Quota::Unlimited => None,
            Quota::Pages(pages) => Some((*pages as f64 * kept) as u64),
            Quota::Shares(_) | Quota::WorkingSet => granted.map(|pages| pages as u64),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn used(all_pages: u64) -> Use {
        Use {
            all_pages,
            ..Use::default()
        }
    }

    #[test]
    fn quotas_are_written_as_they_are_read() {
        for (text, quota) in [
            ("512M", Quota::Pages(131_072)),
            ("shares:2.5", Quota::Shares(2.5)),
            ("working-set", Quota::WorkingSet),
            ("unlimited", Quota::Unlimited),
        ] {
            assert_eq!(
                (text.parse(), quota.to_string()),
                (Ok(quota), text.to_owned())
            );
        }
        for text in ["", "shares:0", "shares:x", "share:1", "12Q", "-1"] {
            let error = text.parse::<Quota>().unwrap_err().to_string();
            assert!(error.starts_with("write a size as `512M`"), "{error}");
        }
    }

    #[test]
    fn shares_by_hand() {
        let big = used(10_000);
        let shares = |weights: [f64; 3], needs: [u64; 3]| {
            let scopes: Vec<_> = weights
                .iter()
                .zip(needs)
                .map(|(&weight, need)| (Quota::Shares(weight), used(need)))
                .collect();
            share_out(800, &scopes)
        };
        // 1:2:5 of 800 pages.
        assert_eq!(
            shares([1.0, 2.0, 5.0], [10_000; 3]),
            [Some(100), Some(200), Some(500)]
        );
        // The third needs 80 alone: the others share 720 by 1:2.
        assert_eq!(
            shares([1.0, 2.0, 5.0], [10_000, 10_000, 80]),
            [Some(240), Some(480), Some(80)]
        );
        // Fixed first, the rest by the working set.
        let working = |working_pages| Use {
            working_pages,
            ..big
        };
        let scopes = [
            (Quota::Pages(200), big),
            (Quota::WorkingSet, working(300)),
            (Quota::WorkingSet, working(100)),
        ];
        assert_eq!(share_out(800, &scopes), [Some(200), Some(450), Some(150)]);
        // More is promised than there is: each gets the same part.
        let scopes = [
            (Quota::Pages(1200), big),
            (Quota::Pages(400), big),
            (Quota::Shares(1.0), big),
        ];
        assert_eq!(share_out(800, &scopes), [Some(600), Some(200), Some(0)]);
        // Who has no quota keeps what it has.
        let free = Use {
            held_pages: 300,
            ..big
        };
        assert_eq!(
            share_out(800, &[(Quota::Unlimited, free), (Quota::Shares(3.0), big)]),
            [None, Some(500)]
        );
        assert_eq!(share_out(800, &[]), []);
    }

    proptest! {
        #[test]
        fn no_more_is_granted_than_there_is(
            capacity in 0u64..100_000,
            scopes in proptest::collection::vec((0u8..4, 0u64..50_000, 0u64..50_000, 0u64..50_000), 0..6),
        ) {
            let scopes: Vec<(Quota, Use)> = scopes.into_iter().map(|(kind, value, all, held)| {
                let quota = match kind {
                    0 => Quota::Unlimited,
                    1 => Quota::Pages(value),
                    2 => Quota::Shares(value as f64 / 1000.0),
                    _ => Quota::WorkingSet,
                };
                (quota, Use { held_pages: held, all_pages: all, working_pages: value })
            }).collect();
            let granted = share_out(capacity, &scopes);
            prop_assert_eq!(granted.len(), scopes.len());
            prop_assert!(granted.iter().flatten().sum::<u64>() <= capacity);
            for (granted, (quota, _)) in granted.iter().zip(&scopes) {
                prop_assert_eq!(granted.is_none(), *quota == Quota::Unlimited);
                if let (Some(granted), Quota::Pages(pages)) = (granted, quota) {
                    prop_assert!(granted <= pages);
                }
            }
        }
    }
}
