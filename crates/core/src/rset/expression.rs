//! A resource set as a person writes it, before any machine is known.
//!
//! Operators bind in this order: `~` (complement), `&` (intersection), then `+` (union) and ` - `
//! (difference) alike, from left to right. `-` needs a space on both sides, being the sign of
//! ranges and a letter of device names as well. `~` rather than numactl's `!`, which interactive
//! shells expand even between double quotes.

use super::resources::Level;
use crate::set::{CpuSet, NodeSet, NumberSet};
use crate::size::short_bytes;
use std::fmt;
use std::ops::Range;

/// The expression. Equality is that of what is meant, not of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// A name.
    Term(Term),
    /// What the machine has besides.
    Complement(Box<Expression>),
    /// What is in both.
    Intersection(Box<Expression>, Box<Expression>),
    /// What is in either.
    Union(Box<Expression>, Box<Expression>),
    /// The first without the second.
    Difference(Box<Expression>, Box<Expression>),
}

/// A name and where it stood.
#[derive(Clone, Debug, Eq)]
pub struct Term {
    /// What it names.
    pub what: What,
    /// Bytes of the text it was read from, for messages; no part of what it means.
    pub at: Range<usize>,
}

impl PartialEq for Term {
    fn eq(&self, other: &Self) -> bool {
        self.what == other.what
    }
}

/// What a term names. Lists have a member at least, and names consist of what
/// [`is_device_letter`](super::parse::is_device_letter) allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// `machine`: all CPUs that run and all memory.
    Machine,
    /// `allowed`: what the process may use.
    Allowed,
    /// `package:0`, `node:0-1`: CPUs and memory; `domain:2`, `core:3`: CPUs alone.
    Parts(Level, NumberSet),
    /// `machine-node:3`: nodes counted from 0 over the whole machine, whatever their numbers.
    MachineNodes(NumberSet),
    /// `allowed-node:0`: nodes counted from 0 among those whose memory is allowed.
    AllowedNodes(NumberSet),
    /// `cpus:0-7`: CPUs alone.
    Cpus(CpuSet),
    /// `mem:2`: memory of nodes alone.
    Memory(NodeSet),
    /// `tier:0`: memory of all nodes of these ranks.
    Tiers(NumberSet),
    /// `local-to:eth0`: the node that a device is attached to.
    LocalTo(String),
    /// `near:gpu0`, `near:node2`: the nearest CPUs and the nearest memory.
    Near(String),
    /// `fastest:64G`: memory of the fastest nodes with so many bytes free together.
    Fastest(u64),
}

/// The words of terms, with an example of each: what the parser reads, and what its messages list.
pub const WORDS: [(&str, &str); 14] = [
    ("machine", "machine"),
    ("allowed", "allowed"),
    ("package", "package:0"),
    ("node", "node:0-1"),
    ("domain", "domain:2"),
    ("core", "core:3"),
    ("machine-node", "machine-node:3"),
    ("allowed-node", "allowed-node:0"),
    ("cpus", "cpus:0-7"),
    ("mem", "mem:2"),
    ("tier", "tier:0"),
    ("local-to", "local-to:eth0"),
    ("near", "near:gpu0"),
    ("fastest", "fastest:64G"),
];

impl From<What> for Expression {
    fn from(what: What) -> Self {
        Self::Term(Term { what, at: 0..0 })
    }
}

impl Expression {
    /// How tightly its outermost operator binds: what binds less than its place stands in
    /// parentheses.
    fn tightness(&self) -> u8 {
        match self {
            Self::Union(..) | Self::Difference(..) => 0,
            Self::Intersection(..) => 1,
            Self::Complement(_) | Self::Term(_) => 2,
        }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, least: u8) -> fmt::Result {
        if self.tightness() < least {
            f.write_str("(")?;
            self.write(f, 0)?;
            return f.write_str(")");
        }
        let pair = |f: &mut fmt::Formatter<'_>, left: &Self, sign: &str, right: &Self| {
            left.write(f, self.tightness())?;
            f.write_str(sign)?;
            right.write(f, self.tightness() + 1)
        };
        match self {
            Self::Term(term) => write!(f, "{}", term.what),
            Self::Complement(inner) => {
                f.write_str("~")?;
                inner.write(f, 2)
            }
            Self::Intersection(left, right) => pair(f, left, " & ", right),
            Self::Union(left, right) => pair(f, left, " + ", right),
            Self::Difference(left, right) => pair(f, left, " - ", right),
        }
    }
}

impl fmt::Display for Expression {
    /// The one way to write it: as few parentheses as its meaning needs, spaces around operators.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("machine"),
            Self::Allowed => f.write_str("allowed"),
            Self::Parts(level, numbers) => write!(f, "{}:{numbers}", level.word()),
            Self::MachineNodes(numbers) => write!(f, "machine-node:{numbers}"),
            Self::AllowedNodes(numbers) => write!(f, "allowed-node:{numbers}"),
            Self::Cpus(cpus) => write!(f, "cpus:{cpus}"),
            Self::Memory(nodes) => write!(f, "mem:{nodes}"),
            Self::Tiers(ranks) => write!(f, "tier:{ranks}"),
            Self::LocalTo(device) => write!(f, "local-to:{device}"),
            Self::Near(place) => write!(f, "near:{place}"),
            Self::Fastest(bytes) => write!(f, "fastest:{}", short_bytes(*bytes)),
        }
    }
}
