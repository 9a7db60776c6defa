//! Where new pages of a moved process come from: what its memory policies say, and what can be
//! changed about it.
//!
//! No process can set the policy of another: `set_mempolicy(2)` and `mbind(2)` are about the caller.
//! From outside the kernel follows one thing, the memory of the process's control group
//! (`cpuset.mems`): it narrows every policy of the processes in it and moves what they have. So
//! `--policy` writes that, where nobody else is in the group.

use super::perform::{Piece, count};
use anyhow::{Context, bail, ensure};
use hither_core::bind::KernelPolicy;
use hither_core::foreign::Foreign;
use hither_core::set::NodeSet;
use hither_linux::proc::cgroup;
use hither_linux::proc::numa_maps::{self, NumaMapping};
use hither_linux::proc::stat;
use hither_linux::restore;
use hither_linux::root::Root;
use std::collections::BTreeMap;

/// A policy that names nodes, and how much of what was selected has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The policy.
    pub policy: KernelPolicy,
    /// Selected mappings that have it.
    pub mapping_count: usize,
    /// Their pages in memory.
    pub pages: u64,
}

impl Held {
    /// Do new pages come from elsewhere than the moved ones went?
    #[must_use]
    pub fn leads_away_from(&self, targets: &NodeSet) -> bool {
        !self.policy.nodes.is_subset(targets)
    }
}

/// The policies with nodes among the selected mappings; none where the kernel does not tell.
#[must_use]
pub fn held(root: &Root, pid: i32, pieces: &[Piece]) -> Vec<Held> {
    let mappings = numa_maps::read(root, pid).unwrap_or_default();
    among(&mappings, pieces)
}

fn among(mappings: &[NumaMapping], pieces: &[Piece]) -> Vec<Held> {
    let mut found: BTreeMap<&str, Held> = BTreeMap::new();
    for piece in pieces {
        // A piece may begin within its mapping.
        let after = mappings.partition_point(|known| known.start <= piece.mapping.range.start);
        let known = after.checked_sub(1).map(|at| mappings[at].policy.as_str());
        let parsed = known.and_then(|text| Some((text, text.parse::<KernelPolicy>().ok()?)));
        let Some((text, policy)) = parsed.filter(|(_, policy)| policy.mode.has_nodes()) else {
            continue;
        };
        let held = found.entry(text).or_insert(Held {
            policy,
            mapping_count: 0,
            pages: 0,
        });
        held.mapping_count += 1;
        held.pages += count(&piece.resident);
    }
    found.into_values().collect()
}

/// The memory of a process's control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// `cpuset.mems` of the group, below the root folder.
    pub file: String,
    /// What it holds; empty where the group has what its parent has.
    pub before: String,
}

impl Memory {
    /// Of the group that a process is in.
    ///
    /// # Errors
    /// The group has no memory of its own to give, or others are in it: with what works instead.
    pub fn of(root: &Root, pid: i32) -> anyhow::Result<Self> {
        let instead = "start the program with `hither run --membind`, or in a group of its own \
                       (systemd-run --scope -p AllowedMemoryNodes=...)";
        let text = root.text(&format!("proc/{pid}/cgroup"));
        let text = text.with_context(|| format!("--policy: {NOBODY_ELSES}; {instead}"))?;
        let path = text.lines().find_map(|line| line.strip_prefix("0::"));
        let path = path.unwrap_or("/").trim_end_matches('/');
        ensure!(
            !path.is_empty() && path.split('/').all(|part| part != ".."),
            "--policy: {NOBODY_ELSES}, and process {pid} is in no control group of its own; {instead}"
        );
        let folder = format!("{}{path}", cgroup::TREE);
        let others: Vec<i32> = cgroup::processes(root, &folder)
            .into_iter()
            .filter(|&other| !descends(root, other, pid))
            .collect();
        if let Some(first) = others.first() {
            bail!(
                "--policy: {NOBODY_ELSES}, and its control group {} has {} besides (process \
                 {first}); {instead}",
                path.shown(),
                crate::print::count(others.len(), "process")
            );
        }
        let file = format!("{folder}/cpuset.mems");
        let before = root.text_if_any(&file)?;
        let before = before.with_context(|| {
            format!(
                "--policy: {NOBODY_ELSES}, and its control group {} has no cpuset.mems; write \
                 +cpuset to cgroup.subtree_control of the group above, or {instead}",
                path.shown()
            )
        })?;
        Ok(Self {
            file,
            before: before.trim().to_owned(),
        })
    }

    /// Lets the group have these nodes alone.
    ///
    /// # Errors
    /// The kernel refuses it, or gives fewer; then all is as before.
    pub fn narrow(&self, root: &Root, nodes: &NodeSet) -> anyhow::Result<()> {
        restore::write(root, &self.file, &nodes.to_string()).context("--policy")?;
        let effective = root.text_if_any(&format!("{}.effective", self.file))?;
        let effective = effective.unwrap_or_default();
        if effective.trim() != nodes.to_string() {
            self.put_back(root)?;
            bail!(
                "--policy: the control group gets `{}`, not {nodes}: the group above it has not got \
                 all of them; name those that it has",
                effective.trim()
            );
        }
        Ok(())
    }

    /// Gives the group what it had.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn put_back(&self, root: &Root) -> anyhow::Result<()> {
        // Writing nothing at all would be no call.
        let text = format!("{}\n", self.before);
        restore::write(root, &self.file, &text).context("--policy")
    }
}

const NOBODY_ELSES: &str =
    "the policy of another process changes with its control group's memory alone";

/// Is a process this one, or a child of its children?
fn descends(root: &Root, mut pid: i32, from: i32) -> bool {
    // Parents have begun before their children: no circle, and few steps.
    while pid > 1 && pid != from {
        let stat = root.parse_if_any(&format!("proc/{pid}/stat"), stat::parse);
        pid = stat.ok().flatten().map_or(0, |stat| stat.parent);
    }
    pid == from
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn put(root: &Root, file: &str, text: &str) {
        let path = root.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn process(root: &Root, pid: i32, parent: i32) {
        let line = format!("{pid} (a b) S {parent} {}", "1 ".repeat(40));
        put(root, &format!("proc/{pid}/stat"), &line);
    }

    #[test]
    fn a_group_of_its_own_is_narrowed_and_put_back() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        for (pid, parent) in [(1, 0), (7, 1), (8, 7), (9, 8), (20, 1)] {
            process(&root, pid, parent);
        }
        put(&root, "proc/7/cgroup", "1:name=x:/other\n0::/db\n");
        put(&root, "sys/fs/cgroup/db/cgroup.procs", "7\n8\n");
        put(&root, "sys/fs/cgroup/db/below/cgroup.procs", "9\n");
        let refused = || Memory::of(&root, 7).unwrap_err().to_string();
        assert!(refused().contains("has no cpuset.mems; write +cpuset"));
        put(&root, "sys/fs/cgroup/db/cpuset.mems", "\n");
        put(&root, "sys/fs/cgroup/db/cpuset.mems.effective", "2\n");
        let memory = Memory::of(&root, 7).unwrap();
        assert_eq!(
            (&*memory.file, &*memory.before),
            ("sys/fs/cgroup/db/cpuset.mems", "")
        );
        let holds = || fs::read_to_string(root.path(&memory.file)).unwrap();
        memory.narrow(&root, &"2".parse().unwrap()).unwrap();
        assert_eq!(holds(), "2");
        // A group above that has not got all of them.
        let why = memory.narrow(&root, &"2-3".parse().unwrap()).unwrap_err();
        assert!(why.to_string().contains("gets `2`, not 2-3"), "{why}");
        assert_eq!(holds(), "\n");
        put(&root, "sys/fs/cgroup/db/cgroup.procs", "7\n20\n");
        assert!(refused().contains("/db has 1 process besides (process 20)"));
        put(&root, "proc/7/cgroup", "0::/\n");
        assert!(refused().contains("in no control group of its own"));
        put(&root, "proc/7/cgroup", "0::/../x\n");
        assert!(refused().contains("in no control group of its own"));
    }

    #[test]
    fn policies_that_lead_elsewhere_are_found_by_mapping() {
        let text = "1000 bind:3 anon=1 N3=1\n3000 default\n5000 prefer:1 file=/x N1=1\n";
        let mappings = numa_maps::parse(text).unwrap();
        let piece = |start: u64, pages: u64| Piece {
            mapping: hither_linux::sys::OwnMapping {
                range: start..start + (pages << 12),
                ..Default::default()
            },
            resident: std::iter::once(start >> 12..(start >> 12) + pages).collect(),
            ..Piece::default()
        };
        // The second is a part of the first mapping; below the first there is none.
        let pieces = [
            piece(0x1000, 1),
            piece(0x2000, 2),
            piece(0x3000, 1),
            piece(0x5000, 4),
        ];
        let held = among(&mappings, &pieces);
        let told = |held: &Held| (held.policy.to_string(), held.mapping_count, held.pages);
        assert_eq!(
            held.iter().map(told).collect::<Vec<_>>(),
            [("bind:3".to_owned(), 2, 3), ("prefer:1".to_owned(), 1, 4)]
        );
        let away = |nodes: &str| {
            let nodes = nodes.parse().unwrap();
            held.iter()
                .filter(|held| held.leads_away_from(&nodes))
                .count()
        };
        assert_eq!((away("2"), away("0-3"), away("3")), (2, 0, 1));
        assert!(among(&mappings, &[piece(0, 1)]).is_empty());
        assert!(among(&[], &pieces).is_empty());
    }
}
