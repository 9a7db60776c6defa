//! Partitions: a machine split into isolated parts of whole nodes or domains.
//!
//! After the partitions of IBM's ccNUMA work: static ones are written in a file ([`file`]) and made
//! at boot; a node can be moved between two of them while their programs run ([`state`]); a global
//! resource manager decides by goals which one ([`manager`]). What is written to the kernel, and in
//! which order, follows from where the machine is and where it shall be ([`writes`]).
//!
//! Terms: the *rest* is what no partition has: the system's own programs run there. A part of the
//! machine can also be left to nobody: it is *unused*. An *owner* is a partition or the rest.
//!
//! What always holds, of every layout that [`Layout::check`] passes: no CPU has two owners; a domain
//! has one; every owner has CPUs and memory; memory has two owners only where each has some of the
//! node's own CPUs.
//!
//! Source: "Experience with building a commodity Intel-based ccNUMA system", IBM J. R&D 2001,
//! section on partitions; the kernel's `Documentation/admin-guide/cgroup-v2.rst`, cpuset.

pub mod file;
pub mod manager;
pub mod state;
#[cfg(test)]
mod tests;
pub mod writes;

use crate::ids::NodeId;
use crate::rset::{Level, ResourceSet, Resources};
use serde::{Deserialize, Serialize};

pub use state::{Moving, Stage, State};
pub use writes::{Group, Write};

/// The owner of what no partition has.
pub const REST: &str = "rest";

/// What nobody has, in messages.
const UNUSED: &str = "unused";

/// How a partition's CPUs are scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The scheduler balances threads among the partition's CPUs.
    #[default]
    Root,
    /// No balancing: each thread stays on the CPU that it was given. For programs that bind their
    /// threads themselves.
    Isolated,
}

impl Kind {
    /// The kernel's word (`cpuset.cpus.partition`).
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Isolated => "isolated",
        }
    }
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Its name.
    pub name: String,
    /// How its CPUs are scheduled.
    pub kind: Kind,
    /// Its CPUs and its memory.
    pub set: ResourceSet,
}

/// Who has what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// What no partition has.
    pub rest: ResourceSet,
    /// What nobody has.
    pub unused: ResourceSet,
    /// The partitions, in the order of their file.
    pub partitions: Vec<Partition>,
}

impl Layout {
    /// What an owner has; `None`: there is no such owner.
    #[must_use]
    pub fn of(&self, owner: &str) -> Option<&ResourceSet> {
        if owner == REST {
            return Some(&self.rest);
        }
        let found = self.partitions.iter().find(|part| part.name == owner);
        found.map(|part| &part.set)
    }

    fn of_mut(&mut self, owner: &str) -> Option<&mut ResourceSet> {
        if owner == REST {
            return Some(&mut self.rest);
        }
        let found = self.partitions.iter_mut().find(|part| part.name == owner);
        found.map(|part| &mut part.set)
    }

    /// Every owner with what it has: the rest first, then the partitions.
    pub fn owners(&self) -> impl Iterator<Item = (&str, &ResourceSet)> {
        let parts = self.partitions.iter();
        std::iter::once((REST, &self.rest)).chain(parts.map(|part| (part.name.as_str(), &part.set)))
    }

    /// Names of all owners, for a person.
    #[must_use]
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.owners().map(|(name, _)| name).collect();
        names.join(", ")
    }

    /// The node's CPUs and memory as far as the machine has them, if the owner has all of that and
    /// nobody shares it.
    ///
    /// # Errors
    /// There is no such owner or node, or the node is not the owner's alone: half a sentence.
    pub fn whole_node(
        &self,
        node: NodeId,
        owner: &str,
        machine: &Resources,
    ) -> Result<ResourceSet, String> {
        let held = self.of(owner).ok_or_else(|| {
            format!(
                "there is no partition `{owner}`; there are {}",
                self.names()
            )
        })?;
        let position = machine.position(node).ok_or_else(|| {
            let ids: Vec<String> = machine.nodes.iter().map(|n| n.id.to_string()).collect();
            format!("there is no {node}; there are {}", ids.join(", "))
        })?;
        let set = machine.nodes[position].set();
        let others = self.owners().filter(|(name, _)| *name != owner);
        let shares: Vec<&str> = others
            .filter(|(_, other)| !other.intersection(&set).is_empty())
            .map(|(name, _)| name)
            .collect();
        match (set.is_subset(held), shares.is_empty()) {
            (true, true) => Ok(set),
            (false, false) => Err(format!(
                "{node} is not in `{owner}` but in {}",
                shares.join(", ")
            )),
            (true, false) => Err(format!(
                "{node} is shared with {}: only whole nodes move",
                shares.join(", ")
            )),
            (false, true) => Err(format!("{node} is not in `{owner}` as a whole")),
        }
    }

    /// Does the layout keep what every layout keeps?
    ///
    /// # Errors
    /// The owner that breaks it, and how.
    pub fn check(&self, machine: &Resources) -> Result<(), Broken> {
        // What was left over is judged last, so that the fault is told of what was written.
        let parts = self.owners().skip(1).chain(self.owners().take(1));
        let parts = parts.chain(std::iter::once((UNUSED, &self.unused)));
        let parts: Vec<(&str, &ResourceSet)> = parts.collect();
        for (index, &(name, set)) in parts.iter().enumerate() {
            let broken = |reason: String| {
                Err(Broken {
                    owner: name.to_owned(),
                    reason,
                })
            };
            if name != UNUSED && set.cpus.is_empty() {
                return broken("has no CPU; name fewer for the others, or `on` for it".to_owned());
            }
            if name != UNUSED && set.nodes.is_empty() {
                return broken(
                    "has no memory; name some, as in `domain:1 + mem:0` for CPUs of node 0"
                        .to_owned(),
                );
            }
            for (number, core) in machine.parts(Level::Core) {
                if cuts(&core, set) {
                    return broken(format!(
                        "has only some CPUs of core {number}: take all of them or none"
                    ));
                }
            }
            for (number, domain) in machine.parts(Level::Domain) {
                if cuts(&domain, set) {
                    return broken(format!(
                        "has only some of the CPUs {} of domain {number}, which share a cache: \
                         take all of them or none",
                        domain.cpus
                    ));
                }
            }
            for &(other, theirs) in &parts[..index] {
                let both = set.intersection(theirs);
                if !both.cpus.is_empty() {
                    return broken(format!("has the CPUs {} of {other} too", both.cpus));
                }
                let is_split = |node: NodeId| {
                    let at = machine.position(node);
                    at.is_some_and(|at| {
                        let own = &machine.nodes[at].cpus;
                        [set, theirs]
                            .iter()
                            .all(|part| !own.intersection(&part.cpus).is_empty())
                    })
                };
                if let Some(node) = both.nodes.iter().find(|&node| !is_split(node)) {
                    return broken(format!(
                        "has the memory of {node} as {other} has; only those who have some of its \
                         CPUs can share it"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Which owner breaks a layout, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The owner, or `unused`.
    pub owner: String,
    /// Half a sentence that begins with a verb.
    pub reason: String,
}

/// Has the set some CPUs of the part and not all?
fn cuts(part: &ResourceSet, set: &ResourceSet) -> bool {
    let both = part.cpus.intersection(&set.cpus);
    !both.is_empty() && both != part.cpus
}
