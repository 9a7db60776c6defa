//! How much free memory of a node the kernel keeps back from page migration, by `/proc/zoneinfo`.
//!
//! A page is moved only where the target's zone has more free than its *low* watermark (Linux, `mm/page_alloc.c`,
//! `get_page_from_freelist`): below that the kernel says that there is no memory. NUMA balancing moves pages only where
//! there is more than the *high* one (`mm/migrate.c`, `migrate_balanced_pgdat`).

use super::frames::each_pair;
use crate::parse::Parsed;
use crate::root::Root;
use hither_core::ids::NodeId;
use hither_core::snapshot::PAGE_BYTES;
use std::collections::BTreeMap;

/// Those of the zones of a node together, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Below it memory is not given to page migration.
    pub low: u64,
    /// Beyond it the kernel's own balancing moves pages there.
    pub high: u64,
}

/// Of each node; empty where the kernel does not tell.
#[must_use]
pub fn read(root: &Root) -> BTreeMap<NodeId, Marks> {
    let marks = root.parse_if_any("proc/zoneinfo", parse);
    marks.ok().flatten().unwrap_or_default()
}

///
/// ```text
/// Node 0, zone    DMA32
///   pages free     2143
///         min      1746
///         low      2182
///         high     2618
/// ```
fn parse(text: &str) -> Parsed<BTreeMap<NodeId, Marks>> {
    let mut marks: BTreeMap<NodeId, Marks> = BTreeMap::new();
    each_pair(text, |node, key, value| {
        let mut sum = |figure: fn(&mut Marks) -> &mut u64| {
            let pages: u64 = value.parse().ok()?;
            let sum = figure(marks.entry(node?).or_default());
            *sum = sum.saturating_add(pages.saturating_mul(PAGE_BYTES));
            Some(())
        };
        match key {
            "low" => sum(|marks| &mut marks.low),
            "high" => sum(|marks| &mut marks.high),
            _ => Some(()),
        }
    })?;
    Ok(marks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_of_a_node_are_added_up() {
        let text = "Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 1\n  pages free     2814\n        \
                    boost    0\n        min      7\n        low      10\n        high     11\n  pagesets\n    cpu: 0\n              \
                    count:    5\n              high:     91\n              high_min: 91\n\
                    Node 0, zone    DMA32\n        low      2182\n        high     2618\nNode 4, zone   Normal\n        low      3\n";
        let marks = |low: u64, high: u64| Marks {
            low: low * 4096,
            high: high * 4096,
        };
        let expected = [(NodeId(0), marks(2192, 2629)), (NodeId(4), marks(3, 0))];
        assert_eq!(parse(text).unwrap(), expected.into());
        for (text, line) in [
            ("low 5", 1),
            ("Node 0, zone A\nlow many", 2),
            ("Node x, zone A", 1),
        ] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text}");
        }
        assert!(read(&Root::new("/nowhere")).is_empty());
    }

    #[test]
    fn this_machine_tells() {
        assert!(
            read(&Root::host())
                .values()
                .any(|marks| 0 < marks.low && marks.low < marks.high)
        );
    }
}
