//! Sets of CPUs and nodes, in the kernel's list format (`0-3,8,10-11`).

use crate::ids::{CpuId, NodeId};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Highest number a list may name; the kernel's own limits (8192 CPUs, 1024 nodes) are lower.
const MAX_MEMBER: u32 = 65_535;

/// An ordered set of kernel numbers. [`CpuSet`] and [`NodeSet`] are its typed faces.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdSet<T: Ord>(BTreeSet<T>);

/// A set of CPUs.
pub type CpuSet = IdSet<CpuId>;
/// A set of memory nodes.
pub type NodeSet = IdSet<NodeId>;
/// A set of numbers that are no ids: positions, ranks.
pub type NumberSet = IdSet<u32>;

/// Ids that have a kernel number.
pub trait Numbered: Copy + Ord {
    /// The kernel's number.
    fn number(self) -> u32;
    /// The id for a kernel number.
    fn from_number(number: u32) -> Self;
}

impl Numbered for CpuId {
    fn number(self) -> u32 {
        self.0
    }
    fn from_number(number: u32) -> Self {
        Self(number)
    }
}

impl Numbered for NodeId {
    fn number(self) -> u32 {
        self.0
    }
    fn from_number(number: u32) -> Self {
        Self(number)
    }
}

impl Numbered for u32 {
    fn number(self) -> u32 {
        self
    }
    fn from_number(number: u32) -> Self {
        number
    }
}

/// A list that is not in the kernel's format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a list like `0-3,8`: {reason}")]
pub struct ListError {
    /// The whole text.
    pub text: String,
    /// What is wrong with it.
    pub reason: String,
}

impl<T: Numbered> IdSet<T> {
    /// The empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
    /// Adds a member; false where it was there already.
    pub fn insert(&mut self, id: T) -> bool {
        self.0.insert(id)
    }
    /// Is this id a member?
    #[must_use]
    pub fn contains(&self, id: T) -> bool {
        self.0.contains(&id)
    }
    /// Members in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = T> + ExactSizeIterator + '_ {
        self.0.iter().copied()
    }
    /// Number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Has it no member?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The lowest member.
    #[must_use]
    pub fn first(&self) -> Option<T> {
        self.0.first().copied()
    }
    /// Members of both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }
    /// Members of either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }
    /// Members that the other has not.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }
    /// Has the other every member?
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl<T: Ord> Default for IdSet<T> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<T: Numbered> FromIterator<T> for IdSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl<T: Numbered> FromStr for IdSet<T> {
    type Err = ListError;

    /// Parses the kernel's list format. The empty string is the empty set, as in sysfs.
    fn from_str(text: &str) -> Result<Self, ListError> {
        let fail = |reason: String| ListError {
            text: text.to_owned(),
            reason,
        };
        let number = |part: &str| -> Result<u32, ListError> {
            let value = part
                .trim()
                .parse::<u32>()
                .map_err(|_| fail(format!("`{part}` is no number")))?;
            if value > MAX_MEMBER {
                return Err(fail(format!("{value} is above the limit of {MAX_MEMBER}")));
            }
            Ok(value)
        };
        let mut set = BTreeSet::new();
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Ok(Self(set));
        }
        for part in trimmed.split(',') {
            let (low, high) = match part.split_once('-') {
                Some((low, high)) => (number(low)?, number(high)?),
                None => (number(part)?, number(part)?),
            };
            if low > high {
                return Err(fail(format!("range `{part}` runs backwards")));
            }
            set.extend((low..=high).map(T::from_number));
        }
        Ok(Self(set))
    }
}

impl<T: Numbered> serde::Serialize for IdSet<T> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de, T: Numbered> serde::Deserialize<'de> for IdSet<T> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl<T: Numbered> fmt::Display for IdSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut run: Option<(u32, u32)> = None;
        let mut first = true;
        let mut flush = |f: &mut fmt::Formatter<'_>, (low, high): (u32, u32)| {
            let comma = if std::mem::take(&mut first) { "" } else { "," };
            if low == high {
                write!(f, "{comma}{low}")
            } else {
                write!(f, "{comma}{low}-{high}")
            }
        };
        for number in self.0.iter().map(|id| id.number()) {
            run = match run {
                Some((low, high)) if high + 1 == number => Some((low, number)),
                Some(done) => {
                    flush(f, done)?;
                    Some((number, number))
                }
                None => Some((number, number)),
            };
        }
        run.map_or(Ok(()), |done| flush(f, done))
    }
}

impl<T: Numbered> fmt::Debug for IdSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_and_prints_the_kernels_format() {
        let set: CpuSet = "0-3,8,10-11\n".parse().unwrap();
        assert_eq!(set.len(), 7);
        assert_eq!(set.to_string(), "0-3,8,10-11");
        assert_eq!("".parse::<NodeSet>().unwrap().to_string(), "");
    }

    #[test]
    fn refuses_what_is_no_list() {
        for bad in ["a", "3-1", "1,,2", "-", "1-", "99999999", "1 2", "0x3"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad} was accepted");
        }
    }

    proptest! {
        #[test]
        fn print_then_parse_is_identity(members in proptest::collection::btree_set(0u32..300, 0..60)) {
            let set: CpuSet = members.iter().copied().map(CpuId).collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
    }
}
