//! Tiering by DAMON: its schemes `migrate_hot` and `migrate_cold`, each with a goal for the fast node.
//!
//! The set-up is that of damo's `scripts/mem_tier.sh` (github.com/damonitor/damo, commit 7e1d3af), which
//! belongs to "mm/damon: auto-tune DAMOS for NUMA setups including tiered memory" (Linux 6.16,
//! lkml.kernel.org/r/20250420194030.75838-1-sj@kernel.org). What the script leaves to damo's defaults stands
//! here with them: DAMON looks each 5 ms and adds up each 100 ms until it tunes itself.

use super::{Result, doing};
use crate::protocol::MACHINE_PATH;
use hither_core::ids::NodeId;
use hither_core::machine::parse;
use hither_linux::restore;
use hither_linux::root::Root;
use std::fs;

/// DAMON's files.
pub const FOLDER: &str = "sys/kernel/mm/damon/admin/kdamonds";

/// Settings of a context, below its folder: damo's `--monitoring_intervals_goal 4% 3 5ms 10s`, and its
/// defaults for intervals and numbers of regions.
const MONITORING: &[(&str, &str)] = &[
    ("operations", "paddr"),
    ("monitoring_attrs/intervals/sample_us", "5000"),
    ("monitoring_attrs/intervals/aggr_us", "100000"),
    ("monitoring_attrs/intervals/update_us", "1000000"),
    ("monitoring_attrs/intervals/intervals_goal/access_bp", "400"),
    ("monitoring_attrs/intervals/intervals_goal/aggrs", "3"),
    (
        "monitoring_attrs/intervals/intervals_goal/min_sample_us",
        "5000",
    ),
    (
        "monitoring_attrs/intervals/intervals_goal/max_sample_us",
        "10000000",
    ),
    ("monitoring_attrs/nr_regions/min", "10"),
    ("monitoring_attrs/nr_regions/max", "1000"),
    ("targets/nr_targets", "1"),
    ("schemes/nr_schemes", "1"),
];

/// Settings of a scheme, below its folder, that both have: 200 MB a second at most, applied each second.
const SCHEME: &[(&str, &str)] = &[
    ("access_pattern/sz/min", "0"),
    ("access_pattern/sz/max", "18446744073709551615"),
    ("access_pattern/age/min", "0"),
    ("access_pattern/age/max", "4294967295"),
    ("apply_interval_us", "1000000"),
    ("quotas/ms", "0"),
    ("quotas/bytes", "209715200"),
    ("quotas/reset_interval_ms", "1000"),
    ("quotas/weights/sz_permil", "1"),
    ("quotas/weights/nr_accesses_permil", "1"),
    ("quotas/weights/age_permil", "1"),
    ("quotas/goals/nr_goals", "1"),
    ("filters/nr_filters", "1"),
    ("filters/0/type", "young"),
    ("filters/0/matching", "Y"),
];

/// Cold pages of the fast node, so that 0.5 % of it are free: not accessed in any of 20 looks, and not
/// young.
const DEMOTE: &[(&str, &str)] = &[
    ("action", "migrate_cold"),
    ("access_pattern/nr_accesses/min", "0"),
    ("access_pattern/nr_accesses/max", "0"),
    ("quotas/goals/0/target_metric", "node_mem_free_bp"),
    ("quotas/goals/0/target_value", "50"),
    ("filters/0/allow", "N"),
];

/// Hot pages of the slow node, so that 99.7 % of the fast one are used: accessed in 5 % of 20 looks, and
/// young.
const PROMOTE: &[(&str, &str)] = &[
    ("action", "migrate_hot"),
    ("access_pattern/nr_accesses/min", "1"),
    ("access_pattern/nr_accesses/max", "4294967295"),
    ("quotas/goals/0/target_metric", "node_mem_used_bp"),
    ("quotas/goals/0/target_value", "9970"),
    ("filters/0/allow", "Y"),
];

/// Schemes that run, one kdamond for each node.
#[derive(Debug)]
pub struct Schemes;

impl Schemes {
    /// Refuses machines and kernels that cannot have them.
    pub fn check(root: &Root) -> Result<()> {
        tiers(root)?;
        // A kernel without the actions or goals refuses the words.
        let tried = write_all(root);
        clear(root)?;
        tried.map_err(|reason| {
            format!(
                "this kernel's DAMON cannot move between tiers ({reason}); leave the policy out, or choose \
                 another --kernel (Linux 6.16 or later)"
            )
        })
    }

    /// Starts them.
    pub fn start(root: &Root) -> Result<Self> {
        write_all(root)?;
        for kdamond in 0..2 {
            write(root, &format!("{FOLDER}/{kdamond}/state"), "on")?;
        }
        Ok(Self)
    }

    /// Stops them and leaves nothing set up.
    pub fn stop(self, root: &Root) -> Result<()> {
        for kdamond in 0..2 {
            write(root, &format!("{FOLDER}/{kdamond}/state"), "off")?;
        }
        clear(root)
    }
}

fn clear(root: &Root) -> Result<()> {
    write(root, &format!("{FOLDER}/nr_kdamonds"), "0")
}

fn write(root: &Root, path: &str, value: &str) -> Result<()> {
    restore::write(root, path, value).map_err(|error| error.to_string())
}

/// The fast and the slow node.
fn tiers(root: &Root) -> Result<(NodeId, NodeId)> {
    let text = fs::read_to_string(root.path(MACHINE_PATH.trim_start_matches('/')))
        .map_err(doing("reading the machine file"))?;
    let machine = parse::parse(&text).map_err(doing("reading the machine file"))?;
    match &machine.nodes[..] {
        [one, other] if one.tier < other.tier => Ok((one.id, other.id)),
        [one, other] if one.tier > other.tier => Ok((other.id, one.id)),
        nodes => Err(format!(
            "it moves pages between two nodes of two tiers, and {} has {} nodes{}",
            machine.name,
            nodes.len(),
            if nodes.len() == 2 { " of one tier" } else { "" }
        )),
    }
}

/// Sets up both kdamonds, without starting them.
fn write_all(root: &Root) -> Result<()> {
    let (fast, slow) = tiers(root)?;
    let zones = root
        .text("proc/zoneinfo")
        .map_err(|error| error.to_string())?;
    write(root, &format!("{FOLDER}/nr_kdamonds"), "2")?;
    let both = [(fast, slow, DEMOTE), (slow, fast, PROMOTE)];
    for (kdamond, (from, to, own)) in both.into_iter().enumerate() {
        let kdamond = format!("{FOLDER}/{kdamond}");
        write(root, &format!("{kdamond}/contexts/nr_contexts"), "1")?;
        let context = format!("{kdamond}/contexts/0");
        for (path, value) in MONITORING {
            write(root, &format!("{context}/{path}"), value)?;
        }
        let regions = format!("{context}/targets/0/regions");
        let ranges = ranges(&zones, from);
        write(
            root,
            &format!("{regions}/nr_regions"),
            &ranges.len().to_string(),
        )?;
        for (index, (start, end)) in ranges.into_iter().enumerate() {
            write(
                root,
                &format!("{regions}/{index}/start"),
                &start.to_string(),
            )?;
            write(root, &format!("{regions}/{index}/end"), &end.to_string())?;
        }
        let scheme = format!("{context}/schemes/0");
        // The goal and the filter are there once there is one of each.
        for (path, value) in SCHEME.iter().chain(own) {
            write(root, &format!("{scheme}/{path}"), value)?;
        }
        write(root, &format!("{scheme}/target_nid"), &to.0.to_string())?;
        write(
            root,
            &format!("{scheme}/quotas/goals/0/nid"),
            &fast.0.to_string(),
        )?;
    }
    Ok(())
}

/// Physical addresses of a node's zones, by `/proc/zoneinfo`; ascending, neighbours joined.
fn ranges(zones: &str, node: NodeId) -> Vec<(u64, u64)> {
    const PAGE_BYTES: u64 = 4096;
    let head = format!("Node {},", node.0);
    let mut own = false;
    let mut spanned = 0;
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for line in zones.lines() {
        if line.starts_with("Node ") {
            own = line.starts_with(&head);
            spanned = 0;
        }
        let mut words = line.split_whitespace();
        let (key, value) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let number = || value.parse::<u64>().unwrap_or(0);
        match key {
            "spanned" if own => spanned = number(),
            "start_pfn:" if own && spanned > 0 => {
                let (start, end) = (number() * PAGE_BYTES, (number() + spanned) * PAGE_BYTES);
                match ranges.last_mut() {
                    Some(last) if last.1 == start => last.1 = end,
                    _ => ranges.push((start, end)),
                }
            }
            _ => {}
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONES: &str = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 0
  pages free     3840
        spanned  4095
        present  3998
  start_pfn:           1
Node 0, zone    DMA32
        spanned  126976
  start_pfn:           4096
Node 0, zone   Normal
        spanned  0
  start_pfn:           0
Node 1, zone    DMA32
        spanned  262144
  start_pfn:           131072
";

    #[test]
    fn ranges_are_those_of_the_nodes_zones() {
        let of = |node| ranges(ZONES, NodeId(node));
        assert_eq!(of(0), [(0x1000, 131_072 * 4096)]);
        assert_eq!(of(1), [(131_072 * 4096, 393_216 * 4096)]);
        assert_eq!(of(2), []);
    }
}
