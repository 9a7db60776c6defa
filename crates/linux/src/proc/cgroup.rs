//! Partitions as the kernel has them: control groups `hither.NAME` with their CPUs and memory.
//!
//! They stand directly below the root of the unified tree, as a partition's parent has to be a
//! partition itself and the root is one. What the kernel means by each file is in
//! `Documentation/admin-guide/cgroup-v2.rst`, section cpuset.

use crate::error::{Error, Result};
use crate::restore::{self, Setting};
use crate::root::Root;
use hither_core::partition::{Group, Kind, REST, Write};
use hither_core::rset::ResourceSet;
use hither_core::set::NodeSet;
use std::io;

/// The unified tree, below the root folder.
pub const TREE: &str = "sys/fs/cgroup";
/// How the names of our groups begin.
pub(crate) const PREFIX: &str = "hither.";

/// The folder of an owner's group, below the root folder.
#[must_use]
pub fn folder(name: &str) -> String {
    format!("{TREE}/{PREFIX}{name}")
}

/// What the unified tree has to give, as `cpuset cpu io memory`.
///
/// # Errors
/// The unified tree is not there.
pub fn controllers(root: &Root) -> Result<String> {
    root.text_if_any(&format!("{TREE}/cgroup.controllers"))?
        .ok_or_else(|| {
            Error::new(
                root.path(TREE),
                "is not the unified tree of control groups",
                "mount cgroup2 there, or boot with systemd.unified_cgroup_hierarchy=1",
            )
        })
}

/// Can there be partitions here?
///
/// # Errors
/// The unified tree is not there, or has no CPUs and memory to give.
pub fn check(root: &Root) -> Result<()> {
    let text = controllers(root)?;
    if !text.split_whitespace().any(|word| word == "cpuset") {
        return Err(Error::new(
            root.path(TREE).join("cgroup.controllers"),
            "has no `cpuset`",
            "the kernel needs CONFIG_CPUSETS, and no cgroup v1 tree may have taken it; in a \
             container run hither outside",
        ));
    }
    Ok(())
}

/// Our groups as they are.
///
/// # Errors
/// A file that cannot be read, or is not what the kernel prints.
pub fn present(root: &Root) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for entry in root.names(TREE)? {
        let Some(name) = entry.strip_prefix(PREFIX) else {
            continue;
        };
        let below = |file: &str| format!("{}/{file}", folder(name));
        let list = |file: &str| root.parse_if_any(&below(file), crate::parse::list);
        let nodes = root.parse_if_any(&below("cpuset.mems"), crate::parse::list)?;
        let kind = root.text_if_any(&below("cpuset.cpus.partition"))?;
        groups.push(Group {
            name: name.to_owned(),
            kind: match kind.as_deref().unwrap_or("").trim() {
                "root" => Some(Kind::Root),
                "isolated" => Some(Kind::Isolated),
                _ => None,
            },
            set: ResourceSet {
                cpus: match name {
                    REST => hither_core::set::CpuSet::new(),
                    _ => list("cpuset.cpus")?.unwrap_or_default(),
                },
                nodes: nodes.unwrap_or_default(),
            },
        });
    }
    Ok(groups)
}

/// Carries out one change; `rest` is the memory of those groups that are not ours, as it was before
/// there were partitions.
///
/// # Errors
/// The kernel refused it: with its reason, where it tells one.
pub fn carry_out(root: &Root, write: &Write, rest: &[Setting]) -> Result<()> {
    let put = |name: &str, file: &str, text: &str| {
        restore::write(root, &format!("{}/{file}", folder(name)), text)
    };
    match write {
        Write::Make(name) => {
            let path = root.path(&folder(name));
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    let remedy = "run hither as root, outside containers";
                    Err(Error::io(path, "cannot be made", remedy, error))
                }
                _ => Ok(()),
            }
        }
        Write::Nodes(name, nodes) => {
            // Its own last: what holds the new nodes is known to be through.
            for setting in rest.iter().filter(|_| name == REST) {
                write_nodes(root, setting, nodes)?;
            }
            put(name, "cpuset.mems", &nodes.to_string())
        }
        Write::Cpus(name, cpus) => put(name, "cpuset.cpus", &cpus.to_string()),
        Write::Kind(name, kind) => put(name, "cpuset.cpus.partition", kind.word()),
        Write::Remove(name) => remove(root, &folder(name)),
    }
}

/// A group gets no memory that it had not before, unless nothing else is left. One that is gone
/// needs nothing.
fn write_nodes(root: &Root, setting: &Setting, nodes: &NodeSet) -> Result<()> {
    let before: NodeSet = setting.content.parse().unwrap_or_default();
    let both = nodes.intersection(&before);
    let nodes = if both.is_empty() { nodes } else { &both };
    match root.has(&setting.path) {
        true => restore::write(root, &setting.path, &nodes.to_string()),
        false => Ok(()),
    }
}

/// Every group that should be a partition is one.
///
/// # Errors
/// One is not, with the kernel's reason.
pub fn verify(root: &Root, wanted: &[Group]) -> Result<()> {
    for group in wanted {
        let Some(kind) = group.kind else { continue };
        let path = format!("{}/cpuset.cpus.partition", folder(&group.name));
        let text = root.text(&path)?;
        if text.trim() != kind.word() {
            return Err(Error::new(
                root.path(&path),
                format!("is `{}`, not `{}`", text.trim(), kind.word()),
                "another control group names these CPUs (cpuset.cpus, AllowedCPUs= of a unit), or the \
                 kernel is older than 6.1",
            ));
        }
    }
    Ok(())
}

/// Removes a group that has no processes, and those below it. One that is gone needs nothing.
///
/// # Errors
/// It has processes.
pub fn remove(root: &Root, below: &str) -> Result<()> {
    for name in root.names(below)? {
        let child = format!("{below}/{name}");
        if root.has(&format!("{child}/cgroup.procs")) {
            remove(root, &child)?;
        }
    }
    let path = root.path(below);
    match std::fs::remove_dir(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io(
            path,
            format!("cannot be removed ({error})"),
            "look which processes it has in its cgroup.procs",
            error,
        )),
        _ => Ok(()),
    }
}

/// Do paths of control groups in `/proc` mean what they mean below `/sys/fs/cgroup`? Not in a container
/// that has a view of its own of the one, and the host's of the other. Where there is no unified tree,
/// nothing speaks against it.
#[must_use]
pub fn is_one_view(root: &Root) -> bool {
    let own = std::process::id();
    let Some(group) = super::pressure::group_of(root, own as i32) else {
        return true;
    };
    let listed = format!("{}/cgroup.procs", group.trim_end_matches('/'));
    match root.text_if_any(&format!("sys/fs/cgroup{listed}")) {
        Ok(Some(text)) => text.lines().any(|line| line.parse() == Ok(own)),
        Ok(None) => !root.has("sys/fs/cgroup/cgroup.procs"),
        Err(_) => true,
    }
}

/// Processes of a control group and of those below it; none where it is gone.
#[must_use]
pub fn processes(root: &Root, folder: &str) -> Vec<i32> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        found.extend(own_processes(root, &folder));
        for name in root.names(&folder).unwrap_or_default() {
            let below = format!("{folder}/{name}");
            if root.path(&below).join("cgroup.procs").exists() {
                folders.push(below);
            }
        }
    }
    found
}

/// Processes of a control group alone.
#[must_use]
pub fn own_processes(root: &Root, folder: &str) -> Vec<i32> {
    // No limit on its size: a group may have a million.
    let text = std::fs::read_to_string(root.path(&format!("{folder}/cgroup.procs")));
    let text = text.unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Puts a process into a group. One that has ended needs nothing.
///
/// # Errors
/// The kernel refused.
pub fn put(root: &Root, pid: i32, folder: &str) -> Result<()> {
    let path = root.path(&format!("{folder}/cgroup.procs"));
    match std::fs::write(&path, pid.to_string()) {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(Error::io(
            path,
            format!("does not take process {pid} ({error})"),
            match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => "run hither as root, outside containers",
                Some(libc::EINVAL) => "it is a thread of the kernel's: those stay",
                _ => {
                    "a group with groups below it that have controllers takes none: name one below"
                }
            },
            error,
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_groups_below_are_members() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("sys/fs/cgroup/a/b");
        std::fs::create_dir_all(&below).unwrap();
        std::fs::write(below.join("cgroup.procs"), "12\n13\n").unwrap();
        std::fs::write(below.join("../cgroup.procs"), "11\nx\n").unwrap();
        let root = Root::new(folder.path());
        let mut members = processes(&root, "sys/fs/cgroup/a");
        members.sort_unstable();
        assert_eq!(members, [11, 12, 13]);
    }
}
