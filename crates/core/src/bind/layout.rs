//! How one allocation lies on the nodes of a set: a memory policy, with a stride of stripes or a
//! home node.
//!
//! The kernel's interleaving takes turns page by page. A stripe of several pages is made of ranges
//! that each prefer one node: where a node is full, its pages come from others, as with the
//! kernel's own interleaving.

use super::memory::MemoryPolicy;
use super::policy::{KernelPolicy, Mode};
use crate::ids::NodeId;
use crate::rset::{ResourceSet, Resources};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// What is asked for: `bind`, `striped:16` (16 pages of a node at a time), `preferred@2` (node 2
/// first).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryLayout {
    /// How nodes are chosen.
    pub policy: MemoryPolicy,
    /// Pages of 4096 bytes that a node gets in its turn; 1 but for `striped`.
    pub stride_pages: u64,
    /// The node from which pages come first, or those nearest to it (Linux 5.17).
    pub home: Option<NodeId>,
}

/// A layout on the nodes of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Laid {
    /// Of the whole; where `stride_pages` is more than 1, an interleaving that stands for the
    /// policies of the stripes.
    policy: KernelPolicy,
    stride_pages: u64,
    home: Option<NodeId>,
}

impl MemoryLayout {
    /// What is meant where nothing is said: `bind` where the set has memory, else `float`.
    #[must_use]
    pub fn usual(set: &ResourceSet) -> Self {
        match set.nodes.is_empty() {
            true => MemoryPolicy::Float.into(),
            false => MemoryPolicy::Bind.into(),
        }
    }

    /// Works it out for a set.
    ///
    /// # Errors
    /// The set has no memory for it, or stride or home do not go with the policy.
    pub fn on(self, set: &ResourceSet, resources: &Resources) -> Result<Laid, String> {
        let mut policy = self.policy.on(set, resources)?;
        if self.stride_pages == 0 {
            return Err("the stride is 0 pages: it is 1 or more".to_owned());
        }
        if self.stride_pages > 1 && self.policy != MemoryPolicy::Striped {
            return Err(format!(
                "`{}` has no stride: `striped` has one",
                self.policy
            ));
        }
        if let Some(home) = self.home {
            if !matches!(self.policy, MemoryPolicy::Bind | MemoryPolicy::Preferred) {
                return Err(format!(
                    "`{}` has no home node: `bind` and `preferred` have one",
                    self.policy
                ));
            }
            if resources.position(home).is_none() {
                let known = resources.nodes.iter().map(|node| node.id);
                let known: crate::set::NodeSet = known.collect();
                return Err(format!(
                    "the home node {} is not there; this machine has {known}",
                    home.0
                ));
            }
            // The kernel knows a home of these two modes alone.
            if policy.mode == Mode::Preferred {
                policy.mode = Mode::PreferredMany;
            }
        }
        Ok(Laid {
            policy,
            stride_pages: self.stride_pages,
            home: self.home,
        })
    }
}

impl From<MemoryPolicy> for MemoryLayout {
    fn from(policy: MemoryPolicy) -> Self {
        Self {
            policy,
            stride_pages: 1,
            home: None,
        }
    }
}

impl Laid {
    /// The policy of the whole, for a person.
    #[must_use]
    pub fn policy(&self) -> &KernelPolicy {
        &self.policy
    }

    /// The node from which pages come first.
    #[must_use]
    pub fn home(&self) -> Option<NodeId> {
        self.home
    }

    /// The node of a page whose turn is known; `None` where the kernel takes turns or chooses.
    fn turn_of(&self, page: u64) -> Option<NodeId> {
        let count = self.policy.nodes.len() as u64;
        if self.stride_pages == 1 || count == 0 {
            return None;
        }
        let turn = page / self.stride_pages % count;
        self.policy.nodes.iter().nth(turn as usize)
    }

    /// How many parts [`Laid::parts`] has, each a mapping of the kernel's.
    #[must_use]
    pub fn part_count(&self, pages: u64) -> u64 {
        match (self.stride_pages, self.policy.nodes.len()) {
            (1, _) | (_, 1) => 1,
            (stride, _) => pages.div_ceil(stride),
        }
    }

    /// Parts of so many pages with a kernel policy each, in order and without gaps.
    pub fn parts(&self, pages: u64) -> impl Iterator<Item = (Range<u64>, KernelPolicy)> + '_ {
        let length = match self.part_count(pages) {
            0 | 1 => pages.max(1),
            _ => self.stride_pages,
        };
        (0..pages).step_by(length as usize).map(move |first| {
            let policy = match self.turn_of(first) {
                Some(node) => KernelPolicy::new(Mode::Preferred, [node].into_iter().collect()),
                None => self.policy.clone(),
            };
            (first..(first + length).min(pages), policy)
        })
    }
}

impl fmt::Display for MemoryLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.policy)?;
        if self.stride_pages != 1 {
            write!(f, ":{}", self.stride_pages)?;
        }
        if let Some(home) = self.home {
            write!(f, "@{}", home.0)?;
        }
        Ok(())
    }
}

/// As printed.
impl FromStr for MemoryLayout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |digits: &str, what: &str| {
            digits.parse().map_err(|_| {
                format!("`{digits}` in `{text}` is no {what}: write a number, as in {EXAMPLES}")
            })
        };
        let (rest, home) = match text.split_once('@') {
            Some((rest, digits)) => {
                let home = number(digits, "node")?;
                let home = u32::try_from(home).map_err(|_| format!("there is no node {home}"))?;
                (rest, Some(NodeId(home)))
            }
            None => (text, None),
        };
        let (word, stride_pages) = match rest.split_once(':') {
            Some((word, digits)) => (word, number(digits, "stride in pages")?),
            None => (rest, 1),
        };
        let policy = word.parse()?;
        Ok(Self {
            policy,
            stride_pages,
            home,
        })
    }
}

const EXAMPLES: &str = "`striped:16` or `bind@2`";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rset::Node;

    /// Three nodes with memory, numbered 0, 2 and 5; CPUs 0 and 1 on node 0.
    fn machine() -> Resources {
        let node = |id: u32, cpus: &str| Node {
            id: NodeId(id),
            cpus: cpus.parse().unwrap(),
            total_bytes: 1 << 30,
            free_bytes: 1 << 30,
            available_bytes: 1 << 30,
            tier: None,
            read_bandwidth_mbs: None,
        };
        let mut resources = Resources {
            nodes: vec![node(0, "0-1"), node(2, ""), node(5, "")],
            packages: Vec::new(),
            domains: Vec::new(),
            cores: Vec::new(),
            offline: Default::default(),
            distances: vec![vec![10; 3]; 3],
            devices: Vec::new(),
            allowed: ResourceSet::new(),
        };
        resources.allowed = resources.machine();
        resources
    }

    fn laid(layout: &str, nodes: &str) -> Result<Laid, String> {
        let set = ResourceSet::of_memory(nodes.parse().unwrap());
        let layout: MemoryLayout = layout.parse()?;
        layout.on(&set, &machine())
    }

    #[test]
    fn texts_are_read_and_printed_again() {
        for text in ["bind", "striped", "striped:16", "bind@2", "preferred@0"] {
            let layout: MemoryLayout = text.parse().unwrap();
            assert_eq!(layout.to_string(), text);
        }
        for (bad, says) in [
            ("nearest", "there is no memory policy `nearest`"),
            ("striped:", "no stride"),
            ("striped:-1", "no stride"),
            ("bind@x", "no node"),
            ("bind@4294967296", "no node 4294967296"),
            ("", "there is no memory policy"),
        ] {
            let why = bad.parse::<MemoryLayout>().unwrap_err();
            assert!(why.contains(says), "{bad}: {why}");
        }
    }

    /// Stride 2 on nodes 0, 2, 5: pages 0 1 | 2 3 | 4 5 | 6, of 0, 2, 5, 0.
    #[test]
    fn stripes_take_turns() {
        let striped = laid("striped:2", "0,2,5").unwrap();
        let parts: Vec<String> = striped
            .parts(7)
            .map(|(pages, policy)| format!("{}-{} {policy}", pages.start, pages.end))
            .collect();
        let expected = [
            "0-2 prefer:0",
            "2-4 prefer:2",
            "4-6 prefer:5",
            "6-7 prefer:0",
        ];
        assert_eq!(parts, expected);
        assert_eq!(striped.part_count(7), 4);
        // Of one node there is nothing to take turns with.
        let alone = laid("striped:2", "5").unwrap();
        let parts: Vec<_> = alone.parts(9).collect();
        assert_eq!((parts.len(), parts[0].0.clone()), (1, 0..9));
        assert_eq!(parts[0].1.to_string(), "prefer:5");
    }

    #[test]
    fn other_layouts_are_one_part() {
        for (layout, kernel) in [
            ("striped", "interleave:0,2"),
            ("bind", "bind:0,2"),
            ("bind@5", "bind:0,2"),
            ("preferred", "prefer (many):0,2"),
            ("weighted", "weighted interleave:0,2"),
            ("local", "local"),
        ] {
            let laid = laid(layout, "0,2").unwrap();
            let parts: Vec<_> = laid.parts(100).collect();
            assert_eq!((parts.len(), parts[0].0.clone()), (1, 0..100), "{layout}");
            assert_eq!(parts[0].1.to_string(), kernel);
        }
        assert_eq!(
            laid("preferred@2", "0").unwrap().policy().to_string(),
            "prefer (many):0"
        );
        assert_eq!(laid("bind", "0").unwrap().parts(0).count(), 0);
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for (layout, says) in [
            ("striped:0", "1 or more"),
            ("bind:4", "`bind` has no stride"),
            ("striped@0", "`striped` has no home node"),
            (
                "bind@1",
                "the home node 1 is not there; this machine has 0,2,5",
            ),
        ] {
            let why = laid(layout, "0").unwrap_err();
            assert!(why.contains(says), "{layout}: {why}");
        }
    }
}
