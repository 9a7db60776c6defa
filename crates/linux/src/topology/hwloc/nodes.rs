//! Nodes of hwloc's files: their memory, and which CPUs are local to them.
//!
//! The CPUs of a `NUMANode` are those near its memory. Where it has CPUs of its own in the kernel's
//! sense, they are these; memory without CPUs (HBM, CXL) is given CPUs of other nodes. Told apart
//! like this: each CPU belongs to the node with the fewest CPUs among those that name it, and of
//! equal ones to the lowest number, as firmware numbers nodes with CPUs first. The rule fails where
//! it does not, and where the memory of two nodes with CPUs is equally near to the CPUs of both.
//! Files of ours say it themselves.

use super::xml::Element;
use super::{INFO_CACHE, INFO_CPUS, INFO_FREE, INFO_TIER, INFO_WEIGHT};
use crate::parse::{self, NodeMemory, Parsed};
use crate::topology::{HugePages, NodeInfo, Tier};
use hither_core::ids::NodeId;
use hither_core::set::CpuSet;

/// A `NUMANode` as the file has it.
pub(super) struct Found<'a> {
    pub element: &'a Element,
    pub id: NodeId,
    pub gp_index: Option<u64>,
    /// Its cpuset.
    pub near: CpuSet,
    total_kb: u64,
    /// Bytes of a page and how many there are, ascending.
    pages: Vec<(u64, u64)>,
    own: Option<CpuSet>,
    free_kb: Option<u64>,
    cache_kb: Option<u64>,
    /// Number of its tier; lower is faster.
    pub tier: Option<u32>,
    weight: Option<u64>,
}

impl<'a> Found<'a> {
    pub fn read(element: &'a Element, near: CpuSet) -> Parsed<Self> {
        let bytes: u64 = element.number("local_memory")?.unwrap_or(0);
        if bytes >= 1 << 60 {
            return Err(element.fault(format!("has {bytes} bytes of memory, no machine has")));
        }
        let mut pages = Vec::new();
        for kind in element.children_named("page_type") {
            let size: u64 = kind.required_number("size")?;
            let count: u64 = kind.number("count")?.unwrap_or(0);
            if size.checked_mul(count).is_none_or(|total| total > 1 << 60) {
                return Err(kind.fault(format!("{count} pages of {size} bytes are too many")));
            }
            pages.push((size, count));
        }
        pages.sort_unstable();
        let total_kb = bytes / 1024;
        let found = Self {
            element,
            id: NodeId(element.required_number("os_index")?),
            gp_index: element.number("gp_index")?,
            near,
            total_kb,
            pages,
            own: info(element, INFO_CPUS, parse::list)?,
            free_kb: info(element, INFO_FREE, parse::number)?,
            cache_kb: info(element, INFO_CACHE, parse::number)?,
            tier: info(element, INFO_TIER, parse::number)?.and_then(|tier| tier.try_into().ok()),
            weight: info(element, INFO_WEIGHT, parse::number)?,
        };
        let weight = found.weight.unwrap_or(1);
        if !(1..=255).contains(&weight) {
            return Err(element.fault(format!("weight {weight} is not in 1 to 255")));
        }
        if found.free_kb.is_some_and(|free_kb| free_kb > total_kb) {
            return Err(element.fault("has more free memory than memory"));
        }
        if found.cache_kb.is_some_and(|cache_kb| cache_kb > total_kb) {
            return Err(element.fault("has more page cache than memory"));
        }
        if found.id.0 > u32::from(u16::MAX) {
            return Err(element.fault(format!("{} is above the limit of 65535", found.id)));
        }
        Ok(found)
    }

    /// Does the file say how many pages of which size it has?
    pub fn tells_pages(&self) -> bool {
        !self.pages.is_empty()
    }

    fn node(&self, cpus: CpuSet, tiers: &[u32]) -> NodeInfo {
        // The smallest are the base pages.
        let huge = self.pages.iter().skip(1).map(|&(bytes, count)| HugePages {
            size_kb: bytes / 1024,
            total: count,
            free: count,
        });
        let rank = |number| tiers.iter().position(|tier| *tier == number);
        NodeInfo {
            id: self.id,
            cpus,
            memory: NodeMemory {
                total_kb: self.total_kb,
                free_kb: self.free_kb.unwrap_or(self.total_kb),
                cache_kb: self.cache_kb.unwrap_or(0),
                ..NodeMemory::default()
            },
            tier: self.tier.and_then(|number| {
                let rank = u32::try_from(rank(number)?).ok()?;
                Some(Tier { rank, number })
            }),
            access: Vec::new(),
            huge_pages: huge.collect(),
            weight: self.weight,
        }
    }
}

fn info<T>(
    element: &Element,
    name: &str,
    parser: impl FnOnce(&str) -> Parsed<T>,
) -> Parsed<Option<T>> {
    let Some(info) = element.info(name) else {
        return Ok(None);
    };
    let value = parser(info.required("value")?);
    value
        .map(Some)
        .map_err(|fault| info.fault(format!("{name}: {}", fault.reason)))
}

/// The nodes, ascending, each with its own CPUs; every CPU that runs is in one at most.
pub(super) fn assign(
    found: &[Found<'_>],
    whole: &Element,
    online: &CpuSet,
    notes: &mut Vec<String>,
) -> Parsed<Vec<NodeInfo>> {
    let mut order: Vec<&Found> = found.iter().collect();
    // What says it itself comes first.
    order.sort_by_key(|node| (node.own.is_none(), node.near.len(), node.id));
    let mut tiers: Vec<u32> = found.iter().filter_map(|node| node.tier).collect();
    tiers.sort_unstable();
    tiers.dedup();
    let mut taken = CpuSet::new();
    let mut nodes: Vec<NodeInfo> = Vec::new();
    let mut guessed: Vec<NodeId> = Vec::new();
    for node in order {
        let cpus = match &node.own {
            Some(own) => own.intersection(online),
            None => node.near.difference(&taken),
        };
        if let Some(cpu) = cpus.intersection(&taken).first() {
            let reason = format!("{cpu} is local to {} and to another node", node.id);
            return Err(node.element.fault(reason));
        }
        if nodes.iter().any(|known| known.id == node.id) {
            return Err(node.element.fault(format!("{} is there already", node.id)));
        }
        if node.own.is_none() && cpus.len() < node.near.len() {
            guessed.push(node.id);
        }
        taken = taken.union(&cpus);
        nodes.push(node.node(cpus, &tiers));
    }
    nodes.sort_by_key(|node| node.id);
    let homeless = online.difference(&taken);
    if !homeless.is_empty() {
        notes.push(format!(
            "CPUs {homeless} are in the cpuset of no NUMANode (lstopo leaves out nodes that its cgroup \
             forbids, but with --disallowed)"
        ));
    }
    if nodes.is_empty() {
        return Err(whole.fault("has no NUMANode"));
    }
    if nodes.iter().all(|node| node.memory.total_kb == 0) {
        let is_told = |node: &Found<'_>| node.element.attribute("local_memory").is_some();
        if found.iter().any(is_told) {
            return Err(whole.fault("no node has memory"));
        }
        notes.push(
            "the file does not tell how much memory nodes have: sets have CPUs alone there"
                .to_owned(),
        );
    }
    if !guessed.is_empty() {
        guessed.sort_unstable();
        let guessed: Vec<String> = guessed.iter().map(NodeId::to_string).collect();
        notes.push(format!(
            "hwloc does not tell CPUs of a node from CPUs near it: those that {} shares with a nearer \
             node are taken as the nearer one's",
            guessed.join(", ")
        ));
    }
    if found
        .iter()
        .any(|node| node.free_kb.is_none() && node.total_kb > 0)
    {
        notes.push("the file does not tell free memory: all memory counts as free".to_owned());
    }
    if tiers.is_empty() {
        notes.push("the file names no memory tiers: all memory counts as one".to_owned());
    }
    Ok(nodes)
}
