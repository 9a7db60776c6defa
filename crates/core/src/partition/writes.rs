//! From the control groups that there are to those that there shall be: what to write, in which
//! order.
//!
//! Two partitions that name the same CPU make one of them invalid, for as long as they do. So CPUs
//! are given up before they are taken, and a group that goes gives up all of its own. Memory comes
//! before the CPUs that will use it.

use super::Kind;
use crate::rset::ResourceSet;
use crate::set::{CpuSet, NodeSet};

/// The name of the group that holds CPUs on their way: no partition can be called so.
pub const MOVING: &str = "moving";

/// A control group as far as partitions go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The owner's name, or [`MOVING`].
    pub name: String,
    /// What kind of partition; `None`: none, as for the rest, or not yet.
    pub kind: Option<Kind>,
    /// CPUs (none for the rest, which has what is left) and memory.
    pub set: ResourceSet,
}

/// One change of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// It is made, without anything.
    Make(String),
    /// Its memory.
    Nodes(String, NodeSet),
    /// Its CPUs.
    Cpus(String, CpuSet),
    /// It becomes a partition, or another kind of one.
    Kind(String, Kind),
    /// It goes; it has no processes.
    Remove(String),
}

/// What leads from the one to the other.
#[must_use]
pub fn writes(present: &[Group], wanted: &[Group]) -> Vec<Write> {
    fn named<'a>(groups: &'a [Group], name: &str) -> Option<&'a Group> {
        groups.iter().find(|group| group.name == name)
    }
    let mut writes = Vec::new();
    let both = wanted
        .iter()
        .filter_map(|group| Some((named(present, &group.name)?, group)));
    for (now, then) in both {
        let kept = now.set.cpus.intersection(&then.set.cpus);
        if kept != now.set.cpus && !kept.is_empty() {
            writes.push(Write::Cpus(then.name.clone(), kept));
        }
    }
    for group in present {
        if named(wanted, &group.name).is_none() {
            writes.push(Write::Remove(group.name.clone()));
        }
    }
    for group in wanted {
        let now = named(present, &group.name);
        if now.is_none() {
            writes.push(Write::Make(group.name.clone()));
        }
        if now.is_none_or(|now| now.set.nodes != group.set.nodes) {
            writes.push(Write::Nodes(group.name.clone(), group.set.nodes.clone()));
        }
    }
    for group in wanted {
        let now = named(present, &group.name);
        if !group.set.cpus.is_empty() && now.is_none_or(|now| now.set.cpus != group.set.cpus) {
            writes.push(Write::Cpus(group.name.clone(), group.set.cpus.clone()));
        }
        if let Some(kind) = group.kind
            && now.is_none_or(|now| now.kind != Some(kind))
        {
            writes.push(Write::Kind(group.name.clone(), kind));
        }
    }
    writes
}
