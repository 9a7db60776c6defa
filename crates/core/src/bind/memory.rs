//! Memory policies in the words that people use, turned into the kernel's.

use super::policy::{KernelPolicy, Mode};
use crate::rset::{Node, ResourceSet, Resources};
use crate::set::NodeSet;
use std::fmt;
use std::str::FromStr;

/// Where a program's memory is to come from (float, local, remote and striped after IBM's RSets).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryPolicy {
    /// Nothing is said: the kernel's own way, near the CPU that first touches a page.
    Float,
    /// Near the CPU that first touches a page, whatever policy hither itself was started with.
    Local,
    /// Nodes of the set that have none of its CPUs, and no others: the bad case, on purpose.
    Remote,
    /// The set's nodes in turns, page by page.
    Striped,
    /// The set's nodes and no others.
    Bind,
    /// The set's nodes while they have memory left.
    Preferred,
    /// The set's nodes in turns by the system's weights.
    Weighted,
}

impl MemoryPolicy {
    /// Every policy with its word and what it means.
    pub const ALL: [(Self, &str, &str); 7] = [
        (Self::Float, "float", "the kernel's own way"),
        (
            Self::Local,
            "local",
            "near the CPU that first touches a page",
        ),
        (
            Self::Remote,
            "remote",
            "only nodes of the set that have none of its CPUs",
        ),
        (
            Self::Striped,
            "striped",
            "the set's nodes in turns, page by page",
        ),
        (Self::Bind, "bind", "the set's nodes and no others"),
        (
            Self::Preferred,
            "preferred",
            "the set's nodes while they have memory left",
        ),
        (
            Self::Weighted,
            "weighted",
            "the set's nodes in turns by the system's weights",
        ),
    ];

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// The kernel's policy for a program on `set`. Where the set names no memory, or no CPUs, what
    /// the process may use stands for it.
    ///
    /// # Errors
    /// There is no memory that the policy could mean.
    pub fn on(self, set: &ResourceSet, resources: &Resources) -> Result<KernelPolicy, String> {
        let usable = resources.usable();
        let nodes = match set.nodes.is_empty() {
            true => &usable.nodes,
            false => &set.nodes,
        };
        let mode = match self {
            Self::Float => return Ok(KernelPolicy::new(Mode::Default, NodeSet::new())),
            Self::Local => return Ok(KernelPolicy::new(Mode::Local, NodeSet::new())),
            Self::Remote => {
                let cpus = match set.cpus.is_empty() {
                    true => &usable.cpus,
                    false => &set.cpus,
                };
                let is_remote = |node: &&Node| {
                    nodes.contains(node.id) && node.cpus.intersection(cpus).is_empty()
                };
                let remote = resources.nodes.iter().filter(is_remote);
                let remote: NodeSet = remote.map(|node| node.id).collect();
                if remote.is_empty() {
                    return Err(format!(
                        "`remote`: each of the nodes {nodes} has some of the CPUs {cpus}; \
                         name fewer CPUs or more memory"
                    ));
                }
                return Ok(KernelPolicy::new(Mode::Bind, remote));
            }
            Self::Striped => Mode::Interleave,
            Self::Bind => Mode::Bind,
            Self::Preferred if nodes.len() == 1 => Mode::Preferred,
            Self::Preferred => Mode::PreferredMany,
            Self::Weighted => Mode::WeightedInterleave,
        };
        if nodes.is_empty() {
            return Err(format!("`{self}`: this process may use no node's memory"));
        }
        Ok(KernelPolicy::new(mode, nodes.clone()))
    }
}

impl fmt::Display for MemoryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for MemoryPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, word, _)| *word == text);
        found.map(|(policy, ..)| *policy).ok_or_else(|| {
            let words: Vec<&str> = Self::ALL.iter().map(|(_, word, _)| *word).collect();
            format!(
                "there is no memory policy `{text}`; there are {}",
                words.join(", ")
            )
        })
    }
}
