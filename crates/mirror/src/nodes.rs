//! The machine's nodes, and on which of them this process runs.

use crate::sys;
use hither_core::mirror::RESERVE_SHARE;
use hither_core::snapshot::available;
use std::collections::BTreeSet;
use std::fs;

/// Nodes with their CPUs.
#[derive(Debug)]
pub struct Nodes {
    /// Number and CPUs.
    nodes: Vec<(u32, BTreeSet<u32>)>,
}

/// Where a process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileResidency {
    /// All its threads on one node.
    On(u32),
    /// On several, or nobody can tell.
    Nowhere(&'static str),
}

/// `0-3,8-11`.
fn parse_list(text: &str) -> BTreeSet<u32> {
    let parts = text.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    });
    parts.flatten().collect()
}

/// CPU on which a thread ran last, and the time that it had: fields 39 and 14 of
/// `12 (a b) S 1 2 3 0 -1 4194560 1 0 0 0 7 5 0 0 20 0 1 0 100 ...`.
fn parse_stat(text: &str) -> Option<(u32, u64)> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let time = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some((fields.get(36)?.parse().ok()?, time))
}

impl Nodes {
    /// Reads them.
    pub fn read() -> Self {
        let folder = "/sys/devices/system/node";
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let nodes = entries.filter_map(|entry| {
            let number = entry
                .file_name()
                .to_str()?
                .strip_prefix("node")?
                .parse()
                .ok()?;
            let cpus = fs::read_to_string(entry.path().join("cpulist")).ok()?;
            Some((number, parse_list(&cpus)))
        });
        Self {
            nodes: nodes.collect(),
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    fn of_cpu(&self, cpu: u32) -> Option<u32> {
        let found = self.nodes.iter().find(|(_, cpus)| cpus.contains(&cpu));
        found.map(|(node, _)| *node)
    }

    /// Where this process's threads run, but for `helper`: by what they may use, else by where those ran
    /// last that have used time since `times` was taken, which is renewed.
    pub fn whereabouts(&self, helper: i32, times: &mut Vec<(i32, u64)>) -> FileResidency {
        let mut allowed = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut now = Vec::new();
        let tasks = fs::read_dir("/proc/self/task")
            .into_iter()
            .flatten()
            .flatten();
        for task in tasks {
            let Some(thread) = task
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<i32>().ok())
            else {
                continue;
            };
            if thread == helper {
                continue;
            }
            for (number, word) in sys::affinity(thread).unwrap_or_default().iter().enumerate() {
                let cpus = (0..64).filter(|bit| word >> bit & 1 == 1);
                allowed.extend(cpus.filter_map(|bit| self.of_cpu(number as u32 * 64 + bit)));
            }
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            if let Some((cpu, time)) = parse_stat(&stat) {
                let before = times.iter().find(|(other, _)| *other == thread);
                if before.is_none_or(|(_, before)| *before != time) {
                    seen.extend(self.of_cpu(cpu));
                }
                now.push((thread, time));
            }
        }
        *times = now;
        let mut sets = [allowed, seen].into_iter().filter(|nodes| nodes.len() == 1);
        match sets.next().and_then(|nodes| nodes.first().copied()) {
            Some(node) => FileResidency::On(node),
            None => FileResidency::Nowhere("its threads run on several nodes: bind it to one"),
        }
    }

    /// Available and all bytes of a node's memory.
    pub fn memory(node: u32) -> Option<(u64, u64)> {
        let path = format!("/sys/devices/system/node/node{node}/meminfo");
        parse_meminfo(&fs::read_to_string(path).ok()?)
    }
}

/// Bytes that this process's control group may still use; none where it has no limit. Mirrors are charged to
/// the group of who copies, and a group that goes beyond its limit has a process killed.
pub fn group_room() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let read = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup{path}/{name}")).ok();
    let figure = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let most = figure("memory.max")?;
    let free = most.saturating_sub(figure("memory.current")?);
    let room = available(free, group_cache(&read("memory.stat")?));
    Some(room.saturating_sub(most / RESERVE_SHARE))
}

/// Bytes of page cache in a group's `memory.stat`: `inactive_file 4096`.
fn group_cache(text: &str) -> u64 {
    let figures = text.lines().filter_map(|line| line.split_once(' '));
    let cache = figures.filter(|(name, _)| matches!(*name, "active_file" | "inactive_file"));
    cache
        .filter_map(|(_, value)| value.parse::<u64>().ok())
        .sum()
}

/// Available and all bytes: `Node 0 MemFree:          123456 kB`.
fn parse_meminfo(text: &str) -> Option<(u64, u64)> {
    let figure = |name: &str| {
        let line = text
            .lines()
            .find(|line| line.split_whitespace().nth(2) == Some(name))?;
        let kib = line.split_whitespace().rev().nth(1)?.parse::<u64>().ok()?;
        Some(kib << 10)
    };
    let cache = figure("Active(file):")? + figure("Inactive(file):")?;
    Some((available(figure("MemFree:")?, cache), figure("MemTotal:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        assert_eq!(parse_list("0-2,8\n"), [0, 1, 2, 8].into_iter().collect());
        assert!(parse_list("\n").is_empty());
        let stat = "12 (a) b) S 1 2 3 0 -1 4194560 1 0 0 0 7 5 0 0 20 0 1 0 100 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 3 0 0";
        assert_eq!(parse_stat(stat), Some((3, 12)));
        let text = "Node 1 MemTotal:       1000 kB\nNode 1 MemFree:         10 kB\n\
                    Node 1 Active(file):     40 kB\nNode 1 Inactive(file):  8 kB\n";
        let stat = "anon 7\nfile 99\ninactive_file 30\nactive_file 12\ninactive_anon 5\n";
        assert_eq!(group_cache(stat), 42);
        assert_eq!(parse_meminfo(text), Some((34 << 10, 1000 << 10)));
    }

    #[test]
    fn this_process_is_somewhere() {
        let nodes = Nodes::read();
        if nodes.count() == 1 {
            let mut times = Vec::new();
            assert_eq!(
                nodes.whereabouts(0, &mut times),
                FileResidency::On(nodes.nodes[0].0)
            );
            assert!(!times.is_empty());
        }
    }
}
