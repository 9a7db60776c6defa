//! File replicas: what the shim `libhither_mirror.so` decides, names and tells. No input or output here.
//!
//! A *mirror* is a copy of a file on one node that all processes of one user there map instead of the file
//! ([`name`]). A process asks for those chunks alone that it uses and that lie on other nodes ([`chunks`]);
//! it tells what it did in a text ([`report`]). `docs/replication.md` has the whole.

pub mod chunks;
pub mod name;
pub mod report;

use crate::size::{parse_bytes, short_bytes};
use std::fmt;
use std::str::FromStr;

/// Variables of the environment that the shim reads.
pub mod environment {
    /// The [`Plan`](super::Plan) as a text. Without it nothing is replicated.
    pub const PLAN: &str = "HITHER_MIRROR_PLAN";
    /// A folder for the reports of processes, one file each.
    pub const REPORTS: &str = "HITHER_MIRROR_REPORTS";
}

/// Smaller mappings are left alone: what a copy gains is in proportion, what it costs to look is not.
pub const DEFAULT_LEAST_BYTES: u64 = 4 << 20;
/// A file must have been left alone for so long before it is copied. Times of files advance with the
/// kernel's tick (4 to 10 ms): two writes within one tick leave the same times, and a copy between them
/// would have the name of what the second wrote.
pub const SETTLED_MS: u64 = 1000;
/// Each node keeps one part in so many of its memory free, as with replicated arrays.
pub const RESERVE_SHARE: u64 = 32;

/// Which chunks of a file get a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// Those that the process uses again and again.
    #[default]
    Hot,
    /// All that are mapped.
    All,
}

/// What `hither run` tells the shim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Least bytes of a mapping.
    pub least_bytes: u64,
    /// Most bytes of all copies of the user's on one node.
    pub budget_bytes: Option<u64>,
    /// Which chunks.
    pub which: Which,
    /// Also the code of programs, and of libraries that they are linked with.
    pub code: bool,
    /// Copy also what is local already, and on machines with one node: for tests.
    pub always: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            least_bytes: DEFAULT_LEAST_BYTES,
            budget_bytes: None,
            which: Which::Hot,
            code: false,
            always: false,
        }
    }
}

/// `min 4M; budget 1G; all; code; always`.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "min {}", short_bytes(self.least_bytes))?;
        if let Some(bytes) = self.budget_bytes {
            write!(f, "; budget {}", short_bytes(bytes))?;
        }
        if self.which == Which::All {
            write!(f, "; all")?;
        }
        if self.code {
            write!(f, "; code")?;
        }
        if self.always {
            write!(f, "; always")?;
        }
        Ok(())
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut plan = Self::default();
        let words = text.split(';').map(str::trim);
        for word in words.filter(|word| !word.is_empty()) {
            match word.split_once(' ') {
                Some(("min", bytes)) => plan.least_bytes = parse_bytes(bytes.trim())?,
                Some(("budget", bytes)) => plan.budget_bytes = Some(parse_bytes(bytes.trim())?),
                None if word == "all" => plan.which = Which::All,
                None if word == "hot" => plan.which = Which::Hot,
                None if word == "code" => plan.code = true,
                None if word == "always" => plan.always = true,
                _ => {
                    return Err(format!(
                        "`{word}`: write min SIZE, budget SIZE, hot, all or code"
                    ));
                }
            }
        }
        Ok(plan)
    }
}

/// What a program asked the kernel to map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Can it be read, and nothing but executed besides?
    pub is_read_only: bool,
    /// Of a regular file, by a flag that means no more than shared or private.
    pub is_plain_file: bool,
    /// Bytes from here to the end of mapping or file, whichever comes first.
    pub bytes: u64,
}

impl Asked {
    /// May it get copies?
    #[must_use]
    pub fn is_candidate(&self, plan: &Plan) -> bool {
        self.is_read_only && self.is_plain_file && self.bytes >= plan.least_bytes.max(1)
    }
}

/// Most bytes that may be copied now. `used`: copies on the node already; `available` and `total`: of the node.
#[must_use]
pub fn room_bytes(plan: &Plan, used: u64, available: u64, total: u64) -> u64 {
    let room = available.saturating_sub(total / RESERVE_SHARE);
    match plan.budget_bytes {
        Some(budget) => room.min(budget.saturating_sub(used)),
        None => room,
    }
}

/// Has a node so little memory left that copies on it are to be given up?
#[must_use]
pub fn is_short(available: u64, total: u64) -> bool {
    available < total / RESERVE_SHARE / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read_as_they_are_written() {
        let plan = Plan {
            least_bytes: 1 << 20,
            budget_bytes: Some(3 << 30),
            which: Which::All,
            code: true,
            always: true,
        };
        assert_eq!(plan.to_string(), "min 1M; budget 3G; all; code; always");
        assert_eq!(plan.to_string().parse(), Ok(plan));
        assert_eq!("".parse(), Ok(Plan::default()));
        assert_eq!(Plan::default().to_string().parse(), Ok(Plan::default()));
        for bad in ["min", "min x", "whole", "budget -1"] {
            assert!(bad.parse::<Plan>().is_err(), "{bad}");
        }
    }

    #[test]
    fn candidates_are_large_plain_and_never_written() {
        let plan = Plan::default();
        let good = Asked {
            is_read_only: true,
            is_plain_file: true,
            bytes: DEFAULT_LEAST_BYTES,
        };
        assert!(good.is_candidate(&plan));
        for bad in [
            Asked {
                is_read_only: false,
                ..good
            },
            Asked {
                is_plain_file: false,
                ..good
            },
            Asked {
                bytes: good.bytes - 1,
                ..good
            },
        ] {
            assert!(!bad.is_candidate(&plan), "{bad:?}");
        }
    }

    #[test]
    fn a_node_keeps_a_reserve_and_the_user_a_budget() {
        let mut plan = Plan::default();
        // A node of 64 GiB keeps 2.
        assert_eq!(room_bytes(&plan, 0, 10 << 30, 64 << 30), 8 << 30);
        assert_eq!(room_bytes(&plan, 0, 1 << 30, 64 << 30), 0);
        plan.budget_bytes = Some(3 << 30);
        assert_eq!(room_bytes(&plan, 1 << 30, 10 << 30, 64 << 30), 2 << 30);
        assert_eq!(room_bytes(&plan, 4 << 30, 10 << 30, 64 << 30), 0);
        // Between the reserve and half of it nothing comes and nothing goes.
        assert!(!is_short(1 << 30, 64 << 30) && is_short((1 << 30) - 1, 64 << 30));
    }
}
