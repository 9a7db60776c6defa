//! The kernel's memory policies, as it takes them and as it prints them.

use crate::ids::NodeId;
use crate::set::NodeSet;
use std::fmt;
use std::str::FromStr;

/// How the kernel chooses the node of a new page (`set_mempolicy(2)`, with its numbers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Near the CPU that asks, unless something wider says otherwise.
    Default = 0,
    /// One node if it has memory left, else the nearest to it.
    Preferred = 1,
    /// These nodes alone.
    Bind = 2,
    /// In turns.
    Interleave = 3,
    /// Near the CPU that asks, whatever something wider says (Linux 3.8).
    Local = 4,
    /// These nodes if they have memory left, nearest first, else others (Linux 5.15).
    PreferredMany = 5,
    /// In turns by the system's weights (Linux 6.9).
    WeightedInterleave = 6,
}

impl Mode {
    /// Every mode with what `/proc/PID/numa_maps` calls it.
    const ALL: [(Self, &str); 7] = [
        (Self::Default, "default"),
        (Self::Preferred, "prefer"),
        (Self::Bind, "bind"),
        (Self::Interleave, "interleave"),
        (Self::Local, "local"),
        (Self::PreferredMany, "prefer (many)"),
        (Self::WeightedInterleave, "weighted interleave"),
    ];

    /// What `/proc/PID/numa_maps` calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// The mode with the kernel's number.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).map(|(mode, _)| *mode)
    }

    /// Does it name nodes?
    #[must_use]
    pub fn has_nodes(self) -> bool {
        !matches!(self, Self::Default | Self::Local)
    }
}

/// A memory policy of the kernel's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelPolicy {
    /// How nodes are chosen.
    pub mode: Mode,
    /// Among which; empty where the mode names none.
    pub nodes: NodeSet,
    /// Does NUMA balancing go over memory that is bound (`MPOL_F_NUMA_BALANCING`)?
    pub is_balanced: bool,
}

impl KernelPolicy {
    /// A policy without balancing.
    #[must_use]
    pub fn new(mode: Mode, nodes: NodeSet) -> Self {
        Self {
            mode,
            nodes,
            is_balanced: false,
        }
    }

    /// One node's memory and no other.
    #[must_use]
    pub fn bound_to(node: NodeId) -> Self {
        Self::new(Mode::Bind, [node].into_iter().collect())
    }

    /// Of pages by node, those on a node that it does not name; `None` where it names none, so that
    /// any node is right. Preferred nodes may be full: then it is no fault of anybody's, and told
    /// all the same.
    #[must_use]
    pub fn astray(&self, pages: &[(NodeId, u64)]) -> Option<u64> {
        let other = pages.iter().filter(|(node, _)| !self.nodes.contains(*node));
        self.mode
            .has_nodes()
            .then(|| other.map(|(_, count)| count).sum())
    }
}

/// As `/proc/PID/numa_maps` prints it: `bind:0-1`, `prefer (many):1`, `bind=balancing:0`, `local`.
impl fmt::Display for KernelPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mode.name())?;
        if self.is_balanced {
            f.write_str("=balancing")?;
        }
        if !self.nodes.is_empty() {
            write!(f, ":{}", self.nodes)?;
        }
        Ok(())
    }
}

/// A policy in words that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no memory policy of the kernel's, as in `bind:0-1` or `interleave:0,2`")]
pub struct PolicyError(pub String);

/// Reads what `/proc/PID/numa_maps` prints. Other flags than balancing (`static`, `relative`) say
/// what becomes of the nodes when the cpuset changes, which is past; they are dropped.
impl FromStr for KernelPolicy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let fault = || PolicyError(text.to_owned());
        let (head, nodes) = match text.split_once(':') {
            Some((head, list)) => (head, list.parse().map_err(|_| fault())?),
            None => (text, NodeSet::new()),
        };
        let (name, flags) = head.split_once('=').unwrap_or((head, ""));
        let known = Mode::ALL.iter().find(|(_, known)| *known == name);
        let (mode, _) = *known.ok_or_else(fault)?;
        if nodes.is_empty() == mode.has_nodes() {
            return Err(fault());
        }
        Ok(Self {
            mode,
            nodes,
            is_balanced: flags.split('|').any(|flag| flag == "balancing"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(list: &str) -> NodeSet {
        list.parse().unwrap()
    }

    #[test]
    fn what_the_kernel_prints_is_read_and_printed_again() {
        for text in [
            "default",
            "local",
            "bind:0-1",
            "bind=balancing:0",
            "interleave:0,8",
            "prefer:3",
            "prefer (many):0,2-3",
            "weighted interleave:0-1",
        ] {
            let policy: KernelPolicy = text.parse().unwrap();
            assert_eq!(policy.to_string(), text);
            assert_eq!(Mode::of_number(policy.mode as u32), Some(policy.mode));
        }
        let flags: KernelPolicy = "bind=static|balancing:1".parse().unwrap();
        assert_eq!(flags.to_string(), "bind=balancing:1");
        for bad in [
            "",
            "bind",
            "bind:",
            "local:0",
            "bind:x",
            "nearest:1",
            "prefer (some):1",
        ] {
            assert!(bad.parse::<KernelPolicy>().is_err(), "{bad}");
        }
        assert_eq!(Mode::of_number(7), None);
    }

    #[test]
    fn pages_elsewhere_are_counted_where_nodes_are_named() {
        let pages = [(NodeId(0), 5), (NodeId(1), 7), (NodeId(8), 2)];
        let astray = |mode, list| KernelPolicy::new(mode, nodes(list)).astray(&pages);
        assert_eq!(astray(Mode::Bind, "0-1"), Some(2));
        assert_eq!(astray(Mode::Interleave, "0-8"), Some(0));
        assert_eq!(astray(Mode::Local, ""), None);
        assert_eq!(astray(Mode::Default, ""), None);
    }
}
