//! CPU time of control groups, limited for a while (`cpu.max`, cgroups(7)), and put back: also after `kill -9`.

use crate::error::{Error, Result};
use crate::restore::{self, Journal, Setting, runtime_folder};
use crate::root::Root;
use std::collections::BTreeMap;

/// Name of the journal.
const JOURNAL: &str = "cpu-limits";
/// Time over which a limit counts, in us. 10 ms: by the kernel's usual 100 ms a service whose time is used up answers
/// nothing for most of that.
const PERIOD_US: u64 = 10_000;
/// The least that the kernel takes of a period, in us.
const LEAST_US: u64 = 1000;
/// The smallest limit, in thousandths of a CPU.
pub const LEAST_MILLI_CPUS: u64 = LEAST_US * 1000 / PERIOD_US;

/// What limits the CPU time of a control group. `group` is its path below `/sys/fs/cgroup`, from `/` on.
fn file(group: &str) -> String {
    format!("sys/fs/cgroup{group}/cpu.max")
}

/// Limits that this process has set.
#[derive(Debug)]
pub struct CpuLimits {
    root: Root,
    journal: Journal,
    /// By group: what was there, and what was written last.
    held: BTreeMap<String, (Setting, String)>,
}

impl CpuLimits {
    /// Nothing is limited yet; the second value is a sentence about what a dead process had left.
    ///
    /// # Errors
    /// The journal cannot be had.
    pub fn open(root: &Root) -> Result<(Self, Option<String>)> {
        let (journal, note) = Journal::open(root, &runtime_folder()?, JOURNAL)?;
        let limits = Self {
            root: root.clone(),
            journal,
            held: BTreeMap::new(),
        };
        Ok((limits, note))
    }

    /// Limits a group to so many thousandths of a CPU.
    ///
    /// # Errors
    /// It has no limits, or the kernel refused.
    pub fn limit(&mut self, group: &str, milli_cpus: u64) -> Result<()> {
        let path = file(group);
        if !self.held.contains_key(group) {
            let before = Setting::of(&self.root, &path)?.ok_or_else(|| {
                let above = group.rsplit_once('/').map_or("", |(above, _)| above);
                Error::new(
                    self.root.path(&path),
                    "is not there: the group is gone, or its CPU time cannot be limited",
                    format!("echo +cpu > /sys/fs/cgroup{above}/cgroup.subtree_control"),
                )
            })?;
            self.held.insert(group.to_owned(), (before, String::new()));
            if let Err(error) = self.note() {
                self.held.remove(group);
                return Err(error);
            }
        }
        let us = (milli_cpus.max(LEAST_MILLI_CPUS) * PERIOD_US).div_ceil(1000);
        let text = format!("{us} {PERIOD_US}");
        restore::write(&self.root, &path, &text)?;
        if let Some((_, last)) = self.held.get_mut(group) {
            *last = text;
        }
        Ok(())
    }

    /// Gives a group the limit that it had, unless somebody else has given it another since.
    ///
    /// # Errors
    /// The kernel refused; what a later start puts back stays noted.
    pub fn release(&mut self, group: &str) -> Result<()> {
        let Some((before, last)) = self.held.get(group) else {
            return Ok(());
        };
        let path = before.path.clone();
        before.clone().only_if(path, last).put_back(&self.root)?;
        self.held.remove(group);
        self.note()
    }

    fn note(&mut self) -> Result<()> {
        let before = self.held.values().map(|(before, _)| before.clone());
        self.journal.begin(before.collect())
    }
}

impl Drop for CpuLimits {
    fn drop(&mut self) {
        let groups: Vec<String> = self.held.keys().cloned().collect();
        for group in groups {
            // What could not be put back stays in the journal: the next start tries again.
            let _ = self.release(&group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured::Captured;

    fn limits(machine: &Captured) -> (CpuLimits, Option<String>) {
        let (journal, note) =
            Journal::open(&machine.root, &machine.beside("run"), JOURNAL).unwrap();
        let limits = CpuLimits {
            root: machine.root.clone(),
            journal,
            held: BTreeMap::new(),
        };
        (limits, note)
    }

    #[test]
    fn limits_are_put_back_and_those_of_others_are_left() {
        let machine = Captured::new();
        for group in ["/a", "/b"] {
            machine.put(&file(group), "max 100000\n");
        }
        let read = |group: &str| machine.get(&file(group));
        let (mut held, _) = limits(&machine);
        held.limit("/a", 1500).unwrap();
        held.limit("/b", 1).unwrap();
        assert_eq!(
            (read("/a"), read("/b")),
            ("15000 10000".into(), "1000 10000".into())
        );
        held.release("/a").unwrap();
        assert_eq!(read("/a"), "max 100000");
        machine.put(&file("/b"), "7000 10000");
        drop(held);
        assert_eq!(read("/b"), "7000 10000");
        let error = limits(&machine)
            .0
            .limit("/c/d", 500)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("echo +cpu > /sys/fs/cgroup/c/cgroup.subtree_control"),
            "{error}"
        );
    }

    #[test]
    fn what_a_dead_process_left_is_put_back() {
        let machine = Captured::new();
        machine.put(&file("/a"), "30000 100000\n");
        let journal = machine.beside("run").join("cpu-limits.journal");
        let (mut held, _) = limits(&machine);
        held.limit("/a", 250).unwrap();
        held.limit("/a", 500).unwrap();
        // As it stands when the process is killed now.
        let left = std::fs::read(&journal).unwrap();
        drop(held);
        machine.put(&file("/a"), "5000 10000");
        std::fs::write(&journal, left).unwrap();
        let (_, note) = limits(&machine);
        assert!(note.unwrap().contains("`cpu-limits`"));
        assert_eq!(machine.get(&file("/a")), "30000 100000");
    }
}
