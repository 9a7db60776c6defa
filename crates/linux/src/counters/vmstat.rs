//! `/proc/vmstat` and `/sys/devices/system/node/nodeN/{vmstat,numastat}`: pages moved, promoted and
//! demoted, NUMA hint faults, where allocations came from, huge pages.
//!
//! The kernel counts moves for the whole machine, promotions at the node that they went to,
//! demotions at the node that they came from, and nothing by pair of nodes.

use crate::error::{Fault, Result};
use crate::parse::{Parsed, clip};
use crate::root::Root;
use hither_core::ids::NodeId;

/// What is counted, in pages unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmEvent {
    /// Pages moved between nodes, or by compaction within one.
    Migrated,
    /// Pages that could not be moved.
    MigrateFailed,
    /// Pages promoted to a faster tier, at the node that they went to.
    Promoted,
    /// Pages demoted by kswapd, at the node that they came from.
    DemotedKswapd,
    /// Pages demoted by a process that waited for memory.
    DemotedDirect,
    /// Pages demoted by khugepaged.
    DemotedKhugepaged,
    /// Pages demoted because a person or a program asked (`memory.reclaim`).
    DemotedProactive,
    /// NUMA hint faults, in faults.
    HintFaults,
    /// NUMA hint faults on pages of the faulting CPU's own node.
    HintFaultsLocal,
    /// Pages that NUMA balancing moved.
    BalancingMigrated,
    /// Allocations on the node that was wanted.
    NumaHit,
    /// Allocations here although another node was wanted.
    NumaMiss,
    /// Allocations elsewhere although this node was wanted.
    NumaForeign,
    /// Allocations by an interleaving policy, as wanted.
    NumaInterleave,
    /// Allocations on the node of the allocating CPU.
    NumaLocal,
    /// Allocations on another node than that of the allocating CPU.
    NumaOther,
    /// Huge pages given out at a fault, in huge pages.
    HugeFaults,
    /// Huge pages made from small ones, in huge pages.
    HugeCollapsed,
    /// Huge pages split, in huge pages.
    HugeSplit,
    /// Huge pages moved whole, in huge pages.
    HugeMigrated,
}

use VmEvent::{
    BalancingMigrated, DemotedDirect, DemotedKhugepaged, DemotedKswapd, DemotedProactive,
    HintFaults, HintFaultsLocal, HugeCollapsed, HugeFaults, HugeMigrated, HugeSplit, MigrateFailed,
    Migrated, NumaForeign, NumaHit, NumaInterleave, NumaLocal, NumaMiss, NumaOther, Promoted,
};

/// The kernel's names of the events.
pub const NAMES: [(VmEvent, &str); COUNT] = [
    (Migrated, "pgmigrate_success"),
    (MigrateFailed, "pgmigrate_fail"),
    (Promoted, "pgpromote_success"),
    (DemotedKswapd, "pgdemote_kswapd"),
    (DemotedDirect, "pgdemote_direct"),
    (DemotedKhugepaged, "pgdemote_khugepaged"),
    (DemotedProactive, "pgdemote_proactive"),
    (HintFaults, "numa_hint_faults"),
    (HintFaultsLocal, "numa_hint_faults_local"),
    (BalancingMigrated, "numa_pages_migrated"),
    (NumaHit, "numa_hit"),
    (NumaMiss, "numa_miss"),
    (NumaForeign, "numa_foreign"),
    (NumaInterleave, "numa_interleave"),
    (NumaLocal, "numa_local"),
    (NumaOther, "numa_other"),
    (HugeFaults, "thp_fault_alloc"),
    (HugeCollapsed, "thp_collapse_alloc"),
    (HugeSplit, "thp_split_page"),
    (HugeMigrated, "thp_migration_success"),
];

/// How many events there are.
const COUNT: usize = 20;

/// `numastat` has other words for three of them.
const NUMASTAT_NAMES: [(&str, &str); 3] = [
    ("interleave_hit", "numa_interleave"),
    ("local_node", "numa_local"),
    ("other_node", "numa_other"),
];

/// Counts since boot, or the differences of two such readings. What the kernel does not tell is
/// `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events([Option<u64>; COUNT]);

impl Events {
    /// The count of an event, where the kernel tells.
    #[must_use]
    pub fn get(&self, event: VmEvent) -> Option<u64> {
        self.0[event as usize]
    }

    /// Pages demoted, whoever did it; `None` where the kernel counts none of it.
    #[must_use]
    pub fn demoted(&self) -> Option<u64> {
        let causes = [
            DemotedKswapd,
            DemotedDirect,
            DemotedKhugepaged,
            DemotedProactive,
        ];
        let told = causes.iter().filter_map(|&cause| self.get(cause));
        told.reduce(u64::saturating_add)
    }

    /// What happened since `before`. A count that went back, as a node's does when memory is taken
    /// out, gives zero.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut change = Self::default();
        for (index, slot) in change.0.iter_mut().enumerate() {
            *slot = match (self.0[index], before.0[index]) {
                (Some(now), Some(then)) => Some(now.saturating_sub(then)),
                _ => None,
            };
        }
        change
    }

    /// Takes from another reading what this one does not tell.
    fn or(mut self, other: &Self) -> Self {
        for (slot, &told) in self.0.iter_mut().zip(&other.0) {
            *slot = slot.or(told);
        }
        self
    }
}

/// Parses either file. Names that are not of interest here are skipped.
///
/// ```text
/// numa_hit 11212090
/// pgmigrate_success 512
/// ```
pub fn parse(text: &str) -> Parsed<Events> {
    let mut events = Events::default();
    for (index, line) in text.lines().enumerate() {
        let fail = |what: &str| Fault::new(index + 1, format!("`{}` {what}", clip(line)));
        let Some((name, count)) = line.split_once(' ') else {
            return Err(fail("is not a name and a count"));
        };
        let same = NUMASTAT_NAMES.iter().find(|(other, _)| *other == name);
        let name = same.map_or(name, |&(_, name)| name);
        if let Some(&(event, _)) = NAMES.iter().find(|(_, known)| *known == name) {
            let count = count.trim().parse().map_err(|_| fail("has no count"))?;
            events.0[event as usize] = Some(count);
        }
    }
    Ok(events)
}

/// The whole machine; nothing is told where the kernel has no such file.
///
/// # Errors
/// A file that cannot be read, or is not what the kernel prints.
pub fn machine(root: &Root) -> Result<Events> {
    Ok(root.parse_if_any("proc/vmstat", parse)?.unwrap_or_default())
}

/// One node.
///
/// # Errors
/// A file that cannot be read, or is not what the kernel prints.
pub fn node(root: &Root, node: NodeId) -> Result<Events> {
    let folder = format!("sys/devices/system/node/{node}");
    let events = root.parse_if_any(&format!("{folder}/vmstat"), parse)?;
    let events = events.unwrap_or_default();
    if events.get(NumaHit).is_some() && events.get(NumaLocal).is_some() {
        return Ok(events);
    }
    // Kernels before 4.14 have them here alone.
    let older = root.parse_if_any(&format!("{folder}/numastat"), parse)?;
    Ok(events.or(&older.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "\
nr_free_pages 1756701
numa_hit 1000
numa_miss 5
numa_foreign 7
numa_interleave 11
numa_local 990
numa_other 15
pgpromote_success 64
pgdemote_kswapd 10
pgdemote_direct 2
pgdemote_khugepaged 0
";

    #[test]
    fn every_event_has_its_own_place() {
        for (index, (event, name)) in NAMES.iter().enumerate() {
            assert_eq!(*event as usize, index, "{name}");
            let events = parse(&format!("{name} {}\n", index + 1)).unwrap();
            assert_eq!(events.get(*event), Some(index as u64 + 1), "{name}");
            let told = NAMES.iter().filter(|(e, _)| events.get(*e).is_some());
            assert_eq!(told.count(), 1, "{name}");
        }
    }

    #[test]
    fn differences_are_of_what_both_tell() {
        let before = parse(NODE).unwrap();
        assert_eq!(before.demoted(), Some(12));
        assert_eq!(before.get(Migrated), None);
        let later = NODE
            .replace("pgpromote_success 64", "pgpromote_success 80")
            .replace("pgdemote_kswapd 10", "pgdemote_kswapd 30")
            .replace("numa_miss 5", "numa_miss 1")
            .replace("numa_foreign 7\n", "");
        let change = parse(&later).unwrap().since(&before);
        assert_eq!(change.get(Promoted), Some(16));
        assert_eq!(change.demoted(), Some(20));
        assert_eq!(change.get(NumaMiss), Some(0), "it went back");
        assert_eq!(change.get(NumaForeign), None);
        assert_eq!(Events::default().demoted(), None);
    }

    #[test]
    fn an_old_kernels_node_is_completed_from_numastat() {
        let folder = tempfile::tempdir().unwrap();
        let node3 = folder.path().join("sys/devices/system/node/node3");
        std::fs::create_dir_all(&node3).unwrap();
        std::fs::write(node3.join("vmstat"), "pgpromote_success 4\n").unwrap();
        let numastat = "numa_hit 9\nnuma_miss 0\ninterleave_hit 3\nlocal_node 8\nother_node 1\n";
        std::fs::write(node3.join("numastat"), numastat).unwrap();
        let events = node(&Root::new(folder.path()), NodeId(3)).unwrap();
        let told = [Promoted, NumaHit, NumaInterleave, NumaLocal, NumaOther].map(|e| events.get(e));
        assert_eq!(told, [Some(4), Some(9), Some(3), Some(8), Some(1)]);
        let none = node(&Root::new(folder.path()), NodeId(4)).unwrap();
        assert_eq!(none, Events::default());
    }

    #[test]
    fn malformed_lines_are_named() {
        for (bad, what) in [
            ("numa_hit", "a name and a count"),
            ("numa_hit many", "no count"),
            ("numa_hit -1", "no count"),
            ("numa_hit 99999999999999999999", "no count"),
            ("", "a name and a count"),
        ] {
            let fault = parse(&format!("nr_free_pages 1\n{bad}\n")).unwrap_err();
            assert_eq!(fault.line, 2, "{bad}");
            assert!(fault.reason.contains(what), "{bad}: {}", fault.reason);
        }
        for cut in 0..NODE.len() {
            let _ = parse(&NODE[..cut]);
        }
    }

    #[test]
    fn this_kernel_is_read() {
        let root = Root::host();
        let events = machine(&root).unwrap();
        let topology = crate::topology::Topology::read(&root).unwrap();
        let first = node(&root, topology.nodes[0].id).unwrap();
        // A kernel without CONFIG_NUMA tells neither.
        assert_eq!(events.get(NumaHit).is_some(), first.get(NumaHit).is_some());
    }
}
