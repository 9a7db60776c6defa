//! Which pages of a process are astray: on a node that what it is bound to does not name.
//!
//! Problem: a server that binds itself after it has begun, or is moved by an administrator, leaves
//! what it has on the nodes where it was. Nothing brings those pages after it: a policy concerns new
//! pages alone, and NUMA balancing leaves bound memory as it is.
//!
//! Mechanism: each mapping has the nodes of its memory policy, where that names some. Otherwise it has
//! those of the CPUs that the process's threads may run on, within what its cpuset allows ([`AstrayHome`]).
//! A process that may run everywhere and has no policy is bound to nothing, and nothing of it is
//! astray: where its memory is best is then a question of accesses, which policies answer.
//!
//! Nodes without CPUs are never wrong for memory that follows CPUs: pages get there by demotion or
//! because somebody has put them there, and tiers decide on them.

use super::KernelPolicy;
use crate::ids::NodeId;
use crate::set::{CpuSet, NodeSet};

/// A node, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AstrayPlace {
    /// Which.
    pub node: NodeId,
    /// Its CPUs that run.
    pub cpus: CpuSet,
    /// Has it memory?
    pub has_memory: bool,
}

/// Where the memory of a process belongs that has no policy of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AstrayHome {
    /// Nodes that new pages should come from; empty where it is bound to nothing.
    pub nodes: NodeSet,
    /// Nodes on which its pages are not astray.
    pub right: NodeSet,
    /// All nodes with memory.
    pub all: NodeSet,
}

/// Nodes that a mapping's pages belong on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// On these a page is right.
    pub right: NodeSet,
    /// One that is not goes to these, in turns.
    pub targets: Vec<NodeId>,
}

impl AstrayHome {
    /// Of a process whose threads may run on these CPUs and take memory from these nodes (`None`: any).
    #[must_use]
    pub fn of(places: &[AstrayPlace], cpus: Option<&CpuSet>, allowed: Option<&NodeSet>) -> Self {
        let pick = |is: &dyn Fn(&AstrayPlace) -> bool| -> NodeSet {
            let picked = places.iter().filter(|place| is(place));
            picked.map(|place| place.node).collect()
        };
        let all = pick(&|place| place.has_memory);
        let of_cpus = pick(&|place| {
            let used = cpus.is_none_or(|cpus| !place.cpus.intersection(cpus).is_empty());
            place.has_memory && !place.cpus.is_empty() && used
        });
        let without_cpus = pick(&|place| place.has_memory && place.cpus.is_empty());
        let with_cpus = all.difference(&without_cpus);
        let allowed = allowed.map_or(all.clone(), |allowed| all.intersection(allowed));
        let nodes = of_cpus.intersection(&allowed);
        // CPUs without memory that they may use: what is left is what the cpuset says.
        let nodes = if nodes.is_empty() {
            allowed.clone()
        } else {
            nodes
        };
        if with_cpus.is_subset(&nodes) && all.is_subset(&allowed) {
            return Self {
                all,
                ..Self::default()
            };
        }
        Self {
            right: nodes.union(&without_cpus.intersection(&allowed)),
            nodes,
            all,
        }
    }

    /// Is the process bound to fewer nodes than there are?
    #[must_use]
    pub fn is_bound(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Where pages under a policy belong; `None` where nothing says so.
    #[must_use]
    pub fn bound(&self, policy: &KernelPolicy) -> Option<Bound> {
        let (right, targets) = match policy.mode.has_nodes() {
            true => (&policy.nodes, policy.nodes.intersection(&self.all)),
            false if self.is_bound() => (&self.right, self.nodes.clone()),
            false => return None,
        };
        (!targets.is_empty()).then(|| Bound {
            right: right.clone(),
            targets: targets.iter().collect(),
        })
    }
}

impl Bound {
    /// Of pages by node, those that are astray.
    #[must_use]
    pub fn astray(&self, pages: &[(NodeId, u64)]) -> u64 {
        let other = pages.iter().filter(|(node, _)| !self.right.contains(*node));
        other.map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets of four CPUs, a node of CXL memory, and CPUs without memory.
    fn places() -> Vec<AstrayPlace> {
        let place = |node, cpus: &str, has_memory| AstrayPlace {
            node: NodeId(node),
            cpus: cpus.parse().unwrap(),
            has_memory,
        };
        vec![
            place(0, "0-3", true),
            place(1, "4-7", true),
            place(2, "", true),
            place(5, "8-9", false),
        ]
    }

    fn home(cpus: &str, allowed: Option<&str>) -> AstrayHome {
        let allowed = allowed.map(|list| list.parse().unwrap());
        AstrayHome::of(&places(), Some(&cpus.parse().unwrap()), allowed.as_ref())
    }

    #[test]
    fn who_may_run_everywhere_is_bound_to_nothing() {
        assert!(!home("0-9", None).is_bound() && !home("0-4", None).is_bound());
        assert!(!home("0-255", Some("0-63")).is_bound());
        assert!(!AstrayHome::of(&places(), None, None).is_bound());
        assert_eq!(home("0-9", None).bound(&"local".parse().unwrap()), None);
    }

    #[test]
    fn cpus_and_cpuset_say_where_memory_belongs() {
        let told = |home: AstrayHome| (home.nodes.to_string(), home.right.to_string());
        let pair = |nodes: &str, right: &str| (nodes.to_owned(), right.to_owned());
        assert_eq!(told(home("5,6", None)), pair("1", "1-2"));
        assert_eq!(told(home("5,6", Some("0-1"))), pair("1", "1"));
        // Everywhere, but memory from one node alone; CPUs of which none has memory that it may use.
        assert_eq!(told(home("0-9", Some("1"))), pair("1", "1"));
        assert_eq!(told(home("0-3", Some("1"))), pair("1", "1"));
        assert_eq!(told(home("8", Some("0-1"))), pair("0-1", "0-1"));
    }

    #[test]
    fn a_policy_with_nodes_comes_first() {
        let home = home("4-7", None);
        let pages = [(NodeId(0), 22), (NodeId(1), 70), (NodeId(2), 8)];
        let astray = |policy: &str| {
            let bound = home.bound(&policy.parse().unwrap());
            bound.map(|bound| (bound.astray(&pages), bound.targets))
        };
        assert_eq!(astray("default"), Some((22, vec![NodeId(1)])));
        assert_eq!(astray("bind:0-1"), Some((8, vec![NodeId(0), NodeId(1)])));
        assert_eq!(astray("prefer:2"), Some((92, vec![NodeId(2)])));
        assert_eq!(astray("bind:5"), None, "it has no memory");
    }
}
