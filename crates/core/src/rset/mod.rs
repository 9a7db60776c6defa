//! Resource sets: CPUs and memory nodes as one thing that a program can be given.
//!
//! After the RSets of IBM's ccNUMA work: a program that is bound to one runs on its CPUs alone and
//! takes memory from its nodes alone. People write them as a text, which this module reads
//! ([`parse`]), keeps as an [`Expression`], and works out against a description of the machine
//! ([`Resources`]): [`Expression::resolve`] gives a [`ResourceSet`], clipped to what the process is
//! allowed, with a sentence for everything left out.
//!
//! Terms: a [`ResourceSet`] holds the numbers of CPUs that run and of nodes **with memory**. A node
//! without CPUs adds memory only, one without memory CPUs only, and neither is an error. A
//! complement is relative to the machine, not to what is allowed, so that the laws of sets hold
//! whatever the cpuset is; clipping is the last step and happens once.
//!
//! What always holds: printing and parsing again gives the same expression; operators mean union,
//! intersection, difference and complement of both parts; what is resolved is a subset of what was
//! asked and of what is allowed, and never silently so.

pub mod expression;
pub mod parse;
pub mod resolve;
pub mod resources;
#[cfg(test)]
mod tests;

pub use expression::{Expression, Term, What};
pub use parse::ExpressionFault;
pub use resolve::Resolved;
pub use resources::{Device, Level, Node, Resources};

use crate::set::{CpuSet, NodeSet};

/// CPUs and the nodes whose memory goes with them.
#[derive(
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct ResourceSet {
    /// CPUs to run on. A set without any says nothing of CPUs: it is one of memory alone.
    pub cpus: CpuSet,
    /// Nodes to take memory from; a set without any is one of CPUs alone.
    pub nodes: NodeSet,
}

impl ResourceSet {
    /// The empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// CPUs alone.
    #[must_use]
    pub fn of_cpus(cpus: CpuSet) -> Self {
        Self {
            cpus,
            nodes: NodeSet::new(),
        }
    }

    /// Memory alone.
    #[must_use]
    pub fn of_memory(nodes: NodeSet) -> Self {
        Self {
            cpus: CpuSet::new(),
            nodes,
        }
    }

    /// Has it neither CPUs nor memory?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cpus.is_empty() && self.nodes.is_empty()
    }

    /// What is in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self {
            cpus: self.cpus.union(&other.cpus),
            nodes: self.nodes.union(&other.nodes),
        }
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self {
            cpus: self.cpus.intersection(&other.cpus),
            nodes: self.nodes.intersection(&other.nodes),
        }
    }

    /// What the other has not.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self {
            cpus: self.cpus.difference(&other.cpus),
            nodes: self.nodes.difference(&other.nodes),
        }
    }

    /// What the machine has besides.
    #[must_use]
    pub fn complement(&self, machine: &Self) -> Self {
        machine.difference(self)
    }

    /// Has the other all of it?
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.cpus.is_subset(&other.cpus) && self.nodes.is_subset(&other.nodes)
    }
}
