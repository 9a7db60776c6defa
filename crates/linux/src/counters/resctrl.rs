//! Memory bandwidth by last-level cache, from `/sys/fs/resctrl` where somebody mounted it. This reads, and
//! never mounts or changes anything there; groups are made by [`crate::resctrl`].
//!
//! Each cache counts the bytes that its CPUs fetch from all memory (`mbm_total_bytes`) and from
//! memory of their own node (`mbm_local_bytes`), per group of tasks; a control group's count holds
//! those of its monitoring groups. So the machine is the sum over the root and the control groups.

use crate::error::{Fault, Result};
use crate::parse::{Parsed, clip};
use crate::resctrl::{FOLDER, NO_GROUPS, NONE, NOT_MOUNTED};
use crate::root::Root;
use hither_core::snapshot::Evidence;
use std::collections::BTreeMap;

/// Bytes that one last-level cache fetched since somebody began to count, or between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainBytes {
    /// From memory of its own node; `None` where the hardware does not tell just now.
    pub local: Option<u64>,
    /// From all memory.
    pub total: Option<u64>,
}

impl DomainBytes {
    /// What was fetched since `before`; `None` also where a counter was restarted.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let change = |now: Option<u64>, then: Option<u64>| now?.checked_sub(then?);
        Self {
            local: change(self.local, before.local),
            total: change(self.total, before.total),
        }
    }

    fn plus(self, other: Self) -> Self {
        let sum = |one: Option<u64>, two: Option<u64>| one?.checked_add(two?);
        Self {
            local: sum(self.local, other.local),
            total: sum(self.total, other.total),
        }
    }
}

/// A reading: bytes by the kernel's number of the cache.
pub type Bandwidth = BTreeMap<u32, DomainBytes>;

/// Differences of two readings, of caches that both know.
#[must_use]
pub fn since(now: &Bandwidth, before: &Bandwidth) -> Bandwidth {
    let change = |(&id, bytes): (&u32, &DomainBytes)| Some((id, bytes.since(before.get(&id)?)));
    now.iter().filter_map(change).collect()
}

/// Share of the bytes that caches fetched from memory of their own node, over all caches, from a
/// difference of two readings. It is of the whole machine: of a process only where it has a group.
#[must_use]
pub fn local_share(change: &Bandwidth) -> Evidence<f64> {
    let mut sum = DomainBytes {
        local: Some(0),
        total: Some(0),
    };
    for bytes in change.values() {
        sum = sum.plus(*bytes);
    }
    match sum.local.zip(sum.total) {
        // The two counters are read one after the other.
        Some((local, total)) if total > 0 => {
            let share = (local as f64 / total as f64).min(1.0);
            Evidence::measured(share, "resctrl, bytes of all last-level caches")
        }
        Some(_) => Evidence::unknown("nothing was fetched from memory"),
        None => Evidence::unknown("resctrl tells no bytes of some cache just now"),
    }
}

/// Why there is no reading, and what would give one.
///
/// # Errors
/// A sentence each.
pub fn available(root: &Root) -> std::result::Result<(), (&'static str, &'static str)> {
    if !root.has(FOLDER) {
        return Err((
            NONE,
            "use a CPU with cache monitoring (Intel RDT, AMD QoS, Arm MPAM) and a kernel with \
             CONFIG_X86_CPU_RESCTRL",
        ));
    }
    if !root.has(&format!("{FOLDER}/info")) {
        return Err(NOT_MOUNTED);
    }
    let features = root.text_if_any(&format!("{FOLDER}/info/L3_MON/mon_features"));
    let features = features.ok().flatten().unwrap_or_default();
    if !features.lines().any(|line| line.starts_with("mbm_")) {
        return Err((
            "resctrl does not monitor bandwidth on this CPU",
            "use a CPU with memory bandwidth monitoring (Intel MBM, AMD QoS)",
        ));
    }
    Ok(())
}

/// Reads all caches; `None` where resctrl is not mounted or does not monitor bandwidth.
///
/// # Errors
/// A file that cannot be read (it is root's where the mount says so), or is no count.
pub fn read(root: &Root) -> Result<Option<Bandwidth>> {
    if available(root).is_err() {
        return Ok(None);
    }
    let mut sums = Bandwidth::new();
    add_group(root, FOLDER, &mut sums)?;
    for name in root.names(FOLDER)? {
        let folder = format!("{FOLDER}/{name}");
        if !NO_GROUPS.contains(&name.as_str()) && root.has(&format!("{folder}/mon_data")) {
            add_group(root, &folder, &mut sums)?;
        }
    }
    Ok(Some(sums))
}

fn add_group(root: &Root, group: &str, sums: &mut Bandwidth) -> Result<()> {
    let folder = format!("{group}/mon_data");
    for name in root.names(&folder)? {
        let digits = name.strip_prefix("mon_L3_");
        let Some(id) = digits.and_then(|digits| digits.parse::<u32>().ok()) else {
            continue;
        };
        let count = |file: &str| {
            let told = root.parse_if_any(&format!("{folder}/{name}/{file}"), parse)?;
            Ok(told.flatten())
        };
        let bytes = DomainBytes {
            local: count("mbm_local_bytes")?,
            total: count("mbm_total_bytes")?,
        };
        let sum = sums.get(&id).map_or(bytes, |sum| sum.plus(bytes));
        sums.insert(id, sum);
    }
    Ok(())
}

/// A count of bytes; `None` where the hardware has none just now.
///
/// ```text
/// 812646400
/// Unavailable
/// ```
pub fn parse(text: &str) -> Parsed<Option<u64>> {
    match text.trim() {
        "Unavailable" | "Error" | "Unassigned" => Ok(None),
        count => count
            .parse()
            .map(Some)
            .map_err(|_| Fault::new(1, format!("`{}` is no count of bytes", clip(count)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn put(folder: &Path, below: &str, text: &str) {
        let path = folder.join(FOLDER).join(below);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn mounted() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let text = "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n";
        put(folder.path(), "info/L3_MON/mon_features", text);
        let root = Root::new(folder.path());
        (folder, root)
    }

    #[test]
    fn control_groups_are_added_and_monitoring_groups_are_in_them() {
        let (folder, root) = mounted();
        let put = |below: &str, text: &str| put(folder.path(), below, text);
        put("mon_data/mon_L3_00/mbm_total_bytes", "1000\n");
        put("mon_data/mon_L3_00/mbm_local_bytes", "700\n");
        put("mon_data/mon_L3_01/mbm_total_bytes", "50\n");
        put("mon_data/mon_L3_01/mbm_local_bytes", "Unavailable\n");
        put("batch/mon_data/mon_L3_00/mbm_total_bytes", "24\n");
        put("batch/mon_data/mon_L3_00/mbm_local_bytes", "20\n");
        put("mon_groups/m/mon_data/mon_L3_00/mbm_total_bytes", "999\n");
        let before = read(&root).unwrap().unwrap();
        let of = |local, total| DomainBytes { local, total };
        assert_eq!(before[&0], of(Some(720), Some(1024)));
        assert_eq!(before[&1], of(None, Some(50)));
        put("mon_data/mon_L3_00/mbm_total_bytes", "1500\n");
        put("mon_data/mon_L3_01/mbm_total_bytes", "10\n");
        let change = since(&read(&root).unwrap().unwrap(), &before);
        assert_eq!(change[&0], of(Some(0), Some(500)));
        assert_eq!(change[&1], of(None, None), "the counter was restarted");
        assert_eq!(local_share(&change).value(), None);
        let told = Bandwidth::from([(0, of(Some(30), Some(40))), (1, of(Some(60), Some(60)))]);
        assert_eq!(local_share(&told).value(), Some(&0.9));
        assert_eq!(local_share(&Bandwidth::new()).value(), None);
        put("mon_data/mon_L3_00/mbm_total_bytes", "lots\n");
        let error = read(&root).unwrap_err().to_string();
        assert!(error.contains("mbm_total_bytes:1"), "{error}");
        assert!(error.contains("no count of bytes"), "{error}");
    }

    #[test]
    fn what_is_missing_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        assert!(available(&root).unwrap_err().0.contains("no resctrl"));
        std::fs::create_dir_all(folder.path().join(FOLDER)).unwrap();
        assert!(available(&root).unwrap_err().1.contains("mount -t resctrl"));
        put(folder.path(), "info/L3_MON/mon_features", "llc_occupancy\n");
        assert!(available(&root).unwrap_err().0.contains("bandwidth"));
        assert_eq!(read(&root).unwrap(), None);
    }

    #[test]
    fn counts_are_numbers_or_words_that_say_there_is_none() {
        assert_eq!(parse("812646400\n"), Ok(Some(812_646_400)));
        assert_eq!(parse("Unavailable\n"), Ok(None));
        for bad in ["", "-1", "12 bytes", "99999999999999999999"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
