//! hither's own groups: made, filled, and gone when hither is.
//!
//! One hither at a time makes groups: it holds the lock of the journal `resctrl` ([`crate::restore`]), so that
//! whatever group of hither's name is there when the lock is had was left by somebody dead. There is nothing
//! else to put back after `kill -9`: the kernel gives the tasks and CPUs of a removed group to the root.

use super::{PREFIX, Schemata, Tree};
use crate::error::{Error, Result};
use crate::proc;
use crate::restore::Journal;
use hither_core::set::CpuSet;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Files of a group in a folder without a kernel behind it.
const PLAIN_FILES: [&str; 3] = ["schemata", "cpus_list", "tasks"];
/// Looks at a process's threads until none is new: those that a moved thread starts are in its group.
const MOST_LOOKS: usize = 16;
const AS_ROOT: &str = "run hither as root, outside containers";

/// What was put into a group.
#[derive(Debug, Default)]
struct Content {
    /// By process: threads that were moved, each with the group of somebody else that it was in.
    processes: BTreeMap<i32, BTreeMap<i32, Option<String>>>,
    cpus: CpuSet,
}

/// The groups of this hither. Dropped, they are removed, and tasks go back to the groups they were in.
#[derive(Debug)]
pub struct OwnGroups {
    tree: Tree,
    groups: BTreeMap<String, Content>,
    /// Holds the lock.
    _journal: Journal,
}

/// Removes groups that a hither left which was killed; returns their names.
///
/// # Errors
/// As [`OwnGroups::take`].
pub fn remove_leftovers(tree: &Tree, journals: &Path) -> Result<Vec<String>> {
    OwnGroups::take(tree, journals).map(|(_, removed)| removed)
}

impl OwnGroups {
    /// Takes the right to make groups, and removes what a killed hither left: the second value has the names.
    /// `journals` is [`crate::restore::runtime_folder`].
    ///
    /// # Errors
    /// Another hither has groups; the folder of journals is not this user's; a group cannot be removed.
    pub fn take(tree: &Tree, journals: &Path) -> Result<(Self, Vec<String>)> {
        let (mut journal, _) = Journal::open(&tree.root, journals, "resctrl")?;
        // Nothing is to be put back, but the next one is told who has the lock.
        journal.begin(Vec::new())?;
        let mut removed = tree.names()?;
        removed.retain(|name| name.starts_with(PREFIX));
        for name in &removed {
            remove(tree, name)?;
        }
        let own = Self {
            tree: tree.clone(),
            groups: BTreeMap::new(),
            _journal: journal,
        };
        Ok((own, removed))
    }

    /// The tree.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Makes the group `hither-LABEL` with this; what `schemata` does not name is as the kernel has it for a
    /// new group, all there is. The label has letters, digits, `-` and `_`.
    ///
    /// # Errors
    /// The label or `schemata` cannot be, or the kernel has no group left.
    pub fn create(&mut self, label: &str, schemata: &Schemata) -> Result<()> {
        let name = format!("{PREFIX}{label}");
        let path = self.tree.root.path(&self.tree.below(&name, ""));
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
        if label.is_empty() || !label.chars().all(is_plain) {
            let remedy = "use letters, digits, - and _";
            return Err(Error::new(path, "is no name for a group", remedy));
        }
        check(&self.tree, &name, schemata)?;
        std::fs::create_dir(&path).map_err(|error| {
            let remedy = match error.raw_os_error() {
                Some(libc::ENOSPC) => format!(
                    "this CPU has {} groups in all, the root among them: remove one of another program's",
                    self.tree.info.group_count
                ),
                Some(libc::EEXIST) => "use another name".to_owned(),
                _ => AS_ROOT.to_owned(),
            };
            Error::io(&path, "cannot be made", remedy, error)
        })?;
        self.groups.insert(label.to_owned(), Content::default());
        let filled = self.fill_plain(&name);
        let written = filled.and_then(|()| self.write(label, schemata));
        if written.is_err() {
            // The first error tells more than that of removing what it left.
            let _ = self.remove(label);
        }
        written
    }

    /// Changes what a group has.
    ///
    /// # Errors
    /// `schemata` cannot be, or the kernel refuses it, with its reason.
    pub fn write(&self, label: &str, schemata: &Schemata) -> Result<()> {
        let name = self.name(label)?;
        check(&self.tree, &name, schemata)?;
        let path = self.tree.below(&name, "schemata");
        // Whole lines: a plain folder keeps what was written last, and nothing else.
        let mut whole = self.tree.root.parse(&path, Schemata::parse)?;
        whole.ways.extend(&schemata.ways);
        whole.bandwidth.extend(&schemata.bandwidth);
        self.put(&path, &whole.to_string())
    }

    /// Puts a process into a group, each of its threads, and those that they start from then on. A process
    /// that it starts is in the group too, and goes to the root group at the end. Returns how many threads
    /// were moved; 0 where it has ended.
    ///
    /// # Errors
    /// Groups go by CPUs alone here, or the kernel refuses.
    pub fn assign_process(&mut self, label: &str, pid: i32) -> Result<usize> {
        let name = self.name(label)?;
        let tasks = self.tree.below(&name, "tasks");
        if !self.tree.follows_tasks() {
            return Err(Error::new(
                self.tree.root.path(&tasks),
                "the laboratory does not follow tasks: groups go by CPUs there",
                "put the CPUs that the process runs on into the group",
            ));
        }
        let before = self.other_tasks()?;
        // A process is in one of our groups at a time, and what it was in before is kept.
        let owned = self.groups.values_mut();
        let known = owned.filter_map(|content| content.processes.remove(&pid));
        let known: BTreeMap<i32, Option<String>> = known.flatten().collect();
        let mut moved: BTreeMap<i32, Option<String>> = BTreeMap::new();
        let mut refused = None;
        for _ in 0..MOST_LOOKS {
            let mut is_new = false;
            for tid in proc::threads(&self.tree.root, pid)? {
                if moved.contains_key(&tid) {
                    continue;
                }
                match self.move_task(&tasks, tid) {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(error) => {
                        refused.get_or_insert(error);
                        continue;
                    }
                }
                is_new = true;
                let from = known.get(&tid).or_else(|| before.get(&tid));
                moved.insert(tid, from.cloned().flatten());
            }
            if !is_new {
                break;
            }
        }
        let count = moved.len();
        if let Some(content) = self.groups.get_mut(label)
            && count > 0
        {
            content.processes.insert(pid, moved);
        }
        match refused {
            Some(error) => Err(error),
            None => Ok(count),
        }
    }

    /// Puts a process's threads back where they were: into the root group, or that of somebody else.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn release_process(&mut self, pid: i32) -> Result<()> {
        let contents = self.groups.values_mut();
        let moved = contents.filter_map(|content| content.processes.remove(&pid));
        let moved: Vec<_> = moved.collect();
        for threads in moved {
            self.put_back(pid, &threads)?;
        }
        Ok(())
    }

    /// Gives a group these CPUs, and takes those away that it had besides: who runs there and is in no group
    /// fills what this group may. CPUs of another group of this hither's change over.
    ///
    /// # Errors
    /// A CPU is in a group of somebody else, or the kernel refuses.
    pub fn assign_cpus(&mut self, label: &str, cpus: &CpuSet) -> Result<()> {
        let name = self.name(label)?;
        let path = self.tree.below(&name, "cpus_list");
        for other in self.tree.groups()?.iter().filter(|group| !group.is_own()) {
            let both = other.cpus.intersection(cpus);
            if !both.is_empty() {
                return Err(Error::new(
                    self.tree.root.path(&path),
                    format!(
                        "CPUs {both} are in the group `{}` of another program",
                        other.name
                    ),
                    "leave them out, or remove that group",
                ));
            }
        }
        let others: Vec<String> = self
            .groups
            .keys()
            .filter(|l| *l != label)
            .cloned()
            .collect();
        for other in others {
            let had = &self.groups[&other].cpus;
            let left = had.difference(cpus);
            if left.len() < had.len() {
                self.write_cpus(&other, &left)?;
            }
        }
        self.write_cpus(label, cpus)
    }

    /// Puts back what is in a group, and removes it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove(&mut self, label: &str) -> Result<()> {
        let name = self.name(label)?;
        let content = self.groups.remove(label).unwrap_or_default();
        let mut first = Ok(());
        for (pid, threads) in &content.processes {
            // In the root group they are as soon as there is no group.
            if threads.values().any(Option::is_some) {
                first = first.and(self.put_back(*pid, threads));
            }
        }
        // Whatever happened to tasks, a group that stays would keep them.
        remove(&self.tree, &name).and(first)
    }

    /// Removes all groups.
    ///
    /// # Errors
    /// The first that could not be removed; the others are.
    pub fn stop(mut self) -> Result<()> {
        self.remove_all()
    }

    fn remove_all(&mut self) -> Result<()> {
        let labels: Vec<String> = self.groups.keys().cloned().collect();
        let removed = labels.iter().map(|label| self.remove(label));
        // All are tried before the first error is told.
        let results: Vec<Result<()>> = removed.collect();
        results.into_iter().collect()
    }

    /// The folder's name of a group that was made.
    fn name(&self, label: &str) -> Result<String> {
        let name = format!("{PREFIX}{label}");
        match self.groups.contains_key(label) {
            true => Ok(name),
            false => {
                let path = self.tree.root.path(&self.tree.below(&name, ""));
                Err(Error::new(
                    path,
                    "hither has made no such group",
                    "make it first",
                ))
            }
        }
    }

    /// Threads in groups of others, with the group. Those of monitoring groups alone are not in them.
    fn other_tasks(&self) -> Result<BTreeMap<i32, Option<String>>> {
        let mut tasks = BTreeMap::new();
        for name in self.tree.names()? {
            if name.starts_with(PREFIX) {
                continue;
            }
            let text = self
                .tree
                .root
                .text_if_any(&self.tree.below(&name, "tasks"))?;
            let numbers = text.unwrap_or_default();
            let numbers = numbers.lines().filter_map(|line| line.trim().parse().ok());
            tasks.extend(numbers.map(|tid: i32| (tid, Some(name.clone()))));
        }
        Ok(tasks)
    }

    /// Puts the threads of a process back. One that was started meanwhile goes where its first thread goes.
    fn put_back(&self, pid: i32, moved: &BTreeMap<i32, Option<String>>) -> Result<()> {
        let names: BTreeSet<String> = self.tree.names()?.into_iter().collect();
        let first = moved.get(&pid).cloned().flatten();
        for tid in proc::threads(&self.tree.root, pid)? {
            let group = moved.get(&tid).unwrap_or(&first).as_deref();
            // Its group may be gone.
            let group = group.filter(|group| names.contains(*group));
            let tasks = self.tree.below(group.unwrap_or(""), "tasks");
            self.move_task(&tasks, tid)?;
        }
        Ok(())
    }

    /// Writes one thread into a list of tasks; false where it has ended.
    fn move_task(&self, tasks: &str, tid: i32) -> Result<bool> {
        match self.put(tasks, &format!("{tid}\n")) {
            Err(error) if error.errno() == Some(libc::ESRCH) => Ok(false),
            result => result.map(|()| true),
        }
    }

    fn write_cpus(&mut self, label: &str, cpus: &CpuSet) -> Result<()> {
        let path = self.tree.below(&self.name(label)?, "cpus_list");
        self.put(&path, &format!("{cpus}\n"))?;
        if let Some(content) = self.groups.get_mut(label) {
            content.cpus = cpus.clone();
        }
        Ok(())
    }

    /// One write to a file of the tree; what the kernel says of it goes into the error.
    fn put(&self, below: &str, text: &str) -> Result<()> {
        let path = self.tree.root.path(below);
        let mut options = OpenOptions::new();
        // A list of tasks grows by what is written to it, all else is replaced.
        match below.ends_with("/tasks") {
            true => options.append(true),
            false => options.write(true).truncate(true),
        };
        let written = options
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| {
            let why = self.tree.below("", "info/last_cmd_status");
            let why = self.tree.root.text_if_any(&why).ok().flatten();
            let why = why.as_deref().map(str::trim).filter(|why| !why.is_empty());
            let why = why.filter(|why| *why != "ok").unwrap_or("no reason told");
            let reason = format!("`{}` cannot be written to it ({error}: {why})", text.trim());
            let remedy = match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM | libc::EROFS) => AS_ROOT,
                Some(libc::ENOENT | libc::ENODEV) => "somebody removed the group: make it again",
                _ => "see what other groups have (an exclusive one's ways are nobody else's)",
            };
            Error::io(&path, reason, remedy, error)
        })
    }

    /// Where no kernel makes a new group's files, they are made here: then it has what the root has.
    fn fill_plain(&self, name: &str) -> Result<()> {
        let schemata = self.tree.below(name, "schemata");
        if self.tree.root.has(&schemata) {
            return Ok(());
        }
        for file in PLAIN_FILES {
            let text = match file {
                "schemata" => self.tree.whole.to_string(),
                "tasks" if !self.tree.follows_tasks() => continue,
                _ => String::new(),
            };
            let path = self.tree.root.path(&self.tree.below(name, file));
            std::fs::write(&path, text)
                .map_err(|error| Error::io(&path, "cannot be made", AS_ROOT, error))?;
        }
        Ok(())
    }
}

impl Drop for OwnGroups {
    fn drop(&mut self) {
        // Who wants to know calls `stop`.
        let _ = self.remove_all();
    }
}

/// Can a group have this? The kernel would say no more than that it cannot.
fn check(tree: &Tree, name: &str, schemata: &Schemata) -> Result<()> {
    let path = tree.root.path(&tree.below(name, "schemata"));
    let fail = |reason: String| {
        let remedy = "see info/ and schemata of the tree for what can be given";
        Err(Error::new(&path, reason, remedy))
    };
    for (cache, mask) in &schemata.ways {
        if !tree.whole.ways.contains_key(cache) {
            return fail(format!("there is no last-level cache {cache}"));
        }
        if let Err(error) = tree.info.ways.check(*mask) {
            return fail(format!("of cache {cache}: {error}"));
        }
    }
    for (cache, part) in &schemata.bandwidth {
        let Some(limits) = tree.info.bandwidth else {
            return fail("this CPU does not limit memory bandwidth".to_owned());
        };
        if !tree.whole.bandwidth.contains_key(cache) {
            return fail(format!("there is no last-level cache {cache}"));
        }
        let least = limits.least;
        if *part < least {
            return fail(format!(
                "bandwidth {part} of cache {cache} is less than {least}"
            ));
        }
    }
    Ok(())
}

/// Removes a group's folder; one that is gone is gone.
fn remove(tree: &Tree, name: &str) -> Result<()> {
    let path = tree.root.path(&tree.below(name, ""));
    let removed = std::fs::remove_dir(&path).or_else(|error| {
        // The kernel removes a group's files with it; of a plain folder they are in the way.
        if error.kind() != ErrorKind::DirectoryNotEmpty {
            return Err(error);
        }
        for file in PLAIN_FILES {
            match std::fs::remove_file(path.join(file)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::remove_dir(&path)
    });
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::io(path, "cannot be removed", AS_ROOT, error))
        }
        _ => Ok(()),
    }
}
