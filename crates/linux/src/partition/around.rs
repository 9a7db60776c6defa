//! What else of the machine follows a split: memory of other control groups, interrupts, the
//! kernel's own work, and parts that are taken off-line.
//!
//! Each is a setting whose former text is kept, and what it shall be follows from that text and
//! the layout ([`wanted`]): so a node that moves changes no more than it must, and what is put back
//! is what was there.

use crate::error::{Error, Result};
use crate::proc::cgroup::{PREFIX, TREE};
use crate::restore::{self, Setting};
use crate::root::Root;
use hither_core::ids::CpuId;
use hither_core::partition::Layout;
use hither_core::partition::file::{Wish, Work};
use hither_core::set::CpuSet;

const CONTROL: &str = "sys/fs/cgroup/cgroup.subtree_control";
const WORKQUEUES: &str = "sys/devices/virtual/workqueue/cpumask";
const DEFAULT_INTERRUPTS: &str = "proc/irq/default_smp_affinity";

/// The settings that a wish touches, as they are now.
///
/// # Errors
/// A file that cannot be read.
pub fn former(root: &Root, wish: &Wish) -> Result<Vec<Setting>> {
    let mut settings = Vec::new();
    // In the order in which they are put back: parts that come on-line first.
    for cpu in wish.layout.unused.cpus.iter() {
        let path = format!("sys/devices/system/cpu/cpu{}/online", cpu.0);
        settings.extend(Setting::of(root, &path)?);
    }
    for node in wish.layout.unused.nodes.iter() {
        let folder = format!("sys/devices/system/node/node{}", node.0);
        for block in root.numbered(&folder, "memory")? {
            let path = format!("sys/devices/system/memory/memory{block}/state");
            settings.extend(Setting::of(root, &path)?);
        }
    }
    let is_enabled = is_enabled(root)?;
    for name in root.names(TREE)? {
        let folder = format!("{TREE}/{name}");
        if name.starts_with(PREFIX) || !root.has(&format!("{folder}/cgroup.procs")) {
            continue;
        }
        let path = format!("{folder}/cpuset.mems");
        // Where the tree gives no memory away yet, all groups have all of it.
        let text = root.text_if_any(&path)?.unwrap_or_default();
        settings.push(Setting::new(path, text.trim()));
    }
    if !is_enabled {
        settings.push(Setting::new(CONTROL, "-cpuset"));
    }
    if wish.interrupts == Work::Rest {
        settings.extend(Setting::of(root, DEFAULT_INTERRUPTS)?);
        for number in root.numbered("proc/irq", "")? {
            let path = format!("proc/irq/{number}/smp_affinity_list");
            settings.extend(Setting::of(root, &path)?);
        }
    }
    if wish.workqueues == Work::Rest {
        settings.extend(Setting::of(root, WORKQUEUES)?);
    }
    Ok(settings)
}

/// Those of them that are the memory of groups that are not ours.
#[must_use]
pub fn memory(settings: &[Setting]) -> Vec<Setting> {
    let of_memory = |setting: &&Setting| setting.path.ends_with("/cpuset.mems");
    settings.iter().filter(of_memory).cloned().collect()
}

/// The tree gives CPUs and memory away, as partitions need.
///
/// # Errors
/// The kernel refused.
pub fn enable(root: &Root) -> Result<()> {
    match is_enabled(root)? {
        true => Ok(()),
        false => restore::write(root, CONTROL, "+cpuset"),
    }
}

fn is_enabled(root: &Root) -> Result<bool> {
    Ok(same(CONTROL, &root.text(CONTROL)?, "+cpuset"))
}

/// Puts a setting back.
///
/// # Errors
/// The kernel refused.
pub fn put_back(root: &Root, setting: &Setting) -> Result<()> {
    let is_memory = setting.path.ends_with("/cpuset.mems");
    if is_memory && setting.content.is_empty() {
        return all_memory(root, &setting.path);
    }
    if setting.path == CONTROL && others_use_it(root)? {
        return Err(Error::new(
            root.path(CONTROL),
            "keeps `cpuset`: other control groups use it by now",
            "write -cpuset to it when they do not",
        ));
    }
    setting.put_back(root)
}

/// A group has all memory again. To one with processes the kernel does not give an empty list back
/// (ENOSPC), which would mean the same.
fn all_memory(root: &Root, path: &str) -> Result<()> {
    let Some(now) = root.text_if_any(path)? else {
        return Ok(());
    };
    if now.trim().is_empty() || restore::write(root, path, "\n").is_ok() {
        return Ok(());
    }
    let all = root.text(&format!("{TREE}/cpuset.mems.effective"))?;
    restore::write(root, path, all.trim())
}

/// Does a group below the root that is not ours have CPUs or memory of its own?
fn others_use_it(root: &Root) -> Result<bool> {
    let all = root.text_if_any(&format!("{TREE}/cpuset.mems.effective"))?;
    for name in root.names(TREE)? {
        let text = |file: &str| root.text_if_any(&format!("{TREE}/{name}/{file}"));
        let cpus = text("cpuset.cpus")?.unwrap_or_default();
        let nodes = text("cpuset.mems")?.unwrap_or_default();
        let is_whole = nodes.trim().is_empty() || Some(&nodes) == all.as_ref();
        if !cpus.trim().is_empty() || !is_whole {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a setting shall be under a layout; `None`: what it is now. Its groups' memory follows the
/// layout's groups and is not told here.
#[must_use]
pub fn wanted(setting: &Setting, layout: &Layout) -> Option<String> {
    let partitions = layout.partitions.iter().map(|part| &part.set.cpus);
    let taken = partitions.fold(layout.unused.cpus.clone(), |sum, cpus| sum.union(cpus));
    let kept = |before: &CpuSet| {
        let left = before.difference(&taken);
        match left.is_empty() {
            true => layout.rest.cpus.clone(),
            false => left,
        }
    };
    let path = setting.path.as_str();
    if path == CONTROL {
        return Some("+cpuset".to_owned());
    }
    if path.ends_with("/cpuset.mems") {
        return None;
    }
    if path == WORKQUEUES || path == DEFAULT_INTERRUPTS {
        return Some(print_mask(&kept(&parse_mask(&setting.content)?)));
    }
    if path.starts_with("proc/irq/") {
        return Some(kept(&setting.content.parse().ok()?).to_string());
    }
    if path.ends_with("/online") {
        return Some("0".to_owned());
    }
    path.ends_with("/state").then(|| "offline".to_owned())
}

/// Does it follow a node that moves? What is off-line stays so, and is not tried again and again.
#[must_use]
pub fn follows(setting: &Setting) -> bool {
    !setting.path.ends_with("/online") && !setting.path.ends_with("/state")
}

/// Brings settings to what the layout asks for. What single interrupts and blocks of memory refuse
/// is told, not an error: per-CPU interrupts cannot go anywhere, and pages may be pinned.
///
/// # Errors
/// A setting that partitions cannot do without.
pub fn apply<'a>(
    root: &Root,
    settings: impl Iterator<Item = &'a Setting>,
    layout: &Layout,
) -> Result<Vec<String>> {
    let (mut interrupts, mut blocks, mut notes) = (Vec::new(), 0, Vec::new());
    for setting in settings {
        let Some(text) = wanted(setting, layout) else {
            continue;
        };
        let now = root.text_if_any(&setting.path)?.unwrap_or_default();
        if same(&setting.path, now.trim(), &text) {
            continue;
        }
        let Err(error) = restore::write(root, &setting.path, &text) else {
            continue;
        };
        match setting.path.strip_prefix("proc/irq/") {
            Some(rest) if rest.contains('/') => {
                interrupts.push(rest.split('/').next().unwrap_or(rest).to_owned());
            }
            _ if setting.path.ends_with("/state") => blocks += 1,
            _ => return Err(error),
        }
    }
    if !interrupts.is_empty() {
        notes.push(format!(
            "the kernel keeps these interrupts where they are: {}",
            interrupts.join(", ")
        ));
    }
    if blocks > 0 {
        notes.push(format!(
            "{blocks} blocks of unused memory cannot be taken off-line: something is in them that \
             cannot move"
        ));
    }
    Ok(notes)
}

/// Is this what the file says already? Masks are told with leading zeros, or without.
fn same(path: &str, now: &str, wanted: &str) -> bool {
    match path {
        WORKQUEUES | DEFAULT_INTERRUPTS => {
            parse_mask(now).is_some() && parse_mask(now) == parse_mask(wanted)
        }
        CONTROL => now.split_whitespace().any(|word| word == "cpuset"),
        _ => now == wanted,
    }
}

/// Reads the kernel's mask, in groups of 32 bits.
///
/// ```text
/// 00000000,ffff00ff
/// ```
fn parse_mask(text: &str) -> Option<CpuSet> {
    let mut cpus = Vec::new();
    for (group, digits) in text.trim().rsplit(',').enumerate() {
        let bits = u32::from_str_radix(digits, 16).ok()?;
        let base = 32 * group as u32;
        cpus.extend(
            (0..32)
                .filter(|bit| bits >> bit & 1 == 1)
                .map(|bit| CpuId(base + bit)),
        );
    }
    Some(cpus.into_iter().collect())
}

fn print_mask(cpus: &CpuSet) -> String {
    let last = cpus.iter().next_back().map_or(0, |cpu| cpu.0);
    let mut groups = vec![0u32; (last / 32 + 1) as usize];
    for cpu in cpus.iter() {
        groups[(cpu.0 / 32) as usize] |= 1 << (cpu.0 % 32);
    }
    let groups: Vec<String> = groups
        .iter()
        .rev()
        .map(|bits| format!("{bits:08x}"))
        .collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_core::partition::Partition;
    use hither_core::rset::ResourceSet;

    fn layout() -> Layout {
        let set = |cpus: &str, nodes: &str| ResourceSet {
            cpus: cpus.parse().unwrap(),
            nodes: nodes.parse().unwrap(),
        };
        Layout {
            rest: set("0-3", "0"),
            unused: set("60-63", "3"),
            partitions: vec![Partition {
                name: "db".to_owned(),
                kind: Default::default(),
                set: set("4-39", "1-2"),
            }],
        }
    }

    #[test]
    fn masks_are_read_as_they_are_written() {
        for (list, mask) in [
            ("0-3", "0000000f"),
            ("0,31-32,95", "80000000,00000001,80000001"),
        ] {
            let cpus: CpuSet = list.parse().unwrap();
            assert_eq!(print_mask(&cpus), mask);
            assert_eq!(parse_mask(mask), Some(cpus));
        }
        assert_eq!(parse_mask("f\n"), Some("0-3".parse().unwrap()));
        assert_eq!(parse_mask("x"), None);
    }

    #[test]
    fn what_a_setting_shall_be_follows_from_what_it_was() {
        let want = |path: &str, was: &str| wanted(&Setting::new(path, was), &layout());
        let irq = "proc/irq/24/smp_affinity_list";
        assert_eq!(want(irq, "0-63").unwrap(), "0-3,40-59");
        assert_eq!(want(irq, "2-5").unwrap(), "2-3");
        // Where nothing is left of it, the rest serves it.
        assert_eq!(want(irq, "8").unwrap(), "0-3");
        assert_eq!(want(DEFAULT_INTERRUPTS, "ff").unwrap(), "0000000f");
        assert_eq!(
            want(WORKQUEUES, "ffffffff,ffffffff").unwrap(),
            "0fffff00,0000000f"
        );
        assert_eq!(want(CONTROL, "-cpuset").unwrap(), "+cpuset");
        assert_eq!(
            want("sys/devices/system/cpu/cpu60/online", "1").unwrap(),
            "0"
        );
        let block = "sys/devices/system/memory/memory9/state";
        assert_eq!(want(block, "online").unwrap(), "offline");
        assert_eq!(want("sys/fs/cgroup/init.scope/cpuset.mems", ""), None);
    }

    #[test]
    fn the_same_mask_is_not_written_again() {
        assert!(same(WORKQUEUES, "f", "0000000f"));
        assert!(!same(WORKQUEUES, "ff", "0000000f"));
        assert!(same(CONTROL, "cpu cpuset memory", "+cpuset"));
    }
}
